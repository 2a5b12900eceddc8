//! Pure: from Services and EndpointSlices to the ruleset of one node, and from each change to the elements that
//! differ.
//!
//! [`localise`] turns API objects into the node-local [`model`]; nothing below it sees an API object. [`Dataplane`]
//! holds the model and turns changes into a [`Transaction`] whose size follows the change, not the table. [`layout`]
//! defines the tables, [`trace`] evaluates them for a packet.

#![cfg_attr(not(test), warn(clippy::arithmetic_side_effects))]

pub mod model;

mod announced_addresses;

mod hash;

pub mod budget;

pub mod packed;

pub mod localise;

pub mod endpoint_selection;

pub mod layout;

pub mod compile;

pub mod frontend_owners;

pub mod transaction;

mod dataplane;
pub use dataplane::{Dataplane, IsolateFn, Pass};
pub use transaction::Transaction;

pub mod counters;

pub mod diff;

pub mod compare;

pub mod health;

pub mod node_ports;

pub mod stale;

mod stale_flows;

pub mod stale_flow_log;

pub mod table_swap;

pub mod trace;
