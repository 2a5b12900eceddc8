//! Events of single writes: what is recorded of one that went well, and of one that did not. Reasons and messages are those of Kubernetes.

use proto_api::core::v1::ObjectReference;
use proto_client::ObjectKey;
use proto_client::events::EventKind;
use proto_client::events::correlate::EventReport;

/// Longest message of an event, characters; Kubernetes' bound.
const MESSAGE_MAX: usize = 1024;

/// The events of one write.
#[derive(Clone, Debug, PartialEq)]
pub struct WriteEvent {
    /// The object that they are about.
    pub about: ObjectReference,
    /// What is done.
    pub act: Act,
}

/// What is done to another object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Act {
    /// A pod is made.
    Create,
    /// A pod is removed.
    Delete,
    /// A replica set gets another number of pods.
    Scale {
        /// How many it had; nothing when it is new.
        from: Option<i64>,
        /// How many it gets.
        to: i64,
    },
}

impl WriteEvent {
    /// The event of a success; `key` is of the object that was written.
    pub fn done(&self, key: &ObjectKey) -> EventReport {
        let name = &key.name;
        let (reason, message) = match self.act {
            Act::Create => ("SuccessfulCreate", format!("Created pod: {name}")),
            Act::Delete => ("SuccessfulDelete", format!("Deleted pod: {name}")),
            Act::Scale { from: None, to } => {
                ("ScalingReplicaSet", format!("Scaled up replica set {name} to {to}"))
            }
            Act::Scale { from: Some(from), to } => {
                let way = if to > from { "up" } else { "down" };
                let message = format!("Scaled {way} replica set {name} to {to} from {from}");
                ("ScalingReplicaSet", message)
            }
        };
        self.said(EventKind::Normal, reason, message)
    }

    /// The event of a failure.
    pub fn failed(&self, error: &str) -> Option<EventReport> {
        let (reason, message) = match self.act {
            Act::Create => ("FailedCreate", format!("Error creating: {error}")),
            Act::Delete => ("FailedDelete", format!("Error deleting: {error}")),
            Act::Scale { from: None, .. } => {
                ("ReplicaSetCreateError", format!("Failed to create new replica set: {error}"))
            }
            Act::Scale { .. } => return None,
        };
        Some(self.said(EventKind::Warning, reason, message))
    }

    fn said(&self, kind: EventKind, reason: &'static str, mut message: String) -> EventReport {
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
        let event = |act| WriteEvent { about: ObjectReference::default(), act };
        let done = |act| {
            let said = event(act).done(&ObjectKey::new("ns", "web-1"));
            format!("{} {}", said.reason, said.message)
        };
        assert_eq!(done(Act::Create), "SuccessfulCreate Created pod: web-1");
        assert_eq!(done(Act::Delete), "SuccessfulDelete Deleted pod: web-1");
        let new = done(Act::Scale { from: None, to: 3 });
        assert_eq!(new, "ScalingReplicaSet Scaled up replica set web-1 to 3");
        let down = done(Act::Scale { from: Some(3), to: 0 });
        assert_eq!(down, "ScalingReplicaSet Scaled down replica set web-1 to 0 from 3");
        let failed = event(Act::Create).failed("no").expect("an event");
        assert_eq!((&*failed.reason, &*failed.message), ("FailedCreate", "Error creating: no"));
        let long = event(Act::Create).failed(&"é".repeat(5000)).expect("an event");
        assert_eq!(long.message.chars().count(), MESSAGE_MAX);
    }
}
