//! The interface between the agent and the container runtime.
//!
//! A trait for each use of it, and [`Runtime`] for all of them. It consists of what a pod's task needs, in values of
//! `agent_pod`, so that the real and the in-memory runtime are interchangeable. Every call may be repeated: creating an existing
//! object returns it, stopping or removing a missing one succeeds.

use std::collections::BTreeSet;
use std::time::Duration;

use agent_pod::observed::{ObservedContainer, ObservedSandbox};
use agent_pod::spec::{ContainerConfig, ContainerResources, SandboxConfig};
use futures_util::future::BoxFuture;
use futures_util::{FutureExt as _, TryFutureExt as _};

/// Future of the result of a call.
pub type CallFuture<'a, T> = BoxFuture<'a, Result<T, RuntimeError>>;

/// Runtime calls about the runtime itself: version and health.
pub trait RuntimeStatus: Send + Sync + 'static {
    /// Name and version, such as `containerd` `1.6.20`.
    fn version(&self) -> CallFuture<'_, RuntimeVersion>;

    /// Whether sandboxes and their network can be set up.
    fn health(&self) -> CallFuture<'_, RuntimeHealth>;
}

/// What the runtime has of the pods.
pub trait PodReader: Send + Sync + 'static {
    /// All pods in the runtime, for adoption at the start and for repair.
    fn list(&self) -> CallFuture<'_, Vec<PodOnNode>>;

    /// The pods whose uids are not in `known`. Skips the status of known pods, which is most of the cost of [`PodReader::list`].
    fn list_unmanaged<'a>(&'a self, known: &'a BTreeSet<String>) -> CallFuture<'a, Vec<PodOnNode>> {
        let unmanaged = |mut pods: Vec<PodOnNode>| {
            pods.retain(|pod| !known.contains(&pod.uid));
            pods
        };
        self.list().map_ok(unmanaged).boxed()
    }

    /// One pod; empty if the runtime has nothing of it.
    fn pod<'a>(&'a self, uid: &'a str) -> CallFuture<'a, PodOnNode>;

    /// The current status of a container; `None` if it does not exist.
    fn container<'a>(&'a self, id: &'a str) -> CallFuture<'a, Option<ObservedContainer>>;
}

/// Runtime calls that create, stop and remove pod sandboxes.
pub trait SandboxRuntime: Send + Sync + 'static {
    /// Creates and starts a sandbox; returns the existing one of the same attempt if it is ready.
    fn run_sandbox<'a>(&'a self, config: &'a SandboxConfig) -> CallFuture<'a, ObservedSandbox>;

    /// Kills the processes in a sandbox and tears down its network.
    fn stop_sandbox<'a>(&'a self, id: &'a str) -> CallFuture<'a, ()>;

    /// Removes a sandbox and its containers.
    fn remove_sandbox<'a>(&'a self, id: &'a str) -> CallFuture<'a, ()>;
}

/// Runtime calls that create, start, stop and remove containers.
pub trait ContainerRuntime: Send + Sync + 'static {
    /// Creates a container in a sandbox and returns its id; returns the existing one of the same name and attempt.
    fn create_container<'a>(
        &'a self,
        sandbox_id: &'a str,
        config: &'a ContainerConfig,
        sandbox: &'a SandboxConfig,
    ) -> CallFuture<'a, String>;

    /// Starts a created container. Fails if it was started before.
    fn start_container<'a>(&'a self, id: &'a str) -> CallFuture<'a, ()>;

    /// Sends the stop signal, waits up to `grace`, then kills; returns after the container has exited.
    fn stop_container<'a>(&'a self, id: &'a str, grace: Duration) -> CallFuture<'a, ()>;

    /// Removes a container, but not its log.
    fn remove_container<'a>(&'a self, id: &'a str) -> CallFuture<'a, ()>;

    /// Changes the resources of a running container.
    fn update_resources<'a>(
        &'a self,
        id: &'a str,
        resources: &'a ContainerResources,
    ) -> CallFuture<'a, ()>;
}

/// Access to the log files that the runtime writes.
pub trait ContainerLogs: Send + Sync + 'static {
    /// Makes the runtime reopen the container's log file after it was renamed.
    fn reopen_log<'a>(&'a self, id: &'a str) -> CallFuture<'a, ()>;
}

/// What is done in running containers from outside.
pub trait ContainerAccess: Send + Sync + 'static {
    /// Runs a command in a container until it exits; a `timeout` of 0 is none. Returns the first `keep` bytes of each output
    /// stream; the rest is read and discarded, so the command is not blocked.
    fn exec<'a>(
        &'a self,
        id: &'a str,
        command: &'a [String],
        timeout: Duration,
        keep: usize,
    ) -> CallFuture<'a, ExecOutput>;

    /// Prepares a streaming session; returns a URL of the runtime's server, valid for one connection.
    fn stream<'a>(&'a self, request: &'a StreamRequest) -> CallFuture<'a, String>;

    /// Writes a checkpoint of a running container to `archive`; a `timeout` of 0 uses the default. CRI has the call since release
    /// 1.25.
    fn checkpoint<'a>(
        &'a self,
        id: &'a str,
        archive: &'a str,
        timeout: Duration,
    ) -> CallFuture<'a, ()>;
}

/// The images of the node.
pub trait ImageRuntime: Send + Sync + 'static {
    /// An image by name or id; `None` if the node does not have it.
    fn image<'a>(&'a self, name: &'a str) -> CallFuture<'a, Option<Image>>;

    /// All images.
    fn images(&self) -> CallFuture<'_, Vec<Image>>;

    /// Pulls an image and returns its id.
    fn pull_image<'a>(
        &'a self,
        name: &'a str,
        login: Option<&'a RegistryLogin>,
    ) -> CallFuture<'a, String>;

    /// Progress of all pulls, if the runtime reports it.
    fn pull_progress(&self) -> CallFuture<'_, ArrivingParts> {
        std::future::ready(Ok(ArrivingParts::default())).boxed()
    }

    /// Removes an image with all its names.
    fn remove_image<'a>(&'a self, id: &'a str) -> CallFuture<'a, ()>;

    /// File systems that hold images.
    fn image_filesystems(&self) -> CallFuture<'_, Vec<FilesystemUsage>>;
}

/// Runtime calls that read resource usage.
pub trait UsageReader: Send + Sync + 'static {
    /// Usage of all running containers.
    fn usage(&self) -> CallFuture<'_, Vec<ContainerUsage>>;
}

/// A container runtime, for what needs the whole of it; a user of a part takes that part's trait.
pub trait Runtime:
    RuntimeStatus
    + PodReader
    + SandboxRuntime
    + ContainerRuntime
    + ContainerLogs
    + ContainerAccess
    + ImageRuntime
    + UsageReader
{
}

impl<R> Runtime for R where
    R: RuntimeStatus
        + PodReader
        + SandboxRuntime
        + ContainerRuntime
        + ContainerLogs
        + ContainerAccess
        + ImageRuntime
        + UsageReader
{
}

/// Content being fetched by all pulls together.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ArrivingParts {
    /// Number of blobs.
    pub parts: usize,
    /// Bytes received.
    pub bytes: u64,
    /// Total bytes.
    pub total: u64,
}

/// Why a call failed.
#[derive(Debug, thiserror::Error)]
pub enum RuntimeError {
    /// The endpoint has an invalid form.
    #[error("runtime endpoint {endpoint} is not unix:///an/absolute/path")]
    Endpoint {
        /// The configured endpoint.
        endpoint: String,
    },
    /// No response in time; the state of the call is unknown.
    #[error("{call} {object}: no response within {} s", after.as_secs())]
    Deadline {
        call: &'static str,
        object: String,
        /// The deadline.
        after: Duration,
    },
    /// The runtime returned an error, or the connection broke.
    #[error("{call} {object}")]
    Refused {
        call: &'static str,
        object: String,
        /// The error.
        #[source]
        source: RuntimeRefusal,
    },
    /// The response lacks a required field.
    #[error("{call} {object}: the response has no {missing}")]
    Incomplete {
        call: &'static str,
        object: String,
        /// Name of the field.
        missing: &'static str,
    },
}

/// An error returned by a runtime.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct RuntimeRefusal {
    /// Kind of the error.
    pub kind: RefusalKind,
    /// The runtime's message.
    pub message: String,
}

/// Kinds of errors that callers distinguish.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RefusalKind {
    /// No such object.
    NotFound,
    /// The runtime does not implement the call.
    Unimplemented,
    /// The connection failed, or the runtime is not up yet.
    Unavailable,
    /// The operation exceeded its timeout.
    TimedOut,
    /// Any other error.
    Other,
}

impl RuntimeError {
    /// The message without call and object: the runtime's own message if there is one.
    #[must_use]
    pub fn message(&self) -> String {
        match self {
            Self::Refused { source, .. } => source.message.clone(),
            other => other.to_string(),
        }
    }

    /// Whether the object does not exist.
    #[must_use]
    pub fn is_not_found(&self) -> bool {
        self.kind() == Some(RefusalKind::NotFound)
    }

    /// Whether the runtime as a whole is unavailable, so that other calls fail too.
    #[must_use]
    pub fn is_unavailable(&self) -> bool {
        self.kind() == Some(RefusalKind::Unavailable)
    }

    /// Whether the call timed out.
    #[must_use]
    pub fn is_timeout(&self) -> bool {
        matches!(self, Self::Deadline { .. }) || self.kind() == Some(RefusalKind::TimedOut)
    }

    /// Kind of the error if the runtime responded.
    #[must_use]
    pub fn kind(&self) -> Option<RefusalKind> {
        match self {
            Self::Refused { source, .. } => Some(source.kind),
            _ => None,
        }
    }
}

/// Name and version of a runtime.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RuntimeVersion {
    /// E.g. `containerd`.
    pub name: String,
    /// E.g. `1.6.20`.
    pub version: String,
}

/// Health of a runtime, by its conditions.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RuntimeHealth {
    /// Whether sandboxes can run.
    pub runtime: Result<(), ConditionError>,
    /// Whether the network of sandboxes can be set up; without it only pods on the host network run.
    pub network: Result<(), ConditionError>,
}

/// Why a condition of a runtime does not hold.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ConditionError {
    /// It is false, in the words of the runtime.
    #[error("{reason}: {message}")]
    False { reason: String, message: String },
    /// The runtime does not report it.
    #[error("the runtime reports no {0} condition")]
    Missing(&'static str),
}

/// A pod in the runtime.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct PodOnNode {
    /// UID of the pod.
    pub uid: String,
    /// Namespace of the pod.
    pub namespace: String,
    /// Name of the pod.
    pub name: String,
    pub sandboxes: Vec<ObservedSandbox>,
    pub containers: Vec<ObservedContainer>,
}

/// Largest command output that can be requested: the limit of current runtimes.
pub const OUTPUT_LEN_MAX: usize = 16 << 20;

/// Result of a command in a container.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ExecOutput {
    /// Standard output, up to the requested size.
    pub stdout: Vec<u8>,
    /// Standard error, up to the requested size.
    pub stderr: Vec<u8>,
    /// Exit code.
    pub code: i32,
}

/// A streaming session to prepare.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum StreamRequest {
    /// A command in a container.
    Exec {
        /// Id of the container.
        container: String,
        /// Program and arguments.
        command: Vec<String>,
        /// Connected streams.
        streams: Streams,
    },
    /// The container's main process.
    Attach {
        /// Id of the container.
        container: String,
        /// Connected streams.
        streams: Streams,
    },
    /// Ports of a sandbox.
    PortForward {
        /// Id of the sandbox.
        sandbox: String,
        /// Ports; empty if the client names them in the session.
        ports: Vec<i32>,
    },
}

impl StreamRequest {
    /// Whether standard error is to be connected to a session with a terminal, which runtimes
    /// refuse.
    #[must_use]
    pub fn has_stderr_beside_terminal(&self) -> bool {
        match self {
            Self::Exec { streams, .. } | Self::Attach { streams, .. } => {
                streams.tty && streams.stderr
            }
            Self::PortForward { .. } => false,
        }
    }
}

/// Streams of a session.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Streams {
    /// Whether standard input is connected.
    pub stdin: bool,
    /// Whether standard output is connected.
    pub stdout: bool,
    /// Whether standard error is connected; never with a terminal.
    pub stderr: bool,
    /// Whether a terminal is allocated.
    pub tty: bool,
}

/// An image on the node.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Image {
    /// `sha256:<hex>` of its configuration.
    pub id: String,
    /// References with a tag.
    pub tags: Vec<String>,
    /// References with a digest.
    pub digests: Vec<String>,
    /// Stored size in bytes.
    pub size: u64,
    /// Numeric uid in its configuration, if any.
    pub uid: Option<i64>,
    /// User name in its configuration, if not numeric.
    pub username: String,
    /// Whether the runtime pins it against garbage collection.
    pub pinned: bool,
}

/// Credentials for a registry.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct RegistryLogin {
    /// User name.
    pub username: String,
    pub password: String,
    /// Server that the credentials are for.
    pub server: String,
    /// Identity token, in place of user name and password.
    pub identity_token: String,
    /// Registry token, in place of user name and password.
    pub registry_token: String,
}

/// Prints user name and server only.
impl std::fmt::Debug for RegistryLogin {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("RegistryLogin")
            .field("username", &self.username)
            .field("server", &self.server)
            .finish_non_exhaustive()
    }
}

/// Usage of a file system.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FilesystemUsage {
    /// Mount point or a directory on it.
    pub mountpoint: String,
    pub used_bytes: u64,
    pub inodes_used: u64,
}

/// Resource usage of a container as the runtime reports it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ContainerUsage {
    /// Id of the container.
    pub id: String,
    /// Name of the container in its pod.
    pub name: String,
    pub pod_uid: String,
    /// Time of the measurement in nanoseconds since 1970.
    pub measured_at: i64,
    /// Cumulative CPU time in nanoseconds.
    pub cpu_nanos: u64,
    pub working_set_bytes: u64,
    /// Anonymous memory in bytes.
    pub rss_bytes: u64,
    /// Charged memory in bytes.
    pub usage_bytes: u64,
    /// Bytes in the writable layer.
    pub writable_bytes: u64,
    /// Inodes in the writable layer.
    pub writable_inodes: u64,
}
