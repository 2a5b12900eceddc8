//! Sends netlink datagrams to the kernel and receives responses.

use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};

use netlink_sys::SocketAddr;
use nix::sys::socket::{setsockopt, sockopt};
use proxy_netfilter::{fake, nft::Ruleset};

/// Buffer for one datagram of a dump: the kernel fills at most 32 KiB, or one message if that is longer.
const RECEIVE_LEN: usize = 256 * 1024;
/// Maximum length of one transaction. Loading 100,000 Services with 300,000 endpoints takes about 40 MB; the kernel
/// allocates what is sent, not this limit.
const SEND_BUFFER_LEN: usize = 1 << 29;
/// Buffer for unread responses.
const RECEIVE_BUFFER_LEN: usize = 4 << 20;

/// Connects a [`crate::Session`] to a kernel.
pub trait Transport {
    /// Sends one datagram; the kernel has processed it when this returns.
    fn send(&mut self, datagram: &[u8]) -> io::Result<()>;
    /// Receives one datagram; `WouldBlock` if there is none.
    fn receive(&mut self) -> io::Result<&[u8]>;
    /// The netlink port, by which the kernel reports owners of tables.
    fn port(&self) -> u32;
}

/// The socket cannot be opened.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// The kernel has no nfnetlink, or denies it.
    #[error("cannot open a netfilter netlink socket")]
    Socket(#[source] io::Error),
    /// The kernel assigns no port.
    #[error("cannot bind a netfilter netlink socket")]
    Bind(#[source] io::Error),
}

/// An nfnetlink socket.
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
        // Best effort: without extended acknowledgements errors are less specific; without CAP_NET_ADMIN in the
        // initial user namespace large transactions fail with EMSGSIZE.
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
    /// Joins a multicast group of nfnetlink.
    pub(crate) fn join(&self, group: u32) -> io::Result<()> {
        self.socket.add_membership(group)
    }

    /// Leaves a multicast group of nfnetlink.
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

/// Repeats a call that a signal interrupted.
fn retry_interrupted<T>(mut call: impl FnMut() -> io::Result<T>) -> io::Result<T> {
    loop {
        match call() {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            other => return other,
        }
    }
}

/// A change of the ruleset by another program.
pub type RulesetMutation = fn(&mut Ruleset);

/// The fake kernel as a transport.
#[derive(Debug, Default)]
pub struct FakeTransport {
    /// The fake kernel.
    pub kernel: fake::FakeKernel,
    /// Maximum length of a datagram, as for a socket without privileges; `None` for no limit.
    pub datagram_len_max: Option<usize>,
    /// A change by another program, and the number of datagrams before it.
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
            Some((0, deed)) => self.kernel.change_externally(deed),
            others => self.others = others.map(|(pass, deed)| (pass.saturating_sub(1), deed)),
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
