//! Mounts that several pods of the node have together, each bound into the pods: where they lie, and what has to be undone when the
//! last pod has gone.

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
use crate::pod_volumes::PodVolumes;
use crate::private::MODE as PRIVATE;
use crate::sources::Plugin;

/// Longest record that is read back, in bytes.
const RECORD_LEN_MAX: u64 = 1 << 20;
const RECORD: &str = ".json";

/// A pod that has a mount.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct User {
    /// Its uid.
    pub uid: String,
    /// Name of the volume's directory in the pod's.
    pub volume: String,
}

/// What has to be undone.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Pending {
    /// Name of the mount.
    pub name: String,
    /// Who has it, or had it once.
    pub users: Vec<User>,
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
    /// What the kernel says; `EBADMSG` for a record that is damaged.
    pub fn note(&self, plugin: Plugin, pending: &Pending) -> rustix::io::Result<()> {
        let mounts = self.mounts(plugin)?;
        let name = format!("{}{RECORD}", checked(&pending.name)?);
        if read(&mounts, &name)?.as_ref() == Some(pending) {
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

    /// Whether what is mounted for a volume can only be read.
    ///
    /// # Errors
    /// See [`SharedMounts::open`].
    pub fn is_read_only(&self, plugin: Plugin, name: &str) -> rustix::io::Result<bool> {
        let stat = rustix::fs::fstatvfs(self.open(plugin, name)?)?;
        Ok(stat.f_flag.contains(rustix::fs::StatVfsMountFlags::RDONLY))
    }

    /// What is written down of one mount.
    ///
    /// # Errors
    /// What the kernel says; `EBADMSG` for a record that is damaged.
    pub fn pending_of(&self, plugin: Plugin, name: &str) -> rustix::io::Result<Option<Pending>> {
        read(&self.mounts(plugin)?, &format!("{}{RECORD}", checked(name)?))
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
                Ok(pending) => found.extend(pending),
                Err(error) => tracing::error!(name, %error, "the record of a mount is damaged"),
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
    /// Whether a pod has the place for its part of a mount.
    ///
    /// # Errors
    /// What the kernel says.
    pub fn has(&self, plugin: Plugin, user: &User) -> rustix::io::Result<bool> {
        Ok(self.part(plugin, user)?.is_some())
    }

    /// Whether a mount is bound into a pod.
    ///
    /// # Errors
    /// What the kernel says.
    pub fn has_bound(&self, plugin: Plugin, user: &User) -> rustix::io::Result<bool> {
        self.part(plugin, user)?.map_or(Ok(false), beneath::is_mount_point)
    }

    fn part(&self, plugin: Plugin, user: &User) -> rustix::io::Result<Option<OwnedFd>> {
        let below = self.below(plugin, checked(&user.volume)?);
        let Some(pod) = self.open_pod(checked(&user.uid)?)? else { return Ok(None) };
        beneath::handle(&pod, &below)
    }
}

fn checked(name: &str) -> rustix::io::Result<&str> {
    let plain = !name.is_empty() && !name.starts_with('.') && !name.contains(['/', '\0']);
    if plain { Ok(name) } else { Err(Errno::INVAL) }
}

/// `EBADMSG` for one that is damaged.
fn read(directory: &OwnedFd, name: &str) -> rustix::io::Result<Option<Pending>> {
    let file = match beneath::open(directory, name, OFlags::RDONLY, Mode::empty()) {
        Err(Errno::NOENT) => return Ok(None),
        opened => opened?,
    };
    let mut text = Vec::new();
    let done = std::fs::File::from(file).take(RECORD_LEN_MAX).read_to_end(&mut text);
    done.map_err(|error| Errno::from_io_error(&error).unwrap_or(Errno::IO))?;
    serde_json::from_slice(&text).map(Some).map_err(|_| Errno::BADMSG)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_has_to_be_undone_is_remembered() {
        use proto_api::names::{Names, Profile};
        let root = tempfile::tempdir().unwrap();
        let mounts = SharedMounts::new(root.path(), Names::new(Profile::Kubernetes));
        assert_eq!(mounts.pending(Plugin::Iscsi).unwrap(), []);
        let session = Some(Iscsi { iqn: "i".into(), ..Iscsi::default() });
        let listed = mounts.listed(Plugin::Iscsi, "10.0.0.1:i:0");
        assert_eq!(listed, "kubernetes.io/iscsi/10.0.0.1:i:0");
        let users = vec![User { uid: "u".into(), volume: "v".into() }];
        let pending = Pending { name: "pv".into(), users, session, listed };
        mounts.note(Plugin::Iscsi, &pending).unwrap();
        mounts.note(Plugin::Iscsi, &pending).unwrap();
        assert_eq!(mounts.pending_of(Plugin::Iscsi, "pv").unwrap().as_ref(), Some(&pending));
        assert_eq!(mounts.pending_of(Plugin::Iscsi, "other").unwrap(), None);
        assert_eq!(mounts.pending(Plugin::Iscsi).unwrap(), [pending]);
        let (path, mounted) = mounts.place(Plugin::Iscsi, "pv").unwrap();
        let expect = root.path().join("plugins/kubernetes.io/iscsi/mounts/pv");
        assert_eq!((path, mounted), (expect, false));
        assert!(mounts.open(Plugin::Iscsi, "pv").is_err(), "nothing is mounted");
        for bad in ["", "..", "a/b", ".x"] {
            assert_eq!(mounts.place(Plugin::Iscsi, bad).unwrap_err(), Errno::INVAL, "{bad}");
        }
        let damaged = root.path().join("plugins/kubernetes.io/iscsi/mounts/pv.json");
        std::fs::write(&damaged, "{").unwrap();
        assert_eq!(mounts.pending_of(Plugin::Iscsi, "pv"), Err(Errno::BADMSG));
        assert!(damaged.exists() && mounts.pending(Plugin::Iscsi).unwrap().is_empty());
        mounts.unmount(Plugin::Iscsi, "pv").unwrap();
        mounts.forget(Plugin::Iscsi, "pv").unwrap();
        assert_eq!(mounts.pending(Plugin::Iscsi).unwrap(), []);
    }
}
