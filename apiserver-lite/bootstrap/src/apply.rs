//! Puts manifests into the API: creates what is missing, merges into what is there.

use proto_api::{Collection, schema};
use proto_client::dynamic::Dynamic;
use proto_client::{Client, Patch, WriteParams};
use serde_json::Value;

use crate::error::BootstrapError;

/// Applies every document of a YAML text, in order.
///
/// # Errors
/// The text is no YAML, a kind is unknown, or the API server refuses an object.
pub async fn apply(client: &Client, manifests: &str) -> Result<(), BootstrapError> {
    let objects = proto_api::yaml::parse_all(manifests)
        .map_err(|error| BootstrapError::Invalid(format!("the manifests: {error}")))?;
    for object in objects {
        apply_one(client, &object).await?;
    }
    Ok(())
}

/// Applies one object.
///
/// # Errors
/// As [`apply`].
pub async fn apply_one(client: &Client, object: &Value) -> Result<(), BootstrapError> {
    let (kind, name) = (text(object, "/kind"), text(object, "/metadata/name"));
    let api = api_of(client, object)?;
    let params = WriteParams::default();
    // Looked up first: a server may find that ports are taken before it finds that the object exists. Merged by the
    // kinds' own rules for lists, so that what the server added to a pod stays.
    match api.get(name).await {
        Ok(_) => api.patch(name, &Patch::Strategic(object.clone()), &params).await.map(drop),
        Err(e) if e.is_not_found() => api.create(object, &params).await.map(drop),
        Err(e) => Err(e),
    }
    .map_err(BootstrapError::api(format!("cannot apply {kind} {name}")))
}

/// Creates one object.
///
/// # Errors
/// As [`apply`]; one of its name exists.
pub async fn create_one(client: &Client, object: &Value) -> Result<(), BootstrapError> {
    let (kind, name) = (text(object, "/kind"), text(object, "/metadata/name"));
    let created = api_of(client, object)?.create(object, &WriteParams::default()).await;
    created.map(drop).map_err(BootstrapError::api(format!("cannot create {kind} {name}")))
}

fn api_of(client: &Client, object: &Value) -> Result<Dynamic, BootstrapError> {
    let collection = collection(client, object).ok_or_else(|| {
        let (kind, name) = (text(object, "/kind"), text(object, "/metadata/name"));
        BootstrapError::Invalid(format!("{kind} {name}: a kind that the API does not have"))
    })?;
    Ok(Dynamic::new(client.clone(), collection))
}

/// The collection that an object belongs to by its `apiVersion`, `kind` and namespace.
fn collection(client: &Client, object: &Value) -> Option<Collection> {
    let api_version = text(object, "/apiVersion");
    let (group, version) = api_version.rsplit_once('/').unwrap_or(("", api_version));
    let short = client.names().short_group(group)?;
    let resource = schema::resource_of_kind(short, version, text(object, "/kind"))?;
    let namespace = match text(object, "/metadata/namespace") {
        "" => "default",
        named => named,
    };
    Some(Collection {
        group: group.to_owned(),
        version: version.to_owned(),
        plural: resource.plural.to_owned(),
        namespace: resource.namespaced.then(|| namespace.to_owned()),
    })
}

fn text<'a>(object: &'a Value, pointer: &str) -> &'a str {
    object.pointer(pointer).and_then(Value::as_str).unwrap_or_default()
}
