//! Scopes of a quota: which pods it counts.

use std::collections::BTreeSet;

use proto_api::core::v1::{
    Container, Pod, PodAffinityTerm, ResourceQuotaSpec, ScopedResourceSelectorRequirement,
};

/// The scope of pods by their priority class.
const PRIORITY_CLASS: &str = "PriorityClass";

/// Whether the quota counts the pod. Without scopes it counts all.
pub fn count_pod(spec: &ResourceQuotaSpec, pod: &Pod) -> bool {
    // Each name once: some look at all containers of the pod.
    let mut scopes: BTreeSet<&str> = spec.scopes.iter().map(String::as_str).collect();
    let selector = spec.scope_selector.iter();
    let (of_class, others): (Vec<_>, Vec<_>) = selector
        .flat_map(|selector| &selector.match_expressions)
        .partition(|one| one.scope_name == PRIORITY_CLASS);
    scopes.extend(others.into_iter().map(|one| one.scope_name.as_str()));
    scopes.into_iter().all(|scope| is_in(scope, pod))
        && of_class.into_iter().all(|one| selects_class(one, pod))
}

/// Whether the quota has scopes; one that has counts pods only.
pub fn has_scopes(spec: &ResourceQuotaSpec) -> bool {
    let selector = spec.scope_selector.as_ref();
    !spec.scopes.is_empty() || selector.is_some_and(|s| !s.match_expressions.is_empty())
}

fn is_in(scope: &str, pod: &Pod) -> bool {
    let terminates = pod.spec.active_deadline_seconds.is_some_and(|seconds| seconds >= 0);
    match scope {
        "Terminating" => terminates,
        "NotTerminating" => !terminates,
        "BestEffort" => is_best_effort(pod),
        "NotBestEffort" => !is_best_effort(pod),
        PRIORITY_CLASS => !pod.spec.priority_class_name.is_empty(),
        "CrossNamespacePodAffinity" => looks_into_namespaces(pod),
        // Validation refuses others.
        _ => false,
    }
}

fn selects_class(one: &ScopedResourceSelectorRequirement, pod: &Pod) -> bool {
    let class = &pod.spec.priority_class_name;
    let (has, listed) = (!class.is_empty(), one.values.contains(class));
    match one.operator.as_str() {
        "Exists" => has,
        "DoesNotExist" => !has,
        "In" => has && listed,
        // As with label selectors, a pod without a class is not in the list.
        "NotIn" => !(has && listed),
        _ => false,
    }
}

/// Whether no container has a request or limit of CPU or memory, as in class BestEffort.
fn is_best_effort(pod: &Pod) -> bool {
    proto_api::count_steps!(pod.spec.containers.len());
    let asks = |container: &Container| {
        let lists = [&container.resources.requests, &container.resources.limits];
        lists.iter().any(|list| {
            ["cpu", "memory"].iter().any(|name| list.get(*name).is_some_and(|a| !a.is_zero()))
        })
    };
    !pod.spec.containers.iter().chain(&pod.spec.init_containers).any(asks)
}

/// Whether a term of affinity between pods names other namespaces.
fn looks_into_namespaces(pod: &Pod) -> bool {
    let Some(affinity) = &pod.spec.affinity else { return false };
    let beyond =
        |term: &PodAffinityTerm| !term.namespaces.is_empty() || term.namespace_selector.is_some();
    let near = affinity.pod_affinity.iter().any(|near| {
        near.required_during_scheduling_ignored_during_execution.iter().any(beyond)
            || near
                .preferred_during_scheduling_ignored_during_execution
                .iter()
                .any(|weighted| beyond(&weighted.pod_affinity_term))
    });
    let apart = affinity.pod_anti_affinity.iter().any(|apart| {
        apart.required_during_scheduling_ignored_during_execution.iter().any(beyond)
            || apart
                .preferred_during_scheduling_ignored_during_execution
                .iter()
                .any(|weighted| beyond(&weighted.pod_affinity_term))
    });
    near || apart
}

#[cfg(test)]
mod tests {
    use proto_api::core::v1::ScopeSelector;
    use proto_api::steps::count_during;

    use super::*;

    #[test]
    fn a_pod_is_looked_at_once_for_each_scope() {
        let mut pod = Pod::default();
        pod.spec.containers = vec![Container::default(); 100];
        let one = |scope_name: &str, operator: &str| ScopedResourceSelectorRequirement {
            scope_name: scope_name.into(),
            operator: operator.into(),
            ..ScopedResourceSelectorRequirement::default()
        };
        let selector = |all| ScopeSelector { match_expressions: all };
        let mut spec = ResourceQuotaSpec {
            scopes: vec!["BestEffort".into(); 50],
            scope_selector: Some(selector(vec![one("BestEffort", "Exists"); 50])),
            ..ResourceQuotaSpec::default()
        };
        let steps = count_during(|| assert!(count_pod(&spec, &pod)));
        assert_eq!(steps, 100);
        spec.scope_selector = Some(selector(vec![one(PRIORITY_CLASS, "Exists")]));
        assert!(!count_pod(&spec, &pod));
        spec.scope_selector = Some(selector(vec![one(PRIORITY_CLASS, "DoesNotExist")]));
        assert!(count_pod(&spec, &pod));
        spec.scopes.push("NotBestEffort".into());
        assert!(!count_pod(&spec, &pod));
    }
}
