//! A Node: why it is not ready, or takes no pods.

use serde_json::Value;

use super::{Case, Finding, Verdict, deletion, reason_of, true_condition};
use crate::{objects, state};

/// What a node lacks, by the condition that says so.
const PRESSURES: [(&str, &str, &str); 3] = [
    (
        "MemoryPressure",
        "it has too little memory",
        "pods that use more than they asked for are evicted: see which, orchctl top pod -A --sort-by=memory",
    ),
    (
        "DiskPressure",
        "it has too little disk",
        "unused images and containers are removed, then pods evicted: free space where its kubelet and runtime keep their files",
    ),
    (
        "PIDPressure",
        "it has too few process ids",
        "see which pod starts so many processes, and limit it",
    ),
];

/// Why a node is not ready or takes no pods.
pub(super) fn explain(case: &Case, now: i64) -> Verdict {
    let node = &case.object;
    let name = objects::name(node);
    let mut findings: Vec<Finding> = deletion(node, now).into_iter().collect();
    findings.extend(unready(node, name));
    for (kind, what, next) in PRESSURES {
        if let Some(condition) = true_condition(node, kind) {
            findings.push(Finding::waiting(what, reason_of(condition), next));
        }
    }
    if let Some(condition) = true_condition(node, "NetworkUnavailable") {
        findings.push(Finding::stuck(
            "its network is not set up",
            reason_of(condition),
            "see to the controller that makes its routes, or to the network plugin",
        ));
    }
    if node.pointer("/spec/unschedulable") == Some(&Value::Bool(true)) {
        findings.push(Finding::stuck(
            "it takes no new pods",
            "spec.unschedulable is true: it is cordoned",
            format!("orchctl uncordon {name}"),
        ));
    }
    if !findings.is_empty() {
        return Verdict::Wrong(findings);
    }
    let taints = taints(node);
    Verdict::Well(match taints.is_empty() {
        true => "it is ready and takes pods".to_owned(),
        false => {
            format!("it is ready; it takes pods that tolerate its taints: {}", taints.join(", "))
        }
    })
}

fn unready(node: &Value, name: &str) -> Option<Finding> {
    let Some(ready) = state::condition(node, "Ready") else {
        return Some(Finding::waiting(
            "its kubelet has not reported yet",
            "it has no condition Ready",
            "look whether the kubelet runs on it and may write its status",
        ));
    };
    let reason = reason_of(ready);
    match objects::text_at(ready, "/status") {
        "True" => None,
        "False" => Some(Finding::stuck(
            "its kubelet says that it is not ready",
            reason,
            "see to what it says; more is in the kubelet's log on the node",
        )),
        _ => {
            let last = objects::text_at(ready, "/lastHeartbeatTime");
            Some(Finding::stuck(
                "its kubelet has stopped to report",
                match last {
                    "" => reason,
                    last => format!("{reason}; last status at {last}"),
                },
                format!(
                    "look on the machine whether it runs, reaches the API server and has a valid certificate; its Lease: orchctl get lease -n kube-node-lease {name}"
                ),
            ))
        }
    }
}

/// Taints that keep pods off, as `key=value:effect`.
fn taints(node: &Value) -> Vec<String> {
    let all = objects::list_at(node, "/spec/taints").iter();
    let all = all.filter(|taint| objects::text_at(taint, "/effect") != "PreferNoSchedule");
    let all = all.map(|taint| {
        let [key, value, effect] =
            ["/key", "/value", "/effect"].map(|pointer| objects::text_at(taint, pointer));
        let value = if value.is_empty() { String::new() } else { format!("={value}") };
        format!("{key}{value}:{effect}")
    });
    all.collect()
}
