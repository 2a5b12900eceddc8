//! Shared by the tests of whole systems: a runner that counts cases that ran, failed and could not run, and waiting for conditions.

pub mod hour;
pub mod pki;
pub mod processes;
pub mod runner;
pub mod runtime_calls;
pub mod transcript;
pub mod wait;
