//! The file of `--audit-policy-file`. Read strictly: one error names every fault.

use std::path::Path;

use apiserver_audit::{Policy, PolicyFile};
use proto_api::names::Names;
use proto_daemon::config::{ConfigError, Configuration, FieldError, FileType, load};
use serde::{Deserialize, Serialize};

#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(transparent)]
struct File(PolicyFile);

impl Configuration for File {
    fn validate(&self) -> Vec<FieldError> {
        let faults = self.0.faults().into_iter();
        faults.map(|fault| FieldError::new(fault.path, fault.message)).collect()
    }
}

/// Reads the policy.
///
/// # Errors
/// A file that cannot be read, or whose content is another kind or has faults.
pub fn read(path: &Path, names: &Names) -> Result<Policy, ConfigError> {
    let accepted =
        FileType { api_version: names.api_version("audit", "v1"), kind: "Policy".to_owned() };
    load::<File>(path, &[accepted]).map(|file| Policy::new(file.0))
}
