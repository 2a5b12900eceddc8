//! Every integer field of every kind, found in the descriptors, and objects that hold a number there.

use proto_api::schema::{Message, MessageId, Shape, Value as Holds};
use serde_json::{Value, json};

/// What each integer is set to.
pub const NUMBERS: [i64; 7] =
    [i64::MAX, i64::MIN, 0, -1, 1 << 32, i32::MAX as i64, i32::MIN as i64];

/// One step towards a field.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Step {
    /// Into a message.
    Field(&'static str),
    /// To the first item of a list.
    Item,
    /// To the entry `k` of a map.
    Entry,
}

/// The paths of all integer fields below a message. A message that holds itself is opened once.
pub fn paths(root: MessageId) -> Vec<Vec<Step>> {
    let mut found = Vec::new();
    walk(root.get(), &mut Vec::new(), &mut vec![root], &mut found);
    found
}

fn walk(
    message: &'static Message,
    path: &mut Vec<Step>,
    open: &mut Vec<MessageId>,
    found: &mut Vec<Vec<Step>>,
) {
    for field in message.fields {
        let before = path.len();
        if !field.inline {
            path.push(Step::Field(field.json));
            match field.shape {
                Shape::Plain | Shape::Pointer => {}
                Shape::List => path.push(Step::Item),
                Shape::Map => path.push(Step::Entry),
            }
        }
        match field.value {
            Holds::Int32 | Holds::Int64 | Holds::IntOrString => found.push(path.clone()),
            // Amounts are numbers too, written as text or as a number.
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

/// `base` with `number` at `path`; what leads there is made where it is missing.
pub fn with_number(base: &Value, path: &[Step], number: i64) -> Value {
    let mut object = base.clone();
    let mut here = &mut object;
    for step in path {
        here = match step {
            Step::Field(name) => {
                if !here.is_object() {
                    *here = json!({});
                }
                &mut here[*name]
            }
            Step::Entry => {
                if here.as_object().is_none_or(serde_json::Map::is_empty) {
                    *here = json!({"k": null});
                }
                here.as_object_mut().and_then(|map| map.values_mut().next()).expect("an entry")
            }
            Step::Item => {
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

/// A path as messages write it.
pub fn text(path: &[Step]) -> String {
    path.iter()
        .map(|step| match step {
            Step::Field(name) => format!(".{name}"),
            Step::Item => "[0]".to_owned(),
            Step::Entry => "[k]".to_owned(),
        })
        .collect()
}
