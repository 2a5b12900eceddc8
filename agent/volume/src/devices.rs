//! The kernel's disks by the names that it gives them: which device a name leads to, who holds it, how it comes and goes.

use std::path::{Path, PathBuf};

use rustix::fs::{CWD, Mode, OFlags};
use rustix::io::Errno;

use crate::{beneath, host_path};

/// Where the kernel tells of its block devices.
const DEVICES: &str = "/sys/class/block";
/// Where the adapters of a storage network are told to look for disks.
const ADAPTERS: &str = "/sys/class/scsi_host";

/// The devices that these names lead to, each below `root` and with at most a few `*` for anything, in the order of the names.
#[must_use]
pub fn ways(root: &Path, links: &[String]) -> Vec<PathBuf> {
    let Ok(root) = beneath::open_directory(root) else { return Vec::new() };
    let mut found = Vec::new();
    for link in links {
        let Some((directory, pattern)) = link.rsplit_once('/') else { continue };
        let Ok(Some(directory)) = beneath::directory(&root, directory) else { continue };
        let names = beneath::entries(&directory).unwrap_or_default();
        let mut fit: Vec<_> =
            names.into_iter().map(|(name, _)| name).filter(|name| fits(pattern, name)).collect();
        fit.sort();
        for name in fit {
            let flags = OFlags::PATH | OFlags::CLOEXEC;
            // the kernel's own names of its devices: they are links, and nobody's but the node's
            let device = rustix::fs::openat(&directory, name, flags, Mode::empty());
            found.extend(device.ok().and_then(|device| host_path::real_of(&device).ok()));
        }
    }
    found
}

/// The device that one of these names leads to; see [`ways`]. Of several that are ways to one disk the kernel's own joining of them is
/// taken, where there is one.
#[must_use]
pub fn device_of(root: &Path, links: &[String]) -> Option<String> {
    let first = ways(root, links).into_iter().next()?;
    Some(joined(&first).unwrap_or_else(|| first.to_string_lossy().into_owned()))
}

/// Whether somebody has a device for himself: a mount of it or of a part of it, a mapping, an array, swap.
#[must_use]
pub fn is_held(device: &Path) -> bool {
    let flags = OFlags::RDONLY | OFlags::EXCL | OFlags::NONBLOCK | OFlags::CLOEXEC;
    rustix::fs::openat(CWD, device, flags, Mode::empty()).is_err_and(|error| error == Errno::BUSY)
}

/// Has the kernel forget a disk that it still could reach.
///
/// # Errors
/// What the kernel says; `ENOENT` for what is no such disk.
pub fn forget(device: &Path) -> rustix::io::Result<()> {
    let name = device.file_name().and_then(|name| name.to_str()).ok_or(Errno::INVAL)?;
    let flags = OFlags::WRONLY | OFlags::CLOEXEC;
    let path = format!("{DEVICES}/{name}/device/delete");
    let delete = rustix::fs::openat(CWD, path, flags, Mode::empty())?;
    rustix::io::write(delete, b"1").map(drop)
}

/// The device that joins several ways to the disk `path` (device mapper).
fn joined(path: &Path) -> Option<String> {
    let name = path.file_name()?.to_str()?;
    let blocks = beneath::open_directory(Path::new(DEVICES)).ok()?;
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let holders = format!("{name}/holders");
    let holders = rustix::fs::openat(&blocks, holders, flags, Mode::empty()).ok()?;
    let names = beneath::entries(holders).ok()?;
    let mapper = names.into_iter().map(|(name, _)| name).find(|name| name.starts_with("dm-"));
    mapper.map(|name| format!("/dev/{name}"))
}

fn fits(pattern: &str, name: &str) -> bool {
    let Some((start, rest)) = pattern.split_once('*') else { return pattern == name };
    let Some(left) = name.strip_prefix(start) else { return false };
    left.char_indices()
        .map(|(at, _)| at)
        .chain([left.len()])
        .any(|at| left.get(at..).is_some_and(|left| fits(rest, left)))
}

/// Has every adapter look for disks.
///
/// # Errors
/// What the kernel says; `ENODEV` without an adapter.
pub fn rescan() -> rustix::io::Result<()> {
    let adapters = beneath::open_directory(Path::new(ADAPTERS)).map_err(|_| Errno::NODEV)?;
    let mut asked = Err(Errno::NODEV);
    for (name, _) in beneath::entries(&adapters)? {
        let flags = OFlags::WRONLY | OFlags::CLOEXEC;
        let scan = rustix::fs::openat(CWD, format!("{ADAPTERS}/{name}/scan"), flags, Mode::empty());
        asked = scan.and_then(|scan| rustix::io::write(scan, b"- - -")).map(drop).or(asked);
    }
    asked
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    #[test]
    fn devices_are_found_by_their_names() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::create_dir_all(dir.path().join("by-path")).unwrap();
        symlink("/dev/null", dir.path().join("by-path/pci-1-fc-0xab-lun-2")).unwrap();
        symlink("/dev/nowhere", dir.path().join("by-path/gone")).unwrap();
        let of = |links: &[&str]| {
            device_of(dir.path(), &links.iter().map(|l| (*l).to_owned()).collect::<Vec<_>>())
        };
        assert_eq!(of(&["by-id/x", "by-path/*-fc-0xab-lun-2"]).as_deref(), Some("/dev/null"));
        for none in ["by-path/*-fc-0xab-lun-22", "by-path/*-fc-0xab", "by-path/gone", "by-id/*"] {
            assert_eq!(of(&[none]), None, "{none}");
        }
        let both = ["by-path/*".to_owned(), "by-path/pci-1-fc-0xab-lun-*".to_owned()];
        assert_eq!(ways(dir.path(), &both).len(), 2, "what leads nowhere is no way");
        assert!(!is_held(Path::new("/dev/null")) && !is_held(Path::new("/dev/nowhere")));
        assert_eq!(forget(Path::new("/dev/null")), Err(Errno::NOENT));
        assert!(fits("a*b*c", "axxbyyc") && fits("*", "") && !fits("a*b", "axbx"));
    }
}
