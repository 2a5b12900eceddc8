//! Archives of a directory (`*.tar`, `*.tar.gz`, `*.tgz`) become images of the node, each once: for nodes that reach no registry.
//!
//! Which archives were imported is remembered by file identity (inode, size, time of the last write), on disk, so that a restart
//! imports nothing twice. Images of an archive stay while the archive does.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use agent_node::image_name::ImageName;
use agent_runtime::Runtime as _;
use agent_runtime::cri::CriRuntime;
use agent_runtime::import::{self, ImageRetention};
use notify::{RecursiveMode, Watcher as _};
use proto_daemon::exit::chain;
use proto_daemon::private_files;
use serde::{Deserialize, Serialize};
use tokio::sync::Notify;
use tokio::task::spawn_blocking;

use super::lock;
use crate::pods::pod_context::PodContext;

/// How often the directory is read though nothing was told, and failed archives are tried again.
const PERIOD: Duration = Duration::from_secs(60);
/// Pause after a change: whoever writes an archive writes more than once.
const SETTLE: Duration = Duration::from_millis(100);
/// Most archives in a directory.
const ARCHIVES_MAX: usize = 1000;

/// The directory and where its images go.
pub struct ImportDir {
    /// The directory.
    pub dir: PathBuf,
    /// Where is remembered what was imported.
    pub state: PathBuf,
    /// containerd.
    pub runtime: CriRuntime,
    /// Namespace of containerd in which its CRI plugin keeps everything.
    pub namespace: &'static str,
    /// Pods, which are told of new images.
    pub shared: Arc<PodContext>,
}

/// What a file is, as long as nobody writes it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Identity {
    device: u64,
    inode: u64,
    size: u64,
    written: (i64, i64),
}

/// What an archive brought.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Imported {
    identity: Identity,
    images: Vec<String>,
}

/// By file name.
type Done = BTreeMap<String, Imported>;

impl ImportDir {
    /// Imports what is there, and then what comes.
    pub async fn run(self) {
        let changed = Arc::new(Notify::new());
        // Held for as long as the task runs: dropping it ends the watch.
        let _watcher = self.watch(changed.clone());
        let mut done = self.remembered().await;
        loop {
            let before = done.clone();
            self.bring_up_to_date(&mut done).await;
            if done != before {
                self.remember(&done).await;
            }
            // Both arms are cancel safe: they only say that it is time to look.
            tokio::select! {
                () = changed.notified() => tokio::time::sleep(SETTLE).await,
                () = tokio::time::sleep(PERIOD) => {}
            }
        }
    }

    fn watch(&self, changed: Arc<Notify>) -> Option<notify::RecommendedWatcher> {
        // Whoever can put an archive there says what the node's images are.
        if let Err(error) = private_files::create_trusted_dir(&self.dir) {
            tracing::warn!(dir = %self.dir.display(), %error, "the directory of archives is not as it should be");
        }
        let watcher = notify::recommended_watcher(move |event: notify::Result<notify::Event>| {
            if !matches!(event, Ok(notify::Event { kind: notify::EventKind::Access(_), .. })) {
                changed.notify_one();
            }
        });
        let watched = watcher.and_then(|mut watcher| {
            watcher.watch(&self.dir, RecursiveMode::NonRecursive)?;
            Ok(watcher)
        });
        watched
            .inspect_err(|error| {
                let dir = self.dir.display();
                tracing::warn!(%dir, %error, "image archives are looked for on a period only");
            })
            .ok()
    }

    /// What an earlier run imported and the runtime still has.
    async fn remembered(&self) -> Done {
        let text = fs::read(&self.state).unwrap_or_default();
        let mut done: Done = serde_json::from_slice(&text).unwrap_or_default();
        let mut lost = Vec::new();
        for (file, imported) in &done {
            for image in &imported.images {
                if !matches!(self.runtime.image(image).await, Ok(Some(_))) {
                    lost.push(file.clone());
                }
            }
        }
        done.retain(|file, _| !lost.contains(file));
        done
    }

    async fn remember(&self, done: &Done) {
        let (path, done) = (self.state.clone(), done.clone());
        let written = spawn_blocking(move || write(&path, &done)).await;
        match written {
            Ok(Ok(())) => {}
            Ok(Err(error)) => {
                let path = self.state.display();
                tracing::warn!(%path, %error, "imports are not remembered");
            }
            Err(error) => tracing::error!(%error, "remembering imports broke off"),
        }
    }

    async fn bring_up_to_date(&self, done: &mut Done) {
        let dir = self.dir.clone();
        let Ok(Ok(archives)) = spawn_blocking(move || archives(&dir)).await else { return };
        done.retain(|file, _| archives.contains_key(file));
        for (file, identity) in archives {
            if done.get(&file).is_some_and(|known| known.identity == identity) {
                continue;
            }
            let path = self.dir.join(&file);
            let channel = self.runtime.channel();
            match import::import_file(channel, self.namespace, &path, ImageRetention::WhileUsed)
                .await
            {
                Ok(images) => {
                    for image in &images {
                        // A runtime that shows it late is no failure.
                        let _ = import::wait_until_listed(&self.runtime, image).await;
                    }
                    tracing::info!(archive = file, ?images, "images imported");
                    done.insert(file, Imported { identity, images });
                }
                Err(error) => {
                    let error = chain(&error);
                    tracing::warn!(archive = %path.display(), error, "archive is not imported");
                }
            }
            self.publish(done);
        }
        self.publish(done);
    }

    /// Keeps the images from being collected, and tells pods that may wait for them.
    fn publish(&self, done: &Done) {
        let images = done.values().flat_map(|imported| &imported.images);
        let names = images.filter_map(|image| Some(ImageName::parse(image).ok()?.full())).collect();
        let mut imported = lock(&self.shared.images.imported);
        if *imported != names {
            *imported = names;
            drop(imported);
            self.shared.wake_all();
        }
    }
}

/// Compressed ones are unpacked on their way.
fn is_archive(name: &str) -> bool {
    [".tar", ".tar.gz", ".tgz"].iter().any(|end| name.ends_with(end))
}

fn archives(dir: &Path) -> std::io::Result<BTreeMap<String, Identity>> {
    let mut archives = BTreeMap::new();
    for entry in fs::read_dir(dir)?.take(ARCHIVES_MAX) {
        let path = entry?.path();
        let name = path.file_name().and_then(|name| name.to_str());
        let Some(name) = name.filter(|name| is_archive(name) && !name.starts_with('.')) else {
            continue;
        };
        // One that went meanwhile is not there.
        let Ok(meta) = fs::metadata(&path) else { continue };
        if meta.is_file() {
            let identity = Identity {
                device: meta.dev(),
                inode: meta.ino(),
                size: meta.size(),
                written: (meta.mtime(), meta.mtime_nsec()),
            };
            archives.insert(name.to_owned(), identity);
        }
    }
    Ok(archives)
}

/// Replaces the file in one step.
fn write(path: &Path, done: &Done) -> std::io::Result<()> {
    private_files::write_private_atomically(path, &serde_json::to_vec(done)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn archives_are_known_by_what_they_are() {
        let dir = tempfile::tempdir().expect("tempdir");
        for name in ["a.tar", "b.tar.gz", ".hidden.tar", "c.txt", "d.gz"] {
            fs::write(dir.path().join(name), "x").expect("write");
        }
        fs::create_dir(dir.path().join("d.tar")).expect("mkdir");
        let first = archives(dir.path()).expect("archives");
        assert_eq!(first.keys().collect::<Vec<_>>(), ["a.tar", "b.tar.gz"]);
        fs::write(dir.path().join("a.tar"), "longer").expect("write");
        let second = archives(dir.path()).expect("archives");
        assert_ne!(first["a.tar"], second["a.tar"]);
        assert_eq!(first["b.tar.gz"], second["b.tar.gz"]);
    }

    #[test]
    fn what_was_imported_is_remembered() {
        let dir = tempfile::tempdir().expect("tempdir");
        let path = dir.path().join("imported.json");
        let identity = Identity { device: 1, inode: 2, size: 3, written: (4, 5) };
        let imported = Imported { identity, images: vec!["a:1".into()] };
        let done = Done::from([("a.tar".to_owned(), imported)]);
        write(&path, &done).expect("write");
        let read: Done = serde_json::from_slice(&fs::read(&path).expect("read")).expect("json");
        assert_eq!(read, done);
    }
}
