//! One filled object per kind in three formats: all decode to the same tree and encode to the same bytes.

#![allow(clippy::expect_used, clippy::panic, reason = "a test that cannot go on has failed")]

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use apiserver_schema::value::{parse_json, write_json};
use apiserver_schema::{Engine, Format, Object, Strictness};
use proto_api::names::{Names, Profile};

fn directory() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../proto/api/testdata")
}

fn read(stem: &str, extension: &str) -> Vec<u8> {
    let path = directory().join(format!("{stem}.{extension}"));
    fs::read(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// Every `<group>.<version>.<Kind>` in the directory.
fn stems() -> BTreeSet<String> {
    let entries = fs::read_dir(directory()).expect("testdata directory");
    let names = entries.map(|entry| entry.expect("entry").file_name().into_string().expect("name"));
    names.filter_map(|name| Some(name.strip_suffix(".json")?.to_owned())).collect()
}

/// The compact JSON of an indented file.
fn compact(json: &[u8]) -> String {
    let value: serde_json::Value = serde_json::from_slice(json).expect("testdata is JSON");
    let text = serde_json::to_string(&value).expect("JSON");
    text.replace('<', "\\u003c").replace('>', "\\u003e").replace('&', "\\u0026")
}

fn check(engine: &Engine, stem: &str) -> Vec<String> {
    let [group, version, kind] = stem.split('.').collect::<Vec<_>>()[..] else { panic!("{stem}") };
    let group = if group == "core" { "" } else { group };
    let Some(kind) = engine.kind(group, version, kind) else { return vec!["no such kind".into()] };
    let json = read(stem, "json");
    let formats = [("json", Format::Json), ("yaml", Format::Yaml), ("pb", Format::Protobuf)];
    let objects = formats.map(|(extension, format)| {
        let body = read(stem, extension);
        match engine.decode(kind, format, &body, Strictness::Strict) {
            Ok(decoded) => decoded.object,
            Err(error) => {
                panic!("{stem}.{extension}: {error}")
            }
        }
    });
    let [from_json, from_yaml, from_protobuf] = &objects;
    let mut wrong = Vec::new();
    if from_json != from_yaml {
        wrong.push("YAML decodes to another tree".into());
    }
    if from_json != from_protobuf {
        wrong.push(format!("Protobuf decodes to another tree\n{from_protobuf:?}\n{from_json:?}"));
    }
    for object in &objects {
        let text = String::from_utf8(engine.encode_json(object)).expect("UTF-8");
        let mut written = Vec::new();
        write_json(&mut written, &engine.written_document(object));
        let [document, written] =
            [text.as_bytes(), &written].map(|json| parse_json(json, &mut Vec::new()).ok());
        if document.is_none() || document != written {
            wrong.push("the written document is not that of the JSON".into());
        }
        if text != compact(&json) {
            wrong.push(format!("JSON differs\n got {text}\nwant {}", compact(&json)));
        }
        if engine.encode_protobuf(object) != read(stem, "pb") {
            wrong.push("Protobuf differs".into());
        }
        if engine.encode_yaml(object).as_bytes() != read(stem, "yaml") {
            wrong.push("YAML differs".into());
        }
    }
    wrong
}

#[test]
fn every_file_round_trips_in_every_format() {
    let engine = Engine::new(Names::new(Profile::Kubernetes));
    let mut failed = 0;
    let stems = stems();
    for stem in &stems {
        let wrong = check(&engine, stem);
        println!("{stem}: {}", if wrong.is_empty() { "ok" } else { "FAILED" });
        wrong.iter().for_each(|why| println!("    {why}"));
        failed += usize::from(!wrong.is_empty());
    }
    assert_eq!(stems.len(), 44, "44 kinds, 132 files");
    assert_eq!(failed, 0, "kinds that do not round-trip");
}

#[test]
fn objects_with_nothing_set_are_written_as_in_json() {
    let engine = Engine::new(Names::new(Profile::Kubernetes));
    for kind in engine.kinds() {
        let object = Object::new(std::sync::Arc::clone(kind));
        let json = parse_json(&engine.encode_json(&object), &mut Vec::new()).expect("own JSON");
        assert_eq!(engine.written_document(&object), json, "{kind:?}");
    }
}
