//! Pods and nodes with extreme numbers: scheduling does not panic, and no sum of requests wraps. Debug builds check each operation.

#[path = "../../controllers/src/extremes/values.rs"]
mod values;

use std::collections::BTreeMap;
use std::sync::Arc;

use proto_api::core::v1::{Container, Node, Pod};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use crate::examples::{names, node, profile};
use crate::features::SchedulingFeatures;
use crate::filter::check;
use crate::node_info::NodeInfo;
use crate::nodes::NodeLoad;
use crate::pod_affinity::{InterPodState, NamespaceLabels};
use crate::pod_info::PodInfo;
use crate::resource_amounts::{CPU, MEMORY};
use crate::score::{ScoreView, select_best};
use crate::selected_counts::SelectedCounts;
use values::variants;

fn each<T: DeserializeOwned>(document: &Value, mut drive: impl FnMut(&T)) {
    let mut decoded = 0;
    for (what, variant) in variants(document) {
        let Ok(object) = serde_json::from_value::<T>(variant) else { continue };
        decoded += 1;
        // Printed by the test harness after a panic.
        println!("{what}");
        drive(&object);
    }
    assert!(decoded > 20, "{decoded} variants were decoded");
}

/// Filters and scores the nodes, and assigns the pod to all of them.
fn schedule(pod: &PodInfo, loads: &mut [NodeLoad]) {
    let (namespaces, profile) = (NamespaceLabels::new(), profile());
    drop(InterPodState::new(pod, loads, &namespaces, &profile));
    for load in loads.iter() {
        let _ = check(pod, load, &profile);
    }
    let all: Vec<&NodeLoad> = loads.iter().collect();
    let added = BTreeMap::new();
    let view = ScoreView { loads, namespaces: &namespaces, profile: &profile, added: &added };
    let _ = select_best(pod, &all, view, &mut SelectedCounts::default());
    loads.iter_mut().for_each(|load| load.add(pod.clone()));
}

fn example(text: &str) -> Value {
    let mut document: Value = serde_json::from_str(text).expect("JSON");
    for pointer in [
        "/spec/containers/0/resources/requests",
        "/spec/initContainers/0/resources/requests",
        "/spec/overhead",
        "/status/allocatable",
    ] {
        if let Some(place) = document.pointer_mut(pointer) {
            *place = json!({"cpu": "0", "memory": "0", "pods": "0", "example.org/gpu": "0"});
        }
    }
    document
}

#[test]
fn pods_at_their_extremes() {
    let mut document = example(include_str!("../../../proto/api/testdata/core.v1.Pod.json"));
    let second = document["spec"]["containers"][0].clone();
    document["spec"]["containers"] = json!([second, second]);
    document["metadata"]["labels"] = json!({"app": "web"});
    let spread = &mut document["spec"]["topologySpreadConstraints"][0];
    spread["whenUnsatisfiable"] = json!("DoNotSchedule");
    spread["topologyKey"] = json!("zone");
    spread["labelSelector"] = json!({"matchLabels": {"app": "web"}});
    each::<Pod>(&document, |pod| {
        let info = PodInfo::with_features(names(), pod, SchedulingFeatures::from_gates(|_| true));
        let mut loads = ["a", "b"].map(|name| NodeLoad::empty(Arc::new(node(name))));
        (0..3).for_each(|_| schedule(&info, &mut loads));
    });
}

#[test]
fn nodes_at_their_extremes() {
    let pod = crate::examples::pod("p", i64::MAX, i64::MAX);
    each::<Node>(&example(include_str!("../../../proto/api/testdata/core.v1.Node.json")), |node| {
        let node = Arc::new(NodeInfo::from_node(names(), node));
        let mut loads = [NodeLoad::empty(node.clone()), NodeLoad::empty(node)];
        (0..3).for_each(|_| schedule(&pod, &mut loads));
    });
}

/// In a release build a sum that wraps would be negative and request nothing.
#[test]
fn requests_that_overflow_are_infeasible() {
    let mut pod = Pod::default();
    for _ in 0..2 {
        let mut container = Container::default();
        for resource in [CPU, MEMORY] {
            let quantity = "9223372036854775807".parse().expect("a quantity");
            container.resources.requests.insert(resource.to_owned(), quantity);
        }
        pod.spec.containers.push(container);
    }
    let info = PodInfo::from_pod(names(), &pod);
    assert_eq!(info.requests[CPU], i64::MAX);
    assert!(check(&info, &NodeLoad::empty(Arc::new(node("a"))), &profile()).is_err());
}
