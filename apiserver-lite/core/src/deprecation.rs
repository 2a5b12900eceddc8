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

/// What this server serves and Kubernetes 1.25 calls deprecated.
const DEPRECATED: [Deprecation; 4] = [
    Deprecation {
        resource: ("", "v1", "componentstatuses"),
        kind: "ComponentStatus",
        since: "1.19",
        removed: "",
        instead: "",
    },
    Deprecation {
        resource: ("flowcontrol", "v1beta1", "flowschemas"),
        kind: "FlowSchema",
        since: "1.23",
        removed: "1.26",
        instead: "v1beta2",
    },
    Deprecation {
        resource: ("flowcontrol", "v1beta1", "prioritylevelconfigurations"),
        kind: "PriorityLevelConfiguration",
        since: "1.23",
        removed: "1.26",
        instead: "v1beta2",
    },
    Deprecation {
        resource: ("storage", "v1beta1", "csistoragecapacities"),
        kind: "CSIStorageCapacity",
        since: "1.24",
        removed: "1.27",
        instead: "v1",
    },
];

impl Deprecation {
    /// The deprecation of the requested resource, if it is deprecated.
    #[must_use]
    pub fn of(names: &Names, request: &RequestInfo) -> Option<&'static Self> {
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
        Deprecation::of(names, &request).map(|found| found.warning(names))
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
        ] {
            assert_eq!(warning(group, version, resource).as_deref(), Some(expected));
        }
        for (group, version, resource) in [
            ("flowcontrol", "v1beta2", "flowschemas"),
            ("storage", "v1", "csistoragecapacities"),
            ("storage", "v1beta1", "csidrivers"),
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
            let served = |version| schema::resource(short, version, resource).map(|row| row.kind);
            assert_eq!(served(version), Some(one.kind));
            assert!(one.instead.is_empty() || served(one.instead) == Some(one.kind), "{one:?}");
        }
    }
}
