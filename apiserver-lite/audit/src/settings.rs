//! Where events go, as values.

use std::path::PathBuf;
use std::time::Duration;

/// Settings of the audit log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AuditSettings {
    /// The policy (`--audit-policy-file`).
    pub policy_file: PathBuf,
    /// The log, if there is one.
    pub log: Option<LogSettings>,
    /// The remote service, if there is one.
    pub webhook: Option<WebhookSettings>,
}

/// Settings of the log file (`--audit-log-*`).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LogSettings {
    /// Where it is.
    pub path: LogPath,
    /// Days after which a rotated file is removed; 0 keeps it.
    pub max_age_days: u32,
    /// Most rotated files; 0 keeps all.
    pub max_backups: u32,
    /// Size at which a file is rotated, in MiB; 0 is 100.
    pub max_size_mib: u32,
    /// Who waits for it.
    pub mode: Mode,
}

/// Where the log is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LogPath {
    /// Standard output (`-`).
    Stdout,
    File(PathBuf),
}

/// Who waits for events to be stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// Requests wait for their events, and go on when they cannot be written.
    Blocking,
    /// A request whose first event cannot be written is refused.
    BlockingStrict,
    /// Requests do not wait; events that do not fit into the queue are dropped.
    Batch(BatchSettings),
}

/// Settings of the audit webhook (`--audit-webhook-*`).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WebhookSettings {
    /// The client configuration that leads to it.
    pub config_file: PathBuf,
    /// Pause before the second attempt.
    pub initial_backoff: Duration,
    /// Who waits for it.
    pub mode: Mode,
}

/// How events are collected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BatchSettings {
    /// Most events in the queue.
    pub buffer_size: usize,
    /// Most events of one batch.
    pub max_size: usize,
    /// Longest time until a batch that is not full is sent.
    pub max_wait: Duration,
    /// Batches a second and at once; `None` sends as fast as it goes.
    pub throttle: Option<Throttle>,
}

/// Most batches a second, and how many may follow each other at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Throttle {
    /// A second, on average.
    pub per_second: u32,
    /// At once.
    pub burst: u32,
}
