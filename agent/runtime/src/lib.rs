//! io: the container runtime of the node.
//!
//! [`Runtime`] is what a pod's task needs; [`cri::CriRuntime`] implements it over CRI v1 for any CRI runtime. What CRI lacks
//! comes from containerd where it is the runtime: [`events`] and [`import`]. Errors are returned to the caller, who decides on
//! retries. The only wait is for a call that a previous agent left in flight ([`connection_keeper`]).

#![cfg_attr(not(test), warn(clippy::arithmetic_side_effects))]

pub mod runtime;

pub mod connection_keeper;
pub mod cri;
pub mod events;

pub mod image;
pub mod import;
pub mod memory;
pub mod observe;
#[allow(clippy::arithmetic_side_effects, reason = "it computes on what it is made of alone")]
pub mod pause;

#[cfg(feature = "testing")]
pub mod contract;
#[cfg(feature = "testing")]
pub mod fake;
#[cfg(feature = "testing")]
pub mod test_containerd;

pub use runtime::{
    CallFuture, ContainerAccess, ContainerLogs, ContainerRuntime, ImageRuntime, PodReader, Runtime,
    RuntimeError, RuntimeStatus, SandboxRuntime, UsageReader,
};
