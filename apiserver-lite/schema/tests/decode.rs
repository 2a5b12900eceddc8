//! Errors of decoding, and assembly of lists and watch streams.

#![allow(clippy::expect_used, clippy::panic, reason = "a test that cannot go on has failed")]

use apiserver_schema::list::{self, ListMeta};
use apiserver_schema::{Engine, Format, Object, Strictness, fields};
use proto_api::names::{Names, Profile};
use serde_json::json;

fn engine() -> Engine {
    Engine::new(Names::new(Profile::Kubernetes))
}

fn read(engine: &Engine, body: &str) -> Object {
    engine.decode_any(Format::Json, body.as_bytes(), Strictness::Strict).expect(body).object
}

#[test]
fn errors_name_the_field() {
    let engine = engine();
    let pods = engine.kind("", "v1", "Pod").expect("pods");
    let cases = [
        ("{", "the body is not valid JSON: EOF while parsing an object at line 1 column 1"),
        ("[]", "the body must be an object, got array"),
        (r#"{"kind":"Node"}"#, "Node in version \"\" cannot be handled as a Pod"),
        (r#"{"kind":"Pod","apiVersion":"v2"}"#, "Pod in version \"v2\" cannot be handled as a Pod"),
        (
            r#"{"spec":{"containers":[{"ports":[{"containerPort":"http"}]}]}}"#,
            "Pod in version \"v1\" cannot be handled as a Pod: \
             spec.containers[0].ports[0].containerPort: expected int32, got string",
        ),
        (
            r#"{"spec":{"containers":[{"resources":{"limits":{"cpu":"lots"}}}]}}"#,
            "Pod in version \"v1\" cannot be handled as a Pod: \
             spec.containers[0].resources.limits.cpu: expected quantity, got \"lots\"",
        ),
        (
            r#"{"metadata":{"creationTimestamp":"today"}}"#,
            "Pod in version \"v1\" cannot be handled as a Pod: \
             metadata.creationTimestamp: expected RFC 3339 time, got \"today\"",
        ),
        (
            r#"{"spec":{"hostNetwork":true,"hostNetwork":true,"nodename":"n","containers":[{"nme":"c"}]}}"#,
            "strict decoding error: duplicate field \"spec.hostNetwork\", unknown field \"spec.nodename\", \
             unknown field \"spec.containers[0].nme\"",
        ),
    ];
    for (body, expect) in cases {
        let got = engine.decode(pods, Format::Json, body.as_bytes(), Strictness::Strict);
        assert_eq!(got.map_err(|error| error.to_string()).expect_err(body), expect);
    }
}

#[test]
fn a_wrong_type_is_an_error_at_every_strictness() {
    let engine = engine();
    let pods = engine.kind("", "v1", "Pod").expect("pods");
    let body = br#"{"extra":1,"extra":2,"spec":{"hostNetwork":"yes"}}"#;
    for strictness in [Strictness::Ignore, Strictness::Warn, Strictness::Strict] {
        let error = engine.decode(pods, Format::Json, body, strictness).expect_err("a wrong type");
        assert!(error.to_string().contains("spec.hostNetwork"), "{error}");
    }
}

#[test]
fn unknown_fields_are_dropped_and_warned_about() {
    let engine = engine();
    let pods = engine.kind("", "v1", "Pod").expect("pods");
    let body = br#"{"extra":1,"metadata":{"name":"a","name":"b"}}"#;
    let warned = engine.decode(pods, Format::Json, body, Strictness::Warn).expect("a pod");
    assert_eq!(warned.warnings, ["duplicate field \"metadata.name\"", "unknown field \"extra\""]);
    assert_eq!(warned.object.name(), "b");
    let ignored = engine.decode(pods, Format::Json, body, Strictness::Ignore).expect("a pod");
    assert!(ignored.warnings.is_empty() && ignored.object == warned.object);
}

#[test]
fn yaml_is_read_by_the_rules_of_manifests() {
    let engine = engine();
    let body = "apiVersion: v1\nkind: ConfigMap\ndata: {a: 'yes', a: b}\nimmutable: yes\n";
    let decoded =
        engine.decode_any(Format::Yaml, body.as_bytes(), Strictness::Warn).expect("a map");
    assert_eq!(decoded.warnings, ["duplicate field \"data.a\""]);
    let shown = engine.encode_json(&decoded.object);
    let shown: serde_json::Value = serde_json::from_slice(&shown).expect("JSON");
    assert_eq!((&shown["data"], &shown["immutable"]), (&json!({"a": "b"}), &json!(true)));
    let unquoted = "apiVersion: v1\nkind: ConfigMap\ndata: {a: yes}\n";
    let error =
        engine.decode_any(Format::Yaml, unquoted.as_bytes(), Strictness::Warn).expect_err("a bool");
    assert!(error.to_string().ends_with("data.a: expected string, got bool"), "{error}");
    let mode =
        "apiVersion: v1\nkind: Pod\nspec: {volumes: [{name: v, secret: {defaultMode: 0644}}]}\n";
    let decoded =
        engine.decode_any(Format::Yaml, mode.as_bytes(), Strictness::Strict).expect("a pod");
    let volume =
        decoded.object.spec().and_then(|spec| spec.maps("volumes").next()).expect("a volume");
    assert_eq!(volume.map("secret").and_then(|secret| secret.int("defaultMode")), Some(420));
}

#[test]
fn unknown_kinds_are_errors() {
    let engine = engine();
    for (body, expect) in [
        ("{}", "Object 'Kind' is missing"),
        (r#"{"kind":"Car","apiVersion":"v1"}"#, "no kind \"Car\" is registered for version \"v1\""),
        (
            r#"{"kind":"Pod","apiVersion":"x.y/v1"}"#,
            "no kind \"Pod\" is registered for version \"x.y/v1\"",
        ),
    ] {
        let error =
            engine.decode_any(Format::Json, body.as_bytes(), Strictness::Warn).expect_err(body);
        assert_eq!(error.to_string(), expect);
    }
    let bare = engine.decode_any(Format::Protobuf, b"no envelope", Strictness::Warn);
    assert!(bare.is_err());
}

#[test]
fn options_are_the_same_in_every_group() {
    let engine = engine();
    let options = engine.kind("apps", "v1", "DeleteOptions").expect("options");
    for api_version in ["v1", "apps/v1", "meta.k8s.io/v1"] {
        let body = format!(
            r#"{{"kind":"DeleteOptions","apiVersion":"{api_version}","gracePeriodSeconds":0}}"#
        );
        let decoded =
            engine.decode(options, Format::Json, body.as_bytes(), Strictness::Strict).expect(&body);
        assert_eq!(decoded.object.fields.int("gracePeriodSeconds"), Some(0));
    }
}

#[test]
fn lists_are_made_of_encoded_items() {
    let engine = engine();
    let maps: Vec<Object> = ["a", "b"]
        .map(|name| {
            read(
                &engine,
                &format!(
                    r#"{{"kind":"ConfigMap","apiVersion":"v1","metadata":{{"name":"{name}"}}}}"#
                ),
            )
        })
        .to_vec();
    let meta =
        ListMeta { resource_version: "9".into(), continue_token: "t".into(), remaining: Some(3) };
    let kind = &maps[0].kind;
    let json: Vec<Vec<u8>> = maps.iter().map(|map| engine.encode_json(map)).collect();
    let list = list::list_json(kind, &meta, json.iter().map(Vec::as_slice));
    let expect = r#"{"kind":"ConfigMapList","apiVersion":"v1","metadata":{"resourceVersion":"9","continue":"t","remainingItemCount":3},"items":[{"metadata":{"name":"a","creationTimestamp":null}},{"metadata":{"name":"b","creationTimestamp":null}}]}"#;
    assert_eq!(String::from_utf8_lossy(&list), expect);
    // The list kind decodes both encodings to the same tree.
    let protobuf: Vec<Vec<u8>> = maps.iter().map(|map| engine.encode_protobuf(map)).collect();
    let protobuf = list::list_protobuf(kind, &meta, protobuf.iter().map(Vec::as_slice));
    let from_json = read(&engine, expect);
    let from_protobuf =
        engine.decode_any(Format::Protobuf, &protobuf, Strictness::Strict).expect("a list");
    assert_eq!(from_json, from_protobuf.object);
    assert_eq!(protobuf, engine.encode_protobuf(&from_json));
    let empty = list::list_json(kind, &ListMeta::default(), []);
    assert_eq!(empty, br#"{"kind":"ConfigMapList","apiVersion":"v1","metadata":{},"items":[]}"#);
}

#[test]
fn watch_events_wrap_encoded_objects() {
    let engine = engine();
    let map = read(&engine, r#"{"kind":"ConfigMap","apiVersion":"v1","metadata":{"name":"a"}}"#);
    let line = list::watch_event_json("ADDED", &engine.encode_json(&map));
    let line = String::from_utf8(line).expect("UTF-8");
    assert!(
        line.starts_with(r#"{"type":"ADDED","object":{"kind":"ConfigMap","apiVersion":"v1","#)
            && line.ends_with("}}\n")
    );
    let object = engine.encode_protobuf(&map);
    let frame = [list::watch_event_head("ADDED", object.len()), object.clone()].concat();
    let (len, event) = frame.split_at(4);
    assert_eq!(len, u32::try_from(event.len()).expect("small").to_be_bytes());
    assert!(event.starts_with(b"\x0a\x05ADDED\x12") && event.ends_with(&object));
}

#[test]
fn fields_that_can_be_selected_by() {
    let engine = engine();
    let pod = read(
        &engine,
        r#"{"kind":"Pod","apiVersion":"v1","metadata":{"name":"p","namespace":"d"},
            "spec":{"nodeName":"n"},"status":{"phase":"Running","podIPs":[{"ip":"1.2.3.4"},{"ip":"::1"}]}}"#,
    );
    let value = |object: &Object, field: &str| {
        fields::value_of(object, field).map(|value| value.into_owned())
    };
    for (field, expect) in [
        ("metadata.name", Some("p")),
        ("metadata.namespace", Some("d")),
        ("spec.nodeName", Some("n")),
        ("status.phase", Some("Running")),
        ("status.podIPs", Some("1.2.3.4,::1")),
        ("spec.schedulerName", Some("")),
        ("spec.hostname", None),
        ("type", None),
    ] {
        assert_eq!(value(&pod, field).as_deref(), expect, "{field}");
    }
    let node = read(&engine, r#"{"kind":"Node","apiVersion":"v1","metadata":{"name":"n"}}"#);
    assert_eq!(value(&node, "spec.unschedulable").as_deref(), Some("false"));
    let event = read(
        &engine,
        r#"{"kind":"Event","apiVersion":"v1","involvedObject":{"kind":"Pod","uid":"u"},"source":{"component":"c"}}"#,
    );
    assert_eq!(value(&event, "involvedObject.uid").as_deref(), Some("u"));
    assert_eq!(value(&event, "source").as_deref(), Some("c"));
}

#[test]
fn both_profiles_name_their_groups() {
    for (profile, group) in
        [(Profile::Kubernetes, "coordination.k8s.io"), (Profile::default(), "coordination.orch.io")]
    {
        let engine = Engine::new(Names::new(profile));
        let lease = engine.resource(group, "v1", "leases").expect(group);
        assert_eq!(
            (lease.kind(), lease.api_version.as_str()),
            ("Lease", format!("{group}/v1").as_str())
        );
        let json = engine.encode_json(&Object::new(std::sync::Arc::clone(lease)));
        let expect = format!(
            r#"{{"kind":"Lease","apiVersion":"{group}/v1","metadata":{{"creationTimestamp":null}},"spec":{{}}}}"#
        );
        assert_eq!(String::from_utf8_lossy(&json), expect);
    }
}

/// Fields that every encoder writes even when empty: plain ones, but not optional ones, bytes, lists and maps.
#[test]
fn sparse_objects_to_the_byte() {
    let engine = engine();
    #[rustfmt::skip]
    let metadata = [
        0x0a, 17,         // 1 metadata
        0x0a, 1, b'a',    //   1 name
        0x12, 0,          //   2 generateName
        0x1a, 0,          //   3 namespace
        0x22, 0,          //   4 selfLink
        0x2a, 0,          //   5 uid
        0x32, 0,          //   6 resourceVersion
        0x38, 0,          //   7 generation
        0x42, 0,          //   8 creationTimestamp, unset
    ];
    let cases: [(&str, &str, &[u8]); 3] = [
        (
            r#"{"kind":"RangeAllocation","apiVersion":"v1","metadata":{"name":"a"}}"#,
            r#"{"kind":"RangeAllocation","apiVersion":"v1","metadata":{"name":"a","creationTimestamp":null},"range":"","data":null}"#,
            &[0x12, 0], // 2 range; 3 data is bytes: left out
        ),
        (
            r#"{"kind":"Lease","apiVersion":"coordination.k8s.io/v1","metadata":{"name":"a"},"spec":{"leaseTransitions":0}}"#,
            r#"{"kind":"Lease","apiVersion":"coordination.k8s.io/v1","metadata":{"name":"a","creationTimestamp":null},"spec":{"leaseTransitions":0}}"#,
            &[0x12, 2, 0x28, 0], // 2 spec: optional numbers only when set, zero included
        ),
        (
            r#"{"kind":"Role","apiVersion":"rbac.authorization.k8s.io/v1","metadata":{"name":"a"}}"#,
            r#"{"kind":"Role","apiVersion":"rbac.authorization.k8s.io/v1","metadata":{"name":"a","creationTimestamp":null},"rules":null}"#,
            &[],
        ),
    ];
    for (body, json, rest) in cases {
        let object = read(&engine, body);
        assert_eq!(String::from_utf8_lossy(&engine.encode_json(&object)), json);
        let payload = [&metadata[..], rest].concat();
        let expect = list::envelope(&object.kind.api_version, object.kind.kind(), &payload);
        assert_eq!(engine.encode_protobuf(&object), expect, "{body}");
        let again = engine.decode_any(Format::Protobuf, &expect, Strictness::Strict).expect(body);
        assert_eq!(again.object, object);
    }
}

#[test]
fn negative_numbers_and_either_kind_of_port() {
    let engine = engine();
    let service = read(
        &engine,
        r#"{"kind":"Service","apiVersion":"v1","spec":{"ports":[{"port":-1,"targetPort":-2},{"port":1,"targetPort":"http"}]}}"#,
    );
    let bytes = engine.encode_protobuf(&service);
    let has = |part: &[u8]| bytes.windows(part.len()).any(|window| window == part);
    // A negative 32-bit number takes ten bytes.
    assert!(has(b"\x18\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01"), "3 port: -1");
    assert!(
        has(b"\x22\x0f\x08\x00\x10\xfe\xff\xff\xff\xff\xff\xff\xff\xff\x01\x1a\x00"),
        "4 targetPort: int -2"
    );
    assert!(has(b"\x22\x0a\x08\x01\x10\x00\x1a\x04http"), "4 targetPort: text");
    let again = engine.decode_any(Format::Protobuf, &bytes, Strictness::Strict).expect("a service");
    assert_eq!(again.object, service);
}
