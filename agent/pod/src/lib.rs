//! Pure lifecycle of a pod. Input: its desired state, the state that the runtime shows, the record of what cannot be observed,
//! and the time. Output: a status, a list of actions, the time of the next plan, and the new record.
//!
//! ```text
//! DesiredPod ──┐
//! ObservedPod ─┤                      ┌─ PodStatus   what the API shows
//! PodRecord ───┼─► lifecycle::plan ───┼─ Vec<Action> actions to execute now
//! Now ─────────┘                      ├─ wake_at     when time alone changes the plan
//!                                     └─ PodRecord   input of the next call, or of the next process
//! ```
//!
//! Nothing here reads a clock, a file or a socket. Numbers from pods and the runtime are not trusted: arithmetic on them
//! saturates.

#![cfg_attr(not(test), warn(clippy::arithmetic_side_effects))]

pub mod lifecycle;
pub mod plan;

pub mod desired;
pub mod observed;
pub mod phase;
pub mod record;
mod seconds;

pub mod backoff;
mod ending;
mod start;
mod status;

pub mod bandwidth;
pub mod dns;
pub mod handler;
pub mod probe;
pub mod termination;

pub mod env;
pub mod expand;
pub mod hosts;
pub mod kubelet_adoption;
pub mod node_facts;
pub mod security;
pub mod spec;
pub mod translate;
pub mod translate_error;
pub mod volume_mounts;

pub mod events;
