//! Config maps, secrets and namespaces.

use serde_json::{Map, Value};

use super::{Context, Page, Related, common, limit};
use crate::objects;

/// Keys and texts in the order of the keys.
pub(super) fn sorted(map: Option<&Map<String, Value>>) -> Vec<(&String, &str)> {
    let pairs = map.into_iter().flatten();
    let mut pairs: Vec<_> =
        pairs.map(|(key, value)| (key, value.as_str().unwrap_or_default())).collect();
    pairs.sort();
    pairs
}

/// Bytes of a base64 text.
fn decoded_len(text: &str) -> usize {
    let padding = text.bytes().rev().take_while(|byte| *byte == b'=').count();
    (text.len() / 4 * 3).saturating_sub(padding)
}

pub(super) fn describe_config_map(page: &mut Page, object: &Value, context: Context<'_>) {
    common::name(page, object);
    common::labels(page, object, context);
    page.line(0, "\nData\n====");
    for (key, value) in sorted(objects::map_at(object, "/data")) {
        page.line(0, format!("{key}:\n----\n{value}"));
    }
    page.line(0, "\nBinaryData\n====");
    for (key, value) in sorted(objects::map_at(object, "/binaryData")) {
        page.line(0, format!("{key}: {} bytes", decoded_len(value)));
    }
    page.line(0, "");
}

pub(super) fn describe_secret(page: &mut Page, object: &Value, context: Context<'_>) {
    common::name(page, object);
    common::labels(page, object, context);
    page.line(0, "");
    page.field(0, "Type", objects::text_at(object, "/type"));
    page.line(0, "\nData\n====");
    for (key, value) in sorted(objects::map_at(object, "/data")) {
        page.field(0, key, format!("{} bytes", decoded_len(value)));
    }
}

pub(super) fn describe_namespace(
    page: &mut Page,
    object: &Value,
    related: &Related,
    context: Context<'_>,
) {
    common::name(page, object);
    common::labels(page, object, context);
    page.field(0, "Status", objects::text_at(object, "/status/phase"));
    let of_kind = |kind: &str| -> Vec<&Value> {
        let limits = related.limits.iter();
        limits.filter(|one| objects::text_at(one, "/kind") == kind).collect()
    };
    let quotas = of_kind("ResourceQuota");
    page.line(0, if quotas.is_empty() { "\nNo resource quota." } else { "\nResource Quotas" });
    for quota in quotas {
        page.field(1, "Name", objects::name(quota));
        page.line(1, "Resource\tUsed\tHard\n  --------\t---\t---");
        for row in limit::quota_rows(quota) {
            page.line(1, row.join("\t"));
        }
    }
    let ranges = of_kind("LimitRange");
    if ranges.is_empty() {
        page.line(0, "\nNo LimitRange resource.");
    } else {
        page.line(0, "\nResource Limits");
        limit::range_rows(page, " ", &ranges);
    }
}
