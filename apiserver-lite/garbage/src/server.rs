//! The collector's requests to the API server: metadata only, with writes conditional on uid or version.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use apiserver_controllers::other_servers::{api_services, version};
use proto_api::meta::v1::{ObjectMeta, OwnerReference, PartialObjectMetadata};
use proto_client::dynamic::Dynamic;
use proto_client::{Api, Client, ClientError, DeleteParams, ListParams, Patch, WriteParams};
use serde_json::{Value, json};
use tokio::sync::Semaphore;

use super::kinds::{CollectedKind, Id, KindId, KindSource, Kinds};
use super::plan::DeletionPropagation;
use super::process::{ObjectClient, WriteOutcome};

/// Longest wait for the answer of another API server.
pub const ANSWER_MAX: Duration = Duration::from_millis(if cfg!(test) { 300 } else { 5_000 });
/// Most requests to one other API server at one time: one that is slow leaves workers to the objects of all others.
const TO_ONE_MAX: usize = 2;

/// Why a request failed.
#[derive(Debug, thiserror::Error)]
pub enum ObjectRequestError {
    #[error(transparent)]
    Client(#[from] ClientError),
    #[error("{0}: {TO_ONE_MAX} requests to the API server that serves it are in progress; retried")]
    Busy(String),
    #[error("{0}: the API server that serves it did not answer within {ANSWER_MAX:?}; retried")]
    NoAnswer(String),
    #[error("other clients change the object, or its dependents, again and again; retried")]
    LostRace,
    /// An object that another server does not have may be there.
    #[error("{0}: its APIService is not available, or leads to another Service by now; retried")]
    Changed(String),
}

/// Deletes and patches objects at the API server.
pub struct ApiServer {
    client: Client,
    /// All kinds.
    kinds: Arc<Kinds>,
    /// Permits of requests to other API servers, by their Services.
    to_others: Mutex<BTreeMap<String, Arc<Semaphore>>>,
}

impl ApiServer {
    pub fn new(client: Client, kinds: Arc<Kinds>) -> Self {
        Self { client, kinds, to_others: Mutex::default() }
    }

    fn api(&self, kind: KindId, namespace: &str) -> Option<Api<PartialObjectMetadata>> {
        let namespace = (!namespace.is_empty()).then_some(namespace);
        let collection = self.kinds.collection(kind, namespace)?;
        Some(self.client.metadata(collection))
    }

    /// The answer to a request for objects of a kind. One that another server does not answer in time, or that finds too many others, fails.
    async fn answer<T>(
        &self,
        kind: KindId,
        request: impl Future<Output = Result<T, ClientError>>,
    ) -> Result<T, ObjectRequestError> {
        let Some(other) = self.kinds.get(kind) else { return Ok(request.await?) };
        let KindSource::OtherServer { service, .. } = &other.source else {
            return Ok(request.await?);
        };
        let permits = self.permits(service);
        let Ok(_permit) = permits.try_acquire() else {
            return Err(ObjectRequestError::Busy(name(&other)));
        };
        let answer = tokio::time::timeout(ANSWER_MAX, request).await;
        Ok(answer.map_err(|_| ObjectRequestError::NoAnswer(name(&other)))??)
    }

    fn permits(&self, service: &str) -> Arc<Semaphore> {
        let mut all = self.to_others.lock().unwrap_or_else(PoisonError::into_inner);
        // Those of servers that are gone and have no request are made again when they are wanted.
        all.retain(|of, permits| of == service || Arc::strong_count(permits) > 1);
        let new = || Arc::new(Semaphore::new(TO_ONE_MAX));
        all.entry(service.to_owned()).or_insert_with(new).clone()
    }

    /// Checks that the objects of a kind are still those of the server whose kinds are known: of this one for a definition, if no APIService has put another
    /// in its place. Another server would not have them.
    async fn check_server(&self, kind: KindId) -> Result<(), ObjectRequestError> {
        let Some(kind) = self.kinds.get(kind).filter(|kind| !kind.is_built_in()) else {
            return Ok(());
        };
        let services = Dynamic::new(self.client.clone(), api_services(self.client.names()));
        let found = services.get(&format!("{}.{}", kind.version, kind.group)).await;
        let now = match found {
            Ok(found) => version(&found),
            Err(error) if error.is_not_found() => None,
            Err(error) => return Err(error.into()),
        };
        let is_same = match &kind.source {
            KindSource::OtherServer { service, .. } => {
                now.is_some_and(|now| now.service == *service && now.available)
            }
            KindSource::BuiltIn | KindSource::Definition { .. } => now.is_none(),
        };
        if is_same { Ok(()) } else { Err(ObjectRequestError::Changed(name(&kind))) }
    }

    /// Whether the kind's objects have no strategic merge patch.
    fn takes_merges_only(&self, kind: KindId) -> bool {
        self.kinds.get(kind).is_some_and(|kind| !kind.is_built_in())
    }

    /// Changes the owners of an object whose kind has no strategic merge patch: all of them are written, if the object has not changed meanwhile.
    async fn change_owners(
        &self,
        id: &Id,
        uid: &str,
        change: impl Fn(OwnerReference) -> Option<OwnerReference>,
    ) -> Result<WriteOutcome, ObjectRequestError> {
        let Some(found) = self.find(id).await? else { return Ok(WriteOutcome::Applied) };
        let metadata = found.metadata;
        if metadata.uid != uid {
            return Ok(WriteOutcome::Conflict);
        }
        let owners = metadata.owner_references.into_iter().filter_map(change);
        let owners: Vec<Value> = owners.map(|owner| owner_json(&owner)).collect();
        let metadata = json!({
            "uid": uid, "resourceVersion": metadata.resource_version, "ownerReferences": owners,
        });
        self.patch(id, Patch::Merge(json!({ "metadata": metadata }))).await
    }

    async fn patch(&self, id: &Id, patch: Patch) -> Result<WriteOutcome, ObjectRequestError> {
        let Some(api) = self.api(id.kind, &id.key.namespace) else {
            return Ok(WriteOutcome::Applied);
        };
        let params = WriteParams::default();
        done(self.answer(id.kind, api.patch(&id.key.name, &patch, &params)).await)
    }
}

fn name(kind: &CollectedKind) -> String {
    format!("{}.{}/{}", kind.plural, kind.group, kind.version)
}

/// A deleted object needs no write; a conflict is retried.
fn done<T>(written: Result<T, ObjectRequestError>) -> Result<WriteOutcome, ObjectRequestError> {
    match written {
        Ok(_) => Ok(WriteOutcome::Applied),
        Err(ObjectRequestError::Client(error)) if error.is_not_found() => Ok(WriteOutcome::Applied),
        Err(ObjectRequestError::Client(error)) if error.is_conflict() => Ok(WriteOutcome::Conflict),
        Err(error) => Err(error),
    }
}

/// A strategic merge patch of the owners of the object with this uid; owners are merged by their uid.
fn owners_patch(uid: &str, owners: Vec<Value>) -> Patch {
    Patch::Strategic(json!({ "metadata": { "uid": uid, "ownerReferences": owners } }))
}

fn owner_json(owner: &OwnerReference) -> Value {
    let mut json = json!({
        "apiVersion": owner.api_version, "kind": owner.kind, "name": owner.name, "uid": owner.uid,
    });
    for (field, flag) in
        [("controller", owner.controller), ("blockOwnerDeletion", owner.block_owner_deletion)]
    {
        if let Some(flag) = flag {
            json[field] = json!(flag);
        }
    }
    json
}

impl ObjectClient for ApiServer {
    type Error = ObjectRequestError;

    async fn find(&self, id: &Id) -> Result<Option<PartialObjectMetadata>, ObjectRequestError> {
        let Some(api) = self.api(id.kind, &id.key.namespace) else { return Ok(None) };
        match self.answer(id.kind, api.get(&id.key.name)).await {
            Ok(object) => Ok(Some(object)),
            // A 404 for a path that is not served names no object, and does not mean that the object is deleted.
            Err(ObjectRequestError::Client(error))
                if error.is_not_found() && names_object(&error, &id.key.name) =>
            {
                self.check_server(id.kind).await?;
                Ok(None)
            }
            Err(error) => Err(error),
        }
    }

    async fn list(
        &self,
        kind: KindId,
        namespace: &str,
    ) -> Result<Vec<PartialObjectMetadata>, ObjectRequestError> {
        let Some(api) = self.api(kind, namespace) else { return Ok(Vec::new()) };
        let params = ListParams::default();
        Ok(self.answer(kind, api.list(&params)).await?.items)
    }

    async fn delete(
        &self,
        id: &Id,
        it: &ObjectMeta,
        policy: DeletionPropagation,
    ) -> Result<WriteOutcome, ObjectRequestError> {
        let Some(api) = self.api(id.kind, &id.key.namespace) else {
            return Ok(WriteOutcome::Applied);
        };
        let params = DeleteParams {
            uid: Some(it.uid.clone()),
            resource_version: Some(it.resource_version.clone()),
            propagation: Some(policy.name()),
            ..DeleteParams::default()
        };
        done(self.answer(id.kind, api.delete(&id.key.name, &params)).await)
    }

    async fn set_finalizers(
        &self,
        id: &Id,
        it: &ObjectMeta,
        finalizers: &[String],
    ) -> Result<WriteOutcome, ObjectRequestError> {
        let finalizers = if finalizers.is_empty() { Value::Null } else { json!(finalizers) };
        let metadata = json!({
            "uid": it.uid, "resourceVersion": it.resource_version, "finalizers": finalizers,
        });
        self.patch(id, Patch::Merge(json!({ "metadata": metadata }))).await
    }

    async fn drop_owners(
        &self,
        id: &Id,
        uid: &str,
        owners: &[String],
    ) -> Result<WriteOutcome, ObjectRequestError> {
        if self.takes_merges_only(id.kind) {
            let owners: BTreeSet<&str> = owners.iter().map(String::as_str).collect();
            let keep =
                |owner: OwnerReference| (!owners.contains(owner.uid.as_str())).then_some(owner);
            return self.change_owners(id, uid, keep).await;
        }
        let gone = owners.iter().map(|owner| json!({ "$patch": "delete", "uid": owner }));
        self.patch(id, owners_patch(uid, gone.collect())).await
    }

    async fn unblock(
        &self,
        id: &Id,
        uid: &str,
        owners: &[OwnerReference],
    ) -> Result<WriteOutcome, ObjectRequestError> {
        if self.takes_merges_only(id.kind) {
            let unblock = |owner: OwnerReference| {
                let block = owner.block_owner_deletion.map(|_| false);
                Some(OwnerReference { block_owner_deletion: block, ..owner })
            };
            return self.change_owners(id, uid, unblock).await;
        }
        let blocking = owners.iter().filter(|owner| owner.block_owner_deletion == Some(true));
        let unblocked = blocking.map(|o| json!({ "uid": o.uid, "blockOwnerDeletion": false }));
        self.patch(id, owners_patch(uid, unblocked.collect())).await
    }
}

fn names_object(error: &ClientError, name: &str) -> bool {
    let ClientError::Api { status, .. } = error else { return false };
    status.details.as_ref().is_some_and(|details| details.name == name)
}

#[cfg(test)]
mod tests;
