//! Quotas, limit ranges and disruption budgets.

use serde_json::{Map, Value};

use super::common::{self, number, selector, texts, word};
use super::{Context, Page, data};
use crate::objects;

/// Scopes of a quota, with what is counted.
const SCOPES: [(&str, &str); 4] = [
    ("Terminating", "counts pods that have an active deadline"),
    ("NotTerminating", "counts pods without an active deadline"),
    ("BestEffort", "counts pods without requests and limits"),
    ("NotBestEffort", "counts pods with a request or limit"),
];

pub(super) fn describe_quota(page: &mut Page, quota: &Value) {
    page.field(0, "Name", objects::name(quota));
    page.field(0, "Namespace", objects::namespace(quota));
    let mut scopes = texts(quota, "/spec/scopes");
    scopes.sort_unstable();
    if !scopes.is_empty() {
        page.field(0, "Scopes", scopes.join(", "));
    }
    for scope in scopes {
        if let Some((_, counts)) = SCOPES.iter().find(|(known, _)| *known == scope) {
            page.line(0, format!(" * {scope} {counts}."));
        }
    }
    page.line(0, "Resource\tUsed\tHard");
    page.line(0, "--------\t----\t----");
    for row in quota_rows(quota) {
        page.line(0, row.join("\t"));
    }
}

/// What is limited, how much is used and how much may be.
pub(super) fn quota_rows(quota: &Value) -> Vec<[String; 3]> {
    let used = objects::map_at(quota, "/status/used");
    let hard = data::sorted(objects::map_at(quota, "/status/hard"));
    hard.into_iter()
        .map(|(name, hard)| {
            let used = used.and_then(|used| used.get(name)).and_then(Value::as_str);
            [name.clone(), used.unwrap_or("0").to_owned(), hard.to_owned()]
        })
        .collect()
}

pub(super) fn describe_range(page: &mut Page, range: &Value) {
    page.field(0, "Name", objects::name(range));
    page.field(0, "Namespace", objects::namespace(range));
    range_rows(page, "", &[range]);
}

/// The limits of ranges below their titles.
pub(super) fn range_rows(page: &mut Page, space: &str, ranges: &[&Value]) {
    page.line(0, format!("{space}Type\tResource\tMin\tMax\tDefault Request\tDefault Limit\tMax Limit/Request Ratio"));
    page.line(0, format!("{space}----\t--------\t---\t---\t---------------\t-------------\t-----------------------"));
    for limit in ranges.iter().flat_map(|range| objects::list_at(range, "/spec/limits")) {
        let columns = ["min", "max", "defaultRequest", "default", "maxLimitRequestRatio"];
        let maps = columns.map(|column| objects::map_at(limit, &format!("/{column}")));
        let mut resources: Vec<&String> =
            maps.iter().flatten().flat_map(|map| map.keys()).collect();
        resources.sort();
        resources.dedup();
        for resource in resources {
            let value = |map: &Option<&Map<String, Value>>| {
                let value = map.and_then(|map| map.get(resource)).and_then(Value::as_str);
                value.unwrap_or("-").to_owned()
            };
            let cells = maps.iter().map(value).collect::<Vec<_>>().join("\t");
            let kind = objects::text_at(limit, "/type");
            page.line(0, format!("{space}{kind}\t{resource}\t{cells}"));
        }
    }
}

pub(super) fn describe_budget(page: &mut Page, budget: &Value, _: Context<'_>) {
    common::name(page, budget);
    if budget.pointer("/spec/minAvailable").is_some() {
        page.field(0, "Min available", word(budget, "/spec/minAvailable", ""));
    } else if budget.pointer("/spec/maxUnavailable").is_some() {
        page.field(0, "Max unavailable", word(budget, "/spec/maxUnavailable", ""));
    }
    let pods = match budget.pointer("/spec/selector") {
        Some(_) => selector(budget, "/spec/selector"),
        None => "<unset>".to_owned(),
    };
    page.field(0, "Selector", pods);
    page.line(0, "Status:");
    for (title, field) in [
        ("Allowed disruptions", "disruptionsAllowed"),
        ("Current", "currentHealthy"),
        ("Desired", "desiredHealthy"),
        ("Total", "expectedPods"),
    ] {
        page.field(2, title, number(budget, &format!("/status/{field}")).to_string());
    }
}
