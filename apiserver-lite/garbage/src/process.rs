//! Processes one object: reads its owners and dependents, and executes the [`plan`].

use std::collections::{BTreeSet, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use proto_api::ObjectKey;
use proto_api::meta::v1::{ObjectMeta, OwnerReference, PartialObjectMetadata};

use super::index::{Index, Ownership, Stage};
use super::kinds::{Id, KindId, Kinds};
use super::plan::{DeletionPropagation, Dependent, GcAction, Item, Owner, may_own, plan};

/// When to process an object again after a conflict or with a stale cache.
const REQUEUE: Duration = Duration::from_millis(100);
/// Maximum number of deleted owners that are remembered.
const ABSENT_MAX: usize = 4096;

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
    /// Whether the server serves this kind.
    fn serves(&self, kind: KindId) -> bool;
}

/// Processes objects, each by one call at a time.
pub struct Processor<S, M> {
    pub server: S,
    pub caches: M,
    /// All kinds.
    pub kinds: Arc<Kinds>,
    /// The ownership graph.
    pub index: Arc<Mutex<Index>>,
    /// Deleted owners.
    pub absent: Mutex<DeletedOwners>,
}

/// Deleted owners: a uid is never used again.
#[derive(Debug, Default)]
pub struct DeletedOwners {
    known: BTreeSet<(Box<str>, Id)>,
    order: VecDeque<(Box<str>, Id)>,
}

impl DeletedOwners {
    fn has(&self, owner: &(Box<str>, Id)) -> bool {
        self.known.contains(owner)
    }

    fn insert(&mut self, owner: (Box<str>, Id)) {
        if self.known.insert(owner.clone()) {
            self.order.push_back(owner);
        }
        if self.order.len() > ABSENT_MAX
            && let Some(oldest) = self.order.pop_front()
        {
            self.known.remove(&oldest);
        }
    }
}

/// The follow-up of processing an object.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct NextSteps {
    /// Other objects to process.
    pub process: Vec<Id>,
    /// When to process the object again if no change queues it.
    pub requeue_after: Option<Duration>,
}

impl<S: ObjectClient, M: OwnershipCaches> Processor<S, M> {
    /// Processes an object.
    ///
    /// # Errors
    /// The first request that failed; earlier writes have taken effect.
    pub async fn process(&self, id: &Id) -> Result<NextSteps, S::Error> {
        let Some(shown) = self.caches.get(id) else { return Ok(NextSteps::default()) };
        if self.is_done(id, &shown) {
            return Ok(NextSteps::default());
        }
        // The cache may be older or newer than the queued change.
        let Some(live) = self.server.find(id).await? else { return Ok(NextSteps::default()) };
        let metadata = live.metadata.clone();
        let state = Ownership::of(live);
        let mut owners = Vec::new();
        if state.stage == Stage::Alive {
            for reference in &state.owners {
                owners.push(self.owner(id, reference).await?);
            }
        }
        let (dependents, read) = self.dependents(id, &state).await?;
        let item = Item { state: &state, finalizers: &metadata.finalizers };
        let mut seen = NextSteps::default();
        if read && !dependents.is_empty() {
            // The server has dependents that the caches do not show yet.
            seen.requeue_after = Some(REQUEUE);
        }
        for act in plan(&item, &owners, &dependents) {
            if self.act(id, &metadata, &dependents, act, &mut seen).await? == WriteOutcome::Conflict
            {
                seen.requeue_after = Some(REQUEUE);
                break;
            }
        }
        Ok(seen)
    }

    async fn act(
        &self,
        id: &Id,
        it: &ObjectMeta,
        dependents: &[Dependent],
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
            GcAction::Release(dependent) => {
                let state = dependents.iter().find(|other| other.id == dependent);
                let uid = state.map_or("", |dependent| &dependent.state.uid);
                let owner = std::slice::from_ref(&it.uid);
                // Another object with the same name is not a dependent.
                self.server.drop_owners(&dependent, uid, owner).await.map(|_| WriteOutcome::Applied)
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
            Stage::Going => true,
            Stage::Orphaning | Stage::Foreground => false,
            Stage::Alive => shown.owners.iter().all(|reference| {
                self.locate(id, reference)
                    .is_some_and(|owner| self.is_cached_solid(&owner, reference))
            }),
        }
    }

    /// The id of an owner: in the object's namespace, or cluster-scoped.
    fn locate(&self, id: &Id, reference: &OwnerReference) -> Option<Id> {
        let kind = self.kinds.find(&reference.api_version, &reference.kind)?;
        let namespaced = self.kinds.get(kind)?.namespaced;
        if namespaced && id.key.namespace.is_empty() {
            return None;
        }
        let namespace = if namespaced { id.key.namespace.as_str() } else { "" };
        Some(Id { kind, key: ObjectKey::new(namespace, &reference.name) })
    }

    fn is_cached_solid(&self, owner: &Id, reference: &OwnerReference) -> bool {
        let shown = self.caches.get(owner);
        shown.is_some_and(|shown| *shown.uid == *reference.uid && shown.stage != Stage::Foreground)
    }

    /// The state of an owner, from the caches. An owner that they lack is read from the server, because they may be stale.
    async fn owner(&self, id: &Id, reference: &OwnerReference) -> Result<Owner, S::Error> {
        let Some(owner) = self.locate(id, reference) else { return Ok(Owner::Unknown) };
        if !self.caches.serves(owner.kind) {
            return Ok(Owner::Unknown);
        }
        let named = (Box::from(reference.uid.as_str()), owner);
        if lock(&self.absent).has(&named) {
            return Ok(Owner::Absent);
        }
        if self.is_cached_solid(&named.1, reference) {
            return Ok(Owner::Solid);
        }
        let found = self.server.find(&named.1).await?;
        match found.filter(|found| found.metadata.uid == reference.uid) {
            None => {
                lock(&self.absent).insert(named);
                Ok(Owner::Absent)
            }
            Some(found) if Stage::of(&found.metadata) == Stage::Foreground => Ok(Owner::Waiting),
            Some(_) => Ok(Owner::Solid),
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
            Some(Dependent { id, state: (*state).clone() })
        });
        let shown: Vec<Dependent> = shown.collect();
        let done = match state.stage {
            Stage::Alive | Stage::Going => false,
            Stage::Orphaning => shown.is_empty(),
            Stage::Foreground => !shown.iter().any(|d| d.state.blocks(&state.uid)),
        };
        if !done {
            return Ok((shown, false));
        }
        let mut kinds: BTreeSet<KindId> = self.kinds.dependents_of(id.kind).into_iter().collect();
        kinds.extend(shown.iter().map(|dependent| dependent.id.kind));
        let mut found = Vec::new();
        for kind in kinds.into_iter().filter(|kind| self.caches.serves(*kind)) {
            for object in self.server.list(kind, &id.key.namespace).await? {
                let key = ObjectKey::of(&object.metadata);
                let state_of = Ownership::of(object);
                if may_own(&id.key, &key)
                    && state_of.owners.iter().any(|owner| *owner.uid == *state.uid)
                {
                    found.push(Dependent { id: Id { kind, key }, state: state_of });
                }
            }
        }
        Ok((found, true))
    }
}

pub(super) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
