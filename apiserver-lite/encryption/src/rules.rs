//! Which keys write and read the objects of a resource. Pure: nonces are arguments.

use apiserver_store::Form;
use proto_daemon::config::FieldError;

use crate::aes_gcm::{AesGcmKey, NONCE_LEN};
use crate::configuration::{EncryptionConfiguration, ResourceConfiguration};
use crate::envelope::Envelope;

/// A resource of the server, and where its objects lie in the store.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoredResource {
    /// As a configuration names it: `secrets`, `deployments.apps`.
    pub name: String,
    /// The beginning of its objects' keys.
    pub prefix: String,
}

/// The providers of all listed resources.
pub struct Rules(Vec<ResourceRule>);

struct ResourceRule {
    prefix: String,
    /// The first one writes.
    providers: Vec<Provider>,
}

enum Provider {
    /// Clear text.
    Identity,
    AesGcm(Box<AesGcmKey>),
}

/// Why a value from disk cannot be read.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DecryptError {
    /// The key is not configured.
    #[error(
        "no matching prefix found: it is encrypted with key {name:?} of aesgcm, which --encryption-provider-config does not have for its resource"
    )]
    KeyGone {
        /// The name of the key.
        name: String,
    },
    /// The key is there and does not fit.
    #[error(
        "key {name:?} of aesgcm does not open it: the key has other bits than when the object was written, or the stored bytes were changed or moved"
    )]
    Unopened {
        /// The name of the key.
        name: String,
    },
    /// The value is in clear text, which is not among the providers.
    #[error(
        "no matching prefix found: it is stored in clear text, and --encryption-provider-config has no identity for its resource"
    )]
    Clear,
    /// Another provider made it.
    #[error(
        "no matching prefix found: it is encrypted by {provider:?}, which this server does not have"
    )]
    UnknownProvider {
        /// What its prefix says.
        provider: String,
    },
}

impl Rules {
    /// The rules of a valid configuration.
    ///
    /// # Errors
    /// A fault for each name that is no resource of the server: objects meant by a misspelled name would lie in clear text.
    pub fn new(
        configuration: &EncryptionConfiguration,
        resources: &[StoredResource],
    ) -> Result<Self, Vec<FieldError>> {
        let (mut rules, mut faults) = (Vec::<ResourceRule>::new(), Vec::new());
        for (nth, entry) in configuration.resources.iter().enumerate() {
            for (index, name) in entry.resources.iter().enumerate() {
                let Some(resource) = resources.iter().find(|resource| resource.name == *name)
                else {
                    let why = format!(
                        "{name:?} is no resource of this server: expected its plural name, with its group if it has one, as deployments.apps"
                    );
                    faults
                        .push(FieldError::new(format!("resources[{nth}].resources[{index}]"), why));
                    continue;
                };
                // As in Kubernetes, providers of a resource that is listed again follow those that it has.
                match rules.iter_mut().find(|rule| rule.prefix == resource.prefix) {
                    Some(rule) => rule.providers.extend(providers(entry)),
                    None => rules.push(ResourceRule {
                        prefix: resource.prefix.clone(),
                        providers: providers(entry).collect(),
                    }),
                }
            }
        }
        if faults.is_empty() { Ok(Self(rules)) } else { Err(faults) }
    }

    fn find_rule(&self, key: &str) -> Option<&ResourceRule> {
        self.0.iter().find(|rule| key.starts_with(&rule.prefix))
    }

    /// The key that encrypts the object `key`; `None` for clear text.
    pub fn writer(&self, key: &str) -> Option<&AesGcmKey> {
        match self.find_rule(key)?.providers.first()? {
            Provider::AesGcm(writer) => Some(writer),
            Provider::Identity => None,
        }
    }

    /// Whether a value of this form can be read as that of the object `key`.
    pub fn reads(&self, key: &str, form: Form) -> bool {
        let Some(rule) = self.find_rule(key) else { return form == Form::AS_IS };
        rule.providers.iter().any(|provider| match provider {
            Provider::AesGcm(key) => key.form() == form,
            Provider::Identity => form == Form::AS_IS,
        })
    }

    /// The text of the object `key`, and its form. `None`: the bytes are the text.
    pub fn open(&self, key: &str, stored: &[u8]) -> Result<Option<(Vec<u8>, Form)>, DecryptError> {
        let rule = self.find_rule(key);
        let providers = rule.map(|rule| rule.providers.as_slice()).unwrap_or_default();
        match Envelope::parse(stored) {
            Envelope::Clear => {
                let has_identity =
                    providers.iter().any(|provider| matches!(provider, Provider::Identity));
                if rule.is_none() || has_identity { Ok(None) } else { Err(DecryptError::Clear) }
            }
            Envelope::AesGcm { name, sealed } => {
                open_aes_gcm(providers, key, name, sealed).map(Some)
            }
            Envelope::Unknown { provider } => {
                Err(DecryptError::UnknownProvider { provider: provider.to_owned() })
            }
        }
    }
}

fn open_aes_gcm(
    providers: &[Provider],
    key: &str,
    name: &str,
    sealed: &[u8],
) -> Result<(Vec<u8>, Form), DecryptError> {
    let mut error = DecryptError::KeyGone { name: name.to_owned() };
    for provider in providers {
        let Provider::AesGcm(candidate) = provider else { continue };
        if candidate.name() != name {
            continue;
        }
        match candidate.open(key, sealed) {
            Ok(text) => return Ok((text, candidate.form())),
            Err(_) => error = DecryptError::Unopened { name: name.to_owned() },
        }
    }
    Err(error)
}

/// The providers of an entry, a key each.
fn providers(entry: &ResourceConfiguration) -> impl Iterator<Item = Provider> + '_ {
    entry.providers.iter().flat_map(|provider| {
        let identity = provider.identity.iter().map(|_| Provider::Identity);
        let keys = provider.aesgcm.iter().flat_map(|provider| &provider.keys);
        // Every key of a valid configuration has a length that there is.
        let keys = keys.filter_map(|key| AesGcmKey::new(&key.name, &key.secret()?));
        identity.chain(keys.map(|key| Provider::AesGcm(Box::new(key))))
    })
}

/// A nonce of a value.
pub type NonceBytes = [u8; NONCE_LEN];

#[cfg(test)]
mod tests;
