//! The owners of a set's claims, by its retention policy: the garbage collector deletes a claim after its owner. A claim of a wanted ordinal has no other
//! owner than the set, that of a condemned pod may have the pod.

use apiserver_controllers::owners::owned_by;
use proto_api::apps::v1::StatefulSet;
use proto_api::core::v1::{PersistentVolumeClaim, Pod};
use proto_api::meta::v1::{ObjectMeta, OwnerReference};
use proto_api::names::Names;
use proto_api::{Kind, Resource};

const RETAIN: &str = "Retain";
const DELETE: &str = "Delete";

/// What becomes of the claims of a set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Retention {
    /// When the set is deleted.
    deleted: Reclaim,
    /// When the set is scaled down.
    scaled: Reclaim,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Reclaim {
    Retain,
    Delete,
}

/// The pod of a claim.
#[derive(Clone, Copy)]
pub(super) struct ClaimUser<'a> {
    pub(super) name: &'a str,
    /// None before it is created.
    pub(super) pod: Option<&'a Pod>,
    /// Whether the set wants a pod of its ordinal.
    pub(super) is_wanted: bool,
}

impl Retention {
    /// Without a policy, or with words that are not known, claims are retained.
    pub(super) fn from_set(set: &StatefulSet) -> Self {
        let policy = set.spec.persistent_volume_claim_retention_policy.as_ref();
        let words = policy.map(|policy| (&*policy.when_deleted, &*policy.when_scaled));
        let (deleted, scaled) = match words {
            Some((DELETE, DELETE)) => (Reclaim::Delete, Reclaim::Delete),
            Some((DELETE, RETAIN)) => (Reclaim::Delete, Reclaim::Retain),
            Some((RETAIN, DELETE)) => (Reclaim::Retain, Reclaim::Delete),
            _ => (Reclaim::Retain, Reclaim::Retain),
        };
        Self { deleted, scaled }
    }

    /// The owners of a new claim of a wanted ordinal.
    pub(super) fn of_new_claim(self, names: &Names, set: &StatefulSet) -> Vec<OwnerReference> {
        let owned = self.deleted == Reclaim::Delete;
        owned.then(|| reference(names, set)).into_iter().collect()
    }

    /// The owners that a claim is to have; none if it has them.
    pub(super) fn change_owners(
        self,
        names: &Names,
        set: &StatefulSet,
        claim: &PersistentVolumeClaim,
        user: ClaimUser<'_>,
    ) -> Option<Vec<OwnerReference>> {
        let is_condemned = self.scaled == Reclaim::Delete && !user.is_wanted;
        let pod = user.pod.filter(|_| is_condemned);
        let with_set = self.deleted == Reclaim::Delete && !is_condemned;
        let before = &claim.metadata.owner_references;
        // References to earlier pods of the name go, too: they would delete the claim of this one.
        let stays = |owner: &&OwnerReference| match owner.uid == set.metadata.uid {
            true => with_set,
            false if refers_to_pod(owner, user.name) => {
                pod.is_some_and(|pod| pod.metadata.uid == owner.uid)
            }
            false => true,
        };
        let mut owners: Vec<OwnerReference> = before.iter().filter(stays).cloned().collect();
        let has = |owner: &ObjectMeta| before.iter().any(|other| other.uid == owner.uid);
        if with_set && !has(&set.metadata) {
            owners.push(reference(names, set));
        }
        if let Some(pod) = pod.filter(|pod| !has(&pod.metadata)) {
            owners.push(reference(names, pod));
        }
        (owners != *before).then_some(owners)
    }

    /// Whether a claim is about to be deleted after an earlier pod of this name, so that the next one has to wait.
    pub(super) fn is_stale(self, claim: &PersistentVolumeClaim, pod: &str) -> bool {
        let mut owners = claim.metadata.owner_references.iter();
        self.scaled == Reclaim::Delete && owners.any(|owner| refers_to_pod(owner, pod))
    }
}

fn refers_to_pod(owner: &OwnerReference, name: &str) -> bool {
    owner.kind == Pod::KIND && owner.name == name
}

fn reference<T: Resource>(names: &Names, owner: &T) -> OwnerReference {
    owned_by(names.api_version(T::GROUP, T::VERSION), T::KIND, owner.metadata())
}
