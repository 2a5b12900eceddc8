//! Events of single writes, for success and failure. Reasons and messages are those of Kubernetes.

use proto_api::ObjectKey;
use proto_api::core::v1::ObjectReference;
use proto_api::event_report::{EventKind, EventReport};

/// Maximum length of an event's message in characters, as in Kubernetes.
const MESSAGE_MAX: usize = 1024;

/// A write and the object of its events.
#[derive(Clone, Debug, PartialEq)]
pub struct WriteEvent {
    /// The object that the events refer to.
    pub about: ObjectReference,
    pub operation: ReplicaOperation,
}

/// An operation on another object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ReplicaOperation {
    /// Creates a pod.
    Create,
    /// Deletes a pod.
    Delete,
    /// Scales a replica set.
    Scale {
        /// The previous size; none if the replica set is created.
        from: Option<i64>,
        /// The new size.
        to: i64,
    },
    /// One with texts of its own.
    Other {
        /// Reason and message of its success.
        done: (&'static str, String),
        /// Reason and message of its failure; the error follows.
        failed: (&'static str, String),
    },
}

impl WriteEvent {
    /// The event of a success; `key` is the written object's.
    pub fn success(&self, key: &ObjectKey) -> EventReport {
        let name = &key.name;
        let (reason, message) = match &self.operation {
            ReplicaOperation::Create => ("SuccessfulCreate", format!("Created pod: {name}")),
            ReplicaOperation::Delete => ("SuccessfulDelete", format!("Deleted pod: {name}")),
            ReplicaOperation::Scale { from: None, to } => {
                ("ScalingReplicaSet", format!("Scaled up replica set {name} to {to}"))
            }
            ReplicaOperation::Scale { from: Some(from), to } => {
                let direction = if to > from { "up" } else { "down" };
                let message = format!("Scaled {direction} replica set {name} to {to} from {from}");
                ("ScalingReplicaSet", message)
            }
            ReplicaOperation::Other { done: (reason, message), .. } => (*reason, message.clone()),
        };
        self.report(EventKind::Normal, reason, message)
    }

    /// The event of a failure.
    pub fn failure(&self, error: &str) -> Option<EventReport> {
        let (reason, message) = match &self.operation {
            ReplicaOperation::Create => ("FailedCreate", format!("Error creating: {error}")),
            ReplicaOperation::Delete => ("FailedDelete", format!("Error deleting: {error}")),
            ReplicaOperation::Scale { from: None, .. } => {
                ("ReplicaSetCreateError", format!("Failed to create new replica set: {error}"))
            }
            ReplicaOperation::Scale { .. } => return None,
            ReplicaOperation::Other { failed: (reason, message), .. } => {
                (*reason, format!("{message}{error}"))
            }
        };
        Some(self.report(EventKind::Warning, reason, message))
    }

    fn report(&self, kind: EventKind, reason: &'static str, mut message: String) -> EventReport {
        if let Some((end, _)) = message.char_indices().nth(MESSAGE_MAX) {
            message.truncate(end);
        }
        EventReport { about: self.about.clone(), kind, reason: reason.into(), message }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_are_those_of_kubernetes() {
        let event = |operation| WriteEvent { about: ObjectReference::default(), operation };
        let done = |operation| {
            let event = event(operation).success(&ObjectKey::new("ns", "web-1"));
            format!("{} {}", event.reason, event.message)
        };
        assert_eq!(done(ReplicaOperation::Create), "SuccessfulCreate Created pod: web-1");
        assert_eq!(done(ReplicaOperation::Delete), "SuccessfulDelete Deleted pod: web-1");
        let new = done(ReplicaOperation::Scale { from: None, to: 3 });
        assert_eq!(new, "ScalingReplicaSet Scaled up replica set web-1 to 3");
        let down = done(ReplicaOperation::Scale { from: Some(3), to: 0 });
        assert_eq!(down, "ScalingReplicaSet Scaled down replica set web-1 to 0 from 3");
        let failed = event(ReplicaOperation::Create).failure("no").expect("an event");
        assert_eq!((&*failed.reason, &*failed.message), ("FailedCreate", "Error creating: no"));
        let long = event(ReplicaOperation::Create).failure(&"é".repeat(5000)).expect("an event");
        assert_eq!(long.message.chars().count(), MESSAGE_MAX);
    }
}
