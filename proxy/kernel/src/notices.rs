//! Notices that others have changed the ruleset.
//!
//! The kernel tells every listener of each element of each transaction, which makes transactions several times as
//! expensive; it makes no difference whose they are. So the group is joined while there is nothing to commit, and left
//! before a transaction: what happens in between shows in the ruleset's generation.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, RawFd};

use crate::transport::{OpenError, Socket, Transport};

/// Group of nfnetlink that is told of nf_tables (`NFNLGRP_NFTABLES`).
const GROUP: u32 = 7;
/// Datagrams that are read at once; after so many it is certain that somebody is busy.
const READ_MAX: usize = 4096;

/// A socket that hears of changes of the ruleset while it listens.
pub struct Notices {
    socket: Socket,
    listening: bool,
}

impl Notices {
    /// A socket that does not listen yet, in the network namespace of the calling thread.
    pub fn open() -> Result<Self, OpenError> {
        Ok(Self { socket: Socket::open()?, listening: false })
    }

    /// Begins to listen; what happened before is not told.
    pub fn listen(&mut self) -> io::Result<()> {
        if !self.listening {
            self.socket.join(GROUP)?;
            self.listening = true;
        }
        Ok(())
    }

    /// Stops listening; what was told and not taken is forgotten.
    pub fn rest(&mut self) {
        if std::mem::take(&mut self.listening) {
            // Where leaving fails we go on to hear of our own transactions, which costs time and nothing else.
            self.listening = self.socket.leave(GROUP).is_err();
            self.take();
        }
    }

    /// Whether anybody has changed something since this was asked last: notices that were lost because too many came
    /// (`ENOBUFS`) say so as well.
    pub fn take(&mut self) -> bool {
        let mut told = false;
        for _ in 0..READ_MAX {
            match self.socket.receive() {
                Ok(_) => told = true,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                Err(_) => told = true,
            }
        }
        told
    }
}

impl AsFd for Notices {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

impl AsRawFd for Notices {
    fn as_raw_fd(&self) -> RawFd {
        self.socket.as_fd().as_raw_fd()
    }
}
