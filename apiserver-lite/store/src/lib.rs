//! io: a revisioned key-value log with watch, the only durable state of the API server.
//!
//! One global [`Revision`] counts writes. Every write is conditional, is on disk before it is
//! answered, and gets a revision of its own; a write that failed left no trace. All reads come from
//! memory and see one revision: now ([`Store::snapshot`]) or a recent one ([`Store::snapshot_at`]).
//! A [`Watch`] delivers each event after a revision exactly once and in order.
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
//! What a value is belongs to the caller: a [`Record`] is kept in memory as `Arc<T>` and handed out
//! as such to reads and watchers, so a server can keep the decoded object and its encoded forms in
//! it and encode once per revision. What goes to disk does not contain the revision; the store keeps
//! that beside it and gives it back when it [stamps](Record::stamp) or [restores](Record::restore).
//!
//! After a restart the history still in the log can be watched again. Its superseded versions and tombstones
//! are therefore restored too: what a record needs to be usable is done in the closure of
//! [`Store::open_with`], not by walking the keys after opening.
//!
//! Bounds: queue, batch, key, value and history all have a maximum in [`StoreConfig`].

mod acknowledged;
mod checkpoint;
mod config;
mod damage;
mod disk;
mod log;
mod log_reader;
mod record;
mod replay;
mod snapshot;
mod state;
mod store;
mod watch;
mod write;
mod writer;

pub use config::{Bounds, Identity, Medium, OnDamage, Retention, StoreConfig};
pub use damage::Damage;
pub use disk::OpenError;
#[doc(hidden)]
pub use log::reencode_payload;
pub use record::{Record, RestoreError, Revision, Stamp};
pub use snapshot::{Compacted, Entry, Page, Range, Snapshot, SnapshotError};
pub use store::{Health, Store, TimedOut};
pub use watch::{Event, EventKind, Lagged, Watch, WatchEnd, WatchError};
pub use write::{CommittedWrite, Expect, Write, WriteError};
