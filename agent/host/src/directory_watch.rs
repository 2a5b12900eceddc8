//! Changes in a directory.

use std::path::Path;
use std::sync::Arc;

use notify::{Event, EventKind, RecommendedWatcher, RecursiveMode, Watcher as _};
use tokio::sync::Notify;

/// Follows what is created, changed and removed in one directory, until dropped.
pub struct DirectoryWatch {
    changed: Arc<Notify>,
    /// `None` if the kernel refuses the watch.
    _watcher: Option<RecommendedWatcher>,
}

impl DirectoryWatch {
    /// Watches `dir`, which `what` names in the log. Where the kernel refuses, no change is ever notified: the caller reads the directory
    /// periodically as well.
    pub fn new(dir: &Path, what: &str) -> Self {
        let changed = Arc::new(Notify::new());
        let notified = changed.clone();
        let on_event = move |event: notify::Result<Event>| {
            // Reading the directory is an access event and must not trigger another read.
            if !matches!(event, Ok(Event { kind: EventKind::Access(_), .. })) {
                notified.notify_one();
            }
        };
        let watcher = notify::recommended_watcher(on_event).and_then(|mut watcher| {
            watcher.watch(dir, RecursiveMode::NonRecursive)?;
            Ok(watcher)
        });
        let refused = |error: &notify::Error| {
            tracing::warn!(dir = %dir.display(), %error, "cannot watch the {what}; it is read periodically only");
        };
        Self { changed, _watcher: watcher.inspect_err(refused).ok() }
    }

    /// Waits for the next change; changes since the last one count once. Cancel safe.
    pub async fn changed(&self) {
        self.changed.notified().await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn files_that_come_change_and_go_are_notified() {
        let dir = tempfile::tempdir().unwrap();
        let watch = DirectoryWatch::new(dir.path(), "test directory");
        let file = dir.path().join("f");
        std::fs::write(&file, "1").unwrap();
        watch.changed().await;
        std::fs::write(&file, "2").unwrap();
        watch.changed().await;
        std::fs::remove_file(&file).unwrap();
        watch.changed().await;
    }

    #[tokio::test]
    async fn a_directory_that_is_missing_is_not_an_error() {
        let dir = tempfile::tempdir().unwrap();
        let watch = DirectoryWatch::new(&dir.path().join("none"), "test directory");
        assert!(watch._watcher.is_none());
    }
}
