//! Streams to a server in the same process, in the place of connections: for tests that have a server of their own.

use std::fmt;
use std::io;
use std::sync::Arc;

use tokio::io::DuplexStream;

/// A server in this process.
pub trait InMemoryServer: Send + Sync {
    /// A new connection to it.
    ///
    /// # Errors
    /// The server has ended.
    fn connect(&self, caller: Caller) -> io::Result<DuplexStream>;
}

/// Whom a connection is from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Caller {
    /// The user that the client was made for.
    Known,
    /// No user: the requests have credentials of their own, or none.
    Anonymous,
}

/// How a client connects to such a server.
#[derive(Clone)]
pub(crate) struct InMemory {
    pub(crate) server: Arc<dyn InMemoryServer>,
    pub(crate) caller: Caller,
}

impl InMemory {
    pub(crate) fn connect(&self) -> io::Result<DuplexStream> {
        self.server.connect(self.caller)
    }
}

impl fmt::Debug for InMemory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("InMemory").field("caller", &self.caller).finish_non_exhaustive()
    }
}
