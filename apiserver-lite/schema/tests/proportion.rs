//! A request costs what its size justifies: each list and map of each kind with more and more entries, through all that a
//! server does with an object. What is compared is the time that this thread spent on a processor, so that other work on
//! the machine counts little; eight times the entries may take at most twice eight times as long. What is seen is a pass over
//! all for each that costs more than all the rest together at 4,000 entries: a comparison of two short texts for each pair is still too
//! cheap for it. Work on maps is counted exactly in `src/proportion.rs`.

#![allow(clippy::expect_used, clippy::panic, reason = "a test that cannot go on has failed")]

use std::collections::BTreeSet;
use std::time::Duration;

use apiserver_schema::update::{Subresource, merge_for_update};
use apiserver_schema::{Engine, Format, Object, PatchType, Strictness, fields, table};
use proto_api::names::{Names, Profile};
use proto_api::schema::{self, Field, Message, MessageId, Shape, Value as Holds};
use proto_api::selectors::Selector;
use serde_json::{Map, Value, json};

/// Entries of the small object; the large one has [`TIMES`] as many.
const SMALL: usize = 500;
const TIMES: usize = 8;
/// How much more the large one may cost than by its size.
const SLACK: u32 = 2;
/// What takes less than this is not judged: clocks are no finer.
const TOO_SHORT: Duration = Duration::from_millis(20);

/// The time that this thread has run.
fn thread_time() -> Duration {
    let text = std::fs::read_to_string("/proc/thread-self/schedstat").expect("schedstat");
    let nanos = text.split_whitespace().next().and_then(|text| text.parse().ok());
    Duration::from_nanos(nanos.expect("nanoseconds"))
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

/// What is too dear, after the look was repeated.
fn judge(what: &str, mut work: impl FnMut(usize)) -> Option<String> {
    let mut verdict = None;
    for runs in [1, 3, 5] {
        let large = cost(runs, || work(SMALL * TIMES));
        if large < TOO_SHORT {
            return None;
        }
        let small = cost(runs, || work(SMALL));
        if large <= small * u32::try_from(TIMES).expect("small") * SLACK {
            return None;
        }
        verdict =
            Some(format!("{what}: {small:?} for {SMALL}, {large:?} for {TIMES} times as many"));
    }
    verdict
}

/// A value for a field of an entry; entries differ in it.
fn scalar(field: &Field, at: usize) -> Option<Value> {
    match field.value {
        Holds::String => Some(json!(format!("{}-{at}", field.json.to_lowercase()))),
        Holds::Int32 | Holds::Int64 => Some(json!(at % 30_000 + 1)),
        Holds::IntOrString => Some(json!(at % 30_000 + 1)),
        Holds::Quantity => Some(json!("1")),
        _ => None,
    }
}

/// Entry `at` of a list or map of `field`.
fn entry(field: &Field, at: usize) -> Value {
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

/// A message with its scalars set, and those of plain messages below.
fn filled(message: &Message, at: usize, depth: usize) -> Map<String, Value> {
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
type Place = Vec<&'static Field>;

/// The lists and maps of a kind that were not `seen` in another: a message is opened once.
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

/// `base` with `count` entries at a place; lists on the way there get one item.
fn with_entries(base: &Value, place: &[&'static Field], count: usize) -> Value {
    fn set(here: &mut Value, place: &[&'static Field], count: usize) {
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

/// What the server does with an object between a request and its answer.
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

/// What is done with an object that is read: selectors, table, JSON.
fn show(engine: &Engine, object: &Object) {
    let labels = object.metadata().and_then(|metadata| metadata.map("labels"));
    let selector = Selector::parse("a in (b,c),!d").expect("a selector");
    let label = |key: &str| labels.and_then(|labels| labels.get(key)).and_then(|v| v.as_str());
    let _ = selector.matches_with(label);
    for field in fields::supported(&object.kind) {
        let _ = fields::value_of(object, field);
    }
    let form = table::Form {
        api_version: "meta/v1",
        columns: table::Columns::Shown,
        include: table::Include::Metadata,
        now: 1_800_000_000,
    };
    let _ = table::encode(engine, form, &object.kind, &Default::default(), [object]);
    let _ = engine.encode_json(object);
}

/// What is too dear of some of the lists and maps, and how many objects could be read.
fn judge_all(engine: &Engine, work: &[(&'static schema::Resource, Place)]) -> (Vec<String>, usize) {
    let base = json!({"metadata": {"name": "n", "namespace": "d"}});
    let (mut read, mut dear) = (0, Vec::new());
    for (resource, place) in work {
        let group = engine.names().group(resource.group);
        let group = if resource.group.is_empty() { "" } else { &group };
        let kind = engine.resource(group, resource.version, resource.plural).expect("a kind");
        let path: Vec<&str> = place.iter().map(|field| field.json).collect();
        let what = format!("{} {}", resource.kind, path.join("."));
        let body = |count| with_entries(&base, place, count).to_string().into_bytes();
        let (small, large) = (body(SMALL), body(SMALL * TIMES));
        let mut accepted = false;
        dear.extend(judge(&what, |count| {
            let body = if count == SMALL { &small } else { &large };
            accepted |= serve(engine, kind, body);
        }));
        read += usize::from(accepted);
    }
    (dear, read)
}

#[test]
fn every_list_and_map_of_every_kind() {
    let engine = Engine::new(Names::new(Profile::Kubernetes));
    let mut seen = BTreeSet::new();
    let all = schema::resources().iter().flat_map(|resource| {
        let places = places(resource.message, &mut seen);
        places.into_iter().map(move |place| (resource, place))
    });
    let all: Vec<_> = all.collect();
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    let (mut dear, mut read) = (Vec::new(), 0);
    std::thread::scope(|scope| {
        let shares = all.chunks(all.len().div_ceil(threads).max(1));
        let running: Vec<_> =
            shares.map(|share| scope.spawn(|| judge_all(&engine, share))).collect();
        for share in running {
            let (more, count) = share.join().expect("judged");
            dear.extend(more);
            read += count;
        }
    });
    assert!(dear.is_empty(), "{}", dear.join("\n"));
    // Fewer would mean that descriptors are not walked any more, or that hardly anything is accepted.
    assert!(all.len() > 250 && read * 10 > all.len() * 9, "{read} of {} read", all.len());
}

/// A selector with many requirements, and one with many values.
#[test]
fn selectors() {
    let keys = |count: usize| (0..count).map(|at| format!("k{at}=v")).collect::<Vec<_>>().join(",");
    let values = |count: usize| {
        let values: Vec<String> = (0..count).map(|at| format!("v{at}")).collect();
        format!("k in ({})", values.join(","))
    };
    let labels: Vec<(String, String)> =
        (0..SMALL * TIMES * 10).map(|at| (format!("k{at}"), "v".to_owned())).collect();
    let labels = labels.into_iter().collect();
    for (what, text) in [("requirements", &keys as &dyn Fn(usize) -> String), ("values", &values)] {
        let dear = judge(what, |count| {
            let selector = Selector::parse(&text(count * 10)).expect("a selector");
            let _ = selector.matches(&labels);
        });
        assert_eq!(dear, None);
    }
}
