//! io: keeps the kernel's nf_tables and conntrack in sync with the node-local model.
//!
//! Watches report changes to [`desired`] as [`change_handler::ChangeHandler`]; [`driver`], on a thread of its own, compiles and commits them;
//! [`conntrack_cleanup`] deletes the flows that a commit made stale; [`counters`] reads what the kernel counts.

pub mod change_handler;
pub mod conntrack_cleanup;
pub mod counters;
pub mod desired;
pub mod driver;
pub mod metrics;
pub mod table_swap;
