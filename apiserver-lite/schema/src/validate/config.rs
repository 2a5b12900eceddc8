//! Validation of ConfigMaps and Secrets.

use std::collections::BTreeMap;

use proto_api::names::Names;
use serde::de::IgnoredAny;

use super::{FieldErrors, names};
use crate::object::Object;
use crate::scalar;
use crate::value::{Map, Path, Value};

/// Most bytes of the values of a ConfigMap or Secret.
const DATA_MAX: usize = 1024 * 1024;

pub(super) fn check_config_map(object: &Object, errors: &mut FieldErrors) {
    let path = Path::ROOT;
    let empty = Map::new();
    let data = object.fields.map("data").unwrap_or(&empty);
    let binary = object.fields.map("binaryData").unwrap_or(&empty);
    let mut size: usize = 0;
    for (key, value) in data.iter() {
        let list = path.field("data");
        errors.complaints(&list.key(key), key, names::config_key(key));
        if binary.contains(key) {
            let detail = format!("duplicate of key present in binaryData: {key}");
            errors.invalid(&list.key(key), key, &detail);
        }
        size = size.saturating_add(value.as_str().map_or(0, str::len));
    }
    for (key, value) in binary.iter() {
        let list = path.field("binaryData");
        errors.complaints(&list.key(key), key, names::config_key(key));
        size = size.saturating_add(scalar::bytes_len(value));
    }
    if size > DATA_MAX {
        errors.too_long(&path, DATA_MAX);
    }
}

pub(super) fn check_secret(names: &'static Names, object: &Object, errors: &mut FieldErrors) {
    let path = Path::ROOT;
    let data_path = path.field("data");
    let empty = Map::new();
    let data = object.fields.map("data").unwrap_or(&empty);
    let mut size: usize = 0;
    for (key, value) in data.iter() {
        errors.complaints(&data_path.key(key), key, names::config_key(key));
        size = size.saturating_add(scalar::bytes_len(value));
    }
    if size > DATA_MAX {
        errors.too_long(&data_path, DATA_MAX);
    }
    let ty = object.fields.str("type");
    check_required(names, ty, data, &data_path, errors);
    if ty == names.label("service-account-token") {
        let annotation = names.label("service-account.name");
        if object.annotations().get(&annotation).is_none_or(String::is_empty) {
            let metadata = path.field("metadata");
            errors.required(&metadata.field("annotations").key(&annotation), "");
        }
    }
    for kind in ["dockerconfigjson", "dockercfg"].iter().filter(|kind| ty == names.label(kind)) {
        let key = format!(".{kind}");
        if data.get(&key).is_some_and(|value| !is_json_object(&scalar::bytes_of(value))) {
            errors.invalid(&data_path.key(&key), "<secret contents redacted>", "invalid JSON");
        }
    }
}

fn is_json_object(text: &[u8]) -> bool {
    serde_json::from_slice::<Option<BTreeMap<String, IgnoredAny>>>(text).is_ok()
}

/// Checks that a Secret of type `ty` has the keys of its type.
fn check_required(
    names: &'static Names,
    ty: &str,
    data: &Map,
    path: &Path<'_>,
    errors: &mut FieldErrors,
) {
    for key in required_keys(names, ty) {
        // A private key that is empty is none.
        let is_empty = *key == "ssh-privatekey" && data.get(key).is_some_and(Value::is_empty);
        if !data.contains(key) || is_empty {
            errors.required(&path.key(key), "");
        }
    }
    // Either may be left out, but not both.
    let of_user = ["username", "password"];
    if ty == names.label("basic-auth") && !of_user.iter().any(|key| data.contains(key)) {
        of_user.iter().for_each(|key| errors.required(&path.key(key), ""));
    }
}

/// Required keys of a Secret of type `ty`.
fn required_keys(names: &'static Names, ty: &str) -> &'static [&'static str] {
    if ty == names.label("dockerconfigjson") {
        &[".dockerconfigjson"]
    } else if ty == names.label("dockercfg") {
        &[".dockercfg"]
    } else if ty == names.label("ssh-auth") {
        &["ssh-privatekey"]
    } else if ty == names.label("tls") {
        &["tls.crt", "tls.key"]
    } else {
        &[]
    }
}

/// Checks that an immutable object keeps `fields` and stays immutable.
pub(super) fn check_immutable(
    old: &Object,
    new: &Object,
    fields: &[&str],
    errors: &mut FieldErrors,
) {
    if !old.fields.is_true("immutable") {
        return;
    }
    let path = Path::ROOT;
    let detail = "field is immutable when `immutable` is set";
    if !new.fields.is_true("immutable") {
        errors.forbidden(&path.field("immutable"), detail);
    }
    for field in fields {
        if old.fields.get(field) != new.fields.get(field) {
            errors.forbidden(&path.field(field), detail);
        }
    }
}

/// Checks that the type of a Secret is unchanged.
pub(super) fn check_type(old: &Object, new: &Object, errors: &mut FieldErrors) {
    if old.fields.get("type") != new.fields.get("type") {
        let path = Path::ROOT;
        let value = new.fields.get("type").cloned().unwrap_or(Value::from(""));
        errors.invalid(&path.field("type"), value, "field is immutable");
    }
}
