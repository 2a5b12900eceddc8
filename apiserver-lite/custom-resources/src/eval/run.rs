//! Runs expressions, within a budget.

use std::borrow::Cow;
use std::cmp::Ordering;
use std::rc::Rc;

use apiserver_schema::Value;

use super::access::{AccessAnswer, AccessInput, AccessQuestion, AccessVal};
use super::value::{Entries, Fail, Items, Text, Val, order};
use super::{fields, functions, lists};
use crate::cel::TYPE_NAMES;
use crate::cel::ast::{Expr, Fold, FoldKind, Kind, Operator};
use crate::cel::cost;
use crate::cel::program::Program;
use crate::formats;
use crate::node::{Node, Type};
use crate::times;

/// Entries that a look-up passes in one step.
pub(crate) const LOOKUP: u64 = 64;

/// A variable and those around it.
pub(crate) struct Scope<'s, 'a> {
    pub(crate) name: &'s str,
    pub(crate) value: Val<'a>,
    pub(crate) outer: Option<&'s Scope<'s, 'a>>,
}

impl<'a> Scope<'_, 'a> {
    fn find(&self, name: &str) -> Option<&Val<'a>> {
        if self.name == name { Some(&self.value) } else { self.outer?.find(name) }
    }
}

/// One run of a program.
pub(crate) struct Run<'a> {
    pub(crate) program: &'a Program,
    spent: u64,
    limit: u64,
    /// What `authorizer` knows, in programs that have it.
    access: Option<&'a AccessInput>,
}

impl<'a> Run<'a> {
    pub(crate) fn new(program: &'a Program, limit: u64) -> Self {
        Run { program, spent: 0, limit, access: None }
    }

    /// A run of a program that has the variable `authorizer`.
    pub(crate) fn with_access(self, access: Option<&'a AccessInput>) -> Self {
        Run { access, ..self }
    }

    /// The answer to a question.
    pub(crate) fn answer(&self, question: &AccessQuestion) -> Result<AccessAnswer, Fail> {
        let answer = self.access.and_then(|access| access.answers.get(question));
        answer.cloned().ok_or_else(|| Fail::Unanswered(Box::new(question.clone())))
    }

    /// Steps so far.
    pub(crate) fn spent(&self) -> u64 {
        self.spent
    }

    /// Takes steps from the budget.
    pub(crate) fn charge(&mut self, steps: u64) -> Result<(), Fail> {
        self.spent = self.spent.saturating_add(steps);
        if self.spent > self.limit { Err(Fail::Limit) } else { Ok(()) }
    }

    /// Evaluates the program for a value of a schema, and the stored one.
    pub(crate) fn run(
        &mut self,
        node: &'a Node,
        value: &'a Value,
        old: Option<&'a Value>,
    ) -> Result<Val<'a>, Fail> {
        let old = old.map(|old| self.load(old, Some(node))).transpose()?;
        let old = match self.program.has_optional_old {
            true => Val::optional(old),
            false => old.unwrap_or(Val::Null),
        };
        let outer = Scope { name: "oldSelf", value: old, outer: None };
        let value = self.load(value, Some(node))?;
        let program = self.program;
        self.eval(&program.expr, &Scope { name: "self", value, outer: Some(&outer) })
    }

    /// Evaluates the program for values that no schema describes.
    pub(crate) fn run_with(&mut self, values: &[(&str, &'a Value)]) -> Result<Val<'a>, Fail> {
        let authorizer = self.access.map(|_| AccessVal::authorizer());
        let outer = authorizer.map(|value| Scope { name: "authorizer", value, outer: None });
        self.eval_with(values, outer.as_ref())
    }

    fn eval_with(
        &mut self,
        values: &[(&str, &'a Value)],
        outer: Option<&Scope<'_, 'a>>,
    ) -> Result<Val<'a>, Fail> {
        let program = self.program;
        match (values.split_first(), outer) {
            (Some(((name, value), rest)), outer) => {
                let value = self.load(value, None)?;
                self.eval_with(rest, Some(&Scope { name, value, outer }))
            }
            (None, Some(scope)) => self.eval(&program.expr, scope),
            (None, None) => Err(Fail::error("there is nothing to decide about")),
        }
    }

    /// A value of an object, typed by its schema.
    pub(crate) fn load(
        &mut self,
        value: &'a Value,
        node: Option<&'a Node>,
    ) -> Result<Val<'a>, Fail> {
        let ty = node.filter(|node| !node.int_or_string).and_then(|node| node.ty);
        Ok(match value {
            Value::Null => Val::Null,
            Value::Bool(flag) => Val::Bool(*flag),
            Value::Int(number) if ty == Some(Type::Number) => Val::Double(*number as f64),
            Value::Int(number) => Val::Int(*number),
            Value::Float(number) => match value.as_int().filter(|_| ty != Some(Type::Number)) {
                Some(whole) => Val::Int(whole),
                None => Val::Double(*number),
            },
            Value::String(text) => {
                let format = node.filter(|_| ty == Some(Type::Text)).map_or("", Node::format);
                self.load_text(text, format)?
            }
            Value::List(items) => Val::List(Items::Tree(items, node)),
            Value::Map(map) => Val::Map(Entries::Tree(map, node)),
            Value::Json(_) => {
                return Err(Fail::error("the expression reads fieldsV1, which is not parsed"));
            }
        })
    }

    fn load_text(&mut self, text: &'a str, format: &str) -> Result<Val<'a>, Fail> {
        if matches!(format, "duration" | "date" | "datetime") {
            self.charge(text.len() as u64 / cost::PASSED)?;
        }
        let found = match format {
            "byte" => {
                self.charge(cost::walk(text.len() as u64))?;
                formats::decode_bytes(text).map(|bytes| Val::Bytes(bytes.into()))
            }
            "duration" => times::parse_long_duration(text).map(Val::Duration),
            "date" => times::parse_date(text).map(Val::Time),
            "datetime" => times::parse_time(text).map(Val::Time),
            _ => return Ok(Val::Text(Text::Borrowed(text))),
        };
        found.ok_or_else(|| Fail::error(format!("Invalid {format} {text}")))
    }

    pub(crate) fn eval(&mut self, expr: &'a Expr, scope: &Scope<'_, 'a>) -> Result<Val<'a>, Fail> {
        self.charge(match &expr.kind {
            Kind::Ident(name)
            | Kind::Select { field: name, .. }
            | Kind::OptionalSelect { field: name, .. }
            | Kind::Has { field: name, .. } => (name.len() as u64 / cost::PASSED).saturating_add(1),
            Kind::Index { .. } | Kind::OptionalIndex { .. } | Kind::Not(_) | Kind::Negate(_) => 1,
            _ => 0,
        })?;
        match &expr.kind {
            Kind::Null => Ok(Val::Null),
            Kind::Bool(flag) => Ok(Val::Bool(*flag)),
            Kind::Int(number) => Ok(Val::Int(*number)),
            Kind::Uint(number) => Ok(Val::Uint(*number)),
            Kind::Double(number) => Ok(Val::Double(*number)),
            Kind::Text(text) => Ok(Val::Text(Text::Borrowed(text))),
            Kind::Bytes(bytes) => {
                self.charge(cost::walk(bytes.len() as u64))?;
                Ok(Val::Bytes(bytes.as_slice().into()))
            }
            Kind::Ident(name) => self.name(name, scope),
            Kind::Select { of, field } => {
                let of = self.eval(of, scope)?;
                if matches!(of, Val::Optional(_)) {
                    return self.select_optional(&of, field);
                }
                self.field(&of, field)?.ok_or_else(|| Fail::error(format!("no such key: {field}")))
            }
            Kind::OptionalSelect { of, field } => {
                let of = self.eval(of, scope)?;
                self.select_optional(&of, field)
            }
            Kind::OptionalIndex { of, at } => {
                let (of, at) = (self.eval(of, scope)?, self.eval(at, scope)?);
                self.optional_index(&of, &at)
            }
            Kind::Has { of, field } => {
                let of = self.eval(of, scope)?;
                let found = self.select_optional(&of, field)?;
                Ok(Val::Bool(matches!(found, Val::Optional(Some(_)))))
            }
            Kind::Index { of, at } => {
                let (of, at) = (self.eval(of, scope)?, self.eval(at, scope)?);
                self.index(&of, &at)
            }
            Kind::Call { .. } => self.call(expr, scope),
            Kind::List(parts) => self.list(parts, scope),
            Kind::Map(entries) => self.map(entries, scope),
            Kind::Not(of) => match self.eval(of, scope)? {
                Val::Bool(flag) => Ok(Val::Bool(!flag)),
                _ => Err(Fail::no_overload()),
            },
            Kind::Negate(of) => match self.eval(of, scope)? {
                Val::Int(number) => number
                    .checked_neg()
                    .map(Val::Int)
                    .ok_or_else(|| Fail::error("integer overflow")),
                Val::Double(number) => Ok(Val::Double(-number)),
                _ => Err(Fail::no_overload()),
            },
            Kind::Binary { operator, left, right } => {
                let (left, right) = (self.eval(left, scope)?, self.eval(right, scope)?);
                self.binary(*operator, &left, &right)
            }
            Kind::Every(parts) => self.logic(parts, false, scope),
            Kind::Some(parts) => self.logic(parts, true, scope),
            Kind::If { condition, then, otherwise } => {
                self.branch([condition, then, otherwise], scope)
            }
            Kind::Fold(fold) => self.fold(fold, scope),
        }
    }

    /// `condition ? then : otherwise`
    fn branch(
        &mut self,
        [condition, then, otherwise]: [&'a Expr; 3],
        scope: &Scope<'_, 'a>,
    ) -> Result<Val<'a>, Fail> {
        self.charge(cost::BRANCH)?;
        match self.eval(condition, scope)? {
            Val::Bool(true) => self.eval(then, scope),
            Val::Bool(false) => self.eval(otherwise, scope),
            _ => Err(Fail::no_overload()),
        }
    }

    fn name(&mut self, name: &str, scope: &Scope<'_, 'a>) -> Result<Val<'a>, Fail> {
        if let Some(value) = scope.find(name) {
            return Ok(value.clone());
        }
        let known = TYPE_NAMES.into_iter().find(|have| *have == name);
        known.map(Val::Type).ok_or_else(|| Fail::error(format!("no such attribute: {name}")))
    }

    /// The result of a call.
    fn call(&mut self, expr: &'a Expr, scope: &Scope<'_, 'a>) -> Result<Val<'a>, Fail> {
        let Kind::Call { name, target, args } = &expr.kind else { return Err(Fail::no_overload()) };
        let target = target.as_deref();
        let target = target.map(|target| self.eval(target, scope)).transpose()?;
        let args: Result<Vec<_>, Fail> = args.iter().map(|arg| self.eval(arg, scope)).collect();
        let args = args?;
        let size = if name == "size" { Val::uncounted } else { Val::size };
        let sizes: Vec<u64> = target.iter().chain(&args).map(size).collect();
        self.charge(cost::function(name, &sizes))?;
        match &target {
            Some(Val::List(items)) if name == "sum" && items.len() == 0 => {
                Ok(functions::zero(self.program.sums.get(&expr.at).copied()))
            }
            target => functions::call(self, name, target.as_ref(), &args),
        }
    }

    /// The field of an object or map; `None` if it is not set.
    fn field(&mut self, of: &Val<'a>, name: &'a str) -> Result<Option<Val<'a>>, Fail> {
        match of {
            Val::Map(Entries::Tree(map, node)) => {
                let (map, node) = (*map, *node);
                self.charge(map.len() as u64 / LOOKUP)?;
                let found = fields::named(map, node, name);
                found.map(|(value, node)| self.load(value, node)).transpose()
            }
            Val::Map(entries) => self.entry(entries, &Val::Text(Text::Borrowed(name))),
            Val::Access(of) => Ok(self.access.and_then(|input| of.field(name, input))),
            _ => Err(Fail::no_overload()),
        }
    }

    /// The field of a value that may be missing, which may be missing itself.
    fn select_optional(&mut self, of: &Val<'a>, name: &'a str) -> Result<Val<'a>, Fail> {
        let found = match of {
            Val::Optional(None) => None,
            Val::Optional(Some(of)) => self.field(of, name)?,
            of => self.field(of, name)?,
        };
        Ok(Val::optional(found))
    }

    /// The item or entry of what may be missing, which may be missing itself.
    fn optional_index(&mut self, of: &Val<'a>, at: &Val<'a>) -> Result<Val<'a>, Fail> {
        Ok(Val::optional(match (of, at) {
            (Val::Optional(None), _) => None,
            (Val::Optional(Some(of)), at) => return self.optional_index(of, at),
            (Val::List(items), Val::Int(at)) => {
                let found = usize::try_from(*at).ok().map(|at| self.item(items, at)).transpose()?;
                found.flatten()
            }
            (Val::Map(entries), key) => self.entry(entries, key)?,
            _ => return Err(Fail::no_overload()),
        }))
    }

    /// The value of a key; `None` if there is none.
    pub(crate) fn entry(
        &mut self,
        entries: &Entries<'a>,
        key: &Val<'a>,
    ) -> Result<Option<Val<'a>>, Fail> {
        self.charge(entries.len() as u64 / LOOKUP)?;
        match (entries, key) {
            (Entries::Tree(map, node), Val::Text(key)) => {
                self.charge(key.len() as u64 / cost::PASSED)?;
                let found = fields::named(map, *node, key);
                found.map(|(value, node)| self.load(value, node)).transpose()
            }
            (Entries::Tree(..), _) => Ok(None),
            (Entries::Made(entries), key) => {
                for (have, value) in entries.iter() {
                    if lists::equal(self, have, key)? {
                        return Ok(Some(value.clone()));
                    }
                }
                Ok(None)
            }
        }
    }

    fn index(&mut self, of: &Val<'a>, at: &Val<'a>) -> Result<Val<'a>, Fail> {
        match (of, at) {
            (Val::Optional(_), at) => self.optional_index(of, at),
            (Val::List(items), Val::Int(at)) => {
                let found = usize::try_from(*at).ok().map(|at| self.item(items, at)).transpose()?;
                found.flatten().ok_or_else(|| Fail::error(format!("index out of bounds: {at}")))
            }
            (Val::Map(entries), key) => {
                let found = self.entry(entries, key)?;
                found.ok_or_else(|| match key {
                    Val::Text(key) => Fail::error(format!("no such key: {}", &**key)),
                    _ => Fail::error("no such key"),
                })
            }
            _ => Err(Fail::no_overload()),
        }
    }

    /// The item at an index.
    pub(crate) fn item(&mut self, items: &Items<'a>, at: usize) -> Result<Option<Val<'a>>, Fail> {
        match items {
            Items::Tree(items, node) => {
                let node = node.and_then(|node| node.items.as_deref());
                items.get(at).map(|item| self.load(item, node)).transpose()
            }
            Items::Made(items, _) => Ok(items.get(at).cloned()),
        }
    }

    fn list(&mut self, parts: &'a [Expr], scope: &Scope<'_, 'a>) -> Result<Val<'a>, Fail> {
        self.charge(cost::LIST.saturating_add(parts.len() as u64))?;
        let parts: Result<Vec<_>, Fail> = parts.iter().map(|part| self.eval(part, scope)).collect();
        Ok(Val::list(parts?))
    }

    fn map(&mut self, entries: &'a [(Expr, Expr)], scope: &Scope<'_, 'a>) -> Result<Val<'a>, Fail> {
        self.charge(cost::MAP.saturating_add(entries.len() as u64))?;
        let mut made: Vec<(Val<'a>, Val<'a>)> = Vec::with_capacity(entries.len());
        for (key, value) in entries {
            let (key, value) = (self.eval(key, scope)?, self.eval(value, scope)?);
            for (have, _) in &made {
                if lists::equal(self, have, &key)? {
                    return Err(Fail::error("Failed with repeated key"));
                }
            }
            made.push((key, value));
        }
        Ok(Val::Map(Entries::Made(Rc::new(made))))
    }

    /// `&&` and `||`: `decisive` decides alone, even if the other operand fails.
    fn logic(
        &mut self,
        parts: &'a [Expr],
        decisive: bool,
        scope: &Scope<'_, 'a>,
    ) -> Result<Val<'a>, Fail> {
        let mut failed = None;
        for part in parts {
            self.charge(cost::BRANCH)?;
            match self.eval(part, scope) {
                Ok(Val::Bool(flag)) if flag == decisive => return Ok(Val::Bool(decisive)),
                Ok(Val::Bool(_)) => {}
                Ok(_) => failed = failed.or(Some(Fail::no_overload())),
                Err(fail) if fail.is_final() => return Err(fail),
                Err(fail) => failed = failed.or(Some(fail)),
            }
        }
        failed.map_or(Ok(Val::Bool(!decisive)), Err)
    }

    fn binary(
        &mut self,
        operator: Operator,
        left: &Val<'a>,
        right: &Val<'a>,
    ) -> Result<Val<'a>, Fail> {
        let ordering = |run: &mut Self| {
            run.charge(cost::walk(left.size().min(right.size())).max(1))?;
            match order(left, right) {
                None if matches!((left, right), (Val::Double(_), Val::Double(_))) => Ok(None),
                None => Err(Fail::no_overload()),
                found => Ok(found),
            }
        };
        Ok(Val::Bool(match operator {
            Operator::Equal => lists::equal(self, left, right)?,
            Operator::NotEqual => !lists::equal(self, left, right)?,
            Operator::Less => ordering(self)?.is_some_and(Ordering::is_lt),
            Operator::LessOrEqual => ordering(self)?.is_some_and(Ordering::is_le),
            Operator::Greater => ordering(self)?.is_some_and(Ordering::is_gt),
            Operator::GreaterOrEqual => ordering(self)?.is_some_and(Ordering::is_ge),
            Operator::In => match right {
                Val::Map(entries) => self.entry(entries, left)?.is_some(),
                Val::List(items) => lists::position(self, items, left)?.is_some(),
                _ => return Err(Fail::no_overload()),
            },
            operator => return functions::arithmetic(self, operator, left, right),
        }))
    }

    fn fold(&mut self, fold: &'a Fold, scope: &Scope<'_, 'a>) -> Result<Val<'a>, Fail> {
        let range = self.eval(&fold.range, scope)?;
        let items = match range {
            Val::Optional(value) if fold.kind.is_of_optional() => {
                let Some(value) = value else { return Ok(Val::Optional(None)) };
                self.charge(1)?;
                let value = Val::clone(&value);
                let inner = Scope { name: &fold.var, value, outer: Some(scope) };
                return match (fold.kind, self.eval(&fold.body, &inner)?) {
                    (FoldKind::OptMap, made) => Ok(Val::optional(Some(made))),
                    (_, made @ Val::Optional(_)) => Ok(made),
                    _ => Err(Fail::no_overload()),
                };
            }
            _ if fold.kind.is_of_optional() => return Err(Fail::no_overload()),
            Val::List(items) => items,
            Val::Map(Entries::Tree(map, node)) => {
                self.charge(map.len() as u64)?;
                let keys = fields::names(map, node).map(|name| match name {
                    Cow::Borrowed(name) => Val::Text(Text::Borrowed(name)),
                    Cow::Owned(name) => Val::text(name),
                });
                Items::from_values(keys.collect())
            }
            Val::Map(Entries::Made(entries)) => {
                self.charge(entries.len() as u64)?;
                Items::from_values(entries.iter().map(|(key, _)| key.clone()).collect())
            }
            _ => return Err(Fail::no_overload()),
        };
        let mut state = Folded::default();
        for at in 0..items.len() {
            self.charge(1)?;
            let Some(value) = self.item(&items, at)? else { break };
            let inner = Scope { name: &fold.var, value, outer: Some(scope) };
            if let Some(result) = self.step(fold, &inner, &mut state)? {
                return Ok(result);
            }
        }
        state.result(fold.kind)
    }

    /// One item of a macro; a value if it decides.
    fn step(
        &mut self,
        fold: &'a Fold,
        scope: &Scope<'_, 'a>,
        state: &mut Folded<'a>,
    ) -> Result<Option<Val<'a>>, Fail> {
        if fold.kind == FoldKind::Map && fold.mapped.is_none() {
            let made = self.eval(&fold.body, scope)?;
            state.made.push(made);
            return Ok(None);
        }
        let holds = match self.eval(&fold.body, scope) {
            Ok(Val::Bool(holds)) => Ok(holds),
            Ok(_) => Err(Fail::no_overload()),
            Err(fail) if fail.is_final() => return Err(fail),
            Err(fail) => Err(fail),
        };
        match (fold.kind, holds) {
            (FoldKind::All, Ok(false)) => return Ok(Some(Val::Bool(false))),
            (FoldKind::Exists, Ok(true)) => return Ok(Some(Val::Bool(true))),
            (FoldKind::All | FoldKind::Exists, Ok(_)) => {}
            (FoldKind::All | FoldKind::Exists, Err(fail)) => {
                state.failed = state.failed.take().or(Some(fail));
            }
            (_, Err(fail)) => return Err(fail),
            (_, Ok(false)) => {}
            (FoldKind::ExistsOne, Ok(true)) => state.count = state.count.saturating_add(1),
            (_, Ok(true)) => {
                let made = match &fold.mapped {
                    Some(mapped) => self.eval(mapped, scope)?,
                    None => scope.value.clone(),
                };
                state.made.push(made);
            }
        }
        Ok(None)
    }
}

/// What a macro has found so far.
#[derive(Default)]
struct Folded<'a> {
    made: Vec<Val<'a>>,
    count: u64,
    failed: Option<Fail>,
}

impl<'a> Folded<'a> {
    fn result(self, kind: FoldKind) -> Result<Val<'a>, Fail> {
        if let Some(fail) = self.failed {
            return Err(fail);
        }
        Ok(match kind {
            FoldKind::All => Val::Bool(true),
            FoldKind::Exists => Val::Bool(false),
            FoldKind::ExistsOne => Val::Bool(self.count == 1),
            _ => Val::list(self.made),
        })
    }
}
