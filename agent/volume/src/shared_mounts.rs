//! Mounts that several pods of a node share, each bind-mounted into the pods: their paths, and records of what to undo after the
//! last pod.

mod device_use;

use std::io::{Read as _, Write as _};
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

use proto_api::names::Names;
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use serde::{Deserialize, Serialize};

use crate::beneath;
use crate::mount;
use crate::persistent::attached::Iscsi;
use crate::pod_volumes::VolumesOnDisk;
use crate::private_dirs::MODE as PRIVATE;
use crate::sources::VolumePlugin;

pub use device_use::DeviceUse;

/// Longest record, in bytes.
const RECORD_LEN_MAX: u64 = 1 << 20;
const RECORD: &str = ".json";

/// A pod that uses a mount.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MountUser {
    /// Uid of the pod.
    pub uid: String,
    /// Name of the volume's directory in the pod.
    pub volume: String,
}

/// A mount to be undone.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Pending {
    /// Name of the mount.
    pub name: String,
    /// Pods that use it or once used it.
    pub users: Vec<MountUser>,
    /// iSCSI session that was started for it.
    pub session: Option<Iscsi>,
    /// Its name in the node's `volumesInUse`; empty if it is listed only while attached.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub listed: String,
    /// Namespace of the first of these pods; the programs that undo it count as this namespace's.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub namespace: String,
}

/// The shared mounts of one node.
#[derive(Clone, Debug)]
pub struct SharedMounts {
    /// The agent's root directory.
    root: PathBuf,
    /// Directory of all plugins, relative to it.
    plugins: String,
    /// Prefix of plugin names.
    domain: String,
}

impl SharedMounts {
    /// The shared mounts below the agent's root directory.
    #[must_use]
    pub fn new(root: &Path, names: &Names) -> Self {
        let domain = names.label_domain().to_owned();
        Self { root: root.to_owned(), plugins: format!("plugins/{domain}"), domain }
    }

    /// Unique name of a volume in the Node's status.
    #[must_use]
    pub fn unique_name(&self, plugin: VolumePlugin, name: &str) -> String {
        format!("{}/{}/{name}", self.domain, plugin.name())
    }

    /// The mount point of a volume, created if it does not exist, and whether something is mounted there.
    ///
    /// # Errors
    /// Errors of the kernel.
    pub fn mount_point(
        &self,
        plugin: VolumePlugin,
        name: &str,
    ) -> rustix::io::Result<(PathBuf, bool)> {
        let directory = beneath::make_directory(self.mounts(plugin)?, checked(name)?, PRIVATE)?;
        let path = self.root.join(self.below(plugin)).join(name);
        Ok((path, beneath::is_mount_point(directory)?))
    }

    /// Opens the mounted volume.
    ///
    /// # Errors
    /// Errors of the kernel; `ENOENT` if nothing is mounted.
    pub fn open(&self, plugin: VolumePlugin, name: &str) -> rustix::io::Result<OwnedFd> {
        let there = beneath::open_existing(self.mounts(plugin)?, checked(name)?)?;
        let there = there.ok_or(Errno::NOENT)?;
        if beneath::is_mount_point(&there)? { Ok(there) } else { Err(Errno::NOENT) }
    }

    /// Writes the record of a mount if it changed. To be called before mounting.
    ///
    /// # Errors
    /// Errors of the kernel; `EFBIG` if it would be too long to be read again. The existing record stays then.
    pub fn write_record(&self, plugin: VolumePlugin, pending: &Pending) -> rustix::io::Result<()> {
        let mounts = self.mounts(plugin)?;
        let name = format!("{}{RECORD}", checked(&pending.name)?);
        match read(&mounts, &name) {
            Ok(Some(known)) if known == *pending => return Ok(()),
            Ok(_) | Err(Errno::BADMSG) => {}
            Err(error) => return Err(error),
        }
        let text = serde_json::to_vec(pending).map_err(|_| Errno::INVAL)?;
        if text.len() as u64 > RECORD_LEN_MAX {
            return Err(Errno::FBIG);
        }
        let new = format!(".{name}.new");
        beneath::remove(&mounts, &new)?;
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL;
        let mut file =
            std::fs::File::from(beneath::open(&mounts, &new, flags, Mode::from_raw_mode(0o600))?);
        let written = file.write_all(&text).and_then(|()| file.sync_all());
        written.map_err(|error| Errno::from_io_error(&error).unwrap_or(Errno::IO))?;
        rustix::fs::renameat(&mounts, new.as_str(), &mounts, name.as_str())
    }

    /// Whether a volume is mounted read-only.
    ///
    /// # Errors
    /// See [`SharedMounts::open`].
    pub fn is_read_only(&self, plugin: VolumePlugin, name: &str) -> rustix::io::Result<bool> {
        let stat = rustix::fs::fstatvfs(self.open(plugin, name)?)?;
        Ok(stat.f_flag.contains(rustix::fs::StatVfsMountFlags::RDONLY))
    }

    /// The record of one mount, if any. In place of a damaged record there is one that every pod with a volume of the plugin uses, without
    /// a session.
    ///
    /// # Errors
    /// Errors of the kernel.
    pub fn pending_record(
        &self,
        plugin: VolumePlugin,
        name: &str,
    ) -> rustix::io::Result<Option<Pending>> {
        match read(&self.mounts(plugin)?, &format!("{}{RECORD}", checked(name)?)) {
            Err(Errno::BADMSG) => self.rebuild_record(plugin, name).map(Some),
            found => found,
        }
    }

    /// What is to be undone of a mount whose record is damaged.
    fn rebuild_record(&self, plugin: VolumePlugin, name: &str) -> rustix::io::Result<Pending> {
        tracing::error!(
            name,
            plugin = plugin.name(),
            "the record of a shared mount is damaged; it is unmounted after all volumes of its plugin have ended, sessions are not logged out"
        );
        Ok(Pending {
            name: name.to_owned(),
            users: self.possible_users(plugin)?,
            session: None,
            listed: String::new(),
            namespace: String::new(),
        })
    }

    /// The volumes of a plugin in all pods.
    fn possible_users(&self, plugin: VolumePlugin) -> rustix::io::Result<Vec<MountUser>> {
        let root = beneath::open_directory(&self.root)?;
        let Some(pods) = beneath::open_existing(&root, "pods")? else { return Ok(Vec::new()) };
        let below = format!("volumes/{}~{}", self.domain, plugin.name());
        let mut users = Vec::new();
        for (uid, _) in beneath::list_entries(&pods)? {
            let volumes = match beneath::open_existing(&pods, &format!("{uid}/{below}")) {
                Ok(Some(volumes)) => volumes,
                Ok(None) | Err(Errno::NOTDIR) => continue,
                Err(error) => return Err(error),
            };
            let names = beneath::list_entries(&volumes)?.into_iter().map(|(name, _)| name);
            let plain = names.filter(|name| checked(name).is_ok() && checked(&uid).is_ok());
            users.extend(plain.map(|volume| MountUser { uid: uid.clone(), volume }));
        }
        Ok(users)
    }

    /// All records of a plugin, as of [`SharedMounts::pending_record`]. Unreadable ones are logged and kept.
    ///
    /// # Errors
    /// Errors of the kernel.
    pub fn pending_records(&self, plugin: VolumePlugin) -> rustix::io::Result<Vec<Pending>> {
        let root = match beneath::open_directory(&self.root) {
            Err(Errno::NOENT) => return Ok(Vec::new()),
            root => root?,
        };
        let Some(mounts) = beneath::open_existing(root, &self.below(plugin))? else {
            return Ok(Vec::new());
        };
        let mut found = Vec::new();
        for (file, _) in beneath::list_entries(&mounts)? {
            let Some(name) = file.strip_suffix(RECORD).filter(|name| checked(name).is_ok()) else {
                continue;
            };
            match self.pending_record(plugin, name) {
                Ok(pending) => found.extend(pending),
                Err(error) => {
                    tracing::error!(name, %error, "the record of a shared mount cannot be read; it is ignored")
                }
            }
        }
        Ok(found)
    }

    /// Unmounts a volume. A missing mount is not an error.
    ///
    /// # Errors
    /// `EBUSY` while it is in use.
    pub fn unmount(&self, plugin: VolumePlugin, name: &str) -> rustix::io::Result<()> {
        let mounts = self.mounts(plugin)?;
        mount::unmount(&mounts, checked(name)?)?;
        beneath::remove_empty(&mounts, name)
    }

    /// Removes the record of a volume.
    ///
    /// # Errors
    /// Errors of the kernel.
    pub fn remove_record(&self, plugin: VolumePlugin, name: &str) -> rustix::io::Result<()> {
        beneath::remove(self.mounts(plugin)?, &format!("{}{RECORD}", checked(name)?))
    }

    fn below(&self, plugin: VolumePlugin) -> String {
        format!("{}/{}/mounts", self.plugins, plugin.name())
    }

    fn mounts(&self, plugin: VolumePlugin) -> rustix::io::Result<OwnedFd> {
        let mut directory = beneath::open_directory(&self.root)?;
        for name in self.below(plugin).split('/') {
            directory = beneath::make_directory(directory, name, PRIVATE)?;
        }
        Ok(directory)
    }
}

impl VolumesOnDisk {
    /// Whether the pod has a mount point for the volume.
    ///
    /// # Errors
    /// Errors of the kernel.
    pub fn has_target(&self, plugin: VolumePlugin, user: &MountUser) -> rustix::io::Result<bool> {
        Ok(self.part(plugin, user)?.is_some())
    }

    /// Whether the volume is mounted into the pod.
    ///
    /// # Errors
    /// Errors of the kernel.
    pub fn is_bound(&self, plugin: VolumePlugin, user: &MountUser) -> rustix::io::Result<bool> {
        self.part(plugin, user)?.map_or(Ok(false), beneath::is_mount_point)
    }

    fn part(&self, plugin: VolumePlugin, user: &MountUser) -> rustix::io::Result<Option<OwnedFd>> {
        let below = self.relative_path(plugin, checked(&user.volume)?);
        let Some(pod) = self.open_pod(checked(&user.uid)?)? else { return Ok(None) };
        beneath::open_handle(&pod, &below)
    }
}

fn checked(name: &str) -> rustix::io::Result<&str> {
    let plain = !name.is_empty() && !name.starts_with('.') && !name.contains(['/', '\0']);
    if plain { Ok(name) } else { Err(Errno::INVAL) }
}

/// Reads a record; `EBADMSG` if it is damaged.
fn read(directory: &OwnedFd, name: &str) -> rustix::io::Result<Option<Pending>> {
    let file = match beneath::open(directory, name, OFlags::RDONLY, Mode::empty()) {
        Err(Errno::NOENT) => return Ok(None),
        opened => opened?,
    };
    let mut text = Vec::new();
    let done = std::fs::File::from(file).take(RECORD_LEN_MAX + 1).read_to_end(&mut text);
    done.map_err(|error| Errno::from_io_error(&error).unwrap_or(Errno::IO))?;
    if text.len() as u64 > RECORD_LEN_MAX {
        return Err(Errno::BADMSG);
    }
    serde_json::from_slice(&text).map(Some).map_err(|_| Errno::BADMSG)
}

#[cfg(test)]
mod tests {
    use proto_api::names::Profile;

    use super::*;

    #[test]
    fn pending_unmounts_are_recorded() {
        let root = tempfile::tempdir().unwrap();
        let mounts = SharedMounts::new(root.path(), Names::new(Profile::Kubernetes));
        assert_eq!(mounts.pending_records(VolumePlugin::Iscsi).unwrap(), []);
        let session = Some(Iscsi { iqn: "i".into(), ..Iscsi::default() });
        let listed = mounts.unique_name(VolumePlugin::Iscsi, "10.0.0.1:i:0");
        assert_eq!(listed, "kubernetes.io/iscsi/10.0.0.1:i:0");
        let users = vec![MountUser { uid: "u".into(), volume: "v".into() }];
        let namespace = "ns".to_owned();
        let pending = Pending { name: "pv".into(), users, session, listed, namespace };
        mounts.write_record(VolumePlugin::Iscsi, &pending).unwrap();
        mounts.write_record(VolumePlugin::Iscsi, &pending).unwrap();
        assert_eq!(
            mounts.pending_record(VolumePlugin::Iscsi, "pv").unwrap().as_ref(),
            Some(&pending)
        );
        assert_eq!(mounts.pending_record(VolumePlugin::Iscsi, "other").unwrap(), None);
        assert_eq!(mounts.pending_records(VolumePlugin::Iscsi).unwrap(), [pending]);
        let (path, mounted) = mounts.mount_point(VolumePlugin::Iscsi, "pv").unwrap();
        let expect = root.path().join("plugins/kubernetes.io/iscsi/mounts/pv");
        assert_eq!((path, mounted), (expect, false));
        assert!(mounts.open(VolumePlugin::Iscsi, "pv").is_err(), "nothing is mounted");
        for bad in ["", "..", "a/b", ".x"] {
            assert_eq!(
                mounts.mount_point(VolumePlugin::Iscsi, bad).unwrap_err(),
                Errno::INVAL,
                "{bad}"
            );
        }
        mounts.unmount(VolumePlugin::Iscsi, "pv").unwrap();
        mounts.remove_record(VolumePlugin::Iscsi, "pv").unwrap();
        assert_eq!(mounts.pending_records(VolumePlugin::Iscsi).unwrap(), []);
    }

    #[test]
    fn a_record_that_could_not_be_read_again_is_not_written() {
        let root = tempfile::tempdir().unwrap();
        let mounts = SharedMounts::new(root.path(), Names::new(Profile::Kubernetes));
        let of = |portal: String| Pending {
            name: "disk".into(),
            users: Vec::new(),
            session: Some(Iscsi { portals: vec![portal], ..Iscsi::default() }),
            listed: String::new(),
            namespace: String::new(),
        };
        let (first, max) = (of("10.0.0.1:3260".into()), usize::try_from(RECORD_LEN_MAX).unwrap());
        mounts.write_record(VolumePlugin::Iscsi, &first).unwrap();
        let too_long = of("x".repeat(max));
        assert_eq!(mounts.write_record(VolumePlugin::Iscsi, &too_long), Err(Errno::FBIG));
        assert_eq!(mounts.pending_record(VolumePlugin::Iscsi, "disk"), Ok(Some(first)));
        let overhead = serde_json::to_vec(&of(String::new())).unwrap().len();
        let longest = of("x".repeat(max - overhead));
        mounts.write_record(VolumePlugin::Iscsi, &longest).unwrap();
        assert_eq!(mounts.pending_record(VolumePlugin::Iscsi, "disk"), Ok(Some(longest)));
    }

    #[test]
    fn a_damaged_record_is_every_volumes_and_is_replaced_by_the_next_use() {
        let root = tempfile::tempdir().unwrap();
        let mounts = SharedMounts::new(root.path(), Names::new(Profile::Kubernetes));
        mounts.mount_point(VolumePlugin::Iscsi, "disk").unwrap();
        let record = root.path().join("plugins/kubernetes.io/iscsi/mounts/disk.json");
        let mut long = vec![b' '; usize::try_from(RECORD_LEN_MAX).unwrap()];
        long.extend(b"{}");
        for text in [b"{".to_vec(), long] {
            std::fs::write(&record, text).unwrap();
            let found = mounts.pending_record(VolumePlugin::Iscsi, "disk").unwrap().unwrap();
            assert_eq!((found.users.len(), found.session), (0, None));
        }
        for volume in ["u1/volumes/kubernetes.io~iscsi/a", "u2/volumes/kubernetes.io~nfs/b"] {
            std::fs::create_dir_all(root.path().join("pods").join(volume)).unwrap();
        }
        std::fs::write(root.path().join("pods/file"), "").unwrap();
        let all = mounts.pending_records(VolumePlugin::Iscsi).unwrap();
        let users = [MountUser { uid: "u1".into(), volume: "a".into() }];
        assert_eq!((all.len(), &all[0].users[..]), (1, &users[..]));
        mounts.write_record(VolumePlugin::Iscsi, &all[0]).unwrap();
        std::fs::remove_dir_all(root.path().join("pods")).unwrap();
        assert_eq!(mounts.pending_records(VolumePlugin::Iscsi).unwrap(), all);
    }
}
