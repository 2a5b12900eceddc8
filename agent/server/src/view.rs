//! The interface between the endpoint and the agent.

use std::path::PathBuf;
use std::time::Duration;

use agent_runtime::runtime::{ExecOutput, Streams};
use agent_telemetry::timeline::Timeline;
use futures_util::future::BoxFuture;
use proto_api::core::v1::Pod;
use serde_json::Value;

use super::routes::{ContainerName, PodName};
use super::stats::NodeStats;

/// The agent as seen by its endpoint.
pub trait NodeView: Send + Sync {
    /// The node's pods with the agent's status.
    fn pods(&self) -> Vec<Pod>;

    /// The pods running in the runtime: names, UIDs and containers.
    fn running_pods(&self) -> BoxFuture<'_, Result<Vec<Pod>, ViewError>>;

    /// The log file of a container.
    fn log_file<'a>(
        &'a self,
        container: &'a ContainerName,
        run: LogRun,
    ) -> BoxFuture<'a, Result<LogFile, ViewError>>;

    /// Whether the instance that writes this log may still run.
    fn is_running<'a>(&'a self, log: &'a LogFile) -> BoxFuture<'a, bool>;

    /// Prepares a session in the runtime's streaming server. Returns its URL, valid for one
    /// connection.
    fn session<'a>(&'a self, session: &'a Session) -> BoxFuture<'a, Result<String, ViewError>>;

    /// Runs a command in a container and waits for it.
    fn run<'a>(
        &'a self,
        container: &'a ContainerName,
        command: &'a [String],
        timeout: Duration,
    ) -> BoxFuture<'a, Result<ExecOutput, ViewError>>;

    /// Writes a checkpoint of a running container. Returns its path. A `timeout` of zero is the
    /// runtime's default.
    fn checkpoint<'a>(
        &'a self,
        container: &'a ContainerName,
        timeout: Duration,
    ) -> BoxFuture<'a, Result<PathBuf, ViewError>>;

    /// Usage of everything on the node.
    fn stats(&self) -> BoxFuture<'_, Result<NodeStats, ViewError>>;

    /// The machine's description.
    fn machine(&self) -> Value;

    /// Timelines of the pods of that name, with their uids.
    fn timeline(&self, namespace: &str, name: &str) -> Vec<(String, Timeline)>;

    /// The configuration in force, without secrets.
    fn configuration(&self) -> Value;
}

/// Which instance of a container is requested.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LogRun {
    /// The current or last one.
    Last,
    /// The one before it.
    Previous,
}

/// The log of one container instance.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LogFile {
    pub path: PathBuf,
    /// CRI id of the instance; empty if the runtime no longer has it.
    pub instance: String,
}

/// A streaming session.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Session {
    /// A command in a container.
    Exec {
        container: ContainerName,
        /// Program and arguments.
        command: Vec<String>,
        /// Which streams are connected.
        streams: Streams,
    },
    /// The container's main process.
    Attach {
        container: ContainerName,
        /// Which streams are connected.
        streams: Streams,
    },
    /// Ports of a pod.
    PortForward {
        pod: PodName,
        /// Ports; empty if the client names them in the session.
        ports: Vec<i32>,
    },
}

impl Session {
    /// The pod of the session.
    pub(crate) fn pod(&self) -> &PodName {
        match self {
            Self::Exec { container, .. } | Self::Attach { container, .. } => &container.pod,
            Self::PortForward { pod, .. } => pod,
        }
    }
}

/// Why the agent cannot serve a request; the text goes to the client.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ViewError {
    /// No such pod or container on this node.
    #[error("{0}")]
    NotFound(String),
    /// Not possible in its present state: a container that waits to start has no log.
    #[error("{0}")]
    NotNow(String),
    /// The runtime or the system failed.
    #[error("{0}")]
    Failed(String),
}
