//! Deprecated versions of Kubernetes 1.25: since when, until when, and what to use instead. Clients read it in a `Warning` header.

use proto_api::names::Names;

use crate::request::RequestInfo;

/// A deprecated kind of one version.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Deprecation {
    /// Short group, version and plural name of the resource.
    resource: (&'static str, &'static str, &'static str),
    kind: &'static str,
    /// The release that deprecated it.
    since: &'static str,
    /// The first release that does not serve it; empty if that is not decided.
    pub removed: &'static str,
    /// The version of the same group and kind to use instead; empty for none.
    instead: &'static str,
}

/// What this server serves, on request at least, and Kubernetes calls deprecated.
const DEPRECATED: [Deprecation; 20] = [
    Deprecation::new(("", "v1", "componentstatuses"), "ComponentStatus", ("1.19", "", "")),
    since_1_23("flowcontrol", "v1beta1", "flowschemas", "FlowSchema", "v1beta2"),
    since_1_23(
        "flowcontrol",
        "v1beta1",
        "prioritylevelconfigurations",
        "PriorityLevelConfiguration",
        "v1beta2",
    ),
    since_1_23(
        "autoscaling",
        "v2beta2",
        "horizontalpodautoscalers",
        "HorizontalPodAutoscaler",
        "v2",
    ),
    beta("storage", "csistoragecapacities", "CSIStorageCapacity", ("1.24", "1.27", "v1")),
    beta("batch", "cronjobs", "CronJob", ("1.21", "1.25", "v1")),
    beta("discovery", "endpointslices", "EndpointSlice", ("1.21", "1.25", "v1")),
    beta("events", "events", "Event", ("1.22", "1.25", "")),
    beta("node", "runtimeclasses", "RuntimeClass", ("1.22", "1.25", "")),
    beta("policy", "poddisruptionbudgets", "PodDisruptionBudget", ("1.21", "1.25", "v1")),
    beta("coordination", "leases", "Lease", ("1.19", "1.22", "v1")),
    beta("rbac.authorization", "roles", "Role", ("1.17", "1.22", "v1")),
    beta("rbac.authorization", "rolebindings", "RoleBinding", ("1.17", "1.22", "v1")),
    beta("rbac.authorization", "clusterroles", "ClusterRole", ("1.17", "1.22", "v1")),
    beta("rbac.authorization", "clusterrolebindings", "ClusterRoleBinding", ("1.17", "1.22", "v1")),
    beta("scheduling", "priorityclasses", "PriorityClass", ("1.14", "1.22", "v1")),
    beta("storage", "csidrivers", "CSIDriver", ("1.19", "1.22", "v1")),
    beta("storage", "csinodes", "CSINode", ("1.17", "1.22", "v1")),
    beta("storage", "storageclasses", "StorageClass", ("1.19", "1.22", "v1")),
    beta("storage", "volumeattachments", "VolumeAttachment", ("1.19", "1.22", "v1")),
];

/// Release that deprecated a version, first release without it, version to use instead; empty for none.
type Releases = (&'static str, &'static str, &'static str);

/// A kind of `v1beta1`.
const fn beta(
    group: &'static str,
    resource: &'static str,
    kind: &'static str,
    releases: Releases,
) -> Deprecation {
    Deprecation::new((group, "v1beta1", resource), kind, releases)
}

/// A kind that release 1.26 does not have any more.
const fn since_1_23(
    group: &'static str,
    version: &'static str,
    resource: &'static str,
    kind: &'static str,
    instead: &'static str,
) -> Deprecation {
    Deprecation::new((group, version, resource), kind, ("1.23", "1.26", instead))
}

impl Deprecation {
    const fn new(
        resource: (&'static str, &'static str, &'static str),
        kind: &'static str,
        (since, removed, instead): Releases,
    ) -> Self {
        Self { resource, kind, since, removed, instead }
    }

    /// The deprecation of the requested resource, if it is deprecated.
    #[must_use]
    pub fn find(names: &Names, request: &RequestInfo) -> Option<&'static Self> {
        DEPRECATED.iter().find(|one| {
            let (group, version, resource) = one.resource;
            version == request.version
                && resource == request.resource
                && names.group(group) == request.group
        })
    }

    /// The warning, in Kubernetes' words.
    #[must_use]
    pub fn warning(&self, names: &Names) -> String {
        let Self { resource: (group, version, _), kind, since, removed, instead } = self;
        let mut text =
            format!("{} {kind} is deprecated in v{since}+", names.api_version(group, version));
        if !removed.is_empty() {
            text.push_str(&format!(", unavailable in v{removed}+"));
        }
        if !instead.is_empty() {
            text.push_str(&format!("; use {} {kind}", names.api_version(group, instead)));
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use proto_api::names::Profile;
    use proto_api::schema;

    use super::*;
    use crate::request::Verb;

    fn warning(group: &str, version: &str, resource: &str) -> Option<String> {
        let names = Names::new(Profile::Kubernetes);
        let request = RequestInfo {
            verb: Verb::List,
            group: names.group(group),
            version: version.to_owned(),
            namespace: String::new(),
            resource: resource.to_owned(),
            subresource: String::new(),
            name: String::new(),
            rest: String::new(),
        };
        Deprecation::find(names, &request).map(|found| found.warning(names))
    }

    #[test]
    fn warnings_have_kubernetes_words() {
        for (group, version, resource, expected) in [
            ("", "v1", "componentstatuses", "v1 ComponentStatus is deprecated in v1.19+"),
            (
                "flowcontrol",
                "v1beta1",
                "flowschemas",
                "flowcontrol.apiserver.k8s.io/v1beta1 FlowSchema is deprecated in v1.23+, unavailable in v1.26+; use flowcontrol.apiserver.k8s.io/v1beta2 FlowSchema",
            ),
            (
                "storage",
                "v1beta1",
                "csistoragecapacities",
                "storage.k8s.io/v1beta1 CSIStorageCapacity is deprecated in v1.24+, unavailable in v1.27+; use storage.k8s.io/v1 CSIStorageCapacity",
            ),
            (
                "autoscaling",
                "v2beta2",
                "horizontalpodautoscalers",
                "autoscaling/v2beta2 HorizontalPodAutoscaler is deprecated in v1.23+, unavailable in v1.26+; use autoscaling/v2 HorizontalPodAutoscaler",
            ),
            (
                "batch",
                "v1beta1",
                "cronjobs",
                "batch/v1beta1 CronJob is deprecated in v1.21+, unavailable in v1.25+; use batch/v1 CronJob",
            ),
            (
                "node",
                "v1beta1",
                "runtimeclasses",
                "node.k8s.io/v1beta1 RuntimeClass is deprecated in v1.22+, unavailable in v1.25+",
            ),
        ] {
            assert_eq!(warning(group, version, resource).as_deref(), Some(expected));
        }
        for (group, version, resource) in [
            ("flowcontrol", "v1beta2", "flowschemas"),
            ("storage", "v1", "csistoragecapacities"),
            ("storage", "v1beta1", "csinodedrivers"),
            ("autoscaling", "v1", "horizontalpodautoscalers"),
            ("", "v1", "pods"),
        ] {
            assert_eq!(warning(group, version, resource), None, "{group} {version} {resource}");
        }
    }

    #[test]
    fn every_deprecated_resource_and_its_replacement_are_served() {
        let names = Names::new(Profile::Kubernetes);
        for one in &DEPRECATED {
            let (group, version, resource) = one.resource;
            let short = names.group(group);
            let short = names.short_group(&short).unwrap();
            let served = |version| {
                let row = schema::resource(short, version, resource);
                let row = row.or_else(|| schema::optional_resource(short, version, resource));
                row.map(|row| row.kind)
            };
            assert_eq!(served(version), Some(one.kind));
            assert!(one.instead.is_empty() || served(one.instead) == Some(one.kind), "{one:?}");
        }
        for row in schema::optional_resources() {
            let warning = warning(row.group, row.version, row.plural);
            assert!(warning.is_some(), "{} {}", row.group, row.plural);
        }
    }
}
