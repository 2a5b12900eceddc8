//! io: network probes of pods: HTTP, TCP, gRPC. Exec probes are run by the container runtime.
//!
//! Every connection is used once and closed with a reset, so that a probe leaves no port of the node in TIME_WAIT; responses are
//! read up to a bound; redirects to other hosts are not followed.

#![cfg_attr(not(test), warn(clippy::arithmetic_side_effects))]

mod grpc;
mod http;
mod prober;
mod run;
mod tcp;
mod tls;

pub use http::{GetError, Reply, get};
pub use prober::{ANSWER_BYTES, Prober};
pub use run::run_probe;
