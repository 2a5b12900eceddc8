//! What is wrong with the fields of an object, in Kubernetes' words.

use std::fmt;

use crate::value::{Path, Value};

/// Type of a validation error. The names are Kubernetes' (`reason` of a status cause).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cause {
    /// It must be set.
    Required,
    /// Its value is not allowed.
    Invalid,
    /// Its value is not one of the supported ones.
    NotSupported,
    /// Its value is a duplicate.
    Duplicate,
    /// It must not be set or changed.
    Forbidden,
    /// It is longer than its limit.
    TooLong,
    /// It has more entries than its limit.
    TooMany,
    /// Its value has another type than its schema.
    TypeInvalid,
    /// It names something that does not exist.
    NotFound,
}

impl Cause {
    /// The `reason` of the status cause.
    pub fn reason(self) -> &'static str {
        match self {
            Cause::Required => "FieldValueRequired",
            Cause::Invalid => "FieldValueInvalid",
            Cause::NotSupported => "FieldValueNotSupported",
            Cause::Duplicate => "FieldValueDuplicate",
            Cause::Forbidden => "FieldValueForbidden",
            Cause::TooLong => "FieldValueTooLong",
            Cause::TooMany => "FieldValueTooMany",
            Cause::TypeInvalid => "FieldValueTypeInvalid",
            Cause::NotFound => "FieldValueNotFound",
        }
    }

    /// How messages begin.
    pub fn text(self) -> &'static str {
        match self {
            Cause::Required => "Required value",
            Cause::Invalid | Cause::TypeInvalid => "Invalid value",
            Cause::NotSupported => "Unsupported value",
            Cause::Duplicate => "Duplicate value",
            Cause::Forbidden => "Forbidden",
            Cause::TooLong => "Too long",
            Cause::TooMany => "Too many",
            Cause::NotFound => "Not found",
        }
    }
}

/// One violated rule of a field.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FieldError {
    /// Path of the field.
    pub field: String,
    /// Kind of rule.
    pub cause: Cause,
    /// Message without the path: type, value and detail.
    pub message: String,
}

impl fmt::Display for FieldError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.field, self.message)
    }
}

/// Most errors that are kept per object.
const ERRORS_MAX: usize = 1000;

/// Longest value that is written of one that is no text, in bytes.
const VALUE_LEN_MAX: usize = 16 << 10;

/// Validation errors of an object, at most [`ERRORS_MAX`]; empty for a valid one.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FieldErrors(pub Vec<FieldError>);

impl FieldErrors {
    /// Whether nothing is wrong.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// `Err` if there are errors.
    pub(crate) fn into_result(self) -> Result<(), FieldErrors> {
        if self.is_empty() { Ok(()) } else { Err(self) }
    }

    /// Adds an error: the field is required.
    pub(crate) fn required(&mut self, path: &Path<'_>, detail: &str) {
        self.push(path, Cause::Required, None, detail);
    }

    /// Adds an error: the value is invalid.
    pub(crate) fn invalid(&mut self, path: &Path<'_>, value: impl Into<Value>, detail: &str) {
        self.push(path, Cause::Invalid, Some(value.into()), detail);
    }

    /// Adds an error: the value is not one of `supported`.
    pub(crate) fn not_supported(&mut self, path: &Path<'_>, value: &str, supported: &[&str]) {
        let quoted: Vec<String> = supported.iter().map(|name| format!("{name:?}")).collect();
        let detail = format!("supported values: {}", quoted.join(", "));
        self.push(path, Cause::NotSupported, Some(value.into()), &detail);
    }

    /// Adds an error: one of the values is not one of `supported`.
    pub(crate) fn none_supported(
        &mut self,
        path: &Path<'_>,
        values: Vec<Value>,
        supported: &[&str],
    ) {
        let quoted: Vec<String> = supported.iter().map(|name| format!("{name:?}")).collect();
        let detail = format!("supported values: {}", quoted.join(", "));
        self.push(path, Cause::NotSupported, Some(values.into()), &detail);
    }

    /// Adds an error: the value is a duplicate.
    pub(crate) fn duplicate(&mut self, path: &Path<'_>, value: impl Into<Value>) {
        self.push(path, Cause::Duplicate, Some(value.into()), "");
    }

    /// Adds an error: the field must not be set or changed.
    pub(crate) fn forbidden(&mut self, path: &Path<'_>, detail: &str) {
        self.push(path, Cause::Forbidden, None, detail);
    }

    /// Adds an error: the value is longer than `limit` bytes.
    pub(crate) fn too_long(&mut self, path: &Path<'_>, limit: usize) {
        self.push(path, Cause::TooLong, None, &format!("must have at most {limit} bytes"));
    }

    /// Adds an error if a list has more than `limit` entries.
    pub(crate) fn at_most(&mut self, path: &Path<'_>, len: usize, limit: usize) {
        if len > limit {
            let len = i64::try_from(len).unwrap_or(i64::MAX);
            let detail = format!("must have at most {limit} items");
            self.push(path, Cause::TooMany, Some(len.into()), &detail);
        }
    }

    /// Adds an error: the value is invalid, and too large to be repeated.
    pub(crate) fn invalid_part(&mut self, path: &Path<'_>, detail: &str) {
        self.push(path, Cause::Invalid, None, detail);
    }

    /// Adds an error: the value names something that does not exist.
    pub(crate) fn not_found(&mut self, path: &Path<'_>, value: &str) {
        self.push(path, Cause::NotFound, Some(value.into()), "");
    }

    /// Checks that the value is set and one of `supported`.
    pub(crate) fn one_of(&mut self, path: &Path<'_>, value: &str, supported: &[&str]) {
        if value.is_empty() {
            self.required(path, "");
        } else if !supported.contains(&value) {
            self.not_supported(path, value, supported);
        }
    }

    /// Adds each message as an error of an invalid value.
    pub(crate) fn complaints(&mut self, path: &Path<'_>, value: &str, complaints: Vec<String>) {
        complaints.iter().for_each(|detail| self.invalid(path, value, detail));
    }

    fn push(&mut self, path: &Path<'_>, cause: Cause, value: Option<Value>, detail: &str) {
        if self.0.len() >= ERRORS_MAX {
            return;
        }
        let mut message = cause.text().to_owned();
        if let Some(value) = value {
            message.push_str(": ");
            match value {
                Value::String(text) => message.push_str(&format!("{text:?}")),
                value => {
                    let mut text = Vec::new();
                    crate::value::write_json(&mut text, &value);
                    let text = String::from_utf8_lossy(&text);
                    // Errors of many entries may each repeat the list.
                    message.push_str(&text[..text.floor_char_boundary(VALUE_LEN_MAX)]);
                }
            }
        }
        if !detail.is_empty() {
            message.push_str(": ");
            message.push_str(detail);
        }
        self.0.push(FieldError { field: path.to_string(), cause, message });
    }
}

/// A single error, or several in brackets.
impl fmt::Display for FieldErrors {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let [only] = self.0.as_slice() {
            return only.fmt(f);
        }
        f.write_str("[")?;
        for (at, error) in self.0.iter().enumerate() {
            let separator = if at > 0 { ", " } else { "" };
            write!(f, "{separator}{error}")?;
        }
        f.write_str("]")
    }
}

impl std::error::Error for FieldErrors {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_about_a_long_list_do_not_repeat_all_of_it() {
        let mut errors = FieldErrors::default();
        let list: Vec<Value> = (0..VALUE_LEN_MAX).map(|_| Value::from("ää")).collect();
        for value in [list.clone(), vec![Value::from("a")]] {
            errors.invalid(&Path::ROOT.field("list"), value, "why");
        }
        let [long, short] = &errors.0[..] else { panic!("{}", errors.0.len()) };
        assert!(long.message.len() < VALUE_LEN_MAX + 100, "{}", long.message.len());
        assert!(long.message.ends_with(": why"));
        assert_eq!(short.message, "Invalid value: [\"a\"]: why");
    }
}
