//! io: plugins that offer devices of the node, and the socket on which monitors see who has which.
//!
//! ```text
//!  plugin ──Register──► registration ──► plugins ◄── allocate, prefer, prepare ── the agent
//!  plugin ◄─ListAndWatch── connection ──────┘  └──► Inventory, a version on a watch
//!  monitor ──List──► resources ──► Shares (the agent's)
//! ```
//!
//! Which devices a container gets is decided in `agent_node::managers`; here are only the calls.

mod connection;
mod socket;

pub mod plugins;
pub mod registration;
pub mod resources;

pub use plugins::{DeviceError, Plugins};
