//! Writes to the API server as values, and their execution.

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

/// One write. It is conditional on the resource version or uid that the plan was made from, so that a plan from a stale cache fails instead of
/// overwriting another client's change.
#[derive(Clone, Debug, PartialEq)]
pub enum Write {
    /// Creates the object; succeeds if it exists.
    Create(Object),
    /// Replaces the object if its version is unchanged.
    Update(Object),
    /// Replaces the status if the version is unchanged.
    UpdateStatus(Object),
    /// Applies a JSON merge patch; conditional if it has a resource version.
    Patch {
        /// The object's kind.
        kind: ObjectKind,
        /// The object's key.
        key: ObjectKey,
        /// The object or its status.
        part: Part,
        /// The merge patch.
        patch: Value,
    },
    /// Deletes the object if it has this uid.
    Delete {
        /// The object's kind.
        kind: ObjectKind,
        /// The object's key.
        key: ObjectKey,
        /// The object's uid.
        uid: String,
        /// The grace period; the object's own if not set.
        grace_secs: Option<i64>,
    },
}

/// The endpoint that a patch is sent to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part {
    /// The object.
    Main,
    /// The status subresource.
    Status,
}

/// The state that the caches show once they have observed a write.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Effect {
    /// The object's kind.
    pub kind: ObjectKind,
    /// The object's key.
    pub key: ObjectKey,
    /// The state.
    pub state: EffectState,
}

/// The state of an object after a write.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum EffectState {
    /// It exists at this version or a later one.
    Version(u64),
    /// The object with this uid is deleted or terminating.
    Deleted(String),
}

/// Defines [`Object`] and [`ObjectKind`] for the kinds that controllers write.
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
            /// Executes the write.
            ///
            /// # Errors
            /// The server rejects it, or the request fails.
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
                        let new = apply_patch::<$kind>(client, key, *part, patch).await?;
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

async fn apply_patch<T: Resource>(
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
        // The object is deleted, or another one has its name.
        Err(error) if error.is_not_found() || error.is_conflict() => Ok(()),
        other => other,
    }
}

fn effect<T: Resource + Kind>(kind: ObjectKind, new: &T) -> Option<Effect> {
    let version = new.metadata().resource_version.parse().ok()?;
    let (key, state) = (ObjectKey::of(new.metadata()), EffectState::Version(version));
    Some(Effect { kind, key, state })
}
