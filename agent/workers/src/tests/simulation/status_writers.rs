//! What the API server makes of the agent's patches, and others who write to the same statuses (invariant 17).

use agent_interfaces::StatusChange;
use proto_api::core::v1::{PodCondition, PodStatus};
use serde_json::{Map, Value};

use super::extras::GATE;
use super::world::World;
use crate::status_patch;

/// A status after a strategic merge patch of it, as kube-apiserver applies one: of the lists in a status conditions are merged by
/// type and addresses by address, all others are replaced (`patchStrategy` of the fields of PodStatus).
fn merged(status: &PodStatus, patch: &Value) -> Option<PodStatus> {
    let Ok(Value::Object(mut fields)) = serde_json::to_value(status) else { return None };
    for (name, value) in patch.get("status")?.as_object()? {
        match (name.as_str(), value) {
            (_, Value::Null) => drop(fields.remove(name)),
            ("conditions", Value::Array(changed)) => merge(&mut fields, name, "type", changed),
            ("podIPs", Value::Array(changed)) => merge(&mut fields, name, "ip", changed),
            _ => drop(fields.insert(name.clone(), value.clone())),
        }
    }
    serde_json::from_value(Value::Object(fields)).ok()
}

/// Merges the elements of a list by the field that names them, or replaces the list when the patch says so.
fn merge(fields: &mut Map<String, Value>, list: &str, by: &str, changed: &[Value]) {
    let known = fields.entry(list).or_insert_with(|| Value::Array(Vec::new()));
    let Value::Array(known) = known else { return };
    let replaces = |element: &Value| element.get("$patch").is_some_and(|how| how == "replace");
    if changed.iter().any(replaces) {
        *known = changed.iter().filter(|element| !replaces(element)).cloned().collect();
        return;
    }
    for element in changed {
        let same = known.iter_mut().find(|known| known.get(by) == element.get(by));
        match (same.and_then(Value::as_object_mut), element.as_object()) {
            (Some(same), Some(element)) => {
                for (name, value) in element {
                    match value {
                        Value::Null => drop(same.remove(name)),
                        value => drop(same.insert(name.clone(), value.clone())),
                    }
                }
            }
            _ => known.push(element.clone()),
        }
    }
}

fn is_own(condition: &PodCondition) -> bool {
    condition.type_ != GATE
}

impl World {
    /// What the object shows after the agent's patch, which has to be what the agent wants it to show, with what others wrote.
    pub fn patched(&mut self, uid: &str, change: StatusChange<'_>) -> PodStatus {
        let Some(book) = self.books.get(uid) else { return PodStatus::default() };
        let (shown, contested) = (book.shown.clone(), book.contested);
        let unknown = PodStatus::default();
        let from = if change.whole { &unknown } else { change.from };
        let patch = status_patch::patch(uid, from, change.to);
        if self.verbose {
            self.trace_only(patch.to_string());
        }
        let Some(now) = merged(&shown, &patch) else {
            self.broken(format!("a patch of {uid} that no server takes: {patch}"));
            return shown;
        };
        // What others have changed since the agent saw it last is not in the patch.
        if (change.whole || !contested) && status_patch::differs(&now, change.to) {
            self.broken(format!("{uid} does not show what it should after {patch}: {now:?}"));
        }
        let of_others = |status: &PodStatus| -> Vec<PodCondition> {
            status.conditions.iter().filter(|c| !is_own(c)).cloned().collect()
        };
        if of_others(&now) != of_others(&shown) {
            self.broken(format!("what others wrote to {uid} is changed by {patch}"));
        }
        if patch.to_string().contains(super::world::SECRET) {
            self.broken("a status tells a secret");
        }
        now
    }

    /// A pod that waits for somebody else is not ready before that has once said so.
    pub fn judge_gate(&mut self, uid: &str, status: &PodStatus) {
        let Some(book) = self.books.get(uid) else { return };
        let ready = status.conditions.iter().any(|c| c.type_ == "Ready" && c.status == "True");
        if ready && !book.pod.spec.readiness_gates.is_empty() && !book.opened {
            self.broken(format!("{uid} is ready and its gate was never open"));
        }
    }
}
