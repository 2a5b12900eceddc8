//! The objects that a pod or a volume refers to by name.

use apiserver_schema::{Map, Object, Value};

/// A kind of object that pods refer to in their namespace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReferencedKind {
    /// A Secret: of a volume, a variable, an image pull.
    Secret,
    /// A ConfigMap: of a volume or a variable.
    ConfigMap,
    ServiceAccount,
}

/// Whether a pod refers to any object of a kind.
#[must_use]
pub fn refers_to_any(pod: &Object, kind: ReferencedKind) -> bool {
    find_reference(pod, kind, None)
}

/// Whether a pod refers to the object `name` of its namespace.
#[must_use]
pub fn refers_to(pod: &Object, kind: ReferencedKind, name: &str) -> bool {
    find_reference(pod, kind, Some(name))
}

fn find_reference(pod: &Object, kind: ReferencedKind, name: Option<&str>) -> bool {
    let Some(spec) = pod.spec() else { return false };
    match kind {
        ReferencedKind::ServiceAccount => is_named(spec, "serviceAccountName", name),
        ReferencedKind::Secret => {
            spec.maps("imagePullSecrets").any(|secret| is_named(secret, "name", name))
                || parts(spec).any(|part| names_within(part, kind, name))
        }
        ReferencedKind::ConfigMap => parts(spec).any(|part| names_within(part, kind, name)),
    }
}

/// The claims of a pod's volumes; an ephemeral volume's has the names of pod and volume.
#[must_use]
pub fn claim_names(pod: &Object) -> Vec<String> {
    let volumes = pod.spec().into_iter().flat_map(|spec| spec.maps("volumes"));
    let claim = |volume: &Map| {
        if let Some(claim) = volume.map("persistentVolumeClaim") {
            return Some(claim.str("claimName").to_owned());
        }
        let ephemeral = volume.contains("ephemeral");
        ephemeral.then(|| format!("{}-{}", pod.name(), volume.str("name")))
    };
    volumes.filter_map(claim).collect()
}

/// Whether a PersistentVolume refers to the Secret of this namespace and name. One without a namespace is that of the claim.
#[must_use]
pub fn volume_refers_to(volume: &Object, claim_namespace: &str, secret: (&str, &str)) -> bool {
    let sources = volume.spec().into_iter().flat_map(Map::iter);
    sources.filter_map(|(_, source)| source.as_map()).any(|source| {
        source.iter().any(|(field, value)| {
            let (namespace, name) = match value {
                // Those of the controller are not the node's.
                Value::Map(reference)
                    if is_secret_reference(field) && !field.starts_with("controller") =>
                {
                    (reference.str("namespace"), reference.str("name"))
                }
                Value::String(name) if field == "secretName" => {
                    (source.str("secretNamespace"), name.as_str())
                }
                _ => return false,
            };
            let namespace = if namespace.is_empty() { claim_namespace } else { namespace };
            (namespace, name) == secret
        })
    })
}

fn is_secret_reference(field: &str) -> bool {
    field == "secretKeyRef" || field.ends_with("ecretRef")
}

/// The parts of a pod that refer to objects: its volumes and containers.
fn parts(spec: &Map) -> impl Iterator<Item = &Map> {
    let lists = ["volumes", "containers", "initContainers", "ephemeralContainers"];
    lists.into_iter().flat_map(|list| spec.maps(list))
}

/// Whether a field below `part` refers to the object.
fn names_within(part: &Map, kind: ReferencedKind, name: Option<&str>) -> bool {
    part.iter().any(|(field, value)| match value {
        Value::Map(map) => is_reference(field, map, kind, name) || names_within(map, kind, name),
        Value::List(list) => {
            list.iter().filter_map(Value::as_map).any(|map| names_within(map, kind, name))
        }
        _ => false,
    })
}

/// Whether the field of a volume, projected source or variable refers to the object.
fn is_reference(field: &str, map: &Map, kind: ReferencedKind, name: Option<&str>) -> bool {
    let named = |field: &str| is_named(map, field, name);
    match (kind, field) {
        (ReferencedKind::Secret, "secret") => named("secretName") || named("name"),
        (ReferencedKind::Secret, "azureFile") => named("secretName"),
        (ReferencedKind::Secret, field) => is_secret_reference(field) && named("name"),
        (ReferencedKind::ConfigMap, "configMap" | "configMapRef" | "configMapKeyRef") => {
            named("name")
        }
        _ => false,
    }
}

/// Whether the field has this name; any name if none is given.
fn is_named(map: &Map, field: &str, name: Option<&str>) -> bool {
    let own = map.str(field);
    !own.is_empty() && name.is_none_or(|name| own == name)
}
