//! JSONPath templates as Kubernetes' clients read them: text with `{expressions}`, ranges, filters, unions, slices.
//!
//! Written by hand: libraries of JSONPath follow RFC 9535, which has no templates, other filters and other quotes.

mod eval;
mod parse;

use serde_json::Value;

use crate::json;

/// Longest template, in bytes.
pub const TEMPLATE_LEN_MAX: usize = 64 << 10;
/// Deepest nesting of ranges, unions and filters.
pub const DEPTH_MAX: usize = 32;
/// Most results of the expressions and ranges of a template.
pub const RESULTS_MAX: usize = 1_000_000;

/// Why a template cannot be used, or not on this object.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum JsonPathError {
    /// The template is malformed.
    #[error("{problem}")]
    Syntax {
        /// Where.
        at: usize,
        /// What is wrong.
        problem: String,
    },
    /// It has no meaning for this object.
    #[error("{0}")]
    Evaluation(String),
}

/// What becomes of fields that an object does not have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MissingFields {
    /// They have no results.
    Skipped,
    /// They are errors.
    Refused,
}

/// A parsed template.
#[derive(Clone, Debug, PartialEq)]
pub struct Template {
    text: String,
    parts: Vec<Part>,
}

/// A parsed path: the inner part of one expression.
#[derive(Clone, Debug, PartialEq)]
pub struct Path {
    steps: Vec<Step>,
}

#[derive(Clone, Debug, PartialEq)]
enum Part {
    Text(String),
    Expression(Path),
    Range(Path, Vec<Part>),
}

#[derive(Clone, Debug, PartialEq)]
enum Step {
    Field(String),
    Wildcard,
    Recursive,
    Slice(Slice),
    Union(Vec<Path>),
    Filter(Box<Filter>),
}

/// `[start:end:step]`; `[n]` is the slice of one element.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Slice {
    start: Option<i64>,
    end: Option<i64>,
    step: Option<i64>,
    single: bool,
}

#[derive(Clone, Debug, PartialEq)]
struct Filter {
    left: Operand,
    /// Without one the filter tests whether `left` exists.
    right: Option<(Comparison, Operand)>,
}

#[derive(Clone, Debug, PartialEq)]
enum Operand {
    Path(Path),
    Literal(Value),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Comparison {
    Equal,
    NotEqual,
    Less,
    LessOrEqual,
    Greater,
    GreaterOrEqual,
}

impl Template {
    /// Reads a template.
    ///
    /// # Errors
    /// When it is malformed, too long or too deep.
    pub fn parse(text: &str) -> Result<Self, JsonPathError> {
        parse::template(text).map(|parts| Self { text: text.to_owned(), parts })
    }

    /// What it was read from.
    pub fn text(&self) -> &str {
        &self.text
    }

    /// What its expressions lead to, without its texts.
    ///
    /// # Errors
    /// When an expression has no meaning for the object.
    pub fn find<'a>(
        &self,
        object: &'a Value,
        missing: MissingFields,
    ) -> Result<Vec<&'a Value>, JsonPathError> {
        let mut found = Vec::new();
        find(&mut found, &self.parts, object, missing, &mut Results::default())?;
        Ok(found)
    }

    /// The text that the template makes of an object.
    ///
    /// # Errors
    /// When an expression has no meaning for the object.
    pub fn render(&self, object: &Value, missing: MissingFields) -> Result<String, JsonPathError> {
        let mut out = String::new();
        render(&mut out, &self.parts, object, missing, &mut Results::default())?;
        Ok(out)
    }
}

impl Path {
    /// Reads an expression with or without braces and the first dot: `{.a.b}`, `.a.b`, `a.b`.
    ///
    /// # Errors
    /// When it is malformed, too long or too deep, or a template of several parts.
    pub fn parse_relaxed(text: &str) -> Result<Self, JsonPathError> {
        let inner = text.trim();
        let inner =
            inner.strip_prefix('{').and_then(|text| text.strip_suffix('}')).unwrap_or(inner);
        let full = match inner.chars().next() {
            Some('.' | '[' | '$' | '@') => format!("{{{inner}}}"),
            _ => format!("{{.{inner}}}"),
        };
        let mut parts = parse::template(&full)?;
        match (parts.pop(), parts.is_empty()) {
            (Some(Part::Expression(path)), true) => Ok(path),
            _ => Err(JsonPathError::Syntax {
                at: 0,
                problem: format!("{text:?} is not one path expression"),
            }),
        }
    }

    /// What the path leads to in an object.
    ///
    /// # Errors
    /// When it has no meaning for the object.
    pub fn find<'a>(
        &self,
        object: &'a Value,
        missing: MissingFields,
    ) -> Result<Vec<&'a Value>, JsonPathError> {
        eval::walk(self, vec![object], missing)
    }
}

/// How many results the expressions and ranges of a template have had: ranges in ranges multiply them.
#[derive(Default)]
struct Results(usize);

impl Results {
    /// What the path leads to, counted.
    fn evaluate<'a>(
        &mut self,
        path: &Path,
        object: &'a Value,
        missing: MissingFields,
    ) -> Result<Vec<&'a Value>, JsonPathError> {
        let found = path.find(object, missing)?;
        self.0 = self.0.saturating_add(found.len());
        eval::check_count(self.0)?;
        Ok(found)
    }
}

fn find<'a>(
    found: &mut Vec<&'a Value>,
    parts: &[Part],
    object: &'a Value,
    missing: MissingFields,
    results: &mut Results,
) -> Result<(), JsonPathError> {
    for part in parts {
        match part {
            Part::Text(_) => {}
            Part::Expression(path) => found.extend(results.evaluate(path, object, missing)?),
            Part::Range(path, inner) => {
                for item in results.evaluate(path, object, missing)? {
                    find(found, inner, item, missing, results)?;
                }
            }
        }
    }
    Ok(())
}

fn render(
    out: &mut String,
    parts: &[Part],
    object: &Value,
    missing: MissingFields,
    results: &mut Results,
) -> Result<(), JsonPathError> {
    for part in parts {
        match part {
            Part::Text(text) => out.push_str(text),
            Part::Expression(path) => {
                let found = results.evaluate(path, object, missing)?;
                let text = |value: &Value| match value {
                    Value::Null => "<nil>".to_owned(),
                    value => text_of(value),
                };
                let texts: Vec<String> = found.into_iter().map(text).collect();
                out.push_str(&texts.join(" "));
            }
            Part::Range(path, inner) => {
                for item in results.evaluate(path, object, missing)? {
                    render(out, inner, item, missing, results)?;
                }
            }
        }
    }
    Ok(())
}

/// A value as text: strings as they are, objects and lists as JSON.
pub fn text_of(value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        other => json::compact(other),
    }
}

#[cfg(test)]
mod tests;
