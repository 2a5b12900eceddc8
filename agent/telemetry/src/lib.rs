//! io: what the agent reports about itself: metrics with Kubernetes' names, the steps of each pod's
//! start, events of the node.

pub mod metrics;
pub mod node_events;
pub mod timeline;
