//! io: a durable store of what a restart must not forget, one record per pod.
//!
//! Writers queue the newest record without waiting; a separate thread commits all pending records
//! in one transaction. An action that depends on a record first awaits [`CommitHandle::durable`].

pub mod active_pods;
mod file;
mod journal;
pub mod last_run;
mod queue;
mod record;
mod reserve;
#[cfg(feature = "testing")]
pub mod simulated;
mod tables;
mod writer;

pub use journal::{Journal, JournalError};
pub use queue::CommitHandle;
pub use record::Record;
pub use writer::GATHER;
