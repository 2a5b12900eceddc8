//! The collected kinds: all that can be listed, watched and deleted, except events, as in Kubernetes.

use std::borrow::Cow;
use std::sync::{Arc, PoisonError, RwLock};

use apiserver_controllers::custom_resources::CustomResource;
use proto_api::names::Names;
use proto_api::{Collection, ObjectKey, schema};

/// Index of a kind in [`Kinds`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct KindId(usize);

/// Identifies an object by kind, namespace and name.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Id {
    pub kind: KindId,
    /// Namespace (empty if cluster-scoped) and name.
    pub key: ObjectKey,
}

/// A kind whose objects are garbage collected.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CollectedKind {
    /// The group with its domain; empty for core.
    pub group: String,
    /// For example `v1`.
    pub version: Cow<'static, str>,
    /// For example `pods`.
    pub plural: Cow<'static, str>,
    /// For example `Pod`.
    pub kind: Cow<'static, str>,
    /// Whether it is namespaced.
    pub namespaced: bool,
    pub source: KindSource,
}

/// Where a kind comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KindSource {
    /// The API server has it always.
    BuiltIn,
    /// A CustomResourceDefinition has added it.
    Definition,
    /// Another API server serves it, which an APIService names.
    OtherServer,
}

impl CollectedKind {
    /// A kind that this resource has.
    pub fn new(resource: &CustomResource, source: KindSource) -> Self {
        Self {
            group: resource.group.clone(),
            version: resource.version.clone().into(),
            plural: resource.plural.clone().into(),
            kind: resource.kind.clone().into(),
            namespaced: resource.namespaced,
            source,
        }
    }

    /// Whether its objects have a strategic merge patch; of those of other servers it is not known.
    pub fn is_built_in(&self) -> bool {
        self.source == KindSource::BuiltIn
    }
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

/// All collected kinds, each in one version. Those of definitions and other servers come and go; the place of one that is gone is used again.
#[derive(Debug)]
pub struct Kinds(RwLock<Vec<Option<Arc<CollectedKind>>>>);

impl Kinds {
    /// The built-in kinds of a naming profile.
    pub fn new(names: &Names) -> Self {
        let mut kinds: Vec<CollectedKind> = Vec::new();
        for resource in schema::resources() {
            let has = |verb: &&str| resource.verbs.contains(verb);
            let collected = ["delete", "list", "watch", "patch"].iter().all(has);
            let group = names.group(resource.group);
            let known = kinds.iter().any(|k| k.group == group && k.plural == resource.plural);
            if collected && !known && resource.plural != "events" {
                kinds.push(CollectedKind {
                    group,
                    version: resource.version.into(),
                    plural: resource.plural.into(),
                    kind: resource.kind.into(),
                    namespaced: resource.namespaced,
                    source: KindSource::BuiltIn,
                });
            }
        }
        Self(RwLock::new(kinds.into_iter().map(|kind| Some(Arc::new(kind))).collect()))
    }

    fn read<T>(&self, read: impl FnOnce(&[Option<Arc<CollectedKind>>]) -> T) -> T {
        read(&self.0.read().unwrap_or_else(PoisonError::into_inner))
    }

    /// All kinds with their indexes.
    pub fn iter(&self) -> impl Iterator<Item = (KindId, Arc<CollectedKind>)> + use<> {
        let all: Vec<_> = self.read(|kinds| {
            let places = kinds.iter().enumerate();
            places.filter_map(|(at, kind)| Some((KindId(at), kind.clone()?))).collect()
        });
        all.into_iter()
    }

    /// A kind, if it is not gone.
    pub fn get(&self, id: KindId) -> Option<Arc<CollectedKind>> {
        self.read(|kinds| kinds.get(id.0).cloned().flatten())
    }

    /// Adds a kind.
    pub fn add(&self, kind: CollectedKind) -> KindId {
        let mut kinds = self.0.write().unwrap_or_else(PoisonError::into_inner);
        let free = kinds.iter().position(Option::is_none);
        let at = free.unwrap_or(kinds.len());
        match kinds.get_mut(at) {
            Some(place) => *place = Some(Arc::new(kind)),
            None => kinds.push(Some(Arc::new(kind))),
        }
        KindId(at)
    }

    /// Removes a kind.
    pub fn remove(&self, id: KindId) {
        let mut kinds = self.0.write().unwrap_or_else(PoisonError::into_inner);
        kinds.get_mut(id.0).iter_mut().for_each(|place| **place = None);
    }

    /// The kind of an owner reference, in any version of its group.
    pub fn find(&self, api_version: &str, kind: &str) -> Option<KindId> {
        let group = api_version.split_once('/').map_or("", |(group, _)| group);
        let fits = |k: &Arc<CollectedKind>| k.group == group && k.kind == kind;
        self.read(|kinds| kinds.iter().position(|k| k.as_ref().is_some_and(fits)).map(KindId))
    }

    /// The kinds that controllers create for an owner of this kind.
    pub fn dependents_of(&self, owner: KindId) -> Vec<KindId> {
        let Some(owner) = self.get(owner).filter(|owner| owner.is_built_in()) else {
            return Vec::new();
        };
        let made = MADE_FOR.iter().find(|(of, _)| *of == owner.kind);
        let made = made.map_or(&[][..], |(_, made)| made);
        let built_in = self.iter().filter(|(_, k)| k.is_built_in());
        built_in.filter(|(_, k)| made.contains(&k.plural.as_ref())).map(|(id, _)| id).collect()
    }

    /// The collection of a kind; of all namespaces if none is given.
    pub fn collection(&self, id: KindId, namespace: Option<&str>) -> Option<Collection> {
        let kind = self.get(id)?;
        Some(Collection {
            group: kind.group.clone(),
            version: kind.version.clone().into_owned(),
            plural: kind.plural.clone().into_owned(),
            namespace: namespace.filter(|_| kind.namespaced).map(str::to_owned),
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
        let plurals: Vec<String> =
            kinds.iter().map(|(_, kind)| kind.plural.clone().into_owned()).collect();
        let plurals: Vec<&str> = plurals.iter().map(String::as_str).collect();
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
            let found = kinds.find(version, kind).and_then(|id| kinds.get(id));
            found.map(|kind| kind.plural.clone().into_owned())
        };
        assert_eq!(plural("v1", "Pod").as_deref(), Some("pods"));
        assert_eq!(plural("apps/v1beta1", "Deployment").as_deref(), Some("deployments"));
        assert_eq!(plural("v1", "Deployment"), None);
        assert_eq!(plural("example.org/v1", "Pod"), None);
        for (owner, made) in MADE_FOR {
            let (id, _) = kinds.iter().find(|(_, kind)| kind.kind == owner).unwrap();
            assert_eq!(kinds.dependents_of(id).len(), made.len(), "{owner}");
        }
    }

    #[test]
    fn kinds_of_definitions_come_and_go() {
        let kinds = Kinds::new(Names::new(Profile::Kubernetes));
        let built_in = kinds.iter().count();
        let custom = |plural: &str| CustomResource {
            group: "example.com".to_owned(),
            plural: plural.to_owned(),
            version: "v1".to_owned(),
            kind: "Job".to_owned(),
            namespaced: true,
        };
        let defined = |plural: &str| CollectedKind::new(&custom(plural), KindSource::Definition);
        let first = kinds.add(defined("jobs"));
        assert_eq!(kinds.find("example.com/v9", "Job"), Some(first));
        assert!(kinds.dependents_of(first).is_empty(), "not those of batch's Job");
        kinds.remove(first);
        assert_eq!((kinds.find("example.com/v1", "Job"), kinds.get(first)), (None, None));
        for nth in 0..100 {
            let again = kinds.add(defined(&format!("jobs{nth}")));
            assert_eq!(again, first);
            kinds.remove(again);
        }
        assert_eq!(kinds.iter().count(), built_in);
    }
}
