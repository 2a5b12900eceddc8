//! io: volumes that drivers of the node provide, over the container storage interface.
//!
//! ```text
//! plugins_registry/*.sock ──► registration ──► Drivers (by name: connection, capabilities, node id)
//!                                                 │
//! Persistent, secrets, tokens ──► CsiNode ── stage ─► publish ─► mount below the pod's directory
//!                                    │       ▲ request: what goes into the calls (pure)
//!                                    └── record: a file beside each mount, written before the call that it protects
//! ```
//!
//! A volume is staged once a node and published once a pod; it is unstaged when nobody has it published any more. Who has it is read
//! from the records, so that a restart knows what the process before knew. Every call has a deadline, and no call of one volume
//! waits for a call of another.

pub mod driver;
pub mod drivers;
pub mod mounts;
pub mod node;
pub mod offload;
pub mod record;
pub mod registration;
pub mod request;
pub mod waits;

pub use driver::{CallError, Driver};
pub use drivers::Drivers;
pub use node::{CsiError, CsiNode};
pub use offload::offload;
