//! Cell texts shared by several kinds.

use crate::value::{Map, Value};

/// A duration in at most two units, as kubectl shows ages: `90s`, `5m12s`, `3h`, `2d4h`, `400d`.
pub fn human_duration(seconds: i64) -> String {
    const MINUTE: i64 = 60;
    const HOUR: i64 = 60 * MINUTE;
    const DAY: i64 = 24 * HOUR;
    const YEAR: i64 = 365 * DAY;
    let two = |large: i64, name: char, small: i64, small_name: char| {
        let whole = seconds.checked_div(large).unwrap_or(0);
        let rest = seconds.checked_rem(large).and_then(|rest| rest.checked_div(small)).unwrap_or(0);
        if rest == 0 {
            format!("{whole}{name}")
        } else {
            format!("{whole}{name}{rest}{small_name}")
        }
    };
    match seconds {
        ..-1 => "<invalid>".to_owned(), // clocks of two machines may differ a little, not more
        -1 => "0s".to_owned(),
        _ if seconds < 2 * MINUTE => format!("{seconds}s"),
        _ if seconds < 10 * MINUTE => two(MINUTE, 'm', 1, 's'),
        _ if seconds < 3 * HOUR => format!("{}m", seconds / MINUTE),
        _ if seconds < 8 * HOUR => two(HOUR, 'h', MINUTE, 'm'),
        _ if seconds < 2 * DAY => format!("{}h", seconds / HOUR),
        _ if seconds < 8 * DAY => two(DAY, 'd', HOUR, 'h'),
        _ if seconds < 2 * YEAR => format!("{}d", seconds / DAY),
        _ if seconds < 8 * YEAR => two(YEAR, 'y', DAY, 'd'),
        _ => format!("{}y", seconds / YEAR),
    }
}

/// `a=b,c=d`, or `<none>`.
pub(super) fn labels(map: Option<&Map>) -> String {
    let pairs: Vec<String> = map
        .into_iter()
        .flat_map(Map::iter)
        .map(|(key, value)| format!("{key}={}", value.as_str().unwrap_or_default()))
        .collect();
    super::or_none(&pairs.join(","))
}

/// A label selector in one line: `a=b,c in (d,e),!f`, or `<none>`.
pub(super) fn selector(selector: Option<&Map>) -> String {
    let Some(selector) = selector else { return "<none>".to_owned() };
    let equal = selector.map("matchLabels").into_iter().flat_map(Map::iter);
    let equal = equal.map(|(key, value)| format!("{key}={}", value.as_str().unwrap_or_default()));
    let rules = selector.maps("matchExpressions").map(|rule| {
        let key = rule.str("key");
        let values = strings(rule.list("values")).join(",");
        match rule.str("operator") {
            "In" => format!("{key} in ({values})"),
            "NotIn" => format!("{key} notin ({values})"),
            "Exists" => key.to_owned(),
            _ => format!("!{key}"),
        }
    });
    super::or_none(&equal.chain(rules).collect::<Vec<_>>().join(","))
}

/// Names and images of the containers of a pod spec, each joined by commas.
pub(super) fn containers(spec: Option<&Map>) -> (String, String) {
    let join = |field: &str| {
        let containers = spec.into_iter().flat_map(|spec| spec.maps("containers"));
        containers.map(|container| container.str(field)).collect::<Vec<_>>().join(",")
    };
    (join("name"), join("image"))
}

/// The strings of a list.
pub(super) fn strings(items: &[Value]) -> Vec<&str> {
    items.iter().filter_map(Value::as_str).collect()
}

/// At most `limit` items joined by commas and the number of further ones; `<none>` for no items.
pub(super) fn some_of(items: &[String], limit: usize) -> String {
    let shown = items.iter().take(limit).cloned().collect::<Vec<_>>().join(",");
    match items.len().saturating_sub(limit) {
        0 => super::or_none(&shown),
        more => format!("{shown} + {more} more..."),
    }
}

/// Access modes in short: `RWO,ROX`.
pub(super) fn access_modes(modes: &[Value]) -> String {
    let short = [
        ("ReadWriteOnce", "RWO"),
        ("ReadOnlyMany", "ROX"),
        ("ReadWriteMany", "RWX"),
        ("ReadWriteOncePod", "RWOP"),
    ];
    let modes = strings(modes);
    let shown = short.iter().filter(|(long, _)| modes.contains(long)).map(|(_, short)| *short);
    shown.collect::<Vec<_>>().join(",")
}

/// An int-or-string as text.
pub(super) fn int_or_string(value: Option<&Value>) -> Option<String> {
    match value? {
        Value::String(text) => Some(text.to_string()),
        value => value.as_int().map(|number| number.to_string()),
    }
}
