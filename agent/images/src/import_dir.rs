//! Imports image archives of a directory (`*.tar`, `*.tar.gz`, `*.tgz`), each once, for nodes
//! without access to a registry.
//!
//! Imported archives are recorded on disk by file identity (inode, size, mtime), so that a restart
//! does not import them again. Images are kept as long as their archive.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use agent_host::directory_watch::DirectoryWatch;
use agent_node::image_name::ImageName;
use agent_runtime::ImageRuntime as _;
use agent_runtime::cri::CriRuntime;
use agent_runtime::import::{self, ImageRetention};
use proto_daemon::exit::chain;
use proto_daemon::panics::spawn_blocking;
use proto_daemon::private_files;
use serde::{Deserialize, Serialize};

use super::pulls::lock;
use super::{Images, PodImages};

/// Interval of reading the directory and retrying failed archives.
const PERIOD: Duration = Duration::from_secs(60);
/// Pause after a change, since writing an archive causes several.
const SETTLE: Duration = Duration::from_millis(100);
/// Most archives in a directory.
const ARCHIVES_MAX: usize = 1000;

/// The import directory of a node.
pub struct ImportDir {
    /// Directory of the archives.
    pub dir: PathBuf,
    /// File that records imported archives.
    pub state: PathBuf,
    /// containerd.
    pub runtime: CriRuntime,
    /// containerd namespace of the CRI plugin.
    pub namespace: &'static str,
    /// What is imported is kept from its garbage collection.
    pub images: Arc<Images>,
    /// Pod tasks, which are woken by new images.
    pub pods: Arc<dyn PodImages>,
}

/// Identity of an archive that is not modified.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Identity {
    device: u64,
    inode: u64,
    size: u64,
    written: (i64, i64),
}

/// An imported archive and its images.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Imported {
    identity: Identity,
    images: Vec<String>,
}

/// By file name.
type Done = BTreeMap<String, Imported>;

impl ImportDir {
    /// Imports present and future archives.
    pub async fn run(self) {
        // Write access to this directory determines the node's images.
        if let Err(error) = private_files::create_trusted_dir(&self.dir) {
            tracing::warn!(dir = %self.dir.display(), %error, "cannot secure the image import directory");
        }
        let watch = DirectoryWatch::new(&self.dir, "image import directory");
        let mut done = self.remembered().await;
        loop {
            let before = done.clone();
            self.bring_up_to_date(&mut done).await;
            if done != before {
                self.remember(&done).await;
            }
            // Both arms are cancel safe: they only time the next pass.
            tokio::select! {
                () = watch.changed() => tokio::time::sleep(SETTLE).await,
                () = tokio::time::sleep(PERIOD) => {}
            }
        }
    }

    /// Archives imported by an earlier process whose images still exist.
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
                tracing::warn!(%path, %error, "cannot record imported archives; a restart imports them again");
            }
            Err(error) => {
                tracing::error!(%error, "recording imported archives panicked; a restart imports them again")
            }
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
                        // The CRI plugin may list it later.
                        let _ = import::wait_until_listed(&self.runtime, image).await;
                    }
                    tracing::info!(archive = file, ?images, "imported the images of an archive");
                    done.insert(file, Imported { identity, images });
                }
                Err(error) => {
                    let error = chain(&error);
                    tracing::warn!(archive = %path.display(), error, "cannot import an image archive; retried");
                }
            }
            self.publish(done);
        }
        self.publish(done);
    }

    /// Protects the images from garbage collection, and wakes pods that may wait for them.
    fn publish(&self, done: &Done) {
        let images = done.values().flat_map(|imported| &imported.images);
        let names = images.filter_map(|image| Some(ImageName::parse(image).ok()?.full())).collect();
        let mut imported = lock(&self.images.imported);
        if *imported != names {
            *imported = names;
            drop(imported);
            self.pods.wake_pods();
        }
    }
}

/// Compressed archives are decompressed while importing.
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
        // Skips files removed meanwhile.
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

/// Replaces the file atomically.
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
    fn imported_archives_are_remembered() {
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
