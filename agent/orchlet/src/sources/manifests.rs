//! Static pods: manifests in a directory of the node. They run whether or not there is an API server.

use std::collections::BTreeMap;
use std::fs;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use notify::{RecursiveMode, Watcher};
use proto_api::core::v1::{Pod, Toleration};
use proto_api::names::Names;
use proto_api::{object, yaml};
use serde_json::Value;
use sha2::{Digest, Sha256};
use tokio::sync::{Notify, watch};

/// Most bytes of a manifest.
const MANIFEST_BYTES_MAX: u64 = 1 << 20;
/// Most manifests in a directory.
const MANIFESTS_MAX: usize = 500;

/// Static pods by uid.
pub type StaticPods = BTreeMap<String, Arc<Pod>>;

/// Why a manifest is no static pod.
#[derive(Debug, thiserror::Error)]
pub enum ManifestError {
    /// The file cannot be read.
    #[error("cannot read {path}")]
    Read {
        /// The file.
        path: PathBuf,
        /// Why.
        #[source]
        source: std::io::Error,
    },
    /// It is no manifest of a pod.
    #[error("{path} is no pod: {fault}")]
    Malformed {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        fault: String,
    },
}

/// Reads the directory whenever it changes, and every `period` in case a change was missed, and publishes the pods. A directory
/// that cannot be read keeps the pods that were known: a failing disk must not stop them.
pub async fn run(
    dir: PathBuf,
    period: Duration,
    names: &'static Names,
    node: String,
    pods: watch::Sender<Option<StaticPods>>,
) {
    let changed = Arc::new(Notify::new());
    // Held for as long as the task runs: dropping it ends the watch.
    let _watcher = watch_directory(&dir, changed.clone());
    loop {
        let (path, owner) = (dir.clone(), node.clone());
        let read = tokio::task::spawn_blocking(move || read_directory(&path, names, &owner)).await;
        match read {
            Ok(Ok(found)) => {
                pods.send_if_modified(|known| {
                    let news = known.as_ref() != Some(&found);
                    if news {
                        *known = Some(found);
                    }
                    news
                });
            }
            Ok(Err(error)) => {
                tracing::warn!(
                    dir = %dir.display(),
                    error = proto_daemon::exit::chain(&error),
                    "cannot read static pods"
                );
            }
            Err(error) => tracing::error!(%error, "reading static pods broke off"),
        }
        // Both arms are cancel safe: they only say that it is time to read.
        tokio::select! {
            () = changed.notified() => {}
            () = tokio::time::sleep(period) => {}
        }
    }
}

fn watch_directory(dir: &Path, changed: Arc<Notify>) -> Option<notify::RecommendedWatcher> {
    let watcher = notify::recommended_watcher(move |event: notify::Result<notify::Event>| {
        // Our own reading is an access, and must not call for another.
        if !matches!(event, Ok(notify::Event { kind: notify::EventKind::Access(_), .. })) {
            changed.notify_one();
        }
    });
    let watched = watcher.and_then(|mut watcher| {
        watcher.watch(dir, RecursiveMode::NonRecursive)?;
        Ok(watcher)
    });
    match watched {
        Ok(watcher) => Some(watcher),
        Err(error) => {
            tracing::warn!(dir = %dir.display(), %error, "static pods are looked for on a period only");
            None
        }
    }
}

/// All pods of a directory. A manifest that is no pod is left out with a warning; a directory that does not exist has none.
fn read_directory(dir: &Path, names: &Names, node: &str) -> Result<StaticPods, ManifestError> {
    let failed = |source| ManifestError::Read { path: dir.to_owned(), source };
    let entries = match fs::read_dir(dir) {
        Ok(entries) => entries,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(StaticPods::new()),
        Err(error) => return Err(failed(error)),
    };
    let mut paths = Vec::new();
    for entry in entries.take(MANIFESTS_MAX) {
        let path = entry.map_err(failed)?.path();
        let hidden = path.file_name().is_none_or(|n| n.to_string_lossy().starts_with('.'));
        if !hidden && path.is_file() {
            paths.push(path);
        }
    }
    paths.sort();
    let mut pods = StaticPods::new();
    for path in paths {
        match read_manifest(&path, names, node) {
            Ok(pod) => {
                pods.insert(pod.metadata.uid.clone(), Arc::new(pod));
            }
            Err(error) => {
                tracing::warn!(error = proto_daemon::exit::chain(&error), "skipped a manifest");
            }
        }
    }
    Ok(pods)
}

fn read_manifest(path: &Path, names: &Names, node: &str) -> Result<Pod, ManifestError> {
    let failed = |source| ManifestError::Read { path: path.to_owned(), source };
    let mut text = String::new();
    let file = fs::File::open(path).map_err(failed)?;
    file.take(MANIFEST_BYTES_MAX).read_to_string(&mut text).map_err(failed)?;
    parse(path, &text, names, node)
}

/// Makes a static pod of a manifest. Its uid follows from the node, the file and the content: a changed manifest is another pod.
fn parse(path: &Path, text: &str, names: &Names, node: &str) -> Result<Pod, ManifestError> {
    let malformed = |fault: String| ManifestError::Malformed { path: path.to_owned(), fault };
    let value: Value = yaml::parse(text).map_err(|e| malformed(e.to_string()))?;
    let mut pod: Pod = object::from_json_value(value, names)
        .map_err(|e| malformed(proto_daemon::exit::chain(&e)))?;
    if pod.metadata.name.is_empty() || pod.spec.containers.is_empty() {
        return Err(malformed("it has no name or no containers".to_owned()));
    }
    let mut hash = Sha256::new();
    for part in [node, &path.to_string_lossy(), text] {
        hash.update(part.as_bytes());
        hash.update([0]);
    }
    let digest = hash.finalize();
    let uid = digest.iter().take(16).map(|byte| format!("{byte:02x}")).collect::<String>();
    let meta = &mut pod.metadata;
    meta.name = format!("{}-{}", meta.name, node.to_lowercase());
    if meta.namespace.is_empty() {
        meta.namespace = "default".to_owned();
    }
    for (name, value) in [("config.hash", uid.as_str()), ("config.source", "file")] {
        meta.annotations.insert(names.label(name), value.to_owned());
    }
    meta.uid = uid;
    pod.spec.node_name = node.to_owned();
    // Nothing evicts what is part of the node.
    pod.spec.tolerations.push(Toleration {
        operator: "Exists".to_owned(),
        effect: "NoExecute".to_owned(),
        ..Toleration::default()
    });
    if pod.spec.service_account_name.is_empty() {
        pod.spec.automount_service_account_token = Some(false);
    }
    Ok(pod)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proto_api::names::Profile;

    const POD: &str = "apiVersion: v1\nkind: Pod\nmetadata: {name: web}\n\
                       spec: {containers: [{name: c, image: i}]}\n";

    fn names() -> &'static Names {
        Names::new(Profile::Kubernetes)
    }

    #[test]
    fn a_manifest_becomes_a_pod_of_the_node() {
        let path = Path::new("/m/web.yaml");
        let pod = parse(path, POD, names(), "Node-1").expect("pod");
        assert_eq!(pod.metadata.name, "web-node-1");
        assert_eq!(pod.metadata.namespace, "default");
        assert_eq!(pod.spec.node_name, "Node-1");
        assert_eq!(pod.metadata.annotations["kubernetes.io/config.source"], "file");
        assert_eq!(pod.metadata.annotations["kubernetes.io/config.hash"], pod.metadata.uid);
        let changed = parse(path, &POD.replace("image: i", "image: j"), names(), "Node-1");
        assert_ne!(changed.expect("pod").metadata.uid, pod.metadata.uid);
    }

    #[test]
    fn what_is_no_pod_is_left_out_and_the_rest_stays() {
        let dir = tempfile::tempdir().expect("tempdir");
        let write = |name: &str, text: &str| fs::write(dir.path().join(name), text).expect("write");
        write("a.yaml", POD);
        write("b.yaml", "not: [a pod");
        write("c.yaml", "apiVersion: v1\nkind: Service\n");
        write(".hidden.yaml", POD);
        let pods = read_directory(dir.path(), names(), "n").expect("readable");
        assert_eq!(pods.len(), 1);
        assert!(read_directory(&dir.path().join("none"), names(), "n").expect("ok").is_empty());
    }
}
