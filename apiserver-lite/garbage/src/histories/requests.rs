//! The collector's caches and requests in a history.

use std::sync::atomic::Ordering;

use super::*;
use crate::process::{ObjectClient, OwnershipCaches, WriteOutcome};

impl OwnershipCaches for Shared {
    fn get(&self, id: &Id) -> Option<Arc<Ownership>> {
        lock(&self.0).shown.get(id).cloned()
    }

    fn names(&self, kind: KindId) -> Vec<String> {
        let cluster = lock(&self.0);
        let of_kind = cluster.shown.keys().filter(|id| id.kind == kind);
        of_kind.map(|id| id.key.name.clone()).collect()
    }

    fn serves(&self, kind: KindId) -> bool {
        let cluster = lock(&self.0);
        cluster.other.is_listed || !cluster.is_bird(kind)
    }

    fn are_incomplete(&self) -> bool {
        !lock(&self.0).other.is_listed
    }
}

impl ObjectClient for Shared {
    type Error = Failed;

    async fn find(&self, id: &Id) -> Result<Option<PartialObjectMetadata>, Failed> {
        let cluster = self.open(id.kind)?;
        self.1.fetch_add(1, Ordering::Relaxed);
        if id.key.name == UNREADABLE {
            return Err(Failed);
        }
        if id.key.name == KIND_ENDS {
            cluster.kinds.remove(id.kind);
        }
        let found = cluster.objects.get(id).cloned();
        Ok(found.map(|metadata| PartialObjectMetadata { metadata }))
    }

    async fn list(&self, kind: KindId, _: &str) -> Result<Vec<PartialObjectMetadata>, Failed> {
        let cluster = self.open(kind)?;
        let of_kind = cluster.objects.iter().filter(|(id, _)| id.kind == kind);
        let partial = |object: &ObjectMeta| PartialObjectMetadata { metadata: object.clone() };
        Ok(of_kind.map(|(_, object)| partial(object)).collect())
    }

    async fn delete(
        &self,
        id: &Id,
        it: &ObjectMeta,
        policy: DeletionPropagation,
    ) -> Result<WriteOutcome, Failed> {
        let mut cluster = self.open(id.kind)?;
        let Some(object) = cluster.objects.get(id).cloned() else {
            return Ok(WriteOutcome::Applied);
        };
        if object.resource_version != it.resource_version {
            return Ok(WriteOutcome::Conflict);
        }
        for owner in &object.owner_references {
            let owners = cluster.objects.values().filter(|o| o.namespace == object.namespace);
            let stage = owners
                .filter(|other| other.uid == owner.uid)
                .map(DeletionStage::from_metadata)
                .next();
            assert!(
                matches!(stage, None | Some(DeletionStage::Foreground)),
                "{} goes although {} keeps it",
                object.name,
                owner.name
            );
            let pair = (owner.uid.clone(), object.uid.clone());
            assert!(
                !cluster.policies.kept.contains(&pair),
                "{} goes although {} was deleted to keep it",
                object.name,
                owner.name
            );
        }
        cluster.delete(id, policy);
        Ok(WriteOutcome::Applied)
    }

    async fn set_finalizers(
        &self,
        id: &Id,
        it: &ObjectMeta,
        finalizers: &[String],
    ) -> Result<WriteOutcome, Failed> {
        let mut cluster = self.open(id.kind)?;
        let Some(mut object) = cluster.objects.get(id).cloned() else {
            return Ok(WriteOutcome::Applied);
        };
        if object.resource_version != it.resource_version {
            return Ok(WriteOutcome::Conflict);
        }
        object.finalizers = finalizers.to_vec();
        cluster.write(id, Some(object));
        Ok(WriteOutcome::Applied)
    }

    async fn drop_owners(
        &self,
        id: &Id,
        uid: &str,
        owners: &[String],
    ) -> Result<WriteOutcome, Failed> {
        let mut cluster = self.open(id.kind)?;
        let Some(mut object) = cluster.objects.get(id).cloned() else {
            return Ok(WriteOutcome::Applied);
        };
        if object.uid != uid {
            return Ok(WriteOutcome::Conflict);
        }
        let before = object.owner_references.len();
        object.owner_references.retain(|owner| !owners.contains(&owner.uid));
        if object.owner_references.len() != before {
            cluster.write(id, Some(object));
        }
        Ok(WriteOutcome::Applied)
    }

    async fn unblock(
        &self,
        id: &Id,
        uid: &str,
        _: &[OwnerReference],
    ) -> Result<WriteOutcome, Failed> {
        let mut cluster = self.open(id.kind)?;
        let Some(mut object) = cluster.objects.get(id).cloned() else {
            return Ok(WriteOutcome::Applied);
        };
        if object.uid != uid {
            return Ok(WriteOutcome::Conflict);
        }
        for owner in &mut object.owner_references {
            owner.block_owner_deletion = Some(false);
        }
        cluster.write(id, Some(object));
        Ok(WriteOutcome::Applied)
    }
}
