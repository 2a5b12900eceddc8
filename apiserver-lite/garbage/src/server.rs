//! The collector's requests to the API server: metadata only, with writes conditional on uid or version.

use std::collections::BTreeSet;
use std::sync::Arc;

use proto_api::meta::v1::{ObjectMeta, OwnerReference, PartialObjectMetadata};
use proto_client::{Api, Client, ClientError, DeleteParams, ListParams, Patch, WriteParams};
use serde_json::{Value, json};

use super::kinds::{Id, KindId, Kinds};
use super::plan::DeletionPropagation;
use super::process::{ObjectClient, WriteOutcome};

/// Deletes and patches objects at the API server.
pub struct ApiServer {
    pub client: Client,
    /// All kinds.
    pub kinds: Arc<Kinds>,
}

impl ApiServer {
    fn api(&self, kind: KindId, namespace: &str) -> Option<Api<PartialObjectMetadata>> {
        let namespace = (!namespace.is_empty()).then_some(namespace);
        let collection = self.kinds.collection(kind, namespace)?;
        Some(self.client.metadata(collection))
    }

    fn is_custom(&self, kind: KindId) -> bool {
        self.kinds.get(kind).is_some_and(|kind| kind.custom)
    }

    /// Changes the owners of an object whose kind has no strategic merge patch: all of them are written, if the object has not changed meanwhile.
    async fn change_owners(
        &self,
        id: &Id,
        uid: &str,
        change: impl Fn(OwnerReference) -> Option<OwnerReference>,
    ) -> Result<WriteOutcome, ClientError> {
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

    async fn patch(&self, id: &Id, patch: Patch) -> Result<WriteOutcome, ClientError> {
        let Some(api) = self.api(id.kind, &id.key.namespace) else {
            return Ok(WriteOutcome::Applied);
        };
        done(api.patch(&id.key.name, &patch, &WriteParams::default()).await)
    }
}

/// A deleted object needs no write; a conflict is retried.
fn done<T>(written: Result<T, ClientError>) -> Result<WriteOutcome, ClientError> {
    match written {
        Ok(_) => Ok(WriteOutcome::Applied),
        Err(error) if error.is_not_found() => Ok(WriteOutcome::Applied),
        Err(error) if error.is_conflict() => Ok(WriteOutcome::Conflict),
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
    type Error = ClientError;

    async fn find(&self, id: &Id) -> Result<Option<PartialObjectMetadata>, ClientError> {
        let Some(api) = self.api(id.kind, &id.key.namespace) else { return Ok(None) };
        match api.get(&id.key.name).await {
            Ok(object) => Ok(Some(object)),
            // A 404 for a path that is not served names no object, and does not mean that the object is deleted.
            Err(error) if error.is_not_found() && names_object(&error, &id.key.name) => Ok(None),
            Err(error) => Err(error),
        }
    }

    async fn list(
        &self,
        kind: KindId,
        namespace: &str,
    ) -> Result<Vec<PartialObjectMetadata>, ClientError> {
        let Some(api) = self.api(kind, namespace) else { return Ok(Vec::new()) };
        Ok(api.list(&ListParams::default()).await?.items)
    }

    async fn delete(
        &self,
        id: &Id,
        it: &ObjectMeta,
        policy: DeletionPropagation,
    ) -> Result<WriteOutcome, ClientError> {
        let Some(api) = self.api(id.kind, &id.key.namespace) else {
            return Ok(WriteOutcome::Applied);
        };
        let params = DeleteParams {
            uid: Some(it.uid.clone()),
            resource_version: Some(it.resource_version.clone()),
            propagation: Some(policy.name()),
            ..DeleteParams::default()
        };
        done(api.delete(&id.key.name, &params).await)
    }

    async fn set_finalizers(
        &self,
        id: &Id,
        it: &ObjectMeta,
        finalizers: &[String],
    ) -> Result<WriteOutcome, ClientError> {
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
    ) -> Result<WriteOutcome, ClientError> {
        if self.is_custom(id.kind) {
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
    ) -> Result<WriteOutcome, ClientError> {
        if self.is_custom(id.kind) {
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
