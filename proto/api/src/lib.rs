//! Pure: the API's objects, as typed messages and as descriptors, made from one schema.
//!
//! - [`core`], [`apps`], [`meta`] and the other groups: one module a version, one struct a message,
//!   with JSON by the API's own rules ([`codec`]) and Protobuf by `prost`'s [`Message`] trait.
//! - [`Kind`], [`Resource`], [`List`]: what kinds have in common, and how a whole object with its
//!   `apiVersion` and `kind` is written and read ([`object`]).
//! - [`schema`]: every message of every group as static tables, for code that works on any kind.
//! - [`Quantity`], [`IntOrString`], [`Time`], [`MicroTime`], [`RawJson`]: the API's own scalars.
//! - [`ObjectKey`], [`Collection`], [`event_report`], [`merge_patch`]: names and paths of objects, events
//!   about them and changes of them, as values.
//! - [`selectors`], [`status`], [`yaml`], [`names`], [`node_labels`], [`duration`], [`Cidr`], [`AddressRanges`], [`uri`],
//!   [`sha256_hex`].
//!
//! Names on the wire become `snake_case`: `hostIP` is `host_ip`, `podIPs` is `pod_ips`, `type` is
//! `type_`. A field that is absent or present by meaning is an `Option`; inlined messages are fields
//! named after their type (`volume.volume_source.config_map`).

mod address_range;
mod cidr;
pub mod codec;
mod collection;
mod digest;
pub mod dns_names;
pub mod duration;
pub mod event_report;
mod int_or_string;
pub mod merge_patch;
pub mod migration;
pub mod names;
pub mod node_labels;
pub mod object;
mod object_key;
pub mod quantity;
mod raw;
pub mod schema;
pub mod selectors;
pub mod status;
pub mod steps;
pub mod time;
pub mod uri;
pub mod yaml;

pub use address_range::{AddressRange, AddressRangeError, AddressRanges, TooManyRanges};
pub use cidr::{Cidr, CidrError};
pub use collection::Collection;
pub use digest::sha256_hex;
pub use int_or_string::IntOrString;
pub use object::{Kind, List, Resource};
pub use object_key::ObjectKey;
pub use prost::Message;
pub use quantity::Quantity;
pub use raw::{RawJson, StringList};
pub use time::{MicroTime, Time};

/// One module a group version, made by `build.rs` from `schema/<group>_<version>.tsv`.
macro_rules! groups {
    ($($group:ident { $($version:ident = $file:literal),+ })+) => {$(
        #[doc = concat!("The group `", stringify!($group), "`.")]
        pub mod $group {$(
            #[doc = concat!("Messages of `", $file, "`; the table is `schema/", $file, ".tsv`.")]
            #[allow(unused_imports, clippy::too_many_lines, reason = "generated code")]
            pub mod $version {
                use crate::codec::{Field as _, Object, json, protobuf};
                use prost::bytes::{Buf, BufMut};
                use prost::encoding::{DecodeContext, WireType};
                use prost::DecodeError;
                use serde::{de::MapAccess, ser::SerializeMap};
                use std::collections::BTreeMap;

                include!(concat!(env!("OUT_DIR"), "/", $file, ".rs"));
            }
        )+}
    )+};
}

groups! {
    meta { v1 = "meta_v1" }
    core { v1 = "core_v1" }
    apps { v1 = "apps_v1" }
    authentication { v1 = "authentication_v1" }
    authorization { v1 = "authorization_v1" }
    autoscaling { v1 = "autoscaling_v1", v2 = "autoscaling_v2" }
    batch { v1 = "batch_v1" }
    certificates { v1 = "certificates_v1" }
    coordination { v1 = "coordination_v1" }
    discovery { v1 = "discovery_v1" }
    events { v1 = "events_v1" }
    networking { v1 = "networking_v1" }
    node { v1 = "node_v1" }
    policy { v1 = "policy_v1" }
    rbac { v1 = "rbac_v1" }
    scheduling { v1 = "scheduling_v1" }
    storage { v1 = "storage_v1" }
}
