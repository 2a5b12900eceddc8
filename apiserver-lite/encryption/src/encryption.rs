//! Encryption of a store's values by the rules of a file, which may be replaced while the server runs.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError, RwLock};

use apiserver_store::{Form, Transform, TransformError};
use bytes::Bytes;
use proto_client::reloading_file::{Changed, ReloadingFile};
use proto_daemon::config::{ConfigError, FieldError, FileType, parse};
use proto_daemon::exit::chain;
use ring::rand::{SecureRandom, SystemRandom};
use tokio::time::Instant;

use crate::configuration::EncryptionConfiguration;
use crate::rules::{NonceBytes, Rules, StoredResource};

/// The rules of a file, as a store's [`Transform`].
pub struct Encryption {
    path: PathBuf,
    accepted: FileType,
    resources: Vec<StoredResource>,
    file: Mutex<ReloadingFile>,
    rules: RwLock<Arc<Rules>>,
    random: SystemRandom,
}

/// Most objects that are named in the log.
const NAMED_MAX: usize = 16;

/// Values that a configuration cannot read.
#[derive(Default)]
struct UnreadableValues {
    count: usize,
    /// The keys of the first ones.
    first: Vec<String>,
}

/// What looking at the file gave.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reload {
    /// It has not changed.
    Unchanged,
    /// Its new content counts from now on.
    Done,
    /// Its new content is invalid, or lacks what reads a stored value; the log says so. The old one counts.
    Refused,
}

impl Encryption {
    /// Reads the file. `resources` are those that the server stores.
    ///
    /// # Errors
    /// It cannot be read, or its content is invalid.
    pub fn load(
        path: &Path,
        accepted: FileType,
        resources: Vec<StoredResource>,
    ) -> Result<Self, ConfigError> {
        let mut file = ReloadingFile::file(path.to_owned());
        let read = |cause| ConfigError::Read { path: path.to_owned(), cause };
        let (content, _) = file.current(Instant::now()).map_err(read)?;
        let rules = RwLock::new(Arc::new(read_rules(path, &accepted, &resources, &content)?));
        let (file, random) = (Mutex::new(file), SystemRandom::new());
        Ok(Self { path: path.to_owned(), accepted, resources, file, rules, random })
    }

    /// Takes over the file if it has changed. Looks at it at most once a second. `each_stored` calls its argument with the key and the form of every
    /// value on disk: all that can be read now must be readable with the new content, as the next start reads them.
    pub fn reload(
        &self,
        now: Instant,
        each_stored: impl FnOnce(&mut dyn FnMut(&str, Form)),
    ) -> Reload {
        let mut file = self.file.lock().unwrap_or_else(PoisonError::into_inner);
        // The error of a file that was read once is logged where it occurs.
        let Ok((content, Changed::Yes)) = file.current(now) else { return Reload::Unchanged };
        let path = self.path.display();
        match read_rules(&self.path, &self.accepted, &self.resources, &content) {
            Ok(rules) => {
                let lost = self.find_unreadable(&rules, each_stored);
                if lost.count > 0 {
                    let (objects, first) = (lost.count, lost.first.join(" "));
                    tracing::error!(%path, objects, first, "the new encryption configuration cannot decrypt stored objects; the old one stays in use. Add the missing keys (identity for clear text), or rewrite the objects before their provider is removed: a restart with the new configuration cannot read them");
                    return Reload::Refused;
                }
                *self.rules.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(rules);
                tracing::info!(%path, "reloaded the encryption configuration; writes use its first key from now on");
                Reload::Done
            }
            Err(error) => {
                let error = chain(&error);
                tracing::error!(%path, error, "the new encryption configuration is invalid; the old one stays in use");
                Reload::Refused
            }
        }
    }

    /// The values that the rules of now read and `next` does not.
    fn find_unreadable(
        &self,
        next: &Rules,
        each_stored: impl FnOnce(&mut dyn FnMut(&str, Form)),
    ) -> UnreadableValues {
        let (rules, mut lost) = (self.rules(), UnreadableValues::default());
        each_stored(&mut |key, form| {
            if rules.reads(key, form) && !next.reads(key, form) {
                lost.count = lost.count.saturating_add(1);
                if lost.first.len() < NAMED_MAX {
                    lost.first.push(key.to_owned());
                }
            }
        });
        lost
    }

    fn rules(&self) -> Arc<Rules> {
        self.rules.read().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

impl Transform for Encryption {
    fn encode_stored(&self, key: &str, value: Bytes) -> Result<(Bytes, Form), TransformError> {
        let rules = self.rules();
        let Some(writer) = rules.writer(key) else { return Ok((value, Form::AS_IS)) };
        let mut nonce = NonceBytes::default();
        self.random.fill(&mut nonce).map_err(|_| "the system's random number generator failed")?;
        let sealed = writer.seal(key, nonce, &value);
        let sealed = sealed.map_err(|_| format!("key {:?} does not encrypt it", writer.name()))?;
        Ok((sealed.into(), writer.form()))
    }

    fn decode_stored(&self, key: &str, stored: Bytes) -> Result<(Bytes, Form), TransformError> {
        Ok(match self.rules().open(key, &stored)? {
            Some((text, form)) => (text.into(), form),
            None => (stored, Form::AS_IS),
        })
    }

    fn current_form(&self, key: &str) -> Form {
        self.rules().writer(key).map_or(Form::AS_IS, |writer| writer.form())
    }
}

fn read_rules(
    path: &Path,
    accepted: &FileType,
    resources: &[StoredResource],
    content: &[u8],
) -> Result<Rules, ConfigError> {
    let invalid = |faults| ConfigError::Invalid { path: path.to_owned(), faults };
    let text = std::str::from_utf8(content).map_err(|_| {
        let cause = std::io::Error::new(std::io::ErrorKind::InvalidData, "it is not UTF-8");
        ConfigError::Read { path: path.to_owned(), cause }
    })?;
    let read = parse::<EncryptionConfiguration>(path, text, std::slice::from_ref(accepted));
    let configuration = read.map_err(without_content)?;
    Rules::new(&configuration, resources).map_err(invalid)
}

/// The error without what was found in place of an expected type: that may be a secret.
fn without_content(error: ConfigError) -> ConfigError {
    let ConfigError::Invalid { path, faults } = error else { return error };
    let redact = |fault: FieldError| match fault.message.strip_prefix("invalid type: ") {
        None => fault,
        Some(found) => {
            let expected = found.rsplit_once(", expected ").map_or("", |(_, expected)| expected);
            FieldError::new(fault.path, format!("invalid type, expected {expected}"))
        }
    };
    ConfigError::Invalid { path, faults: faults.into_iter().map(redact).collect() }
}

#[cfg(test)]
mod tests;
