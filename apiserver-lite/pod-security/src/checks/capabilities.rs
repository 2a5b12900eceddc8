//! The checks of capabilities, at both levels.

use std::collections::BTreeSet;

use proto_api::core::v1::Capabilities;

use super::Finding;
use crate::pod_view::{ContainerView, PodView};
use crate::text::{join_quoted, name_containers};

/// Capabilities that containers have by default, without `NET_RAW`.
const DEFAULT_CAPABILITIES: [&str; 13] = [
    "AUDIT_WRITE",
    "CHOWN",
    "DAC_OVERRIDE",
    "FOWNER",
    "FSETID",
    "KILL",
    "MKNOD",
    "NET_BIND_SERVICE",
    "SETFCAP",
    "SETGID",
    "SETPCAP",
    "SETUID",
    "SYS_CHROOT",
];

pub(crate) fn check_added(pod: PodView<'_>) -> Option<Finding> {
    let detail = describe_added(pod, &DEFAULT_CAPABILITIES)?;
    Some(Finding { reason: "non-default capabilities", detail })
}

pub(crate) fn check_dropped(pod: PodView<'_>) -> Option<Finding> {
    let drops_all = |container| {
        capabilities(container).is_some_and(|list| list.drop.iter().any(|name| name == "ALL"))
    };
    let keeping = pod.names_where(|container| !drops_all(container));
    let kept = (!keeping.is_empty()).then(|| {
        let containers = name_containers(&keeping);
        format!("{containers} must set securityContext.capabilities.drop=[\"ALL\"]")
    });
    let details: Vec<String> =
        kept.into_iter().chain(describe_added(pod, &["NET_BIND_SERVICE"])).collect();
    (!details.is_empty())
        .then(|| Finding { reason: "unrestricted capabilities", detail: details.join("; ") })
}

fn capabilities(container: ContainerView<'_>) -> Option<&Capabilities> {
    container.context.and_then(|context| context.capabilities.as_ref())
}

/// Which containers add which capabilities that are not `allowed`; none if no container does.
fn describe_added(pod: PodView<'_>, allowed: &[&str]) -> Option<String> {
    let mut forbidden: BTreeSet<&str> = BTreeSet::new();
    let containers = pod.names_where(|container| {
        let added = capabilities(container).into_iter().flat_map(|capabilities| &capabilities.add);
        let added = added.map(String::as_str).filter(|capability| !allowed.contains(capability));
        let added: Vec<&str> = added.collect();
        forbidden.extend(added.iter().copied());
        !added.is_empty()
    });
    (!containers.is_empty()).then(|| {
        format!(
            "{} must not include {} in securityContext.capabilities.add",
            name_containers(&containers),
            join_quoted(forbidden)
        )
    })
}
