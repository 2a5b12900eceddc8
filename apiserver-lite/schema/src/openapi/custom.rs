//! Schemas of custom kinds: what their definitions say, with the fields that all objects have.

use std::sync::Arc;

use super::OpenApiVersion;
use super::schemas::{self, Writer, custom_list_name, custom_name, gvk};
use crate::engine::Engine;
use crate::object::Kind;
use crate::value::{Key, Map, Value};

/// Kinds whose descriptors have the metadata of objects and lists.
const WITH_METADATA: [&str; 2] = ["PartialObjectMetadata", "PartialObjectMetadataList"];

/// The schemas of a kind and of its lists.
pub(super) fn definitions(
    engine: &Engine,
    version: OpenApiVersion,
    kind: &Kind,
) -> impl Iterator<Item = (Key, Value)> + use<> {
    let made = kind.custom_version().map(|current| {
        let writer = Writer::new(engine, version);
        let schema = current.rules.open_api(version == OpenApiVersion::V2);
        let mut schema = schema.unwrap_or_else(|| Map::from_iter([("type", "object")]));
        complete_embedded(&writer, version, &mut schema);
        let object = with_metadata(&writer, schema, "ObjectMeta", gvk(kind));
        let name = custom_name(kind);
        let items =
            Map::from_iter([("type", Value::from("array")), ("items", writer.reference_to(&name))]);
        let properties = Map::from_iter([("items", items)]);
        let list = Map::from_iter([
            ("type", Value::from("object")),
            ("required", Value::List(vec![Value::from("items")])),
            ("properties", Value::Map(properties)),
        ]);
        let of_list = Map::from_iter([
            ("group", kind.group.as_str()),
            ("kind", current.list_kind.as_str()),
            ("version", kind.version()),
        ]);
        let list = with_metadata(&writer, list, "ListMeta", Value::Map(of_list));
        [
            (Key::Owned(name), Value::Map(object)),
            (Key::Owned(custom_list_name(kind)), Value::Map(list)),
        ]
    });
    made.into_iter().flatten()
}

/// Adds the schemas of the metadata of objects and lists, which a document of custom kinds alone has not.
pub(super) fn add_metadata(engine: &Engine, version: OpenApiVersion, schemas: &mut Map) {
    let group = engine.names().group("meta");
    let kinds: Vec<&Arc<Kind>> =
        WITH_METADATA.iter().filter_map(|name| engine.kind(&group, "v1", name)).collect();
    for (name, schema) in schemas::definitions(engine, version, kinds) {
        if !WITH_METADATA.iter().any(|kind| name.ends_with(&format!(".{kind}"))) {
            schemas.insert(name, schema);
        }
    }
}

/// What kubectl shows of the fields that every object has.
const FIELDS: [(&str, &str); 2] = [
    (
        "apiVersion",
        "APIVersion defines the group and the version of the schema that this object follows.",
    ),
    ("kind", "Kind is the name of the resource that this object is one of."),
];

/// Adds the fields that all objects have. A schema without `properties` says of no field what it is: it gets none.
fn with_metadata(writer: &Writer, mut schema: Map, metadata: &str, of_kind: Value) -> Map {
    if let Some(properties) = schema.map_mut("properties") {
        let description = match metadata {
            "ObjectMeta" => "Standard object's metadata.",
            _ => "Standard list metadata.",
        };
        add_fields(properties, writer.shared_reference(metadata, description));
    }
    schema.insert("x-kubernetes-group-version-kind", Value::List(vec![of_kind]));
    schema
}

fn add_fields(properties: &mut Map, metadata: Value) {
    for (name, description) in FIELDS {
        let text = Map::from_iter([("type", "string"), ("description", description)]);
        properties.insert(name, text);
    }
    properties.insert("metadata", metadata);
}

/// Adds the fields that all objects have to the objects within one. In OpenAPI v2 those that keep unknown fields have no `properties`.
fn complete_embedded(writer: &Writer, version: OpenApiVersion, schema: &mut Map) {
    for place in ["items", "additionalProperties"] {
        if let Some(nested) = schema.map_mut(place) {
            complete_embedded(writer, version, nested);
        }
    }
    if let Some(properties) = schema.map_mut("properties") {
        let nested = properties.iter_mut().filter_map(|(_, value)| value.as_map_mut());
        nested.for_each(|nested| complete_embedded(writer, version, nested));
    }
    let keeps_unknown = schema.is_true("x-kubernetes-preserve-unknown-fields");
    if !schema.is_true("x-kubernetes-embedded-resource")
        || (keeps_unknown && version == OpenApiVersion::V2)
    {
        return;
    }
    let metadata = writer.shared_reference("ObjectMeta", "Standard object's metadata.");
    add_fields(schema.map_or_insert("properties"), metadata);
    let mut required = schema.list("required").to_vec();
    for field in ["kind", "apiVersion"] {
        if !required.iter().any(|have| have.as_str() == Some(field)) {
            required.push(Value::from(field));
        }
    }
    schema.insert("required", required);
}
