//! Fields of kinds, from an OpenAPI document of version 3.

use serde_json::{Map, Value};

use crate::objects;
use crate::terminal::visible;

/// Deepest schema that is shown.
const DEPTH_MAX: usize = 40;
/// Most lines of fields.
const LINES_MAX: usize = 100_000;
/// Width of the lines of descriptions with their indentation.
const WIDTH: usize = 80;

/// Why there is nothing to explain.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ExplainError {
    /// The document has no such kind.
    #[error("the server does not describe the fields of {0}")]
    NoKind(String),
    /// The kind has no such field.
    #[error("field \"{0}\" does not exist")]
    NoField(String),
}

/// What is to be explained.
#[derive(Clone, Copy, Debug)]
pub struct Explanation<'a> {
    /// The full group; empty for core.
    pub group: &'a str,
    pub version: &'a str,
    pub kind: &'a str,
    /// Fields from the object down.
    pub fields: &'a [&'a str],
    /// Names of all fields below instead of descriptions of the next ones.
    pub recursive: bool,
}

/// Fields as they are listed.
struct Listing<'a> {
    text: String,
    lines: usize,
    /// Schemas from the kind down to the field.
    path: Vec<&'a Value>,
    /// With all fields below.
    recursive: bool,
}

/// Schemas of one document.
#[derive(Clone, Copy, Debug)]
pub struct Schemas<'a> {
    named: Option<&'a Map<String, Value>>,
}

impl<'a> Schemas<'a> {
    /// Of this document.
    pub fn new(document: &'a Value) -> Self {
        Self { named: objects::map_at(document, "/components/schemas") }
    }

    /// The text about a kind or a field.
    ///
    /// # Errors
    /// When the document has no such kind or field.
    pub fn explain(&self, what: &Explanation<'_>) -> Result<String, ExplainError> {
        let missing = || ExplainError::NoKind(what.kind.to_owned());
        let mut schema = self.kind(what).ok_or_else(missing)?;
        let mut field = None;
        for name in what.fields {
            let inner = self.inner(schema);
            let found = self.properties(inner).into_iter().find(|(known, _)| known == name);
            let (_, next) = found.ok_or_else(|| ExplainError::NoField((*name).to_owned()))?;
            schema = next;
            field = Some((*name, next));
        }
        let mut text = String::new();
        if !what.group.is_empty() {
            text.push_str(&format!("GROUP:      {}\n", what.group));
        }
        text.push_str(&format!("KIND:       {}\nVERSION:    {}\n\n", what.kind, what.version));
        if let Some((name, schema)) = field {
            text.push_str(&format!("FIELD: {name} <{}>\n\n", self.type_of(schema)));
        }
        text.push_str("DESCRIPTION:\n");
        for line in self.descriptions(schema) {
            push_wrapped(&mut text, line, 4);
        }
        text.push_str("    \n");
        let fields = self.properties(self.inner(schema));
        if !fields.is_empty() {
            text.push_str("FIELDS:\n");
            let whole = self.inner(schema);
            let mut listing =
                Listing { text, lines: 0, path: vec![whole], recursive: what.recursive };
            for field in fields {
                self.push_field(&mut listing, &self.required(whole), field);
            }
            text = listing.text;
        }
        text.push('\n');
        Ok(visible(&text).into_owned())
    }

    fn push_field(
        &self,
        listing: &mut Listing<'a>,
        required: &[&str],
        (name, schema): (&str, &'a Value),
    ) {
        let level = listing.path.len();
        if level > DEPTH_MAX || listing.lines > LINES_MAX {
            return;
        }
        listing.lines += 1;
        let mark = if required.contains(&name) { " -required-" } else { "" };
        let indent = "  ".repeat(level);
        let line = format!("{indent}{name}\t<{}>{mark}\n", self.type_of(schema));
        listing.text.push_str(&line);
        if listing.recursive {
            let inner = self.inner(schema);
            // A type that holds itself is listed once on the way down.
            if listing.path.iter().any(|above| std::ptr::eq(*above, inner)) {
                return;
            }
            let required = self.required(inner);
            listing.path.push(inner);
            for field in self.properties(inner) {
                self.push_field(listing, &required, field);
            }
            listing.path.pop();
            return;
        }
        match self.descriptions(schema).first() {
            Some(description) => push_wrapped(&mut listing.text, description, 4),
            None => listing.text.push_str("    <no description>\n"),
        }
        listing.text.push('\n');
    }

    /// The schema of a kind: the one that says that it is its.
    fn kind(&self, what: &Explanation<'_>) -> Option<&'a Value> {
        let is = |schema: &&Value| {
            let key = schema.as_object().into_iter().flatten();
            let mut kinds = key.filter(|(key, _)| key.ends_with("-group-version-kind"));
            kinds.any(|(_, list)| {
                list.as_array().into_iter().flatten().any(|one| {
                    objects::text_at(one, "/group") == what.group
                        && objects::text_at(one, "/version") == what.version
                        && objects::text_at(one, "/kind") == what.kind
                })
            })
        };
        self.named?.values().find(is)
    }

    /// The schema that a reference names, and its name.
    fn referred(&self, schema: &'a Value) -> Option<(&'a str, &'a Value)> {
        let of = |schema: &'a Value| schema.get("$ref").and_then(Value::as_str);
        let all = objects::list_at(schema, "/allOf").iter();
        let name = of(schema).or_else(|| all.into_iter().find_map(of))?;
        let name = name.rsplit('/').next()?;
        Some((name, self.named?.get(name)?))
    }

    /// The schema whose properties a field leads to: through references, lists and maps.
    fn inner(&self, schema: &'a Value) -> &'a Value {
        let mut schema = schema;
        for _ in 0..DEPTH_MAX {
            let below = ["items", "additionalProperties"].into_iter();
            let below = below.filter_map(|part| schema.get(part)).find(|part| part.is_object());
            match self.referred(schema).map(|(_, named)| named).or(below) {
                Some(next) => schema = next,
                None => break,
            }
        }
        schema
    }

    fn properties(&self, schema: &'a Value) -> Vec<(&'a str, &'a Value)> {
        let fields = objects::map_at(schema, "/properties").into_iter().flatten();
        let mut fields: Vec<_> = fields.map(|(name, schema)| (name.as_str(), schema)).collect();
        fields.sort_by_key(|(name, _)| *name);
        fields
    }

    fn required(&self, schema: &'a Value) -> Vec<&'a str> {
        objects::list_at(schema, "/required").iter().filter_map(Value::as_str).collect()
    }

    /// `string`, `[]Container`, `map[string]string`, `PodSpec`.
    fn type_of(&self, schema: &'a Value) -> String {
        self.type_within(schema, 0)
    }

    fn type_within(&self, schema: &'a Value, depth: usize) -> String {
        if depth > DEPTH_MAX {
            return "Object".to_owned();
        }
        if let Some((name, named)) = self.referred(schema) {
            return match objects::text_at(named, "/type") {
                "" | "object" => name.rsplit('.').next().unwrap_or(name).to_owned(),
                plain => plain.to_owned(),
            };
        }
        if let Some(items) = schema.get("items") {
            return format!("[]{}", self.type_within(items, depth + 1));
        }
        if let Some(values) = schema.get("additionalProperties").filter(|values| values.is_object())
        {
            return format!("map[string]{}", self.type_within(values, depth + 1));
        }
        match objects::text_at(schema, "/type") {
            "" | "object" => "Object".to_owned(),
            plain => plain.to_owned(),
        }
    }

    /// What is said of the field, then of its type.
    fn descriptions(&self, schema: &'a Value) -> Vec<&'a str> {
        let own = objects::text_at(schema, "/description");
        let inner = objects::text_at(self.inner(schema), "/description");
        let mut all = Vec::new();
        for text in [own, inner] {
            if !text.is_empty() && !all.contains(&text) {
                all.push(text);
            }
        }
        all
    }
}

/// Words in lines of a width.
fn push_wrapped(text: &mut String, words: &str, indent: usize) {
    for paragraph in words.split('\n') {
        let mut line = String::new();
        for word in paragraph.split_whitespace() {
            let len = line.chars().count() + word.chars().count() + 1;
            if !line.is_empty() && indent + len > WIDTH {
                push_line(text, &line, indent);
                line.clear();
            }
            if !line.is_empty() {
                line.push(' ');
            }
            line.push_str(word);
        }
        push_line(text, &line, indent);
    }
}

fn push_line(text: &mut String, line: &str, indent: usize) {
    text.extend(std::iter::repeat_n(' ', indent));
    text.push_str(line);
    text.push('\n');
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn document() -> Value {
        json!({"components": {"schemas": {
            "io.k8s.api.core.v1.Pod": {
                "type": "object", "description": "A pod.",
                "properties": {
                    "kind": {"type": "string", "description": "The kind."},
                    "spec": {"allOf": [{"$ref": "#/components/schemas/io.k8s.api.core.v1.PodSpec"}], "description": "What is wanted."},
                },
                "x-kubernetes-group-version-kind": [{"group": "", "version": "v1", "kind": "Pod"}],
            },
            "io.k8s.api.core.v1.PodSpec": {
                "type": "object", "description": "A specification.", "required": ["containers"],
                "properties": {
                    "containers": {"type": "array", "items": {"$ref": "#/components/schemas/io.k8s.api.core.v1.Container"}},
                    "selector": {"type": "object", "additionalProperties": {"type": "string"}},
                },
            },
            "io.k8s.api.core.v1.Container": {"type": "object", "properties": {
                "next": {"$ref": "#/components/schemas/io.k8s.api.core.v1.Container"}, "image": {"type": "string"}}},
        }}})
    }

    fn explain(fields: &[&str], recursive: bool) -> Result<String, ExplainError> {
        let what = Explanation { group: "", version: "v1", kind: "Pod", fields, recursive };
        Schemas::new(&document()).explain(&what)
    }

    #[test]
    fn a_kind_and_its_fields() {
        let wanted = "KIND:       Pod\nVERSION:    v1\n\nDESCRIPTION:\n    A pod.\n    \nFIELDS:\n  kind\t<string>\n    The kind.\n\n  spec\t<PodSpec>\n    What is wanted.\n\n\n";
        assert_eq!(explain(&[], false).as_deref(), Ok(wanted));
        let spec = explain(&["spec"], false).expect("a field");
        assert!(
            spec.contains(
                "FIELD: spec <PodSpec>\n\nDESCRIPTION:\n    What is wanted.\n    A specification.\n"
            ),
            "{spec}"
        );
        assert!(
            spec.contains("  containers\t<[]Container> -required-\n    <no description>\n"),
            "{spec}"
        );
        assert!(spec.contains("  selector\t<map[string]string>\n"), "{spec}");
        assert_eq!(explain(&["foo"], false), Err(ExplainError::NoField("foo".into())));
    }

    #[test]
    fn schemas_that_hold_themselves_end() {
        let text = explain(&["spec", "containers"], true).expect("a field");
        assert!(text.contains("FIELD: containers <[]Container>"), "{text}");
        assert_eq!(text.matches("next").count(), 1, "{text}");
    }

    #[test]
    fn long_descriptions_are_wrapped() {
        let mut text = String::new();
        push_wrapped(&mut text, &"word ".repeat(40), 4);
        assert!(text.lines().all(|line| line.len() <= WIDTH && line.starts_with("    word")));
        assert_eq!(text.lines().count(), 3);
    }
}
