//! bin: the controllers of kube-controller-manager. Each is a function from objects to a plan of writes (`apiserver_controllers`). One work queue of
//! reconcile keys ([`keys`]) and one reconciler ([`reconcile`]) run them all; the garbage collector and the signers have caches of their own.
//!
//! ```text
//!   watches ──▶ caches (informers) ──▶ keys ──▶ queue ──▶ plan ──▶ writes
//!                  ▲                                             │
//!                  └───────────────── API server ◀───────────────┘
//! ```

// Numbers come from API objects.
#![cfg_attr(not(test), warn(clippy::arithmetic_side_effects))]

mod app;
mod keys;
mod reconcile;
mod reflectors;
mod settings;

use std::process::ExitCode;

use proto_daemon::program;
use proto_daemon::runtime::{self, Threads};

fn main() -> ExitCode {
    program::run("orch-controller-manager", proto_daemon::build_info!(), app::describe, |flags| {
        runtime::run(Threads::One, app::run(flags))
    })
}
