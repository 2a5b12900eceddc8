//! Conntrack entries that a transaction makes stale: without a handshake, flows continue to a removed endpoint, or
//! past a new Service, until their entries are deleted. Of TCP only those whose handshake has no answer are stale: each
//! retransmitted SYN goes to the removed endpoint, and so does another connection from the same port.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use proxy_netfilter::ct::{
    AddressFamily, Flow, FlowFilter, STATUS_DNAT, STATUS_SEEN_REPLY, TupleFilter,
};
use proxy_netfilter::nft::Family;

use crate::compile::SetElement;
use crate::hash::FastMap;
use crate::layout::{Class, Map};
use crate::model::Protocol;
pub use crate::stale_flows::{FlowAnswer, StaleFlows};
use crate::transaction::Transaction;

/// The entries that are stale after `transaction` is committed.
pub fn stale_flows(transaction: &Transaction) -> Vec<StaleFlows> {
    // A slot that is rewritten is removed and added; an endpoint is removed from a frontend when no slot of the
    // frontend has it any more, neither one that is added nor one that stays.
    let gone: BTreeSet<Pair> = transaction.removed.iter().filter_map(Pair::from_element).collect();
    let there = transaction.added.iter().chain(&transaction.kept).filter_map(Pair::from_element);
    let there: BTreeSet<Pair> = there.filter(|pair| gone.contains(pair)).collect();
    let lost = gone.difference(&there).map(Pair::stale_flows);
    // Both lists are sorted by place.
    let is_new = |entry: &SetElement| {
        let place = |e: &SetElement| {
            (e.family, e.map).cmp(&(entry.family, entry.map)).then_with(|| e.key.cmp(&entry.key))
        };
        transaction.removed.binary_search_by(place).is_err()
    };
    let bypassed = transaction.added.iter().filter_map(|entry| {
        matches!(entry.class()?, Class::Balance(..)).then_some(())?;
        let frontend = FlowDestination::read(entry)?;
        let bypassable = frontend.protocol.has_stale_flows() && is_new(entry);
        bypassable.then(|| frontend.bypassed())
    });
    lost.chain(bypassed).chain(transaction.resets.iter().copied()).collect()
}

/// Connections from a frontend, with `None` as the address of a node port, to an endpoint.
pub fn connections(
    (address, port): (Option<IpAddr>, u16),
    protocol: Protocol,
    endpoint: (IpAddr, u16),
) -> StaleFlows {
    let family = AddressFamily::from_address(endpoint.0);
    let frontend = FlowDestination { family, address, protocol, port };
    Pair { frontend, address: endpoint.0, port: endpoint.1 }.flows(FlowAnswer::Any)
}

/// Stale flows of several passes, for one walk.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct StaleSet {
    /// By frontend and endpoint.
    lost: FastMap<(FlowDestination, IpAddr, u16), FlowAnswer>,
    /// By frontend.
    bypassed: FastMap<FlowDestination, ()>,
}

impl StaleSet {
    /// The set of these flows.
    pub fn from_flows<'a>(flows: impl IntoIterator<Item = &'a StaleFlows>) -> Self {
        let mut set = Self::default();
        for stale in flows {
            let (orig, reply) = (&stale.filter.orig, &stale.filter.reply);
            let protocol = orig.proto.and_then(Protocol::from_number);
            let (Some(protocol), Some(port)) = (protocol, orig.dst_port) else { continue };
            let frontend =
                FlowDestination { family: stale.family, address: orig.dst, protocol, port };
            match (reply.src, reply.src_port) {
                (Some(address), Some(port)) => {
                    let answer = set.lost.entry((frontend, address, port)).or_default();
                    *answer = (*answer).max(stale.answer());
                }
                _ => drop(set.bypassed.insert(frontend, ())),
            }
        }
        set
    }

    /// Whether a flow is in the set.
    pub fn contains(&self, flow: &Flow) -> bool {
        let frontends = FlowDestination::from_flow(flow).into_iter().flatten();
        if flow.status & STATUS_DNAT == 0 {
            return frontends.into_iter().any(|frontend| self.bypassed.contains_key(&frontend));
        }
        let (address, port) = (flow.reply.src, flow.reply.src_port);
        let mut lost = frontends.into_iter().filter_map(|at| self.lost.get(&(at, address, port)));
        lost.any(|answer| match answer {
            FlowAnswer::Any => true,
            FlowAnswer::None => flow.status & STATUS_SEEN_REPLY == 0,
        })
    }

    /// Filters for the kernel: one dump for each family, protocol and kind.
    pub fn walks(&self) -> BTreeSet<StaleFlows> {
        let lost = self.lost.iter().map(|((frontend, ..), answer)| {
            frontend.walk((STATUS_DNAT, answer.mask() | STATUS_DNAT))
        });
        let bypassed = self.bypassed.keys().map(|frontend| frontend.walk((0, STATUS_DNAT)));
        lost.chain(bypassed).collect()
    }
}

/// All frontends of connectionless protocols with their endpoints: for checking all flows after a load, when the
/// previous endpoints are unknown.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AllowedEndpoints {
    frontends: HashMap<FlowDestination, HashSet<(IpAddr, u16)>>,
}

impl AllowedEndpoints {
    /// The frontends of these elements.
    pub fn from_elements<'a>(entries: impl IntoIterator<Item = &'a SetElement>) -> Self {
        let mut frontends: HashMap<FlowDestination, HashSet<(IpAddr, u16)>> = HashMap::new();
        for entry in entries {
            let pair = Pair::from_element(entry);
            if let Some(pair) = pair.filter(|pair| pair.frontend.protocol.has_stale_flows()) {
                frontends.entry(pair.frontend).or_default().insert((pair.address, pair.port));
            } else if entry.class().is_some()
                && let Some(frontend) = FlowDestination::read(entry)
                && frontend.protocol.has_stale_flows()
            {
                frontends.entry(frontend).or_default();
            }
        }
        Self { frontends }
    }

    /// Whether there is nothing to check.
    pub fn is_empty(&self) -> bool {
        self.frontends.is_empty()
    }

    /// Filters for the kernel that match all flows to check.
    pub fn walks(&self) -> BTreeSet<StaleFlows> {
        let all = (STATUS_DNAT, STATUS_DNAT);
        self.frontends.keys().map(|frontend| frontend.walk(all)).collect()
    }

    /// Whether a flow goes from one of the frontends to an address that is not its endpoint.
    pub fn is_stale(&self, flow: &Flow) -> bool {
        let to = (flow.reply.src, flow.reply.src_port);
        let frontends = FlowDestination::from_flow(flow).into_iter().flatten();
        let mut known = frontends.filter_map(|frontend| self.frontends.get(&frontend));
        flow.status & STATUS_DNAT != 0
            && known.next().is_some_and(|endpoints| !endpoints.contains(&to))
    }
}

/// A frontend and a removed endpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Pair {
    frontend: FlowDestination,
    address: IpAddr,
    port: u16,
}

/// Destination of clients.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
struct FlowDestination {
    family: AddressFamily,
    /// `None` for a node port.
    address: Option<IpAddr>,
    protocol: Protocol,
    port: u16,
}

impl Pair {
    /// Decodes an element of an endpoint map.
    fn from_element(entry: &SetElement) -> Option<Self> {
        let endpoint = entry.endpoint()?;
        let frontend = FlowDestination::read(entry)?;
        let (address, rest) = split_address(frontend.family, endpoint)?;
        let port = u16::from_be_bytes(*rest.first_chunk()?);
        Some(Self { frontend, address, port })
    }

    /// The flows that are stale once the endpoint is removed.
    fn stale_flows(&self) -> StaleFlows {
        match self.frontend.protocol.has_stale_flows() {
            true => self.flows(FlowAnswer::Any),
            false => self.flows(FlowAnswer::None),
        }
    }

    fn flows(&self, answer: FlowAnswer) -> StaleFlows {
        let reply = TupleFilter {
            src: Some(self.address),
            proto: Some(self.frontend.protocol.number()),
            src_port: Some(self.port),
            ..TupleFilter::default()
        };
        let filter = FlowFilter {
            orig: self.frontend.tuple(),
            reply,
            status: Some((STATUS_DNAT, STATUS_DNAT | answer.mask())),
        };
        StaleFlows { family: self.frontend.family, filter }
    }
}

impl FlowDestination {
    /// Decodes the frontend in a key.
    fn read(entry: &SetElement) -> Option<Self> {
        let family = match entry.family {
            Family::Ip6 => AddressFamily::V6,
            Family::Ip | Family::Inet => AddressFamily::V4,
        };
        let key = entry.key.bytes();
        let (address, rest) = match entry.map {
            Map::NodePorts | Map::NodePortsExternal | Map::NodePortEndpoints => (None, key),
            _ => split_address(family, key).map(|(address, rest)| (Some(address), rest))?,
        };
        let protocol = Protocol::from_number(*rest.first()?)?;
        let port = u16::from_be_bytes(*rest.get(4..)?.first_chunk()?);
        Some(Self { family, address, protocol, port })
    }

    /// The frontends that a flow's original destination may be: with the address, or a node port.
    fn from_flow(flow: &Flow) -> Option<[Self; 2]> {
        let protocol = Protocol::from_number(flow.orig.proto)?;
        let (family, port) = (AddressFamily::from_address(flow.orig.dst), flow.orig.dst_port);
        let at = |address| Self { family, address, protocol, port };
        Some([at(Some(flow.orig.dst)), at(None)])
    }

    fn tuple(&self) -> TupleFilter {
        TupleFilter {
            dst: self.address,
            proto: Some(self.protocol.number()),
            dst_port: Some(self.port),
            ..TupleFilter::default()
        }
    }

    /// A filter for all flows of the family and protocol with this value and mask of the status.
    fn walk(&self, status: (u32, u32)) -> StaleFlows {
        let orig = TupleFilter { proto: Some(self.protocol.number()), ..TupleFilter::default() };
        let filter = FlowFilter { orig, status: Some(status), ..FlowFilter::default() };
        StaleFlows { family: self.family, filter }
    }

    /// Flows that are older than the Service, and so have no DNAT.
    fn bypassed(&self) -> StaleFlows {
        let status = Some((0, STATUS_DNAT));
        let filter = FlowFilter { orig: self.tuple(), status, ..FlowFilter::default() };
        StaleFlows { family: self.family, filter }
    }
}

fn split_address(family: AddressFamily, bytes: &[u8]) -> Option<(IpAddr, &[u8])> {
    match family {
        AddressFamily::V4 => {
            bytes.split_first_chunk::<4>().map(|(a, rest)| (Ipv4Addr::from(*a).into(), rest))
        }
        AddressFamily::V6 => {
            bytes.split_first_chunk::<16>().map(|(a, rest)| (Ipv6Addr::from(*a).into(), rest))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::layout::{EndpointPool, backend_value, node_port_key, service_key, slot_key};
    use crate::model::Choice;
    use proxy_netfilter::nft::Value;

    fn ip(last: u8) -> IpAddr {
        IpAddr::from([10, 0, 0, last])
    }

    fn entry(map: Map, key: Value, data: Value) -> SetElement {
        SetElement { family: Family::Ip, map, key, data: Some(data) }
    }

    fn slot(protocol: Protocol, slot: u32, endpoint: u8) -> SetElement {
        let key = slot_key(&service_key(&ip(1), protocol, 53), slot);
        entry(Map::Endpoints, key, backend_value(&ip(endpoint), 5353))
    }

    /// A flow from the Service to an endpoint.
    fn flow((endpoint, port): (u8, u16), proto: u8, status: u32) -> Flow {
        let tuple = |src, dst, src_port, dst_port| proxy_netfilter::ct::Tuple {
            src: ip(src),
            dst: ip(dst),
            proto,
            src_port,
            dst_port,
        };
        let (orig, reply) = (tuple(99, 1, 4242, 53), tuple(endpoint, 99, port, 4242));
        Flow { orig, reply, status, mark: 0, timeout_secs: None, id: None }
    }

    #[test]
    fn flows_to_an_endpoint_that_went_are_stale_those_to_one_that_moved_are_not() {
        let transaction = Transaction {
            removed: vec![slot(Protocol::Udp, 0, 7), slot(Protocol::Udp, 1, 8)],
            added: vec![slot(Protocol::Udp, 0, 8)],
            ..Transaction::default()
        };
        let orig = TupleFilter {
            dst: Some(ip(1)),
            proto: Some(17),
            dst_port: Some(53),
            ..TupleFilter::default()
        };
        let reply = TupleFilter {
            src: Some(ip(7)),
            proto: Some(17),
            src_port: Some(5353),
            ..TupleFilter::default()
        };
        let filter = FlowFilter { orig, reply, status: Some((STATUS_DNAT, STATUS_DNAT)) };
        let expected = StaleFlows { family: AddressFamily::V4, filter };
        assert_eq!(stale_flows(&transaction), [expected]);
    }

    #[test]
    fn of_tcp_flows_to_a_removed_endpoint_only_unanswered_ones_are_stale() {
        let removed = vec![slot(Protocol::Tcp, 0, 7)];
        let stale = stale_flows(&Transaction { removed, ..Transaction::default() });
        let [only] = stale[..] else { unreachable!("{stale:?}") };
        assert_eq!(only.answer(), FlowAnswer::None);
        let set = StaleSet::from_flows(&stale);
        let opened = |endpoint, status| flow((endpoint, 5353), 6, STATUS_DNAT | status);
        assert!(set.contains(&opened(7, 0)) && only.filter.matches(&opened(7, 0)));
        let answered = opened(7, STATUS_SEEN_REPLY);
        assert!(!set.contains(&answered) && !only.filter.matches(&answered));
        assert!(!set.contains(&opened(8, 0)));
        let walks: Vec<StaleFlows> = set.walks().into_iter().collect();
        assert_eq!(walks.len(), 1);
        assert!(walks[0].filter.matches(&opened(7, 0)) && !walks[0].filter.matches(&answered));
        // Those that are reset on demand are of both kinds.
        let all = connections((Some(ip(1)), 53), Protocol::Tcp, (ip(7), 5353));
        assert!(StaleSet::from_flows(&[only, all]).contains(&answered));
        assert!(StaleSet::from_flows(&[all, only]).contains(&answered));
    }

    #[test]
    fn after_a_fresh_start_flows_to_what_is_no_endpoint_are_stale() {
        let allowed = AllowedEndpoints::from_elements(&[
            slot(Protocol::Udp, 0, 7),
            slot(Protocol::Tcp, 0, 7),
        ]);
        let flow = |endpoint, proto| flow((endpoint, 5353), proto, STATUS_DNAT);
        assert!(!allowed.is_stale(&flow(7, 17)));
        assert!(allowed.is_stale(&flow(8, 17)));
        assert!(!allowed.is_stale(&Flow { status: 0, ..flow(8, 17) }));
        assert!(!allowed.is_stale(&flow(8, 6)));
    }

    #[test]
    fn flows_that_were_there_before_their_service_pass_it_by() {
        let class = Class::Balance(EndpointPool::NodePort, Choice::Random, 1).data();
        let added = vec![
            entry(Map::NodePorts, node_port_key(Protocol::Udp, 30053), class.clone()),
            entry(Map::NodePorts, node_port_key(Protocol::Tcp, 30053), class),
            entry(Map::Services, service_key(&ip(1), Protocol::Udp, 53), Class::Reject.data()),
        ];
        let stale = stale_flows(&Transaction { added, ..Transaction::default() });
        let orig = TupleFilter { proto: Some(17), dst_port: Some(30053), ..TupleFilter::default() };
        let filter = FlowFilter { orig, status: Some((0, STATUS_DNAT)), ..FlowFilter::default() };
        assert_eq!(stale, [StaleFlows { family: AddressFamily::V4, filter }]);
    }
}
