//! Sends an Ethernet frame on an interface.
#![allow(unsafe_code, reason = "no library has an address of a packet socket without it")]

use std::io;
use std::os::fd::{AsRawFd, OwnedFd};

use nix::libc;
use nix::sys::socket::{AddressFamily, SockFlag, SockType, socket};

/// A packet socket that receives nothing. It needs CAP_NET_RAW.
pub(crate) fn packet_socket() -> io::Result<OwnedFd> {
    Ok(socket(AddressFamily::Packet, SockType::Raw, SockFlag::SOCK_CLOEXEC, None)?)
}

/// Sends a frame, with its Ethernet header, on the interface with this index.
pub(crate) fn send_frame(socket: &OwnedFd, interface: u32, frame: &[u8]) -> io::Result<()> {
    let ethertype = frame.get(12..14).and_then(|bytes| bytes.try_into().ok()).unwrap_or_default();
    let to = libc::sockaddr_ll {
        sll_family: libc::AF_PACKET.unsigned_abs().try_into().unwrap_or_default(),
        sll_protocol: u16::from_ne_bytes(ethertype),
        sll_ifindex: interface.try_into().map_err(io::Error::other)?,
        sll_hatype: 0,
        sll_pkttype: 0,
        sll_halen: 6,
        sll_addr: [0; 8],
    };
    let to_len = size_of::<libc::sockaddr_ll>().try_into().map_err(io::Error::other)?;
    let to = (&raw const to).cast::<libc::sockaddr>();
    // SAFETY: the frame and the address, of the given lengths, are borrowed until the call returns, and it only reads them.
    let sent = unsafe {
        libc::sendto(socket.as_raw_fd(), frame.as_ptr().cast(), frame.len(), 0, to, to_len)
    };
    if sent < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}
