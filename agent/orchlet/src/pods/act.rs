//! Does one action of a plan: calls the runtime, the node or the API once, decides nothing, retries nothing.

#![cfg_attr(not(test), warn(clippy::arithmetic_side_effects))]

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use agent_node::adaptive_limit::Turn;
use agent_pod::desired::{container_of, instance_hash};
use agent_pod::dns;
use agent_pod::env::{Inputs, environment, skipped};
use agent_pod::events::{PodEvent, Severity};
use agent_pod::observed::{ContainerSeen, ImageSeen, InstanceState};
use agent_pod::plan::Action;
use agent_pod::security::{self, ImageUser};
use agent_pod::translate::{self, ContainerInputs};
use agent_pod::volume_mounts::{Part, sub_paths};
use agent_runtime::RuntimeError;
use agent_runtime::runtime::RuntimeHealth;
use proto_api::core::v1::{Container, Pod};

use super::action_context::Scene;
use super::action_result::Effect;
use super::admit::answer;
use super::pod_context::Parts;
use super::ports::{Line, WantedPart};
use super::{hooks, pulling, termination_message};
use crate::log_links::Logged;
use crate::pod_environment::hosts_mount;
use crate::{clock, images, log_links};

/// Why an action did not work.
#[derive(Clone, Debug, PartialEq)]
pub struct Failure {
    /// Reason of a waiting container.
    pub reason: &'static str,
    /// One line for users.
    pub message: String,
    /// What changed all the same.
    pub effect: Effect,
}

impl Failure {
    pub(super) fn new(reason: &'static str, message: impl Into<String>) -> Self {
        Self { reason, message: message.into(), effect: Effect::Nothing }
    }

    fn runtime(reason: &'static str, error: &RuntimeError) -> Self {
        // The text goes to statuses and events: ids would make each failure one of its own.
        Self::new(reason, error.said())
    }
}

/// Does `action`; volumes are set up and taken down by the task itself, since they are its own state.
pub async fn act(parts: &Parts, scene: &Scene, action: &Action) -> Result<Effect, Failure> {
    let runtime = &parts.runtime;
    let failed = |error: RuntimeError| Failure::runtime("", &error);
    match action {
        Action::Admit => Ok(Effect::Answer(answer(parts, scene).await)),
        Action::CreateSandbox { attempt } => create_sandbox(parts, scene, *attempt).await,
        Action::InspectImage { image } => {
            images::parse(image).map_err(|e| Failure::new(e.reason, e.message))?;
            let found = runtime.image(image).await;
            let found = found.map_err(|e| Failure::runtime("ImageInspectError", &e))?;
            Ok(Effect::Image(match found {
                Some(image) => ImageSeen::Present { id: image.id },
                None => ImageSeen::Absent { at: clock::boot() },
            }))
        }
        Action::PullImage { image, container } => {
            pulling::pull(parts, scene, image, container).await
        }
        Action::CreateContainer { container, attempt, sandbox_id, image_id } => {
            let make = New { name: container, attempt: *attempt, sandbox_id, image_id };
            create_container(parts, scene, make).await
        }
        Action::StartContainer { container, id, .. } => {
            let started = start_container(parts, scene, id).await;
            if started.is_ok() {
                parts.volumes.started(&scene.pod, container).await;
            }
            started
        }
        Action::RunPostStart { container, id } => {
            let ran = hooks::post_start(parts, scene, container, id).await;
            ran.map(|()| Effect::Nothing).map_err(|e| Failure::new("PostStartHookError", e))
        }
        Action::StopContainer { container, id, deadline, hook, .. } => {
            let stop = Stop { container, id, deadline: *deadline, hook: *hook };
            stop_container(parts, scene, stop).await
        }
        Action::RemoveContainer { id, container, attempt } => {
            runtime.remove_container(id).await.map_err(failed)?;
            termination_message::remove(parts, &scene.pod, container, *attempt);
            let logged = Logged::of(&scene.pod, container, *attempt, id);
            log_links::remove(Path::new(&parts.facts.pod_logs_dir), logged);
            Ok(Effect::Nothing)
        }
        Action::StopSandbox { id, .. } => {
            runtime.stop_sandbox(id).await.map_err(failed).map(|()| Effect::Nothing)
        }
        Action::RemoveSandbox { id } => {
            runtime.remove_sandbox(id).await.map_err(failed).map(|()| Effect::Nothing)
        }
        Action::RemoveCgroup => {
            let removed = parts.place.remove_cgroup(&scene.pod).await;
            removed.map_err(|e| Failure::new("", e)).map(|()| Effect::Nothing)
        }
        Action::ReportDeleted => {
            parts.remove_directories(&scene.pod).map_err(|e| Failure::new("", e))?;
            let accepted = parts.reports.deleted(&scene.pod).await;
            accepted.map_err(|e| Failure::new("", e.0)).map(|()| Effect::Nothing)
        }
        Action::Forget => {
            parts.remove_directories(&scene.pod).map_err(|e| Failure::new("", e))?;
            Ok(Effect::Nothing)
        }
        Action::MountVolumes | Action::UnmountVolumes => Ok(Effect::Nothing),
    }
}

fn instance(now: ContainerSeen) -> Effect {
    Effect::Instance(Box::new(now))
}

async fn create_sandbox(parts: &Parts, scene: &Scene, attempt: u32) -> Result<Effect, Failure> {
    let began = std::time::Instant::now();
    let cgroup = parts.place.make_cgroup(&scene.pod).map_err(|e| Failure::new("", e))?;
    parts.place.settle_cgroup(&scene.pod).await.map_err(|e| Failure::new("", e))?;
    parts.metrics.acts.cgroup("create", began.elapsed());
    let facts = parts.provision.facts(&parts.facts);
    let mut config = translate::sandbox(&scene.pod, &facts, &cgroup, attempt)
        .map_err(|e| Failure::new("", e.to_string()))?;
    for (reason, message) in dns::resolver(&scene.pod, &facts).warnings {
        warn(parts, &scene.pod, reason, message);
    }
    let handler = parts.provision.classes.handler(&scene.pod).await;
    config.runtime_handler = handler.map_err(|e| Failure::new("", e))?;
    make_directory(config.log_directory.clone().into())?;
    let asked = async {
        let began = std::time::Instant::now();
        let ran = parts.runtime.run_sandbox(&config).await;
        parts.metrics.acts.sandbox(&config.runtime_handler, began.elapsed(), ran.is_ok());
        ran
    };
    match parts.turns.take(Turn::Sandbox, asked).await {
        Ok(sandbox) => Ok(Effect::Sandbox(sandbox)),
        Err(error) => {
            tell_network(parts, &scene.pod).await;
            Err(Failure::runtime("", &error))
        }
    }
}

/// When a sandbox could not be had because the node has no network yet, its users are told.
async fn tell_network(parts: &Parts, pod: &Pod) {
    if pod.spec.host_network {
        return;
    }
    if let Ok(RuntimeHealth { network: Err(why), .. }) = parts.runtime.health().await {
        let message = format!("network is not ready: container runtime network not ready: {why}");
        warn(parts, pod, "NetworkNotReady", message);
    }
}

pub(super) fn warn(parts: &Parts, pod: &Pod, reason: &'static str, message: String) {
    parts.reports.event(pod, PodEvent::new(Severity::Warning, reason, message));
}

/// What is not linked runs all the same, and is linked later.
fn link_log(parts: &Parts, logged: Logged<'_>) {
    if let Err(error) = log_links::make(Path::new(&parts.facts.pod_logs_dir), logged) {
        tracing::warn!(id = logged.id, %error, "a log has no link");
    }
}

struct New<'a> {
    name: &'a str,
    attempt: u32,
    sandbox_id: &'a str,
    image_id: &'a str,
}

const CONFIG_ERROR: &str = "CreateContainerConfigError";
const CREATE_ERROR: &str = "CreateContainerError";

async fn create_container(parts: &Parts, scene: &Scene, make: New<'_>) -> Result<Effect, Failure> {
    let pod = &scene.pod;
    let container = container_of(pod, make.name)
        .ok_or_else(|| Failure::new(CONFIG_ERROR, format!("no container {}", make.name)))?;
    let container = &container;
    let config_error = |text: String| Failure::new(CONFIG_ERROR, text);
    let env = environment(
        container,
        &Inputs {
            pod,
            host_ips: &parts.host_ips,
            pod_ips: if pod.spec.host_network { &parts.host_ips } else { &scene.pod_ips },
            objects: &*scene.sources,
            services: &scene.sources.services,
            allocatable: &parts.allocatable(),
        },
    )
    .map_err(|e| config_error(e.to_string()))?;
    for message in skipped(container, &pod.metadata.namespace, &*scene.sources) {
        warn(parts, pod, "InvalidEnvironmentVariableNames", message);
    }
    let sub_paths = bind_parts(parts, scene, container, &env).await.map_err(config_error)?;
    let granted = parts.provision.granted(pod, &container.name).await.map_err(config_error)?;
    let mut extra_mounts = termination_message::mount(parts, pod, container, make.attempt)
        .map_err(|e| Failure::new(CREATE_ERROR, e))?;
    let dir = parts.pod_dir(&pod.metadata.uid);
    let hosts = hosts_mount(&dir, pod, container, &parts.facts, &scene.pod_ips);
    extra_mounts.extend(hosts.map_err(|e| Failure::new(CREATE_ERROR, e))?);
    let inputs = ContainerInputs {
        attempt: make.attempt,
        image_id: make.image_id.to_owned(),
        image_user: image_user(parts, pod, container, make.image_id).await?,
        granted,
        env,
        volumes: scene.mounted.on_host.clone(),
        sub_paths,
        extra_mounts,
    };
    let mut config = translate::container(pod, container, &parts.facts, inputs)
        .map_err(|e| config_error(e.to_string()))?;
    config.security.pid_of = scene.target_of(make.name);
    let sandbox = translate::sandbox(pod, &parts.facts, &parts.place_of(pod), 0)
        .map_err(|e| config_error(e.to_string()))?;
    let logs = PathBuf::from(&sandbox.log_directory).join(&container.name);
    make_directory(logs)?;
    let create = parts.runtime.create_container(make.sandbox_id, &config, &sandbox);
    let create = parts.turns.take(Turn::Create, create);
    let created = parts.restarts.take(make.attempt, create).await;
    let id = created.map_err(|e| Failure::runtime(CREATE_ERROR, &e))?;
    link_log(parts, Logged::of(pod, &container.name, make.attempt, &id));
    Ok(instance(ContainerSeen {
        id,
        name: container.name.clone(),
        attempt: make.attempt,
        sandbox_id: make.sandbox_id.to_owned(),
        image: container.image.clone(),
        image_id: make.image_id.to_owned(),
        hash: instance_hash(container),
        message_file: None,
        state: InstanceState::Created,
    }))
}

/// Binds the parts of volumes that a container mounts.
async fn bind_parts(
    parts: &Parts,
    scene: &Scene,
    container: &Container,
    env: &[(String, String)],
) -> Result<BTreeMap<usize, String>, Line> {
    let mut wanted = Vec::new();
    for part in sub_paths(container, env, &scene.mounted.on_host).map_err(|e| e.to_string())? {
        let name = part.volume;
        let volume = scene.mounted.on_host.get(name);
        let volume = volume.ok_or_else(|| format!("no volume {name:?} to mount"))?.clone();
        let Part { index, path, all_read_only, follows, .. } = part;
        let name = name.to_owned();
        wanted.push(WantedPart { index, name, volume, path, all_read_only, follows });
    }
    if wanted.is_empty() {
        return Ok(BTreeMap::new());
    }
    parts.volumes.bind_parts(&scene.pod, &container.name, wanted).await
}

/// The user of an image, looked up only where something depends on it.
async fn image_user(
    parts: &Parts,
    pod: &Pod,
    container: &Container,
    image_id: &str,
) -> Result<ImageUser, Failure> {
    if !security::asks_for_image_user(pod, container) {
        return Ok(ImageUser::default());
    }
    let found = parts.runtime.image(image_id).await;
    let found = found.map_err(|e| Failure::runtime("ImageInspectError", &e))?;
    let image = found.ok_or_else(|| {
        Failure::new(CONFIG_ERROR, format!("image {image_id} is not there any more"))
    })?;
    Ok(ImageUser { uid: image.uid, name: image.username })
}

struct Stop<'a> {
    container: &'a str,
    id: &'a str,
    deadline: Duration,
    hook: bool,
}

/// Stops an instance: its hook, then the polite stop, by force at the deadline.
async fn stop_container(parts: &Parts, scene: &Scene, stop: Stop<'_>) -> Result<Effect, Failure> {
    let failed = |error: RuntimeError| Failure::runtime("", &error);
    let mut least = Duration::ZERO;
    if stop.hook {
        hooks::pre_stop(parts, scene, stop.container, stop.id, stop.deadline).await;
        least = hooks::GRACE_AFTER_HOOK;
    }
    let now = clock::boot();
    let deadline = stop.deadline.min(latest(*scene.ending.borrow(), now));
    let grace = deadline.saturating_sub(now).max(least);
    parts.runtime.stop_container(stop.id, grace).await.map_err(failed)?;
    let now = parts.runtime.container(stop.id).await.map_err(failed)?;
    let ended = now.map(|c| termination_message::with_message(parts, &scene.pod, c));
    Ok(ended.map_or(Effect::Vanished, instance))
}

/// The latest deadline of a stop that is begun now, all of them since boot: a sidecar has a moment of its own after its pod's.
fn latest(ending: Option<Duration>, now: Duration) -> Duration {
    ending.map_or(Duration::MAX, |ending| ending.max(now.saturating_add(hooks::GRACE_AFTER_HOOK)))
}

/// Starts an instance. One that fails to start has ended: what the runtime shows of it, if anything, is taken in either way.
async fn start_container(parts: &Parts, scene: &Scene, id: &str) -> Result<Effect, Failure> {
    let started = parts.turns.take(Turn::Start, parts.runtime.start_container(id)).await;
    let now = parts.runtime.container(id).await;
    let effect = match now {
        // It may have ended already, and said why.
        Ok(Some(now)) => instance(termination_message::with_message(parts, &scene.pod, now)),
        Ok(None) | Err(_) => Effect::Nothing,
    };
    match started {
        Ok(()) if !effect.tells() => {
            Ok(Effect::Started(clock::now().unix_seconds.saturating_mul(1_000_000_000)))
        }
        Ok(()) => Ok(effect),
        // A call that an agent before this one has made was faster.
        Err(_) if runs(&effect) => Ok(effect),
        Err(error) => Err(Failure { effect, ..Failure::runtime("RunContainerError", &error) }),
    }
}

fn runs(effect: &Effect) -> bool {
    let Effect::Instance(instance) = effect else { return false };
    matches!(instance.state, InstanceState::Running { .. })
}

fn make_directory(path: PathBuf) -> Result<(), Failure> {
    fs::create_dir_all(&path)
        .map_err(|e| Failure::new(CREATE_ERROR, format!("make {}: {e}", path.display())))
}
