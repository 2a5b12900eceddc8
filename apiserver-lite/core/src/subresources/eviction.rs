//! Evictions: deletions of pods that respect PodDisruptionBudgets.

mod disruption_target;

use std::sync::Arc;

use apiserver_schema::{Format, Map, Object, Value};
use apiserver_store::{Write, WriteError};
use proto_api::meta::v1::{LabelSelector, LabelSelectorRequirement};
use proto_api::selectors::Selector;

use crate::admission;
use crate::context::RequestContext;
use crate::key;
use crate::options::{DeleteOptions, Effects};
use crate::record::{Draft, StoredObject};
use crate::server::Server;
use crate::status::{ApiError, StatusTarget};
use crate::times::{now, timestamp};
use crate::verbs::{
    CONFLICT_TRIES, VerbOutput, VerbResponse, decode_as, delete_object, labels_match,
};

/// Most entries of a budget's `disruptedPods`, as in Kubernetes.
const DISRUPTED_MAX: usize = 2000;
/// `Retry-After` in seconds while the controller has not processed a changed budget.
const PROCESSED_RETRY_SECS: i32 = 10;

/// Evicts the requested pod if its budget allows it.
///
/// # Errors
/// 404 if the pod does not exist, 429 while its budget forbids it, 500 if several budgets cover it.
pub async fn create(
    call: &RequestContext<'_>,
    body: &[u8],
    format: Format,
) -> Result<VerbOutput, ApiError> {
    let server = call.server;
    let kind = server
        .engine
        .kind("policy", "v1", "Eviction")
        .ok_or_else(|| crate::server::missing_kind("Eviction"))?;
    let mut decoded = decode_as(call, kind, body, format)?;
    let effects = call.effects()?;
    let operation = admission::WebhookOperation::Create;
    admission::admit_unstored(call, operation, &mut decoded.object, None, effects).await?;
    // A refusal comes before what else is wrong.
    admission::admit_delete(call)?;
    let name = decoded.object.name();
    if !name.is_empty() && name != call.request.name {
        return Err(ApiError::bad_request("name in URL does not match name in Eviction object"));
    }
    let options = decoded.object.fields.map("deleteOptions").cloned().unwrap_or_default();
    let delete_options = DeleteOptions::new(server.names, &options, call.query)?;
    let adds_condition =
        server.config.disruption_conditions && delete_options.effects != Effects::DryRun;
    for _ in 0..CONFLICT_TRIES {
        let pod = call.stored()?;
        let grant = take_disruption(call, pod.object(), delete_options.effects).await?;
        let mut delete_options = delete_options.clone();
        delete_options.uid.get_or_insert_with(|| pod.object().uid().to_owned());
        // The decision holds only for the version of the pod that was read.
        let pinned =
            grant == EvictionGrant::IfUnchanged && delete_options.resource_version.is_none();
        if pinned {
            delete_options.resource_version = Some(pod.object().resource_version().to_owned());
        }
        let written = match adds_condition {
            true => disruption_target::write(call, &mut delete_options).await,
            false => Ok(()),
        };
        let deleted = match written {
            Ok(()) => delete_object(call, &delete_options).await,
            Err(error) => Err(error),
        };
        match deleted {
            Err(error) if pinned && error.is_conflict() => {}
            Err(error) => return Err(error),
            Ok(_) => {
                let response = VerbResponse::Success { code: 201 };
                return Ok(VerbOutput { response, warnings: decoded.warnings });
            }
        }
    }
    Err(ApiError::modified(call.about()))
}

/// Condition of an allowed eviction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum EvictionGrant {
    /// The pod must be unchanged: it disrupts nothing, because it does not run, or is unready while enough others are healthy.
    IfUnchanged,
    /// No budget covers the pod, or a disruption was taken from its budget.
    Unconditional,
}

/// Finds the budget that covers `pod` and takes one disruption from it, unless the eviction disrupts nothing. A dry run does not
/// write the budget.
async fn take_disruption(
    call: &RequestContext<'_>,
    pod: &Object,
    effects: Effects,
) -> Result<EvictionGrant, ApiError> {
    let phase = pod.str_at(&["status", "phase"]);
    if matches!(phase, "Pending" | "Succeeded" | "Failed") || pod.deletion_timestamp().is_some() {
        return Ok(EvictionGrant::IfUnchanged);
    }
    let server = call.server;
    for _ in 0..CONFLICT_TRIES {
        let Some(budget) = covering(server, pod)? else { return Ok(EvictionGrant::Unconditional) };
        if !is_ready(pod) && has_enough(budget.object()) {
            return Ok(EvictionGrant::IfUnchanged);
        }
        let next = with_disruption(budget.object(), pod.name())?;
        if effects == Effects::DryRun {
            return Ok(EvictionGrant::Unconditional);
        }
        let key = key::object(&next.kind, pod.namespace(), next.name());
        let write = Write::update(key, budget.revision(), Draft::new(&server.engine, next));
        match server.store.write(write).await {
            Ok(_) => return Ok(EvictionGrant::Unconditional),
            Err(WriteError::Conflict { .. } | WriteError::NotFound { .. }) => {}
            Err(error) => return Err(crate::verbs::write_failed(&error)),
        }
    }
    Err(ApiError::modified(StatusTarget {
        group: "policy",
        kind: "poddisruptionbudgets",
        name: "",
    }))
}

/// The budget whose selector matches the pod, if any.
fn covering(server: &Server, pod: &Object) -> Result<Option<Arc<StoredObject>>, ApiError> {
    let Some(kind) = server.kind("policy", "poddisruptionbudgets") else { return Ok(None) };
    let budgets = server.objects(kind, pod.namespace(), None).into_iter();
    let mut covering = budgets.filter(|budget| covers(budget.object(), pod));
    match (covering.next(), covering.next()) {
        (Some(_), Some(_)) => Err(ApiError::new(
            500,
            "",
            "This pod has more than one PodDisruptionBudget, which the eviction subresource does not support.",
        )),
        (first, _) => Ok(first),
    }
}

fn is_ready(pod: &Object) -> bool {
    let conditions = pod.status().into_iter().flat_map(|status| status.maps("conditions"));
    conditions.filter(|c| c.str("type") == "Ready").any(|c| c.str("status") == "True")
}

fn status_int(budget: &Object, field: &str) -> i64 {
    budget.status().and_then(|status| status.int(field)).unwrap_or(0)
}

/// Whether enough pods of the budget are healthy.
fn has_enough(budget: &Object) -> bool {
    let desired = status_int(budget, "desiredHealthy");
    desired > 0 && status_int(budget, "currentHealthy") >= desired
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

/// The budget with one disruption taken for `pod`.
fn with_disruption(budget: &Object, pod: &str) -> Result<Object, ApiError> {
    let name = budget.name();
    if status_int(budget, "observedGeneration") < budget.generation() {
        let detail =
            format!("The disruption budget {name} is still being processed by the server.");
        return Err(ApiError::disruption_budget(detail, PROCESSED_RETRY_SECS));
    }
    let refuse = |why: &str| {
        let about = StatusTarget { group: "policy", kind: "poddisruptionbudget", name };
        Err(ApiError::forbidden(about, why))
    };
    let allowed = status_int(budget, "disruptionsAllowed");
    if allowed < 0 {
        return refuse("pdb disruptions allowed is negative");
    }
    let waits_for = budget.status().and_then(|status| status.map("disruptedPods"));
    if waits_for.is_some_and(|pods| pods.len() > DISRUPTED_MAX) {
        return refuse(
            "DisruptedPods map too big - too many evictions not confirmed by PDB controller",
        );
    }
    if allowed == 0 {
        let detail = format!(
            "The disruption budget {name} needs {} healthy pods and has {} currently",
            status_int(budget, "desiredHealthy"),
            status_int(budget, "currentHealthy"),
        );
        return Err(ApiError::disruption_budget(detail, 0));
    }
    let mut next = budget.clone();
    let observed = status_int(budget, "observedGeneration");
    let status = next.fields.map_or_insert("status");
    status.insert("disruptionsAllowed", allowed.saturating_sub(1));
    status.map_or_insert("disruptedPods").insert(pod.to_owned(), Value::from(timestamp(now())));
    if allowed == 1 {
        forbid_disruptions(status, observed);
    }
    Ok(next)
}

/// Sets the condition `DisruptionAllowed` to false; its transition time changes only with its status.
fn forbid_disruptions(status: &mut Map, observed: i64) {
    const TYPE: &str = "DisruptionAllowed";
    let mut conditions = status.list("conditions").to_vec();
    let is_it = |value: &Value| value.as_map().is_some_and(|map| map.str("type") == TYPE);
    let before = conditions.iter().find(|value| is_it(value)).and_then(Value::as_map);
    let same = before.filter(|before| before.str("status") == "False");
    let since = same.map(|before| before.str("lastTransitionTime").to_owned());
    let condition: Map = [
        ("type", Value::from(TYPE)),
        ("status", "False".into()),
        ("observedGeneration", observed.into()),
        ("lastTransitionTime", since.unwrap_or_else(|| timestamp(now())).into()),
        ("reason", "InsufficientPods".into()),
        ("message", "".into()),
    ]
    .into_iter()
    .collect();
    conditions.retain(|value| !is_it(value));
    conditions.push(condition.into());
    status.insert("conditions", conditions);
}
