//! Files and directories of a cluster: for their owner only from the moment they exist.
//!
//! The usual directory lies below one that every user may write to, and what lies in it decides what runs as root: a
//! directory that another user made first is refused.

use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

use anyhow::{Context, Result, bail};

/// Mode of every directory.
const DIR_MODE: u32 = 0o700;
/// Mode of every file.
const FILE_MODE: u32 = 0o600;
/// Names tried for a file that is being written; only a crash with the same process id leaves one behind.
const NAMES_MAX: usize = 16;

/// Makes the cluster's own directory, or takes one that is there and belongs to us, and closes it to others.
///
/// # Errors
/// The path is no directory, or a symbolic link, or another user's.
pub fn own_dir(dir: &Path) -> Result<()> {
    if let Some(parent) = dir.parent() {
        fs::create_dir_all(parent)
            .with_context(|| format!("cannot create {}", parent.display()))?;
    }
    match DirBuilder::new().mode(DIR_MODE).create(dir) {
        Err(e) if e.kind() != io::ErrorKind::AlreadyExists => {
            return Err(e).with_context(|| format!("cannot create {}", dir.display()));
        }
        _ => {}
    }
    let Some(opened) = open_own(dir)? else {
        bail!("{} was removed by another process", dir.display())
    };
    if opened.metadata()?.permissions().mode() & 0o777 != DIR_MODE {
        opened
            .set_permissions(fs::Permissions::from_mode(DIR_MODE))
            .with_context(|| format!("cannot close {} to other users", dir.display()))?;
    }
    Ok(())
}

/// Checks that a cluster's directory is ours before anything in it is believed; one that does not exist is fine.
///
/// # Errors
/// As [`own_dir`].
pub fn check_owner(dir: &Path) -> Result<()> {
    open_own(dir).map(drop)
}

/// Opens a directory that must be no link and belong to the effective user; `None` when it does not exist.
fn open_own(dir: &Path) -> Result<Option<File>> {
    let flags = nix::libc::O_DIRECTORY | nix::libc::O_NOFOLLOW;
    let opened = match OpenOptions::new().read(true).custom_flags(flags).open(dir) {
        Ok(opened) => opened,
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(e) => {
            return Err(e).with_context(|| {
                format!("{} must be a directory that this user owns", dir.display())
            });
        }
    };
    let (owner, own) = (opened.metadata()?.uid(), nix::unistd::geteuid().as_raw());
    if owner != own {
        bail!("{} belongs to user {owner}, not to user {own}: refused", dir.display());
    }
    Ok(Some(opened))
}

/// Makes a directory below the cluster's own, with those that lead to it.
pub fn make_dir(dir: &Path) -> Result<()> {
    let made = DirBuilder::new().recursive(true).mode(DIR_MODE).create(dir);
    made.with_context(|| format!("cannot create {}", dir.display()))
}

/// Writes a temporary file and renames it over the old one, so that readers and crashes see one version; durable when it returns.
pub fn write_file(path: &Path, bytes: &[u8]) -> Result<()> {
    let (beside, mut file) = create_beside(path)?;
    let written = file.write_all(bytes).and_then(|()| file.sync_all());
    let written = written.and_then(|()| fs::rename(&beside, path));
    if let Err(e) = written {
        let _best_effort = fs::remove_file(&beside);
        return Err(e).with_context(|| format!("cannot write {}", path.display()));
    }
    let dir = path.parent().with_context(|| format!("{} has no parent", path.display()))?;
    let synced = File::open(dir).and_then(|dir| dir.sync_all());
    synced.with_context(|| format!("cannot sync {}", dir.display()))
}

/// A new file next to `path`, under a name that did not exist.
fn create_beside(path: &Path) -> Result<(PathBuf, File)> {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    let name = path.file_name().with_context(|| format!("{} names no file", path.display()))?;
    for _ in 0..NAMES_MAX {
        let mut fresh = name.to_owned();
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        fresh.push(format!(".{}.{number}.new", std::process::id()));
        let beside = path.with_file_name(fresh);
        let created = OpenOptions::new().write(true).create_new(true).mode(FILE_MODE).open(&beside);
        match created {
            Ok(file) => return Ok((beside, file)),
            Err(e) if e.kind() == io::ErrorKind::AlreadyExists => {}
            Err(e) => return Err(e).with_context(|| format!("cannot create {}", beside.display())),
        }
    }
    bail!("every temporary name for {} is taken", path.display())
}

/// A log that is longer than this when it is opened is set aside.
const LOG_BYTES_MAX: u64 = 32 << 20;

/// Opens a log to append to. A long one becomes `<name>.log.1` first, in place of an earlier one.
pub fn open_log(path: &Path) -> Result<File> {
    if fs::metadata(path).is_ok_and(|meta| meta.len() > LOG_BYTES_MAX) {
        fs::rename(path, path.with_extension("log.1"))?;
    }
    OpenOptions::new()
        .create(true)
        .append(true)
        .mode(FILE_MODE)
        .custom_flags(nix::libc::O_NOFOLLOW)
        .open(path)
        .with_context(|| format!("cannot open {}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mode(path: &Path) -> u32 {
        fs::symlink_metadata(path).unwrap().permissions().mode() & 0o777
    }

    #[test]
    fn everything_is_for_its_owner_only() {
        let outer = tempfile::tempdir().unwrap();
        let dir = outer.path().join("a/cluster");
        own_dir(&dir).unwrap();
        make_dir(&dir.join("pki/deep")).unwrap();
        write_file(&dir.join("pki/ca.key"), b"one").unwrap();
        write_file(&dir.join("pki/ca.key"), b"two").unwrap();
        open_log(&dir.join("log")).unwrap();
        for made in ["", "pki", "pki/deep"] {
            assert_eq!(mode(&dir.join(made)), 0o700, "{made}");
        }
        for made in ["pki/ca.key", "log"] {
            assert_eq!(mode(&dir.join(made)), 0o600, "{made}");
        }
        assert_eq!(fs::read(dir.join("pki/ca.key")).unwrap(), b"two");
        assert_eq!(fs::read_dir(dir.join("pki")).unwrap().count(), 2, "nothing is left beside");
    }

    #[test]
    fn an_open_directory_of_ours_is_closed_and_a_link_is_refused() {
        let outer = tempfile::tempdir().unwrap();
        let dir = outer.path().join("cluster");
        fs::create_dir(&dir).unwrap();
        fs::set_permissions(&dir, fs::Permissions::from_mode(0o777)).unwrap();
        own_dir(&dir).unwrap();
        assert_eq!(mode(&dir), 0o700);
        let link = outer.path().join("link");
        std::os::unix::fs::symlink(&dir, &link).unwrap();
        assert!(own_dir(&link).is_err() && check_owner(&link).is_err());
        fs::write(outer.path().join("file"), "").unwrap();
        assert!(own_dir(&outer.path().join("file")).is_err());
        assert!(check_owner(&outer.path().join("nothing")).is_ok());
    }

    #[test]
    fn another_user_s_directory_is_refused() {
        let outer = tempfile::tempdir().unwrap();
        let dir = outer.path().join("cluster");
        fs::create_dir(&dir).unwrap();
        if std::os::unix::fs::chown(&dir, Some(65_534), None).is_err() {
            println!("SKIPPED another_user_s_directory_is_refused: needs root");
            return;
        }
        let error = own_dir(&dir).unwrap_err().to_string();
        assert!(error.contains("belongs to user 65534"), "{error}");
        fs::write(dir.join("cluster.json"), "{}").unwrap();
        let error = crate::spec::Spec::load(&dir).unwrap_err().to_string();
        assert!(error.contains("belongs to user 65534"), "nothing in it is read: {error}");
    }

    #[test]
    fn a_temporary_name_that_is_taken_is_not_written_to() {
        let dir = tempfile::tempdir().unwrap();
        let victim = dir.path().join("victim");
        fs::write(&victim, "kept").unwrap();
        // All names that the next writes of this process would try but the last.
        for number in 0..NAMES_MAX as u64 {
            let name = format!("f.{}.{number}.new", std::process::id());
            let _taken = std::os::unix::fs::symlink(&victim, dir.path().join(name));
        }
        let _written_or_refused = write_file(&dir.path().join("f"), b"new");
        assert_eq!(fs::read_to_string(&victim).unwrap(), "kept");
    }
}
