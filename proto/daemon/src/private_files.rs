//! Files and directories that hold secrets: 0600 under 0700 from their creation on, whatever the umask, and written atomically. Wider modes, as older
//! versions left them, are corrected when a file is opened, with a warning.
//!
//! Trusted owners are root and the effective user of the process. A directory or file of another owner is refused: that user could read or replace its
//! content.

use std::{
    ffi::OsString,
    fs::{self, DirBuilder, File, Metadata, OpenOptions, Permissions},
    io::{self, ErrorKind, Write as _},
    os::unix::fs::{
        DirBuilderExt as _, MetadataExt as _, OpenOptionsExt as _, PermissionsExt as _,
    },
    path::{Path, PathBuf},
    time::Duration,
};

use nix::fcntl::OFlag;

/// Mode of a directory with secrets.
pub const DIRECTORY_MODE: u32 = 0o700;
/// Mode of a file with secrets.
pub const FILE_MODE: u32 = 0o600;

/// Permissions of others than the owner.
const OF_OTHERS: u32 = 0o077;
const STICKY: u32 = 0o1000;
const WRITABLE_BY_ALL: u32 = 0o002;

/// Suffix of a file that is being written.
const UNFINISHED: &str = ".new";
/// Age at which an unfinished file is a remainder of a process that ended: no write takes that long.
const LEFT_AFTER: Duration = Duration::from_secs(600);

// === Directories ===

/// Creates a directory for this process alone, and missing parents, with [`DIRECTORY_MODE`]. The mode of an existing one is corrected.
///
/// # Errors
/// Errors of system calls; `PermissionDenied` for a directory, or a link to one, of an untrusted owner; `InvalidInput` for a shared one (with the sticky
/// bit).
pub fn create_private_dir(path: &Path) -> io::Result<()> {
    let directory = create_directory(path)?;
    let metadata = directory.metadata()?;
    if metadata.mode() & STICKY != 0 {
        let text =
            format!("{} is shared by users: expected a directory of its own", path.display());
        return Err(io::Error::new(ErrorKind::InvalidInput, text));
    }
    close_to_others(&directory, path, &metadata, DIRECTORY_MODE)
}

/// Creates a parent of private directories, and its missing parents, with [`DIRECTORY_MODE`]. An existing one keeps its mode: it may serve other
/// programs too.
///
/// # Errors
/// Errors of system calls; `PermissionDenied` for a directory, or a link to one, of an untrusted owner, and for one in which all users may replace each
/// other's files.
pub fn create_trusted_dir(path: &Path) -> io::Result<()> {
    let metadata = create_directory(path)?.metadata()?;
    if metadata.mode() & WRITABLE_BY_ALL != 0 && metadata.mode() & STICKY == 0 {
        let text = format!(
            "{} has mode {:04o}: expected one that other users cannot write to",
            path.display(),
            metadata.mode() & 0o7777
        );
        return Err(io::Error::new(ErrorKind::PermissionDenied, text));
    }
    Ok(())
}

/// Creates a directory that other programs write to, and missing parents, with [`DIRECTORY_MODE`]. An existing one is neither changed nor checked: it
/// may have another owner by now.
///
/// # Errors
/// Errors of system calls.
pub fn create_missing_dir(path: &Path) -> io::Result<()> {
    DirBuilder::new().recursive(true).mode(DIRECTORY_MODE).create(path)
}

/// Creates the directory if it is missing, and opens it if its owner is trusted.
fn create_directory(path: &Path) -> io::Result<File> {
    match create_missing_dir(path) {
        // Exists, as a link or a directory; anything else is refused below.
        Err(error) if error.kind() == ErrorKind::AlreadyExists => {}
        made => made?,
    }
    // An untrusted owner of a link can change where it leads.
    check_owner(path, &fs::symlink_metadata(path)?)?;
    let flags = OFlag::O_DIRECTORY.bits();
    let directory = OpenOptions::new().read(true).custom_flags(flags).open(path)?;
    check_owner(path, &directory.metadata()?)?;
    Ok(directory)
}

// === Files ===

/// Creates a file with [`FILE_MODE`], open for reading and writing.
///
/// # Errors
/// Errors of system calls; `AlreadyExists` if the name exists, also as a link.
pub fn create_private(path: &Path) -> io::Result<File> {
    OpenOptions::new().read(true).write(true).create_new(true).mode(FILE_MODE).open(path)
}

/// Opens a file for reading and writing that others may access according to `mode`, whatever the umask. A missing one is created empty.
///
/// # Errors
/// Errors of system calls; `InvalidInput` for anything but a regular file. Links are not followed.
pub fn open_shared(path: &Path, mode: u32) -> io::Result<File> {
    let flags = (OFlag::O_NOFOLLOW | OFlag::O_NONBLOCK).bits();
    let file = match create_private(path) {
        Err(error) if error.kind() == ErrorKind::AlreadyExists => {
            OpenOptions::new().read(true).write(true).custom_flags(flags).open(path)?
        }
        made => made?,
    };
    check_regular(path, &file.metadata()?)?;
    file.set_permissions(Permissions::from_mode(mode))?;
    Ok(file)
}

/// Opens a file of the user's own tree for writing, and empties it. A missing one is created with `mode` less the umask; an existing one keeps its mode.
///
/// # Errors
/// Errors of system calls; `InvalidInput` for anything but a regular file. Links are not followed.
pub fn create_or_empty(path: &Path, mode: u32) -> io::Result<File> {
    let flags = (OFlag::O_NOFOLLOW | OFlag::O_NONBLOCK).bits();
    let mut options = OpenOptions::new();
    let file = options
        .write(true)
        .create(true)
        .truncate(false)
        .mode(mode)
        .custom_flags(flags)
        .open(path)?;
    check_regular(path, &file.metadata()?)?;
    file.set_len(0)?;
    Ok(file)
}

/// Opens a file for reading, and for writing if `options` include it, and corrects its mode.
///
/// # Errors
/// Errors of system calls; `PermissionDenied` for an untrusted owner; `InvalidInput` for anything but a regular file.
pub fn open_private(path: &Path, options: &mut OpenOptions) -> io::Result<File> {
    // Opening a FIFO would block.
    let file = options.read(true).custom_flags(OFlag::O_NONBLOCK.bits()).open(path)?;
    let metadata = file.metadata()?;
    check_regular(path, &metadata)?;
    check_owner(path, &metadata)?;
    close_to_others(&file, path, &metadata, FILE_MODE)?;
    Ok(file)
}

/// Corrects the mode of a file if it exists.
///
/// # Errors
/// As [`open_private`].
pub fn make_private(path: &Path) -> io::Result<()> {
    match open_private(path, &mut OpenOptions::new()) {
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(()),
        opened => opened.map(drop),
    }
}

/// Replaces a file atomically and durably, with [`FILE_MODE`]. Its directory has to exist.
///
/// # Errors
/// Errors of system calls. The file then has its old content, or the new one that may not be durable yet.
pub fn write_private_atomically(path: &Path, content: &[u8]) -> io::Result<()> {
    write_atomically(path, content, FILE_MODE)
}

/// As [`write_private_atomically`], for a file that others may read: it has `mode` before it gets its name.
///
/// # Errors
/// As [`write_private_atomically`].
pub fn write_atomically(path: &Path, content: &[u8], mode: u32) -> io::Result<()> {
    let name = path.file_name().ok_or_else(|| {
        io::Error::new(ErrorKind::InvalidInput, format!("{} names no file", path.display()))
    })?;
    let directory = match path.parent() {
        Some(directory) if !directory.as_os_str().is_empty() => directory,
        _ => Path::new("."),
    };
    remove_unfinished(directory, name, LEFT_AFTER);
    let unfinished = directory.join(unfinished_name(name));
    let mut file = create_private(&unfinished)?;
    let written = file
        .write_all(content)
        .and_then(|()| match mode {
            FILE_MODE => Ok(()),
            mode => file.set_permissions(Permissions::from_mode(mode)),
        })
        .and_then(|()| file.sync_all())
        .and_then(|()| fs::rename(&unfinished, path));
    if written.is_err() {
        let _ = fs::remove_file(&unfinished);
        return written;
    }
    File::open(directory)?.sync_all()
}

/// `.<name>.<16 random digits>.new`
fn unfinished_name(name: &std::ffi::OsStr) -> OsString {
    let mut unfinished = unfinished_prefix(name);
    unfinished.push(format!("{:016x}{UNFINISHED}", rand::random::<u64>()));
    unfinished
}

fn unfinished_prefix(name: &std::ffi::OsStr) -> OsString {
    let mut prefix = OsString::from(".");
    prefix.push(name);
    prefix.push(".");
    prefix
}

/// Removes remainders of interrupted writes of the file, of at least that age. Best effort.
fn remove_unfinished(directory: &Path, name: &std::ffi::OsStr, age_min: Duration) {
    let prefix = unfinished_prefix(name);
    let is_one = |found: &[u8]| {
        let middle = found
            .strip_prefix(prefix.as_encoded_bytes())
            .and_then(|rest| rest.strip_suffix(UNFINISHED.as_bytes()));
        middle.is_some_and(|digits| digits.len() == 16 && digits.iter().all(u8::is_ascii_hexdigit))
    };
    for entry in fs::read_dir(directory).into_iter().flatten().flatten() {
        if !is_one(entry.file_name().as_encoded_bytes()) {
            continue;
        }
        let written = entry.metadata().and_then(|metadata| metadata.modified());
        let age = written.ok().and_then(|written| written.elapsed().ok());
        if age_min.is_zero() || age.is_some_and(|age| age > age_min) {
            let _ = fs::remove_file(entry.path());
        }
    }
}

/// Removes a file, if it exists, and remainders of interrupted writes. The caller ensures that no write is in progress.
///
/// # Errors
/// Errors of system calls.
pub fn remove_private(path: &Path) -> io::Result<()> {
    if let (Some(name), Some(directory)) = (path.file_name(), path.parent()) {
        remove_unfinished(directory, name, Duration::ZERO);
    }
    match fs::remove_file(path) {
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(()),
        removed => removed,
    }
}

/// A path in the directory of `path` for a file that is renamed to `path` later.
#[must_use]
pub fn unfinished_path(path: &Path) -> PathBuf {
    match path.file_name() {
        Some(name) => path.with_file_name(unfinished_name(name)),
        None => path.to_owned(),
    }
}

// === Owners and modes ===

fn check_regular(path: &Path, metadata: &Metadata) -> io::Result<()> {
    if metadata.is_file() {
        return Ok(());
    }
    let text = format!("{} is not a regular file", path.display());
    Err(io::Error::new(ErrorKind::InvalidInput, text))
}

fn check_owner(path: &Path, metadata: &Metadata) -> io::Result<()> {
    let us = nix::unistd::geteuid().as_raw();
    let owner = metadata.uid();
    if owner == us || owner == 0 {
        return Ok(());
    }
    let text = format!("{} belongs to user {owner}: expected user {us} or root", path.display());
    Err(io::Error::new(ErrorKind::PermissionDenied, text))
}

/// Removes the permissions of others.
fn close_to_others(file: &File, path: &Path, metadata: &Metadata, mode: u32) -> io::Result<()> {
    let found = metadata.mode() & 0o7777;
    if found & OF_OTHERS == 0 {
        return Ok(());
    }
    file.set_permissions(Permissions::from_mode(mode))?;
    tracing::warn!(
        path = %path.display(),
        found = %format_args!("{found:04o}"),
        now = %format_args!("{mode:04o}"),
        "a file with secrets was accessible to other users; its mode is restricted"
    );
    Ok(())
}

#[cfg(test)]
mod tests;
