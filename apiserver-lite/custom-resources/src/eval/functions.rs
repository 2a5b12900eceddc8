//! Functions, methods and arithmetic.

use std::rc::Rc;

use super::run::Run;
use super::urls::Url;
use super::value::{Fail, Items, Val};
use super::{addresses, formats, lists, quantities, texts};
use crate::cel::ast::Operator;
use crate::cel::cost;
use crate::errors::show_float;
use crate::times;

/// Calls a function, or a method of `target`.
pub(crate) fn call<'a>(
    run: &mut Run<'a>,
    name: &str,
    target: Option<&Val<'a>>,
    args: &[Val<'a>],
) -> Result<Val<'a>, Fail> {
    match (target, args) {
        (None, []) if name == "optional.none" => Ok(Val::Optional(None)),
        (None, []) => {
            let format = name.strip_prefix("format.").and_then(formats::named);
            format.map(Val::Format).ok_or_else(Fail::no_overload)
        }
        (None, [arg]) => call_on_one(name, arg),
        (None, [Val::Text(text), Val::Text(pattern)]) if name == "matches" => {
            texts::matches(run, text, pattern).map(Val::Bool)
        }
        (Some(value), []) if name == "size" => size(value),
        (Some(Val::Text(text)), args) => texts::call(run, name, text, args),
        (Some(Val::List(items)), args) => call_on_list(run, name, items, args),
        (Some(Val::Optional(value)), args) => call_on_optional(name, value.as_deref(), args),
        (Some(Val::Access(access)), args) => access.call(run, name, args),
        (Some(Val::Ip(ip)), []) => addresses::call_on_ip(name, *ip),
        (Some(Val::Cidr(block)), args) => addresses::call_on_block(name, block, args),
        (Some(Val::Quantity(quantity)), args) => quantities::call(name, **quantity, args),
        (Some(Val::Format(format)), [Val::Text(text)]) if name == "validate" => {
            Ok(formats::validate(format, text))
        }
        (Some(Val::Url(url)), []) => url.part(name).ok_or_else(Fail::no_overload),
        (Some(Val::Duration(nanos)), []) => {
            times::part_of_duration(name, *nanos).map(Val::Int).ok_or_else(Fail::no_overload)
        }
        (Some(Val::Time(nanos)), []) => {
            times::part_of_time(name, *nanos, "").map(Val::Int).ok_or_else(Fail::no_overload)
        }
        (Some(Val::Time(nanos)), [Val::Text(zone)]) => {
            let part = times::part_of_time(name, *nanos, zone).map(Val::Int);
            part.ok_or_else(|| Fail::error(format!("unknown time zone {}", &**zone)))
        }
        _ => Err(Fail::no_overload()),
    }
}

fn size<'a>(value: &Val<'a>) -> Result<Val<'a>, Fail> {
    let size = match value {
        Val::Text(text) => text.chars().count() as u64,
        Val::Bytes(_) | Val::List(_) | Val::Map(_) => value.size(),
        _ => return Err(Fail::no_overload()),
    };
    Ok(Val::Int(i64::try_from(size).unwrap_or(i64::MAX)))
}

fn call_on_one<'a>(name: &str, arg: &Val<'a>) -> Result<Val<'a>, Fail> {
    match name {
        "size" => size(arg),
        "type" => Ok(Val::Type(arg.type_name())),
        "dyn" => Ok(arg.clone()),
        "optional.of" => Ok(Val::optional(Some(arg.clone()))),
        "optional.ofNonZeroValue" => Ok(Val::optional((!is_zero(arg)).then(|| arg.clone()))),
        "int" => to_int(arg),
        "bool" => to_bool(arg),
        "uint" => to_uint(arg),
        "double" => to_double(arg),
        "string" => to_text(arg),
        "bytes" => match arg {
            Val::Bytes(_) => Ok(arg.clone()),
            Val::Text(text) => Ok(Val::Bytes(text.as_bytes().into())),
            _ => Err(Fail::no_overload()),
        },
        "duration" => match arg {
            Val::Duration(_) => Ok(arg.clone()),
            Val::Int(nanos) => Ok(Val::Duration(*nanos)),
            Val::Text(text) => times::parse_duration(text)
                .map(Val::Duration)
                .ok_or_else(|| Fail::error(format!("time: invalid duration {:?}", &**text))),
            _ => Err(Fail::no_overload()),
        },
        "timestamp" => match arg {
            Val::Time(_) => Ok(arg.clone()),
            Val::Int(seconds) => Ok(Val::Time(i128::from(*seconds).saturating_mul(1_000_000_000))),
            Val::Text(text) => times::parse_time(text)
                .map(Val::Time)
                .ok_or_else(|| Fail::error(format!("invalid timestamp {:?}", &**text))),
            _ => Err(Fail::no_overload()),
        },
        "ip" | "isIP" | "ip.isCanonical" | "cidr" | "isCIDR" => match arg {
            Val::Text(text) => addresses::read(name, text),
            _ => Err(Fail::no_overload()),
        },
        "quantity" | "isQuantity" | "sign" => quantities::call_on_one(name, arg),
        "format.named" => match arg {
            Val::Text(name) => Ok(Val::optional(formats::named(name).map(Val::Format))),
            _ => Err(Fail::no_overload()),
        },
        "url" | "isURL" => {
            let Val::Text(text) = arg else { return Err(Fail::no_overload()) };
            let url = Url::parse(text);
            if name == "isURL" {
                return Ok(Val::Bool(url.is_some()));
            }
            let url = url.map(|url| Val::Url(Rc::new(url)));
            url.ok_or_else(|| {
                Fail::error(format!("URL parse error during conversion from string: {:?}", &**text))
            })
        }
        _ => Err(Fail::no_overload()),
    }
}

/// The sum of no items whose type has this letter.
pub(crate) fn zero<'a>(letter: Option<char>) -> Val<'a> {
    match letter {
        Some('u') => Val::Uint(0),
        Some('d') => Val::Double(0.0),
        Some('D') => Val::Duration(0),
        _ => Val::Int(0),
    }
}

/// Whether it is what a field has that is not set.
fn is_zero(value: &Val<'_>) -> bool {
    match value {
        Val::Null | Val::Bool(false) | Val::Int(0) | Val::Uint(0) | Val::Optional(None) => true,
        Val::Double(number) => *number == 0.0,
        Val::Duration(nanos) => *nanos == 0,
        Val::Text(_) | Val::Bytes(_) | Val::List(_) | Val::Map(_) => value.size() == 0,
        _ => false,
    }
}

fn call_on_optional<'a>(
    name: &str,
    value: Option<&Val<'a>>,
    args: &[Val<'a>],
) -> Result<Val<'a>, Fail> {
    match (name, value, args) {
        ("hasValue", value, []) => Ok(Val::Bool(value.is_some())),
        ("value", Some(value), []) | ("orValue", Some(value), [_]) => Ok(value.clone()),
        ("value", None, []) => Err(Fail::error("optional.none() dereference")),
        ("or", Some(value), [Val::Optional(_)]) => Ok(Val::optional(Some(value.clone()))),
        ("orValue", None, [other]) | ("or", None, [other @ Val::Optional(_)]) => Ok(other.clone()),
        _ => Err(Fail::no_overload()),
    }
}

fn call_on_list<'a>(
    run: &mut Run<'a>,
    name: &str,
    items: &Items<'a>,
    args: &[Val<'a>],
) -> Result<Val<'a>, Fail> {
    match (name, args) {
        ("isSorted" | "sum" | "min" | "max", []) => lists::summary(run, name, items),
        ("indexOf", [value]) => Ok(index(lists::position(run, items, value)?)),
        ("lastIndexOf", [value]) => {
            let mut found = None;
            for at in 0..items.len() {
                let Some(item) = run.item(items, at)? else { break };
                if lists::equal(run, &item, value)? {
                    found = Some(at);
                }
            }
            Ok(index(found))
        }
        ("join", []) => texts::join(run, items, ""),
        ("join", [Val::Text(separator)]) => texts::join(run, items, separator),
        _ => Err(Fail::no_overload()),
    }
}

/// An index as a value; -1 for none.
pub(crate) fn index<'a>(found: Option<usize>) -> Val<'a> {
    Val::Int(found.and_then(|at| i64::try_from(at).ok()).unwrap_or(-1))
}

/// The lowest number that no signed integer holds.
const TWO_TO_63: f64 = 9_223_372_036_854_775_808.0;

fn to_bool<'a>(arg: &Val<'a>) -> Result<Val<'a>, Fail> {
    match arg {
        Val::Bool(_) => Ok(arg.clone()),
        Val::Text(text) => match &**text {
            "1" | "t" | "T" | "true" | "TRUE" | "True" => Ok(Val::Bool(true)),
            "0" | "f" | "F" | "false" | "FALSE" | "False" => Ok(Val::Bool(false)),
            text => Err(Fail::error(format!("invalid bool {text:?}"))),
        },
        _ => Err(Fail::no_overload()),
    }
}

fn to_int<'a>(arg: &Val<'a>) -> Result<Val<'a>, Fail> {
    let number = match arg {
        Val::Int(number) => Some(*number),
        Val::Uint(number) => i64::try_from(*number).ok(),
        Val::Double(number) if number.abs() < TWO_TO_63 => Some(*number as i64),
        Val::Duration(nanos) => Some(*nanos),
        Val::Time(nanos) => i64::try_from(nanos.div_euclid(1_000_000_000)).ok(),
        Val::Text(text) => {
            return text
                .parse()
                .map(Val::Int)
                .map_err(|_| Fail::error(format!("invalid int {:?}", &**text)));
        }
        Val::Double(_) => None,
        _ => return Err(Fail::no_overload()),
    };
    number.map(Val::Int).ok_or_else(|| Fail::error("integer overflow"))
}

fn to_uint<'a>(arg: &Val<'a>) -> Result<Val<'a>, Fail> {
    let number = match arg {
        Val::Uint(number) => Some(*number),
        Val::Int(number) => u64::try_from(*number).ok(),
        Val::Double(number) if (0.0..2.0 * TWO_TO_63).contains(number) => Some(*number as u64),
        Val::Text(text) => {
            return text
                .parse()
                .map(Val::Uint)
                .map_err(|_| Fail::error(format!("invalid uint {:?}", &**text)));
        }
        Val::Double(_) => None,
        _ => return Err(Fail::no_overload()),
    };
    number.map(Val::Uint).ok_or_else(|| Fail::error("unsigned integer overflow"))
}

fn to_double<'a>(arg: &Val<'a>) -> Result<Val<'a>, Fail> {
    match arg {
        Val::Double(number) => Ok(Val::Double(*number)),
        Val::Int(number) => Ok(Val::Double(*number as f64)),
        Val::Uint(number) => Ok(Val::Double(*number as f64)),
        Val::Text(text) => text
            .parse()
            .map(Val::Double)
            .map_err(|_| Fail::error(format!("invalid double {:?}", &**text))),
        _ => Err(Fail::no_overload()),
    }
}

fn to_text<'a>(arg: &Val<'a>) -> Result<Val<'a>, Fail> {
    Ok(match arg {
        Val::Text(_) => arg.clone(),
        Val::Bool(flag) => Val::text(flag.to_string()),
        Val::Int(number) => Val::text(number.to_string()),
        Val::Uint(number) => Val::text(number.to_string()),
        Val::Double(number) => Val::text(show_float(*number)),
        Val::Bytes(bytes) => {
            let text = std::str::from_utf8(bytes);
            Val::text(
                text.map_err(|_| Fail::error("invalid UTF-8 in bytes, cannot convert to string"))?,
            )
        }
        Val::Duration(nanos) => Val::text(times::format_duration(*nanos)),
        Val::Time(nanos) => {
            Val::text(times::format_time(*nanos).ok_or_else(|| Fail::error("timestamp overflow"))?)
        }
        Val::Url(url) => Val::text(url.text.as_str()),
        Val::Ip(ip) => Val::text(ip.to_string()),
        Val::Cidr(block) => Val::text(block.to_string()),
        _ => return Err(Fail::no_overload()),
    })
}

/// Sums, differences, products, quotients and remainders.
pub(crate) fn arithmetic<'a>(
    run: &mut Run<'a>,
    operator: Operator,
    left: &Val<'a>,
    right: &Val<'a>,
) -> Result<Val<'a>, Fail> {
    run.charge(1)?;
    match (left, right) {
        (Val::Int(left), Val::Int(right)) => integers(operator, *left, *right),
        (Val::Uint(left), Val::Uint(right)) => unsigned(operator, *left, *right),
        (Val::Double(left), Val::Double(right)) => Ok(Val::Double(match operator {
            Operator::Add => left + right,
            Operator::Subtract => left - right,
            Operator::Multiply => left * right,
            Operator::Divide => left / right,
            _ => return Err(Fail::no_overload()),
        })),
        (Val::Text(left), Val::Text(right)) if operator == Operator::Add => {
            run.charge(cost::walk((left.len() as u64).saturating_add(right.len() as u64)))?;
            Ok(Val::text([&**left, &**right].concat()))
        }
        (Val::Bytes(left), Val::Bytes(right)) if operator == Operator::Add => {
            run.charge(cost::walk((left.len() as u64).saturating_add(right.len() as u64)))?;
            Ok(Val::Bytes([&**left, &**right].concat().into()))
        }
        (Val::List(left), Val::List(right)) if operator == Operator::Add => {
            lists::concatenate(run, left, right)
        }
        (left, right) => moments(operator, left, right),
    }
}

fn moments<'a>(operator: Operator, left: &Val<'a>, right: &Val<'a>) -> Result<Val<'a>, Fail> {
    let overflow = |what: &str| Fail::error(format!("{what} overflow"));
    match (operator, left, right) {
        (Operator::Add, Val::Duration(left), Val::Duration(right)) => {
            left.checked_add(*right).map(Val::Duration).ok_or_else(|| overflow("duration"))
        }
        (Operator::Subtract, Val::Duration(left), Val::Duration(right)) => {
            left.checked_sub(*right).map(Val::Duration).ok_or_else(|| overflow("duration"))
        }
        (Operator::Add, Val::Time(time), Val::Duration(span))
        | (Operator::Add, Val::Duration(span), Val::Time(time)) => {
            time.checked_add(i128::from(*span)).map(Val::Time).ok_or_else(|| overflow("timestamp"))
        }
        (Operator::Subtract, Val::Time(time), Val::Duration(span)) => {
            time.checked_sub(i128::from(*span)).map(Val::Time).ok_or_else(|| overflow("timestamp"))
        }
        (Operator::Subtract, Val::Time(left), Val::Time(right)) => {
            let span = left.checked_sub(*right).and_then(|span| i64::try_from(span).ok());
            span.map(Val::Duration).ok_or_else(|| overflow("duration"))
        }
        _ => Err(Fail::no_overload()),
    }
}

fn integers<'a>(operator: Operator, left: i64, right: i64) -> Result<Val<'a>, Fail> {
    let result = match operator {
        Operator::Add => left.checked_add(right),
        Operator::Subtract => left.checked_sub(right),
        Operator::Multiply => left.checked_mul(right),
        Operator::Divide if right == 0 => return Err(Fail::error("division by zero")),
        Operator::Divide => left.checked_div(right),
        Operator::Remainder if right == 0 => return Err(Fail::error("modulus by zero")),
        Operator::Remainder => left.checked_rem(right),
        _ => return Err(Fail::no_overload()),
    };
    result.map(Val::Int).ok_or_else(|| Fail::error("integer overflow"))
}

fn unsigned<'a>(operator: Operator, left: u64, right: u64) -> Result<Val<'a>, Fail> {
    let result = match operator {
        Operator::Add => left.checked_add(right),
        Operator::Subtract => left.checked_sub(right),
        Operator::Multiply => left.checked_mul(right),
        Operator::Divide if right == 0 => return Err(Fail::error("division by zero")),
        Operator::Divide => left.checked_div(right),
        Operator::Remainder if right == 0 => return Err(Fail::error("modulus by zero")),
        Operator::Remainder => left.checked_rem(right),
        _ => return Err(Fail::no_overload()),
    };
    result.map(Val::Uint).ok_or_else(|| Fail::error("unsigned integer overflow"))
}
