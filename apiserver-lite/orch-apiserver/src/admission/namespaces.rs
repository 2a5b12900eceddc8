//! Namespaces as containers: nothing is created in one that does not exist or is going, and some never go.

use apiserver_schema::Object;

use crate::server::Server;
use crate::status::{About, ApiError};
use crate::verbs::RequestContext;

/// Refuses objects in namespaces that do not exist or are being deleted.
pub fn admit_create(call: &RequestContext<'_>, object: &Object) -> Result<(), ApiError> {
    namespace_of(call.server, object).map(drop)
}

/// The uid of the namespace that a new object lies in; empty for kinds without one.
///
/// # Errors
/// 404 without that namespace, 403 when it is being deleted.
pub fn namespace_of(server: &Server, object: &Object) -> Result<String, ApiError> {
    if !object.kind.namespaced() {
        return Ok(String::new());
    }
    let namespace = object.namespace();
    let about = About { group: "", kind: "namespaces", name: namespace };
    let found = server
        .find_in("", "namespaces", "", namespace)
        .ok_or_else(|| ApiError::not_found(about))?;
    if found.object().deletion_timestamp().is_some() {
        let why = format!(
            "unable to create new content in namespace {namespace} because it is being terminated"
        );
        let kind = object.kind.plural();
        let about = About { group: &object.kind.group, kind, name: object.name() };
        return Err(ApiError::namespace_terminating(about, &why, namespace));
    }
    Ok(found.object().uid().to_owned())
}

/// Refuses to delete the namespaces that the system needs.
pub fn admit_delete(call: &RequestContext<'_>) -> Result<(), ApiError> {
    let names = call.server.names;
    let kept = ["default", names.system_namespace(), names.public_namespace()];
    if call.kind.is("", "Namespace") && kept.contains(&call.request.name.as_str()) {
        return Err(ApiError::forbidden(call.about(), "this namespace may not be deleted"));
    }
    Ok(())
}
