//! Durations as flags and configuration files write them: [`proto_api::duration`], under the name that configurations refer to.

pub use proto_api::duration::{DurationError, format, parse, text};
