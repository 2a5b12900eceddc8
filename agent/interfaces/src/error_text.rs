//! Errors that only people read.

/// An error message of one line, for events and the log. No caller decides by its text: an error that callers distinguish has a type, as [`crate::VolumeError`] its step.
pub type ErrorText = String;
