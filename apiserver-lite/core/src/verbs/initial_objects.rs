//! The objects with which a watch begins, read piece by piece: a client that does not read holds none of them, whatever is written meanwhile.

#![cfg_attr(not(test), warn(clippy::arithmetic_side_effects))]

use std::sync::Arc;

use apiserver_store::{Compacted, Range, Record as _, Revision};

use super::selection::Selection;
use crate::record::StoredObject;
use crate::status::ApiError;
use crate::webhook_call::Asker;

/// Most objects of a collection that is read as a whole.
const WHOLE_LEN: usize = 500;
/// Objects that are read at a time of a larger one.
const PIECE_LEN: usize = 100;
/// Bytes of memory of a piece's objects, about, beyond which it ends.
const PIECE_BYTES: usize = 1 << 20;

/// A place in the objects of a collection at a revision that was current when the watch began.
#[derive(Clone, Debug)]
pub struct InitialObjects {
    prefix: String,
    revision: Revision,
    progress: Progress,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Progress {
    Begin,
    /// All up to this key have been read.
    After(Arc<str>),
    End,
}

impl InitialObjects {
    pub(super) fn new(prefix: String, revision: Revision) -> Self {
        Self { prefix, revision, progress: Progress::Begin }
    }

    /// Whether all have been read.
    #[must_use]
    pub fn is_done(&self) -> bool {
        self.progress == Progress::End
    }

    /// The next selected objects, possibly none. A small collection comes in the order of its last writes: versions of a stream only grow then, so that a
    /// client can resume after each of its events. A larger one comes in the order of names.
    ///
    /// # Errors
    /// 410 if the revision is not kept any more, and what a webhook says that converts the objects for the selection.
    pub async fn read_piece(
        &mut self,
        asker: Asker<'_>,
        selection: &Selection,
    ) -> Result<Vec<Arc<StoredObject>>, ApiError> {
        let mut records = self.advance(asker).map_err(too_old)?;
        selection.prepare(asker, records.iter()).await?;
        records.retain(|record| selection.may_match_record(record));
        Ok(records)
    }

    fn advance(&mut self, asker: Asker<'_>) -> Result<Vec<Arc<StoredObject>>, Compacted> {
        let store = &asker.server.store;
        let (after, limit) = match &self.progress {
            Progress::Begin => (None, WHOLE_LEN),
            Progress::After(key) => (Some(&**key), PIECE_LEN),
            Progress::End => return Ok(Vec::new()),
        };
        let range = Range { prefix: &self.prefix, after, limit: Some(limit) };
        let mut page = store.range_at(self.revision, range)?;
        let mut bytes = 0_usize;
        let is_within = |bytes: &mut usize, record: &StoredObject| {
            *bytes = bytes.saturating_add(record.memory_len());
            *bytes <= PIECE_BYTES
        };
        let within = page.entries.iter().take_while(|entry| is_within(&mut bytes, &entry.record));
        // One at least.
        let kept = within.count().max(1);
        if kept < page.entries.len() {
            page.entries.truncate(kept);
            page.more = true;
        }
        let is_whole = self.progress == Progress::Begin && !page.more;
        self.progress = match page.entries.last() {
            Some(last) if page.more => Progress::After(last.key.clone()),
            _ => Progress::End,
        };
        let mut records: Vec<_> = page.entries.into_iter().map(|entry| entry.record).collect();
        if is_whole {
            records.sort_unstable_by_key(|record| record.revision());
        }
        Ok(records)
    }
}

/// The 410 for a revision that is not kept any more.
pub(super) fn too_old(Compacted { requested, oldest }: Compacted) -> ApiError {
    ApiError::expired(format!("too old resource version: {requested} ({oldest})"))
}
