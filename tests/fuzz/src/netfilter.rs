//! Netlink messages of the kernel and of the fake kernel.

#[path = "../../../proxy/netfilter/tests/samples/mod.rs"]
mod samples;

use proxy_netfilter::nft::command::Command;
use proxy_netfilter::nft::{Batch, Family};
use proxy_netfilter::wire::{Message, Messages};

/// Values in a command, each of which takes at least a header in the bytes that it came from.
fn parts(command: &Command) -> usize {
    match command {
        Command::NewElements(list, _) | Command::DelElements(list) => list.elements.len(),
        Command::NewRule(rule) | Command::DelRule(rule) => rule.exprs.len(),
        _ => 1,
    }
}

/// What was read is written, read again, and written as before.
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

/// A message of kind, flags and payload: the first four bytes and the rest.
fn message(bytes: &[u8], kind: impl Fn(u16) -> u16) -> Option<Message<'_>> {
    let (head, payload) = bytes.split_first_chunk::<4>()?;
    let [k0, k1, f0, f1] = *head;
    let number = u16::from_be_bytes([k0, k1]);
    Some(Message { kind: kind(number), flags: u16::from_be_bytes([f0, f1]), seq: 1, payload })
}

/// The inverse of [`message`].
fn headed(message: &Message<'_>) -> Vec<u8> {
    let mut bytes = message.kind.to_be_bytes().to_vec();
    bytes.extend(message.flags.to_be_bytes());
    bytes.extend(message.payload);
    bytes
}

fn messages(is_wanted: impl Fn(u16) -> bool) -> Vec<Vec<u8>> {
    let datagrams = samples::datagrams();
    let all = datagrams.iter().flat_map(|bytes| Messages::new(bytes).flatten());
    all.filter(|message| is_wanted(message.kind >> 8)).map(|message| headed(&message)).collect()
}

/// Whole datagrams: framing, errors and ends of dumps, all decoders, and the fake kernel's answer.
pub mod netlink {
    use proxy_netfilter::ack::Ack;
    use proxy_netfilter::fake::FakeKernel;
    use proxy_netfilter::nft::Ruleset;
    use proxy_netfilter::nft::batch::Answer;

    use super::*;

    /// Lets all decoders read one datagram.
    pub fn check(bytes: &[u8]) {
        let mut rules = Ruleset::default();
        // An error ends the iteration or is passed over: never more messages than headers fit.
        assert!(Messages::new(bytes).count() <= bytes.len() / 4 + 1);
        for message in Messages::new(bytes).flatten() {
            assert!(message.payload.len() <= bytes.len());
            if let Ok(answer) = Answer::read(&message) {
                rules.absorb(answer);
            }
            if let Ok(ack) = Ack::read(&message) {
                assert!(ack.text.is_none_or(|text| text.len() <= message.payload.len()));
            }
            let _ = (message.resource(), Ack::read_done(&message));
        }
        let elements: usize = rules.tables.values().map(|table| table.elements_len()).sum();
        assert!(elements * 4 <= bytes.len());
        let mut kernel = FakeKernel::default();
        let answered: usize = kernel.send(bytes).iter().map(Vec::len).sum();
        assert!(answered <= bytes.len() * 4 + 4096, "{answered} bytes of answer");
    }

    /// Datagrams of both directions.
    pub fn seeds() -> Vec<Vec<u8>> {
        samples::datagrams()
    }
}

/// One message of nf_tables: tables, chains, rules with their expressions, sets, elements.
pub mod nft {
    use super::*;

    /// Reads and writes back.
    pub fn check(bytes: &[u8]) {
        let Some(message) = message(bytes, |kind| 0x0a00 | (kind & 0x1f)) else { return };
        if let Ok((family, command)) = Command::read(&message) {
            assert!(parts(&command) * 4 <= message.payload.len(), "{command:?}");
            assert!(!command.describe().is_empty());
            read_back(family, &command);
        }
        let _ = proxy_netfilter::nft::batch::Answer::read(&message);
    }

    /// Each message of the samples alone.
    pub fn seeds() -> Vec<Vec<u8>> {
        messages(|subsystem| subsystem == 10)
    }
}

/// One message of the connection table.
pub mod conntrack {
    use proxy_netfilter::ct::{self, FlowFilter, TupleFilter};

    use super::*;

    /// Reads it as each of what it can be; a flow that was read is one that can be deleted and found.
    pub fn check(bytes: &[u8]) {
        let Some(message) = message(bytes, |kind| 0x0100 | (kind & 0xf)) else { return };
        let _ = ct::read_table_use(&message);
        if let Ok(state) = ct::read_flow_state(&message) {
            let _ = (state.name(6), state.name(132));
        }
        let Ok(flow) = ct::read_flow(&message) else { return };
        assert!(ct::delete(1, &flow).is_ok() && ct::delete_tuple(1, &flow.orig).is_ok());
        let orig = TupleFilter {
            dst: Some(flow.orig.dst),
            proto: Some(flow.orig.proto),
            dst_port: Some(flow.orig.dst_port),
            ..TupleFilter::default()
        };
        assert!(FlowFilter { orig, ..FlowFilter::default() }.matches(&flow));
    }

    /// Requests name flows as dumps do; a flow in full is put together from two of them.
    pub fn seeds() -> Vec<Vec<u8>> {
        let mut all = messages(|subsystem| subsystem == 1);
        let both = |family| {
            let orig = ct::delete(1, &samples::flow(family)).unwrap_or_default();
            let attributes = orig.get(20..).unwrap_or_default();
            let mut whole = vec![0x01, 0, 0, 0];
            whole.extend(orig.get(16..20).unwrap_or_default());
            whole.extend(attributes);
            let mut reply = attributes.to_vec();
            // The second of the two tuples is attribute 2.
            if let Some(kind) = reply.get_mut(2) {
                *kind = 2;
            }
            whole.extend(reply);
            // Status, mark, timeout and id; protocol information of TCP; counters of both ways.
            for number in [3_u16, 8, 7, 12] {
                whole.extend(8_u16.to_ne_bytes());
                whole.extend(number.to_ne_bytes());
                whole.extend(9_u32.to_be_bytes());
            }
            whole.extend([16, 0, 4, 0x80, 12, 0, 1, 0x80, 5, 0, 1, 0, 3, 0, 0, 0]);
            for number in [9_u16, 10] {
                whole.extend(28_u16.to_ne_bytes());
                whole.extend((number | 0x8000).to_ne_bytes());
                for (kind, value) in [(1_u16, 5_u64), (2, 500)] {
                    whole.extend(12_u16.to_ne_bytes());
                    whole.extend(kind.to_ne_bytes());
                    whole.extend(value.to_be_bytes());
                }
            }
            whole
        };
        use proxy_netfilter::ct::AddressFamily::{V4, V6};
        all.extend([both(V4), both(V6)]);
        all
    }

    #[cfg(test)]
    mod tests {
        use super::*;

        #[test]
        fn seeds_hold_flows() {
            let seeds = seeds();
            let of = |seed| message(seed, |kind| 0x0100 | (kind & 0xf));
            let read = seeds.iter().filter(|seed| {
                of(seed).is_some_and(|message| {
                    let state = ct::read_flow_state(&message);
                    ct::read_flow(&message).is_ok()
                        && state.is_ok_and(|s| s.state == Some(3) && s.counters.is_some())
                })
            });
            assert_eq!(read.count(), 2);
        }
    }
}

/// A packet that a rule logged.
pub mod nflog {
    use proxy_netfilter::wire::{Header, Writer};

    use super::*;

    /// Reads it, both as a message and as the packet in one.
    pub fn check(bytes: &[u8]) {
        let told = Message { kind: 0x0400, flags: 0, seq: 0, payload: bytes };
        let _ = proxy_netfilter::nflog::read_packet(&told);
        let packet = wrapped(bytes);
        for message in Messages::new(&packet).flatten() {
            if let Some(tuple) = proxy_netfilter::nflog::read_packet(&message) {
                assert!(matches!(tuple.proto, 6 | 17 | 132));
                assert_eq!(tuple.src.is_ipv4(), tuple.dst.is_ipv4());
            }
        }
    }

    fn wrapped(packet: &[u8]) -> Vec<u8> {
        let mut writer = Writer::default();
        let header = Header { kind: 0x0400, flags: 0, seq: 0, family: 2, resource: 9 };
        writer.message(header, |w| w.attribute(9, packet));
        writer.finish().unwrap_or_default()
    }

    /// A packet of each family, one with options.
    pub fn seeds() -> Vec<Vec<u8>> {
        let mut v4 = vec![0x46, 0, 0, 32, 0, 0, 0, 0, 64, 17, 0, 0, 10, 0, 0, 1, 10, 96, 0, 1];
        v4.extend([1, 1, 1, 0, 0x10, 0x92, 0, 53, 0, 8, 0, 0]);
        let mut v6 = vec![0x60, 0, 0, 0, 0, 8, 132, 64];
        v6.extend([&[0; 15][..], &[1], &[0; 15], &[2], &[0, 7, 0, 9]].concat());
        let whole = wrapped(&v4).get(16..).unwrap_or_default().to_vec();
        vec![v4, v6, whole]
    }
}
