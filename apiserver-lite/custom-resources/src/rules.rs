//! Rules of objects (`x-kubernetes-validations`): compiled with the schema, run for each value that has them.

use std::collections::HashMap;

use apiserver_schema::validate::Cause;
use apiserver_schema::{Map, Value};

use crate::cel::cost::{CALL_MAX, OBJECT_MAX};
use crate::cel::program::{CompileError, Program, RuleTypes};
use crate::errors::{ErrorList, Path, quote, show};
use crate::eval::{Fail, Run, Val};
use crate::field_path::SchemaFieldPath;
use crate::node::{AdditionalProperties, ListType, Node, Rule};
use crate::pattern::Patterns;

mod cel_types;
pub(crate) mod schema;
#[cfg(test)]
mod tests;

use cel_types::declare;

/// Compiles the rules of a schema. One that cannot be compiled fails for every object.
pub(crate) fn compile(node: &mut Node, patterns: &mut Patterns) {
    if !node.has_rules {
        return;
    }
    if !node.rules.is_empty() {
        let decl = declare(node);
        for rule in &mut node.rules {
            let has_optional_old = rule.has_optional_old;
            let decls = decl.as_ref().map(|decl| RuleTypes { decl, has_optional_old });
            rule.program = Some(match decls {
                Some(decls) => Program::compile(&rule.text, decls, patterns),
                None => Err(CompileError::NoType),
            });
            if let (Some(decls), false) = (decls, rule.message_expression.is_empty()) {
                rule.message_program =
                    Program::compile_message(&rule.message_expression, decls, patterns).ok();
            }
        }
    }
    node.properties.iter_mut().for_each(|(_, property)| compile(property, patterns));
    if let Some(items) = &mut node.items {
        compile(items, patterns);
    }
    if let AdditionalProperties::Schema(values) = &mut node.additional {
        compile(values, patterns);
    }
}

/// Runs the rules of an object. `old` is the stored version of an update.
pub(crate) fn check(root: &Node, new: &Value, old: Option<&Value>, errors: &mut ErrorList) {
    Checker { budget: OBJECT_MAX, errors }.value(root, new, old, Path::ROOT);
}

struct Checker<'e> {
    budget: u64,
    errors: &'e mut ErrorList,
}

/// Whether further rules are run.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Next {
    Continue,
    Stop,
}

impl Checker<'_> {
    fn value(&mut self, node: &Node, new: &Value, old: Option<&Value>, path: Path<'_>) -> Next {
        if !node.has_rules || *new == Value::Null {
            return Next::Continue;
        }
        if self.errors.is_full() {
            return Next::Stop;
        }
        for rule in &node.rules {
            if self.rule(rule, node, new, old, &path) == Next::Stop {
                return Next::Stop;
            }
        }
        match new {
            Value::Map(map) => self.fields(node, map, old, path),
            Value::List(items) => self.items(node, items, old, path),
            _ => Next::Continue,
        }
    }

    fn fields(&mut self, node: &Node, map: &Map, old: Option<&Value>, path: Path<'_>) -> Next {
        let old = old.and_then(Value::as_map);
        for (name, value) in map.iter() {
            let old = old.and_then(|old| old.get(name));
            let next = match (node.property(name), node.additional.schema()) {
                (Some(property), _) => self.value(property, value, old, path.field(name)),
                (None, Some(values)) => self.value(values, value, old, path.key(name)),
                (None, None) => Next::Continue,
            };
            if next == Next::Stop {
                return Next::Stop;
            }
        }
        Next::Continue
    }

    fn items(&mut self, node: &Node, items: &[Value], old: Option<&Value>, path: Path<'_>) -> Next {
        let Some(item_node) = &node.items else { return Next::Continue };
        if !item_node.has_rules {
            return Next::Continue;
        }
        let stored = match (&node.list, old) {
            (ListType::Map(keys), Some(Value::List(old))) => {
                old.iter().map(|item| (key_of(item, keys), item)).collect()
            }
            _ => HashMap::new(),
        };
        for (at, item) in items.iter().enumerate() {
            let old = match &node.list {
                ListType::Map(keys) if !stored.is_empty() => {
                    stored.get(&key_of(item, keys)).copied()
                }
                _ => None,
            };
            if self.value(item_node, item, old, path.index(at)) == Next::Stop {
                return Next::Stop;
            }
        }
        Next::Continue
    }

    fn invalid(&mut self, node: &Node, path: &Path<'_>, detail: &str) {
        let shown = quote(node.ty.map_or("", |ty| ty.name()));
        self.errors.push(path, Cause::Invalid, Some(shown), detail);
    }

    /// Adds the error of a rule that does not hold, at the field and of the kind that it names.
    fn failed(&mut self, rule: &Rule, node: &Node, path: &Path<'_>, detail: &str) {
        let names = rule.field_path.as_ref().map_or(&[][..], SchemaFieldPath::names);
        let shown = quote(node.ty.map_or("", |ty| ty.name()));
        let (value, detail) = match rule.reason {
            Cause::Invalid => (Some(shown), detail),
            Cause::Duplicate => (Some(shown), ""),
            _ => (None, detail),
        };
        let mut add = |path: &Path<'_>| self.errors.push(path, rule.reason, value.clone(), detail);
        at_field(Some(node), names, path, &mut add);
    }

    fn rule(
        &mut self,
        rule: &Rule,
        node: &Node,
        new: &Value,
        old: Option<&Value>,
        path: &Path<'_>,
    ) -> Next {
        let program = match &rule.program {
            Some(Ok(program)) => program,
            Some(Err(why)) => {
                self.invalid(node, path, &format!("rule compile error: {why}"));
                return Next::Continue;
            }
            None => return Next::Continue,
        };
        // A null is no stored value to compare with.
        let old = old.filter(|old| **old != Value::Null);
        if program.uses_old && !program.has_optional_old && old.is_none() {
            return Next::Continue;
        }
        let mut run = Run::new(program, CALL_MAX);
        let result = run.run(node, new, old);
        // A rule that is only a literal takes its time too.
        let spent = run.spent().max(1);
        if spent > self.budget {
            let detail = "validation failed due to running out of cost budget, no further validation rules will be run";
            self.invalid(node, path, detail);
            return Next::Stop;
        }
        self.budget = self.budget.saturating_sub(spent);
        let name = rule.name();
        match result {
            Ok(Val::Bool(true)) => {}
            Ok(_) => {
                let message = self.message(rule, node, new, old);
                self.failed(rule, node, path, &message);
            }
            Err(Fail::Limit) => {
                let detail = format!(
                    "'operation cancelled: actual cost limit exceeded': no further validation rules will be run due to call \
                     cost exceeds limit for rule: {name}"
                );
                self.invalid(node, path, &detail);
                return Next::Stop;
            }
            Err(Fail::Error(why)) if why.starts_with("no such overload") => {
                let detail = format!(
                    "'{why}': call arguments did not match a supported operator, function or macro signature for rule: {name}"
                );
                self.invalid(node, path, &detail);
            }
            Err(Fail::Error(why)) => {
                self.invalid(node, path, &format!("{why} evaluating rule: {name}"));
            }
            // Rules have no variable that asks.
            Err(Fail::Unanswered(_)) => {
                self.invalid(node, path, &format!("no such attribute evaluating rule: {name}"));
            }
        }
        Next::Continue
    }

    /// What a failed rule says.
    fn message(&mut self, rule: &Rule, node: &Node, new: &Value, old: Option<&Value>) -> String {
        if let Some(program) = &rule.message_program {
            let mut run = Run::new(program, CALL_MAX.min(self.budget));
            let text = run.run(node, new, old);
            let text = match text {
                Ok(Val::Text(text)) => text.trim().to_owned(),
                _ => String::new(),
            };
            self.budget = self.budget.saturating_sub(run.spent());
            if !text.is_empty() && text.len() <= 5_000 && !text.contains(['\n', '\r']) {
                return text;
            }
        }
        match rule.message.as_str() {
            "" => format!("failed rule: {}", rule.text.trim()),
            message => message.to_owned(),
        }
    }
}

/// Calls `add` with the path of the field that `names` lead to from a node: keys of maps are shown in brackets.
fn at_field(
    node: Option<&Node>,
    names: &[String],
    path: &Path<'_>,
    add: &mut dyn FnMut(&Path<'_>),
) {
    let Some((name, rest)) = names.split_first() else { return add(path) };
    match node.and_then(|node| node.property(name)) {
        Some(property) => at_field(Some(property), rest, &path.field(name), add),
        None => {
            let values = node.and_then(|node| node.additional.schema());
            at_field(values, rest, &path.key(name), add);
        }
    }
}

fn key_of(item: &Value, keys: &[String]) -> String {
    let Value::Map(item) = item else { return String::new() };
    let keys: Vec<String> =
        keys.iter().map(|key| item.get(key).map_or_else(String::new, show)).collect();
    keys.join(",")
}
