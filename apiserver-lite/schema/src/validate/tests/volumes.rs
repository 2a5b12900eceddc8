//! Volumes: every source of the schema with valid and invalid forms; mounts and devices; claims and volumes.

use std::collections::BTreeSet;

use serde_json::{Value as Json, json};

use super::{complaints, complaints_with, pod, update_complaints};
use crate::update::Subresource;
use crate::{FieldGate, FieldGates};

const SCHEMA: &str = include_str!("../../../../../proto/api/schema/core_v1.tsv");

/// A source: name, valid forms, and invalid forms with their error after the source's path.
type Case = (&'static str, Vec<Json>, Vec<(Json, &'static str)>);

/// Names of the fields of a message of the schema.
fn fields_of(message: &str) -> BTreeSet<&'static str> {
    let rows = SCHEMA.lines().map(|line| line.split('\t').collect::<Vec<_>>());
    let own = rows.filter(|row| row[0] == message && row[1] != "{}").map(|row| row[1]);
    own.collect()
}

/// Sources with the same form in pods and persistent volumes.
#[allow(clippy::too_many_lines, reason = "a flat table")]
fn shared() -> Vec<Case> {
    vec![
        (
            "hostPath",
            vec![json!({"path": "/x", "type": "File"}), json!({"path": "/"})],
            vec![
                (json!({"path": ""}), ".path: Required value"),
                (
                    json!({"path": "/a/../b"}),
                    ".path: Invalid value: \"/a/../b\": must not contain '..'",
                ),
                (
                    json!({"path": "/a", "type": "Pipe"}),
                    ".type: Unsupported value: \"Pipe\": supported values: \"\", \"BlockDevice\", \"CharDevice\", \
                     \"Directory\", \"DirectoryOrCreate\", \"File\", \"FileOrCreate\", \"Socket\"",
                ),
            ],
        ),
        (
            "gcePersistentDisk",
            vec![json!({"pdName": "d", "partition": 3, "fsType": "ext4"})],
            vec![
                (json!({"pdName": ""}), ".pdName: Required value"),
                (
                    json!({"pdName": "d", "partition": 256}),
                    ".partition: Invalid value: 256: must be between 0 and 255, inclusive",
                ),
            ],
        ),
        (
            "awsElasticBlockStore",
            vec![json!({"volumeID": "v", "partition": 0, "readOnly": true})],
            vec![
                (json!({"volumeID": ""}), ".volumeID: Required value"),
                (
                    json!({"volumeID": "v", "partition": -1}),
                    ".partition: Invalid value: -1: must be between 0 and 255, inclusive",
                ),
            ],
        ),
        (
            "nfs",
            vec![json!({"server": "s", "path": "/p", "readOnly": true})],
            vec![
                (json!({"server": "", "path": "/p"}), ".server: Required value"),
                (json!({"server": "s", "path": ""}), ".path: Required value"),
                (
                    json!({"server": "s", "path": "p"}),
                    ".path: Invalid value: \"p\": must be an absolute path",
                ),
            ],
        ),
        (
            "iscsi",
            vec![
                json!({"targetPortal": "10.0.0.1:3260", "iqn": "iqn.2003-04.com.example:disk.1", "lun": 0}),
                json!({"targetPortal": "h", "iqn": "eui.0123456789abcdef", "lun": 255}),
                json!({"targetPortal": "h", "iqn": "naa.0123456789abcdef0123456789abcdef", "lun": 1,
                    "chapAuthSession": true, "secretRef": {"name": "s"}, "portals": ["h2"], "initiatorName": "iqn.2003-04.com.example"}),
            ],
            vec![
                (
                    json!({"targetPortal": "", "iqn": "iqn.2003-04.com.example", "lun": 0}),
                    ".targetPortal: Required value",
                ),
                (json!({"targetPortal": "h", "iqn": "", "lun": 0}), ".iqn: Required value"),
                (
                    json!({"targetPortal": "h", "iqn": "iqn.04.com", "lun": 0}),
                    ".iqn: Invalid value: \"iqn.04.com\": must be valid format",
                ),
                (
                    json!({"targetPortal": "h", "iqn": "disk", "lun": 0}),
                    ".iqn: Invalid value: \"disk\": must be valid format starting with iqn, eui, or naa",
                ),
                (
                    json!({"targetPortal": "h", "iqn": "eui.0123456789abcdef", "lun": 0, "initiatorName": "eui.1"}),
                    ".initiatorName: Invalid value: \"eui.1\": must be valid format",
                ),
                (
                    json!({"targetPortal": "h", "iqn": "eui.0123456789abcdef", "lun": 256}),
                    ".lun: Invalid value: 256: must be between 0 and 255, inclusive",
                ),
                (
                    json!({"targetPortal": "h", "iqn": "eui.0123456789abcdef", "lun": 0, "chapAuthDiscovery": true}),
                    ".secretRef: Required value",
                ),
            ],
        ),
        (
            "glusterfs",
            vec![json!({"endpoints": "e", "path": "p"})],
            vec![
                (json!({"endpoints": "", "path": "p"}), ".endpoints: Required value"),
                (json!({"endpoints": "e", "path": ""}), ".path: Required value"),
            ],
        ),
        (
            "rbd",
            vec![json!({"monitors": ["m"], "image": "i"})],
            vec![
                (json!({"monitors": [], "image": "i"}), ".monitors: Required value"),
                (json!({"monitors": ["m"], "image": ""}), ".image: Required value"),
            ],
        ),
        (
            "flexVolume",
            vec![json!({"driver": "a/b", "options": {"a": "b"}})],
            vec![(json!({"driver": ""}), ".driver: Required value")],
        ),
        (
            "cinder",
            vec![json!({"volumeID": "v", "secretRef": {"name": "s"}})],
            vec![
                (json!({"volumeID": ""}), ".volumeID: Required value"),
                (json!({"volumeID": "v", "secretRef": {}}), ".secretRef.name: Required value"),
            ],
        ),
        (
            "cephfs",
            vec![json!({"monitors": ["m"], "user": "u"})],
            vec![(json!({"monitors": []}), ".monitors: Required value")],
        ),
        (
            "flocker",
            vec![json!({"datasetName": "d"}), json!({"datasetUUID": "u"})],
            vec![
                (json!({}), ": Required value: one of datasetName and datasetUUID is required"),
                (
                    json!({"datasetName": "d", "datasetUUID": "u"}),
                    ": Invalid value: \"resource\": datasetName and datasetUUID can not be specified simultaneously",
                ),
                (
                    json!({"datasetName": "a/b"}),
                    ".datasetName: Invalid value: \"a/b\": must not contain '/'",
                ),
            ],
        ),
        (
            "fc",
            vec![json!({"targetWWNs": ["w"], "lun": 0}), json!({"wwids": ["w"], "fsType": "xfs"})],
            vec![
                (
                    json!({}),
                    ".targetWWNs: Required value: must specify either targetWWNs or wwids, but not both",
                ),
                (
                    json!({"targetWWNs": ["w"], "lun": 0, "wwids": ["i"]}),
                    ".targetWWNs: Invalid value: [\"w\"]: targetWWNs and wwids can not be specified simultaneously",
                ),
                (
                    json!({"targetWWNs": ["w"]}),
                    ".lun: Required value: lun is required if targetWWNs is specified",
                ),
                (
                    json!({"targetWWNs": ["w"], "lun": 256}),
                    ".lun: Invalid value: 256: must be between 0 and 255, inclusive",
                ),
            ],
        ),
        (
            "azureFile",
            vec![json!({"secretName": "s", "shareName": "h"})],
            vec![
                (json!({"secretName": "", "shareName": "h"}), ".secretName: Required value"),
                (json!({"secretName": "s", "shareName": ""}), ".shareName: Required value"),
            ],
        ),
        (
            "vsphereVolume",
            vec![json!({"volumePath": "[d] v.vmdk", "storagePolicyName": "gold"})],
            vec![(json!({"volumePath": ""}), ".volumePath: Required value")],
        ),
        (
            "quobyte",
            vec![json!({"registry": "a:1,b:2", "volume": "v"})],
            vec![
                (json!({"registry": "", "volume": "v"}), ".registry: Required value"),
                (json!({"registry": "a:1", "volume": ""}), ".volume: Required value"),
                (
                    json!({"registry": "a:1,b", "volume": "v"}),
                    ".registry: Invalid value: \"a:1,b\": must be a host:port pair or multiple pairs separated by commas",
                ),
            ],
        ),
        (
            "azureDisk",
            vec![
                json!({"diskName": "d", "diskURI": "https://a/b.vhd"}),
                json!({"diskName": "d", "diskURI": "/subscriptions/x", "kind": "Managed", "cachingMode": "None"}),
            ],
            vec![
                (json!({"diskName": "", "diskURI": "https://a"}), ".diskName: Required value"),
                (json!({"diskName": "d", "diskURI": ""}), ".diskURI: Required value"),
                (
                    json!({"diskName": "d", "diskURI": "https://a", "cachingMode": "Some"}),
                    ".cachingMode: Unsupported value: \"Some\": supported values: \"None\", \"ReadOnly\", \"ReadWrite\"",
                ),
                (
                    json!({"diskName": "d", "diskURI": "https://a", "kind": "Some"}),
                    ".kind: Unsupported value: \"Some\": supported values: \"Dedicated\", \"Managed\", \"Shared\"",
                ),
                (
                    json!({"diskName": "d", "diskURI": "x"}),
                    ".diskURI: Unsupported value: \"x\": supported values: \
                     \"https://{account-name}.blob.core.windows.net/{container-name}/{disk-name}.vhd\"",
                ),
            ],
        ),
        (
            "photonPersistentDisk",
            vec![json!({"pdID": "p"})],
            vec![(json!({"pdID": ""}), ".pdID: Required value")],
        ),
        (
            "portworxVolume",
            vec![json!({"volumeID": "v"})],
            vec![(json!({"volumeID": ""}), ".volumeID: Required value")],
        ),
        (
            "scaleIO",
            vec![
                json!({"gateway": "g", "system": "s", "volumeName": "v", "secretRef": {"name": "x"}}),
            ],
            vec![
                (
                    json!({"gateway": "", "system": "s", "volumeName": "v", "secretRef": {"name": "x"}}),
                    ".gateway: Required value",
                ),
                (
                    json!({"gateway": "g", "system": "", "volumeName": "v", "secretRef": {"name": "x"}}),
                    ".system: Required value",
                ),
                (
                    json!({"gateway": "g", "system": "s", "volumeName": "v"}),
                    ".secretRef: Required value",
                ),
                (
                    json!({"gateway": "g", "system": "s", "volumeName": "v", "secretRef": {"name": "x"}, "storageMode": "Fat"}),
                    ".storageMode: Unsupported value: \"Fat\": supported values: \"ThickProvisioned\", \"ThinProvisioned\"",
                ),
            ],
        ),
        (
            "storageos",
            vec![json!({"volumeName": "v", "volumeNamespace": "n", "secretRef": {"name": "s"}})],
            vec![
                (json!({"volumeName": ""}), ".volumeName: Required value"),
                (json!({"volumeName": "v", "secretRef": {}}), ".secretRef.name: Required value"),
            ],
        ),
    ]
}

/// Sources of pods only, or with another form there.
#[allow(clippy::too_many_lines, reason = "a flat table")]
fn of_pods() -> Vec<Case> {
    let items = |item: Json| json!({"name": "m", "items": [item]});
    let shown = |item: Json| json!({"items": [item]});
    let token = |token: Json| json!({"sources": [{"serviceAccountToken": token}]});
    let claim =
        json!({"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}});
    vec![
        (
            "emptyDir",
            vec![json!({}), json!({"medium": "Memory", "sizeLimit": "1Mi"})],
            vec![(
                json!({"sizeLimit": "-1"}),
                ".sizeLimit: Forbidden: SizeLimit field must be a valid resource quantity",
            )],
        ),
        (
            "gitRepo",
            vec![json!({"repository": "r", "directory": "."})],
            vec![
                (json!({"repository": ""}), ".repository: Required value"),
                (
                    json!({"repository": "r", "directory": "/d"}),
                    ".directory: Invalid value: \"/d\": must be a relative path",
                ),
                (
                    json!({"repository": "r", "directory": "a/.."}),
                    ".directory: Invalid value: \"a/..\": must not contain '..'",
                ),
            ],
        ),
        (
            "secret",
            vec![
                json!({"secretName": "s", "defaultMode": 0, "items": [{"key": "k", "path": "k/..k", "mode": 511}]}),
            ],
            vec![
                (json!({}), ".secretName: Required value"),
                (
                    json!({"secretName": "s", "defaultMode": 512}),
                    ".defaultMode: Invalid value: 512: must be a number between 0 and 0777 (octal), both inclusive",
                ),
                (
                    json!({"secretName": "s", "defaultMode": -1}),
                    ".defaultMode: Invalid value: -1: must be a number between 0 and 0777 (octal), both inclusive",
                ),
            ],
        ),
        (
            "configMap",
            vec![json!({"name": "m", "optional": true})],
            vec![
                (json!({}), ".name: Required value"),
                (items(json!({"key": "", "path": "p"})), ".items[0].key: Required value"),
                (items(json!({"key": "k", "path": ""})), ".items[0].path: Required value"),
                (
                    items(json!({"key": "k", "path": "/p"})),
                    ".items[0].path: Invalid value: \"/p\": must be a relative path",
                ),
                (
                    items(json!({"key": "k", "path": "a/../b"})),
                    ".items[0].path: Invalid value: \"a/../b\": must not contain '..'",
                ),
                (
                    items(json!({"key": "k", "path": "..a"})),
                    ".items[0].path: Invalid value: \"..a\": must not start with '..'",
                ),
                (
                    items(json!({"key": "k", "path": "p", "mode": 512})),
                    ".items[0].mode: Invalid value: 512: must be a number between 0 and 0777 (octal), both inclusive",
                ),
            ],
        ),
        (
            "downwardAPI",
            vec![
                shown(json!({"path": "p", "fieldRef": {"fieldPath": "metadata.labels['a.b/c']"}})),
                shown(
                    json!({"path": "p", "fieldRef": {"fieldPath": "metadata.annotations['Some']"}}),
                ),
                shown(json!({"path": "p", "mode": 0, "fieldRef": {"fieldPath": "metadata.uid"}})),
                shown(
                    json!({"path": "p", "resourceFieldRef": {"containerName": "c", "resource": "limits.hugepages-2Mi"}}),
                ),
            ],
            vec![
                (
                    shown(json!({"path": "p"})),
                    ".items[0]: Required value: one of fieldRef and resourceFieldRef is required",
                ),
                (
                    shown(json!({"path": "p", "fieldRef": {"fieldPath": "metadata.name"},
                        "resourceFieldRef": {"containerName": "c", "resource": "limits.cpu"}})),
                    ".items[0]: Invalid value: \"resource\": fieldRef and resourceFieldRef can not be specified simultaneously",
                ),
                (
                    shown(json!({"path": "p", "fieldRef": {"fieldPath": "status.podIP"}})),
                    ".items[0].fieldRef.fieldPath: Unsupported value: \"status.podIP\": supported values: \
                     \"metadata.annotations\", \"metadata.labels\", \"metadata.name\", \"metadata.namespace\", \"metadata.uid\"",
                ),
                (
                    shown(json!({"path": "p", "fieldRef": {"fieldPath": "metadata.name['a']"}})),
                    ".items[0].fieldRef: Invalid value: \"metadata.name['a']\": does not support subscript for metadata.name",
                ),
                (
                    shown(json!({"path": "p", "resourceFieldRef": {"resource": "limits.cpu"}})),
                    ".items[0].resourceFieldRef.containerName: Required value",
                ),
                (
                    shown(
                        json!({"path": "p", "resourceFieldRef": {"containerName": "c", "resource": "limits.gpu"}}),
                    ),
                    ".items[0].resourceFieldRef.resource: Unsupported value: \"limits.gpu\": supported values: \
                     \"limits.cpu\", \"limits.ephemeral-storage\", \"limits.memory\", \"requests.cpu\", \
                     \"requests.ephemeral-storage\", \"requests.memory\"",
                ),
                (
                    shown(json!({"path": "..p", "fieldRef": {"fieldPath": "metadata.name"}})),
                    ".items[0].path: Invalid value: \"..p\": must not start with '..'",
                ),
            ],
        ),
        (
            "projected",
            vec![json!({"sources": [
                    {"secret": {"name": "s"}}, {"configMap": {"name": "m", "items": [{"key": "k", "path": "a"}]}},
                    {"downwardAPI": {"items": [{"path": "b", "fieldRef": {"fieldPath": "metadata.name"}}]}},
                    {"serviceAccountToken": {"path": "c", "audience": "x", "expirationSeconds": 600}}]})],
            vec![
                (
                    token(json!({"path": "t", "expirationSeconds": 599})),
                    ".sources[0].serviceAccountToken.expirationSeconds: Invalid value: 599: \
                     may not specify a duration less than 10 minutes",
                ),
                (
                    token(json!({"path": "t", "expirationSeconds": 4_294_967_297_i64})),
                    ".sources[0].serviceAccountToken.expirationSeconds: Invalid value: 4294967297: \
                     may not specify a duration larger than 2^32 seconds",
                ),
                (
                    token(json!({"path": ""})),
                    ".sources[0].serviceAccountToken.path: Required value",
                ),
                (
                    token(json!({"path": "../t"})),
                    ".sources[0].serviceAccountToken.path: Invalid value: \"../t\": must not contain '..'",
                ),
                (
                    json!({"sources": [{"secret": {"name": "s"}, "configMap": {"name": "m"}}]}),
                    ".sources[0]: Forbidden: may not specify more than 1 volume type",
                ),
                (json!({"sources": [{"secret": {}}]}), ".sources[0].secret.name: Required value"),
                (
                    json!({"sources": [{"secret": {"name": "s", "items": [{"key": "k", "path": "a"}]}},
                        {"configMap": {"name": "m", "items": [{"key": "k", "path": "a"}]}}]}),
                    ".sources[1].configMap: Invalid value: \"m\": conflicting duplicate paths",
                ),
                (
                    json!({"sources": [{"secret": {"name": "s", "items": [{"key": "k", "path": "a"}]}},
                        {"serviceAccountToken": {"path": "a"}}]}),
                    ".sources[1].serviceAccountToken: Invalid value: \"a\": conflicting duplicate paths",
                ),
                (
                    json!({"defaultMode": 512, "sources": []}),
                    ".defaultMode: Invalid value: 512: must be a number between 0 and 0777 (octal), both inclusive",
                ),
            ],
        ),
        (
            "persistentVolumeClaim",
            vec![json!({"claimName": "c", "readOnly": true})],
            vec![(json!({"claimName": ""}), ".claimName: Required value")],
        ),
        (
            "csi",
            vec![
                json!({"driver": "a.b", "nodePublishSecretRef": {"name": "s"}, "volumeAttributes": {"a": "b"}}),
            ],
            vec![
                (json!({"driver": ""}), ".driver: Required value"),
                (
                    json!({"driver": "a.b", "nodePublishSecretRef": {}}),
                    ".nodePublishSecretRef.name: Required value",
                ),
                (
                    json!({"driver": "a".repeat(64)}),
                    ".driver: Too long: must have at most 63 bytes",
                ),
            ],
        ),
        (
            "ephemeral",
            vec![
                json!({"volumeClaimTemplate": {"metadata": {"labels": {"a": "b"}}, "spec": claim}}),
            ],
            vec![
                (json!({}), ".volumeClaimTemplate: Required value"),
                (
                    json!({"volumeClaimTemplate": {"metadata": {"name": "n"}, "spec": claim}}),
                    ".volumeClaimTemplate.metadata.name: Forbidden: cannot be set for an ephemeral volume",
                ),
                (
                    json!({"volumeClaimTemplate": {"spec": {"accessModes": ["ReadWriteOnce"]}}}),
                    ".volumeClaimTemplate.spec.resources[storage]: Required value",
                ),
            ],
        ),
    ]
}

/// Sources of persistent volumes only, or with another form there.
fn of_volumes() -> Vec<Case> {
    let secret = |field: &str, reference: Json| json!({"driver": "a.b", "volumeHandle": "h", field: reference});
    vec![
        (
            "local",
            vec![json!({"path": "/mnt/a", "fsType": "ext4"})],
            vec![
                (json!({"path": ""}), ".path: Required value"),
                (
                    json!({"path": "/a/../b"}),
                    ".path: Invalid value: \"/a/../b\": must not contain '..'",
                ),
            ],
        ),
        (
            "csi",
            vec![
                secret("nodeStageSecretRef", json!({"name": "s", "namespace": "n"})),
                secret("volumeAttributes", json!({"a": "b"})),
            ],
            vec![
                (json!({"driver": "a.b", "volumeHandle": ""}), ".volumeHandle: Required value"),
                (json!({"driver": "", "volumeHandle": "h"}), ".driver: Required value"),
                (
                    secret("controllerPublishSecretRef", json!({"namespace": "n"})),
                    ".controllerPublishSecretRef.name: Required value",
                ),
                (
                    secret("nodeExpandSecretRef", json!({"name": "n"})),
                    ".nodeExpandSecretRef.namespace: Required value",
                ),
                (
                    secret("nodePublishSecretRef", json!({"name": "n"})),
                    ".nodePublishSecretRef.namespace: Required value",
                ),
            ],
        ),
        (
            "azureFile",
            vec![json!({"secretName": "s", "shareName": "h", "secretNamespace": "n"})],
            vec![(
                json!({"secretName": "s", "shareName": "h", "secretNamespace": ""}),
                ".secretNamespace: Required value",
            )],
        ),
        (
            "glusterfs",
            vec![json!({"endpoints": "e", "path": "p", "endpointsNamespace": "n"})],
            vec![(
                json!({"endpoints": "e", "path": "p", "endpointsNamespace": ""}),
                ".endpointsNamespace: Required value",
            )],
        ),
    ]
}

/// Checks that every source of a message has cases, and that each case has the expected result.
fn check(message: &str, path: &str, cases: &[Case], with: impl Fn(&str, &Json) -> Json) {
    let covered: BTreeSet<&str> = cases.iter().map(|case| case.0).collect();
    assert_eq!(covered, fields_of(message), "each source of {message} has its cases");
    for (name, fine, wrong) in cases {
        assert!(!fine.is_empty(), "{name} is accepted in some form");
        for source in fine {
            let object = with(name, source);
            assert_eq!(complaints(&object), Vec::<String>::new(), "{object}");
        }
        for (source, expect) in wrong {
            let object = with(name, source);
            assert_eq!(complaints(&object), [format!("{path}{name}{expect}")], "{object}");
        }
    }
}

#[test]
fn every_source_of_a_pods_volume() {
    let cases: Vec<Case> = shared().into_iter().chain(of_pods()).collect();
    check("VolumeSource", "spec.volumes[0].", &cases, |name, source| {
        let volume = json!({"name": "v", name: source});
        pod(&json!({"containers": [{"name": "c", "image": "i"}], "volumes": [volume]}))
    });
}

fn volume(spec: &Json) -> Json {
    let mut all = json!({"capacity": {"storage": "1Gi"}, "accessModes": ["ReadWriteOnce"]});
    all.as_object_mut().expect("an object").extend(spec.as_object().expect("an object").clone());
    json!({"apiVersion": "v1", "kind": "PersistentVolume", "metadata": {"name": "v"}, "spec": all})
}

fn affinity() -> Json {
    json!({"required": {"nodeSelectorTerms": [{"matchExpressions": [{"key": "a", "operator": "Exists"}]}]}})
}

#[test]
fn every_source_of_a_persistent_volume() {
    let cases: Vec<Case> = shared().into_iter().chain(of_volumes()).collect();
    check("PersistentVolumeSource", "spec.", &cases, |name, source| {
        let mut source = source.clone();
        // secret references have a namespace here
        if name == "csi" || !source["secretRef"].is_object() {
            return volume(&json!({name: source, "nodeAffinity": affinity()}));
        }
        source["secretRef"]["namespace"] = json!("n");
        volume(&json!({name: source, "nodeAffinity": affinity()}))
    });
}

#[test]
fn persistent_volumes() {
    let host = json!({"path": "/x"});
    let cases = [
        (json!({}), "spec: Required value: must specify a volume type"),
        (
            json!({"hostPath": host, "nfs": {"server": "s", "path": "/p"}}),
            "spec.nfs: Forbidden: may not specify more than 1 volume type",
        ),
        (
            json!({"hostPath": host, "accessModes": []}),
            "spec.accessModes: Required value: at least 1 access mode is required",
        ),
        (json!({"hostPath": host, "capacity": {}}), "spec.capacity[storage]: Required value"),
        (
            json!({"hostPath": host, "capacity": {"storage": "0"}}),
            "spec.capacity[storage]: Invalid value: \"0\": must be greater than zero",
        ),
        (
            json!({"hostPath": host, "capacity": {"storage": "1", "tapes": "1"}}),
            "spec.capacity: Unsupported value: \"tapes\": supported values: \"storage\"",
        ),
        (
            json!({"hostPath": host, "persistentVolumeReclaimPolicy": "Burn"}),
            "spec.persistentVolumeReclaimPolicy: Unsupported value: \"Burn\": \
             supported values: \"Delete\", \"Recycle\", \"Retain\"",
        ),
        (
            json!({"hostPath": {"path": "/"}, "persistentVolumeReclaimPolicy": "Recycle"}),
            "spec.persistentVolumeReclaimPolicy: Forbidden: may not be 'recycle' for a hostPath mount of '/'",
        ),
        (
            json!({"hostPath": host, "volumeMode": "Tape"}),
            "spec.volumeMode: Unsupported value: \"Tape\": supported values: \"Block\", \"Filesystem\"",
        ),
        (
            json!({"local": {"path": "/x"}}),
            "spec.nodeAffinity: Required value: Local volume requires node affinity",
        ),
        (
            json!({"hostPath": host, "nodeAffinity": {}}),
            "spec.nodeAffinity.required: Required value: must specify required node constraints",
        ),
        (
            json!({"hostPath": host, "nodeAffinity": {"required": {"nodeSelectorTerms": []}}}),
            "spec.nodeAffinity.required.nodeSelectorTerms: Required value: must have at least one node selector term",
        ),
    ];
    for (spec, expect) in cases {
        assert_eq!(complaints(&volume(&spec)), [expect], "{spec}");
    }
    let update =
        |old: &Json, new: &Json| update_complaints(&volume(old), &volume(new), Subresource::Main);
    let mut larger = json!({"hostPath": host, "nodeAffinity": affinity()});
    larger["capacity"] = json!({"storage": "2Gi"});
    assert_eq!(update(&json!({"hostPath": host}), &larger), Vec::<String>::new());
    assert_eq!(
        update(&json!({"hostPath": host}), &json!({"hostPath": {"path": "/y"}})),
        [
            "spec.persistentvolumesource: Forbidden: spec.persistentvolumesource is immutable after creation"
        ]
    );
    let block = json!({"hostPath": host, "volumeMode": "Block"});
    assert_eq!(
        update(&json!({"hostPath": host}), &block),
        ["spec.volumeMode: Invalid value: \"Block\": field is immutable"]
    );
    assert_eq!(update(&larger, &json!({"hostPath": host})).len(), 1, "the nodes are taken away");
}

/// A volume, a claim, and a pod that brings a claim along, with these access modes.
fn with_modes(modes: &[&str]) -> [Json; 3] {
    let spec = json!({"accessModes": modes, "resources": {"requests": {"storage": "1Gi"}}});
    let made = json!({"volumeClaimTemplate": {"spec": spec}});
    let containers = json!([{"name": "c", "image": "i"}]);
    [
        volume(&json!({"hostPath": {"path": "/x"}, "accessModes": modes})),
        claim(&spec, "Bound"),
        pod(&json!({"volumes": [{"name": "v", "ephemeral": made}], "containers": containers})),
    ]
}

#[test]
fn the_access_mode_for_one_pod_needs_its_gate() {
    let none = FieldGates::default();
    let on = FieldGates::from_iter([FieldGate::ReadWriteOncePod]);
    let alone = &["ReadWriteOncePod"][..];
    let mixed = &["ReadWriteOncePod", "ReadWriteOnce"][..];
    let unknown = &["Sometimes"][..];
    let refused = "\"ReadWriteOncePod\": supported values: \"ReadOnlyMany\", \"ReadWriteMany\", \"ReadWriteOnce\"";
    let supported = "\"ReadWriteMany\", \"ReadWriteOnce\", \"ReadWriteOncePod\"";
    let others = "Forbidden: may not use ReadWriteOncePod with other access modes";
    for (gates, modes, expected) in [
        (none, alone, Some(refused)),
        (on, alone, None),
        (on, mixed, Some(others)),
        (on, unknown, Some(supported)),
    ] {
        for object in with_modes(modes) {
            let found = complaints_with(gates, &object);
            let is_expected = match expected {
                None => found.is_empty(),
                Some(end) => found.len() == 1 && found[0].ends_with(end),
            };
            assert!(is_expected, "{gates:?} {modes:?}: {found:?}");
        }
    }
    // A stored object has it.
    for object in with_modes(alone) {
        assert_eq!(update_complaints(&object, &object, Subresource::Main), Vec::<String>::new());
    }
    let ([before, ..], [after, ..]) = (with_modes(&["ReadWriteOnce"]), with_modes(alone));
    assert_eq!(update_complaints(&before, &after, Subresource::Main).len(), 1);
}

fn claim(spec: &Json, phase: &str) -> Json {
    let mut all =
        json!({"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}});
    all.as_object_mut().expect("an object").extend(spec.as_object().expect("an object").clone());
    json!({"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": {"name": "c", "namespace": "d"},
        "spec": all, "status": {"phase": phase}})
}

#[test]
fn claims() {
    let snapshot = json!({"apiGroup": "snapshot.example.com", "kind": "Snapshot", "name": "s"});
    for fine in [json!({}), json!({"dataSource": snapshot}), json!({"storageClassName": ""})] {
        assert_eq!(complaints(&claim(&fine, "")), Vec::<String>::new(), "{fine}");
    }
    let cases = [
        (json!({"resources": {}}), "spec.resources[storage]: Required value"),
        (
            json!({"resources": {"requests": {"storage": "-1"}}}),
            "spec.resources.requests[storage]: Invalid value: \"-1\": must be greater than zero",
        ),
        (
            json!({"accessModes": ["Sometimes"]}),
            "spec.accessModes: Unsupported value: \"Sometimes\": supported values: \"ReadOnlyMany\", \
             \"ReadWriteMany\", \"ReadWriteOnce\"",
        ),
        (
            json!({"dataSource": snapshot, "dataSourceRef": {"kind": "PersistentVolumeClaim", "name": "x"}}),
            "spec.dataSource: Invalid value: {\"apiGroup\":\"snapshot.example.com\",\"kind\":\"Snapshot\",\"name\":\"s\"}: \
             must match dataSourceRef",
        ),
    ];
    for (spec, expect) in cases {
        assert_eq!(complaints(&claim(&spec, "")), [expect], "{spec}");
    }
    let fixed = "spec: Forbidden: spec is immutable after creation except resources.requests for bound claims";
    let of = |size: &str| json!({"resources": {"requests": {"storage": size}}});
    let less =
        "spec.resources.requests.storage: Forbidden: field can not be less than previous value";
    let cases: [(Json, &str, Json, &[&str]); 8] = [
        (of("1Gi"), "Bound", of("2Gi"), &[]),
        (of("2Gi"), "Bound", of("1Gi"), &[less]),
        (of("1Gi"), "Pending", of("2Gi"), &[fixed]),
        (json!({}), "Pending", json!({"volumeName": "v"}), &[]),
        (json!({"volumeName": "v"}), "Bound", json!({"volumeName": "w"}), &[fixed]),
        (json!({}), "Pending", json!({"storageClassName": "fast"}), &[]),
        (json!({"storageClassName": ""}), "Pending", json!({"storageClassName": "fast"}), &[fixed]),
        (json!({}), "Bound", json!({"accessModes": ["ReadOnlyMany"]}), &[fixed]),
    ];
    for (old, phase, new, expect) in cases {
        let got = update_complaints(&claim(&old, phase), &claim(&new, phase), Subresource::Main);
        assert_eq!(got, expect, "{old} -> {new} while {phase}");
    }
}

/// A pod with these mounts and devices of the volumes `v` (a directory) and `c` (a claim).
fn using(container: &Json) -> Json {
    let mut all = json!({"name": "c", "image": "i"});
    all.as_object_mut()
        .expect("an object")
        .extend(container.as_object().expect("an object").clone());
    let volumes = json!([{"name": "v", "emptyDir": {}}, {"name": "c", "persistentVolumeClaim": {"claimName": "x"}}]);
    pod(&json!({"containers": [all], "volumes": volumes}))
}

#[test]
#[allow(clippy::too_many_lines, reason = "a flat table")]
fn mounts_and_devices() {
    let at = "spec.containers[0].";
    let mount = |extra: Json| {
        let mut mount = json!({"name": "v", "mountPath": "/v"});
        mount
            .as_object_mut()
            .expect("an object")
            .extend(extra.as_object().expect("an object").clone());
        json!({"volumeMounts": [mount]})
    };
    let mut privileged = mount(json!({"mountPropagation": "Bidirectional"}));
    privileged["securityContext"] = json!({"privileged": true});
    for fine in [
        mount(json!({"subPath": "..a/b"})),
        mount(json!({"subPathExpr": "$(A)"})),
        mount(json!({"mountPropagation": "HostToContainer"})),
        mount(json!({"readOnly": true, "recursiveReadOnly": "Enabled"})),
        mount(
            json!({"readOnly": true, "recursiveReadOnly": "IfPossible", "mountPropagation": "None"}),
        ),
        mount(json!({"recursiveReadOnly": "Disabled"})),
        privileged,
        json!({"volumeDevices": [{"name": "c", "devicePath": "/dev/x"}]}),
    ] {
        assert_eq!(complaints(&using(&fine)), Vec::<String>::new(), "{fine}");
    }
    let devices = |devices: Json| json!({"volumeDevices": devices});
    let c = json!({"name": "c", "devicePath": "/dev/x"});
    let cases = [
        (mount(json!({"mountPath": ""})), "volumeMounts[0].mountPath: Required value"),
        (
            json!({"volumeMounts": [{"name": "v", "mountPath": "/v"}, {"name": "v", "mountPath": "/v"}]}),
            "volumeMounts[1].mountPath: Invalid value: \"/v\": must be unique",
        ),
        (
            mount(json!({"subPath": "/a"})),
            "volumeMounts[0].subPath: Invalid value: \"/a\": must be a relative path",
        ),
        (
            mount(json!({"subPathExpr": "a/../b"})),
            "volumeMounts[0].subPathExpr: Invalid value: \"a/../b\": must not contain '..'",
        ),
        (
            mount(json!({"subPath": "a", "subPathExpr": "b"})),
            "volumeMounts[0].subPathExpr: Invalid value: \"b\": subPathExpr and subPath are mutually exclusive",
        ),
        (
            mount(json!({"mountPropagation": "Sideways"})),
            "volumeMounts.mountPropagation: Unsupported value: \"Sideways\": \
             supported values: \"Bidirectional\", \"HostToContainer\", \"None\"",
        ),
        (
            mount(json!({"mountPropagation": "Bidirectional"})),
            "volumeMounts.mountPropagation: Forbidden: \
             Bidirectional mount propagation is available only to privileged containers",
        ),
        (
            mount(json!({"recursiveReadOnly": "Enabled"})),
            "volumeMounts[0].recursiveReadOnly: Forbidden: may only be specified when readOnly is true",
        ),
        (
            mount(
                json!({"recursiveReadOnly": "Enabled", "readOnly": true, "mountPropagation": "HostToContainer"}),
            ),
            "volumeMounts[0].recursiveReadOnly: Forbidden: \
             may only be specified when mountPropagation is None or not specified",
        ),
        (
            mount(json!({"recursiveReadOnly": "Perhaps"})),
            "volumeMounts[0].recursiveReadOnly: Unsupported value: \"Perhaps\": \
             supported values: \"Disabled\", \"Enabled\", \"IfPossible\"",
        ),
        (
            devices(json!([{"name": "none", "devicePath": "/dev/x"}])),
            "volumeDevices[0].name: Not found: \"none\"",
        ),
        (
            devices(json!([{"name": "v", "devicePath": "/dev/x"}])),
            "volumeDevices[0].name: Invalid value: \"v\": \
             can only use volume source type of PersistentVolumeClaim or Ephemeral for block mode",
        ),
        (
            devices(json!([{"name": "c", "devicePath": ""}])),
            "volumeDevices[0].devicePath: Required value",
        ),
        (
            devices(json!([{"name": "c", "devicePath": "/dev/../x"}])),
            "volumeDevices[0].devicePath: Invalid value: \"/dev/../x\": must not contain '..'",
        ),
        (
            devices(json!([c, {"name": "c", "devicePath": "/dev/y"}])),
            "volumeDevices[1].name: Invalid value: \"c\": must be unique",
        ),
        (
            json!({"volumeMounts": [{"name": "c", "mountPath": "/c"}], "volumeDevices": [c]}),
            "volumeDevices[0].name: Invalid value: \"c\": must not already exist in volumeMounts",
        ),
        (
            json!({"volumeMounts": [{"name": "v", "mountPath": "/dev/x"}], "volumeDevices": [c]}),
            "volumeDevices[0].devicePath: Invalid value: \"/dev/x\": must not already exist as a path in volumeMounts",
        ),
    ];
    for (container, expect) in cases {
        assert_eq!(complaints(&using(&container)), [format!("{at}{expect}")], "{container}");
    }
}

#[test]
fn claims_that_are_made_for_a_pod() {
    let spec =
        json!({"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}});
    let made = json!({"volumeClaimTemplate": {"spec": spec}});
    let with = |pod_name: &str, volumes: Json| {
        let mut pod =
            pod(&json!({"containers": [{"name": "c", "image": "i"}], "volumes": volumes}));
        pod["metadata"]["name"] = json!(pod_name);
        complaints(&pod)
    };
    assert_eq!(with("p", json!([{"name": "v", "ephemeral": made}])), Vec::<String>::new());
    let long = with(&"p".repeat(250), json!([{"name": "vvv", "ephemeral": made}]));
    assert_eq!(long.len(), 1);
    assert!(
        long[0].starts_with("spec.volumes[0].name: Invalid value: \"vvv\": PVC name"),
        "{long:?}"
    );
    let both = json!([{"name": "v", "ephemeral": made}, {"name": "w", "persistentVolumeClaim": {"claimName": "p-v"}}]);
    assert_eq!(
        with("p", both),
        [
            "spec.volumes[1].name: Invalid value: \"w\": must not reference a PVC that gets created for an ephemeral volume"
        ]
    );
}
