//! The end of a pod: when it is decided, the order of stops, and the cleanup afterwards.

use std::time::Duration;

use crate::backoff::RetryStep;
use crate::desired::{ContainerRole, DesiredPod, PodSource, Presence, RestartPolicy};
use crate::observed::{
    InstanceState, ObservedContainer, ObservedPod, ObservedSandbox, ObservedVolumes,
};
use crate::plan::{Action, PlanDraft, StopReason};
use crate::record::{Ending, PodRecord, TerminationReason};

/// Shortest time between SIGTERM and SIGKILL for a sidecar after other containers used up the grace period.
const SIDECAR_GRACE: Duration = Duration::from_secs(2);

/// Decides whether the pod ends, or ends sooner than decided before, and records it in `record`.
pub(crate) fn decide(
    desired: &DesiredPod,
    observed: &ObservedPod,
    record: &mut PodRecord,
    now: Duration,
) {
    let lost = is_lost_for_good(desired, observed, record);
    let wish = match desired.presence {
        Presence::Deleting { grace } | Presence::Gone { grace } => {
            Some((TerminationReason::Deleted, grace))
        }
        Presence::Present if deadline_passed(desired, record, now) => {
            Some((TerminationReason::DeadlineExceeded, desired.grace))
        }
        // At most sidecars and ephemeral containers still run.
        Presence::Present if is_complete(desired, record) => {
            Some((TerminationReason::Completed, desired.grace))
        }
        Presence::Present if lost => Some((TerminationReason::SandboxLost, desired.grace)),
        Presence::Present => desired.disruption.as_ref().map(|disruption| {
            let (reason, message) = (disruption.reason.clone(), disruption.message.clone());
            (TerminationReason::Evicted { reason, message }, desired.grace)
        }),
    };
    let Some((why, grace)) = wish else { return };
    // An eviction or shutdown may allow less time than the pod's own grace period.
    let bound = desired.disruption.as_ref().and_then(|disruption| disruption.grace);
    let grace = bound.map_or(grace, |bound| bound.min(grace));
    let deadline = now.saturating_add(grace);
    match &mut record.ending {
        None => record.ending = Some(Ending { why, deadline }),
        Some(ending) => ending.deadline = ending.deadline.min(deadline),
    }
}

fn deadline_passed(desired: &DesiredPod, record: &PodRecord, now: Duration) -> bool {
    let until = desired.active_deadline.and_then(|limit| record.active_deadline(limit));
    until.is_some_and(|until| now >= until)
}

/// Whether the pod is complete: an init container failed for good, or all containers ended for good.
fn is_complete(desired: &DesiredPod, record: &PodRecord) -> bool {
    let over = |name: &str, policy| record.containers.get(name).is_some_and(|m| m.is_over(policy));
    let init_failed = desired.init.iter().any(|c| {
        let failed = record
            .containers
            .get(&c.name)
            .and_then(|m| m.ended.as_ref())
            .is_some_and(|e| e.exit.code != 0);
        failed && over(&c.name, desired.restart_policy_of(c.role))
    });
    let all_over = desired.containers.iter().all(|c| over(&c.name, desired.restart_policy));
    init_failed || (!desired.containers.is_empty() && all_over)
}

/// Whether a pod with `restartPolicy: Never` lost its sandbox after something had run in it.
fn is_lost_for_good(desired: &DesiredPod, observed: &ObservedPod, record: &PodRecord) -> bool {
    desired.restart_policy == RestartPolicy::Never
        && observed.ready_sandbox().is_none()
        && record.containers.values().any(|c| c.attempt.is_some())
}

/// Stops running containers: all but the sidecars at once, then the sidecars one at a time in reverse start order. Until the
/// deadline, sidecars also wait for containers whose state is unknown, because those may still need them.
pub(crate) fn stop_all(next: &mut PlanDraft<'_>, record: &PodRecord) {
    let Some(ending) = &record.ending else { return };
    if !next.may_try(&RetryStep::Cleanup, record) {
        return;
    }
    let (desired, observed) = (next.desired, next.observed);
    let is_sidecar =
        |name: &str| desired.container(name).is_some_and(|c| c.role == ContainerRole::Sidecar);
    let mut others = observed.live().filter(|i| !is_sidecar(&i.name)).peekable();
    if others.peek().is_some() {
        for instance in others {
            next.stop(instance, ending.deadline, StopReason::PodEnds);
        }
        return;
    }
    if next.observed.unsure && next.now < ending.deadline {
        next.request_wake(ending.deadline);
        return;
    }
    let last = desired.sidecars().rev().find(|c| observed.live().any(|i| i.name == c.name));
    let Some(last) = last else {
        return stop_abandoned_starts(next, record);
    };
    let deadline = ending.deadline.max(next.now.saturating_add(SIDECAR_GRACE));
    for instance in observed.live().filter(|i| i.name == last.name) {
        next.stop(instance, deadline, StopReason::PodEnds);
    }
}

/// Stops sandboxes that hold created but not started containers. The runtime may still carry out an abandoned start; nothing
/// starts in a stopped sandbox. Until then the container may use the volumes.
fn stop_abandoned_starts(next: &mut PlanDraft<'_>, record: &PodRecord) {
    let observed = next.observed;
    for sandbox in observed.sandboxes.iter().filter(|s| may_begin(s, observed, record)) {
        next.add_action(Action::StopSandbox { id: sandbox.id.clone(), attempt: sandbox.attempt });
    }
}

/// Whether a container created in the sandbox may still start there.
pub(crate) fn may_begin(
    sandbox: &ObservedSandbox,
    observed: &ObservedPod,
    record: &PodRecord,
) -> bool {
    let waits =
        |c: &ObservedContainer| c.sandbox_id == sandbox.id && c.state == InstanceState::Created;
    needs_stop(sandbox.ready, sandbox.attempt, record) && observed.containers.iter().any(waits)
}

/// Removes what a finished pod still keeps in the runtime.
pub(crate) fn remove_remains(next: &mut PlanDraft<'_>, record: &PodRecord) {
    if !next.may_try(&RetryStep::Cleanup, record) {
        return;
    }
    let observed = next.observed;
    for sandbox in &observed.sandboxes {
        next.add_action(Action::RemoveSandbox { id: sandbox.id.clone() });
    }
}

/// Cleans up: stops the sandboxes and, if the pod was deleted, removes them and the volumes; the cgroup is removed after the
/// sandboxes.
pub(crate) fn clean_up(next: &mut PlanDraft<'_>, record: &PodRecord) {
    if !next.may_try(&RetryStep::Cleanup, record) {
        return;
    }
    let observed = next.observed;
    for sandbox in &observed.sandboxes {
        let (id, attempt) = (sandbox.id.clone(), sandbox.attempt);
        if needs_stop(sandbox.ready, attempt, record) {
            next.add_action(Action::StopSandbox { id, attempt });
        } else if next.desired.is_leaving() {
            next.add_action(Action::RemoveSandbox { id });
        }
    }
    if observed.sandboxes.is_empty() {
        // Instances whose sandbox no longer exists.
        for instance in &observed.containers {
            next.remove(instance);
        }
    }
    if observed.volumes != ObservedVolumes::Absent {
        next.add_action(Action::UnmountVolumes);
    }
    let stopped = observed.sandboxes.iter().all(|s| !needs_stop(s.ready, s.attempt, record));
    if observed.cgroup && stopped {
        next.add_action(Action::RemoveCgroup);
    }
}

/// Last step, once nothing is left on the node: deletes the API object or ends the pod's task.
pub(crate) fn finish(next: &mut PlanDraft<'_>, record: &PodRecord) {
    match (next.desired.presence, next.desired.source) {
        (Presence::Deleting { .. }, PodSource::Api) => {
            // After the API accepted the deletion, finalizers may keep the object; the source reports when it is deleted.
            if !record.reported && next.may_try(&RetryStep::Report, record) {
                next.add_action(Action::ReportDeleted);
            }
        }
        _ => next.add_action(Action::Forget),
    }
}

/// Requests a new plan at the pod's active deadline.
pub(crate) fn wake_for_deadline(next: &mut PlanDraft<'_>, record: &PodRecord) {
    if record.ending.is_none()
        && let Some(until) =
            next.desired.active_deadline.and_then(|limit| record.active_deadline(limit))
    {
        next.request_wake(until);
    }
}

/// Whether a sandbox still has to be stopped. A sandbox whose process died also has to be: its network is still set up.
pub(crate) fn needs_stop(ready: bool, attempt: u32, record: &PodRecord) -> bool {
    ready || !record.sandboxes_stopped.contains(&attempt)
}
