//! What has to be undone after the last pod that uses a device, recorded before anything is done. Pods of any namespace may name the same
//! disk: one that comes later changes nothing of what is recorded for the others.

use agent_host::offload;
use agent_volume::VolumesOnDisk;
use agent_volume::persistent::AttachedDisk;
use agent_volume::persistent::attached::Iscsi;
use agent_volume::shared_mounts::{MountUser, Pending};
use rustix::io::Errno;

use super::{DiskError, DiskSource, Disks, OnDisk, USES_OF_POD_MAX};

impl Disks {
    /// Records the use of a device by a pod. Returns the disk with those of its portals that are recorded; no other portal is used.
    pub(super) async fn record_use(
        &self,
        pods: &VolumesOnDisk,
        uid: &str,
        volume: OnDisk<'_>,
    ) -> Result<Option<AttachedDisk>, DiskError> {
        let (plugin, name) = (volume.source.plugin(), volume.mount_name());
        let disk = match volume.source {
            DiskSource::Device(_) => None,
            DiskSource::Attached(disk) => Some(disk),
        };
        let listed = disk.map(|disk| self.mounts.unique_name(plugin, disk.name()));
        let session = match disk {
            Some(AttachedDisk::Iscsi(disk)) => Some(disk.clone()),
            _ => None,
        };
        let user = MountUser { uid: uid.to_owned(), volume: volume.name.to_owned() };
        let new = Pending {
            name: name.clone(),
            users: vec![user],
            session,
            listed: listed.clone().unwrap_or_default(),
            namespace: volume.namespace.to_owned(),
        };
        let (mounts, pods) = (self.mounts.clone(), pods.clone());
        let recorded = offload(move || {
            let mut before = mounts.pending_record(plugin, &new.name)?;
            if let Some(pending) = &mut before {
                pending.users.retain(|user| pods.has_target(plugin, user).unwrap_or(true));
            }
            let pending = merge(before, new)?;
            match mounts.write_record(plugin, &pending) {
                Err(Errno::FBIG) => Err(DiskError::RecordTooLong),
                written => Ok(written.map(|()| pending.session)?),
            }
        });
        let recorded = recorded.await.map_err(DiskError::Interrupted)??;
        // After the record: a device that is refused is not listed.
        if let Some(listed) = listed
            && self.lock_listed().insert(name, listed).is_none()
        {
            self.notify_change();
        }
        Ok(disk.map(|disk| match (disk, &recorded) {
            (AttachedDisk::Iscsi(own), Some(recorded)) => {
                AttachedDisk::Iscsi(limit_portals(own, recorded))
            }
            _ => disk.clone(),
        }))
    }
}

/// The record with one more use. What is there stays, also how sessions are ended; portals are added as long as there is room.
fn merge(before: Option<Pending>, new: Pending) -> Result<Pending, DiskError> {
    let Some(mut pending) = before else { return Ok(new) };
    if pending.users.is_empty() || pending.namespace.is_empty() {
        pending.namespace = new.namespace;
    }
    for user in new.users {
        if pending.users.contains(&user) {
            continue;
        }
        let own = pending.users.iter().filter(|other| other.uid == user.uid);
        if own.count() >= USES_OF_POD_MAX {
            return Err(DiskError::TooManyUses);
        }
        pending.users.push(user);
    }
    pending.session = match (pending.session, new.session) {
        (Some(known), Some(own)) if !known.is_same_unit(&own) => return Err(DiskError::OtherDisk),
        (Some(mut known), Some(own)) => {
            known.add_portals(&own);
            Some(known)
        }
        (known, own) => known.or(own),
    };
    pending.listed = new.listed;
    Ok(pending)
}

fn limit_portals(own: &Iscsi, recorded: &Iscsi) -> Iscsi {
    let limited = own.by_portals_of(recorded);
    let (all, left) = (own.portals.len(), limited.portals.len());
    if left < all {
        tracing::warn!(
            disk = own.name,
            all,
            left,
            "volumes of this node name too many portals of one disk; those that are not recorded are not used"
        );
    }
    limited
}
