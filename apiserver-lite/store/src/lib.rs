//! io: a revisioned key-value log with watch, the only durable state of the API server.
//!
//! One global [`Revision`] counts writes. Every write is conditional, durable before it is answered, and has a revision of its
//! own; a failed write leaves no trace. Reads come from memory and see one revision: the current one ([`Store::snapshot`]) or a
//! recent one ([`Store::snapshot_at`]). A [`Watch`] delivers each event after a revision exactly once and in order.
//!
//! ```text
//!   write() ──bounded queue──▶ writer thread ──one sync──▶ log ──segments──▶ checkpoint (redb)
//!      ▲                            │
//!      └────────── answers ◀────────┤ publish, one lock per batch
//!                                   ▼
//!   snapshot() ◀────────────── state: key → versions, ring of events
//!   watch().next() ◀── cursor into the ring, woken once per batch
//! ```
//!
//! The caller defines the values: a [`Record`] is kept in memory as `Arc<T>` and shared with reads and watches, so a server can
//! keep the decoded object and its encodings in it. The bytes on disk do not contain the revision; the store keeps it separately
//! and passes it when it [stamps](Record::stamp) or [restores](Record::restore) a record.
//!
//! After a restart the history still in the log can be watched. Its superseded versions and tombstones are restored too, so
//! records are prepared in the closure of [`Store::open_with`] and not by reading all keys after opening.
//!
//! Values may lie on disk in another form than in memory: a [`Transform`] encrypts those of some keys. A record whose stored form cannot be read
//! (its key is gone) stays as it is on disk, and [`Record::unreadable`] stands for it in memory.
//!
//! [`Store::backup`] writes all records at one revision to a file, while the store is in use, and [`restore`] makes a store of it.
//!
//! A store in memory can be put back: [`Store::save`] keeps all records of now, [`Store::replace`] puts them in the place of what is there then.
//!
//! Several servers may share a store that is elsewhere: a [`Follower`] takes the place of the writer thread, and memory shows what was committed there.
//!
//! Queue, batch, key, value and history are bounded by [`StoreConfig`].

#![cfg_attr(not(test), warn(clippy::arithmetic_side_effects))]

mod acknowledged;
mod backup;
mod checkpoint;
mod config;
mod damage;
mod disk;
mod follower;
mod format;
mod log;
mod log_reader;
mod record;
mod replay;
mod restore;
mod saved;
mod snapshot;
mod state;
mod store;
mod transform;
mod watch;
mod watcher;
mod watchers;
mod write;
mod writer;

pub use backup::{BackupError, BackupSummary, BackupValue};
pub use config::{Bounds, Medium, OnDamage, Retention, StoreConfig, StoreIdentity};
pub use damage::Damage;
pub use disk::OpenError;
pub use follower::{Follower, PlannedWrite, PrepareRestore};
pub use log::Change;
#[doc(hidden)]
pub use log::reencode_payload;
pub use record::{Record, RestoreError, Revision, Stamp};
pub use restore::{RestoredStore, restore};
pub use saved::{OnDisk, ReplaceError, SavedRecords};
pub use snapshot::{Compacted, Entry, Page, Range, Snapshot, SnapshotError};
pub use store::{Health, Store, TimedOut};
pub use transform::{Form, Transform, TransformError};
pub use watch::{Event, EventKind, Lagged, Watch, WatchEnd, WatchError};
pub use write::{CommittedWrite, Write, WriteCondition, WriteError};
pub use writer::{NotSynced, SyncResult, WriteAllResult, WriteResult, WriterRequest};
