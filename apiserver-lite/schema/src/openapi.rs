//! OpenAPI documents, from which clients learn the schemas and whether the server validates fields.
//!
//! kubectl decides by the `PATCH` operation of a kind whether it may send `fieldValidation`, and takes merge keys from its schema. So
//! each resource has its main operations here and each message its schema; subresources are left out. Descriptions come from
//! `descriptions.tsv`.

use std::collections::BTreeSet;
use std::sync::Arc;

use crate::engine::Engine;
use crate::object::Kind;
use crate::value::{Map, Value, write_json};

mod custom;
mod descriptions;
mod gnostic;
mod operations;
mod schemas;
#[cfg(test)]
mod tests;

/// Version of a document; the versions differ in structure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum OpenApiVersion {
    /// Swagger 2.0: one document for everything.
    V2,
    /// OpenAPI 3.0: one document for each group version.
    V3,
}

/// What the documents describe: the built-in kinds, and those that definitions add.
#[derive(Clone, Copy)]
pub struct Described<'a> {
    /// The built-in kinds.
    pub engine: &'a Engine,
    /// The served custom kinds.
    pub custom: &'a [Arc<Kind>],
}

/// The built-in kinds alone.
impl<'a> From<&'a Engine> for Described<'a> {
    fn from(engine: &'a Engine) -> Self {
        Self { engine, custom: &[] }
    }
}

impl<'a> Described<'a> {
    /// Kinds with a resource.
    fn resources(self) -> impl Iterator<Item = &'a Arc<Kind>> {
        self.engine.kinds().iter().filter(|kind| kind.resource.is_some()).chain(self.custom)
    }
}

/// The index of the v3 documents: for each path (`api/v1`, `apis/apps/v1`) the URL of its document with a hash of its content, so
/// that clients can cache it.
pub fn v3_index<'a>(described: impl Into<Described<'a>>) -> Vec<u8> {
    let described = described.into();
    let paths: Map = group_versions(described)
        .into_iter()
        .filter_map(|path| {
            let document = v3_document(described, &path)?;
            let address = format!("/openapi/v3/{path}?hash={:016X}", fingerprint(&document));
            Some((path, Value::Map(Map::from_iter([("serverRelativeURL", address)]))))
        })
        .collect();
    to_json(&Value::Map(Map::from_iter([("paths", paths)])))
}

/// The v3 document of a path in the index; `None` if there is no such group version.
pub fn v3_document<'a>(described: impl Into<Described<'a>>, path: &str) -> Option<Vec<u8>> {
    let described = described.into();
    let version = OpenApiVersion::V3;
    let wanted = |kind: &&Arc<Kind>| api_path(&kind.api_version) == path;
    let operations =
        operations::paths(described, version, |api_version| api_path(api_version) == path);
    if operations.is_empty() {
        return None;
    }
    let Described { engine, custom } = described;
    let mut schemas = schemas::definitions(engine, version, engine.kinds().iter().filter(wanted));
    let custom: Vec<&Arc<Kind>> = custom.iter().filter(wanted).collect();
    if !custom.is_empty() {
        custom::add_metadata(engine, version, &mut schemas);
        custom::add(engine, version, custom, &mut schemas);
    }
    let document = Map::from_iter([
        ("openapi", Value::from("3.0.0")),
        ("info", info()),
        ("paths", Value::Map(operations)),
        ("components", Value::Map(Map::from_iter([("schemas", schemas)]))),
    ]);
    Some(to_json(&Value::Map(document)))
}

/// The v2 document as JSON.
pub fn v2_json<'a>(described: impl Into<Described<'a>>) -> Vec<u8> {
    to_json(&Value::Map(v2(described.into())))
}

/// The v2 document in Protobuf, which kubectl requests
/// (`application/com.github.proto-openapi.spec.v2@v1.0+protobuf`).
pub fn v2_protobuf<'a>(described: impl Into<Described<'a>>) -> Vec<u8> {
    gnostic::encode_document(&v2(described.into()))
}

fn v2(described: Described<'_>) -> Map {
    let Described { engine, custom } = described;
    let mut schemas = schemas::definitions(engine, OpenApiVersion::V2, engine.kinds());
    custom::add(engine, OpenApiVersion::V2, custom, &mut schemas);
    Map::from_iter([
        ("swagger", Value::from("2.0")),
        ("info", info()),
        ("paths", Value::Map(operations::paths(described, OpenApiVersion::V2, |_| true))),
        ("definitions", Value::Map(schemas)),
    ])
}

fn info() -> Value {
    Value::Map(Map::from_iter([("title", "API"), ("version", "v1.25.0")]))
}

/// Paths of all group versions that serve resources.
fn group_versions(described: Described<'_>) -> BTreeSet<String> {
    described.resources().map(|kind| api_path(&kind.api_version)).collect()
}

/// `api/v1` for `v1`, `apis/apps/v1` for `apps/v1`.
fn api_path(api_version: &str) -> String {
    if api_version.contains('/') {
        format!("apis/{api_version}")
    } else {
        format!("api/{api_version}")
    }
}

fn to_json(value: &Value) -> Vec<u8> {
    let mut out = Vec::new();
    write_json(&mut out, value);
    out
}

/// FNV-1a hash, for cache keys only.
fn fingerprint(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, |hash, &byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    })
}
