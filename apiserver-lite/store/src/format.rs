//! Versions of the format on disk: the tables of the checkpoint, the frames of the log, and how values lie in both. The checkpoint says
//! which one a store has.
//!
//! | format | since | values |
//! |---|---|---|
//! | 1 | the first one | as the records encode them |
//! | 2 | encryption | may be [transformed](crate::Transform) |
//!
//! A store keeps the oldest format that describes it, so that older programs open it as long as they understand it: it gets format 2 when it is
//! opened with a transform, before the first value is transformed, and keeps it. A format that is not in the table is refused.

use std::fmt;

/// A format that this program reads and writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum StoreFormat {
    /// All values are as they are.
    Plain = 1,
    /// Values may be transformed.
    Transformed = 2,
}

impl StoreFormat {
    pub const NEWEST: Self = Self::Transformed;

    /// The format that a store needs with a transform or without.
    pub fn needed(has_transform: bool) -> Self {
        if has_transform { Self::Transformed } else { Self::Plain }
    }

    /// `None` for formats of newer programs, and for what is no format.
    pub fn parse(text: &str) -> Option<Self> {
        [Self::Plain, Self::Transformed].into_iter().find(|format| format.to_string() == text)
    }
}

impl fmt::Display for StoreFormat {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        (*self as u8).fmt(f)
    }
}
