//! Applies `fsGroup` to the files of a volume, by descriptor and without following links.

use std::os::fd::{AsFd, AsRawFd as _, OwnedFd};

use rustix::fs::{AtFlags, Dir, FileType, Gid, Mode, OFlags, Stat};
use rustix::io::{Errno, Result};

/// Deepest directory that is processed.
const DEPTH_MAX: usize = 1000;

/// When ownership is applied: at each mount, or only if the root differs (`fsGroupChangePolicy`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum FsGroupChangePolicy {
    /// Every time the volume is set up.
    #[default]
    Always,
    /// Only if the volume's top directory does not have the expected group and mode.
    OnRootMismatch,
}

impl FsGroupChangePolicy {
    /// Parses the API's value; unset means `Always`.
    #[must_use]
    pub fn parse(policy: Option<&str>) -> Self {
        if policy == Some("OnRootMismatch") { Self::OnRootMismatch } else { Self::Always }
    }
}

/// Changes the group of everything from `top` down to `gid` and makes it readable for the group, and writable unless the volume
/// is read-only; directories get the set-group-id bit. Stays on the mount. Idempotent; correct entries are not touched.
///
/// # Errors
/// The first entry that cannot be read; `ELOOP` for a tree that is too deep.
pub fn apply_group(
    top: impl AsFd,
    gid: u32,
    read_only: bool,
    when: FsGroupChangePolicy,
) -> Result<()> {
    let top = top.as_fd();
    let stat = rustix::fs::fstat(top)?;
    if when == FsGroupChangePolicy::OnRootMismatch && is_given(&stat, gid, read_only) {
        return Ok(());
    }
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    if FileType::from_raw_mode(stat.st_mode) == FileType::Directory {
        let opened = rustix::fs::openat(top, ".", flags, Mode::empty())?;
        below(opened, stat.st_dev, gid, read_only, 0)?;
    }
    // The top is changed last: its state shows whether all of it was done.
    apply_to_entry(top, &stat, gid, read_only)
}

/// Names are read as the entries are changed, so that a directory with millions of entries takes no memory.
fn below(directory: OwnedFd, device: u64, gid: u32, read_only: bool, depth: usize) -> Result<()> {
    if depth > DEPTH_MAX {
        return Err(Errno::LOOP);
    }
    let mut entries = Dir::new(directory)?;
    while let Some(entry) = entries.read() {
        let entry = entry?;
        let name = entry.file_name();
        if name == c"." || name == c".." {
            continue;
        }
        let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let entry = match rustix::fs::openat(entries.fd()?, name, flags, Mode::empty()) {
            Err(Errno::NOENT) => continue, // removed meanwhile
            entry => entry?,
        };
        let stat = rustix::fs::fstat(&entry)?;
        if stat.st_dev != device {
            continue;
        }
        if FileType::from_raw_mode(stat.st_mode) == FileType::Directory {
            let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
            let inner = rustix::fs::openat(&entry, ".", flags, Mode::empty())?;
            below(inner, device, gid, read_only, depth + 1)?;
        }
        apply_to_entry(&entry, &stat, gid, read_only)?;
    }
    Ok(())
}

fn is_given(stat: &Stat, gid: u32, read_only: bool) -> bool {
    stat.st_gid == gid && wanted_mode(stat, read_only) == stat.st_mode & 0o7777
}

fn wanted_mode(stat: &Stat, read_only: bool) -> u32 {
    let access = if read_only { 0o440 } else { 0o660 };
    let directory = FileType::from_raw_mode(stat.st_mode) == FileType::Directory;
    (stat.st_mode & 0o7777) | access | if directory { 0o2110 } else { 0 }
}

/// Changes one entry. File systems without owners, and read-only ones, keep the group of the file, as with the kubelet: a pod that cannot use
/// the files gets an error on access.
fn apply_to_entry(entry: impl AsFd, stat: &Stat, gid: u32, read_only: bool) -> Result<()> {
    match change(entry, stat, gid, read_only) {
        Err(error @ (Errno::ROFS | Errno::PERM | Errno::ACCESS | Errno::NOTSUP | Errno::INVAL)) => {
            tracing::debug!(inode = stat.st_ino, gid, %error, "cannot apply fsGroup to a file; it keeps its group");
            Ok(())
        }
        result => result,
    }
}

fn change(entry: impl AsFd, stat: &Stat, gid: u32, read_only: bool) -> Result<()> {
    let entry = entry.as_fd();
    if stat.st_gid != gid {
        rustix::fs::chownat(entry, "", None, Some(Gid::from_raw(gid)), AtFlags::EMPTY_PATH)?;
    }
    let mode = wanted_mode(stat, read_only);
    // A change of owner clears set-id bits, so the mode is set afterwards; a link has no mode.
    let is_link = FileType::from_raw_mode(stat.st_mode) == FileType::Symlink;
    if is_link || (stat.st_gid == gid && stat.st_mode & 0o7777 == mode) {
        return Ok(());
    }
    // An `O_PATH` descriptor cannot change a mode, but the path through `/proc/self/fd` can.
    rustix::fs::chmod(format!("/proc/self/fd/{}", entry.as_raw_fd()), Mode::from_raw_mode(mode))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _, symlink};
    use std::path::Path;

    use super::*;

    fn top(path: &Path) -> OwnedFd {
        crate::beneath::open_directory(path).unwrap()
    }

    fn shown(path: &Path) -> (u32, u32) {
        let stat = std::fs::symlink_metadata(path).unwrap();
        (stat.gid(), stat.mode() & 0o7777)
    }

    #[test]
    fn files_and_directories_become_the_groups_and_links_are_not_followed() {
        let outside = tempfile::tempdir().unwrap();
        if outside.path().metadata().unwrap().uid() != 0 {
            eprintln!("SKIPPED files_and_directories_become_the_groups: needs root");
            return;
        }
        let secret = outside.path().join("secret");
        std::fs::write(&secret, "x").unwrap();
        std::fs::set_permissions(&secret, std::fs::Permissions::from_mode(0o600)).unwrap();
        let dir = tempfile::tempdir().unwrap();
        let at = |name: &str| dir.path().join(name);
        std::fs::create_dir(at("d")).unwrap();
        std::fs::set_permissions(at("d"), std::fs::Permissions::from_mode(0o700)).unwrap();
        std::fs::write(at("d/f"), "x").unwrap();
        std::fs::set_permissions(at("d/f"), std::fs::Permissions::from_mode(0o4601)).unwrap();
        symlink(&secret, at("d/link")).unwrap();
        apply_group(top(dir.path()), 7, false, FsGroupChangePolicy::Always).unwrap();
        assert_eq!(shown(&at("d")), (7, 0o2770));
        assert_eq!(shown(&at("d/f")), (7, 0o4661));
        assert_eq!(shown(&at("d/link")).0, 7);
        assert_eq!(shown(&secret), (0, 0o600), "what lies outside is not ours");
        // With `OnRootMismatch` a correct top directory ends the work.
        std::fs::set_permissions(at("d/f"), std::fs::Permissions::from_mode(0o600)).unwrap();
        apply_group(top(dir.path()), 7, false, FsGroupChangePolicy::OnRootMismatch).unwrap();
        assert_eq!(shown(&at("d/f")).1, 0o600);
        apply_group(top(dir.path()), 7, false, FsGroupChangePolicy::Always).unwrap();
        assert_eq!(shown(&at("d/f")).1, 0o660);
        // A read-only volume is not made writable.
        std::fs::set_permissions(at("d/f"), std::fs::Permissions::from_mode(0o600)).unwrap();
        apply_group(top(dir.path()), 8, true, FsGroupChangePolicy::OnRootMismatch).unwrap();
        assert_eq!(shown(&at("d/f")), (8, 0o640));
    }
}
