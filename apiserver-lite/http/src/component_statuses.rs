//! Health of the control plane's programs (`componentstatuses`): in no store, and looked up by each request, as in Kubernetes 1.25. The controller manager and
//! the scheduler are looked for on this host, at their usual ports; the store is this server's own view of it.

use std::net::SocketAddr;
use std::time::Duration;

use apiserver_core::context::RequestContext;
use apiserver_core::dial_policy::DialScope;
use apiserver_core::record::StoredObject;
use apiserver_core::request::{RequestInfo, Verb};
use apiserver_core::status::{ApiError, StatusTarget};
use apiserver_core::verbs::{Selection, VerbOutput, VerbResponse};
use apiserver_schema::list::ListMeta;
use apiserver_schema::{Map, Object, Value};
use apiserver_store::Health;
use http::{HeaderMap, StatusCode};

use crate::node_proxy::{ProxyTarget, Scheme, Trust};
use crate::server::HttpServer;

const RESOURCE: &str = "componentstatuses";
const CONTROLLER_MANAGER: &str = "controller-manager";
const SCHEDULER: &str = "scheduler";
/// The store, whichever it is: what reads the list knows it by this name.
const STORE: &str = "etcd-0";
/// Longest wait for a program; all are asked at the same time.
const ANSWER_WAIT_MAX: Duration = Duration::from_secs(5);
/// Longest answer of a program.
const ANSWER_LEN_MAX: usize = 10 << 10;

/// What was found out about one program.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ComponentHealth {
    name: &'static str,
    healthy: bool,
    message: String,
}

/// Whether a request is about component statuses.
pub fn is_about(request: &RequestInfo) -> bool {
    request.group.is_empty() && request.resource == RESOURCE
}

/// The health of all programs that the request is about, in the order of their names.
pub async fn check_all(server: &HttpServer, request: &RequestInfo) -> Vec<ComponentHealth> {
    let addresses = &server.core.config.component_addresses;
    let is_wanted = |name: &str| request.name.is_empty() || request.name == name;
    let program = |name: &'static str, address: SocketAddr| async move {
        if is_wanted(name) { Some(check_program(server, name, address).await) } else { None }
    };
    let (controller_manager, scheduler) = tokio::join!(
        program(CONTROLLER_MANAGER, addresses.controller_manager),
        program(SCHEDULER, addresses.scheduler),
    );
    let store = is_wanted(STORE).then(|| store_health(&server.core.store.health().borrow()));
    [controller_manager, store, scheduler].into_iter().flatten().collect()
}

async fn check_program(
    server: &HttpServer,
    name: &'static str,
    address: SocketAddr,
) -> ComponentHealth {
    let target = ProxyTarget {
        scheme: Scheme::Https,
        // Programs have certificates that they sign themselves.
        trust: Trust::Workload,
        scope: DialScope::WebhookUrl,
        host: address.ip().to_string(),
        port: address.port(),
        path: "/healthz".to_owned(),
    };
    let answer = server.nodes.get(&server.core, &target, HeaderMap::new(), ANSWER_LEN_MAX);
    let result = match tokio::time::timeout(ANSWER_WAIT_MAX, answer).await {
        Ok(Ok((status, body))) if status == StatusCode::OK => {
            Ok(String::from_utf8_lossy(&body).into_owned())
        }
        Ok(Ok((status, _))) => {
            Err(format!("HTTP probe failed with statuscode: {}", status.as_u16()))
        }
        Ok(Err(error)) => {
            Err(format!("Get \"https://{address}/healthz\": {}", error.status().message))
        }
        Err(_) => Err(format!(
            "Get \"https://{address}/healthz\": no response within {}s",
            ANSWER_WAIT_MAX.as_secs()
        )),
    };
    let healthy = result.is_ok();
    ComponentHealth { name, healthy, message: result.unwrap_or_else(|problem| problem) }
}

fn store_health(health: &Health) -> ComponentHealth {
    let (healthy, message) = match health {
        Health::Serving => (true, "{\"health\":\"true\",\"reason\":\"\"}".to_owned()),
        Health::Refusing { reason } | Health::ReadOnly { reason } => (false, reason.to_string()),
    };
    ComponentHealth { name: STORE, healthy, message }
}

/// Answers get and list; the kind has no other verbs.
///
/// # Errors
/// 404 for a name of no program, 400 for invalid selectors.
pub fn serve(
    call: &RequestContext<'_>,
    checked: Vec<ComponentHealth>,
) -> Result<VerbOutput, ApiError> {
    let mut objects = checked.into_iter().map(|health| object(call, &health));
    let response = match call.request.verb {
        Verb::Get => {
            let name = &call.request.name;
            let about = StatusTarget { group: "", kind: RESOURCE, name };
            let object = objects.next().ok_or_else(|| ApiError::not_found(about))?;
            VerbResponse::Object { code: 200, object: Box::new(object) }
        }
        Verb::List => {
            let selection = Selection::parse(call)?;
            let selected = objects.filter(|object| selection.matches(object));
            let items = selected.map(|object| StoredObject::unstored(object).into()).collect();
            VerbResponse::List { kind: call.kind.clone(), meta: ListMeta::default(), items }
        }
        _ => return Err(ApiError::method_not_allowed()),
    };
    Ok(response.into())
}

fn object(call: &RequestContext<'_>, health: &ComponentHealth) -> Object {
    let mut object = Object::new(call.kind.clone());
    object.set_meta_str("name", health.name);
    let condition: Map = [
        ("type", "Healthy"),
        ("status", if health.healthy { "True" } else { "False" }),
        ("message", health.message.as_str()),
    ]
    .into_iter()
    .map(|(field, text)| (field, Value::from(text)))
    .collect();
    object.fields.insert("conditions", Value::List(vec![Value::Map(condition)]));
    object
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_store_that_does_not_write_is_unhealthy_and_says_why() {
        assert!(store_health(&Health::Serving).healthy);
        for health in [
            Health::Refusing { reason: "no space left on device".into() },
            Health::ReadOnly { reason: "no space left on device".into() },
        ] {
            let found = store_health(&health);
            assert_eq!((found.healthy, found.message.as_str()), (false, "no space left on device"));
        }
    }
}
