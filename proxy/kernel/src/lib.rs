//! Io: netlink sockets to the kernel's netfilter, and sysctls.
//!
//! [`Session`] implements the protocol: one transaction or dump at a time, with responses matched to messages.
//! [`Transport`] sends and receives: [`Socket`] in programs, [`proxy_netfilter::fake::FakeKernel`] in tests.

#![cfg_attr(not(test), warn(clippy::arithmetic_side_effects))]

mod transport;
pub use transport::{FakeTransport, OpenError, Socket, Transport};

mod kernel_features;
pub use kernel_features::KernelFeatures;

mod session;
pub use session::{CommitError, QueryError, Session};

mod packet_log;
pub use packet_log::{LogError, PacketLog};

mod nft_monitor;
pub use nft_monitor::NftMonitor;

pub mod sysctl;
