//! Equality, and functions of lists. Sets have no order, and lists with keys are compared by their keys: where they stand on the left, as in Kubernetes.

use std::cmp::Ordering;
use std::collections::HashMap;
use std::rc::Rc;

use apiserver_schema::Value;

use super::fields;
use super::functions::arithmetic;
use super::run::{LOOKUP, Run};
use super::value::{Entries, Fail, Items, Text, Val, order};
use crate::cel::ast::Operator;
use crate::cel::cost;
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
    if let Some(node) = left.unordered() {
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

/// What identifies an item: its key fields, or the whole item of a set.
fn identity<'a>(run: &mut Run<'a>, item: &Val<'a>, node: &'a Node) -> Result<String, Fail> {
    let mut out = String::new();
    match (&node.list, item) {
        (ListType::Map(keys), Val::Map(entries)) => {
            for key in keys {
                if let Some(value) = keyed(run, entries, key)? {
                    write_identity(run, &value, &mut out)?;
                }
                out.push(',');
            }
        }
        (_, item) => write_identity(run, item, &mut out)?,
    }
    Ok(out)
}

/// Writes a text that equal values have in common; numbers that are equal have one, whatever their types.
fn write_identity<'a>(run: &mut Run<'a>, value: &Val<'a>, out: &mut String) -> Result<(), Fail> {
    let start = out.len();
    match value {
        Val::Text(text) => out.push_str(&format!("{:?}", &**text)),
        Val::Bytes(bytes) => out.push_str(&format!("b{bytes:?}")),
        Val::Bool(flag) => out.push_str(&flag.to_string()),
        Val::Int(number) => out.push_str(&number.to_string()),
        Val::Uint(number) => out.push_str(&number.to_string()),
        // Not -0.
        Val::Double(number) => out.push_str(&(number + 0.0).to_string()),
        Val::Duration(nanos) => out.push_str(&format!("d{nanos}")),
        Val::Time(nanos) => out.push_str(&format!("t{nanos}")),
        Val::List(items) => {
            for at in 0..items.len() {
                let Some(item) = run.item(items, at)? else { break };
                out.push('[');
                write_identity(run, &item, out)?;
            }
            out.push(']');
        }
        Val::Map(entries) => write_entries(run, entries, out)?,
        other => out.push_str(other.type_name()),
    }
    run.charge(cost::walk(out.len().saturating_sub(start) as u64).max(1))
}

/// Writes the identity of a map: that of its entries in the order of their texts.
fn write_entries<'a>(
    run: &mut Run<'a>,
    entries: &Entries<'a>,
    out: &mut String,
) -> Result<(), Fail> {
    let mut texts = Vec::with_capacity(entries.len());
    let mut add = |run: &mut Run<'a>, key: &Val<'a>, value: &Val<'a>| -> Result<(), Fail> {
        let mut text = String::new();
        write_identity(run, key, &mut text)?;
        text.push(':');
        write_identity(run, value, &mut text)?;
        texts.push(text);
        Ok(())
    };
    match entries {
        Entries::Tree(map, node) => {
            for (key, value) in map.iter() {
                let value = run.load(value, fields::schema_of(*node, key).flatten())?;
                add(run, &Val::Text(Text::Borrowed(key)), &value)?;
            }
        }
        Entries::Made(entries) => {
            for (key, value) in entries.iter() {
                add(run, key, value)?;
            }
        }
    }
    texts.sort_unstable();
    out.push_str(&format!("{{{}}}", texts.join(",")));
    Ok(())
}

/// Whether a set or a list with keys has the same items as another list.
fn equal_unordered<'a>(
    run: &mut Run<'a>,
    left: &Items<'a>,
    right: &Items<'a>,
    node: &'a Node,
) -> Result<bool, Fail> {
    let mut by_key = HashMap::with_capacity(left.len());
    for at in 0..left.len() {
        let Some(item) = run.item(left, at)? else { break };
        by_key.insert(identity(run, &item, node)?, item);
    }
    for at in 0..right.len() {
        let Some(item) = run.item(right, at)? else { break };
        let Some(other) = by_key.get(&identity(run, &item, node)?) else { return Ok(false) };
        if !equal(run, other, &item)? {
            return Ok(false);
        }
    }
    Ok(true)
}

/// The value of a key as it is stored, not as rules name it.
fn keyed<'a>(
    run: &mut Run<'a>,
    entries: &Entries<'a>,
    key: &'a str,
) -> Result<Option<Val<'a>>, Fail> {
    match entries {
        Entries::Tree(map, node) => {
            run.charge(
                (map.len() as u64 / LOOKUP).saturating_add(key.len() as u64 / cost::PASSED),
            )?;
            let found = fields::keyed(map, *node, key);
            found.map(|(value, node)| run.load(value, node)).transpose()
        }
        made @ Entries::Made(_) => run.entry(made, &Val::Text(Text::Borrowed(key))),
    }
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
                if !equal_entry(run, (key, value), *node, right)? {
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

/// Whether another map has the entry, too. Null fields are not set on either side; what rules do not see is compared as it is stored.
fn equal_entry<'a>(
    run: &mut Run<'a>,
    (key, value): (&'a str, &'a Value),
    node: Option<&'a Node>,
    right: &Entries<'a>,
) -> Result<bool, Fail> {
    if fields::schema_of(node, key).is_none() {
        let Entries::Tree(right, _) = right else { return Ok(false) };
        let Some(other) = right.get(key) else { return Ok(false) };
        let (value, other) = (run.load(value, None)?, run.load(other, None)?);
        return equal(run, &value, &other);
    }
    let seen = fields::see_value(node, key, value);
    let value = seen.map(|(value, node)| run.load(value, node)).transpose()?;
    match (value, keyed(run, right, key)?) {
        (Some(value), Some(other)) => equal(run, &value, &other),
        (value, other) => Ok(value.is_none() && other.is_none()),
    }
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
    let Some(node) = left.unordered() else {
        for at in 0..right.len() {
            made.extend(run.item(right, at)?);
        }
        return Ok(Val::list(made));
    };
    let mut places = HashMap::with_capacity(left.len());
    for (at, item) in made.iter().enumerate() {
        places.insert(identity(run, item, node)?, at);
    }
    for at in 0..right.len() {
        let Some(item) = run.item(right, at)? else { break };
        let identity = identity(run, &item, node)?;
        match places.get(&identity).and_then(|at| made.get_mut(*at)) {
            Some(place) => *place = item,
            None => {
                places.insert(identity, made.len());
                made.push(item);
            }
        }
    }
    Ok(Val::List(Items::Made(Rc::new(made), Some(node))))
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
        (function, None) => Err(Fail::error(format!("{function} called on empty list"))),
    }
}
