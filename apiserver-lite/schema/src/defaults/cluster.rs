//! Defaults of secrets, nodes, namespaces, limit ranges and role bindings.

use proto_api::names::Names;

use super::set_default;
use crate::scalar::bytes_value;
use crate::value::{Map, Value};

/// Moves `stringData` into `data`.
pub(super) fn default_secret(fields: &mut Map) {
    set_default(fields, "type", "Opaque");
    let Some(Value::Map(texts)) = fields.remove("stringData") else { return };
    let merge = |_: &str, _: Option<Value>, text: Value| {
        let bytes = bytes_value(text.as_str().unwrap_or_default().as_bytes());
        Ok::<_, std::convert::Infallible>(Some(bytes))
    };
    let Ok(()) = fields.map_or_insert("data").change_all(texts, merge);
}

/// `allocatable` defaults to `capacity`; `podCIDR` is the first of `podCIDRs`.
pub(super) fn default_node(fields: &mut Map) {
    if let Some(status) = fields.map_mut("status")
        && let Some(capacity) = status.get("capacity").cloned()
    {
        set_default(status, "allocatable", capacity);
    }
    let Some(spec) = fields.map_mut("spec") else { return };
    let single = spec.str("podCIDR").to_owned();
    let first = spec.list("podCIDRs").first().and_then(Value::as_str).map(str::to_owned);
    match first {
        Some(first) if single.is_empty() => drop(spec.insert("podCIDR", first)),
        None if !single.is_empty() => drop(spec.insert("podCIDRs", vec![Value::from(single)])),
        _ => {}
    }
}

/// Labels a namespace with its name, for selectors; it is active.
pub(super) fn default_namespace(names: &'static Names, fields: &mut Map) {
    set_default(fields.map_or_insert("status"), "phase", "Active");
    let metadata = fields.map_or_insert("metadata");
    let name = metadata.str("name").to_owned();
    if !name.is_empty() {
        metadata.map_or_insert("labels").insert(names.label("metadata.name"), name);
    }
}

/// For containers, max is the default limit, the limit the default request, and min the default request without a limit.
pub(super) fn default_limit_range(fields: &mut Map) {
    let Some(spec) = fields.map_mut("spec") else { return };
    for limit in spec.maps_mut("limits").filter(|limit| limit.str("type") == "Container") {
        for (from, to) in
            [("max", "default"), ("default", "defaultRequest"), ("min", "defaultRequest")]
        {
            let Some(amounts) = limit.map(from).cloned() else { continue };
            let target = limit.map_or_insert(to);
            for (name, amount) in amounts {
                set_default(target, name, amount);
            }
        }
    }
}

pub(super) fn default_role_binding(names: &'static Names, fields: &mut Map) {
    let group = names.group("rbac.authorization");
    if let Some(role) = fields.map_mut("roleRef") {
        set_default(role, "apiGroup", group.as_str());
    }
    for subject in fields.maps_mut("subjects") {
        if matches!(subject.str("kind"), "User" | "Group") {
            set_default(subject, "apiGroup", group.as_str());
        }
    }
}
