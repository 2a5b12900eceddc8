//! Pure: the generic object engine of the API server. It knows objects as trees checked against descriptors.
//!
//! One path serves every kind: bytes are decoded into a tree ([`Value`]), the tree is checked against the kind's
//! descriptor, defaulted, changed by patches, validated, and encoded again, in JSON or Protobuf, to the byte as
//! kube-apiserver writes it. A kind adds only what is special about it: defaults, validation, what an update
//! may touch, columns.
//!
//! ```text
//!  JSON ──┐                                                          ┌── JSON      (write)
//!  YAML ──┼─> tree ── conform ──> Object ── defaults ── validate ────┼── Protobuf  (wire)
//!  Proto ─┘             ^            │                               └── Table     (table)
//!                       └── patch <──┘
//! ```
//!
//! How a server uses it:
//!
//! - [`Engine::new`] once per process; [`Engine::resource`] and [`Engine::kind`] find a [`Kind`].
//! - [`Engine::decode`] a body, [`Engine::default`] it, fill the metadata in ([`Object`] has accessors),
//!   [`Engine::validate_create`], then [`Engine::encode_json`] and [`Engine::encode_protobuf`].
//! - an update: default the request, lay it over the stored object as the subresource allows
//!   ([`update::merge_for_update`]), then [`Engine::validate_update`].
//! - a patch: [`Engine::patch`], then as an update.
//! - lists, tables and watch events are concatenations of bytes that exist already: [`list`].
//! - selectors: [`fields::supported`], [`fields::value_of`] and [`Object::labels`] need no typed object.
//!
//! Not here: clocks, randomness and storage. Names, times and versions come in as arguments.
//! Server-side apply will be one more module beside [`patch`]; [`openapi`] makes the documents that clients ask for.

pub mod actors;
pub mod conform;
pub mod defaults;
mod engine;
pub mod fields;
pub mod list;
mod object;
pub mod openapi;
pub mod patch;
#[cfg(test)]
mod proportion;
pub(crate) mod scalar;
pub mod shape;
pub mod table;
pub mod update;
pub mod validate;
pub mod value;
pub mod wire;
mod write;

pub use engine::{DecodeError, Decoded, Engine, Format, Strictness};
pub use object::{Kind, Object};
pub use patch::{PatchError, PatchType};
pub use validate::{FieldError, FieldErrors};
pub use value::{Map, Value};
