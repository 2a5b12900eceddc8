//! The service controller: gives Services of type LoadBalancer addresses of the flag's ranges, and names the node that announces them. A controller of a
//! cloud does this elsewhere; here the nodes' proxies announce the addresses on the network of the nodes.
//!
//! What is allocated stands in the statuses of the Services alone. Of two Services with one address the older keeps it.

mod announcing_node;
mod ranges;

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;

use proto_api::ObjectKey;
use proto_api::core::v1::{LoadBalancerIngress, Node, Service};
use proto_api::discovery::v1::EndpointSlice;
use proto_api::event_report::{EventKind, EventReport, reference};
use proto_api::names::Names;
use serde_json::json;

use crate::Plan;
use crate::addresses::{Family, families};
use crate::api_writes::{ApiWrite, ObjectKind, Part};

pub use ranges::{AddressRange, AddressRangeError, AddressRanges, TooManyRanges};

/// What the plan of a Service depends on besides the Service.
pub struct Surroundings<'a> {
    /// The naming profile.
    pub names: &'a Names,
    /// The ranges of the flag.
    pub ranges: &'a AddressRanges,
    /// All Services.
    pub services: &'a [Arc<Service>],
    /// All nodes.
    pub nodes: &'a [Arc<Node>],
    /// The EndpointSlices of the Service's namespace.
    pub slices: &'a [Arc<EndpointSlice>],
}

/// The addresses of the last plan of each Service, by uid: caches may not show them yet.
#[derive(Debug, Default)]
pub struct PlannedAddresses(BTreeMap<String, BTreeSet<IpAddr>>);

/// What is planned for a Service.
#[derive(Debug, Default)]
pub struct AddressPlan {
    pub plan: Plan,
    /// Why it lacks an address that may become free.
    pub shortage: Option<AddressShortage>,
}

/// A Service lacks an address, until another Service releases it.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("Service {service} has no address: {cause}")]
pub struct AddressShortage {
    service: ObjectKey,
    cause: AllocationError,
}

/// Why a Service does not get an address. The texts are those of events.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
enum AllocationError {
    #[error("no available IPs")]
    Exhausted,
    #[error("{0:?} is not allowed in config")]
    NotInRanges(String),
    #[error("address {0} has none of the Service's IP families")]
    OtherFamily(IpAddr),
    #[error("address {0} is also in use by {1}")]
    InUse(IpAddr, ObjectKey),
}

/// What this controller has to do with a Service.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Role {
    /// It is given addresses.
    Allocate,
    /// It has another type, and keeps none.
    Release,
    /// Its class is another controller's.
    Leave,
}

fn role(names: &Names, service: &Service) -> Role {
    let spec = &service.spec;
    match spec.load_balancer_class.as_deref() {
        _ if spec.type_ != "LoadBalancer" => Role::Release,
        Some(class) if !class.is_empty() && class != names.load_balancer_class() => Role::Leave,
        _ => Role::Allocate,
    }
}

/// The addresses of a Service's status.
fn of_status(service: &Service) -> impl Iterator<Item = IpAddr> {
    service.status.load_balancer.ingress.iter().filter_map(|entry| entry.ip.parse().ok())
}

/// The annotation with the announcing node.
fn announcing_node<'a>(names: &Names, service: &'a Service) -> Option<&'a str> {
    service.metadata.annotations.get(&names.load_balancer_node()).map(String::as_str)
}

/// Whether a plan of the Service may have writes: most Services need none.
fn is_concerned(names: &Names, service: &Service) -> bool {
    let has_some = !service.status.load_balancer.ingress.is_empty();
    match role(names, service) {
        Role::Allocate => true,
        Role::Release => has_some || announcing_node(names, service).is_some(),
        Role::Leave => false,
    }
}

/// Whether a change of its endpoints may move the addresses of a Service.
pub fn follows_endpoints(names: &Names, service: &Service) -> bool {
    role(names, service) == Role::Allocate && service.spec.external_traffic_policy == "Local"
}

/// The Services to plan after a change of one: itself; if its addresses changed, also those that lack one or have the same.
pub fn affected_by_service(
    names: &Names,
    new: Option<&Service>,
    old: Option<&Service>,
    all: impl FnOnce() -> Vec<Arc<Service>>,
) -> Vec<ObjectKey> {
    let concerned = [new, old].into_iter().flatten().find(|found| is_concerned(names, found));
    let Some(service) = concerned else { return Vec::new() };
    let mut keys = vec![ObjectKey::of(&service.metadata)];
    let addresses = |service: Option<&Service>| -> BTreeSet<IpAddr> {
        service.into_iter().flat_map(of_status).collect()
    };
    let (now, before) = (addresses(new), addresses(old));
    // When it is first seen, all others are planned for their own sake.
    if old.is_none() || now == before {
        return keys;
    }
    let is_affected = |other: &Arc<Service>| {
        let has = of_status(other).collect::<BTreeSet<_>>();
        let lacks = has.len() < families(other).len() || !other.spec.load_balancer_ip.is_empty();
        role(names, other) == Role::Allocate && (lacks || !has.is_disjoint(&now))
    };
    let others = all().into_iter().filter(is_affected);
    keys.extend(others.map(|other| ObjectKey::of(&other.metadata)));
    keys
}

/// The Services to plan after a change of a node: all with addresses if it can announce them no more, or can again.
pub fn affected_by_node(
    names: &Names,
    new: Option<&Node>,
    old: Option<&Node>,
    all: impl FnOnce() -> Vec<Arc<Service>>,
) -> Vec<ObjectKey> {
    let able =
        |node: Option<&Node>| node.is_some_and(|node| announcing_node::can_announce(names, node));
    if able(new) == able(old) && new.is_some() {
        return Vec::new();
    }
    let mut services = all();
    services.retain(|service| role(names, service) == Role::Allocate);
    services.iter().map(|service| ObjectKey::of(&service.metadata)).collect()
}

impl PlannedAddresses {
    /// Plans the addresses of a Service and the node that announces them.
    pub fn plan(&mut self, around: &Surroundings<'_>, service: &Service) -> AddressPlan {
        let uids: BTreeSet<&str> =
            around.services.iter().map(|service| service.metadata.uid.as_str()).collect();
        self.0.retain(|uid, _| uids.contains(uid.as_str()));
        if service.metadata.deletion_timestamp.is_some() {
            // It releases them when it is gone.
            return AddressPlan::default();
        }
        let (addresses, planned) = match role(around.names, service) {
            Role::Leave => Default::default(),
            Role::Release => (BTreeSet::new(), release(around, service)),
            Role::Allocate => self.allocate(around, service),
        };
        match addresses.is_empty() {
            true => self.0.remove(&service.metadata.uid),
            false => self.0.insert(service.metadata.uid.clone(), addresses),
        };
        planned
    }

    fn allocate(
        &self,
        around: &Surroundings<'_>,
        service: &Service,
    ) -> (BTreeSet<IpAddr>, AddressPlan) {
        let ingress = &service.status.load_balancer.ingress;
        if !ingress.iter().all(|entry| is_ours(around.ranges, entry)) {
            // Another controller has given it an address.
            return Default::default();
        }
        let (taken, asked) = (self.taken(around, service), asked_address(service));
        let refusal = refusal(around.ranges, service, asked);
        let mut errors: Vec<AllocationError> = refusal.iter().cloned().collect();
        let mut chosen = Vec::new();
        for family in families(service).into_iter().filter(|family| around.ranges.has(*family)) {
            let is_of = |address: &IpAddr| family_of(*address) == family;
            let kept = of_status(service)
                .find(|address| is_of(address) && !taken.is_lost(*address, service));
            let free = || around.ranges.free(family, &taken.addresses());
            let (address, error) = match (asked.filter(is_of), &refusal) {
                (Some(wanted), None) if kept == Some(wanted) => (kept, None),
                (Some(wanted), None) => match taken.users.get(&wanted) {
                    None => (Some(wanted), None),
                    // A Service that asks for one address gets no other, but keeps what it has.
                    Some(user) => (kept, Some(AllocationError::InUse(wanted, user.clone()))),
                },
                (Some(_), Some(_)) => (kept, None),
                // What it asks for is no address of any family.
                (None, Some(AllocationError::NotInRanges(_))) if asked.is_none() => (kept, None),
                (None, _) => match kept.or_else(free) {
                    None => (None, Some(AllocationError::Exhausted)),
                    found => (found, None),
                },
            };
            chosen.extend(address);
            errors.extend(error);
        }
        let plan = write(around, service, &chosen, &errors);
        let is_passing = |error: &&AllocationError| {
            matches!(error, AllocationError::Exhausted | AllocationError::InUse(..))
        };
        let shortage = errors.iter().find(is_passing).map(|cause| AddressShortage {
            service: ObjectKey::of(&service.metadata),
            cause: cause.clone(),
        });
        (chosen.into_iter().collect(), AddressPlan { plan, shortage })
    }

    /// The addresses that nodes have, and other Services by their statuses and by the last plans.
    fn taken(&self, around: &Surroundings<'_>, service: &Service) -> TakenAddresses {
        let mut taken = TakenAddresses::default();
        for node in around.nodes {
            let addresses = node.status.addresses.iter();
            for address in addresses.filter_map(|address| address.address.parse().ok()) {
                let user = || ObjectKey::new("", &node.metadata.name);
                taken.users.entry(address).or_insert_with(user);
            }
        }
        for other in around.services.iter().filter(|o| o.metadata.uid != service.metadata.uid) {
            let user = ObjectKey::of(&other.metadata);
            for address in of_status(other) {
                let age = age(other);
                let oldest = taken.shown.entry(address).or_insert_with(|| age.clone());
                *oldest = age.min(oldest.clone());
                taken.users.entry(address).or_insert_with(|| user.clone());
            }
            for address in self.0.get(&other.metadata.uid).into_iter().flatten() {
                taken.users.entry(*address).or_insert_with(|| user.clone());
            }
        }
        taken
    }
}

/// When a Service was created, and its uid: the smaller is the older.
type Age = (Option<i64>, String);

fn age(service: &Service) -> Age {
    let metadata = &service.metadata;
    (metadata.creation_timestamp.unix(), metadata.uid.clone())
}

/// The addresses of nodes and of other Services.
#[derive(Default)]
struct TakenAddresses {
    users: BTreeMap<IpAddr, ObjectKey>,
    /// The oldest Service whose status has the address.
    shown: BTreeMap<IpAddr, Age>,
}

impl TakenAddresses {
    fn addresses(&self) -> BTreeSet<IpAddr> {
        self.users.keys().copied().collect()
    }

    /// Whether an older Service has the address too.
    fn is_lost(&self, address: IpAddr, service: &Service) -> bool {
        self.shown.get(&address).is_some_and(|oldest| *oldest < age(service))
    }
}

fn family_of(address: IpAddr) -> Family {
    if address.is_ipv4() { Family::V4 } else { Family::V6 }
}

/// Whether an entry of a status is an address of our ranges.
fn is_ours(ranges: &AddressRanges, entry: &LoadBalancerIngress) -> bool {
    let in_ranges = |address: IpAddr| ranges.contains(address);
    entry.hostname.is_empty() && entry.ip.parse().is_ok_and(in_ranges)
}

/// `spec.loadBalancerIP`; `None` also for a text that is no address.
fn asked_address(service: &Service) -> Option<IpAddr> {
    service.spec.load_balancer_ip.parse().ok()
}

/// Why the Service cannot have the address that it asks for, even if it is free.
fn refusal(
    ranges: &AddressRanges,
    service: &Service,
    asked: Option<IpAddr>,
) -> Option<AllocationError> {
    let text = &service.spec.load_balancer_ip;
    match asked {
        Some(address) if !families(service).contains(&family_of(address)) => {
            Some(AllocationError::OtherFamily(address))
        }
        Some(address) if ranges.contains(address) => None,
        None if text.is_empty() => None,
        _ => Some(AllocationError::NotInRanges(text.clone())),
    }
}

/// Writes addresses and node if they differ from what the Service has.
fn write(
    around: &Surroundings<'_>,
    service: &Service,
    addresses: &[IpAddr],
    errors: &[AllocationError],
) -> Plan {
    let current = announcing_node(around.names, service);
    let node = match addresses.is_empty() {
        true => None,
        false => {
            announcing_node::choose(around.names, service, current, around.nodes, around.slices)
        }
    };
    let wanted: BTreeSet<IpAddr> = addresses.iter().copied().collect();
    let present: BTreeSet<IpAddr> = of_status(service).collect();
    let entries = service.status.load_balancer.ingress.len();
    let moves = wanted != present || entries != present.len();
    let mut events = Events { about: service, names: around.names, reports: Vec::new() };
    for error in errors {
        let key = ObjectKey::of(&service.metadata);
        let message = format!("Failed to allocate IP for \"{key}\": {error}");
        events.add(EventKind::Warning, "AllocationFailed", message);
    }
    let mut plan = Plan::default();
    if moves || node.as_deref() != current {
        let ingress = moves.then(|| {
            addresses.iter().map(|address| json!({ "ip": address.to_string() })).collect()
        });
        plan.writes.push(patch(around.names, service, node.as_deref(), ingress));
        events.add_of_write(&wanted, &present, node.as_deref(), current);
    }
    plan.reports = events.reports;
    plan
}

/// Empties what this controller wrote into the status of a Service that has another type now.
fn release(around: &Surroundings<'_>, service: &Service) -> AddressPlan {
    let ingress = &service.status.load_balancer.ingress;
    let of_others = ingress.iter().filter(|entry| !is_ours(around.ranges, entry));
    let left: Vec<_> = of_others.map(|entry| json!(entry)).collect();
    let has_ours = left.len() < ingress.len();
    if !has_ours && announcing_node(around.names, service).is_none() {
        return AddressPlan::default();
    }
    let mut events = Events { about: service, names: around.names, reports: Vec::new() };
    events.add(EventKind::Normal, "DeletedLoadBalancer", "Deleted load balancer".to_owned());
    let mut plan = Plan::of([patch(around.names, service, None, has_ours.then_some(left))]);
    plan.reports = events.reports;
    AddressPlan { plan, shortage: None }
}

/// One write of both, which status requests of Services may do.
fn patch(
    names: &Names,
    service: &Service,
    node: Option<&str>,
    ingress: Option<Vec<serde_json::Value>>,
) -> ApiWrite {
    let (annotation, version) = (names.load_balancer_node(), &service.metadata.resource_version);
    let annotations = json!({ annotation: node });
    let mut patch =
        json!({ "metadata": { "resourceVersion": version, "annotations": annotations } });
    if let (Some(ingress), Some(fields)) = (ingress, patch.as_object_mut()) {
        fields.insert("status".into(), json!({ "loadBalancer": { "ingress": ingress } }));
    }
    let key = ObjectKey::of(&service.metadata);
    ApiWrite::Patch { kind: ObjectKind::Service, key, part: Part::Status, patch }
}

/// The events of a plan. Reasons and texts are those of Kubernetes' service controller and of MetalLB.
struct Events<'a> {
    about: &'a Service,
    names: &'a Names,
    reports: Vec<EventReport>,
}

impl Events<'_> {
    fn add(&mut self, kind: EventKind, reason: &'static str, message: String) {
        let about = reference(self.about, self.names);
        self.reports.push(EventReport { about, kind, reason: reason.into(), message });
    }

    fn add_of_write(
        &mut self,
        wanted: &BTreeSet<IpAddr>,
        present: &BTreeSet<IpAddr>,
        node: Option<&str>,
        before: Option<&str>,
    ) {
        if !wanted.is_subset(present) {
            let texts: Vec<String> = wanted.iter().map(|a| format!("\"{a}\"")).collect();
            let message = format!("Assigned IP [{}]", texts.join(" "));
            self.add(EventKind::Normal, "IPAllocated", message);
            let message = "Ensured load balancer".to_owned();
            self.add(EventKind::Normal, "EnsuredLoadBalancer", message);
        }
        match node {
            Some(node) if Some(node) != before => {
                let message = format!("announcing from node \"{node}\"");
                self.add(EventKind::Normal, "nodeAssigned", message);
            }
            None if !wanted.is_empty() => {
                let message = "There are no available nodes for LoadBalancer".to_owned();
                self.add(EventKind::Warning, "UnAvailableLoadBalancer", message);
            }
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests;
