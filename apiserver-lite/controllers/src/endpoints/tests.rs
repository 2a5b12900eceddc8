//! Addresses of pods.

use std::sync::Arc;

use proto_api::Time;
use proto_api::names::Profile;

use super::*;
use crate::addresses::examples::{pod, pods, service, set_ready, with_many_ports};
use crate::api_writes::WrittenObject;

fn names() -> &'static Names {
    Names::new(Profile::Kubernetes)
}

fn written(plan: &Plan) -> &Endpoints {
    match &plan.writes[..] {
        [
            ApiWrite::Create(WrittenObject::Endpoints(made))
            | ApiWrite::Update(WrittenObject::Endpoints(made)),
        ] => made,
        other => unreachable!("{other:?}"),
    }
}

/// Ready and not ready addresses by ports.
fn shape(endpoints: &Endpoints) -> Vec<(Vec<i32>, Vec<&str>, Vec<&str>)> {
    fn ips(addresses: &[EndpointAddress]) -> Vec<&str> {
        addresses.iter().map(|address| &*address.ip).collect()
    }
    let ports = |s: &EndpointSubset| s.ports.iter().map(|port| port.port).collect();
    let subsets = endpoints.subsets.iter();
    subsets.map(|s| (ports(s), ips(&s.addresses), ips(&s.not_ready_addresses))).collect()
}

#[test]
fn ready_pods_are_addresses_and_a_second_plan_is_empty() {
    let plan_one = plan(names(), Some(&service()), &pods(2), None);
    let made = written(&plan_one);
    assert_eq!(shape(made), [(vec![8080], vec!["10.1.0.1", "10.1.0.2"], vec![])]);
    let address = &made.subsets[0].addresses[0];
    assert_eq!(address.target_ref.as_ref().unwrap().uid, "uid-1");
    assert_eq!(address.node_name.as_deref(), Some("node"));
    assert_eq!(
        made.metadata.annotations["endpoints.kubernetes.io/last-change-trigger-time"],
        "1970-01-01T00:16:40Z"
    );
    assert_eq!(plan(names(), Some(&service()), &pods(2), Some(made)), Plan::default());
}

#[test]
fn which_pods_count() {
    let with = |change: fn(&mut Pod)| {
        let mut changed = pod(2);
        change(&mut changed);
        let all = [Arc::new(pod(1)), Arc::new(changed)];
        let plan = plan(names(), Some(&service()), &all, None);
        let subset = written(&plan).subsets[0].clone();
        (subset.addresses.len(), subset.not_ready_addresses.len())
    };
    assert_eq!(with(|_| {}), (2, 0));
    assert_eq!(with(|pod| set_ready(pod, "False")), (1, 1));
    assert_eq!(with(|pod| pod.metadata.deletion_timestamp = Some(Time::from_unix(1))), (1, 0));
    assert_eq!(with(|pod| pod.status.phase = "Failed".into()), (1, 0));
    assert_eq!(with(|pod| pod.metadata.labels.clear()), (1, 0));
    assert_eq!(with(|pod| (pod.status.pod_ip.clear(), pod.status.pod_ips.clear()).1), (1, 0));
    let no_such_port = with(|pod| pod.spec.containers[0].ports.clear());
    assert_eq!(no_such_port, (1, 0), "a port name that a pod lacks leaves the pod out");
}

#[test]
fn publish_not_ready_addresses_lists_pods_that_are_not_ready() {
    let mut service = service();
    service.spec.publish_not_ready_addresses = true;
    let mut pod = pod(1);
    set_ready(&mut pod, "False");
    let plan = plan(names(), Some(&service), &[Arc::new(pod)], None);
    assert_eq!(shape(written(&plan)), [(vec![8080], vec!["10.1.0.1"], vec![])]);
}

/// The address of a finished pod is reused by another, in any namespace.
#[test]
fn pods_that_have_ended_are_never_published() {
    let mut service = service();
    service.spec.publish_not_ready_addresses = true;
    for phase in ["Failed", "Succeeded"] {
        for policy in ["Always", "OnFailure", "Never"] {
            let mut ended = pod(1);
            ended.status.phase = phase.into();
            ended.spec.restart_policy = policy.into();
            let plan = plan(names(), Some(&service), &[Arc::new(ended)], None);
            assert_eq!(shape(written(&plan)), [], "{phase} {policy}");
        }
    }
}

/// A host-network pod may have an address that the server rejects: the others stay published.
#[test]
fn addresses_that_no_endpoint_can_have_are_left_out() {
    for bad in ["127.0.0.1", "169.254.1.1", "0.0.0.0", "224.0.0.1", "255.255.255.255", "x", "1.2.3"]
    {
        let mut odd = pod(2);
        odd.status.pod_ip = bad.into();
        odd.status.pod_ips = vec![proto_api::core::v1::PodIP { ip: bad.into() }];
        let plan = plan(names(), Some(&service()), &[Arc::new(pod(1)), Arc::new(odd)], None);
        assert_eq!(shape(written(&plan)), [(vec![8080], vec!["10.1.0.1"], vec![])], "{bad}");
    }
}

#[test]
fn pods_with_other_ports_are_other_subsets() {
    let mut other = pod(2);
    other.spec.containers[0].ports[0].container_port = 9090;
    let plan = plan(names(), Some(&service()), &[Arc::new(pod(1)), Arc::new(other)], None);
    let expected = [(vec![8080], vec!["10.1.0.1"], vec![]), (vec![9090], vec!["10.1.0.2"], vec![])];
    assert_eq!(shape(written(&plan)), expected);
}

#[test]
fn headless_services_are_labelled() {
    let mut service = service();
    service.spec.cluster_ip = "None".into();
    service.metadata.labels.insert("a".into(), "b".into());
    let plan = plan(names(), Some(&service), &pods(1), None);
    let labels = &written(&plan).metadata.labels;
    assert_eq!(labels.get("service.kubernetes.io/headless").map(String::as_str), Some(""));
    assert_eq!(labels.get("a").map(String::as_str), Some("b"));
}

#[test]
fn too_many_addresses_are_cut_ready_ones_first() {
    let mut all = Vec::new();
    for nth in 0..1200_u32 {
        let mut pod = pod(1);
        pod.status.pod_ips.clear();
        pod.status.pod_ip = format!("10.{}.{}.1", 1 + nth / 250, nth % 250);
        if nth < 300 {
            set_ready(&mut pod, "False");
        }
        all.push(Arc::new(pod));
    }
    let full = plan(names(), Some(&service()), &all, None);
    let made = written(&full);
    let subset = &made.subsets[0];
    assert_eq!((subset.addresses.len(), subset.not_ready_addresses.len()), (900, 100));
    assert_eq!(made.metadata.annotations["endpoints.kubernetes.io/over-capacity"], "truncated");
    assert_eq!(plan(names(), Some(&service()), &all, Some(made)), Plan::default());
    let fewer = plan(names(), Some(&service()), &all[..10], Some(made));
    let annotations = &written(&fewer).metadata.annotations;
    assert!(!annotations.contains_key("endpoints.kubernetes.io/over-capacity"));
}

#[test]
fn no_set_of_ports_is_cut_as_a_whole() {
    let all: Vec<Arc<Pod>> = (0..2000_u32)
        .map(|nth| {
            let mut pod = pod(1);
            pod.status.pod_ips.clear();
            pod.status.pod_ip = format!("10.{}.{}.1", 1 + nth / 250, nth % 250);
            let port = if nth < 1500 { 8080 } else { 9090 };
            pod.spec.containers[0].ports[0].container_port = port;
            Arc::new(pod)
        })
        .collect();
    let plan = plan(names(), Some(&service()), &all, None);
    let counts: Vec<usize> = written(&plan).subsets.iter().map(|s| s.addresses.len()).collect();
    assert_eq!(counts, [750, 250]);
}

#[test]
fn endpoints_go_with_their_service_and_others_stay() {
    let made = written(&plan(names(), Some(&service()), &pods(1), None)).clone();
    let gone = plan(names(), None, &pods(1), Some(&made));
    assert!(matches!(&gone.writes[..], [ApiWrite::Delete { kind: ObjectKind::Endpoints, .. }]));
    let mut manual = service();
    manual.spec.selector.clear();
    assert_eq!(plan(names(), Some(&manual), &pods(1), Some(&made)), Plan::default());
}

/// A Service and pods with thousands of ports are a user's.
#[test]
fn the_ports_of_a_pod_are_read_once() {
    let mut service = service();
    let all = with_many_ports(&mut service, (1..=50).map(pod));
    let mut made = Plan::default();
    let work = || made = plan(names(), Some(&service), &all, None);
    assert_eq!(proto_api::steps::count_during(work), 50 * 2000 + 2000);
    let made = written(&made);
    assert_eq!((made.subsets.len(), made.subsets[0].addresses.len()), (1, 50));
    assert!(made.subsets[0].ports.iter().all(|port| port.port == 8080));
}
