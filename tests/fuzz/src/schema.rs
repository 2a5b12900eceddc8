//! Documents of any kind, as the API server reads, writes and patches them.

use std::sync::OnceLock;

use apiserver_schema::{DecodedObject, Engine, Format, Strictness};

use crate::api;

pub(crate) fn engine() -> &'static Engine {
    static ENGINE: OnceLock<Engine> = OnceLock::new();
    ENGINE.get_or_init(|| Engine::new(api::names()))
}

/// What was read is written in every form, and means the same in each.
pub(crate) fn rewritten(read: &DecodedObject) {
    let engine = engine();
    let json = engine.encode_json(&read.object);
    let decode = |format, bytes: &[u8]| {
        engine.decode(&read.object.kind, format, bytes, Strictness::Strict).map(|read| read.object)
    };
    let by_json = decode(Format::Json, &json);
    let by_json =
        by_json.unwrap_or_else(|error| panic!("{error}: {}", String::from_utf8_lossy(&json)));
    assert_eq!(engine.encode_json(&by_json), json);
    let binary = engine.encode_protobuf(&by_json);
    let by_protobuf = decode(Format::Protobuf, &binary);
    let by_protobuf = by_protobuf.unwrap_or_else(|error| panic!("{error}: {binary:?}"));
    assert_eq!(engine.encode_protobuf(&by_protobuf), binary, "{}", String::from_utf8_lossy(&json));
}

/// Whole documents, which say their kind.
fn documents() -> Vec<Vec<u8>> {
    let mut all = api::api_json::seeds();
    all.extend(crate::texts(&[
        r#"{"kind":"ConfigMap","apiVersion":"v1","metadata":{"name":"a"},"data":{"k":"v"},"binaryData":{"b":"AAEC"}}"#,
        r#"{"kind":"Deployment","apiVersion":"apps/v1","spec":{"replicas":2,"strategy":{"rollingUpdate":{"maxSurge":"25%"}}}}"#,
        r#"{"kind":"List","apiVersion":"v1","items":[{"kind":"Secret","apiVersion":"v1"}]}"#,
        r#"{"kind":"DeleteOptions","apiVersion":"v1","gracePeriodSeconds":5,"x":[1e9,null,"\u00e9"]}"#,
    ]));
    all
}

/// JSON and YAML.
pub mod schema_document {
    use super::*;

    /// Reads the bytes as both.
    pub fn check(bytes: &[u8]) {
        let mut repeated = Vec::new();
        let _ = apiserver_schema::value::parse_json(bytes, &mut repeated);
        for format in [Format::Json, Format::Yaml] {
            if let Ok(read) = engine().decode_any(format, bytes, Strictness::Warn) {
                rewritten(&read);
            }
        }
    }

    /// Documents of both forms.
    pub fn seeds() -> Vec<Vec<u8>> {
        let mut all = documents();
        all.extend(crate::texts(&[
            "apiVersion: v1\nkind: Pod\nmetadata: {name: a}\nspec:\n  hostNetwork: true\n",
        ]));
        all
    }
}

/// Protobuf.
pub mod schema_protobuf {
    use super::*;

    /// Reads the bytes.
    pub fn check(bytes: &[u8]) {
        if let Ok(read) = engine().decode_any(Format::Protobuf, bytes, Strictness::Warn) {
            let binary = engine().encode_protobuf(&read.object);
            let again = engine().decode_any(Format::Protobuf, &binary, Strictness::Warn);
            let again = again.expect("own bytes").object;
            assert_eq!(engine().encode_protobuf(&again), binary);
            let _ = engine().encode_json(&read.object);
        }
    }

    /// The documents.
    pub fn seeds() -> Vec<Vec<u8>> {
        let read =
            |json: &Vec<u8>| engine().decode_any(Format::Json, json, Strictness::Ignore).ok();
        documents()
            .iter()
            .filter_map(read)
            .map(|read| engine().encode_protobuf(&read.object))
            .collect()
    }
}

/// Patches.
pub mod schema_patch {
    use apiserver_schema::PatchType;

    use super::*;

    /// Patches a pod in each of three ways.
    pub fn check(bytes: &[u8]) {
        let Some(pod) = api::api_json::seeds().into_iter().next() else { return };
        let read = engine().decode_any(Format::Json, &pod, Strictness::Ignore);
        let Ok(DecodedObject { object, .. }) = read else { return };
        for kind in [PatchType::Json, PatchType::Merge, PatchType::Strategic] {
            if let Ok(Ok(read)) = engine().patch(&object, kind, bytes, Strictness::Warn) {
                rewritten(&read);
            }
        }
    }

    /// Every operation and directive.
    pub fn seeds() -> Vec<Vec<u8>> {
        crate::texts(&[
            r#"[{"op":"add","path":"/spec/containers/-","value":{"name":"x"}},{"op":"test","path":"/metadata/name","value":"web"}]"#,
            r#"[{"op":"copy","from":"/spec/containers/0","path":"/spec/containers/0"},{"op":"move","from":"/metadata/labels","path":"/metadata/annotations"}]"#,
            r#"[{"op":"remove","path":"/metadata/labels/app"},{"op":"replace","path":"/spec/containers/0/args/1","value":"~1"}]"#,
            r#"{"metadata":{"labels":{"app":null,"b":"c"}}}"#,
            r#"{"spec":{"containers":[{"name":"c","$patch":"delete"},{"name":"d"}],"$setElementOrder/containers":[{"name":"d"}]}}"#,
            r#"{"spec":{"$retainKeys":["containers"],"containers":[{"$patch":"replace"}]},"metadata":{"$deleteFromPrimitiveList/finalizers":["a"]}}"#,
        ])
    }
}
