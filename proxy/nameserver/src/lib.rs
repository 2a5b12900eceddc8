//! Io: a resolver for the pods of a node. Names of the cluster are answered from a [`SharedZone`], others by the
//! servers that the node itself asks, and kept for a while.

mod shared;
pub use shared::SharedZone;
