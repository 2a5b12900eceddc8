//! What a change of a namespace's policy means to the pods that it has.

use std::collections::{BTreeMap, HashSet};

use proto_api::core::v1::Pod;
use proto_api::names::Names;

use crate::policy::{LevelVersion, NamespacePolicy, PodSecurityLevel};
use crate::standards::find_violations;
use crate::text::quote;
use crate::violation::list_reasons;

/// Most pods of a namespace that are checked against a new policy.
pub const PODS_CHECKED_MAX: usize = 3000;

/// Whether pods that `old` admits may violate what `new` enforces, so that the existing ones are worth a check.
#[must_use]
pub fn tightens_enforcement(old: &NamespacePolicy, new: &NamespacePolicy) -> bool {
    let (old, new) = (old.enforce, new.enforce);
    let is_relaxed = new.version == old.version && new.level <= old.level;
    new.level != PodSecurityLevel::Privileged && !is_relaxed
}

/// The warnings about the pods of a namespace that violate its new `enforce` policy, as Kubernetes writes them: one for each set of
/// reasons, with the first of its pods by name. Of more than [`PODS_CHECKED_MAX`] pods the first are checked, one of each
/// controller before the others. Pods of exempt runtime classes are the caller's to leave out.
#[must_use]
pub fn warn_of_pods(
    namespace: &str,
    enforce: LevelVersion,
    pods: &[&Pod],
    names: &Names,
) -> Vec<String> {
    let mut pods_by_reasons: BTreeMap<String, PodGroup<'_>> = BTreeMap::new();
    for pod in put_controllers_first(pods).into_iter().take(PODS_CHECKED_MAX) {
        let violations = find_violations(enforce, &pod.metadata, &pod.spec, names);
        if !violations.is_empty() {
            let name = pod.metadata.name.as_str();
            let reasons = list_reasons(&violations);
            pods_by_reasons.entry(reasons).or_insert(PodGroup { first: name, count: 0 }).add(name);
        }
    }
    let mut warnings = Vec::new();
    if pods.len() > PODS_CHECKED_MAX {
        warnings.push(format!(
            "new PodSecurity enforce level only checked against the first {PODS_CHECKED_MAX} of {} existing pods",
            pods.len()
        ));
    }
    if !pods_by_reasons.is_empty() {
        warnings.push(format!(
            "existing pods in namespace {} violate the new PodSecurity enforce level \"{enforce}\"",
            quote(namespace)
        ));
    }
    let mut of_pods: Vec<String> = pods_by_reasons
        .into_iter()
        .map(|(reasons, group)| format!("{}: {reasons}", group.describe()))
        .collect();
    of_pods.sort_unstable();
    warnings.extend(of_pods);
    warnings
}

/// Pods with the same reasons.
struct PodGroup<'a> {
    /// The first by name.
    first: &'a str,
    count: usize,
}

impl<'a> PodGroup<'a> {
    fn add(&mut self, name: &'a str) {
        self.first = self.first.min(name);
        self.count = self.count.saturating_add(1);
    }

    fn describe(&self) -> String {
        match self.count {
            0 | 1 => self.first.to_owned(),
            2 => format!("{} (and 1 other pod)", self.first),
            count => format!("{} (and {} other pods)", self.first, count.saturating_sub(1)),
        }
    }
}

/// The pods without a controller and one of each controller, then those left.
fn put_controllers_first<'a>(pods: &[&'a Pod]) -> Vec<&'a Pod> {
    let mut seen = HashSet::new();
    let (mut first, left): (Vec<&Pod>, Vec<&Pod>) = pods
        .iter()
        .copied()
        .partition(|&pod| controller_uid(pod).is_none_or(|uid| seen.insert(uid)));
    first.extend(left);
    first
}

fn controller_uid(pod: &Pod) -> Option<&str> {
    let owners = &pod.metadata.owner_references;
    owners.iter().find(|owner| owner.controller == Some(true)).map(|owner| owner.uid.as_str())
}

#[cfg(test)]
mod tests {
    use proto_api::meta::v1::OwnerReference;
    use proto_api::names::Profile;

    use super::*;
    use crate::policy::PodSecurityVersion;

    fn policy(enforce: &str) -> NamespacePolicy {
        let (level, version) = enforce.split_once(':').expect("a level and a version");
        let enforce = LevelVersion {
            level: level.parse().expect("a level"),
            version: version.parse().expect("a version"),
        };
        NamespacePolicy { enforce, ..NamespacePolicy::default() }
    }

    #[test]
    fn only_a_stricter_policy_asks_for_a_check() {
        for (old, new, tightens) in [
            ("privileged:latest", "privileged:latest", false),
            ("privileged:latest", "baseline:latest", true),
            ("privileged:v1.1", "privileged:latest", false),
            ("baseline:latest", "baseline:latest", false),
            ("baseline:latest", "restricted:latest", true),
            ("baseline:latest", "baseline:v1.20", true),
            ("restricted:latest", "baseline:latest", false),
            ("restricted:v1.0", "restricted:latest", true),
            ("restricted:v1.0", "baseline:latest", true),
            ("restricted:latest", "privileged:v1.0", false),
        ] {
            let found = tightens_enforcement(&policy(old), &policy(new));
            assert_eq!(found, tightens, "{old} -> {new}");
        }
        let audited = NamespacePolicy {
            audit: policy("restricted:latest").enforce,
            ..NamespacePolicy::default()
        };
        assert!(!tightens_enforcement(&NamespacePolicy::default(), &audited));
    }

    fn pod(name: &str, controller: &str, host_network: bool, host_path: bool) -> Pod {
        let mut pod = Pod::default();
        pod.metadata.name = name.to_owned();
        pod.spec.host_network = host_network;
        if host_path {
            let source = proto_api::core::v1::HostPathVolumeSource::default();
            pod.spec.volumes.push(proto_api::core::v1::Volume::default());
            pod.spec.volumes[0].volume_source.host_path = Some(source);
        }
        if !controller.is_empty() {
            let owner = |uid: &str, controller| OwnerReference {
                uid: uid.to_owned(),
                controller: Some(controller),
                ..OwnerReference::default()
            };
            pod.metadata.owner_references = vec![owner("other", false), owner(controller, true)];
        }
        pod
    }

    fn warn(pods: &[Pod]) -> Vec<String> {
        let enforce =
            LevelVersion { level: PodSecurityLevel::Baseline, version: PodSecurityVersion::Latest };
        let pods: Vec<&Pod> = pods.iter().collect();
        warn_of_pods("team", enforce, &pods, Names::new(Profile::Kubernetes))
    }

    #[test]
    fn pods_are_grouped_by_their_reasons() {
        let existing = "existing pods in namespace \"team\" violate the new PodSecurity enforce level \"baseline:latest\"";
        let good = pod("good", "", false, false);
        assert_eq!(warn(&[]), Vec::<String>::new());
        assert_eq!(warn(std::slice::from_ref(&good)), Vec::<String>::new());
        let one = [pod("z", "", true, false), good];
        assert_eq!(warn(&one), [existing, "z: host namespaces"]);
        let two = [pod("z", "", true, false), pod("b", "", true, false)];
        assert_eq!(warn(&two), [existing, "b (and 1 other pod): host namespaces"]);
        let more = [
            pod("y", "", true, true),
            pod("c", "1", true, false),
            pod("a", "1", true, false),
            pod("d", "2", true, false),
            pod("b", "1", true, false),
        ];
        assert_eq!(
            warn(&more),
            [
                existing,
                "a (and 3 other pods): host namespaces",
                "y: host namespaces, hostPath volumes"
            ]
        );
    }

    #[test]
    fn of_too_many_pods_each_controller_is_checked() {
        let mut pods = vec![pod("same", "1", true, false); PODS_CHECKED_MAX];
        assert_eq!(warn(&pods).len(), 2);
        pods.push(pod("last", "2", false, true));
        assert_eq!(
            warn(&pods),
            [
                "new PodSecurity enforce level only checked against the first 3000 of 3001 existing pods",
                "existing pods in namespace \"team\" violate the new PodSecurity enforce level \"baseline:latest\"",
                "last: hostPath volumes",
                "same (and 2998 other pods): host namespaces",
            ]
        );
    }
}
