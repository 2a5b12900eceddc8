//! Receives packets of an NFLOG group.

use std::io;
use std::os::fd::AsFd;
use std::time::Duration;

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use proxy_netfilter::ack::Ack;
use proxy_netfilter::ct::Tuple;
use proxy_netfilter::nflog;
use proxy_netfilter::wire::{Messages, NLMSG_ERROR, TooLong, WireError};

use crate::transport::{OpenError, Socket, Transport};

/// The group cannot be bound.
#[derive(Debug, thiserror::Error)]
pub enum LogError {
    /// The socket cannot be opened.
    #[error("cannot open a netlink socket for the packet log")]
    Open(#[from] OpenError),
    /// The request cannot be encoded.
    #[error("cannot encode the request for group {0} of the packet log")]
    Encode(u16, #[source] TooLong),
    /// The request or its response was lost.
    #[error("cannot bind group {0} of the packet log")]
    Ask(u16, #[source] io::Error),
    /// The response cannot be decoded.
    #[error("cannot read the reply for group {0} of the packet log")]
    Answer(u16, #[source] WireError),
    /// The kernel has no NFLOG, or another program has the group.
    #[error("the kernel rejected group {group} of the packet log: errno {errno}")]
    Refused {
        group: u16,
        /// The kernel's error number.
        errno: i32,
    },
}

/// A socket that receives the packets logged to one group.
pub struct PacketLog {
    socket: Socket,
}

impl PacketLog {
    /// Binds the group.
    pub fn open(group: u16) -> Result<Self, LogError> {
        let mut socket = Socket::open()?;
        let request = nflog::bind(1, group).map_err(|e| LogError::Encode(group, e))?;
        socket.send(&request).map_err(|e| LogError::Ask(group, e))?;
        let answer = socket.receive().map_err(|e| LogError::Ask(group, e))?;
        for message in Messages::new(answer) {
            let message = message.map_err(|e| LogError::Answer(group, e))?;
            if message.kind == NLMSG_ERROR {
                let ack = Ack::read(&message).map_err(|e| LogError::Answer(group, e))?;
                return match ack.errno {
                    0 => Ok(Self { socket }),
                    errno => Err(LogError::Refused { group, errno }),
                };
            }
        }
        Err(LogError::Ask(group, io::ErrorKind::WouldBlock.into()))
    }

    /// Waits for packets, at most `patience`, and calls `visit` with their conntrack tuples. Packets are lost if they
    /// arrive faster than they are read.
    pub fn wait(&mut self, patience: Duration, mut visit: impl FnMut(Tuple)) -> io::Result<()> {
        let timeout = PollTimeout::try_from(patience).unwrap_or(PollTimeout::MAX);
        match poll(&mut [PollFd::new(self.socket.as_fd(), PollFlags::POLLIN)], timeout) {
            Ok(_) | Err(Errno::EINTR) => {}
            Err(errno) => return Err(errno.into()),
        }
        loop {
            match self.socket.receive() {
                Ok(datagram) => {
                    let packets = Messages::new(datagram).flatten();
                    packets.filter_map(|packet| nflog::read_packet(&packet)).for_each(&mut visit);
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(()),
                Err(error) if error.raw_os_error() == Some(libc::ENOBUFS) => {}
                Err(error) => return Err(error),
            }
        }
    }
}
