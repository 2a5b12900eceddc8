//! What carries datagrams to the kernel and back.

use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};

use netlink_sys::SocketAddr;
use nix::sys::socket::{setsockopt, sockopt};
use proxy_netfilter::{fake, nft::Ruleset};

/// Room for one datagram of a dump: the kernel fills at most 32 KiB at a time, or one message if that is longer.
const RECEIVE_LEN: usize = 256 * 1024;
/// Room for one transaction. Loading 100,000 services with 300,000 endpoints takes about 40 MB; the kernel
/// allocates what is sent, not this bound.
const SEND_BUFFER_LEN: usize = 1 << 29;
/// Room for answers that we have not read yet.
const RECEIVE_BUFFER_LEN: usize = 4 << 20;

/// Carries datagrams between a [`crate::Session`] and a kernel.
pub trait Transport {
    /// Hands over one datagram; the kernel has acted on it when this returns.
    fn send(&mut self, datagram: &[u8]) -> io::Result<()>;
    /// Takes one datagram of the answer, or `WouldBlock` when there is none.
    fn receive(&mut self) -> io::Result<&[u8]>;
    /// Our address as the kernel reports it for owners of tables.
    fn port(&self) -> u32;
}

/// The socket could not be made ready.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// The kernel has no nfnetlink, or refuses the socket.
    #[error("open a netfilter netlink socket")]
    Socket(#[source] io::Error),
    /// The kernel gives it no address.
    #[error("bind a netfilter netlink socket")]
    Bind(#[source] io::Error),
}

/// A netlink socket to netfilter.
pub struct Socket {
    socket: netlink_sys::Socket,
    port: u32,
    buffer: Vec<u8>,
}

impl Socket {
    /// Opens a socket in the network namespace of the calling thread.
    pub fn open() -> Result<Self, OpenError> {
        let protocol = libc::NETLINK_NETFILTER as isize;
        let mut socket = netlink_sys::Socket::new(protocol).map_err(OpenError::Socket)?;
        let address = socket.bind_auto().map_err(OpenError::Bind)?;
        // Best effort, each: without extended answers errors are less clear; without the right to large
        // buffers (CAP_NET_ADMIN of the first user namespace) large transactions fail with EMSGSIZE.
        let _ = socket.set_ext_ack(true);
        let _ = socket.set_cap_ack(true);
        if setsockopt(&socket, sockopt::SndBufForce, &SEND_BUFFER_LEN).is_err() {
            let _ = setsockopt(&socket, sockopt::SndBuf, &SEND_BUFFER_LEN);
        }
        if setsockopt(&socket, sockopt::RcvBufForce, &RECEIVE_BUFFER_LEN).is_err() {
            let _ = setsockopt(&socket, sockopt::RcvBuf, &RECEIVE_BUFFER_LEN);
        }
        Ok(Self { socket, port: address.port_number(), buffer: Vec::with_capacity(RECEIVE_LEN) })
    }
}

impl Socket {
    /// Begins to hear what the kernel tells a group of nfnetlink.
    pub(crate) fn join(&self, group: u32) -> io::Result<()> {
        self.socket.add_membership(group)
    }

    /// Stops hearing it.
    pub(crate) fn leave(&self, group: u32) -> io::Result<()> {
        self.socket.drop_membership(group)
    }
}

impl AsFd for Socket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

impl Transport for Socket {
    fn send(&mut self, datagram: &[u8]) -> io::Result<()> {
        let kernel = SocketAddr::new(0, 0);
        retry_interrupted(|| self.socket.send_to(datagram, &kernel, 0)).map(drop)
    }

    fn receive(&mut self) -> io::Result<&[u8]> {
        self.buffer.clear();
        let flags = libc::MSG_DONTWAIT | libc::MSG_TRUNC;
        let (socket, buffer) = (&self.socket, &mut self.buffer);
        let len = retry_interrupted(|| socket.recv(buffer, flags))?;
        if len > self.buffer.len() {
            return Err(io::Error::new(
                io::ErrorKind::InvalidData,
                "answer longer than the buffer",
            ));
        }
        Ok(&self.buffer)
    }

    fn port(&self) -> u32 {
        self.port
    }
}

/// A signal while waiting is no reason to give up.
fn retry_interrupted<T>(mut call: impl FnMut() -> io::Result<T>) -> io::Result<T> {
    loop {
        match call() {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            other => return other,
        }
    }
}

/// What another program does to the ruleset.
pub type RulesetMutation = fn(&mut Ruleset);

/// The fake kernel as a transport.
#[derive(Debug, Default)]
pub struct FakeTransport {
    /// The kernel behind it.
    pub kernel: fake::FakeKernel,
    /// Longest datagram that is taken, as of a socket without the right to more; none for no limit.
    pub datagram_len_max: Option<usize>,
    /// What another program does to the ruleset, and how many datagrams it lets pass before.
    pub others: Option<(usize, RulesetMutation)>,
    answers: VecDeque<Vec<u8>>,
    current: Vec<u8>,
}

impl Transport for FakeTransport {
    fn send(&mut self, datagram: &[u8]) -> io::Result<()> {
        if self.datagram_len_max.is_some_and(|max| datagram.len() > max) {
            return Err(io::Error::from_raw_os_error(libc::EMSGSIZE));
        }
        match self.others.take() {
            Some((0, deed)) => self.kernel.meddle(deed),
            others => self.others = others.map(|(pass, deed)| (pass - 1, deed)),
        }
        self.answers.extend(self.kernel.send(datagram));
        Ok(())
    }

    fn receive(&mut self) -> io::Result<&[u8]> {
        self.current = self.answers.pop_front().ok_or(io::ErrorKind::WouldBlock)?;
        Ok(&self.current)
    }

    fn port(&self) -> u32 {
        1
    }
}
