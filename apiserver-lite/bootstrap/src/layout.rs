//! Where the files of a cluster lie on a host: kubeadm's paths under Kubernetes' names, and the same with the project's names otherwise.

use std::path::{Component, Path, PathBuf};

use proto_api::names::Names;

use crate::error::BootstrapError;

/// The paths of a host, below a root.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Layout {
    /// What all paths are below.
    pub root: PathBuf,
    /// Client configurations: `/etc/kubernetes`.
    pub config: PathBuf,
    /// Certificates and keys.
    pub pki: PathBuf,
    /// Manifests of static pods.
    pub manifests: PathBuf,
    /// The administrator's client configuration.
    pub admin: PathBuf,
    /// The controller manager's.
    pub controller_manager: PathBuf,
    /// The scheduler's.
    pub scheduler: PathBuf,
    /// The node agent's.
    pub node: PathBuf,
    /// The one with which a machine joins.
    pub bootstrap_node: PathBuf,
    /// The proxy's.
    pub proxy: PathBuf,
    /// The node agent's directory.
    pub node_root: PathBuf,
    /// Certificate and key of the node agent, one file.
    pub node_pair: PathBuf,
    /// The API server's store.
    pub store: PathBuf,
    /// orchadm's own record of what it started.
    pub state: PathBuf,
    /// Logs of supervised programs.
    pub logs: PathBuf,
    /// Who runs now.
    pub run: PathBuf,
    /// systemd's units.
    pub units: PathBuf,
    /// Network configuration of the runtime.
    pub cni: PathBuf,
}

impl Layout {
    /// The paths below `root`.
    pub fn new(names: &Names, root: &Path) -> Self {
        let at = |path: &str| root.join(path.trim_start_matches('/'));
        let agent = names.component("let");
        let config = at(&format!("/etc/{}", names.api_service_name()));
        let node_root = at(&format!("/var/lib/{agent}"));
        Self {
            root: root.to_owned(),
            pki: config.join("pki"),
            manifests: config.join("manifests"),
            admin: config.join("admin.conf"),
            controller_manager: config.join("controller-manager.conf"),
            scheduler: config.join("scheduler.conf"),
            node: config.join(format!("{agent}.conf")),
            bootstrap_node: config.join(format!("bootstrap-{agent}.conf")),
            proxy: config.join(format!("{}.conf", names.component("proxy"))),
            config,
            node_pair: node_root.join(format!("pki/{agent}-client-current.pem")),
            node_root,
            store: at("/var/lib/orch-apiserver"),
            state: at("/var/lib/orchadm"),
            logs: at("/var/log/orch"),
            run: at("/run/orchadm"),
            units: at("/etc/systemd/system"),
            cni: at("/etc/cni/net.d"),
        }
    }

    /// The cluster's authority.
    pub fn authority(&self) -> PathBuf {
        self.pki.join("ca.crt")
    }

    /// The record of the programs of this host.
    pub fn programs(&self) -> PathBuf {
        self.state.join("programs.json")
    }

    /// The log of a supervised program.
    pub fn log(&self, program: &str) -> PathBuf {
        self.logs.join(format!("{program}.log"))
    }

    /// The file that a command locks while it changes this host.
    pub fn lock(&self) -> PathBuf {
        self.run.with_extension("lock")
    }

    /// The record of a running program.
    pub fn process(&self, program: &str) -> PathBuf {
        self.run.join(format!("{program}.json"))
    }
}

/// Directories of the system: commands neither fill nor empty them.
const SYSTEM_DIRS: [&str; 40] = [
    "/",
    "/bin",
    "/boot",
    "/dev",
    "/etc",
    "/etc/cni",
    "/etc/cni/net.d",
    "/etc/ssl",
    "/etc/ssl/certs",
    "/etc/systemd",
    "/etc/systemd/system",
    "/home",
    "/lib",
    "/lib64",
    "/media",
    "/mnt",
    "/opt",
    "/opt/cni",
    "/proc",
    "/root",
    "/run",
    "/sbin",
    "/srv",
    "/sys",
    "/tmp",
    "/usr",
    "/usr/bin",
    "/usr/lib",
    "/usr/local",
    "/usr/local/bin",
    "/usr/sbin",
    "/usr/share",
    "/var",
    "/var/cache",
    "/var/lib",
    "/var/lib/cni",
    "/var/log",
    "/var/run",
    "/var/spool",
    "/var/tmp",
];
/// Directories whose descendants are the system's as well.
const SYSTEM_TREES: [&str; 4] = ["/boot", "/dev", "/proc", "/sys"];

/// Whether a path without links is a directory of the system itself.
pub fn is_system_dir(path: &Path) -> bool {
    SYSTEM_DIRS.iter().any(|dir| path == Path::new(dir))
        || SYSTEM_TREES.iter().any(|dir| path.starts_with(dir))
}

/// Checks a directory that a flag names for certificates.
///
/// # Errors
/// It is not absolute, has `..`, or is a directory of the system.
pub fn check_certificates_dir(dir: &Path) -> Result<(), BootstrapError> {
    let problem = if !dir.is_absolute() {
        "must be an absolute path"
    } else if dir.components().any(|part| part == Component::ParentDir) {
        "must not have .. in it"
    } else if is_system_dir(&dir.components().collect::<PathBuf>()) {
        "is a directory of the system: name one of its own"
    } else {
        return Ok(());
    };
    let text = format!("the directory of certificates {} {problem}", dir.display());
    Err(BootstrapError::Invalid(text))
}

#[cfg(test)]
mod tests {
    use proto_api::names::Profile;

    use super::*;

    #[test]
    fn kubernetes_names_have_kubeadm_s_paths() {
        let of = |profile, root| Layout::new(Names::new(profile), Path::new(root));
        let host = of(Profile::Kubernetes, "/");
        for (path, expected) in [
            (host.authority(), "/etc/kubernetes/pki/ca.crt"),
            (host.admin, "/etc/kubernetes/admin.conf"),
            (host.node, "/etc/kubernetes/kubelet.conf"),
            (host.bootstrap_node, "/etc/kubernetes/bootstrap-kubelet.conf"),
            (host.node_root, "/var/lib/kubelet"),
            (host.node_pair, "/var/lib/kubelet/pki/kubelet-client-current.pem"),
        ] {
            assert_eq!(path, Path::new(expected));
        }
        let own = of(Profile::default(), "/mnt");
        assert_eq!(own.node, Path::new("/mnt/etc/orch/orchlet.conf"));
        assert_eq!(own.node_root, Path::new("/mnt/var/lib/orchlet"));
    }

    #[test]
    fn certificates_have_a_directory_of_their_own() {
        for good in ["/etc/kubernetes/pki", "/srv/pki", "/root/pki", "/etc/pki"] {
            check_certificates_dir(Path::new(good)).unwrap();
        }
        for bad in [
            "",
            "pki",
            "/",
            "//",
            "/etc",
            "/etc/",
            "/etc/.",
            "/srv/../etc",
            "/srv/..",
            "/root",
            "/home",
            "/proc/1",
        ] {
            assert!(check_certificates_dir(Path::new(bad)).is_err(), "{bad}");
        }
    }
}
