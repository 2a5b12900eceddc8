//! Types and checks of values.

use std::collections::HashSet;

use apiserver_schema::validate::Cause;
use apiserver_schema::value::write_json;
use apiserver_schema::{Map, Value};

use crate::errors::{ErrorList, Path, quote, show, show_float};
use crate::formats;
use crate::node::{AdditionalProperties, Checks, Node, Type};

/// Most nodes of schemas that are compared with values of one object: schemas under `anyOf` multiply with the items of lists.
const STEPS_MAX: u64 = 20_000_000;

/// Checks of one object.
pub(crate) struct Values<'a> {
    errors: &'a mut ErrorList,
    steps: u64,
}

impl<'a> Values<'a> {
    pub(crate) fn new(errors: &'a mut ErrorList) -> Self {
        Values { errors, steps: 0 }
    }

    /// Refuses an object of which not all could be checked. Called at the end, on the object: an alternative that is not checked to its end seems to fit.
    pub(crate) fn check_steps(&mut self) {
        if self.steps > STEPS_MAX {
            let detail = format!("must not take more than {STEPS_MAX} steps to validate");
            self.errors.forbidden(&Path::ROOT, &detail);
        }
    }

    pub(crate) fn check(&mut self, node: &Node, value: &Value, path: Path<'_>) {
        if self.errors.is_full() || self.steps > STEPS_MAX {
            return;
        }
        self.steps = self.steps.saturating_add(1);
        self.check_type(node, value, &path);
        if let Some(checks) = &node.checks {
            self.check_enum(checks, value, &path);
            if *value == Value::Null {
                return;
            }
            self.check_junctors(checks, value, path);
            match value {
                Value::String(text) => self.check_text(node, checks, text, &path),
                Value::Int(number) => self.check_number(checks, *number as f64, value, &path),
                Value::Float(number) => self.check_number(checks, *number, value, &path),
                Value::List(items) => self.check_list(checks, items, &path),
                Value::Map(map) => self.check_map(checks, map, &path),
                Value::Null | Value::Bool(_) | Value::Json(_) => {}
            }
        }
        match value {
            Value::List(items) => {
                let Some(node) = &node.items else { return };
                for (at, item) in items.iter().enumerate() {
                    self.check(node, item, path.index(at));
                }
            }
            Value::Map(map) => self.check_fields(node, map, path),
            _ => {}
        }
    }

    fn check_fields(&mut self, node: &Node, map: &Map, path: Path<'_>) {
        for (name, value) in map.iter() {
            if let Some(property) = node.property(name) {
                self.check(property, value, path.field(name));
                continue;
            }
            match &node.additional {
                AdditionalProperties::Schema(node) => self.check(node, value, path.field(name)),
                AdditionalProperties::Denied => {
                    let detail = format!("{path}.{name} in body is a forbidden property");
                    self.errors.invalid_text(&path, name, &detail);
                }
                AdditionalProperties::Unset | AdditionalProperties::Any => {}
            }
        }
    }

    fn invalid(&mut self, path: &Path<'_>, value: &Value, rule: std::fmt::Arguments<'_>) {
        self.errors.invalid(path, value, &format!("{path} in body {rule}"));
    }

    fn check_type(&mut self, node: &Node, value: &Value, path: &Path<'_>) {
        let want = match (node.int_or_string, node.ty) {
            (true, _) => "integer,string",
            (false, Some(ty)) => ty.name(),
            (false, None) => return,
        };
        let got = match value {
            Value::Null if node.nullable => return,
            Value::Null => "null",
            Value::Bool(_) => "boolean",
            Value::Int(_) => "integer",
            Value::Float(number)
                if number.fract() == 0.0 && !matches!(node.ty, Some(Type::Number)) =>
            {
                "integer"
            }
            Value::Float(_) => "number",
            Value::String(_) => "string",
            Value::List(_) => "array",
            Value::Map(_) | Value::Json(_) => "object",
        };
        let fits = match (node.int_or_string, got) {
            (true, got) => matches!(got, "integer" | "string"),
            (false, "integer") => matches!(want, "integer" | "number"),
            (false, got) => want == got,
        };
        if !fits {
            let detail = format!("{path} in body must be of type {want}: {}", quote(got));
            self.errors.push(path, Cause::TypeInvalid, Some(quote(got)), &detail);
        }
    }

    fn check_enum(&mut self, checks: &Checks, value: &Value, path: &Path<'_>) {
        if checks.one_value_of.is_empty() || checks.one_value_of.iter().any(|one| same(one, value))
        {
            return;
        }
        let supported: Vec<String> = checks.one_value_of.iter().map(text_of).collect();
        self.errors.not_supported(path, value, &supported);
    }

    fn check_text(&mut self, node: &Node, checks: &Checks, text: &str, path: &Path<'_>) {
        if checks.max_length.is_some() || checks.min_length.is_some() {
            let length = text.chars().count() as u64;
            if let Some(limit) = checks.max_length.filter(|limit| length > *limit) {
                self.errors.push(
                    path,
                    Cause::TooLong,
                    None,
                    &format!("may not be longer than {limit}"),
                );
            }
            if let Some(limit) = checks.min_length.filter(|limit| length < *limit) {
                let value = Value::from(text);
                self.invalid(path, &value, format_args!("should be at least {limit} chars long"));
            }
        }
        if let Some((source, pattern)) = &checks.pattern
            && !pattern.is_match(text)
        {
            self.invalid(path, &Value::from(text), format_args!("should match '{source}'"));
        }
        let checked = matches!(node.ty, Some(Type::Text) | None) && !node.int_or_string;
        if checked && !formats::fits(&checks.format, text) {
            let format = &checks.format;
            let shown = quote(text);
            self.invalid(
                path,
                &Value::from(text),
                format_args!("must be of type {format}: {shown}"),
            );
        }
    }

    fn check_number(&mut self, checks: &Checks, number: f64, value: &Value, path: &Path<'_>) {
        if let Some(factor) = checks.multiple_of
            && !is_multiple(number, value, factor)
        {
            let factor = show_float(factor);
            self.invalid(path, value, format_args!("should be a multiple of {factor}"));
        }
        if let Some(limit) = checks.maximum {
            let shown = show_float(limit);
            if checks.exclusive_maximum && number >= limit {
                self.invalid(path, value, format_args!("should be less than {shown}"));
            } else if !checks.exclusive_maximum && number > limit {
                self.invalid(path, value, format_args!("should be less than or equal to {shown}"));
            }
        }
        if let Some(limit) = checks.minimum {
            let shown = show_float(limit);
            if checks.exclusive_minimum && number <= limit {
                self.invalid(path, value, format_args!("should be greater than {shown}"));
            } else if !checks.exclusive_minimum && number < limit {
                self.invalid(
                    path,
                    value,
                    format_args!("should be greater than or equal to {shown}"),
                );
            }
        }
    }

    fn check_list(&mut self, checks: &Checks, items: &[Value], path: &Path<'_>) {
        let length = items.len() as u64;
        if let Some(limit) = checks.min_items.filter(|limit| length < *limit) {
            let value = Value::Int(i64::try_from(length).unwrap_or(i64::MAX));
            self.invalid(path, &value, format_args!("should have at least {limit} items"));
        }
        if let Some(limit) = checks.max_items.filter(|limit| length > *limit) {
            self.too_many(path, length, limit);
        }
        if checks.unique_items {
            let mut seen = HashSet::with_capacity(items.len());
            if !items.iter().all(|item| seen.insert(identity(item))) {
                let value = Value::Null;
                self.invalid(path, &value, format_args!("shouldn't contain duplicates"));
            }
        }
    }

    fn check_map(&mut self, checks: &Checks, map: &Map, path: &Path<'_>) {
        let length = map.len() as u64;
        if let Some(limit) = checks.min_properties.filter(|limit| length < *limit) {
            let value = Value::Int(i64::try_from(length).unwrap_or(i64::MAX));
            self.invalid(path, &value, format_args!("should have at least {limit} properties"));
        }
        if let Some(limit) = checks.max_properties.filter(|limit| length > *limit) {
            self.too_many(path, length, limit);
        }
        for name in checks.required.iter().filter(|name| !map.contains(name)) {
            self.errors.required(&path.field(name), "");
        }
    }

    fn too_many(&mut self, path: &Path<'_>, length: u64, limit: u64) {
        let detail = format!("must have at most {limit} items");
        self.errors.push(path, Cause::TooMany, Some(length.to_string()), &detail);
    }

    /// Whether a value fits a schema, and the errors if not.
    fn attempt(&mut self, node: &Node, value: &Value, path: Path<'_>) -> ErrorList {
        let mut found = ErrorList::default();
        let mut nested = Values { errors: &mut found, steps: self.steps };
        nested.check(node, value, path);
        self.steps = nested.steps;
        found
    }

    fn check_junctors(&mut self, checks: &Checks, value: &Value, path: Path<'_>) {
        let say = |errors: &mut ErrorList, rule: &str| {
            let shown = quote(&path.to_string());
            errors.invalid_text(&Path::ROOT, "", &format!("{shown} must {rule}"));
        };
        if !checks.any_of.is_empty() {
            let mut best: Option<ErrorList> = None;
            for node in &checks.any_of {
                let found = self.attempt(node, value, path);
                let better = best.as_ref().is_none_or(|best| found.len() < best.len());
                if better {
                    best = Some(found);
                }
                if best.as_ref().is_some_and(|best| best.0.is_empty()) {
                    break;
                }
            }
            if let Some(best) = best.filter(|best| !best.0.is_empty()) {
                say(self.errors, "validate at least one schema (anyOf)");
                self.errors.0.extend(best.0);
            }
        }
        self.check_one_of(checks, value, path);
        if !checks.all_of.is_empty() {
            let mut valid: usize = 0;
            for node in &checks.all_of {
                let found = self.attempt(node, value, path);
                valid = valid.saturating_add(usize::from(found.0.is_empty()));
                self.errors.0.extend(found.0);
            }
            if valid == 0 {
                say(self.errors, "validate all the schemas (allOf). None validated");
            } else if valid < checks.all_of.len() {
                say(self.errors, "validate all the schemas (allOf)");
            }
        }
        if let Some(not) = &checks.not
            && self.attempt(not, value, path).0.is_empty()
        {
            let shown = quote(&path.to_string());
            self.errors.invalid_text(
                &Path::ROOT,
                "",
                &format!("{shown} must not validate the schema (not)"),
            );
        }
    }

    fn check_one_of(&mut self, checks: &Checks, value: &Value, path: Path<'_>) {
        if checks.one_of.is_empty() {
            return;
        }
        let mut valid: usize = 0;
        let mut best: Option<ErrorList> = None;
        for node in &checks.one_of {
            let found = self.attempt(node, value, path);
            if found.0.is_empty() {
                valid = valid.saturating_add(1);
            } else if best.as_ref().is_none_or(|best| found.len() < best.len()) {
                best = Some(found);
            }
        }
        if valid == 1 {
            return;
        }
        let found = match valid {
            0 => "Found none valid".to_owned(),
            valid => format!("Found {valid} valid alternatives"),
        };
        let shown = quote(&path.to_string());
        let detail = format!("{shown} must validate one and only one schema (oneOf). {found}");
        self.errors.invalid_text(&Path::ROOT, "", &detail);
        if valid == 0 {
            self.errors.0.extend(best.unwrap_or_default().0);
        }
    }
}

/// Whether two values are equal; numbers by their value.
pub(super) fn same(left: &Value, right: &Value) -> bool {
    match (left, right) {
        (Value::Int(whole), Value::Float(number)) | (Value::Float(number), Value::Int(whole)) => {
            *whole as f64 == *number
        }
        (left, right) => left == right,
    }
}

/// A text that is equal for equal values, whatever the order of their maps.
pub(super) fn identity(value: &Value) -> String {
    show(value)
}

fn text_of(value: &Value) -> String {
    if let Value::String(text) = value {
        return text.to_string();
    }
    let mut out = Vec::new();
    write_json(&mut out, value);
    String::from_utf8_lossy(&out).into_owned()
}

fn is_multiple(number: f64, value: &Value, factor: f64) -> bool {
    if factor <= 0.0 {
        return false;
    }
    if let (Value::Int(number), 0.0) = (value, factor.fract())
        && factor < 9e15
    {
        return number.checked_rem(factor as i64) == Some(0);
    }
    let quotient = number / factor;
    quotient == quotient.trunc()
}
