//! The job controller: pods that run to their end, a number of them at once, until enough have succeeded.
//!
//! Each pod has a finalizer until its end has been counted. A pod that has ended is noted by its uid in `status.uncountedTerminatedPods`, then its
//! finalizer is removed, and once it is gone the uid becomes a number. Whatever the controller is interrupted by, each pod is counted once. The last
//! status of a job has all counts and the condition in one write; finalizers that are left are removed after it. Pods that are too many, or whose job is
//! suspended, lose their finalizer before they are deleted, and are not counted.

mod counts;
mod failure_policy;
mod finish;
mod indexes;
mod pod_changes;
mod retry_delay;
mod uncounted;

use std::sync::Arc;
use std::time::Duration;

use apiserver_controllers::Plan;
use apiserver_controllers::addresses::{has_ended, is_ready, is_terminating};
use apiserver_controllers::api_writes::{ApiWrite, ObjectKind, Part};
use apiserver_controllers::replica_failure::FailureStatus;
use proto_api::batch::v1::{Job, JobStatus};
use proto_api::core::v1::Pod;
use proto_api::event_report::{EventKind, EventReport};
use proto_api::meta::v1::ObjectMeta;
use proto_api::names::Names;
use proto_api::{ObjectKey, Time};
use serde_json::json;

use crate::claim::Claimant;
use counts::Counts;
use finish::Outcome;
use indexes::Intervals;
use pod_changes::PodChanges;

pub use finish::is_finished;
pub use uncounted::UncountedJobs;

/// Maximum number of pods created or deleted by one plan.
const BURST_MAX: usize = 500;

/// What a plan is made from.
pub struct ObservedJob<'a> {
    pub job: &'a Job,
    /// Pods of its namespace: at least those that it controls, and the orphans that it selects.
    pub pods: &'a [Arc<Pod>],
}

/// The finalizer of pods that are not counted yet.
pub(crate) fn finalizer(names: &Names) -> String {
    names.sub_label("batch", "job-tracking")
}

/// Plans pods, their finalizers, and status. `uncounted` remembers the jobs whose pods cannot be counted.
pub fn plan(
    names: &Names,
    seen: &ObservedJob<'_>,
    uncounted: &mut UncountedJobs,
    now: Time,
) -> Plan {
    let job = seen.job;
    if !matches!(job.spec.completion_mode.as_deref(), None | Some("NonIndexed" | "Indexed")) {
        let message = "Skipped Job sync because completion mode is unknown".to_owned();
        let report = report(names, job, EventKind::Warning, "UnknownCompletionMode", message);
        return Plan { reports: vec![report], ..Plan::default() };
    }
    let selector = job.spec.selector.as_ref();
    let claimant = Claimant::new(names, ObjectKind::Job, job, selector);
    let Some(claimant) = claimant.map(|claimant| claimant.tracking(finalizer(names))) else {
        return Plan::default();
    };
    let mut plan = Plan::default();
    let pods = seen.pods.iter().map(AsRef::as_ref);
    let pods = claimant.claim(ObjectKind::Pod, pods, |_| true, &mut plan);
    if !plan.writes.is_empty() {
        // Ownership is written before counts.
        return plan.without_order();
    }
    if is_finished(job) {
        let tracked = pods.iter().filter(|pod| is_tracked(names, pod));
        let writes = tracked.take(BURST_MAX).map(|pod| untrack(names, pod));
        return Plan::from_writes(writes).without_order();
    }
    if let Some(plan) = uncounted.plan(names, job, now) {
        return plan;
    }
    let work = Work { names, job, pods: &pods, claimant: &claimant, now };
    work.plan()
}

/// Plans the removal of the finalizer of a pod whose job does not exist any more. `job` is the one of the name in its reference.
pub fn plan_orphan(names: &Names, pod: &Pod, job: Option<&Job>) -> Plan {
    let owner = pod.metadata.owner_references.iter().find(|owner| owner.controller == Some(true));
    let is_of_job = owner.is_some_and(|owner| {
        owner.kind != "Job" || job.is_some_and(|job| job.metadata.uid == owner.uid)
    });
    match is_of_job || !is_tracked(names, pod) {
        true => Plan::default(),
        false => Plan::from_writes([untrack(names, pod)]),
    }
}

/// Plans the deletion of a finished job whose time to live is over.
pub fn plan_expiry(job: &Job, now: Time) -> Plan {
    let finished = finish::finished_at(job).and_then(Time::unix);
    let (Some(ttl), Some(finished)) = (job.spec.ttl_seconds_after_finished, finished) else {
        return Plan::default();
    };
    if is_terminating_job(job) {
        return Plan::default();
    }
    let due = finished.saturating_add(i64::from(ttl));
    match u64::try_from(due.saturating_sub(now.unix().unwrap_or(0))) {
        Ok(left) if left > 0 => {
            Plan { requeue_after: Some(Duration::from_secs(left)), ..Plan::default() }
        }
        _ => Plan::from_writes([delete_tree(job, "Foreground")]),
    }
}

/// Deletes a job and its pods. The default of the kind would leave the pods.
pub(crate) fn delete_tree(job: &Job, propagation: &'static str) -> ApiWrite {
    let (key, uid) = (ObjectKey::from_metadata(&job.metadata), job.metadata.uid.clone());
    ApiWrite::DeleteTree { kind: ObjectKind::Job, key, uid, propagation }
}

/// Whether the pod's end is not counted yet.
pub fn is_tracked(names: &Names, pod: &Pod) -> bool {
    pod.metadata.finalizers.contains(&finalizer(names))
}

/// Removes the finalizer of a pod; conditional on its version.
fn untrack(names: &Names, pod: &Pod) -> ApiWrite {
    let metadata = &pod.metadata;
    let finalizer = finalizer(names);
    let left: Vec<&String> = metadata.finalizers.iter().filter(|f| **f != finalizer).collect();
    let patch = json!({ "metadata": {
        "uid": metadata.uid, "resourceVersion": metadata.resource_version, "finalizers": left,
    } });
    let (kind, key) = (ObjectKind::Pod, ObjectKey::from_metadata(metadata));
    ApiWrite::Patch { kind, key, part: Part::Main, patch }
}

fn is_terminating_job(job: &Job) -> bool {
    job.metadata.deletion_timestamp.is_some()
}

fn is_indexed(job: &Job) -> bool {
    job.spec.completion_mode.as_deref() == Some("Indexed")
}

fn is_suspended(job: &Job) -> bool {
    job.spec.suspend == Some(true)
}

/// The annotation with the index of a pod.
fn index_annotation(names: &Names) -> String {
    names.sub_label("batch", "job-completion-index")
}

/// The index of a pod; none if it has no valid one.
fn index_of(names: &Names, job: &Job, metadata: &ObjectMeta) -> Option<i32> {
    let index: i32 = metadata.annotations.get(&index_annotation(names))?.parse().ok()?;
    (0..job.spec.completions.unwrap_or(0)).contains(&index).then_some(index)
}

fn report(
    names: &Names,
    job: &Job,
    kind: EventKind,
    reason: &'static str,
    message: String,
) -> EventReport {
    let about = proto_api::event_report::reference(job, names);
    EventReport { about, kind, reason: reason.into(), message }
}

/// A plan for an unfinished job.
struct Work<'a> {
    names: &'a Names,
    job: &'a Job,
    pods: &'a [&'a Pod],
    claimant: &'a Claimant<'a, Job>,
    now: Time,
}

impl<'a> Work<'a> {
    fn plan(&self) -> Plan {
        let (job, mut plan) = (self.job, Plan::default());
        let counts = Counts::from_pods(self.names, job, self.pods);
        let active: Vec<&Pod> = self
            .pods
            .iter()
            .copied()
            .filter(|pod| !has_ended(pod) && !is_terminating(pod))
            .collect();
        let mut status = counts.status(job);
        finish::set_start(job, &mut status, self.now);
        if let Some(outcome) = finish::failure(job, &status, &counts, self.pods, self.now) {
            self.fail(&mut plan, status, &counts, &active, outcome);
            return plan;
        }
        if let Some(left) = finish::deadline_in(job, &status, self.now) {
            plan.requeue_in(left);
        }
        let changes = match is_terminating_job(job) {
            true => PodChanges::default(),
            false => self.changes(&counts, &active, &mut plan),
        };
        let left = active.len().saturating_sub(changes.delete.len());
        if changes.create.is_empty() && left == 0 && finish::is_complete(job, &counts) {
            changes.push(self, &mut plan);
            plan.on_failure = Some(self.status_of_failure(status.clone(), &active));
            self.end(&mut plan, counts.last(status, 0), Outcome::Complete);
            return plan;
        }
        if !is_terminating_job(job) {
            let report = finish::set_suspended(self.names, job, &mut status, self.now);
            plan.reports.extend(report);
        }
        // What the plan creates may be refused, for as long as a quota is used up.
        count_active(&mut status, &active);
        // The status first: what it notes may lose its finalizer.
        self.push_status(&mut plan, status);
        for pod in self.pods.iter().filter(|pod| is_tracked(self.names, pod)) {
            if counts.may_untrack(pod, is_terminating_job(job)) {
                // Each that is not let go is tried again, whatever becomes of the others.
                plan.push_alone(untrack(self.names, pod));
            }
        }
        changes.push(self, &mut plan);
        plan
    }

    fn push_status(&self, plan: &mut Plan, status: JobStatus) {
        if status != self.job.status {
            let next = Job { status, ..self.job.clone() };
            plan.writes.push(ApiWrite::UpdateStatus(next.into()));
        }
    }

    /// Deletes what is active, which counts as failed, and ends the job.
    fn fail(
        &self,
        plan: &mut Plan,
        status: JobStatus,
        counts: &Counts<'_>,
        active: &[&Pod],
        outcome: Outcome,
    ) {
        pod_changes::push_deletions(self, active, plan);
        plan.on_failure = Some(self.status_of_failure(status.clone(), active));
        match active.len() > BURST_MAX {
            // The next plan goes on: the reason does not go away.
            true => self.push_status(plan, status),
            false => self.end(plan, counts.last(status, active.len()), outcome),
        }
    }

    /// What is written while the server does not delete what is active: the job has not ended.
    fn status_of_failure(&self, mut status: JobStatus, active: &[&Pod]) -> FailureStatus {
        count_active(&mut status, active);
        // The condition that says that it was suspended stays: it goes on once.
        status.start_time = self.job.status.start_time.or(status.start_time);
        let is_changed = status != self.job.status;
        FailureStatus::new(Job { status, ..self.job.clone() }, is_changed)
    }

    /// Writes the last counts and the condition in one write.
    fn end(&self, plan: &mut Plan, mut status: JobStatus, outcome: Outcome) {
        plan.reports.extend(outcome.reports(self.names, self.job, &status));
        outcome.write(&mut status, self.now);
        self.push_status(plan, status);
    }
}

/// Counts the pods that run or are to.
fn count_active(status: &mut JobStatus, active: &[&Pod]) {
    status.active = count(active.len());
    status.ready = Some(count(active.iter().filter(|pod| is_ready(pod)).count()));
}

fn count(len: usize) -> i32 {
    i32::try_from(len).unwrap_or(i32::MAX)
}

#[cfg(test)]
mod expiry_histories;
#[cfg(test)]
mod histories;
#[cfg(test)]
mod tests;
