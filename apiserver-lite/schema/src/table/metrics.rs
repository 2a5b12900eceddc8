//! Table rows of NodeMetrics and PodMetrics; the metrics of autoscalers in autoscaler rows.

use proto_api::Quantity;

use super::Cells;
use crate::object::Object;
use crate::value::Map;

pub(super) fn cells(object: &Object, cells: &mut Cells) {
    let fields = &object.fields;
    for resource in ["cpu", "memory"] {
        let used = |usage: &Map| usage.str(resource).parse::<Quantity>().ok();
        let of_containers = || {
            let used = fields.maps("containers").filter_map(|c| c.map("usage").and_then(used));
            used.reduce(|a, b| a + b)
        };
        let total = fields.map("usage").and_then(used).or_else(of_containers);
        cells.set(resource, total.map(|total| total.to_string()).unwrap_or_default());
    }
    cells.set("Window", fields.str("window"));
}

/// Most metrics of an autoscaler that its row shows.
const TARGETS_MAX: usize = 2;
const UNKNOWN: &str = "<unknown>";

/// The metrics of an autoscaler with their targets: `90%/50%, 300m/500m`.
pub(super) fn targets(spec: &Map, status: &Map) -> String {
    if let Some(percent) = spec.int("targetCPUUtilizationPercentage") {
        let current = status.int("currentCPUUtilizationPercentage");
        return format!("{}/{percent}%", shown_percent(current));
    }
    let current: Vec<&Map> = status.maps("currentMetrics").collect();
    let metrics = spec.maps("metrics").enumerate();
    let mut shown: Vec<String> =
        metrics.map(|(at, metric)| target(metric, current.get(at).copied())).collect();
    let more = shown.len().saturating_sub(TARGETS_MAX);
    shown.truncate(TARGETS_MAX);
    match (shown.is_empty(), more) {
        (true, _) => "<none>".to_owned(),
        (false, 0) => shown.join(", "),
        (false, more) => format!("{} + {more} more...", shown.join(", ")),
    }
}

fn target(metric: &Map, current: Option<&Map>) -> String {
    let source = match metric.str("type") {
        "Resource" => "resource",
        "ContainerResource" => "containerResource",
        "Pods" => "pods",
        "Object" => "object",
        "External" => "external",
        _ => return "<unknown type>".to_owned(),
    };
    let wanted = metric.map(source).and_then(|source| source.map("target"));
    let current = current.and_then(|current| current.map(source));
    let current = current.and_then(|current| current.map("current"));
    let text = |map: Option<&Map>, field: &str| map.map_or("", |map| map.str(field)).to_owned();
    let or_unknown = |text: String| if text.is_empty() { UNKNOWN.to_owned() } else { text };
    let average = text(wanted, "averageValue");
    if !average.is_empty() {
        let kind = if matches!(source, "object" | "external") { " (avg)" } else { "" };
        return format!("{}/{average}{kind}", or_unknown(text(current, "averageValue")));
    }
    if let Some(percent) = wanted.and_then(|wanted| wanted.int("averageUtilization")) {
        let current = current.and_then(|current| current.int("averageUtilization"));
        return format!("{}/{percent}%", shown_percent(current));
    }
    match text(wanted, "value") {
        value if value.is_empty() => format!("{UNKNOWN}/<auto>"),
        value => format!("{}/{value}", or_unknown(text(current, "value"))),
    }
}

fn shown_percent(percent: Option<i64>) -> String {
    percent.map_or_else(|| UNKNOWN.to_owned(), |percent| format!("{percent}%"))
}

#[cfg(test)]
mod tests {
    use crate::value::{Value, parse_json};

    use super::*;

    #[test]
    fn an_autoscaler_shows_its_first_two_metrics() {
        let map = |text: &str| match parse_json(text.as_bytes(), &mut Vec::new()) {
            Ok(Value::Map(map)) => map,
            other => panic!("{other:?}"),
        };
        let cpu = r#"{"type":"Resource","resource":{"name":"cpu","target":{"type":"Utilization","averageUtilization":50}}}"#;
        let pods = r#"{"type":"Pods","pods":{"metric":{"name":"q"},"target":{"type":"AverageValue","averageValue":"100m"}}}"#;
        let queue = r#"{"type":"External","external":{"metric":{"name":"q"},"target":{"type":"Value","value":"30"}}}"#;
        let now =
            r#"{"type":"Resource","resource":{"name":"cpu","current":{"averageUtilization":90}}}"#;
        for (metrics, current, expected) in [
            (vec![], "", "<none>"),
            (vec![cpu], "", "<unknown>/50%"),
            (vec![cpu, pods], now, "90%/50%, <unknown>/100m"),
            (vec![queue, cpu, pods], "{}", "<unknown>/30, <unknown>/50% + 1 more..."),
        ] {
            let spec = map(&format!(r#"{{"metrics":[{}]}}"#, metrics.join(",")));
            let status = map(&format!(r#"{{"currentMetrics":[{current}]}}"#));
            assert_eq!(targets(&spec, &status), expected);
        }
        let (spec, status) = (
            r#"{"targetCPUUtilizationPercentage":50}"#,
            r#"{"currentCPUUtilizationPercentage":7}"#,
        );
        assert_eq!(targets(&map(spec), &map(status)), "7%/50%");
    }
}
