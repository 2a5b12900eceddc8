//! Paths of single fields in a schema, of rules (`fieldPath`) and selectable fields: `.spec.color`, `.spec['a.b']`. They never enter lists.

/// Longest path, in bytes.
const LENGTH_MAX: usize = 4096;
/// Most fields of a path: schemas are no deeper.
const DEPTH_MAX: usize = 64;

/// The path of one field, from a value of a schema.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SchemaFieldPath {
    text: String,
    names: Vec<String>,
}

/// Why a path names no field.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FieldPathError {
    /// It is not written as one.
    #[error("must be fields such as .spec.color or .spec['a.b']")]
    Syntax,
    /// It is too long or too deep to be one.
    #[error("must be at most {LENGTH_MAX} bytes and {DEPTH_MAX} fields long")]
    TooLong,
    /// The schema does not have the field. The words are Kubernetes'.
    #[error("does not refer to a valid field")]
    Unknown,
}

impl SchemaFieldPath {
    /// Parses a path. Whether a schema has the field is not looked at.
    ///
    /// # Errors
    /// It is no path of fields, or too long.
    pub fn parse(text: &str) -> Result<Self, FieldPathError> {
        if text.len() > LENGTH_MAX {
            return Err(FieldPathError::TooLong);
        }
        let mut names = Vec::new();
        let mut rest = text;
        while !rest.is_empty() {
            let (name, after) = match rest.strip_prefix("['") {
                Some(quoted) => take_quoted(quoted).ok_or(FieldPathError::Syntax)?,
                None => take_plain(rest).ok_or(FieldPathError::Syntax)?,
            };
            names.push(name);
            rest = after;
        }
        match names.len() {
            0 => Err(FieldPathError::Syntax),
            length if length > DEPTH_MAX => Err(FieldPathError::TooLong),
            _ => Ok(SchemaFieldPath { text: text.to_owned(), names }),
        }
    }

    /// The path without its leading dot, as field selectors name the field.
    pub fn selector_name(&self) -> &str {
        self.text.strip_prefix('.').unwrap_or(&self.text)
    }

    /// The names of the fields, the outermost first.
    pub fn names(&self) -> &[String] {
        &self.names
    }
}

/// The name after a dot, and what follows it.
fn take_plain(text: &str) -> Option<(String, &str)> {
    let text = text.strip_prefix('.')?;
    let end = text.find(['.', '[']).unwrap_or(text.len());
    let (name, rest) = text.split_at_checked(end)?;
    let plain = !name.is_empty() && !name.contains([']', '\'', '"', ' ', '\n', '\r', '*']);
    plain.then(|| (name.to_owned(), rest))
}

/// The name before the closing quote and bracket, and what follows them.
fn take_quoted(text: &str) -> Option<(String, &str)> {
    let mut name = String::new();
    let mut chars = text.char_indices();
    while let Some((at, c)) = chars.next() {
        match c {
            '\\' => match chars.next() {
                Some((_, escaped @ ('\\' | '\''))) => name.push(escaped),
                _ => return None,
            },
            '\'' => {
                let rest = text.get(at..)?.strip_prefix("']")?;
                return (!name.is_empty()).then_some((name, rest));
            }
            '\n' | '\r' => return None,
            c => name.push(c),
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::schema;

    #[test]
    fn paths_are_fields_in_both_notations() {
        for (text, names) in [
            (".spec.color", vec!["spec", "color"]),
            (".a['b.c'].d", vec!["a", "b.c", "d"]),
            ("['x']", vec!["x"]),
            (r".a['it\'s']", vec!["a", "it's"]),
        ] {
            assert_eq!(SchemaFieldPath::parse(text).expect(text).names(), names, "{text}");
        }
        for text in [
            "",
            ".",
            "spec",
            ".a..b",
            ".a.",
            ".a[0]",
            ".a[*]",
            ".a['b",
            ".a['b'",
            ".a['']",
            ".a b",
            ".a['\\n']",
            "$.a",
            ".a]",
        ] {
            assert_eq!(SchemaFieldPath::parse(text), Err(FieldPathError::Syntax), "{text}");
        }
        let long = ".a".repeat(DEPTH_MAX + 1);
        assert_eq!(SchemaFieldPath::parse(&long), Err(FieldPathError::TooLong));
        assert_eq!(SchemaFieldPath::parse(&"a".repeat(5_000)), Err(FieldPathError::TooLong));
    }

    #[test]
    fn a_path_names_a_field_of_the_schema_and_enters_no_list() {
        let schema = schema(
            r#"{"o":{"type":"object","properties":{"n":{"type":"integer"}}},
            "l":{"type":"array","items":{"type":"object","properties":{"n":{"type":"integer"}}}},
            "m":{"type":"object","additionalProperties":{"type":"string"}}}"#,
        );
        let found = |text: &str| {
            SchemaFieldPath::parse(text).and_then(|path| schema.root.find(&path).map(drop))
        };
        for text in [".o.n", ".o", ".l", ".m.any", ".m['any']"] {
            assert_eq!(found(text), Ok(()), "{text}");
        }
        for text in [".o.z", ".l.n", ".z", ".o.n.z"] {
            assert_eq!(found(text), Err(FieldPathError::Unknown), "{text}");
        }
    }
}
