//! Rules for the volumes of a pod and for the places where containers mount them.

use std::collections::BTreeSet;

use super::{FieldErrors, names};
use crate::value::{Map, Path, Value};

/// Shortest lifetime of a projected token, in seconds.
const TOKEN_SECONDS_MIN: i64 = 600;
/// Longest lifetime of a projected token, in seconds.
const TOKEN_SECONDS_MAX: i64 = 1 << 32;

/// Names of the volumes that a pod has.
pub(super) struct VolumeNames<'a>(BTreeSet<&'a str>);

pub(super) fn check_volumes<'a>(
    spec: &'a Map,
    path: &Path<'_>,
    errors: &mut FieldErrors,
) -> VolumeNames<'a> {
    let mut seen = VolumeNames(BTreeSet::new());
    let list = path.field("volumes");
    for (at, volume) in spec.maps("volumes").enumerate() {
        let here = list.index(at);
        let name = volume.str("name");
        if name.is_empty() {
            errors.required(&here.field("name"), "");
        } else {
            errors.complaints(&here.field("name"), name, names::dns_label(name));
        }
        if !seen.0.insert(name) {
            errors.duplicate(&here.field("name"), name);
        }
        check_source(volume, &here, errors);
    }
    seen
}

fn check_source(volume: &Map, path: &Path<'_>, errors: &mut FieldErrors) {
    let mut sources = volume.iter().filter(|(key, _)| *key != "name");
    if sources.next().is_none() {
        errors.required(path, "must specify a volume type");
    }
    for (key, _) in sources {
        errors.forbidden(&path.field(key), "may not specify more than 1 volume type");
    }
    if let Some(host) = volume.map("hostPath") {
        let here = path.field("hostPath");
        let target = host.str("path");
        if target.is_empty() {
            errors.required(&here.field("path"), "");
        } else if target.split('/').any(|part| part == "..") {
            errors.invalid(&here.field("path"), target, "must not contain '..'");
        }
    }
    if let Some(source) = volume.map("secret") {
        let here = path.field("secret");
        require(source, "secretName", &here, errors);
        check_mode(source, "defaultMode", &here, errors);
        check_items(source, &here, errors);
    }
    if let Some(source) = volume.map("configMap") {
        let here = path.field("configMap");
        require(source, "name", &here, errors);
        check_mode(source, "defaultMode", &here, errors);
        check_items(source, &here, errors);
    }
    if let Some(source) = volume.map("downwardAPI") {
        let here = path.field("downwardAPI");
        check_mode(source, "defaultMode", &here, errors);
        check_downward(source, &here, errors);
    }
    if let Some(source) = volume.map("projected") {
        check_projected(source, &path.field("projected"), errors);
    }
    if let Some(source) = volume.map("persistentVolumeClaim") {
        require(source, "claimName", &path.field("persistentVolumeClaim"), errors);
    }
}

fn check_projected(source: &Map, path: &Path<'_>, errors: &mut FieldErrors) {
    check_mode(source, "defaultMode", path, errors);
    let list = path.field("sources");
    for (at, projection) in source.maps("sources").enumerate() {
        let here = list.index(at);
        if projection.len() > 1 {
            errors.forbidden(&here, "may not specify more than 1 volume type");
        }
        for kind in ["configMap", "secret"] {
            if let Some(map) = projection.map(kind) {
                require(map, "name", &here.field(kind), errors);
                check_items(map, &here.field(kind), errors);
            }
        }
        if let Some(map) = projection.map("downwardAPI") {
            check_downward(map, &here.field("downwardAPI"), errors);
        }
        if let Some(map) = projection.map("serviceAccountToken") {
            check_token(map, &here.field("serviceAccountToken"), errors);
        }
    }
}

fn check_token(token: &Map, path: &Path<'_>, errors: &mut FieldErrors) {
    let seconds = token.int("expirationSeconds").unwrap_or(3600);
    let here = path.field("expirationSeconds");
    if seconds < TOKEN_SECONDS_MIN {
        errors.invalid(&here, seconds, "may not specify a duration less than 10 minutes");
    } else if seconds > TOKEN_SECONDS_MAX {
        errors.invalid(&here, seconds, "may not specify a duration larger than 2^32 seconds");
    }
    check_local_path(token.str("path"), &path.field("path"), errors);
}

fn check_downward(source: &Map, path: &Path<'_>, errors: &mut FieldErrors) {
    let list = path.field("items");
    for (at, item) in source.maps("items").enumerate() {
        let here = list.index(at);
        check_local_path(item.str("path"), &here.field("path"), errors);
        check_mode(item, "mode", &here, errors);
        match (item.map("fieldRef"), item.map("resourceFieldRef")) {
            (None, None) => {
                errors.required(&here, "one of fieldRef and resourceFieldRef is required");
            }
            (Some(_), Some(_)) => {
                errors.invalid(
                    &here,
                    "resource",
                    "fieldRef and resourceFieldRef can not be specified simultaneously",
                );
            }
            _ => {}
        }
    }
}

fn check_items(source: &Map, path: &Path<'_>, errors: &mut FieldErrors) {
    let list = path.field("items");
    for (at, item) in source.maps("items").enumerate() {
        let here = list.index(at);
        if item.str("key").is_empty() {
            errors.required(&here.field("key"), "");
        }
        check_local_path(item.str("path"), &here.field("path"), errors);
        check_mode(item, "mode", &here, errors);
    }
}

fn check_mode(source: &Map, field: &str, path: &Path<'_>, errors: &mut FieldErrors) {
    if let Some(mode) = source.int(field).filter(|mode| !(0..=0o777).contains(mode)) {
        let detail = "must be a number between 0 and 0777 (octal), both inclusive";
        errors.invalid(&path.field(field), mode, detail);
    }
}

/// A path below a volume's root that cannot leave it nor hide in the volume's own bookkeeping (`..` names).
fn check_local_path(target: &str, path: &Path<'_>, errors: &mut FieldErrors) {
    if target.is_empty() {
        errors.required(path, "");
        return;
    }
    if target.starts_with('/') {
        errors.invalid(path, target, "must be a relative path");
    }
    if target.split('/').any(|part| part == "..") {
        errors.invalid(path, target, "must not contain '..'");
    } else if target.starts_with("..") {
        errors.invalid(path, target, "must not start with '..'");
    }
}

fn require(source: &Map, field: &str, path: &Path<'_>, errors: &mut FieldErrors) {
    if source.str(field).is_empty() {
        errors.required(&path.field(field), "");
    }
}

impl VolumeNames<'_> {
    /// Every mount names a volume of the pod, and no two share a place.
    pub(super) fn check_mounts(&self, container: &Map, path: &Path<'_>, errors: &mut FieldErrors) {
        let list = path.field("volumeMounts");
        let mut places = BTreeSet::new();
        for (at, mount) in container.maps("volumeMounts").enumerate() {
            let here = list.index(at);
            let (name, place) = (mount.str("name"), mount.str("mountPath"));
            if name.is_empty() {
                errors.required(&here.field("name"), "");
            } else if !self.0.contains(name) {
                errors.not_found(&here.field("name"), name);
            }
            if place.is_empty() {
                errors.required(&here.field("mountPath"), "");
            } else if !places.insert(place) {
                errors.invalid(&here.field("mountPath"), place, "must be unique");
            }
            let sub_path = mount.str("subPath");
            if !sub_path.is_empty() {
                check_local_path(sub_path, &here.field("subPath"), errors);
            }
            if mount
                .get("mountPropagation")
                .and_then(Value::as_str)
                .is_some_and(|mode| !["None", "HostToContainer", "Bidirectional"].contains(&mode))
            {
                let mode = mount.str("mountPropagation");
                let modes = &["Bidirectional", "HostToContainer", "None"];
                errors.not_supported(&here.field("mountPropagation"), mode, modes);
            }
        }
    }
}
