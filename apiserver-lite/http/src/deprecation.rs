//! Requests to deprecated versions: a warning for the client, a gauge, and annotations in the audit log.

use apiserver_audit::Trail;
use apiserver_core::deprecation::Deprecation;
use apiserver_core::request::RequestInfo;
use http::Response;

use crate::body::ResponseBody;
use crate::labels::Labels;
use crate::server::HttpServer;
use crate::warnings::add_warning;

/// Adds a warning to the response if the version of an allowed request is deprecated.
pub fn report(
    server: &HttpServer,
    request: &RequestInfo,
    labels: &Labels,
    response: &mut Response<ResponseBody>,
    trail: &Trail,
) {
    let names = server.core.names;
    let Some(found) = Deprecation::find(names, request) else { return };
    // Only what is served has labels, which keeps their number small.
    if labels.resource.is_empty() {
        return;
    }
    add_warning(response, &found.warning(names));
    server.metrics.deprecated(labels, found.removed);
    let domain = names.group_domain();
    trail.annotate(&format!("{domain}/deprecated"), "true");
    if !found.removed.is_empty() {
        trail.annotate(&format!("{domain}/removed-release"), found.removed);
    }
}
