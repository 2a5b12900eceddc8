//! Builds a server from a [`Config`] and runs it. [`build`] binds the listener and opens the store; no request is served before
//! [`BoundServer::run`].

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::Path;
use std::sync::{Arc, Mutex};

use apiserver_audit::{AuditSettings, Policy};
use apiserver_audit_log::AuditLog;
use apiserver_auth::{
    Abac, AlwaysAllow, AlwaysDeny, AnonymousLimit, AuthorizationWebhook, Chain, Masters, Module,
    NodeLimit, Oidc, RequestHeaders, SigningKeyFile, StaticTokens, TokenKeyFiles, TokenKeys,
    TokenWebhook, load_token_keys,
};
use apiserver_core::aggregation::ApiServices;
use apiserver_core::api_service_lifecycle;
use apiserver_core::auth::{Authenticators, ClusterPolicy, NodeAuthorizer, Rbac, TokenIssuer};
use apiserver_core::config::{
    AdmissionSettings, Anonymous, AnonymousAccess, AuthorizationMode, Config, RequestSharing,
    Storage, advertised,
};
use apiserver_core::definitions::Definitions;
use apiserver_core::field_ownership::FieldOwnership;
use apiserver_core::flow_control::{FlowControl, FlowMetrics};
use apiserver_core::flow_control_lifecycle;
use apiserver_core::quota_turns::QuotaTurns;
use apiserver_core::record::StoredObject;
use apiserver_core::saved_states::SavedStates;
use apiserver_core::server::Server;
use apiserver_core::services::{PeerServices, ServiceAllocations, ServiceRange as _};
use apiserver_core::times::now;
use apiserver_core::webhooks::{WebhookMetrics, Webhooks};
use apiserver_encryption::Encryption;
use apiserver_http::Metrics;
use apiserver_http::{
    Aggregation, HttpServer, OpenApiDocuments, Overload, RequestFlows, WatchBatches, WebPage,
};
use apiserver_schema::Engine;
use apiserver_store::{Medium, OnDamage, Range, Store, StoreConfig, StoreIdentity, Transform};
use proto_api::names::{Names, Profile};
use proto_daemon::admin::AdminPages;
use proto_daemon::drain::{Drain, DrainOutcome, DrainWatch};
use proto_daemon::health::{Health, Scope};
use proto_daemon::private_files;
use proto_daemon::ready::Readiness;
use proto_daemon::statusz::StatusBoard;
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;

use crate::admission_config;
use crate::audit_policy;
use crate::bootstrap;
use crate::build_error::BuildError;
use crate::certificate_files::CertificateFiles;
use crate::encryption::{self, UnreadableRecords};
use crate::kubeconfig;
use crate::pki::{Pki, ServingNames};
use crate::running_server::{FollowedFiles, RunningServer};
use crate::shared_store;
use crate::tls::TlsError;

/// A server whose listener is bound; it serves once [`BoundServer::run`] is called.
pub struct BoundServer {
    running: RunningServer,
    listener: TcpListener,
    address: SocketAddr,
    kubeconfig: String,
}

impl BoundServer {
    /// The address that the listener is bound to; its port is never 0.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Where clients on this machine reach it: at loopback, if it listens on all addresses.
    #[must_use]
    pub fn reached_at(&self) -> SocketAddr {
        kubeconfig::reached_at(self.address)
    }

    /// The administrator's kubeconfig: address, CA and client certificate. Empty when certificates are configured, because the
    /// server then has no CA to issue a client certificate with.
    #[must_use]
    pub fn kubeconfig(&self) -> &str {
        &self.kubeconfig
    }

    /// The server, for requests from this process.
    #[must_use]
    pub fn running(&self) -> &RunningServer {
        &self.running
    }

    /// Serves until `until` requests a drain. `/readyz` then fails at once. After the configured delay, in which load balancers
    /// react, the listener closes, and open requests get up to the configured deadline to finish. The store is closed at the
    /// end.
    pub async fn run(self, until: DrainWatch) {
        let config = self.running.config();
        let (delay, deadline) = (config.shutdown_delay, config.shutdown_deadline);
        let drain = Drain::default();
        let serving = self.running.serve(self.listener, drain.watch());
        let stopping = async {
            until.asked().await;
            self.running.begin_to_stop();
            tokio::time::sleep(delay).await;
            drain.drain(deadline).await
        };
        // Connections still open at the deadline are dropped with the future.
        tokio::select! {
            () = serving => {}
            drained = stopping => if drained == DrainOutcome::DeadlinePassed {
                tracing::warn!("the shutdown deadline has passed; open connections are closed");
            }
        }
        self.running.stop().await;
    }
}

/// Builds a server from `config`: reads keys and certificates, opens the store, binds the listener and writes the bootstrap
/// objects.
///
/// # Errors
/// [`BuildError`] with the file, address or object that failed.
pub async fn build(config: Config) -> Result<BoundServer, BuildError> {
    let (listener, address) = listen(config.bind).await?;
    let running = begin(Config { bind: address, ..config }).await?;
    let kubeconfig = write_kubeconfig(running.config(), running.pki())?;
    Ok(BoundServer { running, listener, address, kubeconfig })
}

/// As [`build`], without a listener: `config.bind` is what objects say of the server's address.
///
/// # Errors
/// [`BuildError`] with the file or object that failed.
pub async fn begin(config: Config) -> Result<RunningServer, BuildError> {
    let names = config.names;
    let token_keys = token_key_files(&config)?;
    let static_tokens = static_tokens(&config)?;
    let admission = admission(&config)?;
    let switches = &config.runtime_config;
    let engine =
        Engine::with_optional(names, &|row| switches.serves(row.group, row.version, row.plural));
    let engine = Arc::new(engine.with_gates(config.field_gates));
    let encryption = encryption::load(&config, &engine)?;
    let audit_policy = audit_policy(&config)?;
    // Every file that the configuration names is read before the first one is written.
    let pki = own_pki(&config)?;
    let mut certificates = CertificateFiles::new(&config, pki.as_ref())?;
    let started = tokio::time::Instant::now();
    let served = certificates.listener(started)?.ok_or(TlsError::NoCertificate)?;
    let nodes = certificates.node_proxy(started)?;
    let tokens = Arc::new(token_issuer(&config, token_keys, pki.as_ref())?);
    let authenticators = authenticators(&config, static_tokens, tokens)?;
    let store = open_store(&engine, &config, encryption.as_ref()).await?;
    let allocations = allocations(&config, &engine, &store)?;
    let policy = Arc::new(ClusterPolicy::follow(&store, names)?);
    let authorizer = authorizer(&config, &engine, &store, &policy)?;
    let (stopping, about_to_stop) = (CancellationToken::new(), CancellationToken::new());
    let pages = pages(&config, &store, &about_to_stop)?;
    let metrics = WebhookMetrics::new(&pages.metrics)?;
    let webhooks = Webhooks::follow(&store, names, metrics, &config)?;
    let audit = audit_log(&config, audit_policy, &pages.metrics)?;
    let (limits, flow_control) = (config.request_limits, flow_control(&config, &store, &pages)?);
    let core = Arc::new(Server {
        names,
        ownership: FieldOwnership::new(&engine, names),
        definitions: Definitions::follow(&store, &engine, &config)?,
        api_services: ApiServices::follow(&store)?,
        engine,
        store,
        authenticators,
        authorizer,
        policy,
        allocations: Arc::new(Mutex::new(allocations)),
        quota_turns: QuotaTurns::default(),
        backup_turn: Arc::default(),
        saved_states: config.ephemeral.then(SavedStates::default),
        webhooks,
        config: Config { admission, ..config },
    });
    make_own_objects(&core, flow_control.is_some(), &served.authorities).await?;
    let server = Arc::new(HttpServer {
        web_page: core.config.web_page.then(|| WebPage::new(names)),
        core,
        nodes,
        aggregation: Aggregation::default(),
        resource_metrics: apiserver_http::ResourceMetrics::default(),
        watch_batches: WatchBatches::default(),
        open_api: OpenApiDocuments::default(),
        overload: Overload::new(&limits, names.system_namespace()),
        flow_control,
        audit,
        metrics: Metrics::new(&pages.metrics)?,
        pages,
        about_to_stop,
        stopping,
    });
    let files = FollowedFiles { tls: served.tls, certificates, encryption };
    Ok(RunningServer::begin(server, pki, files))
}

/// Addresses and node ports of Services, those of stored ones taken.
fn allocations(
    config: &Config,
    engine: &Engine,
    store: &Store<StoredObject>,
) -> Result<ServiceAllocations, BuildError> {
    let mut allocations = ServiceAllocations::new(config.service_ranges.clone(), config.node_ports);
    if let Some(kind) = engine.resource("", "v1", "services").filter(|_| store.is_shared()) {
        allocations.follow(PeerServices::follow(store, kind)?);
    }
    adopt_services(engine, store, &mut allocations);
    Ok(allocations)
}

/// Priority and fairness of requests, unless it is switched off.
fn flow_control(
    config: &Config,
    store: &Store<StoredObject>,
    pages: &AdminPages,
) -> Result<Option<RequestFlows>, BuildError> {
    let limits = &config.request_limits;
    if limits.sharing == RequestSharing::Plain {
        return Ok(None);
    }
    let metrics = FlowMetrics::new(&pages.metrics)?;
    let control = FlowControl::follow(store, limits.seats(), config.names, metrics)?;
    Ok(Some(RequestFlows::new(config.names, Arc::new(control))))
}

/// Writes the objects that the server has from its start.
async fn make_own_objects(
    core: &Server,
    has_flows: bool,
    authorities: &bootstrap::ClientAuthorities,
) -> Result<(), BuildError> {
    let flow_objects = async {
        if has_flows { flow_control_lifecycle::reconcile_objects(core).await } else { Ok(()) }
    };
    // Concurrent writes share one sync of the log. Boxed: they await whole requests.
    let (own, api_services, flow_objects) = tokio::join!(
        Box::pin(bootstrap::run(core)),
        Box::pin(api_service_lifecycle::reconcile(core)),
        Box::pin(flow_objects),
    );
    own?;
    if let Err(error) = api_services {
        tracing::warn!(%error, "cannot create the APIServices of built-in groups; retried while the server runs");
    }
    if let Err(error) = flow_objects {
        tracing::warn!(%error, "cannot create the default flow schemas and priority levels; retried while the server runs");
    }
    Box::pin(bootstrap::publish_authentication(core, authorities)).await?;
    Ok(())
}

/// What vouches for the users of requests.
fn authenticators(
    config: &Config,
    static_tokens: StaticTokens,
    tokens: Arc<TokenIssuer>,
) -> Result<Authenticators, BuildError> {
    let names = config.names;
    let webhook = config.token_webhook.as_ref();
    Ok(Authenticators {
        static_tokens,
        bootstrap_tokens: config.bootstrap_tokens,
        anonymous: config.anonymous,
        tokens,
        request_headers: config.request_headers.clone().map(|of| RequestHeaders(of.headers)),
        oidc: config.oidc.clone().map(|settings| Oidc::new(settings, names)).transpose()?,
        token_webhook: webhook.map(|settings| TokenWebhook::new(settings, names)).transpose()?,
    })
}

/// The administrator's kubeconfig, written to the file that the flags name; empty without a CA of the server's own.
fn write_kubeconfig(config: &Config, pki: Option<&Pki>) -> Result<String, BuildError> {
    let Some(pki) = pki else { return Ok(String::new()) };
    let kubeconfig = kubeconfig::write(config.names, config.bind, pki);
    if let Some(path) = &config.write_kubeconfig {
        crate::pki::write(path, &kubeconfig)?;
    }
    Ok(kubeconfig)
}

/// A listener, with its actual address.
async fn listen(address: SocketAddr) -> Result<(TcpListener, SocketAddr), BuildError> {
    let failed = |source| BuildError::Listen { address, source };
    let listener = TcpListener::bind(address).await.map_err(failed)?;
    let bound = listener.local_addr().map_err(failed)?;
    Ok((listener, bound))
}

/// The server's own CA and certificates; `None` when all of them are configured.
fn own_pki(config: &Config) -> Result<Option<Pki>, BuildError> {
    let given = config.serving.is_some() && config.service_accounts.signing_key_file.is_some();
    if given && config.cert_dir.is_none() {
        return Ok(None);
    }
    if given && config.client_ca_file.is_some() {
        return Ok(None);
    }
    let name = config.names.api_service_name();
    let mut served = ServingNames {
        names: vec![
            "localhost".to_owned(),
            name.to_owned(),
            format!("{name}.default"),
            format!("{name}.default.svc"),
            format!("{name}.default.svc.{}", config.cluster_domain),
        ],
        addresses: vec![
            IpAddr::V4(Ipv4Addr::LOCALHOST),
            IpAddr::V6(std::net::Ipv6Addr::LOCALHOST),
            advertised(config),
        ],
    };
    served.addresses.extend(config.service_ranges.iter().map(|range| range.first_usable()));
    served.addresses.sort_unstable();
    served.addresses.dedup();
    let admin = format!("{name}-admin");
    Ok(Some(Pki::open(config.cert_dir.as_deref(), &served, &admin, now())?))
}

/// Opens the store and decodes every record, so that an unreadable record fails the start and not a later request.
async fn open_store(
    engine: &Arc<Engine>,
    config: &Config,
    encryption: Option<&Arc<Encryption>>,
) -> Result<Store<StoredObject>, BuildError> {
    let transform = encryption.map(|encryption| encryption.clone() as Arc<dyn Transform>);
    let identity = store_identity(config.names);
    let medium = match &config.storage {
        Storage::Etcd(etcd) => {
            let store = StoreConfig { transform, ..StoreConfig::new(Medium::Memory, identity) };
            // Boxed: the futures of all other starts stay small.
            return Box::pin(shared_store::open(etcd, store, engine.clone())).await;
        }
        Storage::Memory => Medium::Memory,
        Storage::Directory(dir) => {
            let failed = |source| BuildError::Directory { path: dir.clone(), source };
            private_files::create_trusted_dir(dir).map_err(failed)?;
            Medium::Directory(dir.join(STORE))
        }
    };
    // Decoding runs inside `open_with`, because the history restored from the log has versions that no key holds any more.
    let unreadable = UnreadableRecords::default();
    let decode = |record: &StoredObject| {
        record.load(engine)?;
        unreadable.note(record);
        Ok(())
    };
    let on_damage = if config.accept_store_damage { OnDamage::SetAside } else { OnDamage::Refuse };
    let store = StoreConfig { on_damage, transform, ..StoreConfig::new(medium, identity) };
    let store = Store::open_with(store, decode)?;
    unreadable.log();
    Ok(store)
}

/// Name of the store's directory below the data directory.
pub(crate) const STORE: &str = "store";

/// Whose store it is.
pub(crate) fn store_identity(names: &Names) -> StoreIdentity {
    let profile = match names.profile() {
        Profile::Orch { .. } => "orch",
        Profile::Kubernetes => "kubernetes",
    };
    StoreIdentity { profile: profile.to_owned(), domain: names.label_domain().to_owned() }
}

fn adopt_services(
    engine: &Engine,
    store: &Store<StoredObject>,
    allocations: &mut ServiceAllocations,
) {
    let Some(kind) = engine.resource("", "v1", "services") else { return };
    let prefix = apiserver_core::key::prefix(kind, "");
    let range = Range { prefix: &prefix, after: None, limit: None };
    let services = store.current_range(range).entries;
    services.iter().for_each(|entry| allocations.adopt(entry.record.object()));
}

fn static_tokens(config: &Config) -> Result<StaticTokens, BuildError> {
    let Some(path) = &config.token_auth_file else { return Ok(StaticTokens::default()) };
    let text = std::fs::read_to_string(path)
        .map_err(|source| BuildError::Read { path: path.clone(), source })?;
    StaticTokens::parse(&text).map_err(BuildError::Tokens)
}

fn admission(config: &Config) -> Result<AdmissionSettings, BuildError> {
    let mut admission = config.admission.clone();
    if let Some(plugin) = admission.contradiction() {
        return Err(BuildError::Contradiction(plugin));
    }
    if let Some(path) = &admission.config_file {
        admission.pod_security = admission_config::read(path, config.names)?;
    }
    Ok(admission)
}

fn audit_policy(config: &Config) -> Result<Option<Policy>, BuildError> {
    let read = |of: &AuditSettings| audit_policy::read(&of.policy_file, config.names);
    config.audit.as_ref().map(read).transpose().map_err(BuildError::AuditPolicy)
}

fn audit_log(
    config: &Config,
    policy: Option<Policy>,
    metrics: &proto_daemon::metrics::Metrics,
) -> Result<Option<Arc<AuditLog>>, BuildError> {
    let Some((policy, settings)) = policy.zip(config.audit.as_ref()) else { return Ok(None) };
    Ok(Some(Arc::new(AuditLog::open(policy, settings, config.names, metrics)?)))
}

fn authorizer(
    config: &Config,
    engine: &Engine,
    store: &Store<StoredObject>,
    policy: &Arc<ClusterPolicy>,
) -> Result<Chain, BuildError> {
    let module = |mode: &AuthorizationMode| -> Result<Module, BuildError> {
        Ok(match mode {
            AuthorizationMode::AlwaysAllow => AlwaysAllow.into(),
            AuthorizationMode::AlwaysDeny => AlwaysDeny.into(),
            AuthorizationMode::Node => NodeAuthorizer::new(store, engine, config.names)?.into(),
            AuthorizationMode::Rbac => Rbac(policy.clone()).into(),
            AuthorizationMode::Abac => abac(config)?.into(),
            AuthorizationMode::Webhook => {
                let missing =
                    || BuildError::Module("Webhook", "--authorization-webhook-config-file");
                let settings = config.authorization_webhook.clone().ok_or_else(missing)?;
                Module::Webhook(Box::new(AuthorizationWebhook::new(settings, config.names)?))
            }
        })
    };
    let mut modules: Vec<Module> = vec![Masters.into()];
    let unused = [
        (AuthorizationMode::Abac, config.policy_file.is_some(), "--authorization-policy-file"),
        (
            AuthorizationMode::Webhook,
            config.authorization_webhook.is_some(),
            "--authorization-webhook-config-file",
        ),
    ];
    let lacks = |mode: &AuthorizationMode| !config.authorization.contains(mode);
    if let Some((_, _, flag)) = unused.into_iter().find(|(mode, given, _)| *given && lacks(mode)) {
        return Err(BuildError::Unused(flag));
    }
    for (nth, mode) in config.authorization.iter().enumerate() {
        if config.authorization.iter().take(nth).any(|earlier| earlier == mode) {
            return Err(BuildError::Repeated(*mode));
        }
        // What would be allowed to all is kept to Kubernetes' bootstrap roles for anonymous clients and kubelets.
        if *mode == AuthorizationMode::AlwaysAllow {
            if config.anonymous != Anonymous::Served(AnonymousAccess::Authorized) {
                modules.push(AnonymousLimit.into());
            }
            modules.push(NodeLimit.into());
        }
        modules.push(module(mode)?);
    }
    Ok(Chain(modules))
}

fn abac(config: &Config) -> Result<Abac, BuildError> {
    let missing = || BuildError::Module("ABAC", "--authorization-policy-file");
    let path = config.policy_file.as_ref().ok_or_else(missing)?;
    let text = std::fs::read_to_string(path)
        .map_err(|source| BuildError::Read { path: path.clone(), source })?;
    Abac::parse(&text, config.names)
        .map_err(|source| BuildError::PolicyFile { path: path.clone(), source })
}

fn token_key_files(config: &Config) -> Result<TokenKeyFiles, BuildError> {
    let of = &config.service_accounts;
    for (nth, issuer) in of.issuers.iter().enumerate() {
        if of.issuers.iter().take(nth).any(|earlier| earlier == issuer) {
            return Err(BuildError::RepeatedIssuer(issuer.clone()));
        }
    }
    let serving = config.serving.as_ref().map(|serving| serving.key.as_path());
    Ok(load_token_keys(of.signing_key_file.as_deref(), &of.key_files, serving)?)
}

fn token_issuer(
    config: &Config,
    (signing, verifying): TokenKeyFiles,
    pki: Option<&Pki>,
) -> Result<TokenIssuer, BuildError> {
    let own = || {
        let text = pki.map(|pki| pki.service_account_key.as_str()).unwrap_or_default();
        SigningKeyFile::fixed(Path::new("sa.key"), text)
    };
    let keys = TokenKeys::new(signing.map_or_else(own, Ok)?, verifying);
    Ok(TokenIssuer::new(keys, &config.service_accounts, config.names))
}

fn pages(
    config: &Config,
    store: &Store<StoredObject>,
    about_to_stop: &CancellationToken,
) -> Result<AdminPages, BuildError> {
    let build = proto_daemon::build_info!();
    let store_health = store.health();
    // As kube-apiserver's check of it is called.
    let store_check = if store.is_shared() { "etcd" } else { "store" };
    let stopping = about_to_stop.clone();
    let health = Health::new(Readiness::default())
        .with(store_check, Scope::ReadyOnly, move || match &*store_health.borrow() {
            apiserver_store::Health::Serving => Ok(()),
            apiserver_store::Health::Refusing { reason } => {
                Err(format!("cannot write: {reason}").into())
            }
            apiserver_store::Health::ReadOnly { reason } => {
                Err(format!("read-only: {reason}").into())
            }
        })
        .with("shutdown", Scope::ReadyOnly, move || {
            if stopping.is_cancelled() { Err("shutting down".into()) } else { Ok(()) }
        });
    let prefix = config.names.metric_prefix("apiserver");
    let metrics = proto_daemon::metrics::Metrics::new(&prefix, build)?;
    Ok(AdminPages { health, metrics, status: StatusBoard::default() })
}
