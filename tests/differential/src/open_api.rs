//! pure: the definitions of Kubernetes' OpenAPI document, and the fields of a kind that they lead to.

use std::collections::BTreeMap;
use std::fmt;

use serde_json::Value as Json;

/// Depth of definitions below which none is looked into.
const DEPTH_MAX: usize = 7;

/// One part of the way to a field.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Step {
    /// A field of an object.
    Field(String),
    /// The first item of a list.
    Item,
}

/// The way to a field; shown as `spec.containers[*].name`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FieldPath(pub Vec<Step>);

impl FieldPath {
    /// The names of its fields, without positions in lists.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.0.iter().filter_map(|step| match step {
            Step::Field(name) => Some(name.as_str()),
            Step::Item => None,
        })
    }

    fn field(&self, name: &str) -> Self {
        let mut steps = self.0.clone();
        steps.push(Step::Field(name.to_owned()));
        Self(steps)
    }

    fn item(&self) -> Self {
        let mut steps = self.0.clone();
        steps.push(Step::Item);
        Self(steps)
    }
}

impl fmt::Display for FieldPath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (at, step) in self.0.iter().enumerate() {
            match step {
                Step::Field(name) if at == 0 => f.write_str(name)?,
                Step::Field(name) => write!(f, ".{name}")?,
                Step::Item => f.write_str("[*]")?,
            }
        }
        Ok(())
    }
}

/// What a field may hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Type {
    Integer,
    Number,
    Boolean,
    Text,
    Bytes,
    IntOrString,
    Quantity,
    Time,
    Object,
    List,
    MapOfText,
    MapOfQuantities,
    MapOfBytes,
    Any,
}

/// A field of a kind.
#[derive(Clone, Debug)]
pub struct FieldAt {
    /// Where it is.
    pub path: FieldPath,
    /// What it holds.
    pub r#type: Type,
    /// Whether the object that was walked has it.
    pub is_set: bool,
}

/// How values of a schema are owned.
#[derive(Debug, PartialEq)]
pub enum Shape<'a> {
    /// As a whole.
    Leaf,
    /// By field; the schema has them as its `properties`.
    Object(&'a Json),
    /// By key; the schema of the values.
    Map(&'a Json),
    /// Scalars, by item.
    Set,
    /// By item.
    List {
        /// The fields that identify an item.
        keys: Vec<String>,
        /// The schema of the items.
        items: &'a Json,
    },
}

/// The document's definitions.
pub struct OpenApi {
    definitions: BTreeMap<String, Json>,
    /// Names of definitions by `group/version` and kind.
    kinds: BTreeMap<(String, String), String>,
}

impl OpenApi {
    /// Of a whole document.
    pub fn new(document: &Json) -> Self {
        let mut all = Self { definitions: BTreeMap::new(), kinds: BTreeMap::new() };
        for (name, definition) in document["definitions"].as_object().into_iter().flatten() {
            let kinds = definition["x-kubernetes-group-version-kind"].as_array();
            for kind in kinds.into_iter().flatten() {
                let text = |field: &str| kind[field].as_str().unwrap_or_default();
                let version = match text("group") {
                    "" => text("version").to_owned(),
                    group => format!("{group}/{}", text("version")),
                };
                all.kinds.insert((version, text("kind").to_owned()), name.clone());
            }
            all.definitions.insert(name.clone(), definition.clone());
        }
        all
    }

    /// With one more definition.
    pub fn with(mut self, name: &str, definition: Json) -> Self {
        self.definitions.insert(name.to_owned(), definition);
        self
    }

    /// The definition of a kind.
    pub fn definition(&self, version: &str, kind: &str) -> Option<&str> {
        self.kinds.get(&(version.to_owned(), kind.to_owned())).map(String::as_str)
    }

    /// The definition of a field of `definition`, or of its items or values; an empty name where it has none of its own. None if there is no such field.
    pub fn field(&self, definition: &str, field: &str) -> Option<&str> {
        let Some(definition) = self.definitions.get(definition) else { return Some("") };
        let Some(properties) = definition["properties"].as_object() else { return Some("") };
        let mut property = properties.get(field)?;
        while let Some(inner) = property.get("items").or(property.get("additionalProperties")) {
            property = inner;
        }
        Some(reference(property).unwrap_or(""))
    }

    /// All fields below `path` of a kind, in order; `below` says of a field whether it is looked into.
    pub fn fields(
        &self,
        definition: &str,
        base: &Json,
        below: &dyn Fn(&FieldPath) -> bool,
    ) -> Vec<FieldAt> {
        let mut walk = Walk { api: self, below, found: Vec::new(), seen: Vec::new() };
        walk.object(definition, Some(base), &FieldPath::default());
        walk.found
    }

    /// The schema of a definition.
    pub fn schema(&self, definition: &str) -> Option<&Json> {
        self.definitions.get(definition)
    }

    /// How the values of a schema are owned, by its markers as server-side apply reads them: of lists without one those of strategic merge patches.
    pub fn shape<'a>(&'a self, schema: &'a Json) -> Shape<'a> {
        let known = reference(schema).and_then(|name| self.definitions.get(name));
        let whole = known.unwrap_or(schema);
        if [schema, whole].iter().any(|one| one["x-kubernetes-map-type"] == "atomic") {
            return Shape::Leaf;
        }
        if whole["properties"].is_object() {
            return Shape::Object(whole);
        }
        if let Some(values) = whole.get("additionalProperties") {
            return Shape::Map(values);
        }
        if whole["type"] != "array" {
            return Shape::Leaf;
        }
        let text = |value: &Json| value.as_str().map(str::to_owned);
        let is_merged =
            whole["x-kubernetes-patch-strategy"].as_str().is_some_and(|how| how.contains("merge"));
        match (
            whole["x-kubernetes-list-type"].as_str(),
            text(&whole["x-kubernetes-patch-merge-key"]),
        ) {
            (Some("map"), _) => {
                let keys = whole["x-kubernetes-list-map-keys"].as_array().into_iter().flatten();
                Shape::List { keys: keys.filter_map(text).collect(), items: &whole["items"] }
            }
            (Some("set"), _) => Shape::Set,
            (None, Some(key)) if is_merged => {
                Shape::List { keys: vec![key], items: &whole["items"] }
            }
            (None, None) if is_merged => Shape::Set,
            _ => Shape::Leaf,
        }
    }

    fn leaf(&self, property: &Json) -> Option<Type> {
        if let Some(name) = reference(property) {
            let last = name.rsplit('.').next().unwrap_or_default();
            match last {
                "IntOrString" => return Some(Type::IntOrString),
                "Quantity" => return Some(Type::Quantity),
                "Time" | "MicroTime" => return Some(Type::Time),
                _ => {}
            }
            let has_fields = self.definitions.get(name).is_some_and(|d| !d["properties"].is_null());
            return (!has_fields).then_some(Type::Any);
        }
        match (property["type"].as_str()?, property["format"].as_str()) {
            ("integer", _) => Some(Type::Integer),
            ("number", _) => Some(Type::Number),
            ("boolean", _) => Some(Type::Boolean),
            ("string", Some("byte")) => Some(Type::Bytes),
            ("string", _) => Some(Type::Text),
            _ => None,
        }
    }
}

fn reference(property: &Json) -> Option<&str> {
    property["$ref"].as_str()?.rsplit('/').next()
}

struct Walk<'a> {
    api: &'a OpenApi,
    below: &'a dyn Fn(&FieldPath) -> bool,
    found: Vec<FieldAt>,
    /// Definitions that lead here.
    seen: Vec<String>,
}

impl Walk<'_> {
    fn object(&mut self, definition: &str, base: Option<&Json>, path: &FieldPath) {
        let properties = self.api.definitions.get(definition).map(|d| &d["properties"]);
        for (name, property) in properties.and_then(Json::as_object).into_iter().flatten() {
            let here = path.field(name);
            if (self.below)(&here) {
                self.property(property, base.and_then(|base| base.get(name)), &here);
            }
        }
    }

    fn property(&mut self, property: &Json, base: Option<&Json>, path: &FieldPath) {
        if let Some(leaf) = self.api.leaf(property) {
            return self.find(path, leaf, base);
        }
        if let Some(definition) = reference(property) {
            let again = self.seen.iter().any(|seen| seen == definition) && base.is_none();
            if self.seen.len() > DEPTH_MAX || again {
                return;
            }
            if path.0.last() != Some(&Step::Item) {
                self.find(path, Type::Object, base);
            }
            self.seen.push(definition.to_owned());
            self.object(definition, base, path);
            self.seen.pop();
            return;
        }
        if property["type"] == "array" {
            self.find(path, Type::List, base);
            let first = base.and_then(|base| base.get(0));
            let item = path.item();
            if (self.below)(&item) {
                self.property(&property["items"], first, &item);
            }
            return;
        }
        let leaf = match property.get("additionalProperties").map(|values| self.api.leaf(values)) {
            Some(Some(Type::Quantity)) => Type::MapOfQuantities,
            Some(Some(Type::Bytes)) => Type::MapOfBytes,
            Some(_) => Type::MapOfText,
            None => Type::Any,
        };
        self.find(path, leaf, base);
    }

    fn find(&mut self, path: &FieldPath, r#type: Type, base: Option<&Json>) {
        self.found.push(FieldAt { path: path.clone(), r#type, is_set: base.is_some() });
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn every_field_is_found_once_and_cycles_end() {
        let api = OpenApi::new(&json!({"definitions": {
            "a.Thing": {
                "x-kubernetes-group-version-kind": [{"group": "a", "version": "v1", "kind": "Thing"}],
                "properties": {
                    "spec": {"$ref": "#/definitions/a.Spec"},
                    "sizes": {"type": "object", "additionalProperties": {"$ref": "#/definitions/x.Quantity"}},
                },
            },
            "a.Spec": {"properties": {
                "count": {"type": "integer"},
                "parts": {"type": "array", "items": {"$ref": "#/definitions/a.Spec"}},
            }},
        }}));
        let name = api.definition("a/v1", "Thing").unwrap();
        let base = json!({"spec": {"count": 1}});
        let found = api.fields(name, &base, &|_| true);
        let shown: Vec<_> =
            found.iter().map(|f| (f.path.to_string(), f.r#type, f.is_set)).collect();
        // In the order of the document.
        let expected = [
            ("spec", Type::Object, true),
            ("spec.count", Type::Integer, true),
            ("spec.parts", Type::List, false),
            ("sizes", Type::MapOfQuantities, false),
        ];
        assert_eq!(shown, expected.map(|(path, leaf, set)| (path.to_owned(), leaf, set)));
        assert_eq!(api.field(name, "spec"), Some("a.Spec"));
        assert_eq!(api.field("a.Spec", "parts"), Some("a.Spec"));
        assert_eq!(api.field("a.Spec", "new"), None);
    }
}
