//! The journal's file: made whole or not at all, and set aside when it is damaged. An agent that cannot read what it wrote takes the
//! pods over from what the runtime and the API show; one that does not start is a lost node.

use std::fs::{File, remove_file, rename};
use std::io::{self, ErrorKind};
use std::path::Path;

use redb::{Database, Error};

/// Memory for pages of the store; the whole store of a full node is smaller.
const CACHE_BYTES: usize = 1 << 20;

/// Opens the store at `path`, or makes an empty one there: where there is none, or where there was one that is damaged, which is then
/// beside it as `.damaged`.
///
/// # Errors
/// The file cannot be used, or is used by another process. Nothing has been changed then.
pub fn open_or_make(path: &Path) -> Result<Database, Error> {
    if !path.exists() {
        make(path)?;
    }
    match open(path) {
        Err(error) if is_damaged(&error) => {
            let aside = path.with_extension("damaged");
            tracing::error!(%error, aside = %aside.display(), "the journal is damaged: begun anew");
            rename(path, aside)?;
            make(path)?;
            open(path)
        }
        opened => opened,
    }
}

/// Opens the store at `path`, which exists.
///
/// # Errors
/// As [`open_or_make`], and for damage.
pub fn open(path: &Path) -> Result<Database, Error> {
    Ok(redb::Builder::new().set_cache_size(CACHE_BYTES).open(path)?)
}

/// A store that was being made when its disk was full, or its process killed, is none: it gets its name when it is whole.
fn make(path: &Path) -> Result<(), Error> {
    let unnamed = path.with_extension("new");
    match remove_file(&unnamed) {
        Err(error) if error.kind() != ErrorKind::NotFound => return Err(error.into()),
        _ => {}
    }
    drop(redb::Builder::new().create(&unnamed)?);
    rename(&unnamed, path)?;
    sync_directory_of(path)?;
    Ok(())
}

fn sync_directory_of(path: &Path) -> io::Result<()> {
    path.parent().map_or(Ok(()), |directory| File::open(directory)?.sync_all())
}

fn is_damaged(error: &Error) -> bool {
    match error {
        Error::Corrupted(_) => true,
        Error::Io(error) => error.kind() == ErrorKind::InvalidData,
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_no_store_is_set_aside() {
        let dir = tempfile::tempdir().expect("tempdir");
        let path = dir.path().join("journal.redb");
        // What a making that broke off leaves is in nobody's way.
        std::fs::write(path.with_extension("new"), "half").expect("written");
        for damage in [&b""[..], b"not a store", &[0; 8192]] {
            std::fs::write(&path, damage).expect("written");
            drop(open_or_make(&path).expect("opened"));
            let aside = std::fs::read(path.with_extension("damaged")).expect("set aside");
            assert_eq!(aside, damage);
            drop(open(&path).expect("a store"));
        }
        assert!(!path.with_extension("new").exists());
    }

    #[test]
    fn a_store_that_another_uses_is_left_alone() {
        let dir = tempfile::tempdir().expect("tempdir");
        let path = dir.path().join("journal.redb");
        let used = open_or_make(&path).expect("made");
        assert!(matches!(open_or_make(&path), Err(Error::DatabaseAlreadyOpen)));
        drop(used);
        assert!(!path.with_extension("damaged").exists());
    }
}
