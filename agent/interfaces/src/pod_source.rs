//! What the sources of pods report.

use std::sync::Arc;

use agent_pod::desired::PodSource;
use proto_api::core::v1::Pod;

/// A change reported by a pod source.
#[derive(Clone, Debug)]
pub enum PodSourceEvent {
    /// The pod exists in this form; it may be marked for deletion.
    Wants(PodSource, Arc<Pod>),
    /// The source no longer has the pod of this uid.
    Dropped(String),
    /// The source has reported all of its pods once.
    Synced(PodSource),
}
