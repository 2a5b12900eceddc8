//! Tests: counts the map entries read or moved while an object is decoded, validated, updated and encoded, over doubling sizes.
//! Exact where `benches/proportion.rs`, which covers all work, measures time.

use proto_api::names::{Names, Profile};
use proto_api::selectors::Selector;

use crate::update::{Subresource, merge_for_update};
use crate::value::Value;
use crate::{Engine, Format, Object, Strictness, fields, table};

/// Checks that twice the input costs at most twice the steps and a constant.
fn check(what: &str, work: impl Fn(usize) -> u64) {
    let costs: Vec<(usize, u64)> =
        (0..4).map(|power| 500 << power).map(|size| (size, work(size))).collect();
    for pair in costs.windows(2) {
        let [(size, less), (_, more)] = *pair else { continue };
        assert!(more <= less * 2 + size as u64, "{what}: {costs:?}");
    }
}

/// A pod with `size` labels, variables and volumes, keys not in sorted order.
fn pod(size: usize) -> String {
    let place = |at: usize| (at * 7919) % size;
    let list = |text: &dyn Fn(usize) -> String| (0..size).map(text).collect::<Vec<_>>().join(",");
    format!(
        r#"{{"kind":"Pod","apiVersion":"v1","metadata":{{"name":"p","namespace":"d","labels":{{{}}}}},
        "spec":{{"containers":[{{"name":"c","image":"i","env":[{}]}}],"volumes":[{}]}}}}"#,
        list(&|at| format!(r#""k{}":"v""#, place(at))),
        list(&|at| format!(r#"{{"name":"N{}","value":"v"}}"#, place(at))),
        list(&|at| format!(r#"{{"name":"n{}","emptyDir":{{}}}}"#, place(at))),
    )
}

fn engine() -> Engine {
    Engine::new(Names::new(Profile::Kubernetes))
}

fn read(engine: &Engine, size: usize) -> Object {
    let decoded = engine.decode_any(Format::Json, pod(size).as_bytes(), Strictness::Warn);
    decoded.expect("a pod").object
}

#[test]
fn decoding() {
    let engine = engine();
    for strictness in [Strictness::Warn, Strictness::Strict] {
        check("JSON", |size| {
            let text = pod(size);
            proto_api::steps::count_during(|| {
                assert!(engine.decode_any(Format::Json, text.as_bytes(), strictness).is_ok())
            })
        });
    }
    check("YAML", |size| {
        let text = engine.encode_yaml(&read(&engine, size));
        let decode = || engine.decode_any(Format::Yaml, text.as_bytes(), Strictness::Warn);
        proto_api::steps::count_during(|| assert!(decode().is_ok()))
    });
    check("Protobuf", |size| {
        let bytes = engine.encode_protobuf(&read(&engine, size));
        let decode = || engine.decode_any(Format::Protobuf, &bytes, Strictness::Warn);
        proto_api::steps::count_during(|| assert!(decode().is_ok()))
    });
}

#[test]
fn defaults_validation_and_updates() {
    let engine = engine();
    check("default and validate", |size| {
        let mut pod = read(&engine, size);
        proto_api::steps::count_during(|| {
            engine.default(&mut pod);
            assert!(engine.validate_create(&pod).is_ok());
        })
    });
    check("update", |size| {
        let mut old = read(&engine, size);
        engine.default(&mut old);
        let mut new = old.clone();
        new.metadata_mut().map_or_insert("labels").insert("a", "b");
        proto_api::steps::count_during(|| {
            let merged = merge_for_update(&old, &new, Subresource::Main);
            assert!(engine.validate_update(&old, &merged, Subresource::Main).is_ok());
        })
    });
}

#[test]
fn selectors_tables_and_lists() {
    let engine = engine();
    check("selectors", |size| {
        let pod = read(&engine, size);
        let keys: Vec<String> = (0..size).map(|at| format!("k{at}=v")).collect();
        let selector = Selector::parse(&keys.join(",")).expect("a selector");
        let labels = pod.metadata().and_then(|metadata| metadata.map("labels")).expect("labels");
        proto_api::steps::count_during(|| {
            assert!(selector.matches_with(|key| labels.get(key).and_then(Value::as_str)));
            for field in fields::supported(&pod.kind) {
                assert!(fields::value_of(&pod, field).is_some());
            }
        })
    });
    check("a table with labels", |size| {
        let pod = read(&engine, size);
        let form = table::TableOptions {
            api_version: "meta/v1",
            columns: table::ColumnDefinitions::Included,
            include: table::Include::Metadata,
            now: 0,
        };
        proto_api::steps::count_during(|| {
            let rows = table::encode(&engine, form, &pod.kind, &Default::default(), [&pod]);
            assert!(rows.len() > size);
        })
    });
    check("encoding", |size| {
        let pod = read(&engine, size);
        proto_api::steps::count_during(|| {
            assert!(engine.encode_json(&pod).len() > size);
            assert!(engine.encode_protobuf(&pod).len() > size);
        })
    });
}
