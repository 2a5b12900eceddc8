//! The end of a pod: when it is decided, in which order what runs is stopped, and how what is left is cleared away.

use std::time::Duration;

use crate::backoff::Step;
use crate::desired::{PodWant, Presence, RestartPolicy, Role, Source};
use crate::observed::{ContainerSeen, InstanceState, PodSeen, SandboxSeen, VolumesSeen};
use crate::plan::{Action, Next, StopWhy};
use crate::record::{Ending, Memory, Why};

/// What a sidecar gets at least between the polite and the forced stop, when others have used the pod's grace period up.
const SIDECAR_GRACE: Duration = Duration::from_secs(2);

/// Decides whether the pod ends, or ends sooner than decided before.
pub(crate) fn decide(want: &PodWant, seen: &PodSeen, memory: &mut Memory, now: Duration) {
    let lost = is_lost_for_good(want, seen, memory);
    let wish = match want.presence {
        Presence::Deleting { grace } | Presence::Gone { grace } => Some((Why::Deleted, grace)),
        Presence::Present if deadline_passed(want, memory, now) => {
            Some((Why::DeadlineExceeded, want.grace))
        }
        // Only sidecars and ephemeral containers are left, if anything.
        Presence::Present if is_complete(want, memory) => Some((Why::Completed, want.grace)),
        Presence::Present if lost => Some((Why::SandboxLost, want.grace)),
        Presence::Present => want.verdict.as_ref().map(|verdict| {
            let (reason, message) = (verdict.reason.clone(), verdict.message.clone());
            (Why::Evicted { reason, message }, want.grace)
        }),
    };
    let Some((why, grace)) = wish else { return };
    // A node that ends the pod has less time than its source may have given.
    let bound = want.verdict.as_ref().and_then(|verdict| verdict.grace);
    let grace = bound.map_or(grace, |bound| bound.min(grace));
    let deadline = now.saturating_add(grace);
    match &mut memory.ending {
        None => memory.ending = Some(Ending { why, deadline }),
        Some(ending) => ending.deadline = ending.deadline.min(deadline),
    }
}

fn deadline_passed(want: &PodWant, memory: &Memory, now: Duration) -> bool {
    let until = want.active_deadline.and_then(|limit| memory.active_until(limit));
    until.is_some_and(|until| now >= until)
}

/// Whether every container is over: an init container failed for good, or all containers ended for good.
fn is_complete(want: &PodWant, memory: &Memory) -> bool {
    let over = |name: &str, policy| memory.containers.get(name).is_some_and(|m| m.is_over(policy));
    let init_failed = want.init.iter().any(|c| {
        let failed = memory
            .containers
            .get(&c.name)
            .and_then(|m| m.ended.as_ref())
            .is_some_and(|e| e.exit.code != 0);
        failed && over(&c.name, want.policy(c.role))
    });
    let all_over = want.containers.iter().all(|c| over(&c.name, want.restart_policy));
    init_failed || (!want.containers.is_empty() && all_over)
}

/// Whether a pod that runs nothing twice has lost its sandbox after it had run something.
fn is_lost_for_good(want: &PodWant, seen: &PodSeen, memory: &Memory) -> bool {
    want.restart_policy == RestartPolicy::Never
        && seen.ready_sandbox().is_none()
        && memory.containers.values().any(|c| c.attempt.is_some())
}

/// Stops what runs: all but the sidecars at once, then the sidecars one by one, the last to start first. Up to the deadline, sidecars
/// wait as well for what may run unseen: they serve it.
pub(crate) fn stop_all(next: &mut Next<'_>, memory: &Memory) {
    let Some(ending) = &memory.ending else { return };
    if !next.may_try(&Step::Cleanup, memory) {
        return;
    }
    let (want, seen) = (next.want, next.seen);
    let is_sidecar = |name: &str| want.container(name).is_some_and(|c| c.role == Role::Sidecar);
    let mut others = seen.live().filter(|i| !is_sidecar(&i.name)).peekable();
    if others.peek().is_some() {
        for instance in others {
            next.stop(instance, ending.deadline, StopWhy::PodEnds);
        }
        return;
    }
    if next.seen.unsure && next.now < ending.deadline {
        next.wake(ending.deadline);
        return;
    }
    let last = want.sidecars().rev().find(|c| seen.live().any(|i| i.name == c.name));
    let Some(last) = last else {
        return shut(next, memory);
    };
    let deadline = ending.deadline.max(next.now.saturating_add(SIDECAR_GRACE));
    for instance in seen.live().filter(|i| i.name == last.name) {
        next.stop(instance, deadline, StopWhy::PodEnds);
    }
}

/// A start that was given up may still be done by the runtime: what was made and has not begun to run never does so once its sandbox is
/// stopped. Until then it may use the volumes.
fn shut(next: &mut Next<'_>, memory: &Memory) {
    let seen = next.seen;
    for sandbox in seen.sandboxes.iter().filter(|s| may_begin(s, seen, memory)) {
        next.act(Action::StopSandbox { id: sandbox.id.clone(), attempt: sandbox.attempt });
    }
}

/// Whether something that was made in a sandbox may still begin to run there.
pub(crate) fn may_begin(sandbox: &SandboxSeen, seen: &PodSeen, memory: &Memory) -> bool {
    let waits = |c: &ContainerSeen| c.sandbox_id == sandbox.id && c.state == InstanceState::Created;
    needs_stop(sandbox.ready, sandbox.attempt, memory) && seen.containers.iter().any(waits)
}

/// Removes what a pod that is over still keeps in the runtime.
pub(crate) fn drop_remains(next: &mut Next<'_>, memory: &Memory) {
    if !next.may_try(&Step::Cleanup, memory) {
        return;
    }
    let seen = next.seen;
    for sandbox in &seen.sandboxes {
        next.act(Action::RemoveSandbox { id: sandbox.id.clone() });
    }
}

/// Sandboxes are stopped and, for a pod that leaves, removed; volumes go at the same time, the cgroup after the sandboxes.
pub(crate) fn clear(next: &mut Next<'_>, memory: &Memory) {
    if !next.may_try(&Step::Cleanup, memory) {
        return;
    }
    let seen = next.seen;
    for sandbox in &seen.sandboxes {
        let (id, attempt) = (sandbox.id.clone(), sandbox.attempt);
        if needs_stop(sandbox.ready, attempt, memory) {
            next.act(Action::StopSandbox { id, attempt });
        } else if next.want.is_leaving() {
            next.act(Action::RemoveSandbox { id });
        }
    }
    if seen.sandboxes.is_empty() {
        // Instances whose sandbox is gone already.
        for instance in &seen.containers {
            next.remove(instance);
        }
    }
    if seen.volumes != VolumesSeen::Absent {
        next.act(Action::UnmountVolumes);
    }
    let stopped = seen.sandboxes.iter().all(|s| !needs_stop(s.ready, s.attempt, memory));
    if seen.cgroup && stopped {
        next.act(Action::RemoveCgroup);
    }
}

/// Nothing is left on the node: the last word.
pub(crate) fn leave(next: &mut Next<'_>, memory: &Memory) {
    match (next.want.presence, next.want.source) {
        (Presence::Deleting { .. }, Source::Api) => {
            // Once accepted, the object goes when its finalizers have gone; its source will tell.
            if !memory.reported && next.may_try(&Step::Report, memory) {
                next.act(Action::ReportDeleted);
            }
        }
        _ => next.act(Action::Forget),
    }
}

/// Asks to be called when the pod has been active for long enough.
pub(crate) fn wake_for_deadline(next: &mut Next<'_>, memory: &Memory) {
    if memory.ending.is_none()
        && let Some(until) = next.want.active_deadline.and_then(|limit| memory.active_until(limit))
    {
        next.wake(until);
    }
}

/// Whether a sandbox still has to be stopped: one that died by itself too, since its network is still set up.
pub(crate) fn needs_stop(ready: bool, attempt: u32, memory: &Memory) -> bool {
    ready || !memory.sandboxes_stopped.contains(&attempt)
}
