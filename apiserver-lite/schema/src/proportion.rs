//! Tests: counts the map entries read or moved while an object is decoded, validated, updated and encoded, over doubling sizes.
//! Exact where `benches/proportion.rs`, which covers all work, measures time.

use proto_api::names::{Names, Profile};
use proto_api::selectors::Selector;

use crate::update::{Subresource, merge_for_update};
use crate::value::Value;
use crate::{Engine, Format, Object, Strictness, fields, table};

/// Checks that twice the input costs at most twice the steps and a constant.
fn check(what: &str, work: impl Fn(usize) -> u64) {
    let costs: Vec<(usize, u64)> =
        (0..4).map(|power| 500 << power).map(|size| (size, work(size))).collect();
    for pair in costs.windows(2) {
        let [(size, less), (_, more)] = *pair else { continue };
        assert!(more <= less * 2 + size as u64, "{what}: {costs:?}");
    }
}

/// A pod with `size` labels, variables and volumes, keys not in sorted order.
fn pod(size: usize) -> String {
    let place = |at: usize| (at * 7919) % size;
    let list = |text: &dyn Fn(usize) -> String| (0..size).map(text).collect::<Vec<_>>().join(",");
    format!(
        r#"{{"kind":"Pod","apiVersion":"v1","metadata":{{"name":"p","namespace":"d","labels":{{{}}}}},
        "spec":{{"containers":[{{"name":"c","image":"i","env":[{}]}}],"volumes":[{}]}}}}"#,
        list(&|at| format!(r#""k{}":"v""#, place(at))),
        list(&|at| format!(r#"{{"name":"N{}","value":"v"}}"#, place(at))),
        list(&|at| format!(r#"{{"name":"n{}","emptyDir":{{}}}}"#, place(at))),
    )
}

/// The texts of this many entries, joined by commas.
fn list(size: usize, text: impl Fn(usize) -> String) -> String {
    (0..size).map(text).collect::<Vec<_>>().join(",")
}

fn engine() -> Engine {
    Engine::new(Names::new(Profile::Kubernetes))
}

fn read(engine: &Engine, size: usize) -> Object {
    let decoded = engine.decode_any(Format::Json, pod(size).as_bytes(), Strictness::Warn);
    decoded.expect("a pod").object
}

#[test]
fn decoding() {
    let engine = engine();
    for strictness in [Strictness::Warn, Strictness::Strict] {
        check("JSON", |size| {
            let text = pod(size);
            proto_api::steps::count_during(|| {
                assert!(engine.decode_any(Format::Json, text.as_bytes(), strictness).is_ok())
            })
        });
    }
    check("YAML", |size| {
        let text = engine.encode_yaml(&read(&engine, size));
        let decode = || engine.decode_any(Format::Yaml, text.as_bytes(), Strictness::Warn);
        proto_api::steps::count_during(|| assert!(decode().is_ok()))
    });
    check("Protobuf", |size| {
        let bytes = engine.encode_protobuf(&read(&engine, size));
        let decode = || engine.decode_any(Format::Protobuf, &bytes, Strictness::Warn);
        proto_api::steps::count_during(|| assert!(decode().is_ok()))
    });
}

#[test]
fn defaults_validation_and_updates() {
    let engine = engine();
    check("default and validate", |size| {
        let mut pod = read(&engine, size);
        proto_api::steps::count_during(|| {
            engine.default(&mut pod);
            assert!(engine.validate_create(&pod).is_ok());
        })
    });
    check("update", |size| {
        let mut old = read(&engine, size);
        engine.default(&mut old);
        let mut new = old.clone();
        new.metadata_mut().map_or_insert("labels").insert("a", "b");
        proto_api::steps::count_during(|| {
            let merged = merge_for_update(&old, &new, Subresource::Main);
            assert!(engine.validate_update(&old, &merged, Subresource::Main).is_ok());
        })
    });
}

#[test]
fn selectors_tables_and_lists() {
    let engine = engine();
    check("selectors", |size| {
        let pod = read(&engine, size);
        let keys: Vec<String> = (0..size).map(|at| format!("k{at}=v")).collect();
        let selector = Selector::parse(&keys.join(",")).expect("a selector");
        let labels = pod.metadata().and_then(|metadata| metadata.map("labels")).expect("labels");
        proto_api::steps::count_during(|| {
            assert!(selector.matches_with(|key| labels.get(key).and_then(Value::as_str)));
            for field in fields::supported(&pod.kind) {
                assert!(fields::value_of(&pod, field).is_some());
            }
        })
    });
    check("a table with labels", |size| {
        let pod = read(&engine, size);
        let form = table::TableOptions {
            api_version: "meta/v1",
            columns: table::ColumnDefinitions::Included,
            include: table::Include::Metadata,
            now: 0,
        };
        proto_api::steps::count_during(|| {
            let rows = table::encode(&engine, form, &pod.kind, &Default::default(), [&pod]);
            assert!(rows.len() > size);
        })
    });
    check("encoding", |size| {
        let pod = read(&engine, size);
        proto_api::steps::count_during(|| {
            assert!(engine.encode_json(&pod).len() > size);
            assert!(engine.encode_protobuf(&pod).len() > size);
        })
    });
}

/// An object of these fields, `metadata.name` included.
fn object(engine: &Engine, kind: &str, fields: &str) -> Object {
    let text = format!(r#"{{{kind},{fields}}}"#);
    let decoded = engine.decode_any(Format::Json, text.as_bytes(), Strictness::Warn);
    decoded.unwrap_or_else(|error| panic!("{error}: {text:.200}")).object
}

/// Lists of pods that validation compares with one another, or with themselves.
#[test]
fn lists_of_pods() {
    let engine = engine();
    let check_spec = |what: &str, spec: &dyn Fn(usize) -> String| {
        check(what, |size| {
            let kind = r#""kind":"Pod","apiVersion":"v1","metadata":{"name":"p","namespace":"d"}"#;
            let mut pod = object(&engine, kind, &format!(r#""spec":{{{}}}"#, spec(size)));
            engine.default(&mut pod);
            let found = || assert_eq!(engine.validate_create(&pod), Ok(()), "{what}");
            proto_api::steps::count_during(found)
        });
    };
    let one = r#""containers":[{"name":"c","image":"i"}]"#;
    check_spec("mounts and devices", &|size| {
        let mounts = list(size, |at| format!(r#"{{"name":"m","mountPath":"/m{at}"}}"#));
        let devices = list(size, |at| format!(r#"{{"name":"v{at}","devicePath":"/d{at}"}}"#));
        let volumes = list(size, |at| {
            format!(r#"{{"name":"v{at}","persistentVolumeClaim":{{"claimName":"c{at}"}}}}"#)
        });
        format!(
            r#""containers":[{{"name":"c","image":"i","volumeMounts":[{mounts}],"volumeDevices":[{devices}]}}],
            "volumes":[{{"name":"m","emptyDir":{{}}}},{volumes}]"#
        )
    });
    check_spec("containers", &|size| {
        let containers = |kind: &str| {
            list(size, |at| {
                let ports = format!(r#"[{{"name":"p{at}","containerPort":{}}}]"#, at + 1);
                format!(r#"{{"name":"{kind}{at}","image":"i","ports":{ports}}}"#)
            })
        };
        let (all, first) = (containers("c"), containers("i"));
        format!(r#""containers":[{all}],"initContainers":[{first}]"#)
    });
    check_spec("tolerations, pull secrets and aliases", &|size| {
        let tolerations = list(size, |at| format!(r#"{{"key":"k{at}","operator":"Exists"}}"#));
        let secrets = list(size, |at| format!(r#"{{"name":"s{at}"}}"#));
        let aliases = list(size, |_| r#"{"ip":"10.0.0.1","hostnames":["a"]}"#.to_owned());
        format!(
            r#"{one},"tolerations":[{tolerations}],"imagePullSecrets":[{secrets}],"hostAliases":[{aliases}]"#
        )
    });
    check_spec("affinity and spread constraints", &|size| {
        let selector = r#""labelSelector":{"matchLabels":{"a":"b"}}"#;
        let terms = list(size, |at| format!(r#"{{"topologyKey":"k{at}",{selector}}}"#));
        let spread = list(size, |at| {
            format!(
                r#"{{"topologyKey":"k{at}","maxSkew":1,"whenUnsatisfiable":"DoNotSchedule",{selector}}}"#
            )
        });
        format!(
            r#"{one},"topologySpreadConstraints":[{spread}],
            "affinity":{{"podAntiAffinity":{{"requiredDuringSchedulingIgnoredDuringExecution":[{terms}]}}}}"#
        )
    });
}

/// The same of an object and of its earlier version.
fn check_object(what: &str, kind: &str, fields: impl Fn(usize) -> String) {
    let engine = engine();
    check(what, |size| {
        let new = object(&engine, kind, &fields(size));
        let old = new.clone();
        proto_api::steps::count_during(|| {
            assert_eq!(engine.validate_create(&new), Ok(()), "{what}");
            assert_eq!(engine.validate_update(&old, &new, Subresource::Main), Ok(()), "{what}");
        })
    });
}

/// The kind and the metadata of an object in a group's version `v1`.
fn named(kind: &str, group: &str) -> String {
    let group = Names::new(Profile::Kubernetes).group(group);
    let metadata = r#"{"name":"n","resourceVersion":"1"}"#;
    format!(r#""kind":"{kind}","apiVersion":"{group}/v1","metadata":{metadata}"#)
}

#[test]
fn drivers_of_a_node() {
    check_object("drivers", &named("CSINode", "storage"), |size| {
        let drivers = list(size, |at| format!(r#"{{"name":"d{at}","nodeID":"n"}}"#));
        format!(r#""spec":{{"drivers":[{drivers}]}}"#)
    });
}

#[test]
fn tolerations_of_a_runtime_class() {
    check_object("tolerations", &named("RuntimeClass", "node"), |size| {
        let tolerations = list(size, |at| format!(r#"{{"key":"k{at}","operator":"Exists"}}"#));
        format!(r#""handler":"h","scheduling":{{"tolerations":[{tolerations}]}}"#)
    });
}

#[test]
fn scopes_and_resources_of_a_quota() {
    let quota = r#""kind":"ResourceQuota","apiVersion":"v1","metadata":{"name":"q","namespace":"d","resourceVersion":"1"}"#;
    check_object("scopes", quota, |size| {
        let hard = list(size, |at| format!(r#""requests.example.com/r{at}":"1""#));
        let scopes = list(size, |_| r#""Terminating""#.to_owned());
        format!(r#""spec":{{"hard":{{{hard}}},"scopes":[{scopes}]}}"#)
    });
}

#[test]
fn finalizers() {
    check_object("finalizers", r#""kind":"ConfigMap","apiVersion":"v1""#, |size| {
        let finalizers = list(size, |at| format!(r#""a.b/f{at}""#));
        format!(
            r#""metadata":{{"name":"c","namespace":"d","resourceVersion":"1","finalizers":[{finalizers}]}}"#
        )
    });
}
