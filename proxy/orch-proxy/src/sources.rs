//! What the API says should be forwarded. Changes are marked in the one [`Dataplane`] as they arrive, so
//! nothing queues up: a thousand changes of a service are one mark.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use proto_api::core::v1::Service;
use proto_api::discovery::v1::EndpointSlice;
use proto_client::{Change, Client, ListParams, ObjectKey, Reflector};
use proto_daemon::drain::DrainWatch;
use proxy_rules::Dataplane;
use proxy_rules::localise::{localise_service, localise_slice, selector};
use proxy_rules::model::{LocalService, LocalSlice, ServiceId};
use tokio::sync::{Notify, watch};

use crate::config::Config;

/// What should be forwarded, shared by those who hear of it and the one who commits it.
#[derive(Debug)]
pub struct Desired {
    plane: Mutex<Dataplane>,
    changed: Notify,
    /// How many of the two sources have been heard completely.
    complete: watch::Sender<usize>,
}

/// Services, and slices of endpoints.
const SOURCES: usize = 2;

impl Desired {
    /// With nothing heard yet.
    pub fn new(plane: Dataplane) -> Self {
        Self { plane: Mutex::new(plane), changed: Notify::new(), complete: watch::Sender::new(0) }
    }

    /// The dataplane, for a moment.
    pub fn plane(&self) -> MutexGuard<'_, Dataplane> {
        self.plane.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Says that something is marked.
    pub fn notify(&self) {
        self.changed.notify_one();
    }

    /// Returns once something was marked since the last time. Cancel safe.
    pub async fn changed(&self) {
        self.changed.notified().await;
    }

    /// Returns once everything has been heard of. Cancel safe.
    pub async fn complete(&self) {
        // The sender lives in self: the channel cannot close.
        let _ = self.complete.subscribe().wait_for(|sources| *sources >= SOURCES).await;
    }

    /// One more source has been heard completely.
    pub fn source_complete(&self) {
        self.complete.send_modify(|sources| *sources += 1);
    }

    fn hear_service(&self, change: Change<Option<Arc<LocalService>>>) {
        let (key, service) = match change {
            Change::Applied { key, new, .. } => (key, (*new).clone()),
            Change::Deleted { key, .. } => (key, None),
            Change::Synced => return,
        };
        let id = ServiceId::new(&key.namespace, &key.name);
        self.plane().service_changed(&id, service);
        self.notify();
    }

    fn hear_slice(&self, change: Change<Option<Arc<LocalSlice>>>) {
        let (ObjectKey { name, .. }, old, new) = match change {
            Change::Applied { key, new, old } => (key, old, (*new).clone()),
            Change::Deleted { key, old } => (key, Some(old), None),
            Change::Synced => return,
        };
        let old = old.as_deref().and_then(Option::as_deref);
        self.plane().slice_changed(&name, old, new);
        self.notify();
    }
}

/// Follows services and slices until drained. What this node does not forward is dropped as soon as it has
/// been read.
pub fn start(client: &Client, config: &Config, desired: &Arc<Desired>, drain: &DrainWatch) {
    let (names, node_name) = (config.names, config.node_name.clone());
    let params = ListParams::labels(selector(names));
    let services = Reflector::projected(client.all::<Service>(), params.clone(), move |service| {
        localise_service(&service, names).map(Arc::new)
    });
    let slices = Reflector::projected(client.all::<EndpointSlice>(), params, move |slice| {
        localise_slice(&slice, names, &node_name).map(Arc::new)
    });
    let hearer = desired.clone();
    let mut once = Once::new(desired);
    tokio::spawn(services.run(drain.clone(), move |change| {
        once.hear(&change);
        hearer.hear_service(change);
    }));
    let hearer = desired.clone();
    let mut once = Once::new(desired);
    tokio::spawn(slices.run(drain.clone(), move |change| {
        once.hear(&change);
        hearer.hear_slice(change);
    }));
}

/// Says once that a source is complete.
struct Once(Option<Arc<Desired>>);

impl Once {
    fn new(desired: &Arc<Desired>) -> Self {
        Self(Some(desired.clone()))
    }

    fn hear<U>(&mut self, change: &Change<U>) {
        if matches!(change, Change::Synced)
            && let Some(desired) = self.0.take()
        {
            desired.source_complete();
        }
    }
}
