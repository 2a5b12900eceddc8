//! Events about the Node object.

use proto_api::core::v1::ObjectReference;
use proto_api::event_report::EventKind;
use proto_client::events::Recorder;

/// Records events of the node. Cheap to clone. Without an API server they are logged.
#[derive(Clone, Debug)]
pub struct NodeEvents {
    recorder: Option<Recorder>,
    about: ObjectReference,
}

impl NodeEvents {
    /// Events about the Node object named `node`.
    pub fn new(recorder: Option<Recorder>, node: &str) -> Self {
        // The uid is the node's name: clients look up node events by it.
        let about = ObjectReference {
            kind: "Node".to_owned(),
            name: node.to_owned(),
            uid: node.to_owned(),
            ..ObjectReference::default()
        };
        Self { recorder, about }
    }

    /// Records an event; never blocks.
    pub fn record_event(&self, kind: EventKind, reason: &'static str, message: impl Into<String>) {
        let message = message.into();
        match &self.recorder {
            Some(recorder) => recorder.event(&self.about, kind, reason, message),
            None => tracing::info!(node = self.about.name, reason, message, "node event recorded"),
        }
    }
}
