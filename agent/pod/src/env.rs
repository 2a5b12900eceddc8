//! The environment of a container: services of the namespace, whole objects, single keys, fields of the pod, amounts of
//! resources, and references between variables.
//!
//! Later sources win: services, then `envFrom` in order, then `env` in order.

use std::collections::{BTreeMap, BTreeSet};

use proto_api::core::v1::{
    ConfigMap, Container, EnvVar, EnvVarSource, Pod, ResourceFieldSelector, Secret,
};
use proto_api::{Quantity, names::Names};

use crate::expand::expand;

/// What [`environment`] looks at beside the container.
pub struct Inputs<'a> {
    /// The pod.
    pub pod: &'a Pod,
    /// Addresses of the node, the primary first.
    pub host_ips: &'a [String],
    /// Addresses of the pod, the primary first.
    pub pod_ips: &'a [String],
    /// Objects of the pod's namespace.
    pub objects: &'a dyn Objects,
    /// Services of the pod's namespace, and the API server's.
    pub services: &'a [ServiceEnv],
    /// What the node can give to pods; stands in for a limit that is not set.
    pub allocatable: &'a BTreeMap<String, Quantity>,
}

/// Objects that an environment may refer to, in the pod's namespace.
pub trait Objects {
    /// A config map, if it exists.
    fn config_map(&self, name: &str) -> Option<&ConfigMap>;
    /// A secret, if it exists.
    fn secret(&self, name: &str) -> Option<&Secret>;
}

/// A service as it shows in environments.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ServiceEnv {
    /// Name of the service.
    pub name: String,
    /// Its cluster address.
    pub cluster_ip: String,
    /// Its ports: name (may be empty), protocol, number.
    pub ports: Vec<(String, String, i32)>,
}

/// Objects that must be at hand before an environment can be made.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Needs {
    /// Names of config maps.
    pub config_maps: BTreeSet<String>,
    /// Names of secrets.
    pub secrets: BTreeSet<String>,
}

/// Why an environment cannot be made. The texts are shown to users as they are.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum EnvError {
    /// A required config map does not exist.
    #[error("configmap {0:?} not found")]
    NoConfigMap(String),
    /// A required secret does not exist.
    #[error("secret {0:?} not found")]
    NoSecret(String),
    /// A required key is missing.
    #[error("couldn't find key {key} in {kind} {namespace}/{name}")]
    NoKey {
        /// `ConfigMap` or `Secret`.
        kind: &'static str,
        /// Namespace of the object.
        namespace: String,
        /// Name of the object.
        name: String,
        /// The key.
        key: String,
    },
    /// A value is not text.
    #[error("key {key} in Secret {name} is not valid UTF-8")]
    NotText {
        /// Name of the secret.
        name: String,
        /// The key.
        key: String,
    },
    /// The pod has no such field.
    #[error("unsupported fieldPath: {0}")]
    UnknownField(String),
    /// There is no such resource or container.
    #[error("unsupported container resource: {0}")]
    UnknownResource(String),
}

/// The objects that the environment of `container` refers to, optional ones included.
pub fn needs(container: &Container) -> Needs {
    let mut needs = Needs::default();
    for from in &container.env_from {
        if let Some(source) = &from.config_map_ref {
            needs.config_maps.insert(source.local_object_reference.name.clone());
        }
        if let Some(source) = &from.secret_ref {
            needs.secrets.insert(source.local_object_reference.name.clone());
        }
    }
    for source in container.env.iter().filter_map(|var| var.value_from.as_ref()) {
        if let Some(key) = &source.config_map_key_ref {
            needs.config_maps.insert(key.local_object_reference.name.clone());
        }
        if let Some(key) = &source.secret_key_ref {
            needs.secrets.insert(key.local_object_reference.name.clone());
        }
    }
    needs
}

/// The environment of `container`: names unique, in the order in which they were first set.
///
/// # Errors
/// The first required thing that is missing.
pub fn environment(
    container: &Container,
    inputs: &Inputs<'_>,
) -> Result<Vec<(String, String)>, EnvError> {
    let mut result = Environment::default();
    for (name, value) in service_variables(inputs.services) {
        result.set(name, value);
    }
    from_objects(container, inputs, &mut result)?;
    for var in &container.env {
        if let Some(value) = value(var, container, inputs, &result)? {
            result.set(var.name.clone(), value);
        }
    }
    Ok(result.into_list())
}

/// Variables in the order of their first setting.
#[derive(Default)]
struct Environment {
    order: Vec<String>,
    values: BTreeMap<String, String>,
}

impl Environment {
    fn set(&mut self, name: String, value: String) {
        if self.values.insert(name.clone(), value).is_none() {
            self.order.push(name);
        }
    }

    fn get(&self, name: &str) -> Option<&str> {
        self.values.get(name).map(String::as_str)
    }

    fn into_list(mut self) -> Vec<(String, String)> {
        let value = |name: String| {
            let value = self.values.remove(&name).unwrap_or_default();
            (name, value)
        };
        self.order.into_iter().map(value).collect()
    }
}

fn from_objects(
    container: &Container,
    inputs: &Inputs<'_>,
    result: &mut Environment,
) -> Result<(), EnvError> {
    for from in &container.env_from {
        if let Some(source) = &from.config_map_ref {
            let name = &source.local_object_reference.name;
            match inputs.objects.config_map(name) {
                Some(object) => {
                    for (key, value) in &object.data {
                        set_from(result, &from.prefix, key, value.clone());
                    }
                }
                None if source.optional == Some(true) => {}
                None => return Err(EnvError::NoConfigMap(name.clone())),
            }
        }
        if let Some(source) = &from.secret_ref {
            let name = &source.local_object_reference.name;
            match inputs.objects.secret(name) {
                Some(object) => {
                    for (key, value) in &object.data {
                        set_from(result, &from.prefix, key, text(name, key, value)?);
                    }
                }
                None if source.optional == Some(true) => {}
                None => return Err(EnvError::NoSecret(name.clone())),
            }
        }
    }
    Ok(())
}

/// What users are told of keys that `envFrom` names and that cannot be names of variables; a line for each object.
pub fn skipped(container: &Container, namespace: &str, objects: &dyn Objects) -> Vec<String> {
    let line = |keys: Vec<&String>, prefix: &str, kind: &str, name: &str| {
        let is_none = |key: &&&String| !is_variable_name(&format!("{prefix}{key}"));
        let keys: Vec<&str> = keys.iter().filter(is_none).map(|key| key.as_str()).collect();
        let told = || {
            format!(
                "Keys [{}] from the EnvFrom {kind} {namespace}/{name} were skipped since they are \
                 considered invalid environment variable names.",
                keys.join(", ")
            )
        };
        (!keys.is_empty()).then(told)
    };
    let mut lines = Vec::new();
    for from in &container.env_from {
        if let Some(source) = &from.config_map_ref {
            let name = &source.local_object_reference.name;
            let keys = objects.config_map(name).map(|object| object.data.keys().collect());
            lines.extend(line(keys.unwrap_or_default(), &from.prefix, "configMap", name));
        }
        if let Some(source) = &from.secret_ref {
            let name = &source.local_object_reference.name;
            let keys = objects.secret(name).map(|object| object.data.keys().collect());
            lines.extend(line(keys.unwrap_or_default(), &from.prefix, "secret", name));
        }
    }
    lines
}

/// Sets a variable named by a key; a key that cannot be a name is left out.
fn set_from(result: &mut Environment, prefix: &str, key: &str, value: String) {
    let name = format!("{prefix}{key}");
    if is_variable_name(&name) {
        result.set(name, value);
    }
}

/// Letters, digits, `_`, `-` and `.`, not starting with a digit and not a path.
fn is_variable_name(name: &str) -> bool {
    let allowed = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '-' | '.');
    !name.is_empty()
        && name.chars().all(allowed)
        && !name.starts_with(|c: char| c.is_ascii_digit())
        && name != "."
        && !name.starts_with("..")
}

fn text(secret: &str, key: &str, value: &[u8]) -> Result<String, EnvError> {
    String::from_utf8(value.to_vec())
        .map_err(|_| EnvError::NotText { name: secret.to_owned(), key: key.to_owned() })
}

/// The value of one variable; `None` when it is optional and its source is missing.
fn value(
    var: &EnvVar,
    container: &Container,
    inputs: &Inputs<'_>,
    known: &Environment,
) -> Result<Option<String>, EnvError> {
    match &var.value_from {
        None => Ok(Some(expand(&var.value, |name| known.get(name)))),
        Some(source) => value_from(source, container, inputs),
    }
}

fn value_from(
    source: &EnvVarSource,
    container: &Container,
    inputs: &Inputs<'_>,
) -> Result<Option<String>, EnvError> {
    if let Some(field) = &source.field_ref {
        return field_value(&field.field_path, inputs).map(Some);
    }
    if let Some(field) = &source.resource_field_ref {
        let all = inputs.pod.spec.containers.iter().chain(&inputs.pod.spec.init_containers);
        let mut named = all.filter(|c| c.name == field.container_name);
        let container =
            if field.container_name.is_empty() { Some(container) } else { named.next() };
        let unknown = || EnvError::UnknownResource(field.container_name.clone());
        return resource_value(field, container.ok_or_else(unknown)?, inputs.allocatable).map(Some);
    }
    if let Some(reference) = &source.config_map_key_ref {
        let (name, key) = (&reference.local_object_reference.name, &reference.key);
        let optional = reference.optional == Some(true);
        return match inputs.objects.config_map(name) {
            None if optional => Ok(None),
            None => Err(EnvError::NoConfigMap(name.clone())),
            Some(object) => match object.data.get(key) {
                Some(value) => Ok(Some(value.clone())),
                None if optional => Ok(None),
                None => Err(no_key("ConfigMap", inputs.pod, name, key)),
            },
        };
    }
    if let Some(reference) = &source.secret_key_ref {
        let (name, key) = (&reference.local_object_reference.name, &reference.key);
        let optional = reference.optional == Some(true);
        return match inputs.objects.secret(name) {
            None if optional => Ok(None),
            None => Err(EnvError::NoSecret(name.clone())),
            Some(object) => match object.data.get(key) {
                Some(value) => text(name, key, value).map(Some),
                None if optional => Ok(None),
                None => Err(no_key("Secret", inputs.pod, name, key)),
            },
        };
    }
    Ok(Some(String::new()))
}

fn no_key(kind: &'static str, pod: &Pod, name: &str, key: &str) -> EnvError {
    let namespace = pod.metadata.namespace.clone();
    EnvError::NoKey { kind, namespace, name: name.to_owned(), key: key.to_owned() }
}

/// A field of the pod by its path.
fn field_value(path: &str, inputs: &Inputs<'_>) -> Result<String, EnvError> {
    let Pod { metadata, spec, .. } = inputs.pod;
    if let Some(key) = subscript(path, "metadata.labels") {
        return Ok(metadata.labels.get(key).cloned().unwrap_or_default());
    }
    if let Some(key) = subscript(path, "metadata.annotations") {
        return Ok(metadata.annotations.get(key).cloned().unwrap_or_default());
    }
    Ok(match path {
        "metadata.name" => metadata.name.clone(),
        "metadata.namespace" => metadata.namespace.clone(),
        "metadata.uid" => metadata.uid.clone(),
        "spec.nodeName" => spec.node_name.clone(),
        "spec.serviceAccountName" => spec.service_account_name.clone(),
        "status.hostIP" => inputs.host_ips.first().cloned().unwrap_or_default(),
        "status.podIP" => inputs.pod_ips.first().cloned().unwrap_or_default(),
        "status.podIPs" => inputs.pod_ips.join(","),
        _ => return Err(EnvError::UnknownField(path.to_owned())),
    })
}

/// The key of `field['key']`.
fn subscript<'a>(path: &'a str, field: &str) -> Option<&'a str> {
    path.strip_prefix(field)?.strip_prefix("['")?.strip_suffix("']")
}

/// An amount of a container's resources in units of the divisor, rounded up. A limit that is not set is what the node can give.
///
/// # Errors
/// The resource is not one of `limits.` or `requests.` with a known name.
pub fn resource_value(
    field: &ResourceFieldSelector,
    container: &Container,
    allocatable: &BTreeMap<String, Quantity>,
) -> Result<String, EnvError> {
    let unknown = || EnvError::UnknownResource(field.resource.clone());
    let (list, name) = field.resource.split_once('.').ok_or_else(unknown)?;
    let known =
        matches!(name, "cpu" | "memory" | "ephemeral-storage") || name.starts_with("hugepages-");
    let resources = &container.resources;
    let amount = match list {
        _ if !known => return Err(unknown()),
        "limits" => resources.limits.get(name).filter(|q| !q.is_zero()).or(allocatable.get(name)),
        "requests" => resources.requests.get(name).or(resources.limits.get(name)),
        _ => return Err(unknown()),
    };
    let amount = amount.copied().unwrap_or_default();
    let one = Quantity::from_units(1);
    let divisor = if field.divisor.is_zero() { one } else { field.divisor };
    let (amount, divisor) = if name == "cpu" {
        (amount.as_milli(), divisor.as_milli())
    } else {
        (amount.value(), divisor.value())
    };
    let divisor = divisor.max(1);
    Ok((amount.saturating_add(divisor - 1).div_euclid(divisor)).to_string())
}

/// The services that show in the environment of a pod: those of its namespace unless it wants no links, and always the API
/// server's. `all` holds namespace and service of every service with a cluster address.
pub fn linked_services<'a>(
    pod: &Pod,
    names: &Names,
    all: impl Iterator<Item = (&'a str, &'a ServiceEnv)>,
) -> Vec<ServiceEnv> {
    let links = pod.spec.enable_service_links != Some(false);
    let mut linked: BTreeMap<&str, &ServiceEnv> = BTreeMap::new();
    for (namespace, service) in all {
        let api = namespace == "default" && service.name == names.api_service_name();
        let own = links && namespace == pod.metadata.namespace;
        // A service of the pod's own namespace wins over the API server's of the same name.
        if own || (api && !linked.contains_key(service.name.as_str())) {
            linked.insert(&service.name, service);
        }
    }
    linked.into_values().cloned().collect()
}

/// Variables of services: `<NAME>_SERVICE_HOST`, `<NAME>_SERVICE_PORT[_<PORT>]`, and for each port the older
/// `<NAME>_PORT_<n>_<PROTOCOL>` family.
fn service_variables(services: &[ServiceEnv]) -> Vec<(String, String)> {
    let mut variables = Vec::new();
    for service in services {
        let upper = |text: &str| text.to_uppercase().replace('-', "_");
        let prefix = upper(&service.name);
        let ip = &service.cluster_ip;
        let mut set = |name: String, value: String| variables.push((name, value));
        set(format!("{prefix}_SERVICE_HOST"), ip.clone());
        if let Some((_, protocol, port)) = service.ports.first() {
            set(format!("{prefix}_SERVICE_PORT"), port.to_string());
            set(format!("{prefix}_PORT"), url(protocol, ip, *port));
        }
        for (name, protocol, port) in &service.ports {
            if !name.is_empty() {
                set(format!("{prefix}_SERVICE_PORT_{}", upper(name)), port.to_string());
            }
            let link = format!("{prefix}_PORT_{port}_{}", protocol.to_uppercase());
            set(link.clone(), url(protocol, ip, *port));
            set(format!("{link}_PROTO"), protocol.to_lowercase());
            set(format!("{link}_PORT"), port.to_string());
            set(format!("{link}_ADDR"), ip.clone());
        }
    }
    variables
}

fn url(protocol: &str, ip: &str, port: i32) -> String {
    let protocol = protocol.to_lowercase();
    if ip.contains(':') {
        format!("{protocol}://[{ip}]:{port}")
    } else {
        format!("{protocol}://{ip}:{port}")
    }
}

#[cfg(test)]
mod tests;
