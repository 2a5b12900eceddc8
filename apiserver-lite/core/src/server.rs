//! The state that all requests share: engine, store, authenticators, allocations.

use std::sync::{Arc, Mutex};

use apiserver_schema::{Engine, Kind};
use apiserver_store::{Range, Snapshot, Store};
use proto_api::names::Names;

use crate::aggregation::ApiServices;
use crate::auth::{Authenticators, ClusterPolicy, ObjectLookup};
use crate::config::Config;
use crate::definitions::Definitions;
use crate::field_ownership::FieldOwnership;
use crate::key;
use crate::quota_turns::QuotaTurns;
use crate::record::StoredObject;
use crate::saved_states::{HeldState, SavedStates};
use crate::services::ServiceAllocations;
use crate::status::ApiError;
use crate::webhooks::Webhooks;
use apiserver_auth::Chain;

/// The shared state of a server.
pub struct Server {
    /// Naming profile.
    pub names: &'static Names,
    /// The configuration; `bind` holds the actual port.
    pub config: Config,
    /// Decodes, defaults, validates and encodes objects of every kind.
    pub engine: Arc<Engine>,
    /// The kinds that CustomResourceDefinitions add.
    pub definitions: Definitions,
    /// The group versions that other servers serve.
    pub api_services: ApiServices,
    /// The store of all objects.
    pub store: Store<StoredObject>,
    /// Authenticates requests.
    pub authenticators: Authenticators,
    /// Authorizes requests.
    pub authorizer: Chain,
    /// Roles and bindings; also of a server whose modules do not decide by them, for what users may grant.
    pub policy: Arc<ClusterPolicy>,
    /// Allocated addresses and node ports of Services.
    pub allocations: Arc<Mutex<ServiceAllocations>>,
    /// The structures of kinds, for the ownership of fields.
    pub ownership: FieldOwnership,
    /// Turns of the writes that charge quotas.
    pub quota_turns: QuotaTurns,
    /// Held while a backup is written.
    pub backup_turn: Arc<tokio::sync::Mutex<()>>,
    /// The states that administrators keep of an ephemeral server; unset for others.
    pub saved_states: Option<SavedStates>,
    /// Admission webhooks.
    pub webhooks: Webhooks,
}

impl Server {
    /// Waits until no state is being put back, and keeps any from being as long as the returned value exists: for what reads and then writes, or keeps
    /// something besides the store. It costs nothing on a server that is not ephemeral. Not for one who holds the state already, and not to be held while
    /// another server is asked.
    pub async fn hold_state(&self) -> HeldState {
        match &self.saved_states {
            Some(states) => states.hold().await,
            None => HeldState::default(),
        }
    }

    /// A snapshot of the store at its current revision.
    #[must_use]
    pub fn snapshot(&self) -> Snapshot<StoredObject> {
        self.store.snapshot()
    }

    /// The current version of the object `namespace/name` of `kind`, if it exists.
    #[must_use]
    pub fn find(&self, kind: &Kind, namespace: &str, name: &str) -> Option<Arc<StoredObject>> {
        self.store.current(&key::object(kind, namespace, name)).map(|entry| entry.record)
    }

    /// The current objects of a kind in a namespace, or in all without one, by key; at most this many.
    #[must_use]
    pub fn objects(
        &self,
        kind: &Kind,
        namespace: &str,
        limit: Option<usize>,
    ) -> Vec<Arc<StoredObject>> {
        let prefix = key::prefix(kind, namespace);
        let page = self.store.current_range(Range { prefix: &prefix, after: None, limit });
        page.entries.into_iter().map(|entry| entry.record).collect()
    }

    /// The current version of an object by the short group (without its domain) and resource of its kind, version `v1`.
    #[must_use]
    pub fn find_in(
        &self,
        short_group: &str,
        resource: &str,
        namespace: &str,
        name: &str,
    ) -> Option<Arc<StoredObject>> {
        self.find(self.kind(short_group, resource)?.as_ref(), namespace, name)
    }

    /// The kind of a served resource, built-in or custom.
    #[must_use]
    pub fn resource(&self, group: &str, version: &str, plural: &str) -> Option<Arc<Kind>> {
        match self.engine.resource(group, version, plural) {
            Some(kind) => Some(kind.clone()),
            None => self.definitions.resource(group, version, plural),
        }
    }

    /// The kind of a resource, by short group and plural name, version `v1`.
    #[must_use]
    pub fn kind(&self, short_group: &str, resource: &str) -> Option<&Arc<Kind>> {
        self.engine.resource(&self.names.group(short_group), "v1", resource)
    }
}

impl ObjectLookup for Server {
    fn names(&self) -> &'static Names {
        self.names
    }

    fn find_in(
        &self,
        short_group: &str,
        resource: &str,
        namespace: &str,
        name: &str,
    ) -> Option<Arc<StoredObject>> {
        Self::find_in(self, short_group, resource, namespace, name)
    }
}

/// A 500 for a kind of Kubernetes that the compiled-in schema lacks; `name` is its kind or resource.
#[must_use]
pub fn missing_kind(name: &str) -> ApiError {
    ApiError::internal(format!("kind {name} is not served"))
}

#[cfg(test)]
impl Server {
    /// An empty server in memory that allows everything.
    pub(crate) fn for_tests(names: &'static Names) -> Self {
        use apiserver_store::{Medium, StoreConfig, StoreIdentity};

        use crate::auth::TokenIssuer;
        use crate::webhooks::WebhookMetrics;
        use apiserver_auth::{
            AlwaysAllow, SigningKeyFile, StaticTokens, TokenKeys, VerifyingKeyFiles,
        };

        let config = Config::for_tests(names);
        let identity =
            StoreIdentity { profile: "kubernetes".to_owned(), domain: "k8s.io".to_owned() };
        let store = Store::open(StoreConfig::new(Medium::Memory, identity)).unwrap();
        let key = rcgen::KeyPair::generate().unwrap().serialize_pem();
        let key = SigningKeyFile::fixed(std::path::Path::new("test"), &key).unwrap();
        let keys = TokenKeys::new(key, VerifyingKeyFiles::default());
        let tokens = TokenIssuer::new(keys, &config.service_accounts, names);
        let allocations = ServiceAllocations::new(config.service_ranges.clone(), config.node_ports);
        let build = proto_daemon::metrics::BuildInfo { version: "", commit: "" };
        let metrics = proto_daemon::metrics::Metrics::new("test", build).unwrap();
        let metrics = WebhookMetrics::new(&metrics).unwrap();
        let engine = Arc::new(Engine::new(names));
        Self {
            names,
            ownership: FieldOwnership::new(&engine, names),
            definitions: Definitions::follow(&store, &engine, &config).unwrap(),
            api_services: ApiServices::follow(&store).unwrap(),
            engine,
            policy: Arc::new(ClusterPolicy::follow(&store, names).unwrap()),
            webhooks: Webhooks::follow(&store, names, metrics, &config).unwrap(),
            store,
            authenticators: Authenticators {
                static_tokens: StaticTokens::default(),
                bootstrap_tokens: config.bootstrap_tokens,
                anonymous: config.anonymous,
                tokens: Arc::new(tokens),
                request_headers: None,
                oidc: None,
                token_webhook: None,
            },
            authorizer: Chain(vec![AlwaysAllow.into()]),
            allocations: Arc::new(Mutex::new(allocations)),
            quota_turns: QuotaTurns::default(),
            backup_turn: Arc::default(),
            saved_states: None,
            config,
        }
    }
}
