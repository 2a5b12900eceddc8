//! Times as people read them: `45s`, `12m`, `3h20m`, `5d`.

#![cfg_attr(not(test), warn(clippy::arithmetic_side_effects))]

use serde_json::Value;

const DAY_SECONDS: i64 = 86_400;
const WEEKDAYS: [&str; 7] = ["Thu", "Fri", "Sat", "Sun", "Mon", "Tue", "Wed"];
const MONTHS: [&str; 12] =
    ["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"];

const MINUTE: u64 = 60;
const HOUR: u64 = 3600;
const DAY: u64 = 86_400;
const YEAR: u64 = 365 * DAY;

/// Seconds as a short text: two units while the first is small.
pub fn of_seconds(seconds: u64) -> String {
    let pair = |large: u64, unit: char, small: u64, small_unit: char| {
        if small == 0 {
            format!("{large}{unit}")
        } else {
            format!("{large}{unit}{small}{small_unit}")
        }
    };
    let (minutes, hours, days) = (seconds / MINUTE, seconds / HOUR, seconds / DAY);
    if seconds < 2 * MINUTE {
        format!("{seconds}s")
    } else if minutes < 10 {
        pair(minutes, 'm', seconds % MINUTE, 's')
    } else if minutes < 180 {
        format!("{minutes}m")
    } else if hours < 8 {
        pair(hours, 'h', minutes % 60, 'm')
    } else if hours < 48 {
        format!("{hours}h")
    } else if days < 8 {
        pair(days, 'd', hours % 24, 'h')
    } else if days < 2 * 365 {
        format!("{days}d")
    } else if days < 8 * 365 {
        pair(seconds / YEAR, 'y', days % 365, 'd')
    } else {
        format!("{}y", seconds / YEAR)
    }
}

/// From a time of the API (RFC 3339) to `now` (seconds since 1970); `<unknown>` for none, `<invalid>` for one in the future.
pub fn since(time: Option<&str>, now: i64) -> String {
    let Some(text) = time.filter(|text| !text.is_empty()) else { return "<unknown>".to_owned() };
    let Some(then) = seconds_of(text) else { return "<invalid>".to_owned() };
    match u64::try_from(now.saturating_sub(then)) {
        Ok(seconds) => of_seconds(seconds),
        // Clocks of two hosts differ by a little.
        Err(_) if then.saturating_sub(now) <= 2 => "0s".to_owned(),
        Err(_) => "<invalid>".to_owned(),
    }
}

/// Seconds since 1970 of a time of the API.
pub fn seconds_of(text: &str) -> Option<i64> {
    let micros = text.parse::<proto_api::MicroTime>().ok()?.unix_micros()?;
    Some(micros.div_euclid(1_000_000))
}

/// A time of the API in words: `Thu, 26 Nov 2026 06:30:46 +0000`.
pub fn long(text: &str) -> Option<String> {
    let seconds = seconds_of(text)?;
    let plain = proto_api::Time::from_unix(seconds).to_string();
    let (date, time) = plain.split_once('T')?;
    let mut numbers = date.split('-');
    let (year, month, day) = (numbers.next()?, numbers.next()?, numbers.next()?);
    let month = MONTHS.get(month.parse::<usize>().ok()?.checked_sub(1)?)?;
    // 1 January 1970 was a Thursday.
    let weekday = seconds.div_euclid(DAY_SECONDS).rem_euclid(7);
    let weekday = WEEKDAYS.get(usize::try_from(weekday).ok()?)?;
    let time = time.trim_end_matches('Z');
    Some(format!("{weekday}, {day} {month} {year} {time} +0000"))
}

/// When an event was seen, and how often: `5s (x3 over 2m)`.
pub fn of_event(event: &Value, now: i64) -> String {
    let last = since(last_seen(event), now);
    let count = event.pointer("/series/count").or_else(|| event.get("count"));
    let count = count.and_then(Value::as_i64).unwrap_or_default();
    if count > 1 {
        let first = first_text(event, &["/firstTimestamp", "/eventTime"]);
        format!("{last} (x{count} over {})", since(first, now))
    } else {
        last
    }
}

/// The last time that an event was seen.
pub fn last_seen(event: &Value) -> Option<&str> {
    first_text(event, &["/series/lastObservedTime", "/lastTimestamp", "/eventTime"])
}

fn first_text<'a>(event: &'a Value, pointers: &[&str]) -> Option<&'a str> {
    let texts = pointers.iter().filter_map(|pointer| event.pointer(pointer)?.as_str());
    texts.into_iter().find(|text| !text.is_empty())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn durations_have_one_or_two_units() {
        for (seconds, wanted) in [
            (0, "0s"),
            (119, "119s"),
            (120, "2m"),
            (135, "2m15s"),
            (600, "10m"),
            (3 * HOUR, "3h"),
            (3 * HOUR + 20 * MINUTE, "3h20m"),
            (8 * HOUR + 20 * MINUTE, "8h"),
            (47 * HOUR, "47h"),
            (2 * DAY, "2d"),
            (2 * DAY + 3 * HOUR, "2d3h"),
            (9 * DAY + 3 * HOUR, "9d"),
            (800 * DAY, "2y70d"),
            (3000 * DAY, "8y"),
        ] {
            assert_eq!(of_seconds(seconds), wanted);
        }
    }

    #[test]
    fn repeated_events_say_how_often() {
        let once = json!({"lastTimestamp": "1970-01-01T00:01:00Z", "count": 1});
        assert_eq!(of_event(&once, 90), "30s");
        let often = json!({"lastTimestamp": "1970-01-01T00:01:00Z", "firstTimestamp": "1970-01-01T00:00:00Z", "count": 3});
        assert_eq!(of_event(&often, 90), "30s (x3 over 90s)");
        let series = json!({"eventTime": "1970-01-01T00:00:00.000001Z", "series": {"count": 2, "lastObservedTime": "1970-01-01T00:01:20.5Z"}});
        assert_eq!(of_event(&series, 90), "10s (x2 over 90s)");
    }

    #[test]
    fn times_in_words_have_their_weekday() {
        let wanted = "Thu, 26 Nov 2026 06:30:46 +0000";
        assert_eq!(long("2026-11-26T06:30:46Z").as_deref(), Some(wanted));
        assert_eq!(
            long("1969-12-31T23:59:59Z").as_deref(),
            Some("Wed, 31 Dec 1969 23:59:59 +0000")
        );
        assert_eq!(long("x"), None);
    }

    #[test]
    fn ages_are_from_a_time_to_now() {
        assert_eq!(since(Some("1970-01-01T00:01:40Z"), 145), "45s");
        assert_eq!(since(Some("1970-01-01T00:01:40.123456Z"), 101), "1s");
        assert_eq!(since(Some("1970-01-01T00:01:40Z"), 99), "0s");
        assert_eq!(since(Some("1970-01-01T00:01:40Z"), 9), "<invalid>");
        assert_eq!(since(None, 9), "<unknown>");
        assert_eq!(since(Some("x"), 9), "<invalid>");
    }
}
