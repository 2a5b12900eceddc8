//! bin: whole clusters on one machine, for people (`hack/up`, `hack/down`) and for tests.
//!
//! A cluster lives in one directory and owns one bridge on the host. Every node has its own network, mount and host-name
//! namespaces, its own containerd, orchlet and orch-proxy; the control plane runs in those of the first node. A
//! supervisor process starts the programs in order, restarts what dies, and adopts what is still running when it was
//! itself killed.
//!
//! ```text
//! cluster up ──► Spec (cluster.json) ──► programs(): what runs where ──► supervisor ──► processes
//!      │                                                                     │
//!      └── waits for: API ready, nodes Ready, demo answering          holder per node keeps its namespaces
//! cluster down ─► supervisor stops, containers killed by cgroup, namespaces emptied, bridge and files removed
//! ```
//!
//! Invariants: everything on the host carries a name derived from the directory, so `down` works after any crash and
//! with a lost directory; `up` and `down` can be repeated at any point; nothing is signalled that is not proven ours by
//! process start time, cgroup or namespace.

pub mod apply;
pub mod certificates;
pub mod commands;
pub mod demo;
pub mod directory;
pub mod down;
pub mod files;
pub mod images;
pub mod namespaces;
pub mod network;
pub mod program_watch;
pub mod programs;
pub mod progress;
pub mod spec;
pub mod supervisor;
mod sys;
pub mod up;

pub use apiserver_bootstrap::{access, processes};
