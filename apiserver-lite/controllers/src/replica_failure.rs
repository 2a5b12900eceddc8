//! The condition ReplicaFailure of replica sets and replication controllers: a pod could not be created or deleted. It goes with the first plan
//! whose pods all could, as in Kubernetes. And the condition Progressing of deployments whose new set could not be created, and the counts of stateful sets,
//! daemon sets and jobs one of whose steps failed, which have no condition for it.

use proto_api::Time;
use proto_api::apps::v1::ReplicaSetCondition;
use proto_api::core::v1::ReplicationControllerCondition;

use crate::api_writes::{ApiWrite, WrittenObject};
use crate::write_events::ReplicaOperation;

/// The condition's type.
pub const REPLICA_FAILURE: &str = "ReplicaFailure";

/// The status of an object for the case that one of its pods cannot be created or deleted, the new set of a Deployment cannot be created, or any write
/// before the status of a StatefulSet fails.
#[derive(Clone, Debug, PartialEq)]
pub struct FailureStatus {
    object: WrittenObject,
    is_changed: bool,
}

impl FailureStatus {
    /// `object` has the new counts and the stored conditions; `is_changed` if the stored status has others. A Deployment has the condition Progressing, to
    /// whose message the error is added.
    pub fn new(object: impl Into<WrittenObject>, is_changed: bool) -> Self {
        Self { object: object.into(), is_changed }
    }

    /// The write of the status after `operation`, or a write without events, failed with `error`. None if the stored status says it, whatever its error
    /// was.
    pub fn write(
        mut self,
        operation: Option<&ReplicaOperation>,
        error: String,
        now: Time,
    ) -> Option<ApiWrite> {
        let reason = match (operation, &self.object) {
            (_, WrittenObject::StatefulSet(_)) => "",
            (Some(ReplicaOperation::Create), _) => "FailedCreate",
            (Some(ReplicaOperation::Delete), _) => "FailedDelete",
            (Some(ReplicaOperation::Scale { from: None, .. }), WrittenObject::Deployment(_)) => "",
            _ => return None,
        };
        let is_new = match &mut self.object {
            WrittenObject::ReplicaSet(set) => {
                let conditions = &mut set.status.conditions;
                let is_new = !conditions.iter().any(|known| known.type_ == REPLICA_FAILURE);
                conditions.extend(is_new.then(|| ReplicaSetCondition {
                    type_: REPLICA_FAILURE.into(),
                    status: "True".into(),
                    last_transition_time: now,
                    reason: reason.into(),
                    message: error,
                }));
                is_new
            }
            WrittenObject::ReplicationController(controller) => {
                let conditions = &mut controller.status.conditions;
                let is_new = !conditions.iter().any(|known| known.type_ == REPLICA_FAILURE);
                conditions.extend(is_new.then(|| ReplicationControllerCondition {
                    type_: REPLICA_FAILURE.into(),
                    status: "True".into(),
                    last_transition_time: now,
                    reason: reason.into(),
                    message: error,
                }));
                is_new
            }
            WrittenObject::Deployment(deployment) => {
                let mut conditions = deployment.status.conditions.iter_mut();
                let failed = conditions.find(|condition| condition.type_ == "Progressing");
                failed.into_iter().for_each(|condition| condition.message.push_str(&error));
                false
            }
            _ => false,
        };
        (is_new || self.is_changed).then_some(ApiWrite::UpdateStatus(self.object))
    }
}

#[cfg(test)]
mod tests;
