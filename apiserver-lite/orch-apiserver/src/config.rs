//! What a server is built from. Made from flags by `flags.rs`, or directly by tests.

use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::time::Duration;

use proto_api::Cidr;
use proto_api::names::Names;

use crate::registry::PortRange;

/// Everything that decides how a server behaves.
#[derive(Clone, Debug)]
pub struct Config {
    /// Naming profile.
    pub names: &'static Names,
    /// Where to listen; port 0 takes a free one.
    pub bind: SocketAddr,
    /// Address put into the endpoints of the server's own service; the bind address, or loopback, when unset.
    pub advertise_address: Option<IpAddr>,
    /// Where objects are kept.
    pub storage: Storage,
    /// Whether a store whose log is damaged is opened without what cannot be read.
    pub accept_store_damage: bool,
    /// Directory for generated certificates; without it they live in memory only as long as the server.
    pub cert_dir: Option<PathBuf>,
    /// Serving certificate; generated when unset.
    pub serving: Option<Credentials>,
    /// File to write an administrator's client configuration to.
    pub write_kubeconfig: Option<PathBuf>,
    /// Time between the failing of `readyz` and the end of accepting connections (`--shutdown-delay-duration`).
    pub shutdown_delay: Duration,
    /// Longest wait for requests in flight at the end.
    pub shutdown_deadline: Duration,
    /// Worker threads of the runtime.
    pub worker_threads: usize,
    /// Authorities of client certificates besides the generated one.
    pub client_ca_file: Option<PathBuf>,
    /// Static token file.
    pub token_auth_file: Option<PathBuf>,
    /// Whether machines without an identity may show a token.
    pub bootstrap_tokens: BootstrapTokens,
    /// What becomes of requests without credentials.
    pub anonymous: Anonymous,
    /// Authorization modules in order.
    pub authorization: Vec<AuthorizationMode>,
    /// Service account tokens.
    pub service_accounts: ServiceAccounts,
    /// How this server talks to node agents.
    pub node_client: NodeClient,
    /// Address ranges of services, the preferred family first.
    pub service_ranges: Vec<Cidr>,
    /// Node ports of services.
    pub node_ports: PortRange,
    /// Whether privileged containers are admitted.
    pub privileged: Privileged,
    /// How long events are kept.
    pub event_ttl: Duration,
    /// DNS domain of the cluster.
    pub cluster_domain: String,
}

/// Whether tokens with which machines ask for an identity are believed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum BootstrapTokens {
    /// Those that a Secret of the system's namespace holds.
    Accepted,
    /// None.
    #[default]
    Refused,
}

/// Where objects are kept.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Storage {
    /// In a file of this directory; durable before a write is answered.
    Directory(PathBuf),
    /// In memory only.
    Memory,
}

/// Files of a certificate and its key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Credentials {
    /// PEM file of the certificate.
    pub certificate: PathBuf,
    /// PEM file of the key.
    pub key: PathBuf,
}

/// What becomes of requests without credentials.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Anonymous {
    /// They are authorized as the anonymous user, for as much as that.
    Served(AnonymousAccess),
    /// They get 401, but for health.
    Refused,
}

/// What the anonymous user may do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AnonymousAccess {
    /// Read health and version, whatever the authorization modules say.
    Public,
    /// What the authorization modules allow; with `AlwaysAllow` that is everything.
    Authorized,
}

/// An authorization module.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AuthorizationMode {
    /// Allows everything.
    AlwaysAllow,
    /// Denies everything.
    AlwaysDeny,
}

/// Whether tokens of deleted objects are refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TokenLookup {
    /// The account, and the pod or secret a token is bound to, must exist with the uid in the token.
    Checked,
    /// The signature and times suffice.
    Skipped,
}

/// Whether privileged containers are admitted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Privileged {
    /// They are.
    Admitted,
    /// Pods with one get 422.
    Refused,
}

/// How service account tokens are made and checked.
#[derive(Clone, Debug)]
pub struct ServiceAccounts {
    /// PEM files of keys that verify.
    pub key_files: Vec<PathBuf>,
    /// PEM file of the key that signs; generated when unset.
    pub signing_key_file: Option<PathBuf>,
    /// Accepted issuers; the first is written into new tokens.
    pub issuers: Vec<String>,
    /// Audiences of this server; the issuers when empty.
    pub audiences: Vec<String>,
    /// Whether the objects named by a token are looked up.
    pub lookup: TokenLookup,
    /// Longest life of a token.
    pub expiration_max: Option<Duration>,
}

/// How this server talks to node agents.
#[derive(Clone, Debug, Default)]
pub struct NodeClient {
    /// Client certificate; the generated administrator's when unset.
    pub credentials: Option<Credentials>,
    /// Authority that node agents' certificates must come from; unchecked when unset.
    pub authority: Option<PathBuf>,
}

impl Config {
    /// A server for tests: memory, loopback, a free port, everything allowed.
    #[must_use]
    pub fn for_tests(names: &'static Names) -> Self {
        let issuer = format!("https://{}.default.svc.cluster.local", names.api_service_name());
        Self {
            names,
            bind: SocketAddr::from(([127, 0, 0, 1], 0)),
            advertise_address: None,
            storage: Storage::Memory,
            accept_store_damage: false,
            cert_dir: None,
            serving: None,
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
            },
            node_client: NodeClient::default(),
            service_ranges: "10.96.0.0/12".parse().into_iter().collect(),
            node_ports: PortRange::default(),
            privileged: Privileged::Admitted,
            event_ttl: Duration::from_secs(3600),
            cluster_domain: "cluster.local".to_owned(),
        }
    }
}
