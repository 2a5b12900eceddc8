//! Admission of a pod's RuntimeClass: overhead, node selector and tolerations.

use std::collections::BTreeSet;

use apiserver_schema::{Map, Object, Value};

use crate::context::RequestContext;
use crate::status::{ApiError, StatusTarget};

/// Why a pod does not fit its RuntimeClass. The pod is refused.
#[derive(Debug, thiserror::Error)]
enum Rejection {
    #[error("RuntimeClass {0:?} not found")]
    NoClass(String),
    #[error("Pod Overhead set without corresponding RuntimeClass defined Overhead")]
    NoOverhead,
    #[error("Pod's Overhead doesn't match RuntimeClass's defined Overhead")]
    OtherOverhead,
    #[error(
        "conflict: runtimeClass.scheduling.nodeSelector[{label}] = {class}; pod.spec.nodeSelector[{label}] = {pod}"
    )]
    NodeSelector { label: String, class: String, pod: String },
}

/// Sets overhead, node selector and tolerations of a new pod from its RuntimeClass.
///
/// # Errors
/// 403 when the class does not exist, or the pod contradicts it.
pub fn admit(call: &RequestContext<'_>, pod: &mut Object) -> Result<(), ApiError> {
    let name = pod.str_at(&["spec", "runtimeClassName"]).to_owned();
    let class = match name.as_str() {
        "" => None,
        name => {
            let found = call.server.find_in("node", "runtimeclasses", "", name);
            let found = found.ok_or_else(|| Rejection::NoClass(name.to_owned()));
            Some(found.map_err(|why| rejected(call, pod, &why))?)
        }
    };
    let fields = class.as_ref().map(|record| &record.object().fields);
    let done = fill(fields, pod.fields.map_or_insert("spec"));
    done.map_err(|why| rejected(call, pod, &why))
}

fn rejected(call: &RequestContext<'_>, pod: &Object, why: &Rejection) -> ApiError {
    let about = StatusTarget { name: pod.name(), ..call.about() };
    ApiError::forbidden(about, &format!("pod rejected: {why}"))
}

fn fill(class: Option<&Map>, spec: &mut Map) -> Result<(), Rejection> {
    let own = spec.map("overhead").filter(|own| !own.is_empty());
    let overhead = class.and_then(|class| class.map("overhead")).map(|o| o.map("podFixed"));
    match (overhead, own) {
        (None, Some(_)) => return Err(Rejection::NoOverhead),
        (Some(fixed), Some(own)) if fixed != Some(own) => {
            return Err(Rejection::OtherOverhead);
        }
        (Some(Some(fixed)), None) => {
            spec.insert("overhead", fixed.clone());
        }
        _ => {}
    }
    let Some(scheduling) = class.and_then(|class| class.map("scheduling")) else { return Ok(()) };
    select(scheduling, spec)?;
    tolerate(scheduling, spec);
    Ok(())
}

/// Merges the node selectors of class and pod.
fn select(scheduling: &Map, spec: &mut Map) -> Result<(), Rejection> {
    let Some(wanted) = scheduling.map("nodeSelector").filter(|wanted| !wanted.is_empty()) else {
        return Ok(());
    };
    let selector = spec.map_or_insert("nodeSelector");
    for (label, value) in wanted.iter() {
        if let Some(own) = selector.get(label).filter(|own| *own != value) {
            let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
            return Err(Rejection::NodeSelector {
                label: label.to_owned(),
                class: text(value),
                pod: text(own),
            });
        }
    }
    selector.extend(wanted.clone());
    Ok(())
}

fn tolerate(scheduling: &Map, spec: &mut Map) {
    let mut all = spec.list("tolerations").to_vec();
    let mut have: BTreeSet<String> = all.iter().map(Value::identity).collect();
    let wanted = scheduling.list("tolerations").iter();
    all.extend(wanted.filter(|toleration| have.insert(toleration.identity())).cloned());
    if !all.is_empty() {
        spec.insert("tolerations", all);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn map<const N: usize>(fields: [(&'static str, Value); N]) -> Map {
        fields.into_iter().collect()
    }

    fn class() -> Map {
        let toleration = map([("key", "sandboxed".into()), ("operator", "Exists".into())]);
        let scheduling = map([
            ("nodeSelector", map([("kind", "vm".into())]).into()),
            ("tolerations", vec![Value::from(toleration)].into()),
        ]);
        let fixed = map([("cpu", "250m".into())]);
        map([
            ("overhead", map([("podFixed", fixed.into())]).into()),
            ("scheduling", scheduling.into()),
        ])
    }

    #[test]
    fn a_class_brings_its_overhead_and_its_nodes() {
        let mut spec = map([("nodeSelector", map([("disk", "fast".into())]).into())]);
        fill(Some(&class()), &mut spec).expect("fits");
        assert_eq!(spec.map("overhead").map(|o| o.str("cpu")), Some("250m"));
        let selector = spec.map("nodeSelector").expect("selector");
        assert_eq!((selector.str("disk"), selector.str("kind")), ("fast", "vm"));
        assert_eq!(spec.list("tolerations").len(), 1);
        let before = spec.clone();
        fill(Some(&class()), &mut spec).expect("still fits");
        assert_eq!(spec, before);
    }

    #[test]
    fn a_pod_that_contradicts_its_runtime_class_is_rejected() {
        let overhead = |cpu: &'static str| map([("overhead", map([("cpu", cpu.into())]).into())]);
        let other = fill(Some(&class()), &mut overhead("1"));
        assert!(matches!(other, Err(Rejection::OtherOverhead)), "{other:?}");
        let none = fill(None, &mut overhead("1"));
        assert!(matches!(none, Err(Rejection::NoOverhead)), "{none:?}");
        assert!(fill(Some(&Map::new()), &mut overhead("1")).is_err());
        let mut elsewhere = map([("nodeSelector", map([("kind", "metal".into())]).into())]);
        let why = fill(Some(&class()), &mut elsewhere).unwrap_err().to_string();
        assert!(why.contains("nodeSelector[kind] = vm"), "{why}");
        fill(None, &mut Map::new()).expect("no class, nothing to do");
    }
}
