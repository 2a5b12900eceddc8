//! What the whole-system tests share: a runner that counts what ran, failed and could not run, and waiting by condition.

pub mod hour;
pub mod runner;
pub mod runtime_calls;
pub mod transcript;
pub mod wait;
