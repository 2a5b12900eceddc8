//! io: device plugins, and the pod resources API.
//!
//! ```text
//!  plugin ──Register──► registration ──► plugins ◄── allocate, prefer, prepare ── the agent
//!  plugin ◄─ListAndWatch── connection ──────┘  └──► Inventory, a version on a watch
//! monitor ──List──► resources ──► AllocationSource (the agent's)
//! ```
//!
//! `agent_node::managers` decides which devices a container gets; this crate only makes the calls.

mod socket;

pub mod plugins;
pub mod registration;
pub mod resources;

pub use plugins::{AdoptError, DeviceError, Plugins, RegisterError};
