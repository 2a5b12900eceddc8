//! The journal's file: created atomically, and set aside if damaged. An agent without its journal
//! adopts pods from the runtime and the API; an agent that does not start is a lost node.

use std::fs::{File, remove_file, rename};
use std::io::{self, ErrorKind};
use std::path::Path;
use std::time::{Duration, Instant};

use proto_daemon::private_files;
use redb::{Database, Error};

/// Page cache of the store; the store of a full node is smaller.
const CACHE_BYTES: usize = 1 << 20;
/// How long to wait for a locked store: a killed agent may have left its lock with a child process
/// that was about to exec.
pub const PATIENCE: Duration = Duration::from_secs(5);
/// Pause between attempts.
const LOOK_AGAIN: Duration = Duration::from_millis(20);

/// Opens the store at `path`. Creates an empty one if it is missing or damaged; a damaged one is
/// renamed to `.damaged`. Waits for a locked one.
///
/// # Errors
/// The file cannot be used, or is still locked after `patience`. It is unchanged then.
pub fn open_or_make(path: &Path, patience: Duration) -> Result<Database, Error> {
    if !path.exists() {
        make(path)?;
    }
    match open_when_free(path, patience) {
        Err(error) if is_damaged(&error) => {
            let aside = path.with_extension("damaged");
            tracing::error!(%error, aside = %aside.display(), "the journal is damaged and was set aside; pods are adopted from the runtime and the API");
            rename(path, aside)?;
            make(path)?;
            open(path)
        }
        opened => opened,
    }
}

fn open_when_free(path: &Path, patience: Duration) -> Result<Database, Error> {
    let began = Instant::now();
    loop {
        match open(path) {
            Err(Error::DatabaseAlreadyOpen) if began.elapsed() < patience => {
                std::thread::sleep(LOOK_AGAIN);
            }
            opened => return opened,
        }
    }
}

/// Opens an existing store at `path`.
///
/// # Errors
/// Those of [`open_or_make`], and damage.
pub fn open(path: &Path) -> Result<Database, Error> {
    private_files::make_private(path)?;
    Ok(redb::Builder::new().set_cache_size(CACHE_BYTES).open(path)?)
}

/// The store gets its name when complete, so that a full disk or a crash leaves no partial one.
fn make(path: &Path) -> Result<(), Error> {
    let unnamed = path.with_extension("new");
    match remove_file(&unnamed) {
        Err(error) if error.kind() != ErrorKind::NotFound => return Err(error.into()),
        _ => {}
    }
    drop(redb::Builder::new().create_file(private_files::create_private(&unnamed)?)?);
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
        // A partial file of an aborted creation is overwritten.
        std::fs::write(path.with_extension("new"), "half").expect("written");
        for damage in [&b""[..], b"not a store", &[0; 8192]] {
            std::fs::write(&path, damage).expect("written");
            drop(open_or_make(&path, Duration::ZERO).expect("opened"));
            let aside = std::fs::read(path.with_extension("damaged")).expect("set aside");
            assert_eq!(aside, damage);
            drop(open(&path).expect("a store"));
        }
        assert!(!path.with_extension("new").exists());
    }

    #[test]
    fn nobody_else_reads_it() {
        use std::os::unix::fs::PermissionsExt as _;
        let dir = tempfile::tempdir().expect("tempdir");
        let path = dir.path().join("journal.redb");
        let mode = || path.metadata().expect("there").permissions().mode() & 0o777;
        drop(open_or_make(&path, Duration::ZERO).expect("made"));
        assert_eq!(mode(), 0o600);
        let open = std::fs::Permissions::from_mode(0o644);
        std::fs::set_permissions(&path, open).expect("as an older agent made it");
        drop(open_or_make(&path, Duration::ZERO).expect("opened"));
        assert_eq!(mode(), 0o600);
    }

    #[test]
    fn a_store_that_another_uses_is_waited_for_and_left_alone() {
        let dir = tempfile::tempdir().expect("tempdir");
        let path = dir.path().join("journal.redb");
        let used = open_or_make(&path, Duration::ZERO).expect("made");
        let refused = open_or_make(&path, Duration::ZERO);
        assert!(matches!(refused, Err(Error::DatabaseAlreadyOpen)));
        let lets_go = std::thread::spawn(move || {
            std::thread::sleep(LOOK_AGAIN);
            drop(used);
        });
        open_or_make(&path, Duration::from_secs(60)).expect("free after a while");
        lets_go.join().expect("joined");
        assert!(!path.with_extension("damaged").exists());
    }
}
