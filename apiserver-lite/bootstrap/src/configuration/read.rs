//! Reading of configuration files: strictly, with the reason for what is refused, and a warning for what has no effect here. All faults are reported.

use proto_api::names::Names;
use proto_api::yaml;
use serde::de::DeserializeOwned;
use serde_json::Value;
use serde_path_to_error::Segment;

use super::fields::{self, UnreadField};
use super::{
    ClusterConfiguration, InitConfiguration, JoinConfiguration, NEW_VERSION, OLD_VERSION, VERSION,
    api_version,
};
use crate::error::BootstrapError;

/// Most faults that are reported for one document.
const FAULTS_MAX: usize = 50;

/// The documents of a configuration file.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Documents {
    /// `InitConfiguration`.
    pub init: Option<InitConfiguration>,
    /// `ClusterConfiguration`.
    pub cluster: Option<ClusterConfiguration>,
    /// `JoinConfiguration`.
    pub join: Option<JoinConfiguration>,
    /// What has no effect, each with its reason.
    pub warnings: Vec<String>,
}

/// Reads a configuration file of a current version.
///
/// # Errors
/// It is no YAML, or has another version, kinds or fields that are not known here, or the same kind twice.
pub fn parse(text: &str, names: &Names) -> Result<Documents, BootstrapError> {
    read(text, names, &[VERSION, NEW_VERSION])
}

/// Reads a file of any known version and writes it in the one that is written, with what has no effect in it and is left out.
///
/// # Errors
/// As [`parse`].
pub fn migrate(text: &str, names: &Names) -> Result<(String, Vec<String>), BootstrapError> {
    let new = api_version(names, VERSION);
    let documents = read(text, names, &[OLD_VERSION, VERSION, NEW_VERSION]);
    let documents = documents.map_err(|error| match error {
        BootstrapError::Invalid(text) => {
            BootstrapError::Invalid(format!("cannot migrate to {new}: {text}"))
        }
        other => other,
    })?;
    Ok((print(&documents, names), documents.warnings))
}

/// The text of documents.
pub fn print(documents: &Documents, names: &Names) -> String {
    let objects = [
        documents.init.as_ref().map(|init| init.object(names)),
        documents.cluster.as_ref().map(|cluster| cluster.object(names)),
        documents.join.as_ref().map(|join| join.object(names)),
    ];
    let texts: Vec<String> = objects.iter().flatten().map(yaml::to_string).collect();
    texts.join("---\n")
}

fn yaml_documents(text: &str) -> Result<Vec<Value>, BootstrapError> {
    let mut documents = yaml::parse_all(text)
        .map_err(|error| BootstrapError::Invalid(format!("not valid YAML: {error}")))?;
    documents.retain(|document| !document.is_null());
    Ok(documents)
}

fn read(text: &str, names: &Names, versions: &[&str]) -> Result<Documents, BootstrapError> {
    let mut reading = Reading::default();
    for document in yaml_documents(text)? {
        reading.take(document, names, versions);
    }
    reading.conclude()
}

/// What was read of a file, and what is wrong with it.
#[derive(Default)]
struct Reading {
    documents: Documents,
    faults: Vec<String>,
    /// Kinds that were there.
    kinds: Vec<String>,
    /// How long the control plane is waited for, where version v1beta4 says it.
    control_plane_timeout: Option<String>,
}

impl Reading {
    fn take(&mut self, mut document: Value, names: &Names, versions: &[&str]) {
        let kind = document["kind"].as_str().unwrap_or_default().to_owned();
        if let Some(fault) = fields::kind_fault(&kind) {
            return self.faults.push(fault);
        }
        let found = document["apiVersion"].as_str().unwrap_or_default().to_owned();
        if let Some(fault) = version_fault(&kind, &found, names, versions) {
            return self.faults.push(fault);
        }
        if self.kinds.contains(&kind) {
            return self.faults.push(format!("kind {kind} is given twice"));
        }
        self.kinds.push(kind.clone());
        if let Some(object) = document.as_object_mut() {
            object.remove("apiVersion");
            object.remove("kind");
        }
        fields::remove_nulls(&mut document);
        if found == api_version(names, NEW_VERSION) {
            let converted = fields::convert(&kind, &mut document);
            self.control_plane_timeout = self.control_plane_timeout.take().or(converted.timeout);
            self.faults.extend(converted.faults);
        }
        for field in fields::without_effect(&kind, &mut document) {
            match field {
                UnreadField::Refused(text) => self.faults.push(text),
                UnreadField::Ignored(text) => self.documents.warnings.push(text),
            }
        }
        let faults = &mut self.faults;
        match kind.as_str() {
            "InitConfiguration" => self.documents.init = typed(&kind, document, faults),
            "ClusterConfiguration" => self.documents.cluster = typed(&kind, document, faults),
            _ => self.documents.join = typed(&kind, document, faults),
        }
    }

    fn conclude(mut self) -> Result<Documents, BootstrapError> {
        if self.kinds.is_empty() && self.faults.is_empty() {
            self.faults.push("the file has no document".to_owned());
        }
        if let Some(timeout) = self.control_plane_timeout {
            let cluster = self.documents.cluster.get_or_insert_default();
            cluster.api_server.timeout_for_control_plane = timeout;
        }
        if let Some(Err(error)) =
            self.documents.cluster.as_ref().map(ClusterConfiguration::validate)
        {
            self.faults.push(error.to_string());
        }
        match self.faults.as_slice() {
            [] => Ok(self.documents),
            [one] => Err(BootstrapError::Invalid(one.clone())),
            all => Err(BootstrapError::Invalid(format!(
                "{} faults:\n\t{}",
                all.len(),
                all.join("\n\t")
            ))),
        }
    }
}

fn version_fault(kind: &str, found: &str, names: &Names, versions: &[&str]) -> Option<String> {
    if versions.iter().any(|version| found == api_version(names, version)) {
        return None;
    }
    let what = if found == api_version(names, OLD_VERSION) {
        "an older version: `orchadm config migrate --old-config FILE` writes the current one"
            .to_owned()
    } else {
        format!("must be {} or {NEW_VERSION}", api_version(names, VERSION))
    };
    Some(format!("{kind}: apiVersion {found:?}: {what}"))
}

/// A document as its type; none with a fault of its fields, all unknown ones of which are reported.
fn typed<T: DeserializeOwned>(
    kind: &str,
    mut document: Value,
    faults: &mut Vec<String>,
) -> Option<T> {
    let mut is_valid = true;
    for _ in 0..FAULTS_MAX {
        let error = match serde_path_to_error::deserialize::<_, T>(document.clone()) {
            Ok(value) => return Some(value).filter(|_| is_valid),
            Err(error) => error,
        };
        is_valid = false;
        let reason = error.inner().to_string();
        let unknown = unknown_field(&reason);
        let mut steps = steps(error.path());
        if let Some(name) = unknown
            && steps.last().is_none_or(|last| last != name)
        {
            steps.push(name.to_owned());
        }
        let shown = steps.join(".");
        faults.push(format!("{kind}: {shown}: {reason}"));
        // The rest is looked at without it.
        if !remove(&mut document, &steps) {
            return None;
        }
    }
    None
}

/// The name in serde's message about a field that a type does not have.
fn unknown_field(reason: &str) -> Option<&str> {
    reason.strip_prefix("unknown field `")?.split('`').next()
}

fn steps(path: &serde_path_to_error::Path) -> Vec<String> {
    let step = |segment: &Segment| match segment {
        Segment::Seq { index } => Some(index.to_string()),
        Segment::Map { key } => Some(key.clone()),
        Segment::Enum { variant } => Some(variant.clone()),
        Segment::Unknown => None,
    };
    path.iter().filter_map(step).collect()
}

/// Removes a field; whether it was there.
fn remove(document: &mut Value, steps: &[String]) -> bool {
    let Some((name, parents)) = steps.split_last() else { return false };
    let mut at = document;
    for step in parents {
        let inner = match at {
            Value::Object(fields) => fields.get_mut(step),
            Value::Array(entries) => {
                step.parse().ok().and_then(|index: usize| entries.get_mut(index))
            }
            _ => None,
        };
        match inner {
            Some(inner) => at = inner,
            None => return false,
        }
    }
    at.as_object_mut().is_some_and(|fields| fields.remove(name).is_some())
}
