//! Errors that only people read.

/// An error message of one line, for events and the log. No caller decides by its text: errors that callers distinguish have types, as [`crate::VolumeError`].
pub type ErrorText = String;
