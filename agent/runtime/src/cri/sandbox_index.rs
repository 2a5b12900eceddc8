//! The sandbox of each container. It never changes, and CRI shows it only in lists, for which the runtime visits all its objects,
//! so known values are cached.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Sandbox ids by container id. Bounded by what the runtime has: objects removed by this agent are dropped at once, others with
/// the next full list.
#[derive(Clone, Debug, Default)]
pub(super) struct SandboxIndex(Arc<Mutex<HashMap<String, String>>>);

impl SandboxIndex {
    /// The sandbox of a container, if known.
    pub(super) fn sandbox_of(&self, container: &str) -> Option<String> {
        self.lock_index().get(container).cloned()
    }

    /// Adds a container.
    pub(super) fn insert_container(&self, container: &str, sandbox: &str) {
        self.lock_index().insert(container.to_owned(), sandbox.to_owned());
    }

    /// Replaces all entries by those of a full list.
    pub(super) fn learn_all(&self, all: impl Iterator<Item = (String, String)>) {
        *self.lock_index() = all.collect();
    }

    /// Drops a removed container.
    pub(super) fn forget(&self, container: &str) {
        self.lock_index().remove(container);
    }

    /// Drops the containers of a removed sandbox.
    pub(super) fn forget_sandbox(&self, sandbox: &str) {
        self.lock_index().retain(|_, other| other != sandbox);
    }

    fn lock_index(&self) -> MutexGuard<'_, HashMap<String, String>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_sandbox_index_follows_the_containers_of_the_runtime() {
        let placed = SandboxIndex::default();
        for (id, sandbox) in [("a", "s"), ("b", "s"), ("c", "t")] {
            placed.insert_container(id, sandbox);
        }
        placed.forget("a");
        let known = |ids: [&str; 3]| ids.map(|id| placed.sandbox_of(id));
        assert_eq!(known(["a", "b", "c"]), [None, Some("s".into()), Some("t".into())]);
        placed.forget_sandbox("s");
        assert_eq!(known(["a", "b", "c"]), [None, None, Some("t".into())]);
        placed.learn_all([("a".to_owned(), "u".to_owned())].into_iter());
        assert_eq!(known(["a", "b", "c"]), [Some("u".into()), None, None]);
    }
}
