//! Versions of the format on disk: the tables of the checkpoint, the frames of the log, and how values lie in both. The checkpoint says
//! which one a store has, a backup which one its values need.
//!
//! | format | since | values |
//! |---|---|---|
//! | 1 | the first one | as the records encode them |
//! | 2 | encryption | may be [transformed](crate::Transform) |
//! | 3 | seeds in the [headers of segments](crate::log) | may be transformed |
//!
//! A store is raised to the newest format when it is opened, before anything is written. A backup keeps the oldest format that describes its values, so that
//! older programs restore it as long as they understand it. A format that is not in the table is refused.

use std::fmt;

/// A format that this program reads and writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum StoreFormat {
    /// All values are as they are.
    Plain = 1,
    /// Values may be transformed.
    Transformed = 2,
    /// Values may be transformed, segments may have seeds.
    Seeded = 3,
}

impl StoreFormat {
    pub const NEWEST: Self = Self::Seeded;

    /// The oldest format that describes a backup with transformed values or without.
    pub fn of_backup(has_transformed: bool) -> Self {
        if has_transformed { Self::Transformed } else { Self::Plain }
    }

    /// `None` for formats of newer programs, and for what is no format.
    pub fn parse(text: &str) -> Option<Self> {
        let known = [Self::Plain, Self::Transformed, Self::Seeded];
        known.into_iter().find(|format| format.to_string() == text)
    }
}

impl fmt::Display for StoreFormat {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        (*self as u8).fmt(f)
    }
}
