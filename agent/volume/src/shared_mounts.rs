//! Mounts that several pods of the node have together, each bound into the pods: where they lie, and what has to be undone when the
//! last pod has gone.

use std::io::{Read as _, Write as _};
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

use proto_api::names::Names;
use rustix::fs::{CWD, Mode, OFlags};
use rustix::io::Errno;
use serde::{Deserialize, Serialize};

use crate::beneath;
use crate::mount;
use crate::persistent::attached::Iscsi;
use crate::pod_volumes::PodVolumes;
use crate::sources::Plugin;

/// Directories above the mounts are for the agent.
const PRIVATE: u32 = 0o750;
/// Longest record that is read back, in bytes.
const RECORD_LEN_MAX: u64 = 64 << 10;
const RECORD: &str = ".json";
/// Where the adapters of a storage network are told to look for disks.
const ADAPTERS: &str = "/sys/class/scsi_host";

/// What has to be undone.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Pending {
    /// Name of the persistent volume.
    pub name: String,
    /// A session that was begun for it.
    pub session: Option<Iscsi>,
    /// What the node lists it as while it is in use; nothing for what the node only lists when it is attached.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub listed: String,
}

/// The mounts of one node.
#[derive(Clone, Debug)]
pub struct SharedMounts {
    /// The agent's directory.
    root: PathBuf,
    /// Directory of all kinds of volumes, below that.
    plugins: String,
    /// What the names of kinds of volumes begin with.
    domain: String,
}

impl SharedMounts {
    /// Mounts below the agent's directory.
    #[must_use]
    pub fn new(root: &Path, names: &Names) -> Self {
        let domain = names.label_domain().to_owned();
        Self { root: root.to_owned(), plugins: format!("plugins/{domain}"), domain }
    }

    /// The name under which a node lists a volume of a kind.
    #[must_use]
    pub fn listed(&self, plugin: Plugin, name: &str) -> String {
        format!("{}/{}/{name}", self.domain, plugin.name())
    }

    /// Where the mount of a volume is or belongs, made if need be, and whether something is mounted there.
    ///
    /// # Errors
    /// What the kernel says.
    pub fn place(&self, plugin: Plugin, name: &str) -> rustix::io::Result<(PathBuf, bool)> {
        let directory = beneath::make_directory(self.mounts(plugin)?, checked(name)?, PRIVATE)?;
        let path = self.root.join(self.below(plugin)).join(name);
        Ok((path, beneath::is_mount_point(directory)?))
    }

    /// Opens what is mounted for a volume.
    ///
    /// # Errors
    /// What the kernel says; `ENOENT` when nothing is mounted.
    pub fn open(&self, plugin: Plugin, name: &str) -> rustix::io::Result<OwnedFd> {
        let there = beneath::directory(self.mounts(plugin)?, checked(name)?)?;
        let there = there.ok_or(Errno::NOENT)?;
        if beneath::is_mount_point(&there)? { Ok(there) } else { Err(Errno::NOENT) }
    }

    /// Writes down what has to be undone, unless it says so already. To be called before it is done.
    ///
    /// # Errors
    /// What the kernel says.
    pub fn note(&self, plugin: Plugin, pending: &Pending) -> rustix::io::Result<()> {
        let mounts = self.mounts(plugin)?;
        let name = format!("{}{RECORD}", checked(&pending.name)?);
        if read(&mounts, &name).as_ref() == Some(pending) {
            return Ok(());
        }
        let text = serde_json::to_vec(pending).map_err(|_| Errno::INVAL)?;
        let new = format!(".{name}.new");
        beneath::remove(&mounts, &new)?;
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL;
        let mut file =
            std::fs::File::from(beneath::open(&mounts, &new, flags, Mode::from_raw_mode(0o600))?);
        let written = file.write_all(&text).and_then(|()| file.sync_all());
        written.map_err(|error| Errno::from_io_error(&error).unwrap_or(Errno::IO))?;
        rustix::fs::renameat(&mounts, new.as_str(), &mounts, name.as_str())
    }

    /// All that is written down of a kind. A record that is damaged stays, and is told of.
    ///
    /// # Errors
    /// What the kernel says.
    pub fn pending(&self, plugin: Plugin) -> rustix::io::Result<Vec<Pending>> {
        let root = match beneath::open_directory(&self.root) {
            Err(Errno::NOENT) => return Ok(Vec::new()),
            root => root?,
        };
        let Some(mounts) = beneath::directory(root, &self.below(plugin))? else {
            return Ok(Vec::new());
        };
        let mut found = Vec::new();
        for (name, _) in beneath::entries(&mounts)? {
            if !name.ends_with(RECORD) || name.starts_with('.') {
                continue;
            }
            match read(&mounts, &name) {
                Some(pending) => found.push(pending),
                None => tracing::error!(name, "the record of a mount is damaged"),
            }
        }
        Ok(found)
    }

    /// Unmounts a volume. Nothing there is fine.
    ///
    /// # Errors
    /// `EBUSY` while somebody uses it.
    pub fn unmount(&self, plugin: Plugin, name: &str) -> rustix::io::Result<()> {
        let mounts = self.mounts(plugin)?;
        mount::unmount(&mounts, checked(name)?)?;
        beneath::remove_empty(&mounts, name)
    }

    /// Removes what was written down of a volume.
    ///
    /// # Errors
    /// What the kernel says.
    pub fn forget(&self, plugin: Plugin, name: &str) -> rustix::io::Result<()> {
        beneath::remove(self.mounts(plugin)?, &format!("{}{RECORD}", checked(name)?))
    }

    fn below(&self, plugin: Plugin) -> String {
        format!("{}/{}/mounts", self.plugins, plugin.name())
    }

    fn mounts(&self, plugin: Plugin) -> rustix::io::Result<OwnedFd> {
        let mut directory = beneath::open_directory(&self.root)?;
        for name in self.below(plugin).split('/') {
            directory = beneath::make_directory(directory, name, PRIVATE)?;
        }
        Ok(directory)
    }
}

impl PodVolumes {
    /// Whether a pod of the node has the bound volume of that name.
    ///
    /// # Errors
    /// What the kernel says.
    pub fn is_used(&self, plugin: Plugin, name: &str) -> rustix::io::Result<bool> {
        let uids = self.uids().map_err(|e| Errno::from_io_error(&e).unwrap_or(Errno::IO))?;
        let below = self.below(plugin, checked(name)?);
        for uid in uids {
            let Some(pod) = self.open_pod(&uid)? else { continue };
            if beneath::handle(&pod, &below)?.is_some() {
                return Ok(true);
            }
        }
        Ok(false)
    }
}

/// The device that one of these names leads to, each below `root` and with at most a few `*` for anything. Of several that are ways to
/// one disk the kernel's own joining of them is taken, where there is one.
#[must_use]
pub fn device_of(root: &Path, links: &[String]) -> Option<String> {
    let root = beneath::open_directory(root).ok()?;
    for link in links {
        let (directory, pattern) = link.rsplit_once('/')?;
        let Ok(Some(directory)) = beneath::directory(&root, directory) else { continue };
        let names = beneath::entries(&directory).unwrap_or_default();
        let mut fit: Vec<_> =
            names.into_iter().map(|(name, _)| name).filter(|name| fits(pattern, name)).collect();
        fit.sort();
        for name in fit {
            let flags = OFlags::PATH | OFlags::CLOEXEC;
            // the kernel's own names of its devices: they are links, and nobody's but the node's
            let Ok(device) = rustix::fs::openat(&directory, name, flags, Mode::empty()) else {
                continue;
            };
            let path = crate::host_path::real_of(&device).ok()?;
            return Some(joined(&path).unwrap_or_else(|| path.to_string_lossy().into_owned()));
        }
    }
    None
}

/// The device that joins several ways to the disk `path` (device mapper).
fn joined(path: &Path) -> Option<String> {
    let name = path.file_name()?.to_str()?;
    let blocks = beneath::open_directory(Path::new("/sys/class/block")).ok()?;
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

fn checked(name: &str) -> rustix::io::Result<&str> {
    let plain = !name.is_empty() && !name.starts_with('.') && !name.contains(['/', '\0']);
    if plain { Ok(name) } else { Err(Errno::INVAL) }
}

fn read(directory: &OwnedFd, name: &str) -> Option<Pending> {
    let file = beneath::open(directory, name, OFlags::RDONLY, Mode::empty()).ok()?;
    let mut text = Vec::new();
    std::fs::File::from(file).take(RECORD_LEN_MAX).read_to_end(&mut text).ok()?;
    serde_json::from_slice(&text).ok()
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
        assert!(fits("a*b*c", "axxbyyc") && fits("*", "") && !fits("a*b", "axbx"));
    }

    #[test]
    fn what_has_to_be_undone_is_remembered() {
        use proto_api::names::{Names, Profile};
        let root = tempfile::tempdir().unwrap();
        let mounts = SharedMounts::new(root.path(), Names::new(Profile::Kubernetes));
        assert_eq!(mounts.pending(Plugin::Iscsi).unwrap(), []);
        let session = Some(Iscsi { iqn: "i".into(), ..Iscsi::default() });
        let listed = mounts.listed(Plugin::Iscsi, "10.0.0.1:i:0");
        assert_eq!(listed, "kubernetes.io/iscsi/10.0.0.1:i:0");
        let pending = Pending { name: "pv".into(), session, listed };
        mounts.note(Plugin::Iscsi, &pending).unwrap();
        mounts.note(Plugin::Iscsi, &pending).unwrap();
        assert_eq!(mounts.pending(Plugin::Iscsi).unwrap(), [pending]);
        let (path, mounted) = mounts.place(Plugin::Iscsi, "pv").unwrap();
        let expect = root.path().join("plugins/kubernetes.io/iscsi/mounts/pv");
        assert_eq!((path, mounted), (expect, false));
        assert!(mounts.open(Plugin::Iscsi, "pv").is_err(), "nothing is mounted");
        for bad in ["", "..", "a/b", ".x"] {
            assert_eq!(mounts.place(Plugin::Iscsi, bad).unwrap_err(), Errno::INVAL, "{bad}");
        }
        mounts.unmount(Plugin::Iscsi, "pv").unwrap();
        mounts.forget(Plugin::Iscsi, "pv").unwrap();
        assert_eq!(mounts.pending(Plugin::Iscsi).unwrap(), []);
    }
}
