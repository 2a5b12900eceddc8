//! The stale flow log: while a conntrack walk looks for stale flows, rules log each of their packets, so that a flow
//! in use is deleted at its next packet and not when the walk finds it.
//!
//! ```text
//!  endpoint removed        table created                    walk done
//!        |-------------------|------------------------------------|
//!   a packet goes to the     a packet is logged; its flow is
//!   old endpoint             deleted by its tuple; the next one
//!                            goes to a new endpoint
//! ```
//!
//! Logged packets pass: a terminating endpoint still answers them. The table is separate and has chains of type
//! filter, which cost every packet of established connections; so it exists only while there are keys in it. If the
//! kernel supports owners, it is deleted with the socket that created it.

use std::collections::BTreeSet;

use proxy_netfilter::nft::command::{Command, IfExists};
use proxy_netfilter::nft::datatype::{concat_len, concat_number};
use proxy_netfilter::nft::expr::{Ct, Log};
use proxy_netfilter::nft::numbers::{CmpOp, CtKey, HookPoint, SetFlags, TableFlags};
use proxy_netfilter::nft::object::{Hook, SetSize};
use proxy_netfilter::nft::userdata::{self, ByteOrder};
use proxy_netfilter::nft::{Batch, Chain, Expr, Family, Reg, Rule, Set, Table, Type, Value};

use crate::layout::address_value;
use crate::layout::expr_builders::{
    address_type, address_words, compare_byte, is_dnat, is_in_set, original_address, original_port,
    protocol,
};
use crate::model::Protocol;
use crate::stale::{FlowAnswer, StaleFlows};

/// Maximum of keys; further flows are left to the walk.
pub const STALE_FLOWS_MAX: usize = 65_536;
/// After conntrack (-200), which finds the flow, and before nat (-100), which rewrites the packet.
const PRIORITY: i32 = -150;
/// `IP_CT_DIR_REPLY`.
const REPLY: u8 = 1;

const KEY: Reg = Reg::word(0);
const SCRATCH: Reg = Reg::word(12);

/// A set of the table.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
enum StaleFlowSet {
    /// Flows to an address.
    Addresses,
    /// Flows to a node port.
    NodePorts,
}

impl StaleFlowSet {
    const ALL: [Self; 2] = [Self::Addresses, Self::NodePorts];

    fn name(self) -> &'static str {
        match self {
            Self::Addresses => "stale",
            Self::NodePorts => "stale-node-ports",
        }
    }
}

/// Flows from a frontend to a removed endpoint, as a key.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct StaleFlowKey {
    family: Family,
    set: StaleFlowSet,
    key: Value,
}

impl StaleFlowKey {
    /// The key of these flows; `None` if they have no DNAT of the proxy, and for those without an answer: packets of
    /// others with the same key are not to be logged.
    pub fn from_flows(flows: &StaleFlows) -> Option<Self> {
        (flows.answer() == FlowAnswer::Any).then_some(())?;
        let (orig, reply) = (&flows.filter.orig, &flows.filter.reply);
        let proto = [orig.proto?];
        let (to_port, from_port) = (orig.dst_port?.to_be_bytes(), reply.src_port?.to_be_bytes());
        let from = reply.src?;
        let family = crate::model::family_of(from);
        let from = address_value(&from);
        let tail = [from.bytes(), &from_port[..]];
        let (set, key) = match &orig.dst {
            Some(to) => {
                let to = address_value(to);
                let parts = [to.bytes(), &proto, &to_port, tail[0], tail[1]];
                (StaleFlowSet::Addresses, Value::concat(&parts))
            }
            None => (StaleFlowSet::NodePorts, Value::concat(&[&proto, &to_port, tail[0], tail[1]])),
        };
        Some(Self { family, set, key })
    }
}

/// Parameters of the table that logs packets of stale flows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StaleFlowLog {
    /// Name of the table.
    pub table: String,
    /// Table flags: owner, if the kernel supports it.
    pub flags: TableFlags,
    /// Families with a table.
    pub families: Vec<Family>,
    /// NFLOG group.
    pub group: u16,
}

impl StaleFlowLog {
    /// For the proxy whose tables have this name, on a kernel that supports `flags`.
    pub fn new(table: &str, flags: TableFlags, families: &[Family], group: u16) -> Self {
        let owned = flags.0 & TableFlags::OWNER.0;
        let table = format!("{table}-stale");
        Self { table, flags: TableFlags(owned), families: families.into(), group }
    }

    /// Appends the commands that delete the table, if it exists.
    pub fn delete_table(&self, batch: &mut Batch) {
        for family in &self.families {
            batch.push(*family, &Command::NewTable(Table::named(&self.table), IfExists::Keep));
            batch.push(*family, &Command::DelTable(Table::named(&self.table)));
        }
    }

    /// Appends the commands that create the table, empty.
    pub fn create_table(&self, batch: &mut Batch) {
        self.delete_table(batch);
        for family in &self.families {
            let table = Table { flags: Some(self.flags), ..Table::named(&self.table) };
            batch.push(*family, &Command::NewTable(table, IfExists::Keep));
            for (set, id) in StaleFlowSet::ALL.into_iter().zip(1..) {
                batch.push(*family, &Command::NewSet(self.set(*family, set, id), IfExists::Fail));
            }
            for (name, point) in
                [("prerouting", HookPoint::PREROUTING), ("output", HookPoint::OUTPUT)]
            {
                let chain = Chain {
                    hook: Some(Hook { point, priority: PRIORITY }),
                    policy: Some(1),
                    kind: Some("filter".into()),
                    ..Chain::regular(&self.table, name)
                };
                batch.push(*family, &Command::NewChain(chain, IfExists::Fail));
                for rule in self.rules(*family, name) {
                    batch.push(*family, &Command::NewRule(rule));
                }
            }
        }
    }

    /// Appends the commands that add keys, none of which may exist.
    pub fn add_keys(&self, keys: &BTreeSet<StaleFlowKey>, batch: &mut Batch) {
        for (family, set, run) in self.runs(keys) {
            let members = run.iter().map(|key| (&key.key, None));
            batch.add_pairs(family, &self.table, set.name(), members);
        }
    }

    /// Appends the commands that delete keys, all of which must exist.
    pub fn remove_keys(&self, keys: &BTreeSet<StaleFlowKey>, batch: &mut Batch) {
        for (family, set, run) in self.runs(keys) {
            batch.del_keys(family, &self.table, set.name(), run.iter().map(|key| &key.key));
        }
    }

    /// The keys of each set.
    fn runs<'a>(
        &self,
        keys: &'a BTreeSet<StaleFlowKey>,
    ) -> Vec<(Family, StaleFlowSet, Vec<&'a StaleFlowKey>)> {
        let mut runs: Vec<(Family, StaleFlowSet, Vec<&StaleFlowKey>)> = Vec::new();
        for key in keys.iter().filter(|key| self.families.contains(&key.family)) {
            match runs.last_mut() {
                Some((family, set, run)) if (*family, *set) == (key.family, key.set) => {
                    run.push(key);
                }
                _ => runs.push((key.family, key.set, vec![key])),
            }
        }
        runs
    }

    fn set(&self, family: Family, set: StaleFlowSet, id: u32) -> Set {
        let address = address_type(family);
        let from = [address, Type::Port];
        let to: &[Type] = match set {
            StaleFlowSet::Addresses => &[address, Type::Proto, Type::Port],
            StaleFlowSet::NodePorts => &[Type::Proto, Type::Port],
        };
        let key = [to, &from].concat();
        Set {
            table: self.table.clone(),
            name: set.name().into(),
            flags: SetFlags(0),
            key_type: Some(concat_number(&key)),
            key_len: concat_len(&key),
            data_type: None,
            data_len: None,
            // Without a fixed size: it is seldom large and never there for long.
            size: SetSize(None),
            id: Some(id),
            timeout_ms: None,
            gc_interval_ms: None,
            expr: None,
            userdata: userdata::set(ByteOrder::Mixed, None),
        }
    }

    fn rules(&self, family: Family, chain: &str) -> Vec<Rule> {
        let cases = [Protocol::Udp, Protocol::Sctp, Protocol::Tcp]
            .map(|protocol| StaleFlowSet::ALL.map(|set| (protocol, set)));
        let cases = cases.into_iter().flatten();
        let rule = |(protocol, set)| Rule {
            table: self.table.clone(),
            chain: chain.to_owned(),
            handle: None,
            exprs: self.catch(family, protocol, set),
            userdata: userdata::rule_comment("report packets of stale flows"),
        };
        cases.map(rule).collect()
    }

    /// Logs packets of a protocol to removed endpoints; cheap conditions first.
    fn catch(&self, family: Family, of: Protocol, set: StaleFlowSet) -> Vec<Expr> {
        let after = address_words(family);
        let ct =
            |key, direction, dreg| Expr::from(Ct { dreg: Some(dreg), key, direction, sreg: None });
        let source = if family == Family::Ip6 { CtKey::SRC_IP6 } else { CtKey::SRC_IP };
        let (to, from) = match set {
            StaleFlowSet::Addresses => (Some(original_address(family, KEY)), KEY.plus(after)),
            StaleFlowSet::NodePorts => (None, KEY),
        };
        let mut exprs = vec![protocol(SCRATCH), compare_byte(SCRATCH, CmpOp::EQ, of.number())];
        exprs.extend(is_dnat(SCRATCH));
        exprs.push(ct(CtKey::DIRECTION, None, SCRATCH));
        exprs.push(compare_byte(SCRATCH, CmpOp::EQ, 0));
        exprs.extend(to);
        exprs.extend([
            protocol(from),
            original_port(from.plus(1)),
            ct(source, Some(REPLY), from.plus(2)),
            ct(CtKey::PROTO_SRC, Some(REPLY), from.plus(2).plus(after)),
            is_in_set(set.name(), KEY),
            Log { group: self.group }.into(),
        ]);
        exprs
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proxy_netfilter::ct::{AddressFamily, FlowFilter, STATUS_DNAT, TupleFilter};

    fn flows(to: Option<[u8; 4]>) -> StaleFlows {
        let orig = TupleFilter {
            dst: to.map(Into::into),
            proto: Some(17),
            dst_port: Some(53),
            ..TupleFilter::default()
        };
        let reply = TupleFilter {
            src: Some([10, 0, 0, 7].into()),
            proto: Some(17),
            src_port: Some(5353),
            ..TupleFilter::default()
        };
        let filter = FlowFilter { orig, reply, status: Some((STATUS_DNAT, STATUS_DNAT)) };
        StaleFlows { family: AddressFamily::V4, filter }
    }

    #[test]
    fn keys_hold_frontend_and_endpoint_in_the_order_of_the_registers() {
        let key = StaleFlowKey::from_flows(&flows(Some([10, 96, 0, 1]))).unwrap();
        let expected = [10, 96, 0, 1, 17, 0, 0, 0, 0, 53, 0, 0, 10, 0, 0, 7, 0x14, 0xe9, 0, 0];
        assert_eq!((key.set, key.key.bytes()), (StaleFlowSet::Addresses, &expected[..]));
        let key = StaleFlowKey::from_flows(&flows(None)).unwrap();
        assert_eq!((key.set, key.key.bytes()), (StaleFlowSet::NodePorts, &expected[4..]));
    }

    #[test]
    fn flows_that_pass_a_service_by_are_not_caught() {
        let mut bypassed = flows(Some([10, 96, 0, 1]));
        bypassed.filter.reply = TupleFilter::default();
        assert_eq!(StaleFlowKey::from_flows(&bypassed), None);
    }
}
