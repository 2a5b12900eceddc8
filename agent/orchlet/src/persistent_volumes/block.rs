//! Disks that bear a persistent volume: attached if need be, given a file system if they have none, mounted once a node and bound into
//! each pod that has the volume. After the last pod's end it is undone.
//!
//! ```text
//! <root>/plugins/<domain>/<kind>/mounts/<mount name>         the mount, named by its disk
//! <root>/plugins/<domain>/<kind>/mounts/<mount name>.json    what has to be undone and which pods have it; written before it is done
//! <root>/pods/<uid>/volumes/<domain>~<kind>/<spec name>      a pod's; while it is there, the pod has the disk
//! ```

mod detach;

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use agent_csi::offload;
use agent_volume::PodVolumes;
use agent_volume::devices;
use agent_volume::disk::{self, Run, Step};
use agent_volume::host_path;
use agent_volume::persistent::Attached;
use agent_volume::persistent::attached::Iscsi;
use agent_volume::shared_mounts::{Pending, SharedMounts, User};
use agent_volume::sources::{HostPathKind, Plugin};
use futures_util::stream::{FuturesUnordered, StreamExt as _};
use proto_api::core::v1::Secret;
use tokio::sync::{Mutex as Turn, Notify, watch};

use super::helpers::Helpers;
use crate::pods::ports::Line;

/// How long the kernel is given to show a disk after it was attached.
const APPEARS: Duration = Duration::from_secs(10);
/// How long other ways to a disk are waited for when there is one.
const BESIDE: Duration = Duration::from_secs(5);
/// How often it is looked for meanwhile.
const LOOK: Duration = Duration::from_millis(200);
/// Where the kernel's disks have their names.
const BY_NAME: &str = "/dev/disk";
/// Kinds of disks that the node attaches.
const ATTACHED: [Plugin; 2] = [Plugin::Iscsi, Plugin::Fc];

/// The disk of a volume.
#[derive(Clone, Copy, Debug)]
pub enum Source<'a> {
    /// A device of the node, by its path.
    Device(&'a str),
    /// One that is attached.
    Attached(&'a Attached),
}

impl Source<'_> {
    /// The kind of volume.
    pub fn plugin(self) -> Plugin {
        match self {
            Self::Device(_) => Plugin::Local,
            Self::Attached(Attached::Iscsi(_)) => Plugin::Iscsi,
            Self::Attached(Attached::FibreChannel(_)) => Plugin::Fc,
        }
    }
}

/// A volume on a disk.
#[derive(Clone, Copy, Debug)]
pub struct OnDisk<'a> {
    /// Name of the persistent volume, or of the pod's that has none.
    pub name: &'a str,
    /// The disk.
    pub source: Source<'a>,
    /// Type of its file system; the default when empty.
    pub fs_type: &'a str,
    /// Whether nobody may write to it.
    pub read_only: bool,
    /// Options of its mount.
    pub options: &'a [String],
    /// What attaching it needs.
    pub secret: Option<&'a Secret>,
}

impl OnDisk<'_> {
    /// Name of its mount, which all pods of the node have together.
    fn mount_name(&self) -> String {
        match self.source {
            Source::Device(_) => self.name.to_owned(),
            Source::Attached(disk) => disk.mount_name(),
        }
    }
}

/// Disks of this node's pods.
pub struct Disks {
    mounts: SharedMounts,
    helpers: Arc<dyn Helpers>,
    /// Where disks have their names.
    by_name: PathBuf,
    /// Calls for one mount take turns, and those that begin or end the sessions with one target.
    turns: Mutex<BTreeMap<String, Arc<Turn<()>>>>,
    /// Told when a pod has let go of its volumes.
    ended: Notify,
    /// What the node lists as in use, by name of the mount.
    listed: Mutex<BTreeMap<String, String>>,
    /// Told when that changes.
    changes: watch::Sender<u64>,
}

impl Disks {
    /// Disks whose mounts lie below the agent's directory, with those that an earlier process has attached. `changes` is told when one
    /// comes into or out of use.
    pub fn new(
        mounts: SharedMounts,
        helpers: Arc<dyn Helpers>,
        changes: watch::Sender<u64>,
    ) -> Self {
        // One that cannot be read is told of when it is to be undone.
        let before = ATTACHED.iter().filter_map(|plugin| mounts.pending(*plugin).ok()).flatten();
        let listed = before.filter(|of| !of.listed.is_empty()).map(|of| (of.name, of.listed));
        let listed = Mutex::new(listed.collect());
        let (by_name, turns, ended) = (BY_NAME.into(), Mutex::default(), Notify::new());
        Self { mounts, helpers, by_name, turns, ended, listed, changes }
    }

    /// Names of the disks that are attached, or about to be, as the Node object lists them.
    pub fn in_use(&self) -> Vec<String> {
        let each: BTreeSet<_> = self.of_node().values().cloned().collect();
        each.into_iter().collect()
    }

    fn of_node(&self) -> MutexGuard<'_, BTreeMap<String, String>> {
        self.listed.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn tell(&self) {
        self.changes.send_modify(|number| *number += 1);
    }

    /// Binds a volume into a pod, after mounting it if no other pod has it; where, and whether this call has bound it.
    ///
    /// # Errors
    /// What is wrong with the disk, or which program is missing.
    pub async fn bind(
        &self,
        pods: &PodVolumes,
        uid: &str,
        volume: OnDisk<'_>,
    ) -> Result<(PathBuf, bool), Line> {
        let (plugin, mount) = (volume.source.plugin(), volume.mount_name());
        let turn = self.turn(&mount);
        let _mine = turn.lock().await;
        let (pods_of, of, name) = (pods.clone(), uid.to_owned(), volume.name.to_owned());
        // the pod's place first: whoever undoes the mount looks for those
        let place = move || pods_of.place(&of, plugin, &name);
        let (path, bound) = work(place).await?;
        if bound {
            return Ok((path, false));
        }
        self.note(pods, uid, volume).await?;
        self.mounted(pods, volume).await?;
        let (mounts, pods_of) = (self.mounts.clone(), pods.clone());
        let (of, name) = (uid.to_owned(), volume.name.to_owned());
        work(move || {
            let source = mounts.open(plugin, &mount)?;
            pods_of.bind(&of, plugin, &name, &source)
        })
        .await
    }

    /// The device of a volume that a pod has as a device.
    ///
    /// # Errors
    /// See [`Disks::bind`].
    pub async fn device(
        &self,
        pods: &PodVolumes,
        uid: &str,
        volume: OnDisk<'_>,
    ) -> Result<PathBuf, Line> {
        let plugin = volume.source.plugin();
        let turn = self.turn(&volume.mount_name());
        let _mine = turn.lock().await;
        let (pods_of, of, name) = (pods.clone(), uid.to_owned(), volume.name.to_owned());
        work(move || pods_of.place(&of, plugin, &name)).await?;
        self.note(pods, uid, volume).await?;
        self.attach(volume).await.map(PathBuf::from)
    }

    async fn mounted(&self, pods: &PodVolumes, volume: OnDisk<'_>) -> Result<(), Line> {
        let (mounts, name) = (self.mounts.clone(), volume.mount_name());
        let plugin = volume.source.plugin();
        let (pods, writes) = (pods.clone(), !volume.read_only);
        let place = move || {
            let (target, there) = mounts.place(plugin, &name)?;
            let frozen = there && writes && mounts.is_read_only(plugin, &name)?;
            let held = frozen && is_bound(&pods, &mounts, plugin, &name)?;
            if frozen && !held {
                // whoever wanted only to read has gone
                mounts.unmount(plugin, &name)?;
                return mounts.place(plugin, &name).map(|(target, there)| (target, there, false));
            }
            Ok((target, there, held))
        };
        let (target, there, held) = work(place).await?;
        if held {
            return Err("the disk is mounted read-only for another pod of this node".to_owned());
        }
        if there {
            return Ok(());
        }
        let device = self.attach(volume).await?;
        let answer = self.helpers.run(&disk::probe(&device)).await?;
        let found = disk::content(&answer);
        let (step, fs_type) = disk::step(&device, &found, volume.fs_type, volume.read_only)?;
        match step {
            Step::Format(run) => {
                tracing::info!(device, fs_type, volume = volume.name, "makes a file system");
                self.helpers.run(&run).await?;
            }
            Step::Check(run) => {
                self.helpers.run(&run).await.map_err(|error| {
                    format!("errors on device {device} could not be corrected: {error}")
                })?;
            }
            Step::None => {}
        }
        let mut options = volume.options.to_vec();
        if volume.read_only {
            options.push("ro".to_owned());
        }
        let run = disk::mount(&device, &fs_type, &options, &target.to_string_lossy());
        Ok(self.helpers.run(&run).await.map(drop)?)
    }

    /// Writes down, before anything is done, what will have to be undone when this pod and the others have gone.
    async fn note(&self, pods: &PodVolumes, uid: &str, volume: OnDisk<'_>) -> Result<(), Line> {
        let (plugin, name) = (volume.source.plugin(), volume.mount_name());
        let (session, listed) = match volume.source {
            Source::Device(_) => (None, String::new()),
            Source::Attached(disk) => {
                let session =
                    if let Attached::Iscsi(disk) = disk { Some(disk.clone()) } else { None };
                (session, self.mounts.listed(plugin, disk.name()))
            }
        };
        if !listed.is_empty() && self.of_node().insert(name.clone(), listed.clone()).is_none() {
            self.tell();
        }
        let user = User { uid: uid.to_owned(), volume: volume.name.to_owned() };
        let (mounts, pods) = (self.mounts.clone(), pods.clone());
        work(move || {
            let before = mounts.pending_of(plugin, &name)?;
            let mut users = before.map(|pending| pending.users).unwrap_or_default();
            users.retain(|user| pods.has(plugin, user).unwrap_or(true));
            if !users.contains(&user) {
                users.push(user);
            }
            mounts.note(plugin, &Pending { name, users, session, listed })
        })
        .await
    }

    /// The path of the device, attached.
    async fn attach(&self, volume: OnDisk<'_>) -> Result<String, Line> {
        match volume.source {
            Source::Device(path) => {
                let path = path.to_owned();
                let checked = path.clone();
                let check = move || host_path::check(&checked, HostPathKind::BlockDevice);
                let done = offload(check).await.map_err(|e| e.to_string())?;
                done.map_err(|e| proto_daemon::exit::chain(&e)).map(|()| path)
            }
            Source::Attached(disk) => self.attach_disk(disk, volume.secret).await,
        }
    }

    async fn attach_disk(&self, disk: &Attached, secret: Option<&Secret>) -> Result<String, Line> {
        match disk {
            Attached::Iscsi(iscsi) => {
                // a disk that is shown may be one whose session is just being ended
                let turn = self.turn(&iscsi.iqn);
                let _mine = turn.lock().await;
                if let Some(path) = self.shown(disk).await? {
                    return Ok(path);
                }
                self.log_in(iscsi, secret).await?;
            }
            Attached::FibreChannel(_) => {
                if let Some(path) = self.shown(disk).await? {
                    return Ok(path);
                }
                work(devices::rescan).await?;
            }
        }
        let deadline = tokio::time::Instant::now() + APPEARS;
        loop {
            if let Some(path) = self.shown(disk).await? {
                return Ok(path);
            }
            if tokio::time::Instant::now() > deadline {
                let links = disk.links().join(", ");
                return Err(format!("no disk has appeared as {links}"));
            }
            tokio::time::sleep(LOOK).await;
        }
    }

    /// A session by one portal is enough; the others are ways beside it, tried at the same time.
    async fn log_in(&self, disk: &Iscsi, secret: Option<&Secret>) -> Result<(), Line> {
        let portals = disk.log_in(secret)?;
        self.run_all(&disk.prepare()).await?;
        let mut under_way: FuturesUnordered<_> =
            portals.iter().map(|portal| self.run_all(portal)).collect();
        let mut outcome = Err("no portal".to_owned());
        while let Some(done) = under_way.next().await {
            outcome = done;
            if outcome.is_ok() {
                // Cancel safe: a session that comes later is ended with the others.
                let others = async { while under_way.next().await.is_some() {} };
                let _ = tokio::time::timeout(BESIDE, others).await;
                break;
            }
        }
        outcome
    }

    async fn run_all(&self, runs: &[Run]) -> Result<(), Line> {
        for run in runs {
            self.helpers.run(run).await?;
        }
        Ok(())
    }

    async fn shown(&self, disk: &Attached) -> Result<Option<String>, Line> {
        let (root, links) = (self.by_name.clone(), disk.links());
        work(move || Ok(devices::device_of(&root, &links))).await
    }

    fn turn(&self, of: &str) -> Arc<Turn<()>> {
        let mut turns = self.turns.lock().unwrap_or_else(PoisonError::into_inner);
        turns.entry(of.to_owned()).or_default().clone()
    }

    /// Forgets turns that nobody takes or waits for.
    fn forget_turns(&self) {
        let mut turns = self.turns.lock().unwrap_or_else(PoisonError::into_inner);
        turns.retain(|_, turn| Arc::strong_count(turn) > 1);
    }
}

/// Whether a mount is bound into a pod.
fn is_bound(
    pods: &PodVolumes,
    mounts: &SharedMounts,
    plugin: Plugin,
    name: &str,
) -> rustix::io::Result<bool> {
    for user in mounts.pending_of(plugin, name)?.map(|of| of.users).unwrap_or_default() {
        if pods.has_bound(plugin, &user)? {
            return Ok(true);
        }
    }
    Ok(false)
}

/// What the kernel is asked, off the threads that must not block.
async fn work<T: Send + 'static>(
    work: impl FnOnce() -> rustix::io::Result<T> + Send + 'static,
) -> Result<T, Line> {
    let done = offload(work).await.map_err(|e| format!("work on a disk broke off: {e}"))?;
    done.map_err(|error| error.to_string())
}

/// For tests: where disks have their names.
#[cfg(test)]
impl Disks {
    fn with_names_at(self, root: &std::path::Path) -> Self {
        Self { by_name: root.to_owned(), ..self }
    }
}

#[cfg(test)]
mod tests;
