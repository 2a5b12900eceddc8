//! Group versions of other API servers, as their own documents describe them.

use std::collections::{BTreeMap, BTreeSet};

use super::to_json;
use crate::value::{Map, Value, parse_json};

/// Most bytes of one group version.
pub const PART_LEN_MAX: usize = 2 << 20;

const DEFINITIONS: &str = "#/definitions/";
const PARAMETERS: &str = "#/parameters/";

/// What another API server publishes of a group version.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct OtherApi {
    /// `apis/GROUP/VERSION`.
    pub path: String,
    /// Hash of its v3 document, if it has one; the document itself is with the other server.
    pub v3_hash: Option<String>,
    /// Its part of the v2 document, made by [`part_of`].
    pub v2: Option<Vec<u8>>,
}

/// The paths below `path` (`apis/GROUP/VERSION`) of another server's v2 document, with the definitions that they refer to. `None` if there are none, or more
/// than [`PART_LEN_MAX`].
pub fn part_of(document: &[u8], path: &str) -> Option<Vec<u8>> {
    let Ok(Value::Map(document)) = parse_json(document, &mut Vec::new()) else { return None };
    let below = format!("/{path}/");
    let mut paths = document.map("paths")?.clone();
    paths.retain(|path, _| path.starts_with(&below));
    if paths.is_empty() {
        return None;
    }
    let mut room = PART_LEN_MAX;
    let shared = document.map("parameters").cloned().unwrap_or_default();
    for (_, item) in paths.iter_mut() {
        open_parameters(item, &shared, &mut room)?;
    }
    let paths = Value::Map(paths);
    let all = document.map("definitions").cloned().unwrap_or_default();
    let mut wanted = BTreeSet::new();
    let mut queue = definitions_in(&paths);
    while let Some(name) = queue.pop() {
        if let Some(definition) = all.get(&name)
            && wanted.insert(name)
        {
            queue.append(&mut definitions_in(definition));
        }
    }
    let mut definitions = all;
    definitions.retain(|name, _| wanted.contains(name));
    let part = Map::from_iter([("definitions", Value::Map(definitions)), ("paths", paths)]);
    Some(to_json(&Value::Map(part))).filter(|part| part.len() <= PART_LEN_MAX)
}

/// Puts parameters in the place of references to those that all paths of the document share. `None` if they take more than `room`.
fn open_parameters(item: &mut Value, shared: &Map, room: &mut usize) -> Option<()> {
    let Some(item) = item.as_map_mut() else { return Some(()) };
    for (name, value) in item.iter_mut() {
        match value {
            Value::Map(_) => open_parameters(value, shared, room)?,
            Value::List(list) if name == "parameters" => {
                for one in list.iter_mut() {
                    let name =
                        one.as_map().and_then(|one| one.str("$ref").strip_prefix(PARAMETERS));
                    let Some(meant) = name.and_then(|name| shared.get(name)) else { continue };
                    *room = room.checked_sub(to_json(meant).len())?;
                    *one = meant.clone();
                }
            }
            _ => {}
        }
    }
    Some(())
}

/// The names of the definitions that a value refers to.
fn definitions_in(value: &Value) -> Vec<String> {
    let mut found = Vec::new();
    let mut queue = vec![value];
    while let Some(value) = queue.pop() {
        match value {
            Value::Map(map) => {
                found.extend(map.str("$ref").strip_prefix(DEFINITIONS).map(str::to_owned));
                queue.extend(map.iter().map(|(_, value)| value));
            }
            Value::List(list) => queue.extend(list),
            _ => {}
        }
    }
    found
}

/// What the name of another server's definition is in this server's document.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum NameUse {
    /// Nothing has it.
    Free,
    /// It is of a type that all servers have, which this one describes.
    Shared,
    /// Something else has it.
    Taken,
}

/// The contents of other servers' parts in one document.
#[derive(Default)]
pub(super) struct Merged {
    pub paths: Map,
    pub definitions: Map,
}

/// Puts parts into one document, whose own definitions `name_use` knows. A definition whose name another one has gets a name of its own.
pub(super) fn merge<'a>(
    parts: impl Iterator<Item = &'a [u8]>,
    name_use: impl Fn(&str) -> NameUse,
) -> Merged {
    let mut merged = Merged::default();
    for part in parts {
        let Ok(Value::Map(mut part)) = parse_json(part, &mut Vec::new()) else { continue };
        let theirs = std::mem::take(part.map_or_insert("definitions"));
        let mut names: BTreeMap<String, String> = BTreeMap::new();
        let mut added = Vec::new();
        let own: BTreeSet<String> = theirs.iter().map(|(name, _)| name.to_owned()).collect();
        for (name, definition) in theirs {
            if name_use(&name) == NameUse::Shared {
                continue;
            }
            let original = name.to_string();
            let is_free = |name: &String| {
                let before = merged.definitions.get(name);
                let is_another = *name != original && own.contains(name);
                !is_another
                    && name_use(name) == NameUse::Free
                    && before.is_none_or(|have| *have == definition)
            };
            let mut choices = (1..).map(|at: u32| match at {
                1 => name.to_string(),
                at => format!("{name}_v{at}"),
            });
            let Some(choice) = choices.find(is_free) else { continue };
            if choice != name {
                names.insert(name.into_owned(), choice.clone());
            }
            added.push((choice, definition));
        }
        for (name, mut definition) in added {
            rename(&mut definition, &names);
            merged.definitions.insert(name, definition);
        }
        for (path, mut item) in std::mem::take(part.map_or_insert("paths")) {
            rename(&mut item, &names);
            merged.paths.insert(path, item);
        }
    }
    merged
}

/// Changes references to definitions with a new name.
fn rename(value: &mut Value, names: &BTreeMap<String, String>) {
    match value {
        Value::Map(map) => {
            let old = map.str("$ref").strip_prefix(DEFINITIONS);
            if let Some(new) = old.and_then(|old| names.get(old)) {
                let new = format!("{DEFINITIONS}{new}");
                map.insert("$ref", new);
            }
            map.iter_mut().for_each(|(_, value)| rename(value, names));
        }
        Value::List(list) => list.iter_mut().for_each(|value| rename(value, names)),
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value as Json, json};

    use super::*;

    fn parsed(bytes: &[u8]) -> Json {
        serde_json::from_slice(bytes).expect("JSON")
    }

    fn theirs() -> Json {
        let item = json!({"$ref": "#/definitions/com.a.Thing"});
        json!({
            "paths": {
                "/apis/a.com/v1/things": {"parameters": [{"$ref": "#/parameters/pretty"}], "get": {"responses": {"200": {"schema": item}}}},
                "/apis/a.com/v1/": {"get": {}},
                "/apis/a.com/v10/things": {"get": {}},
                "/version/": {"get": {"responses": {"200": {"schema": {"$ref": "#/definitions/Version"}}}}},
            },
            "parameters": {"pretty": {"name": "pretty", "in": "query", "type": "string"}},
            "definitions": {
                "com.a.Thing": {"properties": {"metadata": {"$ref": "#/definitions/io.k8s.ObjectMeta"}, "next": {"items": {"$ref": "#/definitions/com.a.Thing"}}}},
                "io.k8s.ObjectMeta": {"description": "theirs"},
                "Version": {},
            },
        })
    }

    #[test]
    fn a_part_has_the_paths_of_the_group_version_and_what_they_refer_to() {
        let document = theirs().to_string();
        let part = parsed(&part_of(document.as_bytes(), "apis/a.com/v1").expect("a part"));
        let keys = |value: &Json| -> BTreeSet<String> {
            value.as_object().expect("a map").keys().cloned().collect()
        };
        let expected = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect();
        let paths: BTreeSet<String> = expected(&["/apis/a.com/v1/", "/apis/a.com/v1/things"]);
        assert_eq!(keys(&part["paths"]), paths);
        assert_eq!(keys(&part["definitions"]), expected(&["com.a.Thing", "io.k8s.ObjectMeta"]));
        assert_eq!(part["paths"]["/apis/a.com/v1/things"]["parameters"][0]["name"], "pretty");
        assert!(part_of(document.as_bytes(), "apis/b.com/v1").is_none());
        assert!(part_of(b"{", "apis/a.com/v1").is_none());
        assert!(part_of(br#"{"paths": []}"#, "apis/a.com/v1").is_none());
    }

    #[test]
    fn references_to_large_parameters_do_not_multiply_them() {
        let mut document = theirs();
        let text = "x".repeat(PART_LEN_MAX / 4);
        document["parameters"]["pretty"]["description"] = json!(text);
        let many = vec![json!({"$ref": "#/parameters/pretty"}); 5];
        document["paths"]["/apis/a.com/v1/things"]["parameters"] = json!(many);
        assert!(part_of(document.to_string().as_bytes(), "apis/a.com/v1").is_none());
    }

    #[test]
    fn definitions_of_the_same_name_are_not_mixed_up() {
        let part = part_of(theirs().to_string().as_bytes(), "apis/a.com/v1").expect("a part");
        let name_use = |name: &str| match name {
            "io.k8s.ObjectMeta" => NameUse::Shared,
            "com.a.Thing" => NameUse::Taken,
            _ => NameUse::Free,
        };
        let Merged { paths, definitions } =
            merge([part.as_slice(), part.as_slice()].into_iter(), name_use);
        let merged = Map::from_iter([("paths", paths), ("definitions", definitions)]);
        let merged = parsed(&to_json(&Value::Map(merged)));
        let definitions = &merged["definitions"];
        for own in ["io.k8s.ObjectMeta", "com.a.Thing"] {
            assert!(definitions.get(own).is_none(), "{own} is this server's");
        }
        let renamed = &definitions["com.a.Thing_v2"]["properties"];
        assert_eq!(renamed["metadata"]["$ref"], "#/definitions/io.k8s.ObjectMeta");
        assert_eq!(renamed["next"]["items"]["$ref"], "#/definitions/com.a.Thing_v2");
        let answer = &merged["paths"]["/apis/a.com/v1/things"]["get"]["responses"]["200"]["schema"];
        assert!(
            answer["$ref"]
                .as_str()
                .expect("a reference")
                .starts_with("#/definitions/com.a.Thing_v")
        );
    }

    #[test]
    fn a_new_name_is_none_that_the_part_has_itself() {
        let part = json!({"paths": {}, "definitions": {
            "com.a.Thing": {"description": "thing"}, "com.a.Thing_v2": {"description": "another"},
        }});
        let taken = |name: &str| match name {
            "com.a.Thing" => NameUse::Taken,
            _ => NameUse::Free,
        };
        let merged = merge([part.to_string().as_bytes()].into_iter(), taken);
        let of = |name: &str| merged.definitions.map(name).map(|one| one.str("description"));
        assert_eq!(of("com.a.Thing_v2"), Some("another"));
        assert_eq!(of("com.a.Thing_v3"), Some("thing"));
    }
}
