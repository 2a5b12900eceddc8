//! Who has which volume of a driver, whether it is staged, and whose turn it is.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::watch;

use crate::record::Record;

/// All volumes of drivers that pods of this node have, or that are staged for nobody yet or any more, by driver and handle. Bounded
/// by the pods' volumes and the drivers' patience.
#[derive(Debug)]
pub(super) struct Users {
    all: Mutex<BTreeMap<(String, String), Arc<Shared>>>,
    changes: watch::Sender<u64>,
}

impl Default for Users {
    fn default() -> Self {
        Self { all: Mutex::default(), changes: watch::channel(0).0 }
    }
}

impl Users {
    /// The volume of that driver and handle.
    pub(super) fn of(&self, record: &Record) -> Arc<Shared> {
        self.named(&record.driver, &record.handle)
    }

    /// The same by its names.
    pub(super) fn named(&self, driver: &str, handle: &str) -> Arc<Shared> {
        let key = (driver.to_owned(), handle.to_owned());
        locked(&self.all).entry(key).or_default().clone()
    }

    /// Forgets a volume that nobody has, that is not staged, and that nobody waits for; and tells of what has changed.
    pub(super) fn forget(&self, record: &Record) {
        let key = (record.driver.clone(), record.handle.clone());
        let mut all = locked(&self.all);
        // one count is the map's, one the caller's
        if all.get(&key).is_some_and(|shared| shared.is_idle() && Arc::strong_count(shared) <= 2) {
            all.remove(&key);
        }
        drop(all);
        self.changed();
    }

    /// Tells that a volume has come into or out of use.
    pub(super) fn changed(&self) {
        self.changes.send_modify(|number| *number += 1);
    }

    /// Where that is told; the value is of no meaning.
    pub(super) fn changes(&self) -> &watch::Sender<u64> {
        &self.changes
    }

    /// Volumes that are attached and had by a pod or staged, by driver and handle.
    pub(super) fn attached(&self) -> Vec<(String, String)> {
        let all = locked(&self.all);
        let attached = |(_, shared): &(&(String, String), &Arc<Shared>)| {
            let state = locked(&shared.state);
            state.attached && !state.is_idle()
        };
        all.iter().filter(attached).map(|(key, _)| key.clone()).collect()
    }

    /// What is staged and had by no pod.
    pub(super) fn abandoned(&self) -> Vec<Record> {
        let all = locked(&self.all);
        all.values().filter_map(|shared| locked(&shared.state).abandoned().cloned()).collect()
    }
}

/// One volume.
#[derive(Debug, Default)]
pub(super) struct Shared {
    turn: tokio::sync::Mutex<()>,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    /// Uid of the pod and name of the volume.
    pods: BTreeSet<(String, String)>,
    attached: bool,
    stage: Option<Stage>,
}

/// The record of a stage is on disk.
#[derive(Debug)]
struct Stage {
    record: Record,
    known: Known,
}

/// What is known of a stage beside that there is a record of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Known {
    /// A call that makes or undoes it has begun, and no good end of it is known.
    Nothing,
    /// It was made, and that left a mount.
    Mounted,
    /// It was made, and that left no mount.
    Made,
}

impl State {
    fn is_idle(&self) -> bool {
        self.pods.is_empty() && self.stage.is_none()
    }

    fn abandoned(&self) -> Option<&Record> {
        self.stage.as_ref().filter(|_| self.pods.is_empty()).map(|stage| &stage.record)
    }
}

impl Shared {
    /// Waits until nobody else does anything with the volume.
    pub(super) async fn turn(&self) -> tokio::sync::MutexGuard<'_, ()> {
        self.turn.lock().await
    }

    pub(super) fn add(&self, uid: &str, record: &Record) {
        let mut state = locked(&self.state);
        state.attached |= !record.attachment.is_empty();
        state.pods.insert((uid.to_owned(), record.spec_name.clone()));
    }

    pub(super) fn remove(&self, uid: &str, record: &Record) {
        locked(&self.state).pods.remove(&(uid.to_owned(), record.spec_name.clone()));
    }

    /// Whether a pod beside this one has it.
    pub(super) fn is_had_beside(&self, uid: &str) -> bool {
        locked(&self.state).pods.iter().any(|(other, _)| other != uid)
    }

    fn is_idle(&self) -> bool {
        locked(&self.state).is_idle()
    }

    /// Whether it is staged, or may be, for nobody.
    pub(super) fn is_abandoned(&self) -> bool {
        locked(&self.state).abandoned().is_some()
    }

    /// Whether it is staged for certain, given whether something is mounted at its stage: a mount that was there and is lost is none.
    pub(super) fn is_staged(&self, mounted: bool) -> bool {
        let known = locked(&self.state).stage.as_ref().map(|stage| stage.known);
        match known {
            None | Some(Known::Nothing) => false,
            Some(Known::Mounted) => mounted,
            Some(Known::Made) => true,
        }
    }

    /// A record says that it may be staged, nothing more.
    pub(super) fn may_be_staged(&self, record: &Record) {
        let mut state = locked(&self.state);
        state.attached |= !record.attachment.is_empty();
        state.stage = Some(Stage { record: record.clone(), known: Known::Nothing });
    }

    /// It is staged; whether that left a mount.
    pub(super) fn staged(&self, mounted: bool) {
        if let Some(stage) = &mut locked(&self.state).stage {
            stage.known = if mounted { Known::Mounted } else { Known::Made };
        }
    }

    /// It is being unstaged: from now on it may be either.
    pub(super) fn unstages(&self) {
        if let Some(stage) = &mut locked(&self.state).stage {
            stage.known = Known::Nothing;
        }
    }

    /// It is not staged, and there is no record of it.
    pub(super) fn unstaged(&self) {
        locked(&self.state).stage = None;
    }
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(attachment: &str) -> Record {
        Record {
            spec_name: "pv".into(),
            handle: "h".into(),
            driver: "d".into(),
            attachment: attachment.into(),
            ..Record::default()
        }
    }

    #[test]
    fn a_volume_is_in_use_until_it_is_unstaged() {
        let (users, record) = (Users::default(), record("csi-1"));
        let in_use = || users.attached().len();
        let shared = users.of(&record);
        shared.add("u", &record);
        assert_eq!((in_use(), users.abandoned().len()), (1, 0));
        shared.may_be_staged(&record);
        shared.staged(true);
        shared.remove("u", &record);
        users.forget(&record);
        assert_eq!((in_use(), users.abandoned()), (1, vec![record.clone()]));
        assert!(shared.is_abandoned() && shared.is_staged(true) && !shared.is_staged(false));
        shared.unstages();
        assert!(!shared.is_staged(true), "half-undone for all that is known");
        assert_eq!(in_use(), 1);
        shared.unstaged();
        assert_eq!((in_use(), users.abandoned().len()), (0, 0));
        users.forget(&record);
        assert!(locked(&users.all).is_empty());
    }

    #[test]
    fn what_is_not_attached_is_not_listed() {
        let (users, record) = (Users::default(), record(""));
        users.of(&record).add("u", &record);
        assert!(users.attached().is_empty());
        let changes = users.changes().subscribe();
        users.changed();
        assert!(changes.has_changed().unwrap());
    }

    #[test]
    fn a_stage_without_a_mount_is_one() {
        let shared = Shared::default();
        assert!(!shared.is_staged(true), "nothing is known of a stage");
        shared.may_be_staged(&record(""));
        assert!(!shared.is_staged(true));
        shared.staged(false);
        assert!(shared.is_staged(false));
    }
}
