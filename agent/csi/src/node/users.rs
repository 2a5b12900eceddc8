//! Users and stages of CSI volumes, and mutual exclusion per volume.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::watch;

use crate::record::VolumeRecord;

/// All CSI volumes that are used by pods of this node or that may be staged, by driver and handle. Bounded by the pods' volumes
/// and by stages not undone yet.
#[derive(Debug)]
pub(super) struct VolumeUsers {
    all: Mutex<BTreeMap<(String, String), Arc<StagedVolume>>>,
    changes: watch::Sender<u64>,
}

impl Default for VolumeUsers {
    fn default() -> Self {
        Self { all: Mutex::default(), changes: watch::channel(0).0 }
    }
}

impl VolumeUsers {
    /// The volume of a record.
    pub(super) fn get(&self, record: &VolumeRecord) -> Arc<StagedVolume> {
        self.get_by_name(&record.driver, &record.handle)
    }

    /// The volume of a driver by its handle.
    pub(super) fn get_by_name(&self, driver: &str, handle: &str) -> Arc<StagedVolume> {
        let key = (driver.to_owned(), handle.to_owned());
        lock_state(&self.all).entry(key).or_default().clone()
    }

    /// Drops a volume that is unused, not staged and not waited for, and notifies of the change.
    pub(super) fn forget(&self, record: &VolumeRecord) {
        let key = (record.driver.clone(), record.handle.clone());
        let mut all = lock_state(&self.all);
        // One reference is the map's, one the caller's.
        if all.get(&key).is_some_and(|shared| shared.is_idle() && Arc::strong_count(shared) <= 2) {
            all.remove(&key);
        }
        drop(all);
        self.notify();
    }

    /// Notifies of a volume that came into or went out of use.
    pub(super) fn notify(&self) {
        self.changes.send_modify(|number| *number += 1);
    }

    /// The channel of these notifications; the value has no meaning.
    pub(super) fn changes(&self) -> &watch::Sender<u64> {
        &self.changes
    }

    /// Attached volumes that are used or staged, by driver and handle.
    pub(super) fn attached(&self) -> Vec<(String, String)> {
        let all = lock_state(&self.all);
        let attached = |(_, shared): &(&(String, String), &Arc<StagedVolume>)| {
            let state = lock_state(&shared.state);
            state.attached && !state.is_idle()
        };
        all.iter().filter(attached).map(|(key, _)| key.clone()).collect()
    }

    /// Records of staged volumes without users.
    pub(super) fn unused_stages(&self) -> Vec<VolumeRecord> {
        let all = lock_state(&self.all);
        all.values().filter_map(|shared| lock_state(&shared.state).abandoned().cloned()).collect()
    }
}

#[derive(Debug, Default)]
pub(super) struct StagedVolume {
    turn: tokio::sync::Mutex<()>,
    state: Mutex<VolumeState>,
}

#[derive(Debug, Default)]
struct VolumeState {
    /// Uid of the pod and name of the volume.
    pods: BTreeSet<(String, String)>,
    attached: bool,
    stage: Option<StageRecord>,
}

/// A stage whose record is on disk.
#[derive(Debug)]
struct StageRecord {
    record: VolumeRecord,
    known: StageKnowledge,
}

/// State of a stage that has a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum StageKnowledge {
    /// Unknown: a call to stage or unstage it began and did not succeed.
    Nothing,
    /// Staged, with a mount.
    Mounted,
    /// Staged, without a mount.
    Made,
}

impl VolumeState {
    fn is_idle(&self) -> bool {
        self.pods.is_empty() && self.stage.is_none()
    }

    fn abandoned(&self) -> Option<&VolumeRecord> {
        self.stage.as_ref().filter(|_| self.pods.is_empty()).map(|stage| &stage.record)
    }
}

impl StagedVolume {
    /// Waits for exclusive access to the volume.
    pub(super) async fn lock(&self) -> tokio::sync::MutexGuard<'_, ()> {
        self.turn.lock().await
    }

    pub(super) fn add(&self, uid: &str, record: &VolumeRecord) {
        let mut state = lock_state(&self.state);
        state.attached |= !record.attachment.is_empty();
        state.pods.insert((uid.to_owned(), record.spec_name.clone()));
    }

    pub(super) fn remove(&self, uid: &str, record: &VolumeRecord) {
        lock_state(&self.state).pods.remove(&(uid.to_owned(), record.spec_name.clone()));
    }

    /// Whether another pod uses it.
    pub(super) fn is_used_by_other(&self, uid: &str) -> bool {
        lock_state(&self.state).pods.iter().any(|(other, _)| other != uid)
    }

    fn is_idle(&self) -> bool {
        lock_state(&self.state).is_idle()
    }

    /// Whether it is or may be staged without users.
    pub(super) fn is_unused_stage(&self) -> bool {
        lock_state(&self.state).abandoned().is_some()
    }

    /// Whether it is certainly staged, given whether its staging path is a mount point: a stage whose mount was lost is not.
    pub(super) fn is_staged(&self, mounted: bool) -> bool {
        let known = lock_state(&self.state).stage.as_ref().map(|stage| stage.known);
        match known {
            None | Some(StageKnowledge::Nothing) => false,
            Some(StageKnowledge::Mounted) => mounted,
            Some(StageKnowledge::Made) => true,
        }
    }

    /// Records that it may be staged.
    pub(super) fn may_be_staged(&self, record: &VolumeRecord) {
        let mut state = lock_state(&self.state);
        state.attached |= !record.attachment.is_empty();
        state.stage = Some(StageRecord { record: record.clone(), known: StageKnowledge::Nothing });
    }

    /// Records that it is staged, and whether that created a mount.
    pub(super) fn set_staged(&self, mounted: bool) {
        if let Some(stage) = &mut lock_state(&self.state).stage {
            stage.known = if mounted { StageKnowledge::Mounted } else { StageKnowledge::Made };
        }
    }

    /// Records that unstaging begins: its state is unknown from now on.
    pub(super) fn begin_unstage(&self) {
        if let Some(stage) = &mut lock_state(&self.state).stage {
            stage.known = StageKnowledge::Nothing;
        }
    }

    /// Records that it is not staged and has no stage record.
    pub(super) fn set_unstaged(&self) {
        lock_state(&self.state).stage = None;
    }
}

fn lock_state<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(attachment: &str) -> VolumeRecord {
        VolumeRecord {
            spec_name: "pv".into(),
            handle: "h".into(),
            driver: "d".into(),
            attachment: attachment.into(),
            ..VolumeRecord::default()
        }
    }

    #[test]
    fn a_volume_is_in_use_until_it_is_unstaged() {
        let (users, record) = (VolumeUsers::default(), record("csi-1"));
        let in_use = || users.attached().len();
        let shared = users.get(&record);
        shared.add("u", &record);
        assert_eq!((in_use(), users.unused_stages().len()), (1, 0));
        shared.may_be_staged(&record);
        shared.set_staged(true);
        shared.remove("u", &record);
        users.forget(&record);
        assert_eq!((in_use(), users.unused_stages()), (1, vec![record.clone()]));
        assert!(shared.is_unused_stage() && shared.is_staged(true) && !shared.is_staged(false));
        shared.begin_unstage();
        assert!(!shared.is_staged(true), "half-undone for all that is known");
        assert_eq!(in_use(), 1);
        shared.set_unstaged();
        assert_eq!((in_use(), users.unused_stages().len()), (0, 0));
        users.forget(&record);
        assert!(lock_state(&users.all).is_empty());
    }

    #[test]
    fn volumes_that_are_not_attached_are_not_listed() {
        let (users, record) = (VolumeUsers::default(), record(""));
        users.get(&record).add("u", &record);
        assert!(users.attached().is_empty());
        let changes = users.changes().subscribe();
        users.notify();
        assert!(changes.has_changed().unwrap());
    }

    #[test]
    fn a_stage_without_a_mount_is_one() {
        let shared = StagedVolume::default();
        assert!(!shared.is_staged(true), "nothing is known of a stage");
        shared.may_be_staged(&record(""));
        assert!(!shared.is_staged(true));
        shared.set_staged(false);
        assert!(shared.is_staged(false));
    }
}
