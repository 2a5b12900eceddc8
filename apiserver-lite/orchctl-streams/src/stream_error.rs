//! Why a session with a container ended early.

/// Why a session ended early.
#[derive(Debug, thiserror::Error)]
pub enum StreamError {
    /// The connection broke.
    #[error("the connection to the container failed")]
    Broken(#[source] std::io::Error),
    /// The other side sent what is no SPDY.
    #[error("the connection to the container is not a SPDY connection: {0}")]
    Protocol(&'static str),
    /// The other side ended the session.
    #[error("the connection to the container was closed")]
    Closed,
    /// A local stream broke.
    #[error("cannot read or write locally")]
    Local(#[source] std::io::Error),
    /// The container's side reports an error.
    #[error("{0}")]
    Remote(String),
}
