//! The state that all requests share: engine, store, authenticators, allocations. Built once by `app.rs`.

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
    /// The configuration; `bind` holds the actual port.
    pub config: Config,
    /// Decodes, defaults, validates and encodes objects of every kind.
    pub engine: Engine,
    /// The store of all objects.
    pub store: Store<StoredObject>,
    /// Authenticates requests.
    pub authenticators: Authenticators,
    /// Authorizes requests.
    pub authorizer: Box<dyn Authorizer>,
    /// Issues and verifies service account tokens.
    pub tokens: Arc<TokenIssuer>,
    /// Allocated addresses and node ports of Services.
    pub allocations: Arc<Mutex<ServiceAllocations>>,
    /// Connects to kubelets and workloads.
    pub nodes: NodeProxy,
    /// Groups of watches of the same collection.
    pub watch_batches: WatchBatches,
    /// Limits of requests in flight.
    pub overload: Overload,
    /// Health, metrics and task status pages.
    pub pages: AdminPages,
    /// Counters and durations.
    pub metrics: Metrics,
    /// Cancelled when shutdown begins; requests are still served, `/readyz` fails.
    pub about_to_stop: tokio_util::sync::CancellationToken,
    /// Cancelled when the listener closes; ends watches and other long-running requests.
    pub stopping: tokio_util::sync::CancellationToken,
}

impl Server {
    /// A snapshot of the store at its current revision.
    #[must_use]
    pub fn snapshot(&self) -> Snapshot<StoredObject> {
        self.store.snapshot()
    }

    /// The current version of the object `namespace/name` of `kind`, if it exists.
    #[must_use]
    pub fn find(&self, kind: &Kind, namespace: &str, name: &str) -> Option<Arc<StoredObject>> {
        // The current revision is never compacted.
        self.snapshot()
            .get(&key::object(kind, namespace, name))
            .ok()
            .flatten()
            .map(|entry| entry.record)
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

    /// The kind of a resource, by short group and plural name, version `v1`.
    #[must_use]
    pub fn kind(&self, short_group: &str, resource: &str) -> Option<&Arc<Kind>> {
        self.engine.resource(&self.names.group(short_group), "v1", resource)
    }
}

/// `at` as RFC 3339 text in whole seconds, the format of timestamps in metadata.
#[must_use]
pub fn timestamp(at: OffsetDateTime) -> String {
    // Formatting cannot fail for a year of four digits.
    at.replace_nanosecond(0).unwrap_or(at).format(&Rfc3339).unwrap_or_default()
}

/// The wall clock.
#[must_use]
pub fn now() -> OffsetDateTime {
    OffsetDateTime::now_utc()
}

/// Parses an RFC 3339 timestamp of an object; `None` if `text` is not one.
#[must_use]
pub fn time_of(text: &str) -> Option<OffsetDateTime> {
    OffsetDateTime::parse(text, &Rfc3339).ok()
}

/// A 500 for a kind of Kubernetes that the compiled-in schema lacks; `name` is its kind or resource.
#[must_use]
pub fn missing_kind(name: &str) -> ApiError {
    ApiError::internal(format!("kind {name} is not served"))
}
