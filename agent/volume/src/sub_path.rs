//! `subPath` mounts: part of a volume is found or created below the volume's root and bind-mounted, by descriptor, to a place
//! that only the agent can write to.
//!
//! ```text
//! volume root ──openat2(beneath)──► the part ──open_tree──► a mount of exactly that ──move_mount──► target
//! <root>/pods/<uid>/volume-subpaths/<volume>/<container>/<index of the mount>       the target
//! ```
//!
//! A container that can write to the volume can replace any name in it at any time. Therefore every step uses an open descriptor, and the
//! kernel rejects paths that lead out.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};

use agent_pod::volume_mounts::AllReadOnly;
use rustix::fs::{AtFlags, FileType, Mode, OFlags, Stat};
use rustix::io::Errno;

use crate::host_path::HostPathError;
use crate::mount::subpath_refresh::RefreshMethod;
use crate::mount::{self, BindScope};
use crate::private_dirs::MODE as PRIVATE;
use crate::sources::HostPathKind;
use crate::{beneath, tree};

/// Directory of a pod's bind mounts of parts.
pub(crate) const DIRECTORY: &str = "volume-subpaths";

/// Part of a volume for a container.
#[derive(Clone, Copy, Debug)]
pub struct SubPath<'a> {
    /// Name of the volume.
    pub volume: &'a str,
    /// Path of the volume on the host.
    pub root: &'a Path,
    /// Name of the container.
    pub container: &'a str,
    /// Index of the mount in the container.
    pub index: usize,
    /// Path below the volume's root; empty for the whole volume.
    pub path: &'a str,
    /// Required type of the root if it is a `hostPath`; with an empty `path` mounts below it are included.
    pub on_node: Option<HostPathKind>,
    /// Whether it is read-only including all mounts below it.
    pub all_read_only: Option<AllReadOnly>,
    /// Whether it is refreshed by [`crate::VolumesOnDisk::refresh_part`].
    pub follows: bool,
}

/// Why a part of a volume cannot be provided.
#[derive(Debug, thiserror::Error)]
#[error("failed to prepare subPath {path:?} of volume {volume:?}: {what}")]
pub struct SubPathError {
    /// The path below the volume's root.
    pub path: String,
    /// Name of the volume.
    pub volume: String,
    /// The step that failed.
    pub what: &'static str,
    /// Cause; `EXDEV` and `ELOOP` for a path that leads out of the volume.
    #[source]
    pub source: SubPathFailure,
}

/// Cause of a [`SubPathError`].
#[derive(Debug, thiserror::Error)]
pub enum SubPathFailure {
    /// An error of the kernel.
    #[error(transparent)]
    Kernel(#[from] Errno),
    /// The `hostPath` does not match its type.
    #[error(transparent)]
    HostPath(#[from] HostPathError),
    /// A recursive copy of the mounts would contain every earlier copy.
    #[error("recursive read-only is not possible for a path that contains the agent's directory")]
    HoldsAgent,
}

/// Opens the part below `root`; missing directories are created with the root's mode.
pub(crate) fn open(root: impl AsFd, path: &str) -> rustix::io::Result<OwnedFd> {
    if path.starts_with('/') || path.split('/').any(|name| name == "..") {
        return Err(Errno::INVAL);
    }
    let root = root.as_fd();
    match beneath::open_inside(root, if path.is_empty() { "." } else { path }, OFlags::PATH) {
        Err(Errno::NOENT) => make_missing(root, path),
        opened => opened,
    }
}

/// Walks along `path` and creates what is missing. A name created concurrently is used if it stays inside.
fn make_missing(root: BorrowedFd<'_>, path: &str) -> rustix::io::Result<OwnedFd> {
    let mode = Mode::from_raw_mode(rustix::fs::fstat(root)?.st_mode & 0o7777);
    let mut so_far = String::new();
    let mut inner = beneath::open_inside(root, ".", OFlags::PATH)?;
    for name in path.split('/').filter(|name| !name.is_empty() && *name != ".") {
        so_far.push_str(name);
        inner = match beneath::open_inside(root, &so_far, OFlags::PATH) {
            Err(Errno::NOENT) => {
                make_one(&inner, name, mode)?;
                beneath::open_inside(root, &so_far, OFlags::PATH)?
            }
            opened => opened?,
        };
        so_far.push('/');
    }
    Ok(inner)
}

fn make_one(parent: &OwnedFd, name: &str, mode: Mode) -> rustix::io::Result<()> {
    match rustix::fs::mkdirat(parent, name, mode) {
        // Overrides the umask.
        Ok(()) => {
            let made = beneath::open(
                parent,
                name,
                OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW,
                Mode::empty(),
            );
            made.and_then(|made| rustix::fs::fchmod(made, mode))
        }
        Err(Errno::EXIST) => Ok(()),
        Err(error) => Err(error),
    }
}

/// Bind-mounts `part` to the mount point `index` in `parent`, unless exactly that is mounted. Another mount, used by an earlier
/// instance of the container, is unmounted first.
pub(crate) fn bind(
    part: &OwnedFd,
    parent: &OwnedFd,
    index: &str,
    extent: BindScope,
    follows: bool,
) -> rustix::io::Result<()> {
    let wanted = rustix::fs::fstat(part)?;
    if let Some(there) = beneath::open_handle(parent, index)? {
        // A refreshed part is mounted again for each instance, because an instance uses the lowest of several mounts.
        if !follows
            && beneath::is_mount_point(&there)?
            && is_same(&rustix::fs::fstat(&there)?, &wanted)
        {
            return Ok(());
        }
        drop(there);
        mount::detach(parent, index)?;
    }
    let is_directory = FileType::from_raw_mode(wanted.st_mode) == FileType::Directory;
    make_target(parent, index, is_directory)?;
    mount::bind_below(part, parent, index, extent)?;
    if follows { mount::subpath_refresh::make_shared(parent, index) } else { Ok(()) }
}

/// A hard link to the file under its own name in the volume's root, which no rename replaces: later mounts on it survive the
/// removal of the original file. A directory is returned unchanged and cannot be refreshed.
pub(crate) fn stand_in(root: impl AsFd, part: OwnedFd, name: &str) -> rustix::io::Result<OwnedFd> {
    if FileType::from_raw_mode(rustix::fs::fstat(&part)?.st_mode) != FileType::RegularFile {
        return Ok(part);
    }
    let names = beneath::make_directory(root, tree::PARTS, 0o700)?;
    if beneath::open_handle(&names, name)?.is_some() {
        beneath::remove(&names, name)?;
    }
    rustix::fs::linkat(&part, "", &names, name, AtFlags::EMPTY_PATH)?;
    beneath::open_handle(&names, name)?.ok_or(Errno::NOENT)
}

/// Mounts `part` over an older version of it. Parts that no container uses, or whose type changed, are left unchanged. Returns
/// whether anything was mounted.
pub(crate) fn refresh(
    part: &OwnedFd,
    parent: &OwnedFd,
    index: &str,
    how: RefreshMethod,
) -> rustix::io::Result<bool> {
    let Some(there) = beneath::open_handle(parent, index)? else { return Ok(false) };
    let (old, new) = (rustix::fs::fstat(&there)?, rustix::fs::fstat(part)?);
    let is_file = |stat: &Stat| FileType::from_raw_mode(stat.st_mode) == FileType::RegularFile;
    let both_files = is_file(&old) && is_file(&new);
    if !beneath::is_mount_point(&there)? || is_same(&old, &new) || !both_files {
        return Ok(false);
    }
    drop(there);
    match mount::subpath_refresh::replace(part, parent, index, how) {
        // The container started with a later version that has left the volume; its next instance is refreshed again.
        Err(Errno::NOENT) => Ok(false),
        done => done.map(|()| true),
    }
}

fn is_same(one: &Stat, other: &Stat) -> bool {
    (one.st_dev, one.st_ino) == (other.st_dev, other.st_ino)
}

fn make_target(parent: &OwnedFd, index: &str, directory: bool) -> rustix::io::Result<()> {
    if let Some(there) = beneath::open_handle(parent, index)? {
        let kind = FileType::from_raw_mode(rustix::fs::fstat(&there)?.st_mode);
        if (kind == FileType::Directory) == directory {
            return Ok(());
        }
        drop(there);
        beneath::remove(parent, index)?;
    }
    if directory {
        return beneath::make_directory(parent, index, PRIVATE).map(drop);
    }
    let flags = OFlags::RDONLY | OFlags::CREATE | OFlags::EXCL;
    beneath::open(parent, index, flags, Mode::from_raw_mode(0o640)).map(drop)
}

/// Opens the directory of a container's mount points; `None` if it has none.
pub(crate) fn targets_there(
    pod: impl AsFd,
    volume: &str,
    container: &str,
) -> rustix::io::Result<Option<OwnedFd>> {
    beneath::open_existing(pod, &format!("{DIRECTORY}/{volume}/{container}"))
}

/// Opens the directory of a container's mount points; creates it if it does not exist.
pub(crate) fn targets(pod: OwnedFd, volume: &str, container: &str) -> rustix::io::Result<OwnedFd> {
    let mut directory = pod;
    for name in [DIRECTORY, volume, container] {
        directory = beneath::make_directory(directory, name, PRIVATE)?;
    }
    Ok(directory)
}

/// Unmounts all parts of a pod without touching the volumes. Returns the mount point that could not be removed, and the cause.
pub(crate) fn tear_down(pod: impl AsFd) -> Result<(), (PathBuf, Errno)> {
    let at = |path: &Path, error: Errno| (path.to_owned(), error);
    let top = PathBuf::from(DIRECTORY);
    let opened = beneath::open_existing(pod.as_fd(), DIRECTORY).map_err(|e| at(&top, e))?;
    let Some(volumes) = opened else { return Ok(()) };
    for (volume, path, _) in below(&volumes, &top)? {
        for (container, path, name) in below(&volume, &path)? {
            for (index, _) in beneath::list_entries(&container).map_err(|e| at(&path, e))? {
                let freed = mount::detach(&container, &index)
                    .and_then(|()| beneath::remove(&container, &index));
                freed.map_err(|e| at(&path.join(&index), e))?;
            }
            beneath::remove_empty(&volume, &name).map_err(|e| at(&path, e))?;
        }
    }
    beneath::remove(pod, DIRECTORY).map_err(|e| at(&top, e))
}

/// An open directory with its path and name.
type Opened = (OwnedFd, PathBuf, String);

/// The directories in a directory.
fn below(directory: &OwnedFd, path: &Path) -> Result<Vec<Opened>, (PathBuf, Errno)> {
    let failed = |error| (path.to_owned(), error);
    let mut found = Vec::new();
    for (name, _) in beneath::list_entries(directory).map_err(failed)? {
        if let Some(inner) = beneath::open_existing(directory, &name).map_err(failed)? {
            found.push((inner, path.join(&name), name));
        }
    }
    Ok(found)
}

#[cfg(test)]
mod tests;
