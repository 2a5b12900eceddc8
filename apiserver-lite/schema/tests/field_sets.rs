//! `fieldsV1` of managed fields is text in a tree: written as it stands, and a map for patches.

#![allow(clippy::expect_used, clippy::panic, reason = "a test that cannot go on has failed")]

use std::sync::{Arc, LazyLock};

use apiserver_schema::{DecodeError, Engine, Format, Kind, Object, PatchType, Strictness, Value};
use proto_api::names::{Names, Profile};

static ENGINE: LazyLock<Engine> = LazyLock::new(|| Engine::new(Names::new(Profile::Kubernetes)));

const FIELDS: &str = r#"{"f:data":{".":{},"f:k":{}}}"#;

fn kind() -> Arc<Kind> {
    Arc::clone(ENGINE.kind("", "v1", "ConfigMap").expect("served"))
}

fn decode(format: Format, body: &[u8]) -> Result<Object, DecodeError> {
    ENGINE.decode(&kind(), format, body, Strictness::Strict).map(|decoded| decoded.object)
}

fn config_map(fields: &str) -> Object {
    let body = format!(
        r#"{{"apiVersion":"v1","kind":"ConfigMap","metadata":{{"name":"a","managedFields":[{{"manager":"m","operation":"Update","apiVersion":"v1","fieldsType":"FieldsV1","fieldsV1":{fields}}}]}},"data":{{"k":"v"}}}}"#
    );
    decode(Format::Json, body.as_bytes()).expect("an object")
}

fn fields(object: &Object) -> Option<Value> {
    let entries = object.metadata().expect("metadata").list("managedFields");
    entries.first().and_then(Value::as_map).and_then(|entry| entry.get("fieldsV1")).cloned()
}

fn text(object: &Object) -> String {
    match fields(object) {
        Some(Value::Json(text)) => text.into(),
        other => panic!("{other:?}"),
    }
}

#[test]
fn sets_are_texts_in_each_format() {
    let object = config_map(r#" { "f:data" : {".":{}, "f:k":{}} } "#);
    assert_eq!(text(&object), FIELDS);
    let json = ENGINE.encode_json(&object);
    assert!(String::from_utf8_lossy(&json).contains(&format!(r#""fieldsV1":{FIELDS}"#)));
    assert_eq!(text(&decode(Format::Json, &json).expect("an object")), FIELDS);
    let stored = ENGINE.decode_stored(&ENGINE.encode_stored(&object)).expect("an object");
    assert_eq!((text(&stored), &stored.fields), (FIELDS.to_owned(), &object.fields));
    assert_eq!(fields(&config_map("null")), None);
}

#[test]
fn bytes_that_are_no_json_are_refused() {
    let stored = ENGINE.encode_stored(&config_map(FIELDS));
    let at = stored.windows(FIELDS.len()).position(|part| part == FIELDS.as_bytes());
    let at = at.expect("the text is stored");
    for (nth, byte) in [(0, b'x'), (FIELDS.len() - 1, b' '), (2, 0xff), (5, b'"')] {
        let mut damaged = stored.clone();
        damaged[at + nth] = byte;
        assert!(ENGINE.decode_stored(&damaged).is_err(), "{byte} at {nth}");
    }
}

/// Clients may send other JSON for the same set, also in Protobuf.
#[test]
fn texts_of_clients_are_written_as_ours() {
    let stored = ENGINE.encode_stored(&config_map(r#"{"f:data":{"v:\"a<b\"":{},"f:k":{}}}"#));
    let ours = br#"{"f:data":{"v:\"a\u003cb\"":{},"f:k":{}}}"#;
    let at = stored.windows(ours.len()).position(|part| part == ours).expect("the text is stored");
    let mut sent = stored.clone();
    let theirs = b"{\n \"f:data\":{\"v:\\\"a<b\\\"\":{}\t,\"f:k\":{}}}";
    let padded: Vec<u8> =
        theirs.iter().copied().chain(std::iter::repeat(b' ')).take(ours.len()).collect();
    sent[at..at + ours.len()].copy_from_slice(&padded);
    let object = ENGINE.decode_stored(&sent).expect("an object");
    assert_eq!(text(&object).as_bytes(), ours);
    assert_eq!(ENGINE.encode_stored(&object), stored);
}

/// Nothing that this server's own parser refuses is kept, in templates neither, whose sets are not computed.
#[test]
fn texts_that_cannot_be_read_are_refused() {
    let deep = format!("{}{}", "[".repeat(200), "]".repeat(200));
    for bad in [r#"{"f:\ud800":{}}"#, r#"{"a":1e999}"#, &deep, "", "{"] {
        let ours = format!(r#"{{"f:{}":{{}}}}"#, "x".repeat(500));
        let mut sent = ENGINE.encode_stored(&config_map(&ours));
        let at = sent.windows(ours.len()).position(|part| part == ours.as_bytes());
        let at = at.expect("the text is stored");
        let padded: Vec<u8> = bad.bytes().chain(std::iter::repeat(b' ')).take(ours.len()).collect();
        sent[at..at + ours.len()].copy_from_slice(&padded);
        assert!(ENGINE.decode_stored(&sent).is_err(), "{bad}");
    }
}

#[test]
fn json_patches_see_maps() {
    let object = config_map(FIELDS);
    let patched = |operations: &str| {
        let patch =
            ENGINE.patch(&object, PatchType::Json, operations.as_bytes(), Strictness::Strict);
        Some(patch.ok()?.expect("an object").object)
    };
    for (operations, expected) in [
        (
            r#"[{"op":"test","path":"/metadata/managedFields/0/fieldsV1/f:data/f:k","value":{}},
                {"op":"remove","path":"/metadata/managedFields/0/fieldsV1/f:data/."}]"#,
            r#"{"f:data":{"f:k":{}}}"#,
        ),
        (r#"[{"op":"copy","from":"/metadata","path":"/metadata"}]"#, FIELDS),
        (r#"[{"op":"add","path":"/data/l","value":"w"}]"#, FIELDS),
    ] {
        assert_eq!(text(&patched(operations).expect(operations)), expected, "{operations}");
    }
    let wrong = r#"[{"op":"test","path":"/metadata/managedFields/0/fieldsV1","value":{}}]"#;
    assert!(patched(wrong).is_none());
}
