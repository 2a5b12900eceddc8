//! The content of a terminating namespace: deletes its objects of all kinds, and counts what is left.

use std::collections::{BTreeMap, BTreeSet};

use apiserver_controllers::custom_resources;
use apiserver_controllers::namespace::RemainingContent;
use apiserver_controllers::other_servers::{self, OtherResource};
use proto_api::meta::v1::PartialObjectMetadata;
use proto_api::{Collection, schema};
use proto_client::dynamic::{Dynamic, get_json};
use proto_client::request;
use proto_client::{Api, Client, ClientError, DeleteParams, ListParams};

/// Objects or definitions that are read at a time. Only the first this many objects of a kind are looked at for their finalizers.
const PAGE_LEN: u32 = 500;

/// Most pages of objects that are deleted one by one in a round: the next round goes on.
const PAGES_MAX: usize = 40;

/// Deletes the objects of the namespace `name`. Returns what is left. Of the objects only metadata is read, and of kinds that are deleted at once one page.
pub async fn delete_content(client: &Client, name: &str) -> RemainingContent {
    let mut remains = RemainingContent::default();
    let mut collections = built_in(client, name);
    match custom(client, name).await {
        Ok(custom) => collections.extend(custom),
        // A server without definitions has no custom objects.
        Err(error) if error.is_not_found() => {}
        Err(error) => remains.failures.push(format!("customresourcedefinitions: {error}")),
    }
    let mut collections: Vec<_> = collections.into_iter().map(|one| (one, Deletes::All)).collect();
    match of_other_servers(client, name, &mut remains).await {
        Ok(others) => collections.extend(others),
        // A server without APIServices passes nothing on.
        Err(error) if error.is_not_found() => {}
        Err(error) => remains.failures.push(format!("apiservices: {error}")),
    }
    // Other versions of a resource have the same objects: they are read only if the server does not serve those before.
    let mut done = BTreeSet::new();
    for (collection, deletes) in collections {
        let plural = collection.plural.clone();
        let resource = (collection.group.clone(), plural.clone());
        if done.contains(&resource) {
            continue;
        }
        match delete_all_of(client, collection, deletes, &mut remains).await {
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
    let deletable = |r: &&schema::ResourceDescriptor| {
        ["deletecollection", "list"].iter().all(|v| r.verbs.contains(v))
    };
    let collection = |resource: &schema::ResourceDescriptor| Collection {
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

/// How the objects of a collection are deleted.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Deletes {
    /// By one request.
    All,
    /// One by one: the server knows no deletions of collections.
    Each,
}

/// Those that other API servers serve. What cannot be asked for its resources may have objects, for which the namespace waits.
async fn of_other_servers(
    client: &Client,
    name: &str,
    remains: &mut RemainingContent,
) -> Result<Vec<(Collection, Deletes)>, ClientError> {
    let services = Dynamic::new(client.clone(), other_servers::api_services(client.names()));
    let list = services.list(&ListParams::default()).await?;
    let mut found = Vec::new();
    for version in other_servers::versions(&list) {
        match get_json(client, request::get(version.path())).await {
            Ok(list) => {
                let all = other_servers::resources(&list, &version);
                found.extend(all.iter().filter_map(|one| deletable(one, name)));
            }
            Err(error) => {
                let (group, version) = (&version.group, &version.version);
                remains.undiscovered.push(format!("{group}/{version}: {error}"));
            }
        }
    }
    Ok(found)
}

/// The collection of a namespaced resource, if its objects can be listed and deleted.
fn deletable(other: &OtherResource, name: &str) -> Option<(Collection, Deletes)> {
    let is_meant = other.resource.namespaced && other.has(&["list", "delete"]);
    let deletes = if other.has(&["deletecollection"]) { Deletes::All } else { Deletes::Each };
    is_meant.then(|| (other.resource.collection(Some(name)), deletes))
}

/// Deletes the objects of a collection, and counts what is left.
async fn delete_all_of(
    client: &Client,
    collection: Collection,
    deletes: Deletes,
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
    match deletes {
        Deletes::All => match objects.delete_collection(&ListParams::default(), &delete).await {
            // Of a release before it knows this one, as of Services in 1.20.
            Err(error) if error.code() == Some(405) => delete_each(&objects, &delete).await?,
            deleted => deleted?,
        },
        Deletes::Each => delete_each(&objects, &delete).await?,
    }
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

/// Deletes the objects one by one, all that can be: one that is refused stops none of the others, and a server that does not answer stops all.
///
/// # Errors
/// The first, after all have been tried.
async fn delete_each(
    objects: &Api<PartialObjectMetadata>,
    delete: &DeleteParams,
) -> Result<(), ClientError> {
    let mut done = Ok(());
    let mut params = ListParams { limit: Some(PAGE_LEN), ..ListParams::default() };
    for _ in 0..PAGES_MAX {
        let page = match objects.list(&params).await {
            Ok(page) => page,
            Err(error) => return done.and(Err(error)),
        };
        for object in page.items {
            match objects.delete(&object.metadata.name, delete).await {
                Ok(_) => {}
                Err(error) if error.is_not_found() => {}
                Err(error) if error.code().is_some_and(|code| code < 500) => {
                    done = done.and(Err(error));
                }
                // A server that fails or does not answer takes the next round's time, not this one's for each object.
                Err(error) => return done.and(Err(error)),
            }
        }
        if page.metadata.continue_.is_empty() {
            break;
        }
        params.continue_ = Some(page.metadata.continue_);
    }
    done
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

    /// What a server with the objects `a` to `d` is asked to delete, where it answers `code` for `a` and `c`; and what of it fails.
    async fn delete_four(code: u16) -> (Vec<String>, Vec<String>) {
        let deleted = Arc::new(Mutex::new(Vec::new()));
        let noted = Arc::clone(&deleted);
        let server = StubServer::start(move |request| {
            let things = "/apis/other.example/v1/namespaces/n/things";
            let thing = |name: &str| json!({"metadata": {"name": name, "namespace": "n"}});
            let refusal = |why: &str| {
                json_response(code, &json!({"kind": "Status", "code": code, "message": why}))
            };
            if let Some(name) = request.path.strip_prefix(&format!("{things}/")) {
                noted.lock().unwrap().push(name.to_owned());
                return Some(match name {
                    "a" | "c" => refusal(&format!("{name} stays")),
                    _ => json_response(200, &json!({"kind": "Status", "status": "Success"})),
                });
            }
            let body = match request.path.as_str() {
                "/apis/apiregistration.k8s.io/v1/apiservices" => json!({"items": [{"spec": {
                    "group": "other.example", "version": "v1", "service": {"name": "s"}}}]}),
                "/apis/other.example/v1" => json!({"resources": [{"name": "things",
                    "kind": "Thing", "namespaced": true, "verbs": ["list", "delete"]}]}),
                path if path == things && request.query.contains("continue=next") => {
                    json!({"metadata": {"continue": ""}, "items": [thing("c"), thing("d")]})
                }
                path if path == things => {
                    json!({"metadata": {"continue": "next"}, "items": [thing("a"), thing("b")]})
                }
                _ => json!({"metadata": {}, "items": []}),
            };
            Some(json_response(200, &body))
        });
        let remains = delete_content(&server.await.client(), "n").await;
        (deleted.lock().unwrap().clone(), remains.failures)
    }

    #[tokio::test]
    async fn each_object_of_another_server_is_deleted_whatever_is_refused() {
        let (deleted, failures) = delete_four(403).await;
        assert_eq!(deleted, ["a", "b", "c", "d"]);
        assert!(failures.len() == 1 && failures[0].contains("a stays"), "{failures:?}");
    }

    #[tokio::test]
    async fn objects_of_a_collection_that_cannot_be_deleted_at_once_are_deleted_one_by_one() {
        let deleted = Arc::new(Mutex::new(Vec::new()));
        let noted = Arc::clone(&deleted);
        let server = StubServer::start(move |request| {
            let services = "/api/v1/namespaces/n/services";
            let is_deletion = request.method == "DELETE";
            let is_collection = request.path == services;
            if is_deletion && is_collection {
                let refusal = json!({"kind": "Status", "code": 405, "reason": "MethodNotAllowed"});
                return Some(json_response(405, &refusal));
            }
            let gone = is_deletion || !noted.lock().unwrap().is_empty();
            if is_deletion {
                noted.lock().unwrap().push(request.path.clone());
            }
            let body = match is_collection && !gone {
                true => {
                    json!({"metadata": {}, "items": [{"metadata": {"name": "s", "namespace": "n"}}]})
                }
                false => json!({"metadata": {}, "items": []}),
            };
            Some(json_response(200, &body))
        });
        let remains = delete_content(&server.await.client(), "n").await;
        assert_eq!(remains, RemainingContent::default());
        assert_eq!(*deleted.lock().unwrap(), ["/api/v1/namespaces/n/services/s"]);
    }

    #[tokio::test]
    async fn a_server_that_fails_is_left_until_the_next_round() {
        let (deleted, failures) = delete_four(500).await;
        assert!(deleted.iter().all(|name| name == "a"), "{deleted:?}");
        assert!(failures.len() == 1 && failures[0].contains("a stays"), "{failures:?}");
    }
}
