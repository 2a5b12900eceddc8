//! Removal of directories: never into a mount, never through a link below the directory, and never a directory of the system.

use std::ffi::{CStr, CString};
use std::fs;
use std::io::ErrorKind;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Component, Path, PathBuf};

use nix::mount::{MntFlags, umount2};
use proto_daemon::mountinfo::{self, Mount};
use proto_daemon::private_files;
use rustix::fs::{
    AtFlags, CWD, Dir, Mode, OFlags, RenameFlags, StatxAttributes, StatxFlags, openat, unlinkat,
};
use rustix::io::Errno;

use crate::error::BootstrapError;
use crate::layout::is_system_dir;

type Result<T> = std::result::Result<T, BootstrapError>;

/// Deeper directories are moved to the top first: each level on the way down holds a descriptor.
const DEPTH_MAX: usize = 100;
/// Most directories that are moved.
const MOVED_MAX: usize = 1_000_000;
const DIRECTORY: OFlags =
    OFlags::RDONLY.union(OFlags::DIRECTORY).union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC);

/// A path with the links of what exists of it followed: mounts are listed by such paths.
///
/// # Errors
/// What exists cannot be resolved, or the rest has `..`.
pub fn resolved(path: &Path) -> Result<PathBuf> {
    let path = std::path::absolute(path).map_err(BootstrapError::file(path))?;
    for above in path.ancestors() {
        let real = match fs::canonicalize(above) {
            Err(error) if error.kind() == ErrorKind::NotFound => continue,
            real => real.map_err(BootstrapError::file(above))?,
        };
        let rest = path.strip_prefix(above).unwrap_or(Path::new(""));
        if rest.components().any(|part| part == Component::ParentDir) {
            return Err(BootstrapError::unusable(&path, "does not exist and has .. in it"));
        }
        return Ok(if rest.as_os_str().is_empty() { real } else { real.join(rest) });
    }
    Err(BootstrapError::unusable(&path, "cannot be resolved"))
}

/// Removes a directory, and where a link leads to one, both. A missing one is fine. What can be removed is, whatever fails.
///
/// # Errors
/// It is a mount point with content or has one below, is a directory of the system, or the file system refuses.
pub fn remove_dir(path: &Path) -> Result<()> {
    remove(path, None).map(drop)
}

/// Removes a directory that is empty, also one of the system; one that is not there, has content or is a mount point is fine.
///
/// # Errors
/// The file system refuses.
pub fn remove_if_empty(path: &Path) -> Result<()> {
    use ErrorKind::{DirectoryNotEmpty, NotADirectory, NotFound, ResourceBusy};
    match fs::remove_dir(path) {
        Err(error)
            if !matches!(
                error.kind(),
                DirectoryNotEmpty | NotADirectory | NotFound | ResourceBusy
            ) =>
        {
            Err(BootstrapError::file(path)(error))
        }
        _ => Ok(()),
    }
}

/// Removes a directory but for the directory `kept` in it, if that has content: its path then.
///
/// # Errors
/// As [`remove_dir`].
pub fn remove_dir_but(path: &Path, kept: &CStr) -> Result<Option<PathBuf>> {
    remove(path, Some(kept))
}

fn remove(path: &Path, kept: Option<&CStr>) -> Result<Option<PathBuf>> {
    let real = match fs::canonicalize(path) {
        Ok(real) => real,
        Err(error) if error.kind() == ErrorKind::NotFound => {
            return remove_link(path).map(|()| None);
        }
        Err(error) => {
            return Err(error)
                .map_err(BootstrapError::system(format!("cannot resolve {}", path.display())));
        }
    };
    let (Some(parent), Some(name)) = (real.parent(), real.file_name()) else {
        let text = "leads to the root directory: nothing was removed there";
        return Err(BootstrapError::unusable(path, text));
    };
    if is_system_dir(&real) {
        let text = format!(
            "leads to {}, a directory of the system: nothing was removed there",
            real.display()
        );
        return Err(BootstrapError::unusable(path, text));
    }
    let name = CString::new(name.as_bytes())
        .map_err(BootstrapError::system("cannot read the name of a directory entry"))?;
    let parent = openat(CWD, parent, DIRECTORY, Mode::empty())
        .map_err(BootstrapError::system(format!("cannot open {}", parent.display())))?;
    let top = match openat(&parent, &name, DIRECTORY, Mode::empty()) {
        Err(Errno::NOENT) => return remove_link(path).map(|()| None),
        opened => {
            opened.map_err(BootstrapError::system(format!("cannot open {}", real.display())))?
        }
    };
    if is_mount_point(&top, &real)? {
        // It is unknown whether this project created the content; an empty directory counts as removed.
        return match entries(&top, &real)?.is_empty() {
            true => Ok(None),
            false => Err(BootstrapError::unusable(
                &real,
                "is a mount point that another program may use: empty it or unmount it",
            )),
        };
    }
    let kept = kept.filter(|name| has_content(&top, name));
    let own = top.try_clone().map_err(BootstrapError::file(&real))?;
    let mut walk = Walk { top: own, moved: 0, kept: kept.map(CStr::to_owned) };
    loop {
        let before = walk.moved;
        walk.empty(top.as_fd(), &real, 0)?;
        if walk.moved == before {
            break;
        }
    }
    if let Some(name) = kept {
        return Ok(Some(real.join(std::ffi::OsStr::from_bytes(name.to_bytes()))));
    }
    remove_empty(parent.as_fd(), &name)
        .map_err(BootstrapError::system(format!("cannot remove {}", real.display())))?;
    remove_link(path).map(|()| None)
}

/// Whether a directory has a directory of this name that is not empty.
fn has_content(dir: impl AsFd, name: &CStr) -> bool {
    let opened = openat(dir, name, DIRECTORY, Mode::empty());
    opened.is_ok_and(|opened| entries(&opened, Path::new("")).is_ok_and(|all| !all.is_empty()))
}

fn remove_link(path: &Path) -> Result<()> {
    match fs::symlink_metadata(path) {
        Ok(found) if found.is_symlink() => fs::remove_file(path)
            .map_err(BootstrapError::system(format!("cannot remove the link {}", path.display()))),
        _ => Ok(()),
    }
}

/// The mounts to undo before a directory without links in its path is removed, last mounted first: all strictly below it, and those that put the
/// directory onto itself, as orchlet does on a host without shared mounts. Another file system at the directory is not ours.
pub fn mounts_to_undo<'a>(mounts: &'a [Mount], dir: &Path) -> Vec<&'a Path> {
    let is_ours = |mount: &&Mount| match mount.point == dir {
        true => is_onto_itself(mounts, mount),
        false => mount.point.starts_with(dir),
    };
    mounts.iter().rev().filter(is_ours).map(|mount| mount.point.as_path()).collect()
}

/// Unmounts what was mounted for pods and by orchlet below a directory, last mounted first.
///
/// # Errors
/// A mount stays; the others are tried all the same.
pub fn undo_mounts(dir: &Path) -> Result<()> {
    let dir = resolved(dir)?;
    let mounts = mountinfo::read()
        .map_err(BootstrapError::system("cannot read the mount table".to_owned()))?;
    let mut outcome = Ok(());
    for point in mounts_to_undo(&mounts, &dir) {
        let flags = MntFlags::MNT_DETACH | MntFlags::UMOUNT_NOFOLLOW;
        let what = format!("unmounting {}", point.display());
        outcome = outcome.and(umount2(point, flags).map_err(BootstrapError::system(what)));
    }
    outcome
}

/// Removes the files of these names from a directory that others use too. Other files and the directory stay.
///
/// # Errors
/// A file stays.
pub fn remove_files(dir: &Path, names: impl IntoIterator<Item = String>) -> Result<()> {
    names.into_iter().try_for_each(|name| {
        let path = dir.join(name);
        private_files::remove_private(&path).map_err(BootstrapError::file(&path))
    })
}

/// Whether a mount shows what was at its point before.
fn is_onto_itself(mounts: &[Mount], mount: &Mount) -> bool {
    let Some(parent) = mounts.iter().find(|other| other.id == mount.parent) else { return false };
    let Ok(inner) = mount.point.strip_prefix(&parent.point) else { return false };
    let before: PathBuf = parent.root.join(inner).components().collect();
    parent.device == mount.device && before == mount.root
}

struct Walk {
    top: OwnedFd,
    /// Names tried for directories that were moved to the top.
    moved: usize,
    /// What stays, in the top.
    kept: Option<CString>,
}

impl Walk {
    /// Removes what is in a directory; the first error is returned after everything else was removed.
    fn empty(&mut self, dir: BorrowedFd<'_>, shown: &Path, depth: usize) -> Result<()> {
        let mut outcome = Ok(());
        for name in entries(dir, shown)? {
            if depth == 0 && self.kept.as_ref() == Some(&name) {
                continue;
            }
            let path = shown.join(std::ffi::OsStr::from_bytes(name.to_bytes()));
            let removed = match unlinkat(dir, &name, AtFlags::empty()) {
                Ok(()) | Err(Errno::NOENT) => Ok(()),
                Err(Errno::ISDIR) => self.remove(dir, &name, &path, depth),
                Err(error) => Err(error)
                    .map_err(BootstrapError::system(format!("cannot remove {}", path.display()))),
            };
            if outcome.is_ok() {
                outcome = removed;
            }
        }
        outcome
    }

    fn remove(
        &mut self,
        parent: BorrowedFd<'_>,
        name: &CStr,
        path: &Path,
        depth: usize,
    ) -> Result<()> {
        let what = || format!("cannot remove {}", path.display());
        let dir = match openat(parent, name, DIRECTORY, Mode::empty()) {
            Err(Errno::NOENT) => return Ok(()),
            opened => opened.map_err(BootstrapError::system(what()))?,
        };
        if is_mount_point(&dir, path)? {
            let text = "is a mount point: its content stays; unmount it";
            return Err(BootstrapError::unusable(path, text));
        }
        if depth >= DEPTH_MAX {
            return self.move_up(parent, name).map_err(BootstrapError::system(what()));
        }
        self.empty(dir.as_fd(), path, depth + 1)?;
        drop(dir);
        remove_empty(parent, name).map_err(BootstrapError::system(what()))
    }

    fn move_up(&mut self, parent: BorrowedFd<'_>, name: &CStr) -> rustix::io::Result<()> {
        loop {
            self.moved += 1;
            let new = format!(".moved.{}", self.moved);
            let flags = RenameFlags::NOREPLACE;
            match rustix::fs::renameat_with(parent, name, &self.top, new.as_str(), flags) {
                Err(Errno::EXIST) if self.moved < MOVED_MAX => {}
                moved => return moved,
            }
        }
    }
}

fn remove_empty(parent: BorrowedFd<'_>, name: &CStr) -> rustix::io::Result<()> {
    match unlinkat(parent, name, AtFlags::REMOVEDIR) {
        Err(Errno::NOENT) => Ok(()),
        removed => removed,
    }
}

fn entries(dir: impl AsFd, shown: &Path) -> Result<Vec<CString>> {
    let what = || format!("reading {}", shown.display());
    let mut names = Vec::new();
    for entry in Dir::read_from(dir).map_err(BootstrapError::system(what()))? {
        let name = entry.map_err(BootstrapError::system(what()))?.file_name().to_owned();
        if name.as_bytes() != b"." && name.as_bytes() != b".." {
            names.push(name);
        }
    }
    Ok(names)
}

fn is_mount_point(dir: impl AsFd, shown: &Path) -> Result<bool> {
    look_for_mount(dir)
        .map_err(BootstrapError::system(format!("cannot read the metadata of {}", shown.display())))
}

fn look_for_mount(dir: impl AsFd) -> rustix::io::Result<bool> {
    let flags = AtFlags::EMPTY_PATH | AtFlags::NO_AUTOMOUNT;
    let known = rustix::fs::statx(&dir, "", flags, StatxFlags::empty())?;
    if known.stx_attributes_mask.contains(StatxAttributes::MOUNT_ROOT) {
        return Ok(known.stx_attributes.contains(StatxAttributes::MOUNT_ROOT));
    }
    // Linux before 5.8 does not say. A bind mount of the same device stays unseen, and reset has looked for those before.
    let above = rustix::fs::statat(&dir, "..", AtFlags::empty())?;
    Ok(rustix::fs::fstat(&dir)?.st_dev != above.st_dev)
}

#[cfg(test)]
mod tests;
