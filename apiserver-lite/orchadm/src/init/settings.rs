//! Settings of `init`: flags, or a configuration file, with defaults for the rest.

use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context as _, Result};
use apiserver_bootstrap::arguments::{external_etcd, value_of};
use apiserver_bootstrap::bootstrap_token::TokenSpec;
use apiserver_bootstrap::cluster_info;
use apiserver_bootstrap::configuration::{
    ClusterConfiguration, InitConfiguration, TokenConfiguration, parse, version_warning,
};
use apiserver_bootstrap::host_facts::default_address;
use apiserver_bootstrap::layout::check_certificates_dir;
use apiserver_bootstrap::removal::resolved;
use clap::Args;
use proto_api::names::Names;
use proto_daemon::go_duration;
use time::OffsetDateTime;

use crate::failure::not_valid;
use crate::host::{self, Host};
use crate::member::{node_name, runtime_socket};

/// How long the control plane is waited for, as kubeadm does.
const CONTROL_PLANE_PATIENCE: Duration = Duration::from_secs(240);

/// Flags of `init`.
#[derive(Args, Clone, Debug, Default)]
pub struct InitFlags {
    /// Configuration file with InitConfiguration and ClusterConfiguration; in the place of the flags about the cluster.
    #[arg(long, value_name = "FILE", conflicts_with_all = ["apiserver_advertise_address", "apiserver_bind_port",
          "apiserver_cert_extra_sans", "cert_dir", "control_plane_endpoint", "cri_socket", "node_name", "pod_network_cidr",
          "service_cidr", "service_dns_domain", "token", "token_ttl", "kubernetes_version"])]
    config: Option<PathBuf>,
    /// Address that the API server listens at and is reached at [default: that of the default route]
    #[arg(long, value_name = "IP")]
    apiserver_advertise_address: Option<IpAddr>,
    /// Its port [default: 6443]
    #[arg(long, value_name = "PORT")]
    apiserver_bind_port: Option<u16>,
    /// More names and addresses of its certificate.
    #[arg(long, value_name = "LIST", value_delimiter = ',')]
    apiserver_cert_extra_sans: Vec<String>,
    /// Directory of certificates [default: /etc/kubernetes/pki]
    #[arg(long, value_name = "DIR")]
    cert_dir: Option<String>,
    /// Address of the control plane that is handed out, as host or host:port.
    #[arg(long, value_name = "HOST")]
    control_plane_endpoint: Option<String>,
    /// Socket of the container runtime [default: unix:///run/containerd/containerd.sock]
    #[arg(long, value_name = "SOCKET")]
    cri_socket: Option<String>,
    /// Name of the Node [default: the host name]
    #[arg(long, value_name = "NAME")]
    node_name: Option<String>,
    /// Addresses of pods; empty for another pod network [default: 10.244.0.0/16]
    #[arg(long, value_name = "CIDR")]
    pod_network_cidr: Option<String>,
    /// Addresses of Services [default: 10.96.0.0/12]
    #[arg(long, value_name = "CIDR")]
    service_cidr: Option<String>,
    /// Domain of the names of Services [default: cluster.local]
    #[arg(long, value_name = "DOMAIN")]
    service_dns_domain: Option<String>,
    /// Token with which nodes join [default: a new one]
    #[arg(long, value_name = "TOKEN")]
    token: Option<String>,
    /// How long it lasts; 0 for ever [default: 24h]
    #[arg(long, value_name = "DURATION")]
    token_ttl: Option<String>,
    /// Checks that may fail, or all.
    #[arg(long, value_name = "LIST", value_delimiter = ',')]
    ignore_preflight_errors: Vec<String>,
    /// Phases that are left out.
    #[arg(long, value_name = "LIST", value_delimiter = ',')]
    skip_phases: Vec<String>,
    /// Directory of the programs [default: that of this program]
    #[arg(long, value_name = "DIR")]
    bin_dir: Option<PathBuf>,
    /// Version of Kubernetes; it is that of the programs, and another is warned of.
    #[arg(long, value_name = "VERSION")]
    kubernetes_version: Option<String>,
    /// Say what would be written and run, and write and run nothing.
    #[arg(long)]
    dry_run: bool,
}

/// What `init` is to do.
#[derive(Clone, Debug)]
pub struct InitSettings {
    /// Of this host.
    pub init: InitConfiguration,
    /// Of the cluster.
    pub cluster: ClusterConfiguration,
    /// Name of the Node.
    pub node: String,
    /// Address of the API server.
    pub address: IpAddr,
    /// The runtime's socket.
    pub runtime: String,
    /// Directory of certificates.
    pub pki: PathBuf,
    /// Directory of the programs.
    pub bin_dir: PathBuf,
    /// Checks that may fail.
    pub ignored: Vec<String>,
    /// Tokens to make.
    pub tokens: Vec<TokenSpec>,
    /// How long the control plane is waited for.
    pub patience: Duration,
    /// Whether the cluster exists, and this is one more control plane of it.
    pub joins: bool,
}

impl InitFlags {
    /// Whether nothing may be written or run.
    pub fn is_dry_run(&self) -> bool {
        self.dry_run
    }

    /// The settings.
    ///
    /// # Errors
    /// Something of it is not valid.
    pub fn settings(&self, host: &Host) -> Result<InitSettings> {
        let (mut init, cluster) = match &self.config {
            Some(path) => {
                let text = std::fs::read_to_string(path).map_err(not_valid);
                let text = text.with_context(|| path.display().to_string())?;
                let read = parse(&text, host.names).map_err(not_valid);
                let read = read.with_context(|| path.display().to_string())?;
                host.output.warn_all("config", "Ignored", &read.warnings);
                (read.init.unwrap_or_default(), read.cluster.unwrap_or_default())
            }
            None => (self.init(), self.cluster()),
        };
        if let Some(version) = &self.kubernetes_version {
            let warning = version_warning("--kubernetes-version", version).map_err(not_valid)?;
            host.output.warn_all("config", "Ignored", warning.as_slice());
        }
        init.skip_phases.extend(self.skip_phases.iter().cloned());
        let bin_dir = host::bin_dir(self.bin_dir.as_deref())?;
        let tokens = tokens(&init.bootstrap_tokens, host.names)?;
        let settings = InitSettings::new(host, init, cluster, bin_dir)?;
        Ok(InitSettings { ignored: self.ignore_preflight_errors.clone(), tokens, ..settings })
    }

    /// The settings of one phase: those of an earlier run are kept unless a flag changes them.
    ///
    /// # Errors
    /// As [`InitFlags::settings`].
    pub fn phase_settings(&self, host: &Host) -> Result<InitSettings> {
        let Some(record) = &host.record else { return self.settings(host) };
        let mut flags = self.clone();
        if flags.config.is_none() {
            let known = |text: &String| Some(text.clone()).filter(|text| !text.is_empty());
            flags.node_name = flags.node_name.or_else(|| known(&record.node));
            flags.cri_socket = flags.cri_socket.or_else(|| known(&record.runtime));
            let server = record.program("orch-apiserver");
            let saved = |flag: &str| server.and_then(|server| value_of(&server.argv, flag));
            flags.apiserver_advertise_address = flags
                .apiserver_advertise_address
                .or_else(|| saved("advertise-address")?.parse().ok());
            flags.apiserver_bind_port =
                flags.apiserver_bind_port.or_else(|| saved("secure-port")?.parse().ok());
            flags.service_cidr =
                flags.service_cidr.or_else(|| saved("service-cluster-ip-range").map(str::to_owned));
            flags.service_dns_domain =
                flags.service_dns_domain.or_else(|| saved("cluster-domain").map(str::to_owned));
            // No flag: no pod network of ours.
            let pods = record.program("orch-controller-manager").map(|manager| {
                value_of(&manager.argv, "cluster-cidr").unwrap_or_default().to_owned()
            });
            flags.pod_network_cidr = flags.pod_network_cidr.or(pods);
        }
        let program = record.programs.first().and_then(|program| program.argv.first());
        let dir = program.and_then(|program| Path::new(program).parent()).map(Path::to_owned);
        flags.bin_dir = flags.bin_dir.or(dir);
        let mut settings = flags.settings(host)?;
        if flags.config.is_none() {
            let server = record.program("orch-apiserver");
            settings.cluster.etcd.external = server.and_then(|server| external_etcd(&server.argv));
        }
        Ok(settings)
    }

    fn init(&self) -> InitConfiguration {
        let mut init = InitConfiguration::default();
        let endpoint = &mut init.local_api_endpoint;
        endpoint.advertise_address = self.apiserver_advertise_address;
        endpoint.bind_port = self.apiserver_bind_port.unwrap_or(endpoint.bind_port);
        init.node_registration.name = self.node_name.clone().unwrap_or_default();
        init.node_registration.cri_socket = self.cri_socket.clone().unwrap_or_default();
        init.bootstrap_tokens.push(TokenConfiguration {
            token: self.token.clone().unwrap_or_default(),
            ttl: self.token_ttl.clone().unwrap_or_default(),
            ..TokenConfiguration::default()
        });
        init
    }

    fn cluster(&self) -> ClusterConfiguration {
        let mut cluster = ClusterConfiguration::default();
        cluster.api_server.cert_sans = self.apiserver_cert_extra_sans.clone();
        cluster.certificates_dir = self.cert_dir.clone().unwrap_or_default();
        cluster.control_plane_endpoint = self.control_plane_endpoint.clone().unwrap_or_default();
        let networking = &mut cluster.networking;
        for (given, field) in [
            (&self.pod_network_cidr, &mut networking.pod_subnet),
            (&self.service_cidr, &mut networking.service_subnet),
            (&self.service_dns_domain, &mut networking.dns_domain),
        ] {
            if let Some(given) = given {
                field.clone_from(given);
            }
        }
        cluster
    }
}

/// A directory that is named for certificates, below the host's root. A link to a directory of the system is refused as that is.
fn certificates_dir(host: &Host, dir: &str) -> Result<PathBuf> {
    check_certificates_dir(Path::new(dir)).map_err(not_valid)?;
    let dir = host.layout.root.join(dir.trim_start_matches('/'));
    check_certificates_dir(&resolved(&dir)?).map_err(not_valid)?;
    Ok(dir)
}

/// The tokens of a configuration; one with the defaults if it has none.
fn tokens(given: &[TokenConfiguration], names: &Names) -> Result<Vec<TokenSpec>> {
    let usual = [TokenConfiguration::default()];
    let given = if given.is_empty() { &usual[..] } else { given };
    let now = OffsetDateTime::now_utc().unix_timestamp();
    given.iter().map(|token| token.spec(names, now).map_err(not_valid)).collect()
}

impl InitSettings {
    /// Of configurations, without tokens.
    ///
    /// # Errors
    /// Something of it is not valid.
    pub fn new(
        host: &Host,
        init: InitConfiguration,
        cluster: ClusterConfiguration,
        bin_dir: PathBuf,
    ) -> Result<Self> {
        cluster.validate().map_err(not_valid)?;
        let address = init.local_api_endpoint.advertise_address.or_else(default_address);
        let address = address.ok_or_else(|| {
            not_valid("this host has no default route: give --apiserver-advertise-address")
        })?;
        let runtime = runtime_socket(&init.node_registration.cri_socket).map_err(not_valid)?;
        let pki = match cluster.certificates_dir.as_str() {
            // Settings of an earlier run are kept.
            "" => host.pki(),
            dir => certificates_dir(host, dir)?,
        };
        let patience = match cluster.api_server.timeout_for_control_plane.as_str() {
            "" => CONTROL_PLANE_PATIENCE,
            text => go_duration::parse(text).map_err(not_valid)?,
        };
        Ok(Self {
            node: node_name(&init.node_registration.name)?,
            address,
            runtime,
            pki,
            bin_dir,
            ignored: Vec::new(),
            tokens: Vec::new(),
            patience,
            joins: false,
            init,
            cluster,
        })
    }

    /// URL of the API server as it is handed out.
    pub fn server(&self) -> String {
        self.cluster.server(&self.init.local_api_endpoint, self.address)
    }

    /// URL of this machine's API server.
    pub fn local_server(&self) -> String {
        let port = self.init.local_api_endpoint.bind_port;
        format!("https://{}", std::net::SocketAddr::new(self.address, port))
    }

    /// The pins of the cluster's authority.
    ///
    /// # Errors
    /// Its file cannot be read.
    pub fn pins(&self) -> Result<Vec<String>> {
        let path = self.pki.join("ca.crt");
        let pem = std::fs::read_to_string(&path).with_context(|| path.display().to_string())?;
        Ok(cluster_info::pins(&path, &pem)?)
    }
}

#[cfg(test)]
mod tests {
    use apiserver_bootstrap::arguments::Program;
    use apiserver_bootstrap::layout::Layout;
    use apiserver_bootstrap::preflight::Role;
    use proto_api::names::Profile;

    use super::*;
    use crate::output::{LineOutput, OutputFormat};
    use apiserver_bootstrap::record::HostRecord;

    fn host(root: &Path) -> Host {
        let names = Names::new(Profile::Kubernetes);
        let mut record = HostRecord::new(names, Role::ControlPlane, "known", "unix:///known");
        record.certificates_dir = Some(root.join("srv/pki"));
        let argv = [
            "/opt/b/orch-apiserver",
            "--etcd-servers=http://a:1,http://b:1",
            "--advertise-address=10.0.0.7",
            "--secure-port=7443",
            "--service-cluster-ip-range=10.7.0.0/16",
            "--cluster-domain=d.e",
        ];
        let argv = argv.map(str::to_owned).to_vec();
        record.put(&Program { name: "orch-apiserver".into(), argv });
        let argv = ["/opt/b/orch-controller-manager", "--cluster-cidr=10.9.0.0/16"];
        let argv = argv.map(str::to_owned).to_vec();
        record.put(&Program { name: "orch-controller-manager".into(), argv });
        let layout = Layout::new(names, root);
        Host {
            names,
            layout,
            record: Some(record),
            output: LineOutput { format: OutputFormat::Text },
        }
    }

    #[test]
    fn phases_use_the_settings_of_init() {
        let root = tempfile::tempdir().unwrap();
        let host = host(root.path());
        let found = InitFlags::default().phase_settings(&host).unwrap();
        assert_eq!(found.pki, root.path().join("srv/pki"));
        assert_eq!((found.node.as_str(), found.runtime.as_str()), ("known", "unix:///known"));
        assert_eq!(found.bin_dir, Path::new("/opt/b"));
        assert_eq!(found.local_server(), "https://10.0.0.7:7443");
        assert_eq!(found.cluster.networking.service_subnet, "10.7.0.0/16");
        assert_eq!(found.cluster.networking.dns_domain, "d.e");
        assert_eq!(found.cluster.networking.pod_subnet, "10.9.0.0/16");
        let etcd = found.cluster.etcd.external.unwrap();
        assert_eq!(etcd.endpoints, ["http://a:1", "http://b:1"]);
        let flags = InitFlags { node_name: Some("other".into()), ..InitFlags::default() };
        assert_eq!(flags.phase_settings(&host).unwrap().node, "other");
    }

    #[test]
    fn certificates_do_not_go_into_directories_of_the_system() {
        let root = tempfile::tempdir().unwrap();
        let host = host(root.path());
        let of = |dir: &str| {
            let flags = InitFlags { cert_dir: Some(dir.into()), ..InitFlags::default() };
            flags.phase_settings(&host).map(|settings| settings.pki)
        };
        assert_eq!(of("/srv/own").unwrap(), root.path().join("srv/own"));
        std::os::unix::fs::symlink("/etc", root.path().join("link")).unwrap();
        for bad in ["/", "/etc", "/a/../../etc", "relative", "/link"] {
            assert!(of(bad).is_err(), "{bad}");
        }
    }
}
