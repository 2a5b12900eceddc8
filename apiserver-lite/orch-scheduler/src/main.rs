//! bin: gives every pod a node. What fits is decided in [`filter`], what fits best in [`score`], when to try again
//! in [`backoff_queue`]; all pure. [`scheduling_cycle`] takes the pods that have no node through them, and binds.
//!
//! ```text
//!   watches ──▶ pods, nodes ──▶ scheduling cycle: for each pending pod  filter ─▶ score ─▶ bind
//!                  ▲                     │ nothing fits: event, condition, wait
//!                  └── bindings ◀────────┘
//! ```

// Numbers here come from objects that others write.
#![cfg_attr(not(test), warn(clippy::arithmetic_side_effects))]

mod app;
mod backoff_queue;
mod config;
#[cfg(test)]
mod extremes;
mod filter;
mod metrics;
mod node_info;
mod nodes;
mod pod_affinity;
mod pod_info;
mod ports;
mod scheduling_cycle;
mod score;
mod stores;
mod volumes;

use std::process::ExitCode;

use proto_daemon::exit::{conclude, parse_flags};
use proto_daemon::runtime::{self, Threads};

fn main() -> ExitCode {
    proto_daemon::panics::install();
    match parse_flags() {
        Ok(flags) => conclude("orch-scheduler", runtime::run(Threads::One, app::run(flags))),
        Err(code) => code,
    }
}
