//! Namespace lifecycle: no object is created in a missing or terminating namespace, and system namespaces are not deleted.

use apiserver_schema::Object;

use crate::context::RequestContext;
use crate::server::Server;
use crate::status::{ApiError, StatusTarget};

/// Refuses objects in namespaces that are missing or being deleted.
pub fn admit_create(call: &RequestContext<'_>, object: &Object) -> Result<(), ApiError> {
    namespace_of(call.server, object).map(drop)
}

/// The uid of the namespace of a new object; empty for cluster-scoped kinds.
///
/// # Errors
/// 404 if the namespace does not exist, 403 if it is being deleted.
pub fn namespace_of(server: &Server, object: &Object) -> Result<String, ApiError> {
    if !object.kind.namespaced() {
        return Ok(String::new());
    }
    let namespace = object.namespace();
    let about = StatusTarget { group: "", kind: "namespaces", name: namespace };
    let found = server
        .find_in("", "namespaces", "", namespace)
        .ok_or_else(|| ApiError::not_found(about))?;
    if found.object().deletion_timestamp().is_some() {
        let why = format!(
            "unable to create new content in namespace {namespace} because it is being terminated"
        );
        let kind = object.kind.plural();
        let about = StatusTarget { group: &object.kind.group, kind, name: object.name() };
        return Err(ApiError::namespace_terminating(about, &why, namespace));
    }
    Ok(found.object().uid().to_owned())
}

/// Refuses to delete the system's namespaces.
pub fn admit_delete(call: &RequestContext<'_>) -> Result<(), ApiError> {
    let names = call.server.names;
    let kept = ["default", names.system_namespace(), names.public_namespace()];
    if call.kind.is("", "Namespace") && kept.contains(&call.request.name.as_str()) {
        return Err(ApiError::forbidden(call.about(), "this namespace may not be deleted"));
    }
    Ok(())
}
