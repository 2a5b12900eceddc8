//! Prints the cost of each step of the engine for a small ConfigMap and a filled pod, on one core.

#![allow(clippy::expect_used, reason = "a benchmark that cannot go on has failed")]

use std::fs;
use std::hint::black_box;
use std::path::Path;
use std::time::{Duration, Instant};

use apiserver_schema::{Engine, Format, PatchType, Strictness, list, openapi, table, value};
use proto_api::names::{Names, Profile};

/// How long each step is repeated.
const BUDGET: Duration = Duration::from_millis(300);

fn main() {
    let started = Instant::now();
    let engine = Engine::new(Names::new(Profile::Kubernetes));
    println!("{:<36} {:>9.1} us", "compile all descriptors, once", micros(started.elapsed()));
    let small = format!(
        r#"{{"kind":"ConfigMap","apiVersion":"v1","metadata":{{"name":"web","namespace":"default"}},"data":{{"a":"{}"}}}}"#,
        "x".repeat(512)
    );
    steps(&engine, "config map, 512 bytes", small.as_bytes());
    let testdata = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../proto/api/testdata");
    let pod = fs::read(testdata.join("core.v1.Pod.json")).expect("testdata");
    steps(&engine, "pod with every field set", &pod);
    println!("v3 index and all its documents       {:>9.1} us", {
        let started = Instant::now();
        black_box(openapi::v3_index(&engine));
        micros(started.elapsed())
    });
}

fn steps(engine: &Engine, what: &str, body: &[u8]) {
    let decode = |format, body: &[u8]| {
        engine.decode_any(format, body, Strictness::Strict).expect("a whole object").object
    };
    let object = decode(Format::Json, body);
    let json = engine.encode_json(&object);
    let protobuf = engine.encode_protobuf(&object);
    println!("{what}: {} bytes of JSON, {} of Protobuf", json.len(), protobuf.len());
    measure("parse JSON", || value::parse_json(&json, &mut Vec::new()).expect("JSON"));
    measure("decode JSON", || decode(Format::Json, &json));
    measure("decode Protobuf", || decode(Format::Protobuf, &protobuf));
    measure("encode JSON", || engine.encode_json(&object));
    measure("encode Protobuf", || engine.encode_protobuf(&object));
    measure("clone", || object.clone());
    measure("default", || {
        let mut object = object.clone();
        engine.default(&mut object);
        object
    });
    measure("validate", || engine.validate_create(&object));
    let patch = br#"{"metadata":{"labels":{"a":"b"}}}"#;
    measure("strategic patch of a label", || {
        engine.patch(&object, PatchType::Strategic, patch, Strictness::Strict)
    });
    let meta = list::ListMeta::default();
    measure("list of 500, JSON", || {
        list::list_json(&object.kind, &meta, std::iter::repeat_n(json.as_slice(), 500))
    });
    let form = table::TableOptions {
        api_version: "meta.k8s.io/v1",
        columns: table::ColumnDefinitions::Included,
        include: table::Include::Metadata,
        now: 0,
    };
    measure("table of 500", || {
        table::encode(engine, form, &object.kind, &meta, std::iter::repeat_n(&object, 500))
    });
}

/// Repeats `step` for a while and prints its median.
fn measure<T>(name: &str, mut step: impl FnMut() -> T) {
    let mut times = Vec::new();
    let started = Instant::now();
    while started.elapsed() < BUDGET {
        let before = Instant::now();
        black_box(step());
        times.push(before.elapsed());
    }
    times.sort();
    println!("    {name:<32} {:>9.1} us", micros(times[times.len() / 2]));
}

fn micros(time: Duration) -> f64 {
    time.as_secs_f64() * 1e6
}
