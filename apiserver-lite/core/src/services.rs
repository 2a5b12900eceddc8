//! Allocation of cluster IPs and node ports for Services.
//!
//! A [`Reservation`] allocates at once, so that concurrent requests cannot get the same value, and releases its values unless it
//! is committed. The allocations are rebuilt from the stored Services at start-up.

#![cfg_attr(not(test), warn(clippy::arithmetic_side_effects))]

mod node_ports;
mod peers;
mod service_range;

use std::collections::{HashMap, HashSet};
use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use apiserver_schema::{Map, Object, Value};
use proto_api::Cidr;
use rand::RngExt as _;

pub use node_ports::{PortRange, PortRangeError};
pub use peers::PeerServices;
pub use service_range::ServiceRange;

use peers::{ServiceChange, ServiceChanges};

use crate::saved_states::HeldState;
use crate::service_values::{AllocatedValues, texts};
use crate::status::FieldProblem;

/// Allocated cluster IPs and node ports.
#[derive(Debug)]
pub struct ServiceAllocations {
    ranges: Vec<Cidr>,
    ports: PortRange,
    /// Allocated addresses, with the uid of their Service.
    addresses: HashMap<IpAddr, String>,
    /// Allocated node ports, with the uid of their Service.
    node_ports: HashMap<u16, String>,
    /// The Services that other servers write, where a store has several.
    peers: Option<PeerServices>,
}

/// Values allocated for a Service that is being written. Released when dropped before [`Reservation::commit`].
#[derive(Debug, Default)]
pub struct Reservation {
    allocations: Option<Arc<Mutex<ServiceAllocations>>>,
    /// Of the Service.
    uid: String,
    taken: AllocatedValues,
    /// Values of the stored Service that the new one no longer has; released on commit.
    dropped: AllocatedValues,
    /// Held until the values are those of a stored Service, or released.
    held: HeldState,
}

impl ServiceAllocations {
    /// No allocations, in these ranges.
    #[must_use]
    pub fn new(ranges: Vec<Cidr>, ports: PortRange) -> Self {
        let (addresses, node_ports) = (HashMap::new(), HashMap::new());
        Self { ranges, ports, addresses, node_ports, peers: None }
    }

    /// Takes the values of Services that other servers write as well. What two servers give out at the same time the store refuses to one of them: the
    /// values are claims of the Service there.
    pub fn follow(&mut self, peers: PeerServices) {
        self.peers = Some(peers);
    }

    /// Takes what other servers have written since, and gives back what they have deleted.
    fn bring_up_to_date(&mut self) {
        let Some(mut peers) = self.peers.take() else { return };
        match peers.take_changes() {
            ServiceChanges::Each(changes) => {
                for ServiceChange { before, now } in changes {
                    before.iter().for_each(|before| self.release(before.object()));
                    now.iter().for_each(|now| self.adopt(now.object()));
                }
            }
            // Reservations of requests that are under way are forgotten; their claims remain.
            ServiceChanges::Restarted(services) => {
                self.addresses.clear();
                self.node_ports.clear();
                services.iter().for_each(|service| self.adopt(service.object()));
            }
        }
        self.peers = Some(peers);
    }

    /// Marks the values of a stored Service as allocated.
    pub fn adopt(&mut self, service: &Object) {
        let allocated = AllocatedValues::from_service(service);
        let uid = service.uid().to_owned();
        self.addresses
            .extend(allocated.addresses.into_iter().map(|address| (address, uid.clone())));
        self.node_ports.extend(allocated.node_ports.into_iter().map(|port| (port, uid.clone())));
    }

    #[cfg(test)]
    pub(crate) fn has_address(&self, address: IpAddr) -> bool {
        self.addresses.contains_key(&address)
    }

    /// Gives back the values of a Service, unless another one has them by now.
    fn release(&mut self, service: &Object) {
        self.release_of(service.uid(), &AllocatedValues::from_service(service));
    }

    fn release_of(&mut self, uid: &str, allocated: &AllocatedValues) {
        for address in &allocated.addresses {
            if self.addresses.get(address).is_some_and(|owner| owner == uid) {
                self.addresses.remove(address);
            }
        }
        for port in &allocated.node_ports {
            if self.node_ports.get(port).is_some_and(|owner| owner == uid) {
                self.node_ports.remove(port);
            }
        }
    }

    fn free_address(&self, range: Cidr) -> Option<IpAddr> {
        let usable = range.usable();
        let start = rand::rng().random_range(0..usable.max(1));
        (0..usable)
            .filter_map(|step| start.saturating_add(step).checked_rem(usable))
            .map(|step| range.nth(step.saturating_add(1)))
            .find(|at| !self.addresses.contains_key(at))
    }

    fn free_port(&self) -> Option<u16> {
        let count = self.ports.count();
        let start = rand::rng().random_range(0..count);
        let nth = |step: u32| {
            let at = start.saturating_add(step).checked_rem(count);
            let at = at.and_then(|at| u16::try_from(at).ok()).unwrap_or(0);
            self.ports.first.saturating_add(at)
        };
        (0..count).map(nth).find(|port| !self.node_ports.contains_key(port))
    }
}

impl Reservation {
    /// Holds the state until the reservation has ended.
    #[must_use]
    pub fn holding(mut self, held: HeldState) -> Self {
        self.held = held;
        self
    }

    /// Called once the write is durable: keeps the new values and releases those that the Service gave up.
    pub fn commit(mut self) {
        self.taken = AllocatedValues::default();
        if let Some(allocations) = self.allocations.take() {
            locked(&allocations).release_of(&self.uid, &self.dropped);
        }
    }
}

impl Drop for Reservation {
    fn drop(&mut self) {
        if let Some(allocations) = &self.allocations {
            locked(allocations).release_of(&self.uid, &self.taken);
        }
    }
}

/// Marks the values of these Services as allocated, and no others.
pub fn adopt_only<'a>(
    allocations: &Mutex<ServiceAllocations>,
    services: impl Iterator<Item = &'a Object>,
) {
    let mut allocations = locked(allocations);
    let mut fresh = ServiceAllocations::new(allocations.ranges.clone(), allocations.ports);
    fresh.peers = allocations.peers.take();
    services.for_each(|service| fresh.adopt(service));
    *allocations = fresh;
}

/// Releases the values of a deleted Service.
pub fn release(allocations: &Mutex<ServiceAllocations>, service: &Object) {
    locked(allocations).release(service);
}

fn locked(allocations: &Mutex<ServiceAllocations>) -> MutexGuard<'_, ServiceAllocations> {
    // Every change under the lock is a single insert or remove, so a panic leaves no partial state.
    allocations.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Allocates the addresses and ports that `service` requests or lacks, and writes them into it. `old` is the stored version.
///
/// # Errors
/// The field whose value cannot be allocated.
pub(crate) fn reserve(
    allocations: &Arc<Mutex<ServiceAllocations>>,
    service: &mut Object,
    old: Option<&Object>,
) -> Result<Reservation, Vec<FieldProblem>> {
    let before = old.map(AllocatedValues::from_service).unwrap_or_default();
    let mut reservation = Reservation::default();
    reservation.allocations = Some(allocations.clone());
    let uid = service.uid().to_owned();
    reservation.uid.clone_from(&uid);
    let mut guard = locked(allocations);
    guard.bring_up_to_date();
    let mut allocator = Allocator {
        allocations: &mut guard,
        before: &before,
        taken: &mut reservation.taken,
        uid: &uid,
    };
    let spec = service.fields.map_or_insert("spec");
    let outcome = allocator.addresses(spec).and_then(|()| allocator.ports(spec));
    drop(guard);
    // On failure the reservation is dropped here and releases its values.
    outcome.map_err(|problem| vec![problem])?;
    reservation.dropped = before.without(&AllocatedValues::from_service(service));
    Ok(reservation)
}

struct Allocator<'a> {
    allocations: &'a mut ServiceAllocations,
    before: &'a AllocatedValues,
    taken: &'a mut AllocatedValues,
    uid: &'a str,
}

impl Allocator<'_> {
    fn addresses(&mut self, spec: &mut Map) -> Result<(), FieldProblem> {
        if spec.str("type") == "ExternalName" {
            ["clusterIP", "clusterIPs", "ipFamilies", "ipFamilyPolicy"]
                .iter()
                .for_each(|field| drop(spec.remove(field)));
            return Ok(());
        }
        let given = given_addresses(spec);
        let families = self.families(spec, &given)?;
        let names: Vec<Value> = families.iter().map(|range| Value::from(range.family())).collect();
        let policy = if names.len() == 2 && !spec.contains("ipFamilyPolicy") {
            "PreferDualStack"
        } else {
            "SingleStack"
        };
        if !spec.contains("ipFamilyPolicy") {
            spec.insert("ipFamilyPolicy", policy);
        }
        spec.insert("ipFamilies", names);
        if given.first().is_some_and(|first| first == "None") {
            spec.insert("clusterIP", "None");
            spec.insert("clusterIPs", vec![Value::from("None")]);
            return Ok(());
        }
        let mut allocated = Vec::new();
        for (index, range) in families.iter().enumerate() {
            allocated.push(self.address(*range, given.get(index).map(String::as_str))?.to_string());
        }
        spec.insert("clusterIP", allocated.first().cloned().unwrap_or_default());
        spec.insert("clusterIPs", allocated.into_iter().map(Value::from).collect::<Vec<_>>());
        Ok(())
    }

    /// The ranges of the Service's IP families, the primary one first.
    fn families(&self, spec: &Map, given: &[String]) -> Result<Vec<Cidr>, FieldProblem> {
        let range = |family: &str| {
            self.allocations.ranges.iter().copied().find(|range| range.family() == family)
        };
        let mut wanted: Vec<String> = texts(spec.list("ipFamilies")).map(str::to_owned).collect();
        if wanted.is_empty() {
            let parsed = given.iter().filter_map(|text| text.parse::<IpAddr>().ok());
            wanted =
                parsed.map(|at| if at.is_ipv6() { "IPv6" } else { "IPv4" }.to_owned()).collect();
        }
        let mut ranges = Vec::new();
        for family in &wanted {
            ranges.push(range(family).ok_or_else(|| {
                FieldProblem::invalid(
                    "spec.ipFamilies",
                    format!("[{family:?}]"),
                    "not configured on this cluster",
                )
            })?);
        }
        if ranges.is_empty() {
            ranges.extend(self.allocations.ranges.first());
        }
        let policy = spec.str("ipFamilyPolicy");
        if ranges.len() == 1 && matches!(policy, "PreferDualStack" | "RequireDualStack") {
            ranges.extend(
                self.allocations.ranges.iter().copied().find(|other| Some(other) != ranges.first()),
            );
        }
        if policy == "RequireDualStack" && ranges.len() < 2 {
            let detail = "this cluster is not configured for dual-stack services";
            return Err(FieldProblem::invalid(
                "spec.ipFamilyPolicy",
                format!("{policy:?}"),
                detail,
            ));
        }
        if policy == "SingleStack" {
            ranges.truncate(1);
        }
        Ok(ranges)
    }

    fn address(&mut self, range: Cidr, given: Option<&str>) -> Result<IpAddr, FieldProblem> {
        let Some(text) = given else {
            let free = self.allocations.free_address(range).ok_or_else(|| {
                FieldProblem::invalid(
                    "spec.clusterIPs",
                    "[]",
                    &format!("failed to allocate a serviceIP: range {range} is full"),
                )
            })?;
            self.take_address(free);
            return Ok(free);
        };
        let refuse = |why: String| {
            let detail = format!("failed to allocate IP {text}: {why}");
            FieldProblem::invalid("spec.clusterIPs", format!("[{text:?}]"), &detail)
        };
        let address: IpAddr = text.parse().map_err(|_| refuse("not a valid IP".to_owned()))?;
        if self.before.addresses.contains(&address) {
            return Ok(address);
        }
        if !range.is_usable(address) {
            return Err(refuse(format!(
                "the provided IP is not in the valid range. The range of valid IPs is {range}"
            )));
        }
        if self.allocations.addresses.contains_key(&address) {
            return Err(refuse("provided IP is already allocated".to_owned()));
        }
        self.take_address(address);
        Ok(address)
    }

    fn take_address(&mut self, address: IpAddr) {
        self.allocations.addresses.insert(address, self.uid.to_owned());
        self.taken.addresses.insert(address);
    }

    fn ports(&mut self, spec: &mut Map) -> Result<(), FieldProblem> {
        let kind = spec.str("type").to_owned();
        let wanted = match kind.as_str() {
            "NodePort" => true,
            "LoadBalancer" => {
                spec.get("allocateLoadBalancerNodePorts").and_then(Value::as_bool).unwrap_or(true)
            }
            _ => false,
        };
        // A Service may use one node port for several protocols.
        let mut own = self.before.node_ports.clone();
        for (index, port) in spec.maps_mut("ports").enumerate() {
            let field = format!("spec.ports[{index}].nodePort");
            match port.int("nodePort").filter(|given| *given != 0) {
                Some(given) => own.extend(self.port(&field, given, &own)?),
                None if wanted => {
                    let free = self.any_port(&field)?;
                    own.insert(free);
                    port.insert("nodePort", i64::from(free));
                }
                None => {}
            }
        }
        let checks_health = checks_health(spec);
        let given = spec.int("healthCheckNodePort").filter(|given| *given != 0);
        match given {
            Some(given) if checks_health => {
                let _ = self.port("spec.healthCheckNodePort", given, &own)?;
            }
            None if checks_health => {
                let free = self.any_port("spec.healthCheckNodePort")?;
                spec.insert("healthCheckNodePort", i64::from(free));
            }
            _ => {}
        }
        Ok(())
    }

    fn port(
        &mut self,
        field: &str,
        given: i64,
        own: &HashSet<u16>,
    ) -> Result<Option<u16>, FieldProblem> {
        let refuse = |why: &str| FieldProblem::invalid(field, given, why);
        let range = self.allocations.ports;
        let port =
            u16::try_from(given).ok().filter(|_| range.contains(given)).ok_or_else(|| {
                refuse(&format!(
                    "provided port is not in the valid range. The range of valid ports is {range}"
                ))
            })?;
        if own.contains(&port) {
            return Ok(None);
        }
        if self.allocations.node_ports.contains_key(&port) {
            return Err(refuse("provided port is already allocated"));
        }
        self.take_port(port);
        Ok(Some(port))
    }

    fn any_port(&mut self, field: &str) -> Result<u16, FieldProblem> {
        let free = self.allocations.free_port();
        let free = free.ok_or_else(|| {
            FieldProblem::invalid(field, 0, "failed to allocate a nodePort: range is full")
        })?;
        self.take_port(free);
        Ok(free)
    }

    fn take_port(&mut self, port: u16) {
        self.allocations.node_ports.insert(port, self.uid.to_owned());
        self.taken.node_ports.insert(port);
    }
}

/// The requested addresses: `clusterIPs`, or `clusterIP` alone.
fn given_addresses(spec: &Map) -> Vec<String> {
    let many: Vec<String> = texts(spec.list("clusterIPs")).map(str::to_owned).collect();
    match spec.str("clusterIP") {
        "" => many,
        one if many.is_empty() => vec![one.to_owned()],
        _ => many,
    }
}

/// Removes fields that belong to the old type and were not changed together with the type.
fn drop_old_type(spec: &mut Map, before: &Map) {
    let kind = spec.str("type").to_owned();
    let external = ["externalTrafficPolicy"];
    let balanced = ["allocateLoadBalancerNodePorts", "loadBalancerClass", "healthCheckNodePort"];
    let addressed = ["clusterIP", "clusterIPs", "ipFamilies", "ipFamilyPolicy"];
    let foreign: &[&[&str]] = match kind.as_str() {
        "LoadBalancer" => &[],
        "NodePort" => &[&balanced],
        "ExternalName" => &[&external, &balanced, &addressed],
        _ => &[&external, &balanced],
    };
    for field in foreign.concat() {
        if spec.get(field).is_some() && spec.get(field) == before.get(field) {
            spec.remove(field);
        }
    }
}

/// Copies allocated values into an update that leaves them out, and removes fields of the old type.
pub(crate) fn carry_over(service: &mut Object, old: &Object) {
    let Some(before) = old.spec().cloned() else { return };
    let spec = service.fields.map_or_insert("spec");
    let uses_ports = |spec: &Map| matches!(spec.str("type"), "NodePort" | "LoadBalancer");
    if before.str("type") != "ExternalName" && spec.str("type") != "ExternalName" {
        if spec.str("clusterIP").is_empty() && spec.list("clusterIPs").is_empty() {
            for field in ["clusterIP", "clusterIPs"] {
                before
                    .get(field)
                    .cloned()
                    .into_iter()
                    .for_each(|value| drop(spec.insert(field, value)));
            }
        } else if spec.list("clusterIPs") == before.list("clusterIPs")
            && !matches!(spec.str("clusterIP"), "" | "None")
            && spec.str("clusterIP") != before.str("clusterIP")
        {
            // A client that sets only `clusterIP` means the first of `clusterIPs` too.
            let mut addresses = spec.list("clusterIPs").to_vec();
            if let Some(first) = addresses.first_mut() {
                *first = Value::from(spec.str("clusterIP"));
                spec.insert("clusterIPs", addresses);
            }
        } else if spec.list("clusterIPs").is_empty()
            && spec.str("clusterIP") == before.str("clusterIP")
        {
            before
                .get("clusterIPs")
                .cloned()
                .into_iter()
                .for_each(|value| drop(spec.insert("clusterIPs", value)));
        }
        for field in ["ipFamilies", "ipFamilyPolicy"] {
            if !spec.contains(field) {
                before
                    .get(field)
                    .cloned()
                    .into_iter()
                    .for_each(|value| drop(spec.insert(field, value)));
            }
        }
    }
    if spec.str("type") != before.str("type") {
        drop_old_type(spec, &before);
    }
    let now_uses_ports = uses_ports(spec);
    if !uses_ports(&before) {
        return;
    }
    let of = |port: &Map| (port.int("port"), port.str("protocol").to_owned());
    let node_ports: HashMap<_, _> =
        before.maps("ports").map(|port| (of(port), port.int("nodePort").unwrap_or(0))).collect();
    for port in spec.maps_mut("ports") {
        let was = node_ports.get(&of(port)).copied().unwrap_or(0);
        match port.int("nodePort").unwrap_or(0) {
            0 if now_uses_ports && was != 0 => drop(port.insert("nodePort", was)),
            now if !now_uses_ports && now == was => drop(port.remove("nodePort")),
            _ => {}
        }
    }
    let field = "healthCheckNodePort";
    if checks_health(spec) && spec.int(field).unwrap_or(0) == 0 {
        before.get(field).cloned().into_iter().for_each(|port| drop(spec.insert(field, port)));
    } else if !checks_health(spec) && spec.get(field) == before.get(field) {
        spec.remove(field);
    }
}

/// Whether a Service has a health check node port: a load balancer with the external traffic policy `Local`.
fn checks_health(spec: &Map) -> bool {
    spec.str("type") == "LoadBalancer" && spec.str("externalTrafficPolicy") == "Local"
}
