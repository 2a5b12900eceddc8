//! Whether a controller can adopt orphans: its cache may not show yet that it is being deleted, and it would adopt again what a deletion with
//! `Orphan` has released.

use apiserver_controllers::Adopter;
use apiserver_controllers::api_writes::ObjectKind;
use proto_api::Resource;
use proto_api::apps::v1::{DaemonSet, Deployment, ReplicaSet, StatefulSet};
use proto_api::batch::v1::Job;
use proto_api::core::v1::ReplicationController;
use proto_client::{Client, ClientError};

use super::Reconciler;

impl Reconciler {
    /// Reads from the server whether the adopter exists and is not being deleted.
    pub(super) async fn can_adopt(
        &self,
        client: &Client,
        adopter: &Adopter,
    ) -> Result<bool, ClientError> {
        match adopter.kind {
            ObjectKind::DaemonSet => is_alive::<DaemonSet>(client, adopter).await,
            ObjectKind::Job => is_alive::<Job>(client, adopter).await,
            ObjectKind::StatefulSet => is_alive::<StatefulSet>(client, adopter).await,
            ObjectKind::Deployment => is_alive::<Deployment>(client, adopter).await,
            ObjectKind::ReplicaSet => is_alive::<ReplicaSet>(client, adopter).await,
            ObjectKind::ReplicationController => {
                is_alive::<ReplicationController>(client, adopter).await
            }
            _ => Ok(false),
        }
    }
}

async fn is_alive<T: Resource>(client: &Client, adopter: &Adopter) -> Result<bool, ClientError> {
    let found = client.within::<T>(&adopter.key.namespace).find(&adopter.key.name).await?;
    Ok(found.is_some_and(|found| {
        let metadata = found.metadata();
        metadata.uid == adopter.uid && metadata.deletion_timestamp.is_none()
    }))
}
