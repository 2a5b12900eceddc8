//! Bodies of many small values: refused where they would become much larger than they are, accepted where clusters have such objects.

#![allow(clippy::expect_used, clippy::panic, reason = "a test that cannot go on has failed")]

use std::fmt::Write as _;
use std::sync::{Arc, LazyLock};

use apiserver_schema::custom::CustomNames;
use apiserver_schema::value::TooLarge;
use apiserver_schema::{
    DecodeError, Engine, Format, Kind, Map, Object, PatchError, PatchType, Strictness, Value,
};
use proto_api::names::{Names, Profile};

static ENGINE: LazyLock<Engine> = LazyLock::new(|| Engine::new(Names::new(Profile::Kubernetes)));

/// Longest body of a request.
const BODY_LEN: usize = 3 << 20;

fn kind(name: &str) -> Arc<Kind> {
    Arc::clone(ENGINE.kind("", "v1", name).expect(name))
}

fn custom() -> Arc<Kind> {
    let (group, version, kind, plural) = ("example.com", "v1", "Widget", "widgets");
    let names = CustomNames { group, version, kind, plural, namespaced: true };
    ENGINE.custom_kind(&names).expect("a custom kind")
}

fn decode(kind: &Arc<Kind>, format: Format, body: &[u8]) -> Result<Object, DecodeError> {
    ENGINE.decode(kind, format, body, Strictness::Ignore).map(|decoded| decoded.object)
}

fn read(kind: &Arc<Kind>, body: &str) -> Object {
    decode(kind, Format::Json, body.as_bytes()).expect("an object")
}

/// `start`, then `item` as often as it fits into a body or `count` says, then `end`.
fn repeated(start: &str, item: &str, end: &str, count: usize) -> String {
    let fits = (BODY_LEN - start.len() - end.len()) / (item.len() + 1);
    format!("{start}{}{end}", vec![item; fits.min(count)].join(","))
}

/// A ConfigMap of short keys, each with an entry in the managed fields.
fn config_map(keys: usize, managed: bool) -> String {
    let (mut data, mut fields) = (String::new(), String::new());
    for at in 0..keys {
        let comma = if at == 0 { "" } else { "," };
        write!(data, r#"{comma}"k{at}":"v""#).expect("written");
        write!(fields, r#"{comma}"f:k{at}":{{}}"#).expect("written");
    }
    let fields = if managed { fields } else { String::new() };
    format!(
        r#"{{"metadata":{{"name":"m","managedFields":[{{"manager":"m","fieldsType":"FieldsV1","fieldsV1":{{"f:data":{{{fields}}}}}}}]}},"data":{{{data}}}}}"#
    )
}

/// A field of Protobuf with these bytes.
fn field(number: u8, bytes: &[u8]) -> Vec<u8> {
    let mut out = vec![(number << 3) | 2];
    let mut len = bytes.len();
    while len >= 0x80 {
        out.push(u8::try_from(len & 0x7f).unwrap_or(0) | 0x80);
        len >>= 7;
    }
    out.push(u8::try_from(len).unwrap_or(0));
    out.extend_from_slice(bytes);
    out
}

fn envelope(api_version: &str, kind: &str, raw: &[u8]) -> Vec<u8> {
    let meta = [field(1, api_version.as_bytes()), field(2, kind.as_bytes())].concat();
    [b"k8s\0".to_vec(), field(1, &meta), field(2, raw)].concat()
}

/// A pod with empty containers: two bytes each.
fn containers(count: usize) -> Vec<u8> {
    envelope("v1", "Pod", &field(2, &[0x12, 0].repeat(count)))
}

/// The values of a tree.
fn count(value: &Value) -> usize {
    match value {
        Value::List(items) => items.iter().map(count).sum::<usize>() + 1,
        Value::Map(map) => map.iter().map(|(_, value)| count(value)).sum::<usize>() + 1,
        _ => 1,
    }
}

#[test]
fn bodies_that_would_become_much_larger_are_refused() {
    let revisions = Arc::clone(ENGINE.kind("apps", "v1", "ControllerRevision").expect("a kind"));
    let (pods, maps, widgets) = (kind("Pod"), kind("ConfigMap"), custom());
    let zeros = repeated("[", "0", "]", usize::MAX);
    let of_json = [
        (&pods, repeated(r#"{"spec":{"containers":["#, "{}", "]}}", usize::MAX)),
        (&pods, repeated(r#"{"spec":{"containers":[{"env":["#, "{}", "]}]}}", usize::MAX)),
        (&pods, repeated(r#"{"spec":{"containers":[{"args":["#, r#""""#, "]}]}}", usize::MAX)),
        (&pods, repeated(r#"{"unknown":["#, "0", "]}", usize::MAX)),
        (&maps, repeated(r#"{"data":{"#, r#""":"""#, "}}", usize::MAX)),
        (&maps, format!(r#"{{"data":{zeros}}}"#)),
        (&revisions, format!(r#"{{"data":{zeros}}}"#)),
        (&widgets, format!(r#"{{"spec":{zeros}}}"#)),
        (&widgets, repeated(r#"{"spec":["#, r#"{"a":0}"#, "]}", usize::MAX)),
    ];
    for (kind, body) in &of_json {
        assert!(body.len() <= BODY_LEN + 20);
        let start: String = body.chars().take(40).collect();
        let refused = decode(kind, Format::Json, body.as_bytes());
        assert_eq!(refused, Err(DecodeError::TooLarge(TooLarge::Values)), "{start}");
    }
    let raw = field(2, &field(1, zeros.as_bytes()));
    // `spec.securityContext.supplementalGroups`, packed.
    let packed = field(2, &field(14, &field(4, &vec![1; BODY_LEN])));
    for (what, kind, body) in [
        ("containers", &pods, containers(BODY_LEN / 2)),
        ("raw JSON", &revisions, envelope("apps/v1", "ControllerRevision", &raw)),
        ("packed numbers", &pods, envelope("v1", "Pod", &packed)),
    ] {
        let refused = decode(kind, Format::Protobuf, &body);
        assert_eq!(refused, Err(DecodeError::TooLarge(TooLarge::Values)), "{what}");
    }
    for body in [&of_json[0].1, &of_json[4].1] {
        assert!(decode(&pods, Format::Yaml, body.as_bytes()).is_err());
    }
}

#[test]
fn growth_by_defaults_is_bounded() {
    let pods = kind("Pod");
    let json = |count| repeated(r#"{"spec":{"containers":["#, "{}", "]}}", count);
    let too_many = Err(DecodeError::TooLarge(TooLarge::MapsInLists));
    assert_eq!(decode(&pods, Format::Json, json(50_001).as_bytes()), too_many);
    assert_eq!(decode(&pods, Format::Yaml, json(50_001).as_bytes()), too_many);
    assert_eq!(decode(&pods, Format::Protobuf, &containers(50_001)), too_many);
    let mut pod = read(&pods, &json(50_000));
    assert!(decode(&pods, Format::Protobuf, &containers(50_000)).as_ref() == Ok(&pod));
    ENGINE.default(&mut pod);
    assert!(count(&Value::Map(pod.fields)) < 250_000);
}

#[test]
fn objects_as_large_as_clusters_have_them_are_accepted() {
    // As large as a store of Kubernetes takes them.
    const STORED_LEN: usize = 1_500_000;
    let (maps, widgets) = (kind("ConfigMap"), custom());
    let policies =
        Arc::clone(ENGINE.kind("networking.k8s.io", "v1", "NetworkPolicy").expect("one"));
    let peers = |count: usize| {
        let peer = r#"{"ipBlock":{"cidr":"10.0.0.1/32"}}"#;
        repeated(r#"{"metadata":{"name":"p"},"spec":{"ingress":[{"from":["#, peer, "]}]}}", count)
    };
    let digits = repeated(r#"{"metadata":{"name":"w"},"spec":["#, "0", "]}", STORED_LEN / 2);
    let item = r#"{"name":"a","value":"b"}"#;
    let items = repeated(r#"{"metadata":{"name":"w"},"spec":["#, item, "]}", STORED_LEN / 25);
    for (kind, body) in [
        (&maps, config_map(115_000, false)),
        (&maps, config_map(60_000, true)),
        (&policies, peers(STORED_LEN / 35)),
        (&widgets, digits),
        (&widgets, items),
    ] {
        assert!(body.len() * 11 > STORED_LEN * 10, "{}", body.len());
        let object = read(kind, &body);
        for format in [Format::Json, Format::Protobuf] {
            if format == Format::Protobuf && kind.custom().is_some() {
                continue;
            }
            let bytes = match format {
                Format::Protobuf => ENGINE.encode_protobuf(&object),
                _ => ENGINE.encode_json(&object),
            };
            assert!(decode(kind, format, &bytes).as_ref() == Ok(&object), "{format}");
        }
    }
}

#[test]
fn large_stored_objects_are_readable_and_can_shrink() {
    let mut large = read(&kind("ConfigMap"), r#"{"metadata":{"name":"m"},"data":{"a":"b"}}"#);
    let data = (0..400_000).map(|at| (format!("k{at:06}").into(), Value::from("v")));
    large.fields.insert("data", Map::from_entries(data.collect()));
    let stored = ENGINE.decode_stored(&ENGINE.encode_stored(&large)).expect("read");
    assert!(stored == large);
    let patch = |format, text: &str| {
        ENGINE.patch(&large, format, text.as_bytes(), Strictness::Ignore).expect("a patch")
    };
    let smaller = patch(PatchType::Merge, r#"{"data":{"k000000":null}}"#).expect("an object");
    assert_eq!(smaller.object.fields.map("data").map(Map::len), Some(399_999));
    let larger = patch(PatchType::Merge, r#"{"data":{"one":"more"}}"#);
    assert_eq!(larger, Err(DecodeError::TooLarge(TooLarge::Values)));
    let copied = r#"[{"op":"copy","from":"/data/k000000","path":"/data/one"}]"#;
    let larger = patch(PatchType::Json, copied);
    assert_eq!(larger, Err(DecodeError::TooLarge(TooLarge::Values)));
}

#[test]
fn patches_and_configurations_are_bounded_as_bodies_are() {
    let small = read(&kind("ConfigMap"), r#"{"metadata":{"name":"m"}}"#);
    let patch = repeated(r#"{"data":["#, "0", "]}", usize::MAX);
    for format in [PatchType::Json, PatchType::Merge, PatchType::Strategic] {
        let patched = ENGINE.patch(&small, format, patch.as_bytes(), Strictness::Ignore);
        assert_eq!(patched, Err(PatchError::TooLarge(TooLarge::Values)), "{format:?}");
    }
    let patched = ENGINE.patch_written(&small, patch.as_bytes());
    assert_eq!(patched, Err(PatchError::TooLarge(TooLarge::Values)));
    let parsed = ENGINE.parse_document(Format::Json, patch.as_bytes(), Strictness::Ignore);
    assert_eq!(parsed, Err(DecodeError::TooLarge(TooLarge::Values)));
    let containers = vec![Value::Map(Map::new()); 50_001];
    let spec = Map::from_entries(vec![("containers".into(), containers.into())]);
    let pod = Map::from_entries(vec![("spec".into(), spec.into())]);
    let applied = ENGINE.applied(&kind("Pod"), pod.into(), None, Strictness::Ignore);
    assert_eq!(applied, Err(DecodeError::TooLarge(TooLarge::MapsInLists)));
}

#[test]
fn only_some_unknown_fields_are_named() {
    let fields: Vec<String> = (0..1_000).map(|at| format!(r#""x{at}":0"#)).collect();
    let body = format!("{{{}}}", fields.join(","));
    let refused = ENGINE.decode(&kind("Pod"), Format::Json, body.as_bytes(), Strictness::Strict);
    let Err(DecodeError::Strict(named)) = refused else { panic!("{refused:?}") };
    assert_eq!(named.len(), 100);
}
