//! The content of a terminating namespace: deletes its objects of all kinds, and counts what is left.

use std::collections::{BTreeMap, BTreeSet};

use apiserver_controllers::custom_resources;
use apiserver_controllers::namespace::RemainingContent;
use proto_api::schema;
use proto_client::dynamic::Dynamic;
use proto_client::request::Collection;
use proto_client::{Client, ClientError, DeleteParams, ListParams};

/// Objects or definitions that are read at a time. Only the first so many objects of a kind are looked at for their finalizers.
const PAGE_LEN: u32 = 500;

/// Deletes the objects of the namespace `name`. Returns what is left. Of the objects only metadata is read, and of each kind one page.
pub async fn delete_content(client: &Client, name: &str) -> RemainingContent {
    let mut remains = RemainingContent::default();
    let mut collections = built_in(client, name);
    match custom(client, name).await {
        Ok(custom) => collections.extend(custom),
        // A server without definitions has no custom objects.
        Err(error) if error.is_not_found() => {}
        Err(error) => remains.failures.push(format!("customresourcedefinitions: {error}")),
    }
    // Other versions of a resource have the same objects: they are read only if the server does not serve those before.
    let mut done = BTreeSet::new();
    for collection in collections {
        let plural = collection.plural.clone();
        let resource = (collection.group.clone(), plural.clone());
        if done.contains(&resource) {
            continue;
        }
        match delete_all_of(client, collection, &mut remains).await {
            // A resource that the server does not serve has no objects.
            Err(error) if error.is_not_found() => continue,
            Err(error) => remains.failures.push(format!("{plural}: {error}")),
            Ok(()) => {}
        }
        done.insert(resource);
    }
    remains
}

/// The namespace's collections of built-in kinds that can be deleted.
fn built_in(client: &Client, name: &str) -> Vec<Collection> {
    let namespaced = schema::resources().iter().filter(|resource| resource.namespaced);
    let deletable =
        |r: &&schema::Resource| ["deletecollection", "list"].iter().all(|v| r.verbs.contains(v));
    let collection = |resource: &schema::Resource| Collection {
        group: client.names().group(resource.group),
        version: resource.version.to_owned(),
        plural: resource.plural.to_owned(),
        namespace: Some(name.to_owned()),
    };
    namespaced.filter(deletable).map(collection).collect()
}

/// Those of custom resource definitions.
async fn custom(client: &Client, name: &str) -> Result<Vec<Collection>, ClientError> {
    let definitions = custom_resources::definitions(client.names());
    let definitions = Dynamic::new(client.clone(), definitions);
    let mut params = ListParams { limit: Some(PAGE_LEN), ..ListParams::default() };
    let mut found = Vec::new();
    loop {
        let page = definitions.list(&params).await?;
        found.extend(custom_resources::within(&page, name));
        let next = page.pointer("/metadata/continue").and_then(|token| token.as_str());
        match next.filter(|token| !token.is_empty()) {
            Some(token) => params.continue_ = Some(token.to_owned()),
            None => return Ok(found),
        }
    }
}

/// Deletes the objects of a collection, and counts what is left.
async fn delete_all_of(
    client: &Client,
    collection: Collection,
    remains: &mut RemainingContent,
) -> Result<(), ClientError> {
    // Resource and group; of the core group, which is empty, the dot remains.
    let full = format!("{}.{}", collection.plural, collection.group);
    let objects = client.metadata(collection);
    // Most resources have no objects in a namespace: list before deleting.
    let first = ListParams { limit: Some(1), ..ListParams::default() };
    if objects.list(&first).await?.items.is_empty() {
        return Ok(());
    }
    // Background also for kinds with another default: dependents are in the namespace too, or are collected later.
    let delete = DeleteParams { propagation: Some("Background"), ..DeleteParams::default() };
    objects.delete_collection(&ListParams::default(), &delete).await?;
    let left = ListParams { limit: Some(PAGE_LEN), ..ListParams::default() };
    let left = objects.list(&left).await?;
    if left.items.is_empty() {
        return Ok(());
    }
    let more = left.metadata.remaining_item_count.and_then(|more| usize::try_from(more).ok());
    let count = left.items.len().saturating_add(more.unwrap_or_default());
    remains.objects.insert(full, count);
    let finalizers = left.items.iter().flat_map(|object| &object.metadata.finalizers);
    count_each(finalizers, &mut remains.finalizers);
    Ok(())
}

fn count_each<'a>(
    finalizers: impl Iterator<Item = &'a String>,
    counts: &mut BTreeMap<String, usize>,
) {
    for finalizer in finalizers {
        let count = counts.entry(finalizer.clone()).or_default();
        *count = count.saturating_add(1);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};

    use proto_client::testing::{StubServer, json_response};
    use serde_json::json;

    use super::*;

    /// The paths below `group` that a server receives when a namespace is emptied; it does not serve those with `missing`.
    async fn requested(group: &'static str, missing: &'static str) -> Vec<String> {
        let received = Arc::new(Mutex::new(Vec::new()));
        let noted = Arc::clone(&received);
        let server = StubServer::start(move |request| {
            if let Some(rest) = request.path.strip_prefix(&format!("/apis/{group}/")) {
                noted.lock().unwrap().push(rest.to_owned());
            }
            if request.path.contains(missing) {
                return Some(json_response(404, &json!({"kind": "Status", "code": 404})));
            }
            Some(json_response(200, &json!({"metadata": {}, "items": []})))
        });
        let remains = delete_content(&server.await.client(), "n").await;
        assert_eq!((remains.failures.len(), remains.objects.len()), (0, 0), "{remains:?}");
        received.lock().unwrap().clone()
    }

    #[tokio::test]
    async fn objects_are_read_in_the_first_version_that_is_served() {
        let plural = "namespaces/n/horizontalpodautoscalers";
        assert_eq!(requested("autoscaling", "nothing").await, [format!("v2/{plural}")]);
        let both = [format!("v2/{plural}"), format!("v1/{plural}")];
        assert_eq!(requested("autoscaling", "/autoscaling/v2/").await, both);
    }
}
