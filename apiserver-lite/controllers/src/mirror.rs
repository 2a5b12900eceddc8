//! The endpointslicemirroring controller: mirrors the Endpoints of a Service without a selector to EndpointSlices.

use std::collections::BTreeMap;

use proto_api::core::v1::{EndpointAddress, EndpointSubset, Endpoints, Service};
use proto_api::discovery::v1::{Endpoint, EndpointConditions, EndpointSlice};
use proto_api::meta::v1::{ObjectMeta, OwnerReference};
use proto_api::names::Names;

use crate::Plan;
use crate::addresses::{Family, has_selector, protocol};
use crate::endpoint_slices::{
    Group, Manager, SliceContext, SlicePort, WantedEndpoints, identity, mark, plan_groups,
};

/// Maximum number of addresses mirrored from a subset, as in Kubernetes.
const ADDRESSES_MAX: usize = 1000;

/// Plans the slices of Endpoints. `existing` are the Service's mirrored slices.
pub fn plan<S: AsRef<EndpointSlice>>(
    context: &SliceContext<'_>,
    service: Option<&Service>,
    endpoints: Option<&Endpoints>,
    existing: &[S],
) -> Plan {
    let existing: Vec<&EndpointSlice> = existing.iter().map(AsRef::as_ref).collect();
    let written = endpoints.filter(|endpoints| !is_skipped(context.names, endpoints));
    let (Some(endpoints), Some(service)) = (written, service) else {
        return plan_groups(context, &ObjectMeta::default(), BTreeMap::new(), &existing);
    };
    if has_selector(service) {
        return plan_groups(context, &ObjectMeta::default(), BTreeMap::new(), &existing);
    }
    let mut groups: BTreeMap<Group, WantedEndpoints> = BTreeMap::new();
    for subset in &endpoints.subsets {
        add_subset(subset, &mut groups);
    }
    plan_groups(context, &template(context.names, endpoints), groups, &existing)
}

fn is_skipped(names: &Names, endpoints: &Endpoints) -> bool {
    let label = endpoints.metadata.labels.get(&names.sub_label("endpointslice", "skip-mirror"));
    label.is_some_and(|value| value == "true")
}

fn add_subset(subset: &EndpointSubset, groups: &mut BTreeMap<Group, WantedEndpoints>) {
    let port = |port: &proto_api::core::v1::EndpointPort| -> SlicePort {
        let protocol = protocol(&port.protocol).to_owned();
        (port.name.clone(), Some(port.port), protocol, port.app_protocol.clone())
    };
    let mut ports: Vec<SlicePort> = subset.ports.iter().map(port).collect();
    ports.sort();
    let ready = subset.addresses.iter().map(|address| (address, true));
    let others = subset.not_ready_addresses.iter().map(|address| (address, false));
    for (address, ready) in ready.chain(others).take(ADDRESSES_MAX) {
        let endpoint = endpoint(address, ready);
        let group = (Family::from_address(&address.ip).name().to_owned(), ports.clone());
        groups.entry(group).or_default().insert(identity(&endpoint), endpoint);
    }
}

fn endpoint(address: &EndpointAddress, ready: bool) -> Endpoint {
    Endpoint {
        addresses: vec![address.ip.clone()],
        conditions: EndpointConditions { ready: Some(ready), ..EndpointConditions::default() },
        hostname: Some(address.hostname.clone()).filter(|hostname| !hostname.is_empty()),
        target_ref: address.target_ref.clone(),
        node_name: address.node_name.clone(),
        ..Endpoint::default()
    }
}

fn template(names: &Names, endpoints: &Endpoints) -> ObjectMeta {
    let metadata = &endpoints.metadata;
    let mut labels = metadata.labels.clone();
    mark(names, &mut labels, &metadata.name, Manager::Mirror);
    let owner = OwnerReference {
        api_version: "v1".to_owned(),
        kind: "Endpoints".to_owned(),
        name: metadata.name.clone(),
        uid: metadata.uid.clone(),
        controller: Some(true),
        block_owner_deletion: Some(true),
    };
    ObjectMeta {
        generate_name: format!("{}-", metadata.name),
        namespace: metadata.namespace.clone(),
        labels,
        owner_references: vec![owner],
        ..ObjectMeta::default()
    }
}

#[cfg(test)]
mod tests {
    use proto_api::core::v1::EndpointPort;
    use proto_api::names::Profile;

    use super::*;
    use crate::addresses::examples::service;
    use crate::api_writes::{ApiWrite, ObjectKind, WrittenObject};

    fn manual() -> (Service, Endpoints) {
        let mut service = service();
        service.spec.selector.clear();
        let mut endpoints = Endpoints::default();
        endpoints.metadata.name = "web".into();
        let address = |ip: &str| EndpointAddress { ip: ip.into(), ..EndpointAddress::default() };
        endpoints.subsets.push(EndpointSubset {
            addresses: vec![address("192.0.2.1"), address("2001:db8::1")],
            not_ready_addresses: vec![address("192.0.2.2")],
            ports: vec![EndpointPort { port: 5432, ..EndpointPort::default() }],
        });
        (service, endpoints)
    }

    fn planned(
        service: &Service,
        endpoints: Option<&Endpoints>,
        existing: &[Box<EndpointSlice>],
    ) -> Plan {
        let names = Names::new(Profile::Kubernetes);
        let context = SliceContext { names, node: &|_| None, endpoints_max: 100 };
        plan(&context, Some(service), endpoints, existing)
    }

    #[test]
    fn endpoints_without_a_selector_are_repeated() {
        let (service, endpoints) = manual();
        let made = planned(&service, Some(&endpoints), &[]);
        let slices: Vec<Box<EndpointSlice>> = made
            .writes
            .into_iter()
            .map(|write| match write {
                ApiWrite::Create(WrittenObject::EndpointSlice(slice)) => slice,
                other => unreachable!("{other:?}"),
            })
            .collect();
        let seen = |slice: &EndpointSlice| {
            let one = |e: &Endpoint| (e.addresses[0].clone(), e.conditions.ready == Some(true));
            let all: Vec<_> = slice.endpoints.iter().map(one).collect();
            (slice.address_type.clone(), slice.ports[0].port, all)
        };
        let v4 = vec![("192.0.2.1".to_owned(), true), ("192.0.2.2".to_owned(), false)];
        let v6 = vec![("2001:db8::1".to_owned(), true)];
        assert_eq!(seen(&slices[0]), ("IPv4".to_owned(), Some(5432), v4));
        assert_eq!(seen(&slices[1]), ("IPv6".to_owned(), Some(5432), v6));
        assert_eq!(planned(&service, Some(&endpoints), &slices), Plan::default());
        let gone = planned(&service, None, &slices).writes;
        assert!(
            gone.iter()
                .all(|w| matches!(w, ApiWrite::Delete { kind: ObjectKind::EndpointSlice, .. }))
        );
        assert_eq!(gone.len(), 2);
    }

    /// A pod may have several addresses, each with a reference to it.
    #[test]
    fn every_address_of_a_pod_is_repeated() {
        let (service, mut endpoints) = manual();
        let address = |ip: &str| EndpointAddress {
            ip: ip.into(),
            target_ref: Some(proto_api::core::v1::ObjectReference {
                uid: "pod".into(),
                ..Default::default()
            }),
            ..EndpointAddress::default()
        };
        endpoints.subsets[0].addresses = vec![address("192.0.2.1"), address("192.0.2.9")];
        endpoints.subsets[0].not_ready_addresses.clear();
        let made = planned(&service, Some(&endpoints), &[]).writes;
        let [ApiWrite::Create(WrittenObject::EndpointSlice(slice))] = &made[..] else {
            unreachable!("{made:?}")
        };
        let addresses: Vec<&str> = slice.endpoints.iter().map(|e| &*e.addresses[0]).collect();
        assert_eq!(addresses, ["192.0.2.1", "192.0.2.9"]);
    }

    /// Each set of ports needs a slice, and an object may have very many.
    #[test]
    fn sets_of_ports_do_not_look_at_each_other() {
        let (service, mut endpoints) = manual();
        let subset = |port: i32| EndpointSubset {
            addresses: vec![EndpointAddress { ip: "192.0.2.1".into(), ..Default::default() }],
            ports: vec![EndpointPort { port, ..EndpointPort::default() }],
            ..EndpointSubset::default()
        };
        endpoints.subsets = (1..=10_000).map(subset).collect();
        let made = planned(&service, Some(&endpoints), &[]).writes;
        let slices: Vec<Box<EndpointSlice>> = made
            .into_iter()
            .map(|write| match write {
                ApiWrite::Create(WrittenObject::EndpointSlice(slice)) => slice,
                other => unreachable!("{other:?}"),
            })
            .collect();
        assert_eq!(slices.len(), 10_000);
        // A step is a look at the ports of a slice.
        let steps = proto_api::steps::count_during(|| {
            assert_eq!(planned(&service, Some(&endpoints), &slices), Plan::default());
        });
        assert!((10_000..=20_000).contains(&steps), "{steps}");
    }

    #[test]
    fn endpoints_of_services_with_selectors_or_the_skip_label_are_not_mirrored() {
        let (service, mut endpoints) = manual();
        let with_selector = crate::addresses::examples::service();
        assert_eq!(planned(&with_selector, Some(&endpoints), &[]), Plan::default());
        let label = "endpointslice.kubernetes.io/skip-mirror".to_owned();
        endpoints.metadata.labels.insert(label, "true".into());
        assert_eq!(planned(&service, Some(&endpoints), &[]), Plan::default());
    }
}
