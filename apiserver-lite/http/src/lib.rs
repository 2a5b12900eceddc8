//! io: HTTP over `apiserver_core`: connections, routing, content negotiation, bodies and streams, discovery, proxies to nodes,
//! workloads and other API servers. The verbs themselves are in `apiserver_core::verbs`.

mod aggregated_requests;
mod aggregation;
mod audit;
mod availability_checks;
mod backup;
mod body;
mod compress;
mod deprecation;
mod discovery;
mod dispatch;
mod flow_control;
mod handler;
mod in_process;
mod indent;
mod labels;
mod metrics;
mod negotiate;
mod node_proxy;
mod overload;
mod peer;
mod render;
mod resource_metrics;
mod routes;
mod saved_states;
mod scraper;
mod serve;
mod server;
mod upgrade;
mod warnings;
mod watch;
mod watch_batching;
mod websocket;

pub use aggregation::Aggregation;
pub use availability_checks::run as check_api_services;
pub use flow_control::RequestFlows;
pub use in_process::InProcess;
pub use metrics::Metrics;
pub use node_proxy::{NodeProxy, NodeProxyError};
pub use overload::Overload;
pub use resource_metrics::ResourceMetrics;
pub use scraper::run as run_resource_metrics;
pub use serve::{CurrentTls, ServingTls, serve};
pub use server::HttpServer;
pub use watch_batching::WatchBatches;
