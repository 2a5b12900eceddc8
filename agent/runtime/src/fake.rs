//! An in-memory runtime that follows the rules of a real one, for tests of its users.
//!
//! It passes the same [`crate::contract`] as containerd: names with an attempt are unique, a container starts once, nothing is
//! created or started in a sandbox that is not ready, and the name of a sandbox stays reserved until it is removed. A container's
//! process is its command: with `exit <n>` as last argument it exits at once with that code, otherwise it runs until it is
//! stopped or [`FakeRuntime::end`] is called. Time is a counter, or the result of [`FakeRuntime::set_clock`]'s function.

mod calls;
mod stream;

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use agent_pod::observed::{Exit, InstanceState, ObservedContainer, ObservedSandbox};
use agent_pod::spec::{ContainerConfig, ContainerResources, NamespaceScope, SandboxConfig, labels};
use futures_util::FutureExt as _;
use tokio::sync::mpsc;

use crate::events::RuntimeEvent;
use crate::runtime::{
    CallFuture, ContainerAccess, ContainerLogs, ContainerRuntime, ContainerUsage, ExecOutput,
    FilesystemUsage, Image, ImageRuntime, PodOnNode, PodReader, RefusalKind, RegistryLogin,
    RuntimeError, RuntimeHealth, RuntimeRefusal, RuntimeStatus, RuntimeVersion, SandboxRuntime,
    StreamRequest, UsageReader,
};

/// Nanoseconds between two events.
const TICK: i64 = 1_000_000;

/// The in-memory runtime.
#[derive(Debug)]
pub struct FakeRuntime {
    state: Mutex<State>,
    happened: mpsc::UnboundedSender<RuntimeEvent>,
}

/// A call that changes something, successful or not.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Change {
    /// Name of the call.
    pub call: &'static str,
    /// Its object: pod name for a sandbox; pod, container and attempt for a container; name of an image.
    pub object: String,
}

#[derive(Debug, Default)]
struct State {
    clock: i64,
    source: Option<fn() -> i64>,
    ids: u64,
    images: BTreeMap<String, Image>,
    pullable: BTreeMap<String, Image>,
    sandboxes: BTreeMap<String, FakeSandbox>,
    containers: BTreeMap<String, FakeContainer>,
    changes: Vec<Change>,
    failures: VecDeque<(&'static str, Failure)>,
    pulls_take: Duration,
    usage: Vec<ContainerUsage>,
}

/// An injected failure.
#[derive(Debug)]
enum Failure {
    Refused(RuntimeRefusal),
    Panic,
}

#[derive(Debug)]
struct FakeSandbox {
    config: SandboxConfig,
    seen: ObservedSandbox,
}

#[derive(Debug)]
struct FakeContainer {
    config: ContainerConfig,
    seen: ObservedContainer,
}

impl FakeRuntime {
    /// An empty runtime and its events, starting with `Missed`.
    #[must_use]
    pub fn new() -> (Self, mpsc::UnboundedReceiver<RuntimeEvent>) {
        let (happened, receive) = mpsc::unbounded_channel();
        let _ = happened.send(RuntimeEvent::Missed);
        (Self { state: Mutex::default(), happened }, receive)
    }

    /// Adds an image to the node.
    pub fn add_image(&self, name: &str) {
        let image = image_of(name);
        self.lock().images.insert(name.into(), image);
    }

    /// Adds an image to the registry, so that it can be pulled.
    pub fn offer_image(&self, name: &str) {
        self.lock().pullable.insert(name.into(), image_of(name));
    }

    /// Makes pulls from now on take this long.
    pub fn slow_pulls(&self, take: Duration) {
        self.lock().pulls_take = take;
    }

    /// Makes the next call of this name fail before it has any effect.
    pub fn fail_next(&self, call: &'static str, kind: RefusalKind, message: &str) {
        let refusal = RuntimeRefusal { kind, message: message.into() };
        self.lock().failures.push_back((call, Failure::Refused(refusal)));
    }

    /// Makes the next call of this name panic.
    pub fn panic_next(&self, call: &'static str) {
        self.lock().failures.push_back((call, Failure::Panic));
    }

    /// Sets the result of [`Runtime::usage`].
    pub fn set_usage(&self, usage: Vec<ContainerUsage>) {
        self.lock().usage = usage;
    }

    /// Ends the process of a running container.
    pub fn end(&self, id: &str, code: i32) {
        let mut state = self.lock();
        let pod_uid = state.end_container(id, code);
        let container = state.containers.get(id).map(|c| c.seen.clone());
        drop(state);
        if let (Some(pod_uid), Some(container)) = (pod_uid, container) {
            let _ = self.happened.send(RuntimeEvent::Container { pod_uid, container });
        }
    }

    /// Ends the process of a sandbox; its containers keep running, as with a real runtime.
    pub fn end_sandbox(&self, id: &str) {
        let mut state = self.lock();
        let Some(sandbox) = state.sandboxes.get_mut(id) else { return };
        sandbox.seen.ready = false;
        let happened = RuntimeEvent::Sandbox {
            pod_uid: sandbox.config.uid.clone(),
            sandbox: sandbox.seen.clone(),
        };
        drop(state);
        let _ = self.happened.send(happened);
    }

    /// Sets the clock, in nanoseconds since 1970.
    pub fn set_clock(&self, now: fn() -> i64) {
        self.lock().source = Some(now);
    }

    /// Simulates a reboot: all processes are gone, the objects are kept.
    pub fn reboot(&self) {
        let mut state = self.lock();
        let ids: Vec<String> = state.containers.keys().cloned().collect();
        for id in ids {
            state.end_container(&id, 255);
        }
        for sandbox in state.sandboxes.values_mut() {
            sandbox.seen.ready = false;
            sandbox.seen.ips.clear();
        }
    }

    /// Sandbox id and configuration of a container.
    #[must_use]
    pub fn config(&self, id: &str) -> Option<(String, ContainerConfig)> {
        let state = self.lock();
        let container = state.containers.get(id)?;
        let sandbox = state.sandboxes.get(&container.seen.sandbox_id)?;
        Some((sandbox.config.uid.clone(), container.config.clone()))
    }

    /// Live containers with the uids of their pods.
    #[must_use]
    pub fn live(&self) -> Vec<(String, ObservedContainer)> {
        let state = self.lock();
        let live = state.containers.values().filter(|c| c.seen.is_live());
        let of_pod = |c: &FakeContainer| {
            let sandbox = state.sandboxes.get(&c.seen.sandbox_id)?;
            Some((sandbox.config.uid.clone(), c.seen.clone()))
        };
        live.filter_map(of_pod).collect()
    }

    /// Whether a container of the pod is live.
    #[must_use]
    pub fn is_live(&self, uid: &str) -> bool {
        let state = self.lock();
        let of_pod = |c: &FakeContainer| {
            let sandbox = state.sandboxes.get(&c.seen.sandbox_id);
            sandbox.is_some_and(|sandbox| sandbox.config.uid == uid)
        };
        state.containers.values().any(|c| c.seen.is_live() && of_pod(c))
    }

    /// Removes an image, as another client would.
    pub fn remove_image_now(&self, name: &str) {
        self.lock().images.remove(name);
    }

    /// Number of calls so far that change something.
    #[must_use]
    pub fn changes_len(&self) -> usize {
        self.lock().changes.len()
    }

    /// Whether no object of any pod is left.
    #[must_use]
    pub fn is_bare(&self) -> bool {
        let state = self.lock();
        state.sandboxes.is_empty() && state.containers.is_empty()
    }

    /// All calls so far that change something, oldest first.
    #[must_use]
    pub fn changes(&self) -> Vec<Change> {
        self.lock().changes.clone()
    }

    /// Resources of a container as set last; default values if it does not exist.
    #[must_use]
    pub fn resources(&self, id: &str) -> ContainerResources {
        self.lock().containers.get(id).map(|c| c.config.resources.clone()).unwrap_or_default()
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Executes a call on the state at once.
    #[expect(clippy::panic, reason = "a test asked for it")]
    fn act<T: Send + 'static>(
        &self,
        call: &'static str,
        object: &str,
        act: impl FnOnce(&mut State) -> Result<T, RuntimeRefusal>,
    ) -> CallFuture<'static, T> {
        let mut state = self.lock();
        let failure = match state.failures.front() {
            Some((name, _)) if *name == call => state.failures.pop_front(),
            _ => None,
        };
        let outcome = match failure {
            Some((_, Failure::Refused(refusal))) => Err(refusal),
            Some((_, Failure::Panic)) => panic!("{call} was to panic"),
            None => act(&mut state),
        };
        let outcome =
            outcome.map_err(|source| RuntimeError::Refused { call, object: object.into(), source });
        std::future::ready(outcome).boxed()
    }

    fn change<T: Send + 'static>(
        &self,
        call: &'static str,
        object: &str,
        act: impl FnOnce(&mut State) -> Result<T, RuntimeRefusal>,
    ) -> CallFuture<'static, T> {
        self.lock().changes.push(Change { call, object: object.into() });
        self.act(call, object, act)
    }
}

impl State {
    fn now(&mut self) -> i64 {
        self.clock = match self.source {
            Some(now) => now(),
            None => self.clock.saturating_add(TICK),
        };
        self.clock
    }

    fn id(&mut self, kind: &str) -> String {
        self.ids = self.ids.saturating_add(1);
        format!("{kind}-{}", self.ids)
    }

    /// Ends a running container; returns the uid of its pod.
    fn end_container(&mut self, id: &str, code: i32) -> Option<String> {
        let now = self.now();
        let container = self.containers.get_mut(id)?;
        let InstanceState::Running { started_at } = container.seen.state else { return None };
        container.seen.state = InstanceState::Exited(Exit {
            code,
            reason: if code == 0 { "Completed" } else { "Error" }.into(),
            message: String::new(),
            started_at,
            finished_at: now,
        });
        let sandbox = self.sandboxes.get(&container.seen.sandbox_id)?;
        Some(sandbox.config.uid.clone())
    }

    /// The pods whose uid matches.
    fn pods(&self, of: impl Fn(&str) -> bool) -> Vec<PodOnNode> {
        let mut pods: BTreeMap<String, PodOnNode> = BTreeMap::new();
        for (id, sandbox) in self.sandboxes.iter().filter(|(_, s)| of(&s.config.uid)) {
            let config = &sandbox.config;
            let pod = pods.entry(config.uid.clone()).or_insert_with(|| PodOnNode {
                uid: config.uid.clone(),
                namespace: config.namespace.clone(),
                name: config.name.clone(),
                ..PodOnNode::default()
            });
            pod.sandboxes.push(sandbox.seen.clone());
            let own = self.containers.values().filter(|c| c.seen.sandbox_id == *id);
            pod.containers.extend(own.map(|c| c.seen.clone()));
        }
        pods.into_values().collect()
    }

    fn run_sandbox(&mut self, config: &SandboxConfig) -> Result<ObservedSandbox, RuntimeRefusal> {
        let same =
            |s: &&FakeSandbox| s.config.uid == config.uid && s.config.attempt == config.attempt;
        match self.sandboxes.values().find(same) {
            Some(sandbox) if sandbox.seen.ready => return Ok(sandbox.seen.clone()),
            Some(sandbox) => {
                let id = &sandbox.seen.id;
                return Err(refused(format!("the sandbox's name is reserved for {id}")));
            }
            None => {}
        }
        let id = self.id("sandbox");
        let ips = match config.namespaces.network {
            NamespaceScope::Node => Vec::new(),
            _ => vec![format!("10.0.0.{}", (self.ids % 250).saturating_add(2))],
        };
        let seen = ObservedSandbox { id: id.clone(), attempt: config.attempt, ready: true, ips };
        self.sandboxes.insert(id, FakeSandbox { config: config.clone(), seen: seen.clone() });
        Ok(seen)
    }

    fn create(
        &mut self,
        sandbox_id: &str,
        config: &ContainerConfig,
    ) -> Result<String, RuntimeRefusal> {
        let sandbox =
            self.sandboxes.get(sandbox_id).ok_or_else(|| no_such("sandbox", sandbox_id))?;
        let uid = sandbox.config.uid.clone();
        let ready = sandbox.seen.ready;
        let same = |c: &&FakeContainer| {
            let of_pod =
                self.sandboxes.get(&c.seen.sandbox_id).is_some_and(|s| s.config.uid == uid);
            of_pod && c.config.name == config.name && c.config.attempt == config.attempt
        };
        if let Some(container) = self.containers.values().find(same) {
            return Ok(container.seen.id.clone());
        }
        if !ready {
            return Err(refused(format!("sandbox {sandbox_id} is not ready")));
        }
        let image = self.find_image(&config.image).cloned();
        let image = image.ok_or_else(|| no_such("image", &config.image))?;
        let id = self.id("container");
        let seen = ObservedContainer {
            id: id.clone(),
            name: config.name.clone(),
            attempt: config.attempt,
            sandbox_id: sandbox_id.into(),
            image: config.image.clone(),
            image_id: image.id,
            hash: config.annotations.get(labels::DEFINITION_HASH).cloned().unwrap_or_default(),
            message_file: None,
            state: InstanceState::Created,
        };
        self.containers.insert(id.clone(), FakeContainer { config: config.clone(), seen });
        Ok(id)
    }

    /// Starts a container; returns its exit code if it exits at once.
    fn start(&mut self, id: &str) -> Result<Option<i32>, RuntimeRefusal> {
        let now = self.now();
        let container = self.containers.get_mut(id).ok_or_else(|| no_such("container", id))?;
        if container.seen.state != InstanceState::Created {
            return Err(refused(format!("container {id} is not in created state")));
        }
        let sandbox = self.sandboxes.get(&container.seen.sandbox_id);
        if !sandbox.is_some_and(|sandbox| sandbox.seen.ready) {
            return Err(refused(format!("the sandbox of container {id} is not running")));
        }
        container.seen.state = InstanceState::Running { started_at: now };
        let last = container.config.args.last().or(container.config.command.last());
        Ok(last.and_then(|last| last.strip_prefix("exit ")).and_then(|code| code.parse().ok()))
    }

    fn stop_sandbox(&mut self, id: &str) {
        let running: Vec<String> = self
            .containers
            .values()
            .filter(|c| c.seen.sandbox_id == id)
            .map(|c| c.seen.id.clone())
            .collect();
        for container in running {
            self.end_container(&container, 137);
        }
        if let Some(sandbox) = self.sandboxes.get_mut(id) {
            sandbox.seen.ready = false;
            sandbox.seen.ips.clear();
        }
    }

    fn find_image(&self, name: &str) -> Option<&Image> {
        self.images.get(name).or_else(|| self.images.values().find(|image| image.id == name))
    }
}

fn image_of(name: &str) -> Image {
    Image { id: format!("sha256:{name}"), tags: vec![name.into()], ..Image::default() }
}

fn no_such(kind: &str, name: &str) -> RuntimeRefusal {
    RuntimeRefusal { kind: RefusalKind::NotFound, message: format!("{kind} {name} not found") }
}

fn refused(message: String) -> RuntimeRefusal {
    RuntimeRefusal { kind: RefusalKind::Other, message }
}
