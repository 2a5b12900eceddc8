//! Scalar types of the API: canonical text in a tree, numbers and bytes on the wire.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use proto_api::{MicroTime, Quantity, Time, duration};

use crate::shape::Type;
use crate::value::Value;

/// Unix seconds of years with four digits.
const SECONDS: std::ops::RangeInclusive<i64> = -62_135_596_800..=253_402_300_799;

/// A value that its type does not have: its JSON type, or the text that cannot be parsed.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Mismatch(pub(crate) String);

/// Normalizes `value` for `ty`.
pub(crate) fn canonical(ty: &Type, value: Value) -> Result<Value, Mismatch> {
    let shape = value.shape();
    let wrong_shape = || Err(Mismatch(shape.to_owned()));
    let number = |value: &Value| Mismatch(number_text(value));
    let quoted = |text: &str| Mismatch(format!("{text:?}"));
    match (ty, value) {
        (Type::Bool, Value::Bool(flag)) => Ok(Value::Bool(flag)),
        (Type::Int32 | Type::Int64, value @ (Value::Int(_) | Value::Float(_))) => {
            integer(ty, &value).ok_or_else(|| number(&value))
        }
        (Type::Double, value @ (Value::Int(_) | Value::Float(_))) => Ok(value),
        (Type::String, Value::String(text)) => Ok(Value::String(text)),
        (Type::Bytes, Value::String(text)) => {
            match STANDARD.decode(strip_line_ends(&text).as_bytes()) {
                Ok(bytes) => Ok(bytes_value(&bytes)),
                Err(_) => Err(Mismatch("text that is not base64".to_owned())),
            }
        }
        (Type::Time, Value::String(text)) => text_time(&text).ok_or_else(|| quoted(&text)),
        (Type::MicroTime, Value::String(text)) => {
            text_micro_time(&text).ok_or_else(|| quoted(&text))
        }
        (Type::Duration, Value::String(text)) => duration(&text),
        (Type::Quantity, Value::String(text)) => quantity(&text),
        (Type::Quantity, value @ (Value::Int(_) | Value::Float(_))) => {
            quantity(&number_text(&value))
        }
        (Type::IntOrString, Value::String(text)) => Ok(Value::String(text)),
        (Type::IntOrString, value @ (Value::Int(_) | Value::Float(_))) => {
            integer(&Type::Int32, &value).ok_or_else(|| number(&value))
        }
        _ => wrong_shape(),
    }
}

fn integer(ty: &Type, value: &Value) -> Option<Value> {
    let number = value.as_int()?;
    let fits = *ty == Type::Int64 || i32::try_from(number).is_ok();
    fits.then_some(Value::Int(number))
}

fn number_text(value: &Value) -> String {
    let mut text = Vec::new();
    crate::value::write_json(&mut text, value);
    String::from_utf8_lossy(&text).into_owned()
}

fn quantity(text: &str) -> Result<Value, Mismatch> {
    match text.parse::<Quantity>() {
        Ok(quantity) => Ok(Value::from(quantity.to_string())),
        Err(_) => Err(Mismatch(format!("{text:?}"))),
    }
}

fn duration(text: &str) -> Result<Value, Mismatch> {
    match duration::parse(text) {
        Ok(length) => Ok(Value::from(duration::format(length))),
        Err(_) => Err(Mismatch(format!("{text:?}"))),
    }
}

/// Nanoseconds of a duration in a tree.
pub(crate) fn nanos_of(value: &Value) -> i64 {
    let length = duration::parse(value.as_str().unwrap_or_default()).unwrap_or_default();
    i64::try_from(length.as_nanos()).unwrap_or(i64::MAX)
}

/// The text of a duration; `None` for a negative one, which no field has a use for.
pub(crate) fn duration_value(nanos: i64) -> Option<Value> {
    let nanos = u64::try_from(nanos).ok()?;
    Some(Value::from(duration::format(std::time::Duration::from_nanos(nanos))))
}

fn text_time(text: &str) -> Option<Value> {
    time_value(text.parse::<Time>().ok()?.unix()?, 0)
}

fn text_micro_time(text: &str) -> Option<Value> {
    let micros = text.parse::<MicroTime>().ok()?.unix_micros()?;
    let nanos = i32::try_from(micros.rem_euclid(1_000_000).saturating_mul(1000)).ok()?;
    micro_time_value(micros.div_euclid(1_000_000), nanos)
}

/// Removes line ends from base64, which Kubernetes' decoder skips.
fn strip_line_ends(text: &str) -> std::borrow::Cow<'_, str> {
    if text.contains(['\r', '\n']) { text.replace(['\r', '\n'], "").into() } else { text.into() }
}

/// Bytes as base64 text of a tree.
pub(crate) fn bytes_value(bytes: &[u8]) -> Value {
    Value::from(STANDARD.encode(bytes))
}

/// Decodes base64 text of a tree; empty if it is invalid.
pub(crate) fn bytes_of(value: &Value) -> Vec<u8> {
    STANDARD.decode(value.as_str().unwrap_or_default()).unwrap_or_default()
}

/// Decoded length of base64 text of a tree.
pub(crate) fn bytes_len(value: &Value) -> usize {
    let text = value.as_str().unwrap_or_default().as_bytes();
    let padding = text.iter().rev().take_while(|&&b| b == b'=').count();
    (text.len() / 4).saturating_mul(3).saturating_sub(padding)
}

/// Seconds and nanoseconds of a time in a tree.
pub(crate) fn instant_of(value: &Value) -> Option<(i64, i32)> {
    let micros = value.as_str()?.parse::<MicroTime>().ok()?.unix_micros()?;
    let nanos = i32::try_from(micros.rem_euclid(1_000_000).saturating_mul(1000)).ok()?;
    Some((micros.div_euclid(1_000_000), nanos))
}

/// Seconds of a time in a tree.
pub(crate) fn seconds_of(value: &Value) -> Option<i64> {
    instant_of(value).map(|(seconds, _)| seconds)
}

/// The text of a time; `Null` for the zero time, `None` if its year does not have four digits.
pub(crate) fn time_value(seconds: i64, nanos: i32) -> Option<Value> {
    if is_zero(seconds, nanos) {
        return Some(Value::Null);
    }
    in_range(seconds, nanos).then(|| Value::from(Time::from_unix(seconds).to_string()))
}

/// As [`time_value`], to the microsecond.
pub(crate) fn micro_time_value(seconds: i64, nanos: i32) -> Option<Value> {
    if is_zero(seconds, nanos) {
        return Some(Value::Null);
    }
    let micros = seconds.checked_mul(1_000_000)?.checked_add(i64::from(nanos) / 1000)?;
    in_range(seconds, nanos).then(|| Value::from(MicroTime::from_unix_micros(micros).to_string()))
}

/// Whether this is Go's zero time, the first second of year 1.
fn is_zero(seconds: i64, nanos: i32) -> bool {
    seconds == *SECONDS.start() && nanos == 0
}

fn in_range(seconds: i64, nanos: i32) -> bool {
    SECONDS.contains(&seconds) && (0..1_000_000_000).contains(&nanos)
}

#[cfg(test)]
mod tests {
    use super::{Mismatch, bytes_len, bytes_value, canonical};
    use crate::shape::Type;
    use crate::value::Value;

    #[test]
    fn scalars_are_normalized() {
        let cases = [
            (Type::Quantity, Value::from("0.5"), Ok(Value::from("500m"))),
            (Type::Quantity, Value::Int(2), Ok(Value::from("2"))),
            (Type::Quantity, Value::from("1e"), Err("\"1e\"")),
            (Type::Time, "2020-01-01T02:00:00+02:00".into(), Ok("2020-01-01T00:00:00Z".into())),
            (Type::Time, Value::from("yesterday"), Err("\"yesterday\"")),
            (Type::Duration, Value::from("90s"), Ok(Value::from("1m30s"))),
            (Type::Duration, Value::from("-1s"), Err("\"-1s\"")),
            (Type::Int32, Value::Int(1 << 40), Err("1099511627776")),
            (Type::Int32, Value::Float(3.0), Ok(Value::Int(3))),
            (Type::Int64, Value::Float(3.5), Err("3.5")),
            (Type::Bytes, Value::from("A\nw=="), Ok(Value::from("Aw=="))),
            (Type::Bytes, Value::from("??"), Err("text that is not base64")),
            (Type::IntOrString, Value::from("http"), Ok(Value::from("http"))),
            (Type::String, Value::Int(1), Err("number")),
            (Type::Bool, Value::from("true"), Err("string")),
        ];
        for (ty, value, expect) in cases {
            let got = canonical(&ty, value.clone());
            assert_eq!(
                got,
                expect.map_err(|got: &str| Mismatch(got.to_owned())),
                "{ty:?} {value:?}"
            );
        }
    }

    #[test]
    fn length_of_bytes_needs_no_decoding() {
        for len in 0..10 {
            assert_eq!(bytes_len(&bytes_value(&vec![7; len])), len);
        }
    }
}
