//! OpenAPI documents, from which clients learn the schemas and whether the server validates fields.
//!
//! kubectl decides by the `PATCH` operation of a kind whether it may send `fieldValidation`, and takes merge keys from its schema. So
//! each resource and subresource has its operations here and each message its schema. Descriptions come from `descriptions.tsv`.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use proto_api::schema::ResourceDescriptor;

use crate::engine::Engine;
use crate::object::Kind;
use crate::value::{Key, Map, Value, write_json, write_json_string};

mod custom;
mod descriptions;
mod extensions;
mod gnostic;
mod operation;
mod operations;
mod other_servers;
mod schemas;
mod subresources;
mod templates;
#[cfg(test)]
mod tests;
mod watches;

use other_servers::NameUse;
pub use other_servers::{OtherApi, PART_LEN_MAX, part_of};

/// Version of a document; the versions differ in structure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum OpenApiVersion {
    /// Swagger 2.0: one document for everything.
    V2,
    /// OpenAPI 3.0: one document for each group version.
    V3,
}

/// What the documents describe: the built-in kinds, those that definitions add, and those of other servers.
#[derive(Clone, Copy)]
pub struct Described<'a> {
    /// The built-in kinds.
    pub engine: &'a Engine,
    /// Which of their resources are served.
    pub serves: &'a dyn Fn(&ResourceDescriptor) -> bool,
    /// The served custom kinds.
    pub custom: &'a [Arc<Kind>],
    /// The group versions of other servers.
    pub others: &'a [Arc<OtherApi>],
}

/// The built-in kinds alone.
impl<'a> From<&'a Engine> for Described<'a> {
    fn from(engine: &'a Engine) -> Self {
        Self { engine, serves: &|_| true, custom: &[], others: &[] }
    }
}

impl<'a> Described<'a> {
    /// Kinds with a resource that is served.
    fn resources(self) -> impl Iterator<Item = &'a Arc<Kind>> {
        let is_served = move |kind: &&Arc<Kind>| kind.resource.is_some_and(self.serves);
        self.engine.kinds().iter().filter(is_served).chain(self.custom)
    }

    /// The built-in kinds without those of versions of which no resource is served.
    fn built_in(self) -> impl Iterator<Item = &'a Arc<Kind>> {
        let kinds = self.engine.kinds();
        let mut versions: BTreeMap<&str, bool> = BTreeMap::new();
        for kind in kinds {
            if let Some(resource) = kind.resource {
                *versions.entry(&kind.api_version).or_default() |= (self.serves)(resource);
            }
        }
        kinds.iter().filter(move |kind| versions.get(kind.api_version.as_str()) != Some(&false))
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
            Some((path, address))
        })
        .chain(described.others.iter().filter_map(|other| {
            let hash = other.v3_hash.as_ref()?;
            Some((other.path.clone(), format!("/openapi/v3/{}?hash={hash}", other.path)))
        }))
        .map(|(path, address)| (path, Value::Map(Map::from_iter([("serverRelativeURL", address)]))))
        .collect();
    to_json(&Value::Map(Map::from_iter([("paths", paths)])))
}

/// The v3 document of a path in the index; `None` if there is no such group version.
pub fn v3_document<'a>(described: impl Into<Described<'a>>, path: &str) -> Option<Vec<u8>> {
    let described = described.into();
    let version = OpenApiVersion::V3;
    let wanted = |kind: &&Arc<Kind>| api_path(&kind.api_version) == path;
    let mut operations = paths(described, version, wanted).peekable();
    operations.peek()?;
    let Described { engine, custom, .. } = described;
    let parents = described.resources().filter(wanted);
    let api_version = path.split_once('/').map_or("", |(_, api_version)| api_version);
    let referred = subresources::referred(described, parents, api_version);
    let kinds = engine.kinds().iter().filter(wanted).chain(referred);
    let mut schemas = schemas::definitions(engine, version, kinds);
    let mut custom = custom.iter().filter(wanted).peekable();
    if custom.peek().is_some() {
        custom::add_metadata(engine, version, &mut schemas);
    }
    let custom = custom.flat_map(|kind| custom::definitions(engine, version, kind));
    let mut out = br#"{"openapi":"3.0.0","info":"#.to_vec();
    write_json(&mut out, &info());
    out.extend_from_slice(br#","paths":"#);
    write_entries(&mut out, operations);
    out.extend_from_slice(br#","components":{"schemas":"#);
    write_entries(&mut out, schemas.into_iter().chain(custom));
    out.extend_from_slice(b"}}");
    Some(out)
}

/// The v2 document as JSON.
pub fn v2_json<'a>(described: impl Into<Described<'a>>) -> Vec<u8> {
    let Contents { paths, definitions } = v2(described.into());
    let mut out = br#"{"swagger":"2.0","info":"#.to_vec();
    write_json(&mut out, &info());
    out.extend_from_slice(br#","paths":"#);
    write_entries(&mut out, paths);
    out.extend_from_slice(br#","definitions":"#);
    write_entries(&mut out, definitions);
    out.push(b'}');
    out
}

/// The v2 document in Protobuf, which kubectl requests
/// (`application/com.github.proto-openapi.spec.v2@v1.0+protobuf`).
pub fn v2_protobuf<'a>(described: impl Into<Described<'a>>) -> Vec<u8> {
    let Contents { paths, definitions } = v2(described.into());
    gnostic::encode_document(&info(), paths, definitions)
}

type Entry = (Key, Value);

/// The contents of a document: each entry is made when it is written, because the tree of a whole document is several times as large as its text.
struct Contents<P, D> {
    paths: P,
    definitions: D,
}

fn v2<'a>(
    described: Described<'a>,
) -> Contents<impl Iterator<Item = Entry> + 'a, impl Iterator<Item = Entry> + 'a> {
    let version = OpenApiVersion::V2;
    let Described { engine, custom, others, .. } = described;
    let schemas = schemas::definitions(engine, version, described.built_in());
    let own: BTreeSet<String> = custom.iter().map(|kind| schemas::custom_name(kind)).collect();
    let name_of = |name: &str| match schemas.contains(name) {
        true if name.starts_with(&schemas::own_prefix(engine)) => NameUse::Shared,
        false if !own.contains(name) => NameUse::Free,
        _ => NameUse::Taken,
    };
    let parts = others.iter().filter_map(|other| other.v2.as_deref());
    let merged = other_servers::merge(parts, name_of);
    let custom = custom.iter().flat_map(move |kind| custom::definitions(engine, version, kind));
    Contents {
        paths: paths(described, version, |_| true).chain(merged.paths),
        definitions: schemas.into_iter().chain(custom).chain(merged.definitions),
    }
}

/// The paths of all resources of wanted kinds, and of their subresources.
fn paths<'a>(
    described: Described<'a>,
    version: OpenApiVersion,
    wanted: impl Fn(&&'a Arc<Kind>) -> bool + 'a,
) -> impl Iterator<Item = Entry> + 'a {
    let of_kind = move |kind| {
        let resource = operations::of_resource(described, version, kind);
        let watches = watches::of_kind(described, version, kind);
        resource.chain(watches).chain(subresources::of_kind(described, version, kind))
    };
    let all = described.resources().filter(wanted).flat_map(of_kind);
    all.map(|(path, item)| (Key::Owned(path), Value::Map(item)))
}

/// Writes a JSON object of entries.
fn write_entries(out: &mut Vec<u8>, entries: impl Iterator<Item = Entry>) {
    out.push(b'{');
    for (at, (name, value)) in entries.enumerate() {
        if at > 0 {
            out.push(b',');
        }
        write_json_string(out, &name);
        out.push(b':');
        write_json(out, &value);
    }
    out.push(b'}');
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
