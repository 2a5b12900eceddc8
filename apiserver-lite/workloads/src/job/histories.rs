//! Random histories of a job: pods that succeed, fail and are deleted, caches of pods and jobs that lag behind each other, a server that refuses writes,
//! and a controller that is lost between two of them. Each pod is counted exactly once, without the failures that a policy ignores, and a job fails for a
//! reason that there is.

use std::collections::{BTreeMap, BTreeSet};

use apiserver_controllers::api_writes::WrittenObject;
use proptest::prelude::*;
use proto_api::core::v1::ContainerStatus;

use super::tests::{end, indexed, job, names, on_exit_codes, planned, stored, world};
use super::*;
use crate::simulation::World;

#[derive(Clone, Copy, Debug)]
enum Step {
    PodsCatchUp,
    JobCatchesUp,
    /// A plan, of which this many writes are executed; then the controller restarts with fresh caches.
    Crash(usize),
    Reconcile,
    /// A plan at a server that refuses some of its writes.
    Refused(Refusal),
    /// Plans with fresh caches until nothing is planned.
    Settle,
    Run(usize),
    Succeed(usize),
    Fail(usize),
    /// A container ends with this code, and with it the pod.
    Exit(usize, i32),
    /// A container fails and is started again.
    Restart(usize),
    DeletePod(usize),
    Parallelism(i32),
    Suspend(bool),
    Later(u16),
}

/// What a server refuses: by a quota, a webhook, or missing rights.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Refusal {
    NewPods,
    DeletionsOfPods,
    /// That the nth pod loses its finalizer.
    Change(usize),
}

impl Refusal {
    /// The test of writes; `pods` are those that there are.
    fn concerns(self, pods: &[Arc<Pod>]) -> impl Fn(&ApiWrite) -> bool + use<> {
        let held = match self {
            Self::Change(at) => {
                pods.get(at % pods.len().max(1)).map(|pod| pod.metadata.name.clone())
            }
            _ => None,
        };
        move |write| match write {
            ApiWrite::Create(WrittenObject::Pod(_)) => self == Self::NewPods,
            ApiWrite::Delete { kind: ObjectKind::Pod, .. } => self == Self::DeletionsOfPods,
            ApiWrite::Patch { kind: ObjectKind::Pod, key, .. } => held.as_ref() == Some(&key.name),
            _ => false,
        }
    }
}

fn refusal() -> impl Strategy<Value = Refusal> {
    prop_oneof![
        Just(Refusal::NewPods),
        Just(Refusal::DeletionsOfPods),
        (0..8usize).prop_map(Refusal::Change),
    ]
}

fn exit_code() -> impl Strategy<Value = i32> {
    prop_oneof![2 => Just(1), 4 => Just(IGNORED), 1 => Just(FATAL)]
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        3 => Just(Step::PodsCatchUp),
        3 => Just(Step::JobCatchesUp),
        4 => (0..5usize).prop_map(Step::Crash),
        8 => Just(Step::Reconcile),
        4 => refusal().prop_map(Step::Refused),
        3 => Just(Step::Settle),
        5 => (0..8usize).prop_map(Step::Run),
        4 => (0..8usize).prop_map(Step::Succeed),
        2 => (0..8usize).prop_map(Step::Fail),
        3 => (0..8usize, exit_code()).prop_map(|(at, code)| Step::Exit(at, code)),
        3 => (0..8usize).prop_map(Step::Restart),
        2 => (0..8usize).prop_map(Step::DeletePod),
        1 => (0..4i32).prop_map(Step::Parallelism),
        1 => any::<bool>().prop_map(Step::Suspend),
        3 => (0..400u16).prop_map(Step::Later),
    ]
}

/// Exit codes that the policy of a job ignores, and by which it fails the job.
const IGNORED: i32 = 3;
const FATAL: i32 = 4;

/// What the failures of a job's pods lead to.
#[derive(Clone, Copy, Debug)]
enum Failures {
    Count,
    /// Those of some exit codes do not count, or end the job.
    ByPolicy,
    /// Containers are started again in their pods.
    Restart,
}

struct History {
    world: World,
    /// What the two caches show. Each only moves forward.
    pods: World,
    job: World,
    /// The version that both have to show before the next plan.
    own: u64,
    /// Every pod that was ever there, with its last phase.
    all: BTreeMap<String, String>,
    /// Those that the controller gave up while they ran.
    given_up: BTreeSet<String>,
    /// Those that ended with a code, with it.
    exits: BTreeMap<String, i32>,
    /// How far the clocks of nodes are ahead.
    skew: i64,
    uncounted: UncountedJobs,
}

impl History {
    fn new(job: Job, skew: i64) -> Self {
        let world = world(job);
        let (pods, job) = (world.clone(), world.clone());
        let (all, given_up, exits) = (BTreeMap::new(), BTreeSet::new(), BTreeMap::new());
        let uncounted = UncountedJobs::default();
        Self { world, pods, job, own: 0, all, given_up, exits, skew, uncounted }
    }

    fn take(&mut self, step: Step) {
        let pods = self.world.pods();
        let name = |at: usize| pods.get(at % pods.len().max(1)).map(|pod| &pod.metadata.name);
        match step {
            Step::PodsCatchUp => self.pods = self.world.clone(),
            Step::JobCatchesUp => self.job = self.world.clone(),
            Step::Reconcile => self.reconcile(usize::MAX, &|_| false),
            Step::Refused(refusal) => self.reconcile(usize::MAX, &refusal.concerns(&pods)),
            Step::Settle => self.settle_and_check(),
            Step::Crash(limit) => {
                self.reconcile(limit, &|_| false);
                (self.pods, self.job) = (self.world.clone(), self.world.clone());
            }
            Step::Run(at) => {
                let Some(name) = name(at) else { return };
                let pod = self.world.get::<Pod>(ObjectKind::Pod, name).expect("it is there");
                if !has_ended(&pod) {
                    self.world.edit::<Pod>(ObjectKind::Pod, name, |pod| {
                        pod.spec.node_name = "node".into();
                    });
                    self.world.set_state(name, "Running", true);
                }
            }
            Step::Succeed(at) | Step::Fail(at) => {
                let Some(pod) = pods.get(at % pods.len().max(1)).filter(|pod| !has_ended(pod))
                else {
                    return;
                };
                // A kubelet ends what is deleted.
                let succeeds = matches!(step, Step::Succeed(_)) && !is_terminating(pod);
                self.end(pod, if succeeds { "Succeeded" } else { "Failed" }, 0);
            }
            Step::Exit(at, code) => {
                // What is deleted may count before it has ended.
                let lasts = |pod: &Pod| !has_ended(pod) && !is_terminating(pod);
                if let Some(pod) = pick(&pods, at, lasts) {
                    self.end(pod, "Failed", code);
                    self.exits.insert(pod.metadata.uid.clone(), code);
                }
            }
            Step::Restart(at) => {
                let restarts = |pod: &Pod| restarts(pod) && !has_ended(pod);
                let Some(pod) = pick(&pods, at, restarts) else { return };
                let name = &pod.metadata.name;
                self.world.set_state(name, "Running", true);
                self.world.edit::<Pod>(ObjectKind::Pod, name, |pod| {
                    pod.spec.node_name = "node".into();
                    pod.status.container_statuses.resize_with(1, ContainerStatus::default);
                    pod.status.container_statuses[0].restart_count += 1;
                });
                if at % 2 == 0 {
                    // The pod may end before a later plan, or the job.
                    self.settle_and_check();
                }
            }
            Step::DeletePod(at) => {
                if let Some(name) = name(at) {
                    self.world.delete_pod(name);
                }
            }
            Step::Parallelism(to) => {
                self.world.edit::<Job>(ObjectKind::Job, "work", |job| {
                    job.spec.parallelism = Some(to);
                });
            }
            Step::Suspend(is) => {
                self.world.edit::<Job>(ObjectKind::Job, "work", |job| job.spec.suspend = Some(is));
            }
            Step::Later(seconds) => self.world.now += i64::from(seconds),
        }
        self.note();
    }

    fn end(&mut self, pod: &Pod, phase: &str, code: i32) {
        let finished = Time::from_unix(self.world.now + self.skew);
        self.world.edit::<Pod>(ObjectKind::Pod, &pod.metadata.name, |pod| {
            pod.status.container_statuses.resize_with(1, ContainerStatus::default);
            let terminated =
                pod.status.container_statuses[0].state.terminated.get_or_insert_default();
            (terminated.exit_code, terminated.finished_at) = (code, finished);
        });
        end(&mut self.world, &pod.metadata.name, phase);
    }

    fn note(&mut self) {
        for pod in self.world.pods() {
            self.all.insert(pod.metadata.uid.clone(), pod.status.phase.clone());
        }
    }

    fn reconcile(&mut self, limit: usize, refuses: &dyn Fn(&ApiWrite) -> bool) {
        for cache in [&mut self.pods, &mut self.job] {
            if cache.version < self.own {
                *cache = self.world.clone();
            }
        }
        let job = stored(&self.job).expect("the job");
        let seen = ObservedJob { job: &job, pods: &self.pods.pods() };
        let plan = plan(names(), &seen, &mut self.uncounted, self.world.time());
        let before = stored(&self.world).expect("the job").status;
        let (mut from, mut failed, mut done, mut status) = (0, None, 0, None);
        while let Some(nth) = plan.next_write(from, failed).filter(|_| done < limit) {
            let (write, now) = (&plan.writes[nth], self.world.time());
            from = nth + 1;
            let running = self.running(write);
            if refuses(write) {
                status = status.or_else(|| plan.status_of_failure(nth, "refused".into(), now));
                failed = Some(nth);
            } else if self.world.execute(write).is_err() {
                failed = Some(nth);
            } else {
                done += 1;
                self.given_up.extend(running);
            }
            self.note();
            self.check(&before);
        }
        if let Some(status) = status.filter(|_| done < limit) {
            // One that is lost is written by the next try.
            let _ = self.world.execute(&status);
            self.check(&before);
        }
        self.own = self.world.version;
    }

    /// Plans and executes with fresh caches until nothing is planned.
    fn settle(&mut self) {
        self.settle_refused(&|_| false);
    }

    /// The same at a server that refuses some writes.
    fn settle_refused(&mut self, refuses: &dyn Fn(&ApiWrite) -> bool) {
        for _ in 0..50 {
            (self.pods, self.job) = (self.world.clone(), self.world.clone());
            let before = self.world.version;
            self.reconcile(usize::MAX, refuses);
            if self.world.version == before {
                return;
            }
        }
        panic!("the plans do not end: {:?}", planned(&self.world));
    }

    /// While the server goes on to refuse, the status says all the same what there is, and no pod waits for another one.
    fn check_refusal(&mut self, refusal: Refusal) {
        let pods = self.world.pods();
        let refuses = refusal.concerns(&pods);
        let held = match refusal {
            Refusal::Change(at) => pods.get(at % pods.len().max(1)).map(|pod| &pod.metadata.name),
            _ => None,
        };
        // The deadline may be over, and a pod ends that is to be counted.
        self.world.now += 1000;
        let (phase, is_meant): (_, &dyn Fn(&Pod) -> bool) = match held {
            Some(_) => ("Succeeded", &|pod| held == Some(&pod.metadata.name)),
            None => ("Failed", &|_| true),
        };
        let runs = |pod: &Pod| !has_ended(pod) && !is_terminating(pod) && is_meant(pod);
        pick(&pods, 0, runs).into_iter().for_each(|pod| self.end(pod, phase, 0));
        for _ in 0..4 {
            self.world.now += 1000;
            self.settle_refused(&refuses);
        }
        let (job, pods) = (stored(&self.world).expect("the job"), self.world.pods());
        let is_active = |pod: &&Arc<Pod>| !has_ended(pod) && !is_terminating(pod);
        let active = pods.iter().filter(is_active).count();
        let status = &job.status;
        for pod in pods.iter().filter(|pod| is_tracked(names(), pod)) {
            let noted = status.uncounted_terminated_pods.clone().unwrap_or_default();
            let is_noted = [noted.succeeded, noted.failed].concat().contains(&pod.metadata.uid);
            let ends = has_ended(pod) || is_terminating(pod);
            // Its end counts at once, although its finalizer stays.
            assert!(!ends || is_noted || held == Some(&pod.metadata.name));
        }
        if is_finished(&job) {
            let is_held = |pod: &Arc<Pod>| is_tracked(names(), pod);
            let left = pods.iter().find(|pod| is_held(pod) && held != Some(&pod.metadata.name));
            return assert_eq!(left, None, "it is not let go");
        }
        assert_eq!(status.active, count(active), "{status:?}");
        let ready = pods.iter().filter(|pod| is_active(pod) && is_ready(pod)).count();
        assert_eq!(status.ready, Some(count(ready)), "{status:?}");
        if held.is_some() && !is_suspended(&job) {
            let noted = status.uncounted_terminated_pods.clone().unwrap_or_default();
            let left = 4 - status.succeeded - count(noted.succeeded.len());
            let wanted = left.min(job.spec.parallelism.expect("a number"));
            assert!(count(active) >= wanted, "{active} of {wanted}: {status:?}");
        }
    }

    /// The uid of the pod that a patch takes the finalizer from, if it is running and not being deleted.
    fn running(&self, write: &ApiWrite) -> Option<String> {
        let ApiWrite::Patch { kind: ObjectKind::Pod, key, .. } = write else { return None };
        let pod = self.world.get::<Pod>(ObjectKind::Pod, &key.name)?;
        (!has_ended(&pod) && !is_terminating(&pod)).then_some(pod.metadata.uid)
    }

    /// No pod is counted twice, and no number shrinks.
    fn check(&self, before: &JobStatus) {
        let status = stored(&self.world).expect("the job").status;
        let noted = status.uncounted_terminated_pods.clone().unwrap_or_default();
        let noted: Vec<&String> = noted.succeeded.iter().chain(&noted.failed).collect();
        let distinct: BTreeSet<&String> = noted.iter().copied().collect();
        assert_eq!(noted.len(), distinct.len(), "a pod is noted twice");
        assert!(status.succeeded >= before.succeeded && status.failed >= before.failed);
        let counted = usize::try_from(status.succeeded + status.failed).expect("a number");
        assert!(counted + noted.len() <= self.all.len(), "more are counted than there were");
    }

    /// With fresh caches a job that has a reason to fail has failed.
    fn settle_and_check(&mut self) {
        let has_fatal = self.has_fatal();
        self.settle();
        let job = stored(&self.world).expect("the job");
        if is_finished(&job) {
            let reason = job.status.conditions.last().map(|condition| &*condition.reason);
            assert!(!has_fatal || reason == Some("PodFailurePolicy"), "{:?}", job.status);
            return;
        }
        let limit = job.spec.backoff_limit.unwrap_or(6);
        assert!(!has_fatal && job.status.failed <= limit, "{:?}", job.status);
        assert!(count_restarts(&self.world) < limit, "{:?}", job.status);
        let deadline = job.spec.active_deadline_seconds.filter(|_| !is_suspended(&job));
        if let Some(seconds) = deadline {
            let start = job.status.start_time.and_then(Time::unix).expect("it has started");
            assert!(start + seconds > self.world.now, "{:?}", job.status);
        }
    }

    /// A pod that ends the job by its policy, unless it has ended.
    fn has_fatal(&self) -> bool {
        let job = stored(&self.world).expect("the job");
        let is_fatal = |pod: &Arc<Pod>| self.exits.get(&pod.metadata.uid) == Some(&FATAL);
        let by_policy = job.spec.pod_failure_policy.is_some();
        by_policy && !is_finished(&job) && self.world.pods().iter().any(is_fatal)
    }
}

/// One of the pods of which this holds.
fn pick(pods: &[Arc<Pod>], at: usize, is: impl Fn(&Pod) -> bool) -> Option<&Arc<Pod>> {
    let found: Vec<&Arc<Pod>> = pods.iter().filter(|pod| is(pod)).collect();
    found.get(at % found.len().max(1)).copied()
}

/// Whether containers of the pod are started again.
fn restarts(pod: &Pod) -> bool {
    pod.spec.restart_policy == "OnFailure"
}

/// How often containers of running pods were started again.
fn count_restarts(world: &World) -> i32 {
    let pods = world.pods();
    let running = pods.iter().filter(|pod| restarts(pod) && !has_ended(pod));
    running.flat_map(|pod| &pod.status.container_statuses).map(|status| status.restart_count).sum()
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]

    #[test]
    fn each_pod_is_counted_once(
        is_indexed in any::<bool>(),
        limit in prop_oneof![Just(1), Just(3), Just(100)],
        failures in prop_oneof![Just(Failures::Count), Just(Failures::ByPolicy), Just(Failures::Restart)],
        deadline in proptest::option::of(200..2000i64),
        refusal in refusal(),
        skew in prop_oneof![2 => Just(0), 1 => Just(86_400), 1 => Just(-86_400)],
        steps in proptest::collection::vec(step(), 1..80),
    ) {
        let mut job = if is_indexed { indexed(2, 4) } else { job(2, Some(4)) };
        job.spec.backoff_limit = Some(limit);
        job.spec.active_deadline_seconds = deadline;
        match failures {
            Failures::Count => {}
            Failures::ByPolicy => {
                let rules = [("Ignore", IGNORED), ("FailJob", FATAL)];
                let rules = rules.map(|(action, code)| on_exit_codes(action, "In", &[code]));
                job.spec.pod_failure_policy.get_or_insert_default().rules = rules.to_vec();
            }
            Failures::Restart => job.spec.template.spec.restart_policy = "OnFailure".into(),
        }
        let mut history = History::new(job, skew);
        for step in steps {
            history.take(step);
        }
        history.check_refusal(refusal);
        history.take(Step::Suspend(false));
        history.take(Step::Parallelism(2));
        finish(&mut history);
        check_end(&history, is_indexed)?;
    }
}

/// Lets all pods succeed, with every plan executed.
fn finish(history: &mut History) {
    for _ in 0..10 {
        history.world.now += 1000;
        history.settle_and_check();
        for pod in history.world.pods().iter().filter(|pod| !has_ended(pod)) {
            history.end(pod, if is_terminating(pod) { "Failed" } else { "Succeeded" }, 0);
        }
        history.note();
    }
    history.settle();
}

/// A job fails for a reason that there is.
fn check_reason(history: &History, job: &Job) -> Result<(), TestCaseError> {
    let failed = job.status.conditions.iter().find(|condition| condition.type_ == "Failed");
    let Some(failed) = failed else { return Ok(()) };
    let (spec, status) = (&job.spec, &job.status);
    match failed.reason.as_str() {
        "PodFailurePolicy" => prop_assert!(history.exits.values().any(|code| *code == FATAL)),
        "DeadlineExceeded" => {
            let start = status.start_time.and_then(Time::unix).expect("it has started");
            let ran = failed.last_transition_time.unix().expect("a time") - start;
            prop_assert!(ran >= spec.active_deadline_seconds.expect("a deadline"));
        }
        "BackoffLimitExceeded" => {
            let restarts = spec.template.spec.restart_policy == "OnFailure";
            prop_assert!(restarts || status.failed > spec.backoff_limit.unwrap_or(6));
        }
        other => prop_assert!(false, "{other}"),
    }
    Ok(())
}

fn check_end(history: &History, is_indexed: bool) -> Result<(), TestCaseError> {
    let job = stored(&history.world).expect("the job");
    prop_assert!(is_finished(&job), "{:?}", job.status);
    let pods = history.world.pods();
    prop_assert!(pods.iter().all(|pod| pod.metadata.finalizers.is_empty() && has_ended(pod)));
    let status = &job.status;
    let succeeded = history.all.values().filter(|phase| *phase == "Succeeded").count();
    let by_policy = job.spec.pod_failure_policy.is_some();
    let is_ignored = |uid: &String| by_policy && history.exits.get(uid) == Some(&IGNORED);
    let kept: Vec<&String> =
        history.all.keys().filter(|uid| !history.given_up.contains(*uid)).collect();
    let ignored = kept.iter().filter(|uid| is_ignored(uid)).count();
    let (succeeded, all, ignored) = (count(succeeded), count(kept.len()), count(ignored));
    let is_complete = status.conditions.iter().any(|c| c.type_ == "Complete");
    prop_assert_eq!(&status.uncounted_terminated_pods, &Some(Default::default()));
    prop_assert_eq!((status.active, status.ready), (0, Some(0)));
    if is_indexed {
        prop_assert!(status.succeeded <= succeeded);
        prop_assert!(!is_complete || status.completed_indexes == "0-3");
        prop_assert_eq!(
            status.succeeded,
            count(Intervals::parse(&status.completed_indexes, 4).len())
        );
    } else {
        // One that succeeds after the plan has decided to delete it counts as failed.
        prop_assert!(status.succeeded <= succeeded);
        let counted = status.succeeded + status.failed;
        // A job that fails counts what it believes to be active, also what it was about to delete.
        let most = if is_complete { all - ignored } else { count(history.all.len()) };
        prop_assert!((all - ignored..=most).contains(&counted), "{counted}, {all} less {ignored}");
        prop_assert!(!is_complete || status.succeeded >= 4);
    }
    prop_assert_eq!(planned(&history.world).writes, vec![]);
    check_reason(history, &job)
}
