//! Writes of pod tasks to the API server: statuses, the deletion of terminated pods, events.

use std::sync::Arc;

use agent_interfaces::ServerStatus;
use agent_interfaces::{ReportError, Reported, Reports, StatusChange};
use agent_pod::events::{PodEvent, Severity};
use agent_sources::mirrors::is_mirror_of;
use agent_workers::status_patch;
use futures_util::FutureExt as _;
use futures_util::future::BoxFuture;
use proto_api::ObjectKey;
use proto_api::core::v1::{Pod, PodStatus};
use proto_api::event_report::{EventKind, reference};
use proto_client::events::Recorder;
use proto_client::{Client, ClientError, DeleteParams, Patch, Store, WriteParams};
use proto_daemon::exit::chain;

/// Writes what the agent reports to the API: pods, events and the Node.
pub struct ClusterReports {
    client: Client,
    recorder: Recorder,
    /// The node's pods in the API, including mirrors.
    shown: Store<Pod>,
}

impl ClusterReports {
    /// `shown` holds the node's pods in the API.
    pub fn new(client: Client, recorder: Recorder, shown: Store<Pod>) -> Self {
        Self { client, recorder, shown }
    }

    /// The API object of `pod`: itself or its mirror.
    fn object(&self, pod: &Pod) -> Option<(String, Option<Arc<Pod>>)> {
        let names = self.client.names();
        if !pod.metadata.annotations.contains_key(&names.label("config.source")) {
            return Some((pod.metadata.uid.clone(), None));
        }
        let mirror = self.shown.get(&ObjectKey::from_metadata(&pod.metadata));
        let mirror = mirror.filter(|m| is_mirror_of(names, m, pod))?;
        Some((mirror.metadata.uid.clone(), Some(mirror)))
    }

    async fn write(&self, pod: &Pod, change: StatusChange<'_>) -> Result<Reported, ReportError> {
        let StatusChange { from, to, whole } = change;
        let Some((uid, mirror)) = self.object(pod) else {
            return Err(ReportError("the static pod has no mirror pod yet".to_owned()));
        };
        if mirror.as_ref().is_some_and(|m| status_patch::would_regress(from, &m.status, to)) {
            return Err(ReportError("the status of the mirror pod is not known yet".to_owned()));
        }
        let from = mirror.as_ref().map_or(from, |m| &m.status);
        if let Some(mirror) = mirror.as_ref().filter(|_| !whole && !status_patch::differs(from, to))
        {
            return Ok(as_reported((**mirror).clone()));
        }
        let unknown = PodStatus::default();
        let from = if whole { &unknown } else { from };
        let api = self.client.within::<Pod>(&pod.metadata.namespace);
        let patch = Patch::Strategic(status_patch::patch(&uid, from, to));
        match api.patch_status(&pod.metadata.name, &patch, &WriteParams::default()).await {
            Ok(written) => Ok(as_reported(written)),
            // The object was deleted, or has another uid.
            Err(error) if error.is_not_found() || is_other_uid(&error) => Ok(Reported::NoObject),
            Err(error) => Err(ReportError(chain(&error))),
        }
    }

    async fn delete(&self, pod: &Pod) -> Result<(), ReportError> {
        let api = self.client.within::<Pod>(&pod.metadata.namespace);
        match api.delete(&pod.metadata.name, &DeleteParams::now(&pod.metadata.uid)).await {
            Ok(()) => Ok(()),
            Err(error) if error.is_not_found() || is_other_uid(&error) => Ok(()),
            Err(error) => Err(ReportError(chain(&error))),
        }
    }
}

fn as_reported(object: Pod) -> Reported {
    let version = object.metadata.resource_version;
    Reported::Shown(ServerStatus { status: object.status, version }.into())
}

/// Whether the server rejected the write because the object has another uid.
fn is_other_uid(error: &ClientError) -> bool {
    error.is_conflict() && error.to_string().contains("UID")
}

impl Reports for ClusterReports {
    fn status<'a>(
        &'a self,
        pod: &'a Pod,
        change: StatusChange<'a>,
    ) -> BoxFuture<'a, Result<Reported, ReportError>> {
        self.write(pod, change).boxed()
    }

    fn deleted<'a>(&'a self, pod: &'a Pod) -> BoxFuture<'a, Result<(), ReportError>> {
        self.delete(pod).boxed()
    }

    fn event(&self, pod: &Pod, event: PodEvent) {
        let mut about = reference(pod, self.client.names());
        if let Some((uid, _)) = self.object(pod) {
            about.uid = uid;
        }
        about.field_path = event.field_path;
        let kind = match event.severity {
            Severity::Normal => EventKind::Normal,
            Severity::Warning => EventKind::Warning,
        };
        self.recorder.event(&about, kind, event.reason, event.message);
    }
}

/// A node without an API server: statuses are discarded, events are logged.
#[derive(Debug, Default)]
pub struct NoReports;

impl Reports for NoReports {
    fn status<'a>(
        &'a self,
        _: &'a Pod,
        change: StatusChange<'a>,
    ) -> BoxFuture<'a, Result<Reported, ReportError>> {
        let answer = ServerStatus { status: change.to.clone(), version: String::new() };
        std::future::ready(Ok(Reported::Shown(answer.into()))).boxed()
    }

    fn deleted<'a>(&'a self, _: &'a Pod) -> BoxFuture<'a, Result<(), ReportError>> {
        std::future::ready(Ok(())).boxed()
    }

    fn event(&self, pod: &Pod, event: PodEvent) {
        let PodEvent { reason, message, .. } = event;
        let (name, namespace) = (&pod.metadata.name, &pod.metadata.namespace);
        tracing::info!(
            pod = name,
            namespace,
            uid = pod.metadata.uid,
            reason = &*reason,
            message,
            "pod event recorded"
        );
    }
}
