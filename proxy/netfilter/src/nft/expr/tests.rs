use super::*;
use crate::nft::value::Verdict;
use proptest::prelude::*;

fn bytes_of(expr: &Expr) -> Vec<u8> {
    let mut writer = Writer::default();
    expr.put(&mut writer, 1);
    writer.finish().unwrap()
}

fn read(bytes: &[u8]) -> Result<Expr, WireError> {
    let attribute = Attributes::new(bytes).next().unwrap()?;
    Expr::take(attribute, "expression")
}

#[test]
fn dnat_is_laid_out_as_the_kernel_reads_it() {
    let dnat = Expr::from(Nat {
        kind: NatKind::DNAT,
        family: 2,
        addr_min: Some(Reg::word(0)),
        addr_max: None,
        proto_min: Some(Reg::word(1)),
        proto_max: None,
        flags: NatFlags(0),
    });
    #[rustfmt::skip]
    let expected = [
        48, 0, 1, 0x80,                                    // list element
        8, 0, 1, 0,  b'n', b'a', b't', 0,                  // NFTA_EXPR_NAME
        36, 0, 2, 0x80,                                    // NFTA_EXPR_DATA
        8, 0, 1, 0,  0, 0, 0, 1,                           // NFTA_NAT_TYPE: destination
        8, 0, 2, 0,  0, 0, 0, 2,                           // NFTA_NAT_FAMILY: IPv4
        8, 0, 3, 0,  0, 0, 0, 1,                           // NFTA_NAT_REG_ADDR_MIN: NFT_REG_1
        8, 0, 5, 0,  0, 0, 0, 9,                           // NFTA_NAT_REG_PROTO_MIN: NFT_REG32_01
    ];
    let bytes = bytes_of(&dnat);
    assert_eq!(bytes, expected);
    assert_eq!(read(&bytes), Ok(dnat));
}

#[test]
fn a_missing_field_and_a_short_one_are_named() {
    let mut writer = Writer::default();
    writer.nest(1, |w| {
        w.name(1, "cmp");
        w.nest(2, |w| w.attribute(2, &[0, 0, 0, 0]));
    });
    let missing = WireError::Missing { object: "Cmp", attribute: "sreg" };
    assert_eq!(read(&writer.finish().unwrap()), Err(missing));

    let mut writer = Writer::default();
    writer.nest(1, |w| {
        w.name(1, "cmp");
        w.nest(2, |w| w.attribute(2, &[0]));
    });
    let short = WireError::Truncated { what: "Cmp.op", need: 4, have: 1 };
    assert_eq!(read(&writer.finish().unwrap()), Err(short));
}

fn reg() -> impl Strategy<Value = Reg> {
    (0u8..16).prop_map(Reg::word)
}

fn value() -> impl Strategy<Value = Value> {
    proptest::collection::vec(any::<u8>(), 1..=64).prop_map(|bytes| Value::new(&bytes))
}

fn data() -> impl Strategy<Value = Data> {
    prop_oneof![
        value().prop_map(Data::Value),
        Just(Data::Verdict(Verdict::Drop)),
        Just(Data::Verdict(Verdict::Return)),
        "[a-z]{1,16}".prop_map(|chain| Data::Verdict(Verdict::Goto(chain))),
    ]
}

/// Expressions that load registers.
fn loads() -> impl Strategy<Value = Expr> {
    let n = any::<u32>;
    prop_oneof![
        (n(), reg()).prop_map(|(key, dreg)| {
            Meta { dreg: Some(dreg), key: MetaKey(key), sreg: None }.into()
        }),
        (reg(), n(), n(), n()).prop_map(|(dreg, base, offset, len)| {
            Payload { dreg, base: PayloadBase(base), offset, len }.into()
        }),
        (reg(), data())
            .prop_map(|(dreg, data)| { Immediate { dreg: Target::Reg(dreg), data }.into() }),
        (reg(), n(), proptest::option::of(any::<u8>())).prop_map(|(dreg, key, direction)| {
            Ct { dreg: Some(dreg), key: CtKey(key), direction, sreg: None }.into()
        }),
        (reg(), n(), n()).prop_map(|(dreg, result, flags)| {
            Fib { dreg, result: FibResult(result), flags: FibFlags(flags) }.into()
        }),
        (reg(), n(), n(), n()).prop_map(|(dreg, modulus, kind, offset)| {
            Numgen { dreg, modulus, kind: NumgenKind(kind), offset }.into()
        }),
        (reg(), reg(), n(), n()).prop_map(|(sreg, dreg, modulus, seed)| {
            let (len, offset, kind) = (Some(8), None, HashKind::JENKINS);
            Hash { sreg: Some(sreg), dreg, len, modulus, seed: Some(seed), offset, kind }.into()
        }),
    ]
}

/// Expressions that test, look up or act.
fn acts() -> impl Strategy<Value = Expr> {
    let n = any::<u32>;
    prop_oneof![
        (reg(), n(), value()).prop_map(|(sreg, op, data)| Cmp { sreg, op: CmpOp(op), data }.into()),
        (reg(), reg(), value(), value()).prop_map(|(sreg, dreg, mask, xor)| {
            Bitwise { sreg, dreg, len: 4, mask, xor, op: BitwiseOp::MASK_XOR }.into()
        }),
        ("[a-z]{1,16}", reg(), n()).prop_map(|(set, sreg, flags)| {
            Lookup { set, sreg, dreg: Some(Target::Verdict), flags: LookupFlags(flags) }.into()
        }),
        n().prop_map(|flags| {
            Masq { flags: NatFlags(flags), proto_min: None, proto_max: None }.into()
        }),
        (reg(), n()).prop_map(|(reg, flags)| {
            Redir { proto_min: Some(reg), proto_max: None, flags: NatFlags(flags) }.into()
        }),
        ("[a-z]{1,16}", reg(), any::<u64>()).prop_map(|(set, key, timeout)| {
            let (data, timeout_ms) = (Some(Reg::word(4)), Some(timeout));
            Dynset { set, op: DynsetOp::UPDATE, key, data, timeout_ms, flags: None }.into()
        }),
        any::<u8>().prop_map(|code| Reject { kind: RejectKind::ICMP, code: Some(code) }.into()),
        (any::<u64>(), any::<u64>()).prop_map(|(bytes, packets)| Counter { bytes, packets }.into()),
        (any::<u64>(), n())
            .prop_map(|(rate, burst)| { Limit { rate, unit: 1, burst, kind: 0, flags: 0 }.into() }),
        (reg(), value(), value())
            .prop_map(|(sreg, from, to)| Range { sreg, op: 0, from, to }.into()),
        (reg(), reg()).prop_map(|(sreg, dreg)| {
            Byteorder { sreg, dreg, op: ByteorderOp::HTON, len: 4, size: 4 }.into()
        }),
        "[a-z]{1,16}".prop_map(|name| Objref { kind: 1, name }.into()),
        proptest::collection::vec(any::<u8>(), 0..40)
            .prop_map(|data| { Expr::Other { name: "tproxy".into(), data } }),
    ]
}

proptest! {
    #[test]
    fn every_expression_comes_back_as_it_was_written(expr in prop_oneof![loads(), acts()]) {
        prop_assert_eq!(read(&bytes_of(&expr)), Ok(expr));
    }

    #[test]
    fn any_bytes_are_read_without_panic(name in 0usize..20, data in proptest::collection::vec(any::<u8>(), 0..80)) {
        let names = ["meta", "payload", "cmp", "bitwise", "immediate", "lookup", "nat", "masq", "redir", "ct",
            "fib", "numgen", "hash", "dynset", "reject", "counter", "limit", "range", "byteorder", "objref"];
        let _ = Expr::read_data(names[name], &data);
    }
}
