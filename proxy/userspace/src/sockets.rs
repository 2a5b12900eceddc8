//! Sockets of frontends and towards endpoints. For the runtime SCTP associations are streams: only the creation of the
//! socket differs.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::fd::OwnedFd;

use nix::sys::socket::{AddressFamily, SockFlag, SockProtocol, SockType, socket};
use proxy_rules::model::Protocol;
use tokio::net::{TcpListener, TcpSocket, TcpStream, UdpSocket};

use crate::plan::Sctp;

/// Backlog of listening sockets.
const BACKLOG: u32 = 1024;
const LOOPBACK: [IpAddr; 2] = [IpAddr::V4(Ipv4Addr::LOCALHOST), IpAddr::V6(Ipv6Addr::LOCALHOST)];

/// Whether this host has SCTP sockets: many kernels lack them, or load them on demand only.
pub fn find_sctp() -> Sctp {
    match sctp_socket(SocketAddr::new(Ipv4Addr::LOCALHOST.into(), 0)) {
        Ok(_) => Sctp::Present,
        Err(error) => {
            tracing::debug!(%error, "cannot open an SCTP socket");
            Sctp::Absent
        }
    }
}

/// Loopback addresses of this host; a host without IPv6 has one.
pub fn loopback_addresses() -> impl Iterator<Item = IpAddr> {
    LOOPBACK.into_iter().filter(|address| std::net::UdpSocket::bind((*address, 0)).is_ok())
}

/// Listens for connections.
pub fn listen(protocol: Protocol, at: SocketAddr) -> io::Result<TcpListener> {
    let socket = stream_socket(protocol, at)?;
    // Connections of an earlier process may be in TIME_WAIT.
    socket.set_reuseaddr(true)?;
    socket.bind(at)?;
    socket.listen(BACKLOG)
}

/// Connects to an endpoint.
pub async fn connect(protocol: Protocol, to: SocketAddr) -> io::Result<TcpStream> {
    stream_socket(protocol, to)?.connect(to).await
}

/// Opens a UDP socket.
pub fn datagrams(at: SocketAddr) -> io::Result<UdpSocket> {
    let socket = std::net::UdpSocket::bind(at)?;
    socket.set_nonblocking(true)?;
    UdpSocket::from_std(socket)
}

fn stream_socket(protocol: Protocol, at: SocketAddr) -> io::Result<TcpSocket> {
    match (protocol, at) {
        (Protocol::Tcp, SocketAddr::V4(_)) => TcpSocket::new_v4(),
        (Protocol::Tcp, SocketAddr::V6(_)) => TcpSocket::new_v6(),
        (Protocol::Sctp, _) => Ok(TcpSocket::from_std_stream(sctp_socket(at)?.into())),
        (Protocol::Udp, _) => Err(io::ErrorKind::Unsupported.into()),
    }
}

fn sctp_socket(at: SocketAddr) -> io::Result<OwnedFd> {
    let family = if at.is_ipv4() { AddressFamily::Inet } else { AddressFamily::Inet6 };
    let flags = SockFlag::SOCK_NONBLOCK | SockFlag::SOCK_CLOEXEC;
    Ok(socket(family, SockType::Stream, flags, SockProtocol::Sctp)?)
}
