//! Builds a server from a [`Config`] and runs it. [`build`] binds the listener and opens the store; no request is served before
//! [`BoundServer::run`].

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use apiserver_auth::{
    Abac, AlwaysAllow, AlwaysDeny, AnonymousLimit, AuthorizationWebhook, Chain, Masters, Module,
    NodeLimit, Oidc, RequestHeaders, SigningKeyFile, StaticTokens, TokenKeys, TokenWebhook,
    VerifyingKeyFiles,
};
use apiserver_core::auth::{Authenticators, ClusterPolicy, NodeAuthorizer, Rbac, TokenIssuer};
use apiserver_core::config::{
    AdmissionSettings, Anonymous, AnonymousAccess, AuthorizationMode, Config, Storage, advertised,
};
use apiserver_core::definition_lifecycle;
use apiserver_core::definitions::Definitions;
use apiserver_core::field_ownership::FieldOwnership;
use apiserver_core::quota_turns::QuotaTurns;
use apiserver_core::record::StoredObject;
use apiserver_core::server::Server;
use apiserver_core::services::{ServiceAllocations, ServiceRange as _};
use apiserver_core::times::now;
use apiserver_http::Metrics;
use apiserver_http::{HttpServer, Overload, ServingTls, WatchBatches, serve};
use apiserver_schema::Engine;
use apiserver_store::{Identity, Medium, OnDamage, Range, Store, StoreConfig};
use proto_api::names::Profile;
use proto_daemon::admin::AdminPages;
use proto_daemon::drain::{Drain, DrainWatch, Drained};
use proto_daemon::health::{Health, Scope};
use proto_daemon::metrics::BuildInfo;
use proto_daemon::private_files;
use proto_daemon::ready::Readiness;
use proto_daemon::statusz::StatusBoard;
use tokio::net::TcpListener;

use crate::admission_config;
use crate::bootstrap::{self, ClientAuthorities};
use crate::build_error::BuildError;
use crate::kubeconfig;
use crate::maintenance;
use crate::pki::{Pki, ServingNames};
use crate::tls;

/// A server whose listener is bound; it serves once [`BoundServer::run`] is called.
pub struct BoundServer {
    server: Arc<HttpServer>,
    listener: TcpListener,
    address: SocketAddr,
    tls: ServingTls,
    kubeconfig: String,
}

impl BoundServer {
    /// The address that the listener is bound to; its port is never 0.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// The administrator's kubeconfig: address, CA and client certificate. Empty when certificates are configured, because the
    /// server then has no CA to issue a client certificate with.
    #[must_use]
    pub fn kubeconfig(&self) -> &str {
        &self.kubeconfig
    }

    /// Serves until `until` requests a drain. `/readyz` then fails at once. After the configured delay, in which load balancers
    /// react, the listener closes, and open requests get up to the configured deadline to finish. The store is closed at the
    /// end.
    pub async fn run(self, until: DrainWatch) {
        let store = self.server.core.store.clone();
        let (delay, deadline) =
            (self.server.core.config.shutdown_delay, self.server.core.config.shutdown_deadline);
        let maintenance = tokio::spawn(maintenance::run(self.server.clone()));
        let definitions =
            definition_lifecycle::run(self.server.core.clone(), self.server.stopping.clone());
        let definitions = tokio::spawn(definitions);
        let about_to_stop = self.server.about_to_stop.clone();
        let drain = Drain::default();
        let serving = serve(self.server, self.listener, self.tls, drain.watch());
        let stopping = async {
            until.asked().await;
            about_to_stop.cancel();
            tokio::time::sleep(delay).await;
            drain.drain(deadline).await
        };
        // Connections still open at the deadline are dropped with the future.
        tokio::select! {
            () = serving => {}
            drained = stopping => if drained == Drained::DeadlinePassed {
                tracing::warn!("shutdown deadline passed; the connections still open are closed");
            }
        }
        // The tasks end because `server.stopping` is cancelled.
        let _ = maintenance.await;
        let _ = definitions.await;
        store.close().await;
    }
}

/// Builds a server from `config`: reads keys and certificates, opens the store, binds the listener and writes the bootstrap
/// objects.
///
/// # Errors
/// [`BuildError`] with the file, address or object that failed.
pub async fn build(config: Config) -> Result<BoundServer, BuildError> {
    let names = config.names;
    let (listener, address) = listen(config.bind).await?;
    let token_keys = token_key_files(&config)?;
    let static_tokens = static_tokens(&config)?;
    let admission = admission(&config)?;
    // Every file that the configuration names is read before the first one is written.
    let pki = own_pki(&config)?;
    let provider = tls::provider();
    let authorities = client_authorities(&config, pki.as_ref())?;
    let tls = tls::serving(&provider, &config, pki.as_ref())?;
    let nodes = tls::node_proxy(&provider, &config, pki.as_ref())?;
    let tokens = Arc::new(token_issuer(&config, token_keys, pki.as_ref())?);
    let authenticators = Authenticators {
        static_tokens,
        bootstrap_tokens: config.bootstrap_tokens,
        anonymous: config.anonymous,
        tokens,
        request_headers: config.request_headers.clone().map(|of| RequestHeaders(of.headers)),
        oidc: config.oidc.clone().map(|settings| Oidc::new(settings, names)).transpose()?,
        token_webhook: config
            .token_webhook
            .as_ref()
            .map(|settings| TokenWebhook::new(settings, names))
            .transpose()?,
    };
    let engine = Arc::new(Engine::new(names));
    let store = open_store(&engine, &config)?;
    let mut allocations = ServiceAllocations::new(config.service_ranges.clone(), config.node_ports);
    adopt_services(&engine, &store, &mut allocations);
    let policy = Arc::new(ClusterPolicy::follow(&store, names)?);
    let authorizer = authorizer(&config, &engine, &store, &policy)?;
    let stopping = tokio_util::sync::CancellationToken::new();
    let about_to_stop = tokio_util::sync::CancellationToken::new();
    let pages = pages(&config, &store, &about_to_stop)?;
    let core = Arc::new(Server {
        names,
        ownership: FieldOwnership::new(&engine, names),
        definitions: Definitions::follow(&store, &engine)?,
        engine,
        store,
        authenticators,
        authorizer,
        policy,
        allocations: Arc::new(Mutex::new(allocations)),
        quota_turns: QuotaTurns::default(),
        config: Config { bind: address, admission, ..config },
    });
    // Boxed: they await whole requests.
    Box::pin(bootstrap::run(&core)).await?;
    Box::pin(bootstrap::publish_authentication(&core, &authorities)).await?;
    let server = Arc::new(HttpServer {
        core,
        nodes,
        watch_batches: WatchBatches::default(),
        overload: Overload::default(),
        metrics: Metrics::new(&pages.metrics)?,
        pages,
        about_to_stop,
        stopping,
    });
    let kubeconfig =
        pki.as_ref().map(|pki| kubeconfig::write(names, address, pki)).unwrap_or_default();
    if let Some(path) =
        server.core.config.write_kubeconfig.as_ref().filter(|_| !kubeconfig.is_empty())
    {
        crate::pki::write(path, &kubeconfig)?;
    }
    Ok(BoundServer { server, listener, address, tls, kubeconfig })
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
fn open_store(engine: &Engine, config: &Config) -> Result<Store<StoredObject>, BuildError> {
    let medium = match &config.storage {
        Storage::Memory => Medium::Memory,
        Storage::Directory(dir) => {
            let failed = |source| BuildError::Directory { path: dir.clone(), source };
            private_files::create_trusted_dir(dir).map_err(failed)?;
            Medium::Directory(dir.join("store"))
        }
    };
    let profile = match config.names.profile() {
        Profile::Orch { .. } => "orch",
        Profile::Kubernetes => "kubernetes",
    };
    let identity =
        Identity { profile: profile.to_owned(), domain: config.names.label_domain().to_owned() };
    // Decoding runs inside `open_with`, because the history restored from the log has versions that no key holds any more.
    let decode = |record: &StoredObject| Ok(record.load(engine)?);
    let on_damage = if config.accept_store_damage { OnDamage::SetAside } else { OnDamage::Refuse };
    let store = StoreConfig { on_damage, ..StoreConfig::new(medium, identity) };
    Ok(Store::open_with(store, decode)?)
}

fn adopt_services(
    engine: &Engine,
    store: &Store<StoredObject>,
    allocations: &mut ServiceAllocations,
) {
    let Some(kind) = engine.resource("", "v1", "services") else { return };
    let prefix = apiserver_core::key::prefix(kind, "");
    let range = Range { prefix: &prefix, after: None, limit: None };
    let entries = store.snapshot().range(range).map(|page| page.entries).unwrap_or_default();
    entries.iter().for_each(|entry| allocations.adopt(entry.record.object()));
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
    // Where everything is allowed, anonymous clients and kubelets are kept to what Kubernetes' bootstrap roles give them.
    let has = |mode| config.authorization.contains(&mode);
    if has(AuthorizationMode::AlwaysAllow) {
        if config.anonymous != Anonymous::Served(AnonymousAccess::Authorized) {
            modules.push(AnonymousLimit.into());
        }
        modules.push(NodeLimit.into());
    }
    let unused = [
        (AuthorizationMode::Abac, config.policy_file.is_some(), "--authorization-policy-file"),
        (
            AuthorizationMode::Webhook,
            config.authorization_webhook.is_some(),
            "--authorization-webhook-config-file",
        ),
    ];
    if let Some((_, _, flag)) = unused.into_iter().find(|(mode, given, _)| *given && !has(*mode)) {
        return Err(BuildError::Unused(flag));
    }
    for (nth, mode) in config.authorization.iter().enumerate() {
        if config.authorization.iter().take(nth).any(|earlier| earlier == mode) {
            return Err(BuildError::Repeated(*mode));
        }
        modules.push(module(mode)?);
    }
    Ok(Chain(modules))
}

fn client_authorities(config: &Config, pki: Option<&Pki>) -> Result<ClientAuthorities, BuildError> {
    let text = |path: Option<&PathBuf>| -> Result<String, BuildError> {
        let content = path.map(|path| read(path)).transpose()?.unwrap_or_default();
        Ok(certificates_in(&String::from_utf8_lossy(&content)))
    };
    let mut clients = text(config.client_ca_file.as_ref())?;
    if let Some(pki) = pki {
        clients.push_str(&pki.ca);
    }
    let proxies = text(config.request_headers.as_ref().map(|proxy| &proxy.ca_file))?;
    Ok(ClientAuthorities { clients, proxies })
}

/// The certificates of a PEM text without its other sections: a CA file may hold the CA's key, and the text is published.
fn certificates_in(pem: &str) -> String {
    let (mut certificates, mut inside) = (String::new(), false);
    for line in pem.lines() {
        inside |= line == "-----BEGIN CERTIFICATE-----";
        if inside {
            certificates.push_str(line);
            certificates.push('\n');
        }
        inside &= line != "-----END CERTIFICATE-----";
    }
    certificates
}

fn abac(config: &Config) -> Result<Abac, BuildError> {
    let missing = || BuildError::Module("ABAC", "--authorization-policy-file");
    let path = config.policy_file.as_ref().ok_or_else(missing)?;
    let text = std::fs::read_to_string(path)
        .map_err(|source| BuildError::Read { path: path.clone(), source })?;
    Abac::parse(&text, config.names)
        .map_err(|source| BuildError::PolicyFile { path: path.clone(), source })
}

fn read(path: &Path) -> Result<Vec<u8>, BuildError> {
    std::fs::read(path).map_err(|source| BuildError::Read { path: path.to_owned(), source })
}

/// The files of the keys of service account tokens. The signing key may be missing: the server has one of its own.
type TokenKeyFiles = (Option<SigningKeyFile>, VerifyingKeyFiles);

fn token_key_files(config: &Config) -> Result<TokenKeyFiles, BuildError> {
    let of = &config.service_accounts;
    for (nth, issuer) in of.issuers.iter().enumerate() {
        if of.issuers.iter().take(nth).any(|earlier| earlier == issuer) {
            return Err(BuildError::RepeatedIssuer(issuer.clone()));
        }
    }
    let signing = of.signing_key_file.as_deref().map(SigningKeyFile::load).transpose()?;
    Ok((signing, VerifyingKeyFiles::load(&of.key_files)?))
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
    about_to_stop: &tokio_util::sync::CancellationToken,
) -> Result<AdminPages, BuildError> {
    let build = BuildInfo {
        version: env!("CARGO_PKG_VERSION"),
        commit: option_env!("ORCH_COMMIT").unwrap_or("unknown"),
    };
    let store_health = store.health();
    let stopping = about_to_stop.clone();
    let health = Health::new(Readiness::default())
        .with("store", Scope::ReadyOnly, move || match &*store_health.borrow() {
            apiserver_store::Health::Serving => Ok(()),
            apiserver_store::Health::Refusing { reason } => Err(format!("cannot write: {reason}")),
            apiserver_store::Health::ReadOnly { reason } => Err(format!("read-only: {reason}")),
        })
        .with("shutdown", Scope::ReadyOnly, move || {
            if stopping.is_cancelled() { Err("shutting down".to_owned()) } else { Ok(()) }
        });
    let prefix = config.names.metric_prefix("apiserver");
    let metrics = proto_daemon::metrics::Metrics::new(&prefix, build)?;
    Ok(AdminPages { health, metrics, status: StatusBoard::default() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_of_a_ca_file_are_not_published() {
        let key = rcgen::KeyPair::generate().unwrap();
        let params = rcgen::CertificateParams::default();
        let certificate = params.self_signed(&key).unwrap().pem().replace('\r', "");
        let file = format!(
            "{}# the CA\n{certificate}{}{certificate}",
            key.serialize_pem(),
            key.serialize_pem()
        );
        assert_eq!(certificates_in(&file), format!("{certificate}{certificate}"));
        assert_eq!(certificates_in("-----BEGIN PRIVATE KEY-----\nAAAA\n"), "");
    }
}
