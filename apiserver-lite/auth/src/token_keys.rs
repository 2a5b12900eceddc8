//! The keys of service account tokens, in files that may be replaced while the server runs. A file's new keys count within a second; while its content
//! is no key, or the file is lost, its last keys stay.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use apiserver_token::{KeyError, PublicKey, SigningKey};
use proto_client::reloading_file::{Changed, ReloadingFile};
use proto_daemon::exit::chain;
use tokio::time::Instant;

const SIGNING: &str = "--service-account-signing-key-file";
const VERIFYING: &str = "--service-account-key-file";
const SERVING: &str = "--tls-private-key-file";

/// A key file cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum TokenKeysError {
    /// It cannot be read.
    #[error("{flag}: cannot read {path}")]
    Read {
        /// The flag that names the file.
        flag: &'static str,
        /// The file.
        path: PathBuf,
        /// The error of the operating system.
        #[source]
        source: std::io::Error,
    },
    /// It holds no usable key.
    #[error("{flag}: cannot use {path}")]
    Key {
        /// The flag that names the file.
        flag: &'static str,
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        #[source]
        source: KeyError,
    },
}

/// The keys at one time.
#[derive(Debug)]
pub struct KeySet {
    signing: Arc<SigningKey>,
    verifying: Vec<PublicKey>,
}

impl KeySet {
    /// The key that signs new tokens.
    #[must_use]
    pub fn signing(&self) -> &SigningKey {
        &self.signing
    }

    /// The keys that verify tokens, each once, in the order of their files; the public half of the signing key is among them.
    #[must_use]
    pub fn verifying(&self) -> &[PublicKey] {
        &self.verifying
    }
}

/// The file of `--service-account-signing-key-file`, read again when it changes.
pub struct SigningKeyFile(KeyFile<Arc<SigningKey>>);

impl SigningKeyFile {
    /// Reads the first private key of a PEM file.
    ///
    /// # Errors
    /// The file cannot be read or holds no usable key.
    pub fn load(path: &Path) -> Result<Self, TokenKeysError> {
        Self::read(path, ReloadingFile::file(path.to_owned()))
    }

    /// The key of a PEM text, which never changes; `name` is that of errors.
    ///
    /// # Errors
    /// The text holds no usable key.
    pub fn fixed(name: &Path, pem: &str) -> Result<Self, TokenKeysError> {
        Self::read(name, ReloadingFile::fixed(pem.as_bytes().to_vec()))
    }

    fn read(path: &Path, file: ReloadingFile) -> Result<Self, TokenKeysError> {
        let parse = |pem: &[u8]| SigningKey::from_pem(pem).map(Arc::new);
        KeyFile::read((SIGNING, path), file, parse, Instant::now()).map(Self)
    }
}

/// The files of keys that verify tokens.
#[derive(Default)]
pub struct VerifyingKeyFiles(Vec<KeyFile<Vec<PublicKey>>>);

impl VerifyingKeyFiles {
    /// Reads all keys of these PEM files.
    ///
    /// # Errors
    /// A file that cannot be read, or holds no key or an unusable one.
    pub fn load(paths: &[PathBuf]) -> Result<Self, TokenKeysError> {
        let read = |path: &PathBuf| {
            let file = ReloadingFile::file(path.clone());
            KeyFile::read((VERIFYING, path), file, PublicKey::all_from_pem, Instant::now())
        };
        paths.iter().map(read).collect::<Result<_, _>>().map(Self)
    }

    /// The key of the serving certificate in the place of files of [`Self::load`], as kube-apiserver has it where no flag names a key of tokens. A key of a
    /// kind that tokens do not have (Ed25519, RSA of less than 2048 bits) verifies none of them, and serves all the same.
    ///
    /// # Errors
    /// The file cannot be read or is not PEM with a private key.
    fn of_serving_key(path: &Path) -> Result<Self, TokenKeysError> {
        let file = ReloadingFile::file(path.to_owned());
        let parse = |pem: &[u8]| match PublicKey::all_from_pem(pem) {
            Err(error @ KeyError::Rejected(_)) => {
                let error = chain(&error);
                tracing::warn!(
                    error,
                    "the key of --tls-private-key-file verifies no service account tokens: name keys by --service-account-key-file"
                );
                Ok(Vec::new())
            }
            keys => keys,
        };
        KeyFile::read((SERVING, path), file, parse, Instant::now()).map(|file| Self(vec![file]))
    }
}

/// The files of the keys of service account tokens. The signing key may be missing: the server has one of its own.
pub type TokenKeyFiles = (Option<SigningKeyFile>, VerifyingKeyFiles);

/// Reads the signing key and the keys that verify besides it. Where neither is named, the key of the serving certificate verifies, as in kube-apiserver.
///
/// # Errors
/// A file cannot be read or has no key that can be used.
pub fn load_token_keys(
    signing: Option<&Path>,
    verifying: &[PathBuf],
    serving: Option<&Path>,
) -> Result<TokenKeyFiles, TokenKeysError> {
    let signing = signing.map(SigningKeyFile::load).transpose()?;
    let serving = serving.filter(|_| verifying.is_empty() && signing.is_none());
    let load = || VerifyingKeyFiles::load(verifying);
    Ok((signing, serving.map_or_else(load, VerifyingKeyFiles::of_serving_key)?))
}

/// The key files, and the keys that they had last.
pub struct TokenKeys(Mutex<State>);

struct State {
    signing: SigningKeyFile,
    verifying: VerifyingKeyFiles,
    made: Arc<KeySet>,
}

impl TokenKeys {
    /// The keys of these files.
    #[must_use]
    pub fn new(signing: SigningKeyFile, verifying: VerifyingKeyFiles) -> Self {
        let made = collect(&signing, &verifying);
        Self(Mutex::new(State { signing, verifying, made }))
    }

    /// The keys now. Looks for new ones at most once a second.
    pub fn current(&self) -> Arc<KeySet> {
        let mut state = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let State { signing, verifying, made } = &mut *state;
        let now = Instant::now();
        let mut any = signing.0.refresh(now);
        for file in &mut verifying.0 {
            any |= file.refresh(now);
        }
        if any {
            *made = collect(signing, verifying);
            let ids: Vec<&str> = made.verifying.iter().map(PublicKey::id).collect();
            tracing::info!(signing = made.signing.public().id(), verifying = ?ids, "reloaded the keys of service account tokens");
        }
        made.clone()
    }
}

fn collect(signing: &SigningKeyFile, verifying: &VerifyingKeyFiles) -> Arc<KeySet> {
    let signing = signing.0.keys.clone();
    let mut keys: Vec<PublicKey> = Vec::new();
    for key in verifying.0.iter().flat_map(|file| &file.keys).chain([signing.public()]) {
        if !keys.contains(key) {
            keys.push(key.clone());
        }
    }
    Arc::new(KeySet { signing, verifying: keys })
}

/// A file with its last valid keys.
struct KeyFile<K> {
    path: PathBuf,
    file: ReloadingFile,
    parse: fn(&[u8]) -> Result<K, KeyError>,
    keys: K,
}

impl<K> KeyFile<K> {
    fn read(
        (flag, path): (&'static str, &Path),
        mut file: ReloadingFile,
        parse: fn(&[u8]) -> Result<K, KeyError>,
        now: Instant,
    ) -> Result<Self, TokenKeysError> {
        let path = path.to_owned();
        match file.current(now) {
            Err(source) => Err(TokenKeysError::Read { flag, path, source }),
            Ok((content, _)) => match parse(&content) {
                Err(source) => Err(TokenKeysError::Key { flag, path, source }),
                Ok(keys) => Ok(Self { path, file, parse, keys }),
            },
        }
    }

    /// Takes over new keys of the file. Whether there are any.
    fn refresh(&mut self, now: Instant) -> bool {
        // A file that was read once gives its old content when it is lost.
        let Ok((content, Changed::Yes)) = self.file.current(now) else { return false };
        match (self.parse)(&content) {
            Ok(keys) => {
                self.keys = keys;
                true
            }
            Err(error) => {
                let (path, error) = (self.path.display(), chain(&error));
                tracing::warn!(%path, error, "the changed file is not a key for service account tokens; the old keys stay in use");
                false
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    struct World {
        dir: tempfile::TempDir,
        keys: TokenKeys,
    }

    fn pem() -> (String, PublicKey) {
        let pem = rcgen::KeyPair::generate().unwrap().serialize_pem();
        let public = SigningKey::from_pem(pem.as_bytes()).unwrap().public().clone();
        (pem, public)
    }

    impl World {
        /// The signing key is `first`, and in the file of verifying keys as well.
        fn new(first: &str) -> Self {
            let dir = tempfile::tempdir().unwrap();
            let [signing, verifying] = ["signing", "verifying"].map(|name| dir.path().join(name));
            std::fs::write(&signing, first).unwrap();
            std::fs::write(&verifying, first).unwrap();
            let verifying = VerifyingKeyFiles::load(&[verifying]).unwrap();
            let keys = TokenKeys::new(SigningKeyFile::load(&signing).unwrap(), verifying);
            Self { dir, keys }
        }

        /// Replaces a file atomically, by a rename; returns the keys a second later.
        async fn replace(&self, name: &str, content: &str) -> Arc<KeySet> {
            let made = self.dir.path().join("new");
            std::fs::write(&made, content).unwrap();
            std::fs::rename(made, self.dir.path().join(name)).unwrap();
            tokio::time::advance(Duration::from_secs(1)).await;
            self.keys.current()
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_key_is_replaced_in_three_steps() {
        let ((old_pem, old), (new_pem, new)) = (pem(), pem());
        let world = World::new(&old_pem);
        assert_eq!(world.keys.current().verifying(), std::slice::from_ref(&old));
        let both = format!("{old_pem}{new_pem}");
        let added = world.replace("verifying", &both).await;
        assert_eq!(added.verifying(), [old.clone(), new.clone()]);
        assert_eq!(added.signing().public(), &old);
        let switched = world.replace("signing", &new_pem).await;
        assert_eq!(switched.verifying(), [old, new.clone()]);
        assert_eq!(switched.signing().public(), &new);
        let dropped = world.replace("verifying", &new_pem).await;
        assert_eq!(dropped.verifying(), [new]);
    }

    #[tokio::test(start_paused = true)]
    async fn invalid_key_files_change_nothing_and_do_not_block_others() {
        let ((old_pem, old), (new_pem, new)) = (pem(), pem());
        let world = World::new(&old_pem);
        for content in ["", "no key", &old_pem[..old_pem.len() / 2]] {
            let kept = world.replace("verifying", content).await;
            assert_eq!(kept.verifying(), std::slice::from_ref(&old), "{content}");
        }
        // The other file is read all the same.
        let switched = world.replace("signing", &new_pem).await;
        assert_eq!(switched.verifying(), [old.clone(), new.clone()]);
        std::fs::remove_file(world.dir.path().join("signing")).unwrap();
        tokio::time::advance(Duration::from_secs(1)).await;
        assert_eq!(world.keys.current().signing().public(), &new);
    }

    /// Whoever replaces the key of TLS by one that tokens do not have does not mean that the old one is good for tokens still.
    #[tokio::test(start_paused = true)]
    async fn the_serving_key_verifies_what_it_can() {
        let ((own_pem, own), (serving_pem, serving)) = (pem(), pem());
        let dir = tempfile::tempdir().unwrap();
        let [signing, path] = ["signing", "serving"].map(|name| dir.path().join(name));
        std::fs::write(&signing, own_pem).unwrap();
        let ed25519 = rcgen::KeyPair::generate_for(&rcgen::PKCS_ED25519).unwrap().serialize_pem();
        std::fs::write(&path, &ed25519).unwrap();
        let files = VerifyingKeyFiles::of_serving_key(&path).unwrap();
        let keys = TokenKeys::new(SigningKeyFile::load(&signing).unwrap(), files);
        let world = World { dir, keys };
        assert_eq!(world.keys.current().verifying(), std::slice::from_ref(&own));
        let both = world.replace("serving", &serving_pem).await;
        assert_eq!(both.verifying(), [serving.clone(), own.clone()]);
        let damaged = world.replace("serving", &serving_pem[..serving_pem.len() / 2]).await;
        assert_eq!(damaged.verifying(), [serving, own.clone()]);
        let left = world.replace("serving", &ed25519).await;
        assert_eq!(left.verifying(), [own]);
    }

    #[test]
    fn a_file_that_is_not_there_or_no_key_is_named() {
        let dir = tempfile::tempdir().unwrap();
        let (empty, lost) = (dir.path().join("empty"), dir.path().join("lost"));
        std::fs::write(&empty, "").unwrap();
        let verifying = |file: &PathBuf| {
            let files = VerifyingKeyFiles::load(std::slice::from_ref(file));
            files.map(|_| ()).unwrap_err().to_string()
        };
        let serving = |file: &Path| {
            VerifyingKeyFiles::of_serving_key(file).map(|_| ()).unwrap_err().to_string()
        };
        let signing = |file: &Path| SigningKeyFile::load(file).map(|_| ()).unwrap_err().to_string();
        for (path, what) in [(&empty, "use"), (&lost, "read")] {
            let named = |flag: &str| format!("{flag}: cannot {what} {}", path.display());
            assert_eq!(verifying(path), named("--service-account-key-file"));
            assert_eq!(signing(path), named("--service-account-signing-key-file"));
            assert_eq!(serving(path), named("--tls-private-key-file"));
        }
    }
}
