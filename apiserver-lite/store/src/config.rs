//! Configuration of a store: medium, identity and bounds.

use std::{fmt, path::PathBuf, sync::Arc, time::Duration};

use crate::Transform;

/// Configuration for [`Store::open`](crate::Store::open).
pub struct StoreConfig {
    /// Where the records are kept.
    pub medium: Medium,
    /// Identity of the store; written at creation, compared at every later opening.
    pub identity: StoreIdentity,
    /// How long old revisions stay readable and watchable. 5 minutes by default.
    pub history: Duration,
    /// Bounds of the history, whatever its age.
    pub retention: Retention,
    /// Bounds of queue, batches, keys and values.
    pub bounds: Bounds,
    /// Size at which a segment of the log is closed and folded into the checkpoint.
    pub segment_len_max: u64,
    /// Treatment of a damaged log; refused by default.
    pub on_damage: OnDamage,
    /// How values lie on disk; none by default.
    pub transform: Option<Arc<dyn Transform>>,
}

impl fmt::Debug for StoreConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // A transform has keys, which are not printed.
        f.debug_struct("StoreConfig")
            .field("medium", &self.medium)
            .field("identity", &self.identity)
            .finish_non_exhaustive()
    }
}

impl StoreConfig {
    /// The default bounds over `medium` for `identity`.
    #[must_use]
    pub fn new(medium: Medium, identity: StoreIdentity) -> Self {
        Self {
            medium,
            identity,
            history: Duration::from_secs(300),
            retention: Retention::default(),
            bounds: Bounds::default(),
            segment_len_max: 64 << 20,
            on_damage: OnDamage::Refuse,
            transform: None,
        }
    }
}

/// Bounds of the history, so that a burst of writes cannot grow memory without limit.
#[derive(Clone, Copy, Debug)]
pub struct Retention {
    /// Most events.
    pub events_max: usize,
    /// Most bytes of memory that their records take, about ([`Record::memory_len`](crate::Record::memory_len)).
    pub bytes_max: usize,
}

impl Default for Retention {
    fn default() -> Self {
        Self { events_max: 100_000, bytes_max: 256 << 20 }
    }
}

/// Default of [`Bounds::batch_bytes_max`].
pub const BATCH_BYTES_MAX: usize = 64 << 20;
/// Default of [`Bounds::key_len_max`].
pub const KEY_LEN_MAX: usize = 1024;
/// Default of [`Bounds::value_len_max`].
pub const VALUE_LEN_MAX: usize = 8 << 20;

/// Bounds of the writer.
#[derive(Clone, Copy, Debug)]
pub struct Bounds {
    /// Writes that may be queued; further callers wait for room.
    pub queue_len_max: usize,
    /// Most writes that share one commit.
    pub batch_len_max: usize,
    /// Bytes at which a commit takes no further write; at most half of the longest frame of the log.
    pub batch_bytes_max: usize,
    /// Longest key, in bytes.
    pub key_len_max: usize,
    /// Longest stored value, in bytes.
    pub value_len_max: usize,
}

impl Default for Bounds {
    fn default() -> Self {
        Self {
            queue_len_max: 1024,
            batch_len_max: 512,
            batch_bytes_max: BATCH_BYTES_MAX,
            key_len_max: KEY_LEN_MAX,
            value_len_max: VALUE_LEN_MAX,
        }
    }
}

/// Treatment of a log with unreadable acknowledged writes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum OnDamage {
    /// The store is not opened, and nothing is changed.
    #[default]
    Refuse,
    /// Writes before the damage are kept, the log's files are renamed to `*.damaged-<n>`, and revisions continue above all revisions
    /// seen. Set by an administrator.
    SetAside,
}

/// Where the records are kept.
#[derive(Debug)]
pub enum Medium {
    /// A directory, created if it is missing. One process at a time may use it.
    Directory(PathBuf),
    /// Memory only, for tests and throw-away servers.
    Memory,
}

/// Identity of the server that a store belongs to. Servers with different names must not share a store.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoreIdentity {
    /// Naming profile, as the programs' `--naming` flag spells it.
    pub profile: String,
    /// Domain of API groups and labels under that profile.
    pub domain: String,
}
