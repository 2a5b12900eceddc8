//! Namespaces, quotas, priority classes, budgets of disruptions, service accounts, autoscalers.

use proto_api::names::Names;
use serde_json::{Map, Value, json};

use super::{object, parse_pairs, parse_selector};
use crate::ArgumentError;

/// The object that `create namespace` posts.
pub fn namespace(name: &str) -> Value {
    let mut object = object("Namespace", "v1", name);
    object.insert("spec".into(), json!({}));
    object.insert("status".into(), json!({}));
    Value::Object(object)
}

/// The object that `create serviceaccount` posts.
pub fn service_account(name: &str) -> Value {
    Value::Object(object("ServiceAccount", "v1", name))
}

/// A ResourceQuota with limits as `cpu=1,pods=2` and scopes as `BestEffort,NotTerminating`.
///
/// # Errors
/// When the limits have another form.
pub fn quota(name: &str, hard: &str, scopes: &str) -> Result<Value, ArgumentError> {
    let mut object = object("ResourceQuota", "v1", name);
    let mut spec = Map::new();
    let hard = parse_pairs(hard)?;
    if !hard.is_empty() {
        spec.insert("hard".into(), Value::Object(hard));
    }
    let scopes: Vec<&str> = scopes.split(',').filter(|scope| !scope.is_empty()).collect();
    if !scopes.is_empty() {
        spec.insert("scopes".into(), json!(scopes));
    }
    object.insert("spec".into(), Value::Object(spec));
    object.insert("status".into(), json!({}));
    Ok(Value::Object(object))
}

/// A PriorityClass; the last is the policy of preemption.
pub fn priority_class(
    names: &Names,
    name: &str,
    value: i32,
    global_default: bool,
    description: &str,
    preemption: &str,
) -> Value {
    let mut object = object("PriorityClass", &names.api_version("scheduling", "v1"), name);
    object.insert("value".into(), json!(value));
    if global_default {
        object.insert("globalDefault".into(), json!(true));
    }
    if !description.is_empty() {
        object.insert("description".into(), json!(description));
    }
    object.insert("preemptionPolicy".into(), json!(preemption));
    Value::Object(object)
}

/// A PodDisruptionBudget with one of the two bounds, each a number or a percentage.
///
/// # Errors
/// Without a selector, or with none or both of the bounds.
pub fn disruption_budget(
    name: &str,
    selector: &str,
    min_available: &str,
    max_unavailable: &str,
) -> Result<Value, ArgumentError> {
    if selector.is_empty() {
        return Err(ArgumentError::new("a selector must be specified"));
    }
    let mut spec = Map::new();
    match (min_available, max_unavailable) {
        ("", "") => {
            return Err(ArgumentError::new(
                "one of min-available or max-unavailable must be specified",
            ));
        }
        ("", _) => {}
        (min, "") => drop(spec.insert("minAvailable".into(), number_or_text(min))),
        _ => {
            return Err(ArgumentError::new(
                "min-available and max-unavailable cannot be both specified",
            ));
        }
    }
    spec.insert("selector".into(), parse_selector(selector)?);
    if !max_unavailable.is_empty() {
        spec.insert("maxUnavailable".into(), number_or_text(max_unavailable));
    }
    let mut object = object("PodDisruptionBudget", "policy/v1", name);
    object.insert("spec".into(), Value::Object(spec));
    object.insert(
        "status".into(),
        json!({"disruptionsAllowed": 0, "currentHealthy": 0, "desiredHealthy": 0, "expectedPods": 0}),
    );
    Ok(Value::Object(object))
}

/// A number where the text is one: percentages and names of ports are text.
pub(super) fn number_or_text(text: &str) -> Value {
    text.parse::<i32>().map_or_else(|_| json!(text), |number| json!(number))
}

/// What an autoscaler scales, and between which bounds.
#[derive(Clone, Copy, Debug)]
pub struct ScaleTarget<'a> {
    /// `apiVersion` of the workload.
    pub api_version: &'a str,
    pub kind: &'a str,
    pub name: &'a str,
    /// Fewest replicas; the server's default if not set.
    pub min: Option<i32>,
    /// Most replicas.
    pub max: i32,
    /// Wanted use of the requested CPU, in percent.
    pub cpu_percent: Option<i32>,
}

/// A HorizontalPodAutoscaler.
///
/// # Errors
/// When the bounds contradict each other.
pub fn autoscaler(name: &str, scaled: &ScaleTarget) -> Result<Value, ArgumentError> {
    if scaled.max < 1 {
        let max = scaled.max;
        return Err(ArgumentError::new(format!(
            "--max=MAXPODS is required and must be at least 1, max: {max}"
        )));
    }
    if let Some(min) = scaled.min.filter(|min| *min > scaled.max) {
        let max = scaled.max;
        return Err(ArgumentError::new(format!(
            "--max=MAXPODS must be larger or equal to --min=MINPODS, max: {max}, min: {min}"
        )));
    }
    let mut spec = Map::new();
    let (kind, target, api_version) = (scaled.kind, scaled.name, scaled.api_version);
    spec.insert(
        "scaleTargetRef".into(),
        json!({"kind": kind, "name": target, "apiVersion": api_version}),
    );
    if let Some(min) = scaled.min {
        spec.insert("minReplicas".into(), json!(min));
    }
    spec.insert("maxReplicas".into(), json!(scaled.max));
    if let Some(percent) = scaled.cpu_percent {
        spec.insert("targetCPUUtilizationPercentage".into(), json!(percent));
    }
    let mut object = object("HorizontalPodAutoscaler", "autoscaling/v1", name);
    object.insert("spec".into(), Value::Object(spec));
    object.insert("status".into(), json!({"currentReplicas": 0, "desiredReplicas": 0}));
    Ok(Value::Object(object))
}

#[cfg(test)]
mod tests {
    use proto_api::names::Profile;

    use super::*;

    #[test]
    fn objects_of_the_cluster() {
        assert_eq!(
            quota("q", "cpu=1,pods=2", "BestEffort").expect("valid").to_string(),
            r#"{"kind":"ResourceQuota","apiVersion":"v1","metadata":{"name":"q","creationTimestamp":null},"spec":{"hard":{"cpu":"1","pods":"2"},"scopes":["BestEffort"]},"status":{}}"#
        );
        assert!(quota("q", "cpu", "").is_err());
        let names = Names::new(Profile::Kubernetes);
        assert_eq!(
            priority_class(names, "p", 5, true, "x", "PreemptLowerPriority").to_string(),
            r#"{"kind":"PriorityClass","apiVersion":"scheduling.k8s.io/v1","metadata":{"name":"p","creationTimestamp":null},"value":5,"globalDefault":true,"description":"x","preemptionPolicy":"PreemptLowerPriority"}"#
        );
        assert_eq!(namespace("n").pointer("/metadata/name"), Some(&json!("n")));
        assert_eq!(service_account("s").get("kind"), Some(&json!("ServiceAccount")));
    }

    #[test]
    fn budgets_have_one_bound() {
        let half = disruption_budget("p", "app=x", "", "50%").expect("valid");
        assert_eq!(half.pointer("/spec/maxUnavailable"), Some(&json!("50%")));
        let one = disruption_budget("p", "app=x", "1", "").expect("valid");
        assert_eq!(
            one["spec"],
            json!({"minAvailable": 1, "selector": {"matchLabels": {"app": "x"}}})
        );
        for (selector, min, max) in
            [("", "1", ""), ("a=b", "", ""), ("a=b", "1", "1"), ("a", "1", "")]
        {
            assert!(disruption_budget("p", selector, min, max).is_err(), "{selector} {min} {max}");
        }
    }

    #[test]
    fn autoscalers_have_bounds() {
        let mut scaled = ScaleTarget {
            api_version: "apps/v1",
            kind: "Deployment",
            name: "web",
            min: Some(2),
            max: 3,
            cpu_percent: Some(80),
        };
        let made = autoscaler("web", &scaled).expect("valid");
        assert_eq!(
            made["spec"],
            json!({"scaleTargetRef": {"kind": "Deployment", "name": "web", "apiVersion": "apps/v1"},
                "minReplicas": 2, "maxReplicas": 3, "targetCPUUtilizationPercentage": 80})
        );
        scaled.max = 1;
        assert!(autoscaler("web", &scaled).is_err());
        scaled.max = 0;
        assert!(autoscaler("web", &scaled).is_err());
    }
}
