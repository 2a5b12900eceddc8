//! What the endpoint needs from the agent, and nothing else of it.

use std::path::PathBuf;
use std::time::Duration;

use agent_runtime::runtime::{ExecOutput, Streams};
use futures_util::future::BoxFuture;
use proto_api::core::v1::Pod;
use serde_json::Value;

use super::routes::{ContainerName, PodName};
use super::stats::NodeStats;
use crate::timeline::Timeline;

/// The agent as seen by its endpoint.
pub trait NodeView: Send + Sync {
    /// The pods bound to the node, with their status as the agent knows it.
    fn pods(&self) -> Vec<Pod>;

    /// The pods that the runtime runs: names, UIDs and containers.
    fn running_pods(&self) -> BoxFuture<'_, Result<Vec<Pod>, ViewError>>;

    /// The file that a container logs to.
    fn log_file<'a>(
        &'a self,
        container: &'a ContainerName,
        run: Run,
    ) -> BoxFuture<'a, Result<LogFile, ViewError>>;

    /// Whether the run of a container that logs there may still write.
    fn is_running<'a>(&'a self, log: &'a LogFile) -> BoxFuture<'a, bool>;

    /// Prepares a session in the runtime's own streaming server; its URL, good for one connection.
    fn session<'a>(&'a self, session: &'a Session) -> BoxFuture<'a, Result<String, ViewError>>;

    /// Runs a command in a container to its end.
    fn run<'a>(
        &'a self,
        container: &'a ContainerName,
        command: &'a [String],
        timeout: Duration,
    ) -> BoxFuture<'a, Result<ExecOutput, ViewError>>;

    /// Writes a running container to an archive; where it is. A `timeout` of zero is the runtime's own.
    fn checkpoint<'a>(
        &'a self,
        container: &'a ContainerName,
        timeout: Duration,
    ) -> BoxFuture<'a, Result<PathBuf, ViewError>>;

    /// Usage of everything on the node.
    fn stats(&self) -> BoxFuture<'_, Result<NodeStats, ViewError>>;

    /// What the machine is.
    fn machine(&self) -> Value;

    /// What was done for the pods of that name, with their uids.
    fn timeline(&self, namespace: &str, name: &str) -> Vec<(String, Timeline)>;

    /// The configuration in force, without secrets.
    fn configuration(&self) -> Value;
}

/// Which run of a container is meant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Run {
    /// The present or last one.
    Last,
    /// The one before it.
    Previous,
}

/// The log of one run of a container.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LogFile {
    /// Where it is.
    pub path: PathBuf,
    /// The runtime's id of that run.
    pub instance: String,
}

/// A streaming session.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Session {
    /// A command in a container.
    Exec {
        /// The container.
        container: ContainerName,
        /// Program and arguments.
        command: Vec<String>,
        /// Which streams are connected.
        streams: Streams,
    },
    /// A container's own process.
    Attach {
        /// The container.
        container: ContainerName,
        /// Which streams are connected.
        streams: Streams,
    },
    /// Ports of a pod.
    PortForward {
        /// The pod.
        pod: PodName,
        /// Ports; empty when the client names them in the session.
        ports: Vec<i32>,
    },
}

/// Why the agent cannot serve a request. The text goes to the client.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ViewError {
    /// There is no such pod or container here.
    #[error("{0}")]
    NotFound(String),
    /// It is there and cannot be asked that now: a container that waits to start has no log.
    #[error("{0}")]
    NotNow(String),
    /// The runtime or the system failed.
    #[error("{0}")]
    Failed(String),
}
