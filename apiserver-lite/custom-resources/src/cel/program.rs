//! Compiled rules.

use std::cell::RefCell;
use std::collections::HashMap;
use std::sync::Arc;

use super::ast::{Expr, Kind};
use super::checker::{Checked, Scope, check};
use super::lexer::Fault;
use super::parser::parse;
use super::types::{REQUEST_MAX, SizedType, Ty};
use crate::pattern::{Pattern, Patterns};

/// A rule that is ready to run.
#[derive(Debug)]
pub(crate) struct Program {
    pub(crate) expr: Expr,
    /// Whether it compares with the stored value.
    pub(crate) uses_old: bool,
    /// Whether the stored value is an optional.
    pub(crate) has_optional_old: bool,
    /// The regular expressions that it names.
    pub(crate) patterns: HashMap<String, Arc<Pattern>>,
    /// Places of the calls of `sum`, with the letter of the type of the items.
    pub(crate) sums: HashMap<usize, char>,
    /// Estimated cost of a run.
    pub(crate) cost: u64,
    /// Most values that it can be run for in one request.
    pub(crate) values_max: u64,
}

/// Why a rule cannot be compiled. Its author must change it.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum CompileError {
    /// It is no expression of its type; with the line and a mark at the place.
    #[error("compilation failed: {0}")]
    Fault(String),
    /// A rule decides.
    #[error("cel expression must evaluate to a bool")]
    NotABool,
    /// A message is a text.
    #[error("messageExpression must evaluate to a string")]
    NotAString,
    /// The schema has no type that rules could be about.
    #[error("failed to retrieve type information")]
    NoType,
}

impl Program {
    /// Compiles a rule of values of a type. The error says where the fault is.
    pub(crate) fn compile(
        text: &str,
        decls: RuleTypes<'_>,
        patterns: &mut Patterns,
    ) -> Result<Self, CompileError> {
        Self::compile_to(text, decls, patterns, Ty::Bool)
    }

    /// Compiles an expression of a message.
    pub(crate) fn compile_message(
        text: &str,
        decls: RuleTypes<'_>,
        patterns: &mut Patterns,
    ) -> Result<Self, CompileError> {
        Self::compile_to(text, decls, patterns, Ty::Text)
    }

    /// Compiles an expression that decides about variables.
    pub(crate) fn compile_condition(
        text: &str,
        variables: &[Variable<'_>],
        patterns: &mut Patterns,
    ) -> Result<Self, CompileError> {
        Self::compile_with(text, variables, patterns, Ty::Bool, 1)
    }

    fn compile_to(
        text: &str,
        RuleTypes { decl, has_optional_old }: RuleTypes<'_>,
        patterns: &mut Patterns,
        wanted: Ty,
    ) -> Result<Self, CompileError> {
        let optional = has_optional_old.then(|| SizedType::optional(decl.clone()));
        let old = Variable { name: "oldSelf", decl: optional.as_ref().unwrap_or(decl) };
        let variables = [Variable { name: "self", decl }, old];
        let program = Self::compile_with(text, &variables, patterns, wanted, decl.least)?;
        Ok(Program { has_optional_old, ..program })
    }

    /// `least` are the fewest bytes of a value that it is run for.
    fn compile_with(
        text: &str,
        variables: &[Variable<'_>],
        all: &mut Patterns,
        wanted: Ty,
        least: u64,
    ) -> Result<Self, CompileError> {
        let mut compile = || {
            let expr = parse(text)?;
            let sums = RefCell::default();
            let checked = check_with(&expr, variables, None, &sums)?;
            let mut patterns = HashMap::new();
            collect_patterns(&expr, all, &mut patterns)?;
            Ok((expr, checked, patterns, sums.into_inner()))
        };
        let (expr, checked, patterns, sums) =
            compile().map_err(|fault: Fault| CompileError::Fault(describe(text, &fault)))?;
        match (&checked.decl.ty, wanted) {
            (Ty::Bool, Ty::Bool) | (Ty::Text, Ty::Text) => {}
            (_, Ty::Bool) => return Err(CompileError::NotABool),
            _ => return Err(CompileError::NotAString),
        }
        Ok(Program {
            uses_old: mentions(&expr, "oldSelf"),
            has_optional_old: false,
            expr,
            patterns,
            sums,
            cost: checked.cost,
            values_max: REQUEST_MAX.checked_div(least.saturating_add(1)).unwrap_or(REQUEST_MAX),
        })
    }
}

/// The types of `self` and `oldSelf`.
#[derive(Clone, Copy)]
pub(crate) struct RuleTypes<'a> {
    pub(crate) decl: &'a SizedType,
    /// Whether `oldSelf` is an optional, which rules see without a stored value as well.
    pub(crate) has_optional_old: bool,
}

/// A variable of an expression.
#[derive(Clone, Copy)]
pub(crate) struct Variable<'a> {
    pub(crate) name: &'a str,
    pub(crate) decl: &'a SizedType,
}

/// Checks an expression with all variables in its scope.
fn check_with(
    expr: &Expr,
    variables: &[Variable<'_>],
    outer: Option<&Scope<'_>>,
    sums: &RefCell<HashMap<usize, char>>,
) -> Result<Checked, Fault> {
    match (variables.split_first(), outer) {
        (Some((Variable { name, decl }, rest)), outer) => {
            check_with(expr, rest, Some(&Scope { name, decl, outer, sums }), sums)
        }
        (None, Some(scope)) => check(expr, scope),
        (None, None) => Err(Fault::new(expr.at, "there is nothing to decide about")),
    }
}

/// A fault with its line.
fn describe(text: &str, fault: &Fault) -> String {
    let before = text.get(..fault.at).unwrap_or(text);
    let line_start = before.rfind('\n').map_or(0, |at| at.saturating_add(1));
    let line = text.get(line_start..).and_then(|rest| rest.lines().next()).unwrap_or_default();
    let number = before.matches('\n').count().saturating_add(1);
    let column = before.get(line_start..).unwrap_or_default().chars().count();
    let shown: String = line.chars().take(200).collect();
    let dots = ".".repeat(column.min(200));
    format!(
        "ERROR: <input>:{number}:{}: {}\n | {shown}\n | {dots}^",
        column.saturating_add(1),
        fault.why
    )
}

fn mentions(expr: &Expr, name: &str) -> bool {
    matches!(&expr.kind, Kind::Ident(have) if have == name)
        || expr.kind.parts().into_iter().any(|part| mentions(part, name))
}

fn collect_patterns(
    expr: &Expr,
    all: &mut Patterns,
    found: &mut HashMap<String, Arc<Pattern>>,
) -> Result<(), Fault> {
    if let Kind::Call { name, target, args } = &expr.kind
        && matches!(name.as_str(), "matches" | "find" | "findAll")
    {
        let pattern = if target.is_some() { args.first() } else { args.get(1) };
        if let Some(Expr { at, kind: Kind::Text(text), .. }) = pattern
            && !found.contains_key(text)
        {
            let compiled = all.compile(text).map_err(|error| Fault::new(*at, error.to_string()))?;
            found.insert(text.clone(), compiled);
        }
    }
    expr.kind.parts().into_iter().try_for_each(|part| collect_patterns(part, all, found))
}
