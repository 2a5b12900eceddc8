//! Unmounts and detaches devices that no pod uses any more. No pod's deletion waits for it: a failure is reported and retried, and the
//! device counts as in use until then.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use agent_csi::retry_times::RetryTimes;
use agent_volume::VolumesOnDisk;
use agent_volume::devices;
use agent_volume::disk::{self, ProgramRun};
use agent_volume::persistent::attached::Iscsi;
use agent_volume::shared_mounts::Pending;
use agent_volume::sources::VolumePlugin;
use futures_util::stream::{FuturesUnordered, StreamExt as _};
use proto_daemon::exit::chain;
use rustix::io::Errno;
use tokio::time::{Instant, sleep_until};

use super::{DiskError, Disks, run_blocking};
use crate::persistent_volumes::helpers::HelperError;

/// Plugins whose volumes are on block devices.
const PLUGINS: [VolumePlugin; 3] = [VolumePlugin::Local, VolumePlugin::Iscsi, VolumePlugin::Fc];

/// Plugin and name of a mount.
type Mount = (&'static str, String);

impl Disks {
    /// Notes that the volumes of a pod are unmounted.
    pub fn pod_ended(&self) {
        self.ended.notify_one();
    }

    /// Detaches unused devices for as long as it is polled, each independently of the others. `report` receives each failure.
    pub async fn detach_unused(&self, pods: &VolumesOnDisk, report: impl Fn(&str)) {
        let mut waits: RetryTimes<Mount> = RetryTimes::default();
        let mut begun = BTreeSet::new();
        let mut under_way = FuturesUnordered::new();
        loop {
            let now = Instant::now();
            let unused = self.list_unused(pods).await.unwrap_or_else(|error| {
                report(&chain(&error));
                Vec::new()
            });
            for (plugin, pending) in unused {
                let what = (plugin.name(), pending.name);
                if !waits.is_due(&what, now) || !begun.insert(what.clone()) {
                    continue;
                }
                under_way.push(async move {
                    let done = self.detach(pods, plugin, &what.1).await;
                    (what, done)
                });
            }
            // All arms are cancel safe: they only start the next round.
            tokio::select! {
                Some((what, outcome)) = under_way.next() => {
                    begun.remove(&what);
                    match outcome {
                        Ok(()) => waits.record_success(&what),
                        Err(error) => {
                            let why = chain(&error);
                            report(&format!("UnmountDevice failed for volume {:?} : {why}", what.1));
                            waits.record_failure(what, Instant::now());
                        }
                    }
                }
                () = self.ended.notified() => {}
                () = sleep_until(waits.first(now)) => {}
            }
        }
    }

    /// Mounts that no pod uses.
    pub(super) async fn list_unused(
        &self,
        pods: &VolumesOnDisk,
    ) -> Result<Vec<(VolumePlugin, Pending)>, DiskError> {
        let (mounts, pods) = (self.mounts.clone(), pods.clone());
        run_blocking(move || {
            let mut found = Vec::new();
            for plugin in PLUGINS {
                for pending in mounts.pending_records(plugin)? {
                    if !is_used(&pods, plugin, &pending)? {
                        found.push((plugin, pending));
                    }
                }
            }
            Ok(found)
        })
        .await
    }

    /// Unmounts and detaches a device, unless a pod uses it by now.
    pub(super) async fn detach(
        &self,
        pods: &VolumesOnDisk,
        plugin: VolumePlugin,
        name: &str,
    ) -> Result<(), DiskError> {
        let lock = self.lock(name);
        let guard = lock.lock().await;
        let (mounts, pods, of) = (self.mounts.clone(), pods.clone(), name.to_owned());
        let pending = run_blocking(move || {
            let Some(pending) = mounts.pending_record(plugin, &of)? else { return Ok(None) };
            if is_used(&pods, plugin, &pending)? {
                return Ok(None);
            }
            mounts.mount_point(plugin, &of).map(|place| Some((pending, place)))
        });
        let Some((pending, (target, mounted))) = pending.await? else { return Ok(()) };
        if mounted {
            let run = disk::unmount(&target.to_string_lossy());
            self.helpers.run(&run.for_namespace(&pending.namespace)).await?;
        }
        let (mounts, of) = (self.mounts.clone(), name.to_owned());
        run_blocking(move || mounts.unmount(plugin, &of)).await?;
        match &pending.session {
            Some(disk) => {
                // Removed under the lock: the next one to hold it checks whether a session is needed.
                let lock = self.lock(&disk.iqn);
                let _guard = lock.lock().await;
                self.log_out(plugin, &pending, disk).await?;
                self.forget(plugin, name).await?;
            }
            None => self.forget(plugin, name).await?,
        }
        drop(guard);
        drop(lock);
        self.drop_unused_locks();
        Ok(())
    }

    async fn forget(&self, plugin: VolumePlugin, name: &str) -> Result<(), DiskError> {
        let (mounts, of) = (self.mounts.clone(), name.to_owned());
        run_blocking(move || mounts.remove_record(plugin, &of)).await?;
        if self.lock_listed().remove(name).is_some() {
            self.notify_change();
        }
        Ok(())
    }

    /// Logs out of sessions without other users. Of shared sessions only the device is removed, unless it is another volume's too.
    async fn log_out(
        &self,
        plugin: VolumePlugin,
        pending: &Pending,
        disk: &Iscsi,
    ) -> Result<(), DiskError> {
        let (mounts, root, links) =
            (self.mounts.clone(), self.links_dir.clone(), disk.every_link());
        let (all, held) = run_blocking(move || {
            let device = devices::find_device(&root, &links);
            let held = device.is_some_and(|device| devices::is_in_use(Path::new(&device)));
            Ok((mounts.pending_records(plugin)?, held))
        })
        .await?;
        if held {
            // The kernel may still write to an unmounted device.
            return Err(DiskError::InUse);
        }
        let others = all.into_iter().filter(|other| other.name != pending.name);
        let others: Vec<Iscsi> = others.filter_map(|other| other.session).collect();
        let is_kept = others.iter().any(|other| other.is_same_disk(disk));
        let mut outcome = Ok(());
        for portal in &disk.portals {
            let is_shared = others.iter().any(|other| other.shares_session(disk, portal));
            let uses = Uses { is_shared, is_kept };
            // All are tried: a portal that another pod named does not keep the sessions of the rest.
            let done = self.log_out_at(portal, &pending.namespace, disk, uses).await;
            outcome = outcome.and(done);
        }
        outcome?;
        match disk.delete_interface() {
            Some(run) => self.run_if_installed(run, &pending.namespace).await,
            None => Ok(()),
        }
    }

    async fn log_out_at(
        &self,
        portal: &str,
        namespace: &str,
        disk: &Iscsi,
        uses: Uses,
    ) -> Result<(), DiskError> {
        let (own, needed) = self.devices_by_portal(disk, portal).await?;
        if uses.is_shared || needed {
            let own = if uses.is_kept { Vec::new() } else { own };
            return run_blocking(move || remove_devices(&own)).await;
        }
        for run in disk.log_out(portal) {
            self.run_if_installed(run, namespace).await?;
        }
        Ok(())
    }

    /// The devices by one portal, and whether another device of a session that it may lead to is in use on the node.
    async fn devices_by_portal(
        &self,
        disk: &Iscsi,
        portal: &str,
    ) -> Result<(Vec<PathBuf>, bool), DiskError> {
        let (root, own) = (self.links_dir.clone(), disk.links(portal));
        let all = disk.links_of_session(portal);
        run_blocking(move || {
            let own = devices::resolve_links(&root, &own);
            let others =
                devices::resolve_links(&root, &all).into_iter().filter(|way| !own.contains(way));
            let needed = others.into_iter().any(|other| devices::is_in_use(&other));
            Ok((own, needed))
        })
        .await
    }

    /// Without iscsiadm there is no session to log out.
    async fn run_if_installed(&self, run: ProgramRun, namespace: &str) -> Result<(), DiskError> {
        match self.helpers.run(&run.for_namespace(namespace)).await {
            Ok(_) | Err(HelperError::Missing(_)) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }
}

/// What else the node's volumes use of a disk.
#[derive(Clone, Copy, Debug)]
struct Uses {
    /// Its session.
    is_shared: bool,
    /// The disk itself, by another name.
    is_kept: bool,
}

fn is_used(
    pods: &VolumesOnDisk,
    plugin: VolumePlugin,
    pending: &Pending,
) -> rustix::io::Result<bool> {
    for user in &pending.users {
        if pods.has_target(plugin, user)? {
            return Ok(true);
        }
    }
    Ok(false)
}

/// Removes devices from the kernel. A device that is still open is not removed.
fn remove_devices(own: &[PathBuf]) -> rustix::io::Result<()> {
    for device in own.iter().filter(|device| !devices::is_in_use(device)) {
        match devices::delete_disk(device) {
            Ok(()) | Err(Errno::NOENT) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}
