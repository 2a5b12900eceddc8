//! Registry credentials: the pod's secrets first, then the node's files and plugins.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::time::SystemTime;
use std::{fs, io};

use agent_host::offload;
use agent_interfaces::PodObjects;
use agent_node::keyring::{Keyring, KeyringError, Login};
use proto_api::core::v1::{Pod, Secret};
use tokio::sync::Mutex;

use super::provider::Providers;

/// Largest file that is read.
const FILE_LEN_MAX: u64 = 1 << 20;

/// Registry credentials of the node: files in `config.json` format, then credential provider plugins.
#[derive(Debug, Default)]
pub struct CredentialSources {
    /// Credential files of the node; the first that exists counts.
    files: Vec<PathBuf>,
    /// The file read last.
    read: Mutex<Option<File>>,
    providers: Providers,
}

/// A credential file as read.
#[derive(Debug)]
struct File {
    path: PathBuf,
    changed: Option<SystemTime>,
    keyring: Keyring,
}

impl CredentialSources {
    /// The node's usual credential files, and plugins.
    pub fn new(root_dir: &Path, providers: Providers) -> Self {
        let home = std::env::var_os("HOME").map(PathBuf::from).unwrap_or_else(|| "/root".into());
        let directories = [root_dir.to_owned(), home.join(".docker"), "/.docker".into()];
        let new = directories.iter().map(|dir| dir.join("config.json"));
        let old = [root_dir.to_owned(), home, "/".into()].map(|dir| dir.join(".dockercfg"));
        Self { files: new.chain(old).collect(), read: Mutex::default(), providers }
    }

    /// Credentials for a repository in the order of attempts, without duplicates.
    pub async fn find(&self, repository: &str, pod: &Pod, objects: &PodObjects) -> Vec<Login> {
        let mut logins = of_secrets(repository, pod, objects);
        logins.extend(self.of_files(repository).await);
        logins.extend(self.providers.find(repository).await);
        let mut seen = BTreeSet::new();
        logins.retain(|login| seen.insert(login.clone()));
        logins
    }

    /// Credentials from the node's file, which is read again after a change.
    async fn of_files(&self, repository: &str) -> Vec<Login> {
        let mut read = self.read.lock().await;
        let (files, before) = (self.files.clone(), read.take());
        // Cancelled only when the program ends.
        *read = offload(move || newest(&files, before)).await.unwrap_or_default();
        read.as_ref().map(|file| file.keyring.lookup(repository)).unwrap_or_default()
    }
}

/// The first existing file, read again if it has changed.
fn newest(files: &[PathBuf], before: Option<File>) -> Option<File> {
    let path = files.iter().find(|path| path.is_file())?;
    let changed = fs::metadata(path).and_then(|meta| meta.modified()).ok();
    if let Some(known) = before.filter(|known| known.path == *path && known.changed == changed) {
        return Some(known);
    }
    let keyring = read_file(path).unwrap_or_else(|fault| {
        tracing::warn!(path = %path.display(), %fault, "the node's credential file is invalid and ignored");
        Keyring::default()
    });
    Some(File { path: path.clone(), changed, keyring })
}

/// Why a credential file is ignored.
#[derive(Debug, thiserror::Error)]
enum FileError {
    #[error(transparent)]
    Read(#[from] io::Error),
    #[error("longer than 1 MiB")]
    TooLong,
    #[error(transparent)]
    Content(#[from] KeyringError),
}

fn read_file(path: &Path) -> Result<Keyring, FileError> {
    if fs::metadata(path)?.len() > FILE_LEN_MAX {
        return Err(FileError::TooLong);
    }
    let bytes = fs::read(path)?;
    let old = path.extension().is_none_or(|extension| extension != "json");
    let keyring = if old { Keyring::dockercfg(&bytes) } else { Keyring::config_json(&bytes) };
    Ok(keyring?)
}

/// Missing and invalid secrets are skipped: the image may be public.
fn of_secrets(repository: &str, pod: &Pod, objects: &PodObjects) -> Vec<Login> {
    let mut logins = Vec::new();
    for reference in &pod.spec.image_pull_secrets {
        let Some(Some(secret)) = objects.secrets.get(&reference.name) else { continue };
        match keyring(secret) {
            Ok(keyring) => logins.extend(keyring.lookup(repository)),
            Err(error) => {
                let name = &reference.name;
                tracing::warn!(pod = pod.metadata.name, namespace = pod.metadata.namespace, secret = name, %error, "an image pull secret is invalid and ignored");
            }
        }
    }
    logins
}

fn keyring(secret: &Secret) -> Result<Keyring, KeyringError> {
    if let Some(data) = secret.data.get(".dockerconfigjson") {
        Keyring::config_json(data.as_ref())
    } else if let Some(data) = secret.data.get(".dockercfg") {
        Keyring::dockercfg(data.as_ref())
    } else {
        Ok(Keyring::default())
    }
}

/// Pull secrets of a pod that do not exist.
pub fn missing_secrets(pod: &Pod, objects: &PodObjects) -> Vec<String> {
    let named = pod.spec.image_pull_secrets.iter().map(|secret| &secret.name);
    let missing = named.filter(|name| !matches!(objects.secrets.get(*name), Some(Some(_))));
    missing.cloned().collect()
}
