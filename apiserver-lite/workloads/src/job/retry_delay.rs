//! The delay before pods are created after failures: 10 s, then twice as long after each failure in a row, at most 6 minutes.

use std::time::Duration;

use proto_api::Time;
use proto_api::batch::v1::Job;
use proto_api::core::v1::{ContainerStatus, Pod};

use super::failure_policy;

const FIRST_SECS: u64 = 10;
const LONGEST_SECS: u64 = 360;

/// The time until pods may be created; none if that is now. `pods` are all pods of the job. Failures that its policy ignores delay nothing.
pub(super) fn remaining_delay(job: &Job, pods: &[&Pod], now: Time) -> Option<Duration> {
    let ended = |phase: &'static str| pods.iter().filter(move |pod| pod.status.phase == phase);
    let last_success = ended("Succeeded").map(|pod| finished_at(pod)).max();
    let failures: Vec<i64> = ended("Failed")
        .filter(|pod| !failure_policy::ignores(job, pod))
        .map(|pod| finished_at(pod))
        .filter(|finished| last_success.is_none_or(|success| *finished > success))
        .collect();
    let doublings = u32::try_from(failures.len().checked_sub(1)?).unwrap_or(u32::MAX);
    let delay = 2_u64.saturating_pow(doublings).saturating_mul(FIRST_SECS).min(LONGEST_SECS);
    let since = now.unix().unwrap_or(0).saturating_sub(failures.into_iter().max()?);
    let left = delay.saturating_sub(u64::try_from(since).unwrap_or(0));
    (left > 0).then(|| Duration::from_secs(left))
}

/// When the last container of a pod ended; else when the pod was created.
fn finished_at(pod: &Pod) -> i64 {
    let terminated = |status: &ContainerStatus| {
        status.state.terminated.as_ref().and_then(|terminated| terminated.finished_at.unix())
    };
    let statuses = pod.status.container_statuses.iter().chain(&pod.status.init_container_statuses);
    let created = pod.metadata.creation_timestamp.unix().unwrap_or(0);
    statuses.filter_map(terminated).max().unwrap_or(created)
}
