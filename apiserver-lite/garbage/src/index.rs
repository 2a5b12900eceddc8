//! The ownership graph, and the objects to process when it changes. Pure.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use proto_api::meta::v1::{ObjectMeta, OwnerReference, PartialObjectMetadata};

use super::kinds::{CollectedKind, Id};

/// Finalizer of an object whose dependents are to be orphaned.
pub const ORPHAN: &str = "orphan";
/// Finalizer of an object whose dependents are to be deleted first.
pub const FOREGROUND: &str = "foregroundDeletion";

/// The deletion stage of an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DeletionStage {
    /// It is not terminating.
    Alive,
    /// It is terminating, without a finalizer of the collector.
    Going,
    /// It waits until its dependents are orphaned.
    Orphaning,
    /// It waits until its dependents are deleted.
    Foreground,
}

impl DeletionStage {
    /// The stage of an object with this metadata.
    pub fn from_metadata(metadata: &ObjectMeta) -> Self {
        let has = |wanted: &str| metadata.finalizers.iter().any(|finalizer| finalizer == wanted);
        if metadata.deletion_timestamp.is_none() {
            Self::Alive
        } else if has(FOREGROUND) {
            Self::Foreground
        } else if has(ORPHAN) {
            Self::Orphaning
        } else {
            Self::Going
        }
    }
}

/// The ownership of an object.
#[derive(Clone, Debug, PartialEq)]
pub struct Ownership {
    pub uid: Box<str>,
    /// The owners; most objects have none.
    pub owners: Box<[OwnerReference]>,
    /// The deletion stage.
    pub stage: DeletionStage,
}

impl Ownership {
    /// Reads an object's metadata.
    pub fn from_object(object: PartialObjectMetadata) -> Self {
        let metadata = object.metadata;
        let stage = DeletionStage::from_metadata(&metadata);
        let (uid, owners) = (metadata.uid.into(), metadata.owner_references.into());
        Self { uid, owners, stage }
    }

    /// Whether one of its owners is of this kind.
    pub fn names_owner(&self, kind: &CollectedKind) -> bool {
        self.owners.iter().any(|owner| kind.is_named_by(&owner.api_version, &owner.kind))
    }

    /// Whether the object blocks the deletion of the owner with this uid.
    pub fn blocks(&self, owner: &str) -> bool {
        self.owners.iter().any(|o| o.uid == owner && o.block_owner_deletion == Some(true))
    }
}

/// Dependents by owner, and the owners that wait for the collector. Objects without owners that do not wait are not in it.
#[derive(Debug, Default)]
pub struct Index {
    /// Owner's uid and dependent, in one set: an object may have tens of thousands of owners, and one set for each would take more memory than the object.
    dependents: BTreeSet<(Box<str>, Option<Arc<Id>>)>,
    /// Waiting owners by uid.
    waiting: BTreeMap<Box<str>, Id>,
}

impl Index {
    /// Applies a change. Returns the objects to process.
    pub fn apply(
        &mut self,
        id: &Id,
        old: Option<&Ownership>,
        new: Option<&Ownership>,
    ) -> BTreeSet<Id> {
        let mut look = BTreeSet::new();
        match (old, new) {
            (Some(old), Some(new)) if old.uid == new.uid => self.change(id, old, new, &mut look),
            _ => {
                // Another object may have the same name.
                old.into_iter().for_each(|old| self.remove(id, old, &mut look));
                new.into_iter().for_each(|new| self.add(id, new, &mut look));
            }
        }
        look
    }

    /// The dependents of the owner with this uid.
    pub fn dependents(&self, uid: &str) -> Vec<Id> {
        // Before all dependents of this owner.
        let start = (Box::from(uid), None);
        let own = self.dependents.range(start..).take_while(|(owner, _)| **owner == *uid);
        own.filter_map(|(_, id)| id.as_deref().cloned()).collect()
    }

    fn add(&mut self, id: &Id, new: &Ownership, look: &mut BTreeSet<Id>) {
        self.insert_dependent(id, &new.owners);
        for owner in &new.owners {
            look.extend(self.waiting.get(owner.uid.as_str()).cloned());
            look.insert(id.clone());
        }
        self.note_stage(id, new, look);
    }

    fn remove(&mut self, id: &Id, old: &Ownership, look: &mut BTreeSet<Id>) {
        self.waiting.remove(&old.uid);
        self.forget_dependent(id, &old.owners);
        for owner in &old.owners {
            look.extend(self.waiting.get(owner.uid.as_str()).cloned());
        }
        look.extend(self.dependents(&old.uid));
    }

    fn change(&mut self, id: &Id, old: &Ownership, new: &Ownership, look: &mut BTreeSet<Id>) {
        if old.owners != new.owners {
            self.forget_dependent(id, &old.owners);
            self.insert_dependent(id, &new.owners);
            // An owner that lost a dependent, or is no longer blocked, may be deletable.
            for owner in old.owners.iter().chain(&new.owners) {
                look.extend(self.waiting.get(owner.uid.as_str()).cloned());
            }
            if !new.owners.is_empty() {
                look.insert(id.clone());
            }
        }
        if old.stage != new.stage {
            self.waiting.remove(&new.uid);
            self.note_stage(id, new, look);
        }
    }

    fn note_stage(&mut self, id: &Id, new: &Ownership, look: &mut BTreeSet<Id>) {
        if matches!(new.stage, DeletionStage::Orphaning | DeletionStage::Foreground) {
            self.waiting.insert(new.uid.clone(), id.clone());
            look.insert(id.clone());
        }
        if new.stage == DeletionStage::Foreground {
            look.extend(self.dependents(&new.uid));
        }
    }

    fn insert_dependent(&mut self, id: &Id, owners: &[OwnerReference]) {
        if owners.is_empty() {
            return;
        }
        let id = Some(Arc::new(id.clone()));
        let pairs = owners.iter().map(|owner| (Box::from(owner.uid.as_str()), id.clone()));
        self.dependents.extend(pairs);
    }

    fn forget_dependent(&mut self, id: &Id, owners: &[OwnerReference]) {
        if owners.is_empty() {
            return;
        }
        let id = Some(Arc::new(id.clone()));
        for owner in owners {
            self.dependents.remove(&(Box::from(owner.uid.as_str()), id.clone()));
        }
    }
}

#[cfg(test)]
mod tests {
    use proto_api::ObjectKey;
    use proto_api::names::{Names, Profile};

    use super::*;
    use crate::kinds::Kinds;

    fn owned(uid: &str, owners: impl Iterator<Item = String>) -> Ownership {
        let reference = |uid| OwnerReference { uid, ..OwnerReference::default() };
        Ownership {
            uid: uid.into(),
            owners: owners.map(reference).collect(),
            stage: DeletionStage::Alive,
        }
    }

    #[test]
    fn an_owner_takes_one_entry_for_each_dependent() {
        let kind = Kinds::new(Names::new(Profile::Kubernetes)).find("v1", "ConfigMap").unwrap();
        let id = |name: &str| Id { kind, key: ObjectKey::new("ns", name) };
        let (many, one) = (id("many"), id("one"));
        let owners = |count: usize| (0..count).map(|nth| format!("u{nth}"));
        let mut index = Index::default();
        assert_eq!(index.apply(&many, None, Some(&owned("m", owners(20_000)))).len(), 1);
        index.apply(&one, None, Some(&owned("o", ["u1".to_owned()].into_iter())));
        assert_eq!(index.dependents.len(), 20_001);
        assert!(size_of::<(Box<str>, Option<Arc<Id>>)>() <= 24, "no set, no name of its own");
        assert_eq!(index.dependents("u1"), [many.clone(), one.clone()]);
        assert_eq!(index.dependents("u10"), std::slice::from_ref(&many));
        assert_eq!((index.dependents("u"), index.dependents("u20000")), (vec![], vec![]));
        let (old, new) = (owned("m", owners(20_000)), owned("m", owners(2)));
        index.apply(&many, Some(&old), Some(&new));
        assert_eq!((index.dependents.len(), index.dependents("u10")), (3, vec![]));
        index.apply(&many, Some(&new), None);
        index.apply(&one, Some(&owned("o", ["u1".to_owned()].into_iter())), None);
        assert!(index.dependents.is_empty());
    }
}
