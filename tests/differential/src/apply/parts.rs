//! pure: parts of objects that a manager applies: places of values, configurations with one of them only, other values.

use std::fmt;

use serde_json::{Map, Value as Json, json};

use crate::open_api::{OpenApi, Shape};

/// One step of the way to a value.
#[derive(Clone, Debug, PartialEq)]
pub enum Part {
    Field(String),
    /// An item of a list, with the fields that identify it.
    Item {
        at: usize,
        keys: Vec<String>,
    },
}

/// How what stands in a place is owned.
#[derive(Clone, Debug, PartialEq)]
pub enum Whole {
    /// A value with one owner.
    Value,
    /// A list with one owner.
    Atomic,
    /// Scalars, each with owners.
    Set,
    /// Objects, each with owners, identified by these fields.
    List(Vec<String>),
}

/// A place in an object that has a value there; shown as `spec.containers[*].name`.
#[derive(Clone, Debug, PartialEq)]
pub struct Place {
    pub steps: Vec<Part>,
    pub whole: Whole,
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (at, step) in self.steps.iter().enumerate() {
            match step {
                Part::Field(name) if at == 0 => f.write_str(name)?,
                Part::Field(name) => write!(f, ".{name}")?,
                Part::Item { .. } => f.write_str("[*]")?,
            }
        }
        Ok(())
    }
}

/// What identifies an object, and is in each configuration.
const IDENTITY: [&[&str]; 4] =
    [&["apiVersion"], &["kind"], &["metadata", "name"], &["metadata", "namespace"]];

/// The places of an object's values and lists. `schema` is that of the kind.
pub fn places(api: &OpenApi, schema: &Json, object: &Json) -> Vec<Place> {
    let mut walk = Walk { api, found: Vec::new() };
    walk.value(schema, object, &mut Vec::new());
    let is_identity = |place: &Place| {
        IDENTITY.iter().any(|names| {
            let steps = names.iter().map(|name| Part::Field((*name).to_owned()));
            place.steps.iter().cloned().eq(steps)
        })
    };
    walk.found.retain(|place| !is_identity(place));
    walk.found
}

struct Walk<'a> {
    api: &'a OpenApi,
    found: Vec<Place>,
}

impl Walk<'_> {
    fn value(&mut self, schema: &Json, value: &Json, way: &mut Vec<Part>) {
        match (self.api.shape(schema), value) {
            (Shape::Object(schema), Json::Object(fields)) => {
                for (name, value) in fields {
                    way.push(Part::Field(name.clone()));
                    self.value(&schema["properties"][name], value, way);
                    way.pop();
                }
            }
            (Shape::Map(values), Json::Object(fields)) if !fields.is_empty() => {
                for (name, value) in fields {
                    way.push(Part::Field(name.clone()));
                    self.value(values, value, way);
                    way.pop();
                }
            }
            (Shape::List { keys, items }, Json::Array(all)) => {
                self.find(way, Whole::List(keys.clone()));
                for (at, value) in all.iter().enumerate() {
                    way.push(Part::Item { at, keys: keys.clone() });
                    self.value(items, value, way);
                    way.pop();
                }
            }
            (Shape::Set, Json::Array(_)) => self.find(way, Whole::Set),
            (_, Json::Array(_)) => self.find(way, Whole::Atomic),
            _ => self.find(way, Whole::Value),
        }
    }

    fn find(&mut self, way: &[Part], whole: Whole) {
        self.found.push(Place { steps: way.to_vec(), whole });
    }
}

/// The identity of an object, as a configuration.
pub fn identity(object: &Json) -> Json {
    let mut config = json!({});
    for names in IDENTITY {
        if names.iter().try_fold(object, |here, name| here.get(name)).is_some() {
            let steps: Vec<_> = names.iter().map(|name| Part::Field((*name).to_owned())).collect();
            overlay(&mut config, part(object, &steps));
        }
    }
    config
}

/// The configuration with what stands in one place only.
pub fn only(object: &Json, place: &Place) -> Json {
    let mut config = identity(object);
    overlay(&mut config, part(object, &place.steps));
    config
}

fn part(object: &Json, steps: &[Part]) -> Json {
    let Some((first, rest)) = steps.split_first() else { return object.clone() };
    match first {
        Part::Field(name) => {
            let mut fields = Map::new();
            fields.insert(name.clone(), part(&object[name], rest));
            Json::Object(fields)
        }
        Part::Item { at, keys } => {
            let item = &object[*at];
            let mut found = part(item, rest);
            if !rest.is_empty() {
                keep_keys(&mut found, item, keys);
            }
            Json::Array(vec![found])
        }
    }
}

/// Puts the fields that identify an item into a part of it.
pub fn keep_keys(part: &mut Json, item: &Json, keys: &[String]) {
    for key in keys {
        if let (Some(part), Some(value)) = (part.as_object_mut(), item.get(key)) {
            part.insert(key.clone(), value.clone());
        }
    }
}

/// Puts `more` over an object: fields of both are merged, lists replaced.
pub fn overlay(object: &mut Json, more: Json) {
    match (object, more) {
        (Json::Object(object), Json::Object(more)) => {
            for (name, value) in more {
                overlay(object.entry(name).or_insert(Json::Null), value);
            }
        }
        (object, more) => *object = more,
    }
}

/// The object with another value in a place.
pub fn with(object: &Json, place: &Place, value: Json) -> Json {
    let mut object = object.clone();
    let found = place.steps.iter().try_fold(&mut object, |here, step| match step {
        Part::Field(name) => here.get_mut(name),
        Part::Item { at, .. } => here.get_mut(at),
    });
    if let Some(found) = found {
        *found = value;
    }
    object
}

/// The object without what stands in a place.
pub fn without(object: &Json, place: &Place) -> Json {
    let mut object = object.clone();
    let Some((last, above)) = place.steps.split_last() else { return object };
    let found = above.iter().try_fold(&mut object, |here, step| match step {
        Part::Field(name) => here.get_mut(name),
        Part::Item { at, .. } => here.get_mut(at),
    });
    match (found, last) {
        (Some(Json::Object(fields)), Part::Field(name)) => {
            fields.shift_remove(name);
        }
        (Some(Json::Array(items)), Part::Item { at, .. }) if *at < items.len() => {
            items.remove(*at);
        }
        _ => {}
    }
    object
}

/// What stands in a place.
pub fn at<'a>(object: &'a Json, place: &Place) -> Option<&'a Json> {
    place.steps.iter().try_fold(object, |here, step| match step {
        Part::Field(name) => here.get(name),
        Part::Item { at, .. } => here.get(at),
    })
}

/// Another value of the same type, of the same form where it begins with a digit.
pub fn changed(value: &Json) -> Json {
    match value {
        Json::Null => json!("a"),
        Json::Bool(value) => json!(!value),
        Json::Number(number) => number.as_i64().map_or(json!(2), |number| json!(number + 1)),
        Json::String(text) => match text.chars().next().and_then(|first| first.to_digit(10)) {
            Some(digit @ 1..=8) => json!(format!("{}{}", digit + 1, &text[1..])),
            _ => json!(format!("{text}x")),
        },
        Json::Array(items) => {
            let mut items = items.clone();
            match items.first_mut() {
                Some(first) => *first = changed(first),
                None => items.push(json!("a")),
            }
            Json::Array(items)
        }
        Json::Object(fields) => {
            let mut fields = fields.clone();
            if let Some(first) = fields.values_mut().next() {
                *first = changed(first);
            }
            Json::Object(fields)
        }
    }
}

/// Another item for a list: with another identity, and another name, if it has one.
pub fn another(item: &Json, whole: &Whole) -> Json {
    let Whole::List(keys) = whole else { return changed(item) };
    let mut item = item.clone();
    if let Some(fields) = item.as_object_mut() {
        for (name, value) in fields.iter_mut() {
            if keys.contains(name) || name == "name" {
                *value = changed(value);
            }
        }
    }
    item
}

#[cfg(test)]
mod tests {
    use super::*;

    fn api() -> OpenApi {
        OpenApi::new(&json!({"definitions": {}}))
    }

    fn schema() -> Json {
        json!({"properties": {
            "metadata": {"properties": {"name": {"type": "string"}}},
            "a": {"type": "string"},
            "list": {
                "type": "array", "x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["k"],
                "items": {"properties": {"k": {"type": "integer"}, "v": {"type": "string"}}},
            },
            "set": {"type": "array", "x-kubernetes-list-type": "set", "items": {"type": "string"}},
            "plain": {"type": "array", "items": {"type": "string"}},
        }})
    }

    #[test]
    fn places_are_found_and_configurations_have_one_of_them() {
        let object = json!({
            "kind": "K", "metadata": {"name": "n"}, "a": "x", "list": [{"k": 1, "v": "p"}, {"k": 2, "v": "q"}],
            "set": ["s"], "plain": ["t"],
        });
        let found = places(&api(), &schema(), &object);
        let shown: Vec<String> = found.iter().map(Place::to_string).collect();
        let expected =
            ["a", "list", "list[*].k", "list[*].v", "list[*].k", "list[*].v", "set", "plain"];
        assert_eq!(shown, expected);
        let value = &found[5];
        let config = json!({"kind": "K", "metadata": {"name": "n"}, "list": [{"k": 2, "v": "q"}]});
        assert_eq!(only(&object, value), config);
        assert_eq!(with(&object, value, json!("z"))["list"][1]["v"], "z");
        assert_eq!(without(&object, value)["list"][1], json!({"k": 2}));
        assert_eq!(at(&object, value), Some(&json!("q")));
        assert_eq!(found[1].whole, Whole::List(vec!["k".to_owned()]));
        assert_eq!(another(&object["list"][0], &found[1].whole), json!({"k": 2, "v": "p"}));
    }

    #[test]
    fn changed_values_have_the_same_type_and_form() {
        for (value, other) in [
            (json!("a"), json!("ax")),
            (json!("100m"), json!("200m")),
            (json!(1), json!(2)),
            (json!(true), json!(false)),
            (json!(["a", "b"]), json!(["ax", "b"])),
            (json!({"a": 1}), json!({"a": 2})),
        ] {
            assert_eq!(changed(&value), other);
        }
    }
}
