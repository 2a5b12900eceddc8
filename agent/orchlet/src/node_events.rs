//! What the agent tells about its Node.

use proto_api::core::v1::ObjectReference;
use proto_client::events::{EventKind, Recorder};

/// Tells events of the node. Cheap to clone. Without an API server they go to the log.
#[derive(Clone, Debug)]
pub struct NodeEvents {
    recorder: Option<Recorder>,
    about: ObjectReference,
}

impl NodeEvents {
    /// Events of the node of this name.
    pub fn new(recorder: Option<Recorder>, node: &str) -> Self {
        // The uid is the name: that is what tools look such events up by.
        let about = ObjectReference {
            kind: "Node".to_owned(),
            name: node.to_owned(),
            uid: node.to_owned(),
            ..ObjectReference::default()
        };
        Self { recorder, about }
    }

    /// Tells an event; never waits.
    pub fn tell(&self, kind: EventKind, reason: &'static str, message: impl Into<String>) {
        let message = message.into();
        match &self.recorder {
            Some(recorder) => recorder.event(&self.about, kind, reason, message),
            None => tracing::info!(node = self.about.name, reason, message, "event"),
        }
    }
}
