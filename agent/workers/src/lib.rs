//! io: one task per pod, and the dispatcher that starts the tasks and brings them what happens.

#![cfg_attr(not(test), warn(clippy::arithmetic_side_effects))]

mod action_context;
mod action_result;
mod admit;
mod dispatcher;
mod execute_action;
#[cfg(test)]
mod extremes;
pub mod garbage;
mod hooks;
mod in_flight;
mod inbox;
pub mod node_pods;
pub mod pod_context;
#[cfg(test)]
mod pod_field_coverage;
mod probe_limiter;
mod probe_worker;
pub mod probes;
mod pulling;
pub mod restart_limiter;
pub mod runtime_limiter;
mod shown_status;
pub mod status_patch;
mod termination_message;
#[cfg(any(test, feature = "testing"))]
pub mod test_support;
#[cfg(test)]
mod tests {
    pub mod simulation;
}
mod transitions;
mod worker;

pub use dispatcher::{FoundAtStart, Pods};
