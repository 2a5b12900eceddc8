//! What kubectl lacks, against real objects of an API server: trees, reasons, timelines; and the proxy, events as they happen, dumps, recorded commands.

#![allow(clippy::expect_used, clippy::panic, reason = "this file is a test")]

mod access;
mod causes;
mod debug;
mod escapes;
mod events;
mod everyday;
mod flags;
mod plugins;
mod proxy;
mod raw;
mod reasons;
mod server;
mod timelines;
mod traces;
mod trees;
