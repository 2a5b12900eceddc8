//! create: fills the metadata of a new object, defaults, admits, validates and commits it.

#![cfg_attr(not(test), warn(clippy::arithmetic_side_effects))]

use std::sync::Arc;

use apiserver_managed_fields::set_managed_fields;
use apiserver_schema::{Object, Value};
use apiserver_store::{Write, WriteError};
use bytes::Bytes;
use uuid::Uuid;

use super::ownership::{self, Owners};
use super::quotas::{self, ObjectChange};
use super::update_common::{CONFLICT_TRIES, invalid, write_failed};
use super::{VerbOutput, VerbResponse};
use crate::admission::{self, Operation, RestoreFields, Reviewed, WebhookOperation, WebhookReview};
use crate::context::{RequestContext, about_kind};
use crate::key;
use crate::options::Effects;
use crate::random_suffix::random_suffix;
use crate::record::StoredObject;
use crate::registry;
use crate::server::Server;
use crate::status::{ApiError, FieldProblem, StatusTarget};
use crate::times::{now, timestamp};

/// Attempts to generate a free name from `generateName`.
const GENERATE_TRIES: usize = 8;
/// Longest prefix of a generated name; with its suffix the name has the maximum length of a label.
const GENERATE_PREFIX_LEN_MAX: usize = 58;

/// Creates the object in the request's body.
///
/// # Errors
/// Errors of decoding, admission, validation and the store.
pub async fn create(
    call: &RequestContext<'_>,
    body: Bytes,
    format: apiserver_schema::Format,
) -> Result<VerbOutput, ApiError> {
    let effects = call.effects()?;
    let decoded = super::update_common::decode(call, &body, format)?;
    let mut output = create_object(call, decoded.object, effects).await?;
    output.warnings.splice(..0, decoded.warnings);
    Ok(output)
}

/// Creates `object`, which is decoded and not defaulted yet.
///
/// # Errors
/// As [`create`].
pub async fn create_object(
    call: &RequestContext<'_>,
    object: Object,
    effects: Effects,
) -> Result<VerbOutput, ApiError> {
    let generated = object.name().is_empty() && !object.meta_str("generateName").is_empty();
    if !generated {
        return create_once(call, object, Owners::Compared, effects).await;
    }
    let mut taken = None;
    for _ in 0..GENERATE_TRIES {
        match create_once(call, object.clone(), Owners::Compared, effects).await {
            Err(error) if error.is_already_exists() => taken = Some(error),
            outcome => return outcome,
        }
    }
    Err(taken.unwrap_or_else(|| ApiError::internal("no name could be generated")))
}

/// Creates an object that was applied, with its `managedFields`.
///
/// # Errors
/// As [`create`].
pub(super) async fn create_applied(
    call: &RequestContext<'_>,
    object: Object,
    managed_fields: Option<Value>,
    effects: Effects,
) -> Result<VerbOutput, ApiError> {
    create_once(call, object, Owners::Applied(managed_fields), effects).await
}

async fn create_once(
    call: &RequestContext<'_>,
    mut object: Object,
    owners: Owners,
    effects: Effects,
) -> Result<VerbOutput, ApiError> {
    let has_generated_name = object.name().is_empty();
    prepare_metadata(call, &mut object)?;
    call.server.engine.default(&mut object);
    registry::default(&mut object);
    // What the server adds below has no owner.
    let managed_fields = match owners {
        Owners::Compared => ownership::of_created(call, &object).await,
        Owners::Applied(managed_fields) => managed_fields,
    };
    let mut review = webhooks_of_created(call, effects)?;
    if let Some(review) = &mut review {
        review.has_generated_name = has_generated_name;
        set_managed_fields(&mut object, managed_fields.clone());
    }
    let settle = |object: &mut Object| settle_created(call, object);
    let webhooks = review.as_mut().map(|review| (review, &settle as &RestoreFields<'_>));
    let warnings = admission::admit(call, Operation::Create, &mut object, None, webhooks).await?;
    registry::prepare_create(call, &mut object);
    set_managed_fields(&mut object, managed_fields);
    call.server.engine.validate_create(&object).map_err(|errors| invalid(&object, &errors))?;
    registry::validate(&object, None, call.server.names)
        .map_err(|errors| invalid(&object, &errors))?;
    if let Some(review) = &review {
        Box::pin(review.validate(Some(&object))).await?;
    }
    quotas::check(call, ObjectChange { new: &object, old: None }).await?;
    let reserved = registry::reserve(call.server, &mut object, None).await?;
    if effects == Effects::DryRun {
        if call.server.find(&call.kind, object.namespace(), object.name()).is_some() {
            let about = StatusTarget { name: object.name(), ..call.about() };
            return Err(ApiError::already_exists(about));
        }
        let response = VerbResponse::Object { code: 201, object: Box::new(object) };
        return Ok(VerbOutput { response, warnings });
    }
    let record = commit(call, object).await?;
    reserved.commit();
    Ok(VerbOutput { response: VerbResponse::Stored { code: 201, record }, warnings })
}

/// The webhooks that may be called for a new object.
fn webhooks_of_created<'a>(
    call: &'a RequestContext<'a>,
    effects: Effects,
) -> Result<Option<WebhookReview<'a>>, ApiError> {
    let (operation, kind) = (WebhookOperation::Create, &call.requested_version);
    WebhookReview::begin(call, Reviewed { operation, kind, old: None, effects, deletion: None })
}

/// Webhooks may name a new object, unless the request does, but not move it to another namespace.
fn settle_created(call: &RequestContext<'_>, object: &mut Object) -> Result<(), ApiError> {
    fill_namespace(call, object)?;
    let asked = call.request.name.as_str();
    if !asked.is_empty() && object.name() != asked {
        let name = object.name();
        return Err(ApiError::bad_request(format!(
            "the name of the object ({name}) does not match the name on the URL ({asked})"
        )));
    }
    Ok(())
}

/// Writes a new object if its namespace exists before and after the write. An object written between the deletion of a
/// namespace's content and of the namespace would never be deleted.
async fn commit(call: &RequestContext<'_>, object: Object) -> Result<Arc<StoredObject>, ApiError> {
    let name = object.name().to_owned();
    let key = key::object(&call.kind, object.namespace(), &name);
    let before = admission::namespace_of(call.server, &object)?;
    let create = |draft| Write::create(key.clone(), draft);
    let record =
        match quotas::commit(call, ObjectChange { new: &object, old: None }, create).await? {
            Ok(committed) => committed.record,
            Err(WriteError::Exists { .. }) => {
                return Err(ApiError::already_exists(StatusTarget { name: &name, ..call.about() }));
            }
            Err(error) => return Err(write_failed(&error)),
        };
    if is_ending(call) {
        remove_again(call.server, &key, &record).await?;
        return Err(ApiError::definition_ends());
    }
    confirm_namespace(call.server, call.about(), &key, record, &before).await
}

/// Whether the definition of a custom kind is being deleted or is gone: it does not wait for objects that are written now.
fn is_ending(call: &RequestContext<'_>) -> bool {
    // Brings the kind up to date.
    let ended = call.server.definitions.end_of(&call.kind);
    let gone = || call.kind.custom_version().is_none_or(|version| version.terminating);
    ended.is_some() && gone()
}

/// Returns the written object if its namespace still has the uid `before` and is not being deleted; otherwise deletes the
/// object and returns an error.
async fn confirm_namespace(
    server: &Server,
    about: StatusTarget<'_>,
    key: &str,
    record: Arc<StoredObject>,
    before: &str,
) -> Result<Arc<StoredObject>, ApiError> {
    let why = match admission::namespace_of(server, record.object()) {
        Ok(after) if after == before => return Ok(record),
        // The namespace was deleted and created again in between.
        Ok(_) => ApiError::modified(about),
        Err(error) => error,
    };
    remove_again(server, key, &record).await?;
    Err(why)
}

/// Deletes an object that was written a moment ago, in whatever version it is now.
async fn remove_again(
    server: &Server,
    key: &str,
    record: &Arc<StoredObject>,
) -> Result<(), ApiError> {
    let mut revision = record.revision();
    for _ in 0..CONFLICT_TRIES {
        match server.store.write(Write::delete(key, revision)).await {
            Err(WriteError::Conflict { revision: newer, current, .. })
                if current.object().uid() == record.object().uid() =>
            {
                revision = newer;
            }
            Ok(_) | Err(WriteError::Conflict { .. } | WriteError::NotFound { .. }) => break,
            Err(error) => return Err(write_failed(&error)),
        }
    }
    Ok(())
}

/// Fills the metadata that the server decides: namespace, generated name, uid, creation time.
fn prepare_metadata(call: &RequestContext<'_>, object: &mut Object) -> Result<(), ApiError> {
    if !object.resource_version().is_empty() {
        return Err(ApiError::bad_request(
            "resourceVersion should not be set on objects to be created",
        ));
    }
    fill_namespace(call, object)?;
    let prefix = object.meta_str("generateName");
    if object.name().is_empty() {
        if prefix.is_empty() {
            let problem =
                FieldProblem::required("metadata.name", "name or generateName is required");
            return Err(ApiError::invalid(about_kind(object), &[problem]));
        }
        let name = generated_name(prefix);
        object.set_meta_str("name", &name);
    }
    let metadata = object.metadata_mut();
    for field in ["deletionTimestamp", "deletionGracePeriodSeconds", "selfLink"] {
        metadata.remove(field);
    }
    metadata.insert("uid", Uuid::new_v4().to_string());
    metadata.insert("creationTimestamp", timestamp(now()));
    Ok(())
}

/// Sets a missing namespace from the path; 400 if the object has another one.
pub(super) fn fill_namespace(
    call: &RequestContext<'_>,
    object: &mut Object,
) -> Result<(), ApiError> {
    if !call.kind.namespaced() {
        object.set_meta_str("namespace", "");
        return Ok(());
    }
    if object.namespace().is_empty() {
        object.set_meta_str("namespace", &call.request.namespace);
    }
    if object.namespace() != call.request.namespace {
        return Err(ApiError::bad_request(
            "the namespace of the provided object does not match the namespace sent on the request",
        ));
    }
    Ok(())
}

/// `prefix` and five random characters.
fn generated_name(prefix: &str) -> String {
    let mut cut = prefix.len().min(GENERATE_PREFIX_LEN_MAX);
    while !prefix.is_char_boundary(cut) {
        cut = cut.saturating_sub(1);
    }
    let mut name = prefix.get(..cut).unwrap_or_default().to_owned();
    name.push_str(&random_suffix());
    name
}

#[cfg(test)]
mod tests {
    use apiserver_store::WriteCondition;
    use proto_api::names::{Names, Profile};

    use super::*;
    use crate::record::Draft;

    #[test]
    fn generated_names_fit_labels() {
        let name = generated_name(&"a".repeat(100));
        assert_eq!(name.len(), 63);
        let name = generated_name("web-");
        assert!(name.starts_with("web-") && name.len() == 9, "{name}");
        assert_ne!(generated_name("web-"), generated_name("web-"));
        assert!(generated_name(&"é".repeat(40)).len() <= 63);
    }

    /// A server with the namespace `team` and an object stored in it.
    async fn stored() -> (Server, String, Arc<StoredObject>, String) {
        let names = Names::new(Profile::Kubernetes);
        let server = Server::for_tests(names);
        let uid = write(&server, "namespaces", "", "team", "one").await.1.object().uid().to_owned();
        let (key, record) = write(&server, "configmaps", "team", "a", "two").await;
        (server, key, record, uid)
    }

    async fn write(
        server: &Server,
        resource: &str,
        namespace: &str,
        name: &str,
        uid: &str,
    ) -> (String, Arc<StoredObject>) {
        let kind = server.kind("", resource).unwrap();
        let mut object = Object::new(kind.clone());
        for (field, text) in [("name", name), ("namespace", namespace), ("uid", uid)] {
            object.set_meta_str(field, text);
        }
        let key = key::object(kind, namespace, name);
        let draft = Draft::new(&server.engine, object);
        let write = Write::Put { key: key.clone(), expect: WriteCondition::Anything, draft };
        (key, server.store.write(write).await.unwrap().record)
    }

    #[tokio::test]
    async fn nothing_is_left_in_a_namespace_that_went_meanwhile() {
        let about = StatusTarget::default();
        let left = |server: &Server| server.find_in("", "configmaps", "team", "a").is_some();

        let (server, key, record, uid) = stored().await;
        assert!(confirm_namespace(&server, about, &key, record.clone(), &uid).await.is_ok());
        assert!(left(&server));
        // Another namespace of the same name.
        let made = confirm_namespace(&server, about, &key, record, "older").await;
        assert_eq!((made.err().map(|error| error.code()), left(&server)), (Some(409), false));

        let (server, key, record, uid) = stored().await;
        let namespaces = server.kind("", "namespaces").unwrap();
        let namespace = key::object(namespaces, "", "team");
        let found = server.find_in("", "namespaces", "", "team").unwrap();
        let mut going = found.object().clone();
        going.set_meta_str("deletionTimestamp", "2026-01-02T03:04:05Z");
        let draft = Draft::new(&server.engine, going);
        server.store.write(Write::update(&namespace, found.revision(), draft)).await.unwrap();
        // Another write may have changed the object in between.
        write(&server, "configmaps", "team", "a", "two").await;
        let made = confirm_namespace(&server, about, &key, record, &uid).await;
        assert_eq!((made.err().map(|error| error.code()), left(&server)), (Some(403), false));

        let (server, key, record, uid) = stored().await;
        let gone = Write::Delete { key: namespace, expect: WriteCondition::Present };
        server.store.write(gone).await.unwrap();
        let made = confirm_namespace(&server, about, &key, record, &uid).await;
        assert_eq!((made.err().map(|error| error.code()), left(&server)), (Some(404), false));
    }
}
