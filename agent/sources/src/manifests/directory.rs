//! Manifests in a directory.

use std::collections::BTreeMap;
use std::fs;
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use agent_host::directory_watch::DirectoryWatch;
use proto_api::core::v1::Pod;
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
        let mut known = KnownManifests::default();
        let watch = DirectoryWatch::new(&self.path, "static pod directory");
        loop {
            let (path, names, node) = (self.path.clone(), teller.names, teller.node.clone());
            let read = spawn_blocking(move || read_directory(&path, names, &node));
            match read.await {
                Ok(Ok(DirectoryContent { pods, faults })) => {
                    teller.publish(known.update(pods, &faults, Instant::now(), self.period));
                    teller.report_faults(faults);
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

/// The manifests of a directory as they were read.
#[derive(Debug, Default)]
struct DirectoryContent {
    /// Pods by file.
    pods: BTreeMap<String, StaticPods>,
    /// Errors by file.
    faults: BTreeMap<String, String>,
}

/// The last pods of each manifest, by file. The directory is read at every change, so that a manifest may be half written: one that
/// has become invalid keeps its pods until it has been so for a period. (The kubelet stops them at its next periodic read.)
#[derive(Debug, Default)]
struct KnownManifests(BTreeMap<String, KnownManifest>);

#[derive(Debug)]
struct KnownManifest {
    pods: StaticPods,
    invalid_since: Option<Instant>,
}

impl KnownManifests {
    /// Applies what was read at `now`: the pods and the faults by file. Returns the pods of all files.
    fn update(
        &mut self,
        read: BTreeMap<String, StaticPods>,
        faults: &BTreeMap<String, String>,
        now: Instant,
        period: Duration,
    ) -> StaticPods {
        let before = std::mem::take(&mut self.0);
        let invalid = before.into_iter().filter(|(file, _)| faults.contains_key(file));
        let lasting = invalid.filter_map(|(file, known)| Some((file, known.outlast(now, period)?)));
        let valid = |(file, pods)| (file, KnownManifest { pods, invalid_since: None });
        self.0 = read.into_iter().map(valid).chain(lasting).collect();
        self.0.values().flat_map(|known| known.pods.clone()).collect()
    }
}

impl KnownManifest {
    /// The manifest if it stays although it is invalid at `now`.
    fn outlast(self, now: Instant, period: Duration) -> Option<Self> {
        let since = self.invalid_since.unwrap_or(now);
        let lasts = now.saturating_duration_since(since) < period;
        lasts.then_some(Self { invalid_since: Some(since), ..self })
    }
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
                let by_uid = |pod: Pod| (pod.metadata.uid.clone(), Arc::new(pod));
                found.pods.insert(place.into_owned(), pods.into_iter().map(by_uid).collect());
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
    fn manifests_that_are_not_pods_are_left_out_and_reported() {
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

    #[test]
    fn a_manifest_that_is_half_written_does_not_stop_its_pods() {
        let (period, start) = (Duration::from_secs(20), Instant::now());
        let pods = |uid: &str| StaticPods::from([(uid.to_owned(), Arc::default())]);
        let both = || pods("a").into_iter().chain(pods("b")).collect::<StaticPods>();
        let mut known = KnownManifests::default();
        let mut read = |secs, b: Option<&str>| {
            let mut read = BTreeMap::from([("a.yaml".to_owned(), pods("a"))]);
            let mut faults = BTreeMap::new();
            match b {
                Some("broken") => _ = faults.insert("b.yaml".to_owned(), "half of it".to_owned()),
                Some(uid) => _ = read.insert("b.yaml".to_owned(), pods(uid)),
                None => {}
            }
            known.update(read, &faults, start + Duration::from_secs(secs), period)
        };
        assert_eq!(read(0, Some("broken")), pods("a"), "never seen whole");
        assert_eq!(read(1, Some("b")), both());
        assert_eq!(read(2, Some("broken")), both(), "being written");
        assert_eq!(read(3, Some("b")), both(), "written");
        assert_eq!(read(30, Some("broken")), both());
        assert_eq!(read(49, Some("broken")), both(), "the first time counts");
        assert_eq!(read(50, Some("broken")), pods("a"), "it stays broken");
        assert_eq!(read(51, Some("broken")), pods("a"));
        assert_eq!(read(60, Some("b")), both());
        assert_eq!(read(61, None), pods("a"), "removed");
        assert_eq!(read(62, Some("broken")), pods("a"), "removed, then back");
    }
}
