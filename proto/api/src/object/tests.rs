//! Every typed kind, filled by its descriptor: what the tables say is what the types do.

use super::*;
use crate::names::Profile;
use crate::schema::{self, MessageDescriptor, Shape, Value as Type};
use serde_json::{Map, Value, json};

/// A kind's codec without its type.
struct TypedKind {
    group: &'static str,
    version: &'static str,
    kind: &'static str,
    /// JSON to JSON, by way of the type and of its Protobuf.
    there_and_back: fn(&[u8], &Names) -> Vec<u8>,
}

impl TypedKind {
    fn for_type<T: Kind>() -> TypedKind {
        TypedKind {
            group: T::GROUP,
            version: T::VERSION,
            kind: T::KIND,
            there_and_back: |json, names| {
                let from_json: T = from_json(json, names).unwrap();
                let bytes = to_protobuf_envelope(&from_json, names);
                let envelope = Envelope::read(&bytes).unwrap().unwrap();
                assert_eq!(from_json.encoded_len(), envelope.raw.unwrap().len());
                let from_protobuf: T = from_protobuf_envelope(&bytes, names).unwrap();
                assert_eq!(from_json, from_protobuf);
                to_json(&from_protobuf, names).unwrap()
            },
        }
    }
}

#[test]
fn every_typed_kind_is_what_its_descriptor_says() {
    let kinds = include!(concat!(env!("OUT_DIR"), "/typed_kinds.rs"));
    let names = Names::new(Profile::default());
    for TypedKind { group, version, kind, there_and_back } in &kinds {
        let message = schema::kind(group, version, kind).unwrap().message.get();
        let mut object = json!({"kind": kind, "apiVersion": names.api_version(group, version)});
        fill(object.as_object_mut().unwrap(), message, &mut 0);
        let json = serde_json::to_string(&object).unwrap();
        let back = there_and_back(json.as_bytes(), names);
        assert_eq!(String::from_utf8(back).unwrap(), json, "{group}/{version} {kind}");
    }
    assert!(kinds.len() >= 75, "{}", kinds.len());
}

/// Gives every field a value of its own; the descriptors of typed kinds are not recursive.
fn fill(object: &mut Map<String, Value>, message: &MessageDescriptor, n: &mut u32) {
    for field in message.fields {
        *n += 1;
        if field.inline {
            fill(object, field.value.message().unwrap(), n);
            continue;
        }
        let value = one(field.value, n);
        let value = match field.shape {
            Shape::Plain | Shape::Pointer => value,
            Shape::List => json!([value, one(field.value, n)]),
            Shape::Map => json!({"a": value, "b": one(field.value, n)}),
        };
        object.insert(field.json.to_owned(), value);
    }
}

fn one(value: Type, n: &mut u32) -> Value {
    *n += 1;
    match value {
        Type::String => json!(format!("text{n}")),
        Type::Bool => json!(true),
        Type::Int32 | Type::Int64 => json!(-i64::from(*n)),
        Type::Bytes => json!("AQID"),
        Type::Time => json!(format!("2026-11-21T02:20:{:02}Z", *n % 60)),
        Type::MicroTime => json!(format!("2026-11-21T02:20:18.{n:06}Z")),
        Type::Duration => json!(format!("{n}s")),
        Type::Quantity => json!(format!("{}m", *n * 1000 + 1)),
        Type::IntOrString => {
            if n.is_multiple_of(2) {
                json!(*n)
            } else {
                json!(format!("{n}%"))
            }
        }
        Type::Raw => json!({"any": [*n, null]}),
        Type::StringList => json!(["x", "y"]),
        Type::Double | Type::Any => Value::Null,
        Type::Message(id) => {
            let mut object = Map::new();
            fill(&mut object, id.get(), n);
            Value::Object(object)
        }
    }
}

#[test]
fn lists_carry_the_kind_of_their_items() {
    use crate::core::v1::{Pod, PodList};
    let names = Names::new(Profile::Kubernetes);
    let list = PodList { items: vec![Pod::default()], ..PodList::default() };
    let json = to_json(&list, names).unwrap();
    assert!(json.starts_with(br#"{"kind":"PodList","apiVersion":"v1","metadata":{},"items":[{"#));
    assert_eq!(from_json::<PodList>(&json, names).unwrap(), list);
    let bytes = to_protobuf_envelope(&list, names);
    assert_eq!(from_protobuf_envelope::<PodList>(&bytes, names).unwrap(), list);
    let error = from_json::<PodList>(br#"{"kind":"NodeList"}"#, names).unwrap_err();
    assert_eq!(error.to_string(), "expected v1 PodList, got  NodeList");
}

/// What the types cost in memory: an agent holds each of its pods several times over.
#[test]
fn pods_have_a_bounded_size_in_memory() {
    use crate::core::v1::{Container, Pod, Volume};
    assert!(size_of::<Volume>() <= 700, "{}", size_of::<Volume>());
    assert!(size_of::<Container>() <= 2000, "{}", size_of::<Container>());
    assert!(size_of::<Pod>() <= 2000, "{}", size_of::<Pod>());
}
