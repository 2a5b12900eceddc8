//! Random histories of one pod in a small model of a runtime that executes the plans, and sometimes fails.
//!
//! The invariants of a pod's lifecycle are checked after every step; see [`World::look`].

#![allow(clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]

use std::collections::BTreeMap;
use std::time::Duration;

use agent_pod::backoff::{CRASH_DELAY_MAX, RetryStep};
use agent_pod::desired::{
    ConfigState, ContainerRole, DesiredContainer, DesiredPod, PodSource, Presence, PullPolicy,
    RestartPolicy,
};
use agent_pod::handler::Handler;
use agent_pod::lifecycle::plan;
use agent_pod::observed::Now;
use agent_pod::observed::{
    Exit, InstanceState, ObservedContainer, ObservedImage, ObservedPod, ObservedSandbox,
    ObservedVolumes,
};
use agent_pod::plan::{Action, Plan, PodStage, StopReason};
use agent_pod::probe::{DesiredProbe, ProbeKind, ProbeOrder, Probes};
use agent_pod::record::{Admission, Phase, PodRecord};
use proptest::prelude::*;

/// Something that happens to the pod.
#[derive(Clone, Debug)]
enum Event {
    /// The agent executes the n-th action of its plan successfully.
    Do(usize),
    /// The agent executes the n-th action of its plan, and it fails.
    Fail(usize),
    /// The n-th live container exits.
    Exit(usize, i32),
    /// The newest sandbox dies, with or without its containers.
    SandboxDies { with_containers: bool },
    /// Time passes.
    Pass(u64),
    /// The agent is killed and restarted: lookups are lost, the journal is kept.
    Restart,
    /// The machine reboots.
    Reboot,
    /// The pod is marked for deletion.
    Delete(u64),
    /// Its source drops the pod.
    Drop,
    /// The n-th container's image changes.
    Change(usize),
    /// The n-th container's configuration appears or disappears.
    Configure(usize, bool),
    /// The n-th running probe reaches a result.
    Verdict(usize, bool),
    /// A result arrives after its instance ended.
    StaleVerdict(ProbeKind, bool),
    /// A user adds an ephemeral container.
    Debug,
}

fn event() -> impl Strategy<Value = Event> {
    prop_oneof![
        30 => (0..8usize).prop_map(Event::Do),
        4 => (0..8usize).prop_map(Event::Fail),
        5 => (0..4usize, prop_oneof![Just(0), Just(1), Just(137)]).prop_map(|(n, c)| Event::Exit(n, c)),
        1 => any::<bool>().prop_map(|with_containers| Event::SandboxDies { with_containers }),
        5 => prop_oneof![0..3u64, 5..30u64, 100..1000u64].prop_map(Event::Pass),
        2 => Just(Event::Restart),
        1 => Just(Event::Reboot),
        1 => (0..40u64).prop_map(Event::Delete),
        1 => Just(Event::Drop),
        1 => (0..4usize).prop_map(Event::Change),
        1 => (0..4usize, any::<bool>()).prop_map(|(n, there)| Event::Configure(n, there)),
        8 => (0..4usize, prop_oneof![5 => Just(true), 1 => Just(false)])
            .prop_map(|(n, good)| Event::Verdict(n, good)),
        1 => (kind(), any::<bool>()).prop_map(|(kind, good)| Event::StaleVerdict(kind, good)),
        1 => Just(Event::Debug),
    ]
}

fn kind() -> impl Strategy<Value = ProbeKind> {
    prop_oneof![Just(ProbeKind::Startup), Just(ProbeKind::Readiness), Just(ProbeKind::Liveness)]
}

/// Probes and hooks of a container, and whether it is a sidecar if it is an init container.
#[derive(Clone, Copy, Debug)]
struct Extras {
    startup: bool,
    readiness: bool,
    liveness: bool,
    post_start: bool,
    pre_stop: bool,
    sidecar: bool,
}

fn extras() -> impl Strategy<Value = Extras> {
    (any::<[bool; 4]>(), any::<bool>(), any::<bool>()).prop_map(|(bits, post_start, sidecar)| {
        let [startup, readiness, liveness, pre_stop] = bits;
        Extras { startup, readiness, liveness, post_start, pre_stop, sidecar }
    })
}

fn handler() -> Handler {
    Handler::Exec(vec!["true".to_owned()])
}

fn container(name: String, image: String, pull: PullPolicy, extras: Extras) -> DesiredContainer {
    let probe = |wanted: bool| {
        wanted.then(|| DesiredProbe {
            handler: handler(),
            initial_delay: Duration::ZERO,
            period: Duration::from_secs(10),
            timeout: Duration::from_secs(1),
            successes: 1,
            failures: 3,
            grace: None,
        })
    };
    DesiredContainer {
        name,
        image,
        pull,
        hash: "0".to_owned(),
        config: ConfigState::Ready,
        role: ContainerRole::Main,
        probes: Probes {
            startup: probe(extras.startup),
            readiness: probe(extras.readiness),
            liveness: probe(extras.liveness),
        },
        post_start: extras.post_start.then(handler),
        pre_stop: extras.pre_stop.then(handler),
    }
}

fn desired() -> impl Strategy<Value = DesiredPod> {
    let policy = prop_oneof![
        Just(RestartPolicy::Always),
        Just(RestartPolicy::OnFailure),
        Just(RestartPolicy::Never)
    ];
    let pull = prop_oneof![
        Just(PullPolicy::Always),
        Just(PullPolicy::IfNotPresent),
        Just(PullPolicy::Never)
    ];
    let source = prop_oneof![Just(PodSource::Api), Just(PodSource::Static)];
    let deadline = prop_oneof![4 => Just(None), 1 => (1..500u64).prop_map(Some)];
    (policy, proptest::collection::vec((pull, extras()), 1..5), 0..4usize, source, deadline)
        .prop_map(|(restart_policy, pulls, init, source, deadline)| {
            let mut all: Vec<DesiredContainer> = pulls
                .iter()
                .enumerate()
                .map(|(n, (pull, extras))| {
                    container(format!("c{n}"), format!("image{}", n % 2), *pull, *extras)
                })
                .collect();
            let containers = all.split_off(init.min(all.len() - 1));
            for (container, (_, extras)) in all.iter_mut().zip(&pulls) {
                container.role =
                    if extras.sidecar { ContainerRole::Sidecar } else { ContainerRole::Init };
                if container.role == ContainerRole::Init {
                    container.probes = Probes::default();
                    (container.post_start, container.pre_stop) = (None, None);
                }
            }
            DesiredPod {
                namespace: "ns".to_owned(),
                name: "p".to_owned(),
                uid: "u".to_owned(),
                source,
                presence: Presence::Present,
                restart_policy,
                init: all,
                containers,
                ephemeral: Vec::new(),
                grace: Duration::from_secs(30),
                active_deadline: deadline.map(Duration::from_secs),
                host_network: false,
                host_ips: vec!["10.0.0.1".to_owned()],
                qos_class: "BestEffort".to_owned(),
                readiness_gates: Vec::new(),
                conditions: Vec::new(),
                disruption: None,
                dead_kept: 1,
                crash_delay_max: CRASH_DELAY_MAX,
            }
        })
}

struct World {
    desired: DesiredPod,
    observed: ObservedPod,
    record: PodRecord,
    now: Now,
    next_id: u32,
    /// Every (container, attempt) that was ever created.
    created: BTreeMap<(String, u32), u32>,
    phase: Phase,
    restarts: BTreeMap<String, i32>,
    ended: bool,
    forgotten: bool,
    /// Instances started by the agent, by id, and how often their `postStart` hook has run.
    hooks: BTreeMap<String, u32>,
    /// Probe results by instance.
    results: BTreeMap<(String, ProbeKind), bool>,
}

impl World {
    fn new(desired: DesiredPod) -> Self {
        Self {
            desired,
            observed: ObservedPod::default(),
            record: PodRecord::default(),
            now: Now { unix_seconds: 1_000_000, boot: Duration::from_secs(5_000) },
            next_id: 0,
            created: BTreeMap::new(),
            phase: Phase::Pending,
            restarts: BTreeMap::new(),
            ended: false,
            forgotten: false,
            hooks: BTreeMap::new(),
            results: BTreeMap::new(),
        }
    }

    /// Plans, and checks the invariants of the plan.
    fn look(&mut self) -> Plan {
        let result = plan(&self.desired, &self.observed, &self.record, self.now);
        let again = plan(&self.desired, &self.observed, &result.record, self.now);
        assert_eq!(result, again, "planning twice changes the plan");

        let phase = result.record.phase;
        assert_eq!(result.status.phase, phase.as_str());
        assert!(phase >= self.phase, "phase went back from {:?} to {phase:?}", self.phase);
        assert!(!self.phase.is_terminal() || phase == self.phase, "a terminal phase changed");
        self.phase = phase;

        let statuses =
            result.status.init_container_statuses.iter().chain(&result.status.container_statuses);
        for status in statuses {
            let before = self.restarts.insert(status.name.clone(), status.restart_count);
            assert!(before <= Some(status.restart_count), "{}: restarts went back", status.name);
            let states = [
                status.state.waiting.is_some(),
                status.state.running.is_some(),
                status.state.terminated.is_some(),
            ];
            let set = states.iter().filter(|s| **s).count();
            assert_eq!(set, 1, "{}: one state at a time", status.name);
        }

        self.ended |= result.record.ending.is_some();
        self.check_readiness(&result);
        for order in &result.probes {
            self.check_probe(order);
        }
        for action in &result.actions {
            self.check_action(action);
        }
        let keys: Vec<_> = result.actions.iter().collect();
        for (n, action) in keys.iter().enumerate() {
            assert!(!keys[..n].contains(action), "{action:?} twice");
        }
        self.record = result.record.clone();
        result
    }

    /// A container shown as ready has this very instance probed as ready.
    fn check_readiness(&self, plan: &Plan) {
        let statuses =
            plan.status.init_container_statuses.iter().chain(&plan.status.container_statuses);
        let shown: BTreeMap<&str, _> = statuses.map(|s| (s.name.as_str(), s)).collect();
        for container in self.desired.all_containers().filter(|c| c.role.serves()) {
            let Some(status) = shown.get(container.name.as_str()) else { continue };
            if !status.ready {
                continue;
            }
            let newest = self.observed.newest(&container.name).expect("a ready container is there");
            assert!(matches!(newest.state, InstanceState::Running { .. }), "{newest:?} is ready");
            let said = |kind| self.results.get(&(newest.id.clone(), kind)) == Some(&true);
            assert!(container.probes.readiness.is_none() || said(ProbeKind::Readiness));
            assert!(container.probes.startup.is_none() || said(ProbeKind::Startup));
            let hooked = container.post_start.is_some() && self.hooks.get(&newest.id) == Some(&0);
            assert!(!hooked, "ready before its first hook");
        }
        let ready = plan.status.conditions.iter().any(|c| c.type_ == "Ready" && c.status == "True");
        let all = self.desired.all_containers().filter(|c| c.role.serves());
        let mut all = all.map(|c| shown.get(c.name.as_str()).is_some_and(|s| s.ready));
        assert!(!ready || all.all(|ready| ready), "ready without all of its containers");
    }

    /// Only running instances are probed, the startup probe first; liveness is not probed while the pod terminates.
    fn check_probe(&self, order: &ProbeOrder) {
        let newest = self.observed.newest(&order.container).expect("what is asked is there");
        assert_eq!(newest.id, order.id);
        assert!(matches!(newest.state, InstanceState::Running { .. }));
        let container = self.desired.container(&order.container).expect("wanted");
        let passed = self.results.get(&(order.id.clone(), ProbeKind::Startup)) == Some(&true);
        match order.kind {
            ProbeKind::Startup => assert!(!passed),
            _ => assert!(passed || container.probes.startup.is_none()),
        }
        assert!(!self.ended || order.kind == ProbeKind::Readiness, "{order:?} of a pod that ends");
    }

    /// Sidecars are stopped one at a time, in reverse order, after all other containers.
    fn check_stop(&self, name: &str, why: StopReason) {
        assert!(!(self.ended && matches!(why, StopReason::Unhealthy(_))), "{name}: {why:?}");
        let place = self.desired.sidecars().position(|c| c.name == name);
        let Some(place) = place.filter(|_| why == StopReason::PodEnds) else { return };
        let later: Vec<&str> =
            self.desired.sidecars().skip(place + 1).map(|c| c.name.as_str()).collect();
        for live in self.observed.live() {
            let sidecar = self.desired.sidecars().any(|c| c.name == live.name);
            assert!(sidecar && !later.contains(&live.name.as_str()), "{name} before {}", live.name);
        }
    }

    fn check_action(&self, action: &Action) {
        let starts = matches!(
            action,
            Action::CreateSandbox { .. }
                | Action::CreateContainer { .. }
                | Action::StartContainer { .. }
                | Action::RunPostStart { .. }
                | Action::PullImage { .. }
                | Action::MountVolumes
        );
        assert!(!(starts && self.ended), "{action:?} after the end was decided");
        match action {
            Action::CreateContainer { container, attempt, sandbox_id, .. } => {
                let live = self.observed.live().any(|c| c.name == *container);
                assert!(!live, "{container} would run twice");
                let again = self.created.contains_key(&(container.clone(), *attempt));
                assert!(!again, "{container}/{attempt} created twice");
                let sandbox = self.observed.ready_sandbox().expect("a ready sandbox");
                assert_eq!(sandbox.id, *sandbox_id);
                assert_eq!(self.observed.volumes, ObservedVolumes::Mounted);
                self.check_init_order(container);
            }
            Action::StartContainer { container, .. } => {
                let live = self.observed.live().any(|c| c.name == *container);
                assert!(!live, "{container} would run twice");
                self.check_init_order(container);
            }
            Action::RunPostStart { id, .. } => {
                let newest = self.observed.containers.iter().find(|c| c.id == *id).expect("there");
                assert!(matches!(newest.state, InstanceState::Running { .. }));
                assert_eq!(self.hooks.get(id), Some(&0), "a first hook twice, or not ours");
            }
            Action::StopContainer { container, why, .. } => self.check_stop(container, *why),
            Action::CreateSandbox { attempt } => {
                assert!(self.observed.sandboxes.iter().all(|s| !s.ready && s.attempt < *attempt));
                assert!(self.observed.live().next().is_none());
            }
            Action::UnmountVolumes | Action::RemoveCgroup => {
                assert!(self.observed.live().next().is_none(), "{action:?} under a live container");
            }
            Action::ReportDeleted | Action::Forget => {
                assert!(self.observed.sandboxes.is_empty() && self.observed.containers.is_empty());
                assert_eq!(self.observed.volumes, ObservedVolumes::Absent);
                assert!(!self.observed.cgroup);
            }
            _ => {}
        }
    }

    /// No init container runs alongside another or a main container, and a sidecar starts before its successors.
    fn check_init_order(&self, container: &str) {
        let role = self.desired.container(container).expect("wanted").role;
        if matches!(role, ContainerRole::Init | ContainerRole::Main) {
            for other in self.desired.init.iter().filter(|c| c.role == ContainerRole::Init) {
                let live = self.observed.live().any(|c| c.name == other.name);
                assert!(!live || other.name == container, "{container} beside {}", other.name);
            }
        }
        if role == ContainerRole::Ephemeral {
            return;
        }
        let sandbox = self.observed.ready_sandbox().expect("a ready sandbox");
        for before in self.desired.init.iter().take_while(|c| c.name != container) {
            if before.role == ContainerRole::Sidecar {
                let of_sandbox =
                    |c: &&ObservedContainer| c.name == before.name && c.sandbox_id == sandbox.id;
                let started = self.observed.containers.iter().find(of_sandbox);
                assert!(started.is_some(), "{container} before sidecar {}", before.name);
            }
        }
    }

    #[allow(clippy::too_many_lines, reason = "one arm for each event")]
    fn happen(&mut self, event: &Event) {
        match event {
            Event::Do(n) => self.act(*n, true),
            Event::Fail(n) => self.act(*n, false),
            Event::Exit(n, code) => {
                let live: Vec<usize> = (0..self.observed.containers.len())
                    .filter(|i| self.observed.containers[*i].is_live())
                    .collect();
                if let Some(i) = live.get(*n) {
                    self.exit(*i, *code);
                }
            }
            Event::SandboxDies { with_containers } => self.lose_sandbox(*with_containers),
            Event::Pass(secs) => {
                self.now.boot += Duration::from_secs(*secs);
                self.now.unix_seconds += i64::try_from(*secs).expect("small");
            }
            Event::Restart => {
                self.observed.images.clear();
                if self.observed.volumes == ObservedVolumes::Mounted {
                    self.observed.volumes = ObservedVolumes::Unverified;
                }
            }
            Event::Reboot => {
                self.lose_sandbox(true);
                self.now.boot = Duration::from_secs(10);
                self.record = self.record.clone().after_reboot();
                self.observed.images.clear();
                self.observed.cgroup = false;
            }
            Event::Delete(secs) => {
                if self.desired.source == PodSource::Api
                    && self.desired.presence == Presence::Present
                {
                    self.desired.presence =
                        Presence::Deleting { grace: Duration::from_secs(*secs) };
                }
            }
            Event::Drop => self.desired = self.desired.clone().into_gone(),
            Event::Change(n) => {
                let init = self.desired.init.len();
                let mut all = self.desired.init.iter_mut().chain(&mut self.desired.containers);
                if let Some(container) = all.nth(n % (init + 1)) {
                    container.hash.push('1');
                }
            }
            Event::Configure(n, there) => {
                let config = if *there {
                    ConfigState::Ready
                } else {
                    ConfigState::Missing("no \"x\"".to_owned())
                };
                let mut all = self.desired.init.iter_mut().chain(&mut self.desired.containers);
                if let Some(container) = all.nth(*n) {
                    container.config = config;
                }
            }
            Event::Verdict(n, good) => {
                let orders = self.look().probes;
                if let Some(order) = orders.get(*n) {
                    self.judge(order, *good);
                }
            }
            Event::StaleVerdict(kind, good) => {
                let before = self.record.clone();
                // An instance that never started was not probed.
                let dead = self.observed.containers.iter().filter(|c| c.exit().is_some());
                let dead: Vec<ObservedContainer> = dead.cloned().collect();
                for old in dead {
                    let newest = self.observed.newest(&old.name).is_some_and(|c| c.id == old.id);
                    let told = self.record.record_probe_result(&old.name, &old.id, *kind, *good);
                    assert!(!told || newest, "a verdict about an older instance counts");
                    self.results.insert((old.id.clone(), *kind), *good);
                }
                // For the newest, dead instance it may count; only its health changes.
                assert_eq!(self.record.ending, before.ending);
            }
            Event::Debug => {
                let name = format!("debug{}", self.desired.ephemeral.len());
                if self.desired.ephemeral.len() < 2 {
                    let extras = Extras {
                        startup: false,
                        readiness: false,
                        liveness: false,
                        post_start: false,
                        pre_stop: false,
                        sidecar: false,
                    };
                    let image = "image0".to_owned();
                    let debug = container(name, image, PullPolicy::IfNotPresent, extras);
                    self.desired
                        .ephemeral
                        .push(DesiredContainer { role: ContainerRole::Ephemeral, ..debug });
                }
            }
        }
    }

    fn judge(&mut self, order: &ProbeOrder, good: bool) {
        let told = self.record.record_probe_result(&order.container, &order.id, order.kind, good);
        assert!(told, "{order:?} is not about the newest instance");
        self.results.insert((order.id.clone(), order.kind), good);
    }

    fn act(&mut self, n: usize, works: bool) {
        let actions = self.look().actions;
        if actions.is_empty() {
            return;
        }
        let action = actions[n % actions.len()].clone();
        let boot = self.now.boot;
        if works {
            self.do_it(&action)
        } else {
            self.record.record_failure(step(&action), "E", "no", boot)
        }
    }

    fn do_it(&mut self, action: &Action) {
        self.record.clear_failure(&step(action));
        match action.clone() {
            Action::Admit => self.record.admission = Some(Admission::Admitted),
            Action::MountVolumes => self.observed.volumes = ObservedVolumes::Mounted,
            Action::CreateSandbox { attempt } => {
                let (id, ips) = (self.id(), vec!["10.1.0.2".to_owned()]);
                self.observed.sandboxes.push(ObservedSandbox { id, attempt, ready: true, ips });
                self.observed.cgroup = true;
                self.record.record_new_sandbox();
            }
            Action::InspectImage { image } => {
                let state = if self.next_id.is_multiple_of(2) {
                    ObservedImage::Present { id: image.clone() }
                } else {
                    ObservedImage::Absent { at: self.now.boot }
                };
                self.observed.images.insert(image, state);
            }
            Action::PullImage { image, container } => {
                self.record.record_pull(&container, &image);
                self.observed.images.insert(image.clone(), ObservedImage::Present { id: image });
            }
            Action::CreateContainer { container, attempt, sandbox_id, image_id } => {
                let hash = self.desired.container(&container).expect("wanted").hash.clone();
                *self.created.entry((container.clone(), attempt)).or_default() += 1;
                self.observed.containers.push(ObservedContainer {
                    id: format!("i{}", self.next_id),
                    name: container,
                    attempt,
                    sandbox_id,
                    image: image_id.clone(),
                    image_id,
                    hash,
                    message_file: None,
                    state: InstanceState::Created,
                });
                self.next_id += 1;
            }
            Action::StartContainer { id, hook, .. } => {
                if hook {
                    self.hooks.insert(id.clone(), 0);
                }
                let started_at = self.now.unix_seconds * 1_000_000_000;
                self.set(&id, InstanceState::Running { started_at });
            }
            Action::RunPostStart { container, id } => {
                *self.hooks.entry(id.clone()).or_default() += 1;
                let failure = self.next_id.is_multiple_of(5).then_some("it failed");
                self.record.record_post_start(&container, &id, failure);
            }
            Action::StopContainer { id, .. } => {
                let exit = Exit { code: 143, ..Exit::default() };
                self.set(&id, InstanceState::Exited(exit));
            }
            Action::RemoveContainer { id, .. } => self.observed.containers.retain(|c| c.id != id),
            Action::StopSandbox { id, attempt } => {
                let sandboxes = self.observed.sandboxes.iter_mut();
                sandboxes.filter(|s| s.id == id).for_each(|s| s.ready = false);
                self.record.record_stopped_sandbox(attempt);
            }
            Action::RemoveSandbox { id } => {
                self.observed.sandboxes.retain(|s| s.id != id);
                self.observed.containers.retain(|c| c.sandbox_id != id);
            }
            Action::UnmountVolumes => self.observed.volumes = ObservedVolumes::Absent,
            Action::RemoveCgroup => self.observed.cgroup = false,
            Action::ReportDeleted => self.record.reported = true,
            Action::Forget => self.forgotten = true,
        }
    }

    fn id(&mut self) -> String {
        self.next_id += 1;
        format!("i{}", self.next_id)
    }

    fn set(&mut self, id: &str, state: InstanceState) {
        for container in self.observed.containers.iter_mut().filter(|c| c.id == id) {
            container.state = state.clone();
        }
    }

    fn exit(&mut self, index: usize, code: i32) {
        let container = &mut self.observed.containers[index];
        container.state = InstanceState::Exited(Exit { code, ..Exit::default() });
    }

    fn lose_sandbox(&mut self, with_containers: bool) {
        let Some(newest) = self.observed.newest_sandbox().map(|s| s.id.clone()) else { return };
        for sandbox in self.observed.sandboxes.iter_mut().filter(|s| s.id == newest) {
            sandbox.ready = false;
        }
        for container in &mut self.observed.containers {
            if with_containers && container.is_live() {
                container.state = InstanceState::Exited(Exit { code: 137, ..Exit::default() });
            }
        }
    }

    /// Lets the agent work without faults until it has nothing to do; advances time only when the plan requests it.
    fn settle(&mut self) -> Plan {
        for _ in 0..400 {
            let result = self.look();
            if self.forgotten {
                return result;
            }
            let unproven = result.probes.iter().find(|order| match order.kind {
                ProbeKind::Startup => true,
                ProbeKind::Readiness => order.result != Some(true),
                ProbeKind::Liveness => false,
            });
            if let Some(order) = unproven.filter(|_| result.actions.is_empty()) {
                self.judge(order, true);
                continue;
            }
            match (result.actions.first(), result.wake_at) {
                (Some(action), _) => self.do_it(&action.clone()),
                (None, Some(wake_at)) if wake_at > self.now.boot => self.now.boot = wake_at,
                (None, Some(_)) => panic!("asks to be woken in the past: {result:?}"),
                (None, None) => return result,
            }
        }
        panic!("does not settle: {:?}", self.look());
    }
}

fn step(action: &Action) -> RetryStep {
    match action {
        Action::MountVolumes => RetryStep::Volumes,
        Action::CreateSandbox { .. } => RetryStep::Sandbox,
        Action::PullImage { image, .. } | Action::InspectImage { image } => {
            RetryStep::Image(image.clone())
        }
        Action::CreateContainer { container, .. } | Action::StartContainer { container, .. } => {
            RetryStep::Container(container.clone())
        }
        Action::ReportDeleted => RetryStep::Report,
        _ => RetryStep::Cleanup,
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, failure_persistence: None, max_shrink_iters: 4_000, ..ProptestConfig::default() })]

    #[test]
    fn invariants_hold_in_every_history(desired in desired(), events in proptest::collection::vec(event(), 0..120)) {
        let mut world = World::new(desired);
        for event in &events {
            world.look();
            if world.forgotten {
                break;
            }
            world.happen(event);
        }
    }

    #[test]
    fn a_deleted_pod_leaves_nothing(desired in desired(), events in proptest::collection::vec(event(), 0..80)) {
        let mut world = World::new(desired);
        for event in &events {
            world.look();
            world.happen(event);
        }
        world.desired.presence = match world.desired.source {
            PodSource::Api => Presence::Deleting { grace: Duration::from_secs(1) },
            PodSource::Static => Presence::Gone { grace: Duration::from_secs(1) },
        };
        let last = world.settle();
        prop_assert_eq!(last.stage, PodStage::Gone);
        prop_assert!(world.record.reported || world.forgotten);
        prop_assert!(world.observed.sandboxes.is_empty() && world.observed.containers.is_empty());
    }

    #[test]
    fn a_wanted_pod_runs_once_trouble_ends(desired in desired(), events in proptest::collection::vec(event(), 0..80)) {
        let mut world = World::new(DesiredPod {
            restart_policy: RestartPolicy::Always,
            active_deadline: None,
            ..desired
        });
        for event in &events {
            world.look();
            if !matches!(event, Event::Delete(_) | Event::Drop) {
                world.happen(event);
            }
        }
        let (mut init, mut main) = (world.desired.init.clone(), world.desired.containers.clone());
        init.iter_mut().chain(&mut main).for_each(|c| c.config = ConfigState::Ready);
        (world.desired.init, world.desired.containers) = (init, main);
        let succeed = |world: &mut World| {
            let init: Vec<String> = world.desired.init.iter().map(|c| c.name.clone()).collect();
            for index in 0..world.observed.containers.len() {
                let container = &world.observed.containers[index];
                if container.is_live() && init.contains(&container.name) {
                    world.exit(index, 0);
                }
            }
        };
        // Each init container needs a round of its own, and a changed definition one more.
        for _ in 0..2 * world.desired.init.len() + 2 {
            for n in 0..2 {
                let image = format!("image{n}");
                world.observed.images.insert(image.clone(), ObservedImage::Present { id: image });
            }
            world.settle();
            succeed(&mut world);
        }
        let last = world.settle();
        prop_assert_eq!(last.stage, PodStage::Running);
        for container in &last.status.container_statuses {
            prop_assert!(container.state.running.is_some(), "{:?}", container);
        }
        let untrue = last.status.conditions.iter().find(|c| c.status != "True");
        prop_assert_eq!(untrue, None);
    }

    #[test]
    fn a_restarted_agent_with_its_journal_has_nothing_to_do(desired in desired(), events in proptest::collection::vec(event(), 0..60)) {
        let mut world = World::new(desired);
        for event in &events {
            world.look();
            if matches!(event, Event::Configure(_, false)) || world.forgotten {
                continue;
            }
            world.happen(event);
        }
        let all = world.desired.init.iter_mut().chain(&mut world.desired.containers);
        all.for_each(|c| c.config = ConfigState::Ready);
        // All images are present: a pod that waits for one looks it up forever, by design.
        for n in 0..2 {
            let image = format!("image{n}");
            world.observed.images.insert(image.clone(), ObservedImage::Present { id: image });
        }
        let before = world.settle();
        // A new process some time later: the record in its stored form, everything observed again.
        let stored = serde_json::to_string(&world.record).expect("encode");
        let record: PodRecord = serde_json::from_str(&stored).expect("decode");
        prop_assert_eq!(&record, &world.record);
        let later = Now { unix_seconds: world.now.unix_seconds + 7, boot: world.now.boot + Duration::from_secs(7) };
        let mut observed = world.observed.clone();
        observed.images.clear();
        let after = plan(&world.desired, &observed, &record, later);
        // A lookup only reads; every other action would change something.
        let mut changes = after.actions.iter().filter(|a| !matches!(a, Action::InspectImage { .. }));
        prop_assert!(changes.next().is_none() || before.stage == PodStage::Gone, "{:?}", after.actions);
        prop_assert_eq!(after.status, before.status);
        prop_assert_eq!(after.record, record);
    }
}
