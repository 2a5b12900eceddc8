//! Io: a DNS server for the pods of a node. Names of the cluster are resolved from a [`SharedZone`], others by the
//! node's upstream servers, with a cache.
//!
//! ```text
//!  Listener                     Resolver                                       Upstreams
//!  datagram or stream ──query─▶ zone synced? ──no────▶ wait, bounded
//!  of an admitted client        inside the zone ─────▶ response at once
//!                               cached ──────────────▶ response at once
//!                               else ────────────────▶ one upstream query ───▶ UDP, TCP if truncated
//!                                                      for all that ask it     next server on failure
//! ```
//!
//! Everything is bounded: queries that wait for upstream servers, connections in total and per client, upstream
//! queries, the cache. Beyond a limit the response is a failure at once, never a queue.

mod client_limiter;
mod metrics;
mod resolver;
mod server;
mod shared_zone;
mod upstream;

pub use metrics::NameMetrics;
pub use resolver::Resolver;
pub use server::{BindError, ClientFilter, Listener};
pub use shared_zone::SharedZone;
pub use upstream::{UpstreamError, Upstreams};
