//! Tests: histories of random writes, and what Kubernetes' library for structured merges (v4.2.3, of release 1.25) made of them
//! (`testdata/merges`): sets, comparisons, merges, owners and conflicts.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use apiserver_schema::{Map, Value};

use super::{Merged, UpdateError, Updater};
use crate::element::FieldPath;
use crate::entries::{ManagedFields, ManagedFieldsOperation, Owner};
use crate::set::FieldSet;
use crate::structure::Structure;
use crate::testing::{fields, json, schema, text};
use crate::versions::{ConvertError, ResetFields, SeveralVersions, Versions};

/// Fields with another name in version v2.
const RENAMED: &[(&str, &str)] = &[("s", "t"), ("set", "set2"), ("struct", "structure")];

/// The map with the names that its keys have in a version.
fn renamed(map: &Map, version: &str) -> Map {
    let other = |key: &str| {
        let pair = RENAMED.iter().find(|(v1, v2)| *v1 == key || *v2 == key);
        pair.map(|(v1, v2)| if version == "v1" { *v1 } else { *v2 })
    };
    map.iter().map(|(key, value)| (other(key).unwrap_or(key).to_owned(), value.clone())).collect()
}

fn convert(tree: &Value, _: &str, to: &str) -> Result<Value, ConvertError> {
    match tree {
        Value::Null => Ok(Value::Map(Map::new())), // all was removed
        tree => {
            tree.as_map().map(|map| Value::Map(renamed(map, to))).ok_or(ConvertError::new("no map"))
        }
    }
}

/// The structures of both versions.
fn structures() -> BTreeMap<String, Structure> {
    let schema = schema();
    let schema = schema.as_map().expect("a map");
    let versions = ["v1", "v2"].map(|version| {
        let mut schema = schema.clone();
        let properties = schema.map_mut("properties").expect("properties");
        *properties = renamed(properties, version);
        let structure = Structure::from_openapi(&schema, false).expect("a structure");
        (version.to_owned(), structure)
    });
    BTreeMap::from(versions)
}

/// A history: the object, its owners, and what differs from the recording.
struct History {
    versions: SeveralVersions<'static>,
    /// The version of `live`: that of the last write.
    version: String,
    reset: ResetFields,
    live: Value,
    managed: ManagedFields,
    differences: Vec<String>,
}

impl History {
    fn new(structures: &BTreeMap<String, Structure>, scenario: &Map) -> History {
        let reset = scenario.list("Reset").iter().map(|path| {
            let names = path.as_list().unwrap_or_default().iter().filter_map(Value::as_str);
            FieldPath::fields(&names.collect::<Vec<_>>())
        });
        let reset: FieldSet = reset.collect();
        let reset = ResetFields::from([("v1".to_owned(), reset)]);
        let structures = structures.clone();
        let versions = SeveralVersions { structures, convert: Some(&convert) };
        History {
            versions,
            version: "v1".to_owned(),
            reset,
            live: Value::Map(Map::new()),
            managed: ManagedFields::default(),
            differences: Vec::new(),
        }
    }

    fn check(&mut self, what: &str, got: String, want: &Map) {
        let want = want.get(what).map(text).unwrap_or_default();
        if got != want {
            self.differences.push(format!("{what}\n    got  {got}\n    want {want}"));
        }
    }

    /// Compares trees, whose maps have no order.
    fn check_tree(&mut self, what: &str, got: &Value, want: &Map) {
        if Some(got) != want.get(what) {
            self.check(what, text(got), want);
        }
    }

    fn step(&mut self, step: &Map, want: &Map) {
        let object = step.get("Object").expect("an object");
        let version = Some(step.str("Version")).filter(|version| !version.is_empty());
        let version = version.unwrap_or("v1").to_owned();
        let structure = self.versions.structures.get(&version).expect("a version").clone();
        if let Err(error) = structure.validate(object) {
            let got = text(&Value::from(error.to_string()));
            return self.check("invalid", got, want);
        }
        let live = self.versions.convert(&self.live, &self.version, &version);
        self.live = live.expect("a conversion").into_owned();
        self.version = version;
        let set = structure.fields_of(object);
        self.check("fields", fields(&set), want);
        let compare = structure.compare(&self.live, object);
        self.check("Added", fields(&compare.added), want);
        self.check("Modified", fields(&compare.modified), want);
        self.check("Removed", fields(&compare.removed), want);
        let live = structure.fields_of(&self.live);
        self.check("Leaves", fields(&set.leaves()), want);
        self.check("Minus", fields(&live.difference(&set)), want);
        self.check("MinusAll", fields(&live.recursive_difference(&set)), want);
        self.check("Both", fields(&live.intersection(&set)), want);
        let without = structure.without(&self.live, &set);
        self.check_tree("Without", &without, want);
        self.write(step, object, want);
    }

    fn write(&mut self, step: &Map, object: &Value, want: &Map) {
        let version = self.version.clone();
        let updater =
            Updater { versions: &self.versions, reset: &self.reset, api_version: &version };
        let operation = if step.str("Op") == "apply" {
            ManagedFieldsOperation::Apply
        } else {
            ManagedFieldsOperation::Update
        };
        // The library has one owner for a name, whatever the version.
        let owner = Owner::new(step.str("Manager"), operation, "", "");
        let managed = self.managed.clone();
        let result = match operation {
            ManagedFieldsOperation::Apply => {
                updater.apply(&self.live, object, managed, &owner, step.is_true("Force"))
            }
            ManagedFieldsOperation::Update => updater
                .update(&self.live, object, managed, &owner)
                .map(|managed| Merged { tree: Some(object.clone()), managed }),
        };
        match result {
            Ok(merged) => {
                self.managed = merged.managed;
                self.live = merged.tree.unwrap_or_else(|| self.live.clone());
            }
            Err(UpdateError::Conflicts(conflicts)) => {
                let all = conflicts.by_owner.iter().flat_map(|(owner, set)| {
                    set.paths().into_iter().map(|path| format!("{} {path}", owner.manager))
                });
                let mut all: Vec<String> = all.collect();
                all.sort();
                let all = all.into_iter().map(Value::from).collect::<Vec<_>>();
                self.check("conflicts", text(&Value::List(all)), want);
            }
            Err(error) => self.differences.push(error.to_string()),
        }
        let live = self.live.clone();
        self.check_tree("live", &live, want);
        let owners = self.managed.iter().map(|(owner, owned)| {
            (format!("{} {}", owner.manager, owned.api_version), json(&fields(&owned.fields)))
        });
        let owners: Map = owners.collect();
        if !owners.is_empty() || want.contains("owners") {
            self.check("owners", text(&Value::Map(owners)), want);
        }
    }
}

fn check(file: &str, steps_at_least: usize) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("testdata/merges").join(file);
    let structures = structures();
    let histories = fs::read_to_string(path).expect("histories");
    let mut wrong = Vec::new();
    let mut steps = 0;
    for (number, line) in histories.lines().enumerate() {
        let line = json(line);
        let line = line.as_map().expect("a map");
        let scenario = line.map("scenario").expect("a scenario");
        let mut history = History::new(&structures, scenario);
        for (at, (step, want)) in scenario.maps("Steps").zip(line.maps("results")).enumerate() {
            steps += 1;
            history.step(step, want);
            let found = std::mem::take(&mut history.differences);
            wrong.extend(found.into_iter().map(|found| format!("{number}.{at}: {found}")));
        }
    }
    assert!(wrong.is_empty(), "{file}: {} differences\n{}", wrong.len(), wrong.join("\n"));
    assert!(steps > steps_at_least, "{file}: {steps} steps");
}

#[test]
fn histories_are_those_of_kubernetes_library() {
    check("histories.jsonl", 200);
}

#[test]
fn histories_in_two_versions_are_those_of_kubernetes_library() {
    check("versions.jsonl", 200);
}
