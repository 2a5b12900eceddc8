//! Rules when a definition is written: they must compile, be boolean, and not cost too much for the values that the schema allows.

use apiserver_schema::{Map, Value};

use super::cel_types::declare;
use crate::cel::cost::{ESTIMATE_MAX, SCHEMA_MAX};
use crate::cel::program::{CompileError, Program, RuleTypes};
use crate::cel::types::SizedType;
use crate::errors::{ErrorList, Path, quote};
use crate::field_path::SchemaFieldPath;
use crate::node::{ListType, Node, REASONS, read_reason};
use crate::pattern::Patterns;

/// Checks the rules of a schema. `schema` is the tree of which `root` was read.
pub(crate) fn check(
    root: &Node,
    schema: &Map,
    path: Path<'_>,
    patterns: &mut Patterns,
    errors: &mut ErrorList,
) {
    let mut checker = Checker { errors, patterns, total: 0, expensive: Vec::new() };
    checker.node(root, schema, Place { values: Some(1), atomic: None }, path);
    let (total, mut expensive) = (checker.total, checker.expensive);
    if total <= SCHEMA_MAX {
        return;
    }
    expensive.sort_by_key(|(_, cost)| std::cmp::Reverse(*cost));
    let expensive = expensive.iter().filter(|(_, cost)| *cost >= SCHEMA_MAX / 100);
    for (path, _) in expensive.take(4) {
        let detail = "contributed to estimated rule cost total exceeding cost limit for entire OpenAPIv3 schema";
        errors.forbidden(&Path::ROOT.field(path), detail);
    }
    let what = "x-kubernetes-validations estimated rule cost total for entire OpenAPIv3 schema";
    errors.forbidden(&path, &too_expensive(what, total, SCHEMA_MAX));
}

fn too_expensive(what: &str, cost: u64, limit: u64) -> String {
    let factor = cost as f64 / limit as f64;
    let factor = if factor > 100.0 {
        "more than 100x".to_owned()
    } else if factor < 1.5 {
        format!("{factor:.6}x")
    } else {
        format!("{factor:.1}x")
    };
    format!(
        "{what} exceeds budget by factor of {factor} (try simplifying the rule, or adding maxItems, maxProperties, and \
         maxLength where arrays, maps, and strings are declared)"
    )
}

/// Where a node is.
#[derive(Clone, Copy)]
struct Place<'a> {
    /// Most values of the node in an object; `None` if the schema does not bound them.
    values: Option<u64>,
    /// Path of the outermost list around it whose items are not compared with stored ones, because they have no keys.
    atomic: Option<&'a str>,
}

impl Place<'_> {
    fn times(&self, limit: Option<u64>) -> Option<u64> {
        self.values.zip(limit).map(|(values, limit)| values.saturating_mul(limit))
    }
}

struct Checker<'e> {
    errors: &'e mut ErrorList,
    patterns: &'e mut Patterns,
    total: u64,
    /// Paths of rules with their costs.
    expensive: Vec<(String, u64)>,
}

impl Checker<'_> {
    fn node(&mut self, node: &Node, schema: &Map, place: Place<'_>, path: Path<'_>) {
        if !node.has_rules || self.errors.is_full() {
            return;
        }
        let here = path.to_string();
        let checks = node.checks.as_deref();
        if let (Some(items), Some(schema)) = (&node.items, schema.map("items")) {
            let values = place.times(checks.and_then(|checks| checks.max_items));
            let keyed = matches!(node.list, ListType::Map(_));
            let atomic = if keyed { place.atomic } else { place.atomic.or(Some(&here)) };
            self.node(items, schema, Place { values, atomic }, path.field("items"));
        }
        if let (Some(values), Some(schema)) =
            (node.additional.schema(), schema.map("additionalProperties"))
        {
            let count = place.times(checks.and_then(|checks| checks.max_properties));
            let place = Place { values: count, ..place };
            self.node(values, schema, place, path.field("additionalProperties"));
        }
        for (name, property) in &node.properties {
            let Some(schema) = schema.map("properties").and_then(|properties| properties.map(name))
            else {
                continue;
            };
            let path = path.field("properties");
            self.node(property, schema, place, path.key(name));
        }
        if !node.rules.is_empty() {
            let decl = declare(node);
            for (at, rule) in schema.maps("x-kubernetes-validations").enumerate() {
                let path = path.field("x-kubernetes-validations");
                self.rule(rule, node, decl.as_ref(), place, path.index(at));
            }
        }
    }

    fn rule(
        &mut self,
        rule: &Map,
        node: &Node,
        decl: Option<&SizedType>,
        place: Place<'_>,
        path: Path<'_>,
    ) {
        let (text, message) = (rule.str("rule"), rule.str("message"));
        let has_newlines = |text: &str| text.trim().contains(['\n', '\r']);
        if text.trim().is_empty() {
            return self.errors.required(&path.field("rule"), "rule is not specified");
        }
        if !message.is_empty() && message.trim().is_empty() {
            let detail = "message must be non-empty if specified";
            self.errors.invalid_text(&path.field("message"), message, detail);
        } else if has_newlines(message) {
            let detail = "message must not contain line breaks";
            self.errors.invalid_text(&path.field("message"), message, detail);
        } else if has_newlines(text) && message.trim().is_empty() {
            let detail = "message must be specified if rule contains line breaks";
            self.errors.required(&path.field("message"), detail);
        }
        let has_optional_old = rule.get("optionalOldSelf") == Some(&Value::Bool(true));
        let decls = decl.map(|decl| RuleTypes { decl, has_optional_old });
        let program = match decls {
            Some(decls) => Program::compile(text, decls, self.patterns),
            None => Err(CompileError::NoType),
        };
        match program {
            Ok(program) => self.costs(rule, &program, place, path),
            Err(why) => {
                let shown = format!(
                    "apiextensions.ValidationRule{{Rule:{}, Message:{}}}",
                    quote(text),
                    quote(message)
                );
                let cause = apiserver_schema::validate::Cause::Invalid;
                let detail = match why {
                    CompileError::NoType => format!("internal error: {why}"),
                    _ => why.to_string(),
                };
                self.errors.push(&path.field("rule"), cause, Some(shown), &detail);
            }
        }
        self.message_expression(rule, decls, place, path);
        self.reason(rule, &path.field("reason"));
        self.field_path(rule, node, &path.field("fieldPath"));
    }

    fn reason(&mut self, rule: &Map, path: &Path<'_>) {
        let Some(reason) = rule.get("reason") else { return };
        if reason.as_str().and_then(read_reason).is_none() {
            let supported = REASONS.map(|cause| cause.reason().to_owned());
            self.errors.not_supported(path, reason, &supported);
        }
    }

    /// The field of an error is one that the schema has, so that clients find it.
    fn field_path(&mut self, rule: &Map, node: &Node, path: &Path<'_>) {
        let text = rule.str("fieldPath");
        let detail = match text.trim() {
            _ if text.is_empty() => return,
            "" => "fieldPath must be non-empty if specified".to_owned(),
            trimmed if trimmed.contains(['\n', '\r']) => {
                "fieldPath must not contain line breaks".to_owned()
            }
            _ => match SchemaFieldPath::parse(text).and_then(|found| node.find(&found).map(drop)) {
                Ok(()) => return,
                Err(error) => format!("fieldPath must be a valid path: {error}"),
            },
        };
        self.errors.invalid_text(path, text, &detail);
    }

    fn message_expression(
        &mut self,
        rule: &Map,
        decls: Option<RuleTypes<'_>>,
        place: Place<'_>,
        path: Path<'_>,
    ) {
        let text = rule.str("messageExpression");
        if !text.is_empty() && text.trim().is_empty() {
            let detail = "messageExpression must be non-empty if specified";
            return self.errors.required(&path.field("messageExpression"), detail);
        }
        let Some(decls) = decls.filter(|_| !text.is_empty()) else { return };
        let field = path.field("messageExpression");
        match Program::compile_message(text, decls, self.patterns) {
            Err(why) => self.errors.invalid_text(&field, text, &why.to_string()),
            Ok(program) => {
                self.cost(&program, place, &field, "estimated messageExpression cost");
            }
        }
    }

    /// Adds the cost of an expression for all its values to that of the schema.
    fn cost(&mut self, program: &Program, place: Place<'_>, field: &Path<'_>, what: &str) {
        let cost = program.cost.saturating_mul(place.values.unwrap_or(program.values_max));
        self.total = self.total.saturating_add(cost);
        self.expensive.push((field.to_string(), cost));
        if cost > ESTIMATE_MAX {
            self.errors.forbidden(field, &too_expensive(what, cost, ESTIMATE_MAX));
        }
    }

    fn costs(&mut self, rule: &Map, program: &Program, place: Place<'_>, path: Path<'_>) {
        let (text, field) = (rule.str("rule"), path.field("rule"));
        self.cost(program, place, &field, "estimated rule cost");
        if let Some(set) = rule.get("optionalOldSelf").filter(|_| !program.uses_old) {
            let detail = "may not be set if oldSelf is not used in rule";
            self.errors.invalid(&path.field("optionalOldSelf"), set, detail);
        }
        if let Some(atomic) = place.atomic.filter(|_| program.uses_old) {
            let detail = format!(
                "oldSelf cannot be used on the uncorrelatable portion of the schema within {atomic}"
            );
            self.errors.invalid(&field, &Value::from(text), &detail);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn factors_are_shown_as_kubernetes_shows_them() {
        let factor = |cost| too_expensive("cost", cost, 100);
        assert!(factor(120).contains("factor of 1.200000x"));
        assert!(factor(250).contains("factor of 2.5x"));
        assert!(factor(100_000).contains("factor of more than 100x"));
    }
}
