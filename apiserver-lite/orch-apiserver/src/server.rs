//! What all requests share: engine, store, identities, admission's allocations. Built once by `app.rs`.

use std::sync::{Arc, Mutex};

use apiserver_schema::{Engine, Kind};
use apiserver_store::{Snapshot, Store};
use proto_api::names::Names;
use proto_daemon::admin::AdminPages;
use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;

use crate::auth::{Authenticators, Authorizer, TokenIssuer};
use crate::config::Config;
use crate::http::{NodeProxy, Overload, WatchBatches};
use crate::key;
use crate::metrics::Metrics;
use crate::record::StoredObject;
use crate::registry::ServiceAllocations;
use crate::status::ApiError;

/// The shared state of a server.
pub struct Server {
    /// Naming profile.
    pub names: &'static Names,
    /// How it was configured.
    pub config: Config,
    /// Knows every kind.
    pub engine: Engine,
    /// Holds every object.
    pub store: Store<StoredObject>,
    /// Says who asks.
    pub authenticators: Authenticators,
    /// Says who may.
    pub authorizer: Box<dyn Authorizer>,
    /// Makes service account tokens.
    pub tokens: Arc<TokenIssuer>,
    /// Addresses and ports of services.
    pub allocations: Arc<Mutex<ServiceAllocations>>,
    /// Talks to node agents.
    pub nodes: NodeProxy,
    /// Who watches the same.
    pub watch_batches: WatchBatches,
    /// Places for requests.
    pub overload: Overload,
    /// Health, metrics and task status pages.
    pub pages: AdminPages,
    /// Counters and durations.
    pub metrics: Metrics,
    /// Cancelled when the server is about to stop and still serves everything.
    pub about_to_stop: tokio_util::sync::CancellationToken,
    /// Cancelled when the server is to stop; ends watches and other long requests.
    pub stopping: tokio_util::sync::CancellationToken,
}

impl Server {
    /// The store as it is now.
    #[must_use]
    pub fn snapshot(&self) -> Snapshot<StoredObject> {
        self.store.snapshot()
    }

    /// The current version of an object.
    #[must_use]
    pub fn find(&self, kind: &Kind, namespace: &str, name: &str) -> Option<Arc<StoredObject>> {
        // A snapshot of now is never compacted.
        self.snapshot()
            .get(&key::object(kind, namespace, name))
            .ok()
            .flatten()
            .map(|entry| entry.record)
    }

    /// The current version of an object of a built-in kind, by its short group and resource.
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

    /// The kind that a built-in resource stores.
    #[must_use]
    pub fn kind(&self, short_group: &str, resource: &str) -> Option<&Arc<Kind>> {
        self.engine.resource(&self.names.group(short_group), "v1", resource)
    }
}

/// The current time, as objects carry it: whole seconds, UTC.
#[must_use]
pub fn timestamp(at: OffsetDateTime) -> String {
    // Formatting a whole second of a year of four digits does not fail.
    at.replace_nanosecond(0).unwrap_or(at).format(&Rfc3339).unwrap_or_default()
}

/// The wall clock.
#[must_use]
pub fn now() -> OffsetDateTime {
    OffsetDateTime::now_utc()
}

/// Reads a time out of an object; `None` when it is not there or not a time.
#[must_use]
pub fn time_of(text: &str) -> Option<OffsetDateTime> {
    OffsetDateTime::parse(text, &Rfc3339).ok()
}

/// The status of a failed write about `object`.
#[must_use]
pub fn missing_kind(name: &str) -> ApiError {
    ApiError::internal(format!("kind {name} is not served"))
}
