//! Times and durations.

use time::format_description::well_known::Rfc3339;
use time::{Date, Month, OffsetDateTime, UtcOffset};

/// Nanoseconds of each unit, longer names first.
const UNITS: [(&str, i64); 8] = [
    ("ns", 1),
    ("us", 1_000),
    ("µs", 1_000),
    ("μs", 1_000),
    ("ms", 1_000_000),
    ("s", 1_000_000_000),
    ("m", 60_000_000_000),
    ("h", 3_600_000_000_000),
];

/// Further units of the format `duration`, by their first letters.
const LONG_UNITS: [(&str, i64); 17] = [
    ("nanosecond", 1),
    ("nano", 1),
    ("microsecond", 1_000),
    ("micro", 1_000),
    ("millisecond", 1_000_000),
    ("milli", 1_000_000),
    ("second", 1_000_000_000),
    ("sec", 1_000_000_000),
    ("minute", 60_000_000_000),
    ("min", 60_000_000_000),
    ("hour", 3_600_000_000_000),
    ("hr", 3_600_000_000_000),
    ("day", 86_400_000_000_000),
    ("d", 86_400_000_000_000),
    ("week", 604_800_000_000_000),
    ("wk", 604_800_000_000_000),
    ("w", 604_800_000_000_000),
];

/// Reads a duration such as `1h30m`, `-1.5s` or `0`, in nanoseconds.
pub(crate) fn parse_duration(text: &str) -> Option<i64> {
    if text.len() > 256 {
        return None;
    }
    let (negative, rest) = match text.strip_prefix('-') {
        Some(rest) => (true, rest),
        None => (false, text.strip_prefix('+').unwrap_or(text)),
    };
    if rest == "0" {
        return Some(0);
    }
    let nanos =
        sum_of(rest, |unit| UNITS.iter().find(|(name, _)| *name == unit).map(|(_, nanos)| *nanos))?;
    if negative { nanos.checked_neg() } else { Some(nanos) }
}

/// Reads a text of the format `duration`: also `2 days` and `1 week 3 hours`.
pub(crate) fn parse_long_duration(text: &str) -> Option<i64> {
    if let Some(nanos) = parse_duration(text) {
        return Some(nanos);
    }
    if text.len() > 256 {
        return None;
    }
    let text = text.to_lowercase().replace([' ', '\t'], "");
    sum_of(&text, |unit| {
        let units = UNITS.iter().chain(&LONG_UNITS);
        let mut found =
            units.filter(|(name, _)| unit == *name || unit.strip_suffix('s') == Some(name));
        found.next().map(|(_, nanos)| *nanos)
    })
}

/// The sum of numbers with units.
fn sum_of(text: &str, unit: impl Fn(&str) -> Option<i64>) -> Option<i64> {
    let mut rest = text;
    let mut nanos: i64 = 0;
    if rest.is_empty() {
        return None;
    }
    while !rest.is_empty() {
        let digits = rest.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(rest.len());
        let (number, after) = rest.split_at_checked(digits)?;
        let letters = after.find(|c: char| c.is_ascii_digit() || c == '.').unwrap_or(after.len());
        let (name, after) = after.split_at_checked(letters)?;
        nanos = nanos.checked_add(scaled(number, unit(name)?)?)?;
        rest = after;
    }
    Some(nanos)
}

fn scaled(number: &str, unit: i64) -> Option<i64> {
    let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
    if whole.is_empty() && fraction.is_empty() || fraction.contains('.') {
        return None;
    }
    let whole: i64 = if whole.is_empty() { 0 } else { whole.parse().ok()? };
    let fraction = fraction.get(..fraction.len().min(9))?;
    let part: i128 = if fraction.is_empty() { 0 } else { fraction.parse().ok()? };
    let scale = 10_i128.checked_pow(u32::try_from(fraction.len()).ok()?)?;
    let part = part.checked_mul(i128::from(unit))?.checked_div(scale)?;
    whole.checked_mul(unit)?.checked_add(i64::try_from(part).ok()?)
}

/// A duration in seconds, as rules show it: `90s`, `1.5s`.
pub(crate) fn format_duration(nanos: i64) -> String {
    let sign = if nanos < 0 { "-" } else { "" };
    let nanos = nanos.unsigned_abs();
    let (seconds, rest) = (nanos / 1_000_000_000, nanos % 1_000_000_000);
    if rest == 0 {
        return format!("{sign}{seconds}s");
    }
    let fraction = format!("{rest:09}");
    format!("{sign}{seconds}.{}s", fraction.trim_end_matches('0'))
}

/// Reads a date such as `2006-01-02`: nanoseconds since 1970.
pub(crate) fn parse_date(text: &str) -> Option<i128> {
    let mut parts = text.split('-');
    let mut next = |width: usize| {
        let part = parts.next()?;
        let digits = part.len() == width && part.bytes().all(|b| b.is_ascii_digit());
        digits.then(|| part.parse::<i32>().ok()).flatten()
    };
    let (year, month, day) = (next(4)?, next(2)?, next(2)?);
    let month = Month::try_from(u8::try_from(month).ok()?).ok()?;
    let date = Date::from_calendar_date(year, month, u8::try_from(day).ok()?).ok()?;
    parts.next().is_none().then(|| date.midnight().assume_utc().unix_timestamp_nanos())
}

/// Reads a time of RFC 3339: nanoseconds since 1970.
pub(crate) fn parse_time(text: &str) -> Option<i128> {
    OffsetDateTime::parse(text, &Rfc3339).ok().map(OffsetDateTime::unix_timestamp_nanos)
}

/// A time in RFC 3339.
pub(crate) fn format_time(nanos: i128) -> Option<String> {
    OffsetDateTime::from_unix_timestamp_nanos(nanos).ok()?.format(&Rfc3339).ok()
}

/// A time in a zone: `UTC`, or an offset such as `+02:00`.
fn in_zone(nanos: i128, zone: &str) -> Option<OffsetDateTime> {
    let time = OffsetDateTime::from_unix_timestamp_nanos(nanos).ok()?;
    if matches!(zone, "" | "UTC" | "Z") {
        return Some(time);
    }
    let (sign, digits) = match zone.strip_prefix('-') {
        Some(digits) => (-1, digits),
        None => (1, zone.strip_prefix('+').unwrap_or(zone)),
    };
    let (hours, minutes) = digits.split_once(':')?;
    let (hours, minutes): (i8, i8) = (hours.parse().ok()?, minutes.parse().ok()?);
    let offset =
        UtcOffset::from_hms(hours.checked_mul(sign)?, minutes.checked_mul(sign)?, 0).ok()?;
    time.checked_to_offset(offset)
}

/// A part of a time, by the name of its function.
pub(crate) fn part_of_time(function: &str, nanos: i128, zone: &str) -> Option<i64> {
    let time = in_zone(nanos, zone)?;
    Some(match function {
        "getFullYear" => i64::from(time.year()),
        "getMonth" => i64::from(u8::from(time.month())).saturating_sub(1),
        "getDate" => i64::from(time.day()),
        "getDayOfMonth" => i64::from(time.day()).saturating_sub(1),
        "getDayOfWeek" => i64::from(time.weekday().number_days_from_sunday()),
        "getDayOfYear" => i64::from(time.ordinal()).saturating_sub(1),
        "getHours" => i64::from(time.hour()),
        "getMinutes" => i64::from(time.minute()),
        "getSeconds" => i64::from(time.second()),
        "getMilliseconds" => i64::from(time.millisecond()),
        _ => return None,
    })
}

/// A whole duration in the unit of a function.
pub(crate) fn part_of_duration(function: &str, nanos: i64) -> Option<i64> {
    let unit = match function {
        "getHours" => 3_600_000_000_000,
        "getMinutes" => 60_000_000_000,
        "getSeconds" => 1_000_000_000,
        "getMilliseconds" => 1_000_000,
        _ => return None,
    };
    nanos.checked_div(unit)
}
