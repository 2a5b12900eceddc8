//! The cronjob controller: a job at each time of a schedule.
//!
//! The name of a job has the minute of its time, so that no time has two. Its time is noted in the status by the write after its creation: a job that has ended
//! and is removed before the next plan is not created again. One whose creation is not followed by that write is noted by the next plan that finds it.
//!
//! The last time in the status lies in the future if the clock was set back since. Then a schedule goes on from the time at which that was seen, so that no
//! time has a job again which had come by then ([`ResumedSchedules`]).

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use apiserver_controllers::Plan;
use apiserver_controllers::api_writes::ApiWrite;
use apiserver_controllers::owners::controlled_by;
use apiserver_controllers::write_events::{ReplicaOperation, WriteEvent};
use apiserver_cron::schedule::Schedule;
use apiserver_cron::zone::Zone;
use proto_api::batch::v1::{CronJob, CronJobStatus, Job, JobCondition};
use proto_api::core::v1::ObjectReference;
use proto_api::event_report::{EventKind, EventReport};
use proto_api::meta::v1::ObjectMeta;
use proto_api::names::Names;
use proto_api::{Kind, Time};

use crate::job::delete_tree;

/// Seconds by which clocks of controllers may differ.
const CLOCK_SKEW: i64 = 60;

/// Maximum number of jobs that the status calls active. Others are noted once some of these have ended.
const ACTIVE_MAX: usize = 1000;

/// Maximum number of ended jobs of a kind that one plan deletes.
const BURST_MAX: usize = 500;

/// Maximum number of events of one plan about jobs that the controller does not expect.
const UNEXPECTED_MAX: usize = 100;

/// Times that may be missed without a warning.
const MISSED_MAX: i64 = 100;

/// How long after a time of the schedule the next plan comes: clocks of servers differ a little.
const AFTER: Duration = Duration::from_millis(100);

/// What a plan is made from.
pub struct ObservedCronJob<'a> {
    pub cron_job: &'a CronJob,
    /// The jobs of its namespace.
    pub jobs: &'a [Arc<Job>],
}

/// Most schedules that are remembered.
const RESUMED_MAX: usize = 10_000;

/// From which times schedules go on whose last time lies in the future, by uid of the cron job: the time at which that was seen, or the last one since then
/// that has a job. The status keeps its last time, so that nothing is repeated either when the clock is set right. Lost with the process: then the next plans
/// are those that see it.
#[derive(Debug, Default)]
pub struct ResumedSchedules(BTreeMap<String, i64>);

impl ResumedSchedules {
    /// The time from which a schedule goes on.
    fn since(&self, uid: &str, now: i64) -> i64 {
        // One that is in the future itself is from before the clock was set back once more.
        self.0.get(uid).copied().filter(|since| has_come(*since, now)).unwrap_or(now)
    }

    fn remember(&mut self, uid: &str, since: i64) {
        if self.0.len() >= RESUMED_MAX && !self.0.contains_key(uid) {
            self.0.clear();
        }
        self.0.insert(uid.to_owned(), since);
    }
}

/// Whether jobs lack one that the status calls active. A cache may lack it because it lags.
pub fn lacks_active(cron_job: &CronJob, jobs: &[Arc<Job>]) -> bool {
    let mut lacked = uids(&cron_job.status.active);
    for job in jobs {
        lacked.remove(job.metadata.uid.as_str());
    }
    !lacked.is_empty()
}

fn uids(active: &[ObjectReference]) -> BTreeSet<&str> {
    proto_api::count_steps!(active.len());
    active.iter().map(|active| active.uid.as_str()).collect()
}

/// Plans jobs and status. `seen` has every active job that exists ([`lacks_active`]).
pub fn plan(
    names: &Names,
    seen: &ObservedCronJob<'_>,
    resumed: &mut ResumedSchedules,
    now: Time,
) -> Plan {
    let cron_job = seen.cron_job;
    let uid = cron_job.metadata.uid.as_str();
    let is_own = |job: &&Job| {
        let mut owners = job.metadata.owner_references.iter();
        owners.any(|owner| owner.controller == Some(true) && owner.uid == uid)
    };
    let own: Vec<&Job> = seen.jobs.iter().map(AsRef::as_ref).filter(is_own).collect();
    let now = now.unix().unwrap_or(0);
    let last = last_time(cron_job, &cron_job.status);
    let anchor = if has_come(last, now) { last } else { resumed.since(uid, now) };
    let mut turn = Turn { names, cron_job, jobs: seen.jobs, own: &own, now, anchor };
    let mut plan = Plan::default();
    let done = turn.times_done();
    let mut status = turn.status(&done, &mut plan);
    let come = done.into_iter().filter(|done| has_come(*done, now));
    turn.anchor = come.fold(anchor, i64::max);
    if has_come(last_time(cron_job, &status), now) {
        resumed.0.remove(uid);
    } else {
        resumed.remember(uid, turn.anchor);
    }
    let starts = cron_job.metadata.deletion_timestamp.is_none();
    if starts && cron_job.spec.suspend != Some(true) {
        turn.start(&mut status, &mut plan);
    }
    // Before jobs are removed: their names are what says that a time was taken.
    if status != cron_job.status {
        let next = CronJob { status, ..cron_job.clone() };
        plan.writes.push(ApiWrite::UpdateStatus(next.into()));
    }
    if starts {
        turn.clean(&mut plan);
    }
    plan
}

/// What one plan works with.
struct Turn<'a> {
    names: &'a Names,
    cron_job: &'a CronJob,
    /// The jobs of the namespace, and those that the cron job controls.
    jobs: &'a [Arc<Job>],
    own: &'a [&'a Job],
    now: i64,
    /// The last time that has come and has a job; those of a period are counted from it.
    anchor: i64,
}

impl Turn<'_> {
    /// The times that have jobs.
    fn times_done(&self) -> Vec<i64> {
        let schedule = Schedule::parse(&self.cron_job.spec.schedule).ok();
        let times = self.own.iter().filter_map(|job| self.time_of(job));
        times.map(|time| self.exact_time(time, schedule.as_ref())).collect()
    }

    /// The status by the jobs that exist. `done` are the times that have one.
    fn status(&self, done: &[i64], plan: &mut Plan) -> CronJobStatus {
        let mut status = self.cron_job.status.clone();
        for time in done {
            raise(&mut status.last_schedule_time, Time::from_unix(*time));
        }
        let active = uids(&self.cron_job.status.active);
        let (mut is_over, mut begun, mut unexpected) = (BTreeMap::new(), Vec::new(), 0_usize);
        for job in self.own {
            proto_api::count_steps!(1);
            let uid = job.metadata.uid.as_str();
            let is_active = active.contains(uid);
            is_over.insert(uid, ending(job).is_some());
            match (ending(job), self.time_of(job)) {
                (Some(end), _) if is_active => {
                    let name = &job.metadata.name;
                    let message = format!("Saw completed job: {name}, status: {end}");
                    plan.reports.push(self.report(EventKind::Normal, "SawCompletedJob", message));
                }
                (None, Some(_)) if !is_active && job.metadata.deletion_timestamp.is_none() => {
                    begun.push(job);
                }
                (None, None) if !is_active && unexpected < UNEXPECTED_MAX => {
                    unexpected = unexpected.saturating_add(1);
                    let name = &job.metadata.name;
                    let message =
                        format!("Saw a job that the controller did not create or forgot: {name}");
                    plan.reports.push(self.report(EventKind::Warning, "UnexpectedJob", message));
                }
                _ => {}
            }
            if let (Some("Complete"), Some(end)) = (ending(job), job.status.completion_time) {
                raise(&mut status.last_successful_time, end);
            }
        }
        let mut missing = Vec::new();
        status.active.retain(|active| {
            let is_over = is_over.get(active.uid.as_str());
            if is_over.is_none() {
                missing.push(format!("Active job went missing: {}", active.name));
            }
            is_over == Some(&false)
        });
        status.active.truncate(ACTIVE_MAX);
        let room = ACTIVE_MAX.saturating_sub(status.active.len());
        status.active.extend(begun.into_iter().take(room).map(|job| self.reference(job)));
        let missing = missing.into_iter();
        plan.reports
            .extend(missing.map(|message| self.report(EventKind::Normal, "MissingJob", message)));
        status
    }

    /// Starts the job of the latest time of the schedule, unless that is done.
    fn start(&self, status: &mut CronJobStatus, plan: &mut Plan) {
        let Some((schedule, zone)) = self.schedule(plan) else { return };
        let anchor = self.anchor;
        if let Some(next) = schedule.next(&zone, anchor, self.now) {
            let left = next.saturating_sub(self.now);
            let left = Duration::from_secs(u64::try_from(left).unwrap_or(0));
            plan.requeue_in(left.saturating_add(AFTER));
        }
        let spec = &self.cron_job.spec;
        let mut earliest = anchor;
        if let Some(deadline) = spec.starting_deadline_seconds {
            earliest = earliest.max(self.now.saturating_sub(deadline));
        }
        let Some(latest) = schedule.latest(&zone, anchor, earliest, self.now) else { return };
        if latest.count > MISSED_MAX {
            let message = format!(
                "too many missed start times: {}. Set or decrease .spec.startingDeadlineSeconds or check clock skew",
                latest.count
            );
            plan.reports.push(self.report(EventKind::Warning, "TooManyMissedTimes", message));
        }
        let name = self.job_name(latest.time);
        if self.own.iter().any(|job| job.metadata.name == name) {
            return;
        }
        match spec.concurrency_policy.as_str() {
            "Forbid" if !status.active.is_empty() => {
                let message = "Not starting job because prior execution is running and concurrency policy is Forbid";
                let report = self.report(EventKind::Normal, "JobAlreadyActive", message.to_owned());
                plan.reports.push(report);
                return;
            }
            "Replace" => {
                let active = std::mem::take(&mut status.active);
                let active = uids(&active);
                let is_active = |job: &&&Job| active.contains(job.metadata.uid.as_str());
                self.own.iter().filter(is_active).for_each(|job| self.delete(job, plan));
            }
            _ => {}
        }
        let done = ("SuccessfulCreate", format!("Created job {name}"));
        let failed = ("FailedCreate", "Error creating job: ".to_owned());
        // A job of this name that is no own one keeps the time open, as in Kubernetes.
        if !self.jobs.iter().any(|job| job.metadata.name == name) {
            raise(&mut status.last_schedule_time, Time::from_unix(latest.time));
        }
        plan.push_with_event(ApiWrite::Create(self.new_job(name).into()), self.event(done, failed));
    }

    /// The schedule and its zone; none if they are invalid, which an event says.
    fn schedule(&self, plan: &mut Plan) -> Option<(Schedule, Zone)> {
        let spec = &self.cron_job.spec;
        let schedule = match Schedule::parse(&spec.schedule) {
            Ok(schedule) => schedule,
            Err(why) => {
                let message = format!("unparseable schedule: {:?} : {why}", spec.schedule);
                plan.reports.push(self.report(EventKind::Warning, "UnparseableSchedule", message));
                return None;
            }
        };
        if schedule.zone().is_some() {
            let schedule = &spec.schedule;
            let message = format!(
                "CRON_TZ or TZ used in schedule {schedule:?} is not officially supported, see the field timeZone"
            );
            plan.reports.push(self.report(EventKind::Warning, "UnsupportedSchedule", message));
        }
        // No CronJob with both is admitted. For one that is stored Kubernetes uses the schedule's.
        let named = schedule.zone().or(spec.time_zone.as_deref());
        let zone = named.map_or_else(|| Some(Zone::utc()), Zone::named);
        if zone.is_none() {
            let named = named.unwrap_or_default();
            let message = format!("invalid timeZone: {named:?}: unknown time zone {named}");
            plan.reports.push(self.report(EventKind::Warning, "UnknownTimeZone", message));
        }
        zone.map(|zone| (schedule, zone))
    }

    /// Deletes the oldest ended jobs beyond the limits.
    fn clean(&self, plan: &mut Plan) {
        let spec = &self.cron_job.spec;
        let limits = [
            ("Complete", spec.successful_jobs_history_limit),
            ("Failed", spec.failed_jobs_history_limit),
        ];
        for (end, limit) in limits {
            let Some(limit) = limit else { continue };
            let is_kept = |job: &&Job| job.metadata.deletion_timestamp.is_none();
            let mut ended: Vec<&Job> = self.own.iter().copied().filter(is_kept).collect();
            ended.retain(|job| ending(job) == Some(end));
            ended.sort_by_key(|job| {
                let start = job.status.start_time.and_then(Time::unix).unwrap_or(i64::MAX);
                (start, &job.metadata.name)
            });
            let excess = ended.len().saturating_sub(usize::try_from(limit).unwrap_or(0));
            // Their deletion leads to the next plan.
            ended.into_iter().take(excess.min(BURST_MAX)).for_each(|job| self.delete(job, plan));
        }
    }

    fn delete(&self, job: &Job, plan: &mut Plan) {
        let done = ("SuccessfulDelete", format!("Deleted job {}", job.metadata.name));
        let failed = ("FailedDelete", "Deleted job: ".to_owned());
        plan.push_with_event(delete_tree(job, "Background"), self.event(done, failed));
    }

    /// The name of the job of a time.
    fn job_name(&self, time: i64) -> String {
        format!("{}-{}", self.cron_job.metadata.name, time.div_euclid(60))
    }

    /// The time of a job that this controller has created. Names that only look so, with a time that had not come when the job was created and has not yet,
    /// have none.
    fn time_of(&self, job: &Job) -> Option<i64> {
        let rest = job.metadata.name.strip_prefix(&self.cron_job.metadata.name)?;
        let minute: i64 = rest.strip_prefix('-')?.parse().ok()?;
        let time = minute.checked_mul(60)?;
        let created = job.metadata.creation_timestamp.unix().unwrap_or(0);
        let is_own = self.job_name(time) == job.metadata.name;
        (is_own && has_come(time, self.now.max(created))).then_some(time)
    }

    /// The time of the schedule that lies in the minute of `time`. Only those of a period are no whole minutes.
    fn exact_time(&self, time: i64, schedule: Option<&Schedule>) -> i64 {
        let (after, until) = (time.saturating_sub(1), time.saturating_add(59));
        let period = schedule.filter(|schedule| schedule.is_period());
        let found = period.and_then(|it| it.latest(&Zone::utc(), self.anchor, after, until));
        found.map_or(time, |found| found.time)
    }

    fn new_job(&self, name: String) -> Job {
        let CronJob { metadata, spec, .. } = self.cron_job;
        let template = &spec.job_template;
        let api_version = self.names.api_version(CronJob::GROUP, CronJob::VERSION);
        Job {
            metadata: ObjectMeta {
                name,
                namespace: metadata.namespace.clone(),
                labels: template.metadata.labels.clone(),
                annotations: template.metadata.annotations.clone(),
                owner_references: vec![controlled_by(api_version, CronJob::KIND, metadata)],
                ..ObjectMeta::default()
            },
            spec: template.spec.clone(),
            ..Job::default()
        }
    }

    fn reference(&self, job: &Job) -> ObjectReference {
        proto_api::event_report::reference(job, self.names)
    }

    // === Events ===

    fn report(&self, kind: EventKind, reason: &'static str, message: String) -> EventReport {
        let about = proto_api::event_report::reference(self.cron_job, self.names);
        EventReport { about, kind, reason: reason.into(), message }
    }

    fn event(&self, done: (&'static str, String), failed: (&'static str, String)) -> WriteEvent {
        let about = proto_api::event_report::reference(self.cron_job, self.names);
        WriteEvent { about, operation: ReplicaOperation::Other { done, failed } }
    }
}

/// `Complete` or `Failed`, if the job has ended.
fn ending(job: &Job) -> Option<&str> {
    let is_end = |condition: &&JobCondition| {
        matches!(condition.type_.as_str(), "Complete" | "Failed") && condition.status == "True"
    };
    job.status.conditions.iter().find(is_end).map(|condition| condition.type_.as_str())
}

/// The last time in the status, or the creation.
fn last_time(cron_job: &CronJob, status: &CronJobStatus) -> i64 {
    let created = cron_job.metadata.creation_timestamp;
    status.last_schedule_time.unwrap_or(created).unix().unwrap_or(0)
}

/// Whether a time is past, give or take the difference of two clocks.
fn has_come(time: i64, now: i64) -> bool {
    time <= now.saturating_add(CLOCK_SKEW)
}

fn raise(time: &mut Option<Time>, to: Time) {
    if time.is_none_or(|time| time.unix() < to.unix()) {
        *time = Some(to);
    }
}

#[cfg(test)]
mod tests;
