//! A pod's task on virtual time, in a world that obeys the runtime's rules and misbehaves: calls take their time, fail before or
//! after they worked, or are never answered since the agent dies in the middle of one; events come late or never; what the
//! journal was given may not be on disk yet. Everything follows from a seed: a failing one is replayed by
//! `ORCH_SEED=<seed> cargo test -p orchlet simulation -- --nocapture`; `ORCH_SEEDS=<n>` runs more of them.
//!
//! What must hold is checked where it could be broken; see [`Judge`].

use std::collections::BTreeSet;
use std::sync::atomic::AtomicBool;
use std::sync::{Mutex, MutexGuard};
use std::time::Duration;

use agent_pod::events::PodEvent;
use agent_pod::memory::Phase;
use agent_pod::seen::{ContainerSeen, SandboxSeen};
use agent_pod::spec::{ContainerConfig, ContainerResources, SandboxConfig};
use agent_runtime::Runtime;
use agent_runtime::fake::FakeRuntime;
use agent_runtime::runtime::{
    Answer, ContainerUsage, ExecOutput, FilesystemUsage, Image, Refusal, RefusalKind,
    RegistryLogin, RuntimeError, RuntimeHealth, RuntimeVersion, StreamRequest,
};
use futures_util::FutureExt as _;
use futures_util::future::BoxFuture;
use proto_api::Time;
use proto_api::core::v1::{
    EphemeralContainer, ExecAction, Lifecycle, LifecycleHandler, PodStatus, Probe,
};
use tokio::task::JoinHandle;
use tokio::time::sleep;

use super::super::bench::{Outside, Place, parts};
use super::super::seams::{ReportError, Reported, Reports};
use super::*;
use crate::journal::simulated::Disk;

/// Schedules of an ordinary run.
const SEEDS: u64 = 60;
/// Long enough in virtual time for every back-off to end.
const EVER: Duration = Duration::from_secs(4 * 3600);

const UID: &str = "u";

/// A generator of numbers from a seed (SplitMix64).
struct Chance(u64);

impl Chance {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    fn below(&mut self, n: u64) -> u64 {
        self.next() % n
    }

    fn one_in(&mut self, n: u64) -> bool {
        self.below(n) == 0
    }

    /// Mostly short, sometimes long.
    fn pause(&mut self) -> Duration {
        match self.below(20) {
            0..12 => Duration::from_millis(self.below(20)),
            12..19 => Duration::from_millis(self.below(500)),
            _ => Duration::from_secs(self.below(15)),
        }
    }
}

/// What is known of an instance beyond what the runtime tells.
#[derive(Default)]
struct Instance {
    /// Its probes and hooks fail while it is sick.
    sick: bool,
    /// Whether it has ever been given a reason to be stopped.
    may_be_stopped: bool,
    /// Probes that it has answered well.
    answered: BTreeSet<String>,
    /// Whether its first hook has been run to its end.
    hooked: bool,
}

/// What happened, and what must hold of it.
struct Judge {
    chance: Chance,
    trace: Vec<String>,
    instances: BTreeMap<String, Instance>,
    /// Names by id.
    names: BTreeMap<String, String>,
    /// Whether faults happen at all.
    troubled: bool,
    /// The deadline of the pod has been reached, or it was deleted: it may be stopped.
    ends: bool,
    /// When what runs at the end is killed, as far as that is decided.
    deadline: Duration,
    /// The end is on disk: nothing may be begun any more.
    end_is_durable: bool,
    deleted: bool,
    shown: Option<PodStatus>,
    pod: Pod,
    /// Crash when this many calls have begun or been answered, and how many there were.
    crash_at: Option<u64>,
    points: u64,
    failure: Option<String>,
    /// When the history began, since boot.
    began: Duration,
}

impl Judge {
    fn note(&mut self, line: String) {
        let since = crate::clock::boot().saturating_sub(self.began);
        self.trace.push(format!("{:>9} ms {line}", since.as_millis()));
    }

    /// A rule is broken. Operations of a pod are tasks of their own: what one finds is kept for the history to fail by.
    fn broken(&mut self, what: &str) -> ! {
        if self.failure.is_none() {
            let lines = number("ORCH_LINES").and_then(|n| usize::try_from(n).ok()).unwrap_or(60);
            let tail = self.trace.len().saturating_sub(lines);
            self.trace[tail..].iter().for_each(|line| println!("{line}"));
            println!("{what}");
            self.failure = Some(what.to_owned());
        }
        panic!("{what}");
    }

    fn probe_of(&self, container: &str, kind: &str) -> bool {
        let spec = &self.pod.spec;
        let all = spec.init_containers.iter().chain(&spec.containers);
        all.filter(|c| c.name == container).any(|c| match kind {
            "startup" => c.startup_probe.is_some(),
            "readiness" => c.readiness_probe.is_some(),
            _ => c.lifecycle.as_ref().is_some_and(|l| l.post_start.is_some()),
        })
    }

    /// A status is written: phases and restarts never go back, what is ready has said so.
    fn judge_status(&mut self, status: &PodStatus) {
        let before = self.shown.clone().unwrap_or_default();
        let (old, new) = (Phase::parse(&before.phase), Phase::parse(&status.phase));
        if new < old || (old.is_terminal() && new != old) {
            self.broken(&format!("the phase went from {old:?} to {new:?}"));
        }
        let all = |s: &PodStatus| -> Vec<proto_api::core::v1::ContainerStatus> {
            s.init_container_statuses.iter().chain(&s.container_statuses).cloned().collect()
        };
        for now in all(status) {
            let known = all(&before).into_iter().find(|c| c.name == now.name);
            let (was, is) = (known.as_ref().map_or(0, |c| c.restart_count), now.restart_count);
            if is < was {
                self.broken(&format!("restarts of {} went from {was} to {is}", now.name));
            }
            if now.state.running.is_none() {
                continue;
            }
            let id = now.container_id.trim_start_matches("containerd://").to_owned();
            let known = self.instances.get(&id);
            let answered = |kind: &str| known.is_some_and(|i| i.answered.contains(kind));
            for kind in ["startup", "readiness"] {
                if now.ready && self.probe_of(&now.name, kind) && !answered(kind) {
                    self.broken(&format!("{id} is ready and has never answered {kind}"));
                }
            }
            if self.probe_of(&now.name, "hook") && !known.is_some_and(|i| i.hooked) {
                self.broken(&format!("{id} is shown as running before its first hook was run"));
            }
        }
        self.note(format!("status {} {}", status.phase, status.reason));
        self.shown = Some(status.clone());
    }
}

/// The runtime in memory, with delays and faults around each call.
struct Troubled {
    inner: FakeRuntime,
    judge: Arc<Mutex<Judge>>,
    crash: Arc<Notify>,
}

use tokio::sync::Notify;

fn lock(judge: &Mutex<Judge>) -> MutexGuard<'_, Judge> {
    judge.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
}

/// What becomes of a call.
struct Fate {
    before: Duration,
    after: Duration,
    fails: bool,
    answer_lost: bool,
}

impl Troubled {
    fn fate(&self, call: &str) -> Fate {
        let mut judge = lock(&self.judge);
        let troubled = judge.troubled;
        let reads = matches!(call, "container" | "pod" | "list" | "image");
        let chance = &mut judge.chance;
        Fate {
            before: chance.pause(),
            after: chance.pause(),
            fails: troubled && chance.one_in(if reads { 40 } else { 15 }),
            answer_lost: troubled && chance.one_in(25),
        }
    }

    /// One of the moments in which the agent may die.
    async fn moment(&self) {
        let dies = {
            let mut judge = lock(&self.judge);
            judge.points += 1;
            judge.crash_at == Some(judge.points)
        };
        if dies {
            self.crash.notify_one();
            std::future::pending::<()>().await;
        }
    }

    fn refuse<T>(call: &'static str) -> Result<T, RuntimeError> {
        let source = Refusal { kind: RefusalKind::Other, message: "trouble".into() };
        Err(RuntimeError::Refused { call, object: "sim".into(), source })
    }

    async fn through<'a, T>(
        &'a self,
        call: &'static str,
        object: String,
        work: impl FnOnce() -> Answer<'a, T> + Send + 'a,
    ) -> Result<T, RuntimeError> {
        let fate = self.fate(call);
        sleep(fate.before).await;
        self.moment().await;
        if fate.fails {
            lock(&self.judge).note(format!("{call} {object} fails"));
            return Self::refuse(call);
        }
        let answer = work().await;
        let worked = if answer.is_ok() { "worked" } else { "was refused" };
        lock(&self.judge).note(format!("{call} {object} {worked}"));
        self.judge_runtime();
        sleep(fate.after).await;
        self.moment().await;
        if fate.answer_lost { Self::refuse(call) } else { answer }
    }

    /// Never two running instances of one container.
    fn judge_runtime(&self) {
        let pod = self.inner.pod(UID).now_or_never().expect("at once").expect("pod");
        let mut running = BTreeSet::new();
        for container in pod.containers.iter().filter(|c| c.is_live()) {
            if !running.insert(container.name.clone()) {
                lock(&self.judge).broken(&format!("{} runs twice", container.name));
            }
        }
    }

    fn running(&self) -> Vec<ContainerSeen> {
        let pod = self.inner.pod(UID).now_or_never().expect("at once").expect("pod");
        pod.containers.into_iter().filter(ContainerSeen::is_live).collect()
    }

    /// Something of the pod is begun.
    fn judge_begin(&self, what: &str) {
        let mut judge = lock(&self.judge);
        if judge.end_is_durable {
            judge.broken(&format!("{what} after the end was decided for good"));
        }
    }

    /// A main container starts: every sidecar has been started in this sandbox, no init container runs.
    fn judge_start(&self, id: &str) {
        self.judge_begin(&format!("start of {id}"));
        let mut judge = lock(&self.judge);
        let name = judge.names.get(id).cloned().unwrap_or_default();
        if name.starts_with("main") {
            for running in self.running() {
                if running.name.starts_with("init") {
                    judge.broken(&format!("{name} starts beside {}", running.name));
                }
            }
        }
    }

    /// A stop has a reason, and sidecars are stopped last.
    fn judge_stop(&self, id: &str) {
        let mut judge = lock(&self.judge);
        let live = self.running();
        if !live.iter().any(|c| c.id == id) {
            return;
        }
        let pod = self.inner.pod(UID).now_or_never().expect("at once").expect("pod");
        let of = pod.containers.iter().find(|c| c.id == id).map(|c| c.sandbox_id.clone());
        let lost = !pod.sandboxes.iter().any(|s| s.ready && Some(&s.id) == of.as_ref());
        let allowed = lost || judge.instances.get(id).is_some_and(|i| i.may_be_stopped);
        if !judge.ends && !allowed {
            judge.broken(&format!("{id} is stopped for nothing"));
        }
        let name = judge.names.get(id).cloned().unwrap_or_default();
        // What the grace period was not enough for is not waited for.
        let in_time = crate::clock::boot() < judge.deadline;
        if judge.ends && !allowed && in_time && name.starts_with("side") {
            let others = live.iter().filter(|c| !c.name.starts_with("side"));
            if let Some(other) = others.into_iter().next() {
                judge.broken(&format!("{name} is stopped before {}", other.name));
            }
        }
    }

    fn ask(&self, id: &str, command: &[String]) -> ExecOutput {
        let word = command.first().cloned().unwrap_or_default();
        let mut judge = lock(&self.judge);
        let flaky = judge.troubled && judge.chance.one_in(30);
        let instance = judge.instances.entry(id.to_owned()).or_default();
        let bad = instance.sick || flaky;
        if bad && word != "readiness" && word != "pre" {
            instance.may_be_stopped = true;
        }
        if !bad {
            instance.answered.insert(word.clone());
        }
        if word == "post" {
            instance.hooked = !bad;
        }
        ExecOutput { code: i32::from(bad), ..ExecOutput::default() }
    }
}

macro_rules! through {
    ($($name:ident($($arg:ident: $type:ty),*) -> $out:ty;)*) => {
        $(fn $name<'a>(&'a self, $($arg: $type),*) -> Answer<'a, $out> {
            let object = String::new() $(+ &format!("{:?}", $arg).chars().take(40).collect::<String>())*;
            self.through(stringify!($name), object, move || self.inner.$name($($arg),*))
                .boxed()
        })*
    };
}

impl Runtime for Troubled {
    through! {
        version() -> RuntimeVersion;
        health() -> RuntimeHealth;
        list() -> Vec<PodOnNode>;
        pod(uid: &'a str) -> PodOnNode;
        stop_sandbox(id: &'a str) -> ();
        remove_sandbox(id: &'a str) -> ();
        remove_container(id: &'a str) -> ();
        container(id: &'a str) -> Option<ContainerSeen>;
        update_resources(id: &'a str, resources: &'a ContainerResources) -> ();
        reopen_log(id: &'a str) -> ();
        checkpoint(id: &'a str, archive: &'a str, timeout: Duration) -> ();
        stream(request: &'a StreamRequest) -> String;
        image(name: &'a str) -> Option<Image>;
        images() -> Vec<Image>;
        pull_image(name: &'a str, login: Option<&'a RegistryLogin>) -> String;
        remove_image(id: &'a str) -> ();
        image_filesystems() -> Vec<FilesystemUsage>;
        usage() -> Vec<ContainerUsage>;
    }

    fn run_sandbox<'a>(&'a self, config: &'a SandboxConfig) -> Answer<'a, SandboxSeen> {
        self.judge_begin("a sandbox");
        let object = config.attempt.to_string();
        self.through("run_sandbox", object, || self.inner.run_sandbox(config)).boxed()
    }

    fn create_container<'a>(
        &'a self,
        sandbox_id: &'a str,
        config: &'a ContainerConfig,
        sandbox: &'a SandboxConfig,
    ) -> Answer<'a, String> {
        self.judge_begin(&config.name);
        let object = format!("{}/{}", config.name, config.attempt);
        self.through("create_container", object, move || {
            let made = self.inner.create_container(sandbox_id, config, sandbox);
            async move {
                let made = made.await;
                if let Ok(id) = &made {
                    lock(&self.judge).names.insert(id.clone(), config.name.clone());
                }
                made
            }
            .boxed()
        })
        .boxed()
    }

    fn start_container<'a>(&'a self, id: &'a str) -> Answer<'a, ()> {
        self.judge_start(id);
        let object = id.to_owned();
        self.through("start_container", object, || self.inner.start_container(id)).boxed()
    }

    fn stop_container<'a>(&'a self, id: &'a str, grace: Duration) -> Answer<'a, ()> {
        self.judge_stop(id);
        async move {
            // Some end when they are told to, some only when they are killed.
            let takes = lock(&self.judge).chance.pause().min(grace);
            sleep(takes).await;
            self.through("stop_container", id.to_owned(), move || {
                self.inner.stop_container(id, grace)
            })
            .await
        }
        .boxed()
    }

    fn exec<'a>(
        &'a self,
        id: &'a str,
        command: &'a [String],
        timeout: Duration,
    ) -> Answer<'a, ExecOutput> {
        let object = format!("{id} {}", command.join(" "));
        async move {
            let ran = self
                .through("exec", object, move || {
                    let ran = self.inner.exec(id, command, timeout);
                    async move { Ok(ExecOutput { code: self.ask(id, command).code, ..ran.await? }) }
                        .boxed()
                })
                .await;
            if ran.is_err() && command.first().is_some_and(|word| word == "post") {
                // A hook of which nothing is known has failed; a probe counts for nothing then.
                let mut judge = lock(&self.judge);
                judge.instances.entry(id.to_owned()).or_default().may_be_stopped = true;
            }
            ran
        }
        .boxed()
    }
}

/// The API server of the simulation.
struct Clerk {
    judge: Arc<Mutex<Judge>>,
    runtime: Arc<Troubled>,
    place: Arc<Place>,
}

impl Clerk {
    async fn pause(&self) -> Result<(), ReportError> {
        let (pause, fails) = {
            let mut judge = lock(&self.judge);
            let troubled = judge.troubled;
            (judge.chance.pause(), troubled && judge.chance.one_in(15))
        };
        sleep(pause).await;
        self.runtime.moment().await;
        if fails { Err(ReportError("the API server is away".into())) } else { Ok(()) }
    }
}

impl Reports for Clerk {
    fn status<'a>(
        &'a self,
        _: &'a Pod,
        _: &'a PodStatus,
        after: &'a PodStatus,
    ) -> BoxFuture<'a, Result<Reported, ReportError>> {
        async move {
            self.pause().await?;
            lock(&self.judge).judge_status(after);
            Ok(Reported::Shown)
        }
        .boxed()
    }

    fn deleted<'a>(&'a self, _: &'a Pod) -> BoxFuture<'a, Result<(), ReportError>> {
        async move {
            self.pause().await?;
            let left = self.runtime.inner.pod(UID).await.expect("pod");
            let mut judge = lock(&self.judge);
            if !left.sandboxes.is_empty() || !left.containers.is_empty() || !self.place.is_bare() {
                judge.broken("the object was let go while something of the pod was left");
            }
            judge.deleted = true;
            judge.note("object let go".into());
            Ok(())
        }
        .boxed()
    }

    fn event(&self, _: &Pod, event: PodEvent) {
        lock(&self.judge).note(format!("event {} {}", event.reason, event.message));
    }
}

/// A pod with something of everything, as the seed wants it.
fn pod_of(chance: &mut Chance) -> Pod {
    let exec = |word: &str| Some(ExecAction { command: vec![word.to_owned()] });
    let probe = |chance: &mut Chance, word: &str| {
        chance.one_in(2).then(|| {
            let mut probe = Probe { period_seconds: 5, failure_threshold: 2, ..Probe::default() };
            probe.probe_handler.exec = exec(word);
            probe
        })
    };
    let hook = |chance: &mut Chance, word: &str| {
        chance.one_in(3).then(|| LifecycleHandler { exec: exec(word), ..Default::default() })
    };
    let serving = |chance: &mut Chance, name: String| {
        let lifecycle =
            Lifecycle { post_start: hook(chance, "post"), pre_stop: hook(chance, "pre") };
        Container {
            name,
            image: "image:1".into(),
            startup_probe: probe(chance, "startup"),
            readiness_probe: probe(chance, "readiness"),
            liveness_probe: probe(chance, "liveness"),
            lifecycle: Some(lifecycle),
            ..Container::default()
        }
    };
    let mut pod = (*pod(UID, "p")).clone();
    let policies = ["Always", "OnFailure", "Never"];
    pod.spec.restart_policy = policies[usize::try_from(chance.below(3)).expect("small")].into();
    pod.spec.termination_grace_period_seconds =
        Some(i64::try_from(chance.below(8)).expect("small"));
    pod.spec.containers =
        (0..=chance.below(2)).map(|n| serving(chance, format!("main{n}"))).collect();
    for n in 0..chance.below(4) {
        let container = if chance.one_in(2) {
            Container {
                restart_policy: Some("Always".into()),
                ..serving(chance, format!("side{n}"))
            }
        } else {
            let args = vec!["exit 0".to_owned()];
            let image = "image:1".into();
            Container { name: format!("init{n}"), image, args, ..Container::default() }
        };
        pod.spec.init_containers.push(container);
    }
    if chance.one_in(6) {
        pod.spec.active_deadline_seconds =
            Some(i64::try_from(5 + chance.below(60)).expect("small"));
    }
    pod
}

/// The world and the agent in it.
struct Sim {
    dir: tempfile::TempDir,
    runtime: Arc<Troubled>,
    happened: mpsc::UnboundedReceiver<Happened>,
    judge: Arc<Mutex<Judge>>,
    place: Arc<Place>,
    pod: Pod,
    agent: Option<Agent>,
    disk: Disk,
    lost_news: bool,
}

struct Agent {
    order: watch::Sender<Order>,
    news: mpsc::Sender<Happened>,
    missed: Arc<AtomicBool>,
    task: JoinHandle<()>,
}

impl Sim {
    fn new(seed: u64, crash_at: Option<u64>) -> Self {
        let mut chance = Chance(seed);
        let pod = pod_of(&mut chance);
        let (inner, happened) = FakeRuntime::new();
        inner.add_image("image:1");
        let judge = Judge {
            chance,
            trace: Vec::new(),
            instances: BTreeMap::new(),
            names: BTreeMap::new(),
            troubled: crash_at.is_none(),
            ends: false,
            deadline: Duration::MAX,
            end_is_durable: false,
            deleted: false,
            shown: None,
            pod: pod.clone(),
            crash_at,
            points: 0,
            failure: None,
            began: crate::clock::boot(),
        };
        let judge = Arc::new(Mutex::new(judge));
        let runtime =
            Arc::new(Troubled { inner, judge: judge.clone(), crash: Arc::new(Notify::new()) });
        let (_, disk) = Disk::open(BTreeMap::new());
        Self {
            dir: tempfile::tempdir().expect("tempdir"),
            runtime,
            happened,
            judge,
            place: Arc::default(),
            pod,
            agent: None,
            disk,
            lost_news: false,
        }
    }

    /// A new process: the journal as it is on disk, the object as the API shows it.
    fn start(&mut self) {
        let records = std::mem::take(&mut self.disk.records);
        let memory = records.get(UID).map(|record| record.memory.clone());
        let (journal, disk) = Disk::open(records);
        self.disk = disk;
        let clerk = Clerk {
            judge: self.judge.clone(),
            runtime: self.runtime.clone(),
            place: self.place.clone(),
        };
        let outside = Outside {
            dir: self.dir.path(),
            runtime: self.runtime.clone(),
            reports: Arc::new(clerk),
            place: self.place.clone(),
            journal,
        };
        let mut pod = self.pod.clone();
        pod.status = lock(&self.judge).shown.clone().unwrap_or_default();
        let order = Order { pod: Arc::new(pod), source: Source::Api, held: Held::Yes };
        let (order, orders) = watch::channel(order);
        let (news, receive) = mpsc::channel(NEWS_LEN);
        let missed = Arc::new(AtomicBool::new(false));
        let on_node = self.runtime.inner.pod(UID).now_or_never().expect("at once").expect("pod");
        let start = Start { on_node, memory, missed: missed.clone() };
        let page = StatusBoard::default().task("pod");
        let worker = Worker::new(Arc::new(parts(outside)), orders, receive, page, start);
        let task = tokio::spawn(worker.run());
        self.agent = Some(Agent { order, news, missed, task });
        lock(&self.judge).note("agent starts".into());
    }

    async fn kill(&mut self) {
        let Some(agent) = self.agent.take() else { return };
        agent.task.abort();
        if let Err(error) = agent.task.await
            && error.is_panic()
        {
            std::panic::resume_unwind(error.into_panic());
        }
        while self.happened.try_recv().is_ok() {}
        lock(&self.judge).note("agent dies".into());
    }

    fn commit(&mut self) {
        self.disk.commit();
        let ending = self.disk.records.get(UID).and_then(|record| record.memory.ending.clone());
        let ended = ending.is_some();
        let mut judge = lock(&self.judge);
        if let Some(ending) = ending {
            judge.deadline = ending.deadline;
        }
        judge.ends |= ended;
        judge.end_is_durable |= ended;
    }

    /// Brings what happened to the task: some of it late, some of it never, but then a reminder.
    fn deliver(&mut self) {
        while let Ok(news) = self.happened.try_recv() {
            let Some(agent) = &self.agent else { continue };
            let lost = {
                let mut judge = lock(&self.judge);
                judge.troubled && judge.chance.one_in(12)
            };
            if lost {
                self.lost_news = true;
            } else if agent.news.try_send(news).is_err() {
                agent.missed.store(true, Ordering::Relaxed);
            }
        }
        let remind = self.lost_news && {
            let mut judge = lock(&self.judge);
            !judge.troubled || judge.chance.one_in(4)
        };
        if remind
            && let Some(agent) = &self.agent
            && agent.news.try_send(Happened::Missed).is_ok()
        {
            self.lost_news = false;
        }
    }

    /// Lets this much time pass, in which the agent works, events arrive and the journal is written.
    async fn pass(&mut self, time: Duration, step: Duration) {
        let until = tokio::time::Instant::now() + time;
        while tokio::time::Instant::now() < until {
            if self.agent.is_none() {
                self.start();
            }
            let crash = self.runtime.crash.clone();
            tokio::select! {
                biased;
                () = crash.notified() => {
                    self.kill().await;
                    lock(&self.judge).crash_at = None;
                }
                () = sleep(step) => {}
            }
            self.deliver();
            self.commit();
            if let Some(what) = lock(&self.judge).failure.clone() {
                panic!("{what}");
            }
            if self.agent.as_ref().is_some_and(|agent| agent.task.is_finished()) {
                // It has forgotten the pod, or broken a rule.
                if let Err(error) = self.agent.take().expect("agent").task.await {
                    std::panic::resume_unwind(error.into_panic());
                }
                return;
            }
        }
    }

    fn some_running(&mut self) -> Option<ContainerSeen> {
        let running = self.runtime.running();
        let count = u64::try_from(running.len()).expect("small");
        if count == 0 {
            return None;
        }
        let at = lock(&self.judge).chance.below(count);
        running.into_iter().nth(usize::try_from(at).expect("small"))
    }

    /// Something happens to the pod.
    async fn happen(&mut self) {
        let what = lock(&self.judge).chance.below(10);
        match what {
            0 | 1 => {
                if let Some(container) = self.some_running() {
                    let code = i32::try_from(lock(&self.judge).chance.below(3)).expect("small");
                    lock(&self.judge).note(format!("{} exits with {code}", container.id));
                    self.runtime.inner.end(&container.id, code);
                }
            }
            2 => {
                let pod = self.runtime.inner.pod(UID).await.expect("pod");
                if let Some(sandbox) = pod.sandboxes.iter().find(|s| s.ready) {
                    let mut judge = lock(&self.judge);
                    judge.note(format!("{} dies", sandbox.id));
                    for container in pod.containers.iter().filter(|c| c.is_live()) {
                        judge.instances.entry(container.id.clone()).or_default().may_be_stopped =
                            true;
                    }
                    // What is being made in it now is retired as well.
                    drop(judge);
                    self.runtime.inner.end_sandbox(&sandbox.id);
                }
            }
            3 | 4 => {
                if let Some(container) = self.some_running() {
                    let mut judge = lock(&self.judge);
                    let instance = judge.instances.entry(container.id.clone()).or_default();
                    instance.sick = !instance.sick;
                    let sick = instance.sick;
                    judge.note(format!("{} sick: {sick}", container.id));
                }
            }
            5 | 6 => self.kill().await,
            7 if self.pod.spec.ephemeral_containers.len() < 2 => {
                let mut debug = EphemeralContainer::default();
                let name = format!("debug{}", self.pod.spec.ephemeral_containers.len());
                debug.ephemeral_container_common.name = name;
                debug.ephemeral_container_common.image = "image:1".into();
                self.pod.spec.ephemeral_containers.push(debug);
                self.order();
            }
            _ => {}
        }
    }

    fn order(&self) {
        if let Some(agent) = &self.agent {
            let pod = self.pod.clone();
            agent.order.send_modify(|order| {
                let status = order.pod.status.clone();
                order.pod = Arc::new(Pod { status, ..pod });
            });
        }
    }

    fn delete(&mut self) {
        self.pod.metadata.deletion_timestamp = Some(Time::from_unix(1));
        let grace = self.pod.spec.termination_grace_period_seconds;
        self.pod.metadata.deletion_grace_period_seconds = grace;
        let grace = grace.and_then(|secs| u64::try_from(secs).ok()).unwrap_or(30);
        let mut judge = lock(&self.judge);
        judge.deadline = judge.deadline.min(crate::clock::boot() + Duration::from_secs(grace));
        judge.ends = true;
        judge.note("deleted".into());
        drop(judge);
        self.order();
    }

    /// A whole history: trouble, quiet, the end.
    async fn run(&mut self) {
        self.start();
        if self.pod.spec.active_deadline_seconds.is_some() {
            lock(&self.judge).ends = true;
        }
        let moments =
            if lock(&self.judge).troubled { 5 + lock(&self.judge).chance.below(25) } else { 3 };
        for _ in 0..moments {
            let (time, step) = {
                let mut judge = lock(&self.judge);
                (judge.chance.pause() * 2, Duration::from_millis(1 + judge.chance.below(30)))
            };
            self.pass(time, step).await;
            if lock(&self.judge).troubled {
                self.happen().await;
            }
        }
        self.quiet();
        for _ in 0..400 {
            if self.unsettled().is_none() {
                break;
            }
            self.pass(Duration::from_secs(10), Duration::from_secs(1)).await;
        }
        if let Some(what) = self.unsettled() {
            lock(&self.judge).broken(&what);
        }
        if lock(&self.judge).chance.one_in(2) {
            lock(&self.judge).troubled = true;
        }
        self.delete();
        let troubled = lock(&self.judge).chance.below(20);
        self.pass(Duration::from_secs(troubled), Duration::from_millis(50)).await;
        self.quiet();
        let began = tokio::time::Instant::now();
        while !lock(&self.judge).deleted && began.elapsed() < EVER {
            self.pass(Duration::from_secs(10), Duration::from_secs(1)).await;
        }
        if !lock(&self.judge).deleted {
            lock(&self.judge).broken("a deleted pod never goes");
        }
        self.kill().await;
    }

    /// No trouble any more, and everybody is well.
    fn quiet(&self) {
        let mut judge = lock(&self.judge);
        judge.troubled = false;
        judge.instances.values_mut().for_each(|instance| instance.sick = false);
        judge.note("quiet".into());
    }

    /// A pod that is to run, runs and is ready; what is missing of that.
    fn unsettled(&self) -> Option<String> {
        let judge = lock(&self.judge);
        let status = judge.shown.clone().unwrap_or_default();
        let terminal = Phase::parse(&status.phase).is_terminal();
        let ready = status.conditions.iter().any(|c| c.type_ == "Ready" && c.status == "True");
        let always = self.pod.spec.restart_policy == "Always";
        let limited = self.pod.spec.active_deadline_seconds.is_some();
        if always && !limited && !ready {
            return Some(format!("not ready after all: {status:?}"));
        }
        if limited && !terminal {
            return Some("it outlives its deadline".to_owned());
        }
        // Of a pod that runs nothing twice, some containers may be over and others not.
        let runs = status.container_statuses.iter().any(|c| c.state.running.is_some());
        (!terminal && !runs).then(|| format!("neither over nor running: {status:?}"))
    }
}

/// Runs a history; how many moments it had in which the agent could have died, and what happened.
fn history(seed: u64, crash_at: Option<u64>) -> (u64, Vec<String>) {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .start_paused(true)
        .build()
        .expect("runtime");
    runtime.block_on(async {
        crate::clock::reset();
        let mut sim = Sim::new(seed, crash_at);
        sim.run().await;
        let mut judge = lock(&sim.judge);
        (judge.points, std::mem::take(&mut judge.trace))
    })
}

fn number(name: &str) -> Option<u64> {
    std::env::var(name).ok()?.parse().ok()
}

/// Runs `work` and names the history if it fails.
fn named<T>(seed: u64, crash_at: Option<u64>, work: impl FnOnce() -> T) -> T {
    match std::panic::catch_unwind(std::panic::AssertUnwindSafe(work)) {
        Ok(value) => value,
        Err(panic) => {
            println!("the history is ORCH_SEED={seed} crash at {crash_at:?}");
            std::panic::resume_unwind(panic)
        }
    }
}

#[test]
fn the_rules_hold_in_every_simulated_history() {
    let seeds = match number("ORCH_SEED") {
        Some(seed) => seed..seed + 1,
        None => 0..number("ORCH_SEEDS").unwrap_or(SEEDS),
    };
    for seed in seeds {
        named(seed, None, || history(seed, None));
    }
}

/// Without other trouble, the agent dies once, in each moment of the history in turn.
#[test]
fn the_rules_hold_wherever_the_agent_dies() {
    let seeds = match number("ORCH_SEED") {
        Some(seed) => seed..seed + 1,
        None => 0..number("ORCH_SEEDS").unwrap_or(SEEDS).div_ceil(40),
    };
    let mut histories = 0;
    for seed in seeds {
        let (points, _) = named(seed, Some(0), || history(seed, Some(0)));
        // Probes repeat themselves: the first moments are the ones that differ.
        for crash_at in 1..points.min(120) {
            named(seed, Some(crash_at), || history(seed, Some(crash_at)));
            histories += 1;
        }
    }
    println!("{histories} histories");
}

#[test]
fn a_seed_is_one_history() {
    let (first, again) = (history(7, None), history(7, None));
    for (one, other) in first.1.iter().zip(&again.1) {
        assert_eq!(one, other);
    }
    assert_eq!(first, again);
    assert!(first.1.len() > 20);
}
