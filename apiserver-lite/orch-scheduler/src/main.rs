//! bin: assigns pods to nodes. What it decides lies in `apiserver-scheduling`; [`scheduling_cycle`] applies that to the pending pods and binds,
//! [`backoff_queue`] times retries, and [`cycle_trigger`] starts a cycle.
//!
//! ```text
//!   watches ──▶ pods, nodes ──▶ scheduling cycle: for each pending pod  filter ─▶ score ─▶ bind
//!                  ▲                     │ no feasible node: event, condition, back-off
//!                  └── bindings ◀────────┘
//! ```

// Numbers come from API objects.
#![cfg_attr(not(test), warn(clippy::arithmetic_side_effects))]

mod app;
mod backoff_queue;
mod config;
mod cycle_trigger;
mod extenders;
mod isolate_pod;
mod metrics;
mod scheduling_cycle;
mod selector_informers;
mod storage_informers;

use std::process::ExitCode;

use proto_daemon::program;
use proto_daemon::runtime::{self, Threads};

fn main() -> ExitCode {
    program::run("orch-scheduler", proto_daemon::build_info!(), app::describe, |flags| {
        runtime::run(Threads::One, app::run(flags))
    })
}
