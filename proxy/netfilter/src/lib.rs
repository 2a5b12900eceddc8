//! Pure: the languages of nf_tables and conntrack as values, and their netlink bytes in both directions.
//!
//! Nothing here opens a socket: `proxy-kernel` sends what [`nft::Batch`] builds and hands back what the
//! kernel answers. The ruleset is decided in `proxy-rules` in terms of [`nft`]'s values; [`fake::FakeKernel`]
//! takes the same bytes as the real kernel and answers by the same rules.

pub mod wire;

pub mod ack;

pub mod nft;

pub mod ct;

pub mod nflog;

pub mod fake;
