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
use std::fmt::{self, Write as _};
use std::str::FromStr;
use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;

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
        let Some(seconds) = self.0 else { return Ok(()) };
        write_second(f, seconds)?;
        f.write_char('Z')
    }
}

/// `2006-01-02T15:04:05.000000Z`, always six digits; empty when unset.
impl fmt::Display for MicroTime {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Some(micros) = self.0 else { return Ok(()) };
        write_second(f, micros.div_euclid(MICROS))?;
        write!(f, ".{:06}Z", micros.rem_euclid(MICROS))
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
/// The range of RFC 3339, in UTC: years from 0 to 9999.
const SECONDS: std::ops::RangeInclusive<i64> = -62_167_219_200..=253_402_300_799;

/// Length of `2006-01-02T15:04:05`.
const SECOND_LEN: usize = 19;

/// Writes `2006-01-02T15:04:05`, of a time outside of the range the end of the range.
fn write_second(f: &mut fmt::Formatter<'_>, seconds: i64) -> fmt::Result {
    let seconds = seconds.clamp(*SECONDS.start(), *SECONDS.end());
    let at = OffsetDateTime::from_unix_timestamp(seconds).map_err(|_| fmt::Error)?;
    let mut text = [0; SECOND_LEN + 1];
    at.format_into(&mut text.as_mut_slice(), &Rfc3339).map_err(|_| fmt::Error)?;
    let text = text.get(..SECOND_LEN).and_then(|text| str::from_utf8(text).ok());
    f.write_str(text.ok_or(fmt::Error)?)
}

/// Seconds since the epoch and microseconds within the second. Stricter than RFC 3339 where Kubernetes' reader is: capital letters, and no leap seconds.
fn parse(text: &str) -> Option<(i64, i64)> {
    let (second, rest) = text.split_at_checked(SECOND_LEN)?;
    if !second.contains('T') || second.ends_with("60") || rest.contains('z') {
        return None;
    }
    let at = OffsetDateTime::parse(text, &Rfc3339).ok()?;
    // With its offset the time may be outside of the range.
    let seconds = at.unix_timestamp();
    SECONDS.contains(&seconds).then_some((seconds, i64::from(at.microsecond())))
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
