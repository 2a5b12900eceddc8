//! Where groups and versions stand in lists: Kubernetes' priorities of its own groups, and the order that follows from all of them.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::sync::Arc;

use proto_api::names::Names;
use proto_api::schema::{self, is_built_in_group};

use super::{ApiService, GROUP};

/// The priority of a group version; the higher is listed first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Priority {
    /// Of the group (`groupPriorityMinimum`).
    pub group: i64,
    /// Of the version within its group (`versionPriority`).
    pub version: i64,
}

/// Of the versions of custom kinds.
pub const CUSTOM: Priority = Priority { group: 1000, version: 100 };

/// Of built-in groups, without their domain, as kube-apiserver registers them. The group of APIServices itself has no APIService and is listed first.
const GROUPS: [(&str, i64); 20] = [
    ("", 18_000),
    ("admissionregistration", 16_700),
    ("apiextensions", 16_700),
    (GROUP, 20_001),
    ("apps", 17_800),
    ("authentication", 17_700),
    ("authorization", 17_600),
    ("autoscaling", 17_500),
    ("batch", 17_400),
    ("certificates", 17_300),
    ("coordination", 16_500),
    ("discovery", 16_200),
    ("events", 17_750),
    ("flowcontrol.apiserver", 16_100),
    ("networking", 17_200),
    ("node", 16_300),
    ("policy", 17_100),
    ("rbac.authorization", 17_000),
    ("scheduling", 16_600),
    ("storage", 16_800),
];
/// Of a built-in group that Kubernetes does not have.
const OTHER_GROUP: i64 = 16_000;

/// The priority of a built-in group version, by short group.
#[must_use]
pub fn of_built_in(group: &str, version: &str) -> Priority {
    let of_group = GROUPS.iter().find(|row| row.0 == group).map_or(OTHER_GROUP, |row| row.1);
    let of_version = match (group, version) {
        ("", _) => 1,
        ("autoscaling", "v2") => 30,
        ("autoscaling", "v2beta2") => 1,
        ("flowcontrol.apiserver", "v1beta2") => 12,
        ("discovery" | "rbac.authorization" | "scheduling", "v1beta1") => 12,
        ("events", "v1beta1") => 5,
        (_, version) if version.contains("alpha") => 1,
        (_, version) if version.contains("beta") => 9,
        _ => 15,
    };
    Priority { group: of_group, version: of_version }
}

/// A group with its versions, as discovery lists them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ListedGroup {
    /// The group, domain included.
    pub name: String,
    /// Its versions, the preferred one first.
    pub versions: Vec<String>,
}

/// The groups of all group versions in the order of discovery: by the highest priority of a group's versions, then by name. `served` are those of this server;
/// `registered` has the priorities, and the group versions of other servers.
#[must_use]
pub fn listed<'a>(
    names: &Names,
    served: impl IntoIterator<Item = (&'a str, &'a str)>,
    registered: &[Arc<ApiService>],
) -> Vec<ListedGroup> {
    let mut groups: BTreeMap<&str, BTreeMap<&str, Priority>> = BTreeMap::new();
    for (group, version) in served {
        let priority = || match names.short_group(group) {
            Some(short) if schema::has_group(short) => of_built_in(short, version),
            _ => CUSTOM,
        };
        let versions = groups.entry(group).or_default();
        versions.entry(version).or_insert_with(priority);
    }
    for service in registered {
        let known = groups
            .get(service.group.as_str())
            .is_some_and(|of| of.contains_key(service.version.as_str()));
        let own = is_built_in_group(names, &service.group);
        // A local APIService of what is not served shows nothing.
        if !own && (known || service.backend.is_some()) {
            let versions = groups.entry(&service.group).or_default();
            versions.insert(&service.version, service.priority);
        }
    }
    let mut ordered: Vec<(i64, ListedGroup)> =
        groups.into_iter().map(|(name, of)| ordered_group(name, of)).collect();
    ordered.sort_by(|a, b| b.0.cmp(&a.0).then_with(|| a.1.name.cmp(&b.1.name)));
    ordered.into_iter().map(|(_, group)| group).collect()
}

/// A group with its priority, which is the highest of its versions.
fn ordered_group(name: &str, of: BTreeMap<&str, Priority>) -> (i64, ListedGroup) {
    let priority = of.values().map(|priority| priority.group).max().unwrap_or(0);
    let mut versions: Vec<(&str, Priority)> = of.into_iter().collect();
    versions.sort_by_key(|(version, priority)| Reverse((priority.version, version_rank(version))));
    let versions = versions.into_iter().map(|(version, _)| version.to_owned()).collect();
    (priority, ListedGroup { name: name.to_owned(), versions })
}

/// Sort key of API versions of one priority: stable before beta before alpha, then by number; other names come last, by name.
#[must_use]
pub fn version_rank(version: &str) -> (u8, u32, u32, Reverse<&str>) {
    let by_number = || {
        let rest = version.strip_prefix('v')?;
        let number = |text: &str| text.parse::<u32>().ok();
        Some(match (rest.split_once("beta"), rest.split_once("alpha")) {
            (Some((major, minor)), _) => (2, number(major)?, number(minor)?),
            (None, Some((major, minor))) => (1, number(major)?, number(minor)?),
            (None, None) => (3, number(rest)?, 0),
        })
    };
    let (class, major, minor) = by_number().unwrap_or((0, 0, 0));
    (class, major, minor, Reverse(version))
}

#[cfg(test)]
mod tests {
    use proto_api::names::Profile;

    use super::*;

    fn service(group: &str, version: &str, priority: (i64, i64), remote: bool) -> Arc<ApiService> {
        let backend = super::super::Backend {
            namespace: "n".to_owned(),
            name: "s".to_owned(),
            port: 443,
            authority: Vec::new(),
            verification: super::super::Verification::Full,
        };
        Arc::new(ApiService {
            name: format!("{version}.{group}"),
            uid: String::new(),
            group: group.to_owned(),
            version: version.to_owned(),
            priority: Priority { group: priority.0, version: priority.1 },
            backend: remote.then_some(backend),
            available: false,
        })
    }

    fn shown(served: &[(&str, &str)], registered: &[Arc<ApiService>]) -> Vec<String> {
        let names = Names::new(Profile::Kubernetes);
        let groups = listed(names, served.iter().copied(), registered);
        groups.iter().map(|group| format!("{} {}", group.name, group.versions.join(","))).collect()
    }

    #[test]
    fn groups_are_listed_by_priority_and_then_by_name() {
        let served = [
            ("stable.example.com", "v1"),
            ("apiextensions.k8s.io", "v1"),
            ("admissionregistration.k8s.io", "v1"),
            ("autoscaling", "v1"),
            ("autoscaling", "v2"),
            ("apps", "v1"),
            ("apiregistration.k8s.io", "v1"),
        ];
        let wardle = service("wardle.example.com", "v1alpha1", (2000, 200), true);
        assert_eq!(
            shown(&served, &[wardle]),
            [
                "apiregistration.k8s.io v1",
                "apps v1",
                "autoscaling v2,v1",
                "admissionregistration.k8s.io v1",
                "apiextensions.k8s.io v1",
                "wardle.example.com v1alpha1",
                "stable.example.com v1",
            ]
        );
    }

    #[test]
    fn versions_are_listed_by_priority_and_then_by_name() {
        let remote =
            |version: &str, priority: i64| service("a.com", version, (1000, priority), true);
        let all = [remote("v1", 10), remote("v1beta1", 10), remote("v2alpha1", 20)];
        assert_eq!(shown(&[], &all), ["a.com v2alpha1,v1,v1beta1"]);
        // One version of this server, and one of another.
        assert_eq!(shown(&[("a.com", "v3")], &all[..1]), ["a.com v3,v1"]);
    }

    #[test]
    fn stable_versions_come_first() {
        // The example of Kubernetes' documentation.
        let sorted = [
            "v10",
            "v2",
            "v1",
            "v11beta2",
            "v10beta3",
            "v3beta1",
            "v12alpha1",
            "v11alpha2",
            "foo1",
            "foo10",
        ];
        let mut versions = sorted;
        versions.reverse();
        versions.sort_by_key(|version| Reverse(version_rank(version)));
        assert_eq!(versions, sorted);
    }

    #[test]
    fn the_highest_priority_of_a_version_is_the_group_s() {
        let all = [
            service("b.com", "v1", (10, 1), true),
            service("b.com", "v2", (3000, 2), true),
            service("a.com", "v1", (2000, 1), true),
        ];
        assert_eq!(shown(&[], &all), ["b.com v2,v1", "a.com v1"]);
    }

    #[test]
    fn unavailable_groups_are_not_listed_and_built_in_groups_are_not_overridden() {
        let all = [
            service("gone.com", "v1", (2000, 1), false),
            service("apps", "v9", (20_000, 1000), true),
            service("apps", "v1", (1, 1), false),
        ];
        assert_eq!(shown(&[("apps", "v1"), ("batch", "v1")], &all), ["apps v1", "batch v1"]);
    }
}
