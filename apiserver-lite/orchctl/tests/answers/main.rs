//! What kubectl lacks, against real objects of an API server: trees, reasons, timelines; and the proxy.

#![allow(clippy::expect_used, clippy::panic, reason = "this file is a test")]

mod proxy;
mod reasons;
mod server;
mod trees;
