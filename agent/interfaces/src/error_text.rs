//! Errors that only people read.

/// An error message of one line, for events and the log. Nothing is decided by it: what a caller tells apart has a type, as [`crate::VolumeError`] its step.
pub type ErrorText = String;
