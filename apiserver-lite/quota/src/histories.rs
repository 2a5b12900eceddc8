//! Random histories of a quota: clients whose writes are charged in one commit, objects that go without a word, and recounts of the controller, which read,
//! list and write at different times and are given up at any of them. What is used is never missing in the status, and never more than is allowed.

use proptest::prelude::*;
use proto_api::core::v1::{Container, Pod, ResourceQuota, ResourceQuotaStatus};
use proto_api::names::{Names, Profile};
use proto_api::{Quantity, Time};

use crate::{Counted, CountedResource, QuotaUsage, ResourceList, charge, with_growth};

const PODS: &str = "pods";
const CPU: &str = "requests.cpu";

#[derive(Clone, Copy, Debug)]
enum Step {
    /// A client creates a pod with this request in millicores, which may be refused.
    Create(i64),
    /// The nth pod is deleted, and its object gone.
    Delete(usize),
    /// The nth pod ends, and counts no longer.
    End(usize),
    /// A user allows other numbers of pods and millicores.
    Allow(i64, i64),
    /// The next step of a recount: it reads the quota, lists the pods, and tries to write.
    Recount,
    /// The controller is lost, and begins again.
    Crash,
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        6 => (0..400i64).prop_map(Step::Create),
        3 => (0..8usize).prop_map(Step::Delete),
        2 => (0..8usize).prop_map(Step::End),
        1 => (0..6i64, 0..1000i64).prop_map(|(pods, cpu)| Step::Allow(pods, cpu)),
        8 => Just(Step::Recount),
        1 => Just(Step::Crash),
    ]
}

/// Where a recount stands.
#[derive(Default)]
enum Recount {
    #[default]
    Idle,
    /// It has read the quota.
    Read(ResourceQuota),
    /// It has counted; `latest` is the quota as it was read last.
    Counted { latest: ResourceQuota, before: ResourceList, counted: ResourceQuotaStatus },
}

struct History {
    pods: Vec<Pod>,
    quota: ResourceQuota,
    version: u64,
    recount: Recount,
}

fn names() -> &'static Names {
    Names::new(Profile::Kubernetes)
}

fn now() -> Time {
    Time::from_unix(1000)
}

fn hard(pods: i64, cpu: i64) -> ResourceList {
    [(PODS.to_owned(), Quantity::from_units(pods)), (CPU.to_owned(), Quantity::from_milli(cpu))]
        .into()
}

impl History {
    fn new() -> Self {
        let mut quota = ResourceQuota::default();
        quota.metadata.name = "q".into();
        quota.spec.hard = hard(4, 800);
        let mut history = Self { pods: Vec::new(), quota, version: 0, recount: Recount::Idle };
        history.settle();
        history
    }

    fn apply_step(&mut self, step: Step) {
        let nth = |at: usize| (!self.pods.is_empty()).then(|| at % self.pods.len());
        match step {
            Step::Create(cpu) => self.create(cpu),
            Step::Delete(at) => drop(nth(at).map(|nth| self.pods.remove(nth))),
            Step::End(at) => {
                if let Some(nth) = nth(at) {
                    self.pods[nth].status.phase = "Succeeded".into();
                }
            }
            Step::Allow(pods, cpu) => {
                self.quota.spec.hard = hard(pods, cpu);
                self.stamp();
            }
            Step::Recount => self.recount(),
            Step::Crash => self.recount = Recount::Idle,
        }
        self.check();
    }

    fn stamp(&mut self) {
        self.version += 1;
        self.quota.metadata.resource_version = self.version.to_string();
    }

    /// A pod and its charge are one commit.
    fn create(&mut self, cpu: i64) {
        let mut pod = Pod::default();
        let mut container = Container::default();
        container.resources.requests.insert("cpu".into(), Quantity::from_milli(cpu));
        pod.spec.containers.push(container);
        let Ok(charges) = charge(&[&self.quota], Counted::Pod(&pod), None, names(), now()) else {
            return;
        };
        for charge in charges {
            self.quota.status.used = charge.used;
            self.stamp();
        }
        self.pods.push(pod);
        let used = self.count().used;
        // What is allowed may have become less than what is used.
        for name in if cpu > 0 { &[PODS, CPU][..] } else { &[PODS] } {
            let (used, allowed) = (used[*name], self.quota.status.hard[*name]);
            assert!(used <= allowed, "{name}: {used} are used of {allowed}");
        }
    }

    fn count(&self) -> ResourceQuotaStatus {
        let mut usage = QuotaUsage::new(&self.quota.spec, names(), now());
        usage.add_pods(&self.pods);
        let pods = CountedResource::new("", PODS);
        usage.status(|name| pods.is_counted_by(name, names()))
    }

    fn recount(&mut self) {
        self.recount = match std::mem::take(&mut self.recount) {
            Recount::Idle => Recount::Read(self.quota.clone()),
            Recount::Read(latest) => {
                let mut usage = QuotaUsage::new(&latest.spec, names(), now());
                usage.add_pods(&self.pods);
                let pods = CountedResource::new("", PODS);
                let counted = usage.status(|name| pods.is_counted_by(name, names()));
                Recount::Counted { before: latest.status.used.clone(), latest, counted }
            }
            Recount::Counted { latest, before, counted } => self.write(latest, before, counted),
        };
    }

    /// Writes the status if the quota is as it was read last, and reads it again otherwise.
    fn write(
        &mut self,
        latest: ResourceQuota,
        before: ResourceList,
        counted: ResourceQuotaStatus,
    ) -> Recount {
        if latest.metadata.resource_version == self.quota.metadata.resource_version {
            let status = with_growth(&counted, &before, &latest.status.used);
            if status != self.quota.status {
                self.quota.status = status;
                self.stamp();
            }
            return Recount::Idle;
        }
        match self.quota.spec == latest.spec {
            true => Recount::Counted { latest: self.quota.clone(), before, counted },
            false => Recount::Idle,
        }
    }

    fn settle(&mut self) {
        self.recount = Recount::Idle;
        (0..3).for_each(|_| self.recount());
    }

    fn check(&self) {
        let real = self.count().used;
        for (name, used) in &self.quota.status.used {
            assert!(*used >= real[name], "{name}: {} are used, {used} are said to be", real[name]);
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 256, ..ProptestConfig::default() })]

    #[test]
    fn what_is_used_is_never_missing_and_never_more_than_allowed(
        steps in proptest::collection::vec(step(), 1..80),
    ) {
        let mut history = History::new();
        for step in steps {
            history.apply_step(step);
        }
        history.settle();
        let counted = history.count();
        prop_assert_eq!(&history.quota.status, &counted, "a recount is exact");
    }
}
