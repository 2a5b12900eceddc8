//! The target of an autoscaler: any kind with the subresource `scale`, built in or of a definition.

use apiserver_autoscaling::Scale;
use proto_api::autoscaling::v2::CrossVersionObjectReference;
use proto_api::{Collection, schema, uri};
use proto_client::dynamic::{Dynamic, get_json};
use proto_client::request;
use proto_client::{Client, ClientError, WriteParams};
use proto_daemon::exit::chain;
use serde_json::{Value, json};

/// A target whose scale has been read.
pub struct AutoscalerTarget {
    collection: Collection,
    name: String,
    scale: Value,
}

/// Why the scale of a target cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum TargetError {
    /// Its `apiVersion` is none.
    #[error("unexpected GroupVersion string: {0}")]
    ApiVersion(String),
    /// No such kind is served.
    #[error("no matches for kind {kind:?} in group {group:?}")]
    NoKind { kind: String, group: String },
    /// A request failed.
    #[error(transparent)]
    Client(#[from] ClientError),
}

impl TargetError {
    /// Its text in conditions and events.
    pub fn message(&self) -> String {
        match self {
            Self::Client(error) => message(error),
            _ => self.to_string(),
        }
    }
}

/// The text of a failed request in conditions and events: what the server said, as in Kubernetes.
pub fn message(error: &ClientError) -> String {
    match error {
        ClientError::Api { .. } => error.server_message(),
        _ => chain(error),
    }
}

impl AutoscalerTarget {
    /// Reads the scale of a target.
    pub async fn read(
        client: &Client,
        namespace: &str,
        of: &CrossVersionObjectReference,
    ) -> Result<Self, TargetError> {
        let group = match of.api_version.split('/').collect::<Vec<_>>().as_slice() {
            [_version] => "",
            [group, _version] => group,
            _ => return Err(TargetError::ApiVersion(of.api_version.clone())),
        };
        let no_kind = || TargetError::NoKind { kind: of.kind.clone(), group: group.to_owned() };
        let (version, plural) = match built_in(client, group, &of.kind) {
            Some(found) => found,
            None if group.is_empty() => return Err(no_kind()),
            None => discover(client, group, &of.kind).await?.ok_or_else(no_kind)?,
        };
        let namespace = Some(namespace.to_owned());
        let collection = Collection { group: group.to_owned(), version, plural, namespace };
        let path = collection.item(&of.name, Some("scale"));
        let scale = get_json(client, request::get(path)).await?;
        Ok(Self { collection, name: of.name.clone(), scale })
    }

    /// What is decided by.
    pub fn scale(&self) -> Scale {
        let replicas = self.scale.pointer("/spec/replicas").and_then(Value::as_i64);
        let selector = self.scale.pointer("/status/selector").and_then(Value::as_str);
        Scale {
            replicas: i32::try_from(replicas.unwrap_or_default()).unwrap_or(i32::MAX),
            selector: selector.unwrap_or_default().to_owned(),
        }
    }

    /// Scales the target, if its scale is still as it was read.
    pub async fn set_replicas(mut self, client: &Client, replicas: i32) -> Result<(), ClientError> {
        if let Some(object) = self.scale.as_object_mut() {
            let spec = object.entry("spec").or_insert_with(|| json!({}));
            spec["replicas"] = json!(replicas);
        }
        let targets = Dynamic::new(client.clone(), self.collection);
        let write = WriteParams::default();
        targets.update(&self.name, Some("scale"), &self.scale, &write).await.map(drop)
    }
}

/// Version and plural of a built-in kind with a scale.
fn built_in(client: &Client, group: &str, kind: &str) -> Option<(String, String)> {
    let names = client.names();
    let mut resources = schema::resources().iter().filter(|resource| {
        resource.kind == kind
            && resource.subresources.iter().any(|sub| sub.name == "scale")
            && names.group(resource.group) == group
    });
    resources.next().map(|found| (found.version.to_owned(), found.plural.to_owned()))
}

/// Version and plural of a kind, as discovery has them; `None` if the group or the kind is not served.
async fn discover(
    client: &Client,
    group: &str,
    kind: &str,
) -> Result<Option<(String, String)>, ClientError> {
    let path = format!("/apis/{}", uri::encode(group, uri::COMPONENT));
    let Some(found) = find(client, path.clone()).await? else { return Ok(None) };
    let version = found.pointer("/preferredVersion/version").and_then(Value::as_str);
    let Some(version) = version else { return Ok(None) };
    let path = format!("{path}/{}", uri::encode(version, uri::COMPONENT));
    let Some(resources) = find(client, path).await? else { return Ok(None) };
    Ok(plural_of(&resources, kind).map(|plural| (version.to_owned(), plural)))
}

/// The plural of a kind in a list of resources.
fn plural_of(resources: &Value, kind: &str) -> Option<String> {
    let resources = resources.get("resources")?.as_array()?.iter();
    let named = resources.filter(|resource| resource["kind"] == kind);
    let mut names = named.filter_map(|resource| resource["name"].as_str());
    names.find(|name| !name.contains('/')).map(str::to_owned)
}

async fn find(client: &Client, path: String) -> Result<Option<Value>, ClientError> {
    match get_json(client, request::get(path)).await {
        Ok(found) => Ok(Some(found)),
        Err(error) if error.is_not_found() => Ok(None),
        Err(error) => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_kind_is_found_by_its_main_resource() {
        let list = json!({"resources": [
            {"name": "webs/scale", "kind": "Web"},
            {"name": "others", "kind": "Other"},
            {"name": "webs", "kind": "Web"},
            {"kind": "Web"},
        ]});
        assert_eq!(plural_of(&list, "Web").as_deref(), Some("webs"));
        assert_eq!(plural_of(&list, "Missing"), None);
        assert_eq!(plural_of(&json!({}), "Web"), None);
    }

    #[test]
    fn a_scale_is_read_by_its_two_fields() {
        let target = |scale: Value| {
            let (group, version) = (String::new(), String::new());
            let collection = Collection { group, version, plural: String::new(), namespace: None };
            AutoscalerTarget { collection, name: String::new(), scale }.scale()
        };
        let scale = json!({"spec": {"replicas": 3}, "status": {"replicas": 2, "selector": "a=b"}});
        assert_eq!(target(scale), Scale { replicas: 3, selector: "a=b".to_owned() });
        assert_eq!(target(json!({"spec": {}})), Scale::default());
        assert_eq!(target(json!({"spec": {"replicas": 1_i64 << 40}})).replicas, i32::MAX);
    }
}
