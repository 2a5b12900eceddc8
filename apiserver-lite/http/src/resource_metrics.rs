//! Resource metrics of nodes and pods (`metrics.k8s.io`): made of what nodes have measured, and in no store. What is asked of them is what metrics-server
//! answers: nodes and running pods, by name or by selectors, and 404 for what has no metrics.

use std::collections::BTreeMap;
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

use apiserver_core::context::RequestContext;
use apiserver_core::record::StoredObject;
use apiserver_core::request::{RequestInfo, Verb};
use apiserver_core::server::Server;
use apiserver_core::status::{ApiError, StatusTarget};
use apiserver_core::times::now;
use apiserver_core::verbs::{Selection, VerbOutput, VerbResponse};
use apiserver_metrics_api::{NodeUsage, PodKey, node_metrics, pod_metrics};
use apiserver_schema::list::ListMeta;
use apiserver_schema::{Kind, Object};
use tokio::sync::Notify;
use tokio::time::Instant;

/// The measurements of all nodes.
#[derive(Default)]
pub struct ResourceMetrics {
    nodes: RwLock<BTreeMap<String, NodeUsage>>,
    /// Time of the last request for metrics.
    asked: RwLock<Option<Instant>>,
    /// Notified at the first request after a long pause.
    pub(crate) wanted: Notify,
}

/// Without a request for this long, nodes are scraped less often.
const IDLE_AFTER: Duration = Duration::from_secs(600);

/// Whether a request is about resource metrics.
pub fn is_about(server: &Server, request: &RequestInfo) -> bool {
    request.group.starts_with("metrics.") && request.group == server.names.group("metrics")
}

impl ResourceMetrics {
    /// Answers get and list; the kind has no other verbs.
    ///
    /// # Errors
    /// 404 for what does not exist or has no metrics, 400 for invalid selectors.
    pub fn serve(&self, call: &RequestContext<'_>) -> Result<VerbOutput, ApiError> {
        self.note_request();
        let (server, request) = (call.server, call.request);
        let of = server.kind("", &request.resource).ok_or_else(ApiError::no_such_resource)?;
        let response = match request.verb {
            Verb::Get => {
                let found = server.find(of, &request.namespace, &request.name);
                let found = found.filter(|found| is_measured(found.object()));
                let about =
                    StatusTarget { group: "", kind: &request.resource, name: &request.name };
                let found = found.ok_or_else(|| ApiError::not_found(about))?;
                found.check_readable()?;
                let object = self.measured(&call.kind, found.object());
                let object = object.ok_or_else(|| not_measured(request))?;
                VerbResponse::Object { code: 200, object: Box::new(object) }
            }
            Verb::List => {
                let items = self.list(call, of)?;
                VerbResponse::List { kind: call.kind.clone(), meta: ListMeta::default(), items }
            }
            _ => return Err(ApiError::method_not_allowed()),
        };
        Ok(response.into())
    }

    fn list(
        &self,
        call: &RequestContext<'_>,
        of: &Arc<Kind>,
    ) -> Result<Vec<Arc<StoredObject>>, ApiError> {
        let selection = Selection::parse(call)?;
        let stored = call.server.objects(of, &call.request.namespace, None);
        let found = stored.iter().map(|record| record.object());
        let found = found.filter(|object| is_measured(object) && selection.matches(object));
        let measured = found.filter_map(|object| self.measured(&call.kind, object));
        Ok(measured.map(|object| Arc::new(StoredObject::unstored(object))).collect())
    }

    /// The metrics of a node or pod.
    fn measured(&self, kind: &Arc<Kind>, of: &Object) -> Option<Object> {
        let nodes = self.nodes.read().unwrap_or_else(PoisonError::into_inner);
        let now = now() - time::OffsetDateTime::UNIX_EPOCH;
        let now = Duration::try_from(now).unwrap_or_default();
        if !kind.namespaced() {
            return Some(node_metrics(kind, of, &nodes.get(of.name())?.node()?, now));
        }
        // A node says nothing about pods of other nodes.
        let usage = nodes.get(of.str_at(&["spec", "nodeName"]))?;
        let pod = PodKey { namespace: of.namespace().to_owned(), name: of.name().to_owned() };
        Some(pod_metrics(kind, of, &usage.pod(&pod)?, now))
    }

    /// Records a request for metrics.
    fn note_request(&self) {
        let mut asked = self.asked.write().unwrap_or_else(PoisonError::into_inner);
        let was_idle = asked.replace(Instant::now()).is_none_or(|at| at.elapsed() > IDLE_AFTER);
        if was_idle {
            self.wanted.notify_one();
        }
    }

    /// Whether there was no request for a long time.
    pub(crate) fn is_idle(&self) -> bool {
        let asked = *self.asked.read().unwrap_or_else(PoisonError::into_inner);
        asked.is_none_or(|at| at.elapsed() > IDLE_AFTER)
    }

    /// Changes what is known.
    pub(crate) fn change<T>(
        &self,
        change: impl FnOnce(&mut BTreeMap<String, NodeUsage>) -> T,
    ) -> T {
        change(&mut self.nodes.write().unwrap_or_else(PoisonError::into_inner))
    }
}

/// Nodes, and the pods that run.
fn is_measured(object: &Object) -> bool {
    !object.kind.is("", "Pod") || object.str_at(&["status", "phase"]) == "Running"
}

/// The 404 for a node or pod without metrics, as metrics-server words it.
fn not_measured(request: &RequestInfo) -> ApiError {
    let RequestInfo { group, namespace, name, .. } = request;
    match namespace.as_str() {
        "" => ApiError::not_found(StatusTarget { group, kind: "nodemetrics", name }),
        _ => {
            let name = format!("{namespace}/{name}");
            ApiError::not_found(StatusTarget { group, kind: "podmetrics", name: &name })
        }
    }
}
