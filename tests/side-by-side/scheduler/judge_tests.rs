//! Each rule of the judge finds what breaks it, and nothing else.

use proto_api::core::v1::{Node, Pod};
use serde_json::{Value, json};

use super::judge::judge;

fn node(name: &str, zone: &str, taints: Value) -> Node {
    serde_json::from_value(json!({
        "metadata": {"name": name, "labels": {"zone": zone, "host": name}},
        "spec": {"taints": taints},
        "status": {"allocatable": {"cpu": "1", "pods": "3"}},
    }))
    .unwrap()
}

fn nodes() -> Vec<Node> {
    let taint = json!([{"key": "kept", "value": "yes", "effect": "NoSchedule"}]);
    vec![
        node("a", "1", json!([])),
        node("b", "1", json!([])),
        node("c", "2", json!([])),
        node("kept", "2", taint),
    ]
}

fn pod(name: &str, on: &str, mut spec: Value) -> Pod {
    spec["nodeName"] = json!(on);
    let metadata = json!({"name": name, "namespace": "n", "labels": {"app": "x"}});
    serde_json::from_value(json!({"metadata": metadata, "spec": spec})).unwrap()
}

fn term(key: &str) -> Value {
    let terms = json!([{"topologyKey": key, "labelSelector": {"matchLabels": {"app": "x"}}}]);
    json!({"requiredDuringSchedulingIgnoredDuringExecution": terms})
}

/// Asserts what is told of these pods, without what stands before the colon.
fn expect(pods: &[Pod], wrong: &[&str]) {
    let told = judge(&nodes(), pods);
    let told: Vec<&str> =
        told.iter().map(|t| t.split_once(": ").map_or(&**t, |(_, why)| why)).collect();
    assert_eq!(told, wrong);
}

#[test]
fn a_pod_needs_a_node_that_is_there() {
    expect(&[pod("p", "a", json!({}))], &[]);
    expect(&[pod("p", "", json!({}))], &["p has no node"]);
    expect(&[pod("p", "z", json!({}))], &["p is on z, which is no node", "1 of pods are taken"]);
}

#[test]
fn a_node_gives_no_more_than_it_has() {
    let asks = |cpu: &str| json!({"containers": [{"resources": {"requests": {"cpu": cpu}}}]});
    expect(&[pod("p", "a", asks("600m")), pod("q", "a", asks("400m"))], &[]);
    expect(
        &[pod("p", "a", asks("600m")), pod("q", "a", asks("401m"))],
        &["1001m of cpu are taken"],
    );
    let four: Vec<Pod> = (0..4).map(|n| pod(&format!("p{n}"), "a", json!({}))).collect();
    expect(&four, &["4 of pods are taken"]);
    let port = json!({"containers": [{"ports": [{"containerPort": 80, "hostPort": 80}]}]});
    expect(&[pod("p", "a", port.clone()), pod("q", "b", port.clone())], &[]);
    expect(&[pod("p", "a", port.clone()), pod("q", "a", port)], &["q and p share port 80 of a"]);
}

#[test]
fn a_taint_wants_a_toleration() {
    let tolerates = |value: &str| json!({"tolerations": [{"key": "kept", "value": value}]});
    expect(&[pod("p", "kept", tolerates("yes"))], &[]);
    expect(&[pod("p", "kept", json!({"tolerations": [{"operator": "Exists"}]}))], &[]);
    for spec in [json!({}), tolerates("no")] {
        expect(&[pod("p", "kept", spec)], &["it does not tolerate kept=yes:NoSchedule"]);
    }
}

#[test]
fn a_selector_and_an_affinity_select_the_node() {
    let wrong = ["its node selector or affinity does not select the node"];
    expect(&[pod("p", "a", json!({"nodeSelector": {"zone": "1"}}))], &[]);
    expect(&[pod("p", "c", json!({"nodeSelector": {"zone": "1"}}))], &wrong);
    let affinity = |operator: &str, values: Value| {
        let terms = json!([{"matchExpressions": [{"key": "zone", "operator": operator, "values": values}]}]);
        let required = json!({"nodeSelectorTerms": terms});
        json!({"affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": required}}})
    };
    for (operator, values, on, off) in [
        ("In", json!(["1"]), "a", "c"),
        ("NotIn", json!(["1"]), "c", "a"),
        ("Gt", json!(["1"]), "c", "a"),
        ("Lt", json!(["2"]), "a", "c"),
    ] {
        expect(&[pod("p", on, affinity(operator, values.clone()))], &[]);
        expect(&[pod("p", off, affinity(operator, values))], &wrong);
    }
    expect(&[pod("p", "a", affinity("Exists", json!([])))], &[]);
    expect(&[pod("p", "a", affinity("DoesNotExist", json!([])))], &wrong);
}

#[test]
fn pods_keep_apart_and_together() {
    let apart = json!({"affinity": {"podAntiAffinity": term("zone")}});
    expect(&[pod("p", "a", apart.clone()), pod("q", "c", json!({}))], &[]);
    expect(&[pod("p", "a", apart), pod("q", "b", json!({}))], &["q is in its zone"]);
    let together = json!({"affinity": {"podAffinity": term("zone")}});
    expect(&[pod("p", "a", together.clone())], &[]);
    expect(&[pod("p", "a", together.clone()), pod("q", "b", json!({}))], &[]);
    expect(
        &[pod("p", "a", together), pod("q", "c", json!({}))],
        &["none that it wants is in its zone"],
    );
}

#[test]
fn pods_spread() {
    let spread = |when: &str| {
        json!({"topologySpreadConstraints": [{"maxSkew": 1, "topologyKey": "zone", "whenUnsatisfiable": when,
               "labelSelector": {"matchLabels": {"app": "x"}}}]})
    };
    let must = spread("DoNotSchedule");
    expect(
        &[pod("p", "a", must.clone()), pod("q", "c", must.clone()), pod("r", "b", must.clone())],
        &[],
    );
    let told = ["2 more are in zone 1 than in another"; 2];
    expect(&[pod("p", "a", must.clone()), pod("q", "b", must)], &told);
    let may = spread("ScheduleAnyway");
    expect(&[pod("p", "a", may.clone()), pod("q", "b", may)], &[]);
}
