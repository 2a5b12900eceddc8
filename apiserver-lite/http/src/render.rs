//! Encodes responses in the accepted encoding and representation, from shared bytes where they exist.

#![cfg_attr(not(test), warn(clippy::arithmetic_side_effects))]

use std::borrow::Borrow;
use std::sync::Arc;

use apiserver_core::record::StoredObject;
use apiserver_core::request::{Accepted, Encoding, MetaVersion, Representation};
use apiserver_core::server::Server;
use apiserver_core::status::ApiError;
use apiserver_core::times::now;
use apiserver_core::verbs::VerbResponse;
use apiserver_schema::list::{self, ListMeta};
use apiserver_schema::table::{self, ColumnDefinitions, Include};
use apiserver_schema::{Engine, Kind, Object};
use bytes::Bytes;
use proto_api::meta::v1::Status;
use proto_api::names::Names;
use proto_api::object;

/// Encodes a stored object. `with_columns`: whether a Table includes its column definitions; within a stream only the first does.
///
/// # Errors
/// 406 for a representation that cannot be served, 500 for an object that cannot be decrypted.
pub fn stored(
    server: &Server,
    accepted: Accepted,
    record: &StoredObject,
    with_columns: bool,
) -> Result<Bytes, ApiError> {
    record.check_readable()?;
    match (accepted.representation, accepted.encoding) {
        (Representation::Object, Encoding::Json) => Ok(record.json(&server.engine).clone()),
        (Representation::Object, Encoding::Protobuf) => Ok(record.protobuf(&server.engine).clone()),
        (Representation::Table(version, include), _) => {
            let revision = record.object().resource_version();
            let meta = ListMeta { resource_version: revision.to_owned(), ..ListMeta::default() };
            let columns =
                if with_columns { ColumnDefinitions::Included } else { ColumnDefinitions::Omitted };
            let params = (version, include, columns);
            Ok(table(server, params, &record.object().kind, &meta, [record.object()].into_iter()))
        }
        _ => object(server, accepted, record.object()),
    }
}

/// Encodes an object that is not in the store.
///
/// # Errors
/// 406 for a representation that cannot be served.
pub fn object(server: &Server, accepted: Accepted, object: &Object) -> Result<Bytes, ApiError> {
    match accepted.representation {
        Representation::Object => Ok(encode(&server.engine, accepted.encoding, object)),
        Representation::Table(version, include) => {
            let meta = ListMeta {
                resource_version: object.resource_version().to_owned(),
                ..ListMeta::default()
            };
            Ok(table(
                server,
                (version, include, ColumnDefinitions::Included),
                &object.kind,
                &meta,
                [object].into_iter(),
            ))
        }
        Representation::PartialObjectMetadata(version) => {
            let partial = metadata_only(server, version, object)?;
            Ok(encode(&server.engine, accepted.encoding, &partial))
        }
    }
}

/// Encodes a list as parts that form the body when concatenated.
///
/// # Errors
/// 406 for a representation that cannot be served.
pub fn collection(
    server: &Server,
    accepted: Accepted,
    kind: &Arc<Kind>,
    meta: &ListMeta,
    items: &[Arc<StoredObject>],
) -> Result<Vec<Bytes>, ApiError> {
    let engine = &server.engine;
    match (accepted.representation, accepted.encoding) {
        (Representation::Object, Encoding::Json) => Ok(json_list(engine, kind, meta, items)),
        (Representation::Object, Encoding::Protobuf) => {
            let items = items.iter().map(|record| record.protobuf_once(engine));
            Ok(vec![Bytes::from(list::list_protobuf(kind, meta, items))])
        }
        (Representation::Object, Encoding::Yaml) => {
            let json: Vec<u8> = json_list(engine, kind, meta, items).concat();
            Ok(vec![yaml(&json)])
        }
        (Representation::Table(version, include), _) => {
            let objects = items.iter().map(|record| record.object_once());
            Ok(vec![table(
                server,
                (version, include, ColumnDefinitions::Included),
                kind,
                meta,
                objects,
            )])
        }
        (Representation::PartialObjectMetadata(version), encoding) => {
            let partial = partial_kind(server, version)?;
            // A list in YAML is made from the one in JSON.
            let of_items = if encoding == Encoding::Yaml { Encoding::Json } else { encoding };
            let encoded: Result<Vec<Bytes>, ApiError> = items
                .iter()
                .map(|record| {
                    let partial = metadata_only(server, version, &record.object_once())?;
                    Ok(encode(engine, of_items, &partial))
                })
                .collect();
            let encoded = encoded?;
            let items = encoded.iter().map(Bytes::as_ref);
            Ok(vec![match encoding {
                Encoding::Protobuf => Bytes::from(list::list_protobuf(&partial, meta, items)),
                Encoding::Json => Bytes::from(list::list_json(&partial, meta, items)),
                Encoding::Yaml => yaml(&list::list_json(&partial, meta, items)),
            }])
        }
    }
}

/// The stored bytes of a list or an object that is encoded for its response alone; without those objects whose encoding responses share.
#[must_use]
pub fn assembled_len(accepted: Accepted, response: &VerbResponse) -> usize {
    let len = |items: &mut dyn Iterator<Item = &Arc<StoredObject>>| {
        items.fold(0, |len: usize, item| len.saturating_add(item.stored_len()))
    };
    match ((accepted.representation, accepted.encoding), response) {
        ((Representation::Object, Encoding::Json), VerbResponse::List { items, .. }) => {
            len(&mut items.iter().filter(|item| item.is_shrunk()))
        }
        ((Representation::Object, Encoding::Json), _)
        | ((Representation::Object, Encoding::Protobuf), VerbResponse::Stored { .. }) => 0,
        (_, VerbResponse::Stored { record, .. }) => record.stored_len(),
        (_, VerbResponse::List { items, .. }) => len(&mut items.iter()),
        _ => 0,
    }
}

/// Encodes the object of a bookmark, which has nothing but its revision.
#[must_use]
pub fn bookmark(server: &Server, accepted: Accepted, object: &Object) -> Bytes {
    match accepted.representation {
        Representation::PartialObjectMetadata(_) => self::object(server, accepted, object)
            .unwrap_or_else(|_| encode(&server.engine, accepted.encoding, object)),
        Representation::Table(version, include) => {
            let meta = ListMeta {
                resource_version: object.resource_version().to_owned(),
                ..ListMeta::default()
            };
            table(
                server,
                (version, include, ColumnDefinitions::Omitted),
                &object.kind,
                &meta,
                [object].into_iter(),
            )
        }
        Representation::Object => encode(&server.engine, accepted.encoding, object),
    }
}

/// Encodes a Status.
#[must_use]
pub fn status(names: &Names, encoding: Encoding, status: &Status) -> Bytes {
    // A Status has no embedded raw JSON, the only content whose encoding can fail.
    let json = || object::to_json(status, names).unwrap_or_default();
    match encoding {
        Encoding::Protobuf => Bytes::from(object::to_protobuf_envelope(status, names)),
        Encoding::Json => Bytes::from(json()),
        Encoding::Yaml => yaml(&json()),
    }
}

fn encode(engine: &Engine, encoding: Encoding, object: &Object) -> Bytes {
    match encoding {
        Encoding::Json => Bytes::from(engine.encode_json(object)),
        Encoding::Protobuf => Bytes::from(engine.encode_protobuf(object)),
        Encoding::Yaml => Bytes::from(engine.encode_yaml(object)),
    }
}

fn yaml(json: &[u8]) -> Bytes {
    let tree: serde_json::Value = serde_json::from_slice(json).unwrap_or_default();
    Bytes::from(proto_api::yaml::to_string(&tree))
}

/// The parts of a JSON list. Items are shared, not copied; their `kind` and `apiVersion` are skipped.
fn json_list(
    engine: &Engine,
    kind: &Kind,
    meta: &ListMeta,
    items: &[Arc<StoredObject>],
) -> Vec<Bytes> {
    let empty = list::list_json(kind, meta, std::iter::empty());
    // `{…,"items":[` and `]}`.
    let head_len = empty.len().saturating_sub(2);
    let empty = Bytes::from(empty);
    let skipped = format!("{{\"kind\":{:?},\"apiVersion\":{:?},", kind.kind(), kind.api_version);
    let mut parts = Vec::with_capacity(items.len().saturating_mul(2).saturating_add(2));
    parts.push(empty.slice(..head_len));
    for (index, item) in items.iter().enumerate() {
        let json = item.json_once(engine);
        // As in Kubernetes, custom objects keep both, in another order.
        let (opening, rest) = if json.starts_with(skipped.as_bytes()) {
            (if index == 0 { "{" } else { ",{" }, json.slice(skipped.len()..))
        } else {
            (if index == 0 { "" } else { "," }, json)
        };
        parts.push(Bytes::from_static(opening.as_bytes()));
        parts.push(rest);
    }
    parts.push(Bytes::from_static(b"]}"));
    parts
}

fn partial_kind(server: &Server, version: MetaVersion) -> Result<Arc<Kind>, ApiError> {
    let group = server.names.group("meta");
    let engine = &server.engine;
    let found = engine.kind(&group, version.as_str(), "PartialObjectMetadata");
    let found = found.or_else(|| engine.kind(&group, "v1", "PartialObjectMetadata"));
    found.cloned().ok_or_else(|| ApiError::not_acceptable(server.names.protobuf_media_type()))
}

fn metadata_only(
    server: &Server,
    version: MetaVersion,
    object: &Object,
) -> Result<Object, ApiError> {
    let mut partial = Object::new(partial_kind(server, version)?);
    if let Some(metadata) = object.fields.get("metadata") {
        partial.fields.insert("metadata", metadata.clone());
    }
    Ok(partial)
}

/// Version of a Table, what its rows include, and whether it has column definitions.
type TableParams = (MetaVersion, Include, ColumnDefinitions);

fn table(
    server: &Server,
    (version, include, columns): TableParams,
    kind: &Kind,
    meta: &ListMeta,
    objects: impl Iterator<Item: Borrow<Object>>,
) -> Bytes {
    let api_version = format!("{}/{}", server.names.group("meta"), version.as_str());
    let form = table::TableOptions {
        api_version: &api_version,
        columns,
        include,
        now: now().unix_timestamp(),
    };
    Bytes::from(table::encode(&server.engine, form, kind, meta, objects))
}
