//! The end of a job: when it is complete or has failed, and its conditions.

use std::borrow::Cow;
use std::time::Duration;

use apiserver_controllers::addresses::has_ended;
use proto_api::Time;
use proto_api::batch::v1::{Job, JobCondition, JobStatus};
use proto_api::core::v1::Pod;
use proto_api::event_report::{EventKind, EventReport};
use proto_api::names::Names;

use super::counts::Counts;
use super::{failure_policy, is_suspended, report};

/// Default of `backoffLimit`.
const BACKOFF_LIMIT: i32 = 6;

/// The reason of jobs that end by a rule of their pod failure policy.
const POD_FAILURE_POLICY: &str = "PodFailurePolicy";

/// How a job ends.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Outcome {
    Complete,
    /// With reason and message.
    Failed(&'static str, Cow<'static, str>),
}

/// Whether the job is complete or has failed.
pub fn is_finished(job: &Job) -> bool {
    finished_at(job).is_some()
}

/// When the job ended.
pub(super) fn finished_at(job: &Job) -> Option<Time> {
    let is_last = |condition: &&JobCondition| {
        matches!(condition.type_.as_str(), "Complete" | "Failed") && condition.status == "True"
    };
    job.status.conditions.iter().find(is_last).map(|condition| condition.last_transition_time)
}

/// Why the job has failed, if it has. The reason stays: it is found again after an interruption, because no pod loses its finalizer before the end is
/// written.
pub(super) fn failure(
    job: &Job,
    status: &JobStatus,
    counts: &Counts<'_>,
    pods: &[&Pod],
    now: Time,
) -> Option<Outcome> {
    if let Some(message) = failure_policy::fails(job, pods) {
        return Some(Outcome::Failed(POD_FAILURE_POLICY, message.into()));
    }
    let limit = job.spec.backoff_limit.unwrap_or(BACKOFF_LIMIT);
    if counts.failed() > limit || restarts_exceed(job, pods, limit) {
        let message = "Job has reached the specified backoff limit";
        return Some(Outcome::Failed("BackoffLimitExceeded", message.into()));
    }
    let left = deadline_in(job, status, now)?;
    let message = "Job was active longer than specified deadline";
    left.is_zero().then_some(Outcome::Failed("DeadlineExceeded", message.into()))
}

/// Whether containers that restart in their pods have done so too often.
fn restarts_exceed(job: &Job, pods: &[&Pod], limit: i32) -> bool {
    if job.spec.template.spec.restart_policy != "OnFailure" {
        return false;
    }
    let running = pods.iter().filter(|pod| !has_ended(pod));
    let statuses = running.flat_map(|pod| {
        pod.status.container_statuses.iter().chain(&pod.status.init_container_statuses)
    });
    let restarts = statuses.fold(0_i32, |sum, status| sum.saturating_add(status.restart_count));
    restarts > 0 && restarts >= limit
}

/// The time until the job's deadline; none if it has none or is suspended.
pub(super) fn deadline_in(job: &Job, status: &JobStatus, now: Time) -> Option<Duration> {
    let seconds = job.spec.active_deadline_seconds.filter(|_| !is_suspended(job))?;
    let due = status.start_time?.unix()?.saturating_add(seconds);
    let left = due.saturating_sub(now.unix().unwrap_or(0));
    Some(Duration::from_secs(u64::try_from(left).unwrap_or(0)))
}

/// Whether enough pods have succeeded: `completions` of them; any, if it is not set.
pub(super) fn is_complete(job: &Job, counts: &Counts<'_>) -> bool {
    match job.spec.completions {
        Some(completions) => counts.succeeded() >= completions,
        None => counts.succeeded() > 0,
    }
}

/// Sets the time from which the deadline counts: that of the first plan, and of the first after a suspension.
pub(super) fn set_start(job: &Job, status: &mut JobStatus, now: Time) {
    let was_suspended = |c: &JobCondition| c.type_ == "Suspended" && c.status == "True";
    let resumes = status.conditions.iter().any(was_suspended);
    if !is_suspended(job) && (resumes || status.start_time.is_none()) {
        status.start_time = Some(now);
    }
}

/// Sets the condition Suspended. Gives the event of a change.
pub(super) fn set_suspended(
    names: &Names,
    job: &Job,
    status: &mut JobStatus,
    now: Time,
) -> Option<EventReport> {
    let (is, reason, event, message) = match is_suspended(job) {
        true => ("True", "JobSuspended", "Suspended", "Job suspended"),
        false => ("False", "JobResumed", "Resumed", "Job resumed"),
    };
    let before = status.conditions.iter().find(|condition| condition.type_ == "Suspended");
    // One that was never suspended has no condition.
    if before.map_or("False", |condition| condition.status.as_str()) == is {
        return None;
    }
    set_condition(status, "Suspended", is, (reason, message), now);
    Some(report(names, job, EventKind::Normal, event, message.to_owned()))
}

fn set_condition(
    status: &mut JobStatus,
    kind: &str,
    is: &str,
    (reason, message): (&str, &str),
    now: Time,
) {
    let condition = JobCondition {
        type_: kind.to_owned(),
        status: is.to_owned(),
        last_probe_time: now,
        last_transition_time: now,
        reason: reason.to_owned(),
        message: message.to_owned(),
    };
    match status.conditions.iter_mut().find(|other| other.type_ == kind) {
        Some(other) => *other = condition,
        None => status.conditions.push(condition),
    }
}

impl Outcome {
    /// Writes the condition.
    pub(super) fn write(self, status: &mut JobStatus, now: Time) {
        match self {
            Self::Complete => {
                set_condition(status, "Complete", "True", ("", ""), now);
                status.completion_time = Some(now);
            }
            Self::Failed(reason, message) => {
                if reason == POD_FAILURE_POLICY {
                    set_condition(status, "FailureTarget", "True", (reason, &message), now);
                }
                set_condition(status, "Failed", "True", (reason, &message), now);
            }
        }
    }

    /// The events of the end.
    pub(super) fn reports(&self, names: &Names, job: &Job, status: &JobStatus) -> Vec<EventReport> {
        let said =
            |kind, reason, message: &str| report(names, job, kind, reason, message.to_owned());
        match self {
            Self::Failed(reason, message) => vec![said(EventKind::Warning, *reason, message)],
            Self::Complete => {
                let many = job.spec.completions.is_some_and(|asked| status.succeeded > asked);
                let message = "Too many succeeded pods running after completion count reached";
                let many = many.then(|| said(EventKind::Warning, "TooManySucceededPods", message));
                let done = said(EventKind::Normal, "Completed", "Job completed");
                many.into_iter().chain([done]).collect()
            }
        }
    }
}
