//! The journal's file: created atomically, and set aside if damaged. An agent without its journal
//! adopts pods from the runtime and the API; an agent that does not start is a lost node.
//!
//! redb does not read everything when it opens a file: it finds most damage only when a page is
//! read, as an error or by a panic.

use std::fs::{File, remove_file, rename};
use std::io::{self, ErrorKind};
use std::path::Path;
use std::time::{Duration, Instant};

use proto_daemon::panics::isolate_sync;
use proto_daemon::private_files;
use redb::{Database, Error};
use rustix::io::Errno;

/// Page cache of the store; the store of a full node is smaller.
const CACHE_BYTES: usize = 1 << 20;
/// How long to wait for a locked store: a killed agent may have left its lock with a child process
/// that was about to exec.
pub const PATIENCE: Duration = Duration::from_secs(5);
/// Pause between attempts.
const LOOK_AGAIN: Duration = Duration::from_millis(20);

/// Opens the store at `path` and reads it. Creates an empty one if it is missing, or if damage is
/// found in it; the damaged one is renamed to `.damaged`. Waits for a locked one.
///
/// # Errors
/// The file cannot be used, or is still locked after `patience`. It has its name then.
pub fn open_or_make<T>(
    path: &Path,
    patience: Duration,
    read: impl Fn(&Database) -> Result<T, Error>,
) -> Result<(Database, T), Error> {
    let open_and_read = || {
        // A panic drops the store, which releases its lock.
        catch_damage(|| {
            let store = open_when_free(path, patience)?;
            let found = read(&store)?;
            Ok((store, found))
        })
    };
    if !path.exists() {
        make(path)?;
    }
    match open_and_read() {
        Err(error) if is_damage(&error) || is_unreadable(&error) => {
            replace(path, &error)?;
            open_and_read()
        }
        opened => opened,
    }
}

/// Renames a damaged store to `.damaged` and makes an empty one in its place.
///
/// # Errors
/// The disk does not permit it.
pub fn replace(path: &Path, damage: &Error) -> Result<(), Error> {
    let aside = path.with_extension("damaged");
    tracing::error!(error = %damage, aside = %aside.display(), "the journal is damaged and was set aside; pods are adopted from the runtime and the API");
    rename(path, aside)?;
    make(path)
}

/// Runs `work` with a store. A panic in it, which some damage causes, becomes [`Error::Corrupted`].
///
/// # Errors
/// Those of `work`, and its panic.
pub fn catch_damage<T>(work: impl FnOnce() -> Result<T, Error>) -> Result<T, Error> {
    isolate_sync(work).unwrap_or_else(|panicked| Err(Error::Corrupted(panicked.to_string())))
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

/// Makes an empty store at `path`. It gets its name when complete, so that a full disk or a crash
/// leaves no partial one.
///
/// # Errors
/// The disk does not permit it.
pub fn make(path: &Path) -> Result<(), Error> {
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

/// Whether an error says that the content is not what was written. A page number that is none
/// leads to places that no file has.
pub fn is_damage(error: &Error) -> bool {
    match error {
        Error::Io(error) => matches!(
            error.kind(),
            ErrorKind::InvalidData
                | ErrorKind::InvalidInput
                | ErrorKind::UnexpectedEof
                | ErrorKind::FileTooLarge
        ),
        Error::Corrupted(_)
        | Error::UpgradeRequired(_)
        | Error::TableTypeMismatch { .. }
        | Error::TableIsMultimap(_)
        | Error::TableIsNotMultimap(_)
        | Error::TypeDefinitionChanged { .. }
        | Error::TableDoesNotExist(_)
        | Error::TableExists(_)
        | Error::LockPoisoned(_)
        | Error::TransactionPoisoned => true,
        _ => false,
    }
}

/// Whether the disk cannot read what is there. Only at a start: while the agent runs, its records
/// are worth another attempt.
fn is_unreadable(error: &Error) -> bool {
    matches!(error, Error::Io(error) if error.raw_os_error() == Some(Errno::IO.raw_os_error()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn made(path: &Path) -> Result<Database, Error> {
        open_or_make(path, Duration::ZERO, |_| Ok(())).map(|(store, ())| store)
    }

    #[test]
    fn a_corrupt_journal_is_set_aside_and_a_full_disk_is_an_error() {
        let dir = tempfile::tempdir().expect("tempdir");
        let path = dir.path().join("journal.redb");
        let aside = path.with_extension("damaged");
        let fails = |error: fn() -> Error| {
            let failed = std::cell::Cell::new(false);
            let read = |_: &Database| match failed.replace(true) {
                true => Ok(()),
                false => Err(error()),
            };
            open_or_make(&path, Duration::ZERO, read).map(drop)
        };
        let full = || io::Error::from(ErrorKind::StorageFull).into();
        fails(full).expect_err("no room is no damage");
        assert!(!aside.exists());
        let errors: [fn() -> Error; 4] = [
            || Error::Corrupted("page".into()),
            || io::Error::from(ErrorKind::UnexpectedEof).into(),
            || io::Error::from(Errno::IO).into(),
            || std::panic::resume_unwind(Box::new("page")),
        ];
        for error in errors {
            fails(error).expect("an empty one takes its place");
            std::fs::remove_file(&aside).expect("set aside");
        }
    }

    #[test]
    fn files_that_are_not_a_journal_are_set_aside() {
        let dir = tempfile::tempdir().expect("tempdir");
        let path = dir.path().join("journal.redb");
        // A partial file of an aborted creation is overwritten.
        std::fs::write(path.with_extension("new"), "half").expect("written");
        for damage in [&b""[..], b"not a store", &[0; 8192]] {
            std::fs::write(&path, damage).expect("written");
            drop(made(&path).expect("opened"));
            let aside = std::fs::read(path.with_extension("damaged")).expect("set aside");
            assert_eq!(aside, damage);
            drop(open(&path).expect("a store"));
        }
        assert!(!path.with_extension("new").exists());
    }

    #[test]
    fn the_journal_is_readable_by_its_owner_only() {
        use std::os::unix::fs::PermissionsExt as _;
        let dir = tempfile::tempdir().expect("tempdir");
        let path = dir.path().join("journal.redb");
        let mode = || path.metadata().expect("there").permissions().mode() & 0o777;
        drop(made(&path).expect("made"));
        assert_eq!(mode(), 0o600);
        let open = std::fs::Permissions::from_mode(0o644);
        std::fs::set_permissions(&path, open).expect("as an older agent made it");
        drop(made(&path).expect("opened"));
        assert_eq!(mode(), 0o600);
    }

    #[test]
    fn a_store_that_another_uses_is_waited_for_and_left_alone() {
        let dir = tempfile::tempdir().expect("tempdir");
        let path = dir.path().join("journal.redb");
        let used = made(&path).expect("made");
        let refused = made(&path);
        assert!(matches!(refused, Err(Error::DatabaseAlreadyOpen)));
        let lets_go = std::thread::spawn(move || {
            std::thread::sleep(LOOK_AGAIN);
            drop(used);
        });
        open_or_make(&path, Duration::from_secs(60), |_| Ok(())).expect("free after a while");
        lets_go.join().expect("joined");
        assert!(!path.with_extension("damaged").exists());
    }
}
