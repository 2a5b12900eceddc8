//! Validation of a pod's volumes, volume mounts and volume devices.

use std::collections::{BTreeMap, BTreeSet};

use super::references::{self, ReferenceTarget};
use super::volume_source::{self, VolumeOwner, check_relative};
use super::{FieldErrors, classes, names, persistent};
use crate::enums;
use crate::field_gates::FieldGates;
use crate::value::{Map, Path, Value};

/// How a volume can be used.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Use {
    Mount,
    /// As a mount or a device, depending on its claim.
    Either,
}

/// The volumes of a pod, by name.
pub(super) struct VolumeNames<'a>(BTreeMap<&'a str, Use>);

pub(super) fn check_volumes<'a>(
    spec: &'a Map,
    gates: FieldGates,
    path: &Path<'_>,
    errors: &mut FieldErrors,
) -> VolumeNames<'a> {
    let (mut seen, mut usable) = (BTreeSet::new(), VolumeNames(BTreeMap::new()));
    let list = path.field("volumes");
    for (at, volume) in spec.maps("volumes").enumerate() {
        let here = list.index(at);
        let (name, before) = (volume.str("name"), errors.0.len());
        if name.is_empty() {
            errors.required(&here.field("name"), "");
        } else {
            errors.complaints(&here.field("name"), name, names::dns_label(name));
        }
        if !seen.insert(name) {
            errors.duplicate(&here.field("name"), name);
        }
        check_source(volume, gates, &here, errors);
        // A volume with a fault is none that a container can use.
        if errors.0.len() == before {
            let claimed = ["persistentVolumeClaim", "ephemeral"].iter().any(|s| volume.contains(s));
            usable.0.insert(name, if claimed { Use::Either } else { Use::Mount });
        }
    }
    usable
}

/// Checks the names of claims for ephemeral volumes, which consist of the names of pod and volume: they must be valid and not be
/// used by another volume of the pod.
pub(super) fn check_ephemeral_names(
    pod: &str,
    spec: &Map,
    path: &Path<'_>,
    errors: &mut FieldErrors,
) {
    let list = path.field("volumes");
    let made = spec.maps("volumes").filter(|volume| volume.contains("ephemeral"));
    let made: BTreeSet<String> =
        made.map(|volume| format!("{pod}-{}", volume.str("name"))).collect();
    for (at, volume) in spec.maps("volumes").enumerate() {
        let here = list.index(at);
        let (name, here) = (volume.str("name"), here.field("name"));
        if volume.contains("ephemeral") {
            let claim = format!("{pod}-{name}");
            for wrong in names::dns_subdomain(&claim) {
                errors.invalid(&here, name, &format!("PVC name {claim:?}: {wrong}"));
            }
        }
        if made.contains(volume.str_at(&["persistentVolumeClaim", "claimName"])) {
            let detail = "must not reference a PVC that gets created for an ephemeral volume";
            errors.invalid(&here, name, detail);
        }
    }
}

fn check_source(volume: &Map, gates: FieldGates, path: &Path<'_>, errors: &mut FieldErrors) {
    let mut sources = volume.iter().filter(|(key, _)| *key != "name");
    let empty = Map::new();
    match sources.next() {
        None => errors.required(path, "must specify a volume type"),
        Some((name, source)) => {
            let source = source.as_map().unwrap_or(&empty);
            let here = path.field(name);
            volume_source::check(name, source, VolumeOwner::Pod, &here, errors);
            match name {
                "ephemeral" => check_ephemeral(source, gates, &here, errors),
                _ => check_projection(name, source, &here, errors),
            }
        }
    }
    for (key, _) in sources {
        errors.forbidden(&path.field(key), "may not specify more than 1 volume type");
    }
}

/// Validates projections of objects, which only pods have.
fn check_projection(name: &str, source: &Map, path: &Path<'_>, errors: &mut FieldErrors) {
    match name {
        "secret" | "configMap" => {
            check_mode(source, "defaultMode", path, errors);
            check_items(source, path, errors);
        }
        "downwardAPI" => {
            check_mode(source, "defaultMode", path, errors);
            check_downward(source, path, errors);
        }
        "projected" => check_projected(source, path, errors),
        _ => {}
    }
}

/// Validates a claim template, whose metadata has only labels and annotations.
fn check_ephemeral(source: &Map, gates: FieldGates, path: &Path<'_>, errors: &mut FieldErrors) {
    let here = path.field("volumeClaimTemplate");
    let Some(template) = source.map("volumeClaimTemplate") else {
        errors.required(&here, "");
        return;
    };
    let metadata = here.field("metadata");
    for (key, _) in template.map("metadata").into_iter().flat_map(Map::iter) {
        if !matches!(key, "labels" | "annotations") {
            errors.forbidden(&metadata.field(key), "cannot be set for an ephemeral volume");
        }
    }
    let empty = Map::new();
    let spec = template.map("spec").unwrap_or(&empty);
    persistent::check_claim_spec(spec, gates, &here.field("spec"), errors);
}

fn check_projected(source: &Map, path: &Path<'_>, errors: &mut FieldErrors) {
    check_mode(source, "defaultMode", path, errors);
    let list = path.field("sources");
    let mut places = BTreeSet::new();
    for (at, projection) in source.maps("sources").enumerate() {
        let here = list.index(at);
        if projection.len() > 1 {
            errors.forbidden(&here, "may not specify more than 1 volume type");
        }
        for kind in ["configMap", "secret"] {
            if let Some(map) = projection.map(kind) {
                let here = here.field(kind);
                require(map, "name", &here, errors);
                check_items(map, &here, errors);
                check_overlap(map, &mut places, map.str("name"), &here, errors);
            }
        }
        if let Some(map) = projection.map("downwardAPI") {
            let here = here.field("downwardAPI");
            check_downward(map, &here, errors);
            check_overlap(map, &mut places, "downwardAPI", &here, errors);
        }
        if let Some(map) = projection.map("serviceAccountToken") {
            let here = here.field("serviceAccountToken");
            check_token(map, &here, errors);
            if !map.str("path").is_empty() && !places.insert(map.str("path")) {
                errors.invalid(&here, map.str("path"), CONFLICT);
            }
        }
    }
}

const CONFLICT: &str = "conflicting duplicate paths";

/// Checks that explicit paths do not conflict. Files named by their keys may hide each other; the last one wins.
fn check_overlap<'a>(
    source: &'a Map,
    places: &mut BTreeSet<&'a str>,
    name: &str,
    path: &Path<'_>,
    errors: &mut FieldErrors,
) {
    for item in source.maps("items") {
        if !item.str("path").is_empty() && !places.insert(item.str("path")) {
            errors.invalid(path, name, CONFLICT);
        }
    }
}

fn check_token(token: &Map, path: &Path<'_>, errors: &mut FieldErrors) {
    let seconds = token.int("expirationSeconds").unwrap_or(3600);
    classes::check_token_life(seconds, &path.field("expirationSeconds"), errors);
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
            (Some(field), None) => {
                references::check_field(
                    field,
                    ReferenceTarget::File,
                    &here.field("fieldRef"),
                    errors,
                );
            }
            (None, Some(resource)) => {
                let here = here.field("resourceFieldRef");
                references::check_resource(resource, ReferenceTarget::File, &here, errors);
            }
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

/// Checks a path below a volume's root: no parent directories, and no `..` prefix, which the kubelet uses itself.
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

const RECURSIVE: &[&str] = &["Disabled", "Enabled", "IfPossible"];

impl<'a> VolumeNames<'a> {
    /// Adds the volumes of claims that a StatefulSet makes for each of its pods; they replace volumes of the same name.
    pub(super) fn add_claims(&mut self, claims: &[&'a str]) {
        self.0.extend(claims.iter().map(|name| (*name, Use::Either)));
    }

    /// Checks that mounts and devices name volumes of the pod at unique paths. `list` is the list that the container is in.
    pub(super) fn check_mounts(
        &self,
        container: &Map,
        list: &str,
        path: &Path<'_>,
        errors: &mut FieldErrors,
    ) {
        let mut places = BTreeSet::new();
        let mounts = path.field("volumeMounts");
        for (at, mount) in container.maps("volumeMounts").enumerate() {
            let here = mounts.index(at);
            let (name, place) = (mount.str("name"), mount.str("mountPath"));
            if name.is_empty() {
                errors.required(&here.field("name"), "");
            }
            if !self.0.contains_key(name) {
                errors.not_found(&here.field("name"), name);
            }
            if place.is_empty() {
                errors.required(&here.field("mountPath"), "");
            } else if !places.insert(place) {
                errors.invalid(&here.field("mountPath"), place, "must be unique");
            }
            check_sub_path(mount, list, &here, errors);
            let privileged = container.at(&["securityContext", "privileged"]);
            let privileged = privileged.and_then(Value::as_bool) == Some(true);
            check_propagation(mount, privileged, &mounts, errors);
            check_recursive(mount, &here, errors);
        }
        self.check_devices(container, &places, path, errors);
    }

    /// Checks that devices are claims, not mounted as well, at unique paths.
    fn check_devices(
        &self,
        container: &Map,
        mounts: &BTreeSet<&str>,
        path: &Path<'_>,
        errors: &mut FieldErrors,
    ) {
        let list = path.field("volumeDevices");
        let (mut seen, mut places) = (BTreeSet::new(), BTreeSet::new());
        let mounted: BTreeSet<&str> =
            container.maps("volumeMounts").map(|mount| mount.str("name")).collect();
        for (at, device) in container.maps("volumeDevices").enumerate() {
            let here = list.index(at);
            let (name, place) = (device.str("name"), device.str("devicePath"));
            let (name_at, place_at) = (here.field("name"), here.field("devicePath"));
            if name.is_empty() {
                errors.required(&name_at, "");
            }
            match self.0.get(name) {
                None => errors.not_found(&name_at, name),
                Some(Use::Mount) => {
                    let detail = "can only use volume source type of PersistentVolumeClaim or Ephemeral for block mode";
                    errors.invalid(&name_at, name, detail);
                }
                Some(Use::Either) if mounted.contains(name) => {
                    errors.invalid(&name_at, name, "must not already exist in volumeMounts");
                }
                Some(Use::Either) if !seen.insert(name) => {
                    errors.invalid(&name_at, name, "must be unique");
                }
                Some(Use::Either) => {}
            }
            if place.is_empty() {
                errors.required(&place_at, "");
            } else if mounts.contains(place) {
                let detail = "must not already exist as a path in volumeMounts";
                errors.invalid(&place_at, place, detail);
            } else if !places.insert(place) {
                errors.invalid(&place_at, place, "must be unique");
            } else if place.split('/').any(|part| part == "..") {
                errors.invalid(&place_at, place, "must not contain '..'");
            }
        }
    }
}

/// Checks `subPath` and `subPathExpr`: only one is set, and it is a relative path.
fn check_sub_path(mount: &Map, list: &str, path: &Path<'_>, errors: &mut FieldErrors) {
    for field in ["subPath", "subPathExpr"] {
        let part = mount.str(field);
        if part.is_empty() {
            continue;
        }
        check_relative(part, &path.field(field), errors);
        if list == "ephemeralContainers" {
            errors.forbidden(&path.field(field), "cannot be set for an Ephemeral Container");
        }
    }
    let both = !mount.str("subPath").is_empty() && !mount.str("subPathExpr").is_empty();
    if both {
        let detail = "subPathExpr and subPath are mutually exclusive";
        errors.invalid(&path.field("subPathExpr"), mount.str("subPathExpr"), detail);
    }
}

/// Checks mount propagation: only privileged containers may propagate mounts to the node.
fn check_propagation(mount: &Map, privileged: bool, path: &Path<'_>, errors: &mut FieldErrors) {
    let (mode, here) = (mount.str("mountPropagation"), path.field("mountPropagation"));
    if !mode.is_empty() && !enums::PROPAGATION_MODES.contains(&mode) {
        errors.not_supported(&here, mode, enums::PROPAGATION_MODES);
    }
    if mode == "Bidirectional" && !privileged {
        let detail = "Bidirectional mount propagation is available only to privileged containers";
        errors.forbidden(&here, detail);
    }
}

/// Checks `recursiveReadOnly`: the mount is read-only and does not propagate.
fn check_recursive(mount: &Map, path: &Path<'_>, errors: &mut FieldErrors) {
    let (mode, here) = (mount.str("recursiveReadOnly"), path.field("recursiveReadOnly"));
    match mode {
        "" | "Disabled" => {}
        "Enabled" | "IfPossible" => {
            if !mount.is_true("readOnly") {
                errors.forbidden(&here, "may only be specified when readOnly is true");
            }
            if !matches!(mount.str("mountPropagation"), "" | "None") {
                let detail = "may only be specified when mountPropagation is None or not specified";
                errors.forbidden(&here, detail);
            }
        }
        other => errors.not_supported(&here, other, RECURSIVE),
    }
}
