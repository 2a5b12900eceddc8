//! Types and estimated costs of expressions.

use std::cell::RefCell;
use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use super::ast::{Expr, Fold, FoldKind, Kind, Operator};
use super::cost;
use super::estimate;
use super::lexer::Fault;
use super::names::is_keyword;
use super::signatures;
use super::types::{Access, REQUEST_MAX, SizedType, Ty};

/// What is known of an expression before it runs.
pub(crate) struct Checked {
    pub(crate) decl: SizedType,
    pub(crate) cost: u64,
}

/// A variable and those around it.
pub(crate) struct Scope<'a> {
    pub(crate) name: &'a str,
    pub(crate) decl: &'a SizedType,
    pub(crate) outer: Option<&'a Scope<'a>>,
    /// Places of the calls of `sum` in the text, with the letter of the type of the items: what the sum of none is.
    pub(crate) sums: &'a RefCell<HashMap<usize, char>>,
}

impl<'a> Scope<'a> {
    fn find(&self, name: &str) -> Option<&'a SizedType> {
        if self.name == name { Some(self.decl) } else { self.outer?.find(name) }
    }

    fn inner<'b>(&'b self, name: &'b str, decl: &'b SizedType) -> Scope<'b> {
        Scope { name, decl, outer: Some(self), sums: self.sums }
    }
}

/// Names of types, which are values as well.
pub(crate) const TYPE_NAMES: [&str; 13] = [
    "bool",
    "int",
    "uint",
    "double",
    "string",
    "bytes",
    "list",
    "map",
    "null_type",
    "type",
    "dyn",
    "google.protobuf.Duration",
    "google.protobuf.Timestamp",
];

/// Checks an expression in a scope.
pub(crate) fn check(expr: &Expr, scope: &Scope<'_>) -> Result<Checked, Fault> {
    let literal = |ty: Ty, size: usize| {
        Ok(Checked { decl: SizedType::new(ty, size as u64, size as u64), cost: 0 })
    };
    match &expr.kind {
        Kind::Null => literal(Ty::Null, 1),
        Kind::Bool(_) => literal(Ty::Bool, 1),
        Kind::Int(_) => literal(Ty::Int, 1),
        Kind::Uint(_) => literal(Ty::Uint, 1),
        Kind::Double(_) => literal(Ty::Double, 1),
        Kind::Text(text) => literal(Ty::Text, text.len()),
        Kind::Bytes(bytes) => literal(Ty::Bytes, bytes.len()),
        Kind::Ident(name) => check_name(expr, name, scope),
        Kind::Select { of, field } => check_field(expr, of, field, scope),
        Kind::OptionalSelect { of, field } => optional(check_field(expr, of, field, scope)?),
        Kind::OptionalIndex { of, at } => optional(check_index(expr, of, at, scope)?),
        Kind::Has { of, field } => {
            check_field(expr, of, field, scope)?;
            // Kubernetes 1.25 takes it for nothing.
            Ok(Checked { decl: SizedType::plain(Ty::Bool), cost: 0 })
        }
        Kind::Index { of, at } => check_index(expr, of, at, scope),
        Kind::Call { name, target, args } => check_call(expr, name, target.as_deref(), args, scope),
        Kind::List(parts) => check_list(parts, scope),
        Kind::Map(entries) => check_map(entries, scope),
        Kind::Not(of) => {
            let of = check(of, scope)?;
            match of.decl.ty {
                Ty::Bool | Ty::Dyn => {
                    Ok(Checked { decl: SizedType::plain(Ty::Bool), cost: plus(of.cost, 1) })
                }
                other => Err(no_overload(expr, "!_", &[&other])),
            }
        }
        Kind::Negate(of) => {
            let of = check(of, scope)?;
            match of.decl.ty {
                Ty::Int | Ty::Double | Ty::Dyn => {
                    Ok(Checked { cost: plus(of.cost, 1), decl: of.decl })
                }
                other => Err(no_overload(expr, "-_", &[&other])),
            }
        }
        Kind::Binary { operator, left, right } => {
            let (left, right) = (check(left, scope)?, check(right, scope)?);
            check_binary(expr, *operator, left, right)
        }
        Kind::Every(parts) => check_logic(expr, "_&&_", parts, scope),
        Kind::Some(parts) => check_logic(expr, "_||_", parts, scope),
        Kind::If { condition, then, otherwise } => {
            let condition = check(condition, scope)?;
            if !condition.decl.ty.fits(&Ty::Bool) {
                return Err(no_overload(expr, "_?_:_", &[&condition.decl.ty]));
            }
            let (then, otherwise) = (check(then, scope)?, check(otherwise, scope)?);
            if !then.decl.ty.fits(&otherwise.decl.ty) {
                let types = [&Ty::Bool, &then.decl.ty, &otherwise.decl.ty];
                return Err(no_overload(expr, "_?_:_", &types));
            }
            let cost = plus(condition.cost, then.cost.max(otherwise.cost));
            let either = then.decl.or(&otherwise.decl);
            Ok(Checked { decl: SizedType::new(either.ty, either.max, 1), cost })
        }
        Kind::Fold(fold) => check_fold(expr, fold, scope),
    }
}

fn plus(left: u64, right: u64) -> u64 {
    left.saturating_add(right)
}

fn no_overload(expr: &Expr, function: &str, types: &[&Ty]) -> Fault {
    let types: Vec<String> = types.iter().map(ToString::to_string).collect();
    let why =
        format!("found no matching overload for '{function}' applied to '({})'", types.join(", "));
    Fault::new(expr.at, why)
}

fn check_name(expr: &Expr, name: &str, scope: &Scope<'_>) -> Result<Checked, Fault> {
    if let Some(decl) = scope.find(name) {
        return Ok(Checked { decl: decl.clone(), cost: 1 });
    }
    if TYPE_NAMES.contains(&name) {
        return Ok(Checked { decl: SizedType::plain(Ty::Type), cost: 1 });
    }
    Err(Fault::new(expr.at, format!("undeclared reference to '{name}' (in container '')")))
}

fn check_field(expr: &Expr, of: &Expr, field: &str, scope: &Scope<'_>) -> Result<Checked, Fault> {
    let of = check(of, scope)?;
    let cost = plus(of.cost, 1);
    let (inside, is_optional) = unwrapped(&of.decl);
    let decl = match &inside.ty {
        Ty::Access(Access::Authorizer) if field == "requestResource" => {
            Some(SizedType::plain(Ty::Access(Access::Resource)))
        }
        Ty::Object(fields) => property(fields, field).cloned(),
        Ty::Map(key, value) if key.ty.fits(&Ty::Text) => Some(SizedType::clone(value)),
        Ty::Dyn => Some(SizedType::new(Ty::Dyn, of.decl.max, 1)),
        other => {
            let why = format!("type '{other}' does not support field selection");
            return Err(Fault::new(expr.at, why));
        }
    };
    let decl = decl.ok_or_else(|| Fault::new(expr.at, format!("undefined field '{field}'")))?;
    Ok(Checked { decl: if is_optional { SizedType::optional(decl) } else { decl }, cost })
}

/// The property of a name. One of CEL's own words may stand for its escaped name, as in Kubernetes since 1.32: `namespace` for `__namespace__`.
fn property<'a>(fields: &'a BTreeMap<String, SizedType>, name: &str) -> Option<&'a SizedType> {
    let escaped = || fields.get(&format!("__{name}__"));
    fields.get(name).or_else(|| is_keyword(name).then(escaped).flatten())
}

/// The type of the value that an optional may have, and whether it is one.
fn unwrapped(decl: &SizedType) -> (&SizedType, bool) {
    match &decl.ty {
        Ty::Optional(value) => (value, true),
        _ => (decl, false),
    }
}

/// What may be missing is an optional, and what an optional may have is one already.
fn optional(found: Checked) -> Result<Checked, Fault> {
    let decl = match found.decl.ty {
        Ty::Optional(_) => found.decl,
        _ => SizedType::optional(found.decl),
    };
    Ok(Checked { decl, cost: found.cost })
}

fn check_index(expr: &Expr, of: &Expr, at: &Expr, scope: &Scope<'_>) -> Result<Checked, Fault> {
    let (of, at) = (check(of, scope)?, check(at, scope)?);
    let cost = plus(plus(of.cost, at.cost), 1);
    let (inside, is_optional) = unwrapped(&of.decl);
    let decl = match &inside.ty {
        Ty::List(item) if matches!(at.decl.ty, Ty::Int | Ty::Dyn) => SizedType::clone(item),
        Ty::Map(key, value) if key.ty.fits(&at.decl.ty) => SizedType::clone(value),
        Ty::Dyn => SizedType::new(Ty::Dyn, of.decl.max, 1),
        other => return Err(no_overload(expr, "_[_]", &[other, &at.decl.ty])),
    };
    Ok(Checked { decl: if is_optional { SizedType::optional(decl) } else { decl }, cost })
}

fn check_call(
    expr: &Expr,
    name: &str,
    target: Option<&Expr>,
    args: &[Expr],
    scope: &Scope<'_>,
) -> Result<Checked, Fault> {
    if !signatures::exists(name) {
        let why = format!("undeclared reference to '{name}' (in container '')");
        return Err(Fault::new(expr.at, why));
    }
    let target = target.map(|target| check(target, scope)).transpose()?;
    let args: Vec<Checked> = args.iter().map(|arg| check(arg, scope)).collect::<Result<_, _>>()?;
    let parts = || target.iter().chain(&args);
    let max = parts().map(|part| part.decl.max).max().unwrap_or(REQUEST_MAX);
    let of_parts = parts().fold(0, |sum, part| plus(sum, part.cost));
    let decls: Vec<SizedType> = args.iter().map(|arg| arg.decl.clone()).collect();
    let on = target.as_ref().map(|target| &target.decl);
    if let ("sum", Some(Ty::List(item))) = (name, on.map(|on| &on.ty)) {
        scope.sums.borrow_mut().insert(expr.at, item.ty.letter());
    }
    if let Some(decl) = signatures::result(name, on, &decls, max) {
        let cost = plus(of_parts, estimate::function(name, on, &decls));
        return Ok(Checked { decl, cost });
    }
    let types: Vec<String> = decls.iter().map(|decl| decl.ty.to_string()).collect();
    let types = types.join(", ");
    let applied = match &target {
        Some(target) => format!("{}.({types})", target.decl.ty),
        None => format!("({types})"),
    };
    let why = format!("found no matching overload for '{name}' applied to '{applied}'");
    Err(Fault::new(expr.at, why))
}

fn check_list(parts: &[Expr], scope: &Scope<'_>) -> Result<Checked, Fault> {
    let checked: Vec<Checked> =
        parts.iter().map(|part| check(part, scope)).collect::<Result<_, _>>()?;
    let cost = checked.iter().fold(cost::LIST, |sum, part| plus(sum, part.cost));
    let item = common(parts.iter().zip(checked.iter().map(|part| &part.decl)))?;
    Ok(Checked { decl: SizedType::list(item, parts.len() as u64), cost })
}

/// The type of all parts of a list or map; `dyn` of none, and where one of them is. Kubernetes has no lists of several types.
fn common<'a>(
    mut parts: impl Iterator<Item = (&'a Expr, &'a SizedType)>,
) -> Result<SizedType, Fault> {
    let Some((_, first)) = parts.next() else { return Ok(SizedType::plain(Ty::Dyn)) };
    let all = parts.try_fold(first.clone(), |all, (part, decl)| {
        if !decl.ty.fits(&all.ty) {
            let why = format!("expected type '{}' but found '{}'", all.ty, decl.ty);
            return Err(Fault::new(part.at, why));
        }
        let is_same = std::mem::discriminant(&decl.ty) == std::mem::discriminant(&all.ty);
        let either = || SizedType::new(Ty::Dyn, all.max.max(decl.max), 1);
        Ok(if is_same { all.or(decl) } else { either() })
    })?;
    Ok(SizedType::new(all.ty, all.max, 1))
}

fn check_map(entries: &[(Expr, Expr)], scope: &Scope<'_>) -> Result<Checked, Fault> {
    let (mut keys, mut values) = (Vec::new(), Vec::new());
    let mut cost = cost::MAP;
    for (key_expr, value_expr) in entries {
        let (key, value) = (check(key_expr, scope)?, check(value_expr, scope)?);
        // No value has such keys, and types that hold one type twice grow without bounds.
        if key.decl.ty.is_composite() {
            let why = format!("unsupported key type: {}", key.decl.ty);
            return Err(Fault::new(key_expr.at, why));
        }
        cost = plus(cost, plus(key.cost, value.cost));
        keys.push((key_expr, key.decl));
        values.push((value_expr, value.decl));
    }
    let all = |parts: &[(&Expr, SizedType)]| {
        common(parts.iter().map(|(part, decl)| (*part, decl))).map(Arc::new)
    };
    let ty = Ty::Map(all(&keys)?, all(&values)?);
    Ok(Checked { decl: SizedType::new(ty, entries.len() as u64, 2), cost })
}

fn check_logic(
    expr: &Expr,
    function: &str,
    parts: &[Expr],
    scope: &Scope<'_>,
) -> Result<Checked, Fault> {
    let mut cost = 0;
    for part in parts {
        let part_checked = check(part, scope)?;
        if !part_checked.decl.ty.fits(&Ty::Bool) {
            return Err(no_overload(expr, function, &[&Ty::Bool, &part_checked.decl.ty]));
        }
        cost = plus(cost, part_checked.cost);
    }
    Ok(Checked { decl: SizedType::plain(Ty::Bool), cost })
}

fn check_binary(
    expr: &Expr,
    operator: Operator,
    left: Checked,
    right: Checked,
) -> Result<Checked, Fault> {
    let args = plus(left.cost, right.cost);
    let wrong = || no_overload(expr, operator.function(), &[&left.decl.ty, &right.decl.ty]);
    let (decl, own) = match operator {
        Operator::Equal | Operator::NotEqual if left.decl.ty.fits(&right.decl.ty) => {
            (SizedType::plain(Ty::Bool), estimate::comparison(&left.decl, &right.decl))
        }
        Operator::In => {
            let fits = match &right.decl.ty {
                Ty::List(item) => item.ty.fits(&left.decl.ty),
                Ty::Map(key, _) => key.ty.fits(&left.decl.ty),
                other => matches!(other, Ty::Dyn),
            };
            if !fits {
                return Err(wrong());
            }
            (SizedType::plain(Ty::Bool), estimate::search(&right.decl))
        }
        Operator::Less | Operator::LessOrEqual | Operator::Greater | Operator::GreaterOrEqual => {
            let ordered = |ty: &Ty| {
                !matches!(
                    ty,
                    Ty::List(_)
                        | Ty::Map(..)
                        | Ty::Object(_)
                        | Ty::Url
                        | Ty::Type
                        | Ty::Null
                        | Ty::Ip
                        | Ty::Cidr
                        | Ty::Quantity
                        | Ty::Format
                )
            };
            if !left.decl.ty.fits(&right.decl.ty)
                || !ordered(&left.decl.ty)
                || !ordered(&right.decl.ty)
            {
                return Err(wrong());
            }
            (SizedType::plain(Ty::Bool), estimate::comparison(&left.decl, &right.decl))
        }
        Operator::Equal | Operator::NotEqual => return Err(wrong()),
        _ => {
            let ty = arithmetic(operator, &left.decl.ty, &right.decl.ty).ok_or_else(wrong)?;
            let sum = plus(left.decl.max, right.decl.max);
            let own = estimate::arithmetic(&ty, sum);
            let ty = if matches!(ty, Ty::List(_)) { left.decl.or(&right.decl).ty } else { ty };
            (SizedType::new(ty, sum, 1), own)
        }
    };
    Ok(Checked { decl, cost: plus(args, own) })
}

/// The type of a sum, difference, product or quotient.
fn arithmetic(operator: Operator, left: &Ty, right: &Ty) -> Option<Ty> {
    let pair = (left.letter(), right.letter());
    if pair.0 == '*' || pair.1 == '*' {
        return Some(Ty::Dyn);
    }
    let known = match operator {
        Operator::Add => matches!(
            pair,
            ('i', 'i')
                | ('u', 'u')
                | ('d', 'd')
                | ('s', 's')
                | ('b', 'b')
                | ('l', 'l')
                | ('D', 'D')
                | ('T', 'D')
                | ('D', 'T')
        ),
        Operator::Subtract => {
            matches!(
                pair,
                ('i', 'i') | ('u', 'u') | ('d', 'd') | ('D', 'D') | ('T', 'D') | ('T', 'T')
            )
        }
        Operator::Multiply | Operator::Divide => {
            matches!(pair, ('i', 'i') | ('u', 'u') | ('d', 'd'))
        }
        Operator::Remainder => matches!(pair, ('i', 'i') | ('u', 'u')),
        _ => false,
    };
    if !known || (pair == ('l', 'l') && !left.fits(right)) {
        return None;
    }
    Some(match (operator, pair) {
        (Operator::Subtract, ('T', 'T')) => Ty::Duration,
        (_, ('D', 'T')) => Ty::Timestamp,
        _ => left.clone(),
    })
}

fn check_fold(expr: &Expr, fold: &Fold, scope: &Scope<'_>) -> Result<Checked, Fault> {
    let range = check(&fold.range, scope)?;
    if matches!(fold.kind, FoldKind::OptMap | FoldKind::OptFlatMap) {
        return check_optional_map(expr, fold, range, scope);
    }
    let item = match &range.decl.ty {
        Ty::List(item) => SizedType::clone(item),
        Ty::Map(key, _) => SizedType::clone(key),
        Ty::Dyn => SizedType::new(Ty::Dyn, range.decl.max, 1),
        other => {
            let why = format!(
                "expression of type '{other}' cannot be range of a comprehension (must be list, map, or dynamic)"
            );
            return Err(Fault::new(expr.at, why));
        }
    };
    let inner = scope.inner(&fold.var, &item);
    let body = check(&fold.body, &inner)?;
    let mapped = fold.mapped.as_ref().map(|mapped| check(mapped, &inner)).transpose()?;
    let maps_only = fold.kind == FoldKind::Map && mapped.is_none();
    if !maps_only && !body.decl.ty.fits(&Ty::Bool) {
        let why = format!("expected type 'bool' but found '{}'", body.decl.ty);
        return Err(Fault::new(expr.at, why));
    }
    let each = plus(body.cost, mapped.as_ref().map_or(0, |mapped| mapped.cost));
    let (once, each, decl) = match fold.kind {
        FoldKind::All => (1, plus(each, 3), SizedType::plain(Ty::Bool)),
        FoldKind::Exists => (1, plus(each, 4), SizedType::plain(Ty::Bool)),
        FoldKind::ExistsOne => (2, plus(each, 2), SizedType::plain(Ty::Bool)),
        FoldKind::Filter => (11, plus(each, 13), SizedType::list(item.clone(), range.decl.max)),
        FoldKind::Map | FoldKind::OptMap | FoldKind::OptFlatMap => {
            let result = mapped.unwrap_or(body).decl;
            (11, plus(each, 12), SizedType::list(result, range.decl.max))
        }
    };
    let cost = plus(plus(range.cost, once), range.decl.max.saturating_mul(each));
    Ok(Checked { decl, cost })
}

/// `optMap` and `optFlatMap`: what becomes of the value of an optional.
fn check_optional_map(
    expr: &Expr,
    fold: &Fold,
    range: Checked,
    scope: &Scope<'_>,
) -> Result<Checked, Fault> {
    let value = match &range.decl.ty {
        Ty::Optional(value) => SizedType::clone(value),
        Ty::Dyn => range.decl.clone(),
        other => return Err(no_overload(expr, "optMap", &[other])),
    };
    let inner = scope.inner(&fold.var, &value);
    let body = check(&fold.body, &inner)?;
    let decl = match (fold.kind, &body.decl.ty) {
        (FoldKind::OptMap, _) => SizedType::optional(body.decl),
        (_, Ty::Optional(_) | Ty::Dyn) => body.decl,
        (_, other) => return Err(no_overload(expr, "optFlatMap", &[other])),
    };
    Ok(Checked { decl, cost: plus(plus(range.cost, body.cost), 1) })
}
