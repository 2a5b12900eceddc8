//! The API's scalars, selectors and objects, in their two texts and one binary form.

use std::str::FromStr;
use std::sync::OnceLock;

use proto_api::Kind;
use proto_api::core::v1::{Container, Node, Pod, Service, ServicePort};
use proto_api::discovery::v1::EndpointSlice;
use proto_api::names::{Names, Profile};
use proto_api::object;

/// The names that everything here is written in.
pub(crate) fn names() -> &'static Names {
    static NAMES: OnceLock<&'static Names> = OnceLock::new();
    NAMES.get_or_init(|| Names::new(Profile::Kubernetes))
}

/// What was read is written as a text that means the same.
fn reread<T: FromStr + ToString + PartialEq + std::fmt::Debug>(text: &str) {
    let Ok(value) = text.parse::<T>() else { return };
    let written = value.to_string();
    match written.parse::<T>() {
        Ok(again) => assert_eq!(again, value, "{text:?} is written as {written:?}"),
        Err(_) => panic!("{text:?} is written as {written:?}, which is not read"),
    }
}

/// A pod with a few fields of each form: texts, lists, maps, quantities, times, numbers or texts.
pub(crate) fn pod() -> Pod {
    let mut pod = Pod::default();
    pod.metadata.name = "web".into();
    pod.metadata.namespace = "demo".into();
    pod.metadata.labels.insert("app".into(), "web".into());
    pod.metadata.creation_timestamp = "2024-01-02T03:04:05Z".parse().unwrap_or_default();
    let mut container = Container { name: "c".into(), image: "i:1".into(), ..Container::default() };
    container.args = vec!["a".into(), "b".into()];
    if let Ok(cpu) = "250m".parse() {
        container.resources.limits.insert("cpu".into(), cpu);
    }
    pod.spec.containers = vec![container];
    pod.status.phase = "Running".into();
    pod
}

/// A service with ports.
fn service() -> Service {
    let mut service = Service::default();
    service.metadata.name = "web".into();
    service.spec.cluster_ip = "10.96.0.1".into();
    service.spec.ports = vec![ServicePort {
        name: "http".into(),
        port: 80,
        target_port: "http".into(),
        ..ServicePort::default()
    }];
    service
}

/// Quantities, times, durations, numbers or texts, feature gates.
pub mod api_scalars {
    use proto_api::{IntOrString, MicroTime, Quantity, Time};

    use super::*;

    /// Reads the text as each of them.
    pub fn check(bytes: &[u8]) {
        let Ok(text) = std::str::from_utf8(bytes) else { return };
        reread::<Quantity>(text);
        reread::<Time>(text);
        reread::<MicroTime>(text);
        if let Ok(quantity) = text.parse::<Quantity>() {
            let _ = (quantity.as_milli(), quantity.value(), quantity.as_bytes());
        }
        if let Ok(value) = serde_json::from_slice::<IntOrString>(bytes) {
            let written = serde_json::to_vec(&value).expect("a number or a text is JSON");
            assert_eq!(serde_json::from_slice::<IntOrString>(&written).ok(), Some(value));
        }
        if let Ok(time) = proto_daemon::go_duration::parse(text) {
            let _ = time;
        }
        let _ = proto_daemon::feature_gates::parse(text);
    }

    /// Each form of each.
    pub fn seeds() -> Vec<Vec<u8>> {
        crate::texts(&[
            "1",
            "-1.5",
            "250m",
            "1.5Gi",
            "12E",
            "1e3",
            "100n",
            "9223372036854775807",
            "0.001Ki",
            "2024-02-29T23:59:60Z",
            "2024-01-02T03:04:05.123456+02:00",
            "\"80%\"",
            "8080",
            "1h2m3.5s",
            "-1.5us",
            "A=true,B=false",
        ])
    }
}

/// Selectors by labels and by fields.
pub mod selectors {
    use proto_api::selectors::{FieldSelector, Selector};

    use super::*;

    /// Reads the text as both.
    pub fn check(bytes: &[u8]) {
        let Ok(text) = std::str::from_utf8(bytes) else { return };
        reread::<Selector>(text);
        reread::<FieldSelector>(text);
        if let Ok(selector) = text.parse::<Selector>() {
            let _ = selector.matches(&[("a".into(), "1".into())].into());
        }
    }

    /// Every operator.
    pub fn seeds() -> Vec<Vec<u8>> {
        crate::texts(&[
            "a=1,b==2,c!=3",
            "a in (x,y),b notin (z),!c,d",
            "example.com/n>5,m<7",
            "metadata.name=x,spec.nodeName!=a\\,b\\=c",
        ])
    }
}

/// What is read from JSON is written as JSON that means the same, and from that as Protobuf.
fn by_json<T: Kind + PartialEq + std::fmt::Debug>(bytes: &[u8]) {
    let Ok(value) = object::from_json::<T>(bytes, names()) else { return };
    let json = object::to_json(&value, names()).expect("what was JSON is JSON");
    assert_eq!(object::from_json::<T>(&json, names()).ok().as_ref(), Some(&value));
    let binary = object::to_protobuf_envelope(&value, names());
    let again = object::from_protobuf_envelope::<T>(&binary, names()).expect("own bytes");
    assert_eq!(object::to_protobuf_envelope(&again, names()), binary);
}

/// What is read from Protobuf is written as Protobuf that means the same; as JSON, where embedded bytes are.
fn by_protobuf<T: Kind + PartialEq + std::fmt::Debug>(bytes: &[u8]) {
    let Ok(value) = object::from_protobuf_envelope::<T>(bytes, names()) else { return };
    let binary = object::to_protobuf_envelope(&value, names());
    let again = object::from_protobuf_envelope::<T>(&binary, names()).expect("own bytes");
    assert_eq!(again, value);
    if let Ok(json) = object::to_json(&value, names()) {
        assert!(
            object::from_json::<T>(&json, names()).is_ok(),
            "{}",
            String::from_utf8_lossy(&json)
        );
    }
}

/// Typed objects in JSON.
pub mod api_json {
    use super::*;

    /// Reads the bytes as each kind that nodes and proxies read.
    pub fn check(bytes: &[u8]) {
        by_json::<Pod>(bytes);
        by_json::<Service>(bytes);
        by_json::<EndpointSlice>(bytes);
        by_json::<Node>(bytes);
    }

    /// One of each.
    pub fn seeds() -> Vec<Vec<u8>> {
        let all = [
            object::to_json(&pod(), names()),
            object::to_json(&service(), names()),
            object::to_json(&EndpointSlice::default(), names()),
            object::to_json(&Node::default(), names()),
        ];
        all.into_iter().flatten().collect()
    }
}

/// Typed objects in Protobuf.
pub mod api_protobuf {
    use super::*;

    /// Reads the bytes, with or without their envelope, as each kind that nodes and proxies read.
    pub fn check(bytes: &[u8]) {
        by_protobuf::<Pod>(bytes);
        by_protobuf::<Service>(bytes);
        let enveloped = envelope(bytes);
        by_protobuf::<Pod>(&enveloped);
        by_protobuf::<EndpointSlice>(&enveloped);
        by_protobuf::<Node>(&enveloped);
    }

    /// An envelope that says nothing of what is in it.
    fn envelope(raw: &[u8]) -> Vec<u8> {
        use proto_api::Message as _;
        let envelope = object::Envelope { raw: Some(raw.to_vec()), ..Default::default() };
        [object::ENVELOPE_PREFIX.as_slice(), &envelope.encode_to_vec()].concat()
    }

    /// One of each, with and without envelopes.
    pub fn seeds() -> Vec<Vec<u8>> {
        let whole = [
            object::to_protobuf_envelope(&pod(), names()),
            object::to_protobuf_envelope(&service(), names()),
        ];
        let raw = |bytes: &Vec<u8>| object::Envelope::read(bytes)?.ok()?.raw;
        let mut all: Vec<_> = whole.iter().filter_map(raw).collect();
        all.extend(whole);
        all
    }
}

/// YAML documents.
pub mod yaml {
    use proto_api::yaml;

    /// What was read is written as a document that means the same.
    pub fn check(bytes: &[u8]) {
        let Ok(text) = std::str::from_utf8(bytes) else { return };
        let _ = yaml::parse_all(text);
        let Ok(value) = yaml::parse(text) else { return };
        let written = yaml::to_string(&value);
        match yaml::parse(&written) {
            Ok(again) => assert_eq!(again, value, "{text:?} is written as {written:?}"),
            Err(error) => panic!("{text:?} is written as {written:?}: {error:?}"),
        }
    }

    /// Every form of a scalar and of a collection.
    pub fn seeds() -> Vec<Vec<u8>> {
        crate::texts(&[
            "a: 1\nb:\n- x\n- {y: z, w: [1, 2]}\nc: |\n  two\n  lines\n",
            "- null\n- ~\n- true\n- 0x1f\n- 0o17\n- 1.5e3\n- .inf\n- 'it''s'\n- \"\\u00e9\\n\"\n",
            "a: &x {b: 1}\nc: *x\n",
            "--- # one\na: >-\n  folded\n  text\n---\nb: 2\n...\n",
            "\"yes\": \"no\"\n\"012\": \"1e3\"\n'': ' '\n",
        ])
    }
}
