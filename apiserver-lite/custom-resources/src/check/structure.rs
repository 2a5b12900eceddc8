//! Structural schemas: every field has one type, outside of `allOf`, `anyOf`, `oneOf` and `not`.

use apiserver_schema::{Map, Value};

use crate::errors::{ErrorList, Path};
use crate::pattern::Patterns;

#[derive(Clone, Copy, PartialEq, Eq)]
enum Level {
    Root,
    Item,
    Field,
}

const JUNCTORS: [&str; 3] = ["allOf", "anyOf", "oneOf"];
const PRESERVE: &str = "x-kubernetes-preserve-unknown-fields";
const EMBEDDED: &str = "x-kubernetes-embedded-resource";
const INT_OR_STRING: &str = "x-kubernetes-int-or-string";

/// Checks that a schema is structural.
pub(super) fn check(schema: &Map, path: Path<'_>, patterns: &mut Patterns, errors: &mut ErrorList) {
    let mut found = ErrorList::default();
    check_node(schema, Level::Root, path, patterns, &mut found);
    check_complete(schema, Some(schema), path, path, &mut found);
    found.0.sort_by_key(ToString::to_string);
    errors.0.extend(found.0);
}

fn check_node(
    schema: &Map,
    level: Level,
    path: Path<'_>,
    patterns: &mut Patterns,
    errors: &mut ErrorList,
) {
    if errors.is_full() {
        return;
    }
    match schema.map("items") {
        Some(items) => check_node(items, Level::Item, path.field("items"), patterns, errors),
        None if schema.str("type") == "array" && !schema.contains("items") => {
            errors.required(&path.field("items"), "must be specified");
        }
        None => {}
    }
    for (name, property) in schema.map("properties").into_iter().flat_map(Map::iter_sorted) {
        if let Value::Map(property) = property {
            check_node(
                property,
                Level::Field,
                path.field("properties").key(name),
                patterns,
                errors,
            );
        }
    }
    if let Some(additional) = schema.get("additionalProperties") {
        if level == Level::Root {
            errors.forbidden(&path.field("additionalProperties"), "must not be used at the root");
        }
        if let Value::Map(values) = additional {
            check_node(values, Level::Field, path.field("additionalProperties"), patterns, errors);
        }
    }
    check_markers(schema, &path, errors);
    check_values(schema, path, patterns, errors);
    check_type(schema, level, &path, errors);
    if level == Level::Root || schema.is_true(EMBEDDED) {
        check_metadata(schema, level, path, errors);
    }
    let no_properties = schema.map("properties").is_none_or(Map::is_empty);
    if schema.is_true(EMBEDDED) && !schema.is_true(PRESERVE) && no_properties {
        let detail = "must not be empty if x-kubernetes-embedded-resource is true without x-kubernetes-preserve-unknown-fields";
        errors.required(&path.field("properties"), detail);
    }
}

fn check_markers(schema: &Map, path: &Path<'_>, errors: &mut ErrorList) {
    if schema.is_true(INT_OR_STRING) {
        for marker in [PRESERVE, EMBEDDED] {
            if schema.is_true(marker) {
                let detail = "must be false if x-kubernetes-int-or-string is true";
                errors.invalid(&path.field(marker), &Value::Bool(true), detail);
            }
        }
    }
    if schema.is_true(EMBEDDED) && schema.contains("additionalProperties") {
        let detail = "must not be used if x-kubernetes-embedded-resource is set";
        errors.forbidden(&path.field("additionalProperties"), detail);
    }
}

fn check_type(schema: &Map, level: Level, path: &Path<'_>, errors: &mut ErrorList) {
    let kind = schema.str("type");
    let path = path.field("type");
    if schema.is_true(EMBEDDED) && kind != "object" {
        let detail = "must be object if x-kubernetes-embedded-resource is true";
        match kind {
            "" => errors.required(&path, detail),
            other => errors.invalid_text(&path, other, detail),
        }
    } else if kind.is_empty() && !schema.is_true(INT_OR_STRING) && !schema.is_true(PRESERVE) {
        let detail = match level {
            Level::Root => "must not be empty at the root",
            Level::Item => "must not be empty for specified array items",
            Level::Field => "must not be empty for specified object fields",
        };
        errors.required(&path, detail);
    }
    if level == Level::Root && !kind.is_empty() && kind != "object" {
        errors.invalid_text(&path, kind, "must be object at the root");
    }
}

/// Of the metadata only the name may be restricted, and only at the root.
fn check_metadata(schema: &Map, level: Level, path: Path<'_>, errors: &mut ErrorList) {
    let Some(properties) = schema.map("properties") else { return };
    let path = path.field("properties");
    for (name, want) in [("kind", "string"), ("apiVersion", "string"), ("metadata", "object")] {
        let kind = properties.map(name).map(|property| property.str("type"));
        if let Some(kind) = kind.filter(|kind| *kind != want) {
            let detail = format!("must be {want}");
            errors.invalid_text(&path.key(name).field("type"), kind, &detail);
        }
    }
    let Some(metadata) = properties.map("metadata").filter(|_| level == Level::Root) else {
        return;
    };
    let plain = metadata.iter().all(|(name, value)| match (name, value) {
        ("type" | "default", _) => true,
        ("properties", Value::Map(fields)) => {
            fields.iter().all(|(name, _)| matches!(name, "name" | "generateName"))
        }
        (_, value) => value.is_empty(),
    });
    if !plain {
        let detail = "must not specify anything other than name and generateName, but metadata is implicitly specified";
        errors.forbidden(&path.key("metadata"), detail);
    }
}

/// Whether it is the list of alternatives that `x-kubernetes-int-or-string` allows.
fn is_int_or_string(alternatives: &[Value]) -> bool {
    let only = |value: Option<&Value>, kind: &str| {
        let map = value.and_then(Value::as_map);
        map.is_some_and(|map| map.len() == 1 && map.str("type") == kind)
    };
    alternatives.len() == 2
        && only(alternatives.first(), "integer")
        && only(alternatives.get(1), "string")
}

fn check_values(schema: &Map, path: Path<'_>, patterns: &mut Patterns, errors: &mut ErrorList) {
    let skip = is_int_or_string(schema.list("anyOf"));
    let first = schema.maps("allOf").next();
    let skip_first = first.is_some_and(|first| is_int_or_string(first.list("anyOf")));
    check_junctors(schema, skip, skip_first, path, patterns, errors);
}

/// Checks what is below `allOf`, `anyOf`, `oneOf` and `not`; the two forms of `x-kubernetes-int-or-string` are left out.
fn check_junctors(
    schema: &Map,
    skip_any_of: bool,
    skip_first: bool,
    path: Path<'_>,
    patterns: &mut Patterns,
    errors: &mut ErrorList,
) {
    for junctor in JUNCTORS {
        if junctor == "anyOf" && skip_any_of {
            continue;
        }
        for (at, nested) in schema.maps(junctor).enumerate() {
            let skip = junctor == "allOf" && at == 0 && skip_first;
            check_nested(nested, skip, path.field(junctor).index(at), patterns, errors);
        }
    }
    if let Some(not) = schema.map("not") {
        check_nested(not, false, path.field("not"), patterns, errors);
    }
    let text = schema.str("pattern");
    if text.is_empty() {
        return;
    }
    if let Err(error) = patterns.compile(text) {
        let detail = format!("must be a valid regular expression, but isn't: {error}");
        errors.invalid_text(&path.field("pattern"), text, &detail);
    }
}

fn check_nested(
    schema: &Map,
    skip_any_of: bool,
    path: Path<'_>,
    patterns: &mut Patterns,
    errors: &mut ErrorList,
) {
    if errors.is_full() {
        return;
    }
    check_junctors(schema, skip_any_of, false, path, patterns, errors);
    if let Some(items) = schema.map("items") {
        check_nested(items, false, path.field("items"), patterns, errors);
    }
    for (name, property) in schema.map("properties").into_iter().flat_map(Map::iter_sorted) {
        if let Value::Map(property) = property {
            check_nested(property, false, path.field("properties").key(name), patterns, errors);
        }
        if name == "metadata" {
            let detail = "must not be specified in a nested context";
            errors.forbidden(&path.field("properties").key(name), detail);
        }
    }
    for (field, state) in [
        ("type", "empty"),
        ("additionalProperties", "undefined"),
        ("default", "undefined"),
        ("title", "empty"),
        ("description", "empty"),
        ("nullable", "false"),
        (PRESERVE, "false"),
        (EMBEDDED, "false"),
        (INT_OR_STRING, "false"),
        ("x-kubernetes-list-map-keys", "empty"),
        ("x-kubernetes-list-type", "undefined"),
        ("x-kubernetes-map-type", "undefined"),
        ("x-kubernetes-validations", "empty"),
    ] {
        let set = schema.get(field).is_some_and(|value| match state {
            "undefined" => *value != Value::Null,
            _ => !value.is_empty(),
        });
        if set {
            errors.forbidden(&path.field(field), &format!("must be {state} to be structural"));
        }
    }
}

/// Checks that fields below junctors are fields of the schema too. `nested` is at `at`, and the schema of the same value at `path`.
fn check_complete(
    nested: &Map,
    schema: Option<&Map>,
    path: Path<'_>,
    at: Path<'_>,
    errors: &mut ErrorList,
) {
    let Some(schema) = schema else {
        return errors.required(&path, &format!("because it is defined in {at}"));
    };
    if let Some(not) = nested.map("not") {
        check_complete_nested(not, schema, path, at.field("not"), errors);
    }
    for junctor in JUNCTORS {
        for (index, one) in nested.maps(junctor).enumerate() {
            check_complete_nested(one, schema, path, at.field(junctor).index(index), errors);
        }
    }
}

fn check_complete_nested(
    nested: &Map,
    schema: &Map,
    path: Path<'_>,
    at: Path<'_>,
    errors: &mut ErrorList,
) {
    if errors.is_full() {
        return;
    }
    check_complete(nested, Some(schema), path, at, errors);
    if let Some(items) = nested.map("items") {
        match schema.map("items") {
            Some(known) => {
                check_complete_nested(items, known, path.field("items"), at.field("items"), errors)
            }
            None => check_complete(items, None, path.field("items"), at.field("items"), errors),
        }
    }
    for (name, property) in nested.map("properties").into_iter().flat_map(Map::iter_sorted) {
        let Value::Map(property) = property else { continue };
        let (path, at) = (path.field("properties"), at.field("properties"));
        match schema.map("properties").and_then(|properties| properties.map(name)) {
            Some(known) => {
                check_complete_nested(property, known, path.key(name), at.key(name), errors)
            }
            None => check_complete(property, None, path.key(name), at.key(name), errors),
        }
    }
}
