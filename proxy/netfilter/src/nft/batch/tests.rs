use super::*;
use crate::nft::value::{Data, Value};
use crate::wire::Messages;

#[test]
fn a_batch_is_begin_commands_end_with_one_acknowledgement() {
    let mut batch = Batch::new(7, Some(0x0102_0304));
    batch.push(Family::Ip, &Command::NewTable(Table::named("t"), IfExists::Keep));
    let encoded = batch.finish().unwrap();
    #[rustfmt::skip]
    let expected = [
        28, 0, 0, 0,  0x10, 0, 1, 0,  7, 0, 0, 0,  0, 0, 0, 0,   // NFNL_MSG_BATCH_BEGIN, request, seq 7
        0, 0, 0, 10,                                             // subsystem nf_tables
        8, 0, 1, 0,  1, 2, 3, 4,                                 // NFNL_BATCH_GENID
        28, 0, 0, 0,  0, 10, 5, 4,  8, 0, 0, 0,  0, 0, 0, 0,     // NFT_MSG_NEWTABLE, request+ack+create, seq 8
        2, 0, 0, 0,                                              // IPv4
        6, 0, 1, 0,  b't', 0, 0, 0,                              // NFTA_TABLE_NAME
        20, 0, 0, 0,  0x11, 0, 1, 0,  9, 0, 0, 0,  0, 0, 0, 0,   // NFNL_MSG_BATCH_END, seq 9
        0, 0, 0, 10,
    ];
    assert_eq!(encoded.bytes, expected);
    assert_eq!((encoded.seqs.clone(), encoded.last), (7..10, 8));
    assert_eq!(encoded.label(8), "make table t");
    assert_eq!(encoded.label(7), "begin of the batch");
}

#[test]
fn commands_come_back_from_their_messages() {
    let element =
        Element::entry(Value::from([10, 0, 0, 1]), Data::Value(Value::from([0, 0, 0, 3])));
    let commands = [
        Command::NewChain(Chain::regular("t", "c"), IfExists::Fail),
        Command::DelChain(Chain::regular("t", "c")),
        Command::NewElements(
            Elements { table: "t".into(), set: "m".into(), elements: vec![element] },
            IfExists::Keep,
        ),
        Command::DelTable(Table::named("t")),
    ];
    let mut batch = Batch::new(1, None);
    batch.extend(Family::Ip6, &commands);
    let encoded = batch.finish().unwrap();
    let read: Vec<_> = Messages::new(&encoded.bytes)
        .map(Result::unwrap)
        .filter(|message| message.kind >> 8 == u16::from(SUBSYSTEM))
        .map(|message| Command::read(&message).unwrap())
        .collect();
    assert_eq!(read, commands.map(|command| (Family::Ip6, command)));
}

#[test]
fn a_long_list_of_elements_is_continued_in_further_messages() {
    let key = |n: u32| Element::member(Value::from(n.to_be_bytes()));
    let mut batch = Batch::new(1, None);
    batch.add_elements(Family::Ip, "t", "s", (0..10_000).map(key));
    let encoded = batch.finish().unwrap();
    let mut keys = Vec::new();
    let mut messages = 0;
    for message in Messages::new(&encoded.bytes).map(Result::unwrap) {
        if let Ok((_, Command::NewElements(list, _))) = Command::read(&message) {
            messages += 1;
            assert!(message.payload.len() < usize::from(u16::MAX));
            keys.extend(list.elements);
        }
    }
    assert_eq!(messages, 3);
    assert!(keys.into_iter().eq((0..10_000).map(key)));
    assert_eq!(encoded.label(encoded.last), "add to set t s");
}

#[test]
fn an_empty_list_of_elements_is_no_message() {
    // The kernel takes a delete without elements as "delete all".
    let mut batch = Batch::new(1, None);
    batch.del_elements(Family::Ip, "t", "s", []);
    assert!(batch.is_empty());
}

#[test]
fn queries_name_what_they_dump() {
    let bytes = Query::Elements(Family::Ip, "t".into(), "s".into()).encode(3).unwrap();
    #[rustfmt::skip]
    let expected = [
        36, 0, 0, 0,  13, 10, 1, 3,  3, 0, 0, 0,  0, 0, 0, 0,    // NFT_MSG_GETSETELEM, request+dump
        2, 0, 0, 0,
        6, 0, 1, 0,  b't', 0, 0, 0,
        6, 0, 2, 0,  b's', 0, 0, 0,
    ];
    assert_eq!(bytes, expected);
}
