//! The collected kinds: all that can be listed, watched and deleted, except events, as in Kubernetes.

use std::borrow::Cow;
use std::sync::{Arc, PoisonError, RwLock};

use apiserver_controllers::custom_resources::CustomResource;
use proto_api::names::Names;
use proto_api::{Collection, ObjectKey, schema};

/// A kind in [`Kinds`]. Of a kind that has been removed it stays that of no other kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct KindId {
    place: usize,
    /// How many kinds had the place before.
    generation: u64,
}

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
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum KindSource {
    /// The API server has it always. References to it may name any version of its group.
    BuiltIn,
    /// A CustomResourceDefinition has added it.
    Definition {
        /// The versions in which references may name it.
        versions: Vec<String>,
    },
    /// Another API server serves it, which an APIService names.
    OtherServer {
        /// The versions in which references may name it: all are of one server.
        versions: Vec<String>,
        /// Namespace, name and port of the Service in front of it.
        service: String,
    },
}

impl CollectedKind {
    /// A kind that a definition or another server has added.
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

    /// A kind that a definition has added.
    pub fn defined(resource: &CustomResource) -> Self {
        Self::new(resource, KindSource::Definition { versions: resource.versions.clone() })
    }

    /// Whether its objects have a strategic merge patch.
    pub fn is_built_in(&self) -> bool {
        self.source == KindSource::BuiltIn
    }

    pub fn is_defined(&self) -> bool {
        matches!(self.source, KindSource::Definition { .. })
    }

    pub fn is_of_other_server(&self) -> bool {
        matches!(self.source, KindSource::OtherServer { .. })
    }

    /// Whether a reference to this version of its group is to this kind. Another version may be of another server, whose objects are others.
    fn has_version(&self, version: &str) -> bool {
        match &self.source {
            KindSource::BuiltIn => true,
            KindSource::Definition { versions } | KindSource::OtherServer { versions, .. } => {
                versions.iter().any(|served| served == version)
            }
        }
    }

    /// Whether an owner reference is to an object of this kind.
    pub fn is_named_by(&self, api_version: &str, kind: &str) -> bool {
        let (group, version) = api_version.split_once('/').unwrap_or(("", api_version));
        self.group == group && self.kind == kind && self.has_version(version)
    }

    /// Whether both have the same objects, which the same requests read.
    pub fn is_read_as(&self, other: &Self) -> bool {
        let service = |kind: &Self| match &kind.source {
            KindSource::OtherServer { service, .. } => Some(service.clone()),
            KindSource::BuiltIn | KindSource::Definition { .. } => None,
        };
        let read = |kind: &Self| Self { source: KindSource::BuiltIn, ..kind.clone() };
        read(self) == read(other)
            && self.is_defined() == other.is_defined()
            && service(self) == service(other)
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

/// All collected kinds, each in one version. Those of definitions and of other servers come and go; the place of one that is gone is used again.
#[derive(Debug)]
pub struct Kinds(RwLock<Vec<Place>>);

#[derive(Debug)]
struct Place {
    generation: u64,
    kind: Option<Arc<CollectedKind>>,
}

impl Place {
    fn new(kind: CollectedKind) -> Self {
        Self { generation: 0, kind: Some(Arc::new(kind)) }
    }

    fn id(&self, place: usize) -> KindId {
        KindId { place, generation: self.generation }
    }
}

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
        Self(RwLock::new(kinds.into_iter().map(Place::new).collect()))
    }

    fn read<T>(&self, read: impl FnOnce(&[Place]) -> T) -> T {
        read(&self.0.read().unwrap_or_else(PoisonError::into_inner))
    }

    /// All kinds with their indexes.
    pub fn iter(&self) -> impl Iterator<Item = (KindId, Arc<CollectedKind>)> + use<> {
        let all: Vec<_> = self.read(|kinds| {
            let places = kinds.iter().enumerate();
            places.filter_map(|(at, place)| Some((place.id(at), place.kind.clone()?))).collect()
        });
        all.into_iter()
    }

    /// A kind, if it is not gone.
    pub fn get(&self, id: KindId) -> Option<Arc<CollectedKind>> {
        self.read(|kinds| {
            let place = kinds.get(id.place).filter(|place| place.generation == id.generation);
            place.and_then(|place| place.kind.clone())
        })
    }

    /// Adds a kind.
    pub fn add(&self, kind: CollectedKind) -> KindId {
        let mut kinds = self.0.write().unwrap_or_else(PoisonError::into_inner);
        let free = kinds.iter_mut().enumerate().find(|(_, place)| place.kind.is_none());
        if let Some((at, place)) = free {
            place.generation = place.generation.saturating_add(1);
            place.kind = Some(Arc::new(kind));
            return place.id(at);
        }
        let place = Place::new(kind);
        let id = place.id(kinds.len());
        kinds.push(place);
        id
    }

    /// Replaces what is known of a kind that stays.
    pub fn update(&self, id: KindId, kind: CollectedKind) {
        let mut kinds = self.0.write().unwrap_or_else(PoisonError::into_inner);
        if let Some(place) = kinds.get_mut(id.place).filter(|it| it.generation == id.generation) {
            place.kind = Some(Arc::new(kind));
        }
    }

    /// Removes a kind.
    pub fn remove(&self, id: KindId) {
        let mut kinds = self.0.write().unwrap_or_else(PoisonError::into_inner);
        if let Some(place) = kinds.get_mut(id.place).filter(|it| it.generation == id.generation) {
            place.kind = None;
        }
    }

    /// The kind of an owner reference: built-in ones in any version of their group, others in the versions that are served.
    pub fn find(&self, api_version: &str, kind: &str) -> Option<KindId> {
        let fits = |k: &Arc<CollectedKind>| k.is_named_by(api_version, kind);
        self.read(|kinds| {
            let mut places = kinds.iter().enumerate();
            let found = places.find(|(_, place)| place.kind.as_ref().is_some_and(fits));
            found.map(|(at, place)| place.id(at))
        })
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
            versions: vec!["v1".to_owned(), "v1beta1".to_owned()],
        };
        let first = kinds.add(CollectedKind::defined(&custom("jobs")));
        assert_eq!(kinds.find("example.com/v1beta1", "Job"), Some(first));
        assert_eq!(kinds.find("example.com/v9", "Job"), None, "it may be of another server");
        assert!(kinds.dependents_of(first).is_empty(), "not those of batch's Job");
        kinds.remove(first);
        assert_eq!((kinds.find("example.com/v1", "Job"), kinds.get(first)), (None, None));
        for nth in 0..100 {
            let again = kinds.add(CollectedKind::defined(&custom(&format!("jobs{nth}"))));
            assert_eq!((again.place, kinds.get(first)), (first.place, None), "another kind");
            kinds.remove(first);
            assert!(kinds.get(again).is_some());
            kinds.remove(again);
        }
        assert_eq!(kinds.iter().count(), built_in);
    }
}
