//! nf_tables against the real kernel: what is written is what it reads back, and it refuses what the fake kernel
//! refuses.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test may end anywhere")]

#[path = "support/sys.rs"]
mod sys;

use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};
use proxy_kernel::{CommitError, FakeTransport, Session, Socket, Transport};
use proxy_netfilter::nft::command::{Command, IfExists};
use proxy_netfilter::nft::expr::{
    Bitwise, Byteorder, Cmp, Counter, Ct, Dynset, Fib, Hash, Immediate, Limit, Lookup, Masq, Meta,
    Nat, Numgen, Payload, Range, Reject, Target,
};
use proxy_netfilter::nft::numbers::{
    BitwiseOp, ByteorderOp, CmpOp, CtKey, DynsetOp, FibFlags, FibResult, HashKind, HookPoint,
    LookupFlags, MetaKey, NatFlags, NatKind, NumgenKind, PayloadBase, RejectKind, SetFlags,
    TableFlags,
};
use proxy_netfilter::nft::object::{Elements, SetSize};
use proxy_netfilter::nft::{
    Chain, Data, Element, Expr, Family, Reg, Rule, Set, Table, TableRules, Type, Value, Verdict,
    datatype, userdata,
};
use sys::{in_namespace, run};

const TABLE: &str = "t";

fn set(name: &str, flags: SetFlags, key: &[Type], data: Option<Type>) -> Set {
    Set {
        table: TABLE.into(),
        name: name.into(),
        flags,
        key_type: Some(datatype::concat_number(key)),
        key_len: datatype::concat_len(key),
        data_type: data.map(|t| match t {
            Type::Verdict => datatype::DATA_TYPE_VERDICT,
            other => other.number(),
        }),
        data_len: data.map(|t| t.bytes()),
        size: SetSize(None),
        id: Some(1),
        timeout_ms: None,
        gc_interval_ms: None,
        userdata: userdata::set(userdata::ByteOrder::Network, None),
        expr: None,
    }
}

fn rule(chain: &str, exprs: Vec<Expr>) -> Rule {
    Rule {
        table: TABLE.into(),
        chain: chain.into(),
        handle: None,
        exprs,
        userdata: userdata::rule_comment("a comment"),
    }
}

fn session() -> Session<Socket> {
    Session::new(Socket::open().unwrap())
}

fn commit<T: Transport>(session: &mut Session<T>, commands: &[Command]) -> Result<(), CommitError> {
    let mut batch = session.batch(None);
    batch.extend(Family::Ip, commands);
    session.commit(batch)
}

fn reg(index: u8) -> Reg {
    Reg::word(index)
}

/// Rules of a prerouting chain that use every expression that loads or tests.
fn loads_and_tests() -> Vec<Expr> {
    let any = |bytes: &[u8]| Value::new(bytes);
    vec![
        Meta { dreg: Some(reg(0)), key: MetaKey::L4PROTO, sreg: None }.into(),
        Cmp { sreg: reg(0), op: CmpOp::NEQ, data: any(&[1]) }.into(),
        Payload { dreg: reg(0), base: PayloadBase::NETWORK, offset: 12, len: 4 }.into(),
        Bitwise {
            sreg: reg(0),
            dreg: reg(0),
            len: 4,
            mask: any(&[255, 255, 0, 0]),
            xor: any(&[0; 4]),
            op: BitwiseOp::MASK_XOR,
        }
        .into(),
        Range { sreg: reg(0), op: 0, from: any(&[10, 0, 0, 0]), to: any(&[10, 9, 9, 9]) }.into(),
        Ct { dreg: Some(reg(5)), key: CtKey::STATUS, direction: None, sreg: None }.into(),
        Ct { dreg: Some(reg(5)), key: CtKey::DST_IP, direction: Some(0), sreg: None }.into(),
        Fib { dreg: reg(5), result: FibResult::ADDRTYPE, flags: FibFlags::DADDR }.into(),
        Hash {
            sreg: Some(reg(0)),
            dreg: reg(4),
            len: Some(4),
            modulus: 3,
            seed: Some(7),
            offset: None,
            kind: HashKind::JENKINS,
        }
        .into(),
        Byteorder { sreg: reg(4), dreg: reg(4), op: ByteorderOp::HTON, len: 4, size: 4 }.into(),
        Numgen { dreg: reg(3), modulus: 4, kind: NumgenKind::RANDOM, offset: 9 }.into(),
        Lookup { set: "s".into(), sreg: reg(0), dreg: None, flags: LookupFlags::ABSENT }.into(),
        Dynset {
            set: "dyn".into(),
            op: DynsetOp::UPDATE,
            key: reg(0),
            data: None,
            timeout_ms: Some(5000),
            flags: Some(0),
        }
        .into(),
        Counter { bytes: 0, packets: 0 }.into(),
        Limit { rate: 10, unit: 1, burst: 5, kind: 0, flags: 0 }.into(),
    ]
}

fn dnat() -> Vec<Expr> {
    let flags = NatFlags(NatFlags::MAP_IPS.0 | NatFlags::PROTO_SPECIFIED.0);
    vec![
        Immediate { dreg: Target::Reg(reg(0)), data: Data::Value(Value::from([10, 0, 0, 1])) }
            .into(),
        Immediate { dreg: Target::Reg(reg(1)), data: Data::Value(Value::from([0, 80])) }.into(),
        Nat {
            kind: NatKind::DNAT,
            family: 2,
            addr_min: Some(reg(0)),
            addr_max: Some(reg(0)),
            proto_min: Some(reg(1)),
            proto_max: Some(reg(1)),
            flags,
        }
        .into(),
    ]
}

fn sample() -> Vec<Command> {
    let service = [Type::Ipv4, Type::Proto, Type::Port];
    let sized = Set { size: SetSize(Some(64)), ..set("sized", SetFlags(0), &[Type::Ipv4], None) };
    let dynamic = set("dyn", SetFlags::EVAL | SetFlags::TIMEOUT, &[Type::Ipv4], None);
    // The kernel limits sets that packets update; this is its default.
    let dynamic = Set { size: SetSize(Some(65535)), ..dynamic };
    let chain = |name: &str| Command::NewChain(Chain::regular(TABLE, name), IfExists::Fail);
    let base = |name: &str, point, priority| {
        Command::NewChain(Chain::nat(TABLE, name, point, priority), IfExists::Fail)
    };
    let l4 = Expr::from(Meta { dreg: Some(reg(0)), key: MetaKey::L4PROTO, sreg: None });
    let tcp = Expr::from(Cmp { sreg: reg(0), op: CmpOp::EQ, data: Value::from([6]) });
    let goto = |chain: &str| Data::Verdict(Verdict::Goto(chain.into()));
    let entry = Element::entry(Value::from([0, 0, 0, 1]), goto("c"));
    let entries = Elements { table: TABLE.into(), set: "vmap".into(), elements: vec![entry] };
    let key = Value::concat(&[&[10, 0, 0, 1], &[6], &[0, 80]]);
    let entry = Element::entry(key, Data::Value(Value::from([3, 0, 0, 0])));
    let data = Elements { table: TABLE.into(), set: "map".into(), elements: vec![entry] };
    vec![
        Command::NewTable(Table::named(TABLE), IfExists::Fail),
        Command::NewSet(set("s", SetFlags(0), &[Type::Ipv4], None), IfExists::Fail),
        Command::NewSet(sized, IfExists::Fail),
        Command::NewSet(dynamic, IfExists::Fail),
        Command::NewSet(set("map", SetFlags::MAP, &service, Some(Type::Mark)), IfExists::Fail),
        Command::NewSet(
            set("vmap", SetFlags::MAP, &[Type::Mark], Some(Type::Verdict)),
            IfExists::Fail,
        ),
        chain("c"),
        base("pre", HookPoint::PREROUTING, -100),
        base("post", HookPoint::POSTROUTING, 100),
        Command::NewRule(rule("c", dnat())),
        Command::NewRule(rule("pre", loads_and_tests())),
        Command::NewRule(rule(
            "pre",
            vec![
                l4.clone(),
                tcp.clone(),
                Reject { kind: RejectKind::TCP_RESET, code: None }.into(),
            ],
        )),
        Command::NewRule(rule(
            "pre",
            vec![Reject { kind: RejectKind::ICMP, code: Some(3) }.into()],
        )),
        Command::NewRule(rule(
            "pre",
            vec![Immediate { dreg: Target::Verdict, data: goto("c") }.into()],
        )),
        Command::NewRule(rule(
            "post",
            vec![Masq { flags: NatFlags::FULLY_RANDOM, proto_min: None, proto_max: None }.into()],
        )),
        Command::NewElements(entries, IfExists::Keep),
        Command::NewElements(data, IfExists::Keep),
    ]
}

#[test]
fn the_kernel_holds_what_was_written_and_so_does_the_fake() {
    in_namespace("the_kernel_holds_what_was_written_and_so_does_the_fake", || {
        let (mut real, mut fake) = (session(), Session::new(FakeTransport::default()));
        commit(&mut real, &sample()).unwrap();
        commit(&mut fake, &sample()).unwrap();
        let held = real.read_table(Family::Ip, TABLE).unwrap().unwrap();
        let believed = fake.read_table(Family::Ip, TABLE).unwrap().unwrap();
        assert_same(&believed, &held);
        let listed = run(&["nft", "-j", "list", "ruleset"]);
        for expected in ["\"map\": \"mark\"", "a comment", "10.0.0.1", "masquerade"] {
            assert!(listed.contains(expected), "{expected} is not in {listed}");
        }
    });
}

/// Values that the kernel assigns are ignored; everything else must be equal.
fn assert_same(believed: &TableRules, held: &TableRules) {
    assert_eq!(believed.chains, held.chains);
    let names = |rules: &TableRules| rules.sets.keys().cloned().collect::<Vec<_>>();
    assert_eq!(names(believed), names(held));
    for (mine, theirs) in believed.sets.values().zip(held.sets.values()) {
        assert_eq!(mine.set, theirs.set);
        assert_eq!(mine.elements, theirs.elements);
    }
}

#[test]
fn a_batch_decided_on_an_old_generation_is_refused() {
    in_namespace("a_batch_decided_on_an_old_generation_is_refused", || {
        let mut session = session();
        let before = session.generation().unwrap();
        commit(&mut session, &[Command::NewTable(Table::named("a"), IfExists::Fail)]).unwrap();
        assert_eq!(session.generation().unwrap(), before + 1);
        let mut batch = session.batch(Some(before));
        batch.push(Family::Ip, &Command::NewTable(Table::named("b"), IfExists::Fail));
        assert!(matches!(session.commit(batch), Err(CommitError::Conflict)));
        let mut batch = session.batch(Some(before + 1));
        batch.push(Family::Ip, &Command::NewTable(Table::named("b"), IfExists::Fail));
        session.commit(batch).unwrap();
    });
}

#[test]
fn a_refusal_names_what_was_refused() {
    in_namespace("a_refusal_names_what_was_refused", || {
        let mut session = session();
        let orphan = Command::NewChain(Chain::regular("absent", "c"), IfExists::Fail);
        let error = commit(&mut session, &[orphan]).unwrap_err();
        assert_eq!(error.errno(), Some(2));
        assert!(error.to_string().starts_with("make chain absent c: error 2"), "{error}");
    });
}

#[test]
fn a_long_transaction_is_one_and_reads_back_whole() {
    in_namespace("a_long_transaction_is_one_and_reads_back_whole", || {
        let mut session = session();
        let before = session.generation().unwrap();
        let mut batch = session.batch(None);
        let sized = Set { size: SetSize(Some(8192)), ..set("s", SetFlags(0), &[Type::Ipv4], None) };
        batch.push(Family::Ip, &Command::NewTable(Table::named(TABLE), IfExists::Fail));
        batch.push(Family::Ip, &Command::NewSet(sized, IfExists::Fail));
        let key = |n: u32| Element::member(Value::from(n.to_be_bytes()));
        batch.add_elements(Family::Ip, TABLE, "s", (0..8000).map(key));
        session.commit(batch).unwrap();
        assert_eq!(session.generation().unwrap(), before + 1);
        let held = session.read_table(Family::Ip, TABLE).unwrap().unwrap();
        assert_eq!(held.elements_len(), 8000);
        assert!(held.sets["s"].elements.keys().cloned().eq((0..8000).map(|n| key(n).key)));
    });
}

#[test]
fn a_table_outlives_its_owner_and_the_next_one_adopts_it() {
    in_namespace("a_table_outlives_its_owner_and_the_next_one_adopts_it", || {
        let owned = TableFlags::OWNER | TableFlags::PERSIST;
        let take =
            Command::NewTable(Table { flags: Some(owned), ..Table::named(TABLE) }, IfExists::Keep);
        let chain = Command::NewChain(Chain::regular(TABLE, "c"), IfExists::Fail);
        let mut first = session();
        if let Err(error) = commit(&mut first, std::slice::from_ref(&take)) {
            println!("SKIPPED: this kernel has no persistent owners: {error}");
            return;
        }
        let other = commit(&mut session(), std::slice::from_ref(&chain)).unwrap_err();
        assert_eq!(other.errno(), Some(1));
        run(&["nft", "flush", "ruleset"]);
        assert!(first.read_table(Family::Ip, TABLE).unwrap().is_some());
        drop(first);
        let mut second = session();
        commit(&mut second, &[take, chain]).unwrap();
        let held = second.read_table(Family::Ip, TABLE).unwrap().unwrap();
        assert_eq!((held.flags, held.chains.len()), (owned, 1));
    });
}

/// Commands on few names, so that they conflict.
fn commands() -> impl Strategy<Value = Vec<Command>> {
    let existing = || prop_oneof![Just(IfExists::Keep), Just(IfExists::Fail)];
    let chain = || prop_oneof![Just("a"), Just("b"), Just("c")];
    let key = || (0u32..4).prop_map(|n| Value::from(n.to_be_bytes()));
    let jump = |to: &str| Data::Verdict(Verdict::Jump(to.into()));
    let elements = |set: &str, elements: Vec<Element>| Elements {
        table: TABLE.into(),
        set: set.into(),
        elements,
    };
    let immediate = move |to: &str| Expr::from(Immediate { dreg: Target::Verdict, data: jump(to) });
    let load = Expr::from(Meta { dreg: Some(reg(0)), key: MetaKey::MARK, sreg: None });
    let lookup = |set: &str, dreg| {
        Expr::from(Lookup { set: set.into(), sreg: reg(0), dreg, flags: LookupFlags::PRESENT })
    };
    let plain = set("s", SetFlags(0), &[Type::Mark], None);
    let plain = Set { size: SetSize(Some(3)), ..plain };
    let verdicts =
        Set { id: Some(2), ..set("v", SetFlags::MAP, &[Type::Mark], Some(Type::Verdict)) };
    let one = prop_oneof![
        (chain(), existing()).prop_map(|(c, e)| Command::NewChain(Chain::regular(TABLE, c), e)),
        chain().prop_map(|c| Command::DelChain(Chain::regular(TABLE, c))),
        (chain(), chain()).prop_map(move |(c, to)| Command::NewRule(rule(c, vec![immediate(to)]))),
        (chain(), any::<bool>()).prop_map(move |(c, verdict)| {
            let lookup =
                if verdict { lookup("v", Some(Target::Verdict)) } else { lookup("s", None) };
            Command::NewRule(rule(c, vec![load.clone(), lookup]))
        }),
        chain()
            .prop_map(|c| Command::DelRule(Rule { userdata: Vec::new(), ..rule(c, Vec::new()) })),
        (prop_oneof![Just(plain.clone()), Just(verdicts.clone())], existing())
            .prop_map(|(set, e)| Command::NewSet(set, e)),
        prop_oneof![Just(plain), Just(verdicts)].prop_map(Command::DelSet),
        (key(), existing()).prop_map(move |(key, e)| {
            Command::NewElements(elements("s", vec![Element::member(key)]), e)
        }),
        (key(), chain(), existing()).prop_map(move |(key, to, e)| {
            Command::NewElements(elements("v", vec![Element::entry(key, jump(to))]), e)
        }),
        (key(), prop_oneof![Just("s"), Just("v")]).prop_map(move |(key, set)| {
            Command::DelElements(elements(set, vec![Element::member(key)]))
        }),
    ];
    proptest::collection::vec(one, 1..4)
}

/// The result of a transaction, as far as both kernels must agree.
fn outcome(result: Result<(), CommitError>) -> String {
    match result {
        Ok(()) => "committed".into(),
        Err(CommitError::Refused { about, errno, .. }) => format!("{about}: {errno}"),
        Err(other) => other.to_string(),
    }
}

#[test]
fn the_fake_agrees_with_the_kernel_on_random_batches() {
    in_namespace("the_fake_agrees_with_the_kernel_on_random_batches", || {
        let config = Config { cases: 100, failure_persistence: None, ..Config::default() };
        let histories = proptest::collection::vec(commands(), 1..25);
        TestRunner::new(config)
            .run(&histories, |history| {
                let (mut real, mut fake) = (session(), Session::new(FakeTransport::default()));
                let fresh = [
                    Command::NewTable(Table::named(TABLE), IfExists::Keep),
                    Command::DelTable(Table::named(TABLE)),
                    Command::NewTable(Table::named(TABLE), IfExists::Fail),
                ];
                commit(&mut real, &fresh).unwrap();
                commit(&mut fake, &fresh).unwrap();
                for commands in &history {
                    let real_outcome = outcome(commit(&mut real, commands));
                    let fake_outcome = outcome(commit(&mut fake, commands));
                    prop_assert_eq!(fake_outcome, real_outcome, "{:?}", commands);
                    let held = real.read_table(Family::Ip, TABLE).unwrap().unwrap();
                    let believed = fake.read_table(Family::Ip, TABLE).unwrap().unwrap();
                    prop_assert_eq!(&believed, &held);
                }
                Ok(())
            })
            .unwrap();
    });
}
