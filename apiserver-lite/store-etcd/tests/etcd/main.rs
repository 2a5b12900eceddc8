//! Stores on a real etcd. Where there is none each test prints SKIPPED.
#![allow(
    clippy::expect_used,
    clippy::unwrap_used,
    clippy::panic,
    reason = "a test that cannot go on has failed"
)]

mod access;
mod churn;
mod etcd_process;
mod failures;
mod line;
mod members;
#[path = "../../../store/tests/histories/order.rs"]
mod order;
mod restored;
mod servers;
mod support;
