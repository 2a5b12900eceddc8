//! Writes to the API server as values, and the effects that caches show after them.

use proto_api::apps::v1::{Deployment, ReplicaSet};
use proto_api::core::v1::{
    ConfigMap, Endpoints, Namespace, Node, PersistentVolume, PersistentVolumeClaim, Pod,
    ReplicationController, Secret, ServiceAccount,
};
use proto_api::discovery::v1::EndpointSlice;
use proto_api::policy::v1::PodDisruptionBudget;
use proto_api::storage::v1::VolumeAttachment;
use proto_client::ObjectKey;
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
