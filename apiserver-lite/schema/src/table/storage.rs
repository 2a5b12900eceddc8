//! Table rows of volumes, claims, storage classes and drivers.

use proto_api::names::Names;

use super::text::{access_modes, strings};
use super::{Cells, or_none};
use crate::object::Object;
use crate::value::{Map, Value};

pub(super) fn cells(names: &'static Names, object: &Object, cells: &mut Cells) {
    let empty = Map::new();
    let (spec, status) = (object.spec().unwrap_or(&empty), object.status().unwrap_or(&empty));
    let fields = &object.fields;
    match object.kind.kind() {
        "PersistentVolume" => {
            cells.set("Capacity", spec.str_at(&["capacity", "storage"]));
            cells.set("Access Modes", access_modes(spec.list("accessModes")));
            cells.set("Reclaim Policy", spec.str("persistentVolumeReclaimPolicy"));
            cells.set("Status", phase(object, status));
            let claim = spec
                .map("claimRef")
                .map(|claim| format!("{}/{}", claim.str("namespace"), claim.str("name")));
            cells.set("Claim", claim.unwrap_or_default());
            cells.set("StorageClass", spec.str("storageClassName"));
            cells.set("Reason", status.str("reason"));
            cells.set("VolumeMode", spec.str("volumeMode"));
        }
        "PersistentVolumeClaim" => {
            let bound = !spec.str("volumeName").is_empty();
            cells.set("Status", phase(object, status));
            cells.set("Volume", spec.str("volumeName"));
            cells.set("Capacity", if bound { status.str_at(&["capacity", "storage"]) } else { "" });
            let modes =
                if bound { access_modes(status.list("accessModes")) } else { String::new() };
            cells.set("Access Modes", modes);
            cells.set("StorageClass", spec.str("storageClassName"));
            cells.set("VolumeMode", spec.str("volumeMode"));
        }
        "StorageClass" => {
            let default = names.sub_label("storageclass", "is-default-class");
            let is_default =
                object.annotations().get(&default).is_some_and(|value| value == "true");
            let name = object.name();
            cells.0.retain(|(column, _)| *column != "Name");
            cells.set(
                "Name",
                if is_default { format!("{name} (default)") } else { name.to_owned() },
            );
            cells.set("Provisioner", fields.str("provisioner"));
            cells.set("ReclaimPolicy", fields.str("reclaimPolicy"));
            cells.set("VolumeBindingMode", fields.str("volumeBindingMode"));
            let expandable = fields.is_true("allowVolumeExpansion");
            cells.set("AllowVolumeExpansion", if expandable { "true" } else { "false" });
        }
        "VolumeAttachment" => {
            cells.set("Attacher", spec.str("attacher"));
            cells.set("PV", spec.str_at(&["source", "persistentVolumeName"]));
            cells.set("Node", spec.str("nodeName"));
            cells.set("Attached", status.is_true("attached"));
        }
        "CSIDriver" => {
            cells.set("AttachRequired", spec.get("attachRequired") != Some(&Value::Bool(false)));
            cells.set("PodInfoOnMount", spec.is_true("podInfoOnMount"));
            cells.set("Modes", or_none(&strings(spec.list("volumeLifecycleModes")).join(",")));
        }
        "CSINode" => cells.set("Drivers", spec.list("drivers").len() as i64),
        "CSIStorageCapacity" => {
            cells.set("StorageClassName", fields.str("storageClassName"));
            cells.set("Capacity", fields.str("capacity"));
        }
        _ => {}
    }
}

fn phase<'a>(object: &Object, status: &'a Map) -> &'a str {
    if object.deletion_timestamp().is_some() { "Terminating" } else { status.str("phase") }
}
