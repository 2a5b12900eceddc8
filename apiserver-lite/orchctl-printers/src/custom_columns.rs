//! `-o custom-columns`: columns that the command line names.

use serde_json::Value;

use crate::columns::{ColumnWidths, Row};
use crate::jsonpath::{JsonPathError, MissingFields, Path};

/// Most columns.
const COLUMNS_MAX: usize = 200;

/// Heads and paths of columns.
#[derive(Clone, Debug, PartialEq)]
pub struct CustomColumns {
    columns: Vec<(String, Path)>,
}

/// Why columns cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CustomColumnsError {
    /// Nothing is named.
    #[error("custom-columns format specified but no custom columns given")]
    Empty,
    /// A column is not `HEAD:PATH`.
    #[error("unexpected custom-columns spec: {0}, expected <header>:<json-path-expr>")]
    Malformed(String),
    /// A file has not two lines of equally many words.
    #[error(
        "a custom-columns file must have a line of headers and a line with one path for each header"
    )]
    File,
    #[error("more than {COLUMNS_MAX} columns")]
    TooMany,
    /// A path is malformed.
    #[error("column {0}: {1}")]
    Path(String, JsonPathError),
}

impl CustomColumns {
    /// Reads `HEAD:PATH,HEAD:PATH`.
    ///
    /// # Errors
    /// When it has another form.
    pub fn parse(text: &str) -> Result<Self, CustomColumnsError> {
        if text.is_empty() {
            return Err(CustomColumnsError::Empty);
        }
        let pairs = text.split(',').map(|column| match column.split_once(':') {
            Some((head, path)) if !path.is_empty() => Ok((head, path)),
            _ => Err(CustomColumnsError::Malformed(column.to_owned())),
        });
        Self::from_pairs(pairs.collect::<Result<_, _>>()?)
    }

    /// Reads a file: a line of heads, a line of paths.
    ///
    /// # Errors
    /// When it has another form.
    pub fn parse_file(text: &str) -> Result<Self, CustomColumnsError> {
        let mut lines = text.lines().filter(|line| !line.trim().is_empty());
        let (Some(heads), Some(paths)) = (lines.next(), lines.next()) else {
            return Err(CustomColumnsError::File);
        };
        let heads: Vec<&str> = heads.split_whitespace().collect();
        let paths: Vec<&str> = paths.split_whitespace().collect();
        if heads.len() != paths.len() {
            return Err(CustomColumnsError::File);
        }
        Self::from_pairs(heads.into_iter().zip(paths).collect())
    }

    fn from_pairs(pairs: Vec<(&str, &str)>) -> Result<Self, CustomColumnsError> {
        if pairs.len() > COLUMNS_MAX {
            return Err(CustomColumnsError::TooMany);
        }
        let column = |(head, path): (&str, &str)| {
            Path::parse_relaxed(path)
                .map(|path| (head.to_owned(), path))
                .map_err(|error| CustomColumnsError::Path(head.to_owned(), error))
        };
        Ok(Self { columns: pairs.into_iter().map(column).collect::<Result<_, _>>()? })
    }

    /// Rows of objects, after one of heads if `heads` says so.
    ///
    /// # Errors
    /// When a path has no meaning for an object.
    pub fn rows(&self, objects: &[Value], heads: bool) -> Result<Vec<Row>, JsonPathError> {
        let mut rows = Vec::new();
        if heads {
            rows.push(self.columns.iter().map(|(head, _)| head.clone()).collect());
        }
        for object in objects {
            let cell = |(_, path): &(String, Path)| {
                let found = path.find(object, MissingFields::Skipped)?;
                let texts: Vec<String> = found.into_iter().map(word_of).collect();
                Ok(if texts.is_empty() { "<none>".to_owned() } else { texts.join(",") })
            };
            rows.push(self.columns.iter().map(cell).collect::<Result<_, _>>()?);
        }
        Ok(rows)
    }

    /// The rows as lines.
    ///
    /// # Errors
    /// When a path has no meaning for an object.
    pub fn render(&self, objects: &[Value], heads: bool) -> Result<String, JsonPathError> {
        Ok(ColumnWidths::default().render(&self.rows(objects, heads)?))
    }
}

/// A value as a cell shows it: maps as `map[key:value]`, lists as `[a b]`.
fn word_of(value: &Value) -> String {
    match value {
        Value::Null => "<nil>".to_owned(),
        Value::String(text) => text.clone(),
        Value::Array(items) => {
            format!("[{}]", items.iter().map(word_of).collect::<Vec<_>>().join(" "))
        }
        Value::Object(map) => {
            let mut keys: Vec<&String> = map.keys().collect();
            keys.sort();
            let pair =
                |key: &String| format!("{key}:{}", map.get(key).map(word_of).unwrap_or_default());
            format!("map[{}]", keys.into_iter().map(pair).collect::<Vec<_>>().join(" "))
        }
        scalar => scalar.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn cells_are_what_paths_lead_to() {
        let columns = CustomColumns::parse("NAME:.metadata.name,X:{.a[*].b},M:.m").expect("valid");
        let objects = [
            json!({"metadata": {"name": "one"}, "a": [{"b": 1}, {"b": "2"}], "m": {"y": [1, null], "x": true}}),
            json!({"metadata": {"name": "two"}}),
        ];
        let wanted =
            "NAME   X        M\none    1,2      map[x:true y:[1 <nil>]]\ntwo    <none>   <none>\n";
        assert_eq!(columns.render(&objects, true).expect("rendered"), wanted);
        let file = CustomColumns::parse_file("NAME  X\n.metadata.name  .a[*].b\n").expect("valid");
        assert_eq!(file.rows(&objects, false).expect("rows")[0], ["one", "1,2"]);
    }

    #[test]
    fn other_forms_are_refused() {
        for text in ["", "NAME", "NAME:", "A:.x,B"] {
            assert!(CustomColumns::parse(text).is_err(), "{text}");
        }
        assert!(CustomColumns::parse_file("A B\n.x").is_err());
    }
}
