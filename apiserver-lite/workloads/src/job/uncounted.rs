//! Jobs whose pods cannot be counted: API servers before Kubernetes 1.23 drop `status.uncountedTerminatedPods`. Without it a pod that has ended would be
//! neither counted nor there, and its successor be made without end: such a job is left alone, which an event says. Jobs that have begun under an older
//! controller lack the field, too. So it is written first, and again from time to time: where the server keeps it, the job goes on.

use std::collections::BTreeMap;
use std::time::Duration;

use apiserver_controllers::Plan;
use apiserver_controllers::api_writes::ApiWrite;
use proto_api::Time;
use proto_api::batch::v1::{Job, UncountedTerminatedPods};
use proto_api::event_report::EventKind;
use proto_api::names::Names;

use super::{is_terminating_job, report};

/// Most jobs that are remembered.
const JOBS_MAX: usize = 10_000;

/// The write of the field after which it is clear that the server drops it: one may have failed.
const CERTAIN_AT: u32 = 3;

/// Seconds between two writes of the field, until it is clear and after that.
const FIRST_PAUSE: i64 = 1;
const LATER_PAUSE: i64 = 600;

/// The jobs that have begun and whose status lacks the field, by uid. Lost with the process: then the event comes again.
#[derive(Debug, Default)]
pub struct UncountedJobs(BTreeMap<String, Writes>);

/// Writes of the field to one status.
#[derive(Clone, Copy, Debug, Default)]
struct Writes {
    count: u32,
    last: i64,
}

impl UncountedJobs {
    /// The plan of a job whose pods cannot be counted now; none if they can, or if the job has not begun.
    pub(super) fn plan(&mut self, names: &Names, job: &Job, now: Time) -> Option<Plan> {
        let (uid, status) = (&job.metadata.uid, &job.status);
        let begun = status.start_time.is_some();
        // The pods of one that is being deleted need not be counted.
        if status.uncounted_terminated_pods.is_some() || !begun || is_terminating_job(job) {
            self.0.remove(uid);
            return None;
        }
        if self.0.len() >= JOBS_MAX && !self.0.contains_key(uid) {
            self.0.clear();
        }
        let writes = self.0.entry(uid.clone()).or_default();
        let now = now.unix().unwrap_or(0);
        let since = now.saturating_sub(writes.last);
        let pause = if writes.count < CERTAIN_AT { FIRST_PAUSE } else { LATER_PAUSE };
        // The clock may have been set back.
        if writes.count > 0 && (0..pause).contains(&since) {
            return Some(waiting(pause.saturating_sub(since)));
        }
        *writes = Writes { count: writes.count.saturating_add(1), last: now };
        let mut plan = waiting(if writes.count < CERTAIN_AT { FIRST_PAUSE } else { LATER_PAUSE });
        if writes.count == CERTAIN_AT {
            let message = "The API server does not keep status.uncountedTerminatedPods, without which pods of Jobs cannot be counted: the Job is left alone. \
                           Kubernetes has the field since 1.23; with an older API server use the job controller of its own release";
            plan.reports.push(report(
                names,
                job,
                EventKind::Warning,
                "UncountablePods",
                message.to_owned(),
            ));
        }
        let mut next = job.clone();
        next.status.uncounted_terminated_pods = Some(UncountedTerminatedPods::default());
        plan.writes.push(ApiWrite::UpdateStatus(next.into()));
        Some(plan)
    }
}

fn waiting(seconds: i64) -> Plan {
    let wait = Duration::from_secs(u64::try_from(seconds).unwrap_or(0));
    Plan { requeue_after: Some(wait), ..Plan::default() }
}
