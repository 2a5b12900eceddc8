//! The ownership graph, and the objects to process when it changes. Pure.

use std::collections::{BTreeMap, BTreeSet};

use proto_api::meta::v1::{ObjectMeta, OwnerReference, PartialObjectMetadata};

use super::kinds::Id;

/// Finalizer of an object whose dependents are to be orphaned.
pub const ORPHAN: &str = "orphan";
/// Finalizer of an object whose dependents are to be deleted first.
pub const FOREGROUND: &str = "foregroundDeletion";

/// The deletion stage of an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stage {
    /// It is not terminating.
    Alive,
    /// It is terminating, without a finalizer of the collector.
    Going,
    /// It waits until its dependents are orphaned.
    Orphaning,
    /// It waits until its dependents are deleted.
    Foreground,
}

impl Stage {
    /// The stage of an object with this metadata.
    pub fn of(metadata: &ObjectMeta) -> Self {
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
    pub stage: Stage,
}

impl Ownership {
    /// Reads an object's metadata.
    pub fn of(object: PartialObjectMetadata) -> Self {
        let metadata = object.metadata;
        let stage = Stage::of(&metadata);
        let (uid, owners) = (metadata.uid.into(), metadata.owner_references.into());
        Self { uid, owners, stage }
    }

    /// Whether the object blocks the deletion of the owner with this uid.
    pub fn blocks(&self, owner: &str) -> bool {
        self.owners.iter().any(|o| o.uid == owner && o.block_owner_deletion == Some(true))
    }
}

/// Dependents by owner, and the owners that wait for the collector. Objects without owners that do not wait are not in it.
#[derive(Debug, Default)]
pub struct Index {
    /// Dependents by the owner's uid.
    dependents: BTreeMap<Box<str>, BTreeSet<Id>>,
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
        self.dependents.get(uid).into_iter().flatten().cloned().collect()
    }

    fn add(&mut self, id: &Id, new: &Ownership, look: &mut BTreeSet<Id>) {
        for owner in &new.owners {
            self.dependents.entry(owner.uid.as_str().into()).or_default().insert(id.clone());
            look.extend(self.waiting.get(owner.uid.as_str()).cloned());
            look.insert(id.clone());
        }
        self.note_stage(id, new, look);
    }

    fn remove(&mut self, id: &Id, old: &Ownership, look: &mut BTreeSet<Id>) {
        self.waiting.remove(&old.uid);
        for owner in &old.owners {
            self.forget_dependent(&owner.uid, id);
            look.extend(self.waiting.get(owner.uid.as_str()).cloned());
        }
        look.extend(self.dependents(&old.uid));
    }

    fn change(&mut self, id: &Id, old: &Ownership, new: &Ownership, look: &mut BTreeSet<Id>) {
        if old.owners != new.owners {
            for owner in &old.owners {
                self.forget_dependent(&owner.uid, id);
            }
            // An owner that lost a dependent, or is no longer blocked, may be deletable.
            for owner in old.owners.iter().chain(&new.owners) {
                look.extend(self.waiting.get(owner.uid.as_str()).cloned());
            }
            for owner in &new.owners {
                self.dependents.entry(owner.uid.as_str().into()).or_default().insert(id.clone());
                look.insert(id.clone());
            }
        }
        if old.stage != new.stage {
            self.waiting.remove(&new.uid);
            self.note_stage(id, new, look);
        }
    }

    fn note_stage(&mut self, id: &Id, new: &Ownership, look: &mut BTreeSet<Id>) {
        if matches!(new.stage, Stage::Orphaning | Stage::Foreground) {
            self.waiting.insert(new.uid.clone(), id.clone());
            look.insert(id.clone());
        }
        if new.stage == Stage::Foreground {
            look.extend(self.dependents(&new.uid));
        }
    }

    fn forget_dependent(&mut self, owner: &str, id: &Id) {
        if let Some(ids) = self.dependents.get_mut(owner) {
            ids.remove(id);
            if ids.is_empty() {
                self.dependents.remove(owner);
            }
        }
    }
}
