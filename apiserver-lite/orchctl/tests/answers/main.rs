//! What kubectl lacks, against real objects of an API server: trees, reasons, timelines; and the proxy, events as they happen, dumps.

#![allow(clippy::expect_used, clippy::panic, reason = "this file is a test")]

mod escapes;
mod events;
mod proxy;
mod reasons;
mod server;
mod traces;
mod trees;
