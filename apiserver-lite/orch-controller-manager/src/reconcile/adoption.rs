//! Whether a controller may take objects over: the map may not show yet that it is being deleted, and what a deletion
//! with `Orphan` has set free would be its own again.

use proto_api::Resource;
use proto_api::apps::v1::{Deployment, ReplicaSet};
use proto_api::core::v1::ReplicationController;
use proto_client::ClientError;

use super::Reconciler;
use crate::api_writes::ObjectKind;
use crate::controllers::Adopter;

impl Reconciler {
    /// Asks the server whether the adopter is there and stays.
    pub(super) async fn may_adopt(&self, adopter: &Adopter) -> Result<bool, ClientError> {
        match adopter.kind {
            ObjectKind::Deployment => self.stays::<Deployment>(adopter).await,
            ObjectKind::ReplicaSet => self.stays::<ReplicaSet>(adopter).await,
            ObjectKind::ReplicationController => self.stays::<ReplicationController>(adopter).await,
            _ => Ok(false),
        }
    }

    async fn stays<T: Resource>(&self, adopter: &Adopter) -> Result<bool, ClientError> {
        let found = self.client.within::<T>(&adopter.key.namespace).find(&adopter.key.name).await?;
        Ok(found.is_some_and(|found| {
            let metadata = found.metadata();
            metadata.uid == adopter.uid && metadata.deletion_timestamp.is_none()
        }))
    }
}
