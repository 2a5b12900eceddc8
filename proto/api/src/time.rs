//! Times of the API: [`Time`] in seconds, [`MicroTime`] in microseconds.
//!
//! Both may be unset: the zero value, `null` in JSON, an empty message in Protobuf. Neither reads a clock: the current time is an argument, in seconds or
//! microseconds since the Unix epoch.

#![cfg_attr(not(test), warn(clippy::arithmetic_side_effects))]

use crate::codec::{Field, encode_as, serde_by_field};
use prost::DecodeError;
use prost::bytes::Buf;
use prost::encoding::{DecodeContext, WireType};
use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serializer};
use std::fmt;
use std::str::FromStr;

/// A second, or unset.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Time(Option<i64>);

/// A microsecond, or unset.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct MicroTime(Option<i64>);

/// Text that is not a time in RFC 3339.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{text:?} is not a time in RFC 3339, such as 2006-01-02T15:04:05Z")]
pub struct ParseTimeError {
    text: String,
}

impl Time {
    pub const UNSET: Time = Time(None);

    /// The time `seconds` after the Unix epoch.
    pub fn from_unix(seconds: i64) -> Time {
        Time(Some(seconds))
    }

    /// Seconds since the Unix epoch, or `None` when unset.
    pub fn unix(self) -> Option<i64> {
        self.0
    }

    /// Whether a time is set.
    pub fn is_set(self) -> bool {
        self.0.is_some()
    }
}

impl MicroTime {
    pub const UNSET: MicroTime = MicroTime(None);

    /// The time `micros` microseconds after the Unix epoch.
    pub fn from_unix_micros(micros: i64) -> MicroTime {
        MicroTime(Some(micros))
    }

    /// Microseconds since the Unix epoch, or `None` when unset.
    pub fn unix_micros(self) -> Option<i64> {
        self.0
    }

    /// Whether a time is set.
    pub fn is_set(self) -> bool {
        self.0.is_some()
    }

    /// The same time to the second, rounded down.
    pub fn to_seconds(self) -> Time {
        Time(self.0.map(|micros| micros.div_euclid(MICROS)))
    }
}

impl From<Time> for MicroTime {
    fn from(time: Time) -> MicroTime {
        MicroTime(time.0.map(|seconds| seconds.saturating_mul(MICROS)))
    }
}

/// `2006-01-02T15:04:05Z`; empty when unset.
impl fmt::Display for Time {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.map_or(Ok(()), |seconds| write!(f, "{}Z", Civil::from_unix(seconds)))
    }
}

/// `2006-01-02T15:04:05.000000Z`, always six digits; empty when unset.
impl fmt::Display for MicroTime {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Some(micros) = self.0 else { return Ok(()) };
        let civil = Civil::from_unix(micros.div_euclid(MICROS));
        write!(f, "{civil}.{:06}Z", micros.rem_euclid(MICROS))
    }
}

impl FromStr for Time {
    type Err = ParseTimeError;

    /// Reads RFC 3339; a fraction of a second is dropped, an offset is applied.
    fn from_str(text: &str) -> Result<Time, ParseTimeError> {
        let (seconds, _) = parse(text).ok_or_else(|| ParseTimeError { text: text.to_owned() })?;
        Ok(Time(Some(seconds)))
    }
}

impl FromStr for MicroTime {
    type Err = ParseTimeError;

    /// Reads RFC 3339; digits beyond the microsecond are dropped, an offset is applied.
    fn from_str(text: &str) -> Result<MicroTime, ParseTimeError> {
        let (seconds, micros) =
            parse(text).ok_or_else(|| ParseTimeError { text: text.to_owned() })?;
        Ok(MicroTime(Some(seconds.saturating_mul(MICROS).saturating_add(micros))))
    }
}

const MICROS: i64 = 1_000_000;
const DAY_SECS: i64 = 86_400;
/// The range of RFC 3339, in UTC: years from 0 to 9999.
const SECONDS: std::ops::RangeInclusive<i64> = -62_167_219_200..=253_402_300_799;

/// A date and a time of day in UTC.
struct Civil {
    year: i64,
    month: i64,
    day: i64,
    second_of_day: i64,
}

impl Civil {
    /// The proleptic Gregorian date, counting in eras of 400 years that start on 1 March.
    #[expect(clippy::arithmetic_side_effects, reason = "of a quotient of DAY_SECS or a remainder")]
    fn from_unix(seconds: i64) -> Civil {
        let days = seconds.div_euclid(DAY_SECS) + 719_468;
        let era = days.div_euclid(146_097);
        let day_of_era = days.rem_euclid(146_097);
        let year_of_era =
            (day_of_era - day_of_era / 1_460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
        let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
        let month_from_march = (5 * day_of_year + 2) / 153;
        let month = if month_from_march < 10 { month_from_march + 3 } else { month_from_march - 9 };
        Civil {
            year: year_of_era + era * 400 + i64::from(month <= 2),
            month,
            day: day_of_year - (153 * month_from_march + 2) / 5 + 1,
            second_of_day: seconds.rem_euclid(DAY_SECS),
        }
    }

    #[expect(clippy::arithmetic_side_effects, reason = "all parts have at most four digits")]
    fn to_unix(&self) -> i64 {
        let year = if self.month <= 2 { self.year - 1 } else { self.year };
        let era = year.div_euclid(400);
        let year_of_era = year.rem_euclid(400);
        let month_from_march = (self.month + 9) % 12;
        let day_of_year = (153 * month_from_march + 2) / 5 + self.day - 1;
        let day_of_era = year_of_era * 365 + year_of_era / 4 - year_of_era / 100 + day_of_year;
        (era * 146_097 + day_of_era - 719_468) * DAY_SECS + self.second_of_day
    }
}

impl fmt::Display for Civil {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Civil { year, month, day, second_of_day: s } = self;
        let (hour, minute, second) = (s / 3600, s / 60 % 60, s % 60);
        write!(f, "{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}")
    }
}

/// Seconds since the epoch and microseconds within the second.
fn parse(text: &str) -> Option<(i64, i64)> {
    let (date_time, rest) = text.split_at_checked(19)?;
    let number = |from: usize, to: usize| digits(date_time.get(from..to)?);
    let separators: Vec<u8> =
        [4, 7, 10, 13, 16].iter().filter_map(|&i| date_time.as_bytes().get(i).copied()).collect();
    if separators != *b"--T::" {
        return None;
    }
    let (year, month, day) = (number(0, 4)?, number(5, 7)?, number(8, 10)?);
    let (hour, minute, second) = (number(11, 13)?, number(14, 16)?, number(17, 19)?);
    if hour > 23 || minute > 59 || second > 59 {
        return None;
    }
    let second_of_hour = minute.saturating_mul(60).saturating_add(second);
    let second_of_day = hour.saturating_mul(3600).saturating_add(second_of_hour);
    let civil = Civil { year, month, day, second_of_day };
    // A date that does not exist, such as 30 February, converts back to another one.
    let back = Civil::from_unix(civil.to_unix());
    if !(1..=12).contains(&month) || (back.year, back.month, back.day) != (year, month, day) {
        return None;
    }
    let (micros, zone) = match rest.strip_prefix('.') {
        Some(rest) => {
            let end = rest.find(|c: char| !c.is_ascii_digit())?;
            let (fraction, zone) = rest.split_at_checked(end)?;
            if fraction.is_empty() {
                return None;
            }
            let six: String = fraction.chars().chain("000000".chars()).take(6).collect();
            (digits(&six)?, zone)
        }
        None => (0, rest),
    };
    // With its offset the time may be outside of the range.
    let seconds = civil.to_unix().saturating_sub(offset_secs(zone)?);
    SECONDS.contains(&seconds).then_some((seconds, micros))
}

/// `Z` or `+01:30`, in seconds east of UTC.
fn offset_secs(zone: &str) -> Option<i64> {
    if zone == "Z" {
        return Some(0);
    }
    let (sign, zone) = match zone.split_at_checked(1)? {
        ("+", rest) => (1, rest),
        ("-", rest) => (-1, rest),
        _ => return None,
    };
    let (hours, minutes) = zone.split_once(':')?;
    if hours.len() != 2 || minutes.len() != 2 {
        return None;
    }
    let (hours, minutes) = (digits(hours)?, digits(minutes)?);
    let seconds = hours.saturating_mul(3600).saturating_add(minutes.saturating_mul(60));
    (hours <= 23 && minutes <= 59).then_some(seconds.saturating_mul(sign))
}

fn digits(text: &str) -> Option<i64> {
    if text.bytes().all(|b| b.is_ascii_digit()) { text.parse().ok() } else { None }
}

/// The message on the wire. Both fields are written unless the time is unset.
#[derive(Clone, PartialEq, prost::Message)]
struct Wire {
    #[prost(int64, optional, tag = "1")]
    seconds: Option<i64>,
    #[prost(int32, optional, tag = "2")]
    nanos: Option<i32>,
}

impl From<&Time> for Wire {
    fn from(time: &Time) -> Wire {
        Wire { seconds: time.0, nanos: time.0.map(|_| 0) }
    }
}

impl From<&MicroTime> for Wire {
    fn from(time: &MicroTime) -> Wire {
        let nanos = |micros: i64| {
            i32::try_from(micros.rem_euclid(MICROS).saturating_mul(1000)).unwrap_or(0)
        };
        Wire { seconds: time.0.map(|m| m.div_euclid(MICROS)), nanos: time.0.map(nanos) }
    }
}

/// A message without fields is an unset time; fractions of a second are dropped.
impl From<Wire> for Time {
    fn from(wire: Wire) -> Time {
        let is_set = wire.seconds.is_some() || wire.nanos.is_some();
        Time(is_set.then(|| wire.seconds.unwrap_or(0)))
    }
}

impl From<Wire> for MicroTime {
    fn from(wire: Wire) -> MicroTime {
        let is_set = wire.seconds.is_some() || wire.nanos.is_some();
        let micros = i64::from(wire.nanos.unwrap_or(0)) / 1000;
        let seconds = wire.seconds.unwrap_or(0);
        MicroTime(is_set.then(|| seconds.saturating_mul(MICROS).saturating_add(micros)))
    }
}

macro_rules! time_field {
    ($name:ident, $seconds:expr) => {
        impl Field for $name {
            fn is_empty(&self) -> bool {
                false
            }

            fn write_json<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
                if self.is_set() { to.collect_str(self) } else { to.serialize_unit() }
            }

            fn read_json<'de, D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
                String::deserialize(from)?.parse().map_err(D::Error::custom)
            }

            encode_as!(Wire);

            // A time that JSON cannot express is refused: its object could not be read again.
            #[allow(deprecated, reason = "prost has no other error for a value")]
            fn merge_field(
                &mut self,
                wire: WireType,
                buf: &mut impl Buf,
                ctx: DecodeContext,
            ) -> Result<(), DecodeError> {
                let mut value = Wire::default();
                prost::encoding::message::merge(wire, &mut value, buf, ctx)?;
                let time: $name = value.into();
                let seconds: fn($name) -> Option<i64> = $seconds;
                match seconds(time) {
                    Some(seconds) if !SECONDS.contains(&seconds) => {
                        Err(DecodeError::new("a time whose year does not have four digits"))
                    }
                    _ => {
                        *self = time;
                        Ok(())
                    }
                }
            }
        }

        serde_by_field!($name);
    };
}

time_field!(Time, Time::unix);
time_field!(MicroTime, |time| time.to_seconds().unix());

#[cfg(test)]
mod tests;
