//! The runtime in memory, with delays and faults around each call, and a judge beside it.

use std::collections::BTreeSet;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use agent_clock as clock;
use agent_pod::backoff::{CRASH_DELAY_FIRST, CRASH_RESET};
use agent_pod::observed::{ObservedContainer, ObservedSandbox};
use agent_pod::spec::{ContainerConfig, ContainerResources, SandboxConfig};
use agent_runtime::fake::FakeRuntime;
use agent_runtime::runtime::{
    CallFuture, ContainerUsage, ExecOutput, FilesystemUsage, Image, PodOnNode, RefusalKind,
    RegistryLogin, RuntimeError, RuntimeHealth, RuntimeRefusal, RuntimeVersion, StreamRequest,
};
use agent_runtime::{
    ContainerAccess, ContainerLogs, ContainerRuntime, ImageRuntime, PodReader, RuntimeStatus,
    SandboxRuntime, UsageReader,
};
use futures_util::FutureExt as _;
use tokio::time::sleep;

use super::world::{Instance, Shared, Start, Waits, World, hangs, lock, passes, passes_in};
use super::{shares, volumes};

/// Deadline of a call that is never answered.
const DEADLINE: Duration = Duration::from_secs(120);

/// The runtime as one agent has it.
pub struct Troubled {
    pub inner: Arc<FakeRuntime>,
    pub world: Shared,
    /// Which agent.
    pub incarnation: u64,
}

/// What the runtime does after the agent has given a call up.
pub enum Late {
    Start(String),
    Stop(String),
    Create(String, Box<ContainerConfig>, Box<SandboxConfig>),
}

/// What becomes of a call.
struct CallOutcome {
    before: Duration,
    after: Duration,
    end: End,
}

#[derive(PartialEq)]
enum End {
    Works,
    Fails,
    AnswerLost,
    /// Nothing is heard until the deadline; it was done at once, or not.
    Hangs(bool),
    Away,
}

impl Troubled {
    fn fate(&self, call: &str) -> CallOutcome {
        let mut world = lock(&self.world);
        let reads = matches!(call, "container" | "pod" | "list" | "image");
        let end = if world.runtime_away {
            End::Away
        } else if world.fault(if reads { 40 } else { 15 }) {
            End::Fails
        } else if world.fault(25) {
            End::AnswerLost
        } else if world.fault(300) {
            End::Hangs(world.chance.one_in(2))
        } else {
            End::Works
        };
        CallOutcome { before: world.chance.pause(), after: world.chance.pause(), end }
    }

    fn refuse<T>(call: &'static str, kind: RefusalKind) -> Result<T, RuntimeError> {
        let source = RuntimeRefusal { kind, message: "trouble".into() };
        Err(RuntimeError::Refused { call, object: "sim".into(), source })
    }

    async fn through<'a, T>(
        &'a self,
        call: &'static str,
        object: String,
        work: impl FnOnce() -> CallFuture<'a, T> + Send + 'a,
    ) -> Result<T, RuntimeError> {
        // What still runs of an agent that is gone asks for nothing.
        if lock(&self.world).incarnation != self.incarnation {
            std::future::pending::<()>().await;
        }
        let fate = self.fate(call);
        // Probes are asked for ever; a hook's caller waits by itself.
        let _waits = (call != "exec").then(|| Waits::new(&self.world));
        if fate.end == End::Away {
            passes(&self.world, Duration::from_millis(1)).await;
            return Self::refuse(call, RefusalKind::Unavailable);
        }
        passes_in(&self.world, self.incarnation, fate.before).await;
        if fate.end == End::Fails {
            lock(&self.world).note(format!("{call} {object} fails"));
            return Self::refuse(call, RefusalKind::Other);
        }
        let deadline = RuntimeError::Deadline { call, object: object.clone(), after: DEADLINE };
        if fate.end == End::Hangs(false) {
            lock(&self.world).note(format!("{call} {object} hangs"));
            hangs(&self.world, DEADLINE).await;
            return Err(deadline);
        }
        let answer = work().await;
        let worked = if answer.is_ok() { "worked" } else { "was refused" };
        lock(&self.world).note(format!("{call} {object} {worked}"));
        passes(&self.world, fate.after).await;
        match fate.end {
            End::AnswerLost => Self::refuse(call, RefusalKind::Unavailable),
            End::Hangs(_) => {
                hangs(&self.world, DEADLINE).await;
                Err(deadline)
            }
            _ => answer,
        }
    }

    /// All pods as they are, without asking anybody.
    pub fn all(&self) -> Vec<PodOnNode> {
        self.inner.list().now_or_never().expect("at once").expect("list")
    }

    pub fn pod(&self, uid: &str) -> PodOnNode {
        self.inner.pod(uid).now_or_never().expect("at once").expect("pod")
    }

    /// Everything that runs, with the uid of its pod.
    pub fn running(&self) -> Vec<(String, ObservedContainer)> {
        self.inner.live()
    }

    pub fn is_live(&self, uid: &str) -> bool {
        self.inner.is_live(uid)
    }

    /// Never two running instances of one container. Nothing else makes one run than a start.
    fn judge_running(&self) {
        let mut running = BTreeSet::new();
        for (uid, container) in self.running() {
            let known = format!("{} of {uid}", container.name);
            if !running.insert(known.clone()) {
                lock(&self.world).broken(format!("{known} runs twice"));
            }
        }
    }

    /// A sandbox is made: the node said yes and has room, no namesake of a static pod is left.
    fn judge_sandbox(&self, config: &SandboxConfig) {
        let uid = &config.uid;
        let mut world = lock(&self.world);
        world.judge_begin(uid, "a sandbox");
        if !world.cgroups.contains(uid) {
            world.broken(format!("a sandbox of {uid} without a cgroup"));
        }
        let heard = world.mirrors_heard;
        let Some(book) = world.books.get_mut(uid) else { return };
        book.unheard |= book.is_static && !heard;
        let (is_static, name) = (book.is_static, book.pod.metadata.name.clone());
        if !is_static {
            return;
        }
        let other = self.running().into_iter().map(|(other, _)| other).find(|other| {
            let known = world.books.get(other);
            other != uid && known.is_some_and(|b| b.is_static && b.pod.metadata.name == name)
        });
        if let Some(other) = other {
            world.broken(format!("{uid} begins while {other} of its name runs"));
        }
    }

    /// An attempt is made once; what it was made of is remembered.
    fn judge_create(&self, uid: &str, config: &ContainerConfig, sandbox_id: &str, id: &str) {
        let mut world = lock(&self.world);
        let (name, attempt) = (config.name.clone(), config.attempt);
        let Some(book) = world.books.get_mut(uid) else { return };
        let highest = book.made.get(&name).copied();
        book.made.insert(name.clone(), highest.unwrap_or(0).max(attempt));
        let known = world.instances.contains_key(id);
        if !known && highest.is_some_and(|highest| attempt <= highest) {
            world.broken(format!("attempt {attempt} of {name} of {uid} is made again"));
        }
        if !known {
            self.judge_again(&mut world, uid, &name, sandbox_id);
            world.judge_pull(uid, &name, &config.image);
        }
        let instance = world.instances.entry(id.to_owned()).or_default();
        (instance.uid, instance.name, instance.attempt) = (uid.to_owned(), name, attempt);
        sandbox_id.clone_into(&mut instance.made_in);
    }

    /// What ended by itself runs again only when its pod's policy says so; an init container also in another sandbox.
    fn judge_again(&self, world: &mut World, uid: &str, name: &str, sandbox_id: &str) {
        let Some(book) = world.books.get(uid) else { return };
        let mut before = self.pod(uid).containers;
        before.retain(|c| c.name == name);
        let Some(last) = before.into_iter().max_by_key(|c| c.attempt) else { return };
        let Some(exit) = last.exit().filter(|exit| exit.started_at != 0) else { return };
        let known = world.instances.get(&last.id);
        if known.is_some_and(|known| known.stopped || known.may_be_stopped) {
            return;
        }
        let policy = book.pod.spec.restart_policy.as_str();
        let again = match name.trim_end_matches(|c: char| c.is_ascii_digit()) {
            "side" => true,
            "debug" => false,
            "init" if last.sandbox_id != sandbox_id => policy != "Never" || exit.code == 0,
            "init" => policy != "Never" && exit.code != 0,
            _ => policy == "Always" || policy == "OnFailure" && exit.code != 0,
        };
        if !again {
            let code = exit.code;
            world.broken(format!("{name} of {uid} ended with {code} and is made again"));
        }
    }

    /// A container is about to start: what it needs is there, and nothing that has to be over still runs.
    fn judge_start(&self, id: &str) {
        let mut world = lock(&self.world);
        let Some(Instance { uid, name, made_in, .. }) = world.instances.get(id).cloned() else {
            return;
        };
        world.judge_begin(&uid, &format!("start of {name}"));
        let all = self.pod(&uid).containers;
        if name.starts_with("main") {
            for running in all.iter().filter(|c| c.is_live() && c.name.starts_with("init")) {
                world.broken(format!("{name} starts beside {}", running.name));
            }
        }
        let succeeded = |c: &ObservedContainer| c.exit().is_some_and(|exit| exit.code == 0);
        let sandbox = all.iter().find(|c| c.id == id).map(|c| &c.sandbox_id);
        // Of the same instance it is refused: the answer to its start was lost.
        let before =
            |c: &&ObservedContainer| c.name == name && c.id != id && Some(&c.sandbox_id) == sandbox;
        if name.starts_with("init") && all.iter().filter(before).any(succeeded) {
            world.broken(format!("{name} of {uid} starts again and has succeeded"));
        }
        world.judge_turn(&uid, &name, &made_in);
    }

    /// A container has started: with what it mounts, and not in a storm.
    fn judge_started(&self, id: &str) {
        self.judge_running();
        let Some((uid, config)) = self.inner.config(id) else { return };
        let mut world = lock(&self.world);
        let missing = config.mounts.iter().find(|mount| !Path::new(&mount.host_path).exists());
        if let Some(mount) = missing {
            world.broken(format!("{id} is started without {}", mount.container_path));
        }
        volumes::judge_use(&mut world, &uid, id);
        let now = clock::since_began();
        if let Some(instance) = world.instances.get_mut(id) {
            instance.started = Some(clock::now());
        }
        world.judge_pause(&uid, &config.name, self.start_of(&uid, id, now));
        let Some(book) = world.books.get_mut(&uid) else { return };
        let crashes = book.crashing.as_ref() == Some(&config.name);
        let starts = book.starts.entry(config.name.clone()).or_default();
        starts.retain(|at| *at + Duration::from_secs(60) > now);
        starts.push(now);
        if starts.len() > STORM {
            world.broken(format!("{} of {uid} is started again and again", config.name));
        }
        if crashes {
            world.doomed.push(id.to_owned());
        }
        let scrutiny = world.scrutiny;
        drop(world);
        if scrutiny {
            shares::judge(self);
            volumes::judge_readers(self);
        }
    }

    fn start_of(&self, uid: &str, id: &str, at: Duration) -> Start {
        let container = self.pod(uid).containers.into_iter().find(|c| c.id == id);
        let container = container.expect("it was started");
        Start { at, id: id.to_owned(), made_in: container.sandbox_id, made_of: container.hash }
    }

    /// A stop has a reason, comes after the hook, gives the time that was promised, and takes sidecars last.
    fn judge_stop(&self, id: &str, grace: Duration) {
        let Some((uid, pod)) = self.owner(id) else { return };
        let mut world = lock(&self.world);
        let known = world.instances.entry(id.to_owned()).or_default();
        known.stopped = true;
        let known = known.clone();
        let name = known.name.clone();
        let of = pod.containers.iter().find(|c| c.id == id);
        let lost =
            !pod.sandboxes.iter().any(|s| s.ready && of.is_some_and(|c| c.sandbox_id == s.id));
        let wanted = world.container(&uid, &name);
        let hash = wanted.as_ref().map(agent_pod::desired::instance_hash);
        let replaced = of.is_some_and(|c| hash.as_ref() != Some(&c.hash));
        let allowed = lost || known.may_be_stopped || replaced;
        let Some(book) = world.books.get(&uid) else { return };
        let (ends, ending, told_at) = (book.ends, book.ending, book.told_at);
        let (kill_from, kill_by) = (book.kill_from, book.kill_by);
        if !ends && !allowed {
            world.broken(format!("{id} ({name} of {uid}) is stopped for nothing"));
            return;
        }
        let hook = wanted.and_then(|c| c.lifecycle?.pre_stop).is_some();
        // Of what the agent never heard of since it started it knows neither hooks nor order.
        if !world.books.get(&uid).is_some_and(|book| book.told) {
            return;
        }
        if hook && !known.pre_called && !grace.is_zero() {
            world.broken(format!("{id} is stopped without its hook"));
        }
        if allowed {
            return;
        }
        let now = clock::boot();
        let kill = now + grace;
        let slack = Duration::from_millis(1);
        if kill_from.is_some_and(|from| kill + slack < from) {
            world.broken(format!("{id} is killed before its time: {kill:?} < {kill_from:?}"));
        }
        // What it is told in this very instant it may not have read.
        let kill_by = kill_by.filter(|_| told_at < now);
        let told = [ending, kill_by].into_iter().flatten().min();
        let latest = told.unwrap_or(Duration::MAX).max(now + Duration::from_secs(2));
        if kill > latest + slack {
            world.broken(format!("{id} is killed after its time: {kill:?} > {latest:?}"));
        }
        // What the grace period was not enough for is not waited for.
        let in_time = ending.is_some_and(|ending| now < ending);
        if in_time && name.starts_with("side") {
            let live = pod.containers.iter().filter(|c| c.is_live());
            let after = |c: &&ObservedContainer| !c.name.starts_with("side") || c.name > name;
            if let Some(other) = live.clone().find(after) {
                world.broken(format!("{name} of {uid} is stopped before {}", other.name));
            }
        }
    }

    /// The pod of an instance that runs.
    fn owner(&self, id: &str) -> Option<(String, PodOnNode)> {
        let uid = self.running().into_iter().find(|(_, c)| c.id == id)?.0;
        let pod = self.pod(&uid);
        Some((uid, pod))
    }

    fn ask(&self, id: &str, command: &[String]) -> ExecOutput {
        let word = command.first().cloned().unwrap_or_default();
        let mut world = lock(&self.world);
        let flaky = world.fault(30);
        let steps = world.steps;
        let known = world.instances.get(id).cloned().unwrap_or_default();
        let container = world.container(&known.uid, &known.name).unwrap_or_default();
        let probe = match word.as_str() {
            "startup" => container.startup_probe.clone(),
            "readiness" => container.readiness_probe,
            "liveness" => container.liveness_probe,
            _ => None,
        };
        let instance = world.instances.entry(id.to_owned()).or_default();
        let bad = instance.sick || flaky;
        let row = instance.bad.entry(word.clone()).or_default();
        *row = if bad { *row + 1 } else { 0 };
        let row = *row;
        instance.doubted |= bad;
        let threshold =
            probe.as_ref().map_or(1, |p| u64::try_from(p.failure_threshold.max(1)).unwrap_or(1));
        if row >= threshold && word != "readiness" && word != "pre" {
            instance.may_be_stopped = true;
        }
        if !bad {
            instance.answered.insert(word.clone());
        }
        if word == "post" {
            instance.hooked |= !bad;
            instance.hook_failed |= bad;
        }
        let gated = container.startup_probe.is_some() && !instance.answered.contains("startup");
        if gated && matches!(word.as_str(), "readiness" | "liveness") {
            world.broken(format!("{id} is asked for {word} before it has come up"));
        }
        if let (Some(probe), Some(started)) = (&probe, known.started)
            && steps == 0
        {
            let delay = u64::try_from(probe.initial_delay_seconds).unwrap_or(0);
            let ran = clock::boot().saturating_sub(started.boot);
            // The runtime tells whole starts, the agent counts whole seconds.
            if ran + Duration::from_secs(1) < Duration::from_secs(delay) {
                world.broken(format!("{id} is asked for {word} {ran:?} after its start"));
            }
        }
        ExecOutput { code: i32::from(bad), ..ExecOutput::default() }
    }

    /// Does what nobody waits for any more.
    pub fn finish(&self, late: Late) {
        match late {
            Late::Start(id) => {
                let started = self.inner.start_container(&id).now_or_never().expect("at once");
                if started.is_ok() {
                    self.judge_started(&id);
                }
            }
            Late::Stop(id) => {
                drop(self.inner.stop_container(&id, Duration::ZERO).now_or_never());
            }
            Late::Create(sandbox_id, config, sandbox) => {
                // The runtime gives a name to one call only.
                let taken = |world: &World| {
                    let made = world.books.get(&sandbox.uid)?.made.get(&config.name).copied();
                    made.filter(|made| *made >= config.attempt)
                };
                if taken(&lock(&self.world)).is_some() {
                    return;
                }
                let made = self.inner.create_container(&sandbox_id, &config, &sandbox);
                if let Ok(id) = made.now_or_never().expect("at once") {
                    self.judge_create(&sandbox.uid, &config, &sandbox_id, &id);
                }
            }
        }
    }

    /// Whether the call is one that is done after all, later.
    async fn is_late(&self, call: &str, late: impl FnOnce() -> Late) -> bool {
        {
            let mut world = lock(&self.world);
            if !world.fault(250) || world.runtime_away {
                return false;
            }
            let late = late();
            world.note(format!("{call} is done later"));
            world.late.push(late);
        }
        hangs(&self.world, DEADLINE).await;
        true
    }
}

/// More starts of one container in a minute are a storm: 0, 0, 10 and 20 s apart, and as many again for what probes found.
const STORM: usize = 8;

impl World {
    /// An image that is always pulled was pulled since the last instance was made from it. It may not be what the pod says by now.
    fn judge_pull(&mut self, uid: &str, name: &str, image: &str) {
        let Some(container) = self.container(uid, name) else { return };
        let pulls = self.pulls.get(image).copied().unwrap_or(0);
        let Some(book) = self.books.get_mut(uid) else { return };
        let before = book.pulls.insert((name.to_owned(), image.to_owned()), pulls);
        if container.image_pull_policy == "Always" && pulls <= before.unwrap_or(0) {
            self.broken(format!(
                "{name} of {uid} is made from an image that was not pulled for it"
            ));
        }
    }

    /// Each init container and sidecar before this container has come up in its sandbox.
    fn judge_turn(&mut self, uid: &str, name: &str, sandbox_id: &str) {
        let Some(book) = self.books.get(uid) else { return };
        if name.starts_with("debug") {
            return;
        }
        let before = book.pod.spec.init_containers.iter().take_while(|c| c.name != name);
        let missing = before.into_iter().find(|c| {
            let hook = c.lifecycle.as_ref().is_some_and(|l| l.post_start.is_some());
            let came_up = |i: &Instance| {
                i.started.is_some()
                    && (!hook || i.hooked)
                    && (c.startup_probe.is_none() || i.answered.contains("startup"))
            };
            let of_turn = |i: &&Instance| i.uid == uid && i.name == c.name;
            let here = |i: &&Instance| i.made_in == sandbox_id;
            !self.instances.values().filter(of_turn).filter(here).any(came_up)
        });
        if let Some(missing) = missing {
            let missing = missing.name.clone();
            self.broken(format!("{name} of {uid} starts before {missing} has come up"));
        }
    }

    /// A container that crashes waits before it starts once more: the second time for ten seconds, then twice as long each time.
    fn judge_pause(&mut self, uid: &str, name: &str, start: Start) {
        // What is ended for a failed probe or hook, which the first hook of a dead one is as well, has waited while it ran.
        let stopped = |known: &Start| {
            self.instances.get(&known.id).is_some_and(|i| i.stopped || i.hook_failed)
        };
        let Some(book) = self.books.get(uid) else { return };
        let mut starts = book.crashes.get(name).cloned().unwrap_or_default();
        let goes_on = starts.last().is_some_and(|last| {
            let same = last.made_in == start.made_in && last.made_of == start.made_of;
            same && !stopped(last) && start.at < last.at + CRASH_RESET
        });
        if !goes_on {
            starts.clear();
        }
        if let (Some(last), Some(doubled)) = (starts.last(), starts.len().checked_sub(2)) {
            // Of what the journal has lost, how often a container had crashed is told from the runtime's times, by the wall clock.
            let doubled = if self.steps == 0 { doubled.min(4) } else { 0 };
            let (ran, pause) = (start.at - last.at, CRASH_DELAY_FIRST * (1 << doubled));
            if ran < pause {
                self.broken(format!("{name} of {uid} crashes again and waits only {ran:?}"));
            }
        }
        starts.push(start);
        if let Some(book) = self.books.get_mut(uid) {
            book.crashes.insert(name.to_owned(), starts);
        }
    }
}

macro_rules! through {
    ($($name:ident($($arg:ident: $type:ty),*) -> $out:ty;)*) => {
        $(fn $name<'a>(&'a self, $($arg: $type),*) -> CallFuture<'a, $out> {
            let object = String::new() $(+ &format!("{:?}", $arg).chars().take(40).collect::<String>())*;
            self.through(stringify!($name), object, move || self.inner.$name($($arg),*))
                .boxed()
        })*
    };
}

impl RuntimeStatus for Troubled {
    through! {
        version() -> RuntimeVersion;
        health() -> RuntimeHealth;
    }
}

impl PodReader for Troubled {
    through! {
        list() -> Vec<PodOnNode>;
        pod(uid: &'a str) -> PodOnNode;
        container(id: &'a str) -> Option<ObservedContainer>;
    }
}

impl SandboxRuntime for Troubled {
    through! {
        stop_sandbox(id: &'a str) -> ();
        remove_sandbox(id: &'a str) -> ();
    }

    fn run_sandbox<'a>(&'a self, config: &'a SandboxConfig) -> CallFuture<'a, ObservedSandbox> {
        self.judge_sandbox(config);
        let object = format!("{} {}", config.uid, config.attempt);
        async move {
            let run = || {
                if let Some(book) = lock(&self.world).books.get_mut(&config.uid) {
                    book.made_sandbox = true;
                }
                self.inner.run_sandbox(config)
            };
            let made = self.through("run_sandbox", object, run).await;
            // One whose network could not be set up stays, and is not ready.
            let half = made.is_err() && {
                let mut world = lock(&self.world);
                !world.runtime_away && world.fault(3)
            };
            if half && let Ok(sandbox) = self.inner.run_sandbox(config).await {
                lock(&self.world).note(format!("{} is half made", sandbox.id));
                self.inner.end_sandbox(&sandbox.id);
            }
            made
        }
        .boxed()
    }
}

impl ContainerRuntime for Troubled {
    through! {
        remove_container(id: &'a str) -> ();
        update_resources(id: &'a str, resources: &'a ContainerResources) -> ();
    }

    fn create_container<'a>(
        &'a self,
        sandbox_id: &'a str,
        config: &'a ContainerConfig,
        sandbox: &'a SandboxConfig,
    ) -> CallFuture<'a, String> {
        lock(&self.world).judge_begin(&sandbox.uid, &config.name);
        let object = format!("{} {}/{}", sandbox.uid, config.name, config.attempt);
        async move {
            let late = || {
                let (config, sandbox) = (Box::new(config.clone()), Box::new(sandbox.clone()));
                Late::Create(sandbox_id.to_owned(), config, sandbox)
            };
            if self.is_late("create_container", late).await {
                return Self::refuse("create_container", RefusalKind::TimedOut);
            }
            self.through("create_container", object, move || {
                let made = self.inner.create_container(sandbox_id, config, sandbox);
                async move {
                    let made = made.await;
                    if let Ok(id) = &made {
                        self.judge_create(&sandbox.uid, config, sandbox_id, id);
                    }
                    made
                }
                .boxed()
            })
            .await
        }
        .boxed()
    }

    fn start_container<'a>(&'a self, id: &'a str) -> CallFuture<'a, ()> {
        self.judge_start(id);
        async move {
            if self.is_late("start_container", || Late::Start(id.to_owned())).await {
                return Self::refuse("start_container", RefusalKind::TimedOut);
            }
            self.through("start_container", id.to_owned(), move || {
                let started = self.inner.start_container(id);
                async move {
                    let started = started.await;
                    if started.is_ok() {
                        self.judge_started(id);
                    }
                    started
                }
                .boxed()
            })
            .await
        }
        .boxed()
    }

    fn stop_container<'a>(&'a self, id: &'a str, grace: Duration) -> CallFuture<'a, ()> {
        self.judge_stop(id, grace);
        async move {
            if self.is_late("stop_container", || Late::Stop(id.to_owned())).await {
                return Self::refuse("stop_container", RefusalKind::TimedOut);
            }
            let _waits = Waits::new(&self.world);
            // Some end when they are told to, some only when they are killed.
            let takes = lock(&self.world).chance.pause().min(grace);
            sleep(takes).await;
            self.through("stop_container", id.to_owned(), move || {
                self.inner.stop_container(id, grace)
            })
            .await
        }
        .boxed()
    }
}

impl ContainerLogs for Troubled {
    through! {
        reopen_log(id: &'a str) -> ();
    }
}

impl ContainerAccess for Troubled {
    through! {
        stream(request: &'a StreamRequest) -> String;
        checkpoint(id: &'a str, archive: &'a str, timeout: Duration) -> ();
    }

    fn exec<'a>(
        &'a self,
        id: &'a str,
        command: &'a [String],
        timeout: Duration,
        keep: usize,
    ) -> CallFuture<'a, ExecOutput> {
        let word = command.first().cloned().unwrap_or_default();
        let object = format!("{id} {word}");
        if word == "pre"
            && let Some(instance) = lock(&self.world).instances.get_mut(id)
        {
            instance.pre_called = true;
        }
        async move {
            let is_hook = matches!(word.as_str(), "pre" | "post");
            let _waits = is_hook.then(|| Waits::new(&self.world));
            let ran = self
                .through("exec", object, move || {
                    let ran = self.inner.exec(id, command, timeout, keep);
                    async move {
                        let ran = ran.await?;
                        Ok(ExecOutput { code: self.ask(id, command).code, ..ran })
                    }
                    .boxed()
                })
                .await;
            if ran.is_err() {
                lock(&self.world).instances.entry(id.to_owned()).or_default().doubted = true;
            }
            let timed_out = ran.as_ref().is_err_and(RuntimeError::is_timeout);
            if ran.is_err() && word == "post" || timed_out && word != "pre" && word != "readiness" {
                // A hook of which nothing is known has failed; a probe without an answer is a bad one when its time was up.
                let mut world = lock(&self.world);
                let instance = world.instances.entry(id.to_owned()).or_default();
                instance.may_be_stopped = true;
                instance.hook_failed |= word == "post";
            }
            ran
        }
        .boxed()
    }
}

impl ImageRuntime for Troubled {
    through! {
        image(name: &'a str) -> Option<Image>;
        images() -> Vec<Image>;
        remove_image(id: &'a str) -> ();
        image_filesystems() -> Vec<FilesystemUsage>;
    }

    fn pull_image<'a>(
        &'a self,
        name: &'a str,
        login: Option<&'a RegistryLogin>,
    ) -> CallFuture<'a, String> {
        let pull = move || self.inner.pull_image(name, login);
        async move {
            let pulled = self.through("pull_image", name.to_owned(), pull).await;
            // Callers that ask while it is in flight share the call: it counts when it is answered.
            if let Ok(id) = &pulled {
                *lock(&self.world).pulls.entry(id.clone()).or_default() += 1;
            }
            pulled
        }
        .boxed()
    }
}

impl UsageReader for Troubled {
    through! {
        usage() -> Vec<ContainerUsage>;
    }
}

/// For the parts that want it whole.
pub type SharedRuntime = Arc<Troubled>;
