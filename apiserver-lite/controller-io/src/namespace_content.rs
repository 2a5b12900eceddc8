//! The content of a terminating namespace: sends the requests of a round that deletes its objects of all kinds, and finalizes the namespace.

use apiserver_controllers::namespace::RemainingContent;
use apiserver_controllers::namespace::content::{
    ContentAnswer, ContentRequest, ContentRound, PAGE_LEN, RequestFailure,
};
use apiserver_controllers::{custom_resources, other_servers};
use proto_api::Collection;
use proto_api::core::v1::Namespace;
use proto_api::object::to_json_value;
use proto_client::dynamic::{Dynamic, get_json};
use proto_client::request;
use proto_client::{Client, ClientError, DeleteParams, ListParams, WriteParams};

/// Deletes the objects of the namespace `name`. Returns what is left. Of the objects only metadata is read, and of kinds that are deleted at once one page.
pub async fn delete_content(client: &Client, name: &str) -> RemainingContent {
    let mut round = ContentRound::new(client.names(), name);
    while let Some(request) = round.next_request() {
        let answer = send(client, request).await;
        let failure =
            |error: ClientError| RequestFailure { code: error.code(), message: error.to_string() };
        round.take_answer(answer.map_err(failure));
    }
    round.into_remains()
}

async fn send(client: &Client, request: ContentRequest) -> Result<ContentAnswer, ClientError> {
    // Background also for kinds with another default: dependents are in the namespace too, or are collected later.
    let delete = DeleteParams { propagation: Some("Background"), ..DeleteParams::default() };
    let page =
        |limit, continue_| ListParams { limit: Some(limit), continue_, ..ListParams::default() };
    match request {
        ContentRequest::Definitions { from } => {
            let definitions = custom_resources::definitions(client.names());
            let definitions = Dynamic::new(client.clone(), definitions);
            Ok(ContentAnswer::Document(definitions.list(&page(PAGE_LEN, from)).await?))
        }
        ContentRequest::ApiServices => {
            let services = other_servers::api_services(client.names());
            let services = Dynamic::new(client.clone(), services);
            Ok(ContentAnswer::Document(services.list(&ListParams::default()).await?))
        }
        ContentRequest::Resources(version) => {
            Ok(ContentAnswer::Document(get_json(client, request::get(version.path())).await?))
        }
        ContentRequest::List { collection, limit, from } => {
            let objects = client.metadata(collection);
            Ok(ContentAnswer::Objects(objects.list(&page(limit, from)).await?))
        }
        ContentRequest::DeleteAll(collection) => {
            let objects = client.metadata(collection);
            objects.delete_collection(&ListParams::default(), &delete).await?;
            Ok(ContentAnswer::Deleted)
        }
        ContentRequest::Delete { collection, name } => {
            client.metadata(collection).delete(&name, &delete).await?;
            Ok(ContentAnswer::Deleted)
        }
    }
}

/// Writes the finalizers of a namespace, if it has this version. One that is gone needs none.
///
/// # Errors
/// The server rejects it, or the request fails.
pub async fn finalize(client: &Client, namespace: &Namespace) -> Result<(), ClientError> {
    let name = &namespace.metadata.name;
    let body = to_json_value(namespace, client.names())
        .map_err(|cause| ClientError::Encode { request: format!("PUT {name}/finalize"), cause })?;
    let collection = Collection::for_type::<Namespace>(client.names(), None);
    let objects = Dynamic::new(client.clone(), collection);
    match objects.update(name, Some("finalize"), &body, &WriteParams::default()).await {
        Err(error) if error.is_not_found() => Ok(()),
        other => other.map(drop),
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
        for code in [405, 404] {
            delete_one(code).await;
        }
    }

    /// The server answers this code to the deletion of the collection.
    async fn delete_one(code: u16) {
        let deleted = Arc::new(Mutex::new(Vec::new()));
        let noted = Arc::clone(&deleted);
        let server = StubServer::start(move |request| {
            let services = "/api/v1/namespaces/n/services";
            let is_deletion = request.method == "DELETE";
            let is_collection = request.path == services;
            if is_deletion && is_collection {
                let refusal = json!({"kind": "Status", "code": code, "reason": "MethodNotAllowed"});
                return Some(json_response(code, &refusal));
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
        for code in [500, 429] {
            let (deleted, failures) = delete_four(code).await;
            assert!(deleted.iter().all(|name| name == "a"), "{code}: {deleted:?}");
            assert!(failures.len() == 1 && failures[0].contains("a stays"), "{failures:?}");
        }
    }
}
