//! Measures the cost of each step of the engine for a small ConfigMap and a filled pod, on one core, also for `hack/bench`.

#![allow(clippy::expect_used, reason = "a benchmark that cannot go on has failed")]

#[path = "../../../tests/bench/figures.rs"]
mod figures;

use std::fs;
use std::hint::black_box;
use std::path::Path;
use std::time::{Duration, Instant};

use apiserver_schema::{Engine, Format, PatchType, Strictness, list, openapi, table, value};
use proto_api::names::{Names, Profile};

use figures::{Figure, Group, Unit};

/// How long each step is repeated.
const BUDGET: Duration = Duration::from_millis(300);

fn main() {
    let started = Instant::now();
    let engine = Engine::new(Names::new(Profile::Kubernetes));
    tell("compile all descriptors, once", Unit::Micros, [started.elapsed()]);
    let small = format!(
        r#"{{"kind":"ConfigMap","apiVersion":"v1","metadata":{{"name":"web","namespace":"default"}},"data":{{"a":"{}"}}}}"#,
        "x".repeat(512)
    );
    steps(&engine, "config map, 512 bytes", small.as_bytes());
    let testdata = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../proto/api/testdata");
    let pod = fs::read(testdata.join("core.v1.Pod.json")).expect("testdata");
    steps(&engine, "pod with every field set", &pod);
    let started = Instant::now();
    black_box(openapi::v3_index(&engine));
    tell("OpenAPI v3 index and all its documents, once", Unit::Micros, [started.elapsed()]);
}

fn steps(engine: &Engine, what: &str, body: &[u8]) {
    let decode = |format, body: &[u8]| {
        engine.decode_any(format, body, Strictness::Strict).expect("a whole object").object
    };
    let object = decode(Format::Json, body);
    let json = engine.encode_json(&object);
    let protobuf = engine.encode_protobuf(&object);
    for (format, len) in [("JSON", json.len()), ("Protobuf", protobuf.len())] {
        let what = format!("{what}: size in {format}");
        Figure::new(Group::Engine, what, Unit::Bytes, len as f64).tell().expect("told");
    }
    let measure = Measure(what);
    measure.step("parse JSON", || value::parse_json(&json, &mut Vec::new()).expect("JSON"));
    measure.step("decode JSON", || decode(Format::Json, &json));
    measure.step("decode Protobuf", || decode(Format::Protobuf, &protobuf));
    measure.step("encode JSON", || engine.encode_json(&object));
    measure.step("encode Protobuf", || engine.encode_protobuf(&object));
    measure.step("clone", || object.clone());
    measure.step("default", || {
        let mut object = object.clone();
        engine.default(&mut object);
        object
    });
    measure.step("validate", || engine.validate_create(&object));
    let patch = br#"{"metadata":{"labels":{"a":"b"}}}"#;
    measure.step("strategic patch of a label", || {
        engine.patch(&object, PatchType::Strategic, patch, Strictness::Strict)
    });
    let meta = list::ListMeta::default();
    measure.step("list of 500, JSON", || {
        list::list_json(&object.kind, &meta, std::iter::repeat_n(json.as_slice(), 500))
    });
    let form = table::TableOptions {
        api_version: "meta.k8s.io/v1",
        columns: table::ColumnDefinitions::Included,
        include: table::Include::Metadata,
        now: 0,
    };
    measure.step("table of 500", || {
        table::encode(engine, form, &object.kind, &meta, std::iter::repeat_n(&object, 500))
    });
}

fn tell(what: &str, unit: Unit, times: impl IntoIterator<Item = Duration>) {
    Figure::of_times(Group::Engine, what, unit, times).tell().expect("told");
}

/// Steps on one object.
struct Measure<'a>(&'a str);

impl Measure<'_> {
    /// Repeats a step for a while.
    fn step<T>(&self, name: &str, mut step: impl FnMut() -> T) {
        let mut times = Vec::new();
        let started = Instant::now();
        while started.elapsed() < BUDGET {
            let before = Instant::now();
            black_box(step());
            times.push(before.elapsed());
        }
        tell(&format!("{}: {name}", self.0), Unit::Micros, times);
    }
}
