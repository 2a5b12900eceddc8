//! Fields and kinds of kubeadm's configuration that have another meaning or none here, and those of version v1beta4 as v1beta3 has them. Values only.

use std::time::Duration;

use proto_daemon::go_duration;
use serde_json::{Map, Value};

use crate::error::BootstrapError;

/// A field that is not read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum UnreadField {
    /// To ignore it would contradict the configuration.
    Refused(String),
    /// It changes nothing here.
    Ignored(String),
}

/// What happens to a field that says something.
enum Rule {
    Refused(&'static str),
    Ignored(&'static str),
}
use Rule::{Ignored, Refused};

/// The fields, inner ones before those that they are in.
const RULES: &[(&str, &str, Rule)] = &[
    ("ClusterConfiguration", "/etcd/local", Ignored(STORE)),
    ("ClusterConfiguration", "/imageRepository", Ignored(NO_IMAGES)),
    ("ClusterConfiguration", "/useHyperKubeImage", Ignored(NO_IMAGES)),
    ("ClusterConfiguration", "/dns/disabled", Refused("leave it out with skipPhases: [addon/dns]")),
    ("ClusterConfiguration", "/dns", Ignored("names are answered by orch-proxy on each node")),
    (
        "ClusterConfiguration",
        "/proxy/disabled",
        Refused("leave it out with skipPhases: [addon/kube-proxy]"),
    ),
    ("ClusterConfiguration", "/proxy", Ignored("orch-proxy is not a DaemonSet")),
    ("ClusterConfiguration", "/featureGates", Ignored("orchadm has no feature gates")),
    ("ClusterConfiguration", "/apiServer/extraVolumes", Refused(NO_PODS)),
    ("ClusterConfiguration", "/controllerManager/extraVolumes", Refused(NO_PODS)),
    ("ClusterConfiguration", "/scheduler/extraVolumes", Refused(NO_PODS)),
    ("ClusterConfiguration", "/apiServer/extraEnvs", Refused(NO_VARIABLES)),
    ("ClusterConfiguration", "/controllerManager/extraEnvs", Refused(NO_VARIABLES)),
    ("ClusterConfiguration", "/scheduler/extraEnvs", Refused(NO_VARIABLES)),
    ("InitConfiguration", "/certificateKey", Ignored(NO_UPLOAD)),
    ("InitConfiguration", "/patches", Refused(NO_PODS)),
    ("InitConfiguration", "/dryRun", Refused("give --dry-run")),
    ("InitConfiguration", "/nodeRegistration/imagePullPolicy", Ignored(NO_IMAGES)),
    ("InitConfiguration", "/nodeRegistration/imagePullSerial", Ignored(NO_IMAGES)),
    ("InitConfiguration", "/timeouts", Ignored(TIMEOUTS)),
    ("JoinConfiguration", "/controlPlane/certificateKey", Refused(NO_UPLOAD)),
    ("JoinConfiguration", "/patches", Refused(NO_PODS)),
    ("JoinConfiguration", "/dryRun", Refused("give --dry-run")),
    ("JoinConfiguration", "/nodeRegistration/imagePullPolicy", Ignored(NO_IMAGES)),
    ("JoinConfiguration", "/nodeRegistration/imagePullSerial", Ignored(NO_IMAGES)),
    ("JoinConfiguration", "/timeouts", Ignored(TIMEOUTS)),
];
const STORE: &str =
    "no etcd is run here: the API server keeps its objects in its own store, or in etcd.external";
const NO_PODS: &str = "the control plane's programs run on the host, not in pods";
const NO_IMAGES: &str = "the programs run on the host: no image is pulled";
const NO_VARIABLES: &str = "the programs are configured by flags: extraArgs";
const NO_UPLOAD: &str =
    "certificates are not uploaded to the cluster: copy those of the first control plane by hand";
const TIMEOUTS: &str = "only controlPlaneComponentHealthCheck and discovery have an effect";

/// Lifetimes of certificates, which are fixed, in hours.
const LIFETIMES: [(&str, u64); 2] =
    [("caCertificateValidityPeriod", 87_600), ("certificateValidityPeriod", 8760)];
/// Major and minor version of the API that the programs serve.
const SERVED: (u32, u32) = (1, 25);
/// What names of versions that are not numbers begin with, as kubeadm has them.
const VERSION_LABELS: [&str; 3] = ["stable", "latest", "ci/"];
/// The algorithm of all keys that are made.
const ALGORITHM: &str = "ECDSA-P256";

/// What is wrong with a kind; none if it is read.
pub fn kind_fault(kind: &str) -> Option<String> {
    let reason = match kind {
        "InitConfiguration" | "ClusterConfiguration" | "JoinConfiguration" => return None,
        "KubeletConfiguration" => {
            "orchadm does not hand it out: put the document into a file of each host, and name the file there with nodeRegistration.kubeletExtraArgs: config"
        }
        "KubeProxyConfiguration" => {
            "orch-proxy has no configuration file, and its networks are those of ClusterConfiguration: leave the document out"
        }
        "ResetConfiguration" => "give the flags of `orchadm reset`",
        "UpgradeConfiguration" => "give the flags of `orchadm upgrade`",
        _ => "must be InitConfiguration, ClusterConfiguration or JoinConfiguration",
    };
    Some(format!("kind {kind:?}: {reason}"))
}

/// Removes fields that are null, which say nothing.
pub fn remove_nulls(value: &mut Value) {
    match value {
        Value::Object(fields) => {
            fields.retain(|_, value| !value.is_null());
            fields.values_mut().for_each(remove_nulls);
        }
        Value::Array(entries) => entries.iter_mut().for_each(remove_nulls),
        _ => {}
    }
}

/// Takes the fields out of a document that are not read here.
pub fn without_effect(kind: &str, document: &mut Value) -> Vec<UnreadField> {
    let mut found = Vec::new();
    for (_, pointer, rule) in RULES.iter().filter(|(of, ..)| *of == kind) {
        let Some(value) = remove_field(document, pointer) else { continue };
        if says_nothing(&value) {
            continue;
        }
        let field = pointer.trim_start_matches('/').replace('/', ".");
        found.push(match rule {
            Refused(why) => UnreadField::Refused(format!("{kind}: {field}: not supported: {why}")),
            Ignored(why) => UnreadField::Ignored(format!("{kind}: {field}: ignored: {why}")),
        });
    }
    if kind == "ClusterConfiguration" {
        found.extend(fixed(document));
    }
    found
}

/// Fields of a `ClusterConfiguration` that can be one value only.
fn fixed(document: &mut Value) -> Vec<UnreadField> {
    let mut found = Vec::new();
    for (field, hours) in LIFETIMES {
        let Some(value) = remove_field(document, &format!("/{field}")) else { continue };
        let asked = value.as_str().and_then(|text| go_duration::parse(text).ok());
        if asked != Some(Duration::from_secs(hours * 3600)) {
            found.push(UnreadField::Refused(format!(
                "ClusterConfiguration: {field} {value}: must be {hours}h, which is how long certificates last"
            )));
        }
    }
    if let Some(value) = remove_field(document, "/kubernetesVersion") {
        let field = "ClusterConfiguration: kubernetesVersion";
        match version_warning(field, value.as_str().unwrap_or_default()) {
            Ok(warning) => found.extend(warning.map(UnreadField::Ignored)),
            Err(error) => found.push(UnreadField::Refused(error.to_string())),
        }
    }
    if let Some(value) = remove_field(document, "/encryptionAlgorithm")
        && value != ALGORITHM
    {
        found.push(UnreadField::Ignored(format!(
            "ClusterConfiguration: encryptionAlgorithm: ignored: keys are of {ALGORITHM}"
        )));
    }
    found
}

/// A warning about a version of Kubernetes that is asked for with a flag or field, unless the programs serve it.
///
/// # Errors
/// It is no version.
pub fn version_warning(field: &str, version: &str) -> Result<Option<String>, BootstrapError> {
    let (major, minor) = SERVED;
    if !VERSION_LABELS.iter().any(|label| version.starts_with(label)) {
        let mut numbers = version.trim_start_matches('v').splitn(3, '.').map(str::parse::<u32>);
        match (numbers.next(), numbers.next()) {
            (Some(Ok(first)), Some(Ok(second))) if (first, second) == SERVED => return Ok(None),
            (Some(Ok(_)), Some(Ok(_))) => {}
            _ => {
                return Err(BootstrapError::Invalid(format!(
                    "{field} {version:?}: must be a version as v{major}.{minor}.0"
                )));
            }
        }
    }
    Ok(Some(format!(
        "{field} {version}: ignored: the version is that of the programs in --bin-dir, which serve the API of Kubernetes {major}.{minor}"
    )))
}

fn remove_field(document: &mut Value, pointer: &str) -> Option<Value> {
    let (parent, name) = pointer.rsplit_once('/')?;
    document.pointer_mut(parent)?.as_object_mut()?.remove(name)
}

/// Whether a value is as good as none.
fn says_nothing(value: &Value) -> bool {
    match value {
        Value::Null | Value::Bool(false) => true,
        Value::String(text) => text.is_empty(),
        Value::Array(entries) => entries.is_empty(),
        Value::Object(fields) => fields.values().all(says_nothing),
        Value::Bool(true) | Value::Number(_) => false,
    }
}

/// What a document of version v1beta4 yields besides the document.
#[derive(Debug, Default)]
pub struct ConvertedDocument {
    /// `timeouts.controlPlaneComponentHealthCheck`, which v1beta3 has in another kind.
    pub timeout: Option<String>,
    /// What cannot be said in v1beta3.
    pub faults: Vec<String>,
}

/// Makes a document of version v1beta4 one of v1beta3.
pub fn convert(kind: &str, document: &mut Value) -> ConvertedDocument {
    let mut converted = ConvertedDocument::default();
    let arguments: &[&str] = match kind {
        "ClusterConfiguration" => {
            &["/apiServer/extraArgs", "/controllerManager/extraArgs", "/scheduler/extraArgs"]
        }
        _ => &["/nodeRegistration/kubeletExtraArgs"],
    };
    for pointer in arguments {
        if let Some(Value::Array(entries)) = document.pointer(pointer) {
            let (map, faults) = arguments_map(kind, pointer, entries);
            converted.faults.extend(faults);
            if let Some(place) = document.pointer_mut(pointer) {
                *place = Value::Object(map);
            }
        }
    }
    let text = |value: Value| value.as_str().map(str::to_owned);
    if kind == "InitConfiguration" {
        let timeout = remove_field(document, "/timeouts/controlPlaneComponentHealthCheck");
        converted.timeout = timeout.and_then(text);
    }
    if kind == "JoinConfiguration"
        && let Some(timeout) = remove_field(document, "/timeouts/discovery")
        && let Some(discovery) = document.get_mut("discovery").and_then(Value::as_object_mut)
    {
        discovery.insert("timeout".to_owned(), timeout);
    }
    converted
}

/// A list of names and values as a map.
fn arguments_map(
    kind: &str,
    pointer: &str,
    entries: &[Value],
) -> (Map<String, Value>, Vec<String>) {
    let field = pointer.trim_start_matches('/').replace('/', ".");
    let (mut map, mut faults) = (Map::new(), Vec::new());
    for entry in entries {
        let Some(name) = entry["name"].as_str() else {
            faults.push(format!("{kind}: {field}: each entry must have a name and a value"));
            continue;
        };
        let value = entry.get("value").cloned().unwrap_or_else(|| Value::from(""));
        if map.insert(name.to_owned(), value).is_some() {
            faults.push(format!(
                "{kind}: {field}: {name} is given twice: give one flag with all values"
            ));
        }
    }
    (map, faults)
}
