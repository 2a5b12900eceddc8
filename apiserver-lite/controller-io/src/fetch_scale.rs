//! The scale of the controller of a pod that no cache has: of any kind with the subresource `scale`, built in or of a definition.

use std::collections::BTreeMap;

use apiserver_controllers::disruption::OwnerScale;
use proto_api::meta::v1::OwnerReference;
use proto_api::{Collection, schema};
use proto_client::request;
use proto_client::{Client, ClientError, dynamic};
use serde_json::Value;

/// Kinds by API version and kind: the plural of each, or that it has no scale.
#[derive(Debug, Default)]
pub struct ScaledKinds(BTreeMap<(String, String), Option<String>>);

/// Reads the scale of a controller; none if there is no such object any more, or its kind has no scale. `kinds` are those that were asked for before.
///
/// # Errors
/// The server refuses, or a request fails.
pub async fn fetch_scale(
    client: &Client,
    owner: &OwnerReference,
    namespace: &str,
    kinds: &mut ScaledKinds,
) -> Result<Option<OwnerScale>, ClientError> {
    let (group, version) = owner.api_version.split_once('/').unwrap_or(("", &owner.api_version));
    let mut collection = Collection {
        group: group.to_owned(),
        version: version.to_owned(),
        plural: String::new(),
        namespace: Some(namespace.to_owned()),
    };
    let kind = (owner.api_version.clone(), owner.kind.clone());
    let plural = match kinds.0.get(&kind) {
        Some(known) => known.clone(),
        None => {
            let found = find_plural(client, &collection, &owner.kind).await?;
            kinds.0.insert(kind, found.clone());
            found
        }
    };
    let Some(plural) = plural else { return Ok(None) };
    collection.plural = plural;
    let path = collection.item(&owner.name, Some("scale"));
    let Some(scale) = find(client, path).await? else { return Ok(None) };
    let uid = scale.pointer("/metadata/uid").and_then(Value::as_str);
    let replicas = scale.pointer("/spec/replicas").and_then(Value::as_i64);
    let replicas = i32::try_from(replicas.unwrap_or(0)).unwrap_or(i32::MAX);
    Ok((uid == Some(&owner.uid)).then(|| OwnerScale { uid: owner.uid.clone(), replicas }))
}

/// The plural of a kind that has a scale.
async fn find_plural(
    client: &Client,
    collection: &Collection,
    kind: &str,
) -> Result<Option<String>, ClientError> {
    let names = client.names();
    let fits = |r: &&schema::ResourceDescriptor| {
        names.group(r.group) == collection.group && r.kind == kind
    };
    match schema::resources().iter().find(fits) {
        Some(built_in) => {
            Ok(built_in.subresource("scale").is_some().then(|| built_in.plural.to_owned()))
        }
        None if collection.group.is_empty() => Ok(None),
        None => {
            let served = find(client, collection.version_path()).await?;
            Ok(served.and_then(|served| plural_with_scale(&served, kind)))
        }
    }
}

/// The plural of a kind in the resources of its version, if it has a scale.
fn plural_with_scale(served: &Value, kind: &str) -> Option<String> {
    let resources = served.get("resources")?.as_array()?;
    // The entry of the subresource has the kind of the scale.
    let of_kind = resources.iter().filter(|resource| resource["kind"] == kind);
    let mut plurals = of_kind.filter_map(|resource| resource["name"].as_str());
    let plural = plurals.find(|name| !name.contains('/'))?;
    let scale = format!("{plural}/scale");
    resources.iter().any(|resource| resource["name"] == scale).then(|| plural.to_owned())
}

async fn find(client: &Client, path: String) -> Result<Option<Value>, ClientError> {
    match dynamic::get_json(client, request::get(path)).await {
        Ok(found) => Ok(Some(found)),
        Err(error) if error.is_not_found() => Ok(None),
        Err(error) => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use proto_client::testing::{StubServer, json_response};
    use serde_json::json;

    use super::*;

    /// A server with a definition whose kind `Clone` has a scale and `Other` has none.
    async fn client() -> Client {
        let server = StubServer::start(|request| {
            let found = match request.path.as_str() {
                "/apis/apps.example.com/v1" => json!({"resources": [
                    {"name": "clones", "kind": "Clone"},
                    {"name": "clones/scale", "kind": "Scale"},
                    {"name": "others", "kind": "Other"},
                ]}),
                "/apis/apps.example.com/v1/namespaces/n/clones/c/scale"
                | "/apis/apps/v1/namespaces/n/deployments/c/scale" => {
                    json!({"metadata": {"uid": "u"}, "spec": {"replicas": 5}})
                }
                _ => return Some(json_response(404, &json!({"kind": "Status", "code": 404}))),
            };
            Some(json_response(200, &found))
        });
        server.await.client()
    }

    /// Budgets of pods that an operator's own kind controls are relative to its scale; without one nothing may be evicted.
    #[tokio::test]
    async fn kinds_of_definitions_have_scales_too() {
        let (client, mut kinds) = (client().await, ScaledKinds::default());
        for (api_version, kind, name, uid, expected) in [
            ("apps.example.com/v1", "Clone", "c", "u", Some(5)),
            ("apps/v1", "Deployment", "c", "u", Some(5)),
            ("apps.example.com/v1", "Clone", "c", "another", None),
            ("apps.example.com/v1", "Clone", "gone", "u", None),
            ("apps.example.com/v1", "Other", "c", "u", None),
            ("apps.example.com/v2", "Clone", "c", "u", None),
            ("apps.example.com/../v1", "Clone", "c", "u", None),
            ("v1", "Clone", "c", "u", None),
            ("batch/v1", "Job", "c", "u", None),
        ] {
            let owner = OwnerReference {
                api_version: api_version.into(),
                kind: kind.into(),
                name: name.into(),
                uid: uid.into(),
                ..OwnerReference::default()
            };
            let found = fetch_scale(&client, &owner, "n", &mut kinds).await.expect("answered");
            assert_eq!(found.map(|scale| scale.replicas), expected, "{api_version} {kind} {name}");
        }
    }
}
