//! io: etcd as the store that several API servers share.
//!
//! Each server keeps all records in memory and answers reads and watches from there, as with a store of its own; what differs is who orders the writes.
//! etcd does: a revision of the store is a revision of etcd, so revisions have gaps.
//!
//! ```text
//!   write() ─▶ plan on memory ─▶ transaction: compare mod revisions, put ─▶ etcd
//!      ▲                                                                     │ watch of the prefix
//!      └── answered once memory has its revision ◀── memory ◀── follow ◀─────┘
//!   sync()  ─▶ one linearizable read for all that wait ─▶ answered once memory has that revision
//! ```
//!
//! Every transaction also puts one key, [`keys::Keys::last`]: its mod revision is that of the last write of any server, so a server knows up to where it must
//! have followed to miss nothing. Its value is unique to the write, so a server that has lost sight of etcd knows afterwards whether it is the same history
//! ([`history`]): after a restore it drops what it has, and reads all records again at revisions that no client has seen. (What etcd itself reports as the
//! progress of a watch was ahead of the events until 3.4.25 and 3.5.8.)
//!
//! What etcd did with a write that it did not answer is not known, and is reported so ([`WriteError::NotDurable`](apiserver_store::WriteError::NotDurable)):
//! such a write is never tried again. While etcd does not answer, writes are refused before they are sent.

mod barrier;
mod client;
mod compaction;
mod config;
mod follow;
mod format;
mod history;
mod keys;
mod load;
mod marks;
mod revisions;
mod service;
mod shared;
mod writes;

pub use config::{EtcdConfig, EtcdUser, TlsFiles};
pub use format::{FORMAT, PrefixError};
pub use service::{OpenEtcdError, open};
