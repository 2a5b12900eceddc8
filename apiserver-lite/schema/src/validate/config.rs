//! Validation of ConfigMaps and Secrets.

use proto_api::names::Names;

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
    let mut size = 0;
    for (key, value) in data.iter() {
        let list = path.field("data");
        errors.complaints(&list.key(key), key, names::config_key(key));
        if binary.contains(key) {
            let detail = format!("duplicate of key present in binaryData: {key}");
            errors.invalid(&list.key(key), key, &detail);
        }
        size += value.as_str().map_or(0, str::len);
    }
    for (key, value) in binary.iter() {
        let list = path.field("binaryData");
        errors.complaints(&list.key(key), key, names::config_key(key));
        size += scalar::bytes_len(value);
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
    let mut size = 0;
    for (key, value) in data.iter() {
        errors.complaints(&data_path.key(key), key, names::config_key(key));
        size += scalar::bytes_len(value);
    }
    if size > DATA_MAX {
        errors.too_long(&data_path, DATA_MAX);
    }
    let ty = object.fields.str("type");
    for key in required_keys(names, ty) {
        if !data.contains(key) {
            errors.required(&data_path.key(key), "");
        }
    }
    if ty == names.label("service-account-token") {
        let annotation = names.label("service-account.name");
        if object.annotations().get(&annotation).is_none_or(String::is_empty) {
            let metadata = path.field("metadata");
            errors.required(&metadata.field("annotations").key(&annotation), "");
        }
    }
    if ty == names.label("dockerconfigjson") {
        let text = data.get(".dockerconfigjson").map(scalar::bytes_of).unwrap_or_default();
        if serde_json::from_slice::<serde::de::IgnoredAny>(&text).is_err() {
            errors.invalid(
                &data_path.key(".dockerconfigjson"),
                "<secret contents redacted>",
                "invalid JSON",
            );
        }
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
