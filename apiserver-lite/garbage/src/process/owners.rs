//! The owners of one object: what the caches and its earlier turns say of them, and live reads of the others. An object may have tens of thousands of owners
//! that do not exist, each of which has to be asked for: a turn reads a bounded number, then other objects have theirs.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use proto_api::ObjectKey;
use proto_api::meta::v1::OwnerReference;

use super::{ObjectClient, OwnershipCaches, Processor, REQUEUE, lock};
use crate::index::{DeletionStage, Ownership};
use crate::kinds::Id;
use crate::plan::OwnerState;

/// Most live reads of owners in one turn of an object.
pub const READS_MAX: usize = 100;
/// Most objects whose owners are remembered between turns; others with more than [`READS_MAX`] unread owners wait.
pub const UNFINISHED_MAX: usize = 16;
/// Maximum number of deleted owners that are remembered for all objects.
const ABSENT_MAX: usize = 4096;
/// After which time an object that waits for others is looked at again.
const WAIT: Duration = Duration::from_secs(1);

/// Deleted owners: a uid is never used again.
#[derive(Debug, Default)]
pub struct DeletedOwners {
    /// Each with whether another namespace has it.
    known: BTreeMap<(Box<str>, Id), bool>,
    order: VecDeque<(Box<str>, Id)>,
}

impl DeletedOwners {
    fn has(&self, owner: &(Box<str>, Id)) -> bool {
        self.known.contains_key(owner)
    }

    /// Whether the owner with this uid is not deleted but in another namespace than it was looked for.
    pub fn is_elsewhere(&self, uid: &str, owner: &Id) -> bool {
        self.known.get(&(Box::from(uid), owner.clone())).copied().unwrap_or(false)
    }

    fn insert(&mut self, owner: (Box<str>, Id), is_elsewhere: bool) {
        if self.known.insert(owner.clone(), is_elsewhere).is_none() {
            self.order.push_back(owner);
        }
        if self.order.len() > ABSENT_MAX
            && let Some(oldest) = self.order.pop_front()
        {
            self.known.remove(&oldest);
        }
    }
}

/// What earlier turns have read of an owner. That it exists is not remembered, because it may have been deleted since.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Known {
    #[default]
    Nothing,
    /// It is deleted.
    Absent,
    /// It waited for its dependents; it does as long as its cache says so.
    Waiting,
}

/// Objects with more unread owners than one turn reads, with what is known of each owner in the order of the references.
#[derive(Debug, Default)]
pub struct UnfinishedObjects(BTreeMap<Id, (Arc<Ownership>, Vec<Known>)>);

impl UnfinishedObjects {
    /// What is known of each owner. `None` if others have taken their place since: the object's place is free again, for those that wait.
    fn known_owners(&mut self, id: &Id, of: &Arc<Ownership>) -> Option<Vec<Known>> {
        let Some((known_of, known)) = self.0.get(id) else {
            return Some(vec![Known::Nothing; of.owners.len()]);
        };
        if Arc::ptr_eq(known_of, of) || same_owners(&known_of.owners, &of.owners) {
            return Some(known.clone());
        }
        self.0.remove(id);
        None
    }

    /// Whether there is room for what is known of the object.
    fn has_room(&self, id: &Id) -> bool {
        self.0.len() < UNFINISHED_MAX || self.0.contains_key(id)
    }

    fn insert(&mut self, id: &Id, of: &Arc<Ownership>, known: Vec<Known>) {
        if self.has_room(id) {
            self.0.insert(id.clone(), (of.clone(), known));
        }
    }

    /// Forgets an object: all its owners have been read, or it need not be processed any more.
    pub fn remove(&mut self, id: &Id) {
        self.0.remove(id);
    }

    #[cfg(test)]
    pub fn len(&self) -> usize {
        self.0.len()
    }
}

/// Whether two objects have the same owners, whatever else their references say.
pub fn same_owners(some: &[OwnerReference], others: &[OwnerReference]) -> bool {
    fn named(it: &OwnerReference) -> [&String; 4] {
        [&it.api_version, &it.kind, &it.name, &it.uid]
    }
    let is_same = |(one, other)| named(one) == named(other);
    some.len() == others.len() && some.iter().zip(others).all(is_same)
}

/// The owners of an object after a turn.
pub enum OwnerStates {
    /// In the order of the references.
    Complete(Vec<OwnerState>),
    /// The object's next turn is due after this time.
    NextTurn(Duration),
}

/// Uid and stage of objects that a turn has read; none if there is no such object.
type Read = BTreeMap<Id, Option<(String, DeletionStage)>>;

/// What a turn is to read.
struct Unread {
    owners: BTreeSet<Id>,
    /// Of how many references the states are known with it.
    references: usize,
}

impl<S: ObjectClient, M: OwnershipCaches> Processor<S, M> {
    /// Reads what is not known yet of the owners of an object as the caches show it.
    pub(super) async fn read_owners(
        &self,
        id: &Id,
        of: &Arc<Ownership>,
    ) -> Result<OwnerStates, S::Error> {
        let known = lock(&self.unfinished).known_owners(id, of);
        let Some(mut known) = known else { return Ok(OwnerStates::NextTurn(WAIT)) };
        let unread = self.unread(id, of, &known);
        let is_last = unread.references == of.owners.len();
        if !is_last && !lock(&self.unfinished).has_room(id) {
            return Ok(OwnerStates::NextTurn(WAIT));
        }
        let mut read = Read::new();
        for owner in unread.owners {
            let found = self.server.find(&owner).await;
            // One that cannot be read, for ever perhaps, keeps no place from others.
            let found = found.inspect_err(|_| lock(&self.unfinished).remove(id))?;
            if found.is_none() && self.kinds.get(owner.kind).is_none() {
                // The kind was removed meanwhile, which says nothing of the object.
                lock(&self.unfinished).remove(id);
                return Ok(OwnerStates::NextTurn(WAIT));
            }
            let found =
                found.map(|it| (DeletionStage::from_metadata(&it.metadata), it.metadata.uid));
            read.insert(owner, found.map(|(stage, uid)| (uid, stage)));
        }
        let references = of.owners.iter().zip(&known).take(unread.references);
        let states = references.map(|(reference, known)| {
            let owner = match self.known_state(id, reference, *known) {
                Ok(state) => return Some(state),
                Err(owner) => owner,
            };
            // A cache may have lost it since.
            let state = state_of(read.get(&owner)?.as_ref(), reference);
            if is_last && state == OwnerState::Absent {
                let is_elsewhere = self.is_elsewhere(id, owner.kind, reference);
                let named = (reference.uid.as_str().into(), owner);
                lock(&self.absent).insert(named, is_elsewhere);
            }
            Some(state)
        });
        let states: Vec<Option<OwnerState>> = states.collect();
        if is_last && let Some(states) = states.iter().copied().collect() {
            return Ok(OwnerStates::Complete(states));
        }
        for (known, state) in known.iter_mut().zip(states) {
            *known = match state {
                Some(OwnerState::Absent) => Known::Absent,
                Some(OwnerState::Waiting) => Known::Waiting,
                Some(OwnerState::Solid | OwnerState::Unknown) | None => Known::Nothing,
            };
        }
        lock(&self.unfinished).insert(id, of, known);
        Ok(OwnerStates::NextTurn(REQUEUE))
    }

    /// The first owners of which nothing is known, as many as a turn reads. Many references may be to one object.
    fn unread(&self, id: &Id, of: &Ownership, known: &[Known]) -> Unread {
        let mut owners = BTreeSet::new();
        for (at, (reference, known)) in of.owners.iter().zip(known).enumerate() {
            let Err(owner) = self.known_state(id, reference, *known) else { continue };
            if owners.len() >= self.reads_max && !owners.contains(&owner) {
                return Unread { owners, references: at };
            }
            owners.insert(owner);
        }
        Unread { owners, references: of.owners.len() }
    }
}

impl<S, M: OwnershipCaches> Processor<S, M> {
    /// The state of an owner without a read, or which object to read. One that the caches lack is read from the server, because they may be stale.
    fn known_state(
        &self,
        id: &Id,
        reference: &OwnerReference,
        known: Known,
    ) -> Result<OwnerState, Id> {
        if known == Known::Absent {
            return Ok(OwnerState::Absent);
        }
        let Some(owner) = self.locate(id, reference) else { return Ok(OwnerState::Unknown) };
        if !self.caches.serves(owner.kind) {
            return Ok(OwnerState::Unknown);
        }
        let shown = self.caches.get(&owner).filter(|shown| *shown.uid == *reference.uid);
        match shown.map(|shown| shown.stage) {
            Some(DeletionStage::Foreground) if known == Known::Waiting => {
                return Ok(OwnerState::Waiting);
            }
            Some(DeletionStage::Foreground) | None => {}
            Some(DeletionStage::Alive | DeletionStage::Going | DeletionStage::Orphaning) => {
                return Ok(OwnerState::Solid);
            }
        }
        let named = (Box::from(reference.uid.as_str()), owner);
        match lock(&self.absent).has(&named) {
            true => Ok(OwnerState::Absent),
            false => Err(named.1),
        }
    }

    /// Whether the caches show all owners, and that none of them goes.
    pub(super) fn has_solid_owners(&self, id: &Id, of: &Ownership) -> bool {
        of.owners.iter().all(|reference| {
            let owner = self.locate(id, reference).and_then(|owner| self.caches.get(&owner));
            owner.is_some_and(|it| {
                *it.uid == *reference.uid && it.stage != DeletionStage::Foreground
            })
        })
    }

    /// The id of an owner: in the object's namespace, or cluster-scoped.
    pub(super) fn locate(&self, id: &Id, reference: &OwnerReference) -> Option<Id> {
        let kind = self.kinds.find(&reference.api_version, &reference.kind)?;
        let namespaced = self.kinds.get(kind)?.namespaced;
        if namespaced && id.key.namespace.is_empty() {
            return None;
        }
        let namespace = if namespaced { id.key.namespace.as_str() } else { "" };
        Some(Id { kind, key: ObjectKey::new(namespace, &reference.name) })
    }
}

fn state_of(found: Option<&(String, DeletionStage)>, reference: &OwnerReference) -> OwnerState {
    match found.filter(|(uid, _)| *uid == reference.uid) {
        None => OwnerState::Absent,
        Some((_, DeletionStage::Foreground)) => OwnerState::Waiting,
        Some(_) => OwnerState::Solid,
    }
}
