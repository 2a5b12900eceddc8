//! How this node forwards: by the kernel's nf_tables, or by sockets of this process where there are none.

use clap::Args;
use proto_daemon::go_duration;
use proxy_kernel::{KernelFeatures, OpenError, Session, Socket};
use proxy_rules::layout::FAMILIES;
use std::time::Duration;

use crate::app::BuildError;
use crate::config::Config;

/// How to forward, as it is told.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Mode {
    /// By the kernel if it can.
    #[default]
    Find,
    /// By nf_tables.
    Kernel,
    /// By sockets.
    Userspace,
}

/// Flags about how to forward.
#[derive(Args, Clone, Debug, Default)]
pub struct ModeFlags {
    /// How to forward: nftables, or userspace for hosts whose kernel has no nf_tables, where connections pass
    /// through this program; found out when not given. Kubernetes' iptables and ipvs mean nftables here.
    #[arg(long, value_name = "MODE")]
    pub proxy_mode: Option<String>,
    /// How long a UDP session without datagrams lasts, in userspace mode.
    #[arg(long, value_name = "DURATION", value_parser = go_duration::parse)]
    pub udp_timeout: Option<Duration>,
}

impl Mode {
    /// The names that are known.
    pub const NAMES: [&str; 5] = ["", "nftables", "userspace", "iptables", "ipvs"];

    /// The mode that a name means, and what the user should know about it.
    pub fn from_name(name: &str) -> Option<(Self, Option<String>)> {
        match name {
            "" => Some((Self::Find, None)),
            "nftables" => Some((Self::Kernel, None)),
            "userspace" => Some((Self::Userspace, None)),
            "iptables" | "ipvs" => {
                Some((Self::Kernel, Some(format!("mode {name} means nftables here"))))
            }
            _ => None,
        }
    }

    /// The way that this host allows: asks the kernel where that is not told. Fails where the kernel could and we may
    /// not: that has to be said, not worked around.
    pub fn select_path(self, config: &Config) -> Result<ForwardingPath, BuildError> {
        if self == Self::Userspace {
            return Ok(ForwardingPath::Sockets);
        }
        let kernel = match (self, NetfilterHandle::open(config)) {
            (Self::Kernel | Self::Userspace, opened) => Some(opened?),
            (Self::Find, Ok(kernel)) => {
                Some(kernel).filter(|kernel| !kernel.features.families.is_empty())
            }
            (Self::Find, Err(BuildError::Kernel(error))) if is_absent(&error) => None,
            (Self::Find, Err(error)) => return Err(error),
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

/// How this host forwards.
pub enum ForwardingPath {
    /// By its kernel.
    Kernel(NetfilterHandle),
    /// By sockets of this process.
    Sockets,
}

/// The kernel, asked what it can do. One conversation for all: where tables were deleted over a socket, closing it waits
/// until the kernel has released them, tens of milliseconds.
pub struct NetfilterHandle<T = Socket> {
    /// The conversation.
    pub session: Session<T>,
    /// What it can do.
    pub features: KernelFeatures,
}

impl NetfilterHandle {
    /// Opens a conversation and asks.
    pub fn open(config: &Config) -> Result<Self, BuildError> {
        let mut session = Session::new(Socket::open()?);
        let probe = format!("{}-probe", config.table);
        let found = KernelFeatures::probe(&mut session, &probe, &FAMILIES);
        Ok(Self { session, features: found.map_err(BuildError::KernelFeatures)? })
    }
}

/// Whether a kernel that refuses the socket in this way has no netfilter netlink at all.
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
            (Mode::Find, false),
            (Mode::Kernel, false),
            (Mode::Userspace, false),
            (Mode::Kernel, true),
            (Mode::Kernel, true),
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
