//! Random histories of owners and dependents, against a model of the API server. The collector's caches are stale by any amount per kind, users
//! write between any two of its requests, and requests fail.
//!
//! Safety: no object is deleted that an owner keeps or that was to be orphaned; no owner is deleted before the dependents that it waits for.
//! Liveness: in the end no object is left whose owners are deleted, and none waits.

mod invalid_owners;
mod other_server;
mod read_turns;
mod requests;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::atomic::AtomicUsize;
use std::sync::{Arc, Mutex};

use proptest::prelude::*;
use proto_api::meta::v1::{ObjectMeta, OwnerReference, PartialObjectMetadata};
use proto_api::names::{Names, Profile};
use proto_api::{ObjectKey, Time};

use super::index::{DeletionStage, FOREGROUND, Index, ORPHAN, Ownership};
use super::kinds::{CollectedKind, Id, KindId, KindSource, Kinds};
use super::plan::DeletionPropagation;
use super::process::{Processor, lock};

/// Rounds within which the state has to become stable.
const ROUNDS_MAX: usize = 5_000;

/// The name of objects that cannot be read.
const UNREADABLE: &str = "unreadable";
/// The name of an object whose kind is removed while it is read.
const KIND_ENDS: &str = "kind-ends";

/// The random numbers of a history; at their end no more steps happen.
struct Dice(VecDeque<u16>);

impl Dice {
    fn roll(&mut self, sides: usize) -> Option<usize> {
        self.0.pop_front().map(|number| usize::from(number) % sides.max(1))
    }
}

struct Change {
    id: Id,
    old: Option<Arc<Ownership>>,
    new: Option<Arc<Ownership>>,
}

/// The server and the caches of the collector.
struct Cluster {
    kinds: Arc<Kinds>,
    dice: Dice,
    objects: BTreeMap<Id, ObjectMeta>,
    version: u64,
    made: u32,
    /// Changes that the caches do not show yet, by kind.
    unseen: BTreeMap<KindId, VecDeque<Change>>,
    shown: BTreeMap<Id, Arc<Ownership>>,
    index: Arc<Mutex<Index>>,
    queue: BTreeSet<Id>,
    policies: Policies,
    calm: bool,
    other: OtherServer,
}

/// What owners were deleted with, as pairs of owner and dependent by uid.
#[derive(Default)]
struct Policies {
    /// With the policy Orphan.
    kept: BTreeSet<(String, String)>,
    /// With the policy Foreground.
    awaited: BTreeSet<(String, String)>,
}

/// The state of another API server, which has the Birds.
#[derive(Default)]
struct OtherServer {
    /// Whether the collector has listed them.
    is_listed: bool,
    /// Whether it answers no requests.
    is_away: bool,
}

/// Owner and dependent kinds as controllers create them, some with two owners.
const CHAIN: [(&str, &[&str]); 7] = [
    ("Deployment", &[]),
    ("StatefulSet", &[]),
    ("ReplicaSet", &["Deployment"]),
    ("Pod", &["ReplicaSet", "StatefulSet"]),
    ("PersistentVolumeClaim", &["Pod", "StatefulSet"]),
    (BIRD, &["Deployment"]),
    ("ConfigMap", &[BIRD, "Deployment"]),
];

/// A kind of another API server.
const BIRD: &str = "Bird";
/// Kinds whose watch is never late. That of a kind that no controller makes for the owner may not be: the collector does not list it again.
const PROMPT: [&str; 2] = [BIRD, "ConfigMap"];

impl Cluster {
    fn new(dice: Vec<u16>) -> Self {
        let kinds = Arc::new(Kinds::new(Names::new(Profile::Kubernetes)));
        kinds.add(CollectedKind {
            group: "example.com".to_owned(),
            version: "v1".into(),
            plural: "birds".into(),
            kind: BIRD.into(),
            namespaced: true,
            source: KindSource::OtherServer {
                versions: vec!["v1".to_owned()],
                service: "ns/birds:443".to_owned(),
            },
        });
        Self {
            kinds,
            dice: Dice(dice.into()),
            objects: BTreeMap::new(),
            version: 0,
            made: 0,
            unseen: BTreeMap::new(),
            shown: BTreeMap::new(),
            index: Arc::default(),
            queue: BTreeSet::new(),
            policies: Policies::default(),
            calm: false,
            other: OtherServer::default(),
        }
    }

    fn is_bird(&self, kind: KindId) -> bool {
        self.kinds.get(kind).is_some_and(|kind| kind.kind == BIRD)
    }

    /// Fails if the object's server is away.
    fn reach(&self, kind: KindId) -> Result<(), Failed> {
        if self.other.is_away && self.is_bird(kind) { Err(Failed) } else { Ok(()) }
    }

    fn kind(&self, kind: &str) -> KindId {
        self.kinds.iter().find(|(_, known)| known.kind == kind).unwrap().0
    }

    fn api_version(&self, kind: KindId) -> String {
        let kind = self.kinds.get(kind).unwrap();
        if kind.group.is_empty() {
            kind.version.clone().into_owned()
        } else {
            format!("{}/{}", kind.group, kind.version)
        }
    }

    /// Stores or deletes an object, and notifies the watches.
    fn write(&mut self, id: &Id, new: Option<ObjectMeta>) {
        self.version += 1;
        let slim = |metadata: &ObjectMeta| {
            Arc::new(Ownership::from_object(PartialObjectMetadata { metadata: metadata.clone() }))
        };
        let old = self.objects.remove(id);
        let new = new.map(|mut metadata| {
            metadata.resource_version = self.version.to_string();
            metadata
        });
        // A terminating object without finalizers is deleted.
        let new = new.filter(|m| m.deletion_timestamp.is_none() || !m.finalizers.is_empty());
        let change =
            Change { id: id.clone(), old: old.as_ref().map(slim), new: new.as_ref().map(slim) };
        if let (None, Some(gone)) = (&new, &old) {
            self.check_gone(gone);
        }
        if let Some(new) = new {
            self.objects.insert(id.clone(), new);
        }
        self.unseen.entry(id.kind).or_default().push_back(change);
        if self.kinds.get(id.kind).is_some_and(|kind| PROMPT.contains(&&*kind.kind)) {
            self.deliver_of(id.kind);
        }
    }

    /// No owner was deleted before the dependents that it waits for.
    fn check_gone(&self, gone: &ObjectMeta) {
        for other in self.objects.values() {
            let blocks =
                |o: &OwnerReference| o.uid == gone.uid && o.block_owner_deletion == Some(true);
            let pair = (gone.uid.clone(), other.uid.clone());
            assert!(
                !(other.owner_references.iter().any(blocks)
                    && self.policies.awaited.contains(&pair)),
                "{} went before {}",
                gone.name,
                other.name
            );
        }
    }

    fn stage_of(&self, uid: &str) -> Option<DeletionStage> {
        self.objects.values().find(|object| object.uid == uid).map(DeletionStage::from_metadata)
    }

    fn dependents(&self, uid: &str) -> Vec<ObjectMeta> {
        let owned = |o: &&ObjectMeta| o.owner_references.iter().any(|owner| owner.uid == uid);
        self.objects.values().filter(owned).cloned().collect()
    }

    /// Deletes as the server does.
    fn delete(&mut self, id: &Id, policy: DeletionPropagation) {
        let Some(object) = self.objects.get(id).cloned() else { return };
        let mut next = object.clone();
        next.finalizers.retain(|finalizer| finalizer != ORPHAN && finalizer != FOREGROUND);
        match policy {
            DeletionPropagation::Orphan => next.finalizers.push(ORPHAN.to_owned()),
            DeletionPropagation::Foreground => next.finalizers.push(FOREGROUND.to_owned()),
            DeletionPropagation::Background => {}
        }
        next.deletion_timestamp = Some(Time::from_unix(1));
        for dependent in self.dependents(&object.uid) {
            let pair = (object.uid.clone(), dependent.uid.clone());
            match policy {
                DeletionPropagation::Orphan => drop(self.policies.kept.insert(pair)),
                DeletionPropagation::Foreground => drop(self.policies.awaited.insert(pair)),
                DeletionPropagation::Background => {}
            }
        }
        let gone = next.finalizers.is_empty();
        self.write(id, (!gone).then_some(next));
    }

    /// A step of a user, or of the watch of some kind.
    fn meddle(&mut self) {
        if self.calm {
            return;
        }
        match self.dice.roll(12) {
            None => self.be_calm(),
            Some(0 | 1) => self.create(),
            Some(2) => self.delete_some(),
            Some(3) => self.change_owners(),
            Some(4) => self.other.is_away = !self.other.is_away,
            Some(5) => self.list_birds(),
            Some(_) => self.deliver(),
        }
    }

    /// The users are done, and the other server answers.
    fn be_calm(&mut self) {
        (self.calm, self.other.is_away) = (true, false);
        self.list_birds();
    }

    /// The collector lists the objects of the other server, and follows them from then on.
    fn list_birds(&mut self) {
        if self.other.is_away || self.other.is_listed {
            return;
        }
        self.other.is_listed = true;
        let kind = self.kind(BIRD);
        while self.unseen.get(&kind).is_some_and(|list| !list.is_empty()) {
            self.deliver_of(kind);
        }
        let bird = self.kinds.get(kind).unwrap();
        let dependents = self.shown.iter().filter(|(_, object)| object.names_owner(&bird));
        self.queue.extend(dependents.map(|(id, _)| id.clone()));
    }

    fn create(&mut self) {
        let Some(nth) = self.dice.roll(CHAIN.len()) else { return };
        let (kind, owners) = CHAIN[nth];
        let owners: Vec<KindId> = owners.iter().map(|owner| self.kind(owner)).collect();
        self.made += 1;
        let mut metadata = ObjectMeta {
            name: format!("o{}", self.made),
            namespace: "ns".to_owned(),
            uid: format!("u{}", self.made),
            ..ObjectMeta::default()
        };
        for owner in owners {
            metadata.owner_references.extend(self.some_owner(owner));
        }
        let id = Id { kind: self.kind(kind), key: ObjectKey::from_metadata(&metadata) };
        self.write(&id, Some(metadata));
    }

    /// A reference to an object of the kind that is not terminating, or to one that never existed.
    fn some_owner(&mut self, kind: KindId) -> Option<OwnerReference> {
        let alive = |(id, object): &(&Id, &ObjectMeta)| {
            id.kind == kind && object.deletion_timestamp.is_none()
        };
        let all: Vec<ObjectMeta> =
            self.objects.iter().filter(alive).map(|(_, object)| object.clone()).collect();
        let nth = self.dice.roll(all.len() + 2)?;
        let (name, uid) = match all.get(nth) {
            Some(owner) => (owner.name.clone(), owner.uid.clone()),
            None if nth == all.len() => ("never".to_owned(), "never".to_owned()),
            None => return None,
        };
        Some(OwnerReference {
            api_version: self.api_version(kind),
            kind: self.kinds.get(kind)?.kind.clone().into_owned(),
            name,
            uid,
            controller: None,
            block_owner_deletion: Some(self.dice.roll(3)? > 0),
        })
    }

    fn some_object(&mut self) -> Option<Id> {
        let alive = self.objects.iter().filter(|(_, object)| object.deletion_timestamp.is_none());
        let ids: Vec<Id> = alive.map(|(id, _)| id.clone()).collect();
        let nth = self.dice.roll(ids.len())?;
        ids.get(nth).cloned()
    }

    fn delete_some(&mut self) {
        let Some(id) = self.some_object() else { return };
        match self.dice.roll(3) {
            Some(0) => self.delete(&id, DeletionPropagation::Orphan),
            Some(1) => self.delete(&id, DeletionPropagation::Foreground),
            _ => self.delete(&id, DeletionPropagation::Background),
        }
    }

    fn change_owners(&mut self) {
        let Some(id) = self.some_object() else { return };
        let Some(kind) = self.kinds.get(id.kind) else { return };
        let owners =
            CHAIN.iter().find(|(of, _)| *of == kind.kind).map_or(&[][..], |(_, owners)| owners);
        let Some(owner) = self.dice.roll(owners.len()).and_then(|nth| owners.get(nth)) else {
            return;
        };
        let Some(mut object) = self.objects.get(&id).cloned() else { return };
        if self.dice.roll(2) == Some(0) {
            object.owner_references.pop();
        } else {
            let owner = self.kind(owner);
            let owner = self.some_owner(owner);
            let known = |o: &OwnerReference| object.owner_references.iter().any(|k| k.uid == o.uid);
            let owner = owner.filter(|owner| !known(owner));
            object.owner_references.extend(owner);
        }
        self.write(&id, Some(object));
    }

    /// The watch of one kind delivers one change.
    fn deliver(&mut self) {
        let kinds: Vec<KindId> = self
            .unseen
            .iter()
            .filter(|(_, list)| !list.is_empty())
            .map(|(kind, _)| *kind)
            .collect();
        let Some(nth) = self.dice.roll(kinds.len()) else { return };
        if let Some(kind) = kinds.get(nth) {
            self.deliver_of(*kind);
        }
    }

    fn deliver_of(&mut self, kind: KindId) {
        if self.is_bird(kind) && !self.other.is_listed {
            return;
        }
        let Some(change) = self.unseen.get_mut(&kind).and_then(VecDeque::pop_front) else { return };
        match &change.new {
            Some(new) => drop(self.shown.insert(change.id.clone(), new.clone())),
            None => drop(self.shown.remove(&change.id)),
        }
        let (old, new) = (change.old.as_deref(), change.new.as_deref());
        let look = lock(&self.index).apply(&change.id, old, new);
        self.queue.extend(look);
    }

    fn deliver_all(&mut self) {
        for kind in self.unseen.keys().copied().collect::<Vec<_>>() {
            while self.unseen.get(&kind).is_some_and(|list| !list.is_empty()) {
                self.deliver_of(kind);
            }
        }
    }
}

/// The cluster, and the number of live reads of single objects.
#[derive(Clone)]
struct Shared(Arc<Mutex<Cluster>>, Arc<AtomicUsize>);

/// A request that failed.
#[derive(Debug)]
struct Failed;

impl Shared {
    /// Before each request steps may happen; some requests fail.
    fn open(&self, kind: KindId) -> Result<std::sync::MutexGuard<'_, Cluster>, Failed> {
        let mut cluster = lock(&self.0);
        cluster.meddle();
        cluster.reach(kind)?;
        if !cluster.calm && cluster.dice.roll(16) == Some(0) {
            return Err(Failed);
        }
        Ok(cluster)
    }
}

async fn live(dice: Vec<u16>) {
    let shared = collected(Cluster::new(dice)).await;
    let cluster = lock(&shared.0);
    for object in cluster.objects.values() {
        assert_eq!(
            DeletionStage::from_metadata(object),
            DeletionStage::Alive,
            "{} waits for ever",
            object.name
        );
        let owners = &object.owner_references;
        let has_owner = owners.iter().any(|owner| cluster.stage_of(&owner.uid).is_some());
        assert!(owners.is_empty() || has_owner, "{} is left: {owners:?}", object.name);
        let dangling = owners.iter().find(|owner| cluster.stage_of(&owner.uid).is_none());
        assert_eq!(dangling, None, "{}", object.name);
    }
}

fn processor(cluster: Cluster, reads_max: usize) -> (Shared, Processor<Shared, Shared>) {
    let (kinds, index) = (cluster.kinds.clone(), cluster.index.clone());
    let shared = Shared(Arc::new(Mutex::new(cluster)), Arc::default());
    let (absent, unfinished) = Default::default();
    let (server, caches) = (shared.clone(), shared.clone());
    (shared, Processor { server, caches, kinds, index, absent, unfinished, reads_max })
}

/// The cluster after the collector has come to rest.
async fn collected(cluster: Cluster) -> Shared {
    // With one read a turn each object with two owners may take several.
    let (shared, processor) = processor(cluster, 1);
    for round in 0.. {
        let id = {
            let mut cluster = lock(&shared.0);
            cluster.meddle();
            if cluster.calm {
                cluster.deliver_all();
            }
            match cluster.queue.pop_first() {
                Some(id) => id,
                None if cluster.calm => break,
                None => continue,
            }
        };
        assert!(round < ROUNDS_MAX, "it does not come to rest: {id:?}");
        let again = match processor.process(&id).await {
            Ok(seen) => {
                lock(&shared.0).queue.extend(seen.process);
                seen.requeue_after.is_some()
            }
            Err(Failed) => true,
        };
        if again {
            lock(&shared.0).queue.insert(id);
        }
    }
    shared
}

#[test]
fn dependents_of_another_namespace_hold_up_no_deletion() {
    for policy in [DeletionPropagation::Foreground, DeletionPropagation::Orphan] {
        let mut cluster = Cluster::new(Vec::new());
        let mut add = |kind: &str, namespace: &str, uid: &str, owner: Option<OwnerReference>| {
            let metadata = ObjectMeta {
                name: uid.to_owned(),
                namespace: namespace.to_owned(),
                uid: uid.to_owned(),
                owner_references: owner.into_iter().collect(),
                // It stays until its maker wants it to go.
                finalizers: vec!["example.com/stays".to_owned()],
                ..ObjectMeta::default()
            };
            let id = Id { kind: cluster.kind(kind), key: ObjectKey::from_metadata(&metadata) };
            cluster.write(&id, Some(metadata));
            id
        };
        let owner = add("Deployment", "ns", "owner", None);
        let reference = OwnerReference {
            api_version: "apps/v1".to_owned(),
            kind: "Deployment".to_owned(),
            name: "owner".to_owned(),
            uid: "owner".to_owned(),
            controller: None,
            block_owner_deletion: Some(true),
        };
        let foreign = add("ReplicaSet", "other", "foreign", Some(reference));
        cluster.delete(&owner, policy);
        // These pairs are of objects that are no dependents.
        cluster.policies = Policies::default();
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        let shared = runtime.block_on(collected(cluster));
        let cluster = lock(&shared.0);
        let finalizers = &cluster.objects[&owner].finalizers;
        assert_eq!(*finalizers, ["example.com/stays"], "{policy:?}");
        assert!(cluster.objects[&foreign].deletion_timestamp.is_some(), "its owner is absent");
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, ..ProptestConfig::default() })]
    #[test]
    fn no_object_is_lost_or_left(dice in prop::collection::vec(any::<u16>(), 50..600)) {
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        runtime.block_on(live(dice));
    }
}
