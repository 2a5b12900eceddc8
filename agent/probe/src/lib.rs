//! io: network probes of pods: HTTP, TCP, gRPC. Exec probes are run by the container runtime.
//!
//! Every connection is used once and closed with a reset, so that a probe leaves no port of the node in TIME_WAIT; responses are
//! read up to a bound; redirects to other hosts are not followed. Names of hosts are looked up by few threads of their own ([`NameLookups`]).

#![cfg_attr(not(test), warn(clippy::arithmetic_side_effects))]

mod connection_tasks;
mod grpc;
mod http;
mod lookup;
mod prober;
mod run;
mod tcp;
mod tls;

pub use http::{GetError, Reply, get};
pub use lookup::{NameLookups, PodKey};
pub use prober::{ANSWER_BYTES, Prober};
pub use run::run_probe;
