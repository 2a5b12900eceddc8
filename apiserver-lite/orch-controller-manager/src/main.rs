//! bin: the cluster's control loops. Each controller is a pure function from what is to what is to be written
//! ([`controllers`]); one queue of tasks ([`keys`]) and one worker ([`reconcile`]) drive them all.
//!
//! ```text
//!   watches ──▶ maps (informers) ──▶ tasks ──▶ queue ──▶ plan ──▶ writes
//!                  ▲                                            │
//!                  └───────────────── API server ◀──────────────┘
//! ```

// Numbers here come from objects that others write.
#![cfg_attr(not(test), warn(clippy::arithmetic_side_effects))]

mod api_writes;
mod app;
mod bootstrap;
mod certificates;
mod controllers;
#[cfg(test)]
mod extremes;
mod garbage;
mod informers;
mod keys;
mod metrics;
mod pods_by_node;
mod reconcile;
mod settings;

use std::process::ExitCode;

use proto_daemon::exit::{conclude, parse_flags};
use proto_daemon::runtime::{self, Threads};

fn main() -> ExitCode {
    proto_daemon::panics::install();
    match parse_flags() {
        Ok(flags) => {
            conclude("orch-controller-manager", runtime::run(Threads::One, app::run(flags)))
        }
        Err(code) => code,
    }
}
