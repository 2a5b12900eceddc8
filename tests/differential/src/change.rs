//! pure: changes of one field of an object, and those that are tried of each type.

use serde_json::{Map, Value as Json, json};

use crate::open_api::{FieldAt, FieldPath, Step, Type};

/// What is done to a field.
#[derive(Clone, Debug, PartialEq)]
pub enum Change {
    Set(Json),
    Remove,
    /// Its first item stands in it twice.
    Duplicate,
}

impl Change {
    /// As told in reports.
    pub fn label(&self) -> String {
        match self {
            Self::Remove => "removed".to_owned(),
            Self::Duplicate => "the first item twice".to_owned(),
            Self::Set(value) => shorten(&value.to_string()),
        }
    }

    /// Makes the change; false if it makes no sense for this object.
    pub fn apply(&self, object: &mut Json, path: &FieldPath) -> bool {
        match (self, path.0.split_last()) {
            (_, None) => false,
            (Self::Remove, Some((last, above))) => match (find(object, above), last) {
                (Some(Json::Object(parent)), Step::Field(name)) => {
                    parent.shift_remove(name).is_some()
                }
                (Some(Json::Array(parent)), Step::Item) if !parent.is_empty() => {
                    parent.remove(0);
                    true
                }
                _ => false,
            },
            (Self::Duplicate, Some(_)) => match find(object, &path.0) {
                Some(Json::Array(items)) if !items.is_empty() => {
                    *items = vec![items[0].clone(), items[0].clone()];
                    true
                }
                _ => false,
            },
            (Self::Set(value), Some(_)) => match reach(object, &path.0) {
                Some(place) => {
                    *place = value.clone();
                    true
                }
                None => false,
            },
        }
    }
}

/// A text of bounded length.
fn shorten(text: &str) -> String {
    match text.char_indices().nth(40) {
        Some((at, _)) => format!("{}... ({} bytes)", &text[..at], text.len()),
        None => text.to_owned(),
    }
}

fn find<'a>(object: &'a mut Json, path: &[Step]) -> Option<&'a mut Json> {
    let mut here = object;
    for step in path {
        here = match step {
            Step::Field(name) => here.get_mut(name)?,
            Step::Item => here.get_mut(0)?,
        };
    }
    Some(here)
}

/// The place of a field, made with all above it.
fn reach<'a>(object: &'a mut Json, path: &[Step]) -> Option<&'a mut Json> {
    let mut here = object;
    for step in path {
        here = match step {
            Step::Field(name) => {
                if here.is_null() {
                    *here = Json::Object(Map::new());
                }
                here.as_object_mut()?.entry(name.as_str()).or_insert(Json::Null)
            }
            Step::Item => {
                if here.is_null() {
                    *here = Json::Array(Vec::new());
                }
                let items = here.as_array_mut()?;
                if items.is_empty() {
                    items.push(Json::Null);
                }
                items.first_mut()?
            }
        };
    }
    Some(here)
}

/// Values that are mostly wrong.
pub fn wrong_changes(field: &FieldAt) -> Vec<Change> {
    let long = "x".repeat(300);
    let values = match field.r#type {
        Type::Integer => {
            vec![json!(-1), json!(0), json!(1), json!(70_000), json!(2_147_483_648_u32), json!("1")]
        }
        Type::Number => vec![json!(-1)],
        Type::Boolean => vec![json!(true), json!(false), json!("true")],
        Type::Text => {
            vec![json!(""), json!("a"), json!("Not Valid!"), json!(long), json!("-a"), json!(5)]
        }
        Type::Bytes => vec![json!(""), json!("AA=="), json!("!")],
        Type::IntOrString => {
            vec![json!(-1), json!(0), json!("150%"), json!("abc"), json!(70_000), json!("http")]
        }
        Type::Quantity => vec![json!("-1"), json!("0"), json!("1.5Gi"), json!("abc"), json!("1m")],
        Type::Time => vec![json!("x"), json!("2020-01-01T00:00:00Z")],
        Type::Object => vec![json!({}), Json::Null],
        Type::List => vec![json!([]), json!([{}])],
        Type::MapOfText => maps(json!("b")),
        Type::MapOfQuantities => maps(json!("1")),
        Type::MapOfBytes => maps(json!("AA==")),
        Type::Any => vec![json!({}), json!("a")],
    };
    with_removal(field, values)
}

fn maps(value: Json) -> Vec<Json> {
    let key = |key: &str| Json::Object([(key.to_owned(), value.clone())].into_iter().collect());
    let long = "x".repeat(300);
    vec![
        json!({}),
        key(""),
        key("Not Valid!"),
        key(&long),
        json!({"a": "Not Valid!"}),
        key("a"),
        key("a/b"),
    ]
}

/// Values that are mostly right, and other than those of an object that exists.
pub fn other_changes(field: &FieldAt) -> Vec<Change> {
    let values = match field.r#type {
        Type::Integer => vec![json!(2), json!(-1)],
        Type::Number => vec![json!(2)],
        Type::Boolean => vec![json!(true), json!(false)],
        Type::Text => vec![json!("changed"), json!("")],
        Type::Bytes => vec![json!("YQ==")],
        Type::IntOrString => vec![json!(2), json!("50%")],
        Type::Quantity => vec![json!("3")],
        Type::Time => vec![json!("2020-01-01T00:00:00Z")],
        Type::Object => vec![json!({})],
        Type::List => vec![json!([])],
        Type::MapOfText => vec![json!({"changed": "b"})],
        Type::MapOfQuantities => vec![json!({"cpu": "3"})],
        Type::MapOfBytes => vec![json!({"changed": "YQ=="})],
        Type::Any => vec![json!({})],
    };
    with_removal(field, values)
}

fn with_removal(field: &FieldAt, values: Vec<Json>) -> Vec<Change> {
    let mut changes: Vec<Change> = values.into_iter().map(Change::Set).collect();
    if field.is_set {
        if field.r#type == Type::List {
            changes.push(Change::Duplicate);
        }
        changes.push(Change::Remove);
    }
    changes
}

#[cfg(test)]
mod tests {
    use super::*;

    fn path(steps: &[&str]) -> FieldPath {
        let step = |name: &&str| match *name {
            "*" => Step::Item,
            name => Step::Field(name.to_owned()),
        };
        FieldPath(steps.iter().map(step).collect())
    }

    #[test]
    fn a_change_makes_what_is_above_it_and_touches_nothing_else() {
        let mut object = json!({"a": 1});
        assert!(Change::Set(json!("x")).apply(&mut object, &path(&["s", "l", "*", "n"])));
        assert_eq!(object, json!({"a": 1, "s": {"l": [{"n": "x"}]}}));
        assert!(Change::Duplicate.apply(&mut object, &path(&["s", "l"])));
        assert_eq!(object["s"]["l"], json!([{"n": "x"}, {"n": "x"}]));
        assert!(Change::Remove.apply(&mut object, &path(&["s"])));
        assert_eq!(object, json!({"a": 1}));
        assert!(!Change::Remove.apply(&mut object, &path(&["s"])));
        assert!(!Change::Set(json!(1)).apply(&mut object, &path(&["a", "b"])));
    }
}
