//! bin: assigns pods to nodes. [`filter`] selects feasible nodes, [`score`] ranks them, and [`backoff_queue`] times retries; all pure.
//! [`scheduling_cycle`] applies them to the pending pods and binds; [`cycle_trigger`] starts a cycle.
//!
//! ```text
//!   watches ──▶ pods, nodes ──▶ scheduling cycle: for each pending pod  filter ─▶ score ─▶ bind
//!                  ▲                     │ no feasible node: event, condition, back-off
//!                  └── bindings ◀────────┘
//! ```

// Numbers come from API objects.
#![cfg_attr(not(test), warn(clippy::arithmetic_side_effects))]

mod amounts;
mod app;
mod backoff_queue;
mod claim_use;
mod config;
mod cycle_trigger;
mod disks;
mod filter;
mod host_ports;
mod metrics;
mod node_info;
mod node_selector;
mod nodes;
mod placement;
mod pod_affinity;
mod pod_info;
mod refusal;
mod scheduling_cycle;
mod score;
mod storage_informers;
mod taints;
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

#[cfg(test)]
mod extremes;
