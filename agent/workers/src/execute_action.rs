//! Executes one action of a plan: one call to the runtime, the node or the API. Decides nothing and
//! retries nothing.

#![cfg_attr(not(test), warn(clippy::arithmetic_side_effects))]

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use agent_clock as clock;
use agent_images as images;
use agent_interfaces::WantedPart;
use agent_logs::log_links;
use agent_logs::log_links::LoggedContainer;
use agent_node::adaptive_limit::CallKind;
use agent_pod::desired::{find_container, instance_hash};
use agent_pod::dns;
use agent_pod::env::{ContainersByName, EnvInputs, environment, skipped_keys};
use agent_pod::observed::{InstanceState, ObservedContainer, ObservedImage};
use agent_pod::plan::Action;
use agent_pod::security::{self, ImageUser};
use agent_pod::translate::{self, ContainerInputs};
use agent_pod::volume_mounts::{BoundPart, sub_paths};
use agent_resources::pod_environment::hosts_mount;
use agent_runtime::RuntimeError;
use agent_runtime::runtime::RuntimeHealth;
use proto_api::core::v1::{Container, Pod};

use super::action_context::ActionContext;
use super::action_result::{ActionFailure, ActionResult};
use super::admit::admit_pod;
use super::pod_context::{NodeSettings, PodContext, PodFileError};
use super::{hooks, pulling, termination_message};

/// Executes `action`. Volumes are set up and torn down by the pod's task, which owns their state.
pub async fn act(
    shared: &PodContext,
    context: &ActionContext,
    action: &Action,
) -> Result<ActionResult, ActionFailure> {
    let runtime = &shared.runtime;
    let failed = |error: RuntimeError| ActionFailure::runtime("", &error);
    match action {
        Action::Admit => Ok(ActionResult::Admission(admit_pod(shared, context).await)),
        Action::CreateSandbox { attempt } => create_sandbox(shared, context, *attempt).await,
        Action::InspectImage { image } => {
            images::parse(image).map_err(|e| ActionFailure::new(e.reason, e.message))?;
            let found = runtime.image(image).await;
            let found = found.map_err(|e| ActionFailure::runtime("ImageInspectError", &e))?;
            Ok(ActionResult::Image(match found {
                Some(image) => ObservedImage::Present { id: image.id },
                None => ObservedImage::Absent { at: clock::boot() },
            }))
        }
        Action::PullImage { image, container } => {
            pulling::pull(shared, context, image, container).await
        }
        Action::CreateContainer { container, attempt, sandbox_id, image_id } => {
            let make = NewContainer { name: container, attempt: *attempt, sandbox_id, image_id };
            create_container(shared, context, make).await
        }
        Action::StartContainer { container, id, .. } => {
            let started = start_container(shared, context, id).await;
            if started.is_ok() {
                shared.volumes.started(&context.pod, container).await;
            }
            started
        }
        Action::RunPostStart { container, id } => {
            let ran = hooks::post_start(shared, context, container, id).await;
            ran.map(|()| ActionResult::Nothing)
        }
        Action::StopContainer { container, id, deadline, hook, .. } => {
            let stop = ContainerStop { container, id, deadline: *deadline, hook: *hook };
            stop_container(shared, context, stop).await
        }
        Action::RemoveContainer { id, container, attempt } => {
            runtime.remove_container(id).await.map_err(failed)?;
            termination_message::remove_instance_files(shared, &context.pod, container, *attempt);
            let logged = LoggedContainer::new(&context.pod, container, *attempt, id);
            log_links::remove(Path::new(&shared.settings.facts.pod_logs_dir), logged);
            Ok(ActionResult::Nothing)
        }
        Action::StopSandbox { id, .. } => {
            runtime.stop_sandbox(id).await.map_err(failed).map(|()| ActionResult::Nothing)
        }
        Action::RemoveSandbox { id } => {
            runtime.remove_sandbox(id).await.map_err(failed).map(|()| ActionResult::Nothing)
        }
        Action::RemoveCgroup => {
            let removed = shared.cgroups.remove_cgroup(&context.pod).await;
            removed.map_err(|e| ActionFailure::caused_by("", &e)).map(|()| ActionResult::Nothing)
        }
        Action::ReportDeleted => {
            let removed = shared.remove_directories(&context.pod);
            removed.map_err(|e| ActionFailure::caused_by("", &e))?;
            let accepted = shared.reports.deleted(&context.pod).await;
            accepted.map_err(|e| ActionFailure::caused_by("", &e)).map(|()| ActionResult::Nothing)
        }
        Action::Forget => {
            let removed = shared.remove_directories(&context.pod);
            removed.map_err(|e| ActionFailure::caused_by("", &e))?;
            Ok(ActionResult::Nothing)
        }
        Action::MountVolumes | Action::UnmountVolumes => Ok(ActionResult::Nothing),
    }
}

fn instance_result(now: ObservedContainer) -> ActionResult {
    ActionResult::Instance(Box::new(now))
}

async fn create_sandbox(
    shared: &PodContext,
    context: &ActionContext,
    attempt: u32,
) -> Result<ActionResult, ActionFailure> {
    let began = std::time::Instant::now();
    let cgroup_error = |e| ActionFailure::caused_by("", &e);
    let cgroup = shared.cgroups.make_cgroup(&context.pod).map_err(cgroup_error)?;
    shared.cgroups.settle_cgroup(&context.pod).await.map_err(cgroup_error)?;
    shared.metrics.operations.record_cgroup("create", began.elapsed());
    let facts = shared.environment.facts(&shared.settings.facts);
    let mut config = translate::sandbox_config(&context.pod, &facts, &cgroup, attempt)
        .map_err(|e| ActionFailure::new("", e.to_string()))?;
    for (reason, message) in dns::resolver(&context.pod, &facts).warnings {
        shared.warn(&context.pod, reason, message);
    }
    let handler = shared.environment.classes.handler(&context.pod).await;
    config.runtime_handler = handler.map_err(|e| ActionFailure::caused_by("", &e))?;
    make_directory(config.log_directory.clone().into())?;
    let asked = async {
        let began = std::time::Instant::now();
        let ran = shared.runtime.run_sandbox(&config).await;
        shared.metrics.operations.record_sandbox(
            &config.runtime_handler,
            began.elapsed(),
            ran.is_ok(),
        );
        ran
    };
    match shared.runtime_limiter.run(CallKind::Sandbox, asked).await {
        Ok(sandbox) => Ok(ActionResult::Sandbox(sandbox)),
        Err(error) => {
            report_network(shared, &context.pod).await;
            Err(ActionFailure::runtime("", &error))
        }
    }
}

/// Reports as an event if a sandbox failed because the node's network is not ready.
async fn report_network(shared: &PodContext, pod: &Pod) {
    if pod.spec.host_network {
        return;
    }
    if let Ok(RuntimeHealth { network: Err(why), .. }) = shared.runtime.health().await {
        let message = format!("network is not ready: container runtime network not ready: {why}");
        shared.warn(pod, "NetworkNotReady", message);
    }
}

/// A missing log link is not fatal; garbage collection creates it later.
fn link_log(shared: &PodContext, logged: LoggedContainer<'_>) {
    if let Err(error) = log_links::make(Path::new(&shared.settings.facts.pod_logs_dir), logged) {
        tracing::warn!(id = logged.id, %error, "cannot link a container's log below the container logs directory; retried at the next garbage collection");
    }
}

struct NewContainer<'a> {
    name: &'a str,
    attempt: u32,
    sandbox_id: &'a str,
    image_id: &'a str,
}

const CONFIG_ERROR: &str = "CreateContainerConfigError";
const CREATE_ERROR: &str = "CreateContainerError";

async fn create_container(
    shared: &PodContext,
    context: &ActionContext,
    make: NewContainer<'_>,
) -> Result<ActionResult, ActionFailure> {
    let pod = &context.pod;
    let container = find_container(pod, make.name).ok_or_else(|| {
        ActionFailure::new(
            CONFIG_ERROR,
            format!("container {:?} is not in the pod's spec", make.name),
        )
    })?;
    let container = &container;
    let NodeSettings { facts, host_ips, .. } = &shared.settings;
    let config_error = |text: String| ActionFailure::new(CONFIG_ERROR, text);
    let env = environment(
        container,
        &EnvInputs {
            pod,
            containers: ContainersByName::from_pod(pod),
            host_ips,
            pod_ips: if pod.spec.host_network { host_ips } else { &context.pod_ips },
            objects: &*context.objects,
            services: &context.services,
            allocatable: &shared.pods.allocatable(),
        },
    )
    .map_err(|e| config_error(e.to_string()))?;
    for message in skipped_keys(container, &pod.metadata.namespace, &*context.objects) {
        shared.warn(pod, "InvalidEnvironmentVariableNames", message);
    }
    let sub_paths = bind_parts(shared, context, container, &env).await?;
    let granted = shared.environment.granted(pod, &container.name).await;
    let granted = granted.map_err(|e| ActionFailure::caused_by(CONFIG_ERROR, &e))?;
    let mut extra_mounts = termination_message::mount(shared, pod, container, make.attempt)
        .map_err(|e| ActionFailure::caused_by(CREATE_ERROR, &e))?;
    let dir = shared.pod_dir(&pod.metadata.uid);
    let hosts = hosts_mount(&dir, pod, container, facts, &context.pod_ips);
    extra_mounts.extend(hosts.map_err(|e| ActionFailure::caused_by(CREATE_ERROR, &e))?);
    let inputs = ContainerInputs {
        attempt: make.attempt,
        image_id: make.image_id.to_owned(),
        image_user: image_user(shared, pod, container, make.image_id).await?,
        granted,
        env,
        volumes: context.mounted.on_host.clone(),
        sub_paths,
        extra_mounts,
    };
    let mut config = translate::container_config(pod, container, facts, inputs)
        .map_err(|e| config_error(e.to_string()))?;
    config.security.pid_of = context.target_of(make.name);
    let sandbox = translate::sandbox_config(pod, facts, &shared.cgroup_parent(pod), 0)
        .map_err(|e| config_error(e.to_string()))?;
    let logs = PathBuf::from(&sandbox.log_directory).join(&container.name);
    make_directory(logs)?;
    let create = shared.runtime.create_container(make.sandbox_id, &config, &sandbox);
    let create = shared.runtime_limiter.run(CallKind::Create, create);
    let created = shared.restart_limiter.run(make.attempt, create).await;
    let id = created.map_err(|e| ActionFailure::runtime(CREATE_ERROR, &e))?;
    link_log(shared, LoggedContainer::new(pod, &container.name, make.attempt, &id));
    Ok(instance_result(ObservedContainer {
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

async fn bind_parts(
    shared: &PodContext,
    context: &ActionContext,
    container: &Container,
    env: &[(String, String)],
) -> Result<BTreeMap<usize, String>, ActionFailure> {
    let mut wanted = Vec::new();
    let parts = sub_paths(container, env, &context.mounted.on_host);
    for part in parts.map_err(|e| ActionFailure::caused_by(CONFIG_ERROR, &e))? {
        let name = part.volume;
        let volume = context.mounted.on_host.get(name);
        let missing = || ActionFailure::new(CONFIG_ERROR, format!("volume {name:?} is not set up"));
        let volume = volume.ok_or_else(missing)?.clone();
        let BoundPart { index, path, all_read_only, follows, .. } = part;
        let name = name.to_owned();
        wanted.push(WantedPart { index, name, volume, path, all_read_only, follows });
    }
    if wanted.is_empty() {
        return Ok(BTreeMap::new());
    }
    let bound = shared.volumes.bind_parts(&context.pod, &container.name, wanted).await;
    bound.map_err(|e| ActionFailure::caused_by(CONFIG_ERROR, &e))
}

/// The user of an image, inspected only if the security context depends on it.
async fn image_user(
    shared: &PodContext,
    pod: &Pod,
    container: &Container,
    image_id: &str,
) -> Result<ImageUser, ActionFailure> {
    if !security::needs_image_user(pod, container) {
        return Ok(ImageUser::default());
    }
    let found = shared.runtime.image(image_id).await;
    let found = found.map_err(|e| ActionFailure::runtime("ImageInspectError", &e))?;
    let image = found.ok_or_else(|| {
        ActionFailure::new(
            CONFIG_ERROR,
            format!("image {image_id} was removed before the container was created"),
        )
    })?;
    Ok(ImageUser { uid: image.uid, name: image.username })
}

struct ContainerStop<'a> {
    container: &'a str,
    id: &'a str,
    deadline: Duration,
    hook: bool,
}

/// Stops a container: the preStop hook, SIGTERM, and SIGKILL at the deadline.
async fn stop_container(
    shared: &PodContext,
    context: &ActionContext,
    stop: ContainerStop<'_>,
) -> Result<ActionResult, ActionFailure> {
    let failed = |error: RuntimeError| ActionFailure::runtime("", &error);
    let mut least = Duration::ZERO;
    if stop.hook {
        hooks::pre_stop(shared, context, stop.container, stop.id, stop.deadline).await;
        least = hooks::GRACE_AFTER_HOOK;
    }
    let now = clock::boot();
    let deadline = stop.deadline.min(latest_deadline(*context.ending.borrow(), now));
    let grace = deadline.saturating_sub(now).max(least);
    shared.runtime.stop_container(stop.id, grace).await.map_err(failed)?;
    let now = shared.runtime.container(stop.id).await.map_err(failed)?;
    let ended = now.map(|c| termination_message::with_message(shared, &context.pod, c));
    Ok(ended.map_or(ActionResult::Vanished, instance_result))
}

/// The latest deadline of a stop that starts now, since boot: sidecars get a short grace period
/// after their pod's.
fn latest_deadline(ending: Option<Duration>, now: Duration) -> Duration {
    ending.map_or(Duration::MAX, |ending| ending.max(now.saturating_add(hooks::GRACE_AFTER_HOOK)))
}

/// Starts a container. If the start fails, the container's state in the runtime is returned with
/// the error.
async fn start_container(
    shared: &PodContext,
    context: &ActionContext,
    id: &str,
) -> Result<ActionResult, ActionFailure> {
    let started =
        shared.runtime_limiter.run(CallKind::Start, shared.runtime.start_container(id)).await;
    let now = shared.runtime.container(id).await;
    let result = match now {
        // It may have exited already, with a reason.
        Ok(Some(now)) => {
            instance_result(termination_message::with_message(shared, &context.pod, now))
        }
        Ok(None) | Err(_) => ActionResult::Nothing,
    };
    match started {
        Ok(()) if !result.shows_state() => {
            Ok(ActionResult::Started(clock::now().unix_seconds.saturating_mul(1_000_000_000)))
        }
        Ok(()) => Ok(result),
        // An earlier agent's call has started it already.
        Err(_) if is_running(&result) => Ok(result),
        Err(error) => {
            Err(ActionFailure { result, ..ActionFailure::runtime("RunContainerError", &error) })
        }
    }
}

fn is_running(result: &ActionResult) -> bool {
    let ActionResult::Instance(instance) = result else { return false };
    matches!(instance.state, InstanceState::Running { .. })
}

fn make_directory(path: PathBuf) -> Result<(), ActionFailure> {
    fs::create_dir_all(&path).map_err(|source| {
        ActionFailure::caused_by(CREATE_ERROR, &PodFileError { verb: "make", path, source })
    })
}
