//! The agent's settings: the configuration file and flags, read and validated together.

use std::path::{Path, PathBuf};

use agent_host::machine;
use proto_api::names::Names;
use proto_daemon::config::{self, ConfigError, FieldError, FileType};
use proto_daemon::feature_gates::FeatureGates;
use serde_json::Value;

use crate::file::FileConfig;
use crate::flags::Flags;
use crate::{gates, validate};

/// The agent's settings.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Names of the naming profile.
    pub names: &'static Names,
    /// Settings that only flags have.
    pub flags: Flags,
    /// The file with the flags applied.
    pub file: FileConfig,
    /// The feature gates.
    pub gates: FeatureGates,
    /// Warnings about the settings, one per line, to be logged once.
    pub warnings: Vec<String>,
}

impl Settings {
    /// Reads the configuration file named by the flags, applies the flags and validates the result.
    ///
    /// # Errors
    /// All validation errors; nothing has been changed.
    pub fn load(flags: Flags) -> Result<Self, ConfigError> {
        let names = flags.common.names();
        let of_file: FileConfig = match &flags.common.config {
            Some(path) => config::load(path, &file_types(names))?,
            None => FileConfig::of_flags_alone(),
        };
        let source = flags.common.config.as_deref().unwrap_or(Path::new("(flags)"));
        let invalid = |faults| ConfigError::Invalid { path: source.to_owned(), faults };
        let file = overlaid(&of_file, &flags).map_err(|fault| invalid(vec![fault]))?;
        let mut faults = validate::faults(&file);
        let settled = match gates::evaluate_gates(&file) {
            Ok(settled) => settled,
            Err(wrong) => {
                faults.extend(wrong);
                return Err(invalid(faults));
            }
        };
        faults.extend(validate::gated(&file, &settled.gates));
        if !faults.is_empty() {
            return Err(invalid(faults));
        }
        let mut warnings = settled.warnings;
        warnings.extend(validate::without_effect(&file));
        Ok(Self { names, flags, file, gates: settled.gates, warnings })
    }

    /// Directory of the agent's certificates.
    pub fn cert_dir(&self) -> PathBuf {
        self.flags.cert_dir.clone().unwrap_or_else(|| self.flags.root_dir.join("pki"))
    }

    /// Whether the serving certificate is requested from the API server; configured files take
    /// precedence.
    pub fn serves_with_own_request(&self) -> bool {
        self.file.server_tls_bootstrap
            && self.file.tls_cert_file.is_none()
            && self.flags.kubeconfig.is_some()
    }

    /// Name of the Node object.
    pub fn node_name(&self) -> String {
        let name = self.flags.hostname_override.clone();
        name.unwrap_or_else(|| machine::identity().hostname).trim().to_lowercase()
    }

    /// The effective configuration as shown at `/configz`.
    pub fn to_configz(&self) -> Value {
        let mut shown = serde_json::to_value(&self.file).unwrap_or_default();
        if let Some(fields) = shown.as_object_mut() {
            fields.insert("featureGates".to_owned(), self.gates.all().collect());
        }
        let name = format!("{}config", self.names.component("let"));
        Value::Object([(name, shown)].into_iter().collect())
    }
}

/// The file with the flags applied.
fn overlaid(file: &FileConfig, flags: &Flags) -> Result<FileConfig, FieldError> {
    // A value that was just decoded can be encoded.
    let mut tree = serde_json::to_value(file).unwrap_or_default();
    fill_in(&mut tree, &serde_json::to_value(FileConfig::default()).unwrap_or_default());
    flags.overrides.lay_over(&mut tree);
    serde_path_to_error::deserialize(&tree)
        .map_err(|error| FieldError::new(error.path().to_string(), error.inner().to_string()))
}

/// Kubernetes' tools write an unset string or duration as empty or zero, which means the default.
fn fill_in(tree: &mut Value, usual: &Value) {
    match (tree, usual) {
        (Value::Object(fields), Value::Object(usual)) => {
            for (name, value) in fields {
                if let Some(usual) = usual.get(name) {
                    fill_in(value, usual);
                }
            }
        }
        (Value::String(text), Value::String(usual)) if text.is_empty() || text == "0s" => {
            text.clone_from(usual)
        }
        _ => {}
    }
}

/// Accepted file types: orchlet's and Kubernetes' KubeletConfiguration.
pub(crate) fn file_types(names: &Names) -> [FileType; 2] {
    let file_type = |component: &str, domain: &str, kind: &str| FileType {
        api_version: format!("{component}.config.{domain}/v1beta1"),
        kind: kind.to_owned(),
    };
    [
        file_type("orchlet", names.group_domain(), "OrchletConfiguration"),
        file_type("kubelet", "k8s.io", "KubeletConfiguration"),
    ]
}

#[cfg(test)]
mod tests;
