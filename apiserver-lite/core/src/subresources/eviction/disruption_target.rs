//! The condition of a pod that is evicted. It is written before the deletion, so that the failure policy of a Job can tell such a pod.

use apiserver_schema::{Map, Object, Value};
use apiserver_store::{Write, WriteError};

use crate::context::RequestContext;
use crate::options::DeleteOptions;
use crate::record::Draft;
use crate::status::ApiError;
use crate::times::{now, timestamp};
use crate::verbs::{CONFLICT_TRIES, check_preconditions, write_failed};

const TYPE: &str = "DisruptionTarget";
const STATUS: &str = "True";
const REASON: &str = "EvictionByEvictionAPI";
const MESSAGE: &str = "Eviction API: evicting";

/// Writes the condition to the requested pod, unless it says so already. A precondition about the pod's version is one about the written version
/// afterwards.
///
/// # Errors
/// 404 if the pod is gone, 409 if it does not fulfil the preconditions.
pub async fn write(call: &RequestContext<'_>, options: &mut DeleteOptions) -> Result<(), ApiError> {
    let server = call.server;
    for _ in 0..CONFLICT_TRIES {
        let pod = call.stored()?;
        check_preconditions(call, options, pod.object())?;
        let Some(next) = with_condition(pod.object(), &timestamp(now())) else { return Ok(()) };
        let write = Write::update(call.key(), pod.revision(), Draft::new(&server.engine, next));
        match server.store.write(write).await {
            Ok(written) => {
                if let Some(version) = &mut options.resource_version {
                    written.record.object().resource_version().clone_into(version);
                }
                return Ok(());
            }
            Err(WriteError::Conflict { .. }) => {}
            Err(WriteError::NotFound { .. }) => return Err(ApiError::not_found(call.about())),
            Err(error) => return Err(write_failed(&error)),
        }
    }
    Err(ApiError::modified(call.about()))
}

/// The pod with the condition; none if it has it. The time is that of the last change of the condition's status.
fn with_condition(pod: &Object, now: &str) -> Option<Object> {
    let mut conditions = pod.status().map(|of| of.list("conditions").to_vec()).unwrap_or_default();
    let is_it = |value: &Value| value.as_map().is_some_and(|map| map.str("type") == TYPE);
    let at = conditions.iter().position(is_it);
    let before = at.and_then(|at| conditions.get(at)).and_then(Value::as_map);
    let says = |field: &str, text: &str| before.is_some_and(|before| before.str(field) == text);
    if says("status", STATUS) && says("reason", REASON) && says("message", MESSAGE) {
        return None;
    }
    let same = before.filter(|before| before.str("status") == STATUS);
    let since = same.map_or(now, |before| before.str("lastTransitionTime")).to_owned();
    let condition: Map = [
        ("type", TYPE),
        ("status", STATUS),
        ("reason", REASON),
        ("message", MESSAGE),
        ("lastTransitionTime", &since),
    ]
    .into_iter()
    .collect();
    match at.and_then(|at| conditions.get_mut(at)) {
        Some(place) => *place = Value::Map(condition),
        None => conditions.push(Value::Map(condition)),
    }
    let mut next = pod.clone();
    next.fields.map_or_insert("status").insert("conditions", conditions);
    Some(next)
}
