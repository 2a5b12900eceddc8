//! What a cluster is, as a value, and where its files lie.

use std::io;
use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use anyhow::{Context, Result, bail};
use proto_api::names::{Names, Profile};
use serde::{Deserialize, Serialize};

use crate::{directory, files};

/// Most nodes that one bridge subnet of the cluster holds.
pub const NODES_MAX: u8 = 32;

/// Everything that decides how a cluster looks; stored as `cluster.json` when it is first brought up.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Spec {
    /// Directory that holds all of the cluster's files.
    pub dir: PathBuf,
    /// Where our programs lie.
    pub bin_dir: PathBuf,
    /// `orch` or `kubernetes`.
    pub naming: String,
    /// Number of nodes, 1 to [`NODES_MAX`].
    pub nodes: u8,
    /// Third octet of the bridge's /24 below 172.30.0.0/16, chosen free at first start.
    pub subnet: u8,
    /// More flags of every node's orchlet.
    #[serde(default)]
    pub agent_flags: Vec<String>,
    /// More flags of orch-apiserver.
    #[serde(default)]
    pub server_flags: Vec<String>,
    /// More flags of orch-controller-manager.
    #[serde(default)]
    pub manager_flags: Vec<String>,
    /// More flags of orch-scheduler.
    #[serde(default)]
    pub scheduler_flags: Vec<String>,
    /// More flags of every node's orch-proxy.
    #[serde(default)]
    pub proxy_flags: Vec<String>,
}

/// One node: its name, its place in the cluster and its address on the cluster's bridge.
#[derive(Clone, Debug, PartialEq)]
pub struct Node {
    /// Node name as registered with the API.
    pub name: String,
    /// Position, from 0.
    pub index: u8,
    /// Address of its `eth0`.
    pub address: Ipv4Addr,
}

impl Spec {
    /// Cluster-wide range of pod addresses; nodes get a /24 each.
    pub const POD_CIDR: &'static str = "10.244.0.0/16";
    /// Cluster-wide range of Service addresses.
    pub const SERVICE_CIDR: &'static str = "10.96.0.0/16";
    /// First address of [`Self::SERVICE_CIDR`]: the API server's own Service.
    pub const API_SERVICE_ADDRESS: Ipv4Addr = Ipv4Addr::new(10, 96, 0, 1);
    /// Address of the Service of the cluster DNS.
    pub const DNS_SERVICE_ADDRESS: Ipv4Addr = Ipv4Addr::new(10, 96, 0, 10);
    /// Domain of the names of services and pods.
    pub const DOMAIN: &'static str = "cluster.local";
    /// Port of the API server on the bridge address.
    pub const API_PORT: u16 = 6443;

    /// Reads the spec of an existing cluster; `None` when the directory holds none. Nothing of another user's is read.
    pub fn load(dir: &Path) -> Result<Option<Spec>> {
        files::check_owner(dir)?;
        let path = dir.join(directory::MARK);
        let bytes = match std::fs::read(&path) {
            Ok(bytes) => bytes,
            Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(e) => return Err(e).with_context(|| format!("cannot read {}", path.display())),
        };
        let spec = serde_json::from_slice(&bytes)
            .with_context(|| format!("{} is damaged", path.display()))?;
        Ok(Some(spec))
    }

    /// Writes the spec so that a crash leaves the old file or the new one.
    pub fn store(&self) -> Result<()> {
        files::own_dir(&self.dir)?;
        files::write_file(&self.dir.join(directory::MARK), &serde_json::to_vec_pretty(self)?)
    }

    /// Checks what flags can get wrong.
    pub fn validate(&self) -> Result<()> {
        if self.nodes == 0 || self.nodes > NODES_MAX {
            bail!("--nodes {}: must be between 1 and {NODES_MAX}", self.nodes);
        }
        if self.naming != "orch" && self.naming != "kubernetes" {
            bail!("--naming {}: must be orch or kubernetes", self.naming);
        }
        // A unix socket's path must fit into sockaddr_un (108 bytes, man 7 unix).
        let longest = self.node_dir("node-99").join("containerd/containerd.sock.ttrpc");
        if longest.as_os_str().len() > 107 {
            bail!("--dir {}: too long for unix sockets below it", self.dir.display());
        }
        Ok(())
    }

    /// The names that the cluster's programs use.
    pub fn names(&self) -> &'static Names {
        static KUBERNETES: OnceLock<&'static Names> = OnceLock::new();
        match self.naming.as_str() {
            "kubernetes" => KUBERNETES.get_or_init(|| Names::new(Profile::Kubernetes)),
            _ => <&'static Names>::default(),
        }
    }

    /// Short name of this cluster, the same for the same directory: used for links, cgroups and namespaces.
    pub fn tag(&self) -> String {
        tag_of(&self.dir)
    }

    /// The host's end of the cluster's network.
    pub fn bridge(&self) -> String {
        format!("orch-{}", self.tag())
    }

    /// Address of the bridge: the nodes' gateway.
    pub fn host_address(&self) -> Ipv4Addr {
        Ipv4Addr::new(172, 30, self.subnet, 1)
    }

    /// Where the API server listens. It runs in the first node's network, because it has to reach pods and services: it
    /// passes requests on to them.
    pub fn api_address(&self) -> Ipv4Addr {
        self.node_address(0)
    }

    /// URL of the API server.
    pub fn api_url(&self) -> String {
        format!("https://{}:{}", self.api_address(), Self::API_PORT)
    }

    fn node_address(&self, index: u8) -> Ipv4Addr {
        Ipv4Addr::new(172, 30, self.subnet, 10 + index)
    }

    /// All nodes in order.
    pub fn node_list(&self) -> Vec<Node> {
        (0..self.nodes)
            .map(|index| Node {
                name: format!("node-{}", index + 1),
                index,
                address: self.node_address(index),
            })
            .collect()
    }

    /// cgroup below which everything of a node lives, the same path in every hierarchy.
    pub fn node_cgroup(&self, node: &str) -> String {
        format!("/orch-{}/{node}", self.tag())
    }

    /// Certificates and keys.
    pub fn pki(&self) -> PathBuf {
        self.dir.join("pki")
    }

    /// A client configuration by the name of who uses it.
    pub fn client_config(&self, user: &str) -> PathBuf {
        self.dir.join(format!("{user}.conf"))
    }

    /// One log file a program.
    pub fn log(&self, program: &str) -> PathBuf {
        self.dir.join("logs").join(format!("{program}.log"))
    }

    /// Files of one node.
    pub fn node_dir(&self, node: &str) -> PathBuf {
        self.dir.join(node)
    }

    /// The node's containerd.
    pub fn containerd_socket(&self, node: &str) -> PathBuf {
        self.node_dir(node).join("containerd/containerd.sock")
    }
}

/// Eight hexadecimal digits of the directory's hash: fits with a prefix into a link name (15 bytes).
pub fn tag_of(dir: &Path) -> String {
    format!("{:.8}", proto_api::sha256_hex(dir.as_os_str().as_encoded_bytes()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn spec(dir: &str) -> Spec {
        Spec {
            dir: dir.into(),
            bin_dir: "/bin".into(),
            naming: "orch".into(),
            nodes: 2,
            subnet: 7,
            agent_flags: Vec::new(),
            server_flags: Vec::new(),
            manager_flags: Vec::new(),
            scheduler_flags: Vec::new(),
            proxy_flags: Vec::new(),
        }
    }

    #[test]
    fn names_fit_the_kernel_and_follow_the_directory() {
        let one = spec("/var/tmp/a");
        assert!(one.bridge().len() <= 15);
        assert_eq!(one.tag(), spec("/var/tmp/a").tag());
        assert_ne!(one.tag(), spec("/var/tmp/b").tag());
        assert_eq!(one.node_list()[1].address, Ipv4Addr::new(172, 30, 7, 11));
    }

    #[test]
    fn validation_names_the_flag() {
        let refused = |spec: Spec| spec.validate().expect_err("must be refused").to_string();
        assert!(refused(Spec { nodes: 0, ..spec("/a") }).contains("--nodes 0"));
        assert!(refused(Spec { naming: "k3s".into(), ..spec("/a") }).contains("--naming k3s"));
        assert!(refused(spec(&format!("/{}", "d".repeat(90)))).contains("--dir"));
        assert!(spec("/var/tmp/a").validate().is_ok());
    }

    #[test]
    fn stored_specs_come_back_and_absence_is_no_error() {
        let dir = tempfile::tempdir().unwrap();
        assert_eq!(Spec::load(dir.path()).unwrap(), None);
        let spec = Spec { dir: dir.path().into(), ..spec("/") };
        spec.store().unwrap();
        assert_eq!(Spec::load(dir.path()).unwrap(), Some(spec));
    }
}
