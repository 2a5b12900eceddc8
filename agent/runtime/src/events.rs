//! Events of containers that the agent did not cause.
//!
//! The source is determined at run time: containerd's event stream if the runtime is containerd, CRI's event stream if it is
//! implemented, otherwise a periodic reminder to list. [`RuntimeEvent::Missed`] is sent first and after every gap: the receiver
//! lists once, and from then on no event is lost.
//!
//! The agent knows starts and removals from its own calls; only exits are events.

mod containerd;

use std::time::Duration;

use agent_pod::observed::{ObservedContainer, ObservedSandbox};
use proto_daemon::backoff::{Backoff, Retries};
use proto_grpc::cri::v1 as wire;
use tokio::sync::mpsc;

use crate::cri::{CriRuntime, Instance, InstanceKind, observed};
use crate::runtime::{RuntimeError, RuntimeStatus as _};

/// Buffered events: more than the containers of a full node, so only a stuck receiver fills the queue. Then the stream blocks,
/// and if the runtime drops it, `Missed` follows.
const QUEUE_LEN: usize = 1024;
/// Pauses before subscribing again.
const RETRY: Backoff =
    Backoff { first: Duration::from_millis(50), longest: Duration::from_secs(5) };
/// Interval of reminders to list, for a runtime without an event stream.
const REMINDER: Duration = Duration::from_secs(2);

/// What the event stream of the runtime reports.
#[derive(Clone, Debug, PartialEq)]
pub enum RuntimeEvent {
    /// Events may have been lost, or none was received yet: the receiver has to list.
    Missed,
    /// A container exited; its status from now on.
    Container { pod_uid: String, container: ObservedContainer },
    /// A sandbox's process exited.
    Sandbox { pod_uid: String, sandbox: ObservedSandbox },
}

impl From<Instance> for RuntimeEvent {
    fn from(Instance { pod_uid, kind }: Instance) -> Self {
        match kind {
            InstanceKind::Container(container) => Self::Container { pod_uid, container },
            InstanceKind::Sandbox(sandbox) => Self::Sandbox { pod_uid, sandbox },
        }
    }
}

/// Watches the runtime until the receiver is dropped. `containerd_namespace` is the namespace of its CRI plugin, `k8s.io`.
#[must_use]
pub fn watch(runtime: CriRuntime, containerd_namespace: &str) -> mpsc::Receiver<RuntimeEvent> {
    let (send, receive) = mpsc::channel(QUEUE_LEN);
    let namespace = containerd_namespace.to_owned();
    tokio::spawn(async move {
        // Ends the task at once when the receiver is dropped.
        tokio::select! {
            () = follow(&runtime, &namespace, &send) => {}
            () = send.closed() => {}
        }
    });
    receive
}

/// Why a stream ended.
#[derive(Debug, thiserror::Error)]
enum StreamError {
    #[error("cannot query the version of the runtime")]
    Version(#[source] RuntimeError),
    #[error("cannot subscribe to events")]
    Subscribe(#[source] tonic::Status),
    #[error("cannot read events")]
    Read(#[source] tonic::Status),
    #[error("the runtime closed the event stream")]
    Closed,
    #[error("the runtime has no event stream")]
    Unsupported,
}

async fn follow(runtime: &CriRuntime, namespace: &str, send: &mpsc::Sender<RuntimeEvent>) {
    let mut retries = Retries::new(RETRY);
    loop {
        let started = tokio::time::Instant::now();
        let error = match stream(runtime, namespace, send).await {
            Err(StreamError::Unsupported) => {
                let _ = send.send(RuntimeEvent::Missed).await;
                tokio::time::sleep(REMINDER).await;
                continue;
            }
            Err(error) => error,
            Ok(()) => StreamError::Closed,
        };
        if started.elapsed() > RETRY.longest {
            retries.reset();
        }
        let pause = retries.next_delay(1.0);
        tracing::warn!(
            error = &error as &dyn std::error::Error,
            pause_ms = u64::try_from(pause.as_millis()).unwrap_or(u64::MAX),
            "runtime event stream ended; reconnecting after the pause, a list covers the gap"
        );
        tokio::time::sleep(pause).await;
    }
}

async fn stream(
    runtime: &CriRuntime,
    namespace: &str,
    send: &mpsc::Sender<RuntimeEvent>,
) -> Result<(), StreamError> {
    let version = runtime.version().await.map_err(StreamError::Version)?;
    if version.name == "containerd" {
        containerd::stream(runtime, namespace, send).await
    } else {
        cri_stream(runtime, send).await
    }
}

/// CRI's event stream, which contains the statuses.
async fn cri_stream(
    runtime: &CriRuntime,
    send: &mpsc::Sender<RuntimeEvent>,
) -> Result<(), StreamError> {
    let answer = runtime.service().get_container_events(wire::GetEventsRequest {}).await;
    let mut events = match answer {
        Ok(answer) => answer.into_inner(),
        Err(status) if status.code() == tonic::Code::Unimplemented => {
            return Err(StreamError::Unsupported);
        }
        Err(status) => return Err(StreamError::Subscribe(status)),
    };
    let _ = send.send(RuntimeEvent::Missed).await;
    while let Some(event) = events.message().await.map_err(StreamError::Read)? {
        if event.container_event_type() != wire::ContainerEventType::ContainerStoppedEvent {
            continue;
        }
        let Some(sandbox) = event.pod_sandbox_status else { continue };
        let pod_uid = sandbox.metadata.as_ref().map(|m| m.uid.clone()).unwrap_or_default();
        let container = event.containers_statuses.into_iter().find(|c| c.id == event.container_id);
        let happened = match container {
            Some(status) => {
                let container = observed::container(sandbox.id, status);
                RuntimeEvent::Container { pod_uid, container }
            }
            None => RuntimeEvent::Sandbox { pod_uid, sandbox: observed::sandbox(sandbox) },
        };
        let _ = send.send(happened).await;
    }
    Ok(())
}
