//! Creates the objects of manifests on a server, in an order that works: namespaces, definitions until they are established, then what others refer to, and
//! webhooks last. An object that the server has made itself is changed to what its manifest says; a `status` is written after its object, but for those that
//! only the server writes.

use std::collections::BTreeMap;
use std::time::Duration;

use bytes::Bytes;
use proto_api::Collection;
use proto_client::dynamic::get_json;
use proto_client::params::{Patch, WriteParams};
use proto_client::request::{self, JSON};
use proto_client::{Client, ClientError};
use serde_json::{Value, json};

use crate::manifests::{ManifestObject, ManifestPosition};

/// Looks at a definition that is not established yet, and the time between two.
const LOOKS_MAX: u32 = 2_000;
const LOOK_AFTER: Duration = Duration::from_millis(5);
/// The kinds whose `status` is the server's own, each with the beginning of its group. Tools write an empty one into the files of definitions.
const STATUS_OF_THE_SERVER: [(&str, &str); 2] =
    [("apiextensions.", DEFINITION), ("apiregistration.", "APIService")];
/// What an object has from the server that it was read from, and what no server takes.
const OF_ANOTHER_SERVER: [&str; 4] = ["resourceVersion", "uid", "managedFields", "selfLink"];

/// An object cannot be created.
#[derive(Debug, thiserror::Error)]
#[error("{place}: {object}")]
pub struct ManifestLoadError {
    place: ManifestPosition,
    object: String,
    source: Box<LoadFault>,
}

/// Why an object cannot be created.
#[derive(Debug, thiserror::Error)]
enum LoadFault {
    #[error(transparent)]
    Request(#[from] ClientError),
    #[error("it is a duplicate of the object in {0}")]
    Twice(ManifestPosition),
    #[error(
        "apiVersion, kind: the server has no {kind} in {api_version}, and no definition among the manifests adds it"
    )]
    Kind { api_version: String, kind: String },
    #[error("the definition is not established: {0}")]
    NotEstablished(String),
}

/// Creates the objects of `manifests`.
///
/// # Errors
/// [`ManifestLoadError`] with file and document, and what the server said of which field.
pub async fn load(client: &Client, manifests: &[ManifestObject]) -> Result<(), ManifestLoadError> {
    refuse_doubles(manifests)?;
    let mut ordered: Vec<&ManifestObject> = manifests.iter().collect();
    // Stable: within a rank in the order of the files.
    ordered.sort_by_key(|manifest| rank(text(&manifest.object, "kind")));
    let mut loading = Loading { client, resources: BTreeMap::new(), loaded: BTreeMap::new() };
    let is_definition = |manifest: &ManifestObject| text(&manifest.object, "kind") == DEFINITION;
    let (first, rest) = ordered.split_at(
        ordered.iter().take_while(|m| rank(text(&m.object, "kind")) <= rank(DEFINITION)).count(),
    );
    for manifest in first {
        loading.object(manifest).await?;
    }
    // All of them are established at the same time.
    for manifest in first.iter().filter(|manifest| is_definition(manifest)) {
        loading.wait_until_established(manifest).await?;
    }
    for manifest in rest {
        loading.object(manifest).await?;
    }
    Ok(())
}

const DEFINITION: &str = "CustomResourceDefinition";

/// Objects of a lower rank are created first.
fn rank(kind: &str) -> usize {
    const FIRST: [&[&str]; 5] = [
        &["Namespace"],
        &[DEFINITION],
        &["PriorityClass", "RuntimeClass", "StorageClass", "IngressClass", "CSIDriver"],
        &["ServiceAccount", "ClusterRole", "Role", "Secret", "ConfigMap"],
        &[
            "ClusterRoleBinding",
            "RoleBinding",
            "PersistentVolume",
            "PersistentVolumeClaim",
            "Node",
            "Service",
        ],
    ];
    // Webhooks and quotas, which would apply to all objects that follow.
    const LAST: [&str; 4] = [
        "LimitRange",
        "ResourceQuota",
        "ValidatingWebhookConfiguration",
        "MutatingWebhookConfiguration",
    ];
    let rest = FIRST.len();
    match LAST.contains(&kind) {
        true => rest.saturating_add(1),
        false => FIRST.iter().position(|kinds| kinds.contains(&kind)).unwrap_or(rest),
    }
}

/// Refuses what is twice in the manifests before anything is created; what only discovery knows to be the same is refused when its turn comes.
fn refuse_doubles(manifests: &[ManifestObject]) -> Result<(), ManifestLoadError> {
    let mut seen: BTreeMap<(String, &str, &str, &str), &ManifestPosition> = BTreeMap::new();
    for ManifestObject { place, object } in manifests {
        let metadata = &object["metadata"];
        let name = text(metadata, "name");
        if name.is_empty() {
            continue;
        }
        let (group, _) = group_version(object);
        let key = (group.to_owned(), text(object, "kind"), text(metadata, "namespace"), name);
        if let Some(first) = seen.insert(key, place) {
            return Err(failed(place, object, LoadFault::Twice(first.clone())));
        }
    }
    Ok(())
}

struct Loading<'a> {
    client: &'a Client,
    /// What discovery says of a group and version.
    resources: BTreeMap<String, Value>,
    /// Where the objects stand that are loaded already, by group, resource, namespace and name.
    loaded: BTreeMap<[String; 4], ManifestPosition>,
}

/// The resource of a kind.
struct FoundResource {
    collection: Collection,
    has_status: bool,
}

impl Loading<'_> {
    async fn object(&mut self, manifest: &ManifestObject) -> Result<(), ManifestLoadError> {
        let ManifestObject { place, object } = manifest;
        let found = self.resource(object).await;
        let found = found.map_err(|fault| failed(place, object, fault))?;
        self.note(&found.collection, manifest)?;
        let created = self.create(&found, object).await;
        created.map_err(|error| failed(place, object, error.into()))
    }

    /// Notes that an object is loaded, unless it is already: it would be changed as if the server had made it.
    fn note(
        &mut self,
        collection: &Collection,
        manifest: &ManifestObject,
    ) -> Result<(), ManifestLoadError> {
        let ManifestObject { place, object } = manifest;
        let name = text(&object["metadata"], "name").to_owned();
        if name.is_empty() {
            return Ok(());
        }
        let Collection { group, plural, namespace, .. } = collection.clone();
        let key = [group, plural, namespace.unwrap_or_default(), name];
        match self.loaded.insert(key, place.clone()) {
            Some(first) => Err(failed(place, object, LoadFault::Twice(first))),
            None => Ok(()),
        }
    }

    async fn create(&self, found: &FoundResource, object: &Value) -> Result<(), ClientError> {
        let mut object = object.clone();
        if let Some(metadata) = object["metadata"].as_object_mut() {
            OF_ANOTHER_SERVER.iter().for_each(|field| drop(metadata.remove(*field)));
        }
        let is_of_the_server = is_status_of_the_server(&object);
        if let Some(fields) = object.as_object_mut().filter(|_| is_of_the_server) {
            fields.remove("status");
        }
        let status = object.get("status").filter(|_| found.has_status).cloned();
        let params = WriteParams { field_validation: Some("Strict"), ..WriteParams::default() };
        let body = Bytes::from(object.to_string());
        let create = request::create(found.collection.path(), &params, JSON, body);
        let made = match get_json(self.client, create).await {
            Err(error) if error.is_already_exists() => {
                let path = found.collection.item(text(&object["metadata"], "name"), None);
                let patch = Patch::Merge(object.clone());
                get_json(self.client, request::patch(path, &params, &patch)).await?
            }
            made => made?,
        };
        let Some(status) = status else { return Ok(()) };
        let path = found.collection.item(text(&made["metadata"], "name"), Some("status"));
        let patch = Patch::Merge(json!({"status": status}));
        get_json(self.client, request::patch(path, &params, &patch)).await.map(drop)
    }

    /// Reads discovery, once for each group and version.
    async fn resource(&mut self, object: &Value) -> Result<FoundResource, LoadFault> {
        let api_version = text(object, "apiVersion");
        let kind = text(object, "kind");
        if !self.resources.contains_key(api_version) {
            let root = if api_version.contains('/') { "apis" } else { "api" };
            let list = get_json(self.client, request::get(format!("/{root}/{api_version}"))).await;
            let list = match list {
                Err(error) if error.is_not_found() => Value::Null,
                list => list?,
            };
            self.resources.insert(api_version.to_owned(), list);
        }
        let unknown =
            || LoadFault::Kind { api_version: api_version.to_owned(), kind: kind.to_owned() };
        let list = self.resources.get(api_version).and_then(|list| list["resources"].as_array());
        let list = list.ok_or_else(unknown)?;
        let plain = |resource: &&Value| !text(resource, "name").contains('/');
        let resource = list.iter().filter(plain).find(|resource| resource["kind"] == kind);
        let resource = resource.ok_or_else(unknown)?;
        let plural = text(resource, "name").to_owned();
        let status = format!("{plural}/status");
        let (group, version) = group_version(object);
        let namespace =
            match (resource["namespaced"] == true, text(&object["metadata"], "namespace")) {
                (false, _) => None,
                (true, "") => Some("default".to_owned()),
                (true, namespace) => Some(namespace.to_owned()),
            };
        let (group, version) = (group.to_owned(), version.to_owned());
        Ok(FoundResource {
            collection: Collection { group, version, plural, namespace },
            has_status: list.iter().any(|other| other["name"] == status.as_str()),
        })
    }

    async fn wait_until_established(
        &mut self,
        manifest: &ManifestObject,
    ) -> Result<(), ManifestLoadError> {
        let ManifestObject { place, object } = manifest;
        let fault = |fault| failed(place, object, fault);
        let found = self.resource(object).await.map_err(fault)?;
        let path = found.collection.item(text(&object["metadata"], "name"), None);
        let mut last = Value::Null;
        for _ in 0..LOOKS_MAX {
            let read = get_json(self.client, request::get(path.clone())).await;
            last = read.map_err(|error| fault(error.into()))?;
            if is_true(&last, "Established") {
                return Ok(());
            }
            if is_false(&last, "NamesAccepted") {
                break;
            }
            tokio::time::sleep(LOOK_AFTER).await;
        }
        Err(fault(LoadFault::NotEstablished(last["status"]["conditions"].to_string())))
    }
}

/// Whether the status of an object is left to the server: a namespace that was read while it was deleted would never be `Active` again.
fn is_status_of_the_server(object: &Value) -> bool {
    let (group, kind) = (group_version(object).0, text(object, "kind"));
    let is_listed = |(of, listed): &(&str, &str)| group.starts_with(of) && kind == *listed;
    let is_namespace = group.is_empty() && kind == "Namespace";
    STATUS_OF_THE_SERVER.iter().any(is_listed)
        || (is_namespace && object["status"]["phase"] == "Terminating")
}

fn has_condition(definition: &Value, kind: &str, status: &str) -> bool {
    let conditions = definition["status"]["conditions"].as_array();
    let mut conditions = conditions.into_iter().flatten();
    conditions.any(|have| have["type"] == kind && have["status"] == status)
}

fn is_true(definition: &Value, condition: &str) -> bool {
    has_condition(definition, condition, "True")
}

fn is_false(definition: &Value, condition: &str) -> bool {
    has_condition(definition, condition, "False")
}

fn group_version(object: &Value) -> (&str, &str) {
    let api_version = text(object, "apiVersion");
    api_version.split_once('/').unwrap_or(("", api_version))
}

fn failed(place: &ManifestPosition, object: &Value, source: LoadFault) -> ManifestLoadError {
    let metadata = &object["metadata"];
    let name = ["name", "generateName"].map(|field| text(metadata, field));
    let name = name.into_iter().find(|name| !name.is_empty()).unwrap_or_default();
    let namespace = text(metadata, "namespace");
    let slash = if namespace.is_empty() { "" } else { "/" };
    let object = format!("{} {namespace}{slash}{name}", text(object, "kind"));
    ManifestLoadError { place: place.clone(), object, source: Box::new(source) }
}

fn text<'a>(of: &'a Value, field: &str) -> &'a str {
    of[field].as_str().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn kinds_that_others_depend_on_are_loaded_first() {
        let order = [
            "Namespace",
            "CustomResourceDefinition",
            "StorageClass",
            "ServiceAccount",
            "RoleBinding",
            "Pod",
            "MutatingWebhookConfiguration",
        ];
        let ranks: BTreeSet<usize> = order.iter().map(|kind| rank(kind)).collect();
        assert_eq!(ranks.len(), order.len());
        assert!(order.iter().map(|kind| rank(kind)).is_sorted());
        assert_eq!(rank("Anything"), rank("Pod"));
    }

    #[test]
    fn some_status_is_left_to_the_server() {
        let of = |api_version: &str, kind: &str, phase: &str| {
            let status = json!({"phase": phase, "conditions": []});
            is_status_of_the_server(
                &json!({"apiVersion": api_version, "kind": kind, "status": status}),
            )
        };
        assert!(of("apiextensions.k8s.io/v1", DEFINITION, ""));
        assert!(of("apiregistration.orch.example/v1", "APIService", ""));
        assert!(of("v1", "Namespace", "Terminating"));
        assert!(!of("v1", "Namespace", "Active") && !of("v1", "Pod", "Terminating"));
        assert!(!of("example.com/v1", "APIService", ""));
    }
}
