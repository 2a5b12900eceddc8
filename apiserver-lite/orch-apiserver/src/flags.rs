//! The command line, with kube-apiserver's flag names, and its translation into a [`Config`].

mod admission;
mod audit;
mod etcd;
mod external_identity;
mod features;
mod requests;
mod service_accounts;

use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::time::Duration;

use apiserver_core::config::{
    AdmissionPlugin, AdmissionSettings, Anonymous, AnonymousAccess, AuthorizationMode,
    BootstrapTokens, ComponentAddresses, Config, Credentials, EncryptionSettings, FieldGates,
    NodeClient, PrivilegedContainers, RequestLimits, RuntimeConfig, Storage,
};
use apiserver_core::services::PortRange;
use clap::{ArgAction, Parser, ValueEnum};
use proto_api::Cidr;
use proto_api::names::Names;
use proto_client::serving::flags::TlsTermsFlags;
use proto_daemon::flags::{CommonFlags, FlagError};

use admission::AdmissionFlags;
use audit::AuditFlags;
use etcd::EtcdFlags;
use external_identity::ExternalIdentityFlags;
use features::FeatureFlags;
use requests::RequestFlags;
use service_accounts::ServiceAccountFlags;

/// The API server: REST over an embedded durable store, or over etcd.
#[derive(Parser, Clone, Debug)]
// As in Kubernetes the last one counts of a flag that is given twice; lists are joined.
#[command(name = "orch-apiserver", version, about, args_override_self = true)]
pub struct ApiServerFlags {
    /// Flags of all programs.
    #[command(flatten)]
    pub common: CommonFlags,
    /// Flags of listener, certificates and storage.
    #[command(flatten)]
    pub serving: ServingFlags,
    /// Flags of etcd as the store.
    #[command(flatten)]
    pub etcd: EtcdFlags,
    /// Flags of authentication and authorization.
    #[command(flatten)]
    pub identity: IdentityFlags,
    /// Flags of the cluster.
    #[command(flatten)]
    pub cluster: ClusterFlags,
    /// Flags of the audit log.
    #[command(flatten)]
    pub audit: AuditFlags,
    /// Flags that switch versions and features.
    #[command(flatten)]
    pub features: FeatureFlags,
    /// Flags of how many requests are served at a time.
    #[command(flatten)]
    pub requests: RequestFlags,
}

/// Flags of listener, certificates and storage.
#[derive(clap::Args, Clone, Debug)]
pub struct ServingFlags {
    /// Address to listen on.
    #[arg(
        long,
        value_name = "IP",
        default_value = "0.0.0.0",
        default_value_if("ephemeral", "true", "127.0.0.1")
    )]
    bind_address: IpAddr,
    /// Port to listen on; 0 chooses a free one.
    #[arg(
        long,
        value_name = "PORT",
        default_value = "6443",
        default_value_if("ephemeral", "true", "0")
    )]
    secure_port: u16,
    /// A server for tests: everything in memory, Kubernetes' names unless --naming says otherwise, by default a free port of 127.0.0.1 and no admission by
    /// ServiceAccount; administrators may save its state and put it back. One line on standard output has KUBECONFIG and SERVER once it serves.
    #[arg(long, conflicts_with_all = ["data_dir", "restore", "encryption_provider_config"])]
    ephemeral: bool,
    /// Loads the manifests below this directory before anything is served.
    #[arg(long, value_name = "DIR", requires = "ephemeral")]
    fixtures: Option<PathBuf>,
    /// Address under which members of the cluster reach this server [default: the bind address if it is specific, else the address of the default route]
    #[arg(long, value_name = "IP")]
    advertise_address: Option<IpAddr>,
    /// Directory of generated certificates [default: pki below --data-dir]
    #[arg(long, value_name = "DIR")]
    cert_dir: Option<PathBuf>,
    /// Serving certificate, followed by its intermediates.
    #[arg(long, value_name = "FILE", requires = "tls_private_key_file")]
    tls_cert_file: Option<PathBuf>,
    /// Key of the serving certificate.
    #[arg(long, value_name = "FILE", requires = "tls_cert_file")]
    tls_private_key_file: Option<PathBuf>,
    /// Versions and cipher suites of TLS.
    #[command(flatten)]
    tls_terms: TlsTermsFlags,
    /// Directory of the store; without it objects are kept in memory only.
    #[arg(long, alias = "store", value_name = "DIR")]
    data_dir: Option<PathBuf>,
    /// Opens a damaged store without its unreadable writes; the damaged files are renamed. Acknowledged writes are lost.
    #[arg(long)]
    store_accept_damage: bool,
    /// EncryptionConfiguration: which resources are encrypted on disk, and with which keys. Without it all objects lie there in clear text.
    #[arg(long, value_name = "FILE")]
    encryption_provider_config: Option<PathBuf>,
    /// Whether changes of that file count without a restart.
    #[arg(long, default_value_t = false, num_args = 0..=1, require_equals = true,
          default_missing_value = "true", action = ArgAction::Set,
          requires = "encryption_provider_config")]
    encryption_provider_config_automatic_reload: bool,
    /// Makes the store below --data-dir, which must be empty, of this backup, and ends. Nothing is served.
    #[arg(long, value_name = "FILE", requires = "data_dir")]
    restore: Option<PathBuf>,
    /// File to which the administrator's kubeconfig is written.
    #[arg(long, value_name = "FILE")]
    write_kubeconfig: Option<PathBuf>,
    /// Whether a web page for people is served at /ui/: nodes, pods, events and logs, read-only. The page has no data of the cluster and is shown without
    /// credentials, unless --anonymous-auth=false; what it asks the API needs those of its user: a client certificate or a bearer token.
    #[arg(long, default_value_t = false, num_args = 0..=1, require_equals = true,
          default_missing_value = "true", action = ArgAction::Set)]
    web_page: bool,
    /// Worker threads.
    #[arg(long, value_name = "COUNT", default_value_t = 2)]
    worker_threads: usize,
    /// Time after SIGTERM during which /readyz fails and all requests are still served.
    #[arg(long, value_name = "DURATION", default_value = "0s", value_parser = proto_daemon::go_duration::parse)]
    shutdown_delay_duration: Duration,
    /// Longest wait for requests in flight during shutdown.
    #[arg(long, value_name = "DURATION", default_value = "10s", value_parser = proto_daemon::go_duration::parse)]
    shutdown_deadline: Duration,
}

/// Flags of authentication and authorization.
#[derive(clap::Args, Clone, Debug)]
pub struct IdentityFlags {
    /// CA certificates that verify client certificates.
    #[arg(long, value_name = "FILE")]
    client_ca_file: Option<PathBuf>,
    /// File of static tokens (CSV: token, user, uid, "groups").
    #[arg(long, value_name = "FILE")]
    token_auth_file: Option<PathBuf>,
    /// Whether bootstrap tokens (Secrets of type bootstrap.<domain>/token) authenticate.
    #[arg(long, default_value_t = false, num_args = 0..=1, require_equals = true,
          default_missing_value = "true", action = ArgAction::Set)]
    enable_bootstrap_token_auth: bool,
    /// Whether requests without credentials are served as system:anonymous, within --anonymous-access, instead of getting 401.
    /// Health checks need credentials only if this is given as false. [default: false with --authorization-mode=AlwaysAllow, else true]
    #[arg(long, num_args = 0..=1, require_equals = true, default_missing_value = "true",
          action = ArgAction::Set)]
    anonymous_auth: Option<bool>,
    /// Access of the anonymous user: only /healthz, /livez, /readyz and /version (public), or whatever --authorization-mode
    /// allows (authorized), which with AlwaysAllow is everything, for every client that reaches the port. Without AlwaysAllow the
    /// modules decide, whatever is given here.
    #[arg(long, value_enum, default_value = "public")]
    anonymous_access: Access,
    /// Authorization modules, in order.
    #[arg(long, value_enum, value_delimiter = ',', default_value = "AlwaysAllow")]
    authorization_mode: Vec<Mode>,
    /// Service account tokens.
    #[command(flatten)]
    service_accounts: ServiceAccountFlags,
    /// Client certificate for connections to kubelets.
    #[arg(
        long,
        alias = "orchlet-client-certificate",
        value_name = "FILE",
        requires = "kubelet_client_key"
    )]
    kubelet_client_certificate: Option<PathBuf>,
    /// Key of the client certificate for kubelets.
    #[arg(long, alias = "orchlet-client-key", value_name = "FILE")]
    kubelet_client_key: Option<PathBuf>,
    /// Identity provider, remote services and authenticating proxies.
    #[command(flatten)]
    external: ExternalIdentityFlags,
    /// Policy file of the module ABAC: one policy a line, JSON.
    #[arg(long, value_name = "FILE")]
    authorization_policy_file: Option<PathBuf>,
    /// CA file that verifies kubelets' serving certificates; they are not verified without it.
    #[arg(long, alias = "orchlet-certificate-authority", value_name = "FILE")]
    kubelet_certificate_authority: Option<PathBuf>,
}

/// Flags that describe the cluster: its networks, names and certificates.
#[derive(clap::Args, Clone, Debug)]
pub struct ClusterFlags {
    /// Address ranges of Services, at most one per IP family.
    #[arg(long, value_name = "CIDR", value_delimiter = ',', default_value = "10.96.0.0/12")]
    service_cluster_ip_range: Vec<Cidr>,
    /// Port range of node ports.
    #[arg(long, value_name = "FIRST-LAST", default_value = "30000-32767")]
    service_node_port_range: PortRange,
    /// Whether privileged containers are admitted.
    #[arg(long, default_value_t = true, num_args = 0..=1, require_equals = true,
          default_missing_value = "true", action = ArgAction::Set)]
    allow_privileged: bool,
    /// Admission.
    #[command(flatten)]
    admission: AdmissionFlags,
    /// Time after which events are deleted.
    #[arg(long, value_name = "DURATION", default_value = "1h", value_parser = proto_daemon::go_duration::parse)]
    event_ttl: Duration,
    /// Time between two readings of the nodes' resource metrics.
    #[arg(long, value_name = "DURATION", default_value = "15s", value_parser = proto_daemon::go_duration::parse)]
    resource_metrics_interval: Duration,
    /// DNS domain of the cluster, in certificates and in the default issuer.
    #[arg(long, value_name = "DOMAIN", default_value = "cluster.local")]
    cluster_domain: String,
}

/// Values of `--anonymous-access`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Access {
    #[value(name = "public")]
    Public,
    #[value(name = "authorized")]
    Authorized,
}

/// Values of `--authorization-mode`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Mode {
    #[value(name = "AlwaysAllow")]
    AlwaysAllow,
    #[value(name = "AlwaysDeny")]
    AlwaysDeny,
    #[value(name = "Node")]
    Node,
    #[value(name = "RBAC")]
    Rbac,
    #[value(name = "ABAC")]
    Abac,
    #[value(name = "Webhook")]
    Webhook,
}

impl ApiServerFlags {
    /// The directory of manifests that are loaded before anything is served.
    #[must_use]
    pub fn fixtures(&self) -> Option<PathBuf> {
        self.serving.fixtures.clone()
    }

    /// The backup that is to be restored, instead of a start.
    #[must_use]
    pub fn restore(&self) -> Option<PathBuf> {
        self.serving.restore.clone()
    }

    /// The configuration that the flags describe, and what the log says of them.
    ///
    /// # Errors
    /// A value that this server does not have.
    pub fn config(self) -> Result<(Config, Vec<String>), FlagError> {
        let names = self.common.names();
        let mut admission = self.cluster.admission.clone().settings();
        let features = self.features.clone().resolve_features(names, &mut admission)?;
        let accounts = AdmissionPlugin::ServiceAccount;
        if self.serving.ephemeral && !admission.enabled.contains(&accounts) {
            // No controller makes the accounts that pods would need.
            admission.disabled.push(accounts);
        }
        let etcd = self.etcd.clone().settings();
        let limits = self.requests.limits(features.has_fairness)?;
        self.serving.tls_terms.checked()?;
        let mut config = self.config_with(names, admission, features.runtime_config);
        config.request_limits = limits;
        config.field_gates = features.field_gates;
        config.disruption_conditions = features.disruption_conditions;
        if let Some(etcd) = etcd {
            if config.cert_dir.is_none() && config.service_accounts.signing_key_file.is_none() {
                return Err(FlagError::new(
                    "--etcd-servers needs --service-account-signing-key-file, the same for all servers of the cluster, or --cert-dir: \
                    without them tokens would be signed with a key that is lost when this process ends",
                ));
            }
            config.storage = Storage::Etcd(etcd);
        }
        Ok((config, features.warnings))
    }

    fn config_with(
        self,
        names: &'static Names,
        admission: AdmissionSettings,
        runtime_config: RuntimeConfig,
    ) -> Config {
        let issuer = format!(
            "https://{}.default.svc.{}",
            names.api_service_name(),
            self.cluster.cluster_domain
        );
        let (serving, identity, cluster) = (self.serving, self.identity, self.cluster);
        let pair = |certificate: Option<PathBuf>, key: Option<PathBuf>| {
            certificate.zip(key).map(|(certificate, key)| Credentials { certificate, key })
        };
        Config {
            names,
            bind: SocketAddr::new(serving.bind_address, serving.secure_port),
            advertise_address: serving.advertise_address,
            storage: serving.data_dir.clone().map_or(Storage::Memory, Storage::Directory),
            ephemeral: serving.ephemeral,
            web_page: serving.web_page,
            accept_store_damage: serving.store_accept_damage,
            encryption: serving.encryption_provider_config.map(|file| EncryptionSettings {
                file,
                reload: serving.encryption_provider_config_automatic_reload,
            }),
            cert_dir: serving.cert_dir.or(serving.data_dir.map(|dir| dir.join("pki"))),
            serving: pair(serving.tls_cert_file, serving.tls_private_key_file),
            tls_terms: serving.tls_terms.terms(),
            write_kubeconfig: serving.write_kubeconfig,
            shutdown_delay: serving.shutdown_delay_duration,
            shutdown_deadline: serving.shutdown_deadline,
            worker_threads: serving.worker_threads,
            anonymous: anonymous(&identity),
            client_ca_file: identity.client_ca_file,
            token_auth_file: identity.token_auth_file,
            bootstrap_tokens: match identity.enable_bootstrap_token_auth {
                true => BootstrapTokens::Accepted,
                false => BootstrapTokens::Refused,
            },
            authorization: identity.authorization_mode.into_iter().map(Mode::module).collect(),
            service_accounts: identity.service_accounts.settings(issuer),
            request_headers: identity.external.request_headers(),
            oidc: identity.external.oidc(),
            token_webhook: identity.external.token_webhook(),
            authorization_webhook: identity.external.authorization_webhook(),
            policy_file: identity.authorization_policy_file,
            proxy_client: pair(
                identity.external.proxy_client_cert_file.clone(),
                identity.external.proxy_client_key_file.clone(),
            ),
            node_client: NodeClient {
                credentials: pair(identity.kubelet_client_certificate, identity.kubelet_client_key),
                authority: identity.kubelet_certificate_authority,
            },
            service_ranges: cluster.service_cluster_ip_range,
            node_ports: cluster.service_node_port_range,
            privileged: match cluster.allow_privileged {
                true => PrivilegedContainers::Admitted,
                false => PrivilegedContainers::Refused,
            },
            request_limits: RequestLimits::default(),
            admission,
            audit: self.audit.settings(),
            runtime_config,
            field_gates: FieldGates::default(),
            disruption_conditions: false,
            event_ttl: cluster.event_ttl,
            resource_metrics_interval: cluster.resource_metrics_interval,
            component_addresses: ComponentAddresses::default(),
            cluster_domain: cluster.cluster_domain,
        }
    }
}

/// As in Kubernetes, anonymous requests are off by default when `AlwaysAllow` is among the modules.
fn anonymous(identity: &IdentityFlags) -> Anonymous {
    let allows_all = identity.authorization_mode.contains(&Mode::AlwaysAllow);
    let access = match identity.anonymous_access {
        Access::Public => AnonymousAccess::Public,
        Access::Authorized => AnonymousAccess::Authorized,
    };
    match identity.anonymous_auth {
        Some(false) => Anonymous::Refused,
        None if allows_all => Anonymous::HealthOnly,
        _ => Anonymous::Served(access),
    }
}

impl Mode {
    fn module(self) -> AuthorizationMode {
        match self {
            Self::AlwaysAllow => AuthorizationMode::AlwaysAllow,
            Self::AlwaysDeny => AuthorizationMode::AlwaysDeny,
            Self::Node => AuthorizationMode::Node,
            Self::Rbac => AuthorizationMode::Rbac,
            Self::Abac => AuthorizationMode::Abac,
            Self::Webhook => AuthorizationMode::Webhook,
        }
    }
}

#[cfg(test)]
mod tests {
    use proto_client::serving::tls::Terms;

    use super::*;

    fn parse(args: &[&str]) -> Result<Config, clap::Error> {
        let flags = ApiServerFlags::try_parse_from([&["orch-apiserver"], args].concat());
        flags.map(|flags| flags.config().unwrap().0)
    }

    #[test]
    fn kube_apiserver_spellings() {
        let config = parse(&[
            "--naming=kubernetes",
            "--authorization-mode=AlwaysAllow,AlwaysDeny",
            "--allow-privileged",
            "--anonymous-auth=false",
            "--kubelet-client-certificate=/c",
            "--kubelet-client-key=/k",
            "--service-cluster-ip-range=10.0.0.0/16,fd00::/112",
            "--data-dir=/var/lib/x",
            "--shutdown-delay-duration=1m10s",
            "--livez-grace-period=30s",
        ])
        .unwrap();
        assert_eq!(
            config.service_accounts.issuers,
            ["https://kubernetes.default.svc.cluster.local"]
        );
        assert_eq!(config.anonymous, Anonymous::Refused);
        assert_eq!(config.shutdown_delay, Duration::from_secs(70));
        assert_eq!(
            config.authorization,
            [AuthorizationMode::AlwaysAllow, AuthorizationMode::AlwaysDeny]
        );
        assert_eq!(config.service_ranges.len(), 2);
        assert_eq!(config.cert_dir, Some(PathBuf::from("/var/lib/x/pki")));
        assert!(parse(&["--orchlet-client-certificate=/c", "--orchlet-client-key=/k"]).is_ok());
    }

    #[test]
    fn of_flags_that_are_given_twice_the_last_counts_or_all() {
        let config = parse(&[
            "--secure-port=1",
            "--secure-port=2",
            "--allow-privileged",
            "--allow-privileged=false",
            "--authorization-mode=Node",
            "--authorization-mode=RBAC",
        ]);
        let config = config.unwrap();
        assert_eq!((config.bind.port(), config.privileged), (2, PrivilegedContainers::Refused));
        assert_eq!(config.authorization, [AuthorizationMode::Node, AuthorizationMode::Rbac]);
        assert!(parse(&["--ephemeral", "--ephemeral"]).unwrap().ephemeral);
        let page = ["--web-page", "--web-page=false"];
        assert!(parse(&page[..1]).unwrap().web_page);
        assert!(!parse(&page).unwrap().web_page && !parse(&[]).unwrap().web_page);
    }

    #[test]
    fn anonymous_requests_are_served_only_where_a_flag_says_so() {
        let anonymous = |args: &[&str]| parse(args).unwrap().anonymous;
        let public = Anonymous::Served(AnonymousAccess::Public);
        let health = Anonymous::HealthOnly;
        assert_eq!(anonymous(&[]), health);
        assert_eq!(anonymous(&["--authorization-mode=AlwaysDeny,AlwaysAllow"]), health);
        assert_eq!(anonymous(&["--anonymous-access=authorized"]), health);
        assert_eq!(anonymous(&["--anonymous-auth=false"]), Anonymous::Refused);
        assert_eq!(anonymous(&["--authorization-mode=AlwaysDeny"]), public);
        assert_eq!(anonymous(&["--anonymous-auth=true"]), public);
        assert_eq!(anonymous(&["--anonymous-auth"]), public);
        assert_eq!(
            anonymous(&["--anonymous-auth", "--anonymous-access=authorized"]),
            Anonymous::Served(AnonymousAccess::Authorized)
        );
    }

    #[test]
    fn encryption_and_restore() {
        let encryption = |args: &[&str]| parse(args).unwrap().encryption;
        assert_eq!(encryption(&[]), None);
        let file = PathBuf::from("/e.yaml");
        let plain = EncryptionSettings { file: file.clone(), reload: false };
        assert_eq!(encryption(&["--encryption-provider-config=/e.yaml"]), Some(plain));
        let reloading = [
            "--encryption-provider-config=/e.yaml",
            "--encryption-provider-config-automatic-reload",
        ];
        assert_eq!(encryption(&reloading), Some(EncryptionSettings { file, reload: true }));
        let args = ["orch-apiserver", "--data-dir=/d", "--restore=/b"];
        assert_eq!(
            ApiServerFlags::try_parse_from(args).unwrap().restore(),
            Some(PathBuf::from("/b"))
        );
    }

    #[test]
    fn an_ephemeral_server_is_for_this_machine_only() {
        let config = parse(&["--ephemeral"]).unwrap();
        assert_eq!(config.bind, SocketAddr::from(([127, 0, 0, 1], 0)));
        assert!(config.ephemeral && config.storage == Storage::Memory);
        assert!(!config.admission.runs(AdmissionPlugin::ServiceAccount));
        let arguments = ["--ephemeral", "--bind-address=0.0.0.0", "--secure-port=7"];
        let config =
            parse(&[&arguments[..], &["--enable-admission-plugins=ServiceAccount"]].concat());
        let config = config.unwrap();
        assert_eq!(config.bind, SocketAddr::from(([0, 0, 0, 0], 7)));
        assert!(config.admission.runs(AdmissionPlugin::ServiceAccount));
        let usual = parse(&[]).unwrap();
        assert_eq!(usual.bind, SocketAddr::from(([0, 0, 0, 0], 6443)));
        assert!(!usual.ephemeral && usual.admission.runs(AdmissionPlugin::ServiceAccount));
    }

    #[test]
    fn names_of_tls_versions_and_suites_are_checked() {
        let config = |args: &[&str]| {
            let flags =
                ApiServerFlags::try_parse_from([&["orch-apiserver"], args].concat()).unwrap();
            flags.config().map(|(config, _)| config.tls_terms).map_err(|error| error.to_string())
        };
        assert_eq!(config(&[]), Ok(Terms::default()));
        let suites = "--tls-cipher-suites=TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256,TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384";
        let terms = config(&["--tls-min-version=VersionTLS13", suites]).unwrap();
        assert_eq!((terms.min_version.as_str(), terms.suites.len()), ("VersionTLS13", 2));
        let refused = config(&["--tls-min-version=1.3"]).unwrap_err();
        assert!(refused.contains("--tls-min-version") && refused.contains("1.3"), "{refused}");
        let refused = config(&["--tls-cipher-suites=TLS_NONE"]).unwrap_err();
        assert!(refused.contains("--tls-cipher-suites"), "{refused}");
    }

    #[test]
    fn mistakes_are_refused() {
        for args in [
            &["--no-such-flag"][..],
            &["--tls-cert-file=/c"],
            &["--service-cluster-ip-range=x"],
            &["--authorization-mode=Maybe"],
            &["--service-node-port-range=9-1"],
            &["--encryption-provider-config-automatic-reload=true"],
            &["--restore=/b"],
            &["--ephemeral", "--data-dir=/d"],
            &["--ephemeral", "--encryption-provider-config=/e"],
            &["--fixtures=/f"],
        ] {
            assert!(parse(args).is_err(), "{args:?}");
        }
    }
}
