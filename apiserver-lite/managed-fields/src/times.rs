//! Writes that change nothing but the time of an entry, and names of managers.

use apiserver_schema::{Map, Object, Value};

use crate::entries::MAX_NAME;
use crate::set::{FieldSet, PathBudget};

/// Gives `new` the entries of `old` if both objects are equal but for the times of entries, so that a write without effect stays one.
/// Called after admission, with the objects to store.
pub fn keep_times(old: &Object, new: &mut Object) {
    let entries = |object: &Object| -> Option<Vec<Value>> {
        Some(object.metadata()?.list("managedFields").to_vec())
    };
    let (Some(before), Some(after)) = (entries(old), entries(new)) else { return };
    let is_same_entry = |(a, b): (&Value, &Value)| match (a, b) {
        (Value::Map(a), Value::Map(b)) => {
            let others = |(key, _): &(&str, &Value)| !matches!(*key, "time" | "fieldsV1");
            a.iter_sorted().filter(others).eq(b.iter_sorted().filter(others))
                && is_same_set(a.get("fieldsV1"), b.get("fieldsV1"))
        }
        _ => false,
    };
    let times_only = before.len() == after.len() && before.iter().zip(&after).all(is_same_entry);
    if !times_only || before.is_empty() || before == after || !is_same_object(old, new) {
        return;
    }
    new.metadata_mut().insert("managedFields", before);
}

/// Whether two sets are equal: other servers write those of custom resources in another order.
fn is_same_set(a: Option<&Value>, b: Option<&Value>) -> bool {
    let set = |value: &Value| FieldSet::from_value(value, &mut PathBudget::default());
    match (a, b) {
        (Some(a), Some(b)) => a == b || set(a).is_ok_and(|a| set(b).is_ok_and(|b| a == b)),
        (a, b) => a == b,
    }
}

fn is_same_object(old: &Object, new: &Object) -> bool {
    let empty = Map::new();
    let (a, b) = (old.metadata().unwrap_or(&empty), new.metadata().unwrap_or(&empty));
    equal_except(&old.fields, &new.fields, "metadata") && equal_except(a, b, "managedFields")
}

/// Whether two maps are equal in all keys but one.
fn equal_except(a: &Map, b: &Map, key: &str) -> bool {
    let others = |(have, _): &(&str, &Value)| *have != key;
    a.iter_sorted().filter(others).eq(b.iter_sorted().filter(others))
}

/// Puts entries into an object, or removes them.
pub fn set_managed_fields(object: &mut Object, managed_fields: Option<Value>) {
    match managed_fields {
        Some(entries) => drop(object.metadata_mut().insert("managedFields", entries)),
        None => drop(object.metadata_mut().remove("managedFields")),
    }
}

/// The manager of a request without the parameter `fieldManager`: the program in `User-Agent`. Applies need the parameter.
pub fn manager_of_user_agent(user_agent: &str) -> String {
    let program = user_agent.split('/').next().unwrap_or_default();
    let mut name = String::new();
    for char in program.chars().filter(|char| !char.is_control()) {
        if name.len().saturating_add(char.len_utf8()) > MAX_NAME {
            break;
        }
        name.push(char);
    }
    name
}
