//! Times of objects: RFC 3339 text in whole seconds.

use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;

/// `at` as RFC 3339 text in whole seconds, the format of timestamps in metadata.
#[must_use]
pub(crate) fn timestamp(at: OffsetDateTime) -> String {
    // Formatting cannot fail for a year of four digits.
    at.replace_nanosecond(0).unwrap_or(at).format(&Rfc3339).unwrap_or_default()
}

/// The wall clock.
#[must_use]
pub fn now() -> OffsetDateTime {
    OffsetDateTime::now_utc()
}

/// Parses an RFC 3339 timestamp of an object; `None` if `text` is not one.
#[must_use]
pub fn time_of(text: &str) -> Option<OffsetDateTime> {
    OffsetDateTime::parse(text, &Rfc3339).ok()
}
