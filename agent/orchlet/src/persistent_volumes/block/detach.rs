//! Lets go of disks that no pod has any more. A pod's end does not wait for it: a disk that cannot be let go of holds up no deletion, is
//! told of and tried again, and counts as in use until then.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use agent_csi::waits::Waits;
use agent_volume::PodVolumes;
use agent_volume::devices;
use agent_volume::disk::{self, Run};
use agent_volume::persistent::attached::Iscsi;
use agent_volume::shared_mounts::Pending;
use agent_volume::sources::Plugin;
use futures_util::stream::{FuturesUnordered, StreamExt as _};
use rustix::io::Errno;
use tokio::time::{Instant, sleep_until};

use super::{Disks, work};
use crate::persistent_volumes::helpers::HelperError;
use crate::pods::ports::Line;

/// Kinds of volumes that lie on disks.
const KINDS: [Plugin; 3] = [Plugin::Local, Plugin::Iscsi, Plugin::Fc];

/// One mount: its kind and name.
type Mount = (&'static str, String);

impl Disks {
    /// A pod has let go of its volumes.
    pub fn pod_ended(&self) {
        self.ended.notify_one();
    }

    /// Lets go for ever of what no pod has any more, each disk by itself; `told` hears of each failure.
    pub async fn keep_let_go(&self, pods: &PodVolumes, told: impl Fn(&str)) {
        let mut waits: Waits<Mount> = Waits::default();
        let mut begun = BTreeSet::new();
        let mut under_way = FuturesUnordered::new();
        loop {
            let now = Instant::now();
            let abandoned = self.abandoned(pods).await.unwrap_or_else(|error| {
                told(&error);
                Vec::new()
            });
            for (plugin, pending) in abandoned {
                let what = (plugin.name(), pending.name);
                if !waits.is_due(&what, now) || !begun.insert(what.clone()) {
                    continue;
                }
                under_way.push(async move {
                    let done = self.undo(pods, plugin, &what.1).await;
                    (what, done)
                });
            }
            // All arms are cancel safe: they only say that it is time to look.
            tokio::select! {
                Some((what, outcome)) = under_way.next() => {
                    begun.remove(&what);
                    match outcome {
                        Ok(()) => waits.worked(&what),
                        Err(error) => {
                            told(&format!("UnmountDevice failed for volume {:?} : {error}", what.1));
                            waits.failed(what, Instant::now());
                        }
                    }
                }
                () = self.ended.notified() => {}
                () = sleep_until(waits.first(now)) => {}
            }
        }
    }

    /// What has to be undone by now.
    pub(super) async fn abandoned(
        &self,
        pods: &PodVolumes,
    ) -> Result<Vec<(Plugin, Pending)>, Line> {
        let (mounts, pods) = (self.mounts.clone(), pods.clone());
        work(move || {
            let mut found = Vec::new();
            for plugin in KINDS {
                for pending in mounts.pending(plugin)? {
                    if !is_used(&pods, plugin, &pending)? {
                        found.push((plugin, pending));
                    }
                }
            }
            Ok(found)
        })
        .await
    }

    /// Undoes one mount, unless a pod has it by now.
    pub(super) async fn undo(
        &self,
        pods: &PodVolumes,
        plugin: Plugin,
        name: &str,
    ) -> Result<(), Line> {
        let turn = self.turn(name);
        let mine = turn.lock().await;
        let (mounts, pods, of) = (self.mounts.clone(), pods.clone(), name.to_owned());
        let pending = work(move || {
            let Some(pending) = mounts.pending_of(plugin, &of)? else { return Ok(None) };
            if is_used(&pods, plugin, &pending)? {
                return Ok(None);
            }
            mounts.place(plugin, &of).map(|place| Some((pending, place)))
        });
        let Some((pending, (target, mounted))) = pending.await? else { return Ok(()) };
        if mounted {
            self.helpers.run(&disk::unmount(&target.to_string_lossy())).await?;
        }
        let (mounts, of) = (self.mounts.clone(), name.to_owned());
        work(move || mounts.unmount(plugin, &of)).await?;
        match &pending.session {
            Some(disk) => {
                // forgotten before the next who asks whether a session is needed
                let turn = self.turn(&disk.iqn);
                let _mine = turn.lock().await;
                self.log_out(plugin, name, disk).await?;
                self.forget(plugin, name).await?;
            }
            None => self.forget(plugin, name).await?,
        }
        drop(mine);
        drop(turn);
        self.forget_turns();
        Ok(())
    }

    async fn forget(&self, plugin: Plugin, name: &str) -> Result<(), Line> {
        let (mounts, of) = (self.mounts.clone(), name.to_owned());
        work(move || mounts.forget(plugin, &of)).await?;
        if self.of_node().remove(name).is_some() {
            self.tell();
        }
        Ok(())
    }

    /// Ends the sessions that nobody else needs; of the others only the disk goes.
    async fn log_out(&self, plugin: Plugin, name: &str, disk: &Iscsi) -> Result<(), Line> {
        let (mounts, root, links) = (self.mounts.clone(), self.by_name.clone(), disk.every_link());
        let (all, held) = work(move || {
            let device = devices::device_of(&root, &links);
            let held = device.is_some_and(|device| devices::is_held(Path::new(&device)));
            Ok((mounts.pending(plugin)?, held))
        })
        .await?;
        if held {
            // also unmounted it may still be written to, by the kernel
            return Err("the disk is still in use".to_owned());
        }
        let others = all.into_iter().filter(|pending| pending.name != name);
        let others: Vec<Iscsi> = others.filter_map(|pending| pending.session).collect();
        for portal in &disk.portals {
            let is_shared = others.iter().any(|other| other.shares(disk, portal));
            let (own, needed) = self.disks_by(disk, portal).await?;
            if is_shared || needed {
                work(move || forget_devices(&own)).await?;
                continue;
            }
            for run in disk.log_out(portal) {
                self.run_where_there_is_one(&run).await?;
            }
        }
        match disk.leave() {
            Some(run) => self.run_where_there_is_one(&run).await,
            None => Ok(()),
        }
    }

    /// The disk by one portal, and whether somebody of the node has another disk of that session.
    async fn disks_by(&self, disk: &Iscsi, portal: &str) -> Result<(Vec<PathBuf>, bool), Line> {
        let (root, own) = (self.by_name.clone(), [disk.link(portal)]);
        let all = [disk.links_of_session(portal)];
        work(move || {
            let own = devices::ways(&root, &own);
            let others = devices::ways(&root, &all).into_iter().filter(|way| !own.contains(way));
            let needed = others.into_iter().any(|other| devices::is_held(&other));
            Ok((own, needed))
        })
        .await
    }

    /// Whoever cannot begin a session has none.
    async fn run_where_there_is_one(&self, run: &Run) -> Result<(), Line> {
        match self.helpers.run(run).await {
            Ok(_) | Err(HelperError::Missing(_)) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }
}

fn is_used(pods: &PodVolumes, plugin: Plugin, pending: &Pending) -> rustix::io::Result<bool> {
    for user in &pending.users {
        if pods.has(plugin, user)? {
            return Ok(true);
        }
    }
    Ok(false)
}

/// A disk that somebody holds is left to him.
fn forget_devices(own: &[PathBuf]) -> rustix::io::Result<()> {
    for device in own.iter().filter(|device| !devices::is_held(device)) {
        match devices::forget(device) {
            Ok(()) | Err(Errno::NOENT) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}
