//! A part of a volume given to a container: found, or made, below the volume's root, and bound by descriptor to a place that only the
//! agent can write to.
//!
//! ```text
//! volume root ──openat2(beneath)──► the part ──open_tree──► a mount of exactly that ──move_mount──► target
//! <root>/pods/<uid>/volume-subpaths/<volume>/<container>/<index of the mount>       the target
//! ```
//!
//! Whoever can write to the volume can swap any name in it at any moment. Every step therefore starts from an open descriptor, and the
//! kernel itself refuses what would lead out.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};

use agent_pod::volume_mounts::AllReadOnly;
use rustix::fs::{AtFlags, FileType, Mode, OFlags, Stat};
use rustix::io::Errno;

use crate::host_path::HostPathError;
use crate::mount::subpath_refresh::Renewal;
use crate::mount::{self, Extent};
use crate::private::MODE as PRIVATE;
use crate::sources::HostPathKind;
use crate::{beneath, tree};

/// Directory of a pod's bound parts.
pub(crate) const DIRECTORY: &str = "volume-subpaths";

/// A part of a volume to give to a container.
#[derive(Clone, Copy, Debug)]
pub struct SubPath<'a> {
    /// Name of the volume.
    pub volume: &'a str,
    /// Where the volume lies on the host.
    pub root: &'a Path,
    /// Name of the container.
    pub container: &'a str,
    /// Number of the mount among the container's.
    pub index: usize,
    /// Path below the volume's root; empty for all of it.
    pub path: &'a str,
    /// What the root has to be, when it is a path of the node; with everything mounted below it when `path` is empty.
    pub on_node: Option<HostPathKind>,
    /// Whether it is given read-only with everything that is mounted below it.
    pub all_read_only: Option<AllReadOnly>,
    /// Whether containers that have it see it brought up to date by [`crate::PodVolumes::renew_part`].
    pub follows: bool,
}

/// Why a part of a volume cannot be given.
#[derive(Debug, thiserror::Error)]
#[error("failed to prepare subPath {path:?} of volume {volume:?}: {what}")]
pub struct SubPathError {
    /// The path below the volume's root.
    pub path: String,
    /// Name of the volume.
    pub volume: String,
    /// Which step failed.
    pub what: &'static str,
    /// Why; `EXDEV` and `ELOOP` for a path that leads out of the volume.
    #[source]
    pub source: Why,
}

/// What went wrong with a part of a volume.
#[derive(Debug, thiserror::Error)]
pub enum Why {
    /// What the kernel says.
    #[error(transparent)]
    Kernel(#[from] Errno),
    /// The path of the node is not what it should be.
    #[error(transparent)]
    HostPath(#[from] HostPathError),
    /// A copy of everything below would hold every copy made before.
    #[error("recursive read-only is not possible for what the agent's own directory lies in")]
    HoldsAgent,
}

/// Opens the part below `root`; directories that are missing are made with the root's own mode.
pub(crate) fn open(root: impl AsFd, path: &str) -> rustix::io::Result<OwnedFd> {
    if path.starts_with('/') || path.split('/').any(|name| name == "..") {
        return Err(Errno::INVAL);
    }
    let root = root.as_fd();
    match beneath::open_inside(root, if path.is_empty() { "." } else { path }, OFlags::PATH) {
        Err(Errno::NOENT) => make(root, path),
        opened => opened,
    }
}

/// Walks down `path` and makes what is missing. A name that somebody puts in between is taken as it is, if it stays inside.
fn make(root: BorrowedFd<'_>, path: &str) -> rustix::io::Result<OwnedFd> {
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
        // the umask must not narrow it
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

/// Binds `part` to the target `index` in `parent`, unless exactly that is bound there already. A mount of something else, that an
/// earlier instance of the container had, is taken off first.
pub(crate) fn bind(
    part: &OwnedFd,
    parent: &OwnedFd,
    index: &str,
    extent: Extent,
    follows: bool,
) -> rustix::io::Result<()> {
    let wanted = rustix::fs::fstat(part)?;
    if let Some(there) = beneath::handle(parent, index)? {
        // One that follows is made anew for each instance: what an instance was given is the lowest of several.
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
    if follows { mount::subpath_refresh::lead(parent, index) } else { Ok(()) }
}

/// A file under a name of its own in its volume's root, for which nothing takes the place of the file: what is mounted on it later stays
/// there when the file that was its first is removed. A directory is given as it is, and so does not follow.
pub(crate) fn stand_in(root: impl AsFd, part: OwnedFd, name: &str) -> rustix::io::Result<OwnedFd> {
    if FileType::from_raw_mode(rustix::fs::fstat(&part)?.st_mode) != FileType::RegularFile {
        return Ok(part);
    }
    let names = beneath::make_directory(root, tree::PARTS, 0o700)?;
    if beneath::handle(&names, name)?.is_some() {
        beneath::remove(&names, name)?;
    }
    rustix::fs::linkat(&part, "", &names, name, AtFlags::EMPTY_PATH)?;
    beneath::handle(&names, name)?.ok_or(Errno::NOENT)
}

/// Shows `part` where another version of it is bound, unless it is the same. What nobody was given yet, or is of another kind by now,
/// stays as it is. Whether something was done.
pub(crate) fn renew(
    part: &OwnedFd,
    parent: &OwnedFd,
    index: &str,
    how: Renewal,
) -> rustix::io::Result<bool> {
    let Some(there) = beneath::handle(parent, index)? else { return Ok(false) };
    let (old, new) = (rustix::fs::fstat(&there)?, rustix::fs::fstat(part)?);
    let is_file = |stat: &Stat| FileType::from_raw_mode(stat.st_mode) == FileType::RegularFile;
    let both_files = is_file(&old) && is_file(&new);
    if !beneath::is_mount_point(&there)? || is_same(&old, &new) || !both_files {
        return Ok(false);
    }
    drop(there);
    match mount::subpath_refresh::replace(part, parent, index, how) {
        // It started with what was not its first version, and that is gone from the volume: its next instance follows again.
        Err(Errno::NOENT) => Ok(false),
        done => done.map(|()| true),
    }
}

fn is_same(one: &Stat, other: &Stat) -> bool {
    (one.st_dev, one.st_ino) == (other.st_dev, other.st_ino)
}

fn make_target(parent: &OwnedFd, index: &str, directory: bool) -> rustix::io::Result<()> {
    if let Some(there) = beneath::handle(parent, index)? {
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

/// Opens the directory of a container's targets; `None` if it has none.
pub(crate) fn targets_there(
    pod: impl AsFd,
    volume: &str,
    container: &str,
) -> rustix::io::Result<Option<OwnedFd>> {
    beneath::directory(pod, &format!("{DIRECTORY}/{volume}/{container}"))
}

/// Opens the directory of a container's targets, made if need be.
pub(crate) fn targets(pod: OwnedFd, volume: &str, container: &str) -> rustix::io::Result<OwnedFd> {
    let mut directory = pod;
    for name in [DIRECTORY, volume, container] {
        directory = beneath::make_directory(directory, name, PRIVATE)?;
    }
    Ok(directory)
}

/// Takes all bound parts of a pod down; what they were parts of is not touched. Returns the place that cannot be freed, and why.
pub(crate) fn take_down(pod: impl AsFd) -> Result<(), (PathBuf, Errno)> {
    let at = |path: &Path, error: Errno| (path.to_owned(), error);
    let top = PathBuf::from(DIRECTORY);
    let opened = beneath::directory(pod.as_fd(), DIRECTORY).map_err(|e| at(&top, e))?;
    let Some(volumes) = opened else { return Ok(()) };
    for (volume, path, _) in below(&volumes, &top)? {
        for (container, path, name) in below(&volume, &path)? {
            for (index, _) in beneath::entries(&container).map_err(|e| at(&path, e))? {
                let freed = mount::detach(&container, &index)
                    .and_then(|()| beneath::remove(&container, &index));
                freed.map_err(|e| at(&path.join(&index), e))?;
            }
            beneath::remove_empty(&volume, &name).map_err(|e| at(&path, e))?;
        }
    }
    beneath::remove(pod, DIRECTORY).map_err(|e| at(&top, e))
}

/// An open directory with its path and its name.
type Opened = (OwnedFd, PathBuf, String);

/// The directories in a directory.
fn below(directory: &OwnedFd, path: &Path) -> Result<Vec<Opened>, (PathBuf, Errno)> {
    let failed = |error| (path.to_owned(), error);
    let mut found = Vec::new();
    for (name, _) in beneath::entries(directory).map_err(failed)? {
        if let Some(inner) = beneath::directory(directory, &name).map_err(failed)? {
            found.push((inner, path.join(&name), name));
        }
    }
    Ok(found)
}

#[cfg(test)]
mod tests;
