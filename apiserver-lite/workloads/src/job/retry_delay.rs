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
    let now = now.unix().unwrap_or(0);
    let ended = |phase: &'static str| pods.iter().filter(move |pod| pod.status.phase == phase);
    let last_success = ended("Succeeded").map(|pod| finished_at(pod, now)).max();
    let failures: Vec<i64> = ended("Failed")
        .filter(|pod| !failure_policy::ignores(job, pod))
        .map(|pod| finished_at(pod, now))
        .filter(|finished| last_success.is_none_or(|success| *finished > success))
        .collect();
    let doublings = u32::try_from(failures.len().checked_sub(1)?).unwrap_or(u32::MAX);
    let delay = 2_u64.saturating_pow(doublings).saturating_mul(FIRST_SECS).min(LONGEST_SECS);
    let since = now.saturating_sub(failures.into_iter().max()?);
    let left = delay.saturating_sub(u64::try_from(since).unwrap_or(0));
    (left > 0).then(|| Duration::from_secs(left))
}

/// When the last container of a pod ended; else when the pod was created. The clocks of nodes may be wrong: what is to come counts as the creation, because
/// a failure of now would delay for ever, and nothing ends before it is created.
fn finished_at(pod: &Pod, now: i64) -> i64 {
    let terminated = |status: &ContainerStatus| {
        status.state.terminated.as_ref().and_then(|terminated| terminated.finished_at.unix())
    };
    let statuses = pod.status.container_statuses.iter().chain(&pod.status.init_container_statuses);
    let created = pod.metadata.creation_timestamp.unix().unwrap_or(0);
    let finished = statuses.filter_map(terminated).max().filter(|finished| *finished <= now);
    finished.map_or(created, |finished| finished.max(created))
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: i64 = 100_000;
    const DAY: i64 = 86_400;

    /// A pod that ended so; its times are relative to now.
    fn ended(phase: &str, created: i64, finished: i64) -> Pod {
        let mut pod = Pod::default();
        pod.status.phase = phase.into();
        pod.metadata.creation_timestamp = Time::from_unix(NOW + created);
        let mut status = ContainerStatus::default();
        let terminated = status.state.terminated.get_or_insert_default();
        terminated.finished_at = Time::from_unix(NOW + finished);
        pod.status.container_statuses = vec![status];
        pod
    }

    #[test]
    fn the_clock_of_a_node_neither_holds_a_job_nor_lets_it_retry_at_once() {
        let failed = |created, finished| ended("Failed", created, finished);
        let succeeded = |created, finished| ended("Succeeded", created, finished);
        for (pods, expected) in [
            (vec![failed(-8, -3)], Some(7)),
            // A node ahead.
            (vec![failed(-8, DAY)], Some(2)),
            (vec![failed(-60, DAY)], None),
            (vec![failed(-30, DAY), failed(-8, -3)], Some(17)),
            // A node behind.
            (vec![failed(-8, -DAY)], Some(2)),
            // A success ends what failed before it, and nothing later.
            (vec![succeeded(-8, -2), failed(-9, -3)], None),
            (vec![succeeded(-60, DAY), failed(-8, -3)], Some(7)),
            (vec![succeeded(-3, -DAY), failed(-9, -5)], None),
        ] {
            let pods: Vec<&Pod> = pods.iter().collect();
            let left = remaining_delay(&Job::default(), &pods, Time::from_unix(NOW));
            assert_eq!(left, expected.map(Duration::from_secs), "{pods:?}");
        }
    }
}
