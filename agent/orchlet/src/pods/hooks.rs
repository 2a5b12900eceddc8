//! Hooks of containers: what is done after a start and before a stop.

#![cfg_attr(not(test), warn(clippy::arithmetic_side_effects))]

use std::time::Duration;

use agent_pod::desired::{Config, ContainerWant, PodWant};
use agent_pod::events::{self, Hook};
use agent_pod::handler::Handler;
use agent_probe::{ANSWER_BYTES, Asker};
use proto_daemon::exit::chain;

use super::action_context::Scene;
use super::pod_context::Parts;
use super::probe_worker::output;
use crate::clock;

/// Longest time for a hook that nothing else bounds.
const HOOK_MAX: Duration = Duration::from_secs(3600);
/// What a container gets at least between the end of its hook and the forced stop.
pub const GRACE_AFTER_HOOK: Duration = Duration::from_secs(2);

/// Why a hook did not work, and what its command said.
struct HookError {
    error: String,
    output: String,
}

/// Runs the hook after a start. Returns the error as users are told; it has been told as an event then.
pub async fn post_start(
    parts: &Parts,
    scene: &Scene,
    container: &str,
    id: &str,
) -> Result<(), String> {
    run(parts, scene, (container, id), Hook::PostStart, HOOK_MAX).await
}

/// Runs the hook before a stop, up to `deadline` (since boot). A hook that fails stops nobody.
pub async fn pre_stop(parts: &Parts, scene: &Scene, container: &str, id: &str, deadline: Duration) {
    let limit = deadline.saturating_sub(clock::boot());
    // The call has an end of its own as well: what it does after the deadline is not waited for.
    let ran = run(parts, scene, (container, id), Hook::PreStop, limit);
    let _ = tokio::time::timeout(limit, ran).await;
}

async fn run(
    parts: &Parts,
    scene: &Scene,
    (container, id): (&str, &str),
    hook: Hook,
    limit: Duration,
) -> Result<(), String> {
    let want = want_of(scene);
    let handler = want.container(container).and_then(|c: &ContainerWant| match hook {
        Hook::PostStart => c.post_start.as_ref(),
        Hook::PreStop => c.pre_stop.as_ref(),
    });
    let Some(handler) = handler else { return Ok(()) };
    match call(parts, scene, id, handler, limit).await {
        Ok(()) => Ok(()),
        Err(HookError { error, output }) => {
            let event = events::hook_failed(&want, container, hook, &error, &output);
            parts.reports.event(&scene.pod, event);
            Err(error)
        }
    }
}

async fn call(
    parts: &Parts,
    scene: &Scene,
    id: &str,
    handler: &Handler,
    limit: Duration,
) -> Result<(), HookError> {
    let failed = |error: String| HookError { error, output: String::new() };
    match handler {
        Handler::Exec(command) => {
            let ran = parts.runtime.exec(id, command, limit, ANSWER_BYTES).await;
            let ran = ran.map_err(|error| failed(chain(&error)))?;
            if ran.code == 0 {
                return Ok(());
            }
            let output = output(&ran);
            let error =
                format!("command '{}' exited with {}: {output}", command.join(" "), ran.code);
            Err(HookError { error, output })
        }
        Handler::Http(request) => {
            let host = scene.pod.spec.host_network;
            let ips = if host { &parts.host_ips } else { &scene.pod_ips };
            let ip = ips.first().map_or("", String::as_str);
            let asker = Asker { ip, user_agent: &parts.probes.user_agent, timeout: limit };
            // Whatever a server answers, it has been told.
            let reply = agent_probe::get(request, asker).await;
            reply.map(|_| ()).map_err(|error| failed(error.to_string()))
        }
        Handler::Unusable(why) => Err(failed(why.clone())),
        Handler::Tcp { .. } | Handler::Grpc { .. } => {
            Err(failed("a hook is a command or a request".to_owned()))
        }
    }
}

/// The pod as the machine sees it, for what does not depend on its configuration.
pub fn want_of(scene: &Scene) -> PodWant {
    PodWant::from_pod(&scene.pod, scene.source, "", &[], |_| Config::Ready)
}
