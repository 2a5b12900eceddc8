//! Limits of a namespace: a new pod gets the defaults of the namespace's LimitRanges, and pods and claims must keep their bounds, as
//! Kubernetes' LimitRanger plugin.

mod constraints;
mod defaults;
#[cfg(test)]
mod tests;

use std::sync::Arc;

use apiserver_schema::{Map, Object};

use self::constraints::LimitedObject;
use super::Operation;
use crate::context::RequestContext;
use crate::record::StoredObject;
use crate::request::BODY_LEN_MAX;
use crate::server::missing_kind;
use crate::status::{ApiError, StatusTarget};

/// Sets the defaults of a new pod from the LimitRanges of its namespace.
///
/// # Errors
/// 413 for a pod that would be too large with its defaults.
pub fn set_pod_defaults(
    call: &RequestContext<'_>,
    operation: Operation,
    object: &mut Object,
) -> Result<(), ApiError> {
    if operation != Operation::Create || !object.kind.is("", "Pod") {
        return Ok(());
    }
    let stored = read_ranges(call, object.namespace())?;
    let ranges = specs(&stored);
    match ranges.is_empty() {
        true => Ok(()),
        false => set_defaults(&ranges, object, &call.server.names.label("limit-ranger")),
    }
}

/// Checks a pod or claim against the LimitRanges of its namespace. `old` is the stored version of an update.
///
/// # Errors
/// 403 with all that the first LimitRange, by name, has against the object.
pub async fn check(
    call: &RequestContext<'_>,
    operation: Operation,
    object: &Object,
    old: Option<&Object>,
) -> Result<(), ApiError> {
    if !is_limited(operation, object, old) {
        return Ok(());
    }
    let stored = read_ranges(call, object.namespace())?;
    let ranges = specs(&stored);
    if ranges.is_empty() {
        return Ok(());
    }
    let subject = LimitedObject::from_object(object);
    for range in ranges {
        if let Some(why) = constraints::violations(range, &subject) {
            let about = StatusTarget { name: object.name(), ..call.about() };
            return Err(ApiError::forbidden(about, &why));
        }
        // A namespace may have many: other requests go on in between.
        tokio::task::yield_now().await;
    }
    Ok(())
}

fn specs(stored: &[Arc<StoredObject>]) -> Vec<&Map> {
    stored.iter().filter_map(|record| record.object().spec()).collect()
}

/// Whether limits apply. Updates of a pod do not change its containers; what is being deleted may be changed whatever its size, so
/// that its finalizers can be removed. Mirror pods are limited like others.
fn is_limited(operation: Operation, object: &Object, old: Option<&Object>) -> bool {
    let is_claim = object.kind.is("", "PersistentVolumeClaim");
    match operation {
        Operation::Create => is_claim || object.kind.is("", "Pod"),
        Operation::Update => is_claim && old.is_none_or(|old| old.deletion_timestamp().is_none()),
        Operation::UpdateSubresource => false,
    }
}

/// The LimitRanges of a namespace, by name.
fn read_ranges(
    call: &RequestContext<'_>,
    namespace: &str,
) -> Result<Vec<Arc<StoredObject>>, ApiError> {
    let kind = call.server.kind("", "limitranges").ok_or_else(|| missing_kind("LimitRange"))?;
    Ok(call.server.objects(kind, namespace, None))
}

/// Sets what containers lack from each LimitRange in turn, and says so in `annotation`.
fn set_defaults(ranges: &[&Map], pod: &mut Object, annotation: &str) -> Result<(), ApiError> {
    // A pod with more could not be sent either.
    let mut room = BODY_LEN_MAX;
    for range in ranges {
        let left = defaults::fill(range, pod, annotation, room);
        room = left.ok_or_else(|| ApiError::too_large(BODY_LEN_MAX))?;
    }
    Ok(())
}
