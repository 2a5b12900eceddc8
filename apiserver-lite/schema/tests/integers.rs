//! Extreme numbers in every integer field of every kind: each is refused or passes through all operations of a server without a
//! panic (arithmetic is checked in tests).

#![allow(clippy::expect_used, clippy::panic, reason = "a test that cannot go on has failed")]

#[path = "support/integers.rs"]
mod integers;

use std::fs;
use std::path::Path;

use apiserver_schema::update::{Subresource, merge_for_update, prepare_for_create};
use apiserver_schema::{Engine, Format, Object, PatchType, Strictness, fields, table};
use integers::{NUMBERS, paths, text, with_number};
use proto_api::names::{Names, Profile};
use proto_api::schema;
use serde_json::{Value, json};

/// The filled object of a kind, if there is a file: then code behind other fields runs as well.
fn filled(kind: &schema::KindDescriptor) -> Option<Value> {
    let group = if kind.group.is_empty() { "core" } else { kind.group };
    let name = format!("../../proto/api/testdata/{group}.{}.{}.json", kind.version, kind.kind);
    let text = fs::read(Path::new(env!("CARGO_MANIFEST_DIR")).join(name)).ok()?;
    Some(serde_json::from_slice(&text).expect("testdata is JSON"))
}

const SUBRESOURCES: [Subresource; 5] = [
    Subresource::Main,
    Subresource::Status,
    Subresource::EphemeralContainers,
    Subresource::Finalize,
    Subresource::Approval,
];

/// The operations of a server on an object, from create to table.
fn use_object(engine: &Engine, old: &Object, mut new: Object, patch: &[u8]) {
    engine.default(&mut new);
    let _ = engine.validate_create(&new);
    for subresource in SUBRESOURCES {
        let merged = merge_for_update(old, &new, subresource);
        let _ = engine.validate_update(old, &merged, subresource);
        let merged = merge_for_update(&new, old, subresource);
        let _ = engine.validate_update(&new, &merged, subresource);
    }
    for kind in [PatchType::Merge, PatchType::Strategic] {
        let _ = engine.patch(old, kind, patch, Strictness::Warn);
    }
    for now in [0, 1_800_000_000, i64::MAX] {
        let form = table::TableOptions {
            api_version: "meta/v1",
            columns: table::ColumnDefinitions::Included,
            include: table::Include::Metadata,
            now,
        };
        let rows = table::encode(engine, form, &new.kind, &Default::default(), [&new]);
        serde_json::from_slice::<Value>(&rows).expect("tables are JSON");
    }
    for field in fields::supported(&new.kind) {
        let _ = fields::value_of(&new, field);
    }
    let mut created = new.clone();
    prepare_for_create(&mut created);
    for (format, bytes) in
        [(Format::Json, engine.encode_json(&new)), (Format::Protobuf, engine.encode_protobuf(&new))]
    {
        let again = engine.decode(&new.kind, format, &bytes, Strictness::Strict);
        let again = again.unwrap_or_else(|error| panic!("{format:?} {error}")).object;
        assert!(again == new, "{format:?} gives another object");
    }
}

/// Applies `json` as an update of `old`; false if it cannot be decoded.
fn try_object(engine: &Engine, old: &Object, json: &Value, patch: &Value, what: &str) -> bool {
    let body = json.to_string();
    let decoded = engine.decode(&old.kind, Format::Json, body.as_bytes(), Strictness::Ignore);
    let Ok(decoded) = decoded else { return false };
    let patch = patch.to_string();
    let use_it = || use_object(engine, old, decoded.object.clone(), patch.as_bytes());
    let outcome = std::panic::catch_unwind(std::panic::AssertUnwindSafe(use_it));
    assert!(outcome.is_ok(), "{what}");
    true
}

/// Each field alone in an otherwise empty object, and all fields that accept the number together in a filled one.
#[test]
fn extreme_numbers_in_every_field() {
    let engine = Engine::new(Names::new(Profile::Kubernetes));
    let minimal = json!({"metadata": {"name": "n", "namespace": "d"}});
    let (mut seen, mut read) = (0, 0);
    for kind in schema::kinds() {
        let group = engine.names().group(kind.group);
        let group = if kind.group.is_empty() { "" } else { &group };
        let Some(known) = engine.kind(group, kind.version, kind.kind) else { continue };
        if kind.message.get().fields.iter().any(|field| field.number == 0) {
            continue; // tables, which only the server writes, have no Protobuf form
        }
        let decode = |json: &Value| {
            let body = json.to_string();
            let decoded = engine.decode(known, Format::Json, body.as_bytes(), Strictness::Ignore);
            decoded.expect("an object").object
        };
        let mut paths = paths(kind.message);
        // Pod templates are one message: testing one kind that has it is enough.
        paths.retain(|path| kind.kind == "Deployment" || !text(path).contains(".template.spec"));
        seen += paths.len();
        let old = decode(&minimal);
        let full = filled(kind);
        for number in NUMBERS {
            let mut together = full.clone();
            for path in &paths {
                let json = with_number(&minimal, path, number);
                let patch = with_number(&json!({}), path, number);
                let what = format!("{}{}: {number}", kind.kind, text(path));
                if try_object(&engine, &old, &json, &patch, &what) {
                    read += 1;
                    together = together.map(|all| with_number(&all, path, number));
                }
            }
            if let (Some(full), Some(together)) = (&full, together) {
                let what = format!("all of {}: {number}", kind.kind);
                assert!(try_object(&engine, &decode(full), &together, &together, &what), "{what}");
            }
        }
    }
    // Fewer means that descriptors are no longer walked.
    assert!(seen > 700 && read > 3_000, "{seen} fields, {read} objects");
}
