//! Every row of the tables, on small objects that are decoded strictly: fields that a kind does not have are errors.

use std::collections::BTreeSet;
use std::path::Path;

use proto_api::names::{Names, Profile};
use serde_json::{Value as Json, json};

use super::*;
use crate::{Engine, Format, Strictness};

fn engine(gates: impl IntoIterator<Item = FieldGate>) -> Engine {
    Engine::new(Names::new(Profile::Kubernetes)).with_gates(gates.into_iter().collect())
}

fn decode(engine: &Engine, json: &Json) -> Object {
    let body = json.to_string();
    engine.decode_any(Format::Json, body.as_bytes(), Strictness::Strict).expect("an object").object
}

fn api_version(group: &str) -> &'static str {
    match group {
        "" => "v1",
        "apps" => "apps/v1",
        "autoscaling" => "autoscaling/v2",
        "batch" => "batch/v1",
        "storage" => "storage.k8s.io/v1",
        other => unreachable!("{other}"),
    }
}

/// An object with `value` at a path of fields.
fn with(group: &str, kind: &str, path: &[&str], value: Json) -> Json {
    let nested = path.iter().rev().fold(value, |below, field| match *field {
        EACH => json!([below]),
        field => json!({field: below}),
    });
    let mut object =
        json!({"apiVersion": api_version(group), "kind": kind, "metadata": {"name": "a"}});
    object.as_object_mut().unwrap().extend(nested.as_object().unwrap().clone());
    object
}

/// A value of a field that needs its gate.
fn value_of(field: &str) -> Json {
    match field {
        "minDomains" | "maxUnavailable" => json!(2),
        "matchLabelKeys" => json!(["a"]),
        "hostUsers" | "seLinuxMount" => json!(true),
        "nodeAffinityPolicy" | "nodeTaintsPolicy" => json!("Ignore"),
        "procMount" => json!("Unmasked"),
        "nodeExpandSecretRef" => json!({"name": "n"}),
        "allocatedResources" => json!({"storage": "1Gi"}),
        "resizeStatus" => json!("NodeExpansionInProgress"),
        "persistentVolumeClaimRetentionPolicy" => json!({"whenDeleted": "Delete"}),
        "containerResource" => json!({"name": "cpu", "container": "c"}),
        "podFailurePolicy" => json!({"rules": [{"action": "Ignore"}]}),
        other => unreachable!("{other}"),
    }
}

/// Every place of every gated field, by group and kind.
fn places() -> Vec<(&'static str, &'static str, Vec<&'static str>, &'static GatedField)> {
    let of_pods = POD_SPECS.iter().flat_map(|(group, kind, spec)| {
        OF_PODS.iter().flat_map(move |field| {
            field.paths.iter().map(move |path| (*group, *kind, [*spec, *path].concat(), field))
        })
    });
    let of_kinds = OF_KINDS.iter().flat_map(|(group, kind, fields)| {
        fields.iter().flat_map(move |field| {
            field.paths.iter().map(move |path| (*group, *kind, path.to_vec(), field))
        })
    });
    of_pods.chain(of_kinds).collect()
}

#[test]
fn each_field_is_dropped_without_its_gate_unless_the_stored_object_has_it() {
    for (group, kind, path, field) in places() {
        let what = format!("{kind} {path:?}");
        let written = with(group, kind, &path, value_of(path.last().unwrap()));
        let has = |object: &Object| {
            has_at(&object.fields, &path, &|found| match field.without {
                WithoutGate::Removed => true,
                WithoutGate::SetTo(free) => found.as_str() != Some(free),
            })
        };
        let without = engine(FieldGate::ALL.into_iter().filter(|gate| *gate != field.gate));
        let full = decode(&without, &written);
        assert!(has(&full), "{what}: it is sent");
        let mut dropped = full.clone();
        let said = without.drop_disabled(&mut dropped, None);
        assert!(!has(&dropped), "{what}: a new object");
        let place = path.join(".").replace(".[]", "[0]");
        let (place, gate) = (format!("{place}: "), format!(" {} is off", field.gate.name()));
        let [said] = &*said else { panic!("{what}: {said:?}") };
        let text = said.warning();
        assert!(text.starts_with(&place) && text.ends_with(&gate), "{what}: {text}");
        let mut changed = full.clone();
        without.drop_disabled(&mut changed, Some(&dropped));
        assert_eq!(changed, dropped, "{what}: an update does not bring it in");
        let mut kept = full.clone();
        assert_eq!(without.drop_disabled(&mut kept, Some(&full)), []);
        assert_eq!(kept, full, "{what}: the stored object has it");
        let mut kept = full.clone();
        assert_eq!(engine([field.gate]).drop_disabled(&mut kept, None), []);
        assert_eq!(kept, full, "{what}: the gate is on");
    }
}

#[test]
fn masked_mounts_stay_and_others_become_masked() {
    let off = engine([]);
    let pod = |init: &str, main: &str| {
        let container = |mount: &str| json!({"securityContext": {"procMount": mount}});
        let spec = json!({"initContainers": [container(init)], "containers": [container(main), {"name": "c"}]});
        decode(&off, &with("", "Pod", &["spec"], spec))
    };
    let mounts = |mut pod: Object, before: Option<&Object>| {
        off.drop_disabled(&mut pod, before);
        let spec = pod.spec().unwrap();
        let containers = spec.maps("initContainers").chain(spec.maps("containers"));
        let mount = |of: &Map| of.str_at(&["securityContext", "procMount"]).to_owned();
        containers.map(mount).collect::<Vec<_>>()
    };
    let masked = pod("Default", "Default");
    let unmasked = || pod("Default", "Unmasked");
    assert_eq!(mounts(masked.clone(), None), ["Default", "Default", ""]);
    assert_eq!(mounts(unmasked(), Some(&masked)), ["Default", "Default", ""]);
    let elsewhere = pod("Unmasked", "Default");
    assert_eq!(mounts(unmasked(), Some(&elsewhere)), ["Default", "Unmasked", ""], "in use");
}

#[test]
fn what_is_said_of_a_field_names_a_few_places() {
    let off = engine([]);
    let container = |mount: &str| json!({"securityContext": {"procMount": mount}});
    let mut containers = vec![container("Default")];
    containers.extend(std::iter::repeat_n(container("Unmasked"), 7));
    let spec = json!({"containers": containers, "initContainers": [container("Unmasked")]});
    let mut pod = decode(&off, &with("", "Pod", &["spec"], spec));
    let said: Vec<_> =
        off.drop_disabled(&mut pod, None).iter().map(DroppedField::warning).collect();
    let place = |n: usize| format!("spec.containers[{n}].securityContext.procMount");
    let because = "set to \"Default\", because the feature gate ProcMountType is off";
    let places = [1, 2, 3, 4].map(place).join(", ");
    assert_eq!(
        said,
        [
            format!("{places} and 3 more: {because}"),
            format!("spec.initContainers[0].securityContext.procMount: {because}")
        ]
    );
}

#[test]
fn a_field_is_part_of_what_a_request_writes() {
    use Subresource::{Approval, EphemeralContainers, Finalize, Main, Status};
    let off = engine([]);
    let mount = json!({"securityContext": {"procMount": "Unmasked"}});
    for (kind, path, value, written) in [
        ("Pod", &["spec", "hostUsers"][..], json!(true), &[Main][..]),
        ("Pod", &["spec", "ephemeralContainers", EACH], mount, &[Main, EphemeralContainers]),
        ("PersistentVolumeClaim", &["status", "resizeStatus"], json!("a"), &[Status]),
    ] {
        let mut object = decode(&off, &with("", kind, path, value));
        let dropped = off.drop_disabled(&mut object, None);
        let all = [Main, Status, EphemeralContainers, Finalize, Approval];
        let parts = all.into_iter().filter(|part| dropped[0].is_part_of(*part));
        assert_eq!(parts.collect::<Vec<_>>(), written, "{path:?}");
    }
}

#[test]
fn the_policies_of_inclusion_are_kept_each_for_itself() {
    let off = engine([]);
    let path = &["spec", SPREAD, EACH];
    let both = json!({"nodeAffinityPolicy": "Ignore", "nodeTaintsPolicy": "Honor"});
    let one = decode(&off, &with("", "Pod", path, json!({"nodeTaintsPolicy": "Honor"})));
    let mut pod = decode(&off, &with("", "Pod", path, both));
    off.drop_disabled(&mut pod, Some(&one));
    assert_eq!(pod, one);
}

#[test]
fn defaults_come_with_their_gate_only() {
    let set = with("apps", "StatefulSet", &["spec"], json!({}));
    let driver = with("storage", "CSIDriver", &["spec"], json!({}));
    let retention = &["spec", "persistentVolumeClaimRetentionPolicy", "whenScaled"][..];
    let away = &["spec", "updateStrategy", "rollingUpdate", "maxUnavailable"];
    for (gate, object, path, value) in [
        (FieldGate::StatefulSetAutoDeletePvc, &set, retention, Value::from("Retain")),
        (FieldGate::MaxUnavailableStatefulSet, &set, away, Value::Int(1)),
        (FieldGate::SeLinuxMountReadWriteOncePod, &driver, &["spec", "seLinuxMount"], false.into()),
    ] {
        for is_on in [false, true] {
            let engine = engine(is_on.then_some(gate));
            let mut object = decode(&engine, object);
            engine.default(&mut object);
            assert_eq!(object.fields.at(path), is_on.then_some(&value), "{gate:?}");
        }
    }
}

/// Where `field` is in a document, outside of lists.
fn paths_to(document: &Json, field: &str, path: &str, found: &mut Vec<String>) {
    for (key, below) in document.as_object().into_iter().flatten() {
        match key == field {
            true => found.push(path.to_owned()),
            false => paths_to(below, field, &format!("{path}/{key}"), found),
        }
    }
}

#[test]
fn every_kind_with_a_pod_is_in_the_table() {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../proto/api/testdata");
    let mut of_full_objects = BTreeSet::new();
    for file in std::fs::read_dir(directory).expect("objects with all fields set") {
        let path = file.unwrap().path();
        if path.extension().is_some_and(|end| end == "json") {
            let object: Json = serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap();
            let mut found = Vec::new();
            paths_to(&object, SPREAD, "", &mut found);
            let kind = object["kind"].as_str().unwrap_or_default();
            of_full_objects.extend(found.iter().map(|path| format!("{kind} {path}")));
        }
    }
    let listed = POD_SPECS.iter().map(|(_, kind, path)| format!("{kind} /{}", path.join("/")));
    assert_eq!(of_full_objects, listed.collect());
}
