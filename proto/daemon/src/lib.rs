//! io: what every program of the project shares with every other: how it is started (flags,
//! configuration file, exit codes), how it tells what it does (tracing, metrics, `/healthz`,
//! `/livez`, `/readyz`, `/statusz`), how it stops (drain), the two shapes in which it repeats work (the
//! reconcile loop and the keyed work queue), how its small writes go together (gathering), and what of
//! the host needs care (private files, the table of mounts).
//!
//! A program's `main` is three lines: parse the flags with [`exit::parse_flags`], hand an async
//! function to [`runtime::run`], and return what [`exit::conclude`] makes of its result.

pub mod admin;
pub mod backoff;
pub mod config;
pub mod connections;
pub mod drain;
pub mod exit;
pub mod feature_gates;
pub mod flags;
pub mod gathering;
pub mod go_duration;
pub mod health;
pub mod leader_flags;
pub mod log;
pub mod metrics;
pub mod mountinfo;
pub mod panics;
pub mod private_files;
pub mod rate;
pub mod ready;
pub mod reconcile;
pub mod runtime;
pub mod statusz;
pub mod tls;
pub mod work_queue;

mod sys;
