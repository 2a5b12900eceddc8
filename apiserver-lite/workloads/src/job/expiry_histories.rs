//! Random histories of Jobs with a time to live after their end: users who edit it, delete Jobs and make others of the same name, clocks that are set, a cache
//! that lags behind, a server that refuses deletions, and a controller that is lost between the read of a Job and its deletion. No Job is deleted before
//! its time is over, and each whose time is over goes with its pods.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use apiserver_controllers::api_writes::{ApiWrite, ObjectKind};
use apiserver_controllers::owners;
use proptest::prelude::*;
use proto_api::batch::v1::{Job, JobCondition};
use proto_api::core::v1::Pod;

use crate::job;
use crate::simulation::World;

const JOBS: usize = 3;

#[derive(Clone, Copy, Debug)]
enum Step {
    CatchUp,
    /// The keys whose time has come are looked at.
    Run,
    /// The same, and the controller is lost after this many writes. It restarts with a fresh cache.
    Crash(usize),
    Make(usize),
    /// A Job gets a condition of this type and status.
    Note(usize, &'static str, &'static str),
    SetTtl(usize, Option<i32>),
    /// A user deletes a Job, whose pods go with it.
    Delete(usize),
    /// The garbage collector deletes the pods of Jobs that go, and then the Jobs.
    Collect,
    Refuse(bool),
    Later(u8),
    /// The wall clock is set.
    SetClock(i16),
}

fn step() -> impl Strategy<Value = Step> {
    let at = || 0..JOBS;
    let ttl = || proptest::option::weighted(0.8, 0..90i32);
    let kind = prop_oneof![3 => Just("Complete"), 3 => Just("Failed"), 1 => Just("Suspended")];
    let status = prop_oneof![3 => Just("True"), 1 => Just("False")];
    prop_oneof![
        5 => Just(Step::CatchUp),
        6 => Just(Step::Run),
        1 => (0..2usize).prop_map(Step::Crash),
        3 => at().prop_map(Step::Make),
        4 => (at(), kind, status).prop_map(|(at, kind, status)| Step::Note(at, kind, status)),
        4 => (at(), ttl()).prop_map(|(at, ttl)| Step::SetTtl(at, ttl)),
        1 => at().prop_map(Step::Delete),
        2 => Just(Step::Collect),
        1 => any::<bool>().prop_map(Step::Refuse),
        6 => (0..60u8).prop_map(Step::Later),
        1 => (-300..300i16).prop_map(Step::SetClock),
    ]
}

fn name(nth: usize) -> String {
    format!("work-{nth}")
}

/// Seconds until Kubernetes deletes the Job, if it does. Those in the past count as none.
fn seconds_left(job: &Job, now: i64) -> Option<u64> {
    let ended = |condition: &&JobCondition| {
        ["Complete", "Failed"].contains(&&*condition.type_) && condition.status == "True"
    };
    let ended = job.status.conditions.iter().find(ended)?.last_transition_time.unix()?;
    let ttl = i64::from(job.spec.ttl_seconds_after_finished?);
    let is_deleted = job.metadata.deletion_timestamp.is_some();
    (!is_deleted).then(|| u64::try_from(ended + ttl - now).unwrap_or(0))
}

struct History {
    world: World,
    cache: World,
    /// The clock that is not set.
    steady: i64,
    /// When each key is looked at next.
    queue: BTreeMap<String, i64>,
    refuses: bool,
}

impl History {
    fn new() -> Self {
        let world = World::at(10_000);
        let cache = world.clone();
        let mut history = Self { world, cache, steady: 0, queue: BTreeMap::new(), refuses: false };
        (0..JOBS).for_each(|nth| history.make(nth));
        history
    }

    fn jobs(&self) -> Vec<Arc<Job>> {
        self.world.list(ObjectKind::Job)
    }

    fn make(&mut self, nth: usize) {
        if self.world.get::<Job>(ObjectKind::Job, &name(nth)).is_some() {
            return;
        }
        let mut made = Job::default();
        made.metadata.name = name(nth);
        made.metadata.namespace = "ns".into();
        self.world.put(made);
        let made = self.world.get::<Job>(ObjectKind::Job, &name(nth)).expect("the job");
        let mut pod = Pod::default();
        pod.metadata.name = format!("pod-of-{}", made.metadata.uid);
        pod.metadata.namespace = "ns".into();
        pod.metadata.owner_references =
            vec![owners::controlled_by("batch/v1".into(), "Job", &made.metadata)];
        self.world.put(pod);
    }

    fn apply_step(&mut self, step: Step) {
        match step {
            Step::CatchUp => self.catch_up(),
            Step::Run => self.run(usize::MAX),
            Step::Crash(limit) => {
                self.run(limit);
                self.cache = World::at(self.world.now);
                self.queue.clear();
                self.catch_up();
            }
            Step::Make(nth) => self.make(nth),
            Step::Note(nth, kind, status) => self.note(nth, kind, status),
            Step::SetTtl(nth, ttl) => self.world.edit::<Job>(ObjectKind::Job, &name(nth), |job| {
                job.spec.ttl_seconds_after_finished = ttl;
            }),
            Step::Delete(nth) => self.begin_deletion(&name(nth)),
            Step::Collect => self.collect(),
            Step::Refuse(on) => self.refuses = on,
            Step::Later(seconds) => self.pass(i64::from(seconds)),
            Step::SetClock(by) => self.world.now += i64::from(by),
        }
    }

    /// A Job that has ended stays so.
    fn note(&mut self, nth: usize, kind: &str, status: &str) {
        let now = self.world.time();
        self.world.edit::<Job>(ObjectKind::Job, &name(nth), |job| {
            if !job::is_finished(job) {
                let (type_, status) = (kind.to_owned(), status.to_owned());
                let condition =
                    JobCondition { type_, status, last_transition_time: now, ..Default::default() };
                job.status.conditions.push(condition);
            }
        });
    }

    fn pass(&mut self, seconds: i64) {
        self.world.now += seconds;
        self.steady += seconds;
    }

    /// The keys of Jobs that have changed are looked at, if there is a time to live.
    fn catch_up(&mut self) {
        let before = std::mem::replace(&mut self.cache, self.world.clone());
        for job in self.jobs() {
            let old = before.get::<Job>(ObjectKind::Job, &job.metadata.name);
            if job.spec.ttl_seconds_after_finished.is_some() && old.as_ref() != Some(&*job) {
                self.queue.insert(job.metadata.name.clone(), self.steady);
            }
        }
    }

    fn run(&mut self, limit: usize) {
        let mut left = limit;
        let due: Vec<String> =
            self.queue.extract_if(.., |_, at| *at <= self.steady).map(|(key, _)| key).collect();
        due.iter().for_each(|key| self.expire(key, &mut left));
    }

    /// As the controller manager does: a Job that is to be deleted is read again.
    fn expire(&mut self, key: &str, left: &mut usize) {
        let now = self.world.time();
        let Some(seen) = self.cache.get::<Job>(ObjectKind::Job, key) else { return };
        let mut plan = job::plan_expiry(&seen, now);
        let mut read = Some(seen);
        if !plan.writes.is_empty() {
            read = self.world.get::<Job>(ObjectKind::Job, key);
            plan = read.as_ref().map(|job| job::plan_expiry(job, now)).unwrap_or_default();
        }
        let due = read.as_ref().and_then(|job| seconds_left(job, self.world.now));
        let wait = due.filter(|left| *left > 0).map(Duration::from_secs);
        assert_eq!((plan.writes.len(), plan.requeue_after), (usize::from(due == Some(0)), wait));
        if let Some(wait) = wait {
            let at = self.steady + i64::try_from(wait.as_secs()).expect("a time");
            self.queue.insert(key.to_owned(), at);
        }
        for write in &plan.writes {
            let ApiWrite::DeleteTree { kind: ObjectKind::Job, key, uid, propagation } = write
            else {
                panic!("{write:?}")
            };
            let job = read.as_ref().expect("the job");
            assert_eq!((&key.name, uid), (&job.metadata.name, &job.metadata.uid));
            assert_eq!(*propagation, "Foreground", "its pods go before it");
            if *left == 0 || self.refuses {
                // It is tried again.
                self.queue.insert(key.name.clone(), self.steady + 1);
                continue;
            }
            *left -= 1;
            self.begin_deletion(&key.name);
        }
    }

    fn begin_deletion(&mut self, name: &str) {
        let now = self.world.time();
        self.world.edit::<Job>(ObjectKind::Job, name, |job| {
            job.metadata.deletion_timestamp = Some(now);
        });
    }

    fn collect(&mut self) {
        for job in self.jobs().iter().filter(|job| job.metadata.deletion_timestamp.is_some()) {
            let pod = format!("pod-of-{}", job.metadata.uid);
            self.world.remove(ObjectKind::Pod, &pod);
            self.world.remove(ObjectKind::Job, &job.metadata.name);
        }
    }

    /// The names of Jobs that Kubernetes deletes sooner or later, and of those that it keeps.
    fn split(&self) -> (BTreeSet<String>, BTreeSet<String>) {
        let mut jobs = self.jobs();
        jobs.retain(|job| job.metadata.deletion_timestamp.is_none());
        let goes = |job: &&Arc<Job>| seconds_left(job, self.world.now).is_some();
        let (going, kept): (Vec<_>, Vec<_>) = jobs.iter().partition(goes);
        let names =
            |jobs: Vec<&Arc<Job>>| jobs.iter().map(|job| job.metadata.name.clone()).collect();
        (names(going), names(kept))
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 256, ..ProptestConfig::default() })]

    #[test]
    fn jobs_go_when_their_time_is_over_and_not_before(
        steps in proptest::collection::vec(step(), 1..80),
    ) {
        let mut history = History::new();
        for step in steps {
            history.apply_step(step);
        }
        let (_, kept) = history.split();
        history.refuses = false;
        history.catch_up();
        // Where the clock was set forward a key comes later than its Job's time.
        let left = |job: &Arc<Job>| seconds_left(job, history.world.now);
        let longest = history.jobs().iter().filter_map(left).max().unwrap_or(0);
        let last = history.queue.values().max().map_or(0, |at| at - history.steady);
        for _ in 0..longest.max(last.unsigned_abs()) + 3 {
            history.run(usize::MAX);
            history.pass(1);
        }
        history.collect();
        let left = history.split();
        prop_assert_eq!(left, (BTreeSet::new(), kept));
        let (jobs, pods) = (history.jobs(), history.world.pods());
        prop_assert_eq!(jobs.len(), pods.len());
    }
}
