//! NFLOG: rules copy packets to a numbered group, which one socket receives.
//!
//! Numbers are those of `linux/netfilter/nfnetlink_log.h`.

#![cfg_attr(not(test), warn(clippy::arithmetic_side_effects))]

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use crate::ct::Tuple;
use crate::wire::{Header, Message, TooLong, Writer, flags};

/// Subsystem number of NFLOG.
pub const SUBSYSTEM: u8 = 4;
/// Bytes of each packet that are copied: an IPv6 header and ports, with room for IPv4 options.
const COPY_LEN: u32 = 64;

const PACKET: u8 = 0;
const CONFIG: u8 = 1;
const CFG_COMMAND: u16 = 1;
const CFG_MODE: u16 = 2;
const CFG_THRESHOLD: u16 = 5;
const COMMAND_BIND: u8 = 1;
const COPY_PACKET: u8 = 2;
const PAYLOAD: u16 = 9;

/// Request to receive the packets of `group`, each at once. Refused with `EBUSY` if another socket has the group.
pub fn bind(seq: u32, group: u16) -> Result<Vec<u8>, TooLong> {
    let kind = u16::from_be_bytes([SUBSYSTEM, CONFIG]);
    let flags = flags::REQUEST | flags::ACK;
    let mut writer = Writer::default();
    writer.message(Header { kind, flags, seq, family: 0, resource: group }, |w| {
        w.attribute(CFG_COMMAND, &[COMMAND_BIND]);
        let [a, b, c, d] = COPY_LEN.to_be_bytes();
        w.attribute(CFG_MODE, &[a, b, c, d, COPY_PACKET, 0]);
        w.attribute(CFG_THRESHOLD, &1_u32.to_be_bytes());
    });
    writer.finish()
}

/// The tuple of a logged packet; `None` unless TCP, UDP or SCTP follows the IP header directly.
pub fn read_packet(message: &Message<'_>) -> Option<Tuple> {
    if message.kind != u16::from_be_bytes([SUBSYSTEM, PACKET]) {
        return None;
    }
    let attributes = message.attributes().ok()?;
    let payload = attributes.flatten().find(|attribute| attribute.kind == PAYLOAD)?.payload;
    read_tuple(payload)
}

fn read_tuple(packet: &[u8]) -> Option<Tuple> {
    let first = *packet.first()?;
    let (src, dst, proto, header_len): (IpAddr, IpAddr, u8, usize) = match first >> 4 {
        4 => {
            let address = |at: usize| Some(Ipv4Addr::from(*packet.get(at..)?.first_chunk::<4>()?));
            let header_len = usize::from(first & 0xf).saturating_mul(4);
            (address(12)?.into(), address(16)?.into(), *packet.get(9)?, header_len)
        }
        6 => {
            let address = |at: usize| Some(Ipv6Addr::from(*packet.get(at..)?.first_chunk::<16>()?));
            (address(8)?.into(), address(24)?.into(), *packet.get(6)?, 40)
        }
        _ => return None,
    };
    let ports = packet.get(header_len..)?;
    let port = |at: usize| Some(u16::from_be_bytes(*ports.get(at..)?.first_chunk()?));
    matches!(proto, 6 | 17 | 132).then_some(())?;
    Some(Tuple { src, dst, proto, src_port: port(0)?, dst_port: port(2)? })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn binding_names_group_and_length() {
        #[rustfmt::skip]
        let expected = [
            48, 0, 0, 0,  1, 4, 5, 0,  7, 0, 0, 0,  0, 0, 0, 0,      // NFULNL_MSG_CONFIG, request+ack
            0, 0, 0x12, 0x34,                                        // group as res_id
            5, 0, 1, 0,  1, 0, 0, 0,                                 // NFULNL_CFG_CMD_BIND
            10, 0, 2, 0,  0, 0, 0, 64, 2, 0, 0, 0,                   // 64 bytes of each packet
            8, 0, 5, 0,  0, 0, 0, 1,                                 // one by one
        ];
        assert_eq!(bind(7, 0x1234).unwrap(), expected);
    }

    #[test]
    fn packets_name_their_connection() {
        let mut v4 = vec![0x46, 0, 0, 32, 0, 0, 0, 0, 64, 17, 0, 0, 10, 0, 0, 1, 10, 96, 0, 1];
        v4.extend([1, 1, 1, 0, 0x10, 0x92, 0, 53, 0, 8, 0, 0]);
        let tuple = Tuple {
            src: IpAddr::from([10, 0, 0, 1]),
            dst: IpAddr::from([10, 96, 0, 1]),
            proto: 17,
            src_port: 4242,
            dst_port: 53,
        };
        assert_eq!(read_tuple(&v4), Some(tuple));
        let mut v6 = vec![0x60, 0, 0, 0, 0, 8, 132, 64];
        v6.extend([&[0; 15][..], &[1], &[0; 15], &[2], &[0, 7, 0, 9]].concat());
        let read = read_tuple(&v6).unwrap();
        assert_eq!((read.proto, read.src_port, read.dst_port), (132, 7, 9));
        assert_eq!(read.dst, "::2".parse::<IpAddr>().unwrap());
        // An extension header before the ports, and a truncated packet.
        v6[6] = 44;
        assert_eq!((read_tuple(&v6), read_tuple(&v4[..25])), (None, None));
    }

    proptest! {
        #[test]
        fn any_bytes_are_read_without_panic(payload in proptest::collection::vec(any::<u8>(), 0..120)) {
            let _ = read_packet(&Message { kind: 0x400, flags: 0, seq: 0, payload: &payload });
            let _ = read_tuple(&payload);
        }
    }
}
