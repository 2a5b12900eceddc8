//! Requests for single objects, and their errors in the words of the commands.

use apiserver_schema::Engine;
use bytes::Bytes;
use orchctl_client::manifests::Manifest;
use orchctl_client::{ApiResource, CommandError, Session};
use orchctl_plans::ArgumentError;
use orchctl_plans::apply::ApplyPatch;
use proto_client::params::{Conflicts, Mode};
use proto_client::{ClientError, ListParams, Patch, WriteParams, request};
use serde_json::{Value, json};

/// Most objects of a page of a list.
const PAGE_LEN: u32 = 500;

/// One object on the server.
#[derive(Clone, Debug)]
pub struct Place {
    /// Its kind.
    pub resource: ApiResource,
    /// Its namespace, if it has one.
    pub namespace: Option<String>,
    pub name: String,
}

impl Place {
    /// The path of the object or of a subresource.
    pub fn path(&self, subresource: Option<&str>) -> String {
        self.resource.collection(self.namespace.as_deref()).item(&self.name, subresource)
    }

    /// The path of its collection.
    pub fn collection(&self) -> String {
        self.resource.collection(self.namespace.as_deref()).path()
    }

    /// `deployment.apps/web`.
    pub fn title(&self) -> String {
        format!("{}/{}", self.resource.word(), self.name)
    }

    /// Where an object of a file is.
    ///
    /// # Errors
    /// When it has no name: its path would be that of all objects of the kind. As [`Self::of_new`] besides.
    pub async fn from_manifest(
        session: &Session,
        manifest: &Manifest,
    ) -> Result<Self, CommandError> {
        let place = Self::of_new(session, manifest).await?;
        if place.name.is_empty() {
            return Err(CommandError::with_text("resource name may not be empty"));
        }
        Ok(place)
    }

    /// Where an object of a file belongs, which may leave its name to the server.
    ///
    /// # Errors
    /// When the server has no such kind, or the command line names another namespace.
    pub async fn of_new(session: &Session, manifest: &Manifest) -> Result<Self, CommandError> {
        let discovery = session.discovery().await?;
        let served = discovery.of_kind(manifest.api_version(), manifest.kind());
        let resource = served.ok_or_else(|| unserved(manifest))?.clone();
        let asked = session.namespace()?;
        let namespace = match (resource.namespaced, manifest.namespace()) {
            (false, _) => None,
            (true, None) => Some(asked.to_owned()),
            (true, Some(own)) if session.names_namespace() && own != asked => {
                return Err(CommandError::with_text(format!(
                    "the namespace from the provided object \"{own}\" does not match the namespace \"{asked}\". \
                     You must pass '--namespace={own}' to perform this operation."
                )));
            }
            (true, Some(own)) => Some(own.to_owned()),
        };
        Ok(Self { resource, namespace, name: manifest.name().to_owned() })
    }

    /// The object of a file with its namespace, also if that is the command line's.
    pub fn object_of(&self, manifest: &Manifest) -> Value {
        let mut object = manifest.object.clone();
        if let Some(namespace) = &self.namespace
            && let Some(map) = object.as_object_mut()
        {
            let metadata = map.entry("metadata").or_insert_with(|| json!({}));
            if let Some(metadata) = metadata.as_object_mut() {
                metadata.insert("namespace".into(), json!(namespace));
            }
        }
        object
    }

    /// Where an object that a list returned lies.
    pub fn listed(resource: &ApiResource, object: &Value) -> Self {
        let text = |field: &str| {
            let found = object.pointer(&format!("/metadata/{field}")).and_then(Value::as_str);
            found.unwrap_or_default().to_owned()
        };
        let namespace = Some(text("namespace")).filter(|text| !text.is_empty());
        Self { resource: resource.clone(), namespace, name: text("name") }
    }
}

/// The error of an argument.
pub fn argument(error: ArgumentError) -> CommandError {
    CommandError::with_text(error.to_string())
}

/// The object.
///
/// # Errors
/// When the server refuses, or has none.
pub async fn get(session: &Session, place: &Place) -> Result<Value, CommandError> {
    session.call_json(request::get(place.path(None))).await
}

/// The object, or `None` if there is none.
///
/// # Errors
/// When the server refuses.
pub async fn find(session: &Session, place: &Place) -> Result<Option<Value>, CommandError> {
    match get(session, place).await {
        Ok(object) => Ok(Some(object)),
        Err(error) if error.is_not_found() => Ok(None),
        Err(error) => Err(error),
    }
}

/// All objects of a collection that selectors select, page by page. Kind and version, which lists leave out of their items, are set.
///
/// # Errors
/// When the server refuses.
pub async fn list(
    session: &Session,
    resource: &ApiResource,
    namespace: Option<&str>,
    (labels, fields): (&str, &str),
) -> Result<Vec<Value>, CommandError> {
    let path = resource.collection(namespace).path();
    let mut params = ListParams {
        label_selector: labels.to_owned(),
        field_selector: fields.to_owned(),
        limit: Some(PAGE_LEN),
        ..ListParams::default()
    };
    let mut all = Vec::new();
    loop {
        let mut page = session.call_json(request::list(path.clone(), &params)).await?;
        if let Some(Value::Array(items)) = page.get_mut("items").map(Value::take) {
            for mut item in items {
                if let Some(map) = item.as_object_mut() {
                    map.entry("kind").or_insert_with(|| json!(resource.kind));
                    map.entry("apiVersion").or_insert_with(|| json!(resource.api_version()));
                }
                all.push(item);
            }
        }
        let next = page.pointer("/metadata/continue").and_then(Value::as_str).unwrap_or_default();
        if next.is_empty() {
            return Ok(all);
        }
        params.continue_ = Some(next.to_owned());
    }
}

/// How a write is sent.
#[derive(Clone, Debug, Default)]
pub struct WriteOptions {
    /// The server checks only.
    pub dry_run: bool,
    /// Who writes.
    pub manager: String,
    /// `Ignore`, `Warn` or `Strict`.
    pub validation: Option<&'static str>,
    /// An apply takes fields of others.
    pub force: bool,
}

impl WriteOptions {
    fn params(&self) -> WriteParams {
        WriteParams {
            mode: if self.dry_run { Mode::DryRun } else { Mode::Commit },
            field_manager: Some(self.manager.clone()).filter(|manager| !manager.is_empty()),
            field_validation: self.validation,
            conflicts: if self.force { Conflicts::TakeOver } else { Conflicts::Fail },
        }
    }
}

fn body(object: &Value) -> Bytes {
    Bytes::from(object.to_string())
}

/// Creates an object, or a subresource of one.
///
/// # Errors
/// When the server refuses.
pub async fn create(
    session: &Session,
    path: String,
    object: &Value,
    write: &WriteOptions,
) -> Result<Value, CommandError> {
    let request = request::create(path, &write.params(), request::JSON, body(object));
    session.call_json(request).await
}

/// Replaces an object, or a subresource of one.
///
/// # Errors
/// When the server refuses.
pub async fn update(
    session: &Session,
    path: String,
    object: &Value,
    write: &WriteOptions,
) -> Result<Value, CommandError> {
    let request = request::update(path, &write.params(), request::JSON, body(object));
    session.call_json(request).await
}

/// Changes an object, or a subresource of one.
///
/// # Errors
/// When the server refuses.
pub async fn patch(
    session: &Session,
    path: String,
    patch: &Patch,
    write: &WriteOptions,
) -> Result<Value, CommandError> {
    session.call_json(request::patch(path, &write.params(), patch)).await
}

/// What brings the server's object to another form, as a patch of the kind's type.
///
/// # Errors
/// When a list lacks its key.
pub async fn changed(
    session: &Session,
    before: &Value,
    after: &Value,
) -> Result<ApplyPatch, CommandError> {
    let engine = Engine::new(session.names().await?);
    orchctl_plans::apply::change(&engine, before, after)
        .map_err(|error| CommandError::with_text(error.to_string()))
}

/// The request's form of a patch.
pub fn as_patch(change: ApplyPatch) -> Patch {
    match change {
        ApplyPatch::Strategic(body) => Patch::Strategic(body),
        ApplyPatch::Merge(body) => Patch::Merge(body),
    }
}

/// How an object is deleted.
#[derive(Clone, Debug, Default)]
pub struct Deletion {
    /// Seconds for the object to end; the kind's own if not set.
    pub grace_secs: Option<i64>,
    /// `Background`, `Foreground` or `Orphan`.
    pub propagation: Option<&'static str>,
    /// The server checks only.
    pub dry_run: bool,
    /// The object must have this UID.
    pub uid: Option<String>,
}

impl Deletion {
    /// The options of the request.
    pub fn options(&self) -> Value {
        let mut options = json!({"kind": "DeleteOptions", "apiVersion": "v1"});
        if let Some(seconds) = self.grace_secs {
            options["gracePeriodSeconds"] = json!(seconds);
        }
        if let Some(propagation) = self.propagation {
            options["propagationPolicy"] = json!(propagation);
        }
        if self.dry_run {
            options["dryRun"] = json!(["All"]);
        }
        if let Some(uid) = &self.uid {
            options["preconditions"] = json!({"uid": uid});
        }
        options
    }
}

/// Deletes an object; returns what the server answers.
///
/// # Errors
/// When the server refuses, or has none.
pub async fn delete(
    session: &Session,
    place: &Place,
    deletion: &Deletion,
) -> Result<Value, CommandError> {
    if place.name.is_empty() {
        // The path of all objects: a server deletes them one and all.
        return Err(CommandError::with_text("an object without a name cannot be deleted"));
    }
    let options = body(&deletion.options());
    session.call_json(request::delete(place.path(None), &ListParams::default(), options)).await
}

/// For an object of a file whose kind the server does not have, in kubectl's words.
fn unserved(manifest: &Manifest) -> CommandError {
    CommandError::with_text(format!(
        "resource mapping not found for name: \"{}\" namespace: \"{}\" from \"{}\": no matches for kind \"{}\" in version \"{}\"\nensure CRDs are installed first",
        manifest.name(),
        manifest.namespace().unwrap_or_default(),
        manifest.source,
        manifest.kind(),
        manifest.api_version()
    ))
}

/// The error of an object of a file, with what was done and where the object is from.
pub fn with_source(error: CommandError, doing: &str, source: &str) -> CommandError {
    match error {
        CommandError::Client(ClientError::Api { request, mut status, retry_after }) => {
            status.message = format!("error when {doing} \"{source}\": {}", status.message);
            CommandError::Client(ClientError::Api { request, status, retry_after })
        }
        other => other,
    }
}

/// The server's own words, for commands that say what failed.
pub fn message(error: &CommandError) -> String {
    match error {
        CommandError::Client(ClientError::Api { status, .. }) => status.message.clone(),
        other => {
            let text = other.to_string();
            text.strip_prefix("error: ").map_or(text.clone(), str::to_owned)
        }
    }
}

/// The same with its causes: which disruption budget refuses an eviction.
pub fn message_with_causes(error: &CommandError) -> String {
    let mut text = message(error);
    if let CommandError::Client(ClientError::Api { status, .. }) = error {
        for cause in status.details.iter().flat_map(|details| &details.causes) {
            if !cause.message.is_empty() && !text.contains(&cause.message) {
                text = format!("{text} {}", cause.message);
            }
        }
    }
    text
}

/// The fields that a refusal names, each with what is wrong with it.
pub fn causes(error: &CommandError) -> Vec<(&str, &str)> {
    let CommandError::Client(ClientError::Api { status, .. }) = error else { return Vec::new() };
    let causes = status.details.iter().flat_map(|details| &details.causes);
    causes.map(|cause| (cause.field.as_str(), cause.message.as_str())).collect()
}

/// Whether a refusal names this cause.
pub fn has_cause(error: &CommandError, reason: &str) -> bool {
    let CommandError::Client(ClientError::Api { status, .. }) = error else { return false };
    status.details.iter().flat_map(|details| &details.causes).any(|cause| cause.reason == reason)
}

/// The HTTP status of a refusal.
pub fn code(error: &CommandError) -> Option<u16> {
    match error {
        CommandError::Client(error) => error.code(),
        _ => None,
    }
}
