//! What controllers ask of the API server, as values, and the one place that does it.

use proto_api::apps::v1::{Deployment, ReplicaSet};
use proto_api::core::v1::{
    ConfigMap, Endpoints, Namespace, Node, PersistentVolume, PersistentVolumeClaim, Pod,
    ReplicationController, Secret, ServiceAccount,
};
use proto_api::discovery::v1::EndpointSlice;
use proto_api::policy::v1::PodDisruptionBudget;
use proto_api::storage::v1::VolumeAttachment;
use proto_api::{Kind, Resource};
use proto_client::{Client, ClientError, DeleteParams, ObjectKey, Patch, WriteParams};
use serde_json::Value;

/// One change to make. Each is conditional on the version or the object that was planned with, so that a
/// plan made from an old view fails instead of undoing what somebody else did.
#[derive(Clone, Debug, PartialEq)]
pub enum Write {
    /// Create it; that it exists already is fine.
    Create(Object),
    /// Replace it, if it still is at the version in its metadata.
    Update(Object),
    /// Replace its status, if it still is at the version in its metadata.
    UpdateStatus(Object),
    /// Change the fields in a JSON merge patch; conditional if that has a resource version.
    Patch {
        /// The kind.
        kind: ObjectKind,
        /// Which.
        key: ObjectKey,
        /// The whole object, or its status.
        part: Part,
        /// The patch.
        patch: Value,
    },
    /// Delete it, if it still is the object with this uid.
    Delete {
        /// The kind.
        kind: ObjectKind,
        /// Which.
        key: ObjectKey,
        /// Its uid.
        uid: String,
        /// Grace period; not set for the object's own.
        grace_secs: Option<i64>,
    },
}

/// Which part of an object a patch is sent to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part {
    /// Everything but the status.
    Main,
    /// The status.
    Status,
}

/// After a write: what the caches will show once they have caught up with it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Effect {
    /// The kind.
    pub kind: ObjectKind,
    /// Which.
    pub key: ObjectKey,
    /// In what state.
    pub state: EffectState,
}

/// The state that a write has left an object in.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum EffectState {
    /// There, at this version or a later one.
    Version(u64),
    /// Deleted or being deleted; its uid.
    Deleted(String),
}

/// Makes [`Object`] and [`ObjectKind`] from the kinds that controllers write.
macro_rules! objects {
    ($($kind:ident),+) => {
        /// An object to write.
        #[derive(Clone, Debug, PartialEq)]
        pub enum Object {
            $(#[doc = concat!("A ", stringify!($kind), ".")] $kind(Box<$kind>)),+
        }

        /// The kind of an object to write.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
        pub enum ObjectKind {
            $(#[doc = stringify!($kind)] $kind),+
        }

        $(impl From<$kind> for Object {
            fn from(object: $kind) -> Self {
                Self::$kind(Box::new(object))
            }
        })+

        impl Write {
            /// Does it.
            ///
            /// # Errors
            /// What the server answers, except for what the write calls fine.
            pub async fn apply(&self, client: &Client) -> Result<Option<Effect>, ClientError> {
                match self {
                    $(Self::Create(Object::$kind(object)) => {
                        create(client, ObjectKind::$kind, object.as_ref()).await
                    })+
                    $(Self::Update(Object::$kind(object)) => {
                        let new = client.all::<$kind>().update(object, &WriteParams::default()).await?;
                        Ok(effect(ObjectKind::$kind, &new))
                    })+
                    $(Self::UpdateStatus(Object::$kind(object)) => {
                        let params = WriteParams::default();
                        let new = client.all::<$kind>().update_status(object, &params).await?;
                        Ok(effect(ObjectKind::$kind, &new))
                    })+
                    $(Self::Patch { kind: ObjectKind::$kind, key, part, patch } => {
                        let new = patched::<$kind>(client, key, *part, patch).await?;
                        Ok(effect(ObjectKind::$kind, &new))
                    })+
                    $(Self::Delete { kind: ObjectKind::$kind, key, uid, grace_secs } => {
                        delete::<$kind>(client, key, uid, *grace_secs).await?;
                        let state = EffectState::Deleted(uid.clone());
                        Ok(Some(Effect { kind: ObjectKind::$kind, key: key.clone(), state }))
                    })+
                }
            }
        }
    };
}

objects!(
    ConfigMap,
    Deployment,
    EndpointSlice,
    Endpoints,
    Namespace,
    Node,
    PersistentVolume,
    PersistentVolumeClaim,
    Pod,
    PodDisruptionBudget,
    ReplicaSet,
    ReplicationController,
    Secret,
    ServiceAccount,
    VolumeAttachment
);

async fn create<T: Resource>(
    client: &Client,
    kind: ObjectKind,
    object: &T,
) -> Result<Option<Effect>, ClientError> {
    match client.all::<T>().create(object, &WriteParams::default()).await {
        Ok(new) => Ok(effect(kind, &new)),
        Err(error) if error.is_already_exists() => Ok(None),
        Err(error) => Err(error),
    }
}

async fn patched<T: Resource>(
    client: &Client,
    key: &ObjectKey,
    part: Part,
    patch: &Value,
) -> Result<T, ClientError> {
    let api = client.within::<T>(&key.namespace);
    let (patch, params) = (Patch::Merge(patch.clone()), WriteParams::default());
    match part {
        Part::Main => api.patch(&key.name, &patch, &params).await,
        Part::Status => api.patch_status(&key.name, &patch, &params).await,
    }
}

async fn delete<T: Resource>(
    client: &Client,
    key: &ObjectKey,
    uid: &str,
    grace_secs: Option<i64>,
) -> Result<(), ClientError> {
    let uid = Some(uid.to_owned());
    let params = DeleteParams { grace_secs, uid, ..DeleteParams::default() };
    match client.within::<T>(&key.namespace).delete(&key.name, &params).await {
        // Gone, or another object under its name: what was to be deleted is no more.
        Err(error) if error.is_not_found() || error.is_conflict() => Ok(()),
        other => other,
    }
}

fn effect<T: Resource + Kind>(kind: ObjectKind, new: &T) -> Option<Effect> {
    let version = new.metadata().resource_version.parse().ok()?;
    let (key, state) = (ObjectKey::of(new.metadata()), EffectState::Version(version));
    Some(Effect { kind, key, state })
}
