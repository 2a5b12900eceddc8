//! Every number in pods and nodes at its extremes: no pass panics, and no sum of requests comes out small. Debug builds check each operation.

#[path = "../../orch-controller-manager/src/extremes/values.rs"]
mod values;

use std::sync::Arc;

use proto_api::core::v1::{Container, Node, Pod};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use crate::filter::check;
use crate::node_info::NodeInfo;
use crate::nodes::NodeLoad;
use crate::pod_affinity::{InterPodState, NamespaceLabels};
use crate::pod_info::examples::{names, node};
use crate::pod_info::{CPU, MEMORY, PodInfo};
use crate::score::best;
use values::variants;

fn each<T: DeserializeOwned>(document: &Value, mut drive: impl FnMut(&T)) {
    let mut decoded = 0;
    for (what, variant) in variants(document) {
        let Ok(object) = serde_json::from_value::<T>(variant) else { continue };
        decoded += 1;
        // The harness shows what is printed here when something panics.
        println!("{what}");
        drive(&object);
    }
    assert!(decoded > 20, "{decoded} variants were looked at");
}

/// Looks for a node among those with residents, and puts the pod there whatever the answer.
fn pass(pod: &PodInfo, loads: &mut [NodeLoad]) {
    drop(InterPodState::of(pod, loads, &NamespaceLabels::new()));
    for load in loads.iter() {
        let _ = check(pod, load);
    }
    let all: Vec<&NodeLoad> = loads.iter().collect();
    let _ = best(pod, &all);
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
        let facts = PodInfo::of(names(), pod);
        let mut loads = ["a", "b"].map(|name| NodeLoad::empty(Arc::new(node(name))));
        (0..3).for_each(|_| pass(&facts, &mut loads));
    });
}

#[test]
fn nodes_at_their_extremes() {
    let pod = crate::pod_info::examples::pod("p", i64::MAX, i64::MAX);
    each::<Node>(&example(include_str!("../../../proto/api/testdata/core.v1.Node.json")), |node| {
        let node = Arc::new(NodeInfo::of(names(), node));
        let mut loads = [NodeLoad::empty(node.clone()), NodeLoad::empty(node)];
        (0..3).for_each(|_| pass(&pod, &mut loads));
    });
}

/// In a release build a sum that wraps is negative, and asks for nothing.
#[test]
fn requests_that_overflow_fit_nowhere() {
    let mut pod = Pod::default();
    for _ in 0..2 {
        let mut container = Container::default();
        for resource in [CPU, MEMORY] {
            let quantity = "9223372036854775807".parse().expect("a quantity");
            container.resources.requests.insert(resource.to_owned(), quantity);
        }
        pod.spec.containers.push(container);
    }
    let facts = PodInfo::of(names(), &pod);
    assert_eq!(facts.requests[CPU], i64::MAX);
    assert!(check(&facts, &NodeLoad::empty(Arc::new(node("a")))).is_err());
}
