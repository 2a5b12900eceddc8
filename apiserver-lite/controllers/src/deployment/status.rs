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

/// Computes the status from the replica sets.
pub fn of(
    deployment: &Deployment,
    newest: Option<&ReplicaSet>,
    old: &[&ReplicaSet],
    now: Time,
) -> DeploymentStatus {
    let sets = || old.iter().copied().chain(newest);
    let sizes = Sizes::of(newest, old);
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
    if let Some(newest) = newest {
        progress(deployment, newest, &mut status, now);
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

fn failure(set: &ReplicaSet) -> Option<&ReplicaSetCondition> {
    set.status.conditions.iter().find(|condition| condition.type_ == REPLICA_FAILURE)
}

/// Updates the condition Progressing: renewed by every step, complete at the end, False after the deadline.
fn progress(
    deployment: &Deployment,
    newest: &ReplicaSet,
    status: &mut DeploymentStatus,
    now: Time,
) {
    let wanted = rollout::replicas(deployment);
    let before = &deployment.status;
    let counts = [status.updated_replicas, status.replicas, status.available_replicas];
    let complete = counts.iter().all(|count| i64::from(*count) == wanted);
    let outdated = |status: &DeploymentStatus| {
        i64::from(status.replicas).saturating_sub(i64::from(status.updated_replicas))
    };
    let moved = status.updated_replicas > before.updated_replicas
        || outdated(status) < outdated(before)
        || status.ready_replicas > before.ready_replicas
        || status.available_replicas > before.available_replicas;
    let name = &newest.metadata.name;
    let last = before.conditions.iter().find(|condition| condition.type_ == "Progressing");
    let since = last.and_then(|last| last.last_update_time.unix()).or(now.unix()).unwrap_or(0);
    let deadline = deployment.spec.progress_deadline_seconds.map_or(i64::MAX, i64::from);
    let late = now.unix().unwrap_or(0).saturating_sub(since) > deadline;
    let (value, reason, message) = if complete {
        ("True", COMPLETE, format!("ReplicaSet \"{name}\" has successfully progressed."))
    } else if moved || last.is_none() || last.is_some_and(|last| last.reason == COMPLETE) {
        ("True", "ReplicaSetUpdated", format!("ReplicaSet \"{name}\" is progressing."))
    } else if late && !deployment.spec.paused {
        (
            "False",
            "ProgressDeadlineExceeded",
            format!("ReplicaSet \"{name}\" has timed out progressing."),
        )
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
        c.type_ == "Progressing" && c.status == "True" && c.reason != COMPLETE
    };
    let condition = status.conditions.iter().find(under_way)?;
    let deadline = deployment.spec.progress_deadline_seconds.filter(|_| !deployment.spec.paused)?;
    let late =
        condition.last_update_time.unix()?.saturating_add(i64::from(deadline)).saturating_add(1);
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
