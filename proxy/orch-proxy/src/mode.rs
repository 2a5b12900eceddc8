//! Selects how this node forwards: by nf_tables, or in user space on kernels without it.

use clap::Args;
use proto_daemon::go_duration;
use proxy_kernel::{KernelFeatures, OpenError, Session, Socket};
use proxy_rules::layout::FAMILIES;
use std::time::Duration;

use crate::app::BuildError;
use crate::config::Config;

/// `--proxy-mode`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Mode {
    /// nf_tables if the kernel has it, else user space.
    #[default]
    Auto,
    /// nf_tables.
    Nftables,
    /// User space.
    Userspace,
}

/// Flags of the mode.
#[derive(Args, Clone, Debug, Default)]
pub struct ModeFlags {
    /// Proxy mode: nftables, or userspace for kernels without nf_tables, where connections pass through this program.
    /// By default nftables if the kernel supports it. kube-proxy's iptables and ipvs mean nftables here.
    #[arg(long, value_name = "MODE")]
    pub proxy_mode: Option<String>,
    /// How long a UDP session without datagrams is kept, in userspace mode.
    #[arg(long, value_name = "DURATION", value_parser = go_duration::parse)]
    pub udp_timeout: Option<Duration>,
}

impl Mode {
    /// Accepted names.
    pub const NAMES: [&str; 5] = ["", "nftables", "userspace", "iptables", "ipvs"];

    /// The mode of a name, and a warning for the user.
    pub fn from_name(name: &str) -> Option<(Self, Option<String>)> {
        match name {
            "" => Some((Self::Auto, None)),
            "nftables" => Some((Self::Nftables, None)),
            "userspace" => Some((Self::Userspace, None)),
            "iptables" | "ipvs" => {
                Some((Self::Nftables, Some(format!("mode {name} means nftables here"))))
            }
            _ => None,
        }
    }

    /// Selects the mode on this host. A kernel that has nf_tables but denies access is an error, not a reason for
    /// userspace mode.
    pub fn select_path(self, config: &Config) -> Result<ForwardingPath, BuildError> {
        if self == Self::Userspace {
            return Ok(ForwardingPath::Sockets);
        }
        let kernel = match (self, NetfilterHandle::open(config)) {
            (Self::Nftables | Self::Userspace, opened) => Some(opened?),
            (Self::Auto, Ok(kernel)) => {
                Some(kernel).filter(|kernel| !kernel.features.families.is_empty())
            }
            (Self::Auto, Err(BuildError::Kernel(error))) if is_absent(&error) => None,
            (Self::Auto, Err(error)) => return Err(error),
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
    fn every_name_means_a_mode() {
        let modes =
            Mode::NAMES.map(|name| Mode::from_name(name).map(|(mode, w)| (mode, w.is_some())));
        let expected = [
            (Mode::Auto, false),
            (Mode::Nftables, false),
            (Mode::Userspace, false),
            (Mode::Nftables, true),
            (Mode::Nftables, true),
        ];
        assert_eq!(modes, expected.map(Some));
        assert_eq!(Mode::from_name("ebpf"), None);
    }

    #[test]
    fn a_kernel_without_netfilter_is_told_from_one_that_refuses() {
        let of = |code| is_absent(&OpenError::Socket(Error::from_raw_os_error(code)));
        assert!(of(nix::libc::EPROTONOSUPPORT));
        assert!(!of(nix::libc::EPERM) && !of(nix::libc::EMFILE));
    }
}
