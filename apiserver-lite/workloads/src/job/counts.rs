//! The counts of ended pods: what is counted, what is noted and not counted yet, and what is new.

use std::collections::BTreeSet;

use apiserver_controllers::addresses::is_terminating;
use proto_api::batch::v1::{Job, JobStatus, UncountedTerminatedPods};
use proto_api::core::v1::Pod;
use proto_api::names::Names;

use super::{Intervals, count, failure_policy, index_of, is_indexed, is_tracked};

/// Maximum number of uids in a status.
const UNCOUNTED_MAX: usize = 500;

/// The counts, with what this plan adds.
pub(super) struct Counts<'a> {
    /// Counted pods.
    succeeded: i32,
    failed: i32,
    /// Noted pods that have their finalizer.
    uncounted: UncountedTerminatedPods,
    /// Succeeded indexes.
    pub(super) indexes: Intervals,
    /// Uids of ended pods that the stored or the new status has, or that need no count.
    settled: BTreeSet<&'a str>,
    is_indexed: bool,
    /// Ended pods that are not noted: a status has a limit. Succeeded and failed ones.
    beyond: (i32, i32),
}

impl<'a> Counts<'a> {
    /// Counts the pods that have lost their finalizer, and notes those that have ended.
    pub(super) fn from_pods(names: &Names, job: &Job, pods: &[&'a Pod]) -> Self {
        let tracked: Vec<&'a Pod> =
            pods.iter().copied().filter(|pod| is_tracked(names, pod)).collect();
        let uids: BTreeSet<&str> = tracked.iter().map(|pod| pod.metadata.uid.as_str()).collect();
        let noted = job.status.uncounted_terminated_pods.clone().unwrap_or_default();
        let split = |noted: Vec<String>| -> (Vec<String>, Vec<String>) {
            noted.into_iter().partition(|uid| uids.contains(uid.as_str()))
        };
        let (succeeded, counted) = split(noted.succeeded);
        let succeeded_count = job.status.succeeded.saturating_add(count(counted.len()));
        let (failed, counted) = split(noted.failed);
        let failed_count = job.status.failed.saturating_add(count(counted.len()));
        let completions = job.spec.completions.unwrap_or(0);
        let mut counts = Self {
            succeeded: succeeded_count,
            failed: failed_count,
            uncounted: UncountedTerminatedPods { succeeded, failed },
            indexes: Intervals::parse(&job.status.completed_indexes, completions),
            settled: BTreeSet::new(),
            is_indexed: is_indexed(job),
            beyond: (0, 0),
        };
        let mut tracked: Vec<_> =
            tracked.into_iter().map(|pod| (index_of(names, job, &pod.metadata), pod)).collect();
        tracked.sort_by_key(|(index, pod)| (*index, &pod.metadata.uid));
        for (index, pod) in tracked {
            counts.note(job, index, pod);
        }
        counts
    }

    fn note(&mut self, job: &Job, index: Option<i32>, pod: &'a Pod) {
        let uid = &pod.metadata.uid;
        let has_succeeded = pod.status.phase == "Succeeded";
        if !has_succeeded && pod.status.phase != "Failed" && !is_terminating(pod) {
            return;
        }
        let len = self.uncounted.succeeded.len().saturating_add(self.uncounted.failed.len());
        let is_noted =
            self.uncounted.failed.contains(uid) || self.uncounted.succeeded.contains(uid);
        // Pods of an indexed job without a valid index count for nothing, nor do failures that its policy ignores.
        let counts = (!self.is_indexed || index.is_some())
            && (has_succeeded || !failure_policy::ignores(job, pod));
        if !is_noted && counts {
            if self.is_indexed && has_succeeded {
                // The index says that it is counted.
                index.into_iter().for_each(|index| self.indexes.insert(index));
            } else if len >= UNCOUNTED_MAX {
                let (succeeded, failed) = &mut self.beyond;
                let beyond = if has_succeeded { succeeded } else { failed };
                *beyond = beyond.saturating_add(1);
                return;
            } else if has_succeeded {
                self.uncounted.succeeded.push(uid.clone());
            } else {
                self.uncounted.failed.push(uid.clone());
            }
        }
        self.settled.insert(uid);
    }

    /// Whether the pod may lose its finalizer once the status is written.
    pub(super) fn may_untrack(&self, pod: &Pod, job_goes: bool) -> bool {
        job_goes || self.settled.contains(pod.metadata.uid.as_str())
    }

    /// All succeeded pods, or indexes.
    pub(super) fn succeeded(&self) -> i32 {
        match self.is_indexed {
            true => count(self.indexes.len()),
            false => {
                let noted = self.succeeded.saturating_add(count(self.uncounted.succeeded.len()));
                noted.saturating_add(self.beyond.0)
            }
        }
    }

    /// All failed pods.
    pub(super) fn failed(&self) -> i32 {
        let noted = self.failed.saturating_add(count(self.uncounted.failed.len()));
        noted.saturating_add(self.beyond.1)
    }

    /// The status with the counts.
    pub(super) fn status(&self, job: &Job) -> JobStatus {
        let mut status = job.status.clone();
        status.succeeded = if self.is_indexed { self.succeeded() } else { self.succeeded };
        status.failed = self.failed;
        if self.is_indexed {
            status.completed_indexes = self.indexes.to_string();
        }
        status.uncounted_terminated_pods = Some(self.uncounted.clone());
        status
    }

    /// The last status of the job. Pods that are active when it ends count as failed.
    pub(super) fn last(&self, mut status: JobStatus, active: usize) -> JobStatus {
        status.succeeded = self.succeeded();
        status.failed = self.failed().saturating_add(count(active));
        status.uncounted_terminated_pods = Some(UncountedTerminatedPods::default());
        status.active = 0;
        status.ready = Some(0);
        status
    }
}
