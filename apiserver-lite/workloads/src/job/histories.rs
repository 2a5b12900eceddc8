//! Random histories of a job: pods that succeed, fail and are deleted, caches of pods and jobs that lag behind each other, and a controller that is lost
//! between two writes. Each pod is counted exactly once.

use std::collections::{BTreeMap, BTreeSet};

use proptest::prelude::*;

use super::tests::{end, indexed, job, names, planned, stored, world};
use super::*;
use crate::simulation::World;

#[derive(Clone, Copy, Debug)]
enum Step {
    PodsCatchUp,
    JobCatchesUp,
    /// A plan, of which this many writes are executed; then the controller restarts with fresh caches.
    Crash(usize),
    Reconcile,
    Run(usize),
    Succeed(usize),
    Fail(usize),
    DeletePod(usize),
    Parallelism(i32),
    Suspend(bool),
    Later(u16),
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        3 => Just(Step::PodsCatchUp),
        3 => Just(Step::JobCatchesUp),
        4 => (0..5usize).prop_map(Step::Crash),
        8 => Just(Step::Reconcile),
        3 => (0..8usize).prop_map(Step::Run),
        4 => (0..8usize).prop_map(Step::Succeed),
        2 => (0..8usize).prop_map(Step::Fail),
        2 => (0..8usize).prop_map(Step::DeletePod),
        1 => (0..4i32).prop_map(Step::Parallelism),
        1 => any::<bool>().prop_map(Step::Suspend),
        3 => (0..400u16).prop_map(Step::Later),
    ]
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
    uncounted: UncountedJobs,
}

impl History {
    fn new(job: Job) -> Self {
        let world = world(job);
        let (pods, job) = (world.clone(), world.clone());
        let (all, given_up) = (BTreeMap::new(), BTreeSet::new());
        Self { world, pods, job, own: 0, all, given_up, uncounted: UncountedJobs::default() }
    }

    fn take(&mut self, step: Step) {
        let pods = self.world.pods();
        let name = |at: usize| pods.get(at % pods.len().max(1)).map(|pod| &pod.metadata.name);
        match step {
            Step::PodsCatchUp => self.pods = self.world.clone(),
            Step::JobCatchesUp => self.job = self.world.clone(),
            Step::Reconcile => self.reconcile(usize::MAX),
            Step::Crash(limit) => {
                self.reconcile(limit);
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
                let phase = if succeeds { "Succeeded" } else { "Failed" };
                end(&mut self.world, &pod.metadata.name, phase);
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

    fn note(&mut self) {
        for pod in self.world.pods() {
            self.all.insert(pod.metadata.uid.clone(), pod.status.phase.clone());
        }
    }

    fn reconcile(&mut self, limit: usize) {
        for cache in [&mut self.pods, &mut self.job] {
            if cache.version < self.own {
                *cache = self.world.clone();
            }
        }
        let job = stored(&self.job).expect("the job");
        let seen = ObservedJob { job: &job, pods: &self.pods.pods() };
        let plan = plan(names(), &seen, &mut self.uncounted, self.world.time());
        let before = stored(&self.world).expect("the job").status;
        for write in plan.writes.iter().take(limit) {
            let running = self.running(write);
            let done = self.world.execute(write);
            if done.is_ok() {
                self.given_up.extend(running);
            }
            self.note();
            self.check(&before);
            if done.is_err() {
                break;
            }
        }
        self.own = self.world.version;
    }

    /// Plans and executes with fresh caches until nothing is planned.
    fn settle(&mut self) {
        for _ in 0..50 {
            (self.pods, self.job) = (self.world.clone(), self.world.clone());
            let before = self.world.version;
            self.reconcile(usize::MAX);
            if self.world.version == before {
                return;
            }
        }
        panic!("the plans do not end: {:?}", planned(&self.world));
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
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]

    #[test]
    fn each_pod_is_counted_once(
        is_indexed in any::<bool>(),
        limit in prop_oneof![Just(1), Just(3), Just(100)],
        steps in proptest::collection::vec(step(), 1..80),
    ) {
        let mut job = if is_indexed { indexed(2, 4) } else { job(2, Some(4)) };
        job.spec.backoff_limit = Some(limit);
        let mut history = History::new(job);
        for step in steps {
            history.take(step);
        }
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
        history.settle();
        for pod in history.world.pods().iter().filter(|pod| !has_ended(pod)) {
            let phase = if is_terminating(pod) { "Failed" } else { "Succeeded" };
            end(&mut history.world, &pod.metadata.name, phase);
        }
        history.note();
    }
    history.settle();
}

fn check_end(history: &History, is_indexed: bool) -> Result<(), TestCaseError> {
    let job = stored(&history.world).expect("the job");
    prop_assert!(is_finished(&job), "{:?}", job.status);
    let pods = history.world.pods();
    prop_assert!(pods.iter().all(|pod| pod.metadata.finalizers.is_empty() && has_ended(pod)));
    let status = &job.status;
    let succeeded = history.all.values().filter(|phase| *phase == "Succeeded").count();
    let all = history.all.len() - history.given_up.len();
    let (succeeded, all) = (count(succeeded), count(all));
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
        prop_assert_eq!(status.succeeded + status.failed, all);
        prop_assert!(!is_complete || status.succeeded >= 4);
    }
    prop_assert_eq!(planned(&history.world).writes, vec![]);
    Ok(())
}
