//! Test data: pods with every number at its extremes.

use proto_api::core::v1::Pod;
use serde_json::{Value, json};

/// Values for integers.
const EXTREMES: [i64; 9] =
    [i64::MAX, i64::MIN, 0, -1, 1, i32::MAX as i64, i32::MIN as i64, u32::MAX as i64 + 1, 1 << 53];

/// Values for quantities.
const AMOUNTS: [&str; 6] =
    ["9223372036854775807", "-9223372036854775808", "0", "1e30", "8Ei", "1n"];

/// JSON pointers of all numbers and quantities below `value`.
fn places(value: &Value, at: &str, found: &mut Vec<String>) {
    const AMOUNTS_BELOW: [&str; 4] =
        ["/requests/", "/limits/", "/overhead/", "/emptyDir/sizeLimit"];
    match value {
        Value::Object(fields) => {
            fields.iter().for_each(|(name, field)| places(field, &format!("{at}/{name}"), found));
        }
        Value::Array(items) => {
            items
                .iter()
                .enumerate()
                .for_each(|(n, item)| places(item, &format!("{at}/{n}"), found));
        }
        Value::Number(_) => found.push(at.to_owned()),
        Value::String(_) if at.ends_with("/divisor") => found.push(at.to_owned()),
        Value::String(_) if AMOUNTS_BELOW.iter().any(|part| at.contains(part)) => {
            found.push(at.to_owned());
        }
        _ => {}
    }
}

/// One pod for each number of `filled` and each extreme that its field can hold, with a
/// description.
pub fn pods_with_extremes(filled: &Value) -> Vec<(String, Pod)> {
    let mut all = Vec::new();
    places(filled, "", &mut all);
    let mut pods = Vec::new();
    for place in all {
        let is_number = filled.pointer(&place).is_some_and(Value::is_number);
        let values: Vec<Value> = match is_number {
            true => EXTREMES.iter().map(|value| json!(value)).collect(),
            false => AMOUNTS.iter().map(|value| json!(value)).collect(),
        };
        let before = pods.len();
        for value in values {
            let mut pod = filled.clone();
            let text = format!("{place} = {value}");
            *pod.pointer_mut(&place).expect("place") = value;
            // Without the deadline, whose expiry would hide other fields.
            if place != "/spec/activeDeadlineSeconds" {
                let spec = pod["spec"].as_object_mut().expect("spec");
                spec.remove("activeDeadlineSeconds");
            }
            // A number that the field cannot hold is rejected when decoded.
            if let Ok(pod) = serde_json::from_value::<Pod>(pod) {
                pods.push((text, pod));
            }
        }
        assert!(pods.len() > before, "{place}: nothing that it can hold");
    }
    pods
}
