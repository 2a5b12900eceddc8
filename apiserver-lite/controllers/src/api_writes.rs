//! Writes to the API server as values, and the effects that caches show after them.

use proto_api::ObjectKey;
use serde_json::Value;

/// One write. It is conditional on the resource version or uid that the plan was made from, so that a plan from a stale cache fails instead of
/// overwriting another client's change.
#[derive(Clone, Debug, PartialEq)]
pub enum ApiWrite {
    /// Creates the object; succeeds if it exists.
    Create(WrittenObject),
    /// Replaces the object if its version is unchanged.
    Update(WrittenObject),
    /// Replaces the status if the version is unchanged.
    UpdateStatus(WrittenObject),
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
    /// Deletes the object, if it has this uid, and what it controls, whatever the default of its kind is.
    DeleteTree {
        /// The object's kind.
        kind: ObjectKind,
        /// The object's key.
        key: ObjectKey,
        /// The object's uid.
        uid: String,
        /// `Foreground` or `Background`.
        propagation: &'static str,
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
    pub state: EffectState,
}

impl Effect {
    /// The state to wait for after a patch, which changes only some fields.
    pub fn of_patch(self) -> Self {
        match self.state {
            EffectState::Version(version) => Self { state: EffectState::Patched(version), ..self },
            _ => self,
        }
    }
}

/// The state of an object after a write.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum EffectState {
    /// It exists at this version or a later one.
    Version(u64),
    /// It exists at this version or a later one, or no longer: it was patched, and may have lost its last finalizer.
    Patched(u64),
    /// The object with this uid is deleted or terminating.
    Deleted(String),
}

/// Hands every kind that controllers write to the macro `$define`: its name, and its type.
#[macro_export]
macro_rules! for_every_written_kind {
    ($define:ident) => {
        $define!(
            ClusterRole: proto_api::rbac::v1::ClusterRole,
            ConfigMap: proto_api::core::v1::ConfigMap,
            ControllerRevision: proto_api::apps::v1::ControllerRevision,
            CronJob: proto_api::batch::v1::CronJob,
            DaemonSet: proto_api::apps::v1::DaemonSet,
            Deployment: proto_api::apps::v1::Deployment,
            EndpointSlice: proto_api::discovery::v1::EndpointSlice,
            Endpoints: proto_api::core::v1::Endpoints,
            Job: proto_api::batch::v1::Job,
            Namespace: proto_api::core::v1::Namespace,
            Node: proto_api::core::v1::Node,
            PersistentVolume: proto_api::core::v1::PersistentVolume,
            PersistentVolumeClaim: proto_api::core::v1::PersistentVolumeClaim,
            Pod: proto_api::core::v1::Pod,
            PodDisruptionBudget: proto_api::policy::v1::PodDisruptionBudget,
            ReplicaSet: proto_api::apps::v1::ReplicaSet,
            ReplicationController: proto_api::core::v1::ReplicationController,
            Secret: proto_api::core::v1::Secret,
            Service: proto_api::core::v1::Service,
            ServiceAccount: proto_api::core::v1::ServiceAccount,
            StatefulSet: proto_api::apps::v1::StatefulSet,
            VolumeAttachment: proto_api::storage::v1::VolumeAttachment
        );
    };
}

/// Defines [`WrittenObject`] and [`ObjectKind`].
macro_rules! define_objects {
    ($($kind:ident: $type:ty),+) => {
        /// An object to write.
        #[derive(Clone, Debug, PartialEq)]
        pub enum WrittenObject {
            $(#[doc = concat!("A ", stringify!($kind), ".")] $kind(Box<$type>)),+
        }

        /// The kind of an object to write.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
        pub enum ObjectKind {
            $(#[doc = stringify!($kind)] $kind),+
        }

        $(impl From<$type> for WrittenObject {
            fn from(object: $type) -> Self {
                Self::$kind(Box::new(object))
            }
        })+
    };
}

for_every_written_kind!(define_objects);
