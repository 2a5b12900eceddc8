//! Times and durations.

use jiff::Timestamp;
use jiff::tz::TimeZone;
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

/// Units of the format `duration`: by these names, or by any that begins with the last of them.
const LONG_UNITS: [(i64, &[&str]); 8] = [
    (1, &["ns", "nano"]),
    (1_000, &["us", "µs", "micro"]),
    (1_000_000, &["ms", "milli"]),
    (1_000_000_000, &["s", "sec"]),
    (60_000_000_000, &["m", "min"]),
    (3_600_000_000_000, &["h", "hr", "hour"]),
    (86_400_000_000_000, &["d", "day"]),
    (604_800_000_000_000, &["w", "wk", "week"]),
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

/// Reads a text of the format `duration`: also `2 days` and `1 week and 3 hours`. As in Kubernetes all whole numbers before a unit are added, whatever else the
/// text has.
pub(crate) fn parse_long_duration(text: &str) -> Option<i64> {
    if let Some(nanos) = parse_duration(text) {
        return Some(nanos);
    }
    if text.len() > 256 {
        return None;
    }
    let mut nanos: Option<i64> = None;
    let mut rest = text;
    while let Some(at) = rest.find(|c: char| c.is_ascii_digit()) {
        let (number, after) = split_where(rest.get(at..)?, |c| c.is_ascii_digit());
        let after = after.trim_start_matches(|c: char| c.is_ascii_whitespace());
        let (unit, after) = split_where(after, |c| c.is_ascii_alphabetic() || c == 'µ');
        rest = after;
        if unit.is_empty() {
            continue;
        }
        let number: i64 = number.parse().ok()?;
        if let Some(unit) = long_unit(&unit.to_lowercase()) {
            nanos = Some(nanos.unwrap_or(0).checked_add(number.checked_mul(unit)?)?);
        }
    }
    nanos
}

/// A text up to the first character that does not fit, and the rest.
fn split_where(text: &str, fits: impl Fn(char) -> bool) -> (&str, &str) {
    text.split_at(text.find(|c| !fits(c)).unwrap_or(text.len()))
}

/// Nanoseconds of a unit of the format `duration`.
fn long_unit(unit: &str) -> Option<i64> {
    let is_name = |names: &[&str]| {
        names.contains(&unit) || names.last().is_some_and(|name| unit.starts_with(name))
    };
    LONG_UNITS.into_iter().find(|(_, names)| is_name(names)).map(|(nanos, _)| nanos)
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

/// A time in a zone: one of the time zone database, or an offset such as `+02:00`.
fn in_zone(nanos: i128, zone: &str) -> Option<OffsetDateTime> {
    let time = OffsetDateTime::from_unix_timestamp_nanos(nanos).ok()?;
    let seconds = match zone.split_once(':') {
        Some((hours, minutes)) => {
            let (hours, minutes): (i32, i32) = (hours.parse().ok()?, minutes.parse().ok()?);
            let minutes = if zone.starts_with('-') { minutes.checked_neg()? } else { minutes };
            hours.checked_mul(60)?.checked_add(minutes)?.checked_mul(60)?
        }
        None if matches!(zone, "" | "UTC" | "Local") => return Some(time),
        None => {
            let known = TimeZone::get(zone).ok()?;
            let known = Some(known).filter(|known| known.iana_name() == Some(zone))?;
            known.to_offset(Timestamp::from_nanosecond(nanos).ok()?).seconds()
        }
    };
    time.checked_to_offset(UtcOffset::from_whole_seconds(seconds).ok()?)
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
