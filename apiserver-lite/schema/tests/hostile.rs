//! Arbitrary bytes: decoders and patches return an error or an object and do not panic.

#![allow(clippy::expect_used, clippy::panic, reason = "a test that cannot go on has failed")]

use std::fs;
use std::path::Path;
use std::sync::{Arc, LazyLock};

use apiserver_schema::{Engine, Format, Kind, Object, PatchType, Strictness, openapi, table};
use proptest::prelude::*;
use proto_api::names::{Names, Profile};

static ENGINE: LazyLock<Engine> = LazyLock::new(|| Engine::new(Names::new(Profile::Kubernetes)));

/// Files of kinds with many types of fields.
static SEEDS: LazyLock<Vec<(Format, Vec<u8>)>> = LazyLock::new(|| {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../proto/api/testdata");
    let read = |name: &str| fs::read(directory.join(name)).expect(name);
    let kinds = [
        "core.v1.ConfigMap",
        "core.v1.Service",
        "core.v1.Event",
        "apps.v1.ControllerRevision",
        "core.v1.Pod",
    ];
    let formats = [("json", Format::Json), ("yaml", Format::Yaml), ("pb", Format::Protobuf)];
    let files = kinds.iter().flat_map(|kind| {
        formats.map(|(extension, format)| (format, read(&format!("{kind}.{extension}"))))
    });
    files.collect()
});

fn kind(name: &str) -> Arc<Kind> {
    Arc::clone(ENGINE.kind("", "v1", name).expect(name))
}

/// All operations of a server on a request body.
fn use_object(mut object: Object) {
    ENGINE.default(&mut object);
    let _ = ENGINE.validate_create(&object);
    let _ = ENGINE.validate_update(&object, &object, apiserver_schema::update::Subresource::Main);
    let form = table::TableOptions {
        api_version: "meta/v1",
        columns: table::ColumnDefinitions::Included,
        include: table::Include::Metadata,
        now: 0,
    };
    let rows = table::encode(&ENGINE, form, &object.kind, &Default::default(), [&object]);
    serde_json::from_slice::<serde_json::Value>(&rows).expect("tables are JSON");
    // Encoding and decoding returns the same object, in each format.
    let (json, protobuf) = (ENGINE.encode_json(&object), ENGINE.encode_protobuf(&object));
    for (format, bytes) in [(Format::Json, json), (Format::Protobuf, protobuf)] {
        let again = ENGINE.decode(&object.kind, format, &bytes, Strictness::Strict);
        let again = again.unwrap_or_else(|error| panic!("{format:?} {error}: {object:?}")).object;
        assert_eq!(again, object, "{format:?}");
    }
}

fn decode(format: Format, bytes: &[u8]) {
    if let Ok(decoded) = ENGINE.decode_any(format, bytes, Strictness::Warn) {
        use_object(decoded.object);
    }
    for name in ["ConfigMap", "Pod"] {
        let _ = ENGINE.decode(&kind(name), format, bytes, Strictness::Ignore);
    }
}

const FORMATS: [Format; 3] = [Format::Json, Format::Yaml, Format::Protobuf];

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, ..ProptestConfig::default() })]

    #[test]
    fn any_bytes(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
        FORMATS.into_iter().for_each(|format| decode(format, &bytes));
        let mut enveloped = b"k8s\0\x0a\x09\x0a\x02v1\x12\x03Pod\x12".to_vec();
        enveloped.push(u8::try_from(bytes.len().min(127)).unwrap_or(127));
        enveloped.extend(bytes);
        decode(Format::Protobuf, &enveloped);
    }

    #[test]
    fn damaged_objects(
        seed in 0usize..15,
        edits in proptest::collection::vec((any::<prop::sample::Index>(), any::<u8>(), 0u8..3), 1..6),
    ) {
        let (format, bytes) = &SEEDS[seed];
        let mut bytes = bytes.clone();
        for (at, byte, edit) in edits {
            if bytes.is_empty() {
                break;
            }
            let at = at.index(bytes.len());
            match edit {
                0 => bytes[at] = byte,
                1 => drop(bytes.remove(at)),
                _ => bytes.insert(at, byte),
            }
        }
        decode(*format, &bytes);
    }

    #[test]
    fn any_patch(patch in patches(), kind in 0usize..3) {
        let (format, bytes) = &SEEDS[12];
        let pod = ENGINE.decode_any(*format, bytes, Strictness::Ignore).expect("a pod").object;
        let kind = [PatchType::Json, PatchType::Merge, PatchType::Strategic][kind];
        if let Ok(Ok(decoded)) = ENGINE.patch(&pod, kind, patch.as_bytes(), Strictness::Warn) {
            use_object(decoded.object);
        }
    }
}

/// JSON resembling a patch of a pod: field names, directives, operations.
fn patches() -> impl Strategy<Value = String> {
    let word = prop::sample::select(vec![
        "spec",
        "containers",
        "metadata",
        "labels",
        "finalizers",
        "name",
        "image",
        "volumes",
        "ports",
        "$patch",
        "$retainKeys",
        "$setElementOrder/containers",
        "$deleteFromPrimitiveList/finalizers",
        "delete",
        "replace",
        "op",
        "path",
        "from",
        "value",
        "add",
        "move",
        "copy",
        "/spec/containers/0",
        "/metadata/labels",
        "-",
        "status",
    ]);
    let leaf = prop_oneof![
        word.clone().prop_map(|word| format!("{word:?}")),
        any::<i32>().prop_map(|number| number.to_string()),
        Just("null".to_owned()),
        Just("true".to_owned()),
    ];
    leaf.prop_recursive(5, 40, 5, move |inner| {
        let entries = proptest::collection::vec((word.clone(), inner.clone()), 0..5);
        prop_oneof![
            proptest::collection::vec(inner, 0..5)
                .prop_map(|items| format!("[{}]", items.join(","))),
            entries.prop_map(|entries| {
                let entries: Vec<String> =
                    entries.iter().map(|(k, v)| format!("{k:?}:{v}")).collect();
                format!("{{{}}}", entries.join(","))
            }),
        ]
    })
}

#[test]
fn deep_and_wide_bodies_are_refused_or_read_in_time() {
    for (open, close) in [("[", "]"), ("{\"a\":", "}")] {
        let deep = format!("{}1{}", open.repeat(100_000), close.repeat(100_000));
        assert!(ENGINE.decode_any(Format::Json, deep.as_bytes(), Strictness::Ignore).is_err());
        assert!(ENGINE.decode_any(Format::Yaml, deep.as_bytes(), Strictness::Ignore).is_err());
    }
    let entries: Vec<String> = (0..100_000).rev().map(|at| format!("\"k{at}\":\"\"")).collect();
    let wide =
        format!(r#"{{"kind":"ConfigMap","apiVersion":"v1","data":{{{}}}}}"#, entries.join(","));
    let decoded =
        ENGINE.decode_any(Format::Json, wide.as_bytes(), Strictness::Strict).expect("a config map");
    assert_eq!(decoded.object.fields.map("data").map(apiserver_schema::Map::len), Some(100_000));
    let bomb = "a: &a [x,x,x,x,x,x,x,x,x]\n".to_owned()
        + &('b'..='i')
            .zip('a'..)
            .map(|(c, p)| format!("{c}: &{c} [*{p},*{p},*{p},*{p},*{p},*{p},*{p},*{p},*{p}]\n"))
            .collect::<String>();
    assert!(ENGINE.decode_any(Format::Yaml, bomb.as_bytes(), Strictness::Ignore).is_err());
}

#[test]
fn documents_for_clients_do_not_depend_on_the_profile() {
    let orch = Engine::new(Names::new(Profile::default()));
    assert!(openapi::v3_document(&orch, "apis/coordination.orch.io/v1").is_some());
    assert!(openapi::v3_document(&*ENGINE, "apis/coordination.k8s.io/v1").is_some());
}
