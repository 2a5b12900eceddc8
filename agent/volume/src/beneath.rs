//! Opens and removes files below an open directory, without following symbolic links and without leaving the directory.

use std::ffi::{CStr, CString};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::fs::{
    AtFlags, CWD, Dir, FileType, Mode, OFlags, RenameFlags, ResolveFlags, StatxAttributes,
    StatxFlags,
};
use rustix::io::{Errno, Result};

/// Directory levels that are removed with one open descriptor each; deeper directories are moved up first.
const DEPTH_MAX: usize = 100;
/// Most passes over a directory that another process keeps writing to.
const PASSES_MAX: usize = 1000;
/// Most names tried for moved directories in one pass.
const MOVED_MAX: usize = 10_000_000;

const DIRECTORY: OFlags =
    OFlags::RDONLY.union(OFlags::DIRECTORY).union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC);

/// Opens an absolute directory path and follows links; for paths of the node's configuration only.
pub(crate) fn open_directory(path: &std::path::Path) -> Result<OwnedFd> {
    rustix::fs::openat(
        CWD,
        path,
        OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC,
        Mode::empty(),
    )
}

/// Opens `path` below `directory`; follows no link and reaches nothing outside.
pub(crate) fn open(directory: impl AsFd, path: &str, flags: OFlags, mode: Mode) -> Result<OwnedFd> {
    let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS;
    match open_resolved(directory.as_fd(), path, flags, mode, resolve) {
        // Before Linux 5.6; callers then pass plain names only, for which O_NOFOLLOW is sufficient.
        Err(Errno::NOSYS) if !path.contains('/') => {
            let flags = flags | OFlags::CLOEXEC | OFlags::NOFOLLOW;
            rustix::fs::openat(directory, path, flags, mode)
        }
        result => result,
    }
}

/// Opens `path` below `directory` as a container would resolve it: links are followed while they stay inside. A link that leads
/// out, even temporarily, gives `EXDEV`; magic links (`/proc/self/fd`) give `ELOOP`.
///
/// Before Linux 5.6 (`ENOSYS`) no link is followed, because containment cannot be guaranteed.
pub(crate) fn open_inside(directory: impl AsFd, path: &str, flags: OFlags) -> Result<OwnedFd> {
    let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_MAGICLINKS;
    match open_resolved(directory.as_fd(), path, flags, Mode::empty(), resolve) {
        Err(Errno::NOSYS) => step_by_step(directory.as_fd(), path, flags),
        result => result,
    }
}

/// Attempts before an `EAGAIN` of the kernel counts as failure. Renames anywhere in the file system cause it, and the owner of
/// the volume can make many.
const AGAIN_MAX: usize = 1000;

fn open_resolved(
    directory: BorrowedFd<'_>,
    path: &str,
    flags: OFlags,
    mode: Mode,
    resolve: ResolveFlags,
) -> Result<OwnedFd> {
    let mut result = Err(Errno::AGAIN);
    for _ in 0..AGAIN_MAX {
        result = rustix::fs::openat2(directory, path, flags | OFlags::CLOEXEC, mode, resolve);
        if result.as_ref().err() != Some(&Errno::AGAIN) {
            break;
        }
    }
    result
}

fn step_by_step(directory: BorrowedFd<'_>, path: &str, flags: OFlags) -> Result<OwnedFd> {
    let mut names = path.split('/').filter(|name| !name.is_empty() && *name != ".").peekable();
    let through = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let mut inner = rustix::fs::openat(directory, ".", through, Mode::empty())?;
    while let Some(name) = names.next() {
        if name == ".." {
            return Err(Errno::XDEV);
        }
        if names.peek().is_none() {
            let flags = flags | OFlags::NOFOLLOW | OFlags::CLOEXEC;
            let last = rustix::fs::openat(&inner, name, flags, Mode::empty())?;
            let kind = FileType::from_raw_mode(rustix::fs::fstat(&last)?.st_mode);
            return if kind == FileType::Symlink { Err(Errno::LOOP) } else { Ok(last) };
        }
        inner = rustix::fs::openat(&inner, name, through, Mode::empty())?;
    }
    Ok(inner)
}

/// Opens `name` in `directory` with `O_PATH`, whatever its type and without following a link; `None` if it does not exist.
pub(crate) fn open_handle(directory: impl AsFd, name: &str) -> Result<Option<OwnedFd>> {
    match open(directory, name, OFlags::PATH | OFlags::NOFOLLOW, Mode::empty()) {
        Ok(fd) => Ok(Some(fd)),
        Err(Errno::NOENT) => Ok(None),
        Err(error) => Err(error),
    }
}

/// Removes the directory `path` below `directory` if it is empty. A missing directory is not an error.
///
/// # Errors
/// `ENOTEMPTY` if it is not empty, `EBUSY` if it is a mount point.
pub(crate) fn remove_empty(directory: impl AsFd, name: &str) -> Result<()> {
    match rustix::fs::unlinkat(directory, name, AtFlags::REMOVEDIR) {
        Err(Errno::NOENT) => Ok(()),
        result => result,
    }
}

/// Opens the directory `name` in `directory`; creates it with `mode` if it does not exist.
pub(crate) fn make_directory(directory: impl AsFd, name: &str, mode: u32) -> Result<OwnedFd> {
    match rustix::fs::mkdirat(directory.as_fd(), name, Mode::from_raw_mode(mode)) {
        Ok(()) | Err(Errno::EXIST) => {}
        Err(error) => return Err(error),
    }
    open(directory, name, DIRECTORY, Mode::empty())
}

/// Opens the directory `path` below `directory`; `None` if it does not exist.
pub(crate) fn open_existing(directory: impl AsFd, path: &str) -> Result<Option<OwnedFd>> {
    match open(directory, path, DIRECTORY, Mode::empty()) {
        Ok(fd) => Ok(Some(fd)),
        Err(Errno::NOENT) => Ok(None),
        Err(error) => Err(error),
    }
}

/// Names and types of the entries of a directory, unordered.
pub(crate) fn list_entries(directory: impl AsFd) -> Result<Vec<(String, FileType)>> {
    let mut found = Vec::new();
    for entry in Dir::read_from(directory.as_fd())? {
        let entry = entry?;
        // The agent creates UTF-8 names only.
        let Ok(name) = entry.file_name().to_str() else { continue };
        if name == "." || name == ".." {
            continue;
        }
        let kind = match entry.file_type() {
            FileType::Unknown => {
                let stat = rustix::fs::statat(directory.as_fd(), name, AtFlags::SYMLINK_NOFOLLOW)?;
                FileType::from_raw_mode(stat.st_mode)
            }
            kind => kind,
        };
        found.push((name.to_owned(), kind));
    }
    Ok(found)
}

/// Whether a directory is a mount point.
pub(crate) fn is_mount_point(directory: impl AsFd) -> Result<bool> {
    let flags = AtFlags::EMPTY_PATH | AtFlags::NO_AUTOMOUNT;
    let stat = rustix::fs::statx(directory.as_fd(), "", flags, StatxFlags::empty())?;
    if stat.stx_attributes_mask.contains(StatxAttributes::MOUNT_ROOT) {
        return Ok(stat.stx_attributes.contains(StatxAttributes::MOUNT_ROOT));
    }
    // Before Linux 5.8: compares the device with that of the parent directory. This misses bind mounts of the same device, which
    // the kernel then refuses to remove.
    let above = rustix::fs::statat(directory.as_fd(), "..", AtFlags::empty())?;
    Ok(rustix::fs::fstat(directory)?.st_dev != above.st_dev)
}

/// Removes `name` in `directory` with everything below it on the same mount, whatever the names and the depth. A missing entry is
/// not an error.
///
/// # Errors
/// `EBUSY` if there is a mount below; everything else has been removed then.
pub(crate) fn remove(directory: impl AsFd, name: &str) -> Result<()> {
    match rustix::fs::unlinkat(directory.as_fd(), name, AtFlags::empty()) {
        Ok(()) | Err(Errno::NOENT) => return Ok(()),
        Err(Errno::ISDIR | Errno::PERM) => {}
        Err(error) => return Err(error),
    }
    let directory = directory.as_fd();
    let name = CString::new(name).map_err(|_| Errno::INVAL)?;
    let Some(top) = open_unmounted(directory, &name)? else { return Ok(()) };
    remove_below(top.as_fd(), &mut Deep { top: top.as_fd(), moved: 0 }, 0)?;
    drop(top);
    match rustix::fs::unlinkat(directory, &name, AtFlags::REMOVEDIR) {
        Err(Errno::NOENT) => Ok(()),
        removed => removed,
    }
}

/// Removes the directory `name` in `directory` with its content, unless it is a mount point. Where the kernel does not say
/// (before Linux 5.8), only an empty directory is removed.
///
/// # Errors
/// `EBUSY` if it is a mount point or there is one below; `ENOTEMPTY` if it is not known whether it is one.
pub(crate) fn remove_unmounted(directory: impl AsFd, name: &str) -> Result<()> {
    match remove_empty(directory.as_fd(), name) {
        Err(Errno::NOTEMPTY) => {}
        removed => return removed,
    }
    let Some(there) = open_existing(directory.as_fd(), name)? else { return Ok(()) };
    let flags = AtFlags::EMPTY_PATH | AtFlags::NO_AUTOMOUNT;
    let known = rustix::fs::statx(&there, "", flags, StatxFlags::empty())?.stx_attributes_mask;
    drop(there);
    if known.contains(StatxAttributes::MOUNT_ROOT) {
        remove(directory, name)
    } else {
        Err(Errno::NOTEMPTY)
    }
}

/// Collects directories that are too deep for the number of open descriptors.
struct Deep<'a> {
    top: BorrowedFd<'a>,
    /// Number of names tried.
    moved: usize,
}

impl Deep<'_> {
    /// Moves a directory to the top, where a later pass finds it.
    fn move_up(&mut self, parent: BorrowedFd<'_>, name: &CStr) -> Result<()> {
        loop {
            let new = format!(".deep.{}", self.moved);
            self.moved = self.moved.saturating_add(1);
            let flags = RenameFlags::NOREPLACE;
            match rustix::fs::renameat_with(parent, name, self.top, new.as_str(), flags) {
                Err(Errno::EXIST) if self.moved < MOVED_MAX => {}
                moved => return moved,
            }
        }
    }
}

/// Opens a directory that is not a mount point; `None` if it does not exist.
fn open_unmounted(parent: BorrowedFd<'_>, name: &CStr) -> Result<Option<OwnedFd>> {
    // A name has no slash, so no link can be on the way.
    let inner = match rustix::fs::openat(parent, name, DIRECTORY, Mode::empty()) {
        Err(Errno::NOENT) => return Ok(None),
        opened => opened?,
    };
    if is_mount_point(&inner)? { Err(Errno::BUSY) } else { Ok(Some(inner)) }
}

/// Reads names while removing entries, so that a directory with millions of entries takes no memory. Entries skipped by that are
/// found in the next pass.
fn remove_below(directory: BorrowedFd<'_>, deep: &mut Deep<'_>, depth: usize) -> Result<()> {
    for _ in 0..PASSES_MAX {
        let (mut removed, mut outcome) = (false, Ok(()));
        for entry in Dir::read_from(directory)? {
            let entry = entry?;
            let name = entry.file_name();
            if name == c"." || name == c".." {
                continue;
            }
            match remove_entry(directory, name, entry.file_type(), deep, depth) {
                Ok(was_there) => removed |= was_there,
                Err(error) => outcome = Err(error), // the rest is removed all the same
            }
        }
        if !removed {
            return outcome;
        }
    }
    Err(Errno::NOTEMPTY)
}

/// Returns whether the entry existed.
fn remove_entry(
    directory: BorrowedFd<'_>,
    name: &CStr,
    kind: FileType,
    deep: &mut Deep<'_>,
    depth: usize,
) -> Result<bool> {
    let was_there = |removed| match removed {
        Err(Errno::NOENT) => Ok(false),
        removed => removed.map(|()| true),
    };
    let kind = match kind {
        FileType::Unknown => match rustix::fs::statat(directory, name, AtFlags::SYMLINK_NOFOLLOW) {
            Err(Errno::NOENT) => return Ok(false),
            stat => FileType::from_raw_mode(stat?.st_mode),
        },
        kind => kind,
    };
    if kind != FileType::Directory {
        return was_there(rustix::fs::unlinkat(directory, name, AtFlags::empty()));
    }
    let Some(inner) = open_unmounted(directory, name)? else { return Ok(false) };
    if depth >= DEPTH_MAX {
        drop(inner);
        return was_there(deep.move_up(directory, name));
    }
    remove_below(inner.as_fd(), deep, depth + 1)?;
    drop(inner);
    was_there(rustix::fs::unlinkat(directory, name, AtFlags::REMOVEDIR))
}

#[cfg(test)]
mod tests {
    use std::ffi::OsStr;
    use std::os::unix::ffi::OsStrExt as _;

    use super::*;

    /// Deeper than any path can name.
    fn make_deep(top: &std::path::Path, levels: usize) {
        let mut directory = open_directory(top).unwrap();
        for level in 0..levels {
            directory = make_directory(&directory, "d", 0o700).unwrap();
            if level % 50 == 0 {
                let flags = OFlags::WRONLY | OFlags::CREATE;
                open(&directory, "f", flags, Mode::from_raw_mode(0o600)).unwrap();
            }
        }
    }

    #[test]
    fn deep_directories_and_non_utf8_names_are_removed() {
        let root = tempfile::tempdir().unwrap();
        let top = root.path().join("volume");
        std::fs::create_dir(&top).unwrap();
        make_deep(&top, 5_000);
        for name in [&b"not\xfftext"[..], b".deep.0", b".deep.2", b"new\nline"] {
            let at = top.join(OsStr::from_bytes(name));
            std::fs::create_dir(&at).unwrap();
            std::fs::write(at.join(OsStr::from_bytes(b"\xff\xfe")), "").unwrap();
        }
        std::fs::write(top.join(OsStr::from_bytes(b"\xff")), "").unwrap();
        for number in 0..3_000 {
            std::fs::write(top.join(format!("f{number}")), "").unwrap();
        }
        std::os::unix::fs::symlink("/", top.join("link")).unwrap();
        let open_before = std::fs::read_dir("/proc/self/fd").unwrap().count();
        remove(open_directory(root.path()).unwrap(), "volume").unwrap();
        assert!(!top.exists());
        let open_after = std::fs::read_dir("/proc/self/fd").unwrap().count();
        assert!(open_after < open_before + 20, "{open_before} descriptors, then {open_after}");
        remove(open_directory(root.path()).unwrap(), "volume").unwrap();
    }
}
