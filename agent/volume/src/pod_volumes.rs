//! The volumes of all pods of a node, in the ecosystem's layout.
//!
//! ```text
//! <root>/pods/<uid>/volumes/<domain>~<plugin>/<volume>
//!                           kubernetes.io~configmap/settings      on disk
//!                           kubernetes.io~projected/api-access    a file system in memory each
//! ```

mod parts;

use std::collections::BTreeMap;
use std::io::Read as _;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};

use proto_api::names::Names;
use rustix::fs::{Gid, Mode};
use rustix::io::Errno;

use crate::fs_group::{self, Change};
use crate::host_path::{self, HostPathError};
use crate::mount::{self, SECRETS_BYTES_MAX, Swap, Tmpfs};
use crate::payload::Payload;
use crate::private::{self, MODE as PRIVATE};
use crate::sources::{
    self, Inputs, Medium, Plugin, Projected, Projection, SourceError, TokenWant, Volume, VolumeKind,
};
use crate::sub_path;
use crate::tree::{Ownership, Tree, TreeError, Written};
use crate::{beneath, empty_dir};

/// Top of a projected volume; containers have it read-only.
const TOP: u32 = 0o777;

/// Longest token that is read back, in bytes.
const TOKEN_LEN_MAX: u64 = 64 << 10;

/// Why a volume was not set up. A volume that was up is as it was. With its cause it is the ecosystem's own sentence, which has a blank
/// before the second colon.
#[derive(Debug, thiserror::Error)]
pub enum SetUpError {
    /// What it should hold is not known.
    #[error("MountVolume.SetUp failed for volume {volume:?} ")]
    Source {
        /// Name of the volume.
        volume: String,
        /// Why.
        #[source]
        source: SourceError,
    },
    /// Its files were not written.
    #[error("MountVolume.SetUp failed for volume {volume:?} ")]
    Write {
        /// Name of the volume.
        volume: String,
        /// Why.
        #[source]
        source: TreeError,
    },
    /// The path of the node is not what it should be.
    #[error("MountVolume.SetUp failed for volume {volume:?} ")]
    HostPath {
        /// Name of the volume.
        volume: String,
        /// Why.
        #[source]
        source: HostPathError,
    },
    /// Its directory or file system cannot be made.
    #[error("MountVolume.SetUp failed for volume {volume:?} : prepare {}", path.display())]
    Prepare {
        /// Name of the volume.
        volume: String,
        /// The directory.
        path: PathBuf,
        /// Why.
        #[source]
        source: Errno,
    },
}

/// Why something of a pod's volumes is still there.
#[derive(Debug, thiserror::Error)]
#[error("remove {}", path.display())]
pub struct TearDownError {
    /// What could not be removed.
    pub path: PathBuf,
    /// Why; `EBUSY` when something that is not ours is mounted there.
    #[source]
    pub source: Errno,
}

/// A volume that is set up.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SetUp {
    /// Where it lies on the host.
    pub path: PathBuf,
    /// Whether a file system was mounted for it, now or before.
    pub mounted: bool,
    /// What was written, for a volume of files.
    pub written: Option<Written>,
}

/// Volumes of pods below one root directory.
#[derive(Clone, Debug)]
pub struct PodVolumes {
    pods: PathBuf,
    domain: String,
}

impl PodVolumes {
    /// Volumes below `<root>/pods`.
    #[must_use]
    pub fn new(root: &Path, names: &Names) -> Self {
        Self { pods: root.join("pods"), domain: names.label_domain().into() }
    }

    /// Where a volume lies on the host.
    #[must_use]
    pub fn path(&self, uid: &str, volume: &Volume) -> PathBuf {
        match &volume.kind {
            VolumeKind::Projected(projected) => self.directory(uid, projected.plugin, &volume.name),
            VolumeKind::EmptyDir(_) => self.directory(uid, Plugin::EmptyDir, &volume.name),
            VolumeKind::HostPath { path, .. } => path.into(),
            VolumeKind::Persistent => PathBuf::new(),
        }
    }

    /// Sets a volume up, or brings it up to date: the same call for both. Safe to repeat, also after a crash.
    ///
    /// # Errors
    /// See [`SetUpError`].
    pub fn set_up(&self, inputs: &Inputs<'_>, volume: &Volume) -> Result<SetUp, SetUpError> {
        let uid = inputs.pod.metadata.uid.as_str();
        let path = self.path(uid, volume);
        let name = || volume.name.clone();
        match &volume.kind {
            VolumeKind::HostPath { path: on_host, kind } => {
                host_path::check(on_host, *kind)
                    .map_err(|source| SetUpError::HostPath { volume: name(), source })?;
                Ok(SetUp { path, mounted: false, written: None })
            }
            VolumeKind::EmptyDir(medium) => {
                let medium = &medium.bounded_by(inputs.allocatable);
                let made = self.parent(uid, Plugin::EmptyDir, &volume.name).and_then(|parent| {
                    empty_dir::set_up(parent, &volume.name, medium, sources::fs_group(inputs.pod))
                });
                made.map_err(|source| prepare(volume, &path, source))?;
                Ok(SetUp { path, mounted: *medium != Medium::Disk, written: None })
            }
            VolumeKind::Persistent => Ok(SetUp { path, mounted: false, written: None }),
            VolumeKind::Projected(projected) => {
                let payload = projected.payload(inputs);
                let payload =
                    payload.map_err(|source| SetUpError::Source { volume: name(), source })?;
                let ownership = projected.ownership(inputs.pod);
                let written = self.write(uid, volume, projected, &payload, ownership)?;
                let mounted = projected.plugin.in_memory();
                Ok(SetUp { path, mounted, written: Some(written) })
            }
        }
    }

    /// Removes what a switch left of the generation before it. To be called some [`crate::tree::LINGER`]s after the switch.
    ///
    /// # Errors
    /// When something cannot be removed; the next switch does it then.
    pub fn sweep(&self, uid: &str, volume: &Volume) -> Result<(), TearDownError> {
        let VolumeKind::Projected(projected) = &volume.kind else { return Ok(()) };
        let path = self.directory(uid, projected.plugin, &volume.name);
        let failed = |source| TearDownError { path: path.clone(), source };
        if !is_plain(uid) || !is_plain(&volume.name) {
            return Err(failed(Errno::INVAL));
        }
        // Opened, never made: the pod may have been taken down since the switch.
        let Ok(pods) = beneath::open_directory(&self.pods) else { return Ok(()) };
        let plugin = self.plugin_directory(projected.plugin);
        let below = format!("{uid}/volumes/{plugin}/{}", volume.name);
        let Some(root) = beneath::directory(&pods, &below).map_err(failed)? else {
            return Ok(());
        };
        match Tree::new(root, Ownership::default()).sweep() {
            Err(TreeError::Inspect(source)) => Err(failed(source)),
            _ => Ok(()),
        }
    }

    /// The tokens that a pod's volumes hold now, as a set-up before a restart left them.
    #[must_use]
    pub fn tokens(&self, uid: &str, volumes: &[Volume]) -> BTreeMap<TokenWant, String> {
        let mut found = BTreeMap::new();
        for volume in volumes {
            let VolumeKind::Projected(projected) = &volume.kind else { continue };
            for projection in &projected.projections {
                let Projection::Token { want, path, .. } = projection else { continue };
                let directory = self.directory(uid, projected.plugin, &volume.name);
                if let Some(token) = read_token(&directory, path) {
                    found.insert(want.clone(), token);
                }
            }
        }
        found
    }

    /// Opens a pod's directory, if it is there.
    pub(crate) fn open_pod(&self, uid: &str) -> rustix::io::Result<Option<OwnedFd>> {
        if !is_plain(uid) {
            return Err(Errno::INVAL);
        }
        match beneath::open_directory(&self.pods) {
            Err(Errno::NOENT) => Ok(None),
            pods => beneath::directory(pods?, uid),
        }
    }

    /// Whether anything of a pod is on disk.
    #[must_use]
    pub fn exist(&self, uid: &str) -> bool {
        is_plain(uid) && self.pods.join(uid).symlink_metadata().is_ok()
    }

    /// UIDs of all pods that have something on disk.
    ///
    /// # Errors
    /// When the directory cannot be read.
    pub fn uids(&self) -> std::io::Result<Vec<String>> {
        match std::fs::read_dir(&self.pods) {
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(Vec::new()),
            Err(error) => Err(error),
            Ok(entries) => {
                entries.map(|entry| Ok(entry?.file_name().to_string_lossy().into_owned())).collect()
            }
        }
    }

    /// Takes all volumes of a pod down and removes its directory. Only file systems of ours are unmounted and no mount is crossed, so a
    /// volume that somebody else put there stops this with an error instead of losing its data.
    ///
    /// # Errors
    /// What is still there, and why; safe to repeat.
    pub fn tear_down(&self, uid: &str) -> Result<(), TearDownError> {
        let failed = |path: PathBuf| move |source| TearDownError { path, source };
        let pod = self.pods.join(uid);
        if !is_plain(uid) {
            return Err(failed(pod)(Errno::INVAL));
        }
        let pods = match beneath::open_directory(&self.pods) {
            Err(Errno::NOENT) => return Ok(()),
            opened => opened.map_err(failed(self.pods.clone()))?,
        };
        let Some(own) = beneath::directory(&pods, uid).map_err(failed(pod.clone()))? else {
            return Ok(());
        };
        self.tear_down_parts(uid)?;
        for plugin in Plugin::ALL {
            let directory = format!("{uid}/volumes/{}", self.plugin_directory(plugin));
            let opened = beneath::directory(&pods, &directory);
            let Some(volumes) = opened.map_err(failed(self.pods.join(&directory)))? else {
                continue;
            };
            let entries = beneath::entries(&volumes);
            for (name, _) in entries.map_err(failed(self.pods.join(&directory)))? {
                take_down(&volumes, &name, plugin)
                    .map_err(failed(self.pods.join(&directory).join(&name)))?;
            }
        }
        self.check_nothing_foreign(&own, &pod)?;
        drop(own);
        beneath::remove(&pods, uid).map_err(failed(pod))
    }

    /// Whatever is left below `volumes` was not made by this crate: it has to be empty directories, or it stays.
    fn check_nothing_foreign(&self, own: &OwnedFd, pod: &Path) -> Result<(), TearDownError> {
        let top = pod.join("volumes");
        let failed = |path: &Path| {
            let path = path.to_owned();
            move |source| TearDownError { path, source }
        };
        let Some(volumes) = beneath::directory(own, "volumes").map_err(failed(&top))? else {
            return Ok(());
        };
        let ours: Vec<String> = Plugin::ALL.iter().map(|p| self.plugin_directory(*p)).collect();
        for (plugin, _) in beneath::entries(&volumes).map_err(failed(&top))? {
            let path = top.join(&plugin);
            let opened = beneath::directory(&volumes, &plugin).map_err(failed(&path))?;
            let Some(inner) = opened.filter(|_| !ours.contains(&plugin)) else { continue };
            for (name, _) in beneath::entries(&inner).map_err(failed(&path))? {
                beneath::remove_empty(&inner, &name).map_err(failed(&path.join(&name)))?;
            }
        }
        Ok(())
    }

    /// Whether the pods' own directories lie in what is open as `part`.
    fn lie_in(&self, part: &OwnedFd) -> bool {
        host_path::real_of(part).map_or(true, |path| self.pods.starts_with(path))
    }

    /// Whether the pods' own directories lie below a path of the node. A copy of such a path's mounts would hold every copy made before.
    #[must_use]
    pub fn lie_below(&self, path: &str) -> bool {
        let Ok(path) = host_path::real(path) else { return true };
        self.pods.starts_with(path)
    }

    /// Opens the root of a volume: one of the agent's own without following any link, a path of the node as it is.
    fn open_root(&self, root: &Path) -> rustix::io::Result<OwnedFd> {
        match root.strip_prefix(&self.pods) {
            Ok(below) => {
                let pods = beneath::open_directory(&self.pods)?;
                let below = below.to_str().ok_or(Errno::INVAL)?;
                beneath::directory(pods, below)?.ok_or(Errno::NOENT)
            }
            Err(_) => beneath::open_directory(root),
        }
    }

    /// The place of a mount that a pod gets, made if need be, and whether something is mounted there.
    ///
    /// # Errors
    /// What the kernel says.
    pub fn place(
        &self,
        uid: &str,
        plugin: Plugin,
        name: &str,
    ) -> rustix::io::Result<(PathBuf, bool)> {
        let parent = self.parent(uid, plugin, name)?;
        let directory = beneath::make_directory(parent, name, PRIVATE)?;
        Ok((self.directory(uid, plugin, name), beneath::is_mount_point(directory)?))
    }

    /// Binds what is open as `source` to its place in a pod's directory, unless something is mounted there; where, and whether it was
    /// bound by this call.
    ///
    /// # Errors
    /// What the kernel says.
    pub fn bind(
        &self,
        uid: &str,
        plugin: Plugin,
        name: &str,
        source: &OwnedFd,
    ) -> rustix::io::Result<(PathBuf, bool)> {
        let (path, mounted) = self.place(uid, plugin, name)?;
        if !mounted {
            let parent = self.parent(uid, plugin, name)?;
            mount::bind(source, beneath::make_directory(parent, name, PRIVATE)?)?;
        }
        Ok((path, !mounted))
    }

    /// Takes the bound parts of a pod's volumes down, which keep the volumes themselves busy. Safe to repeat.
    ///
    /// # Errors
    /// What is still there, and why.
    pub fn tear_down_parts(&self, uid: &str) -> Result<(), TearDownError> {
        let pod = self.pods.join(uid);
        let failed = |path: PathBuf| move |source| TearDownError { path, source };
        if !is_plain(uid) {
            return Err(failed(pod)(Errno::INVAL));
        }
        let pods = match beneath::open_directory(&self.pods) {
            Err(Errno::NOENT) => return Ok(()),
            opened => opened.map_err(failed(self.pods.clone()))?,
        };
        match beneath::directory(&pods, uid).map_err(failed(pod.clone()))? {
            Some(own) => sub_path::take_down(&own)
                .map_err(|(path, source)| TearDownError { path: pod.join(path), source }),
            None => Ok(()),
        }
    }

    /// Gives what lies on a volume to a group; see [`fs_group::give`].
    ///
    /// # Errors
    /// What the kernel says.
    pub fn give(
        &self,
        root: &Path,
        gid: u32,
        read_only: bool,
        change: Change,
    ) -> rustix::io::Result<()> {
        fs_group::give(self.open_root(root)?, gid, read_only, change)
    }

    fn write(
        &self,
        uid: &str,
        volume: &Volume,
        projected: &Projected,
        payload: &Payload,
        ownership: Ownership,
    ) -> Result<Written, SetUpError> {
        let name = volume.name.as_str();
        let path = self.directory(uid, projected.plugin, name);
        let failed = |source| prepare(volume, &path, source);
        let refused = |source| SetUpError::Write { volume: name.into(), source };
        let parent = self.parent(uid, projected.plugin, name).map_err(failed)?;
        if !projected.plugin.in_memory() {
            let directory = beneath::make_directory(&parent, name, TOP).map_err(failed)?;
            own_top(&directory, TOP, ownership).map_err(failed)?;
            return Tree::new(directory, ownership).write(payload).map_err(refused);
        }
        let mode = TOP | 0o1000;
        let tmpfs =
            Tmpfs { size_bytes: Some(SECRETS_BYTES_MAX), mode, swap: Swap::Never, exec: false };
        let mut first = None;
        let top = mount::tmpfs_on(&parent, name, tmpfs, |top| {
            own_top(top, mode, ownership)?;
            let top = top.try_clone().map_err(|_| Errno::MFILE)?;
            first = Some(Tree::new(top, ownership).write(payload).map_err(NewError::Tree)?);
            Ok(())
        });
        let top = top.map_err(|error| match error {
            NewError::Kernel(source) => failed(source),
            NewError::Tree(source) => refused(source),
        })?;
        match first {
            Some(written) => Ok(written),
            None => Tree::new(top, ownership).write(payload).map_err(refused),
        }
    }

    /// Opens the directory of a plugin's volumes of a pod, made if need be.
    fn parent(&self, uid: &str, plugin: Plugin, volume: &str) -> rustix::io::Result<OwnedFd> {
        if !is_plain(uid) || !is_plain(volume) {
            return Err(Errno::INVAL);
        }
        if !self.pods.is_dir() {
            private::make(&self.pods)
                .map_err(|error| Errno::from_io_error(&error).unwrap_or(Errno::IO))?;
        }
        let mut directory = beneath::open_directory(&self.pods)?;
        for name in [uid, "volumes", &self.plugin_directory(plugin)] {
            directory = beneath::make_directory(directory, name, PRIVATE)?;
        }
        Ok(directory)
    }

    fn directory(&self, uid: &str, plugin: Plugin, volume: &str) -> PathBuf {
        self.pods.join(uid).join("volumes").join(self.plugin_directory(plugin)).join(volume)
    }

    /// Where a volume lies below its pod's directory.
    pub(crate) fn below(&self, plugin: Plugin, volume: &str) -> String {
        format!("volumes/{}/{volume}", self.plugin_directory(plugin))
    }

    fn plugin_directory(&self, plugin: Plugin) -> String {
        format!("{}~{}", self.domain, plugin.name())
    }
}

fn prepare(volume: &Volume, path: &Path, source: Errno) -> SetUpError {
    SetUpError::Prepare { volume: volume.name.clone(), path: path.into(), source }
}

/// Why a new file system in memory did not come to be.
enum NewError {
    Kernel(Errno),
    Tree(TreeError),
}

impl From<Errno> for NewError {
    fn from(error: Errno) -> Self {
        Self::Kernel(error)
    }
}

/// Gives the top of a projected volume its mode and group, unless it has them.
fn own_top(top: &OwnedFd, mode: u32, ownership: Ownership) -> rustix::io::Result<()> {
    let mode = mode | if ownership.gid.is_some() { 0o2000 } else { 0 };
    let stat = rustix::fs::fstat(top)?;
    if let Some(gid) = ownership.gid.filter(|gid| *gid != stat.st_gid) {
        rustix::fs::fchown(top, None, Some(Gid::from_raw(gid)))?;
    }
    if stat.st_mode & 0o7777 == mode {
        return Ok(());
    }
    rustix::fs::fchmod(top, Mode::from_raw_mode(mode))
}

/// The token at `path` of a projected volume.
fn read_token(volume: &Path, path: &str) -> Option<String> {
    let tree = Tree::new(beneath::open_directory(volume).ok()?, Ownership::default());
    let mut token = String::new();
    let read = tree.open(path).ok()??.take(TOKEN_LEN_MAX).read_to_string(&mut token);
    read.ok().filter(|length| *length > 0).map(|_| token)
}

/// Takes one volume down: our file system in memory with its content, or the directory on disk with it.
fn take_down(volumes: impl AsFd, name: &str, plugin: Plugin) -> rustix::io::Result<()> {
    if plugin.is_bound() {
        // What was bound or mounted here is somebody's data: it is let go of, never removed.
        mount::unmount(volumes.as_fd(), name)?;
        return beneath::remove_empty(volumes, name);
    }
    if let Some(directory) = beneath::directory(volumes.as_fd(), name)?
        && beneath::is_mount_point(&directory)?
    {
        if !mount::is_in_memory(&directory)? {
            return Err(Errno::BUSY); // not made by us
        }
        drop(directory);
        mount::unmount(volumes.as_fd(), name)?;
    }
    beneath::remove(volumes, name)
}

/// A name that is one directory and not a way to another.
fn is_plain(name: &str) -> bool {
    !name.is_empty() && name != "." && name != ".." && !name.contains(['/', '\0'])
}

#[cfg(test)]
mod tests;
