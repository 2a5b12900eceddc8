//! Pure: the names of a cluster, and what a resolver for pods answers.
//!
//! [`model`] is what names are made of, taken from Services and EndpointSlices; [`Zone`] holds it and answers
//! questions; [`message`] turns answers into messages of the size that the asker can take; [`cache`] remembers
//! what other servers answered; [`resolv_conf`] reads who those are. Sockets, clocks and dice lie in
//! `proxy-nameserver`.

pub mod cache;

pub mod message;

pub mod model;

pub mod resolv_conf;

mod address_owners;
mod zone;
pub use zone::{Outcome, Reply, Zone, ZoneError};
