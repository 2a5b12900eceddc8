//! Evictions: deletions of pods that ask the disruption budgets first.

use apiserver_schema::{Format, Map, Object, Value};
use apiserver_store::{Range, Write, WriteError};
use proto_api::meta::v1::{LabelSelector, LabelSelectorRequirement};
use proto_api::selectors::Selector;

use crate::key;
use crate::record::Draft;
use crate::server::{now, timestamp};
use crate::status::{About, ApiError};
use crate::verbs::{
    Answer, CONFLICT_TRIES, Call, DeleteWish, Effects, Outcome, decode_as, delete_object,
    labels_match,
};

/// Deletes the pod that the request names, if no budget is against it.
///
/// # Errors
/// 404 without such a pod, 429 while a budget holds it back, 500 when two budgets cover it.
pub async fn create(call: &Call<'_>, body: &[u8], format: Format) -> Result<Outcome, ApiError> {
    let server = call.server;
    let kind = server
        .engine
        .kind("policy", "v1", "Eviction")
        .ok_or_else(|| crate::server::missing_kind("Eviction"))?;
    let decoded = decode_as(call, kind, body, format)?;
    let options = decoded.object.fields.map("deleteOptions").cloned().unwrap_or_default();
    let mut wish = DeleteWish::new(&options, call.query)?;
    let pod = call.current()?;
    let waits =
        matches!(pod.object().str_at(&["status", "phase"]), "Pending" | "Succeeded" | "Failed")
            || pod.object().deletion_timestamp().is_some();
    if !waits && wish.effects == Effects::Real {
        take_disruption(call, pod.object()).await?;
    }
    wish.uid.get_or_insert_with(|| pod.object().uid().to_owned());
    delete_object(call, &wish).await?;
    Ok(Outcome { answer: Answer::Success { code: 201 }, warnings: decoded.warnings })
}

/// Finds the budget that covers `pod` and takes one disruption from it.
async fn take_disruption(call: &Call<'_>, pod: &Object) -> Result<(), ApiError> {
    let server = call.server;
    let Some(kind) = server.kind("policy", "poddisruptionbudgets") else { return Ok(()) };
    for _ in 0..CONFLICT_TRIES {
        let prefix = key::prefix(kind, pod.namespace());
        let page = server.snapshot().range(Range { prefix: &prefix, after: None, limit: None });
        let budgets =
            page.map_err(ApiError::internal)?.entries.into_iter().map(|entry| entry.record);
        let covering: Vec<_> = budgets.filter(|budget| covers(budget.object(), pod)).collect();
        let [budget] = covering.as_slice() else {
            return match covering.len() {
                0 => Ok(()),
                _ => Err(ApiError::internal(
                    "This pod has more than one PodDisruptionBudget, which the eviction subresource does not support.",
                )),
            };
        };
        let next = disrupted(budget.object(), pod.name())?;
        let key = key::object(kind, pod.namespace(), next.name());
        match server
            .store
            .write(Write::update(key, budget.revision(), Draft::new(&server.engine, next)))
            .await
        {
            Ok(_) => return Ok(()),
            Err(WriteError::Conflict { .. } | WriteError::NotFound { .. }) => {}
            Err(error) => return Err(crate::verbs::write_failed(&error)),
        }
    }
    Err(ApiError::modified(About { group: "policy", kind: "poddisruptionbudgets", name: "" }))
}

fn covers(budget: &Object, pod: &Object) -> bool {
    let Some(selector) = budget.spec().and_then(|spec| spec.map("selector")) else { return false };
    let texts =
        |values: &[Value]| values.iter().filter_map(Value::as_str).map(str::to_owned).collect();
    let requirement = |map: &Map| LabelSelectorRequirement {
        key: map.str("key").to_owned(),
        operator: map.str("operator").to_owned(),
        values: texts(map.list("values")),
    };
    let labels = selector.map("matchLabels").into_iter().flat_map(Map::iter);
    let labels =
        labels.filter_map(|(key, value)| Some((key.to_owned(), value.as_str()?.to_owned())));
    let typed = LabelSelector {
        match_labels: labels.collect(),
        match_expressions: selector.maps("matchExpressions").map(requirement).collect(),
    };
    Selector::from_label_selector(&typed, "spec.selector")
        .is_ok_and(|selector| labels_match(&selector, pod))
}

/// The budget with one disruption less.
fn disrupted(budget: &Object, pod: &str) -> Result<Object, ApiError> {
    let status = budget.status().cloned().unwrap_or_default();
    let allowed = status.int("disruptionsAllowed").unwrap_or(0);
    if allowed <= 0 {
        let detail = format!(
            "The disruption budget {} needs {} healthy pods and has {} currently",
            budget.name(),
            status.int("desiredHealthy").unwrap_or(0),
            status.int("currentHealthy").unwrap_or(0),
        );
        return Err(ApiError::disruption_budget(detail));
    }
    let mut next = budget.clone();
    let status = next.fields.map_or_insert("status");
    status.insert("disruptionsAllowed", allowed - 1);
    status.map_or_insert("disruptedPods").insert(pod.to_owned(), Value::from(timestamp(now())));
    Ok(next)
}
