//! The environment of a container: services of the namespace, whole objects (`envFrom`), single keys, pod fields, resource
//! amounts, and references between variables.
//!
//! Later sources win: services, then `envFrom` in order, then `env` in order.

mod step_budget;
mod whole_objects;

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet, HashMap};

use agent_node::resources::HUGE_PAGES;
use proto_api::Quantity;
use proto_api::core::v1::{
    ConfigMap, Container, EnvVar, EnvVarSource, Pod, ResourceFieldSelector, Secret,
};

use crate::desired::ephemeral_container;
use crate::expand::{expand, expanded_len};

pub use step_budget::{STEPS_MAX, StepBudget};
pub use whole_objects::skipped_keys;

/// Input of [`environment`] besides the container.
pub struct EnvInputs<'a> {
    /// The pod, for `fieldRef`.
    pub pod: &'a Pod,
    /// Its containers, for `resourceFieldRef`.
    pub containers: ContainersByName<'a>,
    /// Addresses of the node, primary first.
    pub host_ips: &'a [String],
    /// Addresses of the pod, primary first.
    pub pod_ips: &'a [String],
    /// Objects of the pod's namespace.
    pub objects: &'a dyn EnvObjects,
    /// Services of the pod's namespace, and `kubernetes` of the namespace `default`.
    pub services: &'a [ServiceEnv],
    /// Allocatable resources of the node, used for limits that are not set.
    pub allocatable: &'a BTreeMap<String, Quantity>,
}

/// Containers and init containers of a pod.
pub struct ContainersByName<'a>(BTreeMap<&'a str, &'a Container>);

impl<'a> ContainersByName<'a> {
    pub fn from_pod(pod: &'a Pod) -> Self {
        // Of two with the same name the first container counts.
        let all = pod.spec.containers.iter().chain(&pod.spec.init_containers);
        Self(all.rev().map(|container| (container.name.as_str(), container)).collect())
    }
}

/// ConfigMaps and Secrets of the pod's namespace.
pub trait EnvObjects {
    /// The ConfigMap of that name, if it exists.
    fn config_map(&self, name: &str) -> Option<&ConfigMap>;
    /// The Secret of that name, if it exists.
    fn secret(&self, name: &str) -> Option<&Secret>;
}

/// A service as environment variables describe it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ServiceEnv {
    /// Name of the service.
    pub name: String,
    pub cluster_ip: String,
    /// Ports: name (may be empty), protocol, number.
    pub ports: Vec<(String, String, i32)>,
}

/// Objects that have to be fetched before an environment can be built.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct EnvRequirements {
    /// Names of ConfigMaps.
    pub config_maps: BTreeSet<String>,
    /// Names of Secrets.
    pub secrets: BTreeSet<String>,
}

/// Why an environment cannot be built. The texts are shown to users and are Kubernetes' own where it has one.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum EnvError {
    /// A required ConfigMap does not exist.
    #[error("configmap {0:?} not found")]
    NoConfigMap(String),
    /// A required Secret does not exist.
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
        key: String,
    },
    /// A value is not UTF-8.
    #[error("key {key} in Secret {name} is not valid UTF-8")]
    NotText {
        /// Name of the Secret.
        name: String,
        key: String,
    },
    /// The pod has no such field.
    #[error("unsupported fieldPath: {0}")]
    UnknownField(String),
    /// No such resource or container exists.
    #[error("unsupported container resource: {0}")]
    UnknownResource(String),
    /// Variables exceed the size limit of one container's environment.
    #[error(
        "environment of container {container:?} is more than {limit} bytes with variable {variable:?}"
    )]
    TooLarge {
        /// Name of the container.
        container: String,
        /// The first variable that did not fit.
        variable: String,
        /// The limit in bytes.
        limit: usize,
    },
    /// The environments of the pod are made from too much.
    #[error(
        "environments of the pod are made from more than {STEPS_MAX} keys and variables, each KiB counted as one, with container {container:?}"
    )]
    TooManySteps {
        /// Name of the container with the first key or variable that exceeded the budget.
        container: String,
    },
}

/// Most bytes of names and values that a pod may add to a container's environment. The kernel accepts about twice as much for
/// environment and arguments together (a quarter of the stack limit, 2 MiB by default).
pub const POD_BYTES_MAX: usize = 1 << 20;
/// Most bytes including the variables of services, of which a namespace may have thousands.
pub const BYTES_MAX: usize = 4 << 20;

/// Most bytes of a variable's name in an error.
const SHOWN_LEN_MAX: usize = 256;

/// Objects that the environment of `container` refers to, including optional ones.
pub fn env_requirements(container: &Container) -> EnvRequirements {
    let mut needs = EnvRequirements::default();
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

/// Builds the environment of `container`: unique names, in the order of their first setting.
///
/// # Errors
/// The first required object or key that is missing, or the first variable that exceeds a bound.
pub fn environment(
    container: &Container,
    inputs: &EnvInputs<'_>,
) -> Result<Vec<(String, String)>, EnvError> {
    let mut budget = StepBudget::default();
    Ok(build_environment::<String>(container, inputs, &mut budget)?.into_list())
}

/// Checks whether [`environment`] would succeed for the containers of a pod; returns the errors by container. Only the lengths of values are kept, and
/// the work is proportional to the size of the pod's spec and to one [`StepBudget`] for all of them.
pub fn check_environments(pod: &Pod, objects: &dyn EnvObjects) -> BTreeMap<String, EnvError> {
    let inputs = EnvInputs {
        pod,
        containers: ContainersByName::from_pod(pod),
        host_ips: &[],
        pod_ips: &[],
        objects,
        services: &[],
        allocatable: &BTreeMap::new(),
    };
    let mut budget = StepBudget::default();
    let spec = &pod.spec;
    let ephemeral: Vec<Container> =
        spec.ephemeral_containers.iter().map(ephemeral_container).collect();
    let all = spec.init_containers.iter().chain(&spec.containers).chain(&ephemeral);
    let failed = all.filter_map(|container| {
        let checked = build_environment::<usize>(container, &inputs, &mut budget);
        Some((container.name.clone(), checked.err()?))
    });
    failed.collect()
}

/// The value of a variable, or only its length.
trait Value: Sized {
    fn from_text(text: Cow<'_, str>) -> Self;
    fn len(&self) -> usize;
    /// The text with references replaced; `None` if it is longer than `limit`.
    fn expand_text(text: &str, limit: usize, known: &Variables<Self>) -> Option<Self>;
}

impl Value for String {
    fn from_text(text: Cow<'_, str>) -> Self {
        text.into_owned()
    }

    fn len(&self) -> usize {
        Self::len(self)
    }

    fn expand_text(text: &str, limit: usize, known: &Variables<Self>) -> Option<Self> {
        expand(text, limit, |name| known.get(name).map(Self::as_str))
    }
}

impl Value for usize {
    fn from_text(text: Cow<'_, str>) -> Self {
        text.len()
    }

    fn len(&self) -> usize {
        *self
    }

    fn expand_text(text: &str, limit: usize, known: &Variables<Self>) -> Option<Self> {
        Some(expanded_len(text, |name| known.get(name).copied())).filter(|len| *len <= limit)
    }
}

fn build_environment<'b, V: Value>(
    container: &Container,
    inputs: &EnvInputs<'_>,
    budget: &'b mut StepBudget,
) -> Result<Environment<'b, V>, EnvError> {
    let mut result = Environment::new(&container.name, budget);
    for service in inputs.services {
        for (name, value) in service_variables(service) {
            result.set(name, value.into())?;
        }
    }
    result.limit = result.bytes.saturating_add(POD_BYTES_MAX).min(BYTES_MAX);
    whole_objects::set_all(container, inputs.objects, &mut result)?;
    for var in &container.env {
        match &var.value_from {
            None => result.set_expanded(var)?,
            Some(source) => {
                let value = value_from(source, container, inputs)?;
                let len = value.as_ref().map_or(0, |value| value.len());
                result.spend([var.name.len(), var.value.len(), len])?;
                if let Some(value) = value {
                    result.set(var.name.clone(), value)?;
                }
            }
        }
    }
    Ok(result)
}

/// Unique variables in the order of their first setting. The services of a namespace give thousands of them to each container.
struct Variables<V> {
    list: Vec<(String, V)>,
    /// Places in the list by name.
    places: HashMap<String, usize>,
}

impl<V> Variables<V> {
    fn get(&self, name: &str) -> Option<&V> {
        self.list.get(*self.places.get(name)?).map(|(_, value)| value)
    }

    /// Sets a variable; returns the value that it had.
    fn insert(&mut self, name: String, value: V) -> Option<V> {
        let known = self.places.get(&name).and_then(|place| self.list.get_mut(*place));
        if let Some((_, old)) = known {
            return Some(std::mem::replace(old, value));
        }
        self.places.insert(name.clone(), self.list.len());
        self.list.push((name, value));
        None
    }
}

/// An environment while it is built.
struct Environment<'b, V> {
    container: String,
    budget: &'b mut StepBudget,
    variables: Variables<V>,
    /// Bytes of names and values so far.
    bytes: usize,
    limit: usize,
}

impl<'b, V: Value> Environment<'b, V> {
    fn new(container: &str, budget: &'b mut StepBudget) -> Self {
        Self {
            container: container.to_owned(),
            budget,
            variables: Variables { list: Vec::new(), places: HashMap::new() },
            bytes: 0,
            limit: BYTES_MAX,
        }
    }

    /// Longest value that still fits for the variable `name`; `None` if the name itself does not fit.
    fn room(&self, name: &str) -> Option<usize> {
        let free = self.limit.saturating_sub(self.bytes);
        match self.variables.get(name) {
            Some(old) => Some(free.saturating_add(old.len())),
            None => free.checked_sub(name.len()),
        }
    }

    /// Spends the steps of one key or variable, made from texts of these lengths.
    fn spend(&mut self, lens: [usize; 3]) -> Result<(), EnvError> {
        let bytes = lens.into_iter().fold(0_usize, usize::saturating_add);
        let exceeded = || EnvError::TooManySteps { container: self.container.clone() };
        self.budget.spend(bytes).ok_or_else(exceeded)
    }

    fn too_large(&self, variable: &str) -> EnvError {
        let shown = variable.floor_char_boundary(SHOWN_LEN_MAX);
        let variable = variable.get(..shown).unwrap_or_default().to_owned();
        let container = self.container.clone();
        // The limit for users excludes the variables of services.
        EnvError::TooLarge { container, variable, limit: self.limit.min(POD_BYTES_MAX) }
    }

    /// Sets a variable without expanding references.
    fn set(&mut self, name: String, value: Cow<'_, str>) -> Result<(), EnvError> {
        match self.room(&name) {
            Some(room) if value.len() <= room => self.insert(name, V::from_text(value)),
            _ => return Err(self.too_large(&name)),
        }
        Ok(())
    }

    /// Sets a variable and expands references to earlier variables.
    fn set_expanded(&mut self, var: &EnvVar) -> Result<(), EnvError> {
        let room = self.room(&var.name);
        let value = room.and_then(|room| V::expand_text(&var.value, room, &self.variables));
        let value = value.ok_or_else(|| self.too_large(&var.name))?;
        self.spend([var.name.len(), var.value.len(), value.len()])?;
        self.insert(var.name.clone(), value);
        Ok(())
    }

    fn insert(&mut self, name: String, value: V) {
        let (name_len, len) = (name.len(), value.len());
        self.bytes = self.bytes.saturating_add(len);
        match self.variables.insert(name, value) {
            Some(old) => self.bytes = self.bytes.saturating_sub(old.len()),
            None => self.bytes = self.bytes.saturating_add(name_len),
        }
    }
}

impl Environment<'_, String> {
    fn into_list(self) -> Vec<(String, String)> {
        self.variables.list
    }
}

fn text<'a>(secret: &str, key: &str, value: &'a [u8]) -> Result<&'a str, EnvError> {
    std::str::from_utf8(value)
        .map_err(|_| EnvError::NotText { name: secret.to_owned(), key: key.to_owned() })
}

/// Value of a `valueFrom` source; `None` if it is optional and missing.
fn value_from<'a>(
    source: &EnvVarSource,
    container: &Container,
    inputs: &EnvInputs<'a>,
) -> Result<Option<Cow<'a, str>>, EnvError> {
    if let Some(field) = &source.field_ref {
        return field_value(&field.field_path, inputs).map(Some);
    }
    if let Some(field) = &source.resource_field_ref {
        let container = match field.container_name.as_str() {
            "" => Some(container),
            name => inputs.containers.0.get(name).copied(),
        };
        let unknown = || EnvError::UnknownResource(field.container_name.clone());
        let container = container.ok_or_else(unknown)?;
        return resource_value(field, container, inputs.allocatable).map(|v| Some(v.into()));
    }
    if let Some(reference) = &source.config_map_key_ref {
        let (name, key) = (&reference.local_object_reference.name, &reference.key);
        let optional = reference.optional == Some(true);
        return match inputs.objects.config_map(name) {
            None if optional => Ok(None),
            None => Err(EnvError::NoConfigMap(name.clone())),
            Some(object) => match object.data.get(key) {
                Some(value) => Ok(Some(value.as_str().into())),
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
                Some(value) => text(name, key, value).map(|value| Some(value.into())),
                None if optional => Ok(None),
                None => Err(no_key("Secret", inputs.pod, name, key)),
            },
        };
    }
    Ok(Some("".into()))
}

fn no_key(kind: &'static str, pod: &Pod, name: &str, key: &str) -> EnvError {
    let namespace = pod.metadata.namespace.clone();
    EnvError::NoKey { kind, namespace, name: name.to_owned(), key: key.to_owned() }
}

/// Value of a field of the pod by its path.
fn field_value<'a>(path: &str, inputs: &EnvInputs<'a>) -> Result<Cow<'a, str>, EnvError> {
    let Pod { metadata, spec, .. } = inputs.pod;
    let of = |text: Option<&'a String>| Cow::Borrowed(text.map_or("", String::as_str));
    if let Some(key) = subscript(path, "metadata.labels") {
        return Ok(of(metadata.labels.get(key)));
    }
    if let Some(key) = subscript(path, "metadata.annotations") {
        return Ok(of(metadata.annotations.get(key)));
    }
    Ok(match path {
        "metadata.name" => of(Some(&metadata.name)),
        "metadata.namespace" => of(Some(&metadata.namespace)),
        "metadata.uid" => of(Some(&metadata.uid)),
        "spec.nodeName" => of(Some(&spec.node_name)),
        "spec.serviceAccountName" => of(Some(&spec.service_account_name)),
        "status.hostIP" => of(inputs.host_ips.first()),
        "status.podIP" => of(inputs.pod_ips.first()),
        "status.podIPs" => inputs.pod_ips.join(",").into(),
        _ => return Err(EnvError::UnknownField(path.to_owned())),
    })
}

/// The key in `field['key']`.
fn subscript<'a>(path: &'a str, field: &str) -> Option<&'a str> {
    path.strip_prefix(field)?.strip_prefix("['")?.strip_suffix("']")
}

/// Amount of a container's resource in units of the divisor, rounded up. A limit that is not set is the node's allocatable
/// amount, except for huge pages.
///
/// # Errors
/// The resource is not `limits.` or `requests.` with a supported name.
pub fn resource_value(
    field: &ResourceFieldSelector,
    container: &Container,
    allocatable: &BTreeMap<String, Quantity>,
) -> Result<String, EnvError> {
    let unknown = || EnvError::UnknownResource(field.resource.clone());
    let (list, name) = field.resource.split_once('.').ok_or_else(unknown)?;
    let is_huge = name.starts_with(HUGE_PAGES);
    let known = matches!(name, "cpu" | "memory" | "ephemeral-storage") || is_huge;
    let resources = &container.resources;
    let amount = match list {
        _ if !known => return Err(unknown()),
        // Huge pages have no default limit.
        "limits" if is_huge => resources.limits.get(name),
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
    let (amount, divisor) = (i128::from(amount), i128::from(divisor));
    Ok(amount.saturating_add(divisor.saturating_sub(1)).div_euclid(divisor).to_string())
}

/// Whether the services of a pod's namespace are shown in its environment: unless `enableServiceLinks` is false.
pub fn links_services(pod: &Pod) -> bool {
    pod.spec.enable_service_links != Some(false)
}

/// Services shown in a pod's environment: `own`, those of its namespace that have a cluster IP and are linked, and always `kubernetes` of `default`, the
/// API server's.
pub fn linked_services<'a>(
    own: impl Iterator<Item = &'a ServiceEnv>,
    api: Option<&'a ServiceEnv>,
) -> Vec<ServiceEnv> {
    // A service of the pod's namespace replaces the API server's service of the same name.
    let linked = api.into_iter().chain(own).map(|service| (service.name.as_str(), service));
    linked.collect::<BTreeMap<_, _>>().into_values().cloned().collect()
}

/// Variables of a service: `<NAME>_SERVICE_HOST`, `<NAME>_SERVICE_PORT[_<PORT>]`, and for each port the older
/// `<NAME>_PORT_<n>_<PROTOCOL>` family.
fn service_variables(service: &ServiceEnv) -> Vec<(String, String)> {
    let mut variables = Vec::new();
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
