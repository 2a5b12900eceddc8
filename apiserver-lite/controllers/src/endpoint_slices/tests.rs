//! Every history of pods ends in the desired slices, and one change rewrites one slice.

use std::collections::BTreeSet;
use std::sync::Arc;

use proptest::prelude::*;
use proto_api::Time;
use proto_api::names::Profile;

use super::*;
use crate::addresses::examples::{pod, pods, service, set_ready, with_many_ports};
use crate::api_writes::WrittenObject;

fn context(names: &Names, endpoints_max: usize) -> SliceContext<'_> {
    SliceContext { names, node: &find_node, endpoints_max }
}

/// The one Node that exists, in a zone.
fn find_node(name: &str) -> Option<Arc<Node>> {
    let mut node = Node::default();
    node.metadata.labels.insert("topology.kubernetes.io/zone".into(), "zone-a".into());
    (name == "node").then(|| Arc::new(node))
}

fn names() -> &'static Names {
    Names::new(Profile::Kubernetes)
}

#[test]
fn the_origin_of_a_slice_is_that_of_its_labels() {
    let own = [Manager::Selector, Manager::Mirror].map(|manager| manager.label(names()));
    let managers = own.iter().map(String::as_str).chain(["other", ""]).map(Some).chain([None]);
    let labels = |manager: Option<&str>, service: Option<&str>| {
        let manager = manager.map(|value| ("endpointslice.kubernetes.io/managed-by", value));
        let service = service.map(|value| ("kubernetes.io/service-name", value));
        let labels = manager.into_iter().chain(service);
        labels.map(|(key, value)| (key.to_owned(), value.to_owned())).collect()
    };
    let mut found = 0;
    for manager in managers {
        for service in [Some("web"), Some("web-2"), Some(""), None] {
            let mut slice = EndpointSlice::default();
            slice.metadata.namespace = "ns".into();
            slice.metadata.labels = labels(manager, service);
            let origin = origin(names(), &slice);
            found += usize::from(origin.is_some());
            for asked in [Manager::Selector, Manager::Mirror] {
                for name in ["web", ""] {
                    let expected = origin == Some((asked, ObjectKey::new("ns", name)));
                    let is_own = has_origin(names(), asked, name);
                    assert_eq!(
                        is_own(&slice),
                        expected,
                        "{asked:?} {name} {manager:?} {service:?}"
                    );
                }
            }
        }
    }
    assert_eq!(found, 6, "two managers, three Services");
}

/// A model of the server that stores slices and counts writes.
#[derive(Default)]
struct Server {
    slices: BTreeMap<String, EndpointSlice>,
    named: u32,
    writes: usize,
}

impl Server {
    fn run(&mut self, endpoints_max: usize, service: Option<&Service>, pods: &[Arc<Pod>]) {
        let plan = self.plan(endpoints_max, service, pods);
        self.writes = plan.writes.len();
        plan.writes.into_iter().for_each(|write| self.execute(write));
    }

    fn plan(&self, endpoints_max: usize, service: Option<&Service>, pods: &[Arc<Pod>]) -> Plan {
        let context = context(names(), endpoints_max);
        let existing: Vec<Arc<EndpointSlice>> =
            self.slices.values().cloned().map(Arc::new).collect();
        plan(&context, service, pods, &existing)
    }

    fn execute(&mut self, write: ApiWrite) {
        match write {
            ApiWrite::Create(WrittenObject::EndpointSlice(mut slice)) => {
                self.named += 1;
                slice.metadata.name = format!("web-{:03}", self.named);
                slice.metadata.uid = format!("slice-{}", self.named);
                assert!(self.slices.insert(slice.metadata.name.clone(), *slice).is_none());
            }
            ApiWrite::Update(WrittenObject::EndpointSlice(slice)) => {
                let old = self.slices.insert(slice.metadata.name.clone(), (*slice).clone());
                assert_ne!(old, Some(*slice), "an update that changes nothing");
            }
            ApiWrite::Delete { kind: ObjectKind::EndpointSlice, key, .. } => {
                assert!(self.slices.remove(&key.name).is_some());
            }
            other => unreachable!("{other:?}"),
        }
    }

    /// The addresses of all endpoints.
    fn addresses(&self) -> BTreeSet<String> {
        self.endpoints().into_iter().map(|(_, address, _)| address).collect()
    }

    /// Address, ready, serving, terminating of every endpoint, by address type.
    fn endpoints(&self) -> Vec<(String, String, [bool; 3])> {
        let mut all = Vec::new();
        for slice in self.slices.values() {
            for endpoint in &slice.endpoints {
                let c = &endpoint.conditions;
                let conditions = [c.ready, c.serving, c.terminating].map(Option::unwrap);
                all.push((slice.address_type.clone(), endpoint.addresses[0].clone(), conditions));
            }
        }
        all.sort();
        all
    }

    fn sizes(&self) -> Vec<usize> {
        self.slices.values().map(|slice| slice.endpoints.len()).collect()
    }
}

#[test]
fn a_slice_says_what_its_readers_need() {
    let mut server = Server::default();
    server.run(100, Some(&service()), &pods(1));
    let slice = server.slices.values().next().unwrap();
    assert_eq!(slice.metadata.labels["kubernetes.io/service-name"], "web");
    assert_eq!(
        slice.metadata.labels["endpointslice.kubernetes.io/managed-by"],
        "endpointslice-controller.k8s.io"
    );
    assert_eq!(slice.metadata.owner_references[0].uid, "service-uid");
    assert_eq!((slice.ports[0].name.as_deref(), slice.ports[0].port), (Some("http"), Some(8080)));
    let endpoint = &slice.endpoints[0];
    assert_eq!(endpoint.zone.as_deref(), Some("zone-a"));
    assert_eq!(endpoint.node_name.as_deref(), Some("node"));
    assert_eq!(endpoint.target_ref.as_ref().unwrap().name, "web-1");
}

#[test]
fn pods_of_a_missing_node_are_no_endpoints() {
    let lost = |nth: u8| {
        let mut pod = pod(nth);
        pod.spec.node_name = "gone".into();
        Arc::new(pod)
    };
    let (all, lost) = ([lost(1), Arc::new(pod(2))], [lost(1)]);
    let mut server = Server::default();
    server.run(100, Some(&service()), &all);
    assert_eq!(server.addresses(), BTreeSet::from(["10.1.0.2".to_owned()]));
    server.run(100, Some(&service()), &lost);
    assert_eq!(server.sizes(), [0], "an empty slice is left");
    // Who wants addresses that are not ready gets these too; of their zone nothing is known.
    let mut all_published = service();
    all_published.spec.publish_not_ready_addresses = true;
    server.run(100, Some(&all_published), &lost);
    let endpoint = &server.slices.values().next().unwrap().endpoints[0];
    assert_eq!((endpoint.node_name.as_deref(), endpoint.zone.as_deref()), (Some("gone"), None));
}

#[test]
fn conditions() {
    let conditions = |publish: bool, ready: &str, terminating: bool| {
        let (mut service, mut pod) = (service(), pod(1));
        service.spec.publish_not_ready_addresses = publish;
        set_ready(&mut pod, ready);
        pod.metadata.deletion_timestamp = terminating.then(|| Time::from_unix(1));
        let mut server = Server::default();
        server.run(100, Some(&service), &[Arc::new(pod)]);
        server.endpoints()[0].2
    };
    // ready, serving, terminating
    assert_eq!(conditions(false, "True", false), [true, true, false]);
    assert_eq!(conditions(false, "False", false), [false, false, false]);
    assert_eq!(conditions(false, "True", true), [false, true, true]);
    assert_eq!(conditions(false, "False", true), [false, false, true]);
    assert_eq!(conditions(true, "False", false), [true, false, false]);
    assert_eq!(conditions(true, "True", true), [true, true, true]);
}

#[test]
fn both_families_have_their_slices() {
    let mut service = service();
    service.spec.ip_families = vec!["IPv6".into(), "IPv4".into()];
    let mut server = Server::default();
    server.run(100, Some(&service), &pods(1));
    let addresses: Vec<_> = server.endpoints().into_iter().map(|(_, address, _)| address).collect();
    assert_eq!(addresses, ["10.1.0.1", "fd00::1"]);
    service.spec.ip_families = vec!["IPv6".into()];
    server.run(100, Some(&service), &pods(1));
    assert_eq!(server.endpoints().len(), 1);
    assert_eq!(server.slices.values().next().unwrap().address_type, "IPv6");
}

#[test]
fn one_change_rewrites_one_slice() {
    let mut server = Server::default();
    let mut all = pods(10);
    server.run(4, Some(&service()), &all);
    assert_eq!(server.sizes(), [4, 4, 2]);
    server.run(4, Some(&service()), &all);
    assert_eq!(server.writes, 0);
    let mut changed = pod(6);
    set_ready(&mut changed, "False");
    all[5] = Arc::new(changed);
    server.run(4, Some(&service()), &all);
    assert_eq!(server.writes, 1);
    all.push(Arc::new(pod(11)));
    server.run(4, Some(&service()), &all);
    assert_eq!((server.writes, server.sizes()), (1, vec![4, 4, 3]));
    all.extend([Arc::new(pod(12)), Arc::new(pod(13))]);
    server.run(4, Some(&service()), &all);
    assert_eq!((server.writes, server.sizes()), (1, vec![4, 4, 3, 2]), "no slice takes both");
}

#[test]
fn a_service_without_endpoints_has_an_empty_slice() {
    let mut server = Server::default();
    server.run(100, Some(&service()), &[]);
    assert_eq!((server.writes, server.sizes()), (1, vec![0]));
    server.run(100, Some(&service()), &[]);
    assert_eq!(server.writes, 0);
    server.run(100, Some(&service()), &pods(1));
    assert_eq!(server.sizes(), [1], "the empty slice has other ports and goes");
    server.run(100, None, &pods(1));
    assert!(server.slices.is_empty());
}

/// A pod as a number: absent, or ready, unready, terminating, ended.
fn history() -> impl Strategy<Value = Vec<(u8, u8)>> {
    proptest::collection::vec((1..15u8, 0..5u8), 1..60)
}

proptest! {
    #[test]
    fn any_history_ends_in_the_right_slices(history in history(), max in 1..6usize) {
        let mut server = Server::default();
        let mut all = BTreeMap::<u8, Arc<Pod>>::new();
        for (nth, state) in history {
            let mut pod = pod(nth);
            match state {
                0 => { all.remove(&nth); }
                1 => set_ready(&mut pod, "True"),
                2 => set_ready(&mut pod, "False"),
                3 => pod.metadata.deletion_timestamp = Some(Time::from_unix(1)),
                _ => pod.status.phase = "Succeeded".into(),
            }
            if state > 0 {
                all.insert(nth, Arc::new(pod));
            }
            let pods: Vec<_> = all.values().cloned().collect();
            server.run(max, Some(&service()), &pods);
            prop_assert!(server.writes <= 2, "one change, {} writes", server.writes);
            let mut expected: Vec<_> = pods
                .iter()
                .filter(|pod| pod.status.phase != "Succeeded")
                .map(|pod| {
                    let (serving, terminating) = (is_ready(pod), is_terminating(pod));
                    let conditions = [serving && !terminating, serving, terminating];
                    ("IPv4".to_owned(), pod.status.pod_ip.clone(), conditions)
                })
                .collect();
            expected.sort();
            prop_assert_eq!(server.endpoints(), expected);
            prop_assert!(server.sizes().iter().all(|size| *size <= max));
        }
    }

    /// Whatever changes, and wherever the controller stops: an endpoint that is there and stays is always in a slice.
    #[test]
    fn no_endpoint_is_missing_between_two_writes(
        steps in proptest::collection::vec((1..12u8, 0..4u8, 0..3u8, 0..5usize), 1..50),
        max in 1..5usize,
    ) {
        let (mut server, mut all) = (Server::default(), BTreeMap::<u8, Arc<Pod>>::new());
        let mut service = service();
        for (nth, state, port, limit) in steps {
            service.spec.ports[0].target_port = match port {
                0 => "http".into(),
                port => proto_api::IntOrString::Int(8080 + i32::from(port)),
            };
            let mut pod = pod(nth);
            set_ready(&mut pod, if state == 1 { "False" } else { "True" });
            match state {
                0 => drop(all.remove(&nth)),
                _ => drop(all.insert(nth, Arc::new(pod))),
            }
            let pods: Vec<_> = all.values().cloned().collect();
            let wanted: BTreeSet<String> = pods.iter().map(|pod| pod.status.pod_ip.clone()).collect();
            let before = server.addresses();
            let stay: BTreeSet<&String> = before.intersection(&wanted).collect();
            for write in server.plan(max, Some(&service), &pods).writes.into_iter().take(limit) {
                server.execute(write);
                let there = server.addresses();
                prop_assert!(stay.iter().all(|address| there.contains(*address)), "{there:?}");
            }
        }
        let pods: Vec<_> = all.values().cloned().collect();
        server.run(max, Some(&service), &pods);
        let wanted: BTreeSet<String> = pods.iter().map(|pod| pod.status.pod_ip.clone()).collect();
        prop_assert_eq!(server.addresses(), wanted);
        prop_assert_eq!(server.endpoints().len(), pods.len(), "each is in one slice");
        prop_assert_eq!(server.plan(max, Some(&service), &pods), Plan::default());
    }
}

#[test]
fn the_ports_of_a_pod_are_read_once_for_both_families() {
    let mut service = service();
    service.spec.ip_families = vec!["IPv4".into(), "IPv6".into()];
    let all = with_many_ports(&mut service, (1..=50).map(pod));
    let mut server = Server::default();
    let work = || server.run(100, Some(&service), &all);
    assert_eq!(proto_api::steps::count_during(work), 50 * 2000 + 2 * 2000);
    assert_eq!(server.sizes(), [50, 50]);
}
