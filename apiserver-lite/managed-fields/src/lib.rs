//! Pure: field ownership. Who owns which fields of an object, `metadata.managedFields`, and server-side apply, as structured merge and diff
//! and kube-apiserver 1.25 define them.
//!
//! ```text
//!  descriptors ──┐                       fieldsV1 ── FieldSet ── union, difference, ... (set)
//!  OpenAPI ──────┴─> Structure ─┐                       │
//!                               ├─ fields_of, compare, merge, without, extract (tree)
//!  tree of an object ───────────┘                       │
//!                                     owners after an update or an apply (updater)
//!                                                       │
//!  metadata.managedFields <─> ManagedFields ── Request: what kube-apiserver adds (request)
//! ```
//!
//! Use in a server:
//!
//! - [`BuiltInStructures::new`] once per process; [`BuiltInStructures::structure`] finds the [`Structure`] of a kind, [`Structure::from_openapi`] makes that
//!   of a version of a custom resource. [`SingleVersion`] or [`SeveralVersions`] hold them, [`reset_fields`] says what an endpoint resets.
//! - Trees are `Engine::written_document` of objects: of the stored object, of the request's object (decoded and defaulted, before admission
//!   and before the server sets metadata), and of `Object::new(kind)` for [`Request::empty`]. An apply patch is not decoded as an object,
//!   because what it leaves out matters: it is `Engine::parse_document` of the body.
//! - create: [`Request::create`] returns `metadata.managedFields`, [`set_managed_fields`] puts it into the object to store.
//! - update and patches other than apply: [`Request::update`] with the stored and the changed object. After an error the object is stored
//!   without entries. Before the write, when admission is done, [`keep_times`].
//! - apply: [`Request::apply`], then `Engine::object_of` the tree, defaults, [`set_managed_fields`], and on as an update (or as a create, if
//!   the live tree was [`Request::empty`]), without calling [`Request::update`] again. Neither object nor entries changed: no write.
//! - subresources: [`Request::subresource`] is set and [`Request::reset`] that of the endpoint; entries in the request are not used. A Scale
//!   has the owners of [`owners_of_scale`], and [`owners_of_scaled`] brings them back.
//!
//! ```
//! use apiserver_managed_fields::{BuiltInStructures, Request, ResetFields, SingleVersion, reset_fields, set_managed_fields};
//! use apiserver_schema::{Engine, Format, Object, Strictness};
//! use proto_api::Time;
//! use proto_api::names::{Names, Profile};
//! use std::sync::Arc;
//!
//! let engine = Engine::new(Names::new(Profile::Kubernetes));
//! let built_in = BuiltInStructures::new();
//! let kind = engine.kind("", "v1", "ConfigMap").ok_or("no such kind")?;
//! let structure = built_in.structure(kind).ok_or("no such structure")?;
//! let versions = SingleVersion { api_version: kind.api_version.clone(), structure };
//! let reset = ResetFields::from([(kind.api_version.clone(), reset_fields("", "ConfigMap", false, ""))]);
//! let empty = engine.written_document(&Object::new(Arc::clone(kind)));
//! let request = Request {
//!     versions: &versions,
//!     reset: &reset,
//!     api_version: &kind.api_version,
//!     subresource: "",
//!     manager: "docs",
//!     empty: &empty,
//!     now: Time::from_unix(1_577_836_800),
//!     last_applied: "kubectl.kubernetes.io/last-applied-configuration",
//! };
//!
//! // An apply that creates the object.
//! let patch = b"{apiVersion: v1, kind: ConfigMap, metadata: {name: a}, data: {k: v}}";
//! let (patch, _) = engine.parse_document(Format::Yaml, patch, Strictness::Warn)?;
//! let applied = request.apply(empty.clone(), patch, false)?;
//! let mut object = engine.object_of(kind, applied.tree, Strictness::Warn)?.object;
//! engine.default(&mut object);
//! set_managed_fields(&mut object, applied.managed_fields);
//! let fields = r#""fieldsV1":{"f:data":{"f:k":{}}}"#;
//! assert!(String::from_utf8(engine.encode_json(&object))?.contains(fields));
//!
//! // Another manager's update of it.
//! let mut changed = object.clone();
//! changed.fields.map_or_insert("data").insert("k", "other");
//! let other = Request { manager: "other", ..request };
//! let entries = other.update(engine.written_document(&object), engine.written_document(&changed))?;
//! set_managed_fields(&mut changed, entries);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! Decisions beyond Kubernetes' rules:
//!
//! - **Duplicate items** of a list that has owners by item are an error in what is applied, with their path. Any other write may store them
//!   where validation allows it: they have one owner for all items with a key, and change together. An apply that names the key replaces
//!   all of them by its item; one that does not keeps them. (kube-apiserver 1.25 forgets the owners of such an object.) Items without a usable
//!   key are known by their place.
//! - **A reset** (`managedFields: [{}]`) with other changes in the same request: the changes are owned by the requester. An empty list does not
//!   reset.
//! - **Times**: as in 1.25, an applier that becomes an owner without changing the object has no time until it changes something.
//! - **Order**: `fieldsV1` has the order of its elements for all kinds; of custom resources kube-apiserver sorts them as text.
//! - **Conflicts** are listed by owner, and each field once; the library of 1.25 may name one field twice instead of two.
//! - **Bounds**: paths of [`MAX_DEPTH`] steps, [`MAX_PATHS`] paths and [`MAX_ENTRIES`] entries an object, names of [`MAX_NAME`] bytes. Work is in
//!   proportion to the trees and sets, times the logarithm of sorting keys; lists are matched by an index of their items.
//! - **Room**: what is stored can be read again. Entries that a client sends are taken over up to [`MAX_SENT_ENTRIES`] and [`MAX_SENT_PATHS`], and
//!   as many managers may apply an object; one more is refused by [`ApplyError::Bounds`], as is an apply whose sets would exceed
//!   [`MAX_PATHS`]. An update that would exceed a bound leaves an object without entries.
//! - **A configuration that does not fit its kind** is the client's error, [`ApplyError::Tree`]: a 400, not a 500.
//! - **Objects nested too deep** to be tracked have no owners. An apply to one owns what it names; any other write forgets the entries.
//! - **Texts of conflicts** have the number of all conflicts, list a hundred paths, each cut at a kilobyte, and count the rest.

#![cfg_attr(not(test), warn(clippy::arithmetic_side_effects))]

mod conflict;
mod element;
mod entries;
mod last_applied;
mod request;
mod reset;
mod scale;
mod set;
mod structure;
#[cfg(test)]
mod testing;
mod times;
mod tree;
mod updater;
mod upgrade;
mod versions;

pub use conflict::{CAUSE, ConflictCause, Conflicts};
pub use element::{ElementError, FieldPath, PathElement};
pub use entries::{
    EntryError, MAX_ENTRIES, MAX_NAME, MAX_SENT_ENTRIES, MAX_SENT_PATHS, MAX_SUBRESOURCE,
    ManagedFields, ManagedFieldsOperation, Owned, Owner,
};
pub use request::{Applied, ApplyError, Request};
pub use reset::reset_fields;
pub use scale::{ReplicasPaths, owners_of_scale, owners_of_scaled};
pub use set::{FieldSet, FieldsError, MAX_DEPTH, MAX_PATHS, PathBudget};
pub use structure::{BuiltInStructures, Structure, StructureError};
pub use times::{keep_times, manager_of_user_agent, set_managed_fields};
pub use tree::{Comparison, Problem, TreeError};
pub use updater::UpdateError;
pub use upgrade::upgrade_client_side_apply;
pub use versions::{Convert, ConvertError, ResetFields, SeveralVersions, SingleVersion, Versions};
