//! Detects that another program changed the ruleset.
//!
//! The kernel notifies every subscriber of each element of each transaction, also of the subscriber's own, which makes
//! transactions several times as expensive. So the group is joined only while there is nothing to commit; changes at
//! other times show in the generation of the ruleset.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, RawFd};

use crate::transport::{OpenError, Socket, Transport};

/// `NFNLGRP_NFTABLES`.
const GROUP: u32 = 7;
/// Datagrams read per check: more than this already proves that another program is committing.
const READ_MAX: usize = 4096;

/// A socket that receives notifications of ruleset changes while it is subscribed.
pub struct NftMonitor {
    socket: Socket,
    subscribed: bool,
}

impl NftMonitor {
    /// Not subscribed, in the network namespace of the calling thread.
    pub fn open() -> Result<Self, OpenError> {
        Ok(Self { socket: Socket::open()?, subscribed: false })
    }

    /// Subscribes; earlier changes are not reported.
    pub fn subscribe(&mut self) -> io::Result<()> {
        if !self.subscribed {
            self.socket.join(GROUP)?;
            self.subscribed = true;
        }
        Ok(())
    }

    /// Unsubscribes; unread notifications are discarded.
    pub fn unsubscribe(&mut self) {
        if std::mem::take(&mut self.subscribed) {
            // If leaving fails, our own transactions are reported too, which costs only time.
            self.subscribed = self.socket.leave(GROUP).is_err();
            self.take_changed();
        }
    }

    /// Whether there were notifications since the last call; a lost one (`ENOBUFS`) counts too.
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
