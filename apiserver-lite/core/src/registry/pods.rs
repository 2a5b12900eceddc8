//! Properties of pods: quality of service class, grace period, containers.

use apiserver_schema::{Map, Object};

/// Container lists of a pod's spec, in the order of validation messages.
pub const CONTAINER_LISTS: [&str; 3] = ["initContainers", "containers", "ephemeralContainers"];

/// The quality of service class, by requests and limits of CPU and memory.
#[must_use]
pub fn qos_class(pod: &Object) -> &'static str {
    let Some(spec) = pod.spec() else { return "BestEffort" };
    let containers = || CONTAINER_LISTS.iter().take(2).flat_map(|list| spec.maps(list));
    let amount = |container: &Map, list: &str, resource: &str| {
        let text = container
            .map("resources")
            .and_then(|resources| resources.map(list))
            .map(|map| map.str(resource).to_owned());
        text.filter(|text| !text.is_empty() && text != "0")
    };
    let mut any = false;
    let mut guaranteed = true;
    for container in containers() {
        for resource in ["cpu", "memory"] {
            let (request, limit) =
                (amount(container, "requests", resource), amount(container, "limits", resource));
            any |= request.is_some() || limit.is_some();
            guaranteed &= limit.is_some()
                && request.as_ref().is_none_or(|request| Some(request) == limit.as_ref());
        }
    }
    match (any, guaranteed) {
        (false, _) => "BestEffort",
        (true, true) => "Guaranteed",
        (true, false) => "Burstable",
    }
}

/// Longest grace period in seconds, also for pods stored before validation had this bound, so that resulting timestamps have
/// years of four digits.
const GRACE_SECS_MAX: i64 = i32::MAX as i64;

/// The grace period of a pod in seconds: the requested one, else the spec's. 0 for a pod without a node and for one that has
/// ended.
#[must_use]
pub fn grace_secs(pod: &Object, requested: Option<i64>) -> i64 {
    let ended = matches!(pod.str_at(&["status", "phase"]), "Succeeded" | "Failed");
    if pod.str_at(&["spec", "nodeName"]).is_empty() || ended {
        return 0;
    }
    let own = pod.spec().and_then(|spec| spec.int("terminationGracePeriodSeconds"));
    // A negative period in the spec means one second, as in Kubernetes.
    match requested.unwrap_or_else(|| own.unwrap_or(30)) {
        seconds if seconds < 0 => 1,
        seconds => seconds.min(GRACE_SECS_MAX),
    }
}

/// The default container of requests that name none: the annotated one, else the first.
#[must_use]
pub fn default_container(pod: &Object, annotation: &str) -> Option<String> {
    let annotated = pod.str_at(&["metadata", "annotations", annotation]);
    if !annotated.is_empty() && has_container(pod, annotated) {
        return Some(annotated.to_owned());
    }
    let mut containers = pod.spec()?.maps("containers");
    containers.next().map(|container| container.str("name").to_owned())
}

/// Whether the pod has a container, init container or ephemeral container `name`.
#[must_use]
pub fn has_container(pod: &Object, name: &str) -> bool {
    let Some(spec) = pod.spec() else { return false };
    CONTAINER_LISTS
        .iter()
        .flat_map(|list| spec.maps(list))
        .any(|container| container.str("name") == name)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use apiserver_schema::Engine;
    use proto_api::names::{Names, Profile};

    use super::*;

    #[test]
    fn the_grace_of_a_stored_pod_has_a_bound() {
        let engine = Engine::new(Names::new(Profile::default()));
        let mut pod = Object::new(Arc::clone(engine.kind("", "v1", "Pod").unwrap()));
        let spec = pod.fields.map_or_insert("spec");
        spec.insert("nodeName", "n");
        for (stored, expected) in
            [(i64::MAX, GRACE_SECS_MAX), (i64::MIN, 1), (-1, 1), (0, 0), (7, 7)]
        {
            pod.fields.map_or_insert("spec").insert("terminationGracePeriodSeconds", stored);
            assert_eq!(grace_secs(&pod, None), expected);
        }
        assert_eq!(grace_secs(&pod, Some(i64::MAX)), GRACE_SECS_MAX);
    }
}
