//! A [`Runtime`] over CRI v1 on a unix socket.
//!
//! This file has the connection, the execution of a call and the list of pods; the calls are in `calls.rs`. Values are translated
//! in [`config`] (to the runtime) and [`observed`] (from it).

mod calls;
pub(crate) mod config;
mod exec_truncate;
pub(crate) mod observed;
mod pull_progress;
mod sandbox_index;

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::future::Future;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use agent_pod::observed::{Exit, InstanceState, ObservedContainer, ObservedSandbox};
use agent_pod::spec::{ContainerConfig, SandboxConfig, labels};
use futures_util::FutureExt as _;
use futures_util::future::{try_join, try_join_all};
use proto_daemon::write_coalescing::CoalescingStream;
use proto_grpc::cri::v1 as wire;
use proto_grpc::cri::v1::image_service_client::ImageServiceClient;
use proto_grpc::cri::v1::runtime_service_client::RuntimeServiceClient;
use tonic::transport::{Channel, Endpoint};

use self::sandbox_index::SandboxIndex;
use crate::connection_keeper::{CallGuard, KeptConnection};
use crate::observe::{self, CallReport};
use crate::runtime::{
    OUTPUT_LEN_MAX, PodOnNode, PodReader as _, RefusalKind, RuntimeError, RuntimeRefusal,
};

/// containerd namespace of its CRI plugin.
pub const CRI_NAMESPACE: &str = "k8s.io";

/// Deadline of calls that only read.
pub(crate) const READ: Duration = Duration::from_secs(20);
/// Deadline of calls that change something; the kubelet's default.
const CHANGE: Duration = Duration::from_secs(120);
/// Deadline of an image pull. CRI does not show progress, so it is long; it only bounds a pull that hangs.
const PULL: Duration = Duration::from_secs(3600);
/// Interval between attempts while an earlier call for the same object is in flight.
const UNDER_WAY_LOOK: Duration = Duration::from_millis(50);
/// Longest wait for an earlier call.
const UNDER_WAY_MAX: Duration = Duration::from_secs(30);
/// containerd's errors for a name or state reserved by a call in flight. Other runtimes wait, or fail with other errors.
const UNDER_WAY: [&str; 2] = ["is reserved for", "is already in starting state"];
/// Largest response: a list of all containers of a full node, containerd's own limit.
const ANSWER_LEN_MAX: usize = OUTPUT_LEN_MAX;

/// A runtime that implements CRI v1.
#[derive(Clone, Debug)]
pub struct CriRuntime {
    channel: Channel,
    runtime: RuntimeServiceClient<Channel>,
    images: ImageServiceClient<Channel>,
    /// Keeps in-flight calls alive beyond this process; `None` if not wanted.
    holding: Option<Arc<KeptConnection>>,
    reported: ReportedExits,
    placed: SandboxIndex,
}

/// Exits known from events that CRI does not show yet, by container. Entries live for the milliseconds in which the runtime
/// collects an exited process; a status read meanwhile must not show the container as running again.
#[derive(Clone, Debug, Default)]
pub(crate) struct ReportedExits(Arc<Mutex<HashMap<String, Exit>>>);

impl ReportedExits {
    pub(crate) fn remember(&self, id: &str, exit: Exit) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).insert(id.into(), exit);
    }

    pub(crate) fn forget(&self, id: &str) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).remove(id);
    }

    fn apply(&self, container: &mut ObservedContainer) {
        if let InstanceState::Running { started_at } = container.state
            && let Some(exit) =
                self.0.lock().unwrap_or_else(PoisonError::into_inner).get(&container.id)
        {
            container.state = InstanceState::Exited(Exit { started_at, ..exit.clone() });
        }
    }
}

impl CriRuntime {
    /// A client for the runtime at `unix:///path` or an absolute path. Connects with the first call, and again after the
    /// connection broke.
    ///
    /// # Errors
    /// The endpoint has another form.
    pub fn new(endpoint: &str) -> Result<Self, RuntimeError> {
        Ok(Self::over(connect(socket_path(endpoint)?, None), None))
    }

    /// The same for a program that calls [`crate::connection_keeper::run`] when it is started with
    /// [`crate::connection_keeper::ARGUMENT`]: its in-flight calls complete if it dies.
    ///
    /// # Errors
    /// The endpoint has another form.
    pub fn with_connection_keeper(endpoint: &str) -> Result<Self, RuntimeError> {
        let holding = Arc::<KeptConnection>::default();
        let channel = connect(socket_path(endpoint)?, Some(holding.clone()));
        Ok(Self::over(channel, Some(holding)))
    }

    fn over(channel: Channel, holding: Option<Arc<KeptConnection>>) -> Self {
        Self {
            runtime: RuntimeServiceClient::new(channel.clone())
                .max_decoding_message_size(ANSWER_LEN_MAX),
            images: ImageServiceClient::new(channel.clone())
                .max_decoding_message_size(ANSWER_LEN_MAX),
            channel,
            holding,
            reported: ReportedExits::default(),
            placed: SandboxIndex::default(),
        }
    }

    /// The connection, for other services of the runtime on the same socket.
    #[must_use]
    pub fn channel(&self) -> Channel {
        self.channel.clone()
    }

    pub(crate) fn reported_exits(&self) -> &ReportedExits {
        &self.reported
    }

    /// Guards a call that changes something.
    fn changes(&self) -> Option<CallGuard> {
        self.holding.as_ref().map(KeptConnection::begin_call)
    }

    pub(crate) fn service(&self) -> RuntimeServiceClient<Channel> {
        self.runtime.clone()
    }

    async fn sandbox_status(&self, id: &str) -> Result<wire::PodSandboxStatus, RuntimeError> {
        let request = wire::PodSandboxStatusRequest { pod_sandbox_id: id.into(), verbose: false };
        let mut client = self.service();
        let answer =
            call("PodSandboxStatus", id, READ, request, |r| client.pod_sandbox_status(r)).await?;
        answer.status.ok_or_else(|| incomplete("PodSandboxStatus", id, "status"))
    }

    async fn container_status(&self, id: &str) -> Result<wire::ContainerStatus, RuntimeError> {
        let request = wire::ContainerStatusRequest { container_id: id.into(), verbose: false };
        let mut client = self.service();
        let answer =
            call("ContainerStatus", id, READ, request, |r| client.container_status(r)).await?;
        answer.status.ok_or_else(|| incomplete("ContainerStatus", id, "status"))
    }

    /// The sandbox or container with this id, and its pod; `None` if there is none.
    pub(crate) async fn instance(&self, id: &str) -> Result<Option<Instance>, RuntimeError> {
        let container =
            |(pod_uid, container)| Instance { pod_uid, kind: InstanceKind::Container(container) };
        if self.placed.sandbox_of(id).is_some() {
            return Ok(self.shown_container(id).await?.map(container));
        }
        // An id that is not a known container is most likely a sandbox.
        if let Some(status) = optional(self.sandbox_status(id).await)? {
            return Ok(Some(Instance {
                pod_uid: status.metadata.as_ref().map(|m| m.uid.clone()).unwrap_or_default(),
                kind: InstanceKind::Sandbox(observed::sandbox(status)),
            }));
        }
        Ok(self.shown_container(id).await?.map(container))
    }

    /// A container as CRI shows it, and the uid of its pod.
    async fn shown_container(
        &self,
        id: &str,
    ) -> Result<Option<(String, ObservedContainer)>, RuntimeError> {
        let Some(sandbox_id) = self.sandbox_of(id).await? else { return Ok(None) };
        let Some(status) = optional(self.container_status(id).await)? else { return Ok(None) };
        let pod_uid = status.labels.get(labels::POD_UID).cloned().unwrap_or_default();
        Ok(Some((pod_uid, observed::container(sandbox_id, status))))
    }

    /// The sandbox of a container; asks the runtime if it is not known yet.
    async fn sandbox_of(&self, id: &str) -> Result<Option<String>, RuntimeError> {
        if let Some(known) = self.placed.sandbox_of(id) {
            return Ok(Some(known));
        }
        let request = wire::ListContainersRequest {
            filter: Some(wire::ContainerFilter { id: id.into(), ..Default::default() }),
        };
        let mut client = self.service();
        let listed =
            call("ListContainers", id, READ, request, |r| client.list_containers(r)).await?;
        let Some(item) = listed.containers.into_iter().next() else { return Ok(None) };
        self.placed.insert_container(id, &item.pod_sandbox_id);
        Ok(Some(item.pod_sandbox_id))
    }

    /// All sandboxes and containers with these labels and their full status, by pod, except for pods in `but`.
    async fn pods(
        &self,
        selector: &[(&str, &str)],
        but: Option<&BTreeSet<String>>,
    ) -> Result<Vec<PodOnNode>, RuntimeError> {
        let everything = selector.is_empty();
        let selector: HashMap<String, String> =
            selector.iter().map(|(key, value)| ((*key).into(), (*value).into())).collect();
        let (mut for_sandboxes, mut for_containers) = (self.service(), self.service());
        let sandboxes = wire::ListPodSandboxRequest {
            filter: Some(wire::PodSandboxFilter {
                label_selector: selector.clone(),
                ..Default::default()
            }),
        };
        let containers = wire::ListContainersRequest {
            filter: Some(wire::ContainerFilter { label_selector: selector, ..Default::default() }),
        };
        let (sandboxes, containers) = try_join(
            call("ListPodSandbox", "", READ, sandboxes, |r| for_sandboxes.list_pod_sandbox(r)),
            call("ListContainers", "", READ, containers, |r| for_containers.list_containers(r)),
        )
        .await?;
        if everything {
            let all = containers.containers.iter();
            self.placed.learn_all(all.map(|c| (c.id.clone(), c.pod_sandbox_id.clone())));
        }
        let wanted = |labels: &HashMap<String, String>| {
            let uid = labels.get(labels::POD_UID);
            but.is_none_or(|but| uid.is_none_or(|uid| !but.contains(uid)))
        };
        let sandboxes = sandboxes.items.iter().filter(|item| wanted(&item.labels));
        let containers = containers.containers.into_iter().filter(|item| wanted(&item.labels));
        let (sandboxes, containers) = try_join(
            try_join_all(sandboxes.map(|item| self.sandbox_status(&item.id).map(optional))),
            try_join_all(containers.map(|item| async move {
                let status = optional(self.container_status(&item.id).await)?;
                Ok(status.map(|status| (item.pod_sandbox_id, status)))
            })),
        )
        .await?;
        let sandboxes = sandboxes.into_iter().flatten();
        let mut pods = group_by_pod(sandboxes, containers.into_iter().flatten());
        for container in pods.iter_mut().flat_map(|pod| &mut pod.containers) {
            self.reported.apply(container);
        }
        Ok(pods)
    }

    /// Whether the error says that another call for the object is in flight, possibly one of a previous agent.
    fn is_under_way(error: &RuntimeError) -> bool {
        let RuntimeError::Refused { source, .. } = error else { return false };
        UNDER_WAY.iter().any(|text| source.message.contains(text))
    }

    /// The existing sandbox with the name of `config`, in any state.
    async fn same_sandbox(&self, config: &SandboxConfig) -> Option<ObservedSandbox> {
        let pod = self.pod(&config.uid).await.ok()?;
        pod.sandboxes.into_iter().find(|s| s.attempt == config.attempt)
    }

    async fn same_container(
        &self,
        config: &ContainerConfig,
        sandbox: &SandboxConfig,
    ) -> Option<String> {
        let pod = self.pod(&sandbox.uid).await.ok()?;
        pod.containers
            .into_iter()
            .find(|c| c.name == config.name && c.attempt == config.attempt)
            .map(|c| c.id)
    }
}

/// Whether a start failed because the container was started already, by containerd's message.
fn is_already_started(error: &RuntimeError) -> bool {
    let RuntimeError::Refused { source, .. } = error else { return false };
    ["is in CONTAINER_RUNNING state", "is in CONTAINER_EXITED state"]
        .iter()
        .any(|text| source.message.contains(text))
}

/// The wait for an earlier call for the same object.
struct PendingCall {
    until: tokio::time::Instant,
}

impl PendingCall {
    fn new() -> Self {
        let now = tokio::time::Instant::now();
        Self { until: now.checked_add(UNDER_WAY_MAX).unwrap_or(now) }
    }

    /// After an error: waits a moment and returns true if the call should be retried.
    async fn should_retry(&self, error: &RuntimeError) -> bool {
        let waits = CriRuntime::is_under_way(error) && tokio::time::Instant::now() < self.until;
        if waits {
            tokio::time::sleep(UNDER_WAY_LOOK).await;
        }
        waits
    }
}

/// A sandbox or container with its pod.
#[derive(Debug)]
pub(crate) struct Instance {
    pub(crate) pod_uid: String,
    pub(crate) kind: InstanceKind,
}

#[derive(Debug)]
pub(crate) enum InstanceKind {
    Sandbox(ObservedSandbox),
    Container(ObservedContainer),
}

/// Makes one call. The deadline applies on both sides; errors name the call and its object.
pub(crate) async fn call<Q, A, F>(
    name: &'static str,
    object: &str,
    deadline: Duration,
    request: Q,
    send: impl FnOnce(tonic::Request<Q>) -> F,
) -> Result<A, RuntimeError>
where
    F: Future<Output = Result<tonic::Response<A>, tonic::Status>>,
{
    let mut request = tonic::Request::new(request);
    request.set_timeout(deadline);
    let began = Instant::now();
    let answer = tokio::time::timeout(deadline, send(request)).await;
    observe::report_call(CallReport {
        call: name,
        took: began.elapsed(),
        worked: matches!(answer, Ok(Ok(_))),
    });
    match answer {
        Ok(Ok(answer)) => Ok(answer.into_inner()),
        Ok(Err(status)) if status.code() == tonic::Code::DeadlineExceeded => {
            Err(RuntimeError::Deadline { call: name, object: object.into(), after: deadline })
        }
        Ok(Err(status)) => Err(RuntimeError::Refused {
            call: name,
            object: object.into(),
            source: refusal(&status),
        }),
        Err(_) => {
            Err(RuntimeError::Deadline { call: name, object: object.into(), after: deadline })
        }
    }
}

pub(crate) fn refusal(status: &tonic::Status) -> RuntimeRefusal {
    let kind = match status.code() {
        // A status created by the client: the connection could not be opened or broke.
        _ if std::error::Error::source(status).is_some() => RefusalKind::Unavailable,
        tonic::Code::NotFound => RefusalKind::NotFound,
        tonic::Code::Unimplemented => RefusalKind::Unimplemented,
        tonic::Code::Unavailable => RefusalKind::Unavailable,
        tonic::Code::DeadlineExceeded => RefusalKind::TimedOut,
        _ => RefusalKind::Other,
    };
    RuntimeRefusal { kind, message: status.message().into() }
}

fn incomplete(call: &'static str, object: &str, missing: &'static str) -> RuntimeError {
    RuntimeError::Incomplete { call, object: object.into(), missing }
}

/// Turns "not found" into `None`.
fn optional<T>(result: Result<T, RuntimeError>) -> Result<Option<T>, RuntimeError> {
    match result {
        Ok(value) => Ok(Some(value)),
        Err(error) if error.is_not_found() => Ok(None),
        Err(error) => Err(error),
    }
}

/// Turns "not found" into success, for removals.
fn ignore_missing<T>(result: Result<T, RuntimeError>) -> Result<(), RuntimeError> {
    optional(result).map(drop)
}

fn group_by_pod(
    sandboxes: impl Iterator<Item = wire::PodSandboxStatus>,
    containers: impl Iterator<Item = (String, wire::ContainerStatus)>,
) -> Vec<PodOnNode> {
    let mut pods: BTreeMap<String, PodOnNode> = BTreeMap::new();
    for status in sandboxes {
        let metadata = status.metadata.clone().unwrap_or_default();
        let pod = pods.entry(metadata.uid.clone()).or_default();
        pod.uid = metadata.uid;
        pod.namespace = metadata.namespace;
        pod.name = metadata.name;
        pod.sandboxes.push(observed::sandbox(status));
    }
    for (sandbox_id, status) in containers {
        let label = |key: &str| status.labels.get(key).cloned().unwrap_or_default();
        let pod = pods.entry(label(labels::POD_UID)).or_default();
        pod.uid = label(labels::POD_UID);
        pod.namespace = label(labels::POD_NAMESPACE);
        pod.name = label(labels::POD_NAME);
        pod.containers.push(observed::container(sandbox_id, status));
    }
    pods.into_values().collect()
}

fn socket_path(endpoint: &str) -> Result<PathBuf, RuntimeError> {
    let path = endpoint.strip_prefix("unix://").unwrap_or(endpoint);
    if Path::new(path).is_absolute() {
        Ok(path.into())
    } else {
        Err(RuntimeError::Endpoint { endpoint: endpoint.into() })
    }
}

fn connect(socket: PathBuf, holding: Option<Arc<KeptConnection>>) -> Channel {
    // A placeholder: the connector below opens the socket instead.
    Endpoint::from_static("http://runtime").connect_with_connector_lazy(tower::service_fn(
        move |_| {
            let (socket, holding) = (socket.clone(), holding.clone());
            async move {
                let stream = tokio::net::UnixStream::connect(socket).await?;
                if let Some(holding) = holding {
                    holding.set_connection(&stream);
                }
                Ok::<_, std::io::Error>(hyper_util::rt::TokioIo::new(CoalescingStream::new(stream)))
            }
        },
    ))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::runtime::RuntimeStatus as _;

    #[test]
    fn endpoints_are_unix_sockets() {
        for (endpoint, path) in [
            ("unix:///run/containerd/containerd.sock", Some("/run/containerd/containerd.sock")),
            ("/run/a.sock", Some("/run/a.sock")),
            ("unix://a.sock", None),
            ("tcp://1.2.3.4:5", None),
            ("", None),
        ] {
            assert_eq!(socket_path(endpoint).ok(), path.map(PathBuf::from), "{endpoint}");
        }
    }

    #[tokio::test]
    async fn a_runtime_that_is_not_there_is_unavailable() {
        let error =
            CriRuntime::new("/nonexistent/runtime.sock").unwrap().version().await.unwrap_err();
        assert!(error.is_unavailable(), "{error:?}");
    }
}
