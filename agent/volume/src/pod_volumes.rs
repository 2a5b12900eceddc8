//! The volumes of all pods of a node, in the kubelet's directory layout.
//!
//! ```text
//! <root>/pods/<uid>/volumes/<domain>~<plugin>/<volume>
//!                           kubernetes.io~configmap/settings      on disk
//!                           kubernetes.io~projected/api-access    a file system in memory each
//! ```

mod sub_path_mounts;

use std::collections::BTreeMap;
use std::io::Read as _;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};

use proto_api::names::Names;
use rustix::fs::{Gid, Mode};
use rustix::io::Errno;

use crate::fs_group::{self, FsGroupChangePolicy};
use crate::host_path::{self, HostPathError};
use crate::mount::{self, SECRETS_BYTES_MAX, Swap, Tmpfs};
use crate::payload::Payload;
use crate::private_dirs::{self, MODE as PRIVATE};
use crate::sources::{
    self, Medium, PayloadInputs, Projected, Projection, SourceError, TokenWant, Volume, VolumeKind,
    VolumePlugin,
};
use crate::sub_path;
use crate::tree::{Ownership, Tree, TreeError, TreeWrite};
use crate::{beneath, empty_dir};

/// Mode of the top directory of a projected volume; containers mount it read-only.
const TOP: u32 = 0o777;

/// Longest token that is read back, in bytes.
const TOKEN_LEN_MAX: u64 = 64 << 10;

/// Why a volume was not set up. A volume that was set up before is unchanged. With its cause the text is the kubelet's, including
/// the space before the second colon.
#[derive(Debug, thiserror::Error)]
pub enum SetUpError {
    /// Its content cannot be determined.
    #[error("MountVolume.SetUp failed for volume {volume:?} ")]
    Source {
        /// Name of the volume.
        volume: String,
        /// Cause.
        #[source]
        source: SourceError,
    },
    /// Its files could not be written.
    #[error("MountVolume.SetUp failed for volume {volume:?} ")]
    Write {
        /// Name of the volume.
        volume: String,
        /// Cause.
        #[source]
        source: TreeError,
    },
    /// The `hostPath` does not match its type.
    #[error("MountVolume.SetUp failed for volume {volume:?} ")]
    HostPath {
        /// Name of the volume.
        volume: String,
        /// Cause.
        #[source]
        source: HostPathError,
    },
    /// Its directory or file system could not be created.
    #[error("MountVolume.SetUp failed for volume {volume:?} : prepare {}", path.display())]
    Prepare {
        /// Name of the volume.
        volume: String,
        /// Path of the directory.
        path: PathBuf,
        /// Cause.
        #[source]
        source: Errno,
    },
}

/// Why the volumes of a pod were not removed completely.
#[derive(Debug, thiserror::Error)]
#[error("cannot remove {}", path.display())]
pub struct TearDownError {
    /// What could not be removed.
    pub path: PathBuf,
    /// Cause; `EBUSY` if another program mounted something there.
    #[source]
    pub source: Errno,
}

/// A volume that is set up.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReadyVolume {
    /// Path on the host.
    pub path: PathBuf,
    /// Whether it is a mounted file system, now or before.
    pub mounted: bool,
    /// Result of the write, for a projected volume.
    pub written: Option<TreeWrite>,
}

/// Volumes of pods below one root directory.
#[derive(Clone, Debug)]
pub struct VolumesOnDisk {
    pods: PathBuf,
    domain: String,
}

impl VolumesOnDisk {
    /// Volumes below `<root>/pods`.
    #[must_use]
    pub fn new(root: &Path, names: &Names) -> Self {
        Self { pods: root.join("pods"), domain: names.label_domain().into() }
    }

    /// Path of a volume on the host.
    #[must_use]
    pub fn path(&self, uid: &str, volume: &Volume) -> PathBuf {
        match &volume.kind {
            VolumeKind::Projected(projected) => self.directory(uid, projected.plugin, &volume.name),
            VolumeKind::EmptyDir(_) => self.directory(uid, VolumePlugin::EmptyDir, &volume.name),
            VolumeKind::HostPath { path, .. } => path.into(),
            VolumeKind::Persistent => PathBuf::new(),
        }
    }

    /// Sets up or refreshes a volume. Idempotent, also after a crash.
    ///
    /// # Errors
    /// See [`SetUpError`].
    pub fn set_up(
        &self,
        inputs: &PayloadInputs<'_>,
        volume: &Volume,
    ) -> Result<ReadyVolume, SetUpError> {
        let uid = inputs.pod.metadata.uid.as_str();
        let path = self.path(uid, volume);
        let name = || volume.name.clone();
        match &volume.kind {
            VolumeKind::HostPath { path: on_host, kind } => {
                host_path::check(on_host, *kind)
                    .map_err(|source| SetUpError::HostPath { volume: name(), source })?;
                Ok(ReadyVolume { path, mounted: false, written: None })
            }
            VolumeKind::EmptyDir(medium) => {
                let medium = &medium.limited_to(inputs.allocatable);
                let made =
                    self.parent(uid, VolumePlugin::EmptyDir, &volume.name).and_then(|parent| {
                        empty_dir::set_up(
                            parent,
                            &volume.name,
                            medium,
                            sources::fs_group(inputs.pod),
                        )
                    });
                made.map_err(|source| prepare(volume, &path, source))?;
                Ok(ReadyVolume { path, mounted: *medium != Medium::Disk, written: None })
            }
            VolumeKind::Persistent => Ok(ReadyVolume { path, mounted: false, written: None }),
            VolumeKind::Projected(projected) => {
                let payload = projected.payload(inputs);
                let payload =
                    payload.map_err(|source| SetUpError::Source { volume: name(), source })?;
                let ownership = projected.ownership(inputs.pod);
                let written = self.write(uid, volume, projected, &payload, ownership)?;
                let mounted = projected.plugin.is_in_memory();
                Ok(ReadyVolume { path, mounted, written: Some(written) })
            }
        }
    }

    /// Removes the previous generation of a projected volume. To be called at least [`crate::tree::LINGER`] after a switch.
    ///
    /// # Errors
    /// Something could not be removed; the next switch retries.
    pub fn sweep(&self, uid: &str, volume: &Volume) -> Result<(), TearDownError> {
        let VolumeKind::Projected(projected) = &volume.kind else { return Ok(()) };
        let path = self.directory(uid, projected.plugin, &volume.name);
        let failed = |source| TearDownError { path: path.clone(), source };
        if !is_plain(uid) || !is_plain(&volume.name) {
            return Err(failed(Errno::INVAL));
        }
        // Opened, never created: the pod may have been removed since the switch.
        let Ok(pods) = beneath::open_directory(&self.pods) else { return Ok(()) };
        let plugin = self.plugin_directory(projected.plugin);
        let below = format!("{uid}/volumes/{plugin}/{}", volume.name);
        let Some(root) = beneath::open_existing(&pods, &below).map_err(failed)? else {
            return Ok(());
        };
        match Tree::new(root, Ownership::default()).sweep() {
            Err(TreeError::Inspect(source)) => Err(failed(source)),
            _ => Ok(()),
        }
    }

    /// The tokens in a pod's volumes, as written before a restart of the agent.
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

    /// Opens a pod's directory, if it exists.
    pub(crate) fn open_pod(&self, uid: &str) -> rustix::io::Result<Option<OwnedFd>> {
        if !is_plain(uid) {
            return Err(Errno::INVAL);
        }
        match beneath::open_directory(&self.pods) {
            Err(Errno::NOENT) => Ok(None),
            pods => beneath::open_existing(pods?, uid),
        }
    }

    /// Whether anything of a pod is on disk.
    #[must_use]
    pub fn has_any(&self, uid: &str) -> bool {
        is_plain(uid) && self.pods.join(uid).symlink_metadata().is_ok()
    }

    /// Uids of all pods with files on disk.
    ///
    /// # Errors
    /// The directory cannot be read.
    pub fn uids(&self) -> std::io::Result<Vec<String>> {
        match std::fs::read_dir(&self.pods) {
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(Vec::new()),
            Err(error) => Err(error),
            Ok(entries) => {
                entries.map(|entry| Ok(entry?.file_name().to_string_lossy().into_owned())).collect()
            }
        }
    }

    /// Removes all volumes of a pod and its directory. Only file systems mounted by this crate are unmounted, and no other mount
    /// is entered, so a foreign volume stops the removal with an error and keeps its data.
    ///
    /// # Errors
    /// What is left, and the cause; may be retried.
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
        let Some(own) = beneath::open_existing(&pods, uid).map_err(failed(pod.clone()))? else {
            return Ok(());
        };
        self.tear_down_parts(uid)?;
        for plugin in VolumePlugin::ALL {
            let directory = format!("{uid}/volumes/{}", self.plugin_directory(plugin));
            let opened = beneath::open_existing(&pods, &directory);
            let Some(volumes) = opened.map_err(failed(self.pods.join(&directory)))? else {
                continue;
            };
            let entries = beneath::list_entries(&volumes);
            for (name, _) in entries.map_err(failed(self.pods.join(&directory)))? {
                tear_down_volume(&volumes, &name, plugin)
                    .map_err(failed(self.pods.join(&directory).join(&name)))?;
            }
        }
        self.check_nothing_foreign(&own, &pod)?;
        drop(own);
        beneath::remove(&pods, uid).map_err(failed(pod))
    }

    /// Checks that only empty directories are left below `volumes`: anything else was not created by this crate and stays.
    fn check_nothing_foreign(&self, own: &OwnedFd, pod: &Path) -> Result<(), TearDownError> {
        let top = pod.join("volumes");
        let failed = |path: &Path| {
            let path = path.to_owned();
            move |source| TearDownError { path, source }
        };
        let Some(volumes) = beneath::open_existing(own, "volumes").map_err(failed(&top))? else {
            return Ok(());
        };
        let ours: Vec<String> =
            VolumePlugin::ALL.iter().map(|p| self.plugin_directory(*p)).collect();
        for (plugin, _) in beneath::list_entries(&volumes).map_err(failed(&top))? {
            let path = top.join(&plugin);
            let opened = beneath::open_existing(&volumes, &plugin).map_err(failed(&path))?;
            let Some(inner) = opened.filter(|_| !ours.contains(&plugin)) else { continue };
            for (name, _) in beneath::list_entries(&inner).map_err(failed(&path))? {
                beneath::remove_empty(&inner, &name).map_err(failed(&path.join(&name)))?;
            }
        }
        Ok(())
    }

    /// Whether the pods' directories are inside the open directory `part`.
    fn are_inside(&self, part: &OwnedFd) -> bool {
        host_path::opened_path(part).map_or(true, |path| self.pods.starts_with(path))
    }

    /// Whether the pods' directories are below a path of the node. A recursive copy of such a path's mounts would contain every
    /// earlier copy.
    #[must_use]
    pub fn are_below(&self, path: &str) -> bool {
        let Ok(path) = host_path::resolve_path(path) else { return true };
        self.pods.starts_with(path)
    }

    /// Opens the root of a volume: one of the agent without following links, a path of the node with links.
    fn open_root(&self, root: &Path) -> rustix::io::Result<OwnedFd> {
        match root.strip_prefix(&self.pods) {
            Ok(below) => {
                let pods = beneath::open_directory(&self.pods)?;
                let below = below.to_str().ok_or(Errno::INVAL)?;
                beneath::open_existing(pods, below)?.ok_or(Errno::NOENT)
            }
            Err(_) => beneath::open_directory(root),
        }
    }

    /// The mount point for a pod's volume, created if it does not exist, and whether something is mounted there.
    ///
    /// # Errors
    /// Errors of the kernel.
    pub fn mount_point(
        &self,
        uid: &str,
        plugin: VolumePlugin,
        name: &str,
    ) -> rustix::io::Result<(PathBuf, bool)> {
        let parent = self.parent(uid, plugin, name)?;
        let directory = beneath::make_directory(parent, name, PRIVATE)?;
        Ok((self.directory(uid, plugin, name), beneath::is_mount_point(directory)?))
    }

    /// Bind-mounts the open file `source` into a pod's directory unless something is mounted there; returns the path, and whether
    /// this call mounted it.
    ///
    /// # Errors
    /// Errors of the kernel.
    pub fn bind(
        &self,
        uid: &str,
        plugin: VolumePlugin,
        name: &str,
        source: &OwnedFd,
    ) -> rustix::io::Result<(PathBuf, bool)> {
        let (path, mounted) = self.mount_point(uid, plugin, name)?;
        if !mounted {
            let parent = self.parent(uid, plugin, name)?;
            mount::bind(source, beneath::make_directory(parent, name, PRIVATE)?)?;
        }
        Ok((path, !mounted))
    }

    /// Unmounts the bind mounts of parts of a pod's volumes, which keep the volumes busy. Idempotent.
    ///
    /// # Errors
    /// What is left, and the cause.
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
        match beneath::open_existing(&pods, uid).map_err(failed(pod.clone()))? {
            Some(own) => sub_path::tear_down(&own)
                .map_err(|(path, source)| TearDownError { path: pod.join(path), source }),
            None => Ok(()),
        }
    }

    /// Applies `fsGroup` to a volume; see [`fs_group::apply_group`].
    ///
    /// # Errors
    /// Errors of the kernel.
    pub fn apply_fs_group(
        &self,
        root: &Path,
        gid: u32,
        read_only: bool,
        change: FsGroupChangePolicy,
    ) -> rustix::io::Result<()> {
        fs_group::apply_group(self.open_root(root)?, gid, read_only, change)
    }

    fn write(
        &self,
        uid: &str,
        volume: &Volume,
        projected: &Projected,
        payload: &Payload,
        ownership: Ownership,
    ) -> Result<TreeWrite, SetUpError> {
        let name = volume.name.as_str();
        let path = self.directory(uid, projected.plugin, name);
        let failed = |source| prepare(volume, &path, source);
        let refused = |source| SetUpError::Write { volume: name.into(), source };
        let parent = self.parent(uid, projected.plugin, name).map_err(failed)?;
        if !projected.plugin.is_in_memory() {
            let directory = beneath::make_directory(&parent, name, TOP).map_err(failed)?;
            set_top_mode(&directory, TOP, ownership).map_err(failed)?;
            return Tree::new(directory, ownership).write(payload).map_err(refused);
        }
        let mode = TOP | 0o1000;
        let tmpfs =
            Tmpfs { size_bytes: Some(SECRETS_BYTES_MAX), mode, swap: Swap::Never, exec: false };
        let mut first = None;
        let top = mount::tmpfs_on(&parent, name, tmpfs, |top| {
            set_top_mode(top, mode, ownership)?;
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

    /// Opens the directory of a pod's volumes of a plugin; creates it if it does not exist.
    fn parent(&self, uid: &str, plugin: VolumePlugin, volume: &str) -> rustix::io::Result<OwnedFd> {
        if !is_plain(uid) || !is_plain(volume) {
            return Err(Errno::INVAL);
        }
        if !self.pods.is_dir() {
            private_dirs::make(&self.pods)
                .map_err(|error| Errno::from_io_error(&error).unwrap_or(Errno::IO))?;
        }
        let mut directory = beneath::open_directory(&self.pods)?;
        for name in [uid, "volumes", &self.plugin_directory(plugin)] {
            directory = beneath::make_directory(directory, name, PRIVATE)?;
        }
        Ok(directory)
    }

    fn directory(&self, uid: &str, plugin: VolumePlugin, volume: &str) -> PathBuf {
        self.pods.join(uid).join("volumes").join(self.plugin_directory(plugin)).join(volume)
    }

    /// Path of a volume relative to its pod's directory.
    pub(crate) fn relative_path(&self, plugin: VolumePlugin, volume: &str) -> String {
        format!("volumes/{}/{volume}", self.plugin_directory(plugin))
    }

    fn plugin_directory(&self, plugin: VolumePlugin) -> String {
        format!("{}~{}", self.domain, plugin.name())
    }
}

fn prepare(volume: &Volume, path: &Path, source: Errno) -> SetUpError {
    SetUpError::Prepare { volume: volume.name.clone(), path: path.into(), source }
}

/// Why an in-memory file system was not created.
enum NewError {
    Kernel(Errno),
    Tree(TreeError),
}

impl From<Errno> for NewError {
    fn from(error: Errno) -> Self {
        Self::Kernel(error)
    }
}

/// Sets mode and group of the top directory of a projected volume, if they differ.
fn set_top_mode(top: &OwnedFd, mode: u32, ownership: Ownership) -> rustix::io::Result<()> {
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

/// The token in the file `path` of a projected volume.
fn read_token(volume: &Path, path: &str) -> Option<String> {
    let tree = Tree::new(beneath::open_directory(volume).ok()?, Ownership::default());
    let mut token = String::new();
    let read = tree.open(path).ok()??.take(TOKEN_LEN_MAX).read_to_string(&mut token);
    read.ok().filter(|length| *length > 0).map(|_| token)
}

/// Removes one volume: unmounts an in-memory file system, or removes the directory on disk.
fn tear_down_volume(
    volumes: impl AsFd,
    name: &str,
    plugin: VolumePlugin,
) -> rustix::io::Result<()> {
    if plugin.is_bound() {
        // A bind mount or file system here holds data of others: it is unmounted, never removed. What is left was written below it.
        mount::unmount(volumes.as_fd(), name)?;
        return beneath::remove_unmounted(volumes, name);
    }
    if let Some(directory) = beneath::open_existing(volumes.as_fd(), name)?
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

/// Whether the name is a single plain path component.
fn is_plain(name: &str) -> bool {
    !name.is_empty() && name != "." && name != ".." && !name.contains(['/', '\0'])
}

#[cfg(test)]
mod tests;
