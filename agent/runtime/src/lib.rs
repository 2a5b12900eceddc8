//! io: the container runtime of the node, as the agent sees it.
//!
//! [`Runtime`] is what a pod's task needs; [`cri::CriRuntime`] gives it over CRI v1 and so works with any runtime of that
//! interface. What CRI lacks comes from containerd itself where it is the runtime: [`events`] and [`import`].
//! No call here retries: whoever calls knows whether trying again makes sense. A call that an earlier agent has left under way is
//! waited for ([`hold`]).

#![cfg_attr(not(test), warn(clippy::arithmetic_side_effects))]

pub mod runtime;

pub mod connection_keeper;
pub mod cri;
pub mod events;
mod pull_progress;

pub mod image;
pub mod import;
pub mod observe;
#[allow(clippy::arithmetic_side_effects, reason = "it computes on what it is made of alone")]
pub mod pause;

#[cfg(feature = "testing")]
pub mod contract;
#[cfg(feature = "testing")]
pub mod fake;
#[cfg(feature = "testing")]
pub mod test_containerd;

pub use runtime::{Answer, Runtime, RuntimeError};
