//! Times as people read them: `45s`, `12m`, `3h20m`, `5d`.

#![cfg_attr(not(test), warn(clippy::arithmetic_side_effects))]

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

#[cfg(test)]
mod tests {
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
    fn ages_are_from_a_time_to_now() {
        assert_eq!(since(Some("1970-01-01T00:01:40Z"), 145), "45s");
        assert_eq!(since(Some("1970-01-01T00:01:40.123456Z"), 101), "1s");
        assert_eq!(since(Some("1970-01-01T00:01:40Z"), 99), "0s");
        assert_eq!(since(Some("1970-01-01T00:01:40Z"), 9), "<invalid>");
        assert_eq!(since(None, 9), "<unknown>");
        assert_eq!(since(Some("x"), 9), "<invalid>");
    }
}
