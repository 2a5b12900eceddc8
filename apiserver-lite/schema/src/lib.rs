//! Pure: the generic object engine of the API server. Objects are trees checked against descriptors.
//!
//! All kinds share one path: bytes are decoded into a tree ([`Value`]), which is checked against the kind's descriptor, defaulted,
//! patched, validated and encoded in JSON or Protobuf, byte for byte as kube-apiserver writes it. A kind adds only its own
//! defaults, validation, update rules and table columns.
//!
//! ```text
//!  JSON ──┐                                                          ┌── JSON      (write)
//!  YAML ──┼─> tree ── conform ──> Object ── defaults ── validate ────┼── Protobuf  (wire)
//!  Proto ─┘             ^            │                               └── Table     (table)
//!                       └── patch <──┘
//! ```
//!
//! Use in a server:
//!
//! - [`Engine::new`] once per process; [`Engine::resource`] and [`Engine::kind`] find a [`Kind`].
//! - create: [`Engine::decode`] the body, [`Engine::default`] it, fill in the metadata with the accessors of [`Object`],
//!   [`Engine::validate_create`], then [`Engine::encode_json`] and [`Engine::encode_protobuf`].
//! - update: default the request, merge it into the stored object ([`update::merge_for_update`]), then
//!   [`Engine::validate_update`].
//! - patch: [`Engine::patch`], then as an update.
//! - lists and watch events are concatenated from encoded objects: [`list`].
//! - selectors: [`fields::supported`], [`fields::value_of`] and [`Object::labels`] need no typed object.
//!
//! No clock, randomness or storage: names, times and versions are arguments. Server-side apply is the crate `managed-fields`, over the trees of
//! [`Engine::parse_document`], [`Engine::written_document`] and [`Engine::object_of`]. [`openapi`] makes the OpenAPI documents.

#![cfg_attr(not(test), warn(clippy::arithmetic_side_effects))]

pub mod actors;
pub mod defaults;
mod engine;
mod enums;
mod field_errors;
mod field_gates;
pub mod fields;
mod gated_fields;
mod json_writer;
pub mod list;
mod object;
pub mod openapi;
pub mod patch;
#[cfg(test)]
mod proportion;
pub(crate) mod scalar;
pub mod shape;
pub mod shape_check;
pub mod table;
pub mod update;
pub mod validate;
pub mod value;
pub mod wire;

pub use engine::{DecodeError, DecodedObject, Engine, Format, Strictness};
pub use field_gates::{FieldGate, FieldGates};
pub use gated_fields::DroppedField;
pub use object::{Kind, Object, custom};
pub use patch::{PatchError, PatchType};
pub use validate::certificates as certificate_requests;
pub use validate::{FieldError, FieldErrors};
pub use value::{Map, Value};
