//! Why an object is not as it should be: from objects that were read to a short list of findings, the worst first.

mod autoscaler;
mod budget;
mod claim;
mod container;
mod namespace;
mod node;
mod pod;
mod refusal;
mod scheduling;
mod service;
mod volume;
mod workload;

use serde_json::Value;

use crate::{age, objects, state, terminal};

/// Longest evidence that is shown.
const EVIDENCE_LEN_MAX: usize = 400;
/// Most findings.
const FINDINGS_MAX: usize = 20;

/// An object that another one names.
#[derive(Clone, Debug, PartialEq)]
pub enum Lookup {
    /// It is there.
    Found(Value),
    /// There is none.
    Missing,
    /// It could not be read, so that nothing is known of it.
    Unread,
}

/// A pod with what it depends on.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct PodCase {
    pub pod: Value,
    /// What happened to it, the oldest first.
    pub events: Vec<Value>,
    /// The node that it is assigned to.
    pub node: Option<Lookup>,
    /// The claims that it names, by name.
    pub claims: Vec<(String, Lookup)>,
}

/// An object with what it depends on, as far as its kind needs it.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Case {
    pub object: Value,
    /// What happened to it and, of a deployment, to its replica sets; the oldest first.
    pub events: Vec<Value>,
    /// The pod itself, the pods of a workload, a service or a budget, or those that use a claim.
    pub pods: Vec<PodCase>,
    /// The endpoints of a service.
    pub endpoints: Option<Lookup>,
    /// Names of the ready pods of a service whose nodes do not exist.
    pub left_out: Vec<String>,
    /// The storage class of a claim.
    pub class: Option<Lookup>,
    /// The volume that a claim names.
    pub volume: Option<Lookup>,
}

/// How bad a finding is; the worst first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Weight {
    /// It stays so until a user changes something.
    Stuck,
    /// It may pass by itself.
    Waiting,
}

/// One thing that is wrong.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finding {
    /// How bad it is.
    pub weight: Weight,
    /// What is wrong.
    pub what: String,
    /// What shows it.
    pub evidence: String,
    /// What to do next.
    pub next: String,
}

/// The answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Nothing is wrong, for this reason.
    Well(String),
    /// What is wrong, the worst first.
    Wrong(Vec<Finding>),
}

/// Whether objects of this kind are known here.
pub fn supports_kind(group: &str, kind: &str) -> bool {
    matches!(
        (group, kind),
        ("", "Pod" | "Service" | "PersistentVolumeClaim" | "PersistentVolume")
            | ("", "Node" | "Namespace")
            | ("apps", "Deployment" | "ReplicaSet" | "StatefulSet" | "DaemonSet")
            | ("batch", "Job")
            | ("autoscaling", "HorizontalPodAutoscaler")
            | ("policy", "PodDisruptionBudget")
    )
}

/// Why an object is not as it should be, at `now` (seconds since 1970).
pub fn explain(case: &Case, now: i64) -> Verdict {
    let mut verdict = match (objects::text_at(&case.object, "/kind"), case.pods.first()) {
        ("Pod", Some(pod)) => pod::explain(pod, now),
        ("Service", _) => service::explain(case, now),
        ("PersistentVolumeClaim", _) => claim::explain(case, now),
        ("PersistentVolume", _) => volume::explain(case, now),
        ("Node", _) => node::explain(case, now),
        ("Namespace", _) => namespace::explain(case, now),
        ("HorizontalPodAutoscaler", _) => autoscaler::explain(case, now),
        ("PodDisruptionBudget", _) => budget::explain(case, now),
        _ => workload::explain(case, now),
    };
    if let Verdict::Wrong(findings) = &mut verdict {
        findings.sort_by_key(|finding| finding.weight);
        findings.truncate(FINDINGS_MAX);
    }
    verdict
}

/// The answer as text: a finding a line.
pub fn render(verdict: &Verdict) -> String {
    match verdict {
        Verdict::Well(reason) => format!("nothing is wrong - {}\n", clean(reason)),
        Verdict::Wrong(findings) => findings
            .iter()
            .map(|one| {
                format!("{} - {} - {}\n", clean(&one.what), clean(&one.evidence), clean(&one.next))
            })
            .collect(),
    }
}

/// One line of bounded length that cannot speak to a terminal.
fn clean(text: &str) -> String {
    let words: Vec<&str> = text.split_whitespace().collect();
    let line = terminal::visible(&words.join(" ")).into_owned();
    if line.chars().count() <= EVIDENCE_LEN_MAX {
        return line;
    }
    line.chars().take(EVIDENCE_LEN_MAX).chain("...".chars()).collect()
}

impl Finding {
    fn stuck(
        what: impl Into<String>,
        evidence: impl Into<String>,
        next: impl Into<String>,
    ) -> Self {
        let (what, evidence, next) = (what.into(), evidence.into(), next.into());
        Self { weight: Weight::Stuck, what, evidence, next }
    }

    fn waiting(
        what: impl Into<String>,
        evidence: impl Into<String>,
        next: impl Into<String>,
    ) -> Self {
        Self { weight: Weight::Waiting, ..Self::stuck(what, evidence, next) }
    }
}

/// `reason: message`, or what there is of both.
fn reason_of(object: &Value) -> String {
    let texts = ["/reason", "/message"].map(|pointer| objects::text_at(object, pointer));
    let texts: Vec<&str> = texts.into_iter().filter(|text| !text.is_empty()).collect();
    texts.join(": ")
}

/// The message of the last event with one of these reasons.
fn last_event<'a>(events: &'a [Value], reasons: &[&str]) -> Option<&'a str> {
    let is = |event: &&Value| reasons.contains(&objects::text_at(event, "/reason"));
    events.iter().rev().find(is).map(|event| objects::text_at(event, "/message").trim())
}

/// Texts of a list.
fn texts<'a>(object: &'a Value, pointer: &str) -> Vec<&'a str> {
    objects::list_at(object, pointer).iter().filter_map(Value::as_str).collect()
}

fn true_condition<'a>(object: &'a Value, kind: &str) -> Option<&'a Value> {
    state::condition(object, kind).filter(|one| objects::text_at(one, "/status") == "True")
}

/// What is wrong with an object that is being deleted.
fn deletion(object: &Value, now: i64) -> Option<Finding> {
    /// A node may be late by this many seconds.
    const LATE_SECONDS: i64 = 30;
    let time = objects::text_at(object, "/metadata/deletionTimestamp");
    let until = age::seconds_of(time)?;
    let finalizers = texts(object, "/metadata/finalizers");
    if !finalizers.is_empty() {
        return Some(Finding::stuck(
            "it is being deleted and finalizers hold it",
            format!("{} since {time}", finalizers.join(", ")),
            "see to the controllers that have to take these finalizers off; take one off by hand only if its controller is gone for good",
        ));
    }
    let node = objects::text_at(object, "/spec/nodeName");
    if !node.is_empty() && now.saturating_sub(until) > LATE_SECONDS {
        let next = format!("look whether the node's kubelet runs: orchctl describe node {node}");
        let evidence = format!("it should have gone at {time}; it is on node {node}");
        return Some(Finding::stuck(
            "it is being deleted and its node has not ended it",
            evidence,
            next,
        ));
    }
    Some(Finding::waiting("it is being deleted", format!("deletion time {time}"), "wait"))
}

#[cfg(test)]
mod tests;
