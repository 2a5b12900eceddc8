//! Sysctls that forwarding depends on. All are best effort: the host may deny them, or nf_conntrack may not be loaded;
//! that is logged and not fatal.

use std::io::ErrorKind;
use std::path::Path;

use proto_daemon::exit::chain;
use proxy_kernel::sysctl::{Sysctl, SysctlChange, SysctlError};

use crate::config::Conntrack;

/// Size of conntrack's hash table.
const BUCKETS: &str = "/sys/module/nf_conntrack/parameters/hashsize";

/// Sysctls without which packets bypass the tables. The two of br_netfilter: a reply from one pod to another on the
/// same bridge does not leave the bridge, and its source must be translated back all the same.
const FORWARDING: [&str; 3] = [
    "net/ipv4/ip_forward",
    "net/bridge/bridge-nf-call-iptables",
    "net/bridge/bridge-nf-call-ip6tables",
];

const NO_BRIDGE_FILTER: &str = "sysctl does not exist: br_netfilter is not loaded, and replies between \
    pods on one bridge may bypass Services; run modprobe br_netfilter and restart";

/// Sysctls and their values, in order.
fn list_sysctls(conntrack: &Conntrack, cores: u32) -> Vec<(Sysctl, u64)> {
    let mut wanted = FORWARDING.map(|name| (Sysctl(name), 1)).to_vec();
    if let Some(max) = connections_max(conntrack, cores) {
        wanted.push((Sysctl("net/netfilter/nf_conntrack_max"), max));
    }
    let timeouts = [
        ("net/netfilter/nf_conntrack_tcp_timeout_established", conntrack.tcp_established),
        ("net/netfilter/nf_conntrack_tcp_timeout_close_wait", conntrack.tcp_close_wait),
    ];
    let udp = [
        ("net/netfilter/nf_conntrack_udp_timeout", conntrack.udp),
        ("net/netfilter/nf_conntrack_udp_timeout_stream", conntrack.udp_stream),
    ];
    let timeouts = timeouts.into_iter().chain(udp);
    for (name, timeout) in timeouts.filter(|(_, timeout)| timeout.as_secs() > 0) {
        wanted.push((Sysctl(name), timeout.as_secs()));
    }
    if conntrack.tcp_be_liberal {
        wanted.push((Sysctl("net/netfilter/nf_conntrack_tcp_be_liberal"), 1));
    }
    wanted
}

/// Value of nf_conntrack_max; `None` leaves it unchanged.
fn connections_max(conntrack: &Conntrack, cores: u32) -> Option<u64> {
    let by_cores = u64::from(conntrack.max_per_core) * u64::from(cores);
    (conntrack.max_per_core > 0).then(|| by_cores.max(u64::from(conntrack.min)))
}

/// Sets the sysctls. `net.ipv4.conf.*.route_localnet` is never changed: it would expose services that trust loopback
/// addresses to the network.
pub fn prepare(conntrack: &Conntrack) {
    let cores = std::thread::available_parallelism().map_or(1, |cores| cores.get());
    let cores = u32::try_from(cores).unwrap_or(u32::MAX);
    for (sysctl, value) in list_sysctls(conntrack, cores) {
        match sysctl.ensure(value) {
            Ok(SysctlChange::Unchanged) => {}
            Ok(SysctlChange::Changed(before)) => {
                tracing::info!(setting = sysctl.0, before, value, "changed a sysctl");
            }
            Err(SysctlError::Read(_, cause)) if cause.kind() == ErrorKind::NotFound => {
                let setting = sysctl.0;
                match FORWARDING.contains(&setting) {
                    true => tracing::warn!(setting, "{NO_BRIDGE_FILTER}"),
                    false => {
                        tracing::debug!(setting, "sysctl does not exist on this kernel; skipped")
                    }
                }
            }
            Err(error) => {
                tracing::warn!(
                    setting = sysctl.0,
                    value,
                    error = %chain(&error),
                    "cannot set a sysctl; it keeps its value"
                );
            }
        }
    }
    if let Some(max) = connections_max(conntrack, cores) {
        widen_buckets(Path::new(BUCKETS), max / 4);
    }
}

/// Enables IPv6 forwarding, for clusters with IPv6 pods. A host that forwards ignores router advertisements, so
/// interfaces that accept them are first set to accept them always.
pub fn forward_ipv6() {
    const FORWARDING: Sysctl = Sysctl("net/ipv6/conf/all/forwarding");
    if !matches!(FORWARDING.read(), Ok(0)) {
        return;
    }
    let interfaces = std::fs::read_dir("/proc/sys/net/ipv6/conf").into_iter().flatten().flatten();
    for interface in interfaces {
        let path = interface.path().join("accept_ra");
        // 1: accept unless forwarding; 2: accept always.
        if std::fs::read_to_string(&path).is_ok_and(|text| text.trim() == "1")
            && let Err(error) = std::fs::write(&path, "2")
        {
            tracing::warn!(
                path = %path.display(),
                %error,
                "cannot set accept_ra; routes from router advertisements will expire"
            );
        }
    }
    match FORWARDING.ensure(1) {
        Ok(_) => tracing::info!("enabled IPv6 forwarding"),
        Err(error) => {
            tracing::warn!(error = %chain(&error), "cannot enable IPv6 forwarding; IPv6 traffic of pods is not routed")
        }
    }
}

/// Sets `oom_score_adj`. Best effort: it needs a capability that a container may lack.
pub fn protect_from_oom(score: i32) {
    if let Err(error) = std::fs::write("/proc/self/oom_score_adj", score.to_string()) {
        tracing::info!(score, %error, "cannot set oom_score_adj; it keeps its value");
    }
}

/// One hash bucket for four connections, as kube-proxy sets it; never shrinks the table.
fn widen_buckets(path: &Path, buckets: u64) {
    let now = std::fs::read_to_string(path).ok().and_then(|text| text.trim().parse::<u64>().ok());
    if now.is_some_and(|now| now < buckets)
        && let Err(error) = std::fs::write(path, buckets.to_string())
    {
        tracing::warn!(%error, buckets, "cannot set the number of conntrack hash buckets; it keeps its value");
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn limits_follow_the_cores_but_not_below_the_minimum() {
        let default = Conntrack::default();
        assert_eq!(connections_max(&default, 2), Some(131_072));
        assert_eq!(connections_max(&default, 8), Some(262_144));
        assert_eq!(connections_max(&Conntrack { max_per_core: 0, ..default }, 8), None);
    }

    #[test]
    fn zero_leaves_a_setting_as_it_is() {
        let zero = Duration::ZERO;
        let nothing = Conntrack {
            max_per_core: 0,
            min: 0,
            tcp_established: zero,
            tcp_close_wait: zero,
            ..Conntrack::default()
        };
        assert_eq!(list_sysctls(&nothing, 4), FORWARDING.map(|name| (Sysctl(name), 1)));
        let all: Vec<_> =
            list_sysctls(&Conntrack::default(), 4).into_iter().map(|(_, v)| v).collect();
        assert_eq!(all, [1, 1, 1, 131_072, 86_400, 3600]);
        let more = Conntrack {
            tcp_be_liberal: true,
            udp: Duration::from_secs(30),
            udp_stream: Duration::from_secs(120),
            ..nothing
        };
        let all: Vec<_> =
            list_sysctls(&more, 4).into_iter().skip(FORWARDING.len()).map(|w| w.1).collect();
        assert_eq!(all, [30, 120, 1]);
    }
}
