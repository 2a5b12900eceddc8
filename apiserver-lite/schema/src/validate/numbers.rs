//! Validation of numbers, percentages and quantities, in Kubernetes' words.

use proto_api::Quantity;

use super::FieldErrors;
use crate::value::{Map, Path, Value};

pub(super) const NOT_NEGATIVE: &str = "must be greater than or equal to 0";
const POSITIVE: &str = "must be greater than zero";
/// Longest period in seconds, so that resulting timestamps have years of four digits.
pub(super) const SECONDS_MAX: i64 = i32::MAX as i64;

/// Checks that `field`, if set, is at least 0.
pub(super) fn not_negative(map: &Map, field: &str, path: &Path<'_>, errors: &mut FieldErrors) {
    if let Some(number) = map.int(field).filter(|number| *number < 0) {
        errors.invalid(&path.field(field), number, NOT_NEGATIVE);
    }
}

/// Checks that `field`, if set, is at least 1.
pub(super) fn positive(map: &Map, field: &str, path: &Path<'_>, errors: &mut FieldErrors) {
    if let Some(number) = map.int(field).filter(|number| *number <= 0) {
        errors.invalid(&path.field(field), number, POSITIVE);
    }
}

/// Checks that `field`, if set, is from `lowest` to `highest`.
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

/// An int-or-string: a count or a percentage.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum CountOrPercent {
    Count(i64),
    Percent(i64),
}

impl CountOrPercent {
    /// Parses a number or `25%`; `None` if it is neither or exceeds 32 bits.
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

/// Checks that `field`, if set, is a count of at least 0 or a percentage, and returns it.
pub(super) fn count_or_percent(
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

/// As [`count_or_percent`], and a percentage is at most 100.
pub(super) fn count_or_percent_of_whole(
    map: &Map,
    field: &str,
    path: &Path<'_>,
    errors: &mut FieldErrors,
) -> Option<CountOrPercent> {
    let share = count_or_percent(map, field, path, errors);
    if matches!(share, Some(CountOrPercent::Percent(percent)) if percent > 100) {
        let value = map.get(field).cloned().unwrap_or_default();
        errors.invalid(&path.field(field), value, "must not be greater than 100%");
    }
    share
}

/// Parses a quantity.
pub(super) fn amount(value: &Value) -> Option<Quantity> {
    value.as_str()?.parse().ok()
}

/// Checks that a quantity is not negative.
pub(super) fn amount_not_negative(value: &Value, path: &Path<'_>, errors: &mut FieldErrors) {
    if amount(value).is_some_and(Quantity::is_negative) {
        errors.invalid(path, value.clone(), NOT_NEGATIVE);
    }
}

/// Whether a quantity is an integer.
pub(super) fn is_whole(value: &Value) -> bool {
    amount(value).is_none_or(|amount| amount.as_milli().rem_euclid(1000) == 0)
}
