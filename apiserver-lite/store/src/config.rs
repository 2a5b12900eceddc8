//! How a store is opened: where it lives, whose it is, and its bounds.

use std::{path::PathBuf, time::Duration};

/// Everything [`Store::open`](crate::Store::open) wants to know.
#[derive(Debug)]
pub struct StoreConfig {
    /// Where the records are kept.
    pub medium: Medium,
    /// Whose records they are; recorded at creation, compared at every later opening.
    pub identity: Identity,
    /// How long old revisions can be read and watched from. 5 minutes by default.
    pub history: Duration,
    /// Most history kept, whatever its age.
    pub retention: Retention,
    /// What the writer accepts.
    pub bounds: Bounds,
    /// Bytes after which a segment of the log is closed and folded into the checkpoint.
    pub segment_len_max: u64,
    /// What becomes of a log that is damaged. Refused by default.
    pub on_damage: OnDamage,
}

impl StoreConfig {
    /// The default bounds over `medium` for `identity`.
    #[must_use]
    pub fn new(medium: Medium, identity: Identity) -> Self {
        Self {
            medium,
            identity,
            history: Duration::from_secs(300),
            retention: Retention::default(),
            bounds: Bounds::default(),
            segment_len_max: 64 << 20,
            on_damage: OnDamage::Refuse,
        }
    }
}

/// How much history is kept whatever its age: a burst of writes cannot grow memory without bound.
#[derive(Clone, Copy, Debug)]
pub struct Retention {
    /// Most events.
    pub events_max: usize,
    /// Most bytes of their stored forms. What a record takes in memory is its user's affair, and a multiple.
    pub bytes_max: usize,
}

impl Default for Retention {
    fn default() -> Self {
        Self { events_max: 100_000, bytes_max: 64 << 20 }
    }
}

/// How much the writer accepts.
#[derive(Clone, Copy, Debug)]
pub struct Bounds {
    /// Writes that may wait for the writer thread; further ones wait for a place.
    pub queue_len_max: usize,
    /// Most writes that share one commit.
    pub batch_len_max: usize,
    /// Longest key, in bytes.
    pub key_len_max: usize,
    /// Longest stored value, in bytes.
    pub value_len_max: usize,
}

impl Default for Bounds {
    fn default() -> Self {
        Self { queue_len_max: 1024, batch_len_max: 512, key_len_max: 1024, value_len_max: 8 << 20 }
    }
}

/// What becomes of a log in which acknowledged writes cannot be read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum OnDamage {
    /// It is not opened, and nothing is changed.
    #[default]
    Refuse,
    /// What can be read before the damage is kept, the files are set aside as `*.damaged-<n>`, and revisions go on above all that were
    /// seen. The choice of a person.
    SetAside,
}

/// Where the records are kept.
#[derive(Debug)]
pub enum Medium {
    /// A directory of its own, created if it is not there. One process at a time.
    Directory(PathBuf),
    /// Memory only; nothing survives. For tests and throw-away servers.
    Memory,
}

/// Whose records a store holds. Two servers that name things differently must not share one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Identity {
    /// Naming profile, as the programs' `--naming` flag spells it.
    pub profile: String,
    /// Domain of API groups and labels under that profile.
    pub domain: String,
}
