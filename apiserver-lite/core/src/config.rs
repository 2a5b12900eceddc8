//! The configuration of a server. `flags.rs` makes it from the command line, tests make it with [`Config::for_tests`].

mod admission;
mod runtime_config;

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::time::Duration;

use apiserver_audit::AuditSettings;
use proto_api::Cidr;
use proto_api::names::Names;
use proto_client::serving::tls::Terms;

pub use self::admission::{AdmissionPlugin, AdmissionSettings, PodSecuritySettings, UnknownPlugin};
pub use self::runtime_config::{RuntimeConfig, RuntimeConfigError};
pub use crate::auth::{
    Anonymous, AnonymousAccess, BootstrapTokens, ServiceAccounts, TokenExtension, TokenLookup,
};
use crate::services::PortRange;
use apiserver_auth::{
    AuthorizationWebhookSettings, OidcSettings, RequestHeaderSettings, TokenWebhookSettings,
};
pub use apiserver_schema::{FieldGate, FieldGates};

/// The configuration of one server.
#[derive(Clone, Debug)]
pub struct Config {
    /// Naming profile.
    pub names: &'static Names,
    /// Listen address; port 0 chooses a free port.
    pub bind: SocketAddr,
    /// Address in the endpoints of the `kubernetes` Service; see [`advertised`] for the default.
    pub advertise_address: Option<IpAddr>,
    /// Where objects are kept.
    pub storage: Storage,
    /// Whether the server is there for tests only: administrators may save its state and put it back (`--ephemeral`).
    pub ephemeral: bool,
    /// Whether the web page for people is served (`--web-page`).
    pub web_page: bool,
    /// Whether a damaged store is opened without its unreadable writes (`--store-accept-damage`).
    pub accept_store_damage: bool,
    /// Encryption of objects at rest.
    pub encryption: Option<EncryptionSettings>,
    /// Directory of generated certificates; without it they are generated in memory at each start.
    pub cert_dir: Option<PathBuf>,
    /// Serving certificate; generated when unset.
    pub serving: Option<Credentials>,
    /// Oldest protocol version and cipher suites of the listener (`--tls-min-version`, `--tls-cipher-suites`).
    pub tls_terms: Terms,
    /// File to which the administrator's kubeconfig is written.
    pub write_kubeconfig: Option<PathBuf>,
    /// Time between `/readyz` starting to fail and the listener closing (`--shutdown-delay-duration`).
    pub shutdown_delay: Duration,
    /// Longest wait for requests in flight during shutdown.
    pub shutdown_deadline: Duration,
    /// Worker threads of the runtime.
    pub worker_threads: usize,
    /// CA file for client certificates, in addition to the generated CA.
    pub client_ca_file: Option<PathBuf>,
    /// Static token file.
    pub token_auth_file: Option<PathBuf>,
    /// Whether bootstrap tokens authenticate (`--enable-bootstrap-token-auth`).
    pub bootstrap_tokens: BootstrapTokens,
    /// Treatment of requests without credentials.
    pub anonymous: Anonymous,
    /// Authorization modules, in the order in which they are consulted.
    pub authorization: Vec<AuthorizationMode>,
    /// Service account tokens.
    pub service_accounts: ServiceAccounts,
    /// Authenticating proxies.
    pub request_headers: Option<RequestHeaderConfig>,
    /// The identity provider.
    pub oidc: Option<OidcSettings>,
    /// The service that knows bearer tokens.
    pub token_webhook: Option<TokenWebhookSettings>,
    /// The service of the authorization module `Webhook`.
    pub authorization_webhook: Option<AuthorizationWebhookSettings>,
    /// The policy file of the authorization module `ABAC`.
    pub policy_file: Option<PathBuf>,
    /// How many requests are served at a time.
    pub request_limits: RequestLimits,
    pub admission: AdmissionSettings,
    /// The audit log, if one is kept.
    pub audit: Option<AuditSettings>,
    /// What is switched on or off (`--runtime-config`).
    pub runtime_config: RuntimeConfig,
    /// The feature gates of fields that are on.
    pub field_gates: FieldGates,
    /// Whether an evicted pod gets the condition DisruptionTarget before it is deleted (the feature gate PodDisruptionConditions).
    pub disruption_conditions: bool,
    /// Client configuration for connections to kubelets.
    pub node_client: NodeClient,
    /// Client certificate for connections to other API servers, which know this one as an authenticating proxy by it.
    pub proxy_client: Option<Credentials>,
    /// Address ranges of Services, the default IP family first.
    pub service_ranges: Vec<Cidr>,
    /// Port range of node ports.
    pub node_ports: PortRange,
    /// Whether privileged containers are admitted.
    pub privileged: PrivilegedContainers,
    /// Time after which events are deleted.
    pub event_ttl: Duration,
    /// Time between two readings of the nodes' resource metrics (`--resource-metrics-interval`).
    pub resource_metrics_interval: Duration,
    /// Where the other programs of the control plane show their health.
    pub component_addresses: ComponentAddresses,
    /// DNS domain of the cluster.
    pub cluster_domain: String,
}

/// Where the other programs of the control plane show their health: on this host, at their usual ports, as kube-apiserver looks for them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ComponentAddresses {
    pub controller_manager: SocketAddr,
    pub scheduler: SocketAddr,
}

impl Default for ComponentAddresses {
    fn default() -> Self {
        let local = |port| SocketAddr::from((Ipv4Addr::LOCALHOST, port));
        Self { controller_manager: local(10257), scheduler: local(10259) }
    }
}

/// Where objects are kept.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Storage {
    /// In this directory; a write is durable before it is answered.
    Directory(PathBuf),
    /// In memory only.
    Memory,
    /// In etcd, which several servers may share.
    Etcd(EtcdSettings),
}

/// Where etcd is, and who this server is there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EtcdSettings {
    /// URLs of its members (`--etcd-servers`).
    pub servers: Vec<String>,
    /// What the keys of all objects start with (`--etcd-prefix`).
    pub prefix: String,
    /// The authorities that its certificate is verified with (`--etcd-cafile`).
    pub authority: Option<PathBuf>,
    /// The certificate of this server (`--etcd-certfile`, `--etcd-keyfile`).
    pub client: Option<Credentials>,
    /// A user's name and the file of its password (`--etcd-username`, `--etcd-password-file`).
    pub user: Option<(String, PathBuf)>,
    /// Time between two compactions of its history (`--etcd-compaction-interval`).
    pub compaction_interval: Duration,
}

/// Encryption of objects at rest.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EncryptionSettings {
    /// The `EncryptionConfiguration`.
    pub file: PathBuf,
    /// Whether changes of the file count without a restart (`--encryption-provider-config-automatic-reload`).
    pub reload: bool,
}

/// Files of a certificate and its key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Credentials {
    /// PEM file of the certificate.
    pub certificate: PathBuf,
    /// PEM file of the key.
    pub key: PathBuf,
}

/// An authorization module.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AuthorizationMode {
    /// Allows everything.
    AlwaysAllow,
    /// Denies everything.
    AlwaysDeny,
    /// Allows a kubelet what its pods need.
    Node,
    /// Allows what roles and bindings allow.
    Rbac,
    /// Allows what a policy file allows.
    Abac,
    /// Calls a remote service.
    Webhook,
}

/// Who is an authenticating proxy, and how it names users.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RequestHeaderConfig {
    /// The authority of the proxies' client certificates.
    pub ca_file: PathBuf,
    /// Their names, and the headers.
    pub headers: RequestHeaderSettings,
}

/// How many requests are served at a time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RequestLimits {
    /// Most that read; 0 for any number (`--max-requests-inflight`).
    pub reading: u32,
    /// Most that change something; 0 for any number (`--max-mutating-requests-inflight`).
    pub mutating: u32,
    /// What the limits are to requests (`--enable-priority-and-fairness`).
    pub sharing: RequestSharing,
}

/// What the limits of requests are, besides that each is of all requests of its sort, and a quarter of it of those of one user.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RequestSharing {
    /// Their sum is divided among priority levels.
    Fair,
    /// Nothing else.
    Plain,
}

impl RequestLimits {
    /// The seats of all priority levels.
    #[must_use]
    pub fn seats(&self) -> u32 {
        self.reading.saturating_add(self.mutating)
    }
}

impl Default for RequestLimits {
    fn default() -> Self {
        Self { reading: 400, mutating: 200, sharing: RequestSharing::Fair }
    }
}

/// Whether privileged containers are admitted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PrivilegedContainers {
    /// Privileged containers are admitted.
    Admitted,
    /// Pods with a privileged container get 422.
    Refused,
}

/// Client configuration for connections to kubelets.
#[derive(Clone, Debug, Default)]
pub struct NodeClient {
    /// Client certificate; the generated administrator certificate when unset.
    pub credentials: Option<Credentials>,
    /// CA file that kubelets' serving certificates are verified against; they are not verified when unset.
    pub authority: Option<PathBuf>,
}

/// The address under which clients reach this server: `--advertise-address`, else the bind address, else the source address of
/// this host's default route, else loopback.
#[must_use]
pub fn advertised(config: &Config) -> IpAddr {
    let own = Some(config.bind.ip()).filter(|ip| !ip.is_unspecified());
    config.advertise_address.or(own).or_else(outward).unwrap_or(IpAddr::V4(Ipv4Addr::LOCALHOST))
}

/// The source address of the default route. Connecting a UDP socket sends no packet.
fn outward() -> Option<IpAddr> {
    let socket = std::net::UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0)).ok()?;
    // A documentation address (RFC 5737) is on no local network, so the route is the default route.
    socket.connect((Ipv4Addr::new(192, 0, 2, 1), 9)).ok()?;
    Some(socket.local_addr().ok()?.ip()).filter(|ip| !ip.is_unspecified() && !ip.is_loopback())
}

impl Config {
    /// The configuration of a test server: storage in memory, a free port on loopback, `AlwaysAllow`.
    #[must_use]
    pub fn for_tests(names: &'static Names) -> Self {
        let issuer = format!("https://{}.default.svc.cluster.local", names.api_service_name());
        Self {
            names,
            bind: SocketAddr::from(([127, 0, 0, 1], 0)),
            advertise_address: None,
            storage: Storage::Memory,
            ephemeral: false,
            web_page: false,
            accept_store_damage: false,
            encryption: None,
            cert_dir: None,
            serving: None,
            tls_terms: Terms::default(),
            write_kubeconfig: None,
            shutdown_delay: Duration::ZERO,
            shutdown_deadline: Duration::from_secs(5),
            worker_threads: 2,
            client_ca_file: None,
            token_auth_file: None,
            bootstrap_tokens: BootstrapTokens::default(),
            anonymous: Anonymous::Served(AnonymousAccess::Public),
            authorization: vec![AuthorizationMode::AlwaysAllow],
            service_accounts: ServiceAccounts {
                key_files: Vec::new(),
                signing_key_file: None,
                issuers: vec![issuer],
                audiences: Vec::new(),
                lookup: TokenLookup::Checked,
                expiration_max: None,
                extension: TokenExtension::Extended,
                jwks_uri: None,
            },
            request_headers: None,
            oidc: None,
            token_webhook: None,
            authorization_webhook: None,
            policy_file: None,
            request_limits: RequestLimits::default(),
            admission: AdmissionSettings::default(),
            audit: None,
            runtime_config: RuntimeConfig::default(),
            field_gates: FieldGates::default(),
            disruption_conditions: false,
            node_client: NodeClient::default(),
            proxy_client: None,
            service_ranges: "10.96.0.0/12".parse().into_iter().collect(),
            node_ports: PortRange::default(),
            privileged: PrivilegedContainers::Admitted,
            event_ttl: Duration::from_secs(3600),
            resource_metrics_interval: Duration::from_secs(15),
            component_addresses: ComponentAddresses::default(),
            cluster_domain: "cluster.local".to_owned(),
        }
    }
}
