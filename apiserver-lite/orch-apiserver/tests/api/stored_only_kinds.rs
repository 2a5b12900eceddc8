//! Kinds that are stored and that no component acts on: writers get a warning, other requests do not.

use apiserver_schema::actors::{ACTORS, Actor};
use http::Method;
use proto_api::schema::{self, ResourceDescriptor};
use serde_json::{Map, Value, json};

use crate::numbers::collection_and_object;
use crate::support::{Reply, TestServer};

/// The warnings of a response.
/// The warnings, but for those of deprecated versions.
fn warnings(reply: &Reply) -> Vec<&str> {
    let all = reply.headers.get_all("warning").iter();
    let all = all.map(|value| value.to_str().expect("text"));
    all.filter(|text| !text.contains(" is deprecated in ")).collect()
}

/// Whether no component acts on the resource.
fn is_inert(resource: &ResourceDescriptor) -> bool {
    let row = ACTORS.iter().find(|row| (row.0, row.1) == (resource.group, resource.kind));
    row.expect("a row").2 == Actor::NotImplemented
}

/// Required fields of a kind.
fn required(kind: &str) -> Option<Map<String, Value>> {
    let role = json!({"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "r"});
    let fields = match kind {
        "RoleBinding" | "ClusterRoleBinding" => json!({"roleRef": role}),
        "IngressClass" => json!({"spec": {"controller": "example.com/c"}}),
        _ => return None,
    };
    fields.as_object().cloned()
}

#[tokio::test]
async fn only_writes_of_stored_only_kinds_have_warnings() {
    let server = TestServer::start().await;
    let (mut warned, mut silent, mut refused) = (0, 0, Vec::new());
    for resource in schema::resources().iter().filter(|r| r.verbs.contains(&"create")) {
        let group = server.names.group(resource.group);
        let group = if resource.group.is_empty() { String::new() } else { group };
        let (list, mut object) = collection_and_object(resource, &group);
        if let Some(more) = required(resource.kind) {
            object.as_object_mut().expect("an object").extend(more);
        }
        let one = format!("{list}/extreme");
        let label = json!({"metadata": {"labels": {"a": "b"}}}).to_string();
        let merge = "application/merge-patch+json";
        let lenient = format!("{list}?fieldValidation=Ignore");
        let made = server.post(&lenient, object.to_string()).await;
        let wanted = format!(
            "299 - \"{} {} is only stored: no program of this release acts on it\"",
            server.names.api_version(resource.group, resource.version),
            resource.kind
        );
        if !is_inert(resource) {
            silent += 1;
            assert!(warnings(&made).is_empty(), "{}: {:?}", resource.kind, warnings(&made));
            let changed = server.call(Method::PATCH, &one, merge, label).await;
            assert!(warnings(&changed).is_empty(), "{}", resource.kind);
            server.delete(&one).await;
            continue;
        }
        warned += 1;
        if made.code() != 201 {
            refused.push(format!("{}: {}", resource.kind, made.expect(422)["message"]));
            continue;
        }
        let trial = server
            .post(&format!("{list}?dryRun=All"), r#"{"metadata":{"generateName":"x"}}"#)
            .await;
        if trial.code() == 201 {
            assert_eq!(warnings(&trial), [wanted.as_str()], "{}", resource.kind);
        }
        let changed = server.call(Method::PATCH, &one, merge, label).await;
        let mut object = changed.expect(200);
        object["metadata"]["labels"] = json!({"a": "c"});
        let replaced = server.call(Method::PUT, &one, "application/json", object.to_string()).await;
        replaced.expect(200);
        for reply in [&made, &changed, &replaced] {
            assert_eq!(warnings(reply), [wanted.as_str()], "{}", resource.kind);
        }
        assert!(warnings(&server.get(&one).await).is_empty(), "readers know");
        if resource.subresource("status").is_some() {
            let path = format!("{one}/status");
            let status = server
                .call(Method::PATCH, &path, merge, r#"{"metadata":{"annotations":{"a":"b"}}}"#)
                .await;
            assert!(warnings(&status).is_empty(), "who writes a status acts: {}", resource.kind);
        }
        server.delete(&one).await.expect(200);
    }
    assert!(refused.is_empty(), "{}", refused.join("\n"));
    assert!(warned >= 3 && silent >= 34, "{warned} {silent}");
}
