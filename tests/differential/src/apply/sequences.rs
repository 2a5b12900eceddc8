//! pure: writes by chance, most of them applies of several managers to one object.

use serde_json::{Map, Value as Json, json};

use super::chance::Chance;
use super::parts::{Whole, another, changed, identity, keep_keys, overlay};
use super::script::{BASE, JSON_PATCH, MERGE, Script};
use super::{Named, Subject};
use crate::open_api::{OpenApi, Shape};

/// Sequences of one resource, and writes of each.
const SEQUENCES: usize = 3;
const WRITES: usize = 12;
const MANAGERS: [&str; 3] = ["a", "b", "c"];

/// The sequences of a resource.
pub fn all(subject: &Subject<'_>) -> Vec<Named> {
    (0..SEQUENCES).map(|number| sequence(subject, number)).collect()
}

fn sequence(subject: &Subject<'_>, number: usize) -> Named {
    let name = format!("apply-chance-{number}");
    let mut script = Script::new(subject.resource, &name);
    let object = script.object();
    let mut choice = Choice {
        api: subject.api,
        chance: Chance::new(subject.seed, &format!("{} {name}", subject.resource.full_name())),
        kept: 100,
        changed: 0,
    };
    // Who has made the object owns all of it, so that what it needs stays when others give it up.
    match number % 2 {
        0 => script.apply("z", &object),
        _ => script.create("z", &object),
    }
    for _ in 0..WRITES {
        write(subject, &mut script, &mut choice, &object);
    }
    script.get("");
    script.case(
        "apply by chance",
        &format!("(sequence {number})"),
        &format!("seed {}", subject.seed),
    )
}

fn write(subject: &Subject<'_>, script: &mut Script<'_>, choice: &mut Choice<'_>, object: &Json) {
    let manager = choice.chance.choose(&MANAGERS);
    let of_metadata =
        json!({"metadata": {"labels": choice.words(), "annotations": choice.words()}});
    match choice.chance.below(20) {
        0 | 1 => script.patch(MERGE, manager, "", of_metadata),
        2 => script.edit(manager, "", of_metadata),
        3 => {
            let mut value = choice.words();
            value[BASE] = json!("c");
            let patch = json!([{"op": "add", "path": "/metadata/labels", "value": value}]);
            script.patch(JSON_PATCH, manager, "", patch);
        }
        4 => script.apply(manager, &identity(object)),
        _ => {
            choice.kept = choice.chance.choose(&[20, 50, 90]);
            choice.changed = choice.chance.choose(&[0, 0, 15]);
            let mut config = choice.part(subject.schema, object).unwrap_or_else(|| json!({}));
            overlay(&mut config, identity(object));
            if choice.chance.percent(30) {
                overlay(&mut config, json!({"metadata": {"labels": choice.words()}}));
            }
            match choice.chance.percent(40) {
                true => script.force(manager, &config),
                false => script.apply(manager, &config),
            }
        }
    }
}

/// Chooses parts of objects.
struct Choice<'a> {
    api: &'a OpenApi,
    chance: Chance,
    /// Percentage of values that are kept.
    kept: usize,
    /// Percentage of those that are changed.
    changed: usize,
}

impl Choice<'_> {
    /// A few labels or annotations.
    fn words(&mut self) -> Json {
        let mut words = Map::new();
        for name in ["a", "k", "l", "m"] {
            if self.chance.percent(40) {
                words.insert(name.to_owned(), json!(self.chance.choose(&["b", "c", "d"])));
            }
        }
        Json::Object(words)
    }

    /// A part of a value, mostly with its own values; none if nothing is kept.
    fn part(&mut self, schema: &Json, value: &Json) -> Option<Json> {
        match (self.api.shape(schema), value) {
            (Shape::Object(schema), Json::Object(fields)) => {
                self.fields(fields, &|name| &schema["properties"][name])
            }
            (Shape::Map(values), Json::Object(fields)) => self.fields(fields, &|_| values),
            (Shape::List { keys, items }, Json::Array(all)) => {
                let whole = Whole::List(keys);
                let all = self.with_another(all, &whole);
                let mut found = Vec::new();
                for item in all {
                    let part = self.part(items, &item);
                    if let (Some(mut part), Whole::List(keys)) = (part, &whole) {
                        keep_keys(&mut part, &item, keys);
                        found.push(part);
                    }
                }
                self.list(found)
            }
            (Shape::Set, Json::Array(all)) => {
                let all = self.with_another(all, &Whole::Set);
                let found = all.into_iter().filter(|_| self.chance.percent(self.kept)).collect();
                self.list(found)
            }
            (_, value) if self.chance.percent(self.kept) => {
                Some(if self.chance.percent(self.changed) { changed(value) } else { value.clone() })
            }
            _ => None,
        }
    }

    fn fields<'s>(
        &mut self,
        fields: &Map<String, Json>,
        schema: &dyn Fn(&str) -> &'s Json,
    ) -> Option<Json> {
        if fields.is_empty() {
            return self.chance.percent(self.kept).then(|| json!({}));
        }
        let found = fields.iter().filter_map(|(name, value)| {
            let part = self.part(schema(name), value)?;
            // It stays with who has made the object.
            let is_base = name == BASE;
            Some((name.clone(), if is_base { value.clone() } else { part }))
        });
        let found: Map<String, Json> = found.collect();
        (!found.is_empty()).then_some(Json::Object(found))
    }

    /// The items, sometimes with one more.
    fn with_another(&mut self, items: &[Json], whole: &Whole) -> Vec<Json> {
        let mut items = items.to_vec();
        if let Some(first) = items.first()
            && self.chance.percent(30)
        {
            items.push(another(first, whole));
        }
        items
    }

    /// A list, sometimes in the other order, or empty.
    fn list(&mut self, mut items: Vec<Json>) -> Option<Json> {
        if self.chance.percent(20) {
            items.reverse();
        }
        (!items.is_empty() || self.chance.percent(10)).then_some(Json::Array(items))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_keep_what_identifies_items_and_are_the_same_with_the_same_seed() {
        let api = OpenApi::new(&json!({"definitions": {}}));
        let schema = json!({"properties": {"l": {
            "type": "array", "x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["k"],
            "items": {"properties": {"k": {"type": "integer"}, "v": {"type": "string"}}},
        }}});
        let object = json!({"l": [{"k": 1, "v": "a"}, {"k": 2, "v": "b"}]});
        let parts = |seed| -> Vec<Option<Json>> {
            let chance = Chance::new(seed, "a");
            let mut choice = Choice { api: &api, chance, kept: 50, changed: 10 };
            (0..50).map(|_| choice.part(&schema, &object)).collect()
        };
        assert_eq!(parts(1), parts(1));
        assert_ne!(parts(1), parts(2));
        for part in parts(1).into_iter().flatten() {
            let items = part["l"].as_array().unwrap();
            assert!(items.iter().all(|item| item["k"].is_i64()), "{part}");
        }
    }
}
