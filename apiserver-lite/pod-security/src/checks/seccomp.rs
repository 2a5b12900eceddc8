//! The checks of seccomp profiles, at both levels: annotations before 1.19, fields since.

use std::collections::BTreeSet;

use proto_api::core::v1::SeccompProfile;

use super::Finding;
use crate::pod_view::{FieldSetters, PodView};
use crate::text::{join_quoted, name_containers, pluralize, quote};

const REASON: &str = "seccompProfile";

pub(crate) fn check_annotations(pod: PodView<'_>) -> Option<Finding> {
    let is_allowed = |profile: &str| {
        matches!(profile, "runtime/default" | "docker/default") || profile.starts_with("localhost/")
    };
    let of_pod = std::iter::once(pod.names.pod_seccomp_annotation());
    let of_containers =
        pod.containers().map(|container| pod.names.container_seccomp_annotation(container.name));
    let forbidden: BTreeSet<String> = of_pod
        .chain(of_containers)
        .filter_map(|key| {
            let profile = pod.annotations.get(&key).filter(|profile| !is_allowed(profile))?;
            Some(format!("{key}={}", quote(profile)))
        })
        .collect();
    (!forbidden.is_empty()).then(|| {
        let word = pluralize(forbidden.len(), "annotation", "annotations");
        let annotations = Vec::from_iter(forbidden).join(", ");
        Finding { reason: REASON, detail: format!("forbidden {word} {annotations}") }
    })
}

/// Profiles that are set have to be allowed.
pub(crate) fn check_fields(pod: PodView<'_>) -> Option<Finding> {
    let of_pod = pod_profile(pod).and_then(forbidden_type);
    let mut types: BTreeSet<&str> = of_pod.into_iter().collect();
    let containers = pod.names_where(|container| {
        let profile = container.context.and_then(|context| context.seccomp_profile.as_ref());
        let forbidden = profile.and_then(forbidden_type);
        types.extend(forbidden);
        forbidden.is_some()
    });
    let setters = FieldSetters { pod: of_pod.is_some(), containers };
    (!setters.is_empty()).then(|| Finding {
        reason: REASON,
        detail: format!(
            "{} must not set securityContext.seccompProfile.type to {}",
            setters.describe(),
            join_quoted(types)
        ),
    })
}

/// Every container needs an allowed profile, its own or the pod's.
pub(crate) fn check_required(pod: PodView<'_>) -> Option<Finding> {
    if let Some(forbidden) = check_fields(pod) {
        return Some(forbidden);
    }
    if pod_profile(pod).is_some() {
        return None;
    }
    let without = pod.names_where(|container| {
        container.context.is_none_or(|context| context.seccomp_profile.is_none())
    });
    (!without.is_empty()).then(|| Finding {
        reason: REASON,
        detail: format!(
            "pod or {} must set securityContext.seccompProfile.type to \"RuntimeDefault\" or \"Localhost\"",
            name_containers(&without)
        ),
    })
}

fn pod_profile(pod: PodView<'_>) -> Option<&SeccompProfile> {
    pod.context().and_then(|context| context.seccomp_profile.as_ref())
}

/// The type of a profile that is not allowed.
fn forbidden_type(profile: &SeccompProfile) -> Option<&str> {
    Some(profile.type_.as_str()).filter(|name| !matches!(*name, "RuntimeDefault" | "Localhost"))
}
