//! Servers for tests: [`StubServer`] answers requests by a function, [`StubProxy`] passes connections on; in the tests of this crate, `Server` waits until
//! the test gives each response.

#![allow(clippy::expect_used, reason = "of tests only")]

mod stub_proxy;
mod stub_server;

#[cfg(test)]
mod server;

#[cfg(test)]
pub(crate) use server::{Authority, PATIENCE, ReceivedRequest, Relay, Server, names, skip};
pub use stub_proxy::StubProxy;
pub use stub_server::{StubRequest, StubServer, json_response};
