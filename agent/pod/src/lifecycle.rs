//! The lifecycle of a pod, and the plan for its next step.
//!
//! ```text
//!            refused by the node
//!  (new) ──────────────────────────────────────────────────────────► Refused
//!    │ admitted                                                         │
//!    ▼              sandbox ready            init containers done       │ deleted
//!  Preparing ────────────────► Initializing ──────────────► Running     │
//!    ▲                              │                          │        │
//!    └────────── sandbox lost ──────┴──────────────────────────┤        │
//!                                                              │        │
//!  from any of the three: deleted, all containers over,        │        │
//!  active too long ────────────────────────────────────► Ending         │
//!                                      last container dead   │          │
//!                                                            ▼          │
//!                                                        Clearing ◄─────┘
//!                             nothing left on the node   │      │
//!                                    still in the API    ▼      ▼  deleted
//!                                                   Finished ─► Gone
//! ```
//!
//! `Ending` is a decision, not an observation: it is part of the record, durable before the first container is stopped, and
//! afterwards nothing of the pod is created or started, whatever is observed.

use std::collections::BTreeSet;

use crate::backoff::RetryStep;
use crate::desired::DesiredPod;
use crate::ending::{self, needs_stop};
use crate::observed::{InstanceState, Now, ObservedPod, ObservedVolumes};
use crate::plan::{Action, Plan, PlanDraft, PodStage};
use crate::probe::{DesiredProbe, ProbeKind, ProbeOrder};
use crate::record::{Admission, PodRecord, PostStart};
use crate::start;
use crate::status;

/// Plans what happens to a pod now. Total: every combination of inputs gives a plan.
///
/// Calling it again with the returned record and the same other inputs gives the same plan; executing the plan's actions and
/// showing their results makes progress.
pub fn plan(desired: &DesiredPod, observed: &ObservedPod, record: &PodRecord, now: Now) -> Plan {
    let mut record = record.clone();
    record.accept(now);
    record.observe(desired, observed, now);
    forget_past(desired, observed, &mut record);
    ending::decide(desired, observed, &mut record, now.boot);
    let stage = stage(desired, observed, &record);
    let mut next =
        PlanDraft { desired, observed, now: now.boot, actions: Vec::new(), wake_at: None };
    match stage {
        PodStage::Preparing => start::prepare(&mut next, &record),
        PodStage::Initializing | PodStage::Running => start::advance(&mut next, &record, stage),
        PodStage::Ending => ending::stop_all(&mut next, &record),
        PodStage::Clearing => ending::clean_up(&mut next, &record),
        // Disk space is short: the record keeps the status, the logs are removed.
        PodStage::Finished if desired.dead_kept == 0 => ending::remove_remains(&mut next, &record),
        PodStage::Gone => ending::finish(&mut next, &record),
        PodStage::Refused | PodStage::Finished => {}
    }
    if stage != PodStage::Gone {
        ending::wake_for_deadline(&mut next, &record);
    }
    let PlanDraft { actions, wake_at, .. } = next;
    mark_hooks(&actions, &mut record);
    let probes = probes(desired, observed, &record, stage);
    let status = status::status(desired, observed, &mut record, stage, now);
    Plan { stage, status, actions, probes, wake_at, record }
}

/// Drops records of sandboxes and images that the pod no longer has, since it may go through any number of them. A sandbox that
/// does not exist needs no stop, and its attempt is not reused.
fn forget_past(desired: &DesiredPod, observed: &ObservedPod, record: &mut PodRecord) {
    if !record.sandboxes_stopped.is_empty() {
        let there: BTreeSet<u32> = observed.sandboxes.iter().map(|s| s.attempt).collect();
        record.sandboxes_stopped.retain(|attempt| there.contains(attempt));
    }
    if record.troubles.iter().any(|trouble| matches!(trouble.step, RetryStep::Image(_))) {
        let wanted: BTreeSet<&str> = desired.all_containers().map(|c| c.image.as_str()).collect();
        record.troubles.retain(|trouble| match &trouble.step {
            RetryStep::Image(image) => wanted.contains(image.as_str()),
            _ => true,
        });
    }
}

/// Marks the hooks of instances that this plan starts: only they have their hook run.
fn mark_hooks(actions: &[Action], record: &mut PodRecord) {
    for action in actions {
        if let Action::StartContainer { container, id, hook: true } = action
            && let Some(known) = record.containers.get_mut(container)
            && known.health.id == *id
        {
            known.health.post_start = PostStart::Due;
        }
    }
}

/// Probes of all instances that serve: the startup probe until it succeeded, then the other two. A terminating pod keeps its
/// readiness probes and loses the others.
fn probes(
    desired: &DesiredPod,
    observed: &ObservedPod,
    record: &PodRecord,
    stage: PodStage,
) -> Vec<ProbeOrder> {
    if !matches!(stage, PodStage::Initializing | PodStage::Running | PodStage::Ending) {
        return Vec::new();
    }
    let mut orders = Vec::new();
    for container in desired.all_containers().filter(|c| c.role.serves()) {
        let Some(instance) = observed.newest(&container.name) else { continue };
        let Some(known) = record.containers.get(&container.name) else { continue };
        let (health, probes) = (&known.health, &container.probes);
        let runs = matches!(instance.state, InstanceState::Running { .. });
        let due = health.id == instance.id
            && health.post_start != PostStart::Due
            && health.doomed.is_none();
        let Some(since) = health.since.filter(|_| runs && due) else { continue };
        let ip = observed.sandbox(&instance.sandbox_id).and_then(|s| s.ips.first());
        let ip = if desired.host_network { desired.host_ips.first() } else { ip };
        let mut order = |kind, probe: &Option<DesiredProbe>, result| {
            orders.extend(probe.as_ref().map(|probe| ProbeOrder {
                container: container.name.clone(),
                id: instance.id.clone(),
                kind,
                probe: probe.clone(),
                since,
                result,
                ip: ip.cloned().unwrap_or_default(),
            }));
        };
        if !known.has_come_up(container) {
            if stage != PodStage::Ending {
                order(ProbeKind::Startup, &probes.startup, None);
            }
            continue;
        }
        order(ProbeKind::Readiness, &probes.readiness, health.readiness);
        if stage != PodStage::Ending {
            order(ProbeKind::Liveness, &probes.liveness, None);
        }
    }
    orders
}

/// The stage of the pod.
fn stage(desired: &DesiredPod, observed: &ObservedPod, record: &PodRecord) -> PodStage {
    let refused = matches!(record.admission, Some(Admission::Refused { .. }));
    if refused && !desired.is_leaving() {
        return PodStage::Refused;
    }
    if record.ending.is_some() {
        return ending_stage(desired, observed, record);
    }
    match observed.ready_sandbox() {
        None => PodStage::Preparing,
        Some(sandbox) if record.initialized_in == Some(sandbox.attempt) => PodStage::Running,
        Some(_) if desired.init.is_empty() => PodStage::Running,
        Some(_) => PodStage::Initializing,
    }
}

fn ending_stage(desired: &DesiredPod, observed: &ObservedPod, record: &PodRecord) -> PodStage {
    let may_begin = observed.sandboxes.iter().any(|s| ending::may_begin(s, observed, record));
    if observed.unsure || may_begin || observed.live().next().is_some() {
        return PodStage::Ending;
    }
    let stopped = observed.sandboxes.iter().all(|s| !needs_stop(s.ready, s.attempt, record));
    let bare = stopped && observed.volumes == ObservedVolumes::Absent && !observed.cgroup;
    match (bare, desired.is_leaving()) {
        (true, false) => PodStage::Finished,
        (true, true) if observed.sandboxes.is_empty() && observed.containers.is_empty() => {
            PodStage::Gone
        }
        _ => PodStage::Clearing,
    }
}

#[cfg(test)]
mod tests;
