//! The status of a daemon set.

use std::time::Duration;

use apiserver_controllers::Plan;
use proto_api::Time;
use proto_api::apps::v1::DaemonSetStatus;

use super::placement::{Fit, Placement};
use crate::pods::{available_in, revision};

/// Counts the nodes. A pod that becomes available later requeues the plan.
pub(super) fn compute_status(
    placement: &Placement<'_>,
    hash: &str,
    now: Time,
    plan: &mut Plan,
) -> DaemonSetStatus {
    let set = placement.set;
    let mut status = DaemonSetStatus {
        observed_generation: set.metadata.generation,
        desired_number_scheduled: placement.count_desired(),
        collision_count: set.status.collision_count,
        conditions: set.status.conditions.clone(),
        ..DaemonSetStatus::default()
    };
    let count = |counter: &mut i32| *counter = counter.saturating_add(1);
    for (node, fit) in &placement.nodes {
        let Some(oldest) = placement.on(node).first() else { continue };
        if *fit != Fit::Runs {
            count(&mut status.number_misscheduled);
            continue;
        }
        count(&mut status.current_number_scheduled);
        if revision(oldest) == hash {
            count(&mut status.updated_number_scheduled);
        }
        let left = available_in(oldest, set.spec.min_ready_seconds, now);
        if left.is_some() {
            count(&mut status.number_ready);
        }
        if left == Some(Duration::ZERO) {
            count(&mut status.number_available);
        }
    }
    let pods = placement.pods.values().flatten();
    let waits = pods.filter_map(|pod| available_in(pod, set.spec.min_ready_seconds, now));
    waits.filter(|left| !left.is_zero()).for_each(|left| plan.requeue_in(left));
    status.number_unavailable =
        status.desired_number_scheduled.saturating_sub(status.number_available);
    status
}
