//! Amounts of a resource in rules: `quantity(self.memory).isLessThan(quantity('1Gi'))`.

use std::rc::Rc;

use proto_api::Quantity;
use proto_api::quantity::Format;

use super::value::{Fail, Val};

/// Calls a function of one argument.
pub(crate) fn call_on_one<'a>(name: &str, arg: &Val<'a>) -> Result<Val<'a>, Fail> {
    match (name, arg) {
        ("isQuantity", Val::Text(text)) => Ok(Val::Bool(text.parse::<Quantity>().is_ok())),
        ("quantity", Val::Text(text)) => {
            let read: Result<Quantity, _> = text.parse();
            read.map(make_value).map_err(|error| Fail::error(error.to_string()))
        }
        ("sign", Val::Quantity(quantity)) => call(name, **quantity, &[]),
        _ => Err(Fail::no_overload()),
    }
}

/// Calls a method.
pub(crate) fn call<'a>(name: &str, quantity: Quantity, args: &[Val<'a>]) -> Result<Val<'a>, Fail> {
    let no_integer = || Fail::error("cannot convert value to integer");
    Ok(match (name, args) {
        ("isInteger", []) => Val::Bool(integer(quantity).is_some()),
        ("asInteger", []) => Val::Int(integer(quantity).ok_or_else(no_integer)?),
        ("asApproximateFloat", []) => Val::Double(approximate(quantity)),
        ("sign", []) => Val::Int(quantity.cmp(&Quantity::ZERO) as i64),
        ("add", [other]) => make_value(quantity + operand(other)?),
        ("sub", [other]) => make_value(quantity - operand(other)?),
        ("isLessThan", [Val::Quantity(other)]) => Val::Bool(quantity < **other),
        ("isGreaterThan", [Val::Quantity(other)]) => Val::Bool(quantity > **other),
        ("compareTo", [Val::Quantity(other)]) => Val::Int(quantity.cmp(other) as i64),
        _ => return Err(Fail::no_overload()),
    })
}

fn make_value<'a>(quantity: Quantity) -> Val<'a> {
    Val::Quantity(Rc::new(quantity))
}

/// An amount to add or subtract.
fn operand(value: &Val<'_>) -> Result<Quantity, Fail> {
    match value {
        Val::Quantity(quantity) => Ok(**quantity),
        Val::Int(units) => Ok(Quantity::from_units(*units)),
        _ => Err(Fail::no_overload()),
    }
}

/// The amount if it is a whole number of 64 bits.
fn integer(quantity: Quantity) -> Option<i64> {
    let units = quantity.value();
    (Quantity::from_units(units) == quantity).then_some(units)
}

/// The number nearest to the amount, which is written as one with an exponent.
fn approximate(quantity: Quantity) -> f64 {
    quantity.with_format(Format::DecimalExponent).to_string().parse().unwrap_or_default()
}
