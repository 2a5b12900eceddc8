//! io: volumes of the node's pods: set up, refreshed and torn down, by CSI drivers, helper programs
//! and projection (`agent_volume`); what the Node object says about them.

pub mod csi_node;
pub mod persistent_volumes;
pub mod volumes;
pub mod volumes_in_memory;
pub mod volumes_in_use;
