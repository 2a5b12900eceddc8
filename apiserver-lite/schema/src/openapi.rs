//! OpenAPI documents, from which clients learn the schemas and whether the server validates fields.
//!
//! kubectl decides by the `PATCH` operation of a kind whether it may send `fieldValidation`, and takes merge keys from its schema. So
//! each resource has its main operations here and each message its schema; subresources are left out. Descriptions come from
//! `descriptions.tsv`.

use std::collections::BTreeSet;

use crate::engine::Engine;
use crate::value::{Map, Value, write_json};

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

/// The index of the v3 documents: for each path (`api/v1`, `apis/apps/v1`) the URL of its document with a hash of its content, so
/// that clients can cache it.
pub fn v3_index(engine: &Engine) -> Vec<u8> {
    let paths: Map = group_versions(engine)
        .into_iter()
        .filter_map(|path| {
            let document = v3_document(engine, &path)?;
            let address = format!("/openapi/v3/{path}?hash={:016X}", fingerprint(&document));
            Some((path, Value::Map(Map::from_iter([("serverRelativeURL", address)]))))
        })
        .collect();
    to_json(&Value::Map(Map::from_iter([("paths", paths)])))
}

/// The v3 document of a path in the index; `None` if there is no such group version.
pub fn v3_document(engine: &Engine, path: &str) -> Option<Vec<u8>> {
    let operations =
        operations::paths(engine, OpenApiVersion::V3, |api_version| api_path(api_version) == path);
    if operations.is_empty() {
        return None;
    }
    let kinds = engine.kinds().iter().filter(|kind| api_path(&kind.api_version) == path);
    let schemas = schemas::definitions(engine, OpenApiVersion::V3, kinds);
    let document = Map::from_iter([
        ("openapi", Value::from("3.0.0")),
        ("info", info()),
        ("paths", Value::Map(operations)),
        ("components", Value::Map(Map::from_iter([("schemas", schemas)]))),
    ]);
    Some(to_json(&Value::Map(document)))
}

/// The v2 document as JSON.
pub fn v2_json(engine: &Engine) -> Vec<u8> {
    to_json(&Value::Map(v2(engine)))
}

/// The v2 document in Protobuf, which kubectl requests
/// (`application/com.github.proto-openapi.spec.v2@v1.0+protobuf`).
pub fn v2_protobuf(engine: &Engine) -> Vec<u8> {
    gnostic::encode_document(&v2(engine))
}

fn v2(engine: &Engine) -> Map {
    Map::from_iter([
        ("swagger", Value::from("2.0")),
        ("info", info()),
        ("paths", Value::Map(operations::paths(engine, OpenApiVersion::V2, |_| true))),
        (
            "definitions",
            Value::Map(schemas::definitions(engine, OpenApiVersion::V2, engine.kinds())),
        ),
    ])
}

fn info() -> Value {
    Value::Map(Map::from_iter([("title", "API"), ("version", "v1.25.0")]))
}

/// Paths of all group versions that serve resources.
fn group_versions(engine: &Engine) -> BTreeSet<String> {
    let served = engine.kinds().iter().filter(|kind| kind.resource.is_some());
    served.map(|kind| api_path(&kind.api_version)).collect()
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
