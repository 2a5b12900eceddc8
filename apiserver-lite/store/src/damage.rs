//! Damage of the log: its description, and the files in which damaged or torn parts are kept.

use std::{
    collections::BTreeMap,
    fmt,
    fs::{self, File},
    io::{self, Read as _, Seek as _, SeekFrom},
    path::{Path, PathBuf},
    sync::Arc,
};

use proto_daemon::private_files;

use crate::{
    OpenError, Revision,
    acknowledged::KnownRevisions,
    checkpoint::{Checkpoint, checkpoint_error},
    log::{self, Change},
};

/// Torn tails kept per segment; the oldest is removed first.
const TORN_MAX: u32 = 16;

/// A part of the log that cannot be read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Damage {
    /// The segment, or the directory if there is none.
    pub path: PathBuf,
    /// Length of its readable part, in bytes.
    pub offset: u64,
    /// What was found at that offset.
    pub found: String,
    /// The first revision that cannot be read.
    pub first: Revision,
    /// The last one known to have been written.
    pub last: Option<Revision>,
}

impl fmt::Display for Damage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { path, offset, found, first, last } = self;
        write!(f, "{} at offset {offset}: {found}; ", path.display())?;
        match last {
            Some(last) => write!(f, "writes of revisions {first} to {last} cannot be read"),
            None => write!(f, "writes from revision {first} on cannot be read"),
        }
    }
}

/// Drops the damaged part of the log: folds the writes before it into the checkpoint and renames the segments. Revisions continue above
/// every revision seen so far. The function can be interrupted anywhere and repeated.
pub fn set_aside(
    directory: &Path,
    checkpoint: &Checkpoint,
    known: KnownRevisions,
    segments: &[(Revision, PathBuf)],
    changes: Vec<Change>,
) -> Result<(), OpenError> {
    let mut highest = known.checkpoint.max(known.acknowledged.unwrap_or_default());
    for (first, path) in segments {
        let at = |source| OpenError::Directory { path: path.clone(), source };
        let behind = log::find_frames_after(path, 0, *first).map_err(at)?;
        let last = behind.map_or(Revision(first.0.saturating_sub(1)), |behind| behind.last);
        highest = highest.max(last);
    }
    let net: BTreeMap<Arc<str>, Change> =
        changes.into_iter().map(|change| (change.key.clone(), change)).collect();
    checkpoint.fold(highest, &net).map_err(checkpoint_error)?;
    for (_, path) in segments {
        let at = |source| OpenError::Directory { path: path.clone(), source };
        let aside = free_name(path, "damaged");
        fs::rename(path, &aside).map_err(at)?;
        tracing::error!(path = %path.display(), aside = %aside.display(), "renamed a damaged log segment; the store opens without it");
    }
    let at = |source| OpenError::Directory { path: directory.to_owned(), source };
    File::open(directory).and_then(|directory| directory.sync_all()).map_err(at)?;
    tracing::error!(revision = %highest, "the store opens without the unreadable writes; new revisions start above this one");
    Ok(())
}

/// Copies the bytes after `end` of a segment to another file, unless they are all zero.
pub fn save_torn_tail(path: &Path, end: u64, why: &str) -> io::Result<()> {
    let mut segment = File::open(path)?;
    let len = log::end_of_content(&segment, end)?.saturating_sub(end);
    if len == 0 {
        return Ok(());
    }
    let aside = free_name(path, "torn");
    segment.seek(SeekFrom::Start(end))?;
    let mut copy = private_files::create_private(&aside)?;
    io::copy(&mut segment.take(len), &mut copy)?;
    copy.sync_all()?;
    tracing::warn!(
        path = %path.display(), offset = end, bytes = len, found = why, aside = %aside.display(),
        "cut an incomplete, unacknowledged write from the end of the log; its bytes are copied to another file"
    );
    Ok(())
}

/// `<path>.<what>-<n>` with the lowest free number.
fn free_name(path: &Path, what: &str) -> PathBuf {
    let name = |n: u32| {
        let mut name = path.as_os_str().to_owned();
        name.push(format!(".{what}-{n}"));
        PathBuf::from(name)
    };
    let mut n: u32 = 1;
    while name(n).symlink_metadata().is_ok() {
        if what == "torn" && n >= TORN_MAX {
            let _ = fs::remove_file(name(1));
            (1..n).for_each(|n| drop(fs::rename(name(n.saturating_add(1)), name(n))));
            return name(n);
        }
        n = n.saturating_add(1);
    }
    name(n)
}
