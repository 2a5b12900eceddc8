//! The facts of a host that preflight checks, as the host has them.

use std::collections::BTreeSet;
use std::net::{IpAddr, Ipv4Addr, TcpListener, ToSocketAddrs as _, UdpSocket};
use std::path::{Path, PathBuf};
use std::sync::mpsc;
use std::time::Duration;

use nix::sys::socket::{AddressFamily, SockFlag, SockProtocol, SockType, socket};

use crate::layout::Layout;
use crate::preflight::{Facts, NameLookup, PreflightScope, RuntimeFacts, RuntimeSilent};
use crate::removal::resolved;
use crate::systemd;

/// Directories in which runtimes look for CNI plugins.
const PLUGIN_DIRS: [&str; 2] = ["opt/cni/bin", "usr/lib/cni"];
/// The plugins of the pods' network.
const PLUGINS: [&str; 3] = ["bridge", "host-local", "portmap"];

/// Longest wait for name servers: the system's resolver tries each of them for long.
const LOOKUP_PATIENCE: Duration = Duration::from_secs(3);

/// The source address of the default route. Connecting a UDP socket sends no packet.
pub fn default_address() -> Option<IpAddr> {
    let socket = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0)).ok()?;
    // A documentation address (RFC 5737) is on no local network, so the route is the default route.
    socket.connect((Ipv4Addr::new(192, 0, 2, 1), 9)).ok()?;
    Some(socket.local_addr().ok()?.ip()).filter(|ip| !ip.is_unspecified() && !ip.is_loopback())
}

/// Those of some directories that units of systemd read, by the paths where they really are; none on a host without systemd.
pub fn seen_by_units(layout: &Layout, dirs: &[&Path]) -> Vec<PathBuf> {
    if !systemd::runs_host(layout) {
        return Vec::new();
    }
    let real = |dir: &&Path| resolved(dir).unwrap_or_else(|_| (*dir).to_owned());
    dirs.iter()
        .flat_map(|dir| [(*dir).to_owned(), real(dir)])
        .collect::<BTreeSet<_>>()
        .into_iter()
        .collect()
}

/// Looks at the host.
pub fn gather(
    wanted: &PreflightScope,
    root: &Path,
    runtime: Result<RuntimeFacts, RuntimeSilent>,
) -> Facts {
    let meminfo = std::fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let swaps = std::fs::read_to_string("/proc/swaps").unwrap_or_default();
    let sysctl = |name: &str| {
        let text = std::fs::read_to_string(Path::new("/proc/sys").join(name)).ok()?;
        Some(text.trim().to_owned())
    };
    let is_missing = |program: &&&'static str| !wanted.bin_dir.join(program).is_file();
    let is_full =
        |dir: &&PathBuf| std::fs::read_dir(dir).is_ok_and(|mut entries| entries.next().is_some());
    Facts {
        is_root: nix::unistd::geteuid().is_root(),
        cpus: std::thread::available_parallelism().map_or(1, usize::from),
        memory_mib: memory_mib(&meminfo),
        swap: swap_of(&swaps),
        has_cgroups: has_cgroups(),
        has_netfilter: has_netfilter(),
        missing_programs: wanted.programs.iter().filter(is_missing).copied().collect(),
        name_lookup: look_up(&wanted.node),
        has_address: wanted.address.is_none_or(is_own_address),
        busy_ports: wanted.ports.iter().filter(|port| is_busy(**port)).copied().collect(),
        existing: wanted.absent.iter().filter(|path| path.exists()).cloned().collect(),
        not_empty: wanted.empty.iter().filter(is_full).cloned().collect(),
        ip_forward: sysctl("net/ipv4/ip_forward"),
        bridge_netfilter: sysctl("net/bridge/bridge-nf-call-iptables"),
        has_bridge_module: has_bridge_module(root),
        has_cni_plugins: PLUGIN_DIRS.iter().any(|dir| has_plugins(&root.join(dir))),
        runtime,
        etcd: Vec::new(),
    }
}

/// Looks up a name in a thread of its own, which is left behind when it gets no answer.
fn look_up(name: &str) -> NameLookup {
    let (answer, answered) = mpsc::channel();
    let name = name.to_owned();
    std::thread::spawn(move || {
        let found = (name.as_str(), 0).to_socket_addrs().is_ok();
        // The receiver was dropped.
        let _ = answer.send(found);
    });
    match answered.recv_timeout(LOOKUP_PATIENCE) {
        Ok(true) => NameLookup::Found,
        Ok(false) => NameLookup::Missing,
        Err(_) => NameLookup::NoAnswer(LOOKUP_PATIENCE.as_secs()),
    }
}

/// Whether a listener could have this address.
fn is_own_address(address: IpAddr) -> bool {
    TcpListener::bind((address, 0)).is_ok()
}

fn has_plugins(dir: &Path) -> bool {
    PLUGINS.iter().all(|plugin| dir.join(plugin).is_file())
}

/// Whether systemd runs here, has its unit that loads modules, and finds br_netfilter among those of this kernel.
fn has_bridge_module(root: &Path) -> bool {
    let units = ["lib/systemd/system", "usr/lib/systemd/system"];
    let has_unit = units.iter().any(|dir| root.join(dir).join("modprobe@.service").is_file());
    let release = std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    let modules = root.join("lib/modules").join(release.trim()).join("modules.dep");
    let modules = std::fs::read_to_string(modules).unwrap_or_default();
    let is_there = modules.lines().any(|line| line.contains("/br_netfilter.ko"));
    root.join("run/systemd/system").is_dir() && has_unit && is_there
}

fn is_busy(port: u16) -> bool {
    TcpListener::bind((Ipv4Addr::UNSPECIFIED, port)).is_err()
}

/// Version 2, or version 1 with the controllers that pods need.
fn has_cgroups() -> bool {
    let root = Path::new("/sys/fs/cgroup");
    let is_v2 = root.join("cgroup.controllers").exists();
    is_v2 || ["cpu", "memory", "pids"].iter().all(|controller| root.join(controller).is_dir())
}

fn has_netfilter() -> bool {
    let made = socket(
        AddressFamily::Netlink,
        SockType::Raw,
        SockFlag::SOCK_CLOEXEC,
        SockProtocol::NetlinkNetFilter,
    );
    made.is_ok()
}

/// `MemTotal` of /proc/meminfo.
fn memory_mib(meminfo: &str) -> u64 {
    let total = meminfo.lines().find_map(|line| line.strip_prefix("MemTotal:"));
    let kib = total.and_then(|rest| rest.split_whitespace().next()?.parse::<u64>().ok());
    kib.unwrap_or_default() / 1024
}

/// The devices of /proc/swaps, behind its heading.
fn swap_of(swaps: &str) -> Option<String> {
    let devices: Vec<&str> =
        swaps.lines().skip(1).filter_map(|line| line.split_whitespace().next()).collect();
    (!devices.is_empty()).then(|| devices.join(", "))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_and_names_of_this_host_are_known() {
        assert!(is_own_address(Ipv4Addr::LOCALHOST.into()));
        assert!(!is_own_address(Ipv4Addr::new(192, 0, 2, 1).into()), "one of the documentation");
        assert_eq!(look_up("127.0.0.1"), NameLookup::Found);
    }

    #[test]
    fn the_kernel_s_tables_are_read() {
        assert_eq!(memory_mib("MemTotal:        2048000 kB\nMemFree: 1 kB\n"), 2000);
        assert_eq!(memory_mib("nonsense"), 0);
        let heading = "Filename\tType\n";
        assert_eq!(swap_of(heading), None);
        assert_eq!(swap_of(&format!("{heading}/dev/a partition 1\n")), Some("/dev/a".to_owned()));
    }
}
