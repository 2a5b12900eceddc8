//! Pure: nf_tables and conntrack as values, and their netlink encoding in both directions.
//!
//! Nothing here opens a socket: `proxy-kernel` sends what [`nft::Batch`] builds and returns the kernel's responses.
//! `proxy-rules` builds the ruleset from [`nft`]'s values; [`fake::FakeKernel`] accepts the same bytes as the real
//! kernel.

#![cfg_attr(not(test), warn(clippy::arithmetic_side_effects))]

pub mod wire;

pub mod ack;

pub mod nft;

pub mod ct;

pub mod nflog;

pub mod fake;
