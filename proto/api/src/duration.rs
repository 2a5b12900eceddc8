//! Durations in flags, configuration files and messages of Kubernetes: `1h0m0s`, `15m`, `500ms`, `1.5s`, `0`. All programs use this reader and writer.

#![cfg_attr(not(test), warn(clippy::arithmetic_side_effects))]

use std::time::Duration;

/// Nanoseconds of each unit, longest names first so that `ms` is not read as `m`.
const UNITS: [(&str, u64); 8] = [
    ("ns", 1),
    ("us", 1_000),
    ("µs", 1_000), // U+00B5, micro sign
    ("μs", 1_000), // U+03BC, Greek mu
    ("ms", 1_000_000),
    ("s", 1_000_000_000),
    ("m", 60_000_000_000),
    ("h", 3_600_000_000_000),
];

/// Why a text is not a duration.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DurationError {
    /// A number is missing.
    #[error("{0:?} is not a duration such as 1h30m, 15s or 500ms")]
    Malformed(String),
    /// A number without a unit after it.
    #[error("{0:?} lacks a unit (ns, us, ms, s, m or h)")]
    NoUnit(String),
    /// Longer than 2^63 nanoseconds (about 292 years), the longest that Kubernetes' clients can read.
    #[error("{0:?} is longer than 2^63 nanoseconds")]
    TooLong(String),
}

/// Reads a duration. Negative ones are refused: no setting has a use for them.
pub fn parse(text: &str) -> Result<Duration, DurationError> {
    let malformed = || DurationError::Malformed(text.to_owned());
    if text == "0" {
        return Ok(Duration::ZERO);
    }
    let mut rest = text.strip_prefix('+').unwrap_or(text);
    if rest.is_empty() {
        return Err(malformed());
    }
    let mut nanos: u128 = 0;
    while !rest.is_empty() {
        let number_len = rest.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(rest.len());
        let (number, after) = rest.split_at(number_len);
        let (name, unit) =
            UNITS.into_iter().find(|(name, _)| unit_of(after) == *name).ok_or_else(|| {
                if number.is_empty() { malformed() } else { DurationError::NoUnit(text.to_owned()) }
            })?;
        nanos = nanos.saturating_add(scaled(number, unit).ok_or_else(malformed)?);
        if nanos > i64::MAX as u128 {
            return Err(DurationError::TooLong(text.to_owned()));
        }
        rest = after.get(name.len()..).unwrap_or_default();
    }
    u64::try_from(nanos)
        .map(Duration::from_nanos)
        .map_err(|_| DurationError::TooLong(text.to_owned()))
}

/// The letters up to the next number.
fn unit_of(text: &str) -> &str {
    let end = text.find(|c: char| c.is_ascii_digit() || c == '.').unwrap_or(text.len());
    text.get(..end).unwrap_or_default()
}

/// A decimal number times its unit, truncated to whole nanoseconds. At most 19 digits on either side of the point.
fn scaled(number: &str, unit: u64) -> Option<u128> {
    let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
    if (whole.is_empty() && fraction.is_empty()) || whole.len() > 19 || fraction.contains('.') {
        return None;
    }
    let fraction = fraction.get(..fraction.len().min(18)).unwrap_or_default();
    let whole: u128 = if whole.is_empty() { 0 } else { whole.parse().ok()? };
    let parts: u128 = if fraction.is_empty() { 0 } else { fraction.parse().ok()? };
    let scale = 10_u128.checked_pow(u32::try_from(fraction.len()).ok()?)?;
    let part = parts.checked_mul(u128::from(unit))?.checked_div(scale)?;
    whole.checked_mul(u128::from(unit))?.checked_add(part)
}

/// Writes a duration in the canonical form: `1h0m0s`, `15m0s`, `1.5s`, `500ms`, `0s`.
pub fn format(duration: Duration) -> String {
    let nanos = duration.as_nanos();
    let below_a_second = |unit: u128, name: &str| format!("{}{name}", decimal(nanos, unit));
    match nanos {
        0 => return "0s".to_owned(),
        1..1_000 => return below_a_second(1, "ns"),
        1_000..1_000_000 => return below_a_second(1_000, "µs"),
        1_000_000..1_000_000_000 => return below_a_second(1_000_000, "ms"),
        _ => {}
    }
    let minutes = nanos / 60_000_000_000;
    let seconds = decimal(nanos % 60_000_000_000, 1_000_000_000);
    match (minutes / 60, minutes % 60) {
        (0, 0) => format!("{seconds}s"),
        (0, minutes) => format!("{minutes}m{seconds}s"),
        (hours, minutes) => format!("{hours}h{minutes}m{seconds}s"),
    }
}

/// `nanos / unit` with as many decimals as it needs.
fn decimal(nanos: u128, unit: u128) -> String {
    let whole = nanos.checked_div(unit).unwrap_or_default();
    let rest = nanos.checked_rem(unit).unwrap_or_default();
    if rest == 0 {
        return whole.to_string();
    }
    let digits = unit.ilog10() as usize;
    format!("{whole}.{}", format!("{rest:0digits$}").trim_end_matches('0'))
}

/// For `#[serde(with = "proto_api::duration::text")]` on a [`Duration`] of a configuration.
pub mod text {
    use std::time::Duration;

    use serde::de::Error;
    use serde::{Deserialize, Deserializer, Serializer};

    /// Writes the canonical form.
    pub fn serialize<S: Serializer>(value: &Duration, out: S) -> Result<S::Ok, S::Error> {
        out.serialize_str(&super::format(*value))
    }

    /// Reads any form that [`super::parse`] accepts.
    pub fn deserialize<'de, D: Deserializer<'de>>(input: D) -> Result<Duration, D::Error> {
        super::parse(&String::deserialize(input)?).map_err(D::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn reads_and_writes_kubernetes_forms() {
        let check = |text: &str, nanos: u64, canonical: &str| {
            assert_eq!(parse(text), Ok(Duration::from_nanos(nanos)), "{text}");
            assert_eq!(format(Duration::from_nanos(nanos)), canonical);
        };
        check("0", 0, "0s");
        check("0s", 0, "0s");
        check("15m", 900_000_000_000, "15m0s");
        check("1h0m0s", 3_600_000_000_000, "1h0m0s");
        check("1.5s", 1_500_000_000, "1.5s");
        check("500ms", 500_000_000, "500ms");
        check("100us", 100_000, "100µs");
        check("1h1m1.25s", 3_661_250_000_000, "1h1m1.25s");
        check(".5s", 500_000_000, "500ms");
    }

    #[test]
    fn refuses_what_is_no_duration() {
        for text in ["", "+", "-1s", "s", "1", "1d", "1.2.3s", "1s 2m", "1h3", ".s"] {
            assert!(parse(text).is_err(), "{text:?}");
        }
        assert_eq!(parse("9999999999h"), Err(DurationError::TooLong("9999999999h".into())));
    }

    proptest! {
        #[test]
        fn formatted_durations_parse_back(nanos in 0..=i64::MAX as u64) {
            let duration = Duration::from_nanos(nanos);
            prop_assert_eq!(parse(&format(duration)), Ok(duration));
        }

        #[test]
        fn any_text_is_answered(text in ".{0,40}") {
            let _ = parse(&text);
        }
    }
}
