//! Pods without a node: what the scheduler said of the nodes.

use serde_json::Value;

use super::Finding;
use crate::{objects, state};

/// A pod that has no node.
pub(super) fn explain(pod: &Value) -> Vec<Finding> {
    let scheduled = state::condition(pod, "PodScheduled");
    let Some(scheduled) = scheduled.filter(|one| objects::text_at(one, "/status") != "True") else {
        let scheduler = objects::text_at(pod, "/spec/schedulerName");
        return vec![Finding::waiting(
            "no scheduler has looked at it yet",
            format!("it has no node; its scheduler is {scheduler}"),
            "look whether that scheduler runs",
        )];
    };
    let message = objects::text_at(scheduled, "/message");
    match refusals(message) {
        Some((all, refusals)) => {
            refusals.iter().map(|refusal| of_refusal(pod, refusal, all)).collect()
        }
        None => {
            let (what, next) = advice(message);
            vec![Finding::stuck(what, message, next)]
        }
    }
}

/// Number of nodes and reason.
type Refusal<'a> = (u64, &'a str);

/// The parts of `0/3 nodes are available: 1 Insufficient cpu, 2 node(s) were unschedulable. preemption: ...`, the most frequent first.
fn refusals(message: &str) -> Option<(&str, Vec<Refusal<'_>>)> {
    let (counts, rest) = message.split_once(" nodes are available: ")?;
    let (_, all) = counts.rsplit_once('/')?;
    let rest = rest.split_once(". preemption").map_or(rest, |(rest, _)| rest);
    let part = |part: &'_ str| -> Option<(u64, usize)> {
        let (count, reason) = part.trim().split_once(' ')?;
        Some((count.parse().ok()?, reason.len()))
    };
    let mut found = Vec::new();
    for text in rest.trim_end_matches('.').split(", ") {
        let text = text.trim();
        let (count, len) = part(text)?;
        found.push((count, text.get(text.len().saturating_sub(len)..)?));
    }
    found.sort_by_key(|(count, _)| std::cmp::Reverse(*count));
    (!found.is_empty()).then_some((all, found))
}

fn of_refusal(pod: &Value, refusal: &Refusal<'_>, all: &str) -> Finding {
    let (count, reason) = refusal;
    let (what, next) = advice(reason);
    let asked = reason.strip_prefix("Insufficient ").map(|resource| requests(pod, resource));
    let asked =
        asked.filter(|asked| !asked.is_empty()).map(|asked| format!("; it asks for {asked}"));
    let evidence = format!("{count} of {all} nodes: {reason}{}", asked.unwrap_or_default());
    Finding::stuck(what, evidence, next)
}

/// What is wrong, and what to do.
fn advice(reason: &str) -> (&'static str, &'static str) {
    let table = [
        (
            "taint",
            "nodes have taints that it does not tolerate",
            "add a toleration to it, or take the taint off: orchctl taint nodes NODE KEY-",
        ),
        (
            "Insufficient",
            "nodes have too little left for what it asks for",
            "ask for less, end other pods, or add a node: orchctl describe nodes shows what is taken",
        ),
        (
            "Too many pods",
            "nodes have as many pods as they may have",
            "end other pods or add a node",
        ),
        ("unschedulable", "nodes are cordoned", "let them have pods again: orchctl uncordon NODE"),
        (
            "volume node affinity",
            "its volumes are where no fitting node is",
            "compare the volumes' nodeAffinity with the nodes that it may run on",
        ),
        (
            "node affinity",
            "nodes lack the labels that its nodeSelector or affinity asks for",
            "compare them with the nodes: orchctl get nodes --show-labels",
        ),
        (
            "affinity rules",
            "its rules about other pods leave no node",
            "look at its podAffinity and podAntiAffinity, or add a node",
        ),
        (
            "topology spread",
            "its topologySpreadConstraints leave no node",
            "look at maxSkew and whenUnsatisfiable, or add nodes where pods are few",
        ),
        (
            "free ports",
            "the host port that it asks for is taken",
            "use another hostPort or none, or more nodes",
        ),
        ("PersistentVolumeClaim", "its claims are not bound", "ask why: orchctl why pvc/NAME"),
        (
            "persistentvolumeclaim",
            "a claim that it names is missing or going",
            "create the claim, or change the name in the pod's volumes",
        ),
        (
            "persistent volumes to bind",
            "there is no volume for its claims",
            "ask why: orchctl why pvc/NAME",
        ),
    ];
    let found = table.into_iter().find(|(part, ..)| reason.contains(part));
    found.map_or(("no node can take it", "see to what the scheduler says"), |(_, what, next)| {
        (what, next)
    })
}

/// `app 500m, db 1`: the requests of containers for a resource.
fn requests(pod: &Value, resource: &str) -> String {
    let containers = objects::list_at(pod, "/spec/containers").iter();
    let asked = containers.filter_map(|one| {
        let amount = one.pointer("/resources/requests")?.get(resource)?;
        let amount = amount.as_str().map_or_else(|| amount.to_string(), str::to_owned);
        Some(format!("{amount} ({})", objects::text_at(one, "/name")))
    });
    asked.collect::<Vec<_>>().join(", ")
}
