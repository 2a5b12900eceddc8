//! Io: the kernel's netfilter, spoken to over one netlink socket per purpose; and its settings in `/proc/sys`.
//!
//! [`Session`] is the protocol: one transaction or one dump at a time, answers matched to messages.
//! [`Transport`] is what carries it: [`Socket`] in programs, [`proxy_netfilter::fake::FakeKernel`] in tests.

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
