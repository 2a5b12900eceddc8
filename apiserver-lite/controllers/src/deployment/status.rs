//! The status of a deployment: pod counts and the conditions Available, Progressing and ReplicaFailure.

use std::time::Duration;

use proto_api::Time;
use proto_api::apps::v1::{
    Deployment, DeploymentCondition, DeploymentStatus, ReplicaSet, ReplicaSetCondition,
};

use super::rollout::{self, Sizes, clamp_to_i32};
use crate::replica_failure::REPLICA_FAILURE;

/// Reason of the condition Progressing after a complete rollout.
const COMPLETE: &str = "NewReplicaSetAvailable";
/// Its reasons after a rollout has failed, while the deployment is paused, and after that until it moves.
const TIMED_OUT: &str = "ProgressDeadlineExceeded";
const PAUSED: &str = "DeploymentPaused";
const RESUMED: &str = "DeploymentResumed";
/// Its reason from the creation of a new set until that has pods.
const CREATED: &str = "NewReplicaSetCreated";
const FOUND: &str = "FoundNewReplicaSet";
/// Its reason after a new set could not be created.
const NOT_CREATED: &str = "ReplicaSetCreateError";

/// The deadline of a rollout in seconds; none if it has none, which the largest number says, too.
fn progress_deadline(deployment: &Deployment) -> Option<i64> {
    let deadline = deployment.spec.progress_deadline_seconds;
    deadline.filter(|seconds| *seconds != i32::MAX).map(i64::from)
}

/// Computes the status from the replica sets.
pub fn compute_status(
    deployment: &Deployment,
    newest: Option<&ReplicaSet>,
    old: &[&ReplicaSet],
    now: Time,
) -> DeploymentStatus {
    let mut status = count_pods(deployment, newest, old, now);
    if progress_deadline(deployment).is_some() {
        mark_pause(deployment, &mut status.conditions, now);
        if let Some(newest) = newest.filter(|_| !deployment.spec.paused) {
            progress(deployment, newest, &mut status, now);
        }
    } else if !deployment.spec.paused {
        status.conditions.retain(|condition| condition.type_ != "Progressing");
    }
    match newest.into_iter().chain(old.iter().copied()).find_map(failure) {
        Some(found) => {
            let ReplicaSetCondition { type_, status: value, reason, message, .. } = found;
            set(&mut status.conditions, type_, value, reason, message.clone(), now);
        }
        None => status.conditions.retain(|condition| condition.type_ != REPLICA_FAILURE),
    }
    status
}

/// The status with the counts of the replica sets and the condition Available; the other conditions stay. It is all that a deployment has that is being
/// deleted.
pub fn count_pods(
    deployment: &Deployment,
    newest: Option<&ReplicaSet>,
    old: &[&ReplicaSet],
    now: Time,
) -> DeploymentStatus {
    let sets = || old.iter().copied().chain(newest);
    let sizes = Sizes::from_sets(newest, old);
    let sum = |count: fn(&ReplicaSet) -> i32| {
        clamp_to_i32(rollout::sum(sets().map(|set| i64::from(count(set).max(0)))))
    };
    let available = sum(|set| set.status.available_replicas);
    let mut status = DeploymentStatus {
        observed_generation: deployment.metadata.generation,
        replicas: sum(|set| set.status.replicas),
        updated_replicas: newest.map_or(0, |set| set.status.replicas.max(0)),
        ready_replicas: sum(|set| set.status.ready_replicas),
        available_replicas: available,
        unavailable_replicas: clamp_to_i32(sizes.total().saturating_sub(i64::from(available))),
        conditions: deployment.status.conditions.clone(),
        collision_count: deployment.status.collision_count,
    };
    let wanted = rollout::replicas(deployment);
    let min_available = wanted.saturating_sub(rollout::max_unavailable(deployment));
    let enough = i64::from(available) >= min_available;
    let (value, reason, message) = match enough {
        true => ("True", "MinimumReplicasAvailable", "Deployment has minimum availability."),
        false => (
            "False",
            "MinimumReplicasUnavailable",
            "Deployment does not have minimum availability.",
        ),
    };
    set(&mut status.conditions, "Available", value, reason, message.to_owned(), now);
    status
}

fn failure(set: &ReplicaSet) -> Option<&ReplicaSetCondition> {
    set.status.conditions.iter().find(|condition| condition.type_ == REPLICA_FAILURE)
}

/// Says in the condition Progressing that the deployment is paused, or no longer. A rollout that had failed before stays failed.
fn mark_pause(deployment: &Deployment, conditions: &mut Vec<DeploymentCondition>, now: Time) {
    let last = conditions.iter().find(|condition| condition.type_ == "Progressing");
    let last = last.map_or("", |condition| condition.reason.as_str());
    let (reason, message) = match (deployment.spec.paused, last) {
        (true, TIMED_OUT | PAUSED) => return,
        (true, _) => (PAUSED, "Deployment is paused"),
        (false, PAUSED) => (RESUMED, "Deployment is resumed"),
        (false, _) => return,
    };
    set(conditions, "Progressing", "Unknown", reason, message.to_owned(), now);
}

/// Says in the condition Progressing that a rollout begins: its deadline does not depend on what became of the last one.
pub fn mark_new_set(deployment: &Deployment, name: &str, status: &mut DeploymentStatus, now: Time) {
    let mut before = deployment.status.conditions.iter();
    if progress_deadline(deployment).is_none() {
        return;
    }
    if before.any(|last| last.type_ == "Progressing" && last.reason == PAUSED) {
        return;
    }
    let message = format!("Created new replica set \"{name}\"");
    set(&mut status.conditions, "Progressing", "True", CREATED, message, now);
}

/// The same of a set that there is: the status after its creation was not written, or an undo has chosen it. What the condition says of the last rollout does
/// not count; one that moves, or is complete, stays.
pub fn mark_found_set(
    deployment: &Deployment,
    name: &str,
    status: &mut DeploymentStatus,
    now: Time,
) {
    let is_over = |last: &DeploymentCondition| {
        last.type_ == "Progressing" && (last.status == "False" || last.reason == COMPLETE)
    };
    let begins = !deployment.spec.paused && !is_complete(deployment, status);
    if begins && progress_deadline(deployment).is_some() && status.conditions.iter().any(is_over) {
        let message = format!("Found new replica set \"{name}\"");
        set(&mut status.conditions, "Progressing", "True", FOUND, message, now);
    }
}

/// The status after the set of this name could not be made, but for the error, with which the message ends. None without a deadline, or if it says so already.
pub fn failed_set(deployment: &Deployment, name: &str, now: Time) -> Option<DeploymentStatus> {
    let mut status = deployment.status.clone();
    let mut conditions = status.conditions.iter();
    let is_known = conditions.any(|last| last.type_ == "Progressing" && last.reason == NOT_CREATED);
    progress_deadline(deployment).filter(|_| !is_known)?;
    let message = format!("Failed to create new replica set \"{name}\": ");
    set(&mut status.conditions, "Progressing", "False", NOT_CREATED, message, now);
    Some(status)
}

/// Whether all pods are those of the newest template, and available.
pub fn is_complete(deployment: &Deployment, status: &DeploymentStatus) -> bool {
    let counts = [status.updated_replicas, status.replicas, status.available_replicas];
    counts.iter().all(|count| i64::from(*count) == rollout::replicas(deployment))
}

/// Updates the condition Progressing: renewed by every step, complete at the end, False after the deadline. A rollout that was complete stays so, whatever
/// becomes of its pods, until there are others.
fn progress(
    deployment: &Deployment,
    newest: &ReplicaSet,
    status: &mut DeploymentStatus,
    now: Time,
) {
    let before = &deployment.status;
    let complete = is_complete(deployment, status);
    let outdated = |status: &DeploymentStatus| {
        i64::from(status.replicas).saturating_sub(i64::from(status.updated_replicas))
    };
    let moved = status.updated_replicas > before.updated_replicas
        || outdated(status) < outdated(before)
        || status.ready_replicas > before.ready_replicas
        || status.available_replicas > before.available_replicas;
    let name = &newest.metadata.name;
    let last = status.conditions.iter().find(|condition| condition.type_ == "Progressing");
    let since = last.and_then(|last| last.last_update_time.unix()).or(now.unix()).unwrap_or(0);
    let deadline = progress_deadline(deployment).unwrap_or(i64::MAX);
    let late = now.unix().unwrap_or(0).saturating_sub(since) > deadline;
    let was_complete = last.is_some_and(|last| last.reason == COMPLETE);
    let (value, reason, message) = if complete {
        ("True", COMPLETE, format!("ReplicaSet \"{name}\" has successfully progressed."))
    } else if was_complete && outdated(status) == 0 {
        return;
    } else if moved || last.is_none() || was_complete {
        ("True", "ReplicaSetUpdated", format!("ReplicaSet \"{name}\" is progressing."))
    } else if late {
        ("False", TIMED_OUT, format!("ReplicaSet \"{name}\" has timed out progressing."))
    } else {
        return;
    };
    let conditions = &mut status.conditions;
    set(conditions, "Progressing", value, reason, message, now);
    if moved && let Some(condition) = conditions.iter_mut().find(|c| c.type_ == "Progressing") {
        condition.last_update_time = now;
    }
}

/// The time until the progress deadline of a rollout, at which nothing queues the deployment.
pub fn deadline_in(
    deployment: &Deployment,
    status: &DeploymentStatus,
    now: Time,
) -> Option<Duration> {
    let under_way = |c: &&DeploymentCondition| {
        let runs = c.status == "True" && c.reason != COMPLETE;
        c.type_ == "Progressing" && (runs || c.reason == RESUMED)
    };
    let condition = status.conditions.iter().find(under_way)?;
    let deadline = progress_deadline(deployment).filter(|_| !deployment.spec.paused)?;
    let late = condition.last_update_time.unix()?.saturating_add(deadline).saturating_add(1);
    u64::try_from(late.saturating_sub(now.unix()?)).ok().map(Duration::from_secs)
}

/// Sets a condition; its times change only with its status or reason.
fn set(
    conditions: &mut Vec<DeploymentCondition>,
    type_: &str,
    status: &str,
    reason: &str,
    message: String,
    now: Time,
) {
    let before = conditions.iter().position(|condition| condition.type_ == type_);
    let mut next = DeploymentCondition {
        type_: type_.to_owned(),
        status: status.to_owned(),
        last_update_time: now,
        last_transition_time: now,
        reason: reason.to_owned(),
        message,
    };
    let Some(condition) = before.and_then(|at| conditions.get_mut(at)) else {
        conditions.push(next);
        return;
    };
    if condition.status == next.status {
        next.last_transition_time = condition.last_transition_time;
        if condition.reason == next.reason {
            next.last_update_time = condition.last_update_time;
        }
    }
    *condition = next;
}
