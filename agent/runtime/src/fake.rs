//! An in-memory runtime that follows the rules of a real one, for tests of its users.
//!
//! It has the objects of [`crate::memory`], passes the same [`crate::contract`] as containerd, notes the calls that change something, and fails as a test
//! asks. A process ends as its command says, when it is stopped, or when [`FakeRuntime::end`] is called. Time is a counter, or the result of
//! [`FakeRuntime::set_clock`]'s function.

mod calls;

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use agent_pod::observed::{ObservedContainer, ObservedSandbox};
use agent_pod::spec::{ContainerConfig, ContainerResources, SandboxConfig};
use futures_util::FutureExt as _;
use tokio::sync::mpsc;

use crate::events::RuntimeEvent;
use crate::memory::objects::{Container, Objects, image_of, no_such, updated};
use crate::memory::stream;
use crate::runtime::{
    CallFuture, ContainerAccess, ContainerLogs, ContainerRuntime, ContainerUsage, ExecOutput,
    FilesystemUsage, Image, ImageRuntime, PodOnNode, PodReader, RefusalKind, RegistryLogin,
    RuntimeError, RuntimeHealth, RuntimeRefusal, RuntimeStatus, RuntimeVersion, SandboxRuntime,
    StreamRequest, UsageReader,
};

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
    objects: Objects,
    pullable: BTreeMap<String, Image>,
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
        self.lock().objects.images.insert(name.into(), image);
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
        let pod_uid = state.objects.end_container(id, code);
        let container = state.objects.containers.get(id).map(|c| c.seen.clone());
        drop(state);
        if let (Some(pod_uid), Some(container)) = (pod_uid, container) {
            let _ = self.happened.send(RuntimeEvent::Container { pod_uid, container });
        }
    }

    /// Ends the process of a sandbox; its containers keep running, as with a real runtime.
    pub fn end_sandbox(&self, id: &str) {
        let mut state = self.lock();
        let Some(sandbox) = state.objects.sandboxes.get_mut(id) else { return };
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
        self.lock().objects.clock = Some(now);
    }

    /// Simulates a reboot: all processes are gone, the objects are kept.
    pub fn reboot(&self) {
        let mut state = self.lock();
        let ids: Vec<String> = state.objects.containers.keys().cloned().collect();
        for id in ids {
            state.objects.end_container(&id, 255);
        }
        for sandbox in state.objects.sandboxes.values_mut() {
            sandbox.seen.ready = false;
            sandbox.seen.ips.clear();
        }
    }

    /// Sandbox id and configuration of a container.
    #[must_use]
    pub fn config(&self, id: &str) -> Option<(String, ContainerConfig)> {
        let state = self.lock();
        let container = state.objects.containers.get(id)?;
        let sandbox = state.objects.sandboxes.get(&container.seen.sandbox_id)?;
        Some((sandbox.config.uid.clone(), container.config.clone()))
    }

    /// Live containers with the uids of their pods.
    #[must_use]
    pub fn live(&self) -> Vec<(String, ObservedContainer)> {
        let state = self.lock();
        let live = state.objects.containers.values().filter(|c| c.seen.is_live());
        let of_pod = |c: &Container| {
            let sandbox = state.objects.sandboxes.get(&c.seen.sandbox_id)?;
            Some((sandbox.config.uid.clone(), c.seen.clone()))
        };
        live.filter_map(of_pod).collect()
    }

    /// Whether a container of the pod is live.
    #[must_use]
    pub fn is_live(&self, uid: &str) -> bool {
        let state = self.lock();
        let of_pod = |c: &Container| {
            let sandbox = state.objects.sandboxes.get(&c.seen.sandbox_id);
            sandbox.is_some_and(|sandbox| sandbox.config.uid == uid)
        };
        state.objects.containers.values().any(|c| c.seen.is_live() && of_pod(c))
    }

    /// Removes an image, as another client would.
    pub fn remove_image_now(&self, name: &str) {
        self.lock().objects.images.remove(name);
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
        state.objects.sandboxes.is_empty() && state.objects.containers.is_empty()
    }

    /// All calls so far that change something, oldest first.
    #[must_use]
    pub fn changes(&self) -> Vec<Change> {
        self.lock().changes.clone()
    }

    /// Resources of a container as set last; default values if it does not exist.
    #[must_use]
    pub fn resources(&self, id: &str) -> ContainerResources {
        self.lock().objects.resources(id)
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
