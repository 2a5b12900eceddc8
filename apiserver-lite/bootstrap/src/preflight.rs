//! Checks of a host before anything is changed, with kubeadm's names where it has them: facts -> all that is wrong. Values only.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::path::{Path, PathBuf};

use proto_api::dns_names;
use serde::{Deserialize, Serialize};

use crate::external_etcd::ExternalEtcd;

/// Fewest processors of a control plane.
const CPUS_MIN: usize = 2;
/// Least memory of a control plane, in MiB.
const MEMORY_MIN_MIB: u64 = 1700;
/// Major and minor version of the oldest etcd that is used.
const ETCD_MIN: (u32, u32) = (3, 4);

/// The role of this host.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Role {
    /// `init` was run.
    #[default]
    ControlPlane,
    /// `join` was run.
    Node,
}

/// Why the container runtime does not answer, with its causes.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct RuntimeSilent(pub String);

/// What the runtime says of itself.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RuntimeFacts {
    /// Name and version.
    pub version: String,
    /// The name of its sandbox image; empty if it does not say.
    pub sandbox_image: String,
    /// Whether systemd manages its cgroups.
    pub uses_systemd_cgroups: bool,
}

/// Why a member of etcd cannot be used, with its causes.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct EtcdSilent(pub String);

/// A member of an external etcd.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EtcdMember {
    /// Its URL.
    pub endpoint: String,
    /// Its version, if it answers and is healthy.
    pub version: Result<String, EtcdSilent>,
}

/// What a look-up of the node's name gave.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NameLookup {
    /// An address.
    Found,
    /// No address.
    Missing,
    /// Nothing within these seconds.
    NoAnswer(u64),
}

/// What the host is like.
#[derive(Clone, Debug)]
pub struct Facts {
    /// Whether this is root.
    pub is_root: bool,
    /// Processors.
    pub cpus: usize,
    pub memory_mib: u64,
    /// Swap devices in use.
    pub swap: Option<String>,
    /// Whether cgroups are mounted.
    pub has_cgroups: bool,
    /// Whether the kernel has netfilter's socket.
    pub has_netfilter: bool,
    /// Programs that are not there.
    pub missing_programs: Vec<&'static str>,
    /// Whether the node's name has an address.
    pub name_lookup: NameLookup,
    /// Whether [`PreflightScope::address`] is one of this host's.
    pub has_address: bool,
    /// Ports that have a listener.
    pub busy_ports: Vec<u16>,
    /// Files that exist and must not.
    pub existing: Vec<PathBuf>,
    /// Directories that are not empty.
    pub not_empty: Vec<PathBuf>,
    /// The kernel's setting.
    pub ip_forward: Option<String>,
    /// The kernel's setting; none while br_netfilter is not loaded.
    pub bridge_netfilter: Option<String>,
    /// Whether the unit of orch-proxy can load br_netfilter.
    pub has_bridge_module: bool,
    /// Whether the CNI plugins are there.
    pub has_cni_plugins: bool,
    /// The runtime, or why it does not answer.
    pub runtime: Result<RuntimeFacts, RuntimeSilent>,
    /// The members of the external etcd, if there is one.
    pub etcd: Vec<EtcdMember>,
}

/// What is checked for.
#[derive(Clone, Debug)]
pub struct PreflightScope {
    /// The role that the host gets.
    pub role: Role,
    /// Name of the Node.
    pub node: String,
    /// The runtime's socket.
    pub runtime: String,
    /// The directory of our programs.
    pub bin_dir: PathBuf,
    /// Programs that have to be there.
    pub programs: Vec<&'static str>,
    /// Ports that programs will listen at.
    pub ports: Vec<u16>,
    /// Address at which the API server will be reached, if it runs here.
    pub address: Option<IpAddr>,
    /// Files that must not exist.
    pub absent: Vec<PathBuf>,
    /// Directories that must be empty, if they exist.
    pub empty: Vec<PathBuf>,
    /// Whether orchlet is configured to run with swap (`failSwapOn: false`).
    pub may_swap: bool,
    /// Directories with files that programs read under systemd's confinement; none where systemd does not run them.
    pub seen_by_units: Vec<PathBuf>,
    /// Whether an earlier run is continued: its files and programs are there.
    pub resumes: bool,
    /// The etcd in which the API server will keep its objects, if it is not its own store.
    pub etcd: Option<ExternalEtcd>,
}

/// What a check found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PreflightFinding {
    /// The check.
    pub name: String,
    /// What is wrong and what to do.
    pub message: String,
    /// Whether it stops the command.
    pub level: PreflightLevel,
}

/// The weight of a finding.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PreflightLevel {
    /// The command goes on.
    Warning,
    /// The command fails, unless the check is ignored.
    Error,
}

/// Checks that are ignored (`--ignore-preflight-errors`): names in any case, or `all`.
#[derive(Clone, Debug, Default)]
pub struct IgnoredChecks(BTreeSet<String>);

impl IgnoredChecks {
    /// Of names.
    pub fn new<'a>(names: impl IntoIterator<Item = &'a String>) -> Self {
        Self(names.into_iter().map(|name| name.trim().to_lowercase()).collect())
    }

    /// Whether a check is ignored.
    pub fn has(&self, name: &str) -> bool {
        self.0.contains("all") || self.0.contains(&name.to_lowercase())
    }
}

/// All that is wrong. Pure.
pub fn check(facts: &Facts, wanted: &PreflightScope) -> Vec<PreflightFinding> {
    let mut findings = Findings(Vec::new());
    check_machine(facts, wanted, &mut findings);
    check_name(facts, wanted, &mut findings);
    check_address(facts, wanted, &mut findings);
    check_places(facts, wanted, &mut findings);
    check_visible(wanted, &mut findings);
    check_network(facts, &mut findings);
    check_runtime(facts, wanted, &mut findings);
    check_etcd(facts, &mut findings);
    findings.0
}

struct Findings(Vec<PreflightFinding>);

impl Findings {
    fn error(&mut self, name: impl Into<String>, message: impl Into<String>) {
        self.put(name, message, PreflightLevel::Error);
    }

    fn warn(&mut self, name: impl Into<String>, message: impl Into<String>) {
        self.put(name, message, PreflightLevel::Warning);
    }

    fn put(&mut self, name: impl Into<String>, message: impl Into<String>, level: PreflightLevel) {
        self.0.push(PreflightFinding { name: name.into(), message: message.into(), level });
    }
}

fn check_machine(facts: &Facts, wanted: &PreflightScope, findings: &mut Findings) {
    if !facts.is_root {
        findings.error("IsPrivilegedUser", "user is not running as root");
    }
    if wanted.role == Role::ControlPlane {
        if facts.cpus < CPUS_MIN {
            let text = format!(
                "the number of available CPUs {} is less than the required {CPUS_MIN}",
                facts.cpus
            );
            findings.error("NumCPU", text);
        }
        if facts.memory_mib < MEMORY_MIN_MIB {
            let text = format!(
                "the system RAM ({} MB) is less than the minimum {MEMORY_MIN_MIB} MB",
                facts.memory_mib
            );
            findings.error("Mem", text);
        }
    }
    if let Some(swap) = &facts.swap {
        let text = format!(
            "swap is on ({swap}), and orchlet refuses to start with it: `swapoff -a`, or nodeRegistration.kubeletExtraArgs with fail-swap-on: \"false\""
        );
        match wanted.may_swap {
            true => findings.warn("Swap", format!("swap is on ({swap})")),
            false => findings.error("Swap", text),
        }
    }
    if !facts.has_cgroups {
        findings.error("SystemVerification", "no cgroups are mounted at /sys/fs/cgroup: mount version 2, or version 1 with the controllers cpu, memory and pids");
    }
    if !facts.has_netfilter {
        findings.warn("SystemVerification", "the kernel has no nf_tables: orch-proxy will forward by sockets, slowly; `modprobe nf_tables` where it is a module");
    }
    for program in &facts.missing_programs {
        let path = wanted.bin_dir.join(program);
        let name = format!("FileExisting-{program}");
        findings
            .error(name, format!("{} is missing: put it there, or give --bin-dir", path.display()));
    }
}

fn check_name(facts: &Facts, wanted: &PreflightScope, findings: &mut Findings) {
    if !dns_names::is_name(&wanted.node) {
        let text = format!(
            "the node's name {:?} must be a DNS name in lower case: set the host name, or give --node-name",
            wanted.node
        );
        findings.error("Hostname", text);
        return;
    }
    let problem = match facts.name_lookup {
        NameLookup::Found => return,
        NameLookup::Missing => "it has no address in /etc/hosts or DNS".to_owned(),
        NameLookup::NoAnswer(seconds) => {
            format!("no name server answers within {seconds} s, and /etc/hosts does not have it")
        }
    };
    let text = format!("hostname {:?} could not be reached: {problem}", wanted.node);
    findings.warn("Hostname", text);
}

fn check_address(facts: &Facts, wanted: &PreflightScope, findings: &mut Findings) {
    if let Some(address) = wanted.address.filter(|_| !facts.has_address) {
        let text = format!(
            "the advertise address {address} is no address of this host: give one of `ip address` with --apiserver-advertise-address or localAPIEndpoint.advertiseAddress, and another name of the control plane with --control-plane-endpoint"
        );
        findings.error("AdvertiseAddress", text);
    }
}

fn check_places(facts: &Facts, wanted: &PreflightScope, findings: &mut Findings) {
    if wanted.resumes {
        return;
    }
    for port in &facts.busy_ports {
        findings.error(format!("Port-{port}"), format!("Port {port} is in use"));
    }
    for path in &facts.existing {
        let name = format!("FileAvailable-{}", dashed(path));
        findings.error(
            name,
            format!(
                "{} already exists: `orchadm reset` removes what an earlier cluster left",
                path.display()
            ),
        );
    }
    for path in &facts.not_empty {
        let name = format!("DirAvailable-{}", dashed(path));
        findings.error(name, format!("{} is not empty", path.display()));
    }
}

/// Directories that units with ProtectHome or PrivateTmp do not see.
const HIDDEN: [&str; 5] = ["/home", "/root", "/run/user", "/tmp", "/var/tmp"];

fn check_visible(wanted: &PreflightScope, findings: &mut Findings) {
    for dir in &wanted.seen_by_units {
        if let Some(hidden) = HIDDEN.iter().find(|hidden| dir.starts_with(hidden)) {
            let text = format!(
                "{} is below {hidden}, which the programs' systemd units do not see (ProtectHome, PrivateTmp): use another directory",
                dir.display()
            );
            findings.error(format!("DirVisible-{}", dashed(dir)), text);
        }
    }
}

fn dashed(path: &Path) -> String {
    path.display().to_string().replace('/', "-")
}

fn check_network(facts: &Facts, findings: &mut Findings) {
    let sysctl = "FileContent--proc-sys-net-ipv4-ip_forward";
    match facts.ip_forward.as_deref() {
        Some("1") => {}
        Some(_) => {
            findings.warn(sysctl, "/proc/sys/net/ipv4/ip_forward is not 1: orch-proxy sets it")
        }
        None => findings.error(sysctl, "/proc/sys/net/ipv4/ip_forward does not exist"),
    }
    let bridge = "FileContent--proc-sys-net-bridge-bridge-nf-call-iptables";
    match facts.bridge_netfilter.as_deref() {
        Some("1") => {}
        Some(_) => findings.warn(
            bridge,
            "/proc/sys/net/bridge/bridge-nf-call-iptables is not 1: orch-proxy sets it",
        ),
        None if facts.has_bridge_module => findings.warn(
            bridge,
            "/proc/sys/net/bridge/bridge-nf-call-iptables does not exist: the unit of orch-proxy loads br_netfilter",
        ),
        None => findings.error(
            bridge,
            "/proc/sys/net/bridge/bridge-nf-call-iptables does not exist: `modprobe br_netfilter`",
        ),
    }
    if !facts.has_cni_plugins {
        findings.error("FileExisting-cni", "the CNI plugins bridge, host-local and portmap are neither in /opt/cni/bin nor in /usr/lib/cni: install containernetworking-plugins");
    }
}

fn check_runtime(facts: &Facts, wanted: &PreflightScope, findings: &mut Findings) {
    if let Err(error) = &facts.runtime {
        let text = format!(
            "container runtime is not running at {}: {error}; install and start one (Debian: containerd), or name its socket with --cri-socket",
            wanted.runtime
        );
        findings.error("CRI", text);
    }
}

fn check_etcd(facts: &Facts, findings: &mut Findings) {
    for EtcdMember { endpoint, version } in &facts.etcd {
        let problem = match version {
            Err(error) => format!(
                "cannot be used: {error}; it must be reached from this host with the files of etcd.external"
            ),
            Ok(version) if is_old(version) => {
                let (major, minor) = ETCD_MIN;
                format!("runs version {version:?}: must be {major}.{minor} or newer")
            }
            Ok(_) => continue,
        };
        findings.error("ExternalEtcdVersion", format!("the etcd at {endpoint} {problem}"));
    }
}

/// Whether a version is older than the oldest that is used, or none.
fn is_old(version: &str) -> bool {
    let mut numbers = version.split('.').map(str::parse::<u32>);
    match (numbers.next(), numbers.next()) {
        (Some(Ok(major)), Some(Ok(minor))) => (major, minor) < ETCD_MIN,
        _ => true,
    }
}

#[cfg(test)]
mod tests;
