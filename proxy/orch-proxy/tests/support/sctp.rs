//! Handmade SCTP, for machines without SCTP sockets: sends INIT and finds out where it arrives.

#![allow(dead_code, reason = "each test binary uses what it needs")]

use std::net::{IpAddr, UdpSocket};
use std::time::{Duration, Instant};

use crate::net::{Reply, inside};
use crate::sys;

const SCTP: i32 = 132;
const ICMP: i32 = 1;
const ICMP6: i32 = 58;
/// Interval of polling sockets.
const GLANCE: Duration = Duration::from_millis(1);

/// The checksum of SCTP (RFC 9260, appendix A).
pub fn crc32c(bytes: &[u8]) -> u32 {
    let step = |crc: u32, _| if crc & 1 == 1 { crc >> 1 ^ 0x82f6_3b78 } else { crc >> 1 };
    !bytes.iter().fold(!0, |crc, byte| (0..8).fold(crc ^ u32::from(*byte), step))
}

/// The packet that opens an association: common header and INIT chunk with an initiate tag.
pub fn init(from: u16, to: u16, tag: u32) -> Vec<u8> {
    let mut packet = [from.to_be_bytes(), to.to_be_bytes()].concat();
    packet.extend_from_slice(&[0; 8]);
    packet.extend_from_slice(&[1, 0, 0, 20]);
    packet.extend_from_slice(&tag.to_be_bytes());
    packet.extend_from_slice(&[0, 1, 0, 0, 0, 1, 0, 1, 0, 0, 0, 9]);
    let sum = crc32c(&packet);
    packet[8..12].copy_from_slice(&sum.to_le_bytes());
    packet
}

/// The sockets of one place.
struct Place {
    name: String,
    addresses: [IpAddr; 2],
    /// Of both families.
    sctp: [UdpSocket; 2],
    icmp: [UdpSocket; 2],
}

/// All places.
pub struct Associations {
    places: Vec<Place>,
    tag: u32,
}

impl Associations {
    /// Opens sockets in places with these addresses; the node is called `node`.
    pub fn open(places: &[(&str, [&str; 2])]) -> Self {
        let open = |&(name, addresses): &(&str, [&str; 2])| {
            let addresses = addresses.map(|text| text.parse::<IpAddr>().unwrap());
            let (sctp, icmp) = inside(name, move || {
                let sctp = [sys::raw_socket(SCTP), sys::raw_socket_v6(SCTP)];
                let icmp = [sys::raw_socket(ICMP), sys::raw_socket_v6(ICMP6)];
                (sctp, icmp)
            });
            for socket in sctp.iter().chain(&icmp) {
                socket.set_nonblocking(true).unwrap();
            }
            Place { name: name.to_owned(), addresses, sctp, icmp }
        };
        Self { places: places.iter().map(open).collect(), tag: 0 }
    }

    /// Sends an INIT from a place and waits for the result: a server that receives the packet unmodified, or an ICMP
    /// error.
    pub fn call(
        &mut self,
        (from, from_port): (&str, u16),
        (to, to_port): (IpAddr, u16),
        patience: Duration,
    ) -> Reply {
        self.tag += 1;
        let family = usize::from(to.is_ipv6());
        let sender = self.places.iter().find(|place| place.name == from).unwrap();
        if from == "node" {
            // So that the source address does not depend on the route.
            bind_source(sender, family);
        }
        let sent = sender.sctp[family].send_to(&init(from_port, to_port, self.tag), (to, 0));
        if let Err(error) = sent {
            return crate::net::silence(&error);
        }
        let started = Instant::now();
        while started.elapsed() < patience {
            for place in &self.places {
                if let Some(reply) = received(place, family, self.tag) {
                    return reply;
                }
            }
            if refused(&sender.icmp[family], family, from_port, to_port) {
                return Reply::Refused;
            }
            std::thread::sleep(GLANCE);
        }
        Reply::Silence
    }
}

/// Raw sockets have no port; binding sets the source address.
fn bind_source(place: &Place, family: usize) {
    let address = place.addresses[family];
    let socket = &place.sctp[family];
    if socket.local_addr().is_ok_and(|bound| bound.ip() == address) {
        return;
    }
    use std::os::fd::AsRawFd;
    let to = nix::sys::socket::SockaddrStorage::from(std::net::SocketAddr::new(address, 0));
    nix::sys::socket::bind(socket.as_raw_fd(), &to).unwrap();
}

/// The server's view of the association with this tag, if its packet has arrived here.
fn received(place: &Place, family: usize, tag: u32) -> Option<Reply> {
    let mut buffer = [0; 512];
    while let Ok((len, from)) = place.sctp[family].recv_from(&mut buffer) {
        let header = if family == 0 { 20 } else { 0 };
        let Some(packet) = buffer.get(header..len).filter(|packet| packet.len() >= 20) else {
            continue;
        };
        if packet[16..20] != tag.to_be_bytes() {
            continue;
        }
        // The checksum covers the ports, so NAT must update it.
        let mut zeroed = packet.to_vec();
        zeroed[8..12].fill(0);
        assert_eq!(packet[8..12], crc32c(&zeroed).to_le_bytes(), "checksum");
        let port = u16::from_be_bytes([packet[2], packet[3]]);
        return Some(Reply::Answer { server: place.addresses[family], port, peer: from.ip() });
    }
    None
}

/// Whether an ICMP error about the packet between these ports has arrived.
fn refused(socket: &UdpSocket, family: usize, from: u16, to: u16) -> bool {
    let mut buffer = [0; 1024];
    let ports = [from.to_be_bytes(), to.to_be_bytes()].concat();
    while let Ok((len, _)) = socket.recv_from(&mut buffer) {
        let (icmp, quoted, kind) = if family == 0 { (20, 48, [3, 3]) } else { (0, 48, [1, 4]) };
        let Some(packet) = buffer.get(..len) else { continue };
        let is_error = packet.get(icmp..icmp + 2) == Some(&kind[..]);
        if is_error && packet.get(quoted..quoted + 4) == Some(&ports[..]) {
            return true;
        }
    }
    false
}
