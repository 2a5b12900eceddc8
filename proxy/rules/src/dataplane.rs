//! The model of all Services on this node, and what each change of it does to the tables.
//!
//! A change only marks its Service; [`Dataplane::pass`] compiles each marked Service once, however many changes there
//! were, and compares its elements with the previous ones. The cost follows the Services that changed, not the number
//! of Services.

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::net::IpAddr;
use std::sync::Arc;

use proxy_netfilter::nft::{Family, TableRules, Value};

use crate::announced_addresses::AnnouncedAddresses;
use crate::compile::{CompiledService, SetElement};
use crate::frontend_owners::{Claim, FrontendOwners};
use crate::hash::FastMap;
use crate::health::HealthChecks;
use crate::layout::{Layout, Map};
use crate::model::{
    LocalService, LocalSlice, LocalTraffic, Protocol, RemovedEndpointPolicy, ServiceId, Topology,
    family_of,
};
use crate::node_ports::{NodePortService, NodePorts};
use crate::stale::{StaleFlows, connections};
use crate::transaction::{Load, Transaction};

mod budgets;
mod loaded_tables;
mod recompile;
mod slices;
use budgets::Budgets;
use loaded_tables::LoadedTables;
use slices::Slices;

/// TCP connections of one Service that a pass resets; others end by conntrack timeouts.
const RESETS_MAX: usize = 1 << 16;

/// The compiled Services of this node.
#[derive(Clone, Debug)]
pub struct Dataplane {
    layout: Arc<Layout>,
    /// Boxed, because up to half of a hash map's slots are empty.
    services: FastMap<ServiceId, Box<ServiceState>>,
    services_len: usize,
    pending: Pending,
    claims: FrontendOwners,
    /// This node's zone, if known.
    zone: Option<Box<str>>,
    health_checks: TrackedHealthChecks,
    published: Published,
    /// Ports with dropped traffic because the policy is Local, internal and external.
    without_local_endpoints: [usize; 2],
    budgets: Budgets,
    isolate: IsolateFn,
    tables: LoadedTables,
}

/// What is not served by the tables alone, as of the last pass.
#[derive(Clone, Debug, Default)]
struct Published {
    node_ports: NodePorts,
    announced: AnnouncedAddresses,
}

/// What the next pass works off.
#[derive(Clone, Debug, Default)]
struct Pending {
    /// Each once, in the order of marking: that of the list, and so of memory.
    marked: Vec<ServiceId>,
    /// Removed endpoints of each Service.
    removed_endpoints: Vec<(ServiceId, RemovedEndpoints)>,
}

/// Health check results.
#[derive(Clone, Debug, Default)]
struct TrackedHealthChecks {
    all: HealthChecks,
    /// Whether they changed since the last call.
    changed: bool,
}

/// A Service or its EndpointSlices, or both.
#[derive(Clone, Debug, Default)]
struct ServiceState {
    service: Option<Arc<LocalService>>,
    slices: Slices,
    compiled: CompiledService,
    mark: Mark,
}

/// Whether the next pass compiles a Service, and why.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
enum Mark {
    #[default]
    None,
    /// There may be more room for it.
    Turn,
    /// It is another one now.
    Changed,
}

impl ServiceState {
    /// Marks the Service, whose description or endpoints changed.
    fn mark(&mut self, id: &ServiceId, marked: &mut Vec<ServiceId>) {
        self.mark_as(Mark::Changed, id, marked);
    }

    fn mark_as(&mut self, mark: Mark, id: &ServiceId, marked: &mut Vec<ServiceId>) {
        if self.mark == Mark::None {
            marked.push(id.clone());
        }
        self.mark = self.mark.max(mark);
    }
}

/// Endpoints removed by one change of an EndpointSlice.
#[derive(Clone, Debug)]
struct RemovedEndpoints {
    addresses: Vec<IpAddr>,
    /// Their TCP ports.
    ports: Vec<u16>,
}

/// The result of a pass.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Pass {
    /// Only elements change.
    Change(Transaction),
    /// The tables must be loaded with [`Dataplane::load`]: for the first time, because a map is full, or because rules
    /// do not look up a map that gets its first element.
    Reload,
}

/// Runs work and catches panics; false if it panicked.
pub type IsolateFn = fn(&mut dyn FnMut()) -> bool;

/// Each changed element before and after; `None` where it does not exist.
type ElementChanges = BTreeMap<(Family, Map, Value), (Option<SetElement>, Option<SetElement>)>;

impl Dataplane {
    /// A node without Services.
    pub fn new(layout: Layout) -> Self {
        Self {
            layout: Arc::new(layout),
            services: FastMap::default(),
            services_len: 0,
            pending: Pending::default(),
            claims: FrontendOwners::default(),
            zone: None,
            health_checks: TrackedHealthChecks::default(),
            published: Published::default(),
            without_local_endpoints: [0; 2],
            budgets: Budgets::default(),
            isolate: |work| {
                work();
                true
            },
            tables: LoadedTables::empty(),
        }
    }

    /// The layout of the tables.
    pub fn layout(&self) -> &Arc<Layout> {
        &self.layout
    }

    /// Renames the tables; takes effect with the next load.
    pub fn rename(&mut self, table: &str) {
        if self.layout.table != table {
            Arc::make_mut(&mut self.layout).table = table.to_owned();
        }
    }

    /// Requires a load: the kernel's state is unknown.
    pub fn invalidate(&mut self) {
        self.tables.is_loaded = false;
    }

    /// Number of forwarded Services.
    pub fn services_len(&self) -> usize {
        self.services_len
    }

    /// Sets a Service, or removes it.
    pub fn service_changed(&mut self, id: &ServiceId, service: Option<Arc<LocalService>>) {
        if service.is_none() && !self.services.contains_key(id) {
            return;
        }
        self.services_len = self.services_len.saturating_add(usize::from(service.is_some()));
        let id = self.intern_service_id(id);
        let record = self.services.entry(id.clone()).or_default();
        self.services_len = self.services_len.saturating_sub(usize::from(record.service.is_some()));
        record.service = service;
        record.mark(&id, &mut self.pending.marked);
    }

    /// Guards addresses of load balancers that interfaces of this node still have, whatever has become of their Services, until it has withdrawn them.
    pub fn guard_assigned(&mut self, addresses: &BTreeSet<IpAddr>) {
        let assigned = LocalService {
            load_balancer_ips: addresses.iter().copied().collect(),
            announced_by: Some(Box::default()),
            ..LocalService::default()
        };
        let services_len = self.services_len;
        // No object of the API: those have a namespace.
        let id = ServiceId::new("", "assigned-addresses");
        self.service_changed(&id, (!addresses.is_empty()).then(|| Arc::new(assigned)));
        self.services_len = services_len;
    }

    /// The same name in memory that the model has already, to keep it once.
    pub fn intern_service_id(&self, id: &ServiceId) -> ServiceId {
        self.services.get_key_value(id).map_or(id, |(known, _)| known).clone()
    }

    /// Sets an EndpointSlice, or removes it. `old` is its previous state, possibly of another Service; `name`
    /// identifies it within its Service.
    pub fn slice_changed(
        &mut self,
        name: &str,
        old: Option<&LocalSlice>,
        new: Option<Arc<LocalSlice>>,
    ) {
        if let Some(old) = old {
            self.record_removed(old, new.as_deref());
        }
        let moved = |old: &&LocalSlice| new.as_ref().is_none_or(|new| new.service != old.service);
        if let Some(old) = old.filter(moved)
            && let Some(record) = self.services.get_mut(&old.service)
        {
            record.slices.set(name, None);
            record.mark(&old.service, &mut self.pending.marked);
        }
        if let Some(new) = new {
            let id = self.intern_service_id(&new.service);
            let record = self.services.entry(id.clone()).or_default();
            record.slices.set(name, Some(new));
            record.mark(&id, &mut self.pending.marked);
        }
    }

    /// The Service that owns a claim.
    pub fn owner(&self, claim: &Claim) -> Option<&ServiceId> {
        self.claims.owner(claim)
    }

    /// Sets this node's zone.
    pub fn zone_changed(&mut self, zone: Option<&str>) {
        if self.zone.as_deref() == zone {
            return;
        }
        self.zone = zone.map(Into::into);
        let near = |record: &ServiceState| {
            record.service.as_ref().is_some_and(|service| service.topology == Topology::Hints)
        };
        for (id, record) in self.services.iter_mut().filter(|(_, record)| near(record)) {
            record.mark(id, &mut self.pending.marked);
        }
    }

    /// Sets how traffic of pods is detected. Rules depend on it, so a change requires a load.
    pub fn local_traffic_changed(&mut self, local_traffic: LocalTraffic) {
        if self.layout.settings.local_traffic != local_traffic {
            Arc::make_mut(&mut self.layout).settings.local_traffic = local_traffic;
            self.tables.is_loaded = false;
        }
    }

    /// Enables [`Dataplane::changed_node_ports`].
    pub fn track_node_ports(&mut self) {
        self.published.node_ports.enable_tracking();
    }

    /// Services with node ports that were compiled since the last call, as they are now; `None` for those that have
    /// none any more.
    pub fn changed_node_ports(&mut self) -> Vec<(ServiceId, Option<NodePortService>)> {
        let changed = self.published.node_ports.take_changed().into_iter();
        let now = |id: ServiceId| {
            let record = self.services.get(&id);
            let now = record.and_then(|record| {
                NodePortService::from_service(record.service.as_ref()?, record.slices.named())
            });
            (id, now)
        };
        changed.map(now).collect()
    }

    /// Ports with dropped traffic because the policy is Local and this node has no endpoint: for cluster IPs, and for
    /// external addresses and node ports.
    pub fn without_local_endpoints(&self) -> [usize; 2] {
        self.without_local_endpoints
    }

    /// Whether a pass has something to compile: after a change, or as the namespace of a Service has room for more of it.
    pub fn has_marked(&self) -> bool {
        !self.pending.marked.is_empty()
    }

    /// Services that are not forwarded completely, because they or their namespace exceed their budget, or because their compilation panicked.
    pub fn over_budget(&self) -> &BTreeSet<ServiceId> {
        &self.budgets.exceeded
    }

    /// Compiles each Service with `isolate`, so that a panic affects that Service alone.
    pub fn isolate_with(&mut self, isolate: IsolateFn) {
        self.isolate = isolate;
    }

    /// This node's zone, if known.
    pub fn zone(&self) -> Option<&str> {
        self.zone.as_deref()
    }

    /// Health check results as of the last pass, if they changed since the last call.
    pub fn changed_health_checks(&mut self) -> Option<HealthChecks> {
        std::mem::take(&mut self.health_checks.changed).then(|| self.health_checks.all.clone())
    }

    /// The load balancers' addresses that this node announces as of the last pass, if they changed since the last call.
    pub fn changed_announced_addresses(&mut self) -> Option<BTreeSet<IpAddr>> {
        self.published.announced.take_changed()
    }

    /// Records removed endpoints whose connections are to be reset, if that is enabled.
    fn record_removed(&mut self, old: &LocalSlice, new: Option<&LocalSlice>) {
        if !self.tables.is_loaded || self.layout.settings.removed == RemovedEndpointPolicy::Left {
            return;
        }
        let stays: HashSet<IpAddr> =
            new.into_iter().flat_map(|new| new.endpoints.iter().map(|e| e.address)).collect();
        proto_api::count_steps!(old.endpoints.len().saturating_add(stays.len()));
        let all = old.endpoints.iter().map(|e| e.address);
        let addresses: Vec<IpAddr> = all.filter(|address| !stays.contains(address)).collect();
        let tcp = old.ports.iter().filter(|port| port.protocol == Protocol::Tcp);
        let ports: Vec<u16> = tcp.map(|port| port.port).collect();
        if !addresses.is_empty() && !ports.is_empty() {
            self.pending
                .removed_endpoints
                .push((old.service.clone(), RemovedEndpoints { addresses, ports }));
        }
    }

    /// Connections to recorded endpoints that no EndpointSlice of their Service contains any more.
    fn resets(&mut self) -> Vec<StaleFlows> {
        let mut by_service: BTreeMap<ServiceId, Vec<RemovedEndpoints>> = BTreeMap::new();
        for (id, gone) in std::mem::take(&mut self.pending.removed_endpoints) {
            by_service.entry(id).or_default().push(gone);
        }
        let mut resets = Vec::new();
        for (id, gone) in by_service {
            let Some(record) = self.services.get(&id) else { continue };
            let endpoints = record.slices.iter().flat_map(|slice| slice.endpoints.iter());
            let there: HashSet<IpAddr> = endpoints.map(|endpoint| endpoint.address).collect();
            proto_api::count_steps!(there.len());
            let lost = gone.iter().flat_map(|gone| {
                let addresses = gone.addresses.iter().filter(|address| !there.contains(address));
                addresses.flat_map(|address| gone.ports.iter().map(|port| (*address, *port)))
            });
            let flows = lost.flat_map(|(address, port)| {
                let served = record.compiled.served_addresses(Protocol::Tcp);
                let served = served.filter(move |(family, ..)| *family == family_of(address));
                served.map(move |(_, at, number)| {
                    connections((at, number), Protocol::Tcp, (address, port))
                })
            });
            resets.extend(flows.take(RESETS_MAX));
        }
        proto_api::count_steps!(resets.len());
        resets
    }

    /// Compiles the marked Services and returns the changes for the kernel.
    pub fn pass(&mut self) -> Pass {
        if !self.tables.is_loaded {
            return Pass::Reload;
        }
        let resets = self.resets();
        let transaction = Transaction { resets, ..self.compile_marked() };
        if !self.tables.apply(&transaction) {
            self.tables.is_loaded = false;
            return Pass::Reload;
        }
        Pass::Change(transaction)
    }

    /// Compiles the marked Services and returns all tables. Maps get room to grow.
    pub fn load(&mut self) -> Load {
        self.pending.removed_endpoints.clear();
        let entries = self.compile_all();
        self.tables = LoadedTables::with(&entries, &self.layout);
        Load { tables: self.skeletons(), entries }
    }

    /// The desired tables, as of the last pass.
    pub fn tables(&self) -> Vec<(Family, TableRules)> {
        Load { tables: self.skeletons(), entries: self.entries() }.into_tables(&self.layout)
    }

    /// The desired tables without the elements of Services.
    pub fn skeletons(&self) -> Vec<(Family, TableRules)> {
        let families = self.layout.families.iter();
        families.map(|family| (*family, self.tables.skeleton(&self.layout, *family))).collect()
    }
}

#[cfg(test)]
mod tests;

#[cfg(test)]
mod feature_tests;

#[cfg(test)]
mod cost_tests;
