//! Processes one object: gathers its owners and dependents, [`plan`] decides, and the writes are made.

use std::collections::{BTreeSet, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use proto_api::meta::v1::{ObjectMeta, OwnerReference, PartialObjectMetadata};
use proto_client::ObjectKey;

use super::index::{Index, Slim, Stage};
use super::kinds::{Id, KindId, Kinds};
use super::plan::{Act, Dependent, Item, Owner, Policy, plan};

/// When to look again at what others were faster to change, or what the maps do not show yet.
const CATCH_UP: Duration = Duration::from_millis(100);
/// Owners that are remembered to be gone.
const ABSENT_MAX: usize = 4096;

/// What is asked of the API server. Reads are of what it has now; writes say whether they took effect.
pub trait Server {
    /// Why a request has no answer.
    type Error;

    /// The object, if it is there.
    async fn find(&self, id: &Id) -> Result<Option<PartialObjectMetadata>, Self::Error>;
    /// All objects of a kind in a namespace.
    async fn list(
        &self,
        kind: KindId,
        namespace: &str,
    ) -> Result<Vec<PartialObjectMetadata>, Self::Error>;
    /// Deletes the object, if it has this uid and version.
    async fn delete(
        &self,
        id: &Id,
        it: &ObjectMeta,
        policy: Policy,
    ) -> Result<WriteResult, Self::Error>;
    /// Sets the finalizers, if the object has this uid and version.
    async fn set_finalizers(
        &self,
        id: &Id,
        it: &ObjectMeta,
        finalizers: &[String],
    ) -> Result<WriteResult, Self::Error>;
    /// Takes owners off the object with this uid.
    async fn drop_owners(
        &self,
        id: &Id,
        uid: &str,
        owners: &[String],
    ) -> Result<WriteResult, Self::Error>;
    /// Lets the owners of the object with this uid go without waiting for it.
    async fn unblock(
        &self,
        id: &Id,
        uid: &str,
        owners: &[OwnerReference],
    ) -> Result<WriteResult, Self::Error>;
}

/// What came of a write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WriteResult {
    /// It took effect, or its object is gone.
    Applied,
    /// The object is another one now, or has another version.
    Conflict,
}

/// What the maps show.
pub trait Maps {
    /// An object.
    fn get(&self, id: &Id) -> Option<Arc<Slim>>;
    /// Whether the server has this kind at all.
    fn serves(&self, kind: KindId) -> bool;
}

/// Processes objects, one call at a time for each object.
pub struct Processor<S, M> {
    /// Who answers.
    pub server: S,
    /// What is shown.
    pub maps: M,
    /// All kinds.
    pub kinds: Arc<Kinds>,
    /// Who depends on whom.
    pub index: Arc<Mutex<Index>>,
    /// Owners that are gone.
    pub absent: Mutex<Absent>,
}

/// Owners that are gone for good: a uid does not come back.
#[derive(Debug, Default)]
pub struct Absent {
    known: BTreeSet<(Box<str>, Id)>,
    order: VecDeque<(Box<str>, Id)>,
}

impl Absent {
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

/// What looking at an object comes to.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct NextSteps {
    /// What has to be looked at because of it.
    pub look: Vec<Id>,
    /// When to look at it again, if no change brings it back before.
    pub again_in: Option<Duration>,
}

impl<S: Server, M: Maps> Processor<S, M> {
    /// Looks at an object and does what is to be done.
    ///
    /// # Errors
    /// The first request that has no answer; what was done before it stays done.
    pub async fn process(&self, id: &Id) -> Result<NextSteps, S::Error> {
        let Some(shown) = self.maps.get(id) else { return Ok(NextSteps::default()) };
        if self.is_settled(id, &shown) {
            return Ok(NextSteps::default());
        }
        // The map may be behind in either direction.
        let Some(live) = self.server.find(id).await? else { return Ok(NextSteps::default()) };
        let metadata = live.metadata.clone();
        let state = Slim::of(live);
        let mut owners = Vec::new();
        if state.stage == Stage::Alive {
            for reference in &state.owners {
                owners.push(self.owner(id, reference).await?);
            }
        }
        let (dependents, asked) = self.dependents(id, &state).await?;
        let item = Item { state: &state, finalizers: &metadata.finalizers };
        let mut seen = NextSteps::default();
        if asked && !dependents.is_empty() {
            // The server shows dependents that the maps do not show yet.
            seen.again_in = Some(CATCH_UP);
        }
        for act in plan(&item, &owners, &dependents) {
            if self.act(id, &metadata, &dependents, act, &mut seen).await? == WriteResult::Conflict
            {
                seen.again_in = Some(CATCH_UP);
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
        act: Act,
        seen: &mut NextSteps,
    ) -> Result<WriteResult, S::Error> {
        match act {
            Act::Delete(policy) => self.server.delete(id, it, policy).await,
            Act::DropOwners(owners) => self.server.drop_owners(id, &it.uid, &owners).await,
            Act::Unblock => {
                let done = self.server.unblock(id, &it.uid, &it.owner_references).await?;
                // The version that a deletion would insist on is another one now.
                Ok(if done == WriteResult::Applied { WriteResult::Conflict } else { done })
            }
            Act::Release(dependent) => {
                let state = dependents.iter().find(|other| other.id == dependent);
                let uid = state.map_or("", |dependent| &dependent.state.uid);
                let owner = std::slice::from_ref(&it.uid);
                // Another object under its name is no dependent.
                self.server.drop_owners(&dependent, uid, owner).await.map(|_| WriteResult::Applied)
            }
            Act::Finish(finalizer) => {
                let mut finalizers = it.finalizers.clone();
                finalizers.retain(|other| other != finalizer);
                self.server.set_finalizers(id, it, &finalizers).await
            }
            Act::Look(other) => {
                seen.look.push(other);
                Ok(WriteResult::Applied)
            }
        }
    }

    /// Whether the maps show that there is nothing to do: most objects are only looked at because they are new.
    fn is_settled(&self, id: &Id, shown: &Slim) -> bool {
        match shown.stage {
            Stage::Going => true,
            Stage::Orphaning | Stage::Foreground => false,
            Stage::Alive => shown.owners.iter().all(|reference| {
                self.place(id, reference)
                    .is_some_and(|owner| self.is_shown_solid(&owner, reference))
            }),
        }
    }

    /// Where an owner has to be: in the object's namespace, or in none.
    fn place(&self, id: &Id, reference: &OwnerReference) -> Option<Id> {
        let kind = self.kinds.find(&reference.api_version, &reference.kind)?;
        let namespaced = self.kinds.get(kind)?.namespaced;
        if namespaced && id.key.namespace.is_empty() {
            return None;
        }
        let namespace = if namespaced { id.key.namespace.as_str() } else { "" };
        Some(Id { kind, key: ObjectKey::new(namespace, &reference.name) })
    }

    fn is_shown_solid(&self, owner: &Id, reference: &OwnerReference) -> bool {
        let shown = self.maps.get(owner);
        shown.is_some_and(|shown| *shown.uid == *reference.uid && shown.stage != Stage::Foreground)
    }

    /// Looks in the maps, and asks the server before it says that an owner is gone: the maps may be behind.
    async fn owner(&self, id: &Id, reference: &OwnerReference) -> Result<Owner, S::Error> {
        let Some(owner) = self.place(id, reference) else { return Ok(Owner::Unknown) };
        if !self.maps.serves(owner.kind) {
            return Ok(Owner::Unknown);
        }
        let named = (Box::from(reference.uid.as_str()), owner);
        if lock(&self.absent).has(&named) {
            return Ok(Owner::Absent);
        }
        if self.is_shown_solid(&named.1, reference) {
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

    /// Who depends on the object, and whether the server was asked. It is before an object goes that waits for its
    /// dependents: the maps may not show the last one that was made for it.
    async fn dependents(&self, id: &Id, state: &Slim) -> Result<(Vec<Dependent>, bool), S::Error> {
        let ids = lock(&self.index).dependents(&state.uid);
        let shown = ids.into_iter().filter_map(|id| {
            let state = self.maps.get(&id)?;
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
        let mut kinds: BTreeSet<KindId> = self.kinds.made_for(id.kind).into_iter().collect();
        kinds.extend(shown.iter().map(|dependent| dependent.id.kind));
        let mut found = Vec::new();
        for kind in kinds.into_iter().filter(|kind| self.maps.serves(*kind)) {
            for object in self.server.list(kind, &id.key.namespace).await? {
                let key = ObjectKey::of(&object.metadata);
                let state_of = Slim::of(object);
                if state_of.owners.iter().any(|owner| *owner.uid == *state.uid) {
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
