//! File systems in memory for what must not reach a disk, mounted by descriptor.
//!
//! A new file system is complete before anyone can see it: it is made detached, written to if need be, and then moved onto its
//! directory, which is named by a descriptor and not by a path that could be something else by then.

#[cfg(feature = "testing")]
pub mod simulated;
pub mod subpath_refresh;
mod sys;

use std::os::fd::{AsFd, AsRawFd as _, OwnedFd};
use std::path::Path;

use proto_daemon::mountinfo::{self, Mount};
use rustix::fs::FsWord;
use rustix::io::Errno;
use rustix::mount::{
    FsMountFlags, FsOpenFlags, MountAttrFlags, MountFlags, MountPropagationFlags, MoveMountFlags,
    OpenTreeFlags, UnmountFlags,
};

use crate::beneath;

/// Bytes that a volume of secrets may take: three generations of the largest objects that the API takes, and then some.
/// A bound, not a reservation.
pub const SECRETS_BYTES_MAX: u64 = 64 << 20;

/// Magic number of tmpfs in `statfs` (linux/magic.h).
const TMPFS_MAGIC: FsWord = 0x0102_1994;
/// Magic number of ramfs in `statfs` (linux/magic.h).
const RAMFS_MAGIC: FsWord = 0x8584_58f6;
/// Magic number of hugetlbfs in `statfs` (linux/magic.h).
const HUGETLBFS_MAGIC: FsWord = 0x9584_58f6;

/// Whether memory of a file system may be written to swap.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Swap {
    /// As the kernel likes.
    Allowed,
    /// Never. Kernels before 6.4 cannot promise that of a bounded file system: there it is one that has no bound, which only the agent
    /// writes to.
    Never,
}

/// Kind of file system whose pages stay where they are.
const UNSWAPPABLE: &str = "ramfs";

/// What a file system in memory is made with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tmpfs {
    /// Largest size in bytes; the kernel's default, half of the memory, when `None`.
    pub size_bytes: Option<u64>,
    /// Mode of its top directory.
    pub mode: u32,
    /// Whether it may be swapped.
    pub swap: Swap,
    /// Whether programs in it may be run.
    pub exec: bool,
}

/// A file system of huge pages that is mounted nowhere.
///
/// # Errors
/// `ENODEV` where the kernel has none, `EINVAL` for a page size that the machine has not.
fn detached_huge_pages(page_bytes: u64, mode: u32) -> rustix::io::Result<OwnedFd> {
    let context = rustix::mount::fsopen("hugetlbfs", FsOpenFlags::FSOPEN_CLOEXEC)?;
    rustix::mount::fsconfig_set_string(&context, "mode", format!("{mode:o}"))?;
    rustix::mount::fsconfig_set_string(&context, "pagesize", page_bytes.to_string())?;
    rustix::mount::fsconfig_create(&context)?;
    let attributes = MountAttrFlags::MOUNT_ATTR_NODEV | MountAttrFlags::MOUNT_ATTR_NOSUID;
    rustix::mount::fsmount(&context, FsMountFlags::FSMOUNT_CLOEXEC, attributes)
}

/// A file system in memory that is mounted nowhere.
///
/// # Errors
/// `ENOSYS` before Linux 5.2; otherwise what the kernel says, `EPERM` without privilege.
pub fn detached(tmpfs: Tmpfs) -> rustix::io::Result<OwnedFd> {
    let context = rustix::mount::fsopen("tmpfs", FsOpenFlags::FSOPEN_CLOEXEC)?;
    rustix::mount::fsconfig_set_string(&context, "mode", format!("{:o}", tmpfs.mode))?;
    if let Some(size) = tmpfs.size_bytes {
        rustix::mount::fsconfig_set_string(&context, "size", size.to_string())?;
    }
    if tmpfs.swap == Swap::Never {
        match rustix::mount::fsconfig_set_flag(&context, "noswap") {
            Ok(()) => {}
            // EINVAL: an older kernel; EPERM: a user namespace may not say so
            Err(Errno::INVAL | Errno::PERM) => return detached_unswappable(tmpfs),
            Err(error) => return Err(error),
        }
    }
    rustix::mount::fsconfig_create(&context)?;
    rustix::mount::fsmount(&context, FsMountFlags::FSMOUNT_CLOEXEC, attributes(tmpfs))
}

/// A file system whose pages are never swapped, on any kernel. It has no bound of its own.
fn detached_unswappable(tmpfs: Tmpfs) -> rustix::io::Result<OwnedFd> {
    let context = rustix::mount::fsopen(UNSWAPPABLE, FsOpenFlags::FSOPEN_CLOEXEC)?;
    rustix::mount::fsconfig_set_string(&context, "mode", format!("{:o}", tmpfs.mode))?;
    rustix::mount::fsconfig_create(&context)?;
    rustix::mount::fsmount(&context, FsMountFlags::FSMOUNT_CLOEXEC, attributes(tmpfs))
}

fn attributes(tmpfs: Tmpfs) -> MountAttrFlags {
    let exec = if tmpfs.exec { MountAttrFlags::empty() } else { MountAttrFlags::MOUNT_ATTR_NOEXEC };
    MountAttrFlags::MOUNT_ATTR_NODEV | MountAttrFlags::MOUNT_ATTR_NOSUID | exec
}

/// Opens the top directory of a detached file system.
///
/// # Errors
/// What the kernel says.
pub fn top(detached: impl AsFd) -> rustix::io::Result<OwnedFd> {
    beneath::directory(detached, ".")?.ok_or(Errno::NOENT)
}

/// Mounts a detached file system on `directory`.
///
/// # Errors
/// What the kernel says.
pub fn attach(detached: impl AsFd, directory: impl AsFd) -> rustix::io::Result<()> {
    let flags = MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH | MoveMountFlags::MOVE_MOUNT_T_EMPTY_PATH;
    rustix::mount::move_mount(detached.as_fd(), "", directory.as_fd(), "", flags)
}

/// Mounts a file system in memory on the directory `name` of `parent`, unless one is there; its top directory. A new one is
/// shown to `prepare` before anybody else can see it.
///
/// # Errors
/// What the kernel says, or `prepare`.
pub fn tmpfs_on<E: From<Errno>>(
    parent: impl AsFd,
    name: &str,
    tmpfs: Tmpfs,
    prepare: impl FnOnce(&OwnedFd) -> Result<(), E>,
) -> Result<OwnedFd, E> {
    #[cfg(feature = "testing")]
    if simulated::is_on() {
        return simulated::tmpfs_on(parent, name, tmpfs, prepare);
    }
    let directory = beneath::make_directory(parent.as_fd(), name, 0o700)?;
    if beneath::is_mount_point(&directory)? && is_in_memory(&directory)? {
        return Ok(directory);
    }
    match detached(tmpfs) {
        Ok(new) => {
            prepare(&top(&new)?)?;
            attach(&new, &directory)?;
        }
        // before Linux 5.2: mounted first, prepared after; no container uses it yet
        Err(Errno::NOSYS) => {
            mount_by_path(&directory, tmpfs)?;
            prepare(&mounted(parent.as_fd(), name)?)?;
        }
        Err(error) => return Err(error.into()),
    }
    Ok(mounted(parent, name)?)
}

/// Mounts a file system of huge pages on the directory `name` of `parent`, unless one is there; its top directory.
///
/// # Errors
/// What the kernel says, or `prepare`.
pub fn huge_pages_on(
    parent: impl AsFd,
    name: &str,
    page_bytes: u64,
    mode: u32,
    prepare: impl FnOnce(&OwnedFd) -> rustix::io::Result<()>,
) -> rustix::io::Result<OwnedFd> {
    let directory = beneath::make_directory(parent.as_fd(), name, 0o700)?;
    if !(beneath::is_mount_point(&directory)? && is_in_memory(&directory)?) {
        let new = detached_huge_pages(page_bytes, mode)?;
        prepare(&top(&new)?)?;
        attach(&new, &directory)?;
    }
    mounted(parent, name)
}

/// Opens a directory anew, since what was opened before a mount lies under it.
fn mounted(parent: impl AsFd, name: &str) -> rustix::io::Result<OwnedFd> {
    beneath::directory(parent, name)?.ok_or(Errno::NOENT)
}

/// Binds what is open as `source` onto what is open as `target`, without what is mounted below it: a directory onto a directory, or
/// anything else onto a file. What becomes visible is exactly the open object, whatever its name leads to by now.
///
/// # Errors
/// What the kernel says.
pub fn bind(source: impl AsFd, target: impl AsFd) -> rustix::io::Result<()> {
    let flags = OpenTreeFlags::OPEN_TREE_CLONE
        | OpenTreeFlags::OPEN_TREE_CLOEXEC
        | OpenTreeFlags::AT_EMPTY_PATH;
    match rustix::mount::open_tree(source.as_fd(), "", flags) {
        Ok(tree) => attach(tree, target),
        // before Linux 5.2: the same by the links that lead to our descriptors
        Err(Errno::NOSYS) => rustix::mount::mount_bind(by_number(&source), by_number(&target)),
        Err(error) => Err(error),
    }
}

/// How much of what lies below something is bound with it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Extent {
    /// Its own file system.
    One,
    /// What is mounted below it too.
    All,
    /// The same, read-only all the way down. Nothing that is mounted there later shows.
    AllReadOnly,
}

/// Binds what is open as `source` onto `name` of `parent`, so that mounts made where it comes from show here too, and what is taken off
/// here stays there. A plain binding would take the other's mounts along when it is taken off.
///
/// # Errors
/// What the kernel says.
pub fn bind_below(
    source: impl AsFd,
    parent: impl AsFd,
    name: &str,
    extent: Extent,
) -> rustix::io::Result<()> {
    let target = beneath::handle(parent.as_fd(), name)?.ok_or(Errno::NOENT)?;
    match extent {
        Extent::One => bind(source, target)?,
        Extent::All => bind_all(source, target)?,
        Extent::AllReadOnly => return bind_read_only(source, target),
    }
    let slave = MountPropagationFlags::DOWNSTREAM | MountPropagationFlags::REC;
    rustix::mount::mount_change(format!("{}/{name}", by_number(&parent)), slave)
}

fn bind_all(source: impl AsFd, target: impl AsFd) -> rustix::io::Result<()> {
    let flags = OpenTreeFlags::OPEN_TREE_CLONE
        | OpenTreeFlags::OPEN_TREE_CLOEXEC
        | OpenTreeFlags::AT_RECURSIVE
        | OpenTreeFlags::AT_EMPTY_PATH;
    match rustix::mount::open_tree(source.as_fd(), "", flags) {
        Ok(tree) => attach(tree, target),
        Err(Errno::NOSYS) => {
            rustix::mount::mount_bind_recursive(by_number(&source), by_number(&target))
        }
        Err(error) => Err(error),
    }
}

/// Read-only before anybody can see it: there is no moment in which something below could be written to.
fn bind_read_only(source: impl AsFd, target: impl AsFd) -> rustix::io::Result<()> {
    let flags = OpenTreeFlags::OPEN_TREE_CLONE
        | OpenTreeFlags::OPEN_TREE_CLOEXEC
        | OpenTreeFlags::AT_RECURSIVE
        | OpenTreeFlags::AT_EMPTY_PATH;
    let tree = rustix::mount::open_tree(source.as_fd(), "", flags)?;
    sys::freeze(&tree)?;
    attach(tree, target)
}

fn by_number(fd: &impl AsFd) -> String {
    format!("/proc/self/fd/{}", fd.as_fd().as_raw_fd())
}

/// Takes everything off `name` of `parent`, file or directory, that is mounted there, also while somebody still uses it: what they have
/// open stays theirs. Nothing there, or no mount, is fine.
///
/// # Errors
/// What the kernel says.
pub fn detach(parent: impl AsFd, name: &str) -> rustix::io::Result<()> {
    while let Some(there) = beneath::handle(parent.as_fd(), name)? {
        if !beneath::is_mount_point(&there)? {
            break;
        }
        drop(there);
        let path = format!("{}/{name}", by_number(&parent));
        rustix::mount::unmount(path, UnmountFlags::NOFOLLOW | UnmountFlags::DETACH)?;
    }
    Ok(())
}

/// Unmounts what is mounted on the directory `name` of `parent`, however often. Nothing there, or no mount, is fine.
///
/// # Errors
/// `EBUSY` while a container uses it.
pub fn unmount(parent: impl AsFd, name: &str) -> rustix::io::Result<()> {
    while let Some(directory) = beneath::directory(parent.as_fd(), name)? {
        if !beneath::is_mount_point(&directory)? {
            break;
        }
        // Only a path can be unmounted; this one leads to our descriptor. The descriptor itself would keep the mount busy, hence the
        // parent's descriptor and the name, which is a plain one.
        drop(directory);
        let path = format!("{}/{name}", by_number(&parent));
        rustix::mount::unmount(path, UnmountFlags::NOFOLLOW)?;
    }
    Ok(())
}

/// Has mounts that are made below `directory` travel to whoever shares it, drivers in pods above all. Where it lies on a mount that is
/// shared already, as under systemd, nothing is done; else it becomes a mount of its own, if nothing is mounted below it yet.
///
/// # Errors
/// `EBUSY` when something is mounted below it; otherwise what the kernel says.
pub fn share(directory: &Path) -> rustix::io::Result<()> {
    let table = mountinfo::read();
    let table = table.map_err(|error| Errno::from_io_error(&error).unwrap_or(Errno::IO))?;
    match sharing(&table, directory) {
        Sharing::Shared => return Ok(()),
        Sharing::Own => {}
        Sharing::Busy => return Err(Errno::BUSY),
        Sharing::Not => rustix::mount::mount_bind(directory, directory)?,
    }
    let all = MountPropagationFlags::SHARED | MountPropagationFlags::REC;
    rustix::mount::mount_change(directory, all)
}

/// How a directory is mounted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Sharing {
    /// On a mount whose own mounts travel.
    Shared,
    /// On a mount of its own that is not shared.
    Own,
    /// On one that is not, and something is mounted below it.
    Busy,
    /// On one that is not.
    Not,
}

/// Reads that off the kernel's table. The last of several mounts on one place is the one that is seen.
fn sharing(table: &[Mount], directory: &Path) -> Sharing {
    let mut above: Option<&Mount> = None;
    let mut busy = false;
    for mount in table {
        let point = mount.point.as_path();
        busy |= point != directory && point.starts_with(directory);
        let is_nearer = above.is_none_or(|above| point.starts_with(&above.point));
        if is_nearer && directory.starts_with(point) {
            above = Some(mount);
        }
    }
    let is_shared = above.is_some_and(|above| above.is_shared);
    match (is_shared, above.is_some_and(|above| above.point == directory), busy) {
        (true, ..) => Sharing::Shared,
        (false, true, _) => Sharing::Own,
        (false, false, true) => Sharing::Busy,
        (false, false, false) => Sharing::Not,
    }
}

/// Whether a directory lies on a file system in memory, huge pages included.
///
/// # Errors
/// What the kernel says.
pub fn is_in_memory(directory: impl AsFd) -> rustix::io::Result<bool> {
    let kind = rustix::fs::fstatfs(directory)?.f_type;
    Ok(matches!(kind, TMPFS_MAGIC | RAMFS_MAGIC | HUGETLBFS_MAGIC))
}

/// The older way, for kernels before 5.2.
fn mount_by_path(directory: &OwnedFd, tmpfs: Tmpfs) -> rustix::io::Result<()> {
    let kind = if tmpfs.swap == Swap::Never { UNSWAPPABLE } else { "tmpfs" };
    let size = tmpfs.size_bytes.filter(|_| tmpfs.swap == Swap::Allowed);
    let size = size.map(|size| format!(",size={size}")).unwrap_or_default();
    let data = std::ffi::CString::new(format!("mode={:o}{size}", tmpfs.mode));
    let path = by_number(directory);
    let mut flags = MountFlags::NODEV | MountFlags::NOSUID;
    if !tmpfs.exec {
        flags |= MountFlags::NOEXEC;
    }
    let data = data.map_err(|_| Errno::INVAL)?;
    rustix::mount::mount(kind, path, kind, flags, Some(data.as_c_str()))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};

    use super::*;

    #[test]
    fn a_directory_is_shared_as_the_mount_that_it_is_on() {
        let row = |point: &str, shared: &str| format!("1 2 0:3 / {point} rw {shared}- ext4 x rw\n");
        let root = row("/", "");
        let cases = [
            (row("/", "shared:1 "), Sharing::Shared),
            (root.clone(), Sharing::Not),
            (root.clone() + &row("/var", "shared:2 "), Sharing::Shared),
            (row("/", "shared:1 ") + &row("/var", "master:2 "), Sharing::Not),
            (root.clone() + &row("/var/lib/agent", ""), Sharing::Own),
            (
                root.clone() + &row("/var/lib/agent", "") + &row("/var/lib/agent", "shared:3 "),
                Sharing::Shared,
            ),
            (root.clone() + &row("/var/lib/agent/pods/x", ""), Sharing::Busy),
            (root.clone() + &row("/var/lib/agents/x", "shared:1 "), Sharing::Not),
        ];
        for (table, expect) in cases {
            let table = mountinfo::parse(table.as_bytes());
            assert_eq!(sharing(&table, Path::new("/var/lib/agent")), expect, "{table:?}");
        }
        // Names are bytes, and a blank in one is escaped.
        let other = [root.as_bytes(), b"5 6 0:7 / /mnt/\xff rw - ext4 x rw\n"].concat();
        let blank = [&other, row("/a\\040b", "shared:1 ").as_bytes()].concat();
        assert_eq!(sharing(&mountinfo::parse(&other), Path::new("/a b")), Sharing::Not);
        assert_eq!(sharing(&mountinfo::parse(&blank), Path::new("/a b")), Sharing::Shared);
    }

    #[test]
    fn where_swap_cannot_be_ruled_out_another_kind_of_memory_serves() {
        let dir = tempfile::tempdir().unwrap();
        if dir.path().metadata().unwrap().uid() != 0 {
            eprintln!("SKIPPED where_swap_cannot_be_ruled_out: needs root");
            return;
        }
        let tmpfs =
            Tmpfs { size_bytes: Some(1 << 20), mode: 0o750, swap: Swap::Never, exec: false };
        // what newer kernels, what older ones, and what the oldest ones make
        let new = detached(tmpfs).unwrap();
        let old = detached_unswappable(tmpfs).unwrap();
        let directory = beneath::open_directory(dir.path()).unwrap();
        mount_by_path(&directory, tmpfs).unwrap();
        let oldest = beneath::open_directory(dir.path()).unwrap();
        let kinds = [&new, &old, &oldest].map(|fd| rustix::fs::fstatfs(fd).unwrap().f_type);
        let memory = [&new, &old, &oldest].map(|fd| is_in_memory(fd).unwrap());
        let mode = dir.path().metadata().unwrap().permissions().mode() & 0o7777;
        std::fs::write(dir.path().join("f"), "x").unwrap();
        drop((directory, oldest));
        rustix::mount::unmount(dir.path(), UnmountFlags::DETACH).unwrap();
        assert!(matches!(kinds[0], TMPFS_MAGIC | RAMFS_MAGIC));
        assert_eq!(kinds[1..], [RAMFS_MAGIC; 2]);
        assert_eq!((memory, mode), ([true; 3], 0o750));
    }
}
