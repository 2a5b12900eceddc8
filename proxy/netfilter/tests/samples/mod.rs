//! Datagrams of every kind, encoded: the input of the decoder tests, and the corpus of their fuzzing.

#![allow(clippy::unwrap_used, reason = "a test may end anywhere")]

use std::net::IpAddr;

use proxy_netfilter::ct::{self, AddressFamily, Flow, FlowFilter, Tuple, TupleFilter};
use proxy_netfilter::fake::FakeKernel;
use proxy_netfilter::nflog;
use proxy_netfilter::nft::batch::Query;
use proxy_netfilter::nft::command::{Command, IfExists};
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
    Batch, Chain, Data, Element, Family, Reg, Rule, Set, SetSize, Table, Type, Value, Verdict,
    datatype, userdata,
};

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

/// An expression of every kind that the proxy's rules use.
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

/// A command of every kind.
pub fn commands() -> Vec<Command> {
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
        Command::NewTable(Table { flags, ..Table::named("t") }, IfExists::Keep),
        Command::NewSet(set("s", SetFlags::TIMEOUT, None), IfExists::Fail),
        Command::NewSet(
            set("map", SetFlags::MAP, Some(datatype::DATA_TYPE_VERDICT)),
            IfExists::Fail,
        ),
        Command::NewChain(Chain::regular("t", "c"), IfExists::Fail),
        Command::NewChain(Chain::nat("t", "n", HookPoint::PREROUTING, -100), IfExists::Fail),
        Command::NewRule(rule.clone()),
        Command::NewElements(list("s", (0..9).map(counted).collect()), IfExists::Keep),
        Command::NewElements(list("map", (0..9).map(verdict).collect()), IfExists::Fail),
        Command::DelElements(list("s", vec![counted(1)])),
        Command::DelRule(Rule { handle: Some(7), exprs: Vec::new(), ..rule }),
        Command::DelChain(Chain::regular("t", "c")),
        Command::DelSet(set("s", SetFlags(0), None)),
        Command::DelTable(Table::named("t")),
    ]
}

/// A flow of the family.
pub fn flow(family: AddressFamily) -> Flow {
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

/// Encoded datagrams of both directions.
pub fn datagrams() -> Vec<Vec<u8>> {
    let mut batch = Batch::new(1, Some(3));
    batch.extend(Family::Ip, &commands());
    let mut all = vec![batch.finish().unwrap().bytes];
    // Responses of a kernel: acknowledgements, and dumps of everything.
    let mut kernel = FakeKernel::default();
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
