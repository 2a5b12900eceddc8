//! Paths into objects: templates and columns of the command-line client, columns and fields of custom kinds.

/// Each form of a path.
pub mod path_expressions {
    use std::sync::OnceLock;

    use apiserver_custom_resources::{JsonPath, SchemaFieldPath};
    use apiserver_schema::value::parse_json;
    use orchctl_printers::custom_columns::CustomColumns;
    use orchctl_printers::jsonpath::{MissingFields, Path, RESULTS_MAX, Template};
    use orchctl_printers::sort;
    use serde_json::Value;

    const OBJECT: &str = r#"{"kind":"List","metadata":{"name":"a","labels":{"a.b/c":"d","e":"f"}},"n":1,"f":1.5,"z":null,"t":true,
        "items":[{"name":"x","port":80,"tags":["p","q"]},{"name":"y","port":443,"tags":[]},{"name":"z","nested":[[1,2],[3]]}]}"#;

    fn object() -> &'static Value {
        static OBJECT_TREE: OnceLock<Value> = OnceLock::new();
        OBJECT_TREE.get_or_init(|| serde_json::from_str(OBJECT).unwrap_or_default())
    }

    fn templates(text: &str) {
        if let Ok(template) = Template::parse(text) {
            assert_eq!(template.text(), text);
            assert_eq!(Template::parse(text).as_ref(), Ok(&template));
            let _ = template.render(object(), MissingFields::Refused);
            if let Ok(found) = template.find(object(), MissingFields::Skipped) {
                assert!(found.len() <= RESULTS_MAX);
            }
        }
        if let Ok(path) = Path::parse_relaxed(text) {
            let items = object().get("items").and_then(Value::as_array);
            let mut items = items.cloned().unwrap_or_default();
            let len = items.len();
            let _ = sort::by_path(&mut items, &path, |item| item);
            assert_eq!(items.len(), len, "sorting loses nothing");
        }
        for columns in [CustomColumns::parse(text).ok(), CustomColumns::parse_file(text).ok()] {
            let rows = columns.and_then(|columns| columns.rows(&[object().clone()], true).ok());
            if let Some([heads, row]) = rows.as_deref() {
                assert_eq!(heads.len(), row.len());
            }
        }
    }

    /// The path in quotes, name by name.
    fn quoted(path: &SchemaFieldPath) -> String {
        let escaped = |name: &String| name.replace('\\', "\\\\").replace('\'', "\\'");
        path.names().iter().map(|name| format!("['{}']", escaped(name))).collect()
    }

    /// Reads the text as each of them.
    pub fn check(bytes: &[u8]) {
        let Ok(text) = std::str::from_utf8(bytes) else { return };
        templates(text);
        if let Ok(path) = JsonPath::parse(text) {
            assert_eq!(path.as_str(), text);
            let tree = parse_json(OBJECT.as_bytes(), &mut Vec::new()).unwrap_or_default();
            let _ = path.first(&tree);
        }
        if let Ok(path) = SchemaFieldPath::parse(text) {
            let other = quoted(&path);
            let again = SchemaFieldPath::parse(&other);
            assert!(
                again.is_ok_and(|again| again.names() == path.names()) || other.len() > 4096,
                "{text:?} is {other:?}"
            );
        }
    }

    /// Each step of each form.
    pub fn seeds() -> Vec<Vec<u8>> {
        crate::texts(&[
            "{range .items[*]}{.name}{\"\\t\"}{.port}{'\\u00e9\\n'}{end}",
            "{.items[?(@.port>=80)].name} {.items[-1:].tags[0:2:1]} {..name} {['kind','n']}",
            "{.metadata.labels.a\\.b/c}{.items[?(@.name=='x')].tags[*]}{$.items[0,1].port}",
            ".metadata.labels['a\\.b/c']",
            "NAME:.metadata.name,PORTS:.items[*].port",
            "NAME PORT\n.metadata.name {.items[0].port}",
            ".items[?(@.port==443)].name",
            ".spec['a.b'].c",
            "['it\\'s'].x",
        ])
    }
}
