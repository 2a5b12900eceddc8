//! Rules of every node of a schema, whether it is structural or not.

use apiserver_schema::{Map, Value};

use crate::errors::{ErrorList, Path};
use crate::node::Type;
use crate::prune::META_FIELDS;

/// Fields that the root may have if `status` is a subresource.
const ROOT_FIELDS: [&str; 23] = [
    "description",
    "type",
    "format",
    "title",
    "maximum",
    "exclusiveMaximum",
    "minimum",
    "exclusiveMinimum",
    "maxLength",
    "minLength",
    "pattern",
    "maxItems",
    "minItems",
    "uniqueItems",
    "multipleOf",
    "required",
    "items",
    "properties",
    "externalDocs",
    "example",
    "x-kubernetes-preserve-unknown-fields",
    "x-kubernetes-validations",
    "nullable",
];
/// These fields as kube-apiserver names them.
const ROOT_FIELD_NAMES: &str = "[Description Type Format Title Maximum ExclusiveMaximum Minimum ExclusiveMinimum MaxLength MinLength \
                                Pattern MaxItems MinItems UniqueItems MultipleOf Required Items Properties ExternalDocs Example \
                                XPreserveUnknownFields XValidations]";

/// Rules of the root only.
pub(super) fn check_root(schema: &Map, has_status: bool, path: Path<'_>, errors: &mut ErrorList) {
    if has_status {
        let kind = schema.str("type");
        if !kind.is_empty() && kind != "object" {
            let detail = "only \"object\" is allowed as the type at the root of the schema if the status subresource is enabled";
            errors.invalid_text(&path.field("type"), kind, detail);
        }
        let other =
            schema.iter().find(|(name, value)| !value.is_empty() && !ROOT_FIELDS.contains(name));
        if let Some((name, _)) = other {
            let detail = format!(
                "only {ROOT_FIELD_NAMES} fields are allowed at the root of the schema if the status subresource is enabled"
            );
            errors.invalid_text(&path, name, &detail);
        }
    }
    if schema.is_true("nullable") {
        errors.forbidden(&path.field("nullable"), "nullable cannot be true at the root");
    }
}

/// Rules of a schema and all below it.
pub(super) fn check(schema: &Map, path: Path<'_>, errors: &mut ErrorList) {
    let place = SchemaPosition { root: true, in_metadata: false, no_defaults: None };
    check_node(schema, place, path, errors);
}

/// Where a node is.
#[derive(Clone, Copy)]
struct SchemaPosition<'a> {
    root: bool,
    in_metadata: bool,
    /// Why there may be no default.
    no_defaults: Option<&'a str>,
}

fn check_node(schema: &Map, place: SchemaPosition<'_>, path: Path<'_>, errors: &mut ErrorList) {
    if errors.is_full() {
        return;
    }
    check_forbidden(schema, place, &path, errors);
    check_markers(schema, &path, errors);
    check_list_type(schema, &path, errors);
    check_keys(schema, path, errors);
    let below = SchemaPosition { root: false, ..place };
    if let Some(Value::Map(values)) = schema.get("additionalProperties") {
        let reason = "inside additionalProperties applying to object metadata";
        let no_defaults = if place.in_metadata { Some(reason) } else { below.no_defaults };
        check_node(
            values,
            SchemaPosition { no_defaults, ..below },
            path.field("additionalProperties"),
            errors,
        );
    }
    for (name, property) in schema.map("properties").into_iter().flat_map(Map::iter_sorted) {
        let Value::Map(property) = property else { continue };
        let mut below = below;
        let reason = format!("in top-level {name}");
        let embedded = place.root || schema.is_true("x-kubernetes-embedded-resource");
        if embedded && META_FIELDS.contains(&name) {
            below.in_metadata = true;
            if place.root {
                below.no_defaults = Some(&reason);
            }
        }
        check_node(property, below, path.field("properties").key(name), errors);
    }
    for field in ["not", "items"] {
        if let Some(nested) = schema.map(field) {
            check_node(nested, below, path.field(field), errors);
        }
    }
    for field in ["allOf", "oneOf", "anyOf"] {
        for (at, nested) in schema.maps(field).enumerate() {
            check_node(nested, below, path.field(field).index(at), errors);
        }
    }
}

fn check_forbidden(
    schema: &Map,
    place: SchemaPosition<'_>,
    path: &Path<'_>,
    errors: &mut ErrorList,
) {
    let kind = schema.str("type");
    if !kind.is_empty() && Type::parse(kind).is_none() {
        let supported = Type::NAMES.map(str::to_owned);
        errors.not_supported(&path.field("type"), &Value::from(kind), &supported);
    }
    if let (Some(reason), true) = (place.no_defaults, has(schema, "default")) {
        errors.forbidden(&path.field("default"), &format!("must not be set {reason}"));
    }
    for field in
        ["id", "additionalItems", "patternProperties", "definitions", "dependencies", "$ref"]
    {
        if has(schema, field) {
            errors.forbidden(&path.field(field), &format!("{field} is not supported"));
        }
    }
    if kind == "null" {
        let detail = "type cannot be set to null, use nullable as an alternative";
        errors.forbidden(&path.field("type"), detail);
    }
    if let Some(Value::List(_)) = schema.get("items") {
        errors.forbidden(&path.field("items"), "items must be a schema object and not an array");
    }
    if place.in_metadata && schema.is_true("x-kubernetes-embedded-resource") {
        let detail = "must not be used inside of resource meta";
        errors.forbidden(&path.field("x-kubernetes-embedded-resource"), detail);
    }
    if schema.is_true("uniqueItems") {
        let detail =
            "uniqueItems cannot be set to true since the runtime complexity becomes quadratic";
        errors.forbidden(&path.field("uniqueItems"), detail);
    }
    let additional = schema.get("additionalProperties");
    let restricts = matches!(additional, Some(Value::Map(_) | Value::Bool(false)));
    if restricts && schema.map("properties").is_some_and(|properties| !properties.is_empty()) {
        let detail = "additionalProperties and properties are mutual exclusive";
        errors.forbidden(&path.field("additionalProperties"), detail);
    }
}

fn has(schema: &Map, field: &str) -> bool {
    schema.get(field).is_some_and(|value| match value {
        Value::Bool(_) | Value::Int(_) | Value::Float(_) => true,
        Value::String(_) | Value::List(_) | Value::Map(_) if field == "default" => true,
        Value::Map(_) => true,
        value => !value.is_empty(),
    })
}

fn check_markers(schema: &Map, path: &Path<'_>, errors: &mut ErrorList) {
    const PRESERVE: &str = "x-kubernetes-preserve-unknown-fields";
    if schema.get(PRESERVE) == Some(&Value::Bool(false)) {
        errors.invalid(&path.field(PRESERVE), &Value::Bool(false), "must be true or undefined");
    }
    let kind = schema.str("type");
    for (marker, want, known) in [
        ("x-kubernetes-map-type", "object", &["atomic", "granular"][..]),
        ("x-kubernetes-list-type", "array", &["atomic", "set", "map"][..]),
    ] {
        let Some(value) = schema.get(marker) else { continue };
        let text = value.as_str().unwrap_or_default();
        if kind != want {
            let detail = format!("must be {want} if {marker} is specified");
            match kind {
                "" => errors.required(&path.field("type"), &detail),
                other => errors.invalid_text(&path.field("type"), other, &detail),
            }
        }
        if !known.contains(&text) {
            let known: Vec<String> = known.iter().map(|&name| name.to_owned()).collect();
            errors.not_supported(&path.field(marker), value, &known);
        }
    }
}

/// Items of sets are scalars or have one owner; items of sets and lists with keys are not null.
fn check_list_type(schema: &Map, path: &Path<'_>, errors: &mut ErrorList) {
    let list_type = schema.str("x-kubernetes-list-type");
    let Some(items) = schema.map("items").filter(|_| matches!(list_type, "set" | "map")) else {
        return;
    };
    if items.is_true("nullable") {
        let detail = format!("cannot be nullable when x-kubernetes-list-type is {list_type}");
        errors.forbidden(&path.field("items").field("nullable"), &detail);
    }
    if list_type != "set" || schema.str("type") != "array" {
        return;
    }
    let marker = match items.str("type") {
        "array" if !matches!(items.str("x-kubernetes-list-type"), "" | "atomic") => {
            "x-kubernetes-list-type"
        }
        "object" if items.str("x-kubernetes-map-type") != "atomic" => "x-kubernetes-map-type",
        _ => return,
    };
    let detail = "must be atomic as item of a list with x-kubernetes-list-type=set";
    let value = items.get(marker).unwrap_or(&Value::Null);
    errors.invalid(&path.field("items").field(marker), value, detail);
}

/// The keys of a list: required or defaulted scalars of its items.
fn check_keys(schema: &Map, path: Path<'_>, errors: &mut ErrorList) {
    const TYPE: &str = "x-kubernetes-list-type";
    const KEYS: &str = "x-kubernetes-list-map-keys";
    let keys = schema.list(KEYS);
    let list_type = schema.str(TYPE);
    if !keys.is_empty() && list_type != "map" {
        let detail = "must be map if x-kubernetes-list-map-keys is non-empty";
        match list_type {
            "" => errors.required(&path.field(TYPE), detail),
            other => errors.invalid_text(&path.field(TYPE), other, detail),
        }
    }
    if list_type != "map" {
        return;
    }
    if keys.is_empty() {
        let detail = "must not be empty if x-kubernetes-list-type is map";
        errors.required(&path.field(KEYS), detail);
    }
    let Some(items) = schema.map("items") else {
        let detail = "must have a schema if x-kubernetes-list-type is map";
        return errors.required(&path.field("items"), detail);
    };
    let items_path = path.field("items");
    if items.str("type") != "object" {
        let detail = "must be object if parent array's x-kubernetes-list-type is map";
        return errors.invalid_text(&items_path.field("type"), items.str("type"), detail);
    }
    let shown = schema.get(KEYS).unwrap_or(&Value::Null);
    for (at, key) in keys.iter().enumerate() {
        let property = key.as_str().and_then(|key| items.map("properties")?.map(key));
        match property {
            Some(property) => check_key(key, property, items, items_path, errors),
            None => {
                let detail = "entries must all be names of item properties";
                errors.invalid(&path.field(KEYS), shown, detail);
            }
        }
        if keys.iter().take(at).any(|one| one == key) {
            errors.invalid(&path.field(KEYS), shown, "must not contain duplicate entries");
        }
        if at > 100 {
            return errors.forbidden(&path.field(KEYS), "must have at most 100 entries");
        }
    }
}

fn check_key(key: &Value, property: &Map, items: &Map, path: Path<'_>, errors: &mut ErrorList) {
    let name = key.as_str().unwrap_or_default();
    let properties = path.field("properties");
    let path = properties.key(name);
    if matches!(property.str("type"), "array" | "object") {
        let detail = "must be a scalar type if parent array's x-kubernetes-list-type is map";
        errors.invalid_text(&path.field("type"), property.str("type"), detail);
    }
    let required = items.list("required").iter().any(|one| one == key);
    if !required && !has(property, "default") {
        let detail = "this property is in x-kubernetes-list-map-keys, so it must have a default or be a required property";
        errors.required(&path.field("default"), detail);
    }
    if property.is_true("nullable") {
        let detail = "this property is in x-kubernetes-list-map-keys, so it cannot be nullable";
        errors.forbidden(&path.field("nullable"), detail);
    }
}
