//! io: what every program shares: its start (flags, configuration file, exit codes), what it reports (logs, metrics, `/healthz`, `/livez`, `/readyz`,
//! `/statusz`), its stop (drain), the keyed work queue, shares of blocking threads, write coalescing, connection limits, and what of the host
//! needs care (private files, the table of mounts).
//!
//! A program's `main` is [`program::run`], whose work hands an async function to [`runtime::run`].

pub mod admin;
pub mod backoff;
pub mod blocking_shares;
pub mod config;
pub mod connections;
pub mod drain;
pub mod exit;
pub mod feature_gates;
pub mod flags;
pub mod go_duration;
pub mod health;
pub mod heap;
pub mod leader_flags;
pub mod log;
pub mod memory_file;
pub mod metrics;
pub mod mountinfo;
pub mod panics;
pub mod private_files;
pub mod program;
pub mod rate;
pub mod ready;
pub mod reference;
pub mod runtime;
pub mod statusz;
mod systemd;
pub mod tls;
mod unused_flags;
pub mod work_queue;
pub mod write_coalescing;

mod sys;
