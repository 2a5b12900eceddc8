//! Who has which volume of a driver, and whose turn it is.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::record::Record;

/// All volumes of drivers that pods of this node have, by driver and handle. Bounded by the pods' volumes.
#[derive(Debug, Default)]
pub(super) struct Users {
    all: Mutex<BTreeMap<(String, String), Arc<Shared>>>,
}

impl Users {
    /// The volume of that driver and handle.
    pub(super) fn of(&self, driver: &str, handle: &str) -> Arc<Shared> {
        let key = (driver.to_owned(), handle.to_owned());
        locked(&self.all).entry(key).or_default().clone()
    }

    /// Forgets a volume that nobody has and nobody waits for.
    pub(super) fn forget(&self, driver: &str, handle: &str) {
        let key = (driver.to_owned(), handle.to_owned());
        let mut all = locked(&self.all);
        // one count is the map's, one the caller's
        if all.get(&key).is_some_and(|shared| shared.is_free() && Arc::strong_count(shared) <= 2) {
            all.remove(&key);
        }
    }

    /// Volumes that are attached and had by a pod, by driver and handle.
    pub(super) fn attached(&self) -> Vec<(String, String)> {
        let all = locked(&self.all);
        let attached = |(_, shared): &(&(String, String), &Arc<Shared>)| {
            let state = locked(&shared.state);
            state.attached && !state.pods.is_empty()
        };
        all.iter().filter(attached).map(|(key, _)| key.clone()).collect()
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
    /// Whether this process has staged it, and whether that left a mount.
    staged: Option<bool>,
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

    /// Whether no pod has it.
    pub(super) fn is_free(&self) -> bool {
        locked(&self.state).pods.is_empty()
    }

    /// Whether nobody but this pod has it, and that as this volume only.
    pub(super) fn has_only(&self, uid: &str, record: &Record) -> bool {
        let state = locked(&self.state);
        state.pods.iter().all(|(pod, name)| pod == uid && *name == record.spec_name)
    }

    /// Whether it is staged, given whether something is mounted at its stage: a mount that was there and is lost is no stage.
    pub(super) fn is_staged(&self, mounted: bool) -> bool {
        mounted || locked(&self.state).staged == Some(false)
    }

    pub(super) fn staged(&self, mounted: bool) {
        locked(&self.state).staged = Some(mounted);
    }

    pub(super) fn unstaged(&self) {
        locked(&self.state).staged = None;
    }
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
