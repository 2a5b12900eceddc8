//! What should be forwarded: one [`Dataplane`], shared by the watches, which mark changes in it, and the driver, which compiles
//! and commits what is marked.
//!
//! The watches share the main thread with the health and metrics pages, so they never wait for the driver, which holds
//! the dataplane while it compiles: some 200 ms for 100,000 Services. Changes that arrive meanwhile are queued and applied, in
//! order, as soon as the dataplane is free. The queue is bounded; only when it is full does a watch wait.

use std::borrow::Cow;
use std::collections::BTreeSet;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, TryLockError};
use std::time::{SystemTime, UNIX_EPOCH};

use proto_daemon::panics::isolate_sync;
use proxy_rules::Dataplane;
use proxy_rules::health::HealthChecks;
use proxy_rules::model::{LocalService, LocalSlice, LocalTraffic, ServiceId};
use proxy_userspace::Forwarder;
use tokio::sync::{Notify, watch};

use crate::change_handler::ChangeHandler;
use crate::metrics::ProxyMetrics;

/// Services and EndpointSlices.
const SOURCES: usize = 2;
/// Changes that may be queued while the driver compiles.
const QUEUE_LEN_MAX: usize = 1 << 16;
/// Trigger times that may be kept for one pass.
const TRIGGERS_MAX: usize = 10_000;

/// The desired forwarding of this node.
#[derive(Debug)]
pub struct DesiredForwarding {
    /// Waited for only without `inbox`; with it, it is merely tried.
    plane: Mutex<Dataplane>,
    inbox: Mutex<Inbox>,
    changed: Notify,
    /// How many of the two sources are synced.
    synced: watch::Sender<usize>,
    health_checks: watch::Sender<Arc<HealthChecks>>,
    announced: watch::Sender<Option<Arc<BTreeSet<IpAddr>>>>,
    loopback: OnceLock<Arc<Forwarder>>,
    metrics: OnceLock<ProxyMetrics>,
}

/// What the dataplane does not have yet, and what the driver has not committed yet.
#[derive(Debug, Default)]
struct Inbox {
    queue: Vec<ReceivedChange<'static>>,
    zone: Option<Option<Box<str>>>,
    local_traffic: Option<LocalTraffic>,
    assigned_addresses: Option<BTreeSet<IpAddr>>,
    pending: PendingChanges,
}

/// A change as a watch reports it; it owns its names once it is queued.
#[derive(Debug)]
enum ReceivedChange<'a> {
    Service(Cow<'a, ServiceId>, Option<Arc<LocalService>>),
    Slice(Cow<'a, str>, Option<Arc<LocalSlice>>, Option<Arc<LocalSlice>>),
}

impl ReceivedChange<'_> {
    fn apply(self, plane: &mut Dataplane) {
        match self {
            Self::Service(id, service) => plane.service_changed(&id, service),
            Self::Slice(name, old, new) => plane.slice_changed(&name, old.as_deref(), new),
        }
    }

    fn into_owned(self) -> ReceivedChange<'static> {
        match self {
            Self::Service(id, new) => ReceivedChange::Service(Cow::Owned(id.into_owned()), new),
            Self::Slice(name, old, new) => {
                ReceivedChange::Slice(Cow::Owned(name.into_owned()), old, new)
            }
        }
    }
}

/// Changes since the last pass.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PendingChanges {
    /// Changes of Services.
    pub services: u64,
    /// Changes of EndpointSlices.
    pub slices: u64,
    /// When the endpoints of these slices changed, by the annotation `endpoints.kubernetes.io/last-change-trigger-time`.
    pub triggers: Vec<SystemTime>,
}

impl PendingChanges {
    /// Adds later changes.
    pub fn add(&mut self, later: Self) {
        self.services = self.services.saturating_add(later.services);
        self.slices = self.slices.saturating_add(later.slices);
        let room = TRIGGERS_MAX.saturating_sub(self.triggers.len());
        self.triggers.extend(later.triggers.into_iter().take(room));
    }
}

impl DesiredForwarding {
    /// With nothing received yet.
    pub fn new(mut plane: Dataplane) -> Self {
        plane.isolate_with(|work| isolate_sync(work).is_ok());
        Self {
            plane: Mutex::new(plane),
            inbox: Mutex::default(),
            changed: Notify::new(),
            synced: watch::Sender::new(0),
            health_checks: watch::Sender::new(Arc::default()),
            announced: watch::Sender::new(None),
            loopback: OnceLock::new(),
            metrics: OnceLock::new(),
        }
    }

    /// Serves node ports at loopback addresses with `forwarder` as well. Must be set before the first change.
    pub fn serve_loopback(&self, forwarder: Arc<Forwarder>) {
        self.plane().track_node_ports();
        // The forwarder reports each change once, so a second one would receive nothing.
        let _ = self.loopback.set(forwarder);
    }

    /// Counts changes in `metrics` from now on, with those that were received before.
    pub fn set_metrics(&self, metrics: ProxyMetrics) {
        let inbox = self.inbox();
        let counts = [inbox.pending.services, inbox.pending.slices];
        for (gauge, count) in metrics.pending.iter().zip(counts) {
            gauge.set(i64::try_from(count).unwrap_or(i64::MAX));
        }
        // Set once, by the driver.
        let _ = self.metrics.set(metrics);
    }

    /// Results of load balancers' health checks, as of the last [`DesiredForwarding::publish`].
    pub fn health_checks(&self) -> watch::Receiver<Arc<HealthChecks>> {
        self.health_checks.subscribe()
    }

    /// Publishes what the last pass changed outside the kernel's tables.
    pub fn publish(&self) {
        let (checks, node_ports) = {
            let mut plane = self.plane();
            let node_ports = plane.changed_node_ports();
            let zone = plane.zone().filter(|_| !node_ports.is_empty()).map(str::to_owned);
            if plane.has_marked() {
                self.changed.notify_one();
            }
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

    /// The load balancers' addresses that this node announces and whose rules are committed; `None` before the first commit.
    pub fn announced_addresses(&self) -> watch::Receiver<Option<Arc<BTreeSet<IpAddr>>>> {
        self.announced.subscribe()
    }

    /// Publishes the announced addresses of a pass that was committed.
    pub fn publish_announced(&self) {
        if let Some(addresses) = self.plane().changed_announced_addresses() {
            self.announced.send_replace(Some(Arc::new(addresses)));
        }
    }

    /// The dataplane without the changes that are queued. Waits while it is in use, so the main thread must not call this.
    pub fn plane(&self) -> MutexGuard<'_, Dataplane> {
        self.plane.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The dataplane with all changes received so far, for a pass. Waits while it is in use, so the main thread must not call this.
    pub fn updated_plane(&self) -> MutexGuard<'_, Dataplane> {
        let mut plane = self.plane();
        let Inbox { queue, zone, local_traffic, assigned_addresses, .. } = {
            let mut inbox = self.inbox();
            let pending = std::mem::take(&mut inbox.pending);
            std::mem::replace(&mut *inbox, Inbox { pending, ..Inbox::default() })
        };
        if let Some(addresses) = assigned_addresses {
            plane.guard_assigned(&addresses);
        }
        if let Some(zone) = zone {
            plane.zone_changed(zone.as_deref());
        }
        if let Some(local_traffic) = local_traffic {
            plane.local_traffic_changed(local_traffic);
        }
        queue.into_iter().for_each(|change| change.apply(&mut plane));
        plane
    }

    /// The dataplane, if it is not in use.
    fn free_plane(&self) -> Option<MutexGuard<'_, Dataplane>> {
        match self.plane.try_lock() {
            Ok(plane) => Some(plane),
            Err(TryLockError::Poisoned(plane)) => Some(plane.into_inner()),
            Err(TryLockError::WouldBlock) => None,
        }
    }

    fn inbox(&self) -> MutexGuard<'_, Inbox> {
        self.inbox.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Applies a change at once, or queues it while the dataplane is in use or earlier changes are queued.
    fn receive(&self, change: ReceivedChange<'_>) {
        let mut inbox = self.inbox();
        let (count, which) = match change {
            ReceivedChange::Service(..) => (&mut inbox.pending.services, 0),
            ReceivedChange::Slice(..) => (&mut inbox.pending.slices, 1),
        };
        *count = count.saturating_add(1);
        if let Some(metrics) = self.metrics.get() {
            metrics.pending[which].inc();
            let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
            metrics.last_queued.set(now.as_secs_f64());
        }
        let free = if inbox.queue.is_empty() { self.free_plane() } else { None };
        match free {
            Some(mut plane) => change.apply(&mut plane),
            None if inbox.queue.len() < QUEUE_LEN_MAX => inbox.queue.push(change.into_owned()),
            None => {
                drop(inbox);
                change.apply(&mut self.updated_plane());
            }
        }
        self.notify();
    }

    /// Records the zone of this node and, where its pods are recognised by them, its blocks of pod addresses.
    pub fn node_changed(&self, zone: Option<&str>, local_traffic: Option<LocalTraffic>) {
        // Not applied here: it makes the driver compile every Service.
        let mut inbox = self.inbox();
        inbox.zone = Some(zone.map(Into::into));
        if local_traffic.is_some() {
            inbox.local_traffic = local_traffic;
        }
        drop(inbox);
        self.notify();
    }

    /// Guards addresses of load balancers that interfaces of this node still have, until another call leaves them out.
    pub fn guard_assigned(&self, addresses: &BTreeSet<IpAddr>) {
        self.inbox().assigned_addresses = Some(addresses.clone());
        self.notify();
    }

    /// Takes the changes since the last call.
    pub fn take_pending_changes(&self) -> PendingChanges {
        std::mem::take(&mut self.inbox().pending)
    }

    /// Wakes the driver.
    pub fn notify(&self) {
        self.changed.notify_one();
    }

    /// Returns after the next notification, or at once if there was one since the last call. Cancel safe.
    pub async fn changed(&self) {
        self.changed.notified().await;
    }

    /// Returns once both sources are synced. Cancel safe.
    pub async fn synced(&self) {
        // The sender lives in self: the channel cannot close.
        let _ = self.synced.subscribe().wait_for(|sources| *sources >= SOURCES).await;
    }
}

impl ChangeHandler for DesiredForwarding {
    fn service_changed(&self, id: &ServiceId, service: Option<Arc<LocalService>>) {
        self.receive(ReceivedChange::Service(Cow::Borrowed(id), service));
    }

    fn slice_changed(
        &self,
        name: &str,
        old: Option<&Arc<LocalSlice>>,
        new: Option<Arc<LocalSlice>>,
    ) {
        self.receive(ReceivedChange::Slice(Cow::Borrowed(name), old.cloned(), new));
    }

    /// While the dataplane is in use the name is kept twice, which costs only memory.
    fn intern_service_id(&self, id: ServiceId) -> ServiceId {
        match self.free_plane() {
            Some(plane) => plane.intern_service_id(&id),
            None => id,
        }
    }

    /// Ignores the initial list: its objects may be of any age.
    fn slice_triggered(&self, at: SystemTime) {
        let mut inbox = self.inbox();
        if *self.synced.borrow() >= SOURCES && inbox.pending.triggers.len() < TRIGGERS_MAX {
            inbox.pending.triggers.push(at);
        }
    }

    fn source_complete(&self) {
        self.synced.send_modify(|sources| *sources = sources.saturating_add(1));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proto_daemon::metrics::{BuildInfo, Metrics};
    use proxy_netfilter::nft::Family;
    use proxy_netfilter::nft::numbers::TableFlags;
    use proxy_rules::frontend_owners::Claim;
    use proxy_rules::layout::Layout;
    use proxy_rules::model::{AddressRanges, Announcing, Settings};

    fn desired() -> DesiredForwarding {
        let ranges = AddressRanges::new(&["192.0.2.0/24".parse().unwrap()]).unwrap();
        let announcing = ranges.map(|ranges| Announcing { node: "node".into(), ranges });
        DesiredForwarding::new(Dataplane::new(Layout {
            table: "t".into(),
            flags: TableFlags::NONE,
            families: vec![Family::Ip],
            settings: Settings { announcing, ..Settings::default() },
        }))
    }

    #[test]
    fn changes_while_the_dataplane_is_in_use_are_queued_and_applied_in_order() {
        let desired = desired();
        let id = |name: &str| ServiceId::new("ns", name);
        let service = || Some(Arc::new(LocalService::default()));
        let held = desired.plane();
        // Both would wait for the dataplane forever.
        desired.service_changed(&id("a"), service());
        desired.service_changed(&id("b"), service());
        desired.service_changed(&id("a"), None);
        assert_eq!(desired.intern_service_id(id("c")), id("c"));
        assert_eq!(held.services_len(), 0);
        drop(held);
        assert_eq!(desired.plane().services_len(), 0, "only a pass takes changes in");
        assert_eq!(desired.updated_plane().services_len(), 1);
        assert_eq!(desired.take_pending_changes().services, 3);
    }

    #[test]
    fn assigned_addresses_are_guarded_with_the_next_pass() {
        let desired = desired();
        let address = "192.0.2.50".parse().unwrap();
        desired.guard_assigned(&BTreeSet::from([address]));
        let guarded = |desired: &DesiredForwarding| {
            let mut plane = desired.updated_plane();
            plane.load();
            plane.owner(&Claim::LoadBalancerIp(address)).is_some()
        };
        assert!(guarded(&desired));
        desired.service_changed(&ServiceId::new("ns", "a"), None);
        assert!(guarded(&desired), "until it is withdrawn");
        desired.guard_assigned(&BTreeSet::new());
        assert!(!guarded(&desired));
        assert_eq!(desired.plane().services_len(), 0);
    }

    #[test]
    fn a_full_queue_is_applied_by_the_watch_itself() {
        let desired = desired();
        let id = |n: usize| ServiceId::new("ns", &n.to_string());
        let held = desired.plane();
        for n in 0..QUEUE_LEN_MAX {
            desired.service_changed(&id(n), Some(Arc::default()));
        }
        drop(held);
        assert_eq!(desired.inbox().queue.len(), QUEUE_LEN_MAX);
        desired.service_changed(&id(QUEUE_LEN_MAX), Some(Arc::default()));
        assert_eq!(desired.inbox().queue.len(), 0);
        assert_eq!(desired.plane().services_len(), QUEUE_LEN_MAX + 1);
    }

    #[test]
    fn the_metrics_count_changes_until_they_are_committed() {
        let desired = desired();
        let build = BuildInfo { version: "0", commit: "x" };
        let registry = Metrics::new("test", build).unwrap();
        let metrics = ProxyMetrics::register(&registry, "x").unwrap();
        desired.service_changed(&ServiceId::new("ns", "a"), Some(Arc::default()));
        desired.set_metrics(metrics.clone());
        desired.slice_changed("s", None, Some(Arc::new(LocalSlice::default())));
        desired.slice_changed("s", None, Some(Arc::new(LocalSlice::default())));
        assert_eq!(metrics.pending.map(|gauge| gauge.get()), [1, 2]);
        assert!(metrics.last_queued.get() > 0.0, "also while the driver is busy");
    }
}
