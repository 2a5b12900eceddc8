//! What requests are served from.

use std::io;
use std::path::PathBuf;
use std::sync::Arc;

use agent_telemetry::metrics::AgentMetrics;
use bytes::Bytes;
use http_body_util::combinators::UnsyncBoxBody;
use proto_api::names::Names;
use proto_daemon::admin::AdminPages;

use crate::access::Access;
use crate::request_permits::RequestPermits;
use crate::routes::Switch;
use crate::view::NodeView;

pub(crate) type Body = UnsyncBoxBody<Bytes, io::Error>;

/// What the endpoint serves requests from.
pub struct Service {
    /// Authentication and authorization.
    pub access: Access,
    /// The agent.
    pub view: Arc<dyn NodeView>,
    /// Health, metrics and debugging pages.
    pub pages: AdminPages,
    /// Names of the naming profile.
    pub names: &'static Names,
    /// Which pages are enabled.
    pub switches: Switches,
    /// Directory shown at `/logs/`.
    pub system_logs_dir: PathBuf,
    /// Metrics of probes, as text.
    pub probes: Box<dyn Fn() -> String + Send + Sync>,
    /// Metrics of requests.
    pub metrics: AgentMetrics,
    /// Permits of sessions and logs.
    pub permits: Arc<RequestPermits>,
}

/// Which pages the configuration enables.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Switches {
    /// `enableDebuggingHandlers`.
    pub debugging: bool,
    /// `enableSystemLogHandler`.
    pub system_logs: bool,
    /// `enableProfilingHandler`.
    pub profiling: bool,
    /// `enableDebugFlagsHandler`.
    pub flags: bool,
    /// The gate `ContainerCheckpoint`.
    pub checkpoint: bool,
}

impl Switches {
    pub(crate) fn is_on(self, switch: Switch) -> bool {
        match switch {
            Switch::Always => true,
            Switch::Debugging => self.debugging,
            Switch::SystemLogs => self.debugging && self.system_logs,
            Switch::Profiling => self.debugging && self.profiling,
            Switch::Flags => self.debugging && self.flags,
            Switch::Checkpoint => self.checkpoint,
        }
    }
}
