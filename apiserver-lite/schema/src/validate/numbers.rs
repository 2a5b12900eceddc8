//! Rules for numbers, percentages and amounts, in Kubernetes' words.

use proto_api::Quantity;

use super::FieldErrors;
use crate::value::{Map, Path, Value};

pub(super) const NOT_NEGATIVE: &str = "must be greater than or equal to 0";
const POSITIVE: &str = "must be greater than zero";
/// Largest number of seconds that any period may have: what follows from it stays within times of four-digit years.
pub(super) const SECONDS_MAX: i64 = i32::MAX as i64;

/// `field`, if set, is at least 0.
pub(super) fn not_negative(map: &Map, field: &str, path: &Path<'_>, errors: &mut FieldErrors) {
    if let Some(number) = map.int(field).filter(|number| *number < 0) {
        errors.invalid(&path.field(field), number, NOT_NEGATIVE);
    }
}

/// `field`, if set, is at least 1.
pub(super) fn positive(map: &Map, field: &str, path: &Path<'_>, errors: &mut FieldErrors) {
    if let Some(number) = map.int(field).filter(|number| *number <= 0) {
        errors.invalid(&path.field(field), number, POSITIVE);
    }
}

/// `field`, if set, is from `lowest` to `highest`.
pub(super) fn between(
    map: &Map,
    field: &str,
    (lowest, highest): (i64, i64),
    path: &Path<'_>,
    errors: &mut FieldErrors,
) {
    if let Some(number) = map.int(field).filter(|number| !(lowest..=highest).contains(number)) {
        let detail = format!("must be between {lowest} and {highest}, inclusive");
        errors.invalid(&path.field(field), number, &detail);
    }
}

/// A number of things that may also be given in per cent of others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum CountOrPercent {
    Count(i64),
    Percent(i64),
}

impl CountOrPercent {
    /// Reads a number or `25%`; nothing when it is neither or does not fit 32 bits.
    pub(super) fn parse(value: &Value) -> Option<Self> {
        let Value::String(text) = value else { return value.as_int().map(Self::Count) };
        let digits = text.strip_suffix('%')?;
        let plain = !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit());
        plain.then_some(())?;
        digits.parse::<i32>().ok().map(|percent| Self::Percent(i64::from(percent)))
    }

    pub(super) fn is_zero(self) -> bool {
        matches!(self, Self::Count(0) | Self::Percent(0))
    }
}

/// `field`, if set, is a count of at least 0 or a percentage. Returns what it is.
pub(super) fn share(
    map: &Map,
    field: &str,
    path: &Path<'_>,
    errors: &mut FieldErrors,
) -> Option<CountOrPercent> {
    let value = map.get(field)?;
    let share = CountOrPercent::parse(value);
    match share {
        None => {
            let detail = "a valid percent string must be a numeric string followed by an ending '%' \
                          (e.g. '1%',  or '93%', regex used for validation is '[0-9]+%')";
            errors.invalid(&path.field(field), value.clone(), detail);
        }
        Some(CountOrPercent::Count(number)) if number < 0 => {
            errors.invalid(&path.field(field), number, NOT_NEGATIVE);
        }
        Some(_) => {}
    }
    share
}

/// As [`share`], and a percentage is of a whole.
pub(super) fn share_of_whole(
    map: &Map,
    field: &str,
    path: &Path<'_>,
    errors: &mut FieldErrors,
) -> Option<CountOrPercent> {
    let share = share(map, field, path, errors);
    if matches!(share, Some(CountOrPercent::Percent(percent)) if percent > 100) {
        let value = map.get(field).cloned().unwrap_or_default();
        errors.invalid(&path.field(field), value, "must not be greater than 100%");
    }
    share
}

/// The amount that a tree's text stands for.
pub(super) fn amount(value: &Value) -> Option<Quantity> {
    value.as_str()?.parse().ok()
}

/// An amount is not negative.
pub(super) fn amount_not_negative(value: &Value, path: &Path<'_>, errors: &mut FieldErrors) {
    if amount(value).is_some_and(Quantity::is_negative) {
        errors.invalid(path, value.clone(), NOT_NEGATIVE);
    }
}

/// Whether an amount is a whole number.
pub(super) fn is_whole(value: &Value) -> bool {
    amount(value).is_none_or(|amount| amount.as_milli().rem_euclid(1000) == 0)
}
