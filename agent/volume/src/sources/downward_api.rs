//! Files of the downward API.

use std::collections::BTreeMap;

use agent_pod::env::resource_value;
use proto_api::core::v1::{DownwardAPIVolumeFile, Pod, ResourceFieldSelector};

use super::{PayloadInputs, SourceError, mode};
use crate::payload::{Payload, PayloadFile};

pub(super) fn files(
    items: &[DownwardAPIVolumeFile],
    default_mode: u32,
    inputs: &PayloadInputs<'_>,
    payload: &mut Payload,
) -> Result<(), SourceError> {
    for item in items {
        let text = if let Some(selector) = &item.field_ref {
            field(&selector.field_path, inputs.pod)?
        } else if let Some(selector) = &item.resource_field_ref {
            resource(selector, inputs)?
        } else {
            String::new()
        };
        let mode = mode(item.mode, default_mode)?;
        inputs.budget.reserve(text.len())?;
        payload.insert(&item.path, PayloadFile { data: text.into_bytes(), mode })?;
    }
    Ok(())
}

/// Metadata fields only: values known later, such as addresses, are available in environments only, as in Kubernetes.
fn field(path: &str, pod: &Pod) -> Result<String, SourceError> {
    let metadata = &pod.metadata;
    let unknown = || SourceError::UnknownField(path.into());
    if let Some((map, key)) = path.split_once("['") {
        let key = key.strip_suffix("']").ok_or_else(unknown)?;
        let map = match map {
            "metadata.labels" => &metadata.labels,
            "metadata.annotations" => &metadata.annotations,
            _ => return Err(unknown()),
        };
        return Ok(map.get(key).cloned().unwrap_or_default());
    }
    Ok(match path {
        "metadata.name" => metadata.name.clone(),
        "metadata.namespace" => metadata.namespace.clone(),
        "metadata.uid" => metadata.uid.clone(),
        "metadata.labels" => lines(&metadata.labels),
        "metadata.annotations" => lines(&metadata.annotations),
        _ => return Err(unknown()),
    })
}

fn resource(
    selector: &ResourceFieldSelector,
    inputs: &PayloadInputs<'_>,
) -> Result<String, SourceError> {
    let spec = &inputs.pod.spec;
    let mut all = spec.containers.iter().chain(&spec.init_containers);
    let container = all.find(|container| container.name == selector.container_name);
    let unknown = || SourceError::UnknownContainer(selector.container_name.clone());
    resource_value(selector, container.ok_or_else(unknown)?, inputs.allocatable)
        .map_err(|_| SourceError::UnknownResource(selector.resource.clone()))
}

/// A map as sorted lines `key="value"` without a final newline, the kubelet's format.
fn lines(map: &BTreeMap<String, String>) -> String {
    let lines: Vec<String> =
        map.iter().map(|(key, value)| format!("{key}={}", quote(value))).collect();
    lines.join("\n")
}

/// A string in double quotes with Go's escapes.
fn quote(text: &str) -> String {
    let mut quoted = String::with_capacity(text.len().saturating_add(2));
    quoted.push('"');
    for c in text.chars() {
        match c {
            '"' => quoted.push_str("\\\""),
            '\\' => quoted.push_str("\\\\"),
            '\u{7}' => quoted.push_str("\\a"),
            '\u{8}' => quoted.push_str("\\b"),
            '\u{c}' => quoted.push_str("\\f"),
            '\n' => quoted.push_str("\\n"),
            '\r' => quoted.push_str("\\r"),
            '\t' => quoted.push_str("\\t"),
            '\u{b}' => quoted.push_str("\\v"),
            c if c.is_ascii_control() => quoted.push_str(&format!("\\x{:02x}", u32::from(c))),
            c if c.is_control() => quoted.push_str(&format!("\\u{:04x}", u32::from(c))),
            c => quoted.push(c),
        }
    }
    quoted.push('"');
    quoted
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_quoted() {
        for (text, expect) in [
            ("", r#""""#),
            ("plain", r#""plain""#),
            (r#"a "b" \c"#, r#""a \"b\" \\c""#),
            ("line\nline\ttab", r#""line\nline\ttab""#),
            ("\u{1}\u{7f}\u{85}", r#""\x01\x7f\u0085""#),
            ("größe", "\"größe\""),
        ] {
            assert_eq!(quote(text), expect);
        }
    }
}
