//! Finds every integer field of every kind in the descriptors, and makes objects with a number there.

use proto_api::schema::{MessageDescriptor, MessageId, Shape, Value as Holds};
use serde_json::{Value, json};

/// The values of integers.
pub const NUMBERS: [i64; 7] =
    [i64::MAX, i64::MIN, 0, -1, 1 << 32, i32::MAX as i64, i32::MIN as i64];

/// One segment of a path to a field.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PathStep {
    /// Into a message.
    Field(&'static str),
    /// To the first item of a list.
    Item,
    /// To the entry `k` of a map.
    Entry,
}

/// The paths of all integer fields below a message. A recursive message is visited once.
pub fn paths(root: MessageId) -> Vec<Vec<PathStep>> {
    let mut found = Vec::new();
    walk(root.get(), &mut Vec::new(), &mut vec![root], &mut found);
    found
}

fn walk(
    message: &'static MessageDescriptor,
    path: &mut Vec<PathStep>,
    open: &mut Vec<MessageId>,
    found: &mut Vec<Vec<PathStep>>,
) {
    for field in message.fields {
        let before = path.len();
        if !field.inline {
            path.push(PathStep::Field(field.json));
            match field.shape {
                Shape::Plain | Shape::Pointer => {}
                Shape::List => path.push(PathStep::Item),
                Shape::Map => path.push(PathStep::Entry),
            }
        }
        match field.value {
            Holds::Int32 | Holds::Int64 | Holds::IntOrString => found.push(path.clone()),
            // Quantities are numbers too, as text or number.
            Holds::Quantity => found.push(path.clone()),
            Holds::Message(id) if !open.contains(&id) => {
                open.push(id);
                walk(id.get(), path, open, found);
                open.pop();
            }
            _ => {}
        }
        path.truncate(before);
    }
}

/// `base` with `number` at `path`; missing parents are inserted.
pub fn with_number(base: &Value, path: &[PathStep], number: i64) -> Value {
    let mut object = base.clone();
    let mut here = &mut object;
    for step in path {
        here = match step {
            PathStep::Field(name) => {
                if !here.is_object() {
                    *here = json!({});
                }
                &mut here[*name]
            }
            PathStep::Entry => {
                if here.as_object().is_none_or(serde_json::Map::is_empty) {
                    *here = json!({"k": null});
                }
                here.as_object_mut().and_then(|map| map.values_mut().next()).expect("an entry")
            }
            PathStep::Item => {
                if here.as_array().is_none_or(Vec::is_empty) {
                    *here = json!([null]);
                }
                &mut here[0]
            }
        };
    }
    *here = json!(number);
    object
}

/// A path as in error messages.
pub fn text(path: &[PathStep]) -> String {
    path.iter()
        .map(|step| match step {
            PathStep::Field(name) => format!(".{name}"),
            PathStep::Item => "[0]".to_owned(),
            PathStep::Entry => "[k]".to_owned(),
        })
        .collect()
}
