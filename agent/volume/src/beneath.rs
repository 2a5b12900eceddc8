//! Opening and removing things below a directory that we hold, without ever following a link or leaving it.

use std::ffi::{CStr, CString};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::fs::{
    AtFlags, CWD, Dir, FileType, Mode, OFlags, RenameFlags, ResolveFlags, StatxAttributes,
    StatxFlags,
};
use rustix::io::{Errno, Result};

/// Levels of a tree that are removed with a descriptor open for each; what lies deeper is moved up first.
const DEPTH_MAX: usize = 100;
/// Readings of a directory that somebody goes on writing to.
const PASSES_MAX: usize = 1000;
/// Most names that are tried for what is moved up in one pass.
const MOVED_MAX: usize = 10_000_000;

const DIRECTORY: OFlags =
    OFlags::RDONLY.union(OFlags::DIRECTORY).union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC);

/// Opens the directory `path` from the root of the file system, links allowed: a path of the node's own configuration.
pub(crate) fn open_directory(path: &std::path::Path) -> Result<OwnedFd> {
    rustix::fs::openat(
        CWD,
        path,
        OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC,
        Mode::empty(),
    )
}

/// Opens `path` below `directory`; no link in it is followed and nothing above is reached.
pub(crate) fn open(directory: impl AsFd, path: &str, flags: OFlags, mode: Mode) -> Result<OwnedFd> {
    let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS;
    match resolved(directory.as_fd(), path, flags, mode, resolve) {
        // before Linux 5.6; only plain names come here then, and O_NOFOLLOW covers those
        Err(Errno::NOSYS) if !path.contains('/') => {
            let flags = flags | OFlags::CLOEXEC | OFlags::NOFOLLOW;
            rustix::fs::openat(directory, path, flags, mode)
        }
        result => result,
    }
}

/// Opens `path` below `directory` as a container would find it there: links are followed as long as they stay inside. A link that
/// leads out, also for a moment and back, is `EXDEV`; links of the kernel's own (`/proc/self/fd`) are `ELOOP`.
///
/// Before Linux 5.6 (`ENOSYS`) no link is followed: nothing else can be promised there.
pub(crate) fn open_inside(directory: impl AsFd, path: &str, flags: OFlags) -> Result<OwnedFd> {
    let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_MAGICLINKS;
    match resolved(directory.as_fd(), path, flags, Mode::empty(), resolve) {
        Err(Errno::NOSYS) => step_by_step(directory.as_fd(), path, flags),
        result => result,
    }
}

/// Calls in vain before the kernel is believed that it cannot prove where a path leads. Renames elsewhere in the file system
/// make it ask to be called again, and whoever owns the volume can make many.
const AGAIN_MAX: usize = 1000;

fn resolved(
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

/// Opens `name` of `directory` whatever it is, itself and not what it leads to, for nothing but looking and mounting.
pub(crate) fn handle(directory: impl AsFd, name: &str) -> Result<Option<OwnedFd>> {
    match open(directory, name, OFlags::PATH | OFlags::NOFOLLOW, Mode::empty()) {
        Ok(fd) => Ok(Some(fd)),
        Err(Errno::NOENT) => Ok(None),
        Err(error) => Err(error),
    }
}

/// Removes the directory `path` below `directory` if it is empty. Nothing there is fine.
///
/// # Errors
/// `ENOTEMPTY` when something is in it, `EBUSY` when something is mounted on it.
pub(crate) fn remove_empty(directory: impl AsFd, name: &str) -> Result<()> {
    match rustix::fs::unlinkat(directory, name, AtFlags::REMOVEDIR) {
        Err(Errno::NOENT) => Ok(()),
        result => result,
    }
}

/// Opens the directory `name` of `directory`, made with `mode` if it is not there.
pub(crate) fn make_directory(directory: impl AsFd, name: &str, mode: u32) -> Result<OwnedFd> {
    match rustix::fs::mkdirat(directory.as_fd(), name, Mode::from_raw_mode(mode)) {
        Ok(()) | Err(Errno::EXIST) => {}
        Err(error) => return Err(error),
    }
    open(directory, name, DIRECTORY, Mode::empty())
}

/// Opens the directory `path` below `directory`; `None` if it is not there.
pub(crate) fn directory(directory: impl AsFd, path: &str) -> Result<Option<OwnedFd>> {
    match open(directory, path, DIRECTORY, Mode::empty()) {
        Ok(fd) => Ok(Some(fd)),
        Err(Errno::NOENT) => Ok(None),
        Err(error) => Err(error),
    }
}

/// Names in a directory with their types, in no order.
pub(crate) fn entries(directory: impl AsFd) -> Result<Vec<(String, FileType)>> {
    let mut found = Vec::new();
    for entry in Dir::read_from(directory.as_fd())? {
        let entry = entry?;
        // A name that is not UTF-8 is none that we made.
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

/// Whether a directory is where something is mounted.
pub(crate) fn is_mount_point(directory: impl AsFd) -> Result<bool> {
    let flags = AtFlags::EMPTY_PATH | AtFlags::NO_AUTOMOUNT;
    let stat = rustix::fs::statx(directory.as_fd(), "", flags, StatxFlags::empty())?;
    if stat.stx_attributes_mask.contains(StatxAttributes::MOUNT_ROOT) {
        return Ok(stat.stx_attributes.contains(StatxAttributes::MOUNT_ROOT));
    }
    // before Linux 5.8: another device than the directory above; a bind mount of the same device goes unseen, and the kernel
    // then refuses to remove it
    let above = rustix::fs::statat(directory.as_fd(), "..", AtFlags::empty())?;
    Ok(rustix::fs::fstat(directory)?.st_dev != above.st_dev)
}

/// Removes `name` of `directory`, with what is below it, staying on the mount: whatever the names are, and however deep it is. Nothing
/// there is fine.
///
/// # Errors
/// `EBUSY` when something is mounted below, having removed what lies beside it.
pub(crate) fn remove(directory: impl AsFd, name: &str) -> Result<()> {
    match rustix::fs::unlinkat(directory.as_fd(), name, AtFlags::empty()) {
        Ok(()) | Err(Errno::NOENT) => return Ok(()),
        Err(Errno::ISDIR | Errno::PERM) => {}
        Err(error) => return Err(error),
    }
    let directory = directory.as_fd();
    let name = CString::new(name).map_err(|_| Errno::INVAL)?;
    let Some(top) = unmounted(directory, &name)? else { return Ok(()) };
    remove_below(top.as_fd(), &mut Deep { top: top.as_fd(), moved: 0 }, 0)?;
    drop(top);
    match rustix::fs::unlinkat(directory, &name, AtFlags::REMOVEDIR) {
        Err(Errno::NOENT) => Ok(()),
        removed => removed,
    }
}

/// Where directories go that lie too deep to be reached with few descriptors.
struct Deep<'a> {
    top: BorrowedFd<'a>,
    /// Names that were tried.
    moved: usize,
}

impl Deep<'_> {
    /// Moves a directory right below the top, where it is found when that is read again.
    fn take(&mut self, parent: BorrowedFd<'_>, name: &CStr) -> Result<()> {
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

/// Opens a directory that nothing is mounted on; `None` if it is not there.
fn unmounted(parent: BorrowedFd<'_>, name: &CStr) -> Result<Option<OwnedFd>> {
    // A name has no slash: there is nothing on the way that could be a link.
    let inner = match rustix::fs::openat(parent, name, DIRECTORY, Mode::empty()) {
        Err(Errno::NOENT) => return Ok(None),
        opened => opened?,
    };
    if is_mount_point(&inner)? { Err(Errno::BUSY) } else { Ok(Some(inner)) }
}

/// Names are read while others are removed, so that a directory of millions takes no memory; what that skips is found when it is read
/// again.
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

/// Whether it was there.
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
    let Some(inner) = unmounted(directory, name)? else { return Ok(false) };
    if depth >= DEPTH_MAX {
        drop(inner);
        return was_there(deep.take(directory, name));
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

    /// As deep as no path can name it.
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
    fn whatever_a_pod_leaves_is_removed() {
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
