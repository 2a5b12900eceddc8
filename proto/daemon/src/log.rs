//! Logs: one event per decision on standard error, with fields instead of interpolated text, as
//! text or JSON lines.

use std::io::IsTerminal;
use std::sync::OnceLock;

use clap::ValueEnum;
use tracing::Level;
use tracing::level_filters::LevelFilter;
use tracing_subscriber::filter::Targets;
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;
use tracing_subscriber::{Layer, Registry, fmt, reload};

/// Form of a log line.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum LogFormat {
    /// For people.
    Text,
    /// One JSON object a line.
    Json,
}

/// Format and level of the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LogSettings {
    /// Form of a line.
    pub format: LogFormat,
    /// 0 to 9, as `-v`.
    pub verbosity: u8,
}

/// Libraries of which only warnings are logged below `-v=8`.
const QUIET: [&str; 7] = ["h2", "hyper", "hyper_util", "rustls", "tokio_util", "tonic", "tower"];

/// The filter of this process, which can be changed while it runs.
static FILTER: OnceLock<reload::Handle<Targets, Registry>> = OnceLock::new();

/// Writes the events of this process to standard error. A second call in one process changes nothing, so that tests can start several programs.
pub fn init(settings: LogSettings) {
    let lines = fmt::layer().with_writer(std::io::stderr).with_target(false);
    let lines = match settings.format {
        LogFormat::Text => lines.with_ansi(std::io::stderr().is_terminal()).boxed(),
        LogFormat::Json => lines.json().flatten_event(true).boxed(),
    };
    let (filter, handle) = reload::Layer::new(filter(settings.verbosity));
    if tracing_subscriber::registry().with(lines.with_filter(filter)).try_init().is_ok() {
        let _ = FILTER.set(handle);
    }
}

/// Why the level of the log stays as it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum VerbosityError {
    /// The process has not called [`init`].
    #[error("this process has no log of its own")]
    NoLog,
    /// The process is ending.
    #[error("the log is closed")]
    Closed,
}

/// Changes the level of the log, as `-v` sets it at the start.
///
/// # Errors
/// See [`VerbosityError`].
pub fn set_verbosity(verbosity: u8) -> Result<(), VerbosityError> {
    let handle = FILTER.get().ok_or(VerbosityError::NoLog)?;
    handle.reload(filter(verbosity)).map_err(|_| VerbosityError::Closed)
}

fn filter(verbosity: u8) -> Targets {
    let level = match verbosity {
        0..=3 => Level::INFO,
        4..=5 => Level::DEBUG,
        _ => Level::TRACE,
    };
    let own = Targets::new().with_default(level);
    if verbosity >= 8 { own } else { own.with_targets(QUIET.map(|name| (name, LevelFilter::WARN))) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn libraries_log_only_at_high_verbosity() {
        assert!(filter(0).would_enable("orchlet", &Level::INFO));
        assert!(!filter(0).would_enable("orchlet", &Level::DEBUG));
        assert!(filter(4).would_enable("orchlet", &Level::DEBUG));
        assert!(!filter(6).would_enable("h2::codec", &Level::DEBUG));
        assert!(filter(8).would_enable("h2::codec", &Level::TRACE));
    }
}
