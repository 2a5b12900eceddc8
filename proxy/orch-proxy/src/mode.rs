//! `--proxy-mode`: by nf_tables, or in user space.

use std::time::Duration;

use clap::Args;
use proto_daemon::go_duration;

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
}

#[cfg(test)]
mod tests {
    use super::*;

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
}
