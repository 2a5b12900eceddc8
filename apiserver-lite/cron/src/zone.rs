//! Time zones, from a database that is compiled in.

use jiff::Timestamp;
use jiff::civil::{Date, DateTime, Time};
use jiff::tz::TimeZone;

/// A time zone.
#[derive(Clone, Debug)]
pub struct Zone(TimeZone);

impl Zone {
    /// Coordinated universal time.
    pub fn utc() -> Self {
        Self(TimeZone::UTC)
    }

    /// The zone of this name, for example `Europe/Berlin`, in capital and small letters as it is written.
    pub fn named(name: &str) -> Option<Self> {
        TimeZone::get(name).ok().filter(|zone| zone.iana_name() == Some(name)).map(Self)
    }

    /// What clocks show at a time in seconds since 1970.
    pub(crate) fn clock(&self, seconds: i64) -> Option<DateTime> {
        Some(self.0.to_datetime(Timestamp::from_second(seconds).ok()?))
    }

    /// When the date begins: where clocks skip midnight, with the first time after it.
    pub(crate) fn beginning(&self, date: Date) -> Option<i64> {
        let midnight = DateTime::from_parts(date, Time::midnight());
        self.0.to_timestamp(midnight).ok().map(Timestamp::as_second)
    }
}
