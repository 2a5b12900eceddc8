//! What tests share.

use apiserver_schema::Value;
use apiserver_schema::value::parse_json;

use crate::structural::Structural;

/// A tree of JSON.
pub(crate) fn value(text: &str) -> Value {
    parse_json(text.as_bytes(), &mut Vec::new()).expect(text)
}

/// A definition of widgets with this schema in JSON, its defaults set.
pub(crate) fn definition_with(schema: &str) -> Value {
    let mut tree = value(&format!(
        r#"{{"metadata":{{"name":"widgets.example.com"}},"spec":{{"group":"example.com","scope":"Namespaced",
        "names":{{"plural":"widgets","kind":"Widget","shortNames":["wd"]}},
        "versions":[{{"name":"v1","served":true,"storage":true,"schema":{{"openAPIV3Schema":{schema}}}}}]}}}}"#
    ));
    crate::default_definition(&mut tree);
    tree
}

/// A definition with an object schema of these properties.
pub(crate) fn definition(properties: &str) -> Value {
    definition_with(&format!(r#"{{"type":"object","properties":{properties}}}"#))
}

/// The schema of a definition.
pub(crate) fn schema(properties: &str) -> std::sync::Arc<Structural> {
    let read = crate::read_definition(&definition(properties)).expect("a definition");
    read.versions.first().map(|version| version.schema.clone()).expect("a version")
}
