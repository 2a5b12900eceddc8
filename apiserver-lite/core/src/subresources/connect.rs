//! Connections through pods, nodes and services (exec, attach, port forwarding, proxy): webhooks receive their options.

use apiserver_schema::{Object, Value};

use crate::admission::{self, WebhookOperation};
use crate::context::RequestContext;
use crate::options::Effects;
use crate::status::ApiError;

/// Asks the webhooks about a connection.
///
/// # Errors
/// What webhooks say.
pub async fn admit(call: &RequestContext<'_>) -> Result<(), ApiError> {
    let Some(mut options) = options_of(call) else { return Ok(()) };
    let operation = WebhookOperation::Connect;
    admission::admit_unstored(call, operation, &mut options, None, Effects::Real).await
}

/// The options of a connection, from query and path; `None` for a subresource without options.
fn options_of(call: &RequestContext<'_>) -> Option<Object> {
    let (server, query) = (call.server, call.query);
    let row = call.requested_version.resource?.subresource(&call.request.subresource)?;
    let kind = server.engine.kind(&server.names.group(row.group), row.version, row.kind)?;
    let mut options = Object::new(kind.clone());
    let mut set = |field: &'static str, value: Value| {
        if kind.has_field(field) && !value.is_empty() {
            options.fields.insert(field, value);
        }
    };
    for flag in ["stdin", "stdout", "stderr", "tty"] {
        set(flag, query.flag(flag).into());
    }
    set("container", query.text("container").unwrap_or_default().into());
    set("command", query.all("command").map(Value::from).collect::<Vec<_>>().into());
    let ports = query.all("ports").flat_map(|ports| ports.split(','));
    let ports = ports.filter_map(|port| port.parse::<i64>().ok()).map(Value::from);
    set("ports", ports.collect::<Vec<_>>().into());
    set("path", call.request.rest.as_str().into());
    Some(options)
}
