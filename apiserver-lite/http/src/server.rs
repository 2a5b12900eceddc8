//! What all connections share: the core and what only HTTP needs.

use std::sync::Arc;

use apiserver_audit_log::AuditLog;
use apiserver_core::server::Server;
use proto_daemon::admin::AdminPages;
use tokio_util::sync::CancellationToken;

use crate::aggregation::Aggregation;
use crate::flow_control::RequestFlows;
use crate::metrics::Metrics;
use crate::node_proxy::NodeProxy;
use crate::open_api_documents::OpenApiDocuments;
use crate::overload::Overload;
use crate::resource_metrics::ResourceMetrics;
use crate::watch_batching::WatchBatches;
use crate::web_page::WebPage;

/// The state of an API server behind its listener.
pub struct HttpServer {
    /// Objects, rules and users.
    pub core: Arc<Server>,
    /// Connects to kubelets, workloads and other API servers.
    pub nodes: NodeProxy,
    /// What is known of other API servers.
    pub aggregation: Aggregation,
    /// What nodes and pods use.
    pub resource_metrics: ResourceMetrics,
    /// Groups of watches of the same collection.
    pub watch_batches: WatchBatches,
    /// OpenAPI documents of responses that are under way.
    pub open_api: OpenApiDocuments,
    /// Limits of requests in flight.
    pub overload: Overload,
    /// Priority and fairness of requests; `None` where all are equal.
    pub flow_control: Option<RequestFlows>,
    /// The web page for people, if it is served.
    pub web_page: Option<WebPage>,
    /// Health, metrics and task status pages.
    pub pages: AdminPages,
    /// The audit log, if there is one.
    pub audit: Option<Arc<AuditLog>>,
    /// Counters and durations.
    pub metrics: Metrics,
    /// Cancelled when shutdown begins; requests are still served, `/readyz` fails.
    pub about_to_stop: CancellationToken,
    /// Cancelled when the listener closes; ends watches and other long-running requests.
    pub stopping: CancellationToken,
}
