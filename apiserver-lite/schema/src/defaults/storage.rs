//! Defaults of volumes, claims and storage drivers.

use super::set_default;
use crate::value::{Map, Value};

pub(super) fn default_volume(fields: &mut Map) {
    let spec = fields.map_or_insert("spec");
    set_default(spec, "persistentVolumeReclaimPolicy", "Retain");
    set_default(spec, "volumeMode", "Filesystem");
    default_source(spec);
    set_default(fields.map_or_insert("status"), "phase", "Pending");
}

pub(super) fn default_claim(fields: &mut Map) {
    let spec = fields.map_or_insert("spec");
    set_default(spec, "volumeMode", "Filesystem");
    // `dataSource` and `dataSourceRef` are kept equal.
    for (from, to) in [("dataSource", "dataSourceRef"), ("dataSourceRef", "dataSource")] {
        if let Some(source) = spec.get(from).cloned() {
            set_default(spec, to, source);
        }
    }
    set_default(fields.map_or_insert("status"), "phase", "Pending");
}

/// Defaults of volume sources, in a pod's volume or a persistent volume.
pub(super) fn default_source(volume: &mut Map) {
    let texts: [(&str, &[(&str, &str)]); 5] = [
        ("hostPath", &[("type", "")]),
        ("iscsi", &[("iscsiInterface", "default")]),
        ("rbd", &[("pool", "rbd"), ("user", "admin"), ("keyring", "/etc/ceph/keyring")]),
        ("azureDisk", &[("cachingMode", "ReadWrite"), ("fsType", "ext4"), ("kind", "Shared")]),
        ("scaleIO", &[("storageMode", "ThinProvisioned"), ("fsType", "xfs")]),
    ];
    for (source, defaults) in texts {
        let Some(map) = volume.map_mut(source) else { continue };
        for (field, value) in defaults {
            set_default(map, *field, *value);
        }
    }
    if let Some(disk) = volume.map_mut("azureDisk") {
        set_default(disk, "readOnly", false);
    }
}

pub(super) fn default_csi_driver(spec: &mut Map) {
    set_default(spec, "attachRequired", true);
    for field in ["podInfoOnMount", "requiresRepublish", "storageCapacity"] {
        set_default(spec, field, false);
    }
    set_default(spec, "fsGroupPolicy", "ReadWriteOnceWithFSType");
    set_default(spec, "volumeLifecycleModes", vec![Value::from("Persistent")]);
}
