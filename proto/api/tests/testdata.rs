//! Every filled object under `testdata/` of a kind that has a type decodes from JSON, YAML and
//! Protobuf to the same object, and encodes back to the same bytes.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use proto_api::names::{Names, Profile};
use proto_api::{Kind, Message, apps, batch, core, meta, object, yaml};
use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

/// The three forms of one object.
struct Forms {
    json: Vec<u8>,
    yaml: String,
    protobuf: Vec<u8>,
}

fn read(stem: &str) -> Forms {
    let path = |ext: &str| {
        Path::new(env!("CARGO_MANIFEST_DIR")).join("testdata").join(format!("{stem}.{ext}"))
    };
    Forms {
        json: fs::read(path("json")).unwrap(),
        yaml: fs::read_to_string(path("yaml")).unwrap(),
        protobuf: fs::read(path("pb")).unwrap(),
    }
}

/// JSON as the files show it: two spaces, no line break at the end.
fn pretty(json: &[u8]) -> Vec<u8> {
    let value: serde_json::Value = serde_json::from_slice(json).unwrap();
    serde_json::to_vec_pretty(&value).unwrap()
}

fn round_trip<T: Kind>(stem: &str) -> String {
    let names = Names::new(Profile::Kubernetes);
    let forms = read(stem);
    let from_json: T = object::from_json(&forms.json, names).unwrap();
    let from_yaml: T = object::from_json_value(yaml::parse(&forms.yaml).unwrap(), names).unwrap();
    let from_protobuf: T = object::from_protobuf_envelope(&forms.protobuf, names).unwrap();
    assert_eq!(from_json, from_yaml, "{stem}: JSON and YAML");
    assert_eq!(from_json, from_protobuf, "{stem}: JSON and Protobuf");

    let json = object::to_json(&from_protobuf, names).unwrap();
    assert_same(stem, "JSON", &pretty(&json), &forms.json);
    let value = object::to_json_value(&from_json, names).unwrap();
    assert_eq!(yaml::to_string(&value), forms.yaml, "{stem}: YAML");
    let protobuf = object::to_protobuf_envelope(&from_json, names);
    assert!(protobuf == forms.protobuf, "{stem}: Protobuf bytes differ");

    let again: T = object::from_json(&json, names).unwrap();
    assert_eq!(again, from_json, "{stem}: JSON again");
    format!("{stem}: json {} yaml {} protobuf {}", json.len(), forms.yaml.len(), protobuf.len())
}

fn assert_same(stem: &str, what: &str, got: &[u8], want: &[u8]) {
    let (got, want) = (String::from_utf8_lossy(got), String::from_utf8_lossy(want));
    for (n, (got, want)) in got.lines().zip(want.lines()).enumerate() {
        assert_eq!(got, want, "{stem}: {what}, line {}", n + 1);
    }
    assert_eq!(got, want, "{stem}: {what}");
}

macro_rules! kinds {
    ($($stem:literal: $ty:ty,)+) => {
        const STEMS: &[&str] = &[$($stem),+];

        #[test]
        fn every_kind_round_trips() {
            $(println!("{}", round_trip::<$ty>($stem));)+
            println!("{} kinds", STEMS.len());
        }
    };
}

kinds! {
    "apps.v1.ControllerRevision": apps::v1::ControllerRevision,
    "apps.v1.DaemonSet": apps::v1::DaemonSet,
    "apps.v1.Deployment": apps::v1::Deployment,
    "apps.v1.ReplicaSet": apps::v1::ReplicaSet,
    "apps.v1.StatefulSet": apps::v1::StatefulSet,
    "batch.v1.CronJob": batch::v1::CronJob,
    "batch.v1.Job": batch::v1::Job,
    "core.v1.APIGroup": meta::v1::APIGroup,
    "core.v1.APIVersions": meta::v1::APIVersions,
    "core.v1.Binding": core::v1::Binding,
    "core.v1.ComponentStatus": core::v1::ComponentStatus,
    "core.v1.ConfigMap": core::v1::ConfigMap,
    "core.v1.CreateOptions": meta::v1::CreateOptions,
    "core.v1.DeleteOptions": meta::v1::DeleteOptions,
    "core.v1.Endpoints": core::v1::Endpoints,
    "core.v1.Event": core::v1::Event,
    "core.v1.GetOptions": meta::v1::GetOptions,
    "core.v1.LimitRange": core::v1::LimitRange,
    "core.v1.ListOptions": meta::v1::ListOptions,
    "core.v1.Namespace": core::v1::Namespace,
    "core.v1.Node": core::v1::Node,
    "core.v1.NodeProxyOptions": core::v1::NodeProxyOptions,
    "core.v1.PatchOptions": meta::v1::PatchOptions,
    "core.v1.PersistentVolume": core::v1::PersistentVolume,
    "core.v1.PersistentVolumeClaim": core::v1::PersistentVolumeClaim,
    "core.v1.Pod": core::v1::Pod,
    "core.v1.PodAttachOptions": core::v1::PodAttachOptions,
    "core.v1.PodExecOptions": core::v1::PodExecOptions,
    "core.v1.PodLogOptions": core::v1::PodLogOptions,
    "core.v1.PodPortForwardOptions": core::v1::PodPortForwardOptions,
    "core.v1.PodProxyOptions": core::v1::PodProxyOptions,
    "core.v1.PodStatusResult": core::v1::PodStatusResult,
    "core.v1.PodTemplate": core::v1::PodTemplate,
    "core.v1.RangeAllocation": core::v1::RangeAllocation,
    "core.v1.ReplicationController": core::v1::ReplicationController,
    "core.v1.ResourceQuota": core::v1::ResourceQuota,
    "core.v1.Secret": core::v1::Secret,
    "core.v1.SerializedReference": core::v1::SerializedReference,
    "core.v1.Service": core::v1::Service,
    "core.v1.ServiceAccount": core::v1::ServiceAccount,
    "core.v1.ServiceProxyOptions": core::v1::ServiceProxyOptions,
    "core.v1.Status": meta::v1::Status,
    "core.v1.UpdateOptions": meta::v1::UpdateOptions,
}

/// A watch event has no type of its own: no `kind` in JSON, an empty type in its envelope.
#[test]
fn a_watch_event_round_trips() {
    let forms = read("core.v1.WatchEvent");
    let event: meta::v1::WatchEvent = serde_json::from_slice(&forms.json).unwrap();
    let yaml = yaml::parse(&forms.yaml).unwrap();
    assert_eq!(event, serde_json::from_value(yaml).unwrap());
    let envelope = object::Envelope::read(&forms.protobuf).unwrap().unwrap();
    assert_eq!(envelope.type_meta, object::TypeMeta::default());
    let raw = envelope.raw.as_deref().unwrap();
    assert_eq!(event, meta::v1::WatchEvent::decode(raw).unwrap());

    let json = pretty(&serde_json::to_vec(&event).unwrap());
    assert_same("WatchEvent", "JSON", &json, &forms.json);
    assert_eq!(yaml::to_string(&serde_json::to_value(&event).unwrap()), forms.yaml);
    assert_eq!(event.encode_to_vec(), raw);
}

#[test]
fn no_file_is_left_out() {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("testdata");
    let files: BTreeSet<String> = fs::read_dir(dir)
        .unwrap()
        .map(|entry| entry.unwrap().path().file_stem().unwrap().to_string_lossy().into_owned())
        .collect();
    let mut tested: BTreeSet<String> = STEMS.iter().map(|s| (*s).to_owned()).collect();
    tested.insert("core.v1.WatchEvent".to_owned());
    assert_eq!(files, tested);
}
