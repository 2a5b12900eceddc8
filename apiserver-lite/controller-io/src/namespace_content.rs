//! The content of a terminating namespace: deletes its objects of all kinds, and counts what is left.

use std::collections::BTreeMap;

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
    for collection in collections {
        let plural = collection.plural.clone();
        if let Err(error) = delete_all_of(client, collection, &mut remains).await {
            // A resource that the server does not serve has no objects.
            if !error.is_not_found() {
                remains.failures.push(format!("{plural}: {error}"));
            }
        }
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
