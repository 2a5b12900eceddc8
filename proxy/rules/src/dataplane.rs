//! The state of one node's forwarding, and what each change does to it.
//!
//! Changes only mark services; [`Dataplane::pass`] compiles those that are marked, once each, however many
//! changes there were, and compares their elements with what they had before. The cost follows the services
//! that changed, never the number of services.

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::net::IpAddr;
use std::sync::Arc;

use proxy_netfilter::nft::{Family, TableRules, Value};

use crate::compile::{Compiled, SetElement};
use crate::frontend_owners::{Claim, FrontendOwners};
use crate::hash::FastMap;
use crate::health::HealthChecks;
use crate::layout::{Class, Layout, Map};
use crate::model::{
    Choice, LocalService, LocalSlice, LocalTraffic, Protocol, Removed, ServiceId, Topology,
    family_of,
};
use crate::node_ports::{NodePortService, NodePorts};
use crate::stale::{StaleFlows, connections};
use crate::transaction::{Load, Transaction};

mod recompile;
mod slices;
use slices::Slices;

/// Room of a map that is nearly empty.
const ROOM_MIN: usize = 256;
/// Elements from which on a map gets less room to grow: what the kernel keeps for it empty is a part of its cost.
const LARGE: usize = 1 << 15;
/// Clients that are remembered at most, of each family, where a service asks for it. More go to any endpoint.
const CLIENTS_MAX: usize = 1 << 16;
/// Classes that may come into use after a load before the tables are loaded again. Chains of those that are no longer in use
/// stay until then, and the kernel walks through all of them when one comes.
const CLASSES_SPARE: usize = 1024;
/// Connections of one service that a pass resets, at most; others end by their own timeouts.
const RESETS_MAX: usize = 1 << 16;

/// The services that this node forwards, compiled.
#[derive(Clone, Debug)]
pub struct Dataplane {
    layout: Arc<Layout>,
    /// Boxed, because up to half of the places of a map are empty.
    services: FastMap<ServiceId, Box<Record>>,
    /// Number of records with a service.
    services_len: usize,
    /// Each once, in the order in which they were marked: that of a list, and so of memory.
    marked: Vec<ServiceId>,
    /// Endpoints that went, and the services that they were of.
    gone: Vec<(ServiceId, Gone)>,
    claims: FrontendOwners,
    classes: BTreeSet<(Family, Class)>,
    /// Classes from which on the tables are loaded again.
    classes_max: usize,
    /// Maps of [`Map::SELDOM`] that rules ask.
    asked: BTreeSet<(Family, Map)>,
    /// Lengths of prefix that have a rule, in the order of the rules.
    prefixes: Vec<(Family, u8)>,
    /// The zone that this node is in, where it is known.
    zone: Option<Box<str>>,
    health_checks: HealthChecks,
    health_checks_changed: bool,
    node_ports: NodePorts,
    /// Ports whose traffic under a policy Local is dropped here, inside and outside.
    without_local_endpoints: [usize; 2],
    /// Services of which something is left out.
    cut: BTreeSet<ServiceId>,
    isolate: Isolate,
    fill: BTreeMap<(Family, Map), Fill>,
    /// Whether the tables have been loaded once.
    loaded: bool,
}

/// What is known of a service.
#[derive(Clone, Debug, Default)]
struct Record {
    service: Option<Arc<LocalService>>,
    slices: Slices,
    compiled: Compiled,
    marked: bool,
}

impl Record {
    fn mark(&mut self, id: &ServiceId, marked: &mut Vec<ServiceId>) {
        if !std::mem::replace(&mut self.marked, true) {
            marked.push(id.clone());
        }
    }
}

/// How full a map is.
#[derive(Clone, Copy, Debug, Default)]
struct Fill {
    elements: usize,
    room: usize,
}

/// Endpoints that went with one change of a slice.
#[derive(Clone, Debug)]
struct Gone {
    addresses: Vec<IpAddr>,
    /// Ports at which they served TCP.
    ports: Vec<u16>,
}

/// What a pass asks for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Pass {
    /// Nothing but these elements changes.
    Change(Transaction),
    /// The tables have to be loaded again, by [`Dataplane::load`]: they never were, a map is full, or one
    /// that rules do not ask holds something.
    Reload,
}

/// Runs work inside a boundary; false when it has panicked.
pub type Isolate = fn(&mut dyn FnMut()) -> bool;

/// Data of an element before and after; none where it is not there.
type Difference = BTreeMap<(Family, Map, Value), (Option<SetElement>, Option<SetElement>)>;

impl Dataplane {
    /// A node without services.
    pub fn new(layout: Layout) -> Self {
        Self {
            layout: Arc::new(layout),
            services: FastMap::default(),
            services_len: 0,
            marked: Vec::new(),
            gone: Vec::new(),
            claims: FrontendOwners::default(),
            classes: BTreeSet::new(),
            classes_max: CLASSES_SPARE,
            asked: BTreeSet::new(),
            prefixes: Vec::new(),
            zone: None,
            health_checks: HealthChecks::new(),
            health_checks_changed: false,
            node_ports: NodePorts::default(),
            without_local_endpoints: [0; 2],
            cut: BTreeSet::new(),
            isolate: |work| {
                work();
                true
            },
            fill: BTreeMap::new(),
            loaded: false,
        }
    }

    /// What the tables look like.
    pub fn layout(&self) -> &Arc<Layout> {
        &self.layout
    }

    /// Gives the tables another name, from the next load on.
    pub fn rename(&mut self, table: &str) {
        if self.layout.table != table {
            Arc::make_mut(&mut self.layout).table = table.to_owned();
        }
    }

    /// Asks for the tables to be loaded again: nobody knows what the kernel holds.
    pub fn invalidate(&mut self) {
        self.loaded = false;
    }

    /// Number of services that are forwarded.
    pub fn services_len(&self) -> usize {
        self.services_len
    }

    /// Notes a service as it is now, or that there is none.
    pub fn service_changed(&mut self, id: &ServiceId, service: Option<Arc<LocalService>>) {
        if service.is_none() && !self.services.contains_key(id) {
            return;
        }
        self.services_len += usize::from(service.is_some());
        let id = self.intern_service_id(id);
        let record = self.services.entry(id.clone()).or_default();
        self.services_len -= usize::from(record.service.is_some());
        record.service = service;
        record.mark(&id, &mut self.marked);
    }

    /// The same name as it is kept here, so that it is kept once.
    pub fn intern_service_id(&self, id: &ServiceId) -> ServiceId {
        self.services.get_key_value(id).map_or(id, |(known, _)| known).clone()
    }

    /// Notes a slice as it is now, or that there is none. `old` is what it was before; it may have belonged
    /// to another service. `name` tells the slices of a service apart.
    pub fn slice_changed(
        &mut self,
        name: &str,
        old: Option<&LocalSlice>,
        new: Option<Arc<LocalSlice>>,
    ) {
        if let Some(old) = old {
            self.note_gone(old, new.as_deref());
        }
        let moved = |old: &&LocalSlice| new.as_ref().is_none_or(|new| new.service != old.service);
        if let Some(old) = old.filter(moved)
            && let Some(record) = self.services.get_mut(&old.service)
        {
            record.slices.set(name, None);
            record.mark(&old.service, &mut self.marked);
        }
        if let Some(new) = new {
            let id = self.intern_service_id(&new.service);
            let record = self.services.entry(id.clone()).or_default();
            record.slices.set(name, Some(new));
            record.mark(&id, &mut self.marked);
        }
    }

    /// The service that has something.
    pub fn owner(&self, claim: &Claim) -> Option<&ServiceId> {
        self.claims.owner(claim)
    }

    /// Notes the zone that this node is in.
    pub fn zone_changed(&mut self, zone: Option<&str>) {
        if self.zone.as_deref() == zone {
            return;
        }
        self.zone = zone.map(Into::into);
        let near = |record: &Record| {
            record.service.as_ref().is_some_and(|service| service.topology == Topology::Hints)
        };
        for (id, record) in self.services.iter_mut().filter(|(_, record)| near(record)) {
            record.mark(id, &mut self.marked);
        }
    }

    /// Notes what tells the traffic of pods. Rules depend on it: where it is new the tables are loaded again.
    pub fn local_traffic_changed(&mut self, local_traffic: LocalTraffic) {
        if self.layout.settings.local_traffic != local_traffic {
            Arc::make_mut(&mut self.layout).settings.local_traffic = local_traffic;
            self.loaded = false;
        }
    }

    /// From now on [`Dataplane::changed_node_ports`] has something to tell.
    pub fn track_node_ports(&mut self) {
        self.node_ports.enable_tracking();
    }

    /// Services with node ports that the passes since this was asked last have compiled, as they are now; those that
    /// have none any more with nothing.
    pub fn changed_node_ports(&mut self) -> Vec<(ServiceId, Option<NodePortService>)> {
        let changed = self.node_ports.take_changed().into_iter();
        let now = |id: ServiceId| {
            let record = self.services.get(&id);
            let now = record.and_then(|record| {
                NodePortService::from_service(record.service.as_ref()?, record.slices.named())
            });
            (id, now)
        };
        changed.map(now).collect()
    }

    /// Ports of services whose traffic to cluster addresses, and to external addresses and node ports, is dropped here
    /// for want of endpoints on this node.
    pub fn without_local_endpoints(&self) -> [usize; 2] {
        self.without_local_endpoints
    }

    /// Services of which something is not forwarded: they would cost too much, or their compilation has panicked.
    pub fn cut(&self) -> &BTreeSet<ServiceId> {
        &self.cut
    }

    /// Has each service compiled inside a boundary, so that a panic is that service's alone.
    pub fn isolate_with(&mut self, isolate: Isolate) {
        self.isolate = isolate;
    }

    /// The zone that this node is in, where it is known.
    pub fn zone(&self) -> Option<&str> {
        self.zone.as_deref()
    }

    /// Answers to load balancers' health checks as of the last pass, if it changed since this was asked last.
    pub fn changed_health_checks(&mut self) -> Option<HealthChecks> {
        std::mem::take(&mut self.health_checks_changed).then(|| self.health_checks.clone())
    }

    /// Notes the endpoints whose connections are to be reset, where that is wanted.
    fn note_gone(&mut self, old: &LocalSlice, new: Option<&LocalSlice>) {
        if !self.loaded || self.layout.settings.removed == Removed::Left {
            return;
        }
        let stays: HashSet<IpAddr> =
            new.into_iter().flat_map(|new| new.endpoints.iter().map(|e| e.address)).collect();
        proto_api::count_steps!(old.endpoints.len() + stays.len());
        let all = old.endpoints.iter().map(|e| e.address);
        let addresses: Vec<IpAddr> = all.filter(|address| !stays.contains(address)).collect();
        let tcp = old.ports.iter().filter(|port| port.protocol == Protocol::Tcp);
        let ports: Vec<u16> = tcp.map(|port| port.port).collect();
        if !addresses.is_empty() && !ports.is_empty() {
            self.gone.push((old.service.clone(), Gone { addresses, ports }));
        }
    }

    /// Connections to endpoints that were noted as gone and that no slice of their service has any more.
    fn resets(&mut self) -> Vec<StaleFlows> {
        let mut by_service: BTreeMap<ServiceId, Vec<Gone>> = BTreeMap::new();
        for (id, gone) in std::mem::take(&mut self.gone) {
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
                let served = record.compiled.served(Protocol::Tcp);
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

    /// Compiles what is marked and says what the kernel has to change.
    pub fn pass(&mut self) -> Pass {
        if !self.loaded {
            return Pass::Reload;
        }
        let resets = self.resets();
        let transaction = Transaction { resets, ..self.compile_marked() };
        for (entries, grows) in [(&transaction.removed, false), (&transaction.added, true)] {
            for entry in entries {
                let fill = self.fill.entry((entry.family, entry.map)).or_default();
                fill.elements =
                    if grows { fill.elements + 1 } else { fill.elements.saturating_sub(1) };
            }
        }
        let no_room = self.fill.values().any(|fill| fill.elements > fill.room);
        let is_new = |e: &SetElement| {
            Map::SELDOM.contains(&e.map) && !self.asked.contains(&(e.family, e.map))
        };
        let nobody_asks = transaction.added.iter().any(is_new);
        let too_many = self.classes.len() + transaction.classes.len() > self.classes_max;
        if no_room
            || nobody_asks
            || too_many
            || transaction.classes.iter().any(|class| self.cannot_remember(class))
        {
            self.loaded = false;
            return Pass::Reload;
        }
        self.classes.extend(transaction.classes.iter().copied());
        self.prefixes.extend(&transaction.prefixes);
        Pass::Change(transaction)
    }

    /// Compiles what is marked and says what the tables are as a whole. Maps get room to grow.
    pub fn load(&mut self) -> Load {
        self.gone.clear();
        let entries = self.compile_all();
        self.classes =
            entries.iter().filter_map(|e| e.class().map(|class| (e.family, class))).collect();
        self.classes_max = self.classes.len() * 2 + CLASSES_SPARE;
        let ranges = entries.runs().filter(|run| run.map == Map::SourceRanges);
        let prefixes =
            ranges.flat_map(|run| run.entries).filter_map(|e| Some((e.family, e.prefix()?)));
        self.prefixes = prefixes.collect::<BTreeSet<_>>().into_iter().collect();
        let places = entries.runs().map(|run| (run.family, run.map));
        self.asked = places.filter(|(_, map)| Map::SELDOM.contains(map)).collect();
        self.fill.clear();
        for run in entries.runs() {
            self.fill.entry((run.family, run.map)).or_default().elements = run.entries.len();
        }
        let families = self.layout.families.iter();
        for place in families.flat_map(|family| Map::ALL.map(|map| (*family, map))) {
            let fill = self.fill.entry(place).or_default();
            fill.room = room(fill.elements);
        }
        for (family, _) in self.classes.iter().filter(|(_, class)| is_sticky(class)) {
            self.fill.entry((*family, Map::Affinity)).or_default().room = CLIENTS_MAX;
        }
        self.loaded = true;
        Load { tables: self.skeletons(), entries }
    }

    /// The tables as they should be, compiled as of the last pass.
    pub fn tables(&self) -> Vec<(Family, TableRules)> {
        Load { tables: self.skeletons(), entries: self.entries() }.into_tables(&self.layout)
    }

    /// The tables as they should be, without the elements of services.
    pub fn skeletons(&self) -> Vec<(Family, TableRules)> {
        self.layout.families.iter().map(|family| (*family, self.skeleton(*family))).collect()
    }

    fn skeleton(&self, family: Family) -> TableRules {
        let room = |map| self.fill.get(&(family, map)).map_or(ROOM_MIN, |fill| fill.room);
        let size = |map| u32::try_from(room(map)).unwrap_or(u32::MAX);
        let is_asked = |map| self.asked.contains(&(family, map));
        let mut table = self.layout.skeleton(family, size, is_asked);
        for (_, class) in self.classes.iter().filter(|(f, _)| *f == family) {
            self.layout.add_class(family, &mut table, *class);
        }
        for (_, bits) in self.prefixes.iter().filter(|(f, _)| *f == family) {
            self.layout.add_prefix(family, &mut table, *bits);
        }
        table
    }

    /// Whether a class remembers clients in a map that was made without room for them.
    fn cannot_remember(&self, (family, class): &(Family, Class)) -> bool {
        let room = self.fill.get(&(*family, Map::Affinity)).map_or(0, |fill| fill.room);
        is_sticky(class) && room < CLIENTS_MAX
    }
}

/// Room of a map that holds so many elements: twice as much, and of a large one a quarter more. The kernel gives a map a
/// power of two of buckets, four thirds of its room or more; all that they have room for is used.
fn room(elements: usize) -> usize {
    let wanted = if elements < LARGE { elements * 2 } else { elements + elements / 4 };
    let buckets = wanted.max(ROOM_MIN).saturating_mul(4).div_ceil(3).next_power_of_two();
    buckets / 4 * 3
}

fn is_sticky(class: &Class) -> bool {
    matches!(class, Class::Balance(_, Choice::Sticky(_), _))
}

#[cfg(test)]
mod tests;

#[cfg(test)]
mod feature_tests;

#[cfg(test)]
mod cost_tests;
