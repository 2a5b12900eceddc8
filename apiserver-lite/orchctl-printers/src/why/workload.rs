//! Deployments, replica sets, stateful sets, daemon sets and jobs: why their pods are not there or not ready.

use serde_json::Value;

use super::{
    Case, Finding, Verdict, Weight, deletion, last_event, pod, reason_of, refusal, true_condition,
};
use crate::objects;
use crate::state::{self, number};

/// Pods of a workload in numbers.
struct Counts {
    wanted: i64,
    /// Of those that are there.
    made: i64,
    ready: i64,
    /// Of the newest template.
    updated: i64,
}

/// Why pods of a workload are not there or not ready.
pub(super) fn explain(case: &Case, now: i64) -> Verdict {
    let object = &case.object;
    let mut findings: Vec<Finding> = deletion(object, now).into_iter().collect();
    findings.extend(behind(object));
    if objects::text_at(object, "/kind") == "Job" {
        return explain_job(case, findings, now);
    }
    let counts = counts(object);
    if let Some(failure) = true_condition(object, "ReplicaFailure") {
        findings.push(refusal::explain(objects::text_at(failure, "/message")));
    }
    // Pods of the old template that stay ready do not make an update that is stuck whole.
    let has_old = objects::text_at(object, "/kind") == "Deployment" && counts.made > counts.updated;
    let is_whole = counts.ready >= counts.wanted && counts.updated >= counts.wanted && !has_old;
    if findings.is_empty() && is_whole {
        return whole(object, &counts);
    }
    findings.extend(rollout(object, &counts));
    let refused = last_event(&case.events, &["FailedCreate"]);
    if let Some(message) = refused.filter(|_| counts.made < counts.wanted)
        && true_condition(object, "ReplicaFailure").is_none()
    {
        findings.push(refusal::explain(message));
    }
    findings.extend(of_pods(case, now));
    if findings.is_empty() {
        let evidence = format!(
            "{} are wanted, {} are there, {} ready, {} of the newest template",
            counts.wanted, counts.made, counts.ready, counts.updated
        );
        findings.push(Finding::waiting("its pods are not all ready", evidence, "wait"));
    }
    Verdict::Wrong(findings)
}

fn counts(object: &Value) -> Counts {
    let count = |field: &str| number(object, &format!("/status/{field}"), 0);
    let on_delete = objects::text_at(object, "/spec/updateStrategy/type") == "OnDelete";
    match objects::text_at(object, "/kind") {
        "DaemonSet" => {
            let wanted = count("desiredNumberScheduled");
            let updated = if on_delete { wanted } else { count("updatedNumberScheduled") };
            let (made, ready) = (count("currentNumberScheduled"), count("numberReady"));
            Counts { wanted, made, ready, updated }
        }
        kind => {
            let wanted = number(object, "/spec/replicas", 1);
            // Replica sets have one template; stateful sets can be configured to keep pods of the old one.
            let one_template = kind == "ReplicaSet"
                || on_delete
                || number(object, "/spec/updateStrategy/rollingUpdate/partition", 0) > 0;
            let updated = if one_template { wanted } else { count("updatedReplicas") };
            Counts { wanted, made: count("replicas"), ready: count("readyReplicas"), updated }
        }
    }
}

/// All that is wanted is there.
fn whole(object: &Value, counts: &Counts) -> Verdict {
    if counts.wanted > 0 {
        let text = format!("{} of {} pods are ready", counts.ready, counts.wanted);
        return Verdict::Well(text);
    }
    if objects::text_at(object, "/kind") != "DaemonSet" {
        return Verdict::Well("no pods are wanted: spec.replicas is 0".to_owned());
    }
    Verdict::Wrong(vec![Finding::stuck(
        "no node is one that it runs on",
        "status.desiredNumberScheduled is 0",
        "compare its nodeSelector, affinity and tolerations with labels and taints of the nodes",
    )])
}

/// Its controller has not seen the last change.
fn behind(object: &Value) -> Option<Finding> {
    let generation = number(object, "/metadata/generation", 0);
    let observed = number(object, "/status/observedGeneration", generation);
    let kind = objects::text_at(object, "/kind");
    let unseen = object.pointer("/status/observedGeneration").is_none() && kind != "Job";
    (unseen || observed < generation).then(|| {
        Finding::waiting(
            "its controller has not acted on the last change",
            format!("generation {generation}, observed {}", if unseen { 0 } else { observed }),
            "look whether the controller manager runs",
        )
    })
}

fn rollout(object: &Value, counts: &Counts) -> Vec<Finding> {
    let mut findings = Vec::new();
    let (namespace, name) = (objects::namespace(object), objects::name(object));
    let progressing = state::condition(object, "Progressing");
    if let Some(one) = progressing.filter(|one| objects::text_at(one, "/status") == "False") {
        findings.push(Finding::stuck(
            "its rollout makes no progress",
            reason_of(one),
            format!("see what is wrong with its pods, or go back: orchctl rollout undo -n {namespace} deployment/{name}"),
        ));
    }
    let is_paused = object.pointer("/spec/paused") == Some(&Value::Bool(true));
    if is_paused && counts.updated < counts.wanted {
        findings.push(Finding::stuck(
            "its rollout is paused",
            format!("{} of {} pods are of the newest template", counts.updated, counts.wanted),
            format!("orchctl rollout resume -n {namespace} deployment/{name}"),
        ));
    }
    findings
}

fn explain_job(case: &Case, mut findings: Vec<Finding>, now: i64) -> Verdict {
    let job = &case.object;
    if findings.is_empty() && true_condition(job, "Complete").is_some() {
        let count = number(job, "/status/succeeded", 0);
        return Verdict::Well(format!("it is complete: {count} pods have succeeded"));
    }
    if let Some(failed) = true_condition(job, "Failed") {
        let (evidence, reason) = (reason_of(failed), objects::text_at(failed, "/reason"));
        let next = match reason {
            "DeadlineExceeded" => "raise spec.activeDeadlineSeconds, and make a new job",
            _ => "correct what its pods fail of, and make a new job",
        };
        findings.push(Finding::stuck("the job has failed", evidence, next));
    } else if job.pointer("/spec/suspend") == Some(&Value::Bool(true)) {
        findings.push(Finding::stuck(
            "the job is suspended",
            "spec.suspend is true",
            format!(
                "let it run: orchctl patch job -n {} {} -p '{{\"spec\":{{\"suspend\":false}}}}'",
                objects::namespace(job),
                objects::name(job)
            ),
        ));
    }
    let active = number(job, "/status/active", 0);
    let refused = last_event(&case.events, &["FailedCreate"]);
    if let Some(message) = refused.filter(|_| active < wanted_of_job(job)) {
        findings.push(refusal::explain(message));
    }
    findings.extend(of_pods(case, now));
    if !findings.is_empty() {
        return Verdict::Wrong(findings);
    }
    if active > 0 {
        return Verdict::Well(format!("it runs: {active} pods are active"));
    }
    let evidence = "no pod of it is active and it is not complete";
    Verdict::Wrong(vec![Finding::waiting("its pods are not there", evidence, "wait")])
}

/// The number of pods of a job that should be active.
fn wanted_of_job(job: &Value) -> i64 {
    let parallelism = number(job, "/spec/parallelism", 1);
    let completions = number(job, "/spec/completions", i64::MAX);
    let left = completions.saturating_sub(number(job, "/status/succeeded", 0));
    parallelism.min(left)
}

/// What is wrong with pods; what is the same for several is said once, of the first.
pub(super) fn of_pods(case: &Case, now: i64) -> Vec<Finding> {
    let mut merged: Vec<(usize, String, Finding)> = Vec::new();
    for pod in &case.pods {
        let Verdict::Wrong(findings) = pod::explain(pod, now) else { continue };
        let is_going = pod.pod.pointer("/metadata/deletionTimestamp").is_some();
        for finding in findings {
            // Those that go in time have others in their place.
            if is_going && finding.weight == Weight::Waiting {
                continue;
            }
            match merged.iter_mut().find(|(_, _, known)| known.what == finding.what) {
                Some((count, ..)) => *count += 1,
                None => merged.push((1, objects::name(&pod.pod).to_owned(), finding)),
            }
        }
    }
    let all = case.pods.len();
    let named = |(count, name, finding): (usize, String, Finding)| {
        let what = match count {
            1 => format!("pod {name}: {}", finding.what),
            _ => format!("{count} of {all} pods, as {name}: {}", finding.what),
        };
        Finding { what, ..finding }
    };
    merged.into_iter().map(named).collect()
}
