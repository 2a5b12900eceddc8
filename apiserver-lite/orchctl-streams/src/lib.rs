//! io: connections with containers, over an upgraded connection that the caller brings.
//!
//! - [`spdy`]: streams of one SPDY/3.1 connection, as container runtimes serve them. Other than WebSockets of the runtimes in use, its streams end in one
//!   direction: a command sees the end of its input.
//! - [`exec`]: a command in a container, or its main process: input, outputs, size of the terminal, exit code.
//! - [`forward`]: one connection to a port of a pod. [`archive`]: trees of files as tar. [`terminal`]: the user's own terminal.

pub mod archive;
pub mod exec;
pub mod forward;
pub mod spdy;
pub mod terminal;

/// Why a session ended early.
#[derive(Debug, thiserror::Error)]
pub enum StreamError {
    /// The connection broke.
    #[error("the connection with the container broke")]
    Broken(#[source] std::io::Error),
    /// The other side sent what is no SPDY.
    #[error("the connection with the container is no SPDY connection: {0}")]
    Protocol(&'static str),
    /// The other side ended the session.
    #[error("the connection with the container was closed")]
    Closed,
    /// A local stream broke.
    #[error("cannot read or write locally")]
    Local(#[source] std::io::Error),
    /// The container's side reports an error.
    #[error("{0}")]
    Remote(String),
}
