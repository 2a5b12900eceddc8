//! bin: the controllers of kube-controller-manager. Each is a pure function from objects to a plan of writes ([`controllers`]). One work queue of
//! reconcile keys ([`keys`]) and one reconciler ([`reconcile`]) run them all.
//!
//! ```text
//!   watches ──▶ caches (informers) ──▶ keys ──▶ queue ──▶ plan ──▶ writes
//!                  ▲                                             │
//!                  └───────────────── API server ◀───────────────┘
//! ```

// Numbers come from API objects.
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
