//! Scopes of a quota: which pods it counts.

use proto_api::core::v1::{
    Container, Pod, PodAffinityTerm, ResourceQuotaSpec, ScopedResourceSelectorRequirement,
};

/// Whether the quota counts the pod. Without scopes it counts all.
pub fn count_pod(spec: &ResourceQuotaSpec, pod: &Pod) -> bool {
    let named = spec.scopes.iter().all(|scope| is_in(scope, pod));
    let selected = spec.scope_selector.as_ref();
    named && selected.is_none_or(|all| all.match_expressions.iter().all(|one| selects(one, pod)))
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
        "PriorityClass" => !pod.spec.priority_class_name.is_empty(),
        "CrossNamespacePodAffinity" => looks_into_namespaces(pod),
        // Validation refuses others.
        _ => false,
    }
}

fn selects(one: &ScopedResourceSelectorRequirement, pod: &Pod) -> bool {
    if one.scope_name != "PriorityClass" {
        return is_in(&one.scope_name, pod);
    }
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
