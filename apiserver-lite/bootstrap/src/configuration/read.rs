//! Reading of configuration files: strictly, with the reason for what is refused.

use proto_api::names::Names;
use proto_api::yaml;
use serde::de::DeserializeOwned;
use serde_json::Value;

use super::{
    ClusterConfiguration, InitConfiguration, JoinConfiguration, OLD_VERSION, VERSION, api_version,
};
use crate::error::BootstrapError;

/// Fields of kubeadm's kinds that are refused here, each with the reason.
const UNSUPPORTED: &[(&str, &str, &str)] = &[
    ("ClusterConfiguration", "/etcd", ETCD),
    ("ClusterConfiguration", "/kubernetesVersion", VERSIONS),
    ("ClusterConfiguration", "/imageRepository", NO_PODS),
    ("ClusterConfiguration", "/dns", "names are answered by orch-proxy on each node"),
    ("ClusterConfiguration", "/featureGates", "orchadm has no feature gates"),
    ("ClusterConfiguration", "/apiServer/extraVolumes", NO_PODS),
    ("ClusterConfiguration", "/controllerManager/extraVolumes", NO_PODS),
    ("ClusterConfiguration", "/scheduler/extraVolumes", NO_PODS),
    ("InitConfiguration", "/certificateKey", ONE_SERVER),
    ("InitConfiguration", "/patches", NO_PODS),
    ("InitConfiguration", "/nodeRegistration/imagePullPolicy", NO_PODS),
    ("JoinConfiguration", "/controlPlane", ONE_SERVER),
    ("JoinConfiguration", "/patches", NO_PODS),
    ("JoinConfiguration", "/nodeRegistration/imagePullPolicy", NO_PODS),
];
const ETCD: &str =
    "the API server keeps its objects in its own store; etcd as a store does not exist yet";
const VERSIONS: &str = "the version is that of the programs in --bin-dir";
const NO_PODS: &str = "the control plane's programs run on the host, not in pods";
const ONE_SERVER: &str =
    "the API server's own store belongs to one machine, so that there is one control plane";

/// The documents of a configuration file.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Documents {
    /// `InitConfiguration`.
    pub init: Option<InitConfiguration>,
    /// `ClusterConfiguration`.
    pub cluster: Option<ClusterConfiguration>,
    /// `JoinConfiguration`.
    pub join: Option<JoinConfiguration>,
}

/// Reads a configuration file of the current version.
///
/// # Errors
/// It is no YAML, or has another version, kind or field, or the same kind twice.
pub fn parse(text: &str, names: &Names) -> Result<Documents, BootstrapError> {
    read(text, names, VERSION)
}

/// Reads a file of the old or current version and writes it in the current one.
///
/// # Errors
/// As [`parse`].
pub fn migrate(text: &str, names: &Names) -> Result<String, BootstrapError> {
    let (old, new) = (api_version(names, OLD_VERSION), api_version(names, VERSION));
    let documents = yaml_documents(text)?;
    let is_old = |document: &Value| document["apiVersion"] == old.as_str();
    let version = match documents.iter().any(is_old) {
        true => OLD_VERSION,
        false => VERSION,
    };
    let documents = read(text, names, version).map_err(|error| match error {
        BootstrapError::Invalid(text) => {
            BootstrapError::Invalid(format!("cannot migrate to {new}: {text}"))
        }
        other => other,
    })?;
    Ok(print(&documents, names))
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
        .map_err(|error| BootstrapError::Invalid(format!("not YAML: {error}")))?;
    documents.retain(|document| !document.is_null());
    Ok(documents)
}

fn read(text: &str, names: &Names, version: &str) -> Result<Documents, BootstrapError> {
    let mut documents = Documents::default();
    for mut document in yaml_documents(text)? {
        let kind = document["kind"].as_str().unwrap_or_default().to_owned();
        check_version(&document, &kind, names, version)?;
        if let Some(object) = document.as_object_mut() {
            object.remove("apiVersion");
            object.remove("kind");
        }
        let is_new = match kind.as_str() {
            "InitConfiguration" => documents.init.replace(typed(&kind, document)?).is_none(),
            "ClusterConfiguration" => documents.cluster.replace(typed(&kind, document)?).is_none(),
            "JoinConfiguration" => documents.join.replace(typed(&kind, document)?).is_none(),
            other => {
                return Err(BootstrapError::Invalid(format!(
                    "kind {other:?}: must be InitConfiguration, ClusterConfiguration or JoinConfiguration; flags of orchlet go into nodeRegistration.kubeletExtraArgs"
                )));
            }
        };
        if !is_new {
            return Err(BootstrapError::Invalid(format!("kind {kind} is given twice")));
        }
    }
    if documents == Documents::default() {
        return Err(BootstrapError::Invalid("the file has no document".to_owned()));
    }
    if let Some(cluster) = &documents.cluster {
        cluster.validate()?;
    }
    Ok(documents)
}

fn check_version(
    document: &Value,
    kind: &str,
    names: &Names,
    version: &str,
) -> Result<(), BootstrapError> {
    let found = document["apiVersion"].as_str().unwrap_or_default();
    if found == api_version(names, version) {
        return Ok(());
    }
    let what = match found == api_version(names, OLD_VERSION) {
        true => {
            "an older version: `orchadm config migrate --old-config FILE` writes the current one"
                .to_owned()
        }
        false => format!("must be {}", api_version(names, version)),
    };
    Err(BootstrapError::Invalid(format!("{kind}: apiVersion {found:?}: {what}")))
}

fn typed<T: DeserializeOwned>(kind: &str, document: Value) -> Result<T, BootstrapError> {
    for (of, pointer, why) in UNSUPPORTED {
        if *of == kind && document.pointer(pointer).is_some_and(|value| !value.is_null()) {
            let field = pointer.trim_start_matches('/').replace('/', ".");
            return Err(BootstrapError::Invalid(format!("{kind}: {field}: not supported: {why}")));
        }
    }
    serde_path_to_error::deserialize(document)
        .map_err(|error| BootstrapError::Invalid(format!("{kind}: {error}")))
}
