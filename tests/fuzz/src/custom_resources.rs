//! Definitions of custom kinds and their rules.

use apiserver_custom_resources::{default_definition, read_definition, validate_definition};
use apiserver_schema::value::{parse_json, write_json_string};
use apiserver_schema::{Map, Value};

fn parse(text: &[u8]) -> Option<Value> {
    parse_json(text, &mut Vec::new()).ok()
}

/// A definition with a schema.
fn definition(schema: Value) -> Value {
    let text = r#"{"metadata":{"name":"widgets.example.com"},"spec":{"group":"example.com","scope":"Namespaced",
        "names":{"plural":"widgets","kind":"Widget"},"versions":[{"name":"v1","served":true,"storage":true}]}}"#;
    let mut tree = parse(text.as_bytes()).unwrap_or_default();
    let spec = tree.as_map_mut().map(|root| root.map_or_insert("spec"));
    for version in spec.into_iter().flat_map(|spec| spec.maps_mut("versions")) {
        version.insert("schema", Map::from_iter([("openAPIV3Schema", schema.clone())]));
    }
    default_definition(&mut tree);
    tree
}

/// Checks a definition, and an object if the definition may be written.
fn check_object(definition: &Value, object: &Value) {
    let valid = validate_definition(definition, None).is_empty();
    let Ok(read) = read_definition(definition) else {
        assert!(!valid, "a valid definition can be read");
        return;
    };
    for version in &read.versions {
        let mut object = object.clone();
        version.schema.prune(&mut object);
        assert!(version.schema.prune(&mut object).is_empty(), "pruned once is pruned");
        version.schema.default(&mut object);
        let mut again = object.clone();
        version.schema.default(&mut again);
        assert_eq!(object, again, "defaulted once is defaulted");
        version.schema.validate(&object, Some(&again));
        let _ = (version.schema.open_api_v2(), version.schema.open_api_v3());
        apiserver_custom_resources::cells(&version.columns, &object, 0);
    }
}

/// Schemas, each with an object in a second line.
pub mod custom_schema {
    use super::*;

    /// Reads the first line as schema and the second as object.
    pub fn check(bytes: &[u8]) {
        let mut lines = bytes.splitn(2, |byte| *byte == b'\n');
        let mut next = || lines.next().and_then(parse).unwrap_or_default();
        let (schema, object) = (next(), next());
        check_object(&definition(schema), &object);
    }

    /// Schemas with objects.
    pub fn seeds() -> Vec<Vec<u8>> {
        crate::texts(&[
            "{\"type\":\"object\",\"properties\":{\"a\":{\"type\":\"string\",\"default\":\"x\",\"pattern\":\"^a+$\"}}}\n{\"a\":\"b\",\"c\":1}",
            "{\"type\":\"object\",\"properties\":{\"l\":{\"type\":\"array\",\"x-kubernetes-list-type\":\"set\",\"items\":{\"type\":\"integer\"}}}}\n{\"l\":[1,1]}",
            "{\"type\":\"object\",\"x-kubernetes-preserve-unknown-fields\":true,\"anyOf\":[{\"required\":[\"a\"]}]}\n{\"b\":{}}",
        ])
    }
}

/// Rules.
pub mod custom_rule {
    use super::*;

    /// Reads the bytes as rule.
    pub fn check(bytes: &[u8]) {
        let mut rule = Vec::new();
        write_json_string(&mut rule, &String::from_utf8_lossy(bytes));
        let schema = format!(
            r#"{{"type":"object","properties":{{"n":{{"type":"integer"}},"s":{{"type":"string"}},"p":{{"x-kubernetes-int-or-string":true}},
            "l":{{"type":"array","items":{{"type":"integer"}}}},"m":{{"type":"object","additionalProperties":{{"type":"string"}}}},
            "t":{{"type":"string","format":"date-time"}}}},"x-kubernetes-validations":[{{"rule":{}}}]}}"#,
            String::from_utf8_lossy(&rule)
        );
        let object =
            r#"{"n":1,"s":"ab","p":"50%","l":[3,1,2],"m":{"k":"v"},"t":"2024-02-29T10:00:00Z"}"#;
        let parsed = (parse(schema.as_bytes()), parse(object.as_bytes()));
        if let (Some(schema), Some(object)) = parsed {
            check_object(&definition(schema), &object);
        }
    }

    /// Rules of many forms.
    pub fn seeds() -> Vec<Vec<u8>> {
        crate::texts(&[
            "self.n > 0 && self.s.matches('^a+$') || has(self.t)",
            "self.l.all(i, i > 0) && self.l.map(i, i * 2).exists(i, i == 4)",
            "self.m.k == 'v' ? type(self.p) == string : self.t > timestamp('2024-01-01T00:00:00Z')",
            "size(self.s.split('')) == 2 && [1, 2u, 1.5, b'a', null] != [] && {'a': 1}['a'] == 1",
            "self.n == oldSelf.n && url('https://a/b?c=d').getQuery() != {} && duration('1h') < duration('2h')",
        ])
    }
}
