//! Objects of custom kinds between their versions. If the definition has a conversion webhook it is called, with many objects at once; else versions
//! differ in their name only. What a webhook has made of a stored object is cached with it until the object or its definition changes.

use std::borrow::Cow;
use std::sync::Arc;
use std::time::Duration;

use apiserver_custom_resources::{ConversionReviewError, check_review, conversion_review};
use apiserver_schema::custom::CustomVersion;
use apiserver_schema::value::{parse_json, write_json};
use apiserver_schema::{Kind, Object, Strictness, Value};
use bytes::Bytes;
use tokio::time::Instant;
use uuid::Uuid;

use crate::definitions::Converter;
use crate::record::StoredObject;
use crate::status::ApiError;
use crate::versions;
use crate::webhook_call::{Asker, NoAnswer, ask};
use crate::webhooks::CallError;

/// Time of one call, as in Kubernetes.
const CALL_TIME: Duration = Duration::from_secs(30);
/// Time for all calls of a list.
const LIST_TIME: Duration = Duration::from_secs(60);
/// Most objects of one call.
const OBJECTS_MAX: usize = 500;
/// The size of the objects of one call in bytes, unless one alone is larger. Answers are bounded by the connection.
const CALL_LEN: usize = 2 << 20;

/// Shows the records as objects of `kind`, each of which is one in some version of `kind`.
///
/// # Errors
/// 500 if the webhook does not convert one of them, 429 if the user has too many calls of it.
pub async fn show(
    asker: Asker<'_>,
    kind: &Arc<Kind>,
    records: &mut [Arc<StoredObject>],
) -> Result<(), ApiError> {
    show_until(asker, kind, records, list_deadline()).await
}

/// When a list that begins now has to be converted.
pub(crate) fn list_deadline() -> Instant {
    Instant::now() + LIST_TIME
}

/// As [`show`], for records that are a part of a list with that deadline.
///
/// # Errors
/// As [`show`]; 500 after the deadline.
pub(crate) async fn show_until(
    asker: Asker<'_>,
    kind: &Arc<Kind>,
    records: &mut [Arc<StoredObject>],
    deadline: Instant,
) -> Result<(), ApiError> {
    let Some(version) = webhook_version(kind) else {
        records.iter_mut().for_each(|record| *record = record.as_version(kind));
        return Ok(());
    };
    let mut missing = Vec::new();
    for (at, record) in records.iter_mut().enumerate() {
        match record.view_of(kind) {
            Some(view) => *record = view,
            None => missing.push(at),
        }
    }
    let own_versions = missing.iter().filter_map(|at| {
        let record = records.get(*at)?;
        // Pruned and defaulted by the rules of the version in which it is stored.
        Some(record.as_version(&record.object().kind))
    });
    let own_versions: Vec<Arc<StoredObject>> = own_versions.collect();
    let objects: Vec<&Object> = own_versions.iter().map(|record| record.object()).collect();
    let mut done = 0;
    while let Some(rest) = objects.get(done..).filter(|rest| !rest.is_empty()) {
        // Boxed, so that the futures of all other requests stay small.
        let converted = Box::pin(convert_some(asker, kind, rest, deadline)).await?;
        // Kept after each call: a list that takes too long is further the next time.
        let places = missing.iter().skip(done);
        done = done.saturating_add(converted.len());
        for (at, object) in places.zip(converted) {
            if let Some(record) = records.get_mut(*at) {
                *record = record.put_view(kind, version.number, object);
            }
        }
    }
    Ok(())
}

/// [`show`] for one record.
///
/// # Errors
/// As [`show`].
pub async fn show_one(
    asker: Asker<'_>,
    kind: &Arc<Kind>,
    record: Arc<StoredObject>,
) -> Result<Arc<StoredObject>, ApiError> {
    let mut records = [record];
    show(asker, kind, &mut records).await?;
    let [record] = records;
    Ok(record)
}

/// The object in the version in which it is to be stored.
///
/// # Errors
/// 500 if the webhook does not convert it, 429 if the user has too many calls of it.
pub(crate) async fn to_storage<'a>(
    asker: Asker<'_>,
    object: &'a Object,
) -> Result<Cow<'a, Object>, ApiError> {
    let Some(version) = webhook_version(&object.kind) else { return Ok(Cow::Borrowed(object)) };
    match asker.server.engine.storage_kind(&object.kind, &version) {
        Some(kind) if !Arc::ptr_eq(&kind, &object.kind) => {
            Ok(Cow::Owned(convert(asker, object, &kind).await?))
        }
        _ => Ok(Cow::Borrowed(object)),
    }
}

/// [`to_storage`] of an object that is not needed any more.
///
/// # Errors
/// As [`to_storage`].
pub(crate) async fn into_storage(asker: Asker<'_>, object: Object) -> Result<Object, ApiError> {
    let converted = match to_storage(asker, &object).await? {
        Cow::Owned(converted) => Some(converted),
        Cow::Borrowed(_) => None,
    };
    Ok(converted.unwrap_or(object))
}

/// The object as one of `kind`, another version of its kind, built in or custom.
///
/// # Errors
/// 500 if the webhook does not convert it, 429 if the user has too many calls of it.
pub(crate) async fn convert(
    asker: Asker<'_>,
    object: &Object,
    kind: &Arc<Kind>,
) -> Result<Object, ApiError> {
    if Arc::ptr_eq(&object.kind, kind) {
        return Ok(object.clone());
    }
    if webhook_version(kind).is_none() {
        return Ok(versions::convert(object, kind));
    }
    let deadline = Instant::now() + CALL_TIME;
    let mut converted = Box::pin(convert_some(asker, kind, &[object], deadline)).await?;
    converted.pop().ok_or_else(|| changed_meanwhile(kind))
}

/// The rules of `kind`, if a webhook converts its objects.
pub(crate) fn webhook_version(kind: &Kind) -> Option<Arc<CustomVersion>> {
    kind.custom_version().filter(|version| version.has_webhook)
}

/// Calls the webhook with the first of the objects, as many as one call may have, at least one.
async fn convert_some(
    asker: Asker<'_>,
    kind: &Arc<Kind>,
    objects: &[&Object],
    deadline: Instant,
) -> Result<Vec<Object>, ApiError> {
    let definition = asker.server.definitions.find(&kind.group, kind.plural());
    let converter = definition.as_ref().and_then(|definition| definition.converter.as_ref());
    let converter = converter.ok_or_else(|| changed_meanwhile(kind))?;
    let left = deadline.saturating_duration_since(Instant::now());
    if left.is_zero() {
        return Err(refusal(kind, &format!("failed: {}", CallError::Deadline)));
    }
    let call = Call { asker, converter, kind, time: CALL_TIME.min(left) };
    call.send(objects).await
}

/// One call of the webhook.
struct Call<'a> {
    asker: Asker<'a>,
    converter: &'a Converter,
    kind: &'a Arc<Kind>,
    time: Duration,
}

impl Call<'_> {
    /// Converts as many of the objects as one call may have, at least one.
    async fn send(&self, objects: &[&Object]) -> Result<Vec<Object>, ApiError> {
        let engine = &self.asker.server.engine;
        let (mut documents, mut scratch) = (Vec::new(), Vec::new());
        for object in objects.iter().take(OBJECTS_MAX) {
            let document = engine.written_document(object);
            write_json(&mut scratch, &document);
            if scratch.len() > CALL_LEN && !documents.is_empty() {
                break;
            }
            documents.push(document);
        }
        drop(scratch);
        let of = objects.first().map_or(self.kind, |object| &object.kind);
        let refused = |what: String| refusal(of, &what);
        let Some(review_version) = &self.converter.review_version else {
            return Err(refused(
                "failed: it accepts no known version of ConversionReview (v1, v1beta1)".to_owned(),
            ));
        };
        let group = self.asker.server.names.group("apiextensions");
        let review = conversion_review(
            &format!("{group}/{review_version}"),
            &Uuid::new_v4().to_string(),
            &self.kind.api_version,
            documents,
        );
        let mut body = Vec::new();
        write_json(&mut body, &review);
        let answer = ask(self.asker, &self.converter.remote, Bytes::from(body), self.time).await;
        let answer = answer.map_err(|error| match error {
            NoAnswer::Failed { reason, .. } => refused(format!("failed: {reason}")),
            NoAnswer::TooMany(error) => error,
        })?;
        let answer = parse_json(&answer, &mut Vec::new());
        let answer = answer.map_err(|error| refused(format!("failed: {error}")))?;
        let converted = check_review(&review, answer).map_err(|error| {
            refused(match error {
                ConversionReviewError::Count { .. } | ConversionReviewError::Object { .. } => {
                    format!("returned {error}")
                }
                error => format!("failed: {error}"),
            })
        })?;
        converted.into_iter().map(|document| self.object_of(document, of)).collect()
    }

    /// A converted object, checked and pruned as one of the kind.
    fn object_of(&self, document: Value, of: &Kind) -> Result<Object, ApiError> {
        let object = self.asker.server.engine.object_of(self.kind, document, Strictness::Ignore);
        let object = object
            .map_err(|error| refusal(of, &format!("returned invalid converted object: {error}")))?;
        Ok(object.object)
    }
}

/// The 500 for objects that a webhook does not convert.
fn refusal(kind: &Kind, what: &str) -> ApiError {
    let text = format!("conversion webhook for {}, Kind={} {what}", kind.api_version, kind.kind());
    ApiError::new(500, "InternalError", text)
}

fn changed_meanwhile(kind: &Kind) -> ApiError {
    ApiError::unavailable(format!(
        "the definition of {}.{} has changed since the request began; retry the request",
        kind.plural(),
        kind.group
    ))
}
