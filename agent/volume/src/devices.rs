//! Block devices of the kernel by name: resolution, use, removal and discovery.

use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

use rustix::fs::{CWD, Mode, OFlags};
use rustix::io::Errno;

use crate::{beneath, host_path};

/// The kernel's directory of block devices.
const DEVICES: &str = "/sys/class/block";
/// How the identifier of a mapping begins that multipath makes (`DM_UUID_PREFIX`).
const MULTIPATH: &[u8] = b"mpath-";
/// The same of the partitions that kpartx makes of it: `part3-mpath-...`.
const MAPPED_PARTITION: &[u8] = b"part";
/// The kernel's directory of SCSI host adapters.
const ADAPTERS: &str = "/sys/class/scsi_host";

/// Disks that these names below `root` link to, in the order of the names; no partitions, which may be the node's or of another tenant's disk: the name of a
/// disk with a suffix is one of theirs. A name may contain a few `*` wildcards.
#[must_use]
pub fn resolve_links(root: &Path, links: &[String]) -> Vec<PathBuf> {
    resolve_to_disks(Path::new(DEVICES), root, links)
}

fn resolve_to_disks(devices: &Path, root: &Path, links: &[String]) -> Vec<PathBuf> {
    let Ok(root) = beneath::open_directory(root) else { return Vec::new() };
    let Ok(devices) = beneath::open_directory(devices) else { return Vec::new() };
    let mut found = Vec::new();
    for link in links {
        let Some((directory, pattern)) = link.rsplit_once('/') else { continue };
        let Ok(Some(directory)) = beneath::open_existing(&root, directory) else { continue };
        let names = beneath::list_entries(&directory).unwrap_or_default();
        let mut fit: Vec<_> =
            names.into_iter().map(|(name, _)| name).filter(|name| fits(pattern, name)).collect();
        fit.sort();
        for name in fit {
            let flags = OFlags::PATH | OFlags::CLOEXEC;
            // The kernel's names of its devices; only root can create these links.
            let device = rustix::fs::openat(&directory, name, flags, Mode::empty());
            let path = device.ok().and_then(|device| host_path::opened_path(&device).ok());
            found.extend(path.filter(|path| !is_partition(&devices, path)));
        }
    }
    found
}

/// The device that one of these names links to; see [`ways`]. If several are paths to one disk, their device mapper device is
/// returned if there is one.
#[must_use]
pub fn find_device(root: &Path, links: &[String]) -> Option<String> {
    let first = resolve_links(root, links).into_iter().next()?;
    Some(multipath_device(&first).unwrap_or_else(|| first.to_string_lossy().into_owned()))
}

/// Whether a device is a partition, of a disk or of a mapping of its paths, by the kernel's directory of block devices.
fn is_partition(devices: &OwnedFd, path: &Path) -> bool {
    let Some(name) = path.file_name().and_then(|name| name.to_str()) else { return false };
    // Entries of the directory are links.
    let flags = OFlags::PATH | OFlags::CLOEXEC;
    rustix::fs::openat(devices, format!("{name}/partition"), flags, Mode::empty()).is_ok()
        || has_mapping_kind(devices, name, MAPPED_PARTITION)
}

/// Whether a device is in exclusive use: by a mount of it or a partition, a mapping, an array or swap.
#[must_use]
pub fn is_in_use(device: &Path) -> bool {
    let flags = OFlags::RDONLY | OFlags::EXCL | OFlags::NONBLOCK | OFlags::CLOEXEC;
    rustix::fs::openat(CWD, device, flags, Mode::empty()).is_err_and(|error| error == Errno::BUSY)
}

/// Makes the kernel drop a disk that is still reachable.
///
/// # Errors
/// Errors of the kernel; `ENOENT` if it is not a SCSI disk.
pub fn delete_disk(device: &Path) -> rustix::io::Result<()> {
    let name = device.file_name().and_then(|name| name.to_str()).ok_or(Errno::INVAL)?;
    let flags = OFlags::WRONLY | OFlags::CLOEXEC;
    let path = format!("{DEVICES}/{name}/device/delete");
    let delete = rustix::fs::openat(CWD, path, flags, Mode::empty())?;
    rustix::io::write(delete, b"1").map(drop)
}

/// The device mapper device over the path `path` of a multipath disk.
fn multipath_device(path: &Path) -> Option<String> {
    let name = path.file_name()?.to_str()?;
    let blocks = beneath::open_directory(Path::new(DEVICES)).ok()?;
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let holders = format!("{name}/holders");
    let holders = rustix::fs::openat(&blocks, holders, flags, Mode::empty()).ok()?;
    let names = beneath::list_entries(holders).ok()?;
    let mut names = names.into_iter().map(|(name, _)| name);
    let mapper =
        names.find(|name| name.starts_with("dm-") && has_mapping_kind(&blocks, name, MULTIPATH));
    mapper.map(|name| format!("/dev/{name}"))
}

/// Whether the identifier of a mapping begins with `kind`; false for other devices.
fn has_mapping_kind(devices: &OwnedFd, name: &str, kind: &[u8]) -> bool {
    let flags = OFlags::RDONLY | OFlags::CLOEXEC;
    let opened = rustix::fs::openat(devices, format!("{name}/dm/uuid"), flags, Mode::empty());
    let mut start = [0; 16];
    let read = opened.and_then(|uuid| rustix::io::read(uuid, &mut start[..]));
    read.is_ok_and(|len| start.get(..len).is_some_and(|start| start.starts_with(kind)))
}

fn fits(pattern: &str, name: &str) -> bool {
    let Some((start, rest)) = pattern.split_once('*') else { return pattern == name };
    let Some(left) = name.strip_prefix(start) else { return false };
    left.char_indices()
        .map(|(at, _)| at)
        .chain([left.len()])
        .any(|at| left.get(at..).is_some_and(|left| fits(rest, left)))
}

/// Makes all SCSI host adapters scan for disks.
///
/// # Errors
/// Errors of the kernel; `ENODEV` without an adapter.
pub fn rescan_adapters() -> rustix::io::Result<()> {
    let adapters = beneath::open_directory(Path::new(ADAPTERS)).map_err(|_| Errno::NODEV)?;
    let mut asked = Err(Errno::NODEV);
    for (name, _) in beneath::list_entries(&adapters)? {
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
    fn partitions_are_no_disks() {
        // The kernel's name of what the links lead to is "null".
        let links = tempfile::tempdir().unwrap();
        std::fs::create_dir(links.path().join("by-id")).unwrap();
        symlink("/dev/null", links.path().join("by-id/scsi-1-part3")).unwrap();
        let found = |entry: &str, content: &str| {
            let devices = tempfile::tempdir().unwrap();
            let path = devices.path().join(entry);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, content).unwrap();
            let names = ["by-id/scsi-1-part3".to_owned()];
            resolve_to_disks(devices.path(), links.path(), &names).len()
        };
        for (entry, content, expected) in [
            ("null/partition", "3\n", 0),
            ("other/partition", "3\n", 1),
            ("null/dm/uuid", "part3-mpath-3600a0b80000f6f2e\n", 0),
            ("null/dm/uuid", "mpath-3600a0b80000f6f2e\n", 1),
            ("null/dm/uuid", "LVM-abc\n", 1),
            ("null/dm/uuid", "", 1),
        ] {
            assert_eq!(found(entry, content), expected, "{entry}: {content}");
        }
    }

    #[test]
    fn devices_are_found_by_their_names() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::create_dir_all(dir.path().join("by-path")).unwrap();
        symlink("/dev/null", dir.path().join("by-path/pci-1-fc-0xab-lun-2")).unwrap();
        symlink("/dev/nowhere", dir.path().join("by-path/gone")).unwrap();
        let of = |links: &[&str]| {
            find_device(dir.path(), &links.iter().map(|l| (*l).to_owned()).collect::<Vec<_>>())
        };
        assert_eq!(of(&["by-id/x", "by-path/*-fc-0xab-lun-2"]).as_deref(), Some("/dev/null"));
        for none in ["by-path/*-fc-0xab-lun-22", "by-path/*-fc-0xab", "by-path/gone", "by-id/*"] {
            assert_eq!(of(&[none]), None, "{none}");
        }
        let both = ["by-path/*".to_owned(), "by-path/pci-1-fc-0xab-lun-*".to_owned()];
        assert_eq!(resolve_links(dir.path(), &both).len(), 2, "what leads nowhere is no way");
        assert!(!is_in_use(Path::new("/dev/null")) && !is_in_use(Path::new("/dev/nowhere")));
        assert_eq!(delete_disk(Path::new("/dev/null")), Err(Errno::NOENT));
        assert!(fits("a*b*c", "axxbyyc") && fits("*", "") && !fits("a*b", "axbx"));
    }
}
