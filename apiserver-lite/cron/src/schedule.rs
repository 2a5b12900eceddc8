//! Schedules: five fields of numbers, ranges, steps and names, or a macro such as `@hourly`.

use jiff::civil::DateTime;
use proto_api::duration;

use crate::zone::Zone;

/// Why a text is no schedule.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct ScheduleError(String);

/// A parsed cron expression: minutes, hours, days and months as sets.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Schedule {
    zone: Option<String>,
    times: Times,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Times {
    /// At the numbers of each field, a bit each.
    Fields {
        bits: [u64; 5],
        /// Whether the day of the month or that of the week is any: then both have to match, else one of them.
        any_day: bool,
    },
    /// After this many seconds, again and again.
    Every(i64),
}

/// The last time of a schedule before another, and how many there are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LatestTime {
    pub time: i64,
    /// The number of times; beyond [`COUNT_MAX`] an estimate from the distance of the first two.
    pub count: i64,
}

/// Times that are counted one by one.
const COUNT_MAX: i64 = 100;

/// Years in which a time must be found: 29 February may be eight years away.
const YEARS_MAX: i16 = 9;

/// A field: name in messages, lowest and highest number, and names of numbers starting at the lowest.
struct Field {
    name: &'static str,
    lowest: u32,
    highest: u32,
    names: &'static [&'static str],
}

const FIELDS: [Field; 5] = [
    Field { name: "minute", lowest: 0, highest: 59, names: &[] },
    Field { name: "hour", lowest: 0, highest: 23, names: &[] },
    Field { name: "day of month", lowest: 1, highest: 31, names: &[] },
    Field {
        name: "month",
        lowest: 1,
        highest: 12,
        names: &[
            "jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec",
        ],
    },
    Field {
        name: "day of week",
        lowest: 0,
        highest: 6,
        names: &["sun", "mon", "tue", "wed", "thu", "fri", "sat"],
    },
];

/// Macros and what they stand for.
const WORDS: &[(&str, &str)] = &[
    ("@yearly", "0 0 1 1 *"),
    ("@annually", "0 0 1 1 *"),
    ("@monthly", "0 0 1 * *"),
    ("@weekly", "0 0 * * 0"),
    ("@daily", "0 0 * * *"),
    ("@midnight", "0 0 * * *"),
    ("@hourly", "0 * * * *"),
];

/// Longest parsed schedule in bytes.
const LEN_MAX: usize = 1024;

impl Schedule {
    /// Reads a schedule.
    ///
    /// # Errors
    /// The text is none; the error says what is wrong.
    pub fn parse(text: &str) -> Result<Self, ScheduleError> {
        read(text)
    }

    /// Whether its times are those of a period (`@every`), which no clock of a zone shows.
    pub fn is_period(&self) -> bool {
        matches!(self.times, Times::Every(_))
    }

    /// The zone that the text names itself with `TZ=`, which Kubernetes still accepts.
    pub fn zone(&self) -> Option<&str> {
        self.zone.as_deref()
    }

    /// The first time after `after`, in seconds since 1970. None if there is none within years. The times of a period (`@every`) are counted from `anchor`.
    pub fn next(&self, zone: &Zone, anchor: i64, after: i64) -> Option<i64> {
        match &self.times {
            Times::Every(seconds) => {
                let passed = after.saturating_sub(anchor).checked_div_euclid(*seconds)?;
                let steps = passed.checked_add(1)?.max(1);
                anchor.checked_add(steps.checked_mul(*seconds)?)
            }
            Times::Fields { bits, any_day } => next_of_fields(bits, *any_day, zone, after),
        }
    }

    /// The last time after `after` that is not after `until`. The times of a period are counted from `anchor`.
    pub fn latest(&self, zone: &Zone, anchor: i64, after: i64, until: i64) -> Option<LatestTime> {
        let first = self.next(zone, anchor, after).filter(|first| *first <= until)?;
        let latest = |time, count| Some(LatestTime { time, count });
        let (mut time, mut count) = (first, 1_i64);
        while count <= COUNT_MAX {
            match self.next(zone, anchor, time).filter(|next| *next <= until) {
                Some(next) => (time, count) = (next, count.saturating_add(1)),
                None => return latest(time, count),
            }
        }
        let second = self.next(zone, anchor, first)?;
        let distance = second.saturating_sub(first).max(1);
        let steps = until.saturating_sub(first).checked_div(distance)?;
        let count = steps.saturating_add(1);
        if let Times::Every(_) = self.times {
            return latest(first.saturating_add(steps.saturating_mul(distance)), count);
        }
        // Backwards in longer and longer steps, so that no more than a few thousand times are looked at.
        for back in [4_320, 86_400, 604_800, 2_678_400, 31_622_400, 316_224_000] {
            let from = until.saturating_sub(back).max(time);
            let mut found = None;
            let mut at = from.saturating_sub(1);
            while let Some(next) = self.next(zone, anchor, at).filter(|next| *next <= until) {
                (found, at) = (Some(next), next);
            }
            if let Some(time) = found {
                return latest(time, count);
            }
        }
        latest(time, count)
    }
}

fn read(text: &str) -> Result<Schedule, ScheduleError> {
    if text.len() > LEN_MAX {
        return Err(ScheduleError(format!("must be no more than {LEN_MAX} characters")));
    }
    let (zone, text) = split_zone(text)?;
    if let Some(period) = text.strip_prefix("@every ").filter(|period| is_duration(period)) {
        // Parts of seconds are dropped, and less than a second is one.
        let period = duration::parse(period).unwrap_or_default().as_secs().max(1);
        let times = Times::Every(i64::try_from(period).unwrap_or(i64::MAX));
        return Ok(Schedule { zone, times });
    }
    let text = match WORDS.iter().find(|(word, _)| *word == text) {
        Some((_, fields)) => *fields,
        None if text.starts_with('@') => {
            return Err(ScheduleError(format!("unrecognized descriptor: {text}")));
        }
        None => text,
    };
    let fields: Vec<&str> = text.split_whitespace().collect();
    if fields.len() != FIELDS.len() {
        let (count, fields) = (fields.len(), fields.join(" "));
        let why = format!("expected exactly 5 fields, found {count}: [{fields}]");
        return Err(ScheduleError(why));
    }
    let (mut bits, mut any) = ([0_u64; 5], [false; 5]);
    for ((field, text), (bits, any)) in FIELDS.iter().zip(fields).zip(bits.iter_mut().zip(&mut any))
    {
        for part in text.split(',').filter(|part| !part.is_empty()) {
            let (of_part, is_any) = field.read(part)?;
            *bits |= of_part;
            *any |= is_any;
        }
    }
    let [_, _, month_day, _, week_day] = any;
    let times = Times::Fields { bits, any_day: month_day || week_day };
    Ok(Schedule { zone, times })
}

/// The zone after `TZ=`, and the schedule after it.
fn split_zone(text: &str) -> Result<(Option<String>, &str), ScheduleError> {
    let zone = text.strip_prefix("TZ=").or_else(|| text.strip_prefix("CRON_TZ="));
    let Some(zone) = zone else { return Ok((None, text)) };
    let alone = || ScheduleError(format!("no schedule follows {text}"));
    let (zone, rest) = zone.split_once(' ').ok_or_else(alone)?;
    let known = match zone {
        // As Go's time.LoadLocation reads them; the local zone is that of a schedule without one.
        "" | "Local" => "UTC",
        _ if Zone::named(zone).is_none() => {
            let why = format!("provided bad location {zone}: unknown time zone {zone}");
            return Err(ScheduleError(why));
        }
        _ => zone,
    };
    Ok((Some(known.to_owned()), rest.trim()))
}

/// Goes from `after` to the next minute that matches, by months, days, hours and minutes. Times that clocks skip are skipped.
fn next_of_fields(bits: &[u64; 5], any_day: bool, zone: &Zone, after: i64) -> Option<i64> {
    let [minutes, hours, month_days, months, week_days] = *bits;
    let has = |bits: u64, number: i8| {
        u32::try_from(number).ok().and_then(|bit| bits.checked_shr(bit)).is_some_and(|b| b & 1 == 1)
    };
    let is_day = |clock: DateTime| {
        let week_day = clock.date().weekday().to_sunday_zero_offset();
        let (month, week) = (has(month_days, clock.day()), has(week_days, week_day));
        if any_day { month && week } else { month || week }
    };
    let mut at = after.div_euclid(60).checked_add(1)?.checked_mul(60)?;
    let last_year = zone.clock(at)?.year().checked_add(YEARS_MAX)?;
    loop {
        let clock = zone.clock(at)?;
        if clock.year() > last_year {
            return None;
        }
        let seconds = i64::from(clock.second());
        let next = if !has(months, clock.month()) {
            zone.beginning(clock.date().last_of_month().tomorrow().ok()?)?
        } else if !is_day(clock) {
            zone.beginning(clock.date().tomorrow().ok()?)?
        } else if !has(hours, clock.hour()) {
            let passed = i64::from(clock.minute()).saturating_mul(60).saturating_add(seconds);
            at.checked_add(3600_i64.saturating_sub(passed))?
        } else if !has(minutes, clock.minute()) {
            at.checked_add(60_i64.saturating_sub(seconds))?
        } else {
            return Some(at);
        };
        // A date may begin twice; time goes on all the same.
        at = if next > at { next } else { at.checked_add(60)? };
    }
}

/// Whether the text is a Go duration such as `1h30m`.
fn is_duration(text: &str) -> bool {
    let mut rest = text.strip_prefix(['+', '-']).unwrap_or(text);
    if rest == "0" {
        return true;
    }
    if rest.is_empty() {
        return false;
    }
    while !rest.is_empty() {
        let number = rest.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(rest.len());
        let (digits, unit) = rest.split_at(number);
        let dots = digits.bytes().filter(|byte| *byte == b'.').count();
        let end = unit.find(|c: char| c.is_ascii_digit() || c == '.').unwrap_or(unit.len());
        let (unit, next) = unit.split_at(end);
        let known = matches!(unit, "ns" | "us" | "µs" | "μs" | "ms" | "s" | "m" | "h");
        if dots > 1 || digits.len() == dots || !known {
            return false;
        }
        rest = next;
    }
    true
}

impl Field {
    /// Reads `*`, `?`, `3` or `1-5`, each with an optional `/step`. Gives the bits of the numbers, and whether every number will do.
    fn read(&self, part: &str) -> Result<(u64, bool), ScheduleError> {
        let (range, step) = match part.split_once('/') {
            Some((_, step)) if step.contains('/') => {
                return Err(ScheduleError(format!("too many slashes: {part}")));
            }
            Some((range, step)) => (range, Some(step)),
            None => (part, None),
        };
        let (start, end) = match range.split_once('-') {
            _ if matches!(range, "*" | "?") => (self.lowest, self.highest),
            Some((_, end)) if end.contains('-') => {
                return Err(ScheduleError(format!("too many hyphens: {part}")));
            }
            Some((start, end)) => (self.number(start)?, self.number(end)?),
            None => {
                let start = self.number(range)?;
                (start, if step.is_some() { self.highest } else { start })
            }
        };
        let step = step.map_or(Ok(1), number)?;
        if start < self.lowest {
            let lowest = self.lowest;
            return Err(ScheduleError(format!(
                "beginning of range ({start}) below minimum ({lowest}): {part}"
            )));
        }
        if end > self.highest {
            let highest = self.highest;
            return Err(ScheduleError(format!(
                "end of range ({end}) above maximum ({highest}): {part}"
            )));
        }
        if start > end {
            return Err(ScheduleError(format!(
                "beginning of range ({start}) beyond end of range ({end}): {part}"
            )));
        }
        if step == 0 {
            return Err(ScheduleError(format!(
                "step of range should be a positive number: {part}"
            )));
        }
        let stride = usize::try_from(step).unwrap_or(usize::MAX);
        let bit = |number: u32| 1_u64.checked_shl(number).unwrap_or(0);
        let bits = (start..=end).step_by(stride).fold(0, |bits, number| bits | bit(number));
        Ok((bits, matches!(range, "*" | "?") && step == 1))
    }

    fn number(&self, text: &str) -> Result<u32, ScheduleError> {
        let lower = text.to_ascii_lowercase();
        match self.names.iter().position(|name| *name == lower) {
            Some(at) => Ok(self.lowest.saturating_add(u32::try_from(at).unwrap_or(u32::MAX))),
            None => number(text).map_err(|why| ScheduleError(format!("{why} in {}", self.name))),
        }
    }
}

fn number(text: &str) -> Result<u32, ScheduleError> {
    text.parse().map_err(|_| ScheduleError(format!("failed to parse int from {text}")))
}

#[cfg(test)]
mod tests;
