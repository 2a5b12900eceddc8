//! Tests of validation: an object that violates a rule, and the error.

mod api_services;
mod flow_control;
mod limits;
mod rules;
mod volumes;
mod webhooks;

use proto_api::names::{Names, Profile};
use serde_json::{Value as Json, json};

use super::names;
use crate::update::{Subresource, merge_for_update};
use crate::{Engine, FieldGates, Format, Object, Strictness};

fn engine() -> Engine {
    Engine::new(Names::new(Profile::Kubernetes))
}

fn object(engine: &Engine, json: &Json) -> Object {
    let body = json.to_string();
    let decoded = engine.decode_any(Format::Json, body.as_bytes(), Strictness::Strict);
    let mut object = decoded.unwrap_or_else(|error| panic!("{body}: {error}")).object;
    engine.default(&mut object);
    object
}

/// The errors of a new object.
fn complaints(json: &Json) -> Vec<String> {
    complaints_with(FieldGates::default(), json)
}

/// The errors of a new object where these gates are on.
fn complaints_with(gates: FieldGates, json: &Json) -> Vec<String> {
    let engine = engine().with_gates(gates);
    let object = object(&engine, json);
    match engine.validate_create(&object) {
        Ok(()) => Vec::new(),
        Err(errors) => errors.0.iter().map(ToString::to_string).collect(),
    }
}

/// The errors of an update.
fn update_complaints(old: &Json, new: &Json, subresource: Subresource) -> Vec<String> {
    let engine = engine();
    let (old, new) = (object(&engine, old), object(&engine, new));
    let new = merge_for_update(&old, &new, subresource);
    match engine.validate_update(&old, &new, subresource) {
        Ok(()) => Vec::new(),
        Err(errors) => errors.0.iter().map(ToString::to_string).collect(),
    }
}

fn pod(spec: &Json) -> Json {
    json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p", "namespace": "d"}, "spec": spec})
}

fn container(extra: &Json) -> Json {
    let mut container = json!({"name": "c", "image": "i:1"});
    let map = container.as_object_mut().expect("an object");
    map.extend(extra.as_object().expect("an object").clone());
    pod(&json!({"containers": [container]}))
}

#[test]
fn grammars() {
    let wrong = |complaints: Vec<String>| !complaints.is_empty();
    for good in ["a", "a-b", "0a", &"a".repeat(63)] {
        assert!(!wrong(names::dns_label(good)), "{good}");
    }
    for bad in ["", "A", "a.b", "-a", "a-", "a_b", "ä", &"a".repeat(64)] {
        assert!(wrong(names::dns_label(bad)), "{bad}");
    }
    assert!(!wrong(names::dns_subdomain("a.b-c.1")));
    for bad in ["", ".", "a..b", "a.", "A.b", &"a".repeat(254)] {
        assert!(wrong(names::dns_subdomain(bad)), "{bad}");
    }
    assert!(wrong(names::dns_1035_label("1a")) && !wrong(names::dns_1035_label("a1")));
    for good in ["a", "A.b_c-1", "example.com/name", "a/b"] {
        assert!(!wrong(names::qualified_name(good)), "{good}");
    }
    for bad in ["", "/a", "a/", "a/b/c", "-a", "a-", "Example.com/a", "a b"] {
        assert!(wrong(names::qualified_name(bad)), "{bad}");
    }
    assert!(!wrong(names::label_value("")) && wrong(names::label_value("-")));
    for bad in ["", ".", "..", "..a", "a/b"] {
        assert!(wrong(names::config_key(bad)), "{bad}");
    }
    assert!(!wrong(names::config_key(".a")) && !wrong(names::env_name("_A.b-1")));
    assert!(wrong(names::env_name("1A")) && wrong(names::env_name("")));
    assert!(wrong(names::env_name(".")) && wrong(names::env_name("..A")));
    for bad in ["", "Http", "a--b", "-a", "123", "abcdefghijklmnop"] {
        assert!(wrong(names::port_name(bad)), "{bad}");
    }
    assert!(!wrong(names::cidr("10.0.0.0/8")) && !wrong(names::cidr("fd00::/64")));
    assert!(wrong(names::cidr("10.0.0.0/33")) && wrong(names::cidr("10.0.0.0")));
}

#[test]
fn metadata() {
    let with = |metadata: Json| {
        complaints(&json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata}))
    };
    assert_eq!(with(json!({"name": "a.b", "namespace": "d"})), Vec::<String>::new());
    assert_eq!(
        with(json!({})),
        [
            "metadata.name: Required value: name or generateName is required",
            "metadata.namespace: Required value"
        ]
    );
    let got = with(json!({"name": "Abc", "namespace": "d", "labels": {"a/b/c": "v", "k": "-"}}));
    assert_eq!(got.len(), 3);
    assert!(got[0].starts_with(
        "metadata.name: Invalid value: \"Abc\": a lowercase RFC 1123 subdomain must consist"
    ));
    assert!(got[1].starts_with(
        "metadata.labels: Invalid value: \"a/b/c\": a qualified name must consist of"
    ));
    assert!(got[2].starts_with(
        "metadata.labels: Invalid value: \"-\": a valid label must be an empty string"
    ));
    let owner =
        json!({"apiVersion": "v1", "kind": "Pod", "name": "p", "uid": "u", "controller": true});
    assert_eq!(
        with(json!({"name": "a", "namespace": "d", "ownerReferences": [owner, owner]})).len(),
        1
    );
    let node =
        json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "n", "namespace": "d"}});
    assert_eq!(complaints(&node), ["metadata.namespace: Forbidden: not allowed on this type"]);
}

#[test]
fn pods_that_are_fine() {
    let fine = [
        container(&json!({})),
        container(
            &json!({"ports": [{"containerPort": 80, "name": "http"}], "livenessProbe": {"httpGet": {"port": "http"}}}),
        ),
        container(&json!({"resources": {"limits": {"cpu": "1"}, "requests": {"cpu": "500m"}}})),
        pod(&json!({
            "containers": [{"name": "c", "image": "i", "volumeMounts": [{"name": "v", "mountPath": "/v"}]}],
            "volumes": [{"name": "v", "configMap": {"name": "m", "items": [{"key": "k", "path": "a/b"}]}}],
            "tolerations": [{"operator": "Exists"}, {"key": "k", "effect": "NoExecute", "tolerationSeconds": 3}],
        })),
    ];
    for pod in fine {
        assert_eq!(complaints(&pod), Vec::<String>::new(), "{pod}");
    }
}

#[test]
fn containers_that_break_a_rule() {
    let cases = [
        (pod(&json!({})), "spec.containers: Required value"),
        (
            pod(&json!({"containers": [{"name": "c", "image": "i"}, {"name": "c", "image": "i"}]})),
            "spec.containers[1].name: Duplicate value: \"c\"",
        ),
        (pod(&json!({"containers": [{"name": "c"}]})), "spec.containers[0].image: Required value"),
        (
            container(&json!({"ports": [{"containerPort": 70000}]})),
            "spec.containers[0].ports[0].containerPort: Invalid value: 70000: must be between 1 and 65535, inclusive",
        ),
        (
            container(&json!({"imagePullPolicy": "Sometimes"})),
            "spec.containers[0].imagePullPolicy: Unsupported value: \"Sometimes\": \
             supported values: \"Always\", \"IfNotPresent\", \"Never\"",
        ),
        (
            container(&json!({"volumeMounts": [{"name": "x", "mountPath": "/x"}]})),
            "spec.containers[0].volumeMounts[0].name: Not found: \"x\"",
        ),
        (
            container(&json!({"resources": {"limits": {"cpu": "1"}, "requests": {"cpu": "2"}}})),
            "spec.containers[0].resources.requests: Invalid value: \"2\": must be less than or equal to cpu limit of 1",
        ),
        (
            container(&json!({"livenessProbe": {}})),
            "spec.containers[0].livenessProbe: Required value: must specify a handler type",
        ),
        (
            container(&json!({"livenessProbe": {"tcpSocket": {"port": 1}, "successThreshold": 2}})),
            "spec.containers[0].livenessProbe.successThreshold: Invalid value: 2: must be 1",
        ),
        (
            container(
                &json!({"env": [{"name": "A", "value": "x", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}}]}),
            ),
            "spec.containers[0].env[0].valueFrom: Invalid value: \"\": may not be specified when `value` is not empty",
        ),
        (
            pod(&json!({"containers": [{"name": "c", "image": "i"}], "dnsPolicy": "None"})),
            "spec.dnsConfig.nameservers: Required value: \
             must provide at least one DNS nameserver when `dnsPolicy` is None",
        ),
    ];
    for (pod, expect) in cases {
        assert_eq!(complaints(&pod), [expect], "{pod}");
    }
}

#[test]
fn all_validation_errors_are_reported_together() {
    let got = complaints(&pod(&json!({"restartPolicy": "Maybe", "containers": [{"name": "C"}]})));
    assert_eq!(got.len(), 3, "{got:?}");
}

#[test]
fn mutable_fields_of_pods_may_change() {
    let old = pod(
        &json!({"containers": [{"name": "c", "image": "i:1"}], "tolerations": [{"key": "a", "operator": "Exists"}]}),
    );
    let change = |pointer: &str, value: Json| {
        let mut new = old.clone();
        let (parent, last) = pointer.rsplit_once('/').expect("a pointer");
        let parent = new.pointer_mut(parent).expect("a parent").as_object_mut().expect("an object");
        parent.insert(last.to_owned(), value);
        update_complaints(&old, &new, Subresource::Main)
    };
    assert_eq!(change("/spec/containers/0/image", json!("i:2")), Vec::<String>::new());
    assert_eq!(change("/metadata/labels", json!({"a": "b"})), Vec::<String>::new());
    assert_eq!(change("/spec/activeDeadlineSeconds", json!(5)), Vec::<String>::new());
    let more = json!([{"key": "a", "operator": "Exists"}, {"key": "b", "operator": "Exists"}]);
    assert_eq!(change("/spec/tolerations", more), Vec::<String>::new());
    let fixed = change("/spec/containers/0/command", json!(["x"]));
    assert!(
        fixed[0].starts_with("spec: Forbidden: pod updates may not change fields other than"),
        "{fixed:?}"
    );
    assert_eq!(change("/spec/tolerations", json!([])).len(), 1);
    assert_eq!(
        change("/metadata/name", json!("q")),
        ["metadata.name: Invalid value: \"q\": field is immutable"]
    );
}

#[test]
fn immutable_maps_and_secrets() {
    let map = |data: &str, immutable: bool| {
        json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "m", "namespace": "d"},
            "data": {"k": data}, "immutable": immutable})
    };
    let update = |old, new| update_complaints(&old, &new, Subresource::Main);
    assert_eq!(update(map("a", false), map("b", true)), Vec::<String>::new());
    let detail = "field is immutable when `immutable` is set";
    assert_eq!(update(map("a", true), map("b", true)), [format!("data: Forbidden: {detail}")]);
    assert_eq!(
        update(map("a", true), map("a", false)),
        [format!("immutable: Forbidden: {detail}")]
    );
    let secret = |ty: &str| json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "s", "namespace": "d"}, "type": ty});
    assert_eq!(
        update(secret("a"), secret("b")),
        ["type: Invalid value: \"b\": field is immutable"]
    );
    let tls = complaints(&secret("kubernetes.io/tls"));
    assert_eq!(tls, ["data[tls.crt]: Required value", "data[tls.key]: Required value"]);
    let overlap = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "m", "namespace": "d"},
        "data": {"k": ""}, "binaryData": {"k": ""}});
    assert_eq!(complaints(&overlap).len(), 1);
    let mut large = map("", false);
    large["data"]["k"] = json!("x".repeat(1024 * 1024 + 1));
    assert_eq!(complaints(&large), [": Too long: must have at most 1048576 bytes"]);
}

#[test]
fn services_and_workloads() {
    let service = |spec: Json| {
        complaints(
            &json!({"apiVersion": "v1", "kind": "Service", "metadata": {"name": "s", "namespace": "d"}, "spec": spec}),
        )
    };
    assert_eq!(service(json!({"ports": [{"port": 80}]})), Vec::<String>::new());
    assert_eq!(service(json!({"clusterIP": "None"})), Vec::<String>::new());
    assert_eq!(service(json!({})), ["spec.ports: Required value"]);
    assert_eq!(
        service(json!({"ports": [{"port": 80}, {"port": 81}]})),
        ["spec.ports[0].name: Required value", "spec.ports[1].name: Required value"]
    );
    assert_eq!(
        service(json!({"ports": [{"name": "a", "port": 80}, {"name": "b", "port": 80}]})),
        ["spec.ports[1]: Duplicate value: \"TCP/80\""]
    );
    assert_eq!(
        service(json!({"ports": [{"port": 80, "nodePort": 30000}]})),
        ["spec.ports[0].nodePort: Forbidden: may not be used when `type` is 'ClusterIP'"]
    );
    assert_eq!(service(json!({"type": "ExternalName"})), ["spec.externalName: Required value"]);

    let deployment = |selector: Json| {
        complaints(
            &json!({"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "x", "namespace": "d"},
            "spec": {"selector": selector, "template": {"metadata": {"labels": {"a": "b"}},
                "spec": {"containers": [{"name": "c", "image": "i"}]}}}}),
        )
    };
    assert_eq!(deployment(json!({"matchLabels": {"a": "b"}})), Vec::<String>::new());
    let rule = |operator: &str| json!({"matchExpressions": [{"key": "a", "operator": operator, "values": ["b"]}]});
    assert_eq!(deployment(rule("In")), Vec::<String>::new());
    assert_eq!(deployment(rule("NotIn")).len(), 1);
    // The operator, and the selector as a whole.
    assert_eq!(deployment(rule("Near")).len(), 2);
    assert_eq!(
        deployment(json!({"matchLabels": {"a": "c"}})),
        [
            "spec.template.metadata.labels: Invalid value: {\"a\":\"b\"}: `selector` does not match template `labels`"
        ]
    );
}

#[test]
fn keys_and_sizes_of_maps_and_secrets() {
    let object = |kind: &str, field: &str, key: &str, value: &str| {
        complaints(
            &json!({"apiVersion": "v1", "kind": kind, "metadata": {"name": "n", "namespace": "d"}, field: {key: value}}),
        )
    };
    for (kind, field) in [("ConfigMap", "data"), ("ConfigMap", "binaryData"), ("Secret", "data")] {
        assert_eq!(object(kind, field, "A-b_c.9", ""), Vec::<String>::new(), "{kind} {field}");
        for key in ["a b", "a/b", "ä", "", ".."] {
            let got = object(kind, field, key, "");
            assert!(got.len() == 1 && got[0].starts_with(field), "{kind} {key}: {got:?}");
        }
    }
    // Four letters are three bytes.
    let three_mebibytes_in_letters = "AAAA".repeat(1024 * 1024);
    let most = format!("{}AA==", "AAAA".repeat(1024 * 1024 / 3));
    assert_eq!(object("Secret", "data", "k", &most), Vec::<String>::new());
    let got = object("Secret", "data", "k", &three_mebibytes_in_letters);
    assert!(got.len() == 1 && got[0].contains("Too long: must have at most 1048576"), "{got:?}");
}

#[test]
fn secrets_have_what_their_type_says() {
    let secret = |kind: &str, data: &Json| {
        complaints(
            &json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "n", "namespace": "d"},
                "type": format!("kubernetes.io/{kind}"), "data": data}),
        )
    };
    let required = |key: &str| format!("data[{key}]: Required value");
    let no_json = |key: &str| {
        format!("data[{key}]: Invalid value: \"<secret contents redacted>\": invalid JSON")
    };
    // Nothing, `{}`, `[]`, and a letter.
    let (nothing, object, list, letter) = ("", "e30=", "W10=", "eA==");
    for (kind, data, expected) in [
        ("basic-auth", json!({"other": letter}), vec![required("username"), required("password")]),
        ("basic-auth", json!({"username": nothing}), vec![]),
        ("basic-auth", json!({"password": letter}), vec![]),
        ("ssh-auth", json!({"ssh-privatekey": nothing}), vec![required("ssh-privatekey")]),
        ("ssh-auth", json!({"ssh-privatekey": letter}), vec![]),
        ("tls", json!({"tls.crt": nothing}), vec![required("tls.key")]),
        ("dockercfg", json!({}), vec![required(".dockercfg")]),
        ("dockercfg", json!({".dockercfg": letter}), vec![no_json(".dockercfg")]),
        ("dockercfg", json!({".dockercfg": object}), vec![]),
        ("dockerconfigjson", json!({}), vec![required(".dockerconfigjson")]),
        (
            "dockerconfigjson",
            json!({".dockerconfigjson": list}),
            vec![no_json(".dockerconfigjson")],
        ),
        ("dockerconfigjson", json!({".dockerconfigjson": object}), vec![]),
    ] {
        assert_eq!(secret(kind, &data), expected, "{kind} {data}");
    }
}

#[test]
fn a_job_that_has_not_started_may_change_where_its_pods_run() {
    let job = |spec: Json, status: Json| {
        let mut all = json!({"template": {"spec": {"restartPolicy": "Never",
            "affinity": {"podAffinity": {}}, "containers": [{"name": "c", "image": "i:1"}]}}});
        merge(&mut all, spec);
        json!({"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": "j", "namespace": "d"}, "spec": all, "status": status})
    };
    let term = json!([{"matchExpressions": [{"key": "zone", "operator": "In", "values": ["a"]}]}]);
    let placed = json!({"template": {"metadata": {"labels": {"a": "b"}, "annotations": {"a": "b"}}, "spec": {
        "nodeSelector": {"zone": "a"},
        "tolerations": [{"key": "t", "operator": "Exists"}],
        "affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": term}}}}}});
    let other_image =
        json!({"template": {"spec": {"containers": [{"name": "c", "image": "i:2"}]}}});
    let (suspended, started) =
        (json!({"suspend": true}), json!({"startTime": "2026-01-01T00:00:00Z"}));
    let changed = |before: &Json, status: &Json, change: &Json| {
        let mut after = before.clone();
        merge(&mut after, change.clone());
        let (old, new) = (job(before.clone(), status.clone()), job(after, status.clone()));
        let found = update_complaints(&old, &new, Subresource::Main);
        found.iter().any(|error| {
            error.starts_with("spec.template: Invalid value")
                && error.ends_with("field is immutable")
        })
    };
    assert!(!changed(&suspended, &json!({}), &placed), "it waits");
    assert!(changed(&suspended, &json!({}), &other_image), "what runs is fixed");
    assert!(changed(&suspended, &started, &placed), "it has run");
    assert!(changed(&json!({"suspend": false}), &json!({}), &placed), "it runs");
}

#[test]
fn what_others_were_made_from_does_not_change() {
    let meta = json!({"name": "n", "namespace": "d"});
    let revision = json!({"apiVersion": "apps/v1", "kind": "ControllerRevision", "metadata": meta, "revision": 1, "data": {"a": 1}});
    let slice = json!({"apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice", "metadata": meta, "addressType": "IPv4",
        "endpoints": [{"addresses": ["10.9.9.9"]}]});
    let class = json!({"apiVersion": "networking.k8s.io/v1", "kind": "IngressClass", "metadata": {"name": "n"},
        "spec": {"controller": "example.com/a"}});
    let service = json!({"apiVersion": "v1", "kind": "Service", "metadata": meta,
        "spec": {"type": "LoadBalancer", "ports": [{"port": 80}]}});
    let fixed = "field is immutable";
    for (object, change, field, expected) in [
        (&revision, json!({"data": {"a": 2}}), "data", fixed),
        (&slice, json!({"addressType": "FQDN"}), "addressType", fixed),
        (&class, json!({"spec": {"controller": "example.com/b"}}), "spec.controller", fixed),
        (
            &service,
            json!({"spec": {"loadBalancerClass": "a/b"}}),
            "spec.loadBalancerClass",
            "may not change once set",
        ),
    ] {
        let mut changed = object.clone();
        merge(&mut changed, change);
        let found = update_complaints(object, &changed, Subresource::Main);
        let [error] = found.as_slice() else { panic!("{field}: {found:?}") };
        assert!(
            error.starts_with(&format!("{field}: Invalid value")) && error.ends_with(expected),
            "{error}"
        );
        assert_eq!(update_complaints(&changed, &changed, Subresource::Main), Vec::<String>::new());
    }
    let mut other = service.clone();
    merge(&mut other, json!({"spec": {"type": "ClusterIP"}}));
    let mut balanced = service.clone();
    merge(&mut balanced, json!({"spec": {"loadBalancerClass": "a/b"}}));
    assert_eq!(update_complaints(&other, &balanced, Subresource::Main), Vec::<String>::new());
}

#[test]
fn a_new_ingress_names_its_class_in_one_way() {
    let ingress = |annotated: &str, class: &str| {
        let mut object = json!({"apiVersion": "networking.k8s.io/v1", "kind": "Ingress", "metadata": {"name": "n", "namespace": "d"},
            "spec": {"defaultBackend": {"service": {"name": "s", "port": {"number": 80}}}}});
        if !annotated.is_empty() {
            object["metadata"]["annotations"] = json!({"kubernetes.io/ingress.class": annotated});
        }
        if !class.is_empty() {
            object["spec"]["ingressClassName"] = json!(class);
        }
        object
    };
    let both = ingress("a", "a");
    let twice = "annotations.kubernetes.io/ingress.class: Invalid value: \"a\": can not be set when the class field is also set";
    assert_eq!(complaints(&both), [twice]);
    for one in [ingress("a", ""), ingress("", "a"), ingress("", "")] {
        assert_eq!(complaints(&one), Vec::<String>::new());
        assert_eq!(update_complaints(&one, &both, Subresource::Main), Vec::<String>::new());
    }
}

/// Sets the fields of `change` in `target`, and those below.
fn merge(target: &mut Json, change: Json) {
    match (target, change) {
        (Json::Object(target), Json::Object(change)) => {
            for (field, value) in change {
                merge(target.entry(field).or_insert(Json::Null), value);
            }
        }
        (target, change) => *target = change,
    }
}
