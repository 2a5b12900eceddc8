//! The collected kinds: all that can be listed, watched and deleted, except events, as in Kubernetes.

use proto_api::names::Names;
use proto_api::schema;
use proto_client::ObjectKey;
use proto_client::request::Collection;

/// Index of a kind in [`Kinds`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct KindId(usize);

/// Identifies an object by kind, namespace and name.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Id {
    /// The kind.
    pub kind: KindId,
    /// Namespace (empty if cluster-scoped) and name.
    pub key: ObjectKey,
}

/// A kind.
#[derive(Clone, Debug)]
pub struct Collected {
    /// The group with its domain; empty for core.
    pub group: String,
    /// For example `v1`.
    pub version: &'static str,
    /// For example `pods`.
    pub plural: &'static str,
    /// For example `Pod`.
    pub kind: &'static str,
    /// Whether it is namespaced.
    pub namespaced: bool,
}

/// The kinds that controllers create for an owner of a kind, by kind and plural.
const MADE_FOR: [(&str, &[&str]); 9] = [
    ("CronJob", &["jobs"]),
    ("DaemonSet", &["pods", "controllerrevisions"]),
    ("Deployment", &["replicasets"]),
    ("Job", &["pods"]),
    ("Pod", &["persistentvolumeclaims"]),
    ("ReplicaSet", &["pods"]),
    ("ReplicationController", &["pods"]),
    ("Service", &["endpointslices"]),
    ("StatefulSet", &["pods", "controllerrevisions", "persistentvolumeclaims"]),
];

/// All collected kinds, each in one version.
#[derive(Clone, Debug)]
pub struct Kinds(Vec<Collected>);

impl Kinds {
    /// The kinds of a naming profile.
    pub fn new(names: &Names) -> Self {
        let mut kinds: Vec<Collected> = Vec::new();
        for resource in schema::resources() {
            let has = |verb: &&str| resource.verbs.contains(verb);
            let collected = ["delete", "list", "watch", "patch"].iter().all(has);
            let group = names.group(resource.group);
            let known = kinds.iter().any(|k| (&k.group, k.plural) == (&group, resource.plural));
            if collected && !known && resource.plural != "events" {
                let schema::Resource { version, plural, kind, namespaced, .. } = *resource;
                kinds.push(Collected { group, version, plural, kind, namespaced });
            }
        }
        Self(kinds)
    }

    /// All kinds with their indexes.
    pub fn iter(&self) -> impl Iterator<Item = (KindId, &Collected)> {
        self.0.iter().enumerate().map(|(at, kind)| (KindId(at), kind))
    }

    pub fn get(&self, id: KindId) -> Option<&Collected> {
        self.0.get(id.0)
    }

    /// The kind of an owner reference, in any version of its group.
    pub fn find(&self, api_version: &str, kind: &str) -> Option<KindId> {
        let group = api_version.split_once('/').map_or("", |(group, _)| group);
        self.iter().find(|(_, k)| k.group == group && k.kind == kind).map(|(id, _)| id)
    }

    /// The kinds that controllers create for an owner of this kind.
    pub fn dependents_of(&self, owner: KindId) -> Vec<KindId> {
        let kind = self.get(owner).map_or("", |owner| owner.kind);
        let made = MADE_FOR.iter().find(|(of, _)| *of == kind).map_or(&[][..], |(_, made)| made);
        self.iter().filter(|(_, k)| made.contains(&k.plural)).map(|(id, _)| id).collect()
    }

    /// The collection of a kind; of all namespaces if none is given.
    pub fn collection(&self, id: KindId, namespace: Option<&str>) -> Option<Collection> {
        let Collected { group, version, plural, namespaced, .. } = self.get(id)?;
        Some(Collection {
            group: group.clone(),
            version: (*version).to_owned(),
            plural: (*plural).to_owned(),
            namespace: namespace.filter(|_| *namespaced).map(str::to_owned),
        })
    }
}

#[cfg(test)]
mod tests {
    use proto_api::names::Profile;

    use super::*;

    #[test]
    fn every_kind_that_can_be_deleted_is_collected() {
        let kinds = Kinds::new(Names::new(Profile::Kubernetes));
        let plurals: Vec<&str> = kinds.iter().map(|(_, kind)| kind.plural).collect();
        for wanted in [
            "pods",
            "csinodes",
            "leases",
            "endpointslices",
            "controllerrevisions",
            "jobs",
            "replicasets",
            "persistentvolumeclaims",
            "configmaps",
            "namespaces",
            "roles",
        ] {
            assert!(plurals.contains(&wanted), "{wanted}");
        }
        assert!(!plurals.contains(&"events") && !plurals.contains(&"bindings"));
        for resource in schema::resources() {
            let deletable = ["delete", "list", "watch"].iter().all(|v| resource.verbs.contains(v));
            assert!(
                !deletable || resource.plural == "events" || plurals.contains(&resource.plural),
                "{}",
                resource.plural
            );
        }
        let autoscalers = plurals.iter().filter(|p| **p == "horizontalpodautoscalers").count();
        assert_eq!(autoscalers, 1, "one version of each");
    }

    #[test]
    fn owners_are_found_in_any_version() {
        let kinds = Kinds::new(Names::new(Profile::Kubernetes));
        let plural = |version, kind| {
            kinds.find(version, kind).and_then(|id| kinds.get(id)).map(|kind| kind.plural)
        };
        assert_eq!(plural("v1", "Pod"), Some("pods"));
        assert_eq!(plural("apps/v1beta1", "Deployment"), Some("deployments"));
        assert_eq!(plural("v1", "Deployment"), None);
        assert_eq!(plural("example.org/v1", "Pod"), None);
        for (owner, made) in MADE_FOR {
            let (id, _) = kinds.iter().find(|(_, kind)| kind.kind == owner).unwrap();
            assert_eq!(kinds.dependents_of(id).len(), made.len(), "{owner}");
        }
    }
}
