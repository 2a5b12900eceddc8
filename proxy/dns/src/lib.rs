//! Pure: the cluster's DNS zone and the responses to queries of pods.
//!
//! [`model`] reduces Services and EndpointSlices to what names need; [`Zone`] holds it and resolves queries;
//! [`message`] builds responses of the size that the client accepts; [`cache`] keeps upstream responses;
//! [`resolv_conf`] parses the upstream servers. Sockets, clocks and randomness are in `proxy-nameserver`.

pub mod cache;

pub mod message;

pub mod model;

pub mod resolv_conf;

mod address_owners;
mod zone;
pub use zone::{Reply, Resolution, Zone, ZoneError};
