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

use proto_daemon::exit::{conclude, parse_flags};
use proto_daemon::reference;
use proto_daemon::runtime::{self, Threads};

fn main() -> ExitCode {
    proto_daemon::panics::install();
    let version = env!("CARGO_PKG_VERSION");
    if let Some(code) = reference::answer::<app::SchedulerFlags>(version, app::describe) {
        return code;
    }
    match parse_flags(proto_daemon::build_info!()) {
        Ok(flags) => conclude("orch-scheduler", runtime::run(Threads::One, app::run(flags))),
        Err(code) => code,
    }
}
