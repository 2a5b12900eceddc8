//! Protobuf encoding of the OpenAPI v2 document: the needed messages of the public package `openapi.v2`.
//!
//! Maps are lists of name and value; `x-` extensions are YAML text, for which JSON is used.

use super::to_json;
use crate::value::{Key, Map, Value};
use crate::wire::{put_bytes, put_key};

pub(super) fn encode_document(
    info: &Value,
    paths: impl Iterator<Item = (Key, Value)>,
    definitions: impl Iterator<Item = (Key, Value)>,
) -> Vec<u8> {
    let mut out = Vec::new();
    text(&mut out, 1, "2.0");
    let info = info.as_map();
    message(&mut out, 2, |out| {
        text(out, 1, info.map_or("", |info| info.str("title")));
        text(out, 2, info.map_or("", |info| info.str("version")));
    });
    message(&mut out, 8, |out| {
        for (path, item) in paths {
            item.as_map()
                .into_iter()
                .for_each(|item| named(out, 2, &path, |out| path_item(out, item)));
        }
    });
    message(&mut out, 9, |out| {
        for (name, value) in definitions {
            value.as_map().into_iter().for_each(|map| named(out, 1, &name, |out| schema(out, map)));
        }
    });
    out
}

/// The numbers of the methods of a path.
const METHODS: [(u32, &str); 7] =
    [(2, "get"), (3, "put"), (4, "post"), (5, "delete"), (6, "options"), (7, "head"), (8, "patch")];

fn path_item(out: &mut Vec<u8>, item: &Map) {
    for (number, method) in METHODS {
        if let Some(map) = item.map(method) {
            message(out, number, |out| operation(out, map));
        }
    }
    for item in item.maps("parameters") {
        message(out, 9, |out| parameter(out, item));
    }
}

fn operation(out: &mut Vec<u8>, operation: &Map) {
    text(out, 5, operation.str("operationId"));
    for (number, list) in [(6, "produces"), (7, "consumes")] {
        for item in operation.list(list).iter().filter_map(Value::as_str) {
            put_bytes(out, number, item.as_bytes());
        }
    }
    for item in operation.maps("parameters") {
        message(out, 8, |out| parameter(out, item));
    }
    message(out, 9, |out| {
        for (code, response) in entries(operation.map("responses")) {
            // NamedResponseValue > ResponseValue > Response
            named(out, 1, code, |out| {
                message(out, 1, |out| {
                    text(out, 1, response.str("description"));
                    if let Some(map) = response.map("schema") {
                        message(out, 2, |out| message(out, 1, |out| schema(out, map)));
                    }
                });
            });
        }
    });
    extensions(out, 13, operation);
}

/// `ParametersItem` > `Parameter` > body, query or path parameter.
fn parameter(out: &mut Vec<u8>, parameter: &Map) {
    message(out, 1, |out| match parameter.str("in") {
        "body" => message(out, 1, |out| {
            text(out, 2, parameter.str("name"));
            text(out, 3, "body");
            flag(out, 4, parameter.is_true("required"));
            if let Some(map) = parameter.map("schema") {
                message(out, 5, |out| schema(out, map));
            }
        }),
        place => {
            let (kind, ty) = if place == "query" { (3, 6) } else { (4, 5) };
            message(out, 2, |out| {
                message(out, kind, |out| {
                    flag(out, 1, parameter.is_true("required"));
                    text(out, 2, place);
                    text(out, 4, parameter.str("name"));
                    text(out, ty, parameter.str("type"));
                });
            });
        }
    });
}

fn named_schemas(out: &mut Vec<u8>, schemas: Option<&Map>) {
    for (name, map) in entries(schemas) {
        named(out, 1, name, |out| schema(out, map));
    }
}

fn schema(out: &mut Vec<u8>, map: &Map) {
    text(out, 1, map.str("$ref"));
    text(out, 2, map.str("format"));
    text(out, 4, map.str("description"));
    for item in map.list("required").iter().filter_map(Value::as_str) {
        put_bytes(out, 19, item.as_bytes());
    }
    for value in map.list("enum") {
        message(out, 20, |out| put_bytes(out, 2, &to_json(value)));
    }
    if let Some(values) = map.map("additionalProperties") {
        message(out, 21, |out| message(out, 1, |out| schema(out, values)));
    }
    if !map.str("type").is_empty() {
        message(out, 22, |out| text(out, 1, map.str("type")));
    }
    if let Some(items) = map.map("items") {
        message(out, 23, |out| message(out, 1, |out| schema(out, items)));
    }
    if map.contains("properties") {
        message(out, 25, |out| named_schemas(out, map.map("properties")));
    }
    extensions(out, 31, map);
}

/// The `x-` extensions of a map.
fn extensions(out: &mut Vec<u8>, number: u32, map: &Map) {
    for (name, value) in map.iter().filter(|(name, _)| name.starts_with("x-")) {
        named(out, number, name, |out| put_bytes(out, 2, &to_json(value)));
    }
}

/// An entry of a map: its name and its value.
fn named(out: &mut Vec<u8>, number: u32, name: &str, value: impl FnOnce(&mut Vec<u8>)) {
    message(out, number, |out| {
        text(out, 1, name);
        message(out, 2, value);
    });
}

fn message(out: &mut Vec<u8>, number: u32, write: impl FnOnce(&mut Vec<u8>)) {
    let mut inner = Vec::new();
    write(&mut inner);
    put_bytes(out, number, &inner);
}

/// Text, left out when empty.
fn text(out: &mut Vec<u8>, number: u32, text: &str) {
    if !text.is_empty() {
        put_bytes(out, number, text.as_bytes());
    }
}

/// A boolean, left out when false.
fn flag(out: &mut Vec<u8>, number: u32, flag: bool) {
    if flag {
        put_key(out, number, 0);
        out.push(1);
    }
}

/// The entries of a map that are maps.
fn entries(map: Option<&Map>) -> impl Iterator<Item = (&str, &Map)> {
    let entries = map.into_iter().flat_map(Map::iter);
    entries.filter_map(|(name, value)| Some((name, value.as_map()?)))
}
