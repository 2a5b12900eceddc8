//! What a node sends to its neighbours when it takes an address over: a gratuitous ARP request (RFC 5227), or an unsolicited neighbour advertisement (RFC
//! 4861). Pure: bytes of Ethernet frames.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// The address of a network interface.
pub type HardwareAddress = [u8; 6];

const ETHERTYPE_ARP: [u8; 2] = [0x08, 0x06];
const ETHERTYPE_IPV6: [u8; 2] = [0x86, 0xdd];
/// The shortest payload of a frame.
const PAYLOAD_MIN: usize = 46;
/// All nodes of a link.
const ALL_NODES: Ipv6Addr = Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 0, 1);
const ALL_NODES_FRAME: HardwareAddress = [0x33, 0x33, 0, 0, 0, 1];
const NEXT_HEADER_ICMP: u8 = 58;

/// The frame that says that `address` is at the interface with the address `from`.
pub fn frame(address: IpAddr, from: HardwareAddress) -> Vec<u8> {
    match address {
        IpAddr::V4(v4) => ethernet([0xff; 6], from, ETHERTYPE_ARP, arp_request(v4, from)),
        IpAddr::V6(v6) => {
            ethernet(ALL_NODES_FRAME, from, ETHERTYPE_IPV6, neighbour_advertisement(v6, from))
        }
    }
}

fn ethernet(
    to: HardwareAddress,
    from: HardwareAddress,
    ethertype: [u8; 2],
    mut payload: Vec<u8>,
) -> Vec<u8> {
    payload.resize(payload.len().max(PAYLOAD_MIN), 0);
    [&to[..], &from, &ethertype, &payload].concat()
}

/// Sender and target are the same: neighbours that know the address replace what they know.
fn arp_request(address: Ipv4Addr, from: HardwareAddress) -> Vec<u8> {
    let ethernet_and_ipv4 = [0, 1, 0x08, 0, 6, 4];
    let request = [0, 1];
    let address = address.octets();
    [&ethernet_and_ipv4[..], &request, &from, &address, &[0; 6], &address].concat()
}

/// An IPv6 packet to all nodes of the link, from the address itself.
fn neighbour_advertisement(address: Ipv6Addr, from: HardwareAddress) -> Vec<u8> {
    let overrides = [0x20, 0, 0, 0];
    let target_hardware_address = [2, 1];
    let body = [&overrides[..], &address.octets(), &target_hardware_address, &from].concat();
    let message = |checksum: [u8; 2]| [&[136, 0][..], &checksum, &body].concat();
    let unsummed = message([0; 2]);
    let len = u16::try_from(unsummed.len()).unwrap_or(u16::MAX).to_be_bytes();
    let icmp = message(checksum(address, &unsummed));
    let hop_limit = 255;
    let version = [0x60, 0, 0, 0];
    let rest = [NEXT_HEADER_ICMP, hop_limit];
    [&version[..], &len, &rest, &address.octets(), &ALL_NODES.octets(), &icmp].concat()
}

/// The Internet checksum of an ICMPv6 message to all nodes.
fn checksum(from: Ipv6Addr, message: &[u8]) -> [u8; 2] {
    let len = u32::try_from(message.len()).unwrap_or(u32::MAX).to_be_bytes();
    let pseudo_header =
        [&from.octets()[..], &ALL_NODES.octets(), &len, &[0, 0, 0, NEXT_HEADER_ICMP]].concat();
    let words = pseudo_header.chunks(2).chain(message.chunks(2));
    let word = |bytes: &[u8]| match bytes {
        [high, low] => u64::from(u16::from_be_bytes([*high, *low])),
        [high] => u64::from(u16::from_be_bytes([*high, 0])),
        _ => 0,
    };
    let sum = words.map(word).fold(0, u64::saturating_add);
    let folded = |sum: u64| (sum & 0xffff).saturating_add(sum >> 16);
    let sum = folded(folded(sum));
    (!u16::try_from(sum).unwrap_or(u16::MAX)).to_be_bytes()
}

#[cfg(test)]
mod tests {
    use super::*;

    const FROM: HardwareAddress = [2, 0, 0, 0, 0, 7];

    #[test]
    fn a_gratuitous_request_asks_for_the_senders_address() {
        let frame = frame("192.0.2.50".parse().unwrap(), FROM);
        assert_eq!(frame.len(), 60);
        assert_eq!(frame[..14], [0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 2, 0, 0, 0, 0, 7, 8, 6]);
        let arp = [0, 1, 8, 0, 6, 4, 0, 1, 2, 0, 0, 0, 0, 7, 192, 0, 2, 50];
        assert_eq!(frame[14..32], arp);
        assert_eq!(frame[32..42], [0, 0, 0, 0, 0, 0, 192, 0, 2, 50]);
        assert!(frame[42..].iter().all(|byte| *byte == 0));
    }

    #[test]
    fn an_advertisement_overrides_and_its_checksum_is_right() {
        let address: Ipv6Addr = "fd00::50".parse().unwrap();
        let frame = frame(address.into(), FROM);
        assert_eq!(frame.len(), 14 + 40 + 32);
        assert_eq!(frame[..14], [0x33, 0x33, 0, 0, 0, 1, 2, 0, 0, 0, 0, 7, 0x86, 0xdd]);
        assert_eq!(frame[14..22], [0x60, 0, 0, 0, 0, 32, 58, 255]);
        assert_eq!(frame[22..38], address.octets());
        assert_eq!(frame[38..54], ALL_NODES.octets());
        assert_eq!((frame[54], frame[58]), (136, 0x20));
        assert_eq!(frame[62..78], address.octets());
        assert_eq!(frame[78..], [2, 1, 2, 0, 0, 0, 0, 7]);
        // A message with its checksum has the checksum 0.
        assert_eq!(checksum(address, &frame[54..]), [0, 0]);
        assert_ne!(frame[56..58], [0, 0]);
    }
}
