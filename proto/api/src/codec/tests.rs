//! The rules of the codec, one by one.

use crate::core::v1::{ConfigMap, Pod, Secret, Service, ServicePort, Toleration, Volume};
use crate::names::{Names, Profile};
use crate::{IntOrString, List, RawJson, StringList, object};
use proptest::prelude::*;
use prost::Message;
use std::collections::BTreeMap;

fn names() -> &'static Names {
    Names::new(Profile::Kubernetes)
}

#[test]
fn an_empty_object_shows_what_is_always_there() {
    let json = object::to_json(&Pod::default(), names()).unwrap();
    let want = r#"{"kind":"Pod","apiVersion":"v1","metadata":{"creationTimestamp":null},"spec":{"containers":null},"status":{}}"#;
    assert_eq!(String::from_utf8(json).unwrap(), want);
    let list = object::to_json(&crate::core::v1::PodTemplate::default(), names()).unwrap();
    assert!(String::from_utf8(list).unwrap().contains(r#""template":{"metadata":"#));
}

#[test]
fn an_empty_list_has_items() {
    let json = serde_json::to_string(&List::<Pod>::default()).unwrap();
    assert_eq!(json, r#"{"metadata":{},"items":[]}"#);
}

#[test]
fn text_is_safe_in_html() {
    let data = BTreeMap::from([("a".to_owned(), "<b> & \u{2028}".to_owned())]);
    let map = ConfigMap { data, ..ConfigMap::default() };
    let json = String::from_utf8(object::to_json(&map, names()).unwrap()).unwrap();
    assert!(json.contains(r#""a":"\u003cb\u003e \u0026 \u2028""#), "{json}");
    assert_eq!(object::from_json::<ConfigMap>(json.as_bytes(), names()).unwrap(), map);
}

#[test]
fn reading_is_lenient_where_the_api_is() {
    let json = br#"{"spec":{"ports":[{"port":80.0,"targetPort":"http","nodePort":null}],
        "unknown":{"x":[1]},"Type":"X","selector":null}}"#;
    let service: Service = object::from_json(json, names()).unwrap();
    let port = ServicePort { port: 80, target_port: "http".into(), ..ServicePort::default() };
    assert_eq!(service.spec.ports, [port]);
    assert_eq!(service.spec.type_, "");
}

#[test]
fn reading_is_strict_where_the_api_is() {
    let cases = [
        r#"{"spec":{"ports":[{"port":80.5}]}}"#,
        r#"{"spec":{"ports":[{"port":4294967296}]}}"#,
        r#"{"spec":{"ports":[{"port":"80"}]}}"#,
        r#"{"spec":{"ports":{}}}"#,
        r#"{"spec":{"type":1}}"#,
        r#"{"spec":[]}"#,
        r#"{"spec":{}} {}"#,
        r#"{"kind":"Pod"}"#,
        r#"{"apiVersion":"v2"}"#,
        "[]",
        "",
    ];
    for json in cases {
        assert!(object::from_json::<Service>(json.as_bytes(), names()).is_err(), "{json}");
    }
}

#[test]
fn errors_name_the_field() {
    let json = br#"{"spec":{"ports":[{},{"port":"80"}]}}"#;
    let error = object::from_json::<Service>(json, names()).unwrap_err();
    let object::DecodeObjectError::Json { source, .. } = error else { panic!("{error}") };
    assert!(
        source
            .to_string()
            .trim_start_matches(|c: char| !c.is_ascii())
            .starts_with("spec.ports[1].port: invalid type"),
        "{source}"
    );
}

#[test]
fn inlined_fields_stand_with_their_owner() {
    let volume: Volume =
        serde_json::from_str(r#"{"name":"v","configMap":{"name":"c","items":[]}}"#).unwrap();
    let source = volume.volume_source.config_map.as_ref().unwrap();
    assert_eq!(source.local_object_reference.name, "c");
    assert_eq!(serde_json::to_string(&volume).unwrap(), r#"{"name":"v","configMap":{"name":"c"}}"#);
}

#[test]
fn protobuf_bytes_of_small_messages() {
    // A plain string is written even when empty; an absent pointer is not.
    let toleration = Toleration { toleration_seconds: Some(-1), ..Toleration::default() };
    let bytes = [
        0x0a, 0, 0x12, 0, 0x1a, 0, 0x22, 0, // key, operator, value, effect
        0x28, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 1, // -1 as ten bytes
    ];
    assert_eq!(toleration.encode_to_vec(), bytes);
    assert_eq!(Toleration::decode(&bytes[..]).unwrap(), toleration);

    // A negative 32-bit integer takes ten bytes too; the target port is a message of three fields.
    let port = ServicePort { port: -1, target_port: IntOrString::from("x"), ..Default::default() };
    let bytes = port.encode_to_vec();
    assert_eq!(bytes[..4], [0x0a, 0, 0x12, 0]);
    assert_eq!(bytes[4..15], [0x18, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 1]);
    assert_eq!(bytes[15..24], [0x22, 7, 8, 1, 16, 0, 0x1a, 1, b'x']);
    assert_eq!(ServicePort::decode(&bytes[..]).unwrap(), port);
}

#[test]
fn maps_write_key_and_value_even_when_empty() {
    let data = BTreeMap::from([("b".to_owned(), vec![]), ("a".to_owned(), vec![1])]);
    let secret = Secret { data, ..Secret::default() };
    let bytes = secret.encode_to_vec();
    let entries = [0x12, 6, 0x0a, 1, b'a', 0x12, 1, 1, 0x12, 5, 0x0a, 1, b'b', 0x12, 0];
    assert!(bytes.windows(entries.len()).any(|w| w == entries), "{bytes:x?}");
    assert_eq!(Secret::decode(&bytes[..]).unwrap(), secret);
    let json = serde_json::to_string(&secret).unwrap();
    assert!(json.contains(r#""data":{"a":"AQ==","b":""}"#), "{json}");
}

#[test]
fn packed_integers_are_read() {
    use crate::core::v1::PodSecurityContext;
    // supplementalGroups, field 4: packed 1, 2 and then a single 3.
    let bytes = [0x22, 2, 1, 2, 0x20, 3];
    let context = PodSecurityContext::decode(&bytes[..]).unwrap();
    assert_eq!(context.supplemental_groups, [1, 2, 3]);
    assert_eq!(context.encode_to_vec(), [0x20, 1, 0x20, 2, 0x20, 3]);
}

#[test]
fn string_lists_are_messages_and_plain_lists() {
    use crate::authentication::v1::UserInfo;
    let extra = BTreeMap::from([("k".to_owned(), StringList(vec!["v".to_owned()]))]);
    let user = UserInfo { extra, ..UserInfo::default() };
    assert_eq!(serde_json::to_string(&user).unwrap(), r#"{"extra":{"k":["v"]}}"#);
    assert_eq!(UserInfo::decode(&user.encode_to_vec()[..]).unwrap(), user);
}

#[test]
fn embedded_json_is_kept() {
    let raw: RawJson = serde_json::from_str(r#"{ "b" : "x \" y", "a": 1.50 }"#).unwrap();
    assert_eq!(raw.raw, br#"{"b":"x \" y","a":1.50}"#);
    assert_eq!(serde_json::to_string(&raw).unwrap(), r#"{"b":"x \" y","a":1.50}"#);
    assert_eq!(serde_json::to_string(&RawJson::default()).unwrap(), "null");
    assert!(serde_json::to_string(&RawJson { raw: b"k8s\0".to_vec() }).is_err());
}

#[test]
fn logs_do_not_show_secrets() {
    let data = BTreeMap::from([("password".to_owned(), b"hunter2".to_vec())]);
    let text = format!("{:?}", Secret { data, type_: "Opaque".to_owned(), ..Secret::default() });
    assert!(text.contains("data: <hidden>") && text.contains("Opaque"), "{text}");
    assert!(!text.contains("password") && !text.contains("104"), "{text}");
}

#[test]
fn an_envelope_of_another_kind_is_refused() {
    let bytes = object::to_protobuf_envelope(&Pod::default(), names());
    assert!(object::from_protobuf_envelope::<Pod>(&bytes, names()).is_ok());
    let other = object::from_protobuf_envelope::<Secret>(&bytes, names()).unwrap_err();
    assert_eq!(other.to_string(), "expected v1 Secret, got v1 Pod");
    let none = object::from_protobuf_envelope::<Pod>(b"{}", names()).unwrap_err();
    assert_eq!(none.to_string(), "cannot decode Pod: the Protobuf envelope is missing");
}

/// A real object to damage.
fn filled_pod() -> Vec<u8> {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/testdata/core.v1.Pod.pb");
    std::fs::read(path).unwrap()
}

proptest! {
    #[test]
    fn any_bytes_are_read_or_refused(bytes in prop::collection::vec(any::<u8>(), 0..64)) {
        let _ = Pod::decode(&bytes[..]);
        let _ = object::from_json::<Pod>(&bytes, names());
    }

    #[test]
    fn damaged_objects_are_read_or_refused(
        at in any::<prop::sample::Index>(),
        byte in any::<u8>(),
        cut in any::<prop::sample::Index>(),
    ) {
        let mut bytes = filled_pod();
        let at = at.index(bytes.len());
        bytes[at] = byte;
        if let Ok(pod) = object::from_protobuf_envelope::<Pod>(&bytes, names()) {
            // What was read is written and read again as the same.
            let again = object::to_protobuf_envelope(&pod, names());
            prop_assert_eq!(&object::from_protobuf_envelope::<Pod>(&again, names()).unwrap(), &pod);
        }
        bytes.truncate(cut.index(bytes.len()));
        let _ = object::from_protobuf_envelope::<Pod>(&bytes, names());
    }
}
