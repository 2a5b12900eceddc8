//! io: volumes of CSI drivers on this node.
//!
//! ```text
//! plugins_registry/*.sock ──► registration ──► Drivers (by name: connection, capabilities, node id)
//!                                                 │
//! Persistent, secrets, tokens ──► CsiNode ── stage ─► publish ─► mount below the pod's directory
//!                                    │       ▲ request: what goes into the calls (pure)
//!                                    └── record: a file next to each mount, written before the call that it protects
//! ```
//!
//! A volume is staged once per node and published once per pod; it is unstaged when no pod has it published. The users of a
//! volume are read from the records on disk, so a restarted agent knows them. Every call has a deadline, and calls for different
//! volumes are independent.

pub mod driver;
pub mod drivers;
pub mod mounts;
pub mod node;
pub mod record;
pub mod registration;
pub mod request;
pub mod retry_times;

pub use driver::{CallError, Driver};
pub use drivers::Drivers;
pub use node::{CsiError, CsiNode};
