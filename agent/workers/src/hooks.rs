//! Lifecycle hooks of containers: `postStart` and `preStop`.

#![cfg_attr(not(test), warn(clippy::arithmetic_side_effects))]

use std::time::Duration;

use agent_clock as clock;
use agent_pod::desired::{ConfigState, DesiredContainer, DesiredPod};
use agent_pod::events::{self, Hook};
use agent_pod::handler::Handler;
use agent_probe::{ANSWER_BYTES, GetError, PodKey, Prober};
use agent_runtime::runtime::RuntimeError;
use proto_daemon::exit::chain;

use super::action_context::ActionContext;
use super::action_result::ActionFailure;
use super::pod_context::PodContext;
use super::probe_worker::command_output;

/// Time limit of a `postStart` hook.
const HOOK_MAX: Duration = Duration::from_secs(3600);
/// Least time between the end of a `preStop` hook and SIGKILL.
pub const GRACE_AFTER_HOOK: Duration = Duration::from_secs(2);

/// Why a hook failed.
#[derive(Debug, thiserror::Error)]
pub enum HookError {
    /// Its command ended with this code.
    #[error("command '{command}' exited with {code}: {}", .output.trim_end())]
    Exited {
        command: String,
        /// Its exit code.
        code: i32,
        /// What it wrote.
        output: String,
    },
    /// The runtime did not run its command.
    #[error(transparent)]
    Runtime(#[from] RuntimeError),
    /// There was no response to its request.
    #[error(transparent)]
    Request(#[from] GetError),
    /// The pod says nothing that can be done.
    #[error("{0}")]
    Unusable(String),
    /// Hooks have no such action.
    #[error("a lifecycle hook must be exec, httpGet or sleep")]
    Action,
}

impl HookError {
    /// What its command wrote.
    fn output(&self) -> &str {
        match self {
            Self::Exited { output, .. } => output,
            _ => "",
        }
    }
}

/// Runs the `postStart` hook. A failure has been reported as an event when this returns it.
pub async fn post_start(
    shared: &PodContext,
    context: &ActionContext,
    container: &str,
    id: &str,
) -> Result<(), ActionFailure> {
    run(shared, context, (container, id), Hook::PostStart, HOOK_MAX).await
}

/// Runs the `preStop` hook until `deadline` (since boot). A failing hook does not prevent the stop.
pub async fn pre_stop(
    shared: &PodContext,
    context: &ActionContext,
    container: &str,
    id: &str,
    deadline: Duration,
) {
    let limit = deadline.saturating_sub(clock::boot());
    // The call has its own timeout; what it does after the deadline is not awaited.
    let ran = run(shared, context, (container, id), Hook::PreStop, limit);
    let _ = tokio::time::timeout(limit, ran).await;
}

async fn run(
    shared: &PodContext,
    context: &ActionContext,
    (container, id): (&str, &str),
    hook: Hook,
    limit: Duration,
) -> Result<(), ActionFailure> {
    let want = pod_want(context);
    let handler = want.container(container).and_then(|c: &DesiredContainer| match hook {
        Hook::PostStart => c.post_start.as_ref(),
        Hook::PreStop => c.pre_stop.as_ref(),
    });
    let Some(handler) = handler else { return Ok(()) };
    match call(shared, context, id, handler, limit).await {
        Ok(()) => Ok(()),
        Err(error) => {
            let event = events::hook_failed(&want, container, hook, &chain(&error), error.output());
            let failure = ActionFailure::new("PostStartHookError", event.message.clone());
            shared.reports.event(&context.pod, event);
            Err(failure)
        }
    }
}

async fn call(
    shared: &PodContext,
    context: &ActionContext,
    id: &str,
    handler: &Handler,
    limit: Duration,
) -> Result<(), HookError> {
    match handler {
        Handler::Exec(command) => {
            let ran = shared.runtime.exec(id, command, limit, ANSWER_BYTES).await?;
            if ran.code == 0 {
                return Ok(());
            }
            let output = command_output(&ran);
            Err(HookError::Exited { command: command.join(" "), code: ran.code, output })
        }
        Handler::Http(request) => {
            let host = context.pod.spec.host_network;
            let ips = if host { &shared.settings.host_ips } else { &context.pod_ips };
            let ip = ips.first().map_or("", String::as_str);
            let meta = &context.pod.metadata;
            let asker = Prober {
                ip,
                user_agent: &shared.probes.user_agent,
                timeout: limit,
                names: &shared.probes.names,
                pod: PodKey { namespace: &meta.namespace, uid: &meta.uid },
            };
            // Any HTTP response counts as success.
            agent_probe::get(request, asker).await?;
            Ok(())
        }
        Handler::Unusable(why) => Err(HookError::Unusable(why.clone())),
        Handler::Tcp { .. } | Handler::Grpc { .. } => Err(HookError::Action),
    }
}

/// The pod's desired state, without what depends on its configuration.
pub fn pod_want(context: &ActionContext) -> DesiredPod {
    DesiredPod::from_pod(&context.pod, context.source, "", &[], |_| ConfigState::Ready)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What a command writes ends with a line feed, and the error is the middle of a line.
    #[test]
    fn an_error_is_one_line() {
        let (command, output) = ("sh -c x".to_owned(), "no x\n".to_owned());
        let error = HookError::Exited { command, code: 4, output };
        assert_eq!(error.to_string(), "command 'sh -c x' exited with 4: no x");
        assert_eq!(error.output(), "no x\n");
    }
}
