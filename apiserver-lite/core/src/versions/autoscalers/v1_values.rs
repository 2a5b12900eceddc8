//! Metrics and behavior in annotations of autoscaling/v1: metrics as v1's own types declare them, behavior under the field names of Go.

use apiserver_schema::{Map, Value};

/// Which of the two lists a metric stands in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Role {
    /// `spec.metrics`.
    Target,
    /// `status.currentMetrics`.
    Current,
}

impl Role {
    /// Field of v2 with the amounts.
    pub(super) fn field(self) -> &'static str {
        match self {
            Role::Target => "target",
            Role::Current => "current",
        }
    }

    /// v1's names of utilization, average value and value.
    fn amounts(self) -> [&'static str; 3] {
        match self {
            Role::Target => ["targetAverageUtilization", "targetAverageValue", "targetValue"],
            Role::Current => ["currentAverageUtilization", "currentAverageValue", "currentValue"],
        }
    }
}

/// The sources of a metric, and what v1 calls name and selector of what is measured.
const SOURCES: [(&str, Option<(&str, &str)>); 5] = [
    ("resource", None),
    ("containerResource", None),
    ("pods", Some(("metricName", "selector"))),
    ("object", Some(("metricName", "selector"))),
    ("external", Some(("metricName", "metricSelector"))),
];

/// v2's metrics in the form of v1; as they are where v1 would not bring them back.
pub(super) fn write_metrics(metrics: Value, role: Role) -> Value {
    let Value::List(items) = &metrics else { return metrics };
    let written = items.iter().map(|item| {
        let item = item.as_map()?;
        let v1 = each_source(item, |source, fields| write_source(source, fields, role))?;
        let back = each_source(&v1, |source, fields| read_source(source, fields, role))?;
        (back == *item).then_some(Value::from(v1))
    });
    match written.collect::<Option<Vec<Value>>>() {
        Some(written) => Value::List(written),
        None => metrics,
    }
}

/// Metrics of an annotation in the form of v2, whichever of the two they are in.
pub(super) fn read_metrics(metrics: Value, role: Role) -> Value {
    let Value::List(items) = metrics else { return metrics };
    let read = items.into_iter().map(|item| {
        let Some(map) = item.as_map() else { return item };
        let read = each_source(map, |source, fields| {
            let is_v2 =
                fields.contains("metric") || fields.map(role.field()).is_some_and(is_amounts);
            if is_v2 { Some(fields.clone()) } else { read_source(source, fields, role) }
        });
        read.map_or(item, Value::from)
    });
    Value::List(read.collect())
}

/// Whether it is v2's map of amounts, and not v1's reference of an object, which has the same name.
fn is_amounts(map: &Map) -> bool {
    !map.contains("kind") && !map.contains("name")
}

/// A metric with its sources replaced; `None` where one has no replacement.
fn each_source(metric: &Map, replace: impl Fn(&'static str, &Map) -> Option<Map>) -> Option<Map> {
    let mut made = metric.clone();
    for (source, _) in SOURCES {
        if let Some(fields) = metric.map(source) {
            made.insert(source, replace(source, fields)?);
        }
    }
    Some(made)
}

fn write_source(source: &'static str, fields: &Map, role: Role) -> Option<Map> {
    let [utilization, average, value] = role.amounts();
    let mut made = Map::new();
    for field in ["name", "container"] {
        move_field(fields, field, &mut made, field);
    }
    if let Some((name, selector)) = measured_by(source) {
        let metric = fields.map("metric")?;
        move_field(metric, "name", &mut made, name);
        move_field(metric, "selector", &mut made, selector);
    }
    let empty = Map::new();
    let amounts = fields.map(role.field()).unwrap_or(&empty);
    move_field(amounts, "averageUtilization", &mut made, utilization);
    move_field(amounts, "value", &mut made, value);
    if source == "object" {
        move_field(fields, "describedObject", &mut made, "target");
        move_field(amounts, "averageValue", &mut made, "averageValue");
    } else {
        move_field(amounts, "averageValue", &mut made, average);
    }
    Some(made)
}

/// `None` where it has a field that v1 does not know there.
fn read_source(source: &'static str, fields: &Map, role: Role) -> Option<Map> {
    let [utilization, average, value] = role.amounts();
    let average = if source == "object" { "averageValue" } else { average };
    let of_measured = measured_by(source).map(|(name, selector)| [name, selector]);
    let of_object = (source == "object").then_some("target");
    let own = ["name", "container", utilization, average, value];
    let known: Vec<&str> = of_measured.into_iter().flatten().chain(of_object).chain(own).collect();
    let is_known = |name: &str| known.contains(&name);
    if !fields.iter().map(|(name, _)| name).all(is_known) {
        return None;
    }
    let (mut made, mut amounts) = (Map::new(), Map::new());
    for field in ["name", "container"] {
        move_field(fields, field, &mut made, field);
    }
    if let Some((name, selector)) = measured_by(source) {
        let mut metric = Map::new();
        move_field(fields, name, &mut metric, "name");
        move_field(fields, selector, &mut metric, "selector");
        made.insert("metric", metric);
    }
    move_field(fields, utilization, &mut amounts, "averageUtilization");
    move_field(fields, average, &mut amounts, "averageValue");
    // The value of an object is no pointer in v1: zero stands for none where there is an average.
    if amounts.str("averageValue").is_empty() || fields.str(value) != "0" {
        move_field(fields, value, &mut amounts, "value");
    }
    if source == "object" {
        move_field(fields, "target", &mut made, "describedObject");
    }
    if role == Role::Target {
        amounts.insert("type", type_of(source, &amounts));
    }
    made.insert(role.field(), amounts);
    Some(made)
}

/// The type of a target, which v1 does not say.
fn type_of(source: &str, amounts: &Map) -> &'static str {
    let has = |field: &str| amounts.contains(field);
    match source {
        "resource" | "containerResource" if has("averageUtilization") => "Utilization",
        "object" if !has("averageValue") => "Value",
        "external" if has("value") => "Value",
        _ => "AverageValue",
    }
}

fn measured_by(source: &str) -> Option<(&'static str, &'static str)> {
    SOURCES.iter().find(|(name, _)| *name == source).and_then(|(_, names)| *names)
}

fn move_field(from: &Map, field: &str, to: &mut Map, name: &'static str) {
    if let Some(value) = from.get(field).filter(|value| **value != Value::Null) {
        to.insert(name, value.clone());
    }
}

/// Behavior with the field names of Go.
pub(super) fn write_behavior(behavior: Value) -> Value {
    rename_fields(behavior, char::to_ascii_uppercase)
}

/// Behavior of an annotation, under either names; a field that is null is none.
pub(super) fn read_behavior(behavior: Value) -> Value {
    rename_fields(behavior, char::to_ascii_lowercase)
}

/// Renames the fields by their first letter.
fn rename_fields(value: Value, rename: fn(&char) -> char) -> Value {
    match value {
        Value::Map(map) => {
            let fields = map.into_iter().filter(|(_, value)| *value != Value::Null);
            let renamed = fields.map(|(name, value)| {
                let mut letters = name.chars();
                let first = letters.next().map(|first| rename(&first));
                let name: String = first.into_iter().chain(letters).collect();
                (name, rename_fields(value, rename))
            });
            renamed.collect::<Map>().into()
        }
        Value::List(items) => {
            Value::List(items.into_iter().map(|item| rename_fields(item, rename)).collect())
        }
        other => other,
    }
}
