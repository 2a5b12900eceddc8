//! Settings of `join`: flags, or a configuration file.

use std::net::IpAddr;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context as _, Result};
use apiserver_bootstrap::bootstrap_token::BootstrapToken;
use apiserver_bootstrap::configuration::{
    API_PORT, FileDiscovery, JoinConfiguration, JoinControlPlane, LocalApiEndpoint,
    NodeRegistration, TokenDiscovery, parse,
};
use apiserver_bootstrap::discovery::Source;
use clap::Args;
use proto_daemon::go_duration;

use super::PHASES;
use crate::failure::not_valid;
use crate::host::{self, Host};
use crate::member::{node_name, runtime_socket};

/// How long the cluster is looked for, as kubeadm does.
const DISCOVERY_PATIENCE: Duration = Duration::from_secs(300);

/// Flags of `join`.
#[derive(Args, Clone, Debug, Default)]
pub struct JoinFlags {
    /// The API server, as host:port.
    #[arg(value_name = "HOST:PORT", required_unless_present_any = ["config", "discovery_file"])]
    api_server: Option<String>,
    /// Configuration file with a JoinConfiguration; in the place of the flags about the cluster.
    #[arg(long, value_name = "FILE", conflicts_with_all = ["api_server", "token", "discovery_token", "tls_bootstrap_token",
          "discovery_token_ca_cert_hash", "discovery_token_unsafe_skip_ca_verification", "discovery_file", "node_name", "cri_socket",
          "control_plane"])]
    config: Option<PathBuf>,
    /// Token for discovery and for the certificate.
    #[arg(long, value_name = "TOKEN")]
    token: Option<String>,
    /// Token for discovery.
    #[arg(long, value_name = "TOKEN")]
    discovery_token: Option<String>,
    /// Token for the certificate.
    #[arg(long, value_name = "TOKEN")]
    tls_bootstrap_token: Option<String>,
    /// Hash of the public key of the cluster's authority, as sha256:<hex>; repeatable.
    #[arg(long, value_name = "HASH", value_delimiter = ',')]
    discovery_token_ca_cert_hash: Vec<String>,
    /// Believe any authority that knows the token.
    #[arg(long)]
    discovery_token_unsafe_skip_ca_verification: bool,
    /// Client configuration that describes the cluster, brought here in a trusted way.
    #[arg(long, value_name = "FILE", conflicts_with = "api_server")]
    discovery_file: Option<PathBuf>,
    /// Name of the Node [default: the host name]
    #[arg(long, value_name = "NAME")]
    node_name: Option<String>,
    /// Socket of the container runtime [default: unix:///run/containerd/containerd.sock]
    #[arg(long, value_name = "SOCKET")]
    cri_socket: Option<String>,
    /// Make this host one more control plane of a cluster on an external etcd; the certificates of the first have to be here.
    #[arg(long)]
    control_plane: bool,
    /// Address that the API server of a control plane is reached at [default: that of the default route]
    #[arg(long, value_name = "IP", requires = "control_plane")]
    apiserver_advertise_address: Option<IpAddr>,
    /// Its port [default: 6443]
    #[arg(long, value_name = "PORT", requires = "control_plane")]
    apiserver_bind_port: Option<u16>,
    /// Checks that may fail, or all.
    #[arg(long, value_name = "LIST", value_delimiter = ',')]
    ignore_preflight_errors: Vec<String>,
    /// Directory of the programs [default: that of this program]
    #[arg(long, value_name = "DIR")]
    bin_dir: Option<PathBuf>,
    /// Phases that are left out.
    #[arg(long, value_name = "LIST", value_delimiter = ',')]
    skip_phases: Vec<String>,
    /// Say what would be written and run, and write and run nothing.
    #[arg(long)]
    dry_run: bool,
}

/// What `join` is to do.
pub struct JoinSettings {
    /// How the cluster is found.
    pub source: Source,
    /// Token for the certificate.
    pub tls_token: BootstrapToken,
    /// How long the cluster is looked for.
    pub patience: Duration,
    /// Name of the Node.
    pub node: String,
    /// The runtime's socket.
    pub runtime: String,
    /// Where the cluster's authority is written.
    pub authority: PathBuf,
    /// The machine as a node.
    pub registration: NodeRegistration,
    /// Directory of the programs.
    pub bin_dir: PathBuf,
    /// Checks that may fail.
    pub ignored: Vec<String>,
    /// Phases that are left out.
    pub skipped: Vec<String>,
    /// Whether nothing may be written or run.
    pub is_dry_run: bool,
    /// The API server of this host, if it becomes a control plane.
    pub control_plane: Option<LocalApiEndpoint>,
}

impl JoinSettings {
    /// Whether a phase is left out.
    pub fn skips(&self, phase: &str) -> bool {
        self.skipped.iter().any(|skipped| skipped == phase)
    }
}

impl JoinFlags {
    /// The settings.
    ///
    /// # Errors
    /// Something of it is not valid.
    pub fn settings(&self, host: &Host) -> Result<JoinSettings> {
        let join = match &self.config {
            Some(path) => {
                let text = std::fs::read_to_string(path).map_err(not_valid);
                let text = text.with_context(|| path.display().to_string())?;
                let read = parse(&text, host.names).map_err(not_valid);
                let read = read.with_context(|| path.display().to_string())?;
                host.output.warn_all("config", "Ignored", &read.warnings);
                read.join.ok_or_else(|| not_valid("the file has no JoinConfiguration"))?
            }
            None => self.configuration(),
        };
        let skipped = [join.skip_phases.as_slice(), &self.skip_phases].concat();
        // A control plane goes through phases of init, which look at it there.
        let is_unknown =
            |phase: &&String| join.control_plane.is_none() && !PHASES.contains(&phase.as_str());
        if let Some(phase) = skipped.iter().find(is_unknown) {
            let text = format!("--skip-phases: there is no phase {phase:?} of join");
            return Err(not_valid(text));
        }
        let (source, tls_token) = Source::from_discovery(&join.discovery).map_err(not_valid)?;
        let runtime = runtime_socket(&join.node_registration.cri_socket).map_err(not_valid)?;
        let patience = match join.discovery.timeout.as_str() {
            "" => DISCOVERY_PATIENCE,
            text => go_duration::parse(text).map_err(not_valid)?,
        };
        let authority = match join.ca_cert_path.as_str() {
            "" => host.layout.authority(),
            path => host.layout.root.join(path.trim_start_matches('/')),
        };
        Ok(JoinSettings {
            source,
            tls_token,
            patience,
            node: node_name(&join.node_registration.name)?,
            runtime,
            authority,
            registration: join.node_registration,
            bin_dir: host::bin_dir(self.bin_dir.as_deref())?,
            ignored: self.ignore_preflight_errors.clone(),
            skipped,
            is_dry_run: self.dry_run,
            control_plane: join.control_plane.map(|plane| plane.local_api_endpoint),
        })
    }

    fn configuration(&self) -> JoinConfiguration {
        let or_token = |own: &Option<String>| own.clone().or_else(|| self.token.clone());
        let mut join = JoinConfiguration::default();
        join.node_registration.name = self.node_name.clone().unwrap_or_default();
        join.node_registration.cri_socket = self.cri_socket.clone().unwrap_or_default();
        let local_api_endpoint = LocalApiEndpoint {
            advertise_address: self.apiserver_advertise_address,
            bind_port: self.apiserver_bind_port.unwrap_or(API_PORT),
        };
        join.control_plane = self.control_plane.then_some(JoinControlPlane { local_api_endpoint });
        let discovery = &mut join.discovery;
        discovery.tls_bootstrap_token = or_token(&self.tls_bootstrap_token).unwrap_or_default();
        discovery.file = self
            .discovery_file
            .as_ref()
            .map(|path| FileDiscovery { kube_config_path: path.display().to_string() });
        discovery.bootstrap_token = self.api_server.as_ref().map(|server| TokenDiscovery {
            token: or_token(&self.discovery_token).unwrap_or_default(),
            api_server_endpoint: server.clone(),
            ca_cert_hashes: self.discovery_token_ca_cert_hash.clone(),
            unsafe_skip_ca_verification: self.discovery_token_unsafe_skip_ca_verification,
        });
        join
    }
}

#[cfg(test)]
mod tests {
    use apiserver_bootstrap::layout::Layout;
    use proto_api::names::{Names, Profile};

    use super::*;
    use crate::output::{LineOutput, OutputFormat};

    #[test]
    fn phases_of_join_are_left_out_by_name() {
        let names = Names::new(Profile::Kubernetes);
        let layout = Layout::new(names, std::path::Path::new("/nowhere"));
        let host =
            Host { names, layout, record: None, output: LineOutput { format: OutputFormat::Text } };
        let of = |phase: &str| {
            let flags = JoinFlags {
                api_server: Some("10.0.0.1:6443".into()),
                token: Some("abcdef.0123456789abcdef".into()),
                discovery_token_unsafe_skip_ca_verification: true,
                skip_phases: vec![phase.to_owned()],
                ..JoinFlags::default()
            };
            flags.settings(&host)
        };
        let settings = of("addon").unwrap();
        assert!(settings.skips("addon") && !settings.skips("kubelet-start"));
        let error = of("etcd").err().unwrap().to_string();
        assert!(error.contains("no phase \"etcd\""), "{error}");
    }

    #[test]
    fn a_control_plane_joins_with_an_address_of_its_own_and_leaves_out_phases_of_init() {
        let names = Names::new(Profile::Kubernetes);
        let layout = Layout::new(names, std::path::Path::new("/nowhere"));
        let host =
            Host { names, layout, record: None, output: LineOutput { format: OutputFormat::Text } };
        let flags = JoinFlags {
            api_server: Some("10.0.0.1:6443".into()),
            token: Some("abcdef.0123456789abcdef".into()),
            discovery_token_unsafe_skip_ca_verification: true,
            skip_phases: vec!["addon/dns".to_owned()],
            ..JoinFlags::default()
        };
        assert!(flags.settings(&host).is_err(), "a phase of init, for a node");
        let flags = JoinFlags {
            control_plane: true,
            apiserver_advertise_address: Some([10, 0, 0, 2].into()),
            ..flags
        };
        let endpoint = flags.settings(&host).unwrap().control_plane.unwrap();
        assert_eq!(endpoint.advertise_address, Some([10, 0, 0, 2].into()));
        assert_eq!(endpoint.bind_port, API_PORT);
    }
}
