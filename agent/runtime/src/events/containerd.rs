//! containerd's event stream.
//!
//! Its response headers arrive with the first event, so they do not show when a subscription is active. The agent publishes a
//! marker until it receives it; from then on no event is lost. An exit event arrives tens of milliseconds before CRI shows the
//! exit, because the CRI plugin first collects the task. The exit is passed on at once, remembered so that status reads do not
//! contradict it, and forgotten once CRI shows it.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use agent_pod::observed::{Exit, InstanceState, ObservedContainer};
use containerd_client::events::{NamespaceUpdate, TaskExit, TaskOom};
use containerd_client::services::v1::events_client::EventsClient;
use containerd_client::services::v1::{PublishRequest, SubscribeRequest};
use containerd_client::types::Envelope;
use prost::Message as _;
use prost_types::Any;
use tokio::sync::{Semaphore, mpsc};
use tonic::transport::Channel;

use super::{RuntimeEvent, StreamError};
use crate::cri::{CriRuntime, Instance, InstanceKind};
use crate::import::in_namespace;

/// Topic of the marker; used by this agent only.
const MARKER: &str = "/orchlet/subscribed";
/// Interval at which the marker is published until it arrives; usually once.
const MARKER_PERIOD: Duration = Duration::from_millis(20);
/// Exits that are polled concurrently; each poll costs two short calls.
const SETTLING_MAX: usize = 16;
/// Number of containers remembered after an out-of-memory event, until their exit event.
const OUT_OF_MEMORY_MAX: usize = 256;
/// Delays between polls of an exit that CRI does not show yet; the last one repeats.
const SETTLE_MS: [u64; 5] = [1, 2, 4, 8, 16];
/// Polls of an exit before it is left to the periodic list: about two seconds.
const SETTLE_LOOKS_MAX: usize = 128;

pub(super) async fn stream(
    runtime: &CriRuntime,
    namespace: &str,
    send: &mpsc::Sender<RuntimeEvent>,
) -> Result<(), StreamError> {
    let mut client = EventsClient::new(runtime.channel());
    let mut subscriber = client.clone();
    let filters = vec![
        format!("namespace=={namespace},topic==\"/tasks/exit\""),
        format!("namespace=={namespace},topic==\"/tasks/oom\""),
        format!("namespace=={namespace},topic==\"{MARKER}\""),
    ];
    let subscription = subscriber.subscribe(in_namespace(SubscribeRequest { filters }, namespace));
    // Dropping either branch is safe: the first ends the function, the second never completes before it.
    let mut events = tokio::select! {
        answer = subscription => answer.map_err(StreamError::Subscribe)?.into_inner(),
        status = publish_markers(&mut client, namespace) => return Err(StreamError::Subscribe(status)),
    };
    let settling = Arc::new(Semaphore::new(SETTLING_MAX));
    let mut out_of_memory = VecDeque::new();
    let mut in_force = false;
    while let Some(event) = events.message().await.map_err(StreamError::Read)? {
        if !in_force {
            // Any event proves that the subscription is active.
            in_force = true;
            let _ = send.send(RuntimeEvent::Missed).await;
        }
        match TaskEvent::read(&event) {
            Some(TaskEvent::OutOfMemory { id }) => {
                out_of_memory.push_back(id);
                out_of_memory.drain(..out_of_memory.len().saturating_sub(OUT_OF_MEMORY_MAX));
            }
            Some(TaskEvent::Exit { id, mut exit }) => {
                if out_of_memory.contains(&id) {
                    exit.reason = "OOMKilled".into();
                    out_of_memory.retain(|other| *other != id);
                }
                let Ok(slot) = Arc::clone(&settling).acquire_owned().await else { continue };
                let (runtime, send) = (runtime.clone(), send.clone());
                tokio::spawn(async move {
                    report_exit(&runtime, &id, exit, &send).await;
                    drop(slot);
                });
            }
            None => {}
        }
    }
    Ok(())
}

/// Reports an exit at once, then waits until CRI shows it and reports that status if it differs.
async fn report_exit(
    runtime: &CriRuntime,
    id: &str,
    exit: Exit,
    send: &mpsc::Sender<RuntimeEvent>,
) {
    let mut sent = None;
    for look in 0..SETTLE_LOOKS_MAX {
        match runtime.instance(id).await {
            Ok(Some(instance)) if has_ended(&instance.kind) => {
                runtime.reported_exits().forget(id);
                let happened = RuntimeEvent::from(instance);
                if sent.as_ref() != Some(&happened) {
                    let _ = send.send(happened).await;
                }
                return;
            }
            Ok(Some(instance)) if sent.is_none() => {
                if let Some(happened) = ahead_of_cri(runtime, instance, &exit) {
                    sent = Some(happened.clone());
                    let _ = send.send(happened).await;
                }
            }
            Ok(Some(_)) => {}
            Ok(None) => return runtime.reported_exits().forget(id),
            Err(error) => {
                tracing::debug!(
                    id,
                    error = &error as &dyn std::error::Error,
                    "cannot read the status of an exited container; retried"
                );
            }
        }
        let pause = SETTLE_MS.get(look).or(SETTLE_MS.last()).copied().unwrap_or_default();
        tokio::time::sleep(Duration::from_millis(pause)).await;
    }
    runtime.reported_exits().forget(id);
    tracing::warn!(
        id,
        "the status of a container does not show the exit that the runtime reported; the next list decides"
    );
}

/// The exit event for a container that CRI still shows as running; remembered for status reads. A created container is being
/// started by a call in flight, whose caller gets the result first. A sandbox waits for CRI.
fn ahead_of_cri(runtime: &CriRuntime, instance: Instance, exit: &Exit) -> Option<RuntimeEvent> {
    let Instance { pod_uid, kind: InstanceKind::Container(container) } = instance else {
        return None;
    };
    let InstanceState::Running { started_at } = container.state else { return None };
    let exit = Exit { started_at, ..exit.clone() };
    runtime.reported_exits().remember(&container.id, exit.clone());
    let container = ObservedContainer { state: InstanceState::Exited(exit), ..container };
    Some(RuntimeEvent::Container { pod_uid, container })
}

/// Publishes the marker repeatedly; returns only on an error.
async fn publish_markers(client: &mut EventsClient<Channel>, namespace: &str) -> tonic::Status {
    let mut period = tokio::time::interval(MARKER_PERIOD);
    loop {
        period.tick().await;
        let event = NamespaceUpdate { name: namespace.into(), ..Default::default() };
        let event = Any {
            type_url: "containerd.events.NamespaceUpdate".into(),
            value: event.encode_to_vec(),
        };
        let request = PublishRequest { topic: MARKER.into(), event: Some(event) };
        if let Err(status) = client.publish(in_namespace(request, namespace)).await {
            return status;
        }
    }
}

/// An event of a container's main process; events of exec processes are ignored.
#[derive(Debug, PartialEq)]
enum TaskEvent {
    Exit { id: String, exit: Exit },
    OutOfMemory { id: String },
}

impl TaskEvent {
    fn read(event: &Envelope) -> Option<Self> {
        let event = event.event.as_ref()?;
        match event.type_url.as_str() {
            "containerd.events.TaskExit" => {
                let exit = TaskExit::decode(event.value.as_slice()).ok()?;
                let at = exit.exited_at.unwrap_or_default();
                let code = i32::try_from(exit.exit_status).unwrap_or(i32::MAX);
                (exit.id == exit.container_id).then(|| Self::Exit {
                    id: exit.container_id,
                    exit: Exit {
                        code,
                        reason: if code == 0 { "Completed" } else { "Error" }.into(),
                        message: String::new(),
                        started_at: 0,
                        // An unknown exit time is sent as a time before 1970.
                        finished_at: at
                            .seconds
                            .saturating_mul(1_000_000_000)
                            .saturating_add(at.nanos.into())
                            .max(0),
                    },
                })
            }
            "containerd.events.TaskOOM" => {
                let id = TaskOom::decode(event.value.as_slice()).ok()?.container_id;
                Some(Self::OutOfMemory { id })
            }
            _ => None,
        }
    }
}

fn has_ended(kind: &InstanceKind) -> bool {
    match kind {
        InstanceKind::Container(container) => {
            matches!(container.state, InstanceState::Exited(_))
        }
        InstanceKind::Sandbox(sandbox) => !sandbox.ready,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(type_url: &str, value: Vec<u8>) -> Option<TaskEvent> {
        let event = Any { type_url: type_url.into(), value };
        TaskEvent::read(&Envelope { event: Some(event), ..Default::default() })
    }

    #[test]
    fn only_the_containers_own_process_counts() {
        let exit = |id: &str| {
            let at = prost_types::Timestamp { seconds: 5, nanos: 7 };
            let exit = TaskExit {
                container_id: "c".into(),
                id: id.into(),
                exit_status: 137,
                exited_at: Some(at),
                ..Default::default()
            };
            exit.encode_to_vec()
        };
        let kind = "containerd.events.TaskExit";
        let expect = Exit {
            code: 137,
            reason: "Error".into(),
            finished_at: 5_000_000_007,
            ..Exit::default()
        };
        let expect = TaskEvent::Exit { id: "c".into(), exit: expect };
        assert_eq!(read(kind, exit("c")), Some(expect));
        assert_eq!(read(kind, exit("exec-1")), None);
        assert_eq!(read("containerd.events.TaskStart", exit("c")), None);
        assert_eq!(read(kind, vec![0xff]), None);
        let never = prost_types::Timestamp { seconds: -62_135_596_800, nanos: 0 };
        let cut_off = TaskExit {
            container_id: "c".into(),
            id: "c".into(),
            exited_at: Some(never),
            ..Default::default()
        };
        let Some(TaskEvent::Exit { exit, .. }) = read(kind, cut_off.encode_to_vec()) else {
            panic!("no exit");
        };
        assert_eq!(exit.finished_at, 0, "a time that the runtime does not know");
        let oom = TaskOom { container_id: "c".into() }.encode_to_vec();
        let expect = TaskEvent::OutOfMemory { id: "c".into() };
        assert_eq!(read("containerd.events.TaskOOM", oom), Some(expect));
        assert_eq!(TaskEvent::read(&Envelope::default()), None);
    }
}
