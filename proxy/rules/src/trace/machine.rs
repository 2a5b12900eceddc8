//! The nf_tables virtual machine: registers, expressions, verdicts.

use std::net::IpAddr;

use proxy_netfilter::nft::expr::{
    Bitwise, Cmp, Ct, Dynset, Expr, Hash, Immediate, Lookup, Nat, Payload, Reject, Target,
};
use proxy_netfilter::nft::numbers::{
    ADDRTYPE_LOCAL, CT_STATUS_DNAT, CmpOp, CtKey, DynsetOp, FibFlags, HashKind, HookPoint,
    LookupFlags, MetaKey, PayloadBase, RejectKind,
};
use proxy_netfilter::nft::{Data, Reg, Rule, TableRules, Value, Verdict};

use super::jhash::{jhash, scale};
use super::{MatchedElement, Origin, Packet, PacketOutcome, SetUpdate, Step, Trace, headers};
use crate::layout::address_value;
use crate::model::InterfaceName;

/// `NFT_JUMP_STACK_SIZE`.
const DEPTH_MAX: usize = 16;

/// The conntrack entry.
#[derive(Clone, Copy, Debug)]
pub struct Connection {
    /// The packet before NAT.
    pub original: Packet,
    /// Whether it has DNAT.
    pub dnat: bool,
}

/// Result of a hook.
#[derive(Clone, Debug)]
pub enum HookVerdict {
    /// The packet continues.
    Accept,
    /// DNAT to an address and port.
    Dnat(Vec<u8>, u16),
    Masquerade,
    /// The packet's path ends.
    Final(PacketOutcome),
}

enum RuleResult {
    /// The next rule follows.
    Next,
    /// The rule after the jump follows.
    Return,
    /// The hook's result is decided.
    HookVerdict(HookVerdict),
}

/// Evaluates chains of one table.
pub struct Machine<'a> {
    table: &'a TableRules,
    is_local: &'a dyn Fn(IpAddr) -> bool,
    draw: &'a mut dyn FnMut(u32) -> u32,
    steps: Vec<Step>,
    learned: Vec<SetUpdate>,
}

/// One packet at one hook.
struct At<'a> {
    packet: &'a Packet,
    connection: &'a Connection,
    network: Vec<u8>,
    transport: Vec<u8>,
    registers: [u8; Reg::COUNT * 4],
    /// Elements found by the current rule.
    found: Vec<MatchedElement>,
}

/// A condition that does not hold ends the rule; an unsupported expression ends the trace.
enum NoMatch {
    Break,
    Unknown(String),
}

impl<'a> Machine<'a> {
    /// For one table.
    pub fn new(
        table: &'a TableRules,
        is_local: &'a dyn Fn(IpAddr) -> bool,
        draw: &'a mut dyn FnMut(u32) -> u32,
    ) -> Self {
        Self { table, is_local, draw, steps: Vec::new(), learned: Vec::new() }
    }

    /// Ends the trace.
    pub fn end(self, outcome: PacketOutcome) -> Trace {
        Trace { steps: self.steps, outcome, learned: self.learned }
    }

    /// Evaluates the base chains of a hook.
    pub fn run(
        &mut self,
        point: HookPoint,
        packet: &Packet,
        connection: &Connection,
    ) -> HookVerdict {
        let hooked = |chain: &proxy_netfilter::nft::Chain| {
            chain.hook.as_ref().is_some_and(|hook| hook.point == point)
        };
        let table = self.table;
        let mut bases: Vec<_> = table.chains.values().filter(|c| hooked(&c.chain)).collect();
        bases.sort_by_key(|base| base.chain.hook.as_ref().map(|hook| hook.priority));
        for base in bases {
            let (network, transport) = headers(packet);
            let registers = [0; Reg::COUNT * 4];
            let found = Vec::new();
            let mut at = At { packet, connection, network, transport, registers, found };
            match self.chain(&base.chain.name, &mut at, 0) {
                RuleResult::HookVerdict(HookVerdict::Accept)
                | RuleResult::Next
                | RuleResult::Return => {}
                RuleResult::HookVerdict(stop) => return stop,
            }
        }
        HookVerdict::Accept
    }

    /// Evaluates a chain; `Next` means that the calling chain continues.
    fn chain(&mut self, name: &str, at: &mut At<'_>, depth: usize) -> RuleResult {
        let table = self.table;
        let Some(chain) = table.chains.get(name).filter(|_| depth < DEPTH_MAX) else {
            return unknown(format!("no chain {name}, or chains too deep"));
        };
        for rule in &chain.rules {
            match self.rule(rule, at, depth) {
                RuleResult::Next => {}
                RuleResult::Return => return RuleResult::Next,
                stop => return stop,
            }
        }
        RuleResult::Next
    }

    fn rule(&mut self, rule: &Rule, at: &mut At<'_>, depth: usize) -> RuleResult {
        let position = self.steps.len();
        let comment = rule.userdata.get(2..).unwrap_or_default();
        let comment = String::from_utf8_lossy(comment).trim_end_matches('\0').to_owned();
        let found = Vec::new();
        self.steps.push(Step { chain: rule.chain.clone(), rule: comment, found });
        for expr in &rule.exprs {
            let done = self.expr(expr, at);
            if let Some(step) = self.steps.get_mut(position) {
                step.found.append(&mut at.found);
            }
            match done {
                Ok(None) => {}
                Ok(Some(flow)) => return flow,
                Err(NoMatch::Break) => {
                    self.steps.truncate(position);
                    return RuleResult::Next;
                }
                Err(NoMatch::Unknown(what)) => return unknown(what),
            }
            if let Some(verdict) = verdict_of(expr, at, self.table) {
                return self.verdict(verdict, at, depth);
            }
        }
        RuleResult::Next
    }

    fn verdict(&mut self, verdict: Verdict, at: &mut At<'_>, depth: usize) -> RuleResult {
        match verdict {
            Verdict::Accept => RuleResult::HookVerdict(HookVerdict::Accept),
            Verdict::Drop => RuleResult::HookVerdict(HookVerdict::Final(PacketOutcome::Dropped)),
            Verdict::Continue | Verdict::Break => RuleResult::Next,
            Verdict::Return => RuleResult::Return,
            Verdict::Jump(chain) => self.chain(&chain, at, depth.saturating_add(1)),
            Verdict::Goto(chain) => match self.chain(&chain, at, depth.saturating_add(1)) {
                RuleResult::Next => RuleResult::Return,
                other => other,
            },
        }
    }

    /// Evaluates one expression.
    fn expr(&mut self, expr: &Expr, at: &mut At<'_>) -> Result<Option<RuleResult>, NoMatch> {
        match expr {
            Expr::Meta(meta) if meta.key == MetaKey::L4PROTO => {
                at.load(meta.dreg, &[at.packet.protocol.number()])?;
            }
            Expr::Meta(meta) if meta.key == MetaKey::IIFNAME => {
                let name = match at.packet.origin {
                    Origin::Interface(name) => *name.padded(),
                    // Locally generated packets have no incoming interface.
                    Origin::Host | Origin::Network => [0; InterfaceName::LEN],
                };
                at.load(meta.dreg, &name)?;
            }
            Expr::Payload(payload) => at.load_payload(payload)?,
            Expr::Ct(ct) => at.load_connection(ct)?,
            Expr::Fib(fib) => {
                let source = fib.flags == FibFlags::SADDR;
                let address = if source { at.packet.src } else { at.packet.dst };
                // Any type but local: the rules test for local only.
                let kind = if (self.is_local)(address) { ADDRTYPE_LOCAL } else { 1 };
                at.load(Some(fib.dreg), &kind.to_ne_bytes())?;
            }
            Expr::Numgen(numgen) => {
                let number = numgen.offset.wrapping_add((self.draw)(numgen.modulus));
                at.load(Some(numgen.dreg), &number.to_ne_bytes())?;
            }
            Expr::Hash(hash) => at.hash(hash)?,
            Expr::Dynset(dynset) => {
                let learned = at.update_map(dynset, self.table)?;
                self.learned.push(learned);
            }
            Expr::Immediate(Immediate { dreg: Target::Reg(dreg), data: Data::Value(value) }) => {
                at.load(Some(*dreg), value.bytes())?;
            }
            Expr::Immediate(Immediate { dreg: Target::Verdict, .. }) => {}
            Expr::Bitwise(bitwise) => at.mask(bitwise)?,
            Expr::Cmp(cmp) => at.compare(cmp)?,
            Expr::Lookup(lookup) => at.lookup(lookup, self.table)?,
            Expr::Nat(nat) => return at.nat(nat).map(Some),
            Expr::Masq(_) => return Ok(Some(RuleResult::HookVerdict(HookVerdict::Masquerade))),
            Expr::Reject(reject) => {
                return Ok(Some(RuleResult::HookVerdict(HookVerdict::Final(rejected(reject)))));
            }
            Expr::Counter(_) => {}
            other => return Err(NoMatch::Unknown(other.name().to_owned())),
        }
        Ok(None)
    }
}

impl At<'_> {
    fn read(&self, reg: Reg, len: usize) -> Result<&[u8], NoMatch> {
        let start = reg.index().saturating_mul(4);
        let out = || NoMatch::Unknown("register out of range".into());
        self.registers.get(start..start.saturating_add(len)).ok_or_else(out)
    }

    /// Stores bytes in registers; the rest of the last word is zero.
    fn load(&mut self, reg: Option<Reg>, bytes: &[u8]) -> Result<(), NoMatch> {
        let reg = reg.ok_or_else(|| NoMatch::Unknown("setting a property".into()))?;
        let start = reg.index().saturating_mul(4);
        let words = bytes.len().div_ceil(4).saturating_mul(4);
        let out = || NoMatch::Unknown("register out of range".into());
        let slot = self.registers.get_mut(start..start.saturating_add(words)).ok_or_else(out)?;
        slot.fill(0);
        slot.iter_mut().zip(bytes).for_each(|(slot, byte)| *slot = *byte);
        Ok(())
    }

    fn load_payload(&mut self, payload: &Payload) -> Result<(), NoMatch> {
        let header = match payload.base {
            PayloadBase::NETWORK => &self.network,
            PayloadBase::TRANSPORT => &self.transport,
            _ => return Err(NoMatch::Unknown("payload of another header".into())),
        };
        let (start, len) = (payload.offset as usize, payload.len as usize);
        let bytes = header.get(start..start.saturating_add(len)).ok_or(NoMatch::Break)?.to_vec();
        self.load(Some(payload.dreg), &bytes)
    }

    fn load_connection(&mut self, ct: &Ct) -> Result<(), NoMatch> {
        let original = self.connection.original;
        let bytes = match (ct.key, ct.direction) {
            (CtKey::STATUS, None) => {
                let status = if self.connection.dnat { CT_STATUS_DNAT } else { 0 };
                status.to_ne_bytes().to_vec()
            }
            (CtKey::DST_IP | CtKey::DST_IP6, Some(0)) => {
                address_value(&original.dst).bytes().to_vec()
            }
            (CtKey::PROTO_DST, Some(0)) => original.dst_port.to_be_bytes().to_vec(),
            _ => return Err(NoMatch::Unknown("ct".into())),
        };
        self.load(ct.dreg, &bytes)
    }

    fn mask(&mut self, bitwise: &Bitwise) -> Result<(), NoMatch> {
        let bytes = self.read(bitwise.sreg, bitwise.len as usize)?;
        let pairs = bytes.iter().zip(bitwise.mask.bytes()).zip(bitwise.xor.bytes());
        let masked: Vec<u8> = pairs.map(|((byte, mask), xor)| (byte & mask) ^ xor).collect();
        self.load(Some(bitwise.dreg), &masked)
    }

    fn compare(&self, cmp: &Cmp) -> Result<(), NoMatch> {
        let (left, right) = (self.read(cmp.sreg, cmp.data.bytes().len())?, cmp.data.bytes());
        let holds = match cmp.op {
            CmpOp::EQ => left == right,
            CmpOp::NEQ => left != right,
            CmpOp::LT => left < right,
            CmpOp::LTE => left <= right,
            CmpOp::GT => left > right,
            CmpOp::GTE => left >= right,
            _ => return Err(NoMatch::Unknown("comparison".into())),
        };
        if holds { Ok(()) } else { Err(NoMatch::Break) }
    }

    /// Data of the element that a lookup finds.
    fn find<'t>(
        &self,
        lookup: &Lookup,
        table: &'t TableRules,
    ) -> Result<Option<&'t Data>, NoMatch> {
        let none = || NoMatch::Unknown(format!("no set {}", lookup.set));
        let set = table.sets.get(&lookup.set).ok_or_else(none)?;
        let key = self.read(lookup.sreg, set.set.key_len as usize)?;
        match (set.elements.get(key), lookup.flags) {
            (Some(element), LookupFlags::PRESENT) => Ok(element.data.as_ref()),
            (None, LookupFlags::ABSENT) => Ok(None),
            _ => Err(NoMatch::Break),
        }
    }

    fn note(
        &mut self,
        lookup: &Lookup,
        data: Option<&Data>,
        table: &TableRules,
    ) -> Result<(), NoMatch> {
        let len = table.sets.get(&lookup.set).map_or(0, |set| set.set.key_len as usize);
        let key = Value::new(self.read(lookup.sreg, len)?);
        self.found.push(MatchedElement { set: lookup.set.clone(), key, data: data.cloned() });
        Ok(())
    }

    fn lookup(&mut self, lookup: &Lookup, table: &TableRules) -> Result<(), NoMatch> {
        let data = self.find(lookup, table)?;
        if lookup.flags == LookupFlags::PRESENT {
            self.note(lookup, data, table)?;
        }
        match (data, lookup.dreg) {
            (Some(Data::Value(value)), Some(Target::Reg(dreg))) => {
                self.load(Some(dreg), value.bytes())
            }
            (Some(Data::Verdict(_)), Some(Target::Verdict)) | (_, None) => Ok(()),
            _ => Err(NoMatch::Unknown(format!("data of {}", lookup.set))),
        }
    }

    fn hash(&mut self, hash: &Hash) -> Result<(), NoMatch> {
        let (Some(sreg), Some(len), HashKind::JENKINS) = (hash.sreg, hash.len, hash.kind) else {
            return Err(NoMatch::Unknown("hash of another kind".into()));
        };
        let seed = hash.seed.ok_or_else(|| NoMatch::Unknown("hash with a secret seed".into()))?;
        let hashed = jhash(self.read(sreg, len as usize)?, seed);
        let number = hash.offset.unwrap_or(0).wrapping_add(scale(hashed, hash.modulus));
        self.load(Some(hash.dreg), &number.to_ne_bytes())
    }

    /// Updates a map; ends the rule if the map is full.
    fn update_map(&self, dynset: &Dynset, table: &TableRules) -> Result<SetUpdate, NoMatch> {
        let none = || NoMatch::Unknown(format!("no set {}", dynset.set));
        let set = table.sets.get(&dynset.set).ok_or_else(none)?;
        let key = Value::new(self.read(dynset.key, set.set.key_len as usize)?);
        let data = match (dynset.op, dynset.data) {
            (DynsetOp::DELETE, _) => None,
            (_, Some(reg)) => {
                let len = set.set.data_len.unwrap_or_default();
                Some(Value::new(self.read(reg, len as usize)?))
            }
            (_, None) => return Err(NoMatch::Unknown("a set that packets write".into())),
        };
        let full = set.set.size.0.is_some_and(|size| set.elements.len() >= size as usize);
        if data.is_some() && full && !set.elements.contains_key(&key) {
            return Err(NoMatch::Break);
        }
        Ok(SetUpdate { set: dynset.set.clone(), key, data })
    }

    fn nat(&self, nat: &Nat) -> Result<RuleResult, NoMatch> {
        let len = address_value(&self.packet.dst).bytes().len();
        let (Some(address), Some(port)) = (nat.addr_min, nat.proto_min) else {
            return Err(NoMatch::Unknown("nat without address or port".into()));
        };
        let address = self.read(address, len)?.to_vec();
        let port = self.read(port, 2)?.first_chunk().copied().map_or(0, u16::from_be_bytes);
        Ok(RuleResult::HookVerdict(HookVerdict::Dnat(address, port)))
    }
}

/// The verdict of an expression, if it has one.
fn verdict_of(expr: &Expr, at: &At<'_>, table: &TableRules) -> Option<Verdict> {
    match expr {
        Expr::Immediate(Immediate { dreg: Target::Verdict, data: Data::Verdict(verdict) }) => {
            Some(verdict.clone())
        }
        Expr::Lookup(lookup) if lookup.dreg == Some(Target::Verdict) => {
            match at.find(lookup, table) {
                Ok(Some(Data::Verdict(verdict))) => Some(verdict.clone()),
                _ => None,
            }
        }
        _ => None,
    }
}

fn rejected(reject: &Reject) -> PacketOutcome {
    if reject.kind == RejectKind::TCP_RESET {
        PacketOutcome::Reset
    } else {
        PacketOutcome::Unreachable
    }
}

fn unknown(what: String) -> RuleResult {
    RuleResult::HookVerdict(HookVerdict::Final(PacketOutcome::Unknown(what)))
}
