//! Io: forwards Services by sockets of this process, on hosts whose kernel has no nf_tables or does not allow it.
//!
//! ```text
//!  LocalService, LocalSlice ──▶ Plan (pure) ──▶ Ports: one listener per frontend ──▶ streams, datagrams
//!                                    └────────▶ ServiceAddresses: cluster IPs as local addresses, on a link of their own
//! ```
//!
//! The endpoints of a frontend are selected as in nftables mode ([`proxy_rules::endpoint_selection`]); the endpoint of
//! a connection is chosen here ([`Balance`]): round robin, consistent hashing, or session affinity.
//!
//! Differences from nftables mode: endpoints see the node's address as the client; connections end with the process;
//! when a Service is removed its addresses and the connections to them are; traffic that a policy would drop is
//! refused; interfaces do not identify pods (instead of `BridgeInterface` and `InterfaceNamePrefix` the cluster CIDRs
//! do); SCTP messages are forwarded one by one in order on the first stream, and only if the host has SCTP sockets:
//! otherwise such ports are not served, which is logged and shown on `/statusz`.
//!
//! In nftables mode the same sockets serve node ports at loopback addresses ([`Forwarder::of_node_ports`]): the kernel
//! does not route packets from loopback addresses to other hosts unless `route_localnet` is set, which exposes the
//! host.

mod addresses;
mod backend_picker;
mod balance;
mod connection_limiter;
mod datagrams;
mod forwarder;
mod forwarder_state;
mod limits;
mod listening;
mod metrics;
mod plan;
mod ports;
mod refusals;
mod sockets;
mod streams;

pub use addresses::remove_leftovers;
pub use balance::Balance;
pub use forwarder::{Forwarder, Options};
pub use limits::ForwarderLimits;
pub use metrics::ForwardMetrics;
pub use plan::{Frontend, FrontendBackends, Plan, Sctp};
pub use ports::Ports;
