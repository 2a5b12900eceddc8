//! Admission of pods: privileged containers, priority, default tolerations.

use std::collections::HashSet;

use apiserver_schema::{Map, Object, Value};

use super::priority_classes;
use crate::config::{AdmissionPlugin, PrivilegedContainers};
use crate::context::{RequestContext, about_kind};
use crate::registry::pods::CONTAINER_LISTS;
use crate::server::Server;
use crate::status::{ApiError, FieldProblem, StatusTarget};

/// Seconds for which a pod tolerates a node that is not ready or unreachable, by default.
const DEFAULT_TOLERATION_SECS: i64 = 300;

/// Checks a new pod for privileged containers and sets its priority and default tolerations.
pub fn admit_create(call: &RequestContext<'_>, pod: &mut Object) -> Result<(), ApiError> {
    check_privileged(call, pod, None)?;
    if call.server.config.admission.runs(AdmissionPlugin::Priority) {
        set_priority(call, pod)?;
    }
    add_default_tolerations(call.server, pod);
    Ok(())
}

fn add_default_tolerations(server: &Server, pod: &mut Object) {
    let names = server.names;
    if !server.config.admission.runs(AdmissionPlugin::DefaultTolerationSeconds) {
        return;
    }
    for condition in ["not-ready", "unreachable"] {
        tolerate(pod.fields.map_or_insert("spec"), &names.sub_label("node", condition));
    }
}

/// Keeps the fields that admission set at creation and that the update leaves out.
pub fn admit_update(server: &Server, pod: &mut Object, old: &Object) {
    add_default_tolerations(server, pod);
    let Some(before) = old.spec() else { return };
    let spec = pod.fields.map_or_insert("spec");
    for field in ["priority", "preemptionPolicy"] {
        if let (false, Some(value)) = (spec.contains(field), before.get(field)) {
            spec.insert(field, value.clone());
        }
    }
}

/// Refuses privileged containers, where the cluster does, but for those that the pod had before.
pub fn check_privileged(
    call: &RequestContext<'_>,
    pod: &Object,
    old: Option<&Object>,
) -> Result<(), ApiError> {
    if call.server.config.privileged == PrivilegedContainers::Admitted {
        return Ok(());
    }
    let Some(spec) = pod.spec() else { return Ok(()) };
    let is_privileged = |container: &Map| {
        container.map("securityContext").is_some_and(|context| context.is_true("privileged"))
    };
    let mut problems = Vec::new();
    for list in CONTAINER_LISTS {
        let before = old.and_then(Object::spec).into_iter().flat_map(|spec| spec.maps(list));
        let before: HashSet<&str> =
            before.filter(|old| is_privileged(old)).map(|old| old.str("name")).collect();
        for (index, container) in spec.maps(list).enumerate() {
            if is_privileged(container) && !before.contains(container.str("name")) {
                let field = format!("spec.{list}[{index}].securityContext.privileged");
                problems.push(FieldProblem::forbidden(field, "disallowed by cluster policy"));
            }
        }
    }
    if problems.is_empty() { Ok(()) } else { Err(ApiError::invalid(about_kind(pod), &problems)) }
}

/// Sets `priority` and `preemptionPolicy` from the pod's PriorityClass, or from the global default.
fn set_priority(call: &RequestContext<'_>, pod: &mut Object) -> Result<(), ApiError> {
    let name = pod.str_at(&["spec", "priorityClassName"]).to_owned();
    let class = if name.is_empty() { default_class(call) } else { class(call, pod, &name)? };
    let spec = pod.fields.map_or_insert("spec");
    let (value, policy, class_name) =
        class.unwrap_or((0, "PreemptLowerPriority".to_owned(), String::new()));
    if let Some(given) = spec.int("priority").filter(|given| *given != value) {
        let why = format!(
            "the integer value of priority ({given}) must not be provided in pod spec; priority admission controller computed {value} from the given PriorityClass name"
        );
        return Err(refuse(call, pod, &why));
    }
    let given = spec.str("preemptionPolicy");
    if !given.is_empty() && given != policy {
        let why = format!(
            "the string value of PreemptionPolicy ({given}) must not be provided in pod spec; priority admission controller computed {policy} from the given PriorityClass name"
        );
        return Err(refuse(call, pod, &why));
    }
    spec.insert("priority", value);
    spec.insert("preemptionPolicy", policy);
    if name.is_empty() && !class_name.is_empty() {
        spec.insert("priorityClassName", class_name);
    }
    Ok(())
}

fn refuse(call: &RequestContext<'_>, pod: &Object, why: &str) -> ApiError {
    ApiError::forbidden(StatusTarget { name: pod.name(), ..call.about() }, why)
}

type Class = (i64, String, String);

fn class(call: &RequestContext<'_>, pod: &Object, name: &str) -> Result<Option<Class>, ApiError> {
    let found = call.server.find_in("scheduling", "priorityclasses", "", name);
    match found {
        Some(record) => Ok(Some(read_class(record.object()))),
        None => Err(refuse(call, pod, &format!("no PriorityClass with name {name} was found"))),
    }
}

fn default_class(call: &RequestContext<'_>) -> Option<Class> {
    priority_classes::default_class(call).map(|class| read_class(class.object()))
}

fn read_class(class: &Object) -> Class {
    let policy = match class.fields.str("preemptionPolicy") {
        "" => "PreemptLowerPriority",
        policy => policy,
    };
    (class.fields.int("value").unwrap_or(0), policy.to_owned(), class.name().to_owned())
}

/// Adds a limited toleration of the taint `key`, unless the pod has one.
fn tolerate(spec: &mut Map, key: &str) {
    let covers = |toleration: &Map| {
        matches!(toleration.str("key"), "") && toleration.str("operator") == "Exists"
            || toleration.str("key") == key
    };
    let every_effect = |toleration: &Map| matches!(toleration.str("effect"), "" | "NoExecute");
    if spec.maps("tolerations").any(|toleration| covers(toleration) && every_effect(toleration)) {
        return;
    }
    let toleration: Map = [
        ("key", Value::from(key)),
        ("operator", Value::from("Exists")),
        ("effect", Value::from("NoExecute")),
        ("tolerationSeconds", Value::from(DEFAULT_TOLERATION_SECS)),
    ]
    .into_iter()
    .collect();
    let mut list = spec.list("tolerations").to_vec();
    list.push(toleration.into());
    spec.insert("tolerations", list);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn toleration(key: &str, operator: &str, effect: &str) -> Map {
        [("key", key), ("operator", operator), ("effect", effect)]
            .into_iter()
            .filter(|(_, v)| !v.is_empty())
            .collect()
    }

    #[test]
    fn own_tolerations_win() {
        let count = |own: Option<Map>| {
            let mut spec = Map::new();
            own.into_iter()
                .for_each(|own| drop(spec.insert("tolerations", vec![Value::from(own)])));
            tolerate(&mut spec, "node.orch.io/not-ready");
            spec.list("tolerations").len()
        };
        assert_eq!(count(None), 1);
        assert_eq!(count(Some(toleration("", "Exists", ""))), 1);
        assert_eq!(count(Some(toleration("node.orch.io/not-ready", "Exists", "NoExecute"))), 1);
        assert_eq!(count(Some(toleration("node.orch.io/not-ready", "Exists", "NoSchedule"))), 2);
        assert_eq!(count(Some(toleration("other", "Exists", "NoExecute"))), 2);
    }
}
