//! What a path leads to.

use std::cmp::Ordering;

use serde_json::Value;

use super::{
    Comparison, Filter, JsonPathError, MissingFields, Operand, Path, RESULTS_MAX, Slice, Step,
};

type Found<'a> = Result<Vec<&'a Value>, JsonPathError>;

fn eval_error<T>(text: impl Into<String>) -> Result<T, JsonPathError> {
    Err(JsonPathError::Evaluation(text.into()))
}

/// Refuses more than [`RESULTS_MAX`] results.
pub(super) fn check_count(results: usize) -> Result<(), JsonPathError> {
    if results > RESULTS_MAX {
        return eval_error(format!("more than {RESULTS_MAX} results"));
    }
    Ok(())
}

/// Follows the steps of `path` from all of `values`.
pub(super) fn walk<'a>(path: &Path, values: Vec<&'a Value>, missing: MissingFields) -> Found<'a> {
    let mut values = values;
    for step in &path.steps {
        values = follow(step, values, missing)?;
    }
    Ok(values)
}

fn follow<'a>(step: &Step, values: Vec<&'a Value>, missing: MissingFields) -> Found<'a> {
    let mut found = Vec::new();
    match step {
        Step::Field(name) => {
            found.extend(values.into_iter().filter_map(|value| value.as_object()?.get(name)));
            if found.is_empty() && missing == MissingFields::Refused {
                return eval_error(format!("{name} is not found"));
            }
        }
        Step::Wildcard => {
            for value in values {
                found.extend(children(value));
                check_count(found.len())?;
            }
        }
        Step::Recursive => {
            for value in values {
                descend(value, &mut found)?;
            }
            if found.is_empty() && missing == MissingFields::Refused {
                return eval_error("nothing is found below the object");
            }
        }
        Step::Slice(slice) => {
            for value in values {
                cut(slice, value, &mut found)?;
                check_count(found.len())?;
            }
        }
        Step::Union(paths) => {
            for path in paths {
                found.extend(walk(path, values.clone(), missing)?);
                check_count(found.len())?;
            }
        }
        Step::Filter(filter) => {
            for value in values {
                let items = match value {
                    Value::Array(items) => items,
                    Value::Null => continue,
                    other => {
                        let kind = kind_of(other);
                        return eval_error(format!(
                            "{kind} is not an array and cannot be filtered"
                        ));
                    }
                };
                for item in items {
                    if passes(filter, item)? {
                        found.push(item);
                    }
                }
                check_count(found.len())?;
            }
        }
    }
    Ok(found)
}

fn children(value: &Value) -> Vec<&Value> {
    match value {
        Value::Array(items) => items.iter().collect(),
        Value::Object(map) => map.values().collect(),
        _ => Vec::new(),
    }
}

/// The value and all below it that have children.
fn descend<'a>(value: &'a Value, found: &mut Vec<&'a Value>) -> Result<(), JsonPathError> {
    check_count(found.len())?;
    let children = children(value);
    if !children.is_empty() {
        found.push(value);
        children.into_iter().try_for_each(|child| descend(child, found))?;
    }
    Ok(())
}

fn cut<'a>(
    slice: &Slice,
    value: &'a Value,
    found: &mut Vec<&'a Value>,
) -> Result<(), JsonPathError> {
    let items = match value {
        Value::Array(items) => items,
        Value::Null => return Ok(()),
        other => return eval_error(format!("{} is not an array", kind_of(other))),
    };
    let len = i64::try_from(items.len()).unwrap_or(i64::MAX);
    let from_end = |index: i64| if index < 0 { index.saturating_add(len) } else { index };
    let start = from_end(slice.start.unwrap_or(0));
    let end = match slice.end {
        _ if slice.single => start.saturating_add(1),
        Some(end) => from_end(end),
        None => len,
    };
    if start == end {
        return Ok(());
    }
    let outside =
        |index: i64| eval_error(format!("array index out of bounds: index {index}, length {len}"));
    if start >= len || start < 0 {
        return outside(start);
    }
    if end > len || end < 0 {
        return outside(end.saturating_sub(1));
    }
    if start > end {
        return eval_error(format!("starting index {start} is greater than ending index {end}"));
    }
    let step = match slice.step.unwrap_or(1) {
        step if step > 0 => usize::try_from(step).unwrap_or(usize::MAX),
        _ => return eval_error("step must be > 0"),
    };
    let index = |value: i64| usize::try_from(value).unwrap_or_default();
    let range = items.get(index(start)..index(end)).unwrap_or_default();
    found.extend(range.iter().step_by(step));
    Ok(())
}

fn passes(filter: &Filter, item: &Value) -> Result<bool, JsonPathError> {
    let left = operand(&filter.left, item)?;
    let Some((comparison, right)) = &filter.right else { return Ok(!left.is_empty()) };
    let right = operand(right, item)?;
    let (left, right) = match (left.as_slice(), right.as_slice()) {
        ([], _) | (_, []) => return Ok(false),
        ([left], [right]) => (*left, *right),
        _ => return eval_error("can only compare one element at a time"),
    };
    if matches!(comparison, Comparison::Equal | Comparison::NotEqual) {
        let equal = left == right || order(left, right) == Some(Ordering::Equal);
        return Ok(equal == (*comparison == Comparison::Equal));
    }
    let Some(order) = order(left, right) else {
        return eval_error(format!("cannot compare {} with {}", kind_of(left), kind_of(right)));
    };
    Ok(match comparison {
        Comparison::Less => order.is_lt(),
        Comparison::LessOrEqual => order.is_le(),
        Comparison::Greater => order.is_gt(),
        _ => order.is_ge(),
    })
}

fn operand<'a>(operand: &'a Operand, item: &'a Value) -> Found<'a> {
    match operand {
        Operand::Literal(literal) => Ok(vec![literal]),
        Operand::Path(path) => walk(path, vec![item], MissingFields::Skipped),
    }
}

fn order(left: &Value, right: &Value) -> Option<Ordering> {
    match (left, right) {
        (Value::String(left), Value::String(right)) => Some(left.cmp(right)),
        (Value::Number(left), Value::Number(right)) => match (left.as_i64(), right.as_i64()) {
            (Some(left), Some(right)) => Some(left.cmp(&right)),
            _ => left.as_f64()?.partial_cmp(&right.as_f64()?),
        },
        _ => None,
    }
}

fn kind_of(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "a boolean",
        Value::Number(_) => "a number",
        Value::String(_) => "a string",
        Value::Array(_) => "an array",
        Value::Object(_) => "an object",
    }
}
