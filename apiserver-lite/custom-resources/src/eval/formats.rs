//! Named formats of texts in rules: `format.dns1123Label().validate(name)`.

use std::borrow::Cow;

use apiserver_schema::validate::names;
use apiserver_schema::value::cut;

use super::value::Val;
use crate::errors::quote;
use crate::formats;

const NAMES: [&str; 14] = [
    "dns1123Label",
    "dns1123Subdomain",
    "dns1035Label",
    "qualifiedName",
    "portName",
    "dns1123LabelPrefix",
    "dns1123SubdomainPrefix",
    "dns1035LabelPrefix",
    "labelValue",
    "uri",
    "uuid",
    "byte",
    "date",
    "datetime",
];

/// The format of a name.
pub(crate) fn named(name: &str) -> Option<&'static str> {
    NAMES.into_iter().find(|have| *have == name)
}

/// What is wrong about a text of a format: an optional, without a value if nothing is.
pub(crate) fn validate<'a>(format: &str, text: &str) -> Val<'a> {
    let wrong = complaints(format, text);
    let wrong = (!wrong.is_empty()).then(|| wrong.into_iter().map(Val::text).collect());
    Val::optional(wrong.map(Val::list))
}

fn complaints(format: &str, text: &str) -> Vec<String> {
    match format {
        "dns1123Label" => names::dns_label(text),
        "dns1123Subdomain" => names::dns_subdomain(text),
        "dns1035Label" => names::dns_1035_label(text),
        "dns1123LabelPrefix" => names::dns_label(&completed(text)),
        "dns1123SubdomainPrefix" => names::dns_subdomain(&completed(text)),
        "dns1035LabelPrefix" => names::dns_1035_label(&completed(text)),
        "qualifiedName" => names::qualified_name(text),
        "portName" => names::port_name(text),
        "labelValue" => names::label_value(text),
        _ if formats::fits(format, text) => Vec::new(),
        "uri" => vec![format!("parse {}: invalid URI for request", quote(cut(text)))],
        "uuid" => vec!["does not match the UUID format".to_owned()],
        "byte" => vec!["invalid base64".to_owned()],
        _ => vec![format!("invalid {format}")],
    }
}

/// The prefix of a name, with a letter for `-` at its end and what stands before it, as in Kubernetes.
fn completed(prefix: &str) -> Cow<'_, str> {
    let start = prefix.strip_suffix('-').and_then(|start| start.get(..start.len().checked_sub(1)?));
    start.map_or(Cow::Borrowed(prefix), |start| Cow::Owned(format!("{start}a")))
}
