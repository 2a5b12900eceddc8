//! Mounts by descriptor: file systems in memory for data that must not reach a disk, and bind mounts.
//!
//! A new file system is complete before it is visible: it is created detached, filled if necessary, and then moved onto its directory, which
//! is named by a descriptor and not by a path that could lead elsewhere by then.

pub mod nfs;
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

/// Size limit in bytes of a volume of secrets: more than three generations of the largest objects that the API accepts. Not a reservation.
pub const SECRETS_BYTES_MAX: u64 = 64 << 20;

/// Magic number of tmpfs in `statfs` (linux/magic.h).
const TMPFS_MAGIC: FsWord = 0x0102_1994;
/// Magic number of ramfs in `statfs` (linux/magic.h).
const RAMFS_MAGIC: FsWord = 0x8584_58f6;
/// Magic number of hugetlbfs in `statfs` (linux/magic.h).
const HUGETLBFS_MAGIC: FsWord = 0x9584_58f6;

/// Whether pages of a file system may be swapped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Swap {
    /// The kernel decides.
    Allowed,
    /// Never. Before Linux 6.4 only a file system without a size limit (ramfs) guarantees that; only the agent writes to it.
    Never,
}

/// File system whose pages are never swapped.
const UNSWAPPABLE: &str = "ramfs";

/// Parameters of a file system in memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tmpfs {
    /// Size limit in bytes; `None` for the kernel's default, half of the memory.
    pub size_bytes: Option<u64>,
    /// Mode of its top directory.
    pub mode: u32,
    /// Whether its pages may be swapped.
    pub swap: Swap,
    /// Whether programs in it may be executed.
    pub exec: bool,
}

/// Creates a detached file system of huge pages.
///
/// # Errors
/// `ENODEV` if the kernel has no hugetlbfs, `EINVAL` if the machine does not have the page size.
fn detached_huge_pages(page_bytes: u64, mode: u32) -> rustix::io::Result<OwnedFd> {
    let context = rustix::mount::fsopen("hugetlbfs", FsOpenFlags::FSOPEN_CLOEXEC)?;
    rustix::mount::fsconfig_set_string(&context, "mode", format!("{mode:o}"))?;
    rustix::mount::fsconfig_set_string(&context, "pagesize", page_bytes.to_string())?;
    rustix::mount::fsconfig_create(&context)?;
    let attributes = MountAttrFlags::MOUNT_ATTR_NODEV | MountAttrFlags::MOUNT_ATTR_NOSUID;
    rustix::mount::fsmount(&context, FsMountFlags::FSMOUNT_CLOEXEC, attributes)
}

/// Creates a detached file system in memory.
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
            // EINVAL: an older kernel; EPERM: not allowed in a user namespace
            Err(Errno::INVAL | Errno::PERM) => return detached_unswappable(tmpfs),
            Err(error) => return Err(error),
        }
    }
    rustix::mount::fsconfig_create(&context)?;
    rustix::mount::fsmount(&context, FsMountFlags::FSMOUNT_CLOEXEC, attributes(tmpfs))
}

/// Creates a detached file system whose pages are never swapped, on any kernel. It has no size limit.
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
    beneath::open_existing(detached, ".")?.ok_or(Errno::NOENT)
}

/// Mounts a detached file system on `directory`.
///
/// # Errors
/// What the kernel says.
pub fn attach(detached: impl AsFd, directory: impl AsFd) -> rustix::io::Result<()> {
    let flags = MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH | MoveMountFlags::MOVE_MOUNT_T_EMPTY_PATH;
    rustix::mount::move_mount(detached.as_fd(), "", directory.as_fd(), "", flags)
}

/// Mounts a file system in memory on the directory `name` of `parent` unless one is mounted there; its top directory. `prepare` fills a new
/// one before it is visible.
///
/// # Errors
/// What the kernel or `prepare` returns.
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
        // Before Linux 5.2: mounted, then prepared. No container uses it yet.
        Err(Errno::NOSYS) => {
            mount_by_path(&directory, tmpfs)?;
            prepare(&reopen(parent.as_fd(), name)?)?;
        }
        Err(error) => return Err(error.into()),
    }
    Ok(reopen(parent, name)?)
}

/// Mounts a file system of huge pages on the directory `name` of `parent` unless one is mounted there; its top directory.
///
/// # Errors
/// What the kernel or `prepare` returns.
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
    reopen(parent, name)
}

/// Opens a directory again: a descriptor from before the mount refers to the directory below it.
fn reopen(parent: impl AsFd, name: &str) -> rustix::io::Result<OwnedFd> {
    beneath::open_existing(parent, name)?.ok_or(Errno::NOENT)
}

/// Bind-mounts the open `source` onto the open `target`, without the mounts below it: a directory onto a directory, or anything else onto a
/// file. The open object itself becomes visible, whatever its name refers to by now.
///
/// # Errors
/// What the kernel says.
pub fn bind(source: impl AsFd, target: impl AsFd) -> rustix::io::Result<()> {
    let flags = OpenTreeFlags::OPEN_TREE_CLONE
        | OpenTreeFlags::OPEN_TREE_CLOEXEC
        | OpenTreeFlags::AT_EMPTY_PATH;
    match rustix::mount::open_tree(source.as_fd(), "", flags) {
        Ok(tree) => attach(tree, target),
        // Before Linux 5.2: by the links to our descriptors.
        Err(Errno::NOSYS) => rustix::mount::mount_bind(by_number(&source), by_number(&target)),
        Err(error) => Err(error),
    }
}

/// Which mounts below a source are bound with it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BindScope {
    /// None.
    One,
    All,
    /// All, recursively read-only. Later mounts below the source are not propagated.
    AllReadOnly,
}

/// Bind-mounts the open `source` onto `name` of `parent` as a slave: mounts made below the source propagate here, and unmounts here do not
/// propagate back.
///
/// # Errors
/// What the kernel says.
pub fn bind_below(
    source: impl AsFd,
    parent: impl AsFd,
    name: &str,
    extent: BindScope,
) -> rustix::io::Result<()> {
    let target = beneath::open_handle(parent.as_fd(), name)?.ok_or(Errno::NOENT)?;
    match extent {
        BindScope::One => bind(source, target)?,
        BindScope::All => bind_all(source, target)?,
        BindScope::AllReadOnly => return bind_read_only(source, target),
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

/// The copy is made read-only before it is visible.
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

/// Detaches everything that is mounted on `name` of `parent`, file or directory, even while it is in use: open files stay open. If `name`
/// does not exist or nothing is mounted there, nothing is done.
///
/// # Errors
/// What the kernel says.
pub fn detach(parent: impl AsFd, name: &str) -> rustix::io::Result<()> {
    unmount_all(parent, name, UnmountFlags::DETACH)
}

/// Unmounts everything that is mounted on `name` of `parent`. If `name` does not exist or nothing is mounted there, nothing is done.
///
/// # Errors
/// `EBUSY` while a container uses it.
pub fn unmount(parent: impl AsFd, name: &str) -> rustix::io::Result<()> {
    unmount_all(parent, name, UnmountFlags::empty())
}

/// Unmounts without open(2) or stat(2) of the mount: both wait for the server of a network file system. The path lookup of
/// umount2(2) does not call the mounted file system.
fn unmount_all(parent: impl AsFd, name: &str, flags: UnmountFlags) -> rustix::io::Result<()> {
    // Only a path can be unmounted; this one leads to our descriptor.
    let path = format!("{}/{name}", by_number(&parent));
    loop {
        match rustix::mount::unmount(&path, UnmountFlags::NOFOLLOW | flags) {
            Ok(()) => {}
            Err(Errno::INVAL | Errno::NOENT) => return Ok(()), // not mounted
            Err(Errno::PERM) if !is_mounted(&parent, name)? => return Ok(()),
            Err(error) => return Err(error),
        }
    }
}

/// Without privilege umount2(2) does not say whether there is a mount at all.
fn is_mounted(parent: impl AsFd, name: &str) -> rustix::io::Result<bool> {
    beneath::open_handle(parent, name)?.map_or(Ok(false), beneath::is_mount_point)
}

/// Makes mount propagation of `directory` shared, for CSI drivers in pods. If it is on a shared mount already, as under systemd, nothing is
/// done; otherwise it becomes a mount of its own, if nothing is mounted below it yet.
///
/// # Errors
/// `EBUSY` when something is mounted below it; otherwise what the kernel says.
pub fn share(directory: &Path) -> rustix::io::Result<()> {
    let table = mountinfo::read();
    let table = table.map_err(|error| Errno::from_io_error(&error).unwrap_or(Errno::IO))?;
    match propagation(&table, directory) {
        Propagation::Shared => return Ok(()),
        Propagation::Own => {}
        Propagation::Busy => return Err(Errno::BUSY),
        Propagation::Not => rustix::mount::mount_bind(directory, directory)?,
    }
    let all = MountPropagationFlags::SHARED | MountPropagationFlags::REC;
    rustix::mount::mount_change(directory, all)
}

/// Mount propagation of a directory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Propagation {
    /// It is on a shared mount.
    Shared,
    /// It is a mount of its own that is not shared.
    Own,
    /// It is on a mount that is not shared, and something is mounted below it.
    Busy,
    /// It is on a mount that is not shared.
    Not,
}

/// Finds it in the mount table. Of several mounts at one path the last one is visible.
fn propagation(table: &[Mount], directory: &Path) -> Propagation {
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
        (true, ..) => Propagation::Shared,
        (false, true, _) => Propagation::Own,
        (false, false, true) => Propagation::Busy,
        (false, false, false) => Propagation::Not,
    }
}

/// Whether a directory is on a file system in memory, including huge pages.
///
/// # Errors
/// What the kernel says.
pub fn is_in_memory(directory: impl AsFd) -> rustix::io::Result<bool> {
    let kind = rustix::fs::fstatfs(directory)?.f_type;
    Ok(matches!(kind, TMPFS_MAGIC | RAMFS_MAGIC | HUGETLBFS_MAGIC))
}

/// For kernels before 5.2.
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
    fn propagation_is_that_of_the_nearest_mount() {
        let row = |point: &str, shared: &str| format!("1 2 0:3 / {point} rw {shared}- ext4 x rw\n");
        let root = row("/", "");
        let cases = [
            (row("/", "shared:1 "), Propagation::Shared),
            (root.clone(), Propagation::Not),
            (root.clone() + &row("/var", "shared:2 "), Propagation::Shared),
            (row("/", "shared:1 ") + &row("/var", "master:2 "), Propagation::Not),
            (root.clone() + &row("/var/lib/agent", ""), Propagation::Own),
            (
                root.clone() + &row("/var/lib/agent", "") + &row("/var/lib/agent", "shared:3 "),
                Propagation::Shared,
            ),
            (root.clone() + &row("/var/lib/agent/pods/x", ""), Propagation::Busy),
            (root.clone() + &row("/var/lib/agents/x", "shared:1 "), Propagation::Not),
        ];
        for (table, expect) in cases {
            let table = mountinfo::parse(table.as_bytes());
            assert_eq!(propagation(&table, Path::new("/var/lib/agent")), expect, "{table:?}");
        }
        // Names are bytes; a space in one is escaped.
        let other = [root.as_bytes(), b"5 6 0:7 / /mnt/\xff rw - ext4 x rw\n"].concat();
        let blank = [&other, row("/a\\040b", "shared:1 ").as_bytes()].concat();
        assert_eq!(propagation(&mountinfo::parse(&other), Path::new("/a b")), Propagation::Not);
        assert_eq!(propagation(&mountinfo::parse(&blank), Path::new("/a b")), Propagation::Shared);
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
        // For newer, older and the oldest kernels.
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
