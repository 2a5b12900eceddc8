//! Scrapes the resource metrics of all nodes periodically, some at a time.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use apiserver_core::server::Server;
use apiserver_core::status::ApiError;
use apiserver_metrics_api::{PAGE_LEN_MAX, Scrape, parse};
use apiserver_schema::Object;
use futures_util::{StreamExt as _, stream};
use proto_daemon::panics;
use tokio::time::Instant;

use crate::node_proxy::NodeProxy;
use crate::resource_metrics::ResourceMetrics;
use crate::server::HttpServer;

/// Nodes that are scraped at a time.
const PARALLEL_MAX: usize = 16;
/// Longest wait for a node.
const NODE_WAIT_MAX: Duration = Duration::from_secs(10);
/// Time between two rounds without requests: the first request finds recent metrics.
const IDLE_INTERVAL: Duration = Duration::from_secs(60);
/// Shortest time between two rounds.
const INTERVAL_MIN: Duration = Duration::from_millis(50);

const PATH: &str = "/metrics/resource";

/// Scrapes all nodes once an interval, until the server stops.
pub async fn run(server: Arc<HttpServer>) {
    let interval = server.core.config.resource_metrics_interval.max(INTERVAL_MIN);
    let status = server.pages.status.task("resource metrics");
    let metrics = &server.resource_metrics;
    let mut failing = BTreeSet::new();
    loop {
        let began = Instant::now();
        status.started("time has passed");
        let count = tokio::select! {
            () = server.stopping.cancelled() => return,
            count = ask_all(&server.core, &server.nodes, metrics, interval, &mut failing) => count,
        };
        status.done(format!("{count} nodes answered, {} did not", failing.len()));
        let period = if metrics.is_idle() { interval.max(IDLE_INTERVAL) } else { interval };
        let mut next = began + period;
        loop {
            // Cancel safe: sleeping holds no state.
            tokio::select! {
                () = server.stopping.cancelled() => return,
                () = metrics.wanted.notified() => next = began + interval,
                () = tokio::time::sleep_until(next) => break,
            }
        }
    }
}

/// One round. Gives the number of nodes that answered.
async fn ask_all(
    server: &Arc<Server>,
    proxy: &NodeProxy,
    metrics: &ResourceMetrics,
    interval: Duration,
    failing: &mut BTreeSet<String>,
) -> usize {
    let (all, answering) = nodes(server);
    metrics.change(|nodes| nodes.retain(|name, _| all.contains(name)));
    failing.retain(|name| all.contains(name));
    let silent = all.difference(&answering);
    metrics.change(|nodes| silent.for_each(|name| nodes.entry(name.clone()).or_default().miss()));
    let ask_one = |name: String| async move {
        let answer = tokio::time::timeout(NODE_WAIT_MAX, scrape_node(server, proxy, &name)).await;
        let late = || ApiError::new(504, "Timeout", "no response before the deadline");
        (name, answer.unwrap_or_else(|_| Err(late())))
    };
    let mut answers = stream::iter(answering).map(ask_one).buffer_unordered(PARALLEL_MAX);
    let mut count = 0usize;
    while let Some((name, answer)) = answers.next().await {
        match answer {
            Ok(scrape) => {
                count = count.saturating_add(1);
                failing.remove(&name);
                metrics.change(|nodes| nodes.entry(name).or_default().take(scrape, interval));
            }
            Err(error) => {
                if failing.insert(name.clone()) {
                    let error = &error.status().message;
                    tracing::warn!(
                        node = name,
                        error,
                        "cannot read the resource metrics of a node; NodeMetrics and PodMetrics are missing until it can be read"
                    );
                }
                metrics.change(|nodes| nodes.entry(name).or_default().miss());
            }
        }
    }
    count
}

/// The names of all nodes, and of those whose agent has not fallen silent.
fn nodes(server: &Server) -> (BTreeSet<String>, BTreeSet<String>) {
    let Some(kind) = server.kind("", "nodes") else { return Default::default() };
    let stored = server.objects(kind, "", None);
    let name = |object: &Object| object.name().to_owned();
    let all = stored.iter().map(|record| record.object());
    let answering = all.clone().filter(|node| !is_silent(node)).map(name).collect();
    (all.map(name).collect(), answering)
}

fn is_silent(node: &Object) -> bool {
    let conditions = node.status().map(|status| status.maps("conditions"));
    let mut ready = conditions.into_iter().flatten().filter(|one| one.str("type") == "Ready");
    ready.next().is_some_and(|ready| ready.str("status") == "Unknown")
}

async fn scrape_node(
    server: &Arc<Server>,
    proxy: &NodeProxy,
    node: &str,
) -> Result<Scrape, ApiError> {
    let page = proxy.page(server, node, PATH, PAGE_LEN_MAX).await?;
    let parsed = panics::spawn_blocking(move || parse(&String::from_utf8_lossy(&page))).await;
    parsed.map_err(ApiError::internal)
}
