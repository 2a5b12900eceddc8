//! `/healthz` and `/livez` with kube-proxy's semantics: whether load balancers should send traffic to this node.

use std::sync::Arc;
use std::time::SystemTime;

use bytes::Bytes;
use http::{Request, Response};
use http_body_util::Full;
use proto_api::Time;
use proto_daemon::admin::{AdminPages, page_of};
use proxy_sync::driver::SyncHealth;
use tokio::sync::watch;

use crate::health_metrics::HealthMetrics;
use crate::local_node::LocalNode;

/// Pages of the health server.
#[derive(Clone)]
pub struct HealthPage {
    /// Pages that all programs serve.
    pub pages: AdminPages,
    /// Result of the last passes.
    pub sync_health: SyncHealth,
    /// This node, if its object is known.
    pub node: watch::Receiver<Option<Arc<LocalNode>>>,
    /// Metrics of responses.
    pub counts: HealthMetrics,
}

impl HealthPage {
    /// Answers a request.
    pub fn answer<B>(&self, request: &Request<B>) -> Response<Full<Bytes>> {
        let answer = self.page(request);
        let counter = match request.uri().path() {
            "/healthz" => &self.counts.healthz,
            "/livez" => &self.counts.livez,
            _ => return answer,
        };
        counter.with_label_values(&[answer.status().as_str()]).inc();
        answer
    }

    fn page<B>(&self, request: &Request<B>) -> Response<Full<Bytes>> {
        if request.uri().path() == "/healthz" {
            let leaving = self.node.borrow().as_ref().is_some_and(|node| node.is_leaving);
            let (last, fresh) = (self.sync_health.last_success(), self.sync_health.check().is_ok());
            let (status, body) = answer(SystemTime::now(), last, fresh, leaving);
            return page_of(status, "application/json", body);
        }
        let missing = || page_of(404, "text/plain; charset=utf-8", "404 page not found\n".into());
        self.pages.answer(request).unwrap_or_else(missing)
    }
}

/// Status code and JSON body. `last` is when a pass last succeeded, `is_fresh` whether passes succeed, `is_leaving`
/// whether the node is being deleted: its connections continue, new ones should go to other nodes.
pub fn answer(
    now: SystemTime,
    last: Option<SystemTime>,
    is_fresh: bool,
    is_leaving: bool,
) -> (u16, String) {
    let healthy = last.is_some() && is_fresh;
    // A healthy proxy is up to date now, even if it has had nothing to do.
    let updated = if healthy { Some(now) } else { last };
    let text = |at: Option<SystemTime>| at.map_or_else(|| time(SystemTime::UNIX_EPOCH), time);
    let body = format!(
        "{{\"lastUpdated\": \"{}\",\"currentTime\": \"{}\", \"nodeEligible\": {}}}",
        text(updated),
        time(now),
        !is_leaving
    );
    (if healthy && !is_leaving { 200 } else { 503 }, body)
}

fn time(at: SystemTime) -> String {
    let since = at.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    Time::from_unix(i64::try_from(since.as_secs()).unwrap_or(i64::MAX)).to_string()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn a_node_that_leaves_or_does_not_follow_gets_no_traffic() {
        let at = |secs| SystemTime::UNIX_EPOCH + Duration::from_secs(secs);
        let now = at(1_000_000_000);
        let body = |last: &str, eligible: bool| {
            format!(
                "{{\"lastUpdated\": \"{last}\",\"currentTime\": \"2001-09-09T01:46:40Z\", \
                 \"nodeEligible\": {eligible}}}"
            )
        };
        let new = "2001-09-09T01:46:40Z";
        let old = "1970-01-01T00:01:40Z";
        let never = "1970-01-01T00:00:00Z";
        assert_eq!(answer(now, Some(at(100)), true, false), (200, body(new, true)));
        assert_eq!(answer(now, Some(at(100)), false, false), (503, body(old, true)));
        assert_eq!(answer(now, Some(at(100)), true, true), (503, body(new, false)));
        assert_eq!(answer(now, None, true, false), (503, body(never, true)));
    }
}
