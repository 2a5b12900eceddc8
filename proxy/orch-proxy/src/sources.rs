//! What the API says should be forwarded. Changes are marked in the one [`Dataplane`] as they arrive, so
//! nothing queues up: a thousand changes of a service are one mark.

use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use proto_api::MicroTime;
use proto_api::core::v1::Service;
use proto_api::discovery::v1::EndpointSlice;
use proto_client::{Change, Client, ListParams, ObjectKey, Reflector};
use proto_daemon::drain::DrainWatch;
use proto_daemon::panics::isolate_sync;
use proxy_dns::model::{NamedService, NamedSlice, name_service, name_slice};
use proxy_nameserver::SharedZone;
use proxy_rules::Dataplane;
use proxy_rules::health::HealthChecks;
use proxy_rules::localise::{is_forwarded, localise_service, localise_slice, selector};
use proxy_rules::model::{LocalService, LocalSlice, ServiceId};
use proxy_userspace::Forwarder;
use tokio::sync::{Notify, watch};

use crate::config::Config;
use crate::dns;

/// What should be forwarded, shared by those who hear of it and the one who commits it.
#[derive(Debug)]
pub struct Desired {
    plane: Mutex<Dataplane>,
    changed: Notify,
    pending: Mutex<PendingChanges>,
    /// How many of the two sources have been heard completely.
    complete: watch::Sender<usize>,
    /// Answers to load balancers' health checks.
    health_checks: watch::Sender<Arc<HealthChecks>>,
    /// Who serves node ports at loopback addresses, if somebody does.
    loopback: OnceLock<Arc<Forwarder>>,
}

/// Times of one pass that are remembered, at most.
const TRIGGERS_MAX: usize = 10_000;

/// What was heard.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PendingChanges {
    /// Changes of services.
    pub services: u64,
    /// Changes of slices.
    pub slices: u64,
    /// When what the slices say came to be.
    pub triggers: Vec<SystemTime>,
}

impl PendingChanges {
    /// Takes in what was heard later.
    pub fn add(&mut self, later: Self) {
        self.services = self.services.saturating_add(later.services);
        self.slices = self.slices.saturating_add(later.slices);
        let room = TRIGGERS_MAX.saturating_sub(self.triggers.len());
        self.triggers.extend(later.triggers.into_iter().take(room));
    }
}

/// Services, and slices of endpoints.
const SOURCES: usize = 2;

impl Desired {
    /// With nothing heard yet.
    pub fn new(mut plane: Dataplane) -> Self {
        plane.isolate_with(|work| isolate_sync(work).is_ok());
        Self {
            plane: Mutex::new(plane),
            changed: Notify::new(),
            pending: Mutex::default(),
            complete: watch::Sender::new(0),
            health_checks: watch::Sender::new(Arc::default()),
            loopback: OnceLock::new(),
        }
    }

    /// Has node ports served at loopback addresses too; asked for before anything has been heard.
    pub fn serve_loopback(&self, forwarder: Arc<Forwarder>) {
        self.plane().track_node_ports();
        // Told once: a second one would have nothing to tell.
        let _ = self.loopback.set(forwarder);
    }

    /// Answers to load balancers' health checks, as of the last [`Desired::publish`].
    pub fn health_checks(&self) -> watch::Receiver<Arc<HealthChecks>> {
        self.health_checks.subscribe()
    }

    /// Makes known what the last pass has changed apart from the kernel's tables.
    pub fn publish(&self) {
        let (checks, node_ports) = {
            let mut plane = self.plane();
            let node_ports = plane.changed_node_ports();
            let zone = plane.zone().filter(|_| !node_ports.is_empty()).map(str::to_owned);
            (plane.changed_health_checks(), (zone, node_ports))
        };
        if let (Some(loopback), (zone, changed)) = (self.loopback.get(), node_ports)
            && !changed.is_empty()
        {
            loopback.node_ports_changed(zone.as_deref(), changed);
        }
        if let Some(checks) = checks {
            self.health_checks.send_replace(Arc::new(checks));
        }
    }

    /// The dataplane, for a moment.
    pub fn plane(&self) -> MutexGuard<'_, Dataplane> {
        self.plane.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What was heard since this was asked last.
    pub fn take_pending_changes(&self) -> PendingChanges {
        std::mem::take(&mut *self.pending())
    }

    fn pending(&self) -> MutexGuard<'_, PendingChanges> {
        self.pending.lock().unwrap_or_else(PoisonError::into_inner)
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
}

impl ChangeHandler for Desired {
    fn service_changed(&self, id: &ServiceId, service: Option<Arc<LocalService>>) {
        self.plane().service_changed(id, service);
        self.pending().add(PendingChanges { services: 1, ..PendingChanges::default() });
        self.notify();
    }

    fn slice_changed(&self, name: &str, old: Option<&LocalSlice>, new: Option<Arc<LocalSlice>>) {
        self.plane().slice_changed(name, old, new);
        self.pending().add(PendingChanges { slices: 1, ..PendingChanges::default() });
        self.notify();
    }

    fn intern_service_id(&self, id: ServiceId) -> ServiceId {
        self.plane().intern_service_id(&id)
    }

    /// Of the first list nothing is noted: that is as old as it is.
    fn slice_triggered(&self, at: SystemTime) {
        let mut pending = self.pending();
        if *self.complete.borrow() >= SOURCES && pending.triggers.len() < TRIGGERS_MAX {
            pending.triggers.push(at);
        }
    }

    fn source_complete(&self) {
        self.complete.send_modify(|sources| *sources = sources.saturating_add(1));
    }
}

/// Follows what this node forwards, told of each change in order. Must not block.
pub trait ChangeHandler: Send + Sync {
    /// A service as it is now, or that there is none.
    fn service_changed(&self, id: &ServiceId, service: Option<Arc<LocalService>>);

    /// A slice as it is now, or that there is none, and what it was before.
    fn slice_changed(&self, name: &str, old: Option<&LocalSlice>, new: Option<Arc<LocalSlice>>);

    /// The same name as it is kept already, so that it is kept once.
    fn intern_service_id(&self, id: ServiceId) -> ServiceId {
        id
    }

    /// When what a slice says came to be, told before the slice.
    fn slice_triggered(&self, _at: SystemTime) {}

    /// One more of the two sources has been heard completely.
    fn source_complete(&self);
}

/// Who is told of services and slices.
#[derive(Clone)]
pub struct ChangeHandlers {
    /// What this node forwards.
    pub forwards: Arc<dyn ChangeHandler>,
    /// What names lead to, where names are answered.
    pub names: Option<Arc<SharedZone>>,
}

/// What is kept of an object: what this node forwards of it, and what names lead to it.
#[derive(Debug)]
struct Projected<L, N> {
    forwarded: Option<Arc<L>>,
    named: Option<Arc<N>>,
}

impl<L, N> Default for Projected<L, N> {
    fn default() -> Self {
        Self { forwarded: None, named: None }
    }
}

/// Follows services and slices until drained. What this node neither forwards nor names is dropped as soon as
/// it has been read.
pub fn start(client: &Client, config: &Config, listeners: &ChangeHandlers, drain: &DrainWatch) {
    let (names, node_name) = (config.names, config.node_name.clone());
    // Names are also those of services that others forward, or nobody.
    let naming = listeners.names.is_some();
    let params = match naming {
        true => ListParams::default(),
        false => ListParams::labels(selector(names)),
    };
    let services = Reflector::projected(client.all::<Service>(), params.clone(), move |service| {
        let ours = is_forwarded(&service.metadata, names);
        let forwarded = ours.then(|| localise_service(&service, names)).flatten().map(Arc::new);
        let named = naming.then(|| name_service(&service)).flatten().map(Arc::new);
        Projected { forwarded, named }
    });
    let answered_here = naming.then(|| dns::service_id(names));
    let trigger = names.sub_label("endpoints", "last-change-trigger-time");
    let forwards = listeners.forwards.clone();
    let slices = Reflector::projected(client.all::<EndpointSlice>(), params, move |slice| {
        let text = slice.metadata.annotations.get(&trigger);
        if let Some(at) = text.and_then(|text| system_time(text)) {
            forwards.slice_triggered(at);
        }
        let ours = is_forwarded(&slice.metadata, names);
        let local = ours.then(|| localise_slice(&slice, names, &node_name)).flatten();
        // Questions for names end on this node, wherever else they could be answered.
        let local = local.filter(|local| Some(&local.service) != answered_here.as_ref());
        let named = naming.then(|| name_slice(&slice, names)).flatten().map(Arc::new);
        let local = local.map(|slice| {
            let service = forwards.intern_service_id(slice.service);
            Arc::new(LocalSlice { service, ..slice })
        });
        Projected { forwarded: local, named }
    });
    let handlers = listeners.clone();
    let mut once = Once::new(listeners);
    tokio::spawn(services.run(drain.clone(), move |change| {
        once.report_sync(&change);
        handlers.dispatch_service(change);
    }));
    let handlers = listeners.clone();
    let mut once = Once::new(listeners);
    tokio::spawn(slices.run(drain.clone(), move |change| {
        once.report_sync(&change);
        handlers.dispatch_slice(change);
    }));
}

/// A time as annotations have it.
fn system_time(text: &str) -> Option<SystemTime> {
    let micros = text.parse::<MicroTime>().ok()?.unix_micros()?;
    UNIX_EPOCH.checked_add(Duration::from_micros(u64::try_from(micros).ok()?))
}

impl ChangeHandlers {
    fn dispatch_service(&self, change: Change<Projected<LocalService, NamedService>>) {
        let (key, new) = match change {
            Change::Applied { key, new, .. } => (key, new),
            Change::Deleted { key, .. } => (key, Arc::default()),
            Change::Synced => return,
        };
        let id = ServiceId::new(&key.namespace, &key.name);
        self.forwards.service_changed(&id, new.forwarded.clone());
        if let Some(zone) = &self.names {
            let named = new.named.clone();
            zone.change(|zone| zone.service_changed(&key.namespace, &key.name, named));
        }
    }

    fn dispatch_slice(&self, change: Change<Projected<LocalSlice, NamedSlice>>) {
        let (ObjectKey { name, .. }, old, new) = match change {
            Change::Applied { key, new, old } => (key, old.unwrap_or_default(), new),
            Change::Deleted { key, old } => (key, old, Arc::default()),
            Change::Synced => return,
        };
        self.forwards.slice_changed(&name, old.forwarded.as_deref(), new.forwarded.clone());
        if let Some(zone) = &self.names
            && (old.named.is_some() || new.named.is_some())
        {
            let named = new.named.clone();
            zone.change(|zone| zone.slice_changed(&name, old.named.as_deref(), named));
        }
    }
}

/// Says once that a source is complete.
struct Once(Option<ChangeHandlers>);

impl Once {
    fn new(listeners: &ChangeHandlers) -> Self {
        Self(Some(listeners.clone()))
    }

    fn report_sync<U>(&mut self, change: &Change<U>) {
        if matches!(change, Change::Synced)
            && let Some(listeners) = self.0.take()
        {
            listeners.forwards.source_complete();
            if let Some(zone) = &listeners.names {
                zone.source_complete();
            }
        }
    }
}
