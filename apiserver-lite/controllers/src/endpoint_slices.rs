//! The endpointslice controller: the EndpointSlices of a Service with a selector. A change of one pod rewrites one slice.
//!
//! Slices are grouped by IP family and ports. In each group, obsolete endpoints are removed and changed ones updated in place. New endpoints are
//! added first to slices that change anyway, then to the fullest unchanged slice with enough space, then to new slices.

use std::collections::BTreeMap;
use std::sync::Arc;

use proto_api::ObjectKey;
use proto_api::core::v1::{Node, Pod, Service, ServicePort};
use proto_api::discovery::v1::{Endpoint, EndpointConditions, EndpointPort, EndpointSlice};
use proto_api::meta::v1::{ObjectMeta, OwnerReference};
use proto_api::names::Names;

use crate::Plan;
use crate::addresses::{
    families, has_ended, has_selector, hostname, ip, is_ready, is_terminating, last_trigger,
    protocol, selected, service_labels, target_ref, trigger_annotation,
};
use crate::api_writes::{ApiWrite, ObjectKind};
use crate::target_ports::{NamedPorts, TargetPorts};

/// The inputs of slices that are not part of a Service.
pub struct SliceContext<'a> {
    /// The naming profile.
    pub names: &'a Names,
    /// A Node, by name.
    pub node: &'a dyn Fn(&str) -> Option<Arc<Node>>,
    /// Maximum number of endpoints in a slice.
    pub endpoints_max: usize,
}

/// Plans the slices of a Service. `pods` are those that it may select, `existing` the Service's slices of this controller.
pub fn plan<P: AsRef<Pod>, S: AsRef<EndpointSlice>>(
    context: &SliceContext<'_>,
    service: Option<&Service>,
    pods: &[P],
    existing: &[S],
) -> Plan {
    let existing: Vec<&EndpointSlice> = existing.iter().map(AsRef::as_ref).collect();
    let Some(service) = service else { return Plan::from_writes(existing.into_iter().map(delete)) };
    if !has_selector(service) {
        return Plan::default();
    }
    let pods = selected(service, pods);
    let groups = group_endpoints(context, service, &pods);
    let trigger = last_trigger(service, &pods).map(|time| time.to_string());
    plan_groups(context, &template(context.names, service, trigger), groups, &existing)
}

/// Plans the slices of all groups; `template` is the metadata of new slices.
pub(super) fn plan_groups(
    context: &SliceContext<'_>,
    template: &ObjectMeta,
    groups: BTreeMap<Group, WantedEndpoints>,
    existing: &[&EndpointSlice],
) -> Plan {
    // There may be as many groups as slices.
    let mut by_group: BTreeMap<Group, Vec<&EndpointSlice>> = BTreeMap::new();
    for slice in existing {
        by_group.entry(group_of(slice)).or_default().push(slice);
    }
    let stray = by_group.iter().filter(|(group, _)| !groups.contains_key(group));
    let mut writes: Vec<ApiWrite> =
        stray.flat_map(|(_, slices)| slices.iter().map(|slice| delete(slice))).collect();
    for (group, wanted) in groups {
        let mut of_group = by_group.remove(&group).unwrap_or_default();
        of_group.sort_by(|a, b| a.metadata.name.cmp(&b.metadata.name));
        writes.extend(plan_group(context, template, &group, wanted, &of_group));
    }
    // No endpoint is missing between two writes.
    writes.sort_by_key(|write| match write {
        ApiWrite::Create(_) => 0,
        ApiWrite::Delete { .. } => 2,
        _ => 1,
    });
    Plan::from_writes(writes)
}

/// The controller that manages a slice, see the label `managed-by`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Manager {
    /// The endpointslice controller.
    Selector,
    /// The endpointslicemirroring controller.
    Mirror,
}

impl Manager {
    /// The value of the label.
    pub fn label(self, names: &Names) -> String {
        let controller = match self {
            Self::Selector => "endpointslice-controller",
            Self::Mirror => "endpointslicemirroring-controller",
        };
        format!("{controller}.{}", names.group_domain())
    }
}

/// The manager and the Service of a slice; none for slices of other managers.
pub fn origin(names: &Names, slice: &EndpointSlice) -> Option<(Manager, ObjectKey)> {
    let metadata = &slice.metadata;
    let label = metadata.labels.get(&names.sub_label("endpointslice", "managed-by"))?;
    let service = metadata.labels.get(&names.label("service-name"))?;
    let managers = [Manager::Selector, Manager::Mirror];
    let manager = managers.into_iter().find(|manager| manager.label(names) == *label)?;
    Some((manager, ObjectKey::new(&metadata.namespace, service)))
}

/// Whether a slice is one that this manager has made for a Service of the slice's namespace, see [`origin`]. The labels are made once for many slices.
pub fn has_origin(
    names: &Names,
    manager: Manager,
    service: &str,
) -> impl Fn(&EndpointSlice) -> bool {
    let (of_service, of_manager) =
        (names.label("service-name"), names.sub_label("endpointslice", "managed-by"));
    let manager = manager.label(names);
    move |slice| {
        let labels = &slice.metadata.labels;
        // Fewer slices have the Service than the manager.
        labels.get(&of_service).is_some_and(|found| found == service)
            && labels.get(&of_manager) == Some(&manager)
    }
}

// === Desired slices ===

/// IP family and ports; each port as name, number, protocol and application protocol.
pub(super) type Group = (String, Vec<SlicePort>);
pub(super) type SlicePort = (String, Option<i32>, String, Option<String>);

/// Endpoints by identity.
pub(super) type WantedEndpoints = BTreeMap<String, Endpoint>;

/// Pod uid, if any, and address: Endpoints written by a user may name a pod twice.
pub(super) fn identity(endpoint: &Endpoint) -> String {
    let uid = endpoint.target_ref.as_ref().map_or("", |target| target.uid.as_str());
    format!("{uid} {}", endpoint.addresses.first().map_or("", String::as_str))
}

/// A pod that a Service selects.
struct SelectedPod<'a> {
    pod: &'a Pod,
    /// Of its Node.
    zone: Option<String>,
    ports: NamedPorts,
}

fn group_endpoints(
    context: &SliceContext<'_>,
    service: &Service,
    pods: &[&Pod],
) -> BTreeMap<Group, WantedEndpoints> {
    let mut groups: BTreeMap<Group, WantedEndpoints> = BTreeMap::new();
    let targets = TargetPorts::from_service(service);
    // As in 1.25: pod garbage collection is about to delete the pods of a Node that does not exist.
    let publishes_all = service.spec.publish_not_ready_addresses;
    let running = pods.iter().copied().filter(|pod| !has_ended(pod));
    let zone_label = context.names.sub_label("topology", "zone");
    let selected = running.filter_map(|pod| {
        let node = (context.node)(&pod.spec.node_name);
        let zone = node.as_ref().and_then(|node| node.metadata.labels.get(&zone_label).cloned());
        let is_published = node.is_some() || publishes_all;
        is_published.then(|| SelectedPod { pod, zone, ports: targets.named_ports(pod) })
    });
    let pods: Vec<SelectedPod> = selected.collect();
    for family in families(service) {
        let mut by_named: BTreeMap<NamedPorts, WantedEndpoints> = BTreeMap::new();
        for selected in &pods {
            let Some(ip) = ip(selected.pod, family) else { continue };
            let endpoint = endpoint(service, selected, ip);
            let same_ports = by_named.entry(selected.ports.clone()).or_default();
            same_ports.insert(identity(&endpoint), endpoint);
        }
        targets.groups(by_named, |ports, endpoints| {
            let group = (family.name().to_owned(), slice_ports(ports));
            groups.entry(group).or_default().extend(endpoints);
        });
        // A Service without endpoints has an empty slice, so that clients can distinguish "none" from "not computed yet".
        if !groups.keys().any(|(name, _)| name == family.name()) {
            groups.insert((family.name().to_owned(), Vec::new()), WantedEndpoints::new());
        }
    }
    groups
}

fn slice_ports(ports: Vec<(&ServicePort, i32)>) -> Vec<SlicePort> {
    let port = |(port, number): (&ServicePort, i32)| {
        let protocol = protocol(&port.protocol).to_owned();
        (port.name.clone(), Some(number), protocol, port.app_protocol.clone())
    };
    let mut ports: Vec<SlicePort> = ports.into_iter().map(port).collect();
    ports.sort();
    ports
}

fn endpoint(service: &Service, selected: &SelectedPod<'_>, ip: &str) -> Endpoint {
    let pod = selected.pod;
    let (serving, terminating) = (is_ready(pod), is_terminating(pod));
    let ready = service.spec.publish_not_ready_addresses || serving && !terminating;
    Endpoint {
        addresses: vec![ip.to_owned()],
        conditions: EndpointConditions {
            ready: Some(ready),
            serving: Some(serving),
            terminating: Some(terminating),
        },
        hostname: hostname(service, pod),
        target_ref: Some(target_ref(pod)),
        zone: selected.zone.clone(),
        node_name: (!pod.spec.node_name.is_empty()).then(|| pod.spec.node_name.clone()),
        ..Endpoint::default()
    }
}

fn group_of(slice: &EndpointSlice) -> Group {
    proto_api::count_steps!(1);
    let key = |port: &EndpointPort| {
        let name = port.name.clone().unwrap_or_default();
        let named = protocol(port.protocol.as_deref().unwrap_or_default()).to_owned();
        (name, port.port, named, port.app_protocol.clone())
    };
    let mut ports: Vec<SlicePort> = slice.ports.iter().map(key).collect();
    ports.sort();
    (slice.address_type.clone(), ports)
}

// === Writes ===

/// A desired slice, and whether it differs from the current one.
struct Draft {
    slice: EndpointSlice,
    origin: Origin,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Origin {
    Unchanged,
    Changed,
    New,
}

fn plan_group(
    context: &SliceContext<'_>,
    template: &ObjectMeta,
    group: &Group,
    mut wanted: WantedEndpoints,
    existing: &[&EndpointSlice],
) -> Vec<ApiWrite> {
    let placeholder = wanted.is_empty();
    let trigger = trigger_annotation(context.names);
    let mut drafts: Vec<Draft> =
        existing.iter().map(|slice| keep_wanted(slice, &mut wanted, template)).collect();
    fill(&mut drafts, wanted, context.endpoints_max.max(1), |endpoints| {
        let slice = EndpointSlice {
            metadata: template.clone(),
            address_type: group.0.clone(),
            endpoints,
            ports: group.1.iter().map(port).collect(),
        };
        Draft { slice, origin: Origin::New }
    });
    if placeholder && drafts.is_empty() {
        let metadata = template.clone();
        let address_type = group.0.clone();
        let slice = EndpointSlice { metadata, address_type, ..EndpointSlice::default() };
        drafts.push(Draft { slice, origin: Origin::New });
    }
    let mut writes = Vec::new();
    for (nth, Draft { mut slice, origin }) in drafts.into_iter().enumerate() {
        let needed = !slice.endpoints.is_empty() || placeholder && nth == 0;
        match (needed, origin) {
            (true, Origin::New) => writes.push(ApiWrite::Create(slice.into())),
            (true, Origin::Changed) => {
                if let Some(time) = template.annotations.get(&trigger) {
                    slice.metadata.annotations.insert(trigger.clone(), time.clone());
                }
                writes.push(ApiWrite::Update(slice.into()));
            }
            (true, Origin::Unchanged) => {}
            (false, _) => writes.push(delete(&slice)),
        }
    }
    writes
}

/// The slice with its desired endpoints, which are removed from `wanted`.
fn keep_wanted(
    slice: &EndpointSlice,
    wanted: &mut WantedEndpoints,
    template: &ObjectMeta,
) -> Draft {
    let kept = slice.endpoints.iter().filter_map(|endpoint| wanted.remove(&identity(endpoint)));
    let endpoints: Vec<Endpoint> = kept.collect();
    let metadata = &slice.metadata;
    let same = endpoints == slice.endpoints
        && metadata.labels == template.labels
        && metadata.owner_references == template.owner_references;
    let mut draft = EndpointSlice { endpoints, ..slice.clone() };
    draft.metadata.labels.clone_from(&template.labels);
    draft.metadata.owner_references.clone_from(&template.owner_references);
    Draft { slice: draft, origin: if same { Origin::Unchanged } else { Origin::Changed } }
}

/// Adds the remaining endpoints to slices.
fn fill(
    drafts: &mut Vec<Draft>,
    wanted: WantedEndpoints,
    endpoints_max: usize,
    new: impl Fn(Vec<Endpoint>) -> Draft,
) {
    let mut rest: Vec<Endpoint> = wanted.into_values().collect();
    for draft in drafts.iter_mut().filter(|draft| draft.origin == Origin::Changed) {
        let room = endpoints_max.saturating_sub(draft.slice.endpoints.len());
        draft.slice.endpoints.extend(rest.drain(..room.min(rest.len())));
    }
    if rest.is_empty() {
        return;
    }
    let takes_all = |draft: &&mut Draft| {
        draft.origin == Origin::Unchanged
            && draft.slice.endpoints.len().saturating_add(rest.len()) <= endpoints_max
    };
    let fullest =
        drafts.iter_mut().filter(takes_all).max_by_key(|draft| draft.slice.endpoints.len());
    if let Some(draft) = fullest {
        draft.slice.endpoints.append(&mut rest);
        draft.origin = Origin::Changed;
        return;
    }
    while !rest.is_empty() {
        let some = rest.drain(..endpoints_max.min(rest.len())).collect();
        drafts.push(new(some));
    }
}

fn port((name, number, protocol, app_protocol): &SlicePort) -> EndpointPort {
    EndpointPort {
        name: Some(name.clone()),
        port: *number,
        protocol: Some(protocol.clone()),
        app_protocol: app_protocol.clone(),
    }
}

fn delete(slice: &EndpointSlice) -> ApiWrite {
    ApiWrite::Delete {
        kind: ObjectKind::EndpointSlice,
        key: ObjectKey::from_metadata(&slice.metadata),
        uid: slice.metadata.uid.clone(),
        grace_secs: None,
    }
}

/// Adds the labels for the Service and the manager.
pub(super) fn mark(
    names: &Names,
    labels: &mut BTreeMap<String, String>,
    service: &str,
    manager: Manager,
) {
    labels.insert(names.label("service-name"), service.to_owned());
    labels.insert(names.sub_label("endpointslice", "managed-by"), manager.label(names));
}

/// The metadata of a new slice.
fn template(names: &Names, service: &Service, trigger: Option<String>) -> ObjectMeta {
    let mut labels = service_labels(names, service);
    mark(names, &mut labels, &service.metadata.name, Manager::Selector);
    let owner = OwnerReference {
        api_version: "v1".to_owned(),
        kind: "Service".to_owned(),
        name: service.metadata.name.clone(),
        uid: service.metadata.uid.clone(),
        controller: Some(true),
        block_owner_deletion: Some(true),
    };
    ObjectMeta {
        generate_name: format!("{}-", service.metadata.name),
        namespace: service.metadata.namespace.clone(),
        labels,
        annotations: trigger.map(|time| (trigger_annotation(names), time)).into_iter().collect(),
        owner_references: vec![owner],
        ..ObjectMeta::default()
    }
}

#[cfg(test)]
mod tests;
