//! Durations in flags and configuration files: [`proto_api::duration`] under the path that configuration types refer to.

pub use proto_api::duration::{DurationError, format, parse, text};
