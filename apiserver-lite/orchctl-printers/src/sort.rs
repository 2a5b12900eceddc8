//! Order of objects by a field (`--sort-by`).

use std::cmp::Ordering;

use serde_json::Value;

use crate::jsonpath::{JsonPathError, MissingFields, Path};

/// Sorts `items` by what `path` leads to in the object of each. Objects without the field come first; equal ones keep their order.
///
/// # Errors
/// When no object has the field, or the path has no meaning for one.
pub fn by_path<T>(
    items: &mut Vec<T>,
    path: &Path,
    object: impl Fn(&T) -> &Value,
) -> Result<(), JsonPathError> {
    let mut keyed = Vec::with_capacity(items.len());
    for item in items.iter() {
        let found = path.find(object(item), MissingFields::Skipped)?;
        keyed.push(found.first().map(|value| (*value).clone()));
    }
    if !keyed.is_empty() && keyed.iter().all(Option::is_none) {
        let text = "couldn't find any field with the path of --sort-by in the objects";
        return Err(JsonPathError::Evaluation(text.to_owned()));
    }
    let mut pairs: Vec<(Option<Value>, T)> = keyed.into_iter().zip(items.drain(..)).collect();
    pairs.sort_by(|(a, _), (b, _)| compare(a.as_ref(), b.as_ref()));
    items.extend(pairs.into_iter().map(|(_, item)| item));
    Ok(())
}

fn compare(a: Option<&Value>, b: Option<&Value>) -> Ordering {
    match (a, b) {
        (None | Some(Value::Null), None | Some(Value::Null)) => Ordering::Equal,
        (None | Some(Value::Null), _) => Ordering::Less,
        (_, None | Some(Value::Null)) => Ordering::Greater,
        (Some(Value::Number(a)), Some(Value::Number(b))) => match (a.as_i64(), b.as_i64()) {
            (Some(a), Some(b)) => a.cmp(&b),
            _ => a.as_f64().partial_cmp(&b.as_f64()).unwrap_or(Ordering::Equal),
        },
        (Some(Value::String(a)), Some(Value::String(b))) => compare_texts(a, b),
        (Some(Value::Bool(a)), Some(Value::Bool(b))) => a.cmp(b),
        (Some(a), Some(b)) => a.to_string().cmp(&b.to_string()),
    }
}

/// Quantities by their amounts, other texts with numbers in them by these (`a9` before `a10`).
fn compare_texts(a: &str, b: &str) -> Ordering {
    if let (Ok(first), Ok(second)) = (a.parse::<proto_api::Quantity>(), b.parse()) {
        return first.cmp(&second);
    }
    natural(a, b)
}

fn natural(a: &str, b: &str) -> Ordering {
    let (mut rest_a, mut rest_b) = (a, b);
    while !rest_a.is_empty() && !rest_b.is_empty() {
        let (chunk_a, after_a) = chunk(rest_a);
        let (chunk_b, after_b) = chunk(rest_b);
        let order = match (chunk_a.parse::<u64>(), chunk_b.parse::<u64>()) {
            (Ok(a), Ok(b)) if a != b => a.cmp(&b),
            _ => chunk_a.cmp(chunk_b),
        };
        if order != Ordering::Equal {
            return order;
        }
        (rest_a, rest_b) = (after_a, after_b);
    }
    rest_a.len().cmp(&rest_b.len())
}

/// The leading digits, or what is none.
fn chunk(text: &str) -> (&str, &str) {
    let digits = text.starts_with(|c: char| c.is_ascii_digit());
    let end = text.find(|c: char| c.is_ascii_digit() != digits).unwrap_or(text.len());
    text.split_at(end)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn sorted(values: &[Value]) -> Vec<Value> {
        let mut items: Vec<Value> = values.iter().map(|value| json!({"x": value})).collect();
        let path = Path::parse_relaxed(".x").expect("valid");
        by_path(&mut items, &path, |item| item).expect("sortable");
        items.into_iter().map(|item| item["x"].clone()).collect()
    }

    #[test]
    fn values_sort_by_their_type() {
        assert_eq!(sorted(&[json!(10), json!(9)]), [json!(9), json!(10)]);
        assert_eq!(sorted(&[json!("a10"), json!("a9")]), [json!("a9"), json!("a10")]);
        assert_eq!(sorted(&[json!("1Gi"), json!("2M")]), [json!("2M"), json!("1Gi")]);
        assert_eq!(sorted(&[json!("b"), json!(null)]), [json!(null), json!("b")]);
    }

    #[test]
    fn a_field_that_no_object_has_is_an_error() {
        let path = Path::parse_relaxed(".y").expect("valid");
        let mut items = vec![json!({"x": 1})];
        assert!(by_path(&mut items, &path, |item| item).is_err());
        assert!(by_path(&mut Vec::<Value>::new(), &path, |item| item).is_ok());
    }
}
