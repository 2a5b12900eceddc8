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
pub struct NftMonitor {
    socket: Socket,
    subscribed: bool,
}

impl NftMonitor {
    /// A socket that does not listen yet, in the network namespace of the calling thread.
    pub fn open() -> Result<Self, OpenError> {
        Ok(Self { socket: Socket::open()?, subscribed: false })
    }

    /// Begins to listen; what happened before is not told.
    pub fn subscribe(&mut self) -> io::Result<()> {
        if !self.subscribed {
            self.socket.join(GROUP)?;
            self.subscribed = true;
        }
        Ok(())
    }

    /// Stops listening; what was told and not taken is forgotten.
    pub fn unsubscribe(&mut self) {
        if std::mem::take(&mut self.subscribed) {
            // Where leaving fails we go on to hear of our own transactions, which costs time and nothing else.
            self.subscribed = self.socket.leave(GROUP).is_err();
            self.take_changed();
        }
    }

    /// Whether anybody has changed something since this was asked last: notices that were lost because too many came
    /// (`ENOBUFS`) say so as well.
    pub fn take_changed(&mut self) -> bool {
        let mut changed = false;
        for _ in 0..READ_MAX {
            match self.socket.receive() {
                Ok(_) => changed = true,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                Err(_) => changed = true,
            }
        }
        changed
    }
}

impl AsFd for NftMonitor {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

impl AsRawFd for NftMonitor {
    fn as_raw_fd(&self) -> RawFd {
        self.socket.as_fd().as_raw_fd()
    }
}
