//! NFS exports. Server and path are an argument of `mount.nfs`.

use super::Backing;

/// Longest name of a server, in bytes: more than a domain name.
const SERVER_LEN_MAX: usize = 320;

/// The export that a source names.
///
/// # Errors
/// The server is not a name or an address: `mount.nfs` would read an option, and mount nothing.
pub(super) fn backing(server: &str, path: &str) -> Result<Backing, String> {
    let is_host = |c: char| !c.is_whitespace() && !c.is_control() && c != '/';
    if server.len() > SERVER_LEN_MAX {
        return Err(format!(
            "nfs.server has {} bytes, at most {SERVER_LEN_MAX} are supported",
            server.len()
        ));
    }
    if server.is_empty() || server.starts_with('-') || !server.chars().all(is_host) {
        return Err(format!(
            "nfs.server: Invalid value: {server:?}: must be a host name or an address"
        ));
    }
    Ok(Backing::Nfs { server: server.to_owned(), path: path.to_owned() })
}
