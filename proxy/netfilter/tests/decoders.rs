//! Every decoder on invalid input: datagrams of both directions, damaged in every relevant way, and random bytes. A
//! decoder returns a value or an error; it never panics, its result is bounded by the input, and encodes to bytes that
//! decode alike. `ORCH_TEST_CASES` sets the number of cases.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test may end anywhere")]

mod samples;

use proptest::prelude::*;
use proxy_netfilter::ack::Ack;
use proxy_netfilter::ct;
use proxy_netfilter::fake::FakeKernel;
use proxy_netfilter::nflog;
use proxy_netfilter::nft::batch::Answer;
use proxy_netfilter::nft::command::Command;
use proxy_netfilter::nft::{Batch, Family, Ruleset};
use proxy_netfilter::wire::Messages;

use samples::{commands, datagrams};

/// Number of random cases.
fn cases(slice: u32) -> u32 {
    std::env::var("ORCH_TEST_CASES").ok().and_then(|n| n.parse().ok()).unwrap_or(slice)
}

/// One way to damage a datagram; positions and lengths are taken modulo its length.
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
            // Headers of messages and attributes are at multiples of four.
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

/// Number of values in a command, each of which takes at least a header in the input.
fn parts(command: &Command) -> usize {
    match command {
        Command::NewElements(list, _) | Command::DelElements(list) => list.elements.len(),
        Command::NewRule(rule) | Command::DelRule(rule) => rule.exprs.len(),
        _ => 1,
    }
}

/// Decodes the bytes with every decoder.
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
    let mut kernel = FakeKernel::default();
    let answered: usize = kernel.send(bytes).iter().map(Vec::len).sum();
    // An acknowledgement for each message, or one dump of an empty ruleset.
    assert!(answered <= bytes.len() * 4 + 4096, "{answered} bytes of answer to {}", bytes.len());
}

/// Encoding a decoded value, decoding and encoding it again yields the same bytes. (Zero flags are not encoded, as in
/// the kernel, so values may differ where bytes do not.)
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
fn every_datagram_that_is_sent_is_decoded() {
    let datagrams = datagrams();
    assert!(datagrams.len() > 20, "{}", datagrams.len());
    datagrams.iter().for_each(|bytes| decode(bytes));
    // The first datagram has a command of every kind, and all of them decode.
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
