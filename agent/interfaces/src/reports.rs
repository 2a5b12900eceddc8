//! What a pod's task reports to the API server.

use agent_pod::events::PodEvent;
use futures_util::future::BoxFuture;
use proto_api::core::v1::{Pod, PodStatus};

/// The API server as seen by a pod's task.
pub trait Reports: Send + Sync {
    /// Changes the pod's status in the API. Returns the status that the server shows then.
    fn status<'a>(
        &'a self,
        pod: &'a Pod,
        change: StatusChange<'a>,
    ) -> BoxFuture<'a, Result<Reported, ReportError>>;

    /// Deletes the pod object, if it still has this uid.
    fn deleted<'a>(&'a self, pod: &'a Pod) -> BoxFuture<'a, Result<(), ReportError>>;

    /// Records an event; never blocks.
    fn event(&self, pod: &Pod, event: PodEvent);
}

/// A change of the status that the API shows of a pod.
#[derive(Clone, Copy, Debug)]
pub struct StatusChange<'a> {
    /// The status that the API is known to show.
    pub from: &'a PodStatus,
    /// The status that it is to show.
    pub to: &'a PodStatus,
    /// Whether the patch states all fields, since `from` may be wrong.
    pub whole: bool,
}

/// A status as stored by the server.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ServerStatus {
    /// The whole status, with the fields of other clients.
    pub status: PodStatus,
    /// `metadata.resourceVersion` of the object; empty without an API server.
    pub version: String,
}

/// Outcome of a status write.
#[derive(Clone, Debug, PartialEq)]
pub enum Reported {
    /// The server shows this status now.
    Shown(Box<ServerStatus>),
    /// The object no longer exists.
    NoObject,
}

/// A write to the API server failed. The caller retries with back-off, whatever the reason is.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct ReportError(pub String);
