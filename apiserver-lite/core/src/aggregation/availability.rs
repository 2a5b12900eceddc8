//! The condition `Available` of an APIService, with Kubernetes' reasons and messages: from stored objects, and from the answer of the other server.

use apiserver_schema::Object;

use super::Backend;
use crate::definitions::strategy::{DefinitionCondition, set_condition};

/// Type of the condition.
pub const AVAILABLE: &str = "Available";

fn condition(status: &'static str, reason: &str, message: String) -> DefinitionCondition {
    DefinitionCondition { kind: AVAILABLE, status, reason: reason.to_owned(), message }
}

/// Of a group version that this server serves.
#[must_use]
pub fn local() -> DefinitionCondition {
    condition("True", "Local", "Local APIServices are always available".to_owned())
}

/// Sets the condition of a new APIService that names no other server, as the strategy of Kubernetes does.
pub(crate) fn note_local(api_service: &mut Object, now: &str) {
    if api_service.spec().is_none_or(|spec| spec.map("service").is_none()) {
        set_condition(api_service, local(), now);
    }
}

/// Of a server that has answered.
#[must_use]
pub fn passed() -> DefinitionCondition {
    condition("True", "Passed", "all checks passed".to_owned())
}

/// Of a server that has not answered as it should.
#[must_use]
pub fn failed(problem: String) -> DefinitionCondition {
    condition("False", "FailedDiscoveryCheck", problem)
}

/// Why a server is not probed: its Service is missing, or has nothing behind the port.
#[must_use]
pub fn without_server(
    backend: &Backend,
    service: Option<&Object>,
    endpoints: Option<&Object>,
) -> Option<DefinitionCondition> {
    let (namespace, name, port) = (&backend.namespace, &backend.name, backend.port);
    let no = |reason: &str, message: String| Some(condition("False", reason, message));
    let Some(service) = service else {
        return no("ServiceNotFound", format!("service/{name} in {namespace:?} is not present"));
    };
    if !matches!(service.str_at(&["spec", "type"]), "" | "ClusterIP") {
        return None;
    }
    let ports = service.spec().into_iter().flat_map(|spec| spec.maps("ports"));
    let mut listening = ports.filter(|row| row.int("port") == Some(i64::from(port)));
    let Some(row) = listening.next() else {
        let message = format!("service/{name} in {namespace:?} is not listening on port {port}");
        return no("ServicePortError", message);
    };
    let Some(endpoints) = endpoints else {
        let message = format!("cannot find endpoints for service/{name} in {namespace:?}");
        return no("EndpointsNotFound", message);
    };
    let port_name = row.str("name");
    let mut subsets = endpoints.fields.maps("subsets");
    let active = subsets.any(|subset| {
        !subset.list("addresses").is_empty()
            && subset.maps("ports").any(|port| port.str("name") == port_name)
    });
    if active {
        return None;
    }
    let message = format!(
        "endpoints for service/{name} in {namespace:?} have no addresses with port name {port_name:?}"
    );
    no("MissingEndpoints", message)
}

/// The object with the condition; `None` if it has it already.
#[must_use]
pub fn with_condition(
    object: &Object,
    condition: DefinitionCondition,
    now: &str,
) -> Option<Object> {
    let mut next = object.clone();
    set_condition(&mut next, condition, now);
    (next != *object).then_some(next)
}
