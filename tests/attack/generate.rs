//! pure: requests made from a seed and the API's own descriptors.

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};
use proto_api::schema::{FieldDescriptor, MessageDescriptor, ResourceDescriptor, Shape, Value};
use rand::rngs::StdRng;
use rand::seq::IndexedRandom as _;
use rand::{Rng as _, RngExt as _};
use serde_json::{Map, Value as Json, json};

/// Integers at the edges of every type that a program may hold them in.
pub const NUMBERS: [i64; 13] = [
    i64::MAX,
    i64::MIN,
    i64::MAX - 1,
    0,
    -1,
    1,
    u32::MAX as i64 + 1,
    u32::MAX as i64,
    i32::MAX as i64,
    i32::MAX as i64 + 1,
    i32::MIN as i64,
    65_536,
    9_007_199_254_740_993,
];

/// Strings that are too long, lead out, or look like something else.
const STRINGS: [&str; 28] = [
    "",
    " ",
    "a",
    "../../../etc/shadow",
    "/",
    "..",
    "a\u{0}b",
    "\u{202e}\u{feff}",
    "%00%2e%2e%2f",
    "100%",
    "-1%",
    "9223372036854775807%",
    "1e308",
    "-1e308",
    "1e-30",
    "9223372036854775808",
    "0x7fffffff",
    "NaN",
    "9999-12-31T23:59:59Z",
    "0001-01-01T00:00:00Z",
    "-0001-01-01T00:00:00Z",
    "127.0.0.1",
    "::ffff:127.0.0.1",
    "169.254.169.254",
    "0.0.0.0/0",
    "$(A)$(A)$(A)",
    "{{.}}${x}`id`",
    "None",
];

/// Depth below which generated messages have no more messages in them.
const DEPTH_MAX: u32 = 6;

/// A string of `STRINGS`, or a long one now and then.
pub fn string(random: &mut StdRng) -> String {
    match random.random_range(0..40) {
        0 => "x".repeat(random.random_range(250..70_000)),
        1 => "a.".repeat(random.random_range(1..400)),
        2 => (0..random.random_range(1..50)).map(|_| random.random::<char>()).collect(),
        _ => STRINGS.choose(random).copied().unwrap_or_default().to_owned(),
    }
}

fn number(random: &mut StdRng) -> i64 {
    if random.random_bool(0.2) {
        return random.random();
    }
    NUMBERS.choose(random).copied().unwrap_or_default()
}

/// An object of a resource with random fields, named below `NAMESPACE`'s rules so that it harms nothing that was there.
pub fn object(
    random: &mut StdRng,
    resource: &ResourceDescriptor,
    api_version: &str,
    name: &str,
) -> Json {
    let mut object = message(random, resource.message.get(), 0);
    let metadata = json!({
        "name": name,
        "labels": {"a": string(random)},
        "annotations": {"a": string(random)},
        "generation": number(random),
        "deletionGracePeriodSeconds": number(random),
    });
    object.insert("apiVersion".into(), api_version.into());
    object.insert("kind".into(), resource.kind.into());
    object.insert("metadata".into(), metadata);
    Json::Object(object)
}

fn message(random: &mut StdRng, of: &MessageDescriptor, depth: u32) -> Map<String, Json> {
    let mut object = Map::new();
    for field in of.fields {
        let likely = if depth < 2 { 0.5 } else { 0.2 };
        if depth > DEPTH_MAX || field.json == "metadata" || !random.random_bool(likely) {
            continue;
        }
        if field.inline {
            if let Json::Object(inner) = value(random, field.value, depth + 1) {
                object.extend(inner);
            }
            continue;
        }
        let made = match field.shape {
            Shape::Plain | Shape::Pointer => value(random, field.value, depth + 1),
            Shape::List => {
                let len = if random.random_bool(0.02) { 200 } else { random.random_range(0..3) };
                Json::Array((0..len).map(|_| value(random, field.value, depth + 1)).collect())
            }
            Shape::Map => {
                let len = random.random_range(0..3);
                let pairs =
                    (0..len).map(|_| (string(random), value(random, field.value, depth + 1)));
                Json::Object(pairs.collect())
            }
        };
        object.insert(field.json.into(), made);
    }
    object
}

fn value(random: &mut StdRng, of: Value, depth: u32) -> Json {
    match of {
        Value::Bool => random.random_bool(0.5).into(),
        Value::Int32 | Value::Int64 => number(random).into(),
        Value::Double => json!(number(random) as f64 * 1e290),
        Value::IntOrString if random.random_bool(0.5) => number(random).into(),
        Value::Message(id) => Json::Object(message(random, id.get(), depth)),
        Value::Raw | Value::Any => json!({"a": [string(random), number(random)]}),
        Value::StringList => json!([string(random), string(random)]),
        Value::Bytes => "AAECAw==".into(),
        _ => string(random).into(),
    }
}

/// Bytes like `original` with some of them changed, removed, doubled or cut off.
pub fn mutate(random: &mut StdRng, original: &[u8]) -> Vec<u8> {
    let mut bytes = original.to_vec();
    for _ in 0..random.random_range(1..8) {
        if bytes.is_empty() {
            break;
        }
        let at = random.random_range(0..bytes.len());
        match random.random_range(0..5) {
            0 => bytes[at] = random.random(),
            1 => bytes[at] ^= 1 << random.random_range(0..8),
            2 => bytes.truncate(at),
            3 => drop(bytes.remove(at)),
            _ => {
                let tail = bytes[at..].to_vec();
                bytes.extend(tail);
            }
        }
    }
    bytes.truncate(1 << 20);
    bytes
}

/// Something in the place of a bearer token: `known`, which is valid, damaged, or signed by nobody's key, or a text of another form. With its kind.
pub fn token(random: &mut StdRng, known: &str) -> (&'static str, String) {
    let encode = |part: Json| URL_SAFE_NO_PAD.encode(part.to_string());
    match random.random_range(0..6) {
        0 | 1 => {
            let damaged = mutate(random, known.as_bytes());
            ("damaged token", String::from_utf8_lossy(&damaged).into_owned())
        }
        2 => {
            let payload = known.split('.').nth(1).unwrap_or_default();
            let alg = ["none", "None", "HS256", "RS256", ""].choose(random).copied();
            ("unsigned token", format!("{}.{payload}.", encode(json!({"alg": alg, "typ": "JWT"}))))
        }
        3 => {
            let claims = json!({
                "iss": string(random), "sub": "system:serviceaccount:kube-system:default", "aud": [string(random)],
                "exp": number(random), "nbf": number(random), "iat": number(random), "kubernetes.io": {"namespace": string(random)},
            });
            let len = random.random_range(0..300);
            let signature = URL_SAFE_NO_PAD.encode(junk(random, len));
            let header = known.split('.').next().unwrap_or_default();
            ("token with other claims", format!("{header}.{}.{signature}", encode(claims)))
        }
        4 => {
            let letters = |random: &mut StdRng, len: usize| -> String {
                (0..len).map(|_| char::from(random.random_range(b'a'..=b'z'))).collect()
            };
            ("bootstrap token", format!("{}.{}", letters(random, 6), letters(random, 16)))
        }
        _ => ("text as a token", string(random)),
    }
}

/// Random bytes.
pub fn junk(random: &mut StdRng, len: usize) -> Vec<u8> {
    let mut bytes = vec![0; len];
    random.fill_bytes(&mut bytes);
    bytes
}

/// A document nested up to 30,000 levels, as JSON, which is YAML too; one in four is not closed.
pub fn deep(random: &mut StdRng, api_version: &str, kind: &str, name: &str) -> Vec<u8> {
    let levels = [20, 60, 120, 130, 500, 3_000, 30_000];
    let levels = levels.choose(random).copied().unwrap_or(60);
    let (open, close) = [
        (r#"{"a":"#, "}"),
        ("[", "]"),
        (r#"{"type":"object","properties":{"a":"#, "}}"),
        (r#"{"type":"array","items":"#, "}"),
    ]
    .choose(random)
    .copied()
    .unwrap_or(("[", "]"));
    let closed = if random.random_bool(0.75) { levels } else { 0 };
    let tree = format!("{}{{\"type\":\"string\"}}{}", open.repeat(levels), close.repeat(closed));
    let version = format!(
        r#"{{"name":"v1","served":true,"storage":true,"schema":{{"openAPIV3Schema":{tree}}}}}"#
    );
    let spec = format!(
        r#"{{"group":"attack.example","scope":"Cluster","versions":[{version}],"x":{tree}}}"#
    );
    let head = format!(r#""apiVersion":"{api_version}","kind":"{kind}""#);
    format!(
        r#"{{{head},"metadata":{{"name":"{name}","labels":{tree}}},"spec":{spec},"data":{tree}}}"#
    )
    .into_bytes()
}

/// One query of parameters that the server acts on, percent-encoded.
pub fn query(random: &mut StdRng) -> String {
    const PARAMETERS: [&str; 22] = [
        "timeoutSeconds",
        "limit",
        "continue",
        "resourceVersion",
        "resourceVersionMatch",
        "labelSelector",
        "fieldSelector",
        "watch",
        "gracePeriodSeconds",
        "propagationPolicy",
        "orphanDependents",
        "dryRun",
        "fieldManager",
        "fieldValidation",
        "force",
        "allowWatchBookmarks",
        "sendInitialEvents",
        "sinceSeconds",
        "tailLines",
        "limitBytes",
        "timeout",
        "pretty",
    ];
    let mut query = String::new();
    for _ in 0..random.random_range(0..4) {
        let parameter = PARAMETERS.choose(random).copied().unwrap_or_default();
        let value = match random.random_range(0..4) {
            0 => number(random).to_string(),
            1 => "true".to_owned(),
            2 => format!("a={},b in ({}),!c", string(random), string(random)),
            _ => string(random),
        };
        let value: String = value.chars().take(2000).collect();
        query.push_str(if query.is_empty() { "?" } else { "&" });
        query.push_str(&format!("{parameter}={}", utf8_percent_encode(&value, NON_ALPHANUMERIC)));
    }
    query
}

/// A patch: media type and body.
pub fn patch(random: &mut StdRng) -> (&'static str, Vec<u8>) {
    match random.random_range(0..5) {
        0 => {
            let operations = ["add", "remove", "replace", "move", "copy", "test", "x"];
            let paths = [
                "/metadata/labels",
                "/spec",
                "",
                "/spec/containers/0",
                "/spec/containers/99999999999",
                "/~0~1",
                "/metadata/name",
            ];
            let step = |random: &mut StdRng| {
                json!({
                    "op": operations.choose(random), "path": paths.choose(random), "from": paths.choose(random),
                    "value": {"a": number(random)},
                })
            };
            let steps: Vec<Json> = (0..random.random_range(0..200)).map(|_| step(random)).collect();
            ("application/json-patch+json", json!(steps).to_string().into_bytes())
        }
        1 => ("application/merge-patch+json", random_tree(random, 0).to_string().into_bytes()),
        2 => {
            let patch = json!({
                "spec": {"containers": [{"name": string(random), "$patch": string(random)}, {"$patch": "replace"}]},
                "$setElementOrder/containers": [{"name": string(random)}],
                "metadata": {"$retainKeys": [string(random)], "$deleteFromPrimitiveList/finalizers": [string(random)], "labels": random_tree(random, 3)},
            });
            ("application/strategic-merge-patch+json", patch.to_string().into_bytes())
        }
        3 => ("application/apply-patch+yaml", b"a: &a [*a, *a]\n".to_vec()),
        _ => ("application/merge-patch+json", junk(random, 64)),
    }
}

fn random_tree(random: &mut StdRng, depth: u32) -> Json {
    match random.random_range(0..5) {
        0 | 1 if depth < 5 => {
            let keys =
                ["metadata", "spec", "status", "labels", "replicas", "containers", "finalizers"];
            let pairs = (0..random.random_range(0..5)).map(|_| {
                let key = keys.choose(random).copied().unwrap_or_default().to_owned();
                (key, random_tree(random, depth + 1))
            });
            Json::Object(pairs.collect())
        }
        2 => number(random).into(),
        3 => Json::Null,
        _ => string(random).into(),
    }
}

/// Where an integer lies in a message: the names of fields, lists with one element.
pub type FieldPath = Vec<(&'static FieldDescriptor, bool)>;

/// Paths of all integers of a message, recursive messages entered once.
pub fn integer_paths(message: &'static MessageDescriptor) -> Vec<FieldPath> {
    let mut found = Vec::new();
    let mut within = Vec::new();
    walk(message, &mut Vec::new(), &mut within, &mut found);
    found
}

fn walk(
    message: &'static MessageDescriptor,
    path: &mut FieldPath,
    within: &mut Vec<*const MessageDescriptor>,
    found: &mut Vec<FieldPath>,
) {
    if within.contains(&std::ptr::from_ref(message)) || path.len() > 12 {
        return;
    }
    within.push(message);
    for field in message.fields {
        path.push((field, field.inline));
        match field.value {
            Value::Int32 | Value::Int64 | Value::IntOrString => found.push(path.clone()),
            Value::Message(id) => walk(id.get(), path, within, found),
            _ => {}
        }
        path.pop();
    }
    within.pop();
}

/// Puts `number` at `path` of `object`, making what leads there.
pub fn place(object: &mut Json, path: &[(&'static FieldDescriptor, bool)], number: i64) {
    let Some(((field, inline), rest)) = path.split_first() else {
        *object = number.into();
        return;
    };
    if *inline {
        place(object, rest, number);
        return;
    }
    if !object.is_object() {
        *object = json!({});
    }
    let Some(map) = object.as_object_mut() else { return };
    let slot = map.entry(field.json).or_insert(Json::Null);
    match field.shape {
        Shape::Plain | Shape::Pointer => place(slot, rest, number),
        Shape::List => {
            if !slot.is_array() {
                *slot = json!([null]);
            }
            let Some(list) = slot.as_array_mut() else { return };
            if list.is_empty() {
                list.push(Json::Null);
            }
            place(&mut list[0], rest, number);
        }
        Shape::Map => {
            if !slot.is_object() {
                *slot = json!({});
            }
            let Some(map) = slot.as_object_mut() else { return };
            place(map.entry("a").or_insert(Json::Null), rest, number);
        }
    }
}

#[cfg(test)]
mod tests {
    use rand::SeedableRng as _;

    use super::*;

    #[test]
    fn the_same_seed_makes_the_same_object() {
        let pods = proto_api::schema::resource("", "v1", "pods").expect("pods");
        let made = |seed| object(&mut StdRng::seed_from_u64(seed), pods, "v1", "a");
        assert_eq!(made(1), made(1));
        assert_ne!(made(1), made(2));
    }

    #[test]
    fn tokens_of_every_kind_are_made() {
        let mut random = StdRng::seed_from_u64(1);
        let made: Vec<_> = (0..1000).map(|_| token(&mut random, "aGVhZA.Ym9keQ.c2ln")).collect();
        let kinds: std::collections::BTreeSet<_> = made.iter().map(|(kind, _)| *kind).collect();
        assert_eq!(kinds.len(), 5, "{kinds:?}");
        assert!(made.iter().any(|(kind, text)| *kind == "unsigned token" && text.ends_with('.')));
    }

    #[test]
    fn every_integer_of_a_pod_is_found_and_placed() {
        let pods = proto_api::schema::resource("", "v1", "pods").expect("pods");
        let paths = integer_paths(pods.message.get());
        assert!(paths.len() > 60, "{}", paths.len());
        let mut object = json!({"spec": {"containers": [{"name": "a"}]}});
        let grace = paths.iter().find(|path| {
            path.last().is_some_and(|(f, _)| f.json == "terminationGracePeriodSeconds")
        });
        place(&mut object, grace.expect("a grace period"), i64::MAX);
        assert!(object.to_string().contains("9223372036854775807"), "{object}");
        assert_eq!(object["spec"]["containers"][0]["name"], "a");
    }
}
