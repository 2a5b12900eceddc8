//! The roles and bindings of a new cluster: missing ones are created, and those of an earlier version get what they lack.

use apiserver_core::options::DeleteOptions;
use apiserver_core::request::{Query, Verb};
use apiserver_core::server::{Server, missing_kind};
use apiserver_core::status::ApiError;
use apiserver_core::verbs;
use apiserver_rbac::{BootstrapObject, ReconcileStep, bootstrap_objects, reconcile as compare};
use apiserver_schema::update::Subresource;
use apiserver_schema::{Format, Object, Strictness};
use futures_util::future::join_all;

use super::writes::{EnsureError, call, create, request};

const GROUP: &str = "rbac.authorization";

/// Creates or completes every role and binding of the bootstrap policy. Objects that cannot be written are logged.
///
/// # Errors
/// The policy cannot be read; a test excludes that.
pub async fn reconcile(server: &Server) -> Result<(), EnsureError> {
    let unreadable =
        |error| EnsureError { what: "policy".to_owned(), source: ApiError::internal(error) };
    let is_on = |gate: &str| server.config.field_gates.has_named(gate);
    let objects = bootstrap_objects(server.names, is_on).map_err(unreadable)?;
    // Concurrent writes share one sync of the log. A cluster in use starts without one of its roles.
    let reconciled = objects.iter().map(|object| reconcile_object(server, object));
    for failed in join_all(reconciled).await.into_iter().filter_map(Result::err) {
        let error = std::error::Error::source(&failed).map(ToString::to_string);
        tracing::error!(error, "{failed}; retried at the next start");
    }
    Ok(())
}

async fn reconcile_object(server: &Server, object: &BootstrapObject) -> Result<(), EnsureError> {
    let metadata = &object.object["metadata"];
    let text = |field: &str| metadata[field].as_str().unwrap_or_default();
    let failed =
        |source| EnsureError { what: format!("{} {}", object.resource, text("name")), source };
    let (namespace, name) = (text("namespace"), text("name"));
    let Some(stored) = server.find_in(GROUP, object.resource, namespace, name) else {
        return create(server, GROUP, object.resource, &object.object).await.map_err(failed);
    };
    let wanted = decode(server, object).map_err(failed)?;
    match compare(server.names, stored.object(), &wanted) {
        ReconcileStep::Unchanged => Ok(()),
        ReconcileStep::Updated(updated) => update(server, object, &updated).await.map_err(failed),
        ReconcileStep::Recreated => {
            delete(server, object).await.map_err(failed)?;
            create(server, GROUP, object.resource, &object.object).await.map_err(failed)
        }
    }
}

fn decode(server: &Server, object: &BootstrapObject) -> Result<Object, ApiError> {
    let kind = server.kind(GROUP, object.resource).ok_or_else(|| missing_kind(object.resource))?;
    let text = object.object.to_string();
    let decoded = server.engine.decode(kind, Format::Json, text.as_bytes(), Strictness::Strict);
    let mut decoded = decoded.map_err(ApiError::internal)?.object;
    server.engine.default(&mut decoded);
    Ok(decoded)
}

async fn update(
    server: &Server,
    object: &BootstrapObject,
    updated: &Object,
) -> Result<(), ApiError> {
    let request = request(server, GROUP, object.resource, &object.object, Verb::Update);
    let query = Query::default();
    let call = call(server, &request, &query)?;
    let body = bytes::Bytes::from(server.engine.encode_json(updated));
    verbs::update(&call, Subresource::Main, body, Format::Json).await.map(drop)
}

async fn delete(server: &Server, object: &BootstrapObject) -> Result<(), ApiError> {
    let request = request(server, GROUP, object.resource, &object.object, Verb::Delete);
    let query = Query::default();
    let call = call(server, &request, &query)?;
    verbs::delete(&call, &DeleteOptions::default()).await.map(drop)
}
