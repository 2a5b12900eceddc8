//! Processes one object: reads its owners and dependents, and executes the [`plan`].

mod invalid_owners;
mod owners;

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use proto_api::ObjectKey;
use proto_api::event_report::EventReport;
use proto_api::meta::v1::{ObjectMeta, OwnerReference, PartialObjectMetadata};

use super::index::{DeletionStage, Index, Ownership};
use super::kinds::{Id, KindId, Kinds};
use super::plan::{DeletionPropagation, Dependent, GcAction, Item, may_own, plan};

#[cfg(test)]
pub use owners::UNFINISHED_MAX;
pub use owners::{DeletedOwners, READS_MAX, UnfinishedObjects};
use owners::{OwnerStates, same_owners};

/// When to process an object again after a conflict or with a stale cache.
pub(super) const REQUEUE: Duration = Duration::from_millis(100);

/// The requests to the API server. Reads are live; writes report conflicts.
pub trait ObjectClient {
    /// Why a request failed.
    type Error;

    /// Reads an object.
    async fn find(&self, id: &Id) -> Result<Option<PartialObjectMetadata>, Self::Error>;
    /// Lists a kind in a namespace.
    async fn list(
        &self,
        kind: KindId,
        namespace: &str,
    ) -> Result<Vec<PartialObjectMetadata>, Self::Error>;
    /// Deletes the object if it has this uid and version.
    async fn delete(
        &self,
        id: &Id,
        it: &ObjectMeta,
        policy: DeletionPropagation,
    ) -> Result<WriteOutcome, Self::Error>;
    /// Sets the finalizers if the object has this uid and version.
    async fn set_finalizers(
        &self,
        id: &Id,
        it: &ObjectMeta,
        finalizers: &[String],
    ) -> Result<WriteOutcome, Self::Error>;
    /// Removes owners from the object with this uid.
    async fn drop_owners(
        &self,
        id: &Id,
        uid: &str,
        owners: &[String],
    ) -> Result<WriteOutcome, Self::Error>;
    /// Clears `blockOwnerDeletion` of the object with this uid.
    async fn unblock(
        &self,
        id: &Id,
        uid: &str,
        owners: &[OwnerReference],
    ) -> Result<WriteOutcome, Self::Error>;
}

/// The result of a write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WriteOutcome {
    /// It took effect, or the object is deleted.
    Applied,
    /// The object has another uid or version.
    Conflict,
}

/// Read access to the ownership of all cached objects.
pub trait OwnershipCaches {
    /// A cached object.
    fn get(&self, id: &Id) -> Option<Arc<Ownership>>;
    /// The names of all cached objects of a kind.
    fn names(&self, kind: KindId) -> Vec<String>;
    /// Whether the server serves this kind.
    fn serves(&self, kind: KindId) -> bool;
    /// Whether objects of some kind are being listed for the first time, so that dependents may be missing. Ends within a bounded time, although a
    /// server may not answer.
    fn are_incomplete(&self) -> bool;
}

/// Processes objects, each by one call at a time and, if it has many owners, in several turns.
pub struct Processor<S, M> {
    pub server: S,
    pub caches: M,
    /// All kinds.
    pub kinds: Arc<Kinds>,
    /// The ownership graph.
    pub index: Arc<Mutex<Index>>,
    /// Deleted owners.
    pub absent: Mutex<DeletedOwners>,
    /// Objects whose owners take several turns.
    pub unfinished: Mutex<UnfinishedObjects>,
    /// Most live reads of owners in one turn of an object.
    pub reads_max: usize,
}

/// The follow-up of processing an object.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct NextSteps {
    /// Other objects to process.
    pub process: Vec<Id>,
    /// The event of an owner reference that cannot be.
    pub report: Option<EventReport>,
    /// When to process the object again if no change queues it.
    pub requeue_after: Option<Duration>,
    /// Whether a write found another version of its object.
    pub has_lost_race: bool,
}

impl<S: ObjectClient, M: OwnershipCaches> Processor<S, M> {
    /// Processes an object, or has a turn of it.
    ///
    /// # Errors
    /// The first request that failed; earlier writes have taken effect.
    pub async fn process(&self, id: &Id) -> Result<NextSteps, S::Error> {
        let shown = self.caches.get(id).filter(|shown| !self.is_done(id, shown));
        let Some(shown) = shown else {
            lock(&self.unfinished).remove(id);
            return Ok(NextSteps::default());
        };
        let is_waiting =
            matches!(shown.stage, DeletionStage::Orphaning | DeletionStage::Foreground);
        if is_waiting && self.caches.are_incomplete() {
            // A dependent that is not known yet would be deleted after its owner, or outlive it.
            return Ok(NextSteps { requeue_after: Some(REQUEUE), ..NextSteps::default() });
        }
        // The owners first: an object with many is long to read.
        let (references, owners) = match shown.stage {
            DeletionStage::Alive => match self.read_owners(id, &shown).await? {
                OwnerStates::Complete(owners) => (&shown.owners[..], owners),
                OwnerStates::NextTurn(delay) => {
                    return Ok(NextSteps { requeue_after: Some(delay), ..NextSteps::default() });
                }
            },
            DeletionStage::Going | DeletionStage::Orphaning | DeletionStage::Foreground => {
                (&[][..], Vec::new())
            }
        };
        lock(&self.unfinished).remove(id);
        // The cache may be older or newer than the queued change.
        let Some(live) = self.server.find(id).await? else { return Ok(NextSteps::default()) };
        let metadata = live.metadata.clone();
        let state = Ownership::from_object(live);
        let mut seen = NextSteps::default();
        if state.stage == DeletionStage::Alive && !same_owners(references, &state.owners) {
            // The caches do not show these owners yet.
            seen.requeue_after = Some(REQUEUE);
            return Ok(seen);
        }
        let (dependents, read) = self.dependents(id, &state).await?;
        let item = Item { state: &state, finalizers: &metadata.finalizers };
        if read && !dependents.is_empty() {
            // The server has dependents that the caches do not show yet.
            seen.requeue_after = Some(REQUEUE);
        }
        seen.report = self.report_invalid_owner(id, &state, &owners);
        for act in plan(&item, &owners, &dependents) {
            if self.act(id, &metadata, act, &mut seen).await? == WriteOutcome::Conflict {
                (seen.requeue_after, seen.has_lost_race) = (Some(REQUEUE), true);
                break;
            }
        }
        Ok(seen)
    }

    async fn act(
        &self,
        id: &Id,
        it: &ObjectMeta,
        act: GcAction,
        seen: &mut NextSteps,
    ) -> Result<WriteOutcome, S::Error> {
        match act {
            GcAction::Delete(policy) => self.server.delete(id, it, policy).await,
            GcAction::DropOwners(owners) => self.server.drop_owners(id, &it.uid, &owners).await,
            GcAction::Unblock => {
                let done = self.server.unblock(id, &it.uid, &it.owner_references).await?;
                // A following deletion would conflict: the version has changed.
                Ok(if done == WriteOutcome::Applied { WriteOutcome::Conflict } else { done })
            }
            GcAction::Release(dependent, uid) => {
                let owner = std::slice::from_ref(&it.uid);
                // Another object with the same name is not a dependent.
                let done = self.server.drop_owners(&dependent, &uid, owner).await;
                done.map(|_| WriteOutcome::Applied)
            }
            GcAction::Finish(finalizer) => {
                let mut finalizers = it.finalizers.clone();
                finalizers.retain(|other| other != finalizer);
                self.server.set_finalizers(id, it, &finalizers).await
            }
            GcAction::Process(other) => {
                seen.process.push(other);
                Ok(WriteOutcome::Applied)
            }
        }
    }

    /// Whether the caches show that there is nothing to do, as for most new objects.
    fn is_done(&self, id: &Id, shown: &Ownership) -> bool {
        match shown.stage {
            DeletionStage::Going => true,
            DeletionStage::Orphaning | DeletionStage::Foreground => false,
            DeletionStage::Alive => self.has_solid_owners(id, shown),
        }
    }

    /// The dependents of the object, and whether the server was read. It is read before a waiting object is deleted, because the caches may not show
    /// its latest dependents.
    async fn dependents(
        &self,
        id: &Id,
        state: &Ownership,
    ) -> Result<(Vec<Dependent>, bool), S::Error> {
        let ids = lock(&self.index).dependents(&state.uid);
        let own = ids.into_iter().filter(|other| may_own(&id.key, &other.key));
        let shown = own.filter_map(|id| {
            let state = self.caches.get(&id)?;
            Some(Dependent { id, state })
        });
        let shown: Vec<Dependent> = shown.collect();
        let done = match state.stage {
            DeletionStage::Alive | DeletionStage::Going => false,
            DeletionStage::Orphaning => shown.is_empty(),
            DeletionStage::Foreground => !shown.iter().any(|d| d.state.blocks(&state.uid)),
        };
        if !done {
            return Ok((shown, false));
        }
        let mut kinds: BTreeSet<KindId> = self.kinds.dependents_of(id.kind).into_iter().collect();
        kinds.extend(shown.iter().map(|dependent| dependent.id.kind));
        // Other servers may be away, and what does not hold up a deletion need not be known exactly.
        let is_elsewhere =
            |kind: KindId| self.kinds.get(kind).is_some_and(|it| it.is_of_other_server());
        let (elsewhere, _): (Vec<Dependent>, Vec<Dependent>) =
            shown.into_iter().partition(|dependent| is_elsewhere(dependent.id.kind));
        let mut found = elsewhere;
        let listed =
            kinds.into_iter().filter(|kind| self.caches.serves(*kind) && !is_elsewhere(*kind));
        for kind in listed {
            for object in self.server.list(kind, &id.key.namespace).await? {
                let key = ObjectKey::from_metadata(&object.metadata);
                let state_of = Ownership::from_object(object);
                if may_own(&id.key, &key)
                    && state_of.owners.iter().any(|owner| *owner.uid == *state.uid)
                {
                    found.push(Dependent { id: Id { kind, key }, state: Arc::new(state_of) });
                }
            }
        }
        Ok((found, true))
    }
}

pub(super) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
