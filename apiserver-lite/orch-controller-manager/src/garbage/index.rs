//! Who depends on whom, and what has to be looked at when that changes. Pure.

use std::collections::{BTreeMap, BTreeSet};

use proto_api::meta::v1::{ObjectMeta, OwnerReference, PartialObjectMetadata};

use super::kinds::Id;

/// Finalizer of an object whose dependents are to be kept.
pub const ORPHAN: &str = "orphan";
/// Finalizer of an object whose dependents are to be deleted first.
pub const FOREGROUND: &str = "foregroundDeletion";

/// How far an object is on its way out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stage {
    /// It is not being deleted.
    Alive,
    /// It is, and waits for nothing that the collector does.
    Going,
    /// It waits until its dependents are let alone.
    Orphaning,
    /// It waits until its dependents are gone.
    Foreground,
}

impl Stage {
    /// Of an object with this metadata.
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

/// What is kept of every object.
#[derive(Clone, Debug, PartialEq)]
pub struct Slim {
    /// Its uid.
    pub uid: Box<str>,
    /// Its owners; of most objects there are none.
    pub owners: Box<[OwnerReference]>,
    /// How far it is.
    pub stage: Stage,
}

impl Slim {
    /// Of an object as it is sent.
    pub fn of(object: PartialObjectMetadata) -> Self {
        let metadata = object.metadata;
        let stage = Stage::of(&metadata);
        let (uid, owners) = (metadata.uid.into(), metadata.owner_references.into());
        Self { uid, owners, stage }
    }

    /// Whether the owner of this uid waits for the object before it goes.
    pub fn blocks(&self, owner: &str) -> bool {
        self.owners.iter().any(|o| o.uid == owner && o.block_owner_deletion == Some(true))
    }
}

/// Dependents by owner, and the owners that wait for the collector. Only objects that have owners, or wait, are in it.
#[derive(Debug, Default)]
pub struct Index {
    /// By uid of the owner.
    dependents: BTreeMap<Box<str>, BTreeSet<Id>>,
    /// By uid.
    waiting: BTreeMap<Box<str>, Id>,
}

impl Index {
    /// Takes a change in and says what has to be looked at.
    pub fn apply(&mut self, id: &Id, old: Option<&Slim>, new: Option<&Slim>) -> BTreeSet<Id> {
        let mut look = BTreeSet::new();
        match (old, new) {
            (Some(old), Some(new)) if old.uid == new.uid => self.change(id, old, new, &mut look),
            _ => {
                // Under the same name there may be another object.
                old.into_iter().for_each(|old| self.remove(id, old, &mut look));
                new.into_iter().for_each(|new| self.add(id, new, &mut look));
            }
        }
        look
    }

    /// The objects that name this uid as an owner.
    pub fn dependents(&self, uid: &str) -> Vec<Id> {
        self.dependents.get(uid).into_iter().flatten().cloned().collect()
    }

    fn add(&mut self, id: &Id, new: &Slim, look: &mut BTreeSet<Id>) {
        for owner in &new.owners {
            self.dependents.entry(owner.uid.as_str().into()).or_default().insert(id.clone());
            look.extend(self.waiting.get(owner.uid.as_str()).cloned());
            look.insert(id.clone());
        }
        self.note_stage(id, new, look);
    }

    fn remove(&mut self, id: &Id, old: &Slim, look: &mut BTreeSet<Id>) {
        self.waiting.remove(&old.uid);
        for owner in &old.owners {
            self.forget_dependent(&owner.uid, id);
            look.extend(self.waiting.get(owner.uid.as_str()).cloned());
        }
        look.extend(self.dependents(&old.uid));
    }

    fn change(&mut self, id: &Id, old: &Slim, new: &Slim, look: &mut BTreeSet<Id>) {
        if old.owners != new.owners {
            for owner in &old.owners {
                self.forget_dependent(&owner.uid, id);
            }
            // An owner that is left, or is no longer held up, may be able to go.
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

    fn note_stage(&mut self, id: &Id, new: &Slim, look: &mut BTreeSet<Id>) {
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
