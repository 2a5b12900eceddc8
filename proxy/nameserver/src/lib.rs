//! Io: a resolver for the pods of a node. Names of the cluster are answered from a [`SharedZone`], others by the
//! servers that the node itself asks, and kept for a while.
//!
//! ```text
//!  Listener                     Resolver                                       Upstreams
//!  datagram or stream ──ask──▶  zone complete? ──no──▶ wait, bounded
//!  from whom we allow           inside the zone ─────▶ answer at once
//!                               kept from before ────▶ answer at once
//!                               else ────────────────▶ one question for all ──▶ datagram, stream if cut
//!                                                      who ask the same        next server on failure
//! ```
//!
//! Everything has a bound: datagrams that wait for other servers, streams in all and for each asker, questions to
//! other servers, what is kept. Beyond a bound the answer is a failure at once, never a queue.

mod client_limiter;
mod metrics;
mod resolver;
mod server;
mod shared;
mod upstream;

pub use metrics::NameMetrics;
pub use resolver::Resolver;
pub use server::{Admission, BindError, Listener};
pub use shared::SharedZone;
pub use upstream::{UpstreamError, Upstreams};
