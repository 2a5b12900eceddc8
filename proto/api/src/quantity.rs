//! Amounts of a resource: `500m` of a processor, `1Gi` of memory.
//!
//! The arithmetic is exact: a quantity is a whole number of billionths in 128 bits. As in Kubernetes a quantity keeps the family of its suffix and is always
//! written in canonical form, with the largest suffix that leaves a whole number: `1024Mi` becomes `1Gi`, `0.5` becomes `500m`, `1000k` becomes `1M`.
//!
//! Bounds: an amount with binary suffixes is at most 2^63 - 1, any other at most 10^28; larger amounts are clamped. Fractions of a billionth are rounded
//! away from zero, so that a request is never rounded to zero.

#![cfg_attr(not(test), warn(clippy::arithmetic_side_effects))]

use crate::codec::{Field, encode_as, serde_by_field};
use prost::DecodeError;
use prost::bytes::Buf;
use prost::encoding::{DecodeContext, WireType};
use serde::de::Visitor;
use serde::{Deserializer, Serializer};
use std::cmp::Ordering;
use std::fmt;
use std::ops::{Add, Neg, Sub};
use std::str::FromStr;

/// An exact amount with the family of suffixes that it is written in.
#[derive(Clone, Copy, Debug, Default)]
pub struct Quantity {
    nanos: i128,
    format: Format,
}

/// The family of suffixes that a quantity is written in.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Format {
    /// `m`, none, `k`, `M`, `G` ... (powers of ten).
    #[default]
    DecimalSi,
    /// `Ki`, `Mi`, `Gi` ... (powers of two).
    BinarySi,
    /// `e3`, `e6` ...
    DecimalExponent,
}

/// Why a text is not a quantity.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ParseQuantityError {
    /// It has the wrong shape.
    #[error(
        "quantities must match the regular expression '^([+-]?[0-9.]+)([eEinumkKMGTP]*[-+]?[0-9]*)$'"
    )]
    Format,
    /// The text before the suffix is not a number.
    #[error("unable to parse numeric part of quantity")]
    Number,
    /// There is no such suffix.
    #[error("unable to parse quantity's suffix")]
    Suffix,
}

/// Billionths in one.
const NANOS: i128 = 1_000_000_000;
/// The largest absolute amount with binary suffixes, in billionths.
const MAX_BINARY: i128 = (i64::MAX as i128) * NANOS;
/// The largest absolute amount otherwise, in billionths: a sum of two still fits in 128 bits.
const MAX: i128 = 10i128.pow(28) * NANOS;

impl Quantity {
    pub const ZERO: Quantity = Quantity { nanos: 0, format: Format::DecimalSi };

    /// A whole number, written with decimal suffixes.
    pub fn from_units(units: i64) -> Quantity {
        Quantity { nanos: i128::from(units).saturating_mul(NANOS), format: Format::DecimalSi }
    }

    /// A number of thousandths, written with decimal suffixes: `from_milli(1500)` is `1500m`.
    pub fn from_milli(milli: i64) -> Quantity {
        Quantity {
            nanos: i128::from(milli).saturating_mul(NANOS / 1000),
            format: Format::DecimalSi,
        }
    }

    /// A number of bytes, written with binary suffixes: `from_bytes(1 << 30)` is `1Gi`.
    pub fn from_bytes(bytes: i64) -> Quantity {
        Quantity { nanos: i128::from(bytes).saturating_mul(NANOS), format: Format::BinarySi }
    }

    /// Whether it is zero.
    pub fn is_zero(self) -> bool {
        self.nanos == 0
    }

    /// Whether it is negative.
    pub fn is_negative(self) -> bool {
        self.nanos < 0
    }

    /// The amount in thousandths, rounded away from zero; the unit of processor time.
    pub fn as_milli(self) -> i64 {
        saturate(round_away(self.nanos, NANOS / 1000))
    }

    /// The amount in whole units, rounded away from zero.
    pub fn value(self) -> i64 {
        saturate(round_away(self.nanos, NANOS))
    }

    /// The amount in bytes, rounded up; zero if negative.
    pub fn as_bytes(self) -> u64 {
        u64::try_from(self.value()).unwrap_or(0)
    }

    /// The family of suffixes that it is written in.
    pub fn format(self) -> Format {
        self.format
    }

    /// The same amount written in another family of suffixes.
    pub fn with_format(self, format: Format) -> Quantity {
        Quantity { format, ..self }
    }

    fn clamped(nanos: i128, format: Format) -> Quantity {
        let max = if format == Format::BinarySi { MAX_BINARY } else { MAX };
        Quantity { nanos: nanos.clamp(max.saturating_neg(), max), format }
    }
}

/// The sum has the suffix family of the left side, or of the right side if the left is zero.
impl Add for Quantity {
    type Output = Quantity;

    fn add(self, other: Quantity) -> Quantity {
        let format = if self.is_zero() { other.format } else { self.format };
        Quantity::clamped(self.nanos.saturating_add(other.nanos), format)
    }
}

/// The difference has the suffix family of the left side, or of the right side if the left is zero.
impl Sub for Quantity {
    type Output = Quantity;

    fn sub(self, other: Quantity) -> Quantity {
        Quantity::clamped(
            self.nanos.saturating_sub(other.nanos),
            if self.is_zero() { other.format } else { self.format },
        )
    }
}

impl Neg for Quantity {
    type Output = Quantity;

    fn neg(self) -> Quantity {
        Quantity { nanos: self.nanos.saturating_neg(), ..self }
    }
}

impl std::iter::Sum for Quantity {
    fn sum<I: Iterator<Item = Quantity>>(quantities: I) -> Quantity {
        quantities.fold(Quantity::ZERO, Add::add)
    }
}

/// Compares amounts, whatever their suffixes.
impl PartialEq for Quantity {
    fn eq(&self, other: &Quantity) -> bool {
        self.nanos == other.nanos
    }
}

impl Eq for Quantity {}

impl PartialOrd for Quantity {
    fn partial_cmp(&self, other: &Quantity) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Quantity {
    fn cmp(&self, other: &Quantity) -> Ordering {
        self.nanos.cmp(&other.nanos)
    }
}

impl std::hash::Hash for Quantity {
    fn hash<H: std::hash::Hasher>(&self, state: &mut H) {
        self.nanos.hash(state);
    }
}

/// The canonical form.
impl fmt::Display for Quantity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.nanos == 0 {
            return f.write_str("0");
        }
        // Between -1024 and 1024, and with a fraction, binary suffixes would lose precision.
        let small = self.nanos.abs() < 1024 * NANOS;
        if self.format == Format::BinarySi && !small && self.nanos % NANOS == 0 {
            return write_binary(self.nanos / NANOS, f);
        }
        let exponent_max = if self.format == Format::DecimalExponent { i32::MAX } else { 18 };
        let (mantissa, exponent) = decimal_parts(self.nanos, exponent_max);
        match self.format {
            Format::DecimalExponent if exponent == 0 => write!(f, "{mantissa}"),
            Format::DecimalExponent => write!(f, "{mantissa}e{exponent}"),
            _ => write!(f, "{mantissa}{}", decimal_suffix(exponent)),
        }
    }
}

/// The whole number with the largest power of 1024 that divides it.
fn write_binary(units: i128, f: &mut fmt::Formatter<'_>) -> fmt::Result {
    let mut mantissa = units;
    let mut suffixes = ["", "Ki", "Mi", "Gi", "Ti", "Pi", "Ei"].into_iter();
    let mut suffix = suffixes.next().unwrap_or_default();
    while mantissa % 1024 == 0 {
        let Some(larger) = suffixes.next() else { break };
        mantissa /= 1024;
        suffix = larger;
    }
    write!(f, "{mantissa}{suffix}")
}

/// A mantissa and the largest exponent that is a multiple of three and leaves it whole.
fn decimal_parts(nanos: i128, exponent_max: i32) -> (i128, i32) {
    let (mut mantissa, mut exponent) = (nanos, -9);
    while mantissa % 1000 == 0 && exponent < exponent_max {
        mantissa /= 1000;
        exponent = exponent.saturating_add(3);
    }
    (mantissa, exponent)
}

fn decimal_suffix(exponent: i32) -> &'static str {
    match exponent {
        -9 => "n",
        -6 => "u",
        -3 => "m",
        3 => "k",
        6 => "M",
        9 => "G",
        12 => "T",
        15 => "P",
        18 => "E",
        _ => "",
    }
}

impl FromStr for Quantity {
    type Err = ParseQuantityError;

    fn from_str(text: &str) -> Result<Quantity, ParseQuantityError> {
        let (negative, rest) = match text.as_bytes().first() {
            Some(b'-') => (true, text.get(1..).unwrap_or_default()),
            Some(b'+') => (false, text.get(1..).unwrap_or_default()),
            Some(_) => (false, text),
            None => return Err(ParseQuantityError::Format),
        };
        let end = rest.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(rest.len());
        let (number, suffix) = rest.split_at(end);
        check_suffix_shape(suffix)?;
        let scale = Scale::parse(suffix)?;
        let nanos = scale.nanos_of(number)?;
        let nanos = if negative { nanos.saturating_neg() } else { nanos };
        // A fraction of a byte has no binary form.
        let below_one = nanos > 0 && nanos < NANOS;
        let format = match scale.format {
            Format::BinarySi if below_one => Format::DecimalSi,
            format => format,
        };
        Ok(Quantity::clamped(nanos, format))
    }
}

/// Letters of suffixes, then an optional sign, then digits.
fn check_suffix_shape(suffix: &str) -> Result<(), ParseQuantityError> {
    let rest = suffix.trim_start_matches(|c| "eEinumkKMGTP".contains(c));
    let rest = rest.strip_prefix(['+', '-']).unwrap_or(rest);
    if rest.bytes().all(|b| b.is_ascii_digit()) { Ok(()) } else { Err(ParseQuantityError::Format) }
}

/// The factor of a suffix: 2^binary * 10^decimal.
struct Scale {
    format: Format,
    binary: u32,
    decimal: i32,
}

impl Scale {
    fn parse(suffix: &str) -> Result<Scale, ParseQuantityError> {
        let decimal = |decimal| Ok(Scale { format: Format::DecimalSi, binary: 0, decimal });
        let binary = |binary| Ok(Scale { format: Format::BinarySi, binary, decimal: 0 });
        match suffix {
            "n" => decimal(-9),
            "u" => decimal(-6),
            "m" => decimal(-3),
            "" => decimal(0),
            "k" => decimal(3),
            "M" => decimal(6),
            "G" => decimal(9),
            "T" => decimal(12),
            "P" => decimal(15),
            "E" => decimal(18),
            "Ki" => binary(10),
            "Mi" => binary(20),
            "Gi" => binary(30),
            "Ti" => binary(40),
            "Pi" => binary(50),
            "Ei" => binary(60),
            _ => {
                let exponent = suffix.strip_prefix(['e', 'E']).ok_or(ParseQuantityError::Suffix)?;
                let decimal = exponent.parse().map_err(|_| ParseQuantityError::Suffix)?;
                Ok(Scale { format: Format::DecimalExponent, binary: 0, decimal })
            }
        }
    }

    /// The number times the scale in billionths, rounded up; above the bound, any amount above it.
    fn nanos_of(&self, number: &str) -> Result<i128, ParseQuantityError> {
        let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
        if fraction.contains('.') {
            return Err(ParseQuantityError::Format);
        }
        if whole.is_empty() && fraction.is_empty() {
            return Err(ParseQuantityError::Number);
        }
        let digits: Vec<u8> =
            whole.bytes().chain(fraction.bytes()).map(|b| b.saturating_sub(b'0')).collect();
        let digits = times(&digits, 1_u128.checked_shl(self.binary).unwrap_or(0));
        // Where the decimal point of the billionths lies, counted from the first digit.
        let point = i128::try_from(digits.len())
            .unwrap_or(i128::MAX)
            .saturating_sub(i128::try_from(fraction.len()).unwrap_or(i128::MAX))
            .saturating_add(i128::from(self.decimal))
            .saturating_add(9);
        Ok(if digits.is_empty() { 0 } else { rounded_up(&digits, point) })
    }
}

/// The product of a decimal number and a factor below 2^64, without leading zeros.
fn times(digits: &[u8], factor: u128) -> Vec<u8> {
    let mut product = Vec::with_capacity(digits.len().saturating_add(20));
    let mut carry = 0u128;
    let mut push = |carry: &mut u128| {
        product.push(u8::try_from(*carry % 10).unwrap_or(0));
        *carry /= 10;
    };
    for digit in digits.iter().rev() {
        carry = carry.saturating_add(u128::from(*digit).saturating_mul(factor));
        push(&mut carry);
    }
    while carry > 0 {
        push(&mut carry);
    }
    while product.last() == Some(&0) {
        product.pop();
    }
    product.reverse();
    product
}

/// `0.digits * 10^point` rounded up, where the first digit is not zero.
fn rounded_up(digits: &[u8], point: i128) -> i128 {
    // More digits than MAX has are above it; below one, only the rounding is left.
    if point > 38 {
        return MAX;
    }
    let point = usize::try_from(point).unwrap_or(0);
    let whole_digits = digits.iter().copied().chain(std::iter::repeat(0)).take(point);
    let whole = whole_digits
        .fold(0i128, |sum, digit| sum.saturating_mul(10).saturating_add(i128::from(digit)));
    let has_rest = digits.iter().skip(point).any(|digit| *digit != 0);
    whole.saturating_add(i128::from(has_rest))
}

/// The quotient, rounded away from zero; 0 for a unit of 0.
fn round_away(nanos: i128, unit: i128) -> i128 {
    let quotient = nanos.checked_div(unit).unwrap_or(0);
    let is_whole = nanos.checked_rem(unit).unwrap_or(0) == 0;
    if is_whole { quotient } else { quotient.saturating_add(nanos.signum()) }
}

fn saturate(value: i128) -> i64 {
    i64::try_from(value).unwrap_or(if value < 0 { i64::MIN } else { i64::MAX })
}

/// The message on the wire: the canonical text.
#[derive(Clone, PartialEq, prost::Message)]
struct Wire {
    #[prost(string, required, tag = "1")]
    text: String,
}

impl From<&Quantity> for Wire {
    fn from(quantity: &Quantity) -> Wire {
        Wire { text: quantity.to_string() }
    }
}

impl Field for Quantity {
    fn is_empty(&self) -> bool {
        false
    }

    fn write_json<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        to.collect_str(self)
    }

    fn read_json<'de, D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        from.deserialize_any(QuantityVisitor)
    }

    encode_as!(Wire);

    fn merge_field(
        &mut self,
        wire: WireType,
        buf: &mut impl Buf,
        ctx: DecodeContext,
    ) -> Result<(), DecodeError> {
        let mut value = Wire::default();
        prost::encoding::message::merge(wire, &mut value, buf, ctx)?;
        *self = if value.text.is_empty() {
            Quantity::ZERO
        } else {
            #[allow(deprecated, reason = "prost offers no other way to report a bad value")]
            value.text.parse().map_err(|error| DecodeError::new(format!("{error}")))?
        };
        Ok(())
    }
}

serde_by_field!(Quantity);

/// A string, or a number as in YAML (`cpu: 1`).
struct QuantityVisitor;

impl Visitor<'_> for QuantityVisitor {
    type Value = Quantity;

    fn expecting(&self, f: &mut fmt::Formatter) -> fmt::Result {
        f.write_str("a quantity")
    }

    fn visit_str<E: serde::de::Error>(self, text: &str) -> Result<Quantity, E> {
        text.trim().parse().map_err(E::custom)
    }

    fn visit_i64<E: serde::de::Error>(self, value: i64) -> Result<Quantity, E> {
        Ok(Quantity::from_units(value))
    }

    fn visit_u64<E: serde::de::Error>(self, value: u64) -> Result<Quantity, E> {
        self.visit_str(&value.to_string())
    }

    fn visit_f64<E: serde::de::Error>(self, value: f64) -> Result<Quantity, E> {
        self.visit_str(&value.to_string())
    }
}

#[cfg(test)]
mod tests;
