//! The rules of a custom kind by the schema of its version.

use std::sync::Arc;

use apiserver_custom_resources::{Column, Structural, cells};
use apiserver_schema::custom::CustomRules;
use apiserver_schema::value::parse_json;
use apiserver_schema::{FieldErrors, Map, Object, Value};

/// Where OpenAPI names the fields that field selectors may use.
const SELECTABLE_FIELDS: &str = "x-kubernetes-selectable-fields";

/// What a version says: its schema, its columns and its selectable fields.
pub struct SchemaRules {
    pub schema: Arc<Structural>,
    pub columns: Vec<Column>,
    /// The names of the selectable fields in selectors.
    pub selectable: Vec<String>,
}

impl CustomRules for SchemaRules {
    fn prune(&self, fields: &mut Map, unknown: &mut Vec<String>) {
        with_tree(fields, |tree| unknown.extend(self.schema.prune(tree)));
    }

    fn default(&self, fields: &mut Map) {
        with_tree(fields, |tree| self.schema.default(tree));
    }

    fn validate(&self, new: &Object, old: Option<&Object>) -> FieldErrors {
        let old = old.map(document);
        FieldErrors(self.schema.validate(&document(new), old.as_ref()))
    }

    fn cells(&self, object: &Object, now: i64) -> Vec<Value> {
        let mut row = vec![Value::from(object.name())];
        row.extend(cells(&self.columns, &document(object), now));
        row
    }

    fn open_api(&self, v2: bool) -> Option<Map> {
        let schema = if v2 { self.schema.open_api_v2() } else { self.schema.open_api_v3() };
        // What was a tree becomes one again.
        let Ok(Value::Map(mut schema)) = parse_json(schema.to_string().as_bytes(), &mut Vec::new())
        else {
            return None;
        };
        if !self.selectable.is_empty() {
            let field = |name: &String| -> Value {
                Value::Map([("fieldPath", name.as_str())].into_iter().collect())
            };
            let fields: Vec<Value> = self.selectable.iter().map(field).collect();
            schema.insert(SELECTABLE_FIELDS, fields);
        }
        Some(schema)
    }
}

/// Lends the fields as a tree.
fn with_tree(fields: &mut Map, change: impl FnOnce(&mut Value)) {
    let mut tree = Value::Map(std::mem::take(fields));
    change(&mut tree);
    if let Value::Map(changed) = tree {
        *fields = changed;
    }
}

/// The whole object.
fn document(object: &Object) -> Value {
    let mut fields = object.fields.clone();
    fields.insert("apiVersion", object.kind.api_version.as_str());
    fields.insert("kind", object.kind.kind());
    Value::Map(fields)
}
