//! Graceful node shutdown: order of pods and their grace periods.

#![cfg_attr(not(test), warn(clippy::arithmetic_side_effects))]

use std::time::Duration;

use proto_api::core::v1::Pod;
use serde::{Deserialize, Serialize};

use crate::priority::{SYSTEM_CRITICAL, priority};

/// One entry of `shutdownGracePeriodByPodPriority`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct PriorityGrace {
    /// Lowest priority in the group.
    pub priority: i32,
    pub shutdown_grace_period_seconds: u32,
}

/// Groups of pods terminated one after another, lowest priority first. Empty disables graceful shutdown.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ShutdownGroups(Vec<(i32, Duration)>);

impl ShutdownGroups {
    /// Builds the groups from `by_priority` or, if empty, from `shutdownGracePeriod` (`all`) and
    /// `shutdownGracePeriodCriticalPods` (`critical`).
    pub fn new(by_priority: &[PriorityGrace], all: Duration, critical: Duration) -> Self {
        let mut groups: Vec<(i32, Duration)> = by_priority
            .iter()
            .map(|g| (g.priority, Duration::from_secs(g.shutdown_grace_period_seconds.into())))
            .collect();
        if groups.is_empty() && !all.is_zero() {
            groups = vec![(0, all.saturating_sub(critical)), (SYSTEM_CRITICAL, critical)];
        }
        groups.sort();
        groups.dedup_by_key(|group| group.0);
        Self(groups)
    }

    /// Whether graceful shutdown is disabled.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Sum of the grace periods of all groups.
    pub fn total(&self) -> Duration {
        self.0.iter().fold(Duration::ZERO, |sum, (_, grace)| sum.saturating_add(*grace))
    }

    /// Groups of pods in termination order. A pod below every group belongs to the first.
    pub fn plan<'a>(&self, pods: impl Iterator<Item = &'a Pod>) -> Vec<ShutdownRound> {
        let mut rounds: Vec<ShutdownRound> = self
            .0
            .iter()
            .map(|(_, grace)| ShutdownRound { within: *grace, pods: Vec::new() })
            .collect();
        for pod in pods {
            let above = self.0.iter().filter(|(lowest, _)| *lowest <= priority(pod)).count();
            if let Some(round) = rounds.get_mut(above.saturating_sub(1)) {
                let own = pod.spec.termination_grace_period_seconds.unwrap_or(30);
                let own = Duration::from_secs(own.clamp(0, i64::from(i32::MAX)).unsigned_abs());
                round.pods.push((pod.metadata.uid.clone(), own.min(round.within)));
            }
        }
        rounds.retain(|round| !round.pods.is_empty());
        rounds
    }
}

/// Pods that are terminated together.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ShutdownRound {
    /// Time for the group.
    pub within: Duration,
    /// Uid and grace period of each pod.
    pub pods: Vec<(String, Duration)>,
}

/// Reason of pods terminated by the shutdown.
pub const TERMINATED_REASON: &str = "Terminated";
/// Message of pods terminated by the shutdown.
pub const TERMINATED_MESSAGE: &str = "Pod was terminated in response to imminent node shutdown.";
/// Reason of pods rejected during the shutdown.
pub const REFUSED_REASON: &str = "NodeShutdown";
/// Message of pods rejected during the shutdown.
pub const REFUSED_MESSAGE: &str = "Pod was rejected as the node is shutting down.";

#[cfg(test)]
mod tests {
    use super::*;

    fn pod(name: &str, priority: i32, grace: i64) -> Pod {
        let mut pod = Pod::default();
        pod.metadata.uid = name.into();
        pod.spec.priority = Some(priority);
        pod.spec.termination_grace_period_seconds = Some(grace);
        pod
    }

    fn s(secs: u64) -> Duration {
        Duration::from_secs(secs)
    }

    fn shown(rounds: &[ShutdownRound]) -> Vec<String> {
        let pod = |(uid, grace): &(String, Duration)| format!("{uid}:{}", grace.as_secs());
        let round = |r: &ShutdownRound| {
            let pods: Vec<String> = r.pods.iter().map(pod).collect();
            format!("{} {}", r.within.as_secs(), pods.join(" "))
        };
        rounds.iter().map(round).collect()
    }

    #[test]
    fn critical_pods_end_last() {
        let groups = ShutdownGroups::new(&[], s(30), s(10));
        let pods = [pod("a", 0, 60), pod("crit", 2_000_000_000, 60), pod("low", -5, 1)];
        assert_eq!(shown(&groups.plan(pods.iter())), ["20 a:20 low:1", "10 crit:10"]);
        assert_eq!(groups.total(), s(30));
    }

    #[test]
    fn groups_by_priority() {
        let grace =
            |priority, secs| PriorityGrace { priority, shutdown_grace_period_seconds: secs };
        let groups =
            ShutdownGroups::new(&[grace(10_000, 20), grace(100, 30), grace(0, 5)], s(0), s(0));
        let pods = [pod("a", 50, 9), pod("b", 100, 9), pod("c", 9_999, 60), pod("d", 10_000, 9)];
        assert_eq!(shown(&groups.plan(pods.iter())), ["5 a:5", "30 b:9 c:30", "20 d:9"]);
    }

    #[test]
    fn no_grace_no_order() {
        let groups = ShutdownGroups::new(&[], s(0), s(0));
        assert!(groups.is_empty() && groups.plan([pod("a", 0, 1)].iter()).is_empty());
    }
}
