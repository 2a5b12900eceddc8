//! The service controller: gives Services of type LoadBalancer addresses of the flag's ranges, and names the node that announces them. A controller of a
//! cloud does this elsewhere; here the nodes' proxies announce the addresses on the network of the nodes.
//!
//! What is allocated stands in the statuses of the Services alone. Of two Services with one address the older keeps it. The annotation with the node says that
//! a Service's addresses are this controller's, also where the ranges do not have them any more.

mod address_users;
mod announcing_node;

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::sync::Arc;

use proto_api::core::v1::{LoadBalancerIngress, Node, Service};
use proto_api::discovery::v1::EndpointSlice;
use proto_api::event_report::{EventKind, EventReport, reference};
use proto_api::names::Names;
use proto_api::{AddressRanges, ObjectKey};
use serde_json::json;

use crate::Plan;
use crate::addresses::{Family, families};
use crate::api_writes::{ApiWrite, ObjectKind, Part};

pub use address_users::{AddressUsers, has_surplus_addresses};
use announcing_node::can_announce;

/// What the plan of a Service depends on besides the Service.
pub struct Surroundings<'a> {
    /// The naming profile.
    pub names: &'a Names,
    /// The ranges of the flag.
    pub ranges: &'a AddressRanges,
    /// All nodes.
    pub nodes: &'a [Arc<Node>],
    /// The EndpointSlices of the Service's namespace.
    pub slices: &'a [Arc<EndpointSlice>],
}

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
    /// Its class is another controller's. It keeps none of ours either, if it had another type before.
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

/// Whether a change of its endpoints may move the addresses of a Service.
pub fn follows_endpoints(names: &Names, service: &Service) -> bool {
    role(names, service) == Role::Allocate && service.spec.external_traffic_policy == "Local"
}

impl AddressUsers {
    /// Plans the addresses of a Service and the node that announces them.
    pub fn plan(&mut self, around: &Surroundings<'_>, service: &Service) -> AddressPlan {
        let key = ObjectKey::from_metadata(&service.metadata);
        // A deleted Service releases its addresses when it is gone. If that is so already, its last state is planned too late.
        if service.metadata.deletion_timestamp.is_some() || !self.has(&key, service) {
            return AddressPlan::default();
        }
        let (addresses, planned) = match role(around.names, service) {
            Role::Leave | Role::Release => (BTreeSet::new(), release(around, service)),
            Role::Allocate => self.allocate(around, service),
        };
        self.set_planned(&key, addresses);
        planned
    }

    fn allocate(
        &self,
        around: &Surroundings<'_>,
        service: &Service,
    ) -> (BTreeSet<IpAddr>, AddressPlan) {
        let ingress = &service.status.load_balancer.ingress;
        if !ingress.iter().all(|entry| is_ours(around, service, entry)) {
            // Another controller has given it an address.
            return Default::default();
        }
        let (key, asked) = (ObjectKey::from_metadata(&service.metadata), asked_address(service));
        let refusal = refusal(around.ranges, service, asked);
        let mut errors: Vec<AllocationError> = refusal.iter().cloned().collect();
        let mut chosen = Vec::new();
        for family in families(service) {
            let is_of = |address: &IpAddr| family_of(*address) == family;
            let kept = of_status(service)
                .find(|address| is_of(address) && !self.is_lost(*address, service));
            let is_ipv4 = family == Family::V4;
            if kept.is_none() && !around.ranges.has_family(is_ipv4) {
                continue;
            }
            let free = || around.ranges.free(is_ipv4, |address| self.is_taken(address, &key));
            let (address, error) = match (asked.filter(is_of), &refusal) {
                (Some(wanted), None) if kept == Some(wanted) => (kept, None),
                (Some(wanted), None) => match self.other_user(wanted, &key) {
                    None => (Some(wanted), None),
                    // A Service that asks for one address gets no other, but keeps what it has.
                    Some(user) => (kept, Some(AllocationError::InUse(wanted, user))),
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
        let shortage = errors.iter().find(is_passing);
        let shortage = shortage.map(|cause| AddressShortage { service: key, cause: cause.clone() });
        (chosen.into_iter().collect(), AddressPlan { plan, shortage })
    }
}

fn family_of(address: IpAddr) -> Family {
    if address.is_ipv4() { Family::V4 } else { Family::V6 }
}

/// Whether an entry of a status is this controller's: an address in the ranges, or one that was when its node was chosen.
fn is_ours(around: &Surroundings<'_>, service: &Service, entry: &LoadBalancerIngress) -> bool {
    let is_noted = announcing_node(around.names, service).is_some();
    let is_kept = is_noted && role(around.names, service) != Role::Leave;
    let is_ours = |address: IpAddr| is_kept || around.ranges.contains(address);
    entry.hostname.is_empty() && entry.ip.parse().is_ok_and(is_ours)
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
    let outside = addresses.iter().filter(|address| !around.ranges.contains(**address));
    let outside: Vec<IpAddr> = outside.copied().collect();
    let node = match addresses.is_empty() {
        true => None,
        false => {
            let (names, nodes) = (around.names, around.nodes);
            let chosen = announcing_node::choose(names, service, current, nodes, around.slices);
            // Without the annotation they would be another controller's.
            chosen.or_else(|| current.filter(|_| !outside.is_empty()).map(str::to_owned))
        }
    };
    let wanted: BTreeSet<IpAddr> = addresses.iter().copied().collect();
    let present: BTreeSet<IpAddr> = of_status(service).collect();
    let entries = service.status.load_balancer.ingress.len();
    let moves = wanted != present || entries != present.len();
    let mut events = Events { about: service, names: around.names, reports: Vec::new() };
    for error in errors {
        let key = ObjectKey::from_metadata(&service.metadata);
        let message = format!("Failed to allocate IP for \"{key}\": {error}");
        events.add(EventKind::Warning, "AllocationFailed", message);
    }
    for address in outside {
        let message = format!(
            "Address {address} is outside of the ranges of this cluster: it is kept until the Service is deleted, changes its type or asks for another address"
        );
        events.add(EventKind::Warning, "LoadBalancerIPOutOfRange", message);
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

/// Empties what this controller wrote into the status of a Service that has another type or class now.
fn release(around: &Surroundings<'_>, service: &Service) -> AddressPlan {
    let ingress = &service.status.load_balancer.ingress;
    let of_others = ingress.iter().filter(|entry| !is_ours(around, service, entry));
    let left: Vec<_> = of_others.map(|entry| json!(entry)).collect();
    let is_noted = announcing_node(around.names, service).is_some();
    let has_ours = left.len() < ingress.len();
    // The controller of another class may give out addresses of the same ranges: without the annotation they are not ours.
    let may_write = is_noted || role(around.names, service) == Role::Release;
    if !may_write || !(has_ours || is_noted) {
        return AddressPlan::default();
    }
    let mut events = Events { about: service, names: around.names, reports: Vec::new() };
    events.add(EventKind::Normal, "DeletedLoadBalancer", "Deleted load balancer".to_owned());
    let mut plan =
        Plan::from_writes([patch(around.names, service, None, has_ours.then_some(left))]);
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
    let key = ObjectKey::from_metadata(&service.metadata);
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
