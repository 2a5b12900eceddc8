//! Manifests in a directory.

use std::collections::BTreeMap;
use std::fs;
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use agent_host::directory_watch::DirectoryWatch;
use proto_api::names::Names;
use proto_daemon::exit::chain;
use proto_daemon::panics::spawn_blocking;

use super::text::{self, Context, MANIFEST_BYTES_MAX};
use super::{ManifestPublisher, Origin, StaticPods};

/// Most manifests in a directory.
const MANIFESTS_MAX: usize = 500;

/// A directory of manifests.
#[derive(Clone, Debug)]
pub struct Directory {
    /// The directory; it need not exist yet.
    pub path: PathBuf,
    /// How often it is read in case a change was missed.
    pub period: Duration,
}

impl Directory {
    /// Reads the directory whenever it changes and every `period`, and publishes its pods. If it
    /// cannot be read, the known pods stay: a failing disk must not stop them.
    pub async fn run(self, mut teller: ManifestPublisher) {
        let watch = DirectoryWatch::new(&self.path, "static pod directory");
        loop {
            let (path, names, node) = (self.path.clone(), teller.names, teller.node.clone());
            let read = spawn_blocking(move || read_directory(&path, names, &node));
            match read.await {
                Ok(Ok(found)) => {
                    teller.publish(found.pods);
                    teller.report_faults(found.faults);
                }
                Ok(Err(error)) => {
                    let path = self.path.display();
                    tracing::warn!(dir = %path, %error, "cannot read the static pod directory; known static pods keep running");
                }
                Err(error) => {
                    tracing::error!(%error, "reading the static pod directory panicked; retried")
                }
            }
            // Both arms are cancel safe: they only time the next read.
            tokio::select! {
                () = watch.changed() => {}
                () = tokio::time::sleep(self.period) => {}
            }
        }
    }
}

#[derive(Debug, Default)]
struct DirectoryContent {
    pods: StaticPods,
    /// Errors by file.
    faults: BTreeMap<String, String>,
}

/// The pods of a directory; none if it does not exist.
fn read_directory(dir: &Path, names: &Names, node: &str) -> io::Result<DirectoryContent> {
    let entries = match fs::read_dir(dir) {
        Ok(entries) => entries,
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            return Ok(DirectoryContent::default());
        }
        Err(error) => return Err(error),
    };
    let mut paths = Vec::new();
    for entry in entries.take(MANIFESTS_MAX) {
        let path = entry?.path();
        let hidden = path.file_name().is_none_or(|n| n.to_string_lossy().starts_with('.'));
        if !hidden && path.is_file() {
            paths.push(path);
        }
    }
    paths.sort();
    let mut found = DirectoryContent::default();
    for path in paths {
        let place = path.to_string_lossy();
        let context = Context { origin: Origin::File, place: &place, names, node };
        let read = read_file(&path).map_err(|error| error.to_string());
        let read = read.and_then(|text| text::pods(&text, context).map_err(|error| chain(&error)));
        match read {
            Ok(pods) => {
                let pods = pods.into_iter().map(|pod| (pod.metadata.uid.clone(), Arc::new(pod)));
                found.pods.extend(pods);
            }
            Err(fault) => _ = found.faults.insert(place.into_owned(), fault),
        }
    }
    Ok(found)
}

fn read_file(path: &Path) -> io::Result<String> {
    let mut text = String::new();
    fs::File::open(path)?.take(MANIFEST_BYTES_MAX + 1).read_to_string(&mut text)?;
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::manifests::text::tests::{POD, names};

    #[test]
    fn what_is_no_pod_is_left_out_and_the_rest_stays() {
        let dir = tempfile::tempdir().expect("tempdir");
        let write = |name: &str, text: &str| fs::write(dir.path().join(name), text).expect("write");
        write("a.yaml", POD);
        write("b.yaml", "not: [a pod");
        write("c.yaml", "apiVersion: v1\nkind: Service\n");
        write(".hidden.yaml", POD);
        write("d.yaml", &format!("{POD}#{}", "x".repeat(1 << 20)));
        let found = read_directory(dir.path(), names(), "n").expect("readable");
        assert_eq!((found.pods.len(), found.faults.len()), (1, 3), "{:?}", found.faults);
        let none = read_directory(&dir.path().join("none"), names(), "n").expect("ok");
        assert!(none.pods.is_empty() && none.faults.is_empty());
    }
}
