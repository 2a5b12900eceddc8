//! The endpoint controller: the Endpoints of a Service with a selector, in its primary IP family.

use std::collections::BTreeMap;

use proto_api::ObjectKey;
use proto_api::core::v1::{
    EndpointAddress, EndpointPort, EndpointSubset, Endpoints, Pod, Service, ServicePort,
};
use proto_api::meta::v1::ObjectMeta;
use proto_api::names::Names;

use crate::Plan;
use crate::addresses::{
    families, has_ended, has_selector, hostname, ip, is_ready, is_terminating, last_trigger,
    protocol, selected, service_labels, target_ref, trigger_annotation,
};
use crate::api_writes::{ApiWrite, ObjectKind};
use crate::target_ports::{Cut, NamedPorts, TargetPorts};

/// Maximum number of addresses in an Endpoints object, as in Kubernetes.
const ADDRESSES_MAX: usize = 1000;

/// Plans the Endpoints of a Service. `pods` are those that it may select.
pub fn plan<P: AsRef<Pod>>(
    names: &Names,
    service: Option<&Service>,
    pods: &[P],
    existing: Option<&Endpoints>,
) -> Plan {
    let Some(service) = service else { return Plan::from_writes(existing.map(delete)) };
    if !has_selector(service) {
        return Plan::default();
    }
    let pods = selected(service, pods);
    let (mut subsets, cut) = subsets(service, &pods);
    let cut = if truncate(&mut subsets) == Cut::Yes { Cut::Yes } else { cut };
    let labels = service_labels(names, service);
    let over_capacity = names.sub_label("endpoints", "over-capacity");
    let was_cut = existing.is_some_and(|e| e.metadata.annotations.contains_key(&over_capacity));
    if let Some(existing) = existing
        && existing.subsets == subsets
        && existing.metadata.labels == labels
        && was_cut == (cut == Cut::Yes)
    {
        return Plan::default();
    }
    let mut metadata = existing.map_or_else(|| new_metadata(service), |e| e.metadata.clone());
    metadata.labels = labels;
    metadata.annotations.remove(&over_capacity);
    if cut == Cut::Yes {
        metadata.annotations.insert(over_capacity, "truncated".to_owned());
    }
    if let Some(trigger) = last_trigger(service, &pods) {
        metadata.annotations.insert(trigger_annotation(names), trigger.to_string());
    }
    let endpoints = Endpoints { metadata, subsets };
    Plan::from_writes([match existing {
        Some(_) => ApiWrite::Update(endpoints.into()),
        None => ApiWrite::Create(endpoints.into()),
    }])
}

fn delete(existing: &Endpoints) -> ApiWrite {
    ApiWrite::Delete {
        kind: ObjectKind::Endpoints,
        key: ObjectKey::from_metadata(&existing.metadata),
        uid: existing.metadata.uid.clone(),
        grace_secs: None,
    }
}

fn new_metadata(service: &Service) -> ObjectMeta {
    ObjectMeta {
        name: service.metadata.name.clone(),
        namespace: service.metadata.namespace.clone(),
        ..ObjectMeta::default()
    }
}

/// Name, number, protocol and application protocol of a port, by which subsets and ports are sorted.
type SubsetPort = (String, i32, String, Option<String>);

/// Groups the addresses by ports, sorted.
fn subsets(service: &Service, pods: &[&Pod]) -> (Vec<EndpointSubset>, Cut) {
    let family = families(service).first().copied();
    let targets = TargetPorts::from_service(service);
    let mut by_named: BTreeMap<NamedPorts, EndpointSubset> = BTreeMap::new();
    for pod in pods {
        let Some(ip) = family.and_then(|family| ip(pod, family)) else { continue };
        let publish_anyway = service.spec.publish_not_ready_addresses;
        if is_terminating(pod) && !publish_anyway {
            continue;
        }
        // The address of a finished pod may be assigned to another pod.
        if has_ended(pod) {
            continue;
        }
        let ready = is_ready(pod) || publish_anyway;
        let group = by_named.entry(targets.named_ports(pod)).or_default();
        let address = EndpointAddress {
            ip: ip.to_owned(),
            hostname: hostname(service, pod).unwrap_or_default(),
            node_name: (!pod.spec.node_name.is_empty()).then(|| pod.spec.node_name.clone()),
            target_ref: Some(target_ref(pod)),
        };
        match ready {
            true => group.addresses.push(address),
            false => group.not_ready_addresses.push(address),
        }
    }
    let mut groups: BTreeMap<Vec<SubsetPort>, EndpointSubset> = BTreeMap::new();
    let cut = targets.groups(by_named, |ports, mut subset| {
        if ports.is_empty() && !service.spec.ports.is_empty() {
            return;
        }
        let group = groups.entry(subset_ports(ports)).or_default();
        group.addresses.append(&mut subset.addresses);
        group.not_ready_addresses.append(&mut subset.not_ready_addresses);
    });
    (groups.into_iter().map(|(ports, subset)| finish(ports, subset)).collect(), cut)
}

fn subset_ports(ports: Vec<(&ServicePort, i32)>) -> Vec<SubsetPort> {
    let port = |(port, number): (&ServicePort, i32)| {
        let protocol = protocol(&port.protocol).to_owned();
        (port.name.clone(), number, protocol, port.app_protocol.clone())
    };
    let mut ports: Vec<SubsetPort> = ports.into_iter().map(port).collect();
    ports.sort();
    ports
}

fn finish(ports: Vec<SubsetPort>, mut subset: EndpointSubset) -> EndpointSubset {
    subset.addresses.sort_by(|a, b| a.ip.cmp(&b.ip));
    subset.not_ready_addresses.sort_by(|a, b| a.ip.cmp(&b.ip));
    let port =
        |(name, port, protocol, app_protocol)| EndpointPort { name, port, protocol, app_protocol };
    EndpointSubset { ports: ports.into_iter().map(port).collect(), ..subset }
}

/// Keeps at most [`ADDRESSES_MAX`] addresses, ready ones first, in proportion to the subsets.
fn truncate(subsets: &mut Vec<EndpointSubset>) -> Cut {
    let count = |s: &EndpointSubset| s.addresses.len().saturating_add(s.not_ready_addresses.len());
    if subsets.iter().map(count).sum::<usize>() <= ADDRESSES_MAX {
        return Cut::No;
    }
    let kept = share_out(subsets.iter_mut().map(|s| &mut s.addresses).collect(), ADDRESSES_MAX);
    let room = ADDRESSES_MAX.saturating_sub(kept);
    share_out(subsets.iter_mut().map(|s| &mut s.not_ready_addresses).collect(), room);
    subsets.retain(|subset| count(subset) > 0);
    Cut::Yes
}

/// Truncates the lists in proportion to `room`, rounded up while some is left. Returns the number of kept addresses.
fn share_out(lists: Vec<&mut Vec<EndpointAddress>>, room: usize) -> usize {
    let total: usize = lists.iter().map(|list| list.len()).sum();
    if total <= room {
        return total;
    }
    let mut left = room;
    for list in lists {
        let part = list.len().saturating_mul(room).div_ceil(total.max(1));
        list.truncate(part.min(left));
        left = left.saturating_sub(list.len());
    }
    room.saturating_sub(left)
}

#[cfg(test)]
mod tests;
