//! Selects how this node forwards: by nf_tables, or in user space on kernels without it.

use proxy_kernel::{KernelFeatures, OpenError, Session, Socket};
use proxy_rules::layout::FAMILIES;

use crate::build_error::BuildError;
use crate::config::Config;
use crate::mode::Mode;

/// Selects the mode on this host. A kernel that has nf_tables but denies access is an error, not a reason for
/// userspace mode.
pub fn select_path(config: &Config) -> Result<ForwardingPath, BuildError> {
    let mode = config.mode;
    if mode == Mode::Userspace {
        return Ok(ForwardingPath::Sockets);
    }
    let kernel = match (mode, NetfilterHandle::open(config)) {
        (Mode::Nftables | Mode::Userspace, opened) => Some(opened?),
        (Mode::Auto, Ok(kernel)) => {
            Some(kernel).filter(|kernel| !kernel.features.families.is_empty())
        }
        (Mode::Auto, Err(BuildError::Kernel(error))) if is_absent(&error) => None,
        (Mode::Auto, Err(error)) => return Err(error),
    };
    Ok(kernel.map_or_else(
        || {
            tracing::warn!(
                "this kernel has no nf_tables; forwarding in user space: connections end when this process ends"
            );
            ForwardingPath::Sockets
        },
        ForwardingPath::Kernel,
    ))
}

/// The selected mode.
pub enum ForwardingPath {
    /// nf_tables.
    Kernel(NetfilterHandle),
    /// User space.
    Sockets,
}

/// A netlink session with the probed features of the kernel. The session is reused: closing a socket that deleted
/// tables waits tens of milliseconds until the kernel has freed them.
pub struct NetfilterHandle<T = Socket> {
    /// The netlink session.
    pub session: Session<T>,
    /// Probed features.
    pub features: KernelFeatures,
}

impl NetfilterHandle {
    /// Opens a session and probes the kernel.
    pub fn open(config: &Config) -> Result<Self, BuildError> {
        let mut session = Session::new(Socket::open()?);
        let probe = format!("{}-probe", config.table);
        let found = KernelFeatures::probe(&mut session, &probe, &FAMILIES);
        Ok(Self { session, features: found.map_err(BuildError::KernelFeatures)? })
    }
}

/// Whether the error means that the kernel has no nfnetlink.
fn is_absent(error: &OpenError) -> bool {
    let absent = [nix::libc::EPROTONOSUPPORT, nix::libc::EAFNOSUPPORT, nix::libc::ENOPROTOOPT];
    match error {
        OpenError::Socket(cause) => cause.raw_os_error().is_some_and(|code| absent.contains(&code)),
        OpenError::Bind(_) => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Error;

    #[test]
    fn a_kernel_without_netfilter_is_distinguished_from_refused_sockets() {
        let of = |code| is_absent(&OpenError::Socket(Error::from_raw_os_error(code)));
        assert!(of(nix::libc::EPROTONOSUPPORT));
        assert!(!of(nix::libc::EPERM) && !of(nix::libc::EMFILE));
    }
}
