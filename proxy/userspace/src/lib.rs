//! Io: forwards services by sockets of this process, for hosts whose kernel cannot: it has no nf_tables, or we may
//! not program it.
//!
//! ```text
//!  LocalService, LocalSlice ──▶ Plan (pure) ──▶ Ports: one listener a frontend ──▶ streams, datagrams
//!                                    └────────▶ ServiceAddresses: cluster addresses made local, on a link of ours
//! ```
//!
//! Which endpoints a frontend has is decided as for the kernel ([`proxy_rules::choose`]); which of them a connection
//! gets is decided here ([`Balance`]): in turn, by the client's address, or the one that the client had.
//!
//! What is not as with the kernel: endpoints see the node as their client; when this process goes, so do all
//! connections; when a service goes, its addresses go, and connections to them; traffic that a policy would drop is
//! refused; interfaces do not tell whose traffic it is (`BridgeInterface`, `InterfaceNamePrefix`: the cluster's blocks
//! do); of SCTP, messages arrive each for itself and in order, by the first stream, and it takes a host with sockets of
//! that kind: without them such ports are not served, which is said in the log and on `/statusz`.
//!
//! Alongside the kernel's tables the same sockets serve node ports at loopback addresses ([`Forwarder::of_node_ports`]):
//! what comes from there the kernel sends nowhere else, unless `route_localnet` opens the host.

mod addresses;
mod balance;
mod connection_limiter;
mod datagrams;
mod forwarder;
mod metrics;
mod plan;
mod ports;
mod sockets;
mod streams;

pub use addresses::{AddressError, ServiceAddresses};
pub use balance::Balance;
pub use forwarder::{Forwarder, ForwarderLimits, Options};
pub use metrics::ForwardMetrics;
pub use plan::{Frontend, FrontendBackends, Plan, Sctp};
pub use ports::Ports;
