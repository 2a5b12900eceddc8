//! Equality, and functions of lists. Sets have no order, and lists with keys are compared by their keys.

use std::cmp::Ordering;
use std::collections::HashMap;

use apiserver_schema::Value;

use super::functions::arithmetic;
use super::run::Run;
use super::value::{Entries, Fail, Items, Text, Val, order};
use crate::cel::ast::Operator;
use crate::cel::cost;
use crate::errors::show;
use crate::node::{ListType, Node};

/// Whether two values are equal.
pub(crate) fn equal<'a>(run: &mut Run<'a>, left: &Val<'a>, right: &Val<'a>) -> Result<bool, Fail> {
    run.charge(cost::walk(left.size().min(right.size())).max(1))?;
    Ok(match (left, right) {
        (Val::Null, Val::Null) => true,
        (Val::Type(left), Val::Type(right)) => left == right,
        (Val::Url(left), Val::Url(right)) => left == right,
        (Val::Access(left), Val::Access(right)) => left == right,
        (Val::Ip(left), Val::Ip(right)) => left == right,
        (Val::Cidr(left), Val::Cidr(right)) => left == right,
        (Val::Quantity(left), Val::Quantity(right)) => left == right,
        (Val::Format(left), Val::Format(right)) => left == right,
        (Val::Optional(None), Val::Optional(None)) => true,
        (Val::Optional(Some(left)), Val::Optional(Some(right))) => {
            return equal(run, left, right);
        }
        (Val::List(left), Val::List(right)) => return equal_lists(run, left, right),
        (Val::Map(left), Val::Map(right)) => return equal_maps(run, left, right),
        (left, right) => order(left, right) == Some(Ordering::Equal),
    })
}

fn equal_lists<'a>(run: &mut Run<'a>, left: &Items<'a>, right: &Items<'a>) -> Result<bool, Fail> {
    if left.len() != right.len() {
        return Ok(false);
    }
    if let (Items::Tree(left, Some(node)), Items::Tree(right, _)) = (left, right)
        && node.list != ListType::Atomic
    {
        return equal_unordered(run, left, right, node);
    }
    for at in 0..left.len() {
        let (Some(left), Some(right)) = (run.item(left, at)?, run.item(right, at)?) else {
            return Ok(false);
        };
        if !equal(run, &left, &right)? {
            return Ok(false);
        }
    }
    Ok(true)
}

/// What identifies items: the key fields, or the whole item of a set.
fn identity(run: &mut Run<'_>, item: &Value, node: &Node) -> Result<String, Fail> {
    let text = match (&node.list, item) {
        (ListType::Map(keys), Value::Map(map)) => {
            let keys: Vec<String> =
                keys.iter().map(|key| map.get(key).map_or_else(String::new, show)).collect();
            keys.join(",")
        }
        (_, item) => show(item),
    };
    run.charge(cost::walk(text.len() as u64).max(1))?;
    Ok(text)
}

fn equal_unordered<'a>(
    run: &mut Run<'a>,
    left: &'a [Value],
    right: &'a [Value],
    node: &'a Node,
) -> Result<bool, Fail> {
    let mut by_key = HashMap::with_capacity(left.len());
    for item in left {
        by_key.insert(identity(run, item, node)?, item);
    }
    let item_node = node.items.as_deref();
    for item in right {
        let Some(other) = by_key.get(&identity(run, item, node)?).copied() else {
            return Ok(false);
        };
        let (item, other) = (run.load(item, item_node)?, run.load(other, item_node)?);
        if !equal(run, &item, &other)? {
            return Ok(false);
        }
    }
    Ok(true)
}

fn equal_maps<'a>(
    run: &mut Run<'a>,
    left: &Entries<'a>,
    right: &Entries<'a>,
) -> Result<bool, Fail> {
    if left.len() != right.len() {
        return Ok(false);
    }
    match left {
        Entries::Tree(map, node) => {
            for (key, value) in map.iter() {
                let value = run.load(value, node.and_then(|node| node.field(key)))?;
                let found = run.entry(right, &Val::Text(Text::Borrowed(key)))?;
                let Some(found) = found else { return Ok(false) };
                if !equal(run, &value, &found)? {
                    return Ok(false);
                }
            }
        }
        Entries::Made(entries) => {
            for (key, value) in entries.iter() {
                let Some(found) = run.entry(right, key)? else { return Ok(false) };
                if !equal(run, value, &found)? {
                    return Ok(false);
                }
            }
        }
    }
    Ok(true)
}

/// The index of the first item that is equal to a value.
pub(crate) fn position<'a>(
    run: &mut Run<'a>,
    items: &Items<'a>,
    value: &Val<'a>,
) -> Result<Option<usize>, Fail> {
    for at in 0..items.len() {
        let Some(item) = run.item(items, at)? else { break };
        if equal(run, &item, value)? {
            return Ok(Some(at));
        }
    }
    Ok(None)
}

/// The items of two lists. In a set no item comes twice; items of a list with keys replace those with the same keys.
pub(crate) fn concatenate<'a>(
    run: &mut Run<'a>,
    left: &Items<'a>,
    right: &Items<'a>,
) -> Result<Val<'a>, Fail> {
    run.charge((left.len() as u64).saturating_add(right.len() as u64))?;
    let mut made = Vec::new();
    for at in 0..left.len() {
        made.extend(run.item(left, at)?);
    }
    let merged = match (left, right) {
        (Items::Tree(left, Some(node)), Items::Tree(right, _)) if node.list != ListType::Atomic => {
            Some((*left, *right, *node))
        }
        _ => None,
    };
    let Some((left, right, node)) = merged else {
        for at in 0..right.len() {
            made.extend(run.item(right, at)?);
        }
        return Ok(Val::list(made));
    };
    let mut places = HashMap::with_capacity(left.len());
    for (at, item) in left.iter().enumerate() {
        places.insert(identity(run, item, node)?, at);
    }
    for item in right {
        let identity = identity(run, item, node)?;
        let item = run.load(item, node.items.as_deref())?;
        match places.get(&identity).and_then(|at| made.get_mut(*at)) {
            Some(place) => *place = item,
            None => {
                places.insert(identity, made.len());
                made.push(item);
            }
        }
    }
    Ok(Val::list(made))
}

/// `isSorted`, `sum`, `min` and `max`.
pub(crate) fn summary<'a>(
    run: &mut Run<'a>,
    function: &str,
    items: &Items<'a>,
) -> Result<Val<'a>, Fail> {
    let mut last: Option<Val<'a>> = None;
    for at in 0..items.len() {
        let Some(item) = run.item(items, at)? else { break };
        let Some(have) = last.take() else {
            last = Some(item);
            continue;
        };
        run.charge(cost::walk(item.size().min(have.size())).max(1))?;
        if function == "sum" {
            last = Some(arithmetic(run, Operator::Add, &have, &item)?);
            continue;
        }
        let order = order(&have, &item).ok_or_else(Fail::no_overload)?;
        last = Some(match function {
            "isSorted" if order.is_gt() => return Ok(Val::Bool(false)),
            "min" if order.is_le() => have,
            "max" if order.is_ge() => have,
            _ => item,
        });
    }
    match (function, last) {
        ("isSorted", _) => Ok(Val::Bool(true)),
        (_, Some(value)) => Ok(value),
        ("sum", None) => Ok(Val::Int(0)),
        (function, None) => Err(Fail::error(format!("{function} called on empty list"))),
    }
}
