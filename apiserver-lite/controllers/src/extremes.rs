//! Objects with extreme numbers in every kind that controllers read: no plan panics. Debug builds check each operation.

mod values;

use std::sync::Arc;
use std::time::{Duration, Instant};

use proto_api::Time;
use proto_api::apps::v1::{Deployment, ReplicaSet};
use proto_api::coordination::v1::Lease;
use proto_api::core::v1::{
    Endpoints, Node, PersistentVolume, PersistentVolumeClaim, Pod, ReplicationController, Service,
};
use proto_api::discovery::v1::EndpointSlice;
use proto_api::names::{Names, Profile};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use crate::Plan;
use crate::endpoint_slices::SliceContext;
use crate::node_lifecycle::{
    self, ClusterHealth, EvictionRates, NodeClocks, NodeHealth, ZoneEvictions,
};
use crate::pod_gc::{self, PodNode};
use crate::volumes::{VolumeAnnotations, expand, fit};
use crate::{
    deployment, endpoint_slices, endpoints, mirror, node_cidr, replica_set, replication_controller,
    taint_manager,
};
use values::variants;

macro_rules! example {
    ($file:literal) => {
        serde_json::from_str::<Value>(include_str!(concat!(
            "../../../proto/api/testdata/",
            $file,
            ".json"
        )))
        .expect("JSON")
    };
}

fn names() -> &'static Names {
    Names::new(Profile::Kubernetes)
}

/// The example with labels and selectors that match each other.
fn matching(mut document: Value) -> Value {
    let labels = json!({"app": "web"});
    for (pointer, value) in [
        ("/metadata/labels", labels.clone()),
        ("/metadata/ownerReferences", json!([])),
        // The numbers of templates are covered by pods.
        ("/spec/template", json!({"metadata": {"labels": labels.clone()}, "spec": {}})),
    ] {
        if let Some(place) = document.pointer_mut(pointer) {
            *place = value;
        }
    }
    if let Some(metadata) = document["metadata"].as_object_mut() {
        metadata.remove("deletionTimestamp");
        metadata.insert("namespace".into(), json!("ns"));
        metadata.insert("uid".into(), json!("uid"));
    }
    let plain = matches!(document["kind"].as_str(), Some("Service" | "ReplicationController"));
    if let Some(selector) = document.pointer_mut("/spec/selector") {
        *selector = if plain { labels } else { json!({"matchLabels": labels}) };
    }
    document
}

/// Calls `plan` with each variant that can be decoded, at several times.
fn each<T: DeserializeOwned>(document: &Value, mut plan: impl FnMut(&T, Time)) {
    let mut decoded = 0;
    for (what, variant) in variants(document) {
        let Ok(object) = serde_json::from_value::<T>(variant) else { continue };
        decoded += 1;
        // Printed by the test harness after a panic.
        println!("{what}");
        for now in [i64::MIN, 1_700_000_000, i64::MAX] {
            plan(&object, Time::from_unix(now));
        }
    }
    assert!(decoded > 20, "{decoded} variants were decoded");
}

fn decode<T: DeserializeOwned>(document: &Value) -> T {
    serde_json::from_value(document.clone()).expect("an object")
}

#[test]
fn deployments_and_their_sets() {
    let deployment = matching(example!("apps.v1.Deployment"));
    let mut set = matching(example!("apps.v1.ReplicaSet"));
    set["metadata"]["ownerReferences"] = json!([
        {"apiVersion": "apps/v1", "kind": "Deployment", "name": "d", "uid": "uid", "controller": true}
    ]);
    let whole: Deployment = decode(&deployment);
    let extreme = |number: i32| {
        let mut set: ReplicaSet = decode(&set);
        set.metadata.name = format!("set-{number}");
        set.spec.replicas = Some(number);
        set.status.replicas = number;
        set.status.available_replicas = number;
        set.status.ready_replicas = number;
        Arc::new(set)
    };
    let sets = [extreme(i32::MAX), extreme(i32::MAX), extreme(i32::MIN), extreme(3)];
    each::<Deployment>(&deployment, |deployment, now| {
        for kind in ["RollingUpdate", "Recreate"] {
            let mut deployment = deployment.clone();
            deployment.spec.strategy.type_ = kind.to_owned();
            drop(deployment::plan(names(), &deployment, &sets, &|_| false, now));
            deployment.spec.paused = !deployment.spec.paused;
            drop(deployment::plan(names(), &deployment, &sets, &|_| false, now));
        }
    });
    each::<ReplicaSet>(&set, |set, now| {
        let mut newest = set.clone();
        newest.spec.template = whole.spec.template.clone();
        let sets = [Arc::new(set.clone()), Arc::new(newest), extreme(i32::MAX)];
        drop(deployment::plan(names(), &whole, &sets, &|_| false, now));
    });
}

#[test]
fn a_plan_creates_at_most_a_batch_of_pods() {
    let set = matching(example!("apps.v1.ReplicaSet"));
    let controller = matching(example!("core.v1.ReplicationController"));
    let pod: Pod = decode(&matching(example!("core.v1.Pod")));
    let pods = [Arc::new(pod)];
    each::<ReplicaSet>(&set, |set, now| {
        assert!(replica_set::plan(names(), set, &pods, now).writes.len() < 600);
    });
    each::<ReplicationController>(&controller, |controller, now| {
        assert!(replication_controller::plan(names(), controller, &pods, now).writes.len() < 600);
    });
    let mut greedy: ReplicaSet = decode(&set);
    greedy.spec.replicas = Some(i32::MAX);
    let none: [Arc<Pod>; 0] = [];
    let plan = replica_set::plan(names(), &greedy, &none, Time::from_unix(1));
    assert!((100..600).contains(&plan.writes.len()), "{}", plan.writes.len());
}

#[test]
fn pods_in_every_controller() {
    let mut pod = matching(example!("core.v1.Pod"));
    pod["spec"]["tolerations"][0]["operator"] = json!("Exists");
    pod["spec"]["tolerations"][0]["effect"] = json!("");
    pod["spec"]["tolerations"][0]["key"] = json!("");
    pod["status"]["phase"] = json!("Running");
    pod["status"]["conditions"][0]["type"] = json!("Ready");
    pod["status"]["conditions"][0]["status"] = json!("True");
    let mut node: Node = decode(&example!("core.v1.Node"));
    node.spec.taints[0].effect = "NoExecute".into();
    let set: ReplicaSet = decode(&matching(example!("apps.v1.ReplicaSet")));
    let service: Service = decode(&matching(example!("core.v1.Service")));
    let placed = |_: &str| Some(Arc::new(Node::default()));
    let context = SliceContext { names: names(), node: &placed, endpoints_max: 100 };
    let slices: [Arc<EndpointSlice>; 0] = [];
    each::<Pod>(&pod, |pod, now| {
        for node in [
            PodNode::Found(&node),
            PodNode::Missing(Duration::MAX),
            PodNode::Absent,
            PodNode::Unscheduled,
        ] {
            drop(pod_gc::plan(pod, node, pod_gc::OutOfServiceTaint::NodeIsOff));
        }
        drop(taint_manager::plan(
            pod,
            &node,
            taint_manager::TaintAge::at(now),
            taint_manager::Eviction::None,
        ));
        drop(node_lifecycle::plan_pod(pod, &node, now));
        let pods = [Arc::new(pod.clone())];
        drop(pod_gc::plan_ended(&pods, 0));
        drop(replica_set::plan(names(), &set, &pods, now));
        drop(endpoints::plan(names(), Some(&service), &pods, None));
        drop(endpoint_slices::plan(&context, Some(&service), &pods, &slices));
    });
}

#[test]
fn nodes_and_leases() {
    let pod: Pod = decode(&matching(example!("core.v1.Pod")));
    each::<Node>(&example!("core.v1.Node"), |node, now| {
        let age = taint_manager::TaintAge::at(now);
        for timeout in [Duration::ZERO, Duration::MAX] {
            let none = taint_manager::Eviction::None;
            drop(taint_manager::plan_eviction(names(), &pod, node, age, none, Some(timeout)));
        }
        drop(taint_manager::plan(
            &pod,
            node,
            taint_manager::TaintAge::at(now),
            taint_manager::Eviction::None,
        ));
        drop(node_lifecycle::plan_pod(&pod, node, now));
        let steady = Instant::now();
        for number in [i32::MIN, 0, i32::MAX] {
            let mut lease = Lease::default();
            lease.spec.lease_duration_seconds = Some(number);
            lease.spec.lease_transitions = Some(number);
            let health = NodeHealth::update(None, node, Some(&lease), steady);
            let clocks = NodeClocks { steady, wall: now };
            for grace in [Duration::ZERO, Duration::MAX] {
                let (mut evicted, rates) = (ZoneEvictions::default(), EvictionRates::default());
                evicted.note(names(), &rates, node, &Plan::default(), now);
                let some = ClusterHealth::assess(
                    names(),
                    &rates,
                    Some(node),
                    [node].into_iter(),
                    &evicted,
                    now,
                );
                for cluster in [some, ClusterHealth::SomeReady, ClusterHealth::NoneReady] {
                    drop(node_lifecycle::plan(names(), node, &health, grace, clocks, cluster));
                }
            }
        }
        assert!(node_cidr::of_node(node).count() <= 2);
    });
}

#[test]
fn services_and_their_addresses() {
    let pod: Pod = decode(&matching(example!("core.v1.Pod")));
    let pods = [Arc::new(pod)];
    let placed = |_: &str| Some(Arc::new(Node::default()));
    let context = SliceContext { names: names(), node: &placed, endpoints_max: 100 };
    let slices: [Arc<EndpointSlice>; 0] = [];
    let service = matching(example!("core.v1.Service"));
    each::<Service>(&service, |service, _| {
        drop(endpoints::plan(names(), Some(service), &pods, None));
        drop(endpoint_slices::plan(&context, Some(service), &pods, &slices));
    });
    let service: Service = decode(&service);
    let mut document = matching(example!("core.v1.Endpoints"));
    document["subsets"][0]["ports"] = json!([
        {"port": 1}, {"port": 2}, {"port": 3}, {"port": 4}, {"port": 5}, {"port": 6}
    ]);
    each::<Endpoints>(&document, |endpoints, _| {
        drop(mirror::plan(&context, Some(&service), Some(endpoints), &slices));
    });
}

#[test]
fn claims_and_volumes() {
    let annotations = VolumeAnnotations::new(names());
    let mut claim = matching(example!("core.v1.PersistentVolumeClaim"));
    let mut volume = matching(example!("core.v1.PersistentVolume"));
    claim["spec"]["resources"]["requests"] = json!({"storage": "0"});
    claim["status"]["capacity"] = json!({"storage": "0"});
    claim["status"]["phase"] = json!("Bound");
    volume["spec"]["capacity"] = json!({"storage": "0"});
    volume["status"]["phase"] = json!("Available");
    let (one_claim, one_volume): (PersistentVolumeClaim, PersistentVolume) =
        (decode(&claim), decode(&volume));
    each::<PersistentVolumeClaim>(&claim, |claim, _| {
        let _ = fit::best(&annotations, claim, [&one_volume], fit::Choice::Any);
        drop(expand::plan(names(), claim, None));
    });
    each::<PersistentVolume>(&volume, |volume, _| {
        let _ = fit::best(&annotations, &one_claim, [volume], fit::Choice::Any);
    });
}
