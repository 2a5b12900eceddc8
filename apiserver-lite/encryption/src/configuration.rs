//! The file: `EncryptionConfiguration` of `apiserver.config.k8s.io/v1`, and what may not stand in it. Faults name fields and never their content.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use proto_daemon::config::{Configuration, FieldError};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::aes_gcm::KEY_LENS;
use crate::envelope::NAME_LEN_MAX;

/// Which resources are encrypted how. The root of the file.
#[derive(Default, Serialize, Deserialize)]
#[serde(default)]
pub struct EncryptionConfiguration {
    pub(crate) resources: Vec<ResourceConfiguration>,
}

/// An entry of `resources`.
#[derive(Default, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct ResourceConfiguration {
    /// As `secrets` or `deployments.apps`.
    pub resources: Vec<String>,
    /// The first one writes, all read.
    pub providers: Vec<ProviderConfiguration>,
}

/// An entry of `providers`; has one field.
#[derive(Default, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct ProviderConfiguration {
    pub identity: Option<IdentityConfiguration>,
    pub aesgcm: Option<KeysConfiguration>,
    // Known by name, and refused.
    aescbc: Option<Value>,
    secretbox: Option<Value>,
    kms: Option<Value>,
}

/// Clear text.
#[derive(Default, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct IdentityConfiguration {}

#[derive(Default, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct KeysConfiguration {
    /// The first one writes.
    pub keys: Vec<KeyConfiguration>,
}

#[derive(Default, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct KeyConfiguration {
    pub name: String,
    /// Base64.
    pub secret: String,
}

impl KeyConfiguration {
    /// The bytes of the key.
    pub fn secret(&self) -> Option<Vec<u8>> {
        STANDARD.decode(&self.secret).ok()
    }
}

impl Configuration for EncryptionConfiguration {
    fn validate(&self) -> Vec<FieldError> {
        let mut faults = Vec::new();
        if self.resources.is_empty() {
            faults.push(FieldError::new("resources", "at least one resource is required"));
        }
        for (nth, entry) in self.resources.iter().enumerate() {
            entry.validate(&format!("resources[{nth}]"), &mut faults);
        }
        faults
    }
}

impl ResourceConfiguration {
    fn validate(&self, path: &str, faults: &mut Vec<FieldError>) {
        if self.resources.is_empty() {
            let field = format!("{path}.resources");
            faults.push(FieldError::new(field, "at least one resource is required"));
        }
        if self.providers.is_empty() {
            let field = format!("{path}.providers");
            faults.push(FieldError::new(field, "at least one provider is required"));
        }
        let mut names: Vec<&str> = Vec::new();
        for (nth, provider) in self.providers.iter().enumerate() {
            let path = format!("{path}.providers[{nth}]");
            provider.validate(&path, faults);
            let keys = provider.aesgcm.iter().flat_map(|provider| &provider.keys);
            for (nth, key) in keys.enumerate() {
                let path = format!("{path}.aesgcm.keys[{nth}]");
                key.validate(&path, faults);
                if names.contains(&key.name.as_str()) {
                    let why =
                        format!("duplicate value {:?}: every key has a name of its own", key.name);
                    faults.push(FieldError::new(format!("{path}.name"), why));
                }
                names.push(&key.name);
            }
        }
    }
}

impl ProviderConfiguration {
    fn validate(&self, path: &str, faults: &mut Vec<FieldError>) {
        let unsupported = [
            ("aescbc", &self.aescbc, "its values are not bound to their objects"),
            ("secretbox", &self.secretbox, "there is no library for it here"),
            ("kms", &self.kms, "there is no client for it here"),
        ];
        let refused = unsupported.iter().filter(|(_, given, _)| given.is_some());
        let supported = [self.identity.is_some(), self.aesgcm.is_some()];
        let supported = supported.into_iter().filter(|given| *given).count();
        let given = refused.clone().count().saturating_add(supported);
        for (name, _, why) in refused {
            let why = format!("provider {name} is not supported, {why}: use aesgcm");
            faults.push(FieldError::new(format!("{path}.{name}"), why));
        }
        match given {
            0 => {
                let why = "expected one of the providers aesgcm, identity";
                faults.push(FieldError::new(path, why));
            }
            1 => {}
            _ => {
                let why = "more than one provider specified in a single element, should split into different list elements";
                faults.push(FieldError::new(path, why));
            }
        }
        if self.aesgcm.as_ref().is_some_and(|provider| provider.keys.is_empty()) {
            let field = format!("{path}.aesgcm.keys");
            faults.push(FieldError::new(field, "at least one key is required"));
        }
    }
}

impl KeyConfiguration {
    fn validate(&self, path: &str, faults: &mut Vec<FieldError>) {
        let mut fault = |field: &str, why: String| {
            faults.push(FieldError::new(format!("{path}.{field}"), why));
        };
        if self.name.is_empty() {
            fault("name", "name is a mandatory field for a key".to_owned());
        }
        if self.name.len() > NAME_LEN_MAX || self.name.contains([':', '\n']) {
            fault("name", format!("must have at most {NAME_LEN_MAX} bytes and no colon"));
        }
        if self.secret.is_empty() {
            return fault("secret", "secret is a mandatory field for a key".to_owned());
        }
        match self.secret() {
            None => fault("secret", "secrets must be base64 encoded".to_owned()),
            Some(secret) if KEY_LENS.contains(&secret.len()) => {}
            Some(secret) => {
                let len = secret.len();
                let why = format!(
                    "secret is not of the expected length, got {len}, expected one of {KEY_LENS:?}"
                );
                fault("secret", why);
            }
        }
    }
}

#[cfg(test)]
mod tests;
