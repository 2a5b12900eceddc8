//! NFS exports. Server and path are an argument of `mount.nfs`.

use super::Backing;

/// Longest name of a server, in bytes: more than a domain name.
const SERVER_LEN_MAX: usize = 320;

/// Why there is no such server: `mount.nfs` would read an option, and mount nothing.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum NfsServerError {
    #[error("nfs.server has {0} bytes, at most {SERVER_LEN_MAX} are supported")]
    TooLong(usize),
    #[error("nfs.server: Invalid value: {0:?}: must be a host name or an address")]
    Invalid(String),
}

/// The export that a source names.
pub(super) fn backing(server: &str, path: &str) -> Result<Backing, NfsServerError> {
    let is_host = |c: char| !c.is_whitespace() && !c.is_control() && c != '/';
    if server.len() > SERVER_LEN_MAX {
        return Err(NfsServerError::TooLong(server.len()));
    }
    if server.is_empty() || server.starts_with('-') || !server.chars().all(is_host) {
        return Err(NfsServerError::Invalid(server.to_owned()));
    }
    Ok(Backing::Nfs { server: server.to_owned(), path: path.to_owned() })
}
