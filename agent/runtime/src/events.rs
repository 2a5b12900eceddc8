//! What happens to containers without our doing, as it happens.
//!
//! The source is chosen by asking: containerd's own event stream where the runtime is containerd, CRI's stream where that is
//! implemented, and otherwise a slow reminder to list. Whatever the source, [`RuntimeEvent::Missed`] comes first and after every
//! gap: it tells the receiver to list once, and from then on nothing is lost.
//!
//! Starts and removals are the agent's own acts and known from their calls; only ends are events here.

mod containerd;

use std::time::Duration;

use agent_pod::observed::{ContainerSeen, SandboxSeen};
use proto_grpc::cri::v1 as wire;
use tokio::sync::mpsc;

use crate::cri::{CriRuntime, Instance, InstanceKind, observed};
use crate::runtime::{Runtime as _, RuntimeError};

/// Events that wait for the receiver. More than the containers of a full node, so that only a stuck receiver fills it;
/// then the stream waits, and a runtime that drops us for that leads to `Missed`.
const QUEUE_LEN: usize = 1024;
/// First and longest pause before subscribing again.
const RETRY: [Duration; 2] = [Duration::from_millis(50), Duration::from_secs(5)];
/// How often a receiver is reminded to list where the runtime has no stream.
const REMINDER: Duration = Duration::from_secs(2);

/// Something that happened in the runtime.
#[derive(Clone, Debug, PartialEq)]
pub enum RuntimeEvent {
    /// Events may have been lost, or none were received yet: list.
    Missed,
    /// A container ended; this is how the runtime shows it from now on.
    Container {
        /// UID of its pod.
        pod_uid: String,
        /// The container.
        container: ContainerSeen,
    },
    /// The process of a sandbox ended.
    Sandbox {
        /// UID of its pod.
        pod_uid: String,
        /// The sandbox.
        sandbox: SandboxSeen,
    },
}

impl From<Instance> for RuntimeEvent {
    fn from(Instance { pod_uid, kind }: Instance) -> Self {
        match kind {
            InstanceKind::Container(container) => Self::Container { pod_uid, container },
            InstanceKind::Sandbox(sandbox) => Self::Sandbox { pod_uid, sandbox },
        }
    }
}

/// Watches the runtime until the receiver is dropped. `containerd_namespace` is where its CRI plugin keeps containers, `k8s.io`.
#[must_use]
pub fn watch(runtime: CriRuntime, containerd_namespace: &str) -> mpsc::Receiver<RuntimeEvent> {
    let (send, receive) = mpsc::channel(QUEUE_LEN);
    let namespace = containerd_namespace.to_owned();
    tokio::spawn(async move {
        // The receiver's end ends the task at once, whatever it is waiting for.
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
    #[error("ask the runtime for its version")]
    Version(#[source] RuntimeError),
    #[error("subscribe to events")]
    Subscribe(#[source] tonic::Status),
    #[error("read events")]
    Read(#[source] tonic::Status),
    #[error("the runtime closed the event stream")]
    Closed,
    #[error("the runtime has no event stream")]
    Unsupported,
}

async fn follow(runtime: &CriRuntime, namespace: &str, send: &mpsc::Sender<RuntimeEvent>) {
    let [first, longest] = RETRY;
    let mut pause = first;
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
        pause =
            if started.elapsed() > longest { first } else { pause.saturating_mul(2).min(longest) };
        tracing::warn!(
            error = &error as &dyn std::error::Error,
            pause_ms = u64::try_from(pause.as_millis()).unwrap_or(u64::MAX),
            "runtime event stream ended"
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

/// CRI's own stream, which carries the states themselves.
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
