//! The seam between the agent and whatever runs containers.
//!
//! Declared by what a pod's task does, not by what an interface offers: values of `agent_pod` go in and come out, so that the
//! real runtime and the one in tests cannot be told apart. Every call is safe to repeat: creating what exists gives what is there,
//! stopping or removing what is gone succeeds.

use std::collections::BTreeSet;
use std::time::Duration;

use agent_pod::observed::{ContainerSeen, SandboxSeen};
use agent_pod::spec::{ContainerConfig, ContainerResources, SandboxConfig};
use futures_util::future::BoxFuture;
use futures_util::{FutureExt as _, TryFutureExt as _};

/// The future of a call's answer.
pub type Answer<'a, T> = BoxFuture<'a, Result<T, RuntimeError>>;

/// A container runtime.
pub trait Runtime: Send + Sync + 'static {
    /// Who answers, e.g. `containerd` `1.6.20`.
    fn version(&self) -> Answer<'_, RuntimeVersion>;

    /// Whether sandboxes can be run at all and whether their network can be set up.
    fn health(&self) -> Answer<'_, RuntimeHealth>;

    /// All pods that the runtime has, for adopting them at the start and for repair.
    fn list(&self) -> Answer<'_, Vec<PodOnNode>>;

    /// The pods that are not among `known`, by uid: how those are is not asked for, which is most of what [`Runtime::list`] costs.
    fn strangers<'a>(&'a self, known: &'a BTreeSet<String>) -> Answer<'a, Vec<PodOnNode>> {
        let strangers = |mut pods: Vec<PodOnNode>| {
            pods.retain(|pod| !known.contains(&pod.uid));
            pods
        };
        self.list().map_ok(strangers).boxed()
    }

    /// One pod; empty when the runtime has nothing of it.
    fn pod<'a>(&'a self, uid: &'a str) -> Answer<'a, PodOnNode>;

    /// Creates and starts a sandbox; the one of the same attempt when it is there already and ready.
    fn run_sandbox<'a>(&'a self, config: &'a SandboxConfig) -> Answer<'a, SandboxSeen>;

    /// Kills what runs in a sandbox and takes its network down.
    fn stop_sandbox<'a>(&'a self, id: &'a str) -> Answer<'a, ()>;

    /// Removes a sandbox and its containers.
    fn remove_sandbox<'a>(&'a self, id: &'a str) -> Answer<'a, ()>;

    /// Creates a container in a sandbox; its id. The one of the same name and attempt when it is there already.
    fn create_container<'a>(
        &'a self,
        sandbox_id: &'a str,
        config: &'a ContainerConfig,
        sandbox: &'a SandboxConfig,
    ) -> Answer<'a, String>;

    /// Starts a created container. Fails when it has been started before.
    fn start_container<'a>(&'a self, id: &'a str) -> Answer<'a, ()>;

    /// Sends the stop signal, waits up to `grace`, then kills; returns when the container has ended.
    fn stop_container<'a>(&'a self, id: &'a str, grace: Duration) -> Answer<'a, ()>;

    /// Removes a container, its log apart.
    fn remove_container<'a>(&'a self, id: &'a str) -> Answer<'a, ()>;

    /// A container as it is now; `None` when there is none of that id.
    fn container<'a>(&'a self, id: &'a str) -> Answer<'a, Option<ContainerSeen>>;

    /// Changes the limits of a running container.
    fn update_resources<'a>(
        &'a self,
        id: &'a str,
        resources: &'a ContainerResources,
    ) -> Answer<'a, ()>;

    /// Tells the runtime that the container's log file was moved away.
    fn reopen_log<'a>(&'a self, id: &'a str) -> Answer<'a, ()>;

    /// Writes a running container to an archive; a `timeout` of zero is the runtime's own. Runtimes before 1.25 cannot.
    fn checkpoint<'a>(&'a self, id: &'a str, archive: &'a str, timeout: Duration)
    -> Answer<'a, ()>;

    /// Runs a command in a container to its end. `timeout` of zero is none. Of what it writes the first `keep` bytes of each stream
    /// are given back; the rest is read, so that the command goes on, and never gathered.
    fn exec<'a>(
        &'a self,
        id: &'a str,
        command: &'a [String],
        timeout: Duration,
        keep: usize,
    ) -> Answer<'a, ExecOutput>;

    /// Prepares a streaming session; the URL of the runtime's own server, good for one connection.
    fn stream<'a>(&'a self, request: &'a StreamRequest) -> Answer<'a, String>;

    /// An image by name or id; `None` when the node does not have it.
    fn image<'a>(&'a self, name: &'a str) -> Answer<'a, Option<Image>>;

    /// All images.
    fn images(&self) -> Answer<'_, Vec<Image>>;

    /// Pulls an image; its id.
    fn pull_image<'a>(
        &'a self,
        name: &'a str,
        login: Option<&'a RegistryLogin>,
    ) -> Answer<'a, String>;

    /// What of images is on its way, as far as the runtime says.
    fn arrivals(&self) -> Answer<'_, Arrivals> {
        std::future::ready(Ok(Arrivals::default())).boxed()
    }

    /// Removes an image with all its names.
    fn remove_image<'a>(&'a self, id: &'a str) -> Answer<'a, ()>;

    /// The file systems that hold images.
    fn image_filesystems(&self) -> Answer<'_, Vec<FilesystemUsage>>;

    /// Usage of all running containers.
    fn usage(&self) -> Answer<'_, Vec<ContainerUsage>>;
}

/// Parts of images that the runtime is fetching, for all pulls together.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Arrivals {
    /// How many.
    pub parts: usize,
    /// Bytes of them that have come.
    pub bytes: u64,
    /// Bytes of them in all.
    pub total: u64,
}

/// Why a call did not do what it was asked.
#[derive(Debug, thiserror::Error)]
pub enum RuntimeError {
    /// The endpoint is not one that can be connected to.
    #[error("runtime endpoint {endpoint} is not unix:///an/absolute/path")]
    Endpoint {
        /// As configured.
        endpoint: String,
    },
    /// The runtime did not answer in time; what it does meanwhile is unknown.
    #[error("{call} {object}: no answer within {} s", after.as_secs())]
    Deadline {
        /// The call.
        call: &'static str,
        /// What it was about.
        object: String,
        /// How long was waited.
        after: Duration,
    },
    /// The runtime answered with an error, or the connection broke.
    #[error("{call} {object}")]
    Refused {
        /// The call.
        call: &'static str,
        /// What it was about.
        object: String,
        /// What the runtime said.
        #[source]
        source: Refusal,
    },
    /// The runtime's answer lacks something that every answer has.
    #[error("{call} {object}: the answer has no {missing}")]
    Incomplete {
        /// The call.
        call: &'static str,
        /// What it was about.
        object: String,
        /// What is missing.
        missing: &'static str,
    },
}

/// What a runtime said when it refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct Refusal {
    /// Kind of error.
    pub kind: RefusalKind,
    /// The runtime's text, for people.
    pub message: String,
}

/// Kinds of refusal that callers treat differently.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RefusalKind {
    /// No such object.
    NotFound,
    /// This runtime does not implement the call.
    Unimplemented,
    /// The connection failed or the runtime is not up yet.
    Unavailable,
    /// What was asked for took longer than it was allowed to.
    TimedOut,
    /// Anything else.
    Other,
}

impl RuntimeError {
    /// The error for people who know which call of which object it is about: the runtime's own words where there are some.
    #[must_use]
    pub fn said(&self) -> String {
        match self {
            Self::Refused { source, .. } => source.message.clone(),
            other => other.to_string(),
        }
    }

    /// Whether the object of the call does not exist.
    #[must_use]
    pub fn is_not_found(&self) -> bool {
        self.kind() == Some(RefusalKind::NotFound)
    }

    /// Whether the runtime itself, not the object, was the problem: other calls would fail too.
    #[must_use]
    pub fn is_unavailable(&self) -> bool {
        self.kind() == Some(RefusalKind::Unavailable)
    }

    /// Whether the time for the call was up.
    #[must_use]
    pub fn is_timeout(&self) -> bool {
        matches!(self, Self::Deadline { .. }) || self.kind() == Some(RefusalKind::TimedOut)
    }

    /// The kind of refusal, when the runtime answered.
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

/// What a runtime says about itself. `Ok` is ready; `Err` holds reason and message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RuntimeHealth {
    /// Sandboxes can be run.
    pub runtime: Result<(), String>,
    /// The network of sandboxes can be set up; without it only pods of the host's network run.
    pub network: Result<(), String>,
}

/// A pod as the runtime has it.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct PodOnNode {
    /// UID of the pod.
    pub uid: String,
    /// Namespace of the pod.
    pub namespace: String,
    /// Name of the pod.
    pub name: String,
    /// Its sandboxes.
    pub sandboxes: Vec<SandboxSeen>,
    /// Its containers.
    pub containers: Vec<ContainerSeen>,
}

/// Most that is asked for of what a command writes: what the runtimes of the field give at most.
pub const OUTPUT_LEN_MAX: usize = 16 << 20;

/// What a command in a container left.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ExecOutput {
    /// Standard output, as much as was asked for.
    pub stdout: Vec<u8>,
    /// Standard error, likewise.
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
        /// Which streams are connected.
        streams: Streams,
    },
    /// The container's own process.
    Attach {
        /// Id of the container.
        container: String,
        /// Which streams are connected.
        streams: Streams,
    },
    /// Connections to ports inside a sandbox.
    PortForward {
        /// Id of the sandbox.
        sandbox: String,
        /// Ports; empty when the client names them in the session.
        ports: Vec<i32>,
    },
}

/// Streams of a session.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Streams {
    /// Standard input.
    pub stdin: bool,
    /// Standard output.
    pub stdout: bool,
    /// Standard error; never together with a terminal.
    pub stderr: bool,
    /// A terminal.
    pub tty: bool,
}

/// An image of the node.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Image {
    /// `sha256:<hex>` of its configuration.
    pub id: String,
    /// References with a tag.
    pub tags: Vec<String>,
    /// References with a digest.
    pub digests: Vec<String>,
    /// Size in bytes as stored.
    pub size: u64,
    /// User id that it runs as, when it says so by number.
    pub uid: Option<i64>,
    /// User name that it runs as, when it says so by name.
    pub username: String,
    /// Whether it must never be removed for space.
    pub pinned: bool,
}

/// Credentials for a registry.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct RegistryLogin {
    /// User.
    pub username: String,
    /// Password.
    pub password: String,
    /// Server that they are for.
    pub server: String,
    /// Token of an identity provider instead of user and password.
    pub identity_token: String,
    /// Bearer token for the registry instead of user and password.
    pub registry_token: String,
}

/// Shows whose credentials they are, never the credentials.
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
    /// A directory on it.
    pub mountpoint: String,
    /// Bytes used by what was asked about.
    pub used_bytes: u64,
    /// Inodes used by it.
    pub inodes_used: u64,
}

/// Usage of a container.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ContainerUsage {
    /// Id of the container.
    pub id: String,
    /// Name of the container in its pod.
    pub name: String,
    /// UID of its pod.
    pub pod_uid: String,
    /// When it was measured, nanoseconds since 1970.
    pub measured_at: i64,
    /// CPU time since the start in nanoseconds.
    pub cpu_nanos: u64,
    /// Memory that cannot be taken back at once, in bytes.
    pub working_set_bytes: u64,
    /// Anonymous memory in bytes.
    pub rss_bytes: u64,
    /// All memory charged, in bytes.
    pub usage_bytes: u64,
    /// Bytes in the writable layer.
    pub writable_bytes: u64,
    /// Inodes in the writable layer.
    pub writable_inodes: u64,
}
