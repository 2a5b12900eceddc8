//! The cost of a request is proportional to its size: each list and map of each kind with 500 and with 4,000 entries, through all
//! operations of a server. Prints the ratio of the two times, the highest first; 8 is proportional, and the highest goes to
//! `hack/bench`. Measures CPU time of the thread.
//! `src/proportion.rs` counts work on maps exactly.

#![allow(clippy::expect_used, clippy::panic, reason = "a test that cannot go on has failed")]

#[path = "../../../tests/bench/figures.rs"]
mod figures;

use std::collections::BTreeSet;
use std::time::Duration;

use apiserver_schema::update::{Subresource, merge_for_update};
use apiserver_schema::{Engine, Format, Object, PatchType, Strictness, fields, table};
use nix::time::{ClockId, clock_gettime};
use proto_api::names::{Names, Profile};
use proto_api::schema::{
    self, FieldDescriptor, MessageDescriptor, MessageId, Shape, Value as Holds,
};
use proto_api::selectors::Selector;
use serde_json::{Map, Value, json};

use figures::{Figure, Group, Unit};

/// Entries of the small object; the large one has [`TIMES`] times as many.
const SMALL: usize = 500;
const TIMES: usize = 8;
/// Shorter times are not compared, because clocks are too coarse.
const TOO_SHORT: Duration = Duration::from_millis(5);
/// Number of ratios printed.
const PRINTED: usize = 20;

/// CPU time of this thread.
fn thread_time() -> Duration {
    // Not the scheduler's count in /proc, which is as old as the last tick.
    Duration::from(clock_gettime(ClockId::CLOCK_THREAD_CPUTIME_ID).expect("a clock"))
}

/// The shortest of a few runs.
fn cost(runs: usize, mut work: impl FnMut()) -> Duration {
    let mut shortest = Duration::MAX;
    for _ in 0..runs {
        let before = thread_time();
        work();
        shortest = shortest.min(thread_time().saturating_sub(before));
    }
    shortest
}

/// Ratio of the times of the large and the small object; `None` if the large one is too fast to measure.
fn ratio(mut work: impl FnMut(usize)) -> Option<f64> {
    let large = cost(3, || work(SMALL * TIMES));
    if large < TOO_SHORT {
        return None;
    }
    let small = cost(3, || work(SMALL));
    Some(large.as_secs_f64() / small.as_secs_f64().max(f64::EPSILON))
}

/// A value for a field of an entry; entries differ in it.
fn scalar(field: &FieldDescriptor, at: usize) -> Option<Value> {
    match field.value {
        Holds::String => Some(json!(format!("{}-{at}", field.json.to_lowercase()))),
        Holds::Int32 | Holds::Int64 => Some(json!(at % 30_000 + 1)),
        Holds::IntOrString => Some(json!(at % 30_000 + 1)),
        Holds::Quantity => Some(json!("1")),
        _ => None,
    }
}

/// Entry `at` of a list or map of `field`.
fn entry(field: &FieldDescriptor, at: usize) -> Value {
    match field.value {
        Holds::Message(id) => Value::Object(filled(id.get(), at, 2)),
        Holds::StringList => json!(["a"]),
        Holds::Bytes => json!(""),
        Holds::Bool => json!(true),
        Holds::Raw | Holds::Any => json!({}),
        Holds::Time | Holds::MicroTime => json!("2026-01-02T03:04:05Z"),
        Holds::Double => json!(1),
        _ => scalar(field, at).expect("a scalar"),
    }
}

/// A message with its scalars and those of plain messages below set.
fn filled(message: &MessageDescriptor, at: usize, depth: usize) -> Map<String, Value> {
    let mut map = Map::new();
    if message.union {
        return map;
    }
    for field in message.fields {
        match (field.shape, field.value) {
            (Shape::Plain | Shape::Pointer, Holds::Message(id))
                if field.inline || depth > 0 && field.shape == Shape::Plain =>
            {
                let below = filled(id.get(), at, depth.saturating_sub(1));
                if field.inline {
                    map.extend(below);
                } else {
                    map.insert(field.json.to_owned(), Value::Object(below));
                }
            }
            (Shape::Plain | Shape::Pointer, _) => {
                map.extend(scalar(field, at).map(|value| (field.json.to_owned(), value)));
            }
            (Shape::List | Shape::Map, _) => {}
        }
    }
    map
}

/// A step towards a list or map.
type Place = Vec<&'static FieldDescriptor>;

/// The lists and maps of a kind that are not in `seen`: each message is visited once.
fn places(root: MessageId, seen: &mut BTreeSet<(MessageId, &'static str)>) -> Vec<Place> {
    fn walk(
        id: MessageId,
        path: &mut Place,
        seen: &mut BTreeSet<(MessageId, &'static str)>,
        found: &mut Vec<Place>,
    ) {
        for field in id.get().fields {
            if !field.inline {
                path.push(field);
            }
            let fresh = seen.insert((id, field.json));
            if fresh && matches!(field.shape, Shape::List | Shape::Map) {
                found.push(path.clone());
            }
            if let (true, Holds::Message(below)) = (fresh, field.value) {
                walk(below, path, seen, found);
            }
            if !field.inline {
                path.pop();
            }
        }
    }
    let mut found = Vec::new();
    walk(root, &mut Vec::new(), seen, &mut found);
    found
}

/// `base` with `count` entries at a path; lists on the way get one item.
fn with_entries(base: &Value, place: &[&'static FieldDescriptor], count: usize) -> Value {
    fn set(here: &mut Value, place: &[&'static FieldDescriptor], count: usize) {
        let Some((field, rest)) = place.split_first() else { return };
        if !here.is_object() {
            *here = json!({});
        }
        let slot = &mut here[field.json];
        match (field.shape, rest.is_empty()) {
            (Shape::List, true) => *slot = (0..count).map(|at| entry(field, at)).collect(),
            (Shape::Map, true) => {
                let entries = (0..count).map(|at| (format!("k{at}"), entry(field, at)));
                *slot = Value::Object(entries.collect());
            }
            (Shape::List, false) => {
                if slot.as_array().is_none_or(Vec::is_empty) {
                    *slot = json!([entry(field, 0)]);
                }
                set(&mut slot[0], rest, count);
            }
            (Shape::Map, false) => {
                *slot = json!({"k": entry(field, 0)});
                set(&mut slot["k"], rest, count);
            }
            (Shape::Plain | Shape::Pointer, _) => set(slot, rest, count),
        }
    }
    let mut object = base.clone();
    set(&mut object, place, count);
    object
}

/// The operations of a write request.
fn serve(engine: &Engine, kind: &std::sync::Arc<apiserver_schema::Kind>, body: &[u8]) -> bool {
    let decode = |format, body: &[u8]| engine.decode(kind, format, body, Strictness::Warn);
    let Ok(decoded) = decode(Format::Json, body) else { return false };
    let mut object = decoded.object;
    engine.default(&mut object);
    let _ = engine.validate_create(&object);
    let mut old = object.clone();
    old.set_meta_str("uid", "u");
    for subresource in [Subresource::Main, Subresource::Status] {
        let merged = merge_for_update(&old, &object, subresource);
        let _ = engine.validate_update(&old, &merged, subresource);
    }
    for patch in [PatchType::Merge, PatchType::Strategic] {
        let _ = engine.patch(&object, patch, body, Strictness::Warn);
    }
    show(engine, &object);
    if !kind.resource.is_some_and(|resource| resource.plural.is_empty()) {
        let bytes = engine.encode_protobuf(&object);
        assert!(decode(Format::Protobuf, &bytes).is_ok());
    }
    true
}

/// The operations on a stored object: selectors, table, JSON.
fn show(engine: &Engine, object: &Object) {
    let labels = object.metadata().and_then(|metadata| metadata.map("labels"));
    let selector = Selector::parse("a in (b,c),!d").expect("a selector");
    let label = |key: &str| labels.and_then(|labels| labels.get(key)).and_then(|v| v.as_str());
    let _ = selector.matches_with(label);
    for field in fields::supported(&object.kind) {
        let _ = fields::value_of(object, field);
    }
    let form = table::TableOptions {
        api_version: "meta/v1",
        columns: table::ColumnDefinitions::Included,
        include: table::Include::Metadata,
        now: 1_800_000_000,
    };
    let _ = table::encode(engine, form, &object.kind, &Default::default(), [object]);
    let _ = engine.encode_json(object);
}

/// The ratios of all lists and maps that are slow enough, and the number of objects decoded.
fn compare_all(
    engine: &Engine,
    work: &[(&'static schema::ResourceDescriptor, Place)],
) -> (Vec<(f64, String)>, usize) {
    let base = json!({"metadata": {"name": "n", "namespace": "d"}});
    let (mut read, mut ratios) = (0, Vec::new());
    for (resource, place) in work {
        let group = engine.names().group(resource.group);
        let group = if resource.group.is_empty() { "" } else { &group };
        let kind = engine.resource(group, resource.version, resource.plural).expect("a kind");
        let path: Vec<&str> = place.iter().map(|field| field.json).collect();
        let body = |count| with_entries(&base, place, count).to_string().into_bytes();
        let (small, large) = (body(SMALL), body(SMALL * TIMES));
        let mut accepted = false;
        let ratio = ratio(|count| {
            let body = if count == SMALL { &small } else { &large };
            accepted |= serve(engine, kind, body);
        });
        ratios.extend(ratio.map(|ratio| (ratio, format!("{} {}", resource.kind, path.join(".")))));
        read += usize::from(accepted);
    }
    (ratios, read)
}

/// A selector with many requirements, and one with many values.
fn selectors() -> Vec<(f64, String)> {
    let keys = |count: usize| (0..count).map(|at| format!("k{at}=v")).collect::<Vec<_>>().join(",");
    let values = |count: usize| {
        let values: Vec<String> = (0..count).map(|at| format!("v{at}")).collect();
        format!("k in ({})", values.join(","))
    };
    let labels: Vec<(String, String)> =
        (0..SMALL * TIMES * 10).map(|at| (format!("k{at}"), "v".to_owned())).collect();
    let labels = labels.into_iter().collect();
    let both = [("requirements", &keys as &dyn Fn(usize) -> String), ("values", &values)];
    let compared = both.into_iter().filter_map(|(what, text)| {
        let ratio = ratio(|count| {
            let selector = Selector::parse(&text(count * 10)).expect("a selector");
            let _ = selector.matches(&labels);
        })?;
        Some((ratio, format!("selector with many {what}")))
    });
    compared.collect()
}

fn main() {
    let engine = Engine::new(Names::new(Profile::Kubernetes));
    let mut seen = BTreeSet::new();
    let all = schema::resources().iter().flat_map(|resource| {
        let places = places(resource.message, &mut seen);
        places.into_iter().map(move |place| (resource, place))
    });
    let all: Vec<_> = all.collect();
    let (mut ratios, read) = compare_all(&engine, &all);
    ratios.extend(selectors());
    ratios.sort_by(|(one, _), (other, _)| other.total_cmp(one));
    println!(
        "{} lists and maps, {read} accepted; times as long for {TIMES} times the entries:",
        all.len()
    );
    if let Some((ratio, _)) = ratios.first() {
        let what =
            format!("a request of {TIMES} times the entries, the most of all lists and maps");
        Figure::new(Group::Engine, what, Unit::Times, *ratio).tell().expect("told");
    }
    for (ratio, what) in ratios.iter().take(PRINTED) {
        println!("{ratio:6.1}  {what}");
    }
}
