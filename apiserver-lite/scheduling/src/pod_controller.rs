//! The controller of a pod, if it is of a kind whose selector default spread constraints have.

use proto_api::Kind;
use proto_api::apps::v1::{ReplicaSet, StatefulSet};
use proto_api::core::v1::ReplicationController;
use proto_api::meta::v1::ObjectMeta;
use proto_api::names::Names;

/// A controller whose selector counts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PodController {
    pub kind: ControllerKind,
    /// In the namespace of the pod.
    pub name: String,
}

/// The kinds of controllers whose selectors count.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ControllerKind {
    ReplicationController,
    ReplicaSet,
    StatefulSet,
}

impl PodController {
    /// The controller of the pod with this metadata; none if it is of another kind.
    pub fn from_pod(names: &Names, pod: &ObjectMeta) -> Option<Self> {
        let owner = pod.owner_references.iter().find(|owner| owner.controller == Some(true))?;
        let (kind, group, version) = match owner.kind.as_str() {
            ReplicationController::KIND => (
                ControllerKind::ReplicationController,
                ReplicationController::GROUP,
                ReplicationController::VERSION,
            ),
            ReplicaSet::KIND => {
                (ControllerKind::ReplicaSet, ReplicaSet::GROUP, ReplicaSet::VERSION)
            }
            StatefulSet::KIND => {
                (ControllerKind::StatefulSet, StatefulSet::GROUP, StatefulSet::VERSION)
            }
            _ => return None,
        };
        let name = owner.name.clone();
        (owner.api_version == names.api_version(group, version)).then_some(Self { kind, name })
    }
}
