//! Every decoder on bytes that nobody should send: datagrams of both directions, broken in every way that counts, and
//! noise. A decoder answers or refuses; it never panics, never yields more than it was given, and what it yields is
//! written and read back alike. `ORCH_TEST_CASES` asks for a longer run.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test may end anywhere")]

use std::net::IpAddr;

use proptest::prelude::*;
use proxy_netfilter::ack::Ack;
use proxy_netfilter::ct::{self, AddressFamily, Flow, FlowFilter, Tuple, TupleFilter};
use proxy_netfilter::fake::Kernel;
use proxy_netfilter::nflog;
use proxy_netfilter::nft::batch::{Answer, Query};
use proxy_netfilter::nft::command::{Command, Existing};
use proxy_netfilter::nft::expr::{
    Bitwise, Cmp, Counter, Ct, Dynset, Expr, Fib, Hash, Immediate, Lookup, Masq, Meta, Nat, Numgen,
    Payload, Reject, Target,
};
use proxy_netfilter::nft::numbers::{
    BitwiseOp, CmpOp, CtKey, DynsetOp, FibFlags, FibResult, HashKind, HookPoint, LookupFlags,
    MetaKey, NatFlags, NatKind, NumgenKind, PayloadBase, RejectKind, SetFlags, TableFlags,
};
use proxy_netfilter::nft::object::Elements;
use proxy_netfilter::nft::{
    Batch, Chain, Data, Element, Family, Reg, Rule, Ruleset, Set, SetSize, Table, Type, Value,
    Verdict, datatype, userdata,
};
use proxy_netfilter::wire::Messages;

/// How many random cases to try.
fn cases(slice: u32) -> u32 {
    std::env::var("ORCH_TEST_CASES").ok().and_then(|n| n.parse().ok()).unwrap_or(slice)
}

fn set(name: &str, flags: SetFlags, data: Option<u32>) -> Set {
    let key = [Type::Ipv4, Type::Proto, Type::Port];
    Set {
        table: "t".into(),
        name: name.into(),
        flags,
        key_type: Some(datatype::concat_number(&key)),
        key_len: datatype::concat_len(&key),
        data_type: data,
        data_len: data.map(|_| 16),
        size: SetSize(Some(64)),
        id: Some(1),
        timeout_ms: Some(5000),
        gc_interval_ms: Some(9),
        userdata: userdata::set(userdata::ByteOrder::Mixed, None),
        expr: (name == "s").then(|| Counter { bytes: 0, packets: 0 }.into()),
    }
}

/// A rule with an expression of every kind that our rules have.
fn exprs() -> Vec<Expr> {
    let reg = Reg::word;
    let value = |len: usize| Value::new(&vec![7; len]);
    let (map, sreg) = (|| "map".to_owned(), reg(0));
    vec![
        Meta { dreg: Some(reg(0)), key: MetaKey::L4PROTO, sreg: None }.into(),
        Payload { dreg: reg(1), base: PayloadBase::NETWORK, offset: 12, len: 4 }.into(),
        Cmp { sreg: reg(1), op: CmpOp::NEQ, data: value(16) }.into(),
        Bitwise {
            sreg: reg(1),
            dreg: reg(1),
            len: 4,
            mask: value(4),
            xor: value(4),
            op: BitwiseOp::MASK_XOR,
        }
        .into(),
        Ct { dreg: Some(reg(2)), key: CtKey::PROTO_DST, direction: Some(0), sreg: None }.into(),
        Fib { dreg: reg(3), result: FibResult::ADDRTYPE, flags: FibFlags::DADDR }.into(),
        Numgen { dreg: reg(4), modulus: 3, kind: NumgenKind::RANDOM, offset: 1 }.into(),
        Hash {
            sreg: Some(reg(1)),
            dreg: reg(4),
            len: Some(8),
            modulus: 3,
            seed: Some(1),
            offset: Some(2),
            kind: HashKind::JENKINS,
        }
        .into(),
        Dynset {
            set: map(),
            op: DynsetOp::UPDATE,
            key: reg(0),
            data: Some(reg(6)),
            timeout_ms: Some(1000),
            flags: Some(0),
        }
        .into(),
        Lookup { set: map(), sreg, dreg: Some(Target::Verdict), flags: LookupFlags::PRESENT }
            .into(),
        Nat {
            kind: NatKind::DNAT,
            family: 2,
            addr_min: Some(reg(0)),
            addr_max: Some(reg(0)),
            proto_min: Some(reg(1)),
            proto_max: None,
            flags: NatFlags::FULLY_RANDOM,
        }
        .into(),
        Masq { flags: NatFlags::FULLY_RANDOM, proto_min: None, proto_max: None }.into(),
        Reject { kind: RejectKind::ICMP, code: Some(3) }.into(),
        Counter { bytes: 1, packets: 2 }.into(),
        Immediate { dreg: Target::Verdict, data: Data::Verdict(Verdict::Goto("c".into())) }.into(),
        Expr::Other { name: "tproxy".into(), data: vec![8, 0, 1, 0, 0, 0, 0, 2] },
    ]
}

fn commands() -> Vec<Command> {
    let key = |n: u8| Value::concat(&[&[10, 0, 0, n], &[6], &[0, 80]]);
    let verdict = |n| Element::entry(key(n), Data::Verdict(Verdict::Goto("c".into())));
    let counted = |n| Element {
        timeout_ms: Some(1),
        expiration_ms: Some(2),
        expr: Some(Box::new(Counter { bytes: 1, packets: 2 }.into())),
        ..Element::member(key(n))
    };
    let list = |set: &str, elements: Vec<Element>| Elements {
        table: "t".into(),
        set: set.into(),
        elements,
    };
    let rule = Rule {
        table: "t".into(),
        chain: "c".into(),
        handle: None,
        exprs: exprs(),
        userdata: userdata::rule_comment("why it is there"),
    };
    let flags = Some(TableFlags::OWNER | TableFlags::PERSIST);
    vec![
        Command::NewTable(Table { flags, ..Table::named("t") }, Existing::Keep),
        Command::NewSet(set("s", SetFlags::TIMEOUT, None), Existing::Fail),
        Command::NewSet(
            set("map", SetFlags::MAP, Some(datatype::DATA_TYPE_VERDICT)),
            Existing::Fail,
        ),
        Command::NewChain(Chain::regular("t", "c"), Existing::Fail),
        Command::NewChain(Chain::nat("t", "n", HookPoint::PREROUTING, -100), Existing::Fail),
        Command::NewRule(rule.clone()),
        Command::NewElements(list("s", (0..9).map(counted).collect()), Existing::Keep),
        Command::NewElements(list("map", (0..9).map(verdict).collect()), Existing::Fail),
        Command::DelElements(list("s", vec![counted(1)])),
        Command::DelRule(Rule { handle: Some(7), exprs: Vec::new(), ..rule }),
        Command::DelChain(Chain::regular("t", "c")),
        Command::DelSet(set("s", SetFlags(0), None)),
        Command::DelTable(Table::named("t")),
    ]
}

fn flow(family: AddressFamily) -> Flow {
    let ip = |n: u8| match family {
        AddressFamily::V4 => IpAddr::from([10, 0, 0, n]),
        AddressFamily::V6 => IpAddr::from([0xfd, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, n]),
    };
    let tuple = |src, dst| Tuple { src, dst, proto: 17, src_port: 1000, dst_port: 53 };
    Flow {
        orig: tuple(ip(1), ip(2)),
        reply: tuple(ip(3), ip(1)),
        status: 0x188,
        mark: 9,
        timeout_secs: Some(30),
        id: Some(77),
    }
}

/// Datagrams as they travel, of both directions.
fn datagrams() -> Vec<Vec<u8>> {
    let mut batch = Batch::new(1, Some(3));
    batch.extend(Family::Ip, &commands());
    let mut all = vec![batch.finish().unwrap().bytes];
    // What a kernel answers: acknowledgements, and dumps of all that is there.
    let mut kernel = Kernel::default();
    let mut batch = Batch::new(1, None);
    batch.extend(Family::Ip6, &commands()[..8]);
    all.extend(kernel.send(&batch.finish().unwrap().bytes));
    let (table, set) = (|| "t".to_owned(), |name: &str| name.to_owned());
    for query in [
        Query::Generation,
        Query::Tables(Family::Ip6),
        Query::Chains(Family::Ip6),
        Query::Rules(Family::Ip6, table()),
        Query::Sets(Family::Ip6, table()),
        Query::Elements(Family::Ip6, table(), set("s")),
        Query::Elements(Family::Ip6, table(), set("map")),
        Query::Elements(Family::Ip6, table(), set("absent")),
    ] {
        let request = query.encode(5).unwrap();
        all.extend(kernel.send(&request));
        all.push(request);
    }
    let end = Some(IpAddr::from([10, 0, 0, 1]));
    let orig = TupleFilter { dst: end, proto: Some(17), dst_port: Some(53), ..Default::default() };
    let filter = FlowFilter { orig, status: Some((8, 8)), ..FlowFilter::default() };
    for family in [AddressFamily::V4, AddressFamily::V6] {
        all.push(ct::dump(1, family, &filter).unwrap());
        all.push(ct::delete(1, &flow(family)).unwrap());
        all.push(ct::delete_all(1, &[flow(family), flow(family)]).unwrap());
    }
    all.push(ct::table_use(4).unwrap());
    all.push(nflog::bind(4, 9).unwrap());
    all
}

/// One way to break a datagram; places and lengths are taken modulo what is there.
#[derive(Clone, Debug)]
enum Damage {
    Flip(usize, u8),
    Number(usize, u32, bool),
    Cut(usize),
    Drop(usize, usize),
    Repeat(usize, usize),
    Splice(usize, usize, usize),
}

fn damage() -> impl Strategy<Value = Damage> {
    let at = any::<usize>;
    let number = prop_oneof![
        Just(0u32),
        Just(1),
        Just(3),
        Just(4),
        Just(5),
        Just(0x7fff),
        Just(0xffff),
        Just(u32::MAX),
        Just(0x8000_0000),
        any::<u32>(),
    ];
    prop_oneof![
        (at(), 0u8..8).prop_map(|(at, bit)| Damage::Flip(at, bit)),
        (at(), number, any::<bool>()).prop_map(|(at, n, long)| Damage::Number(at, n, long)),
        at().prop_map(Damage::Cut),
        (at(), 1usize..40).prop_map(|(at, len)| Damage::Drop(at, len)),
        (at(), 1usize..200).prop_map(|(at, len)| Damage::Repeat(at, len)),
        (at(), at(), 1usize..200).prop_map(|(at, other, len)| Damage::Splice(at, other, len)),
    ]
}

fn break_it(bytes: &mut Vec<u8>, damage: &Damage, others: &[Vec<u8>]) {
    let len = bytes.len().max(1);
    let part = |of: &[u8], at: usize, wanted: usize| -> Vec<u8> {
        let at = at % of.len().max(1);
        of.iter().skip(at).take(wanted).copied().collect()
    };
    match damage {
        Damage::Flip(at, bit) => {
            if let Some(byte) = bytes.get_mut(at % len) {
                *byte ^= 1 << bit;
            }
        }
        Damage::Number(at, number, long) => {
            // Headers of messages and attributes lie on multiples of four.
            let at = at % len / 4 * 4;
            let number = number.to_ne_bytes();
            let wanted = if *long { &number[..] } else { &number[..2] };
            bytes.iter_mut().skip(at).zip(wanted).for_each(|(to, from)| *to = *from);
        }
        Damage::Cut(at) => bytes.truncate(at % len),
        Damage::Drop(at, wanted) => {
            let at = at % len;
            bytes.drain(at.min(bytes.len())..(at + wanted).min(bytes.len()));
        }
        Damage::Repeat(at, wanted) => {
            let again = part(bytes, *at, *wanted);
            let at = (at % len).min(bytes.len());
            bytes.splice(at..at, again);
        }
        Damage::Splice(at, other, wanted) => {
            let other = &others[other % others.len()];
            let foreign = part(other, at / 7, *wanted);
            let at = (at % len).min(bytes.len());
            bytes.splice(at..at, foreign);
        }
    }
}

/// Values in a command, each of which takes at least a header in the bytes that it came from.
fn parts(command: &Command) -> usize {
    match command {
        Command::NewElements(list, _) | Command::DelElements(list) => list.elements.len(),
        Command::NewRule(rule) | Command::DelRule(rule) => rule.exprs.len(),
        _ => 1,
    }
}

/// Lets every decoder read the bytes.
fn decode(bytes: &[u8]) {
    let mut rules = Ruleset::default();
    for message in Messages::new(bytes).flatten() {
        assert!(message.payload.len() <= bytes.len());
        if let Ok((family, command)) = Command::read(&message) {
            assert!(parts(&command) * 4 <= message.payload.len(), "{command:?}");
            read_back(family, &command);
        }
        if let Ok(answer) = Answer::read(&message) {
            rules.absorb(answer);
        }
        let _ = (Ack::read(&message), ct::read_flow(&message), ct::read_table_use(&message));
        let _ = ct::read_flow_state(&message);
        let _ = nflog::read_packet(&message);
    }
    let elements: usize = rules.tables.values().map(|table| table.elements_len()).sum();
    assert!(elements * 4 <= bytes.len());
    let mut kernel = Kernel::default();
    let answered: usize = kernel.send(bytes).iter().map(Vec::len).sum();
    // An acknowledgement for each message, or one dump of an empty ruleset.
    assert!(answered <= bytes.len() * 4 + 4096, "{answered} bytes of answer to {}", bytes.len());
}

/// What was read is written, read again, and written as before. (Flags that are none are left out in writing, as the
/// kernel does, so values may differ where bytes do not.)
fn read_back(family: Family, command: &Command) {
    let write = |family, command: &Command| {
        let mut batch = Batch::new(1, None);
        batch.push(family, command);
        batch.finish().ok()
    };
    let Some(encoded) = write(family, command) else { return };
    let read = Messages::new(&encoded.bytes).flatten().find_map(|m| Command::read(&m).ok());
    let Some((family, again)) = read else { panic!("{command:?} is not read back") };
    assert_eq!(write(family, &again).as_ref(), Some(&encoded), "{command:?}");
}

#[test]
fn what_travels_is_read() {
    let datagrams = datagrams();
    assert!(datagrams.len() > 20, "{}", datagrams.len());
    datagrams.iter().for_each(|bytes| decode(bytes));
    // The first holds a command of every kind, and all of them are read.
    let read = Messages::new(&datagrams[0]).flatten().filter(|m| Command::read(m).is_ok()).count();
    assert_eq!(read, commands().len());
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: cases(3000),
        failure_persistence: None,
        ..ProptestConfig::default()
    })]

    #[test]
    fn broken_datagrams_are_read_or_refused(
        which in any::<usize>(),
        damages in proptest::collection::vec(damage(), 1..6),
    ) {
        let all = datagrams();
        let mut bytes = all[which % all.len()].clone();
        damages.iter().for_each(|damage| break_it(&mut bytes, damage, &all));
        decode(&bytes);
    }

    #[test]
    fn noise_is_read_or_refused(
        kind in prop_oneof![0u16..4, 0x10u16..0x12, 0x0a00u16..0x0a20, 0x0100u16..0x0108, any::<u16>()],
        flags in any::<u16>(),
        payload in proptest::collection::vec(any::<u8>(), 0..300),
    ) {
        let mut bytes = u32::try_from(16 + payload.len()).unwrap().to_ne_bytes().to_vec();
        bytes.extend_from_slice(&kind.to_ne_bytes());
        bytes.extend_from_slice(&flags.to_ne_bytes());
        bytes.extend_from_slice(&[0; 8]);
        bytes.extend_from_slice(&payload);
        decode(&bytes);
    }
}
