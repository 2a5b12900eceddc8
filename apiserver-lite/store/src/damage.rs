//! Damage of the log: what is said of it, and what is put beside the log instead of being lost.

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
    checkpoint::{Checkpoint, checkpoint_error},
    log::{self, Change},
    read::Known,
};

/// Torn tails that are kept of one segment; the oldest go.
const TORN_MAX: u32 = 16;

/// What is wrong with a log, and where.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Damage {
    /// The segment, or the directory if there is none.
    pub path: PathBuf,
    /// End of what is readable in it, in bytes.
    pub offset: u64,
    /// What is there.
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

/// Goes on without what is damaged: what is readable before it goes to the checkpoint, and the segments are set aside. Revisions go
/// on above all that were ever seen. May break off anywhere and be done again.
pub fn set_aside(
    directory: &Path,
    checkpoint: &Checkpoint,
    known: Known,
    segments: &[(Revision, PathBuf)],
    changes: Vec<Change>,
) -> Result<(), OpenError> {
    let mut highest = known.checkpoint.max(known.acknowledged.unwrap_or_default());
    for (first, path) in segments {
        let at = |source| OpenError::Directory { path: path.clone(), source };
        let behind = log::frames_behind(path, 0, Revision(0)).map_err(at)?;
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
        tracing::error!(path = %path.display(), aside = %aside.display(), "set aside");
    }
    let at = |source| OpenError::Directory { path: directory.to_owned(), source };
    File::open(directory).and_then(|directory| directory.sync_all()).map_err(at)?;
    tracing::error!(revision = %highest, "goes on without what could not be read");
    Ok(())
}

/// Copies what follows `end` in a segment to a file beside it, if it is not only zeros.
pub fn keep_torn(path: &Path, end: u64, why: &str) -> io::Result<()> {
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
        "a write that broke off and was never answered is cut from the log's end"
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
    let mut n = 1;
    while name(n).symlink_metadata().is_ok() {
        if what == "torn" && n >= TORN_MAX {
            let _ = fs::remove_file(name(1));
            (1..n).for_each(|n| drop(fs::rename(name(n + 1), name(n))));
            return name(n);
        }
        n += 1;
    }
    name(n)
}
