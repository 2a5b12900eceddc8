//! Definitions: names, discovery, updates, deletion.

use serde_json::{Value, json};

use super::{BACKUPS, DEFINITIONS, backup, backups, condition, define, until};
use crate::support::TestServer;

#[tokio::test]
async fn a_definition_is_established_and_discovered_at_once() {
    let server = TestServer::start().await;
    server.get(BACKUPS).await.expect(404);
    let made = define(&server, &backups()).await;
    assert_eq!(condition(&made, "NamesAccepted")["reason"], "NoConflicts");
    assert_eq!(condition(&made, "NamesAccepted")["message"], "no conflicts found");
    assert_eq!(condition(&made, "Established")["reason"], "InitialNamesAccepted");
    let names = json!({
        "plural": "backups", "singular": "backup", "kind": "Backup", "listKind": "BackupList",
        "shortNames": ["bk"], "categories": ["all"],
    });
    assert_eq!((&made["status"]["acceptedNames"], &made["spec"]["names"]), (&names, &names));
    assert_eq!(made["status"]["storedVersions"], json!(["v1"]));
    assert_eq!(made["spec"]["conversion"], json!({"strategy": "None"}));
    let groups = server.get("/apis").await.expect(200);
    let groups = groups["groups"].as_array().expect("groups").clone();
    let group = groups.iter().find(|group| group["name"] == "example.com").expect("the group");
    assert_eq!(group["preferredVersion"]["groupVersion"], "example.com/v1");
    assert_eq!(server.get("/apis/example.com").await.expect(200)["kind"], "APIGroup");
    let list = server.get("/apis/example.com/v1").await.expect(200);
    let rows = list["resources"].as_array().expect("rows");
    let shown: Vec<(&str, &str)> = rows
        .iter()
        .map(|row| (row["name"].as_str().expect("name"), row["kind"].as_str().expect("kind")))
        .collect();
    assert_eq!(
        shown,
        [("backups", "Backup"), ("backups/status", "Backup"), ("backups/scale", "Scale")]
    );
    assert_eq!(rows[0]["shortNames"], json!(["bk"]));
    assert_eq!(
        (&rows[0]["singularName"], &rows[0]["namespaced"]),
        (&json!("backup"), &json!(true))
    );
    let accept = "application/json;g=apidiscovery.k8s.io;v=v2beta1;as=APIGroupDiscoveryList";
    let all = server.accept("/apis", accept).await.expect(200);
    let found = all["items"].as_array().expect("items").iter();
    assert_eq!(found.filter(|item| item["metadata"]["name"] == "example.com").count(), 1);
}

/// kubectl refuses fields that are not among `properties`: where any field is allowed there are none.
#[tokio::test]
async fn openapi_of_objects_with_any_fields_names_none() {
    let server = TestServer::start().await;
    let mut definition = backups();
    let schema = &mut definition["spec"]["versions"][0]["schema"]["openAPIV3Schema"];
    schema["x-kubernetes-preserve-unknown-fields"] = json!(true);
    define(&server, &definition).await;
    let kind = json!([{"group": "example.com", "version": "v1", "kind": "Backup"}]);
    let older = server.get("/openapi/v2").await.expect(200);
    assert_eq!(
        older["definitions"]["com.example.v1.Backup"],
        json!({"type": "object", "x-kubernetes-group-version-kind": kind})
    );
    let index = server.get("/openapi/v3").await.expect(200);
    let address = index["paths"]["apis/example.com/v1"]["serverRelativeURL"].as_str();
    let document = server.get(address.expect("an address")).await.expect(200);
    let schema = &document["components"]["schemas"]["com.example.v1.Backup"];
    assert_eq!(schema["properties"]["apiVersion"]["type"], "string");
    assert_eq!(schema["properties"]["spec"]["properties"]["source"]["type"], "string");
}

#[tokio::test]
async fn openapi_has_the_fields_of_embedded_objects() {
    let server = TestServer::start().await;
    let mut definition = backups();
    let schema = "/spec/versions/0/schema/openAPIV3Schema/properties/spec/properties";
    let spec = definition.pointer_mut(schema).expect("the schema");
    let template = json!({
        "type": "object",
        "x-kubernetes-embedded-resource": true,
        "properties": {"size": {"type": "integer"}},
    });
    spec["template"] = template.clone();
    spec["any"] = template.clone();
    spec["any"]["x-kubernetes-preserve-unknown-fields"] = json!(true);
    define(&server, &definition).await;
    let older = server.get("/openapi/v2").await.expect(200);
    let spec = &older["definitions"]["com.example.v1.Backup"]["properties"]["spec"]["properties"];
    let template = &spec["template"];
    assert_eq!(template["properties"]["apiVersion"]["type"], "string");
    assert_eq!(template["properties"]["size"]["type"], "integer");
    let metadata = "#/definitions/io.k8s.apimachinery.pkg.apis.meta.v1.ObjectMeta";
    assert_eq!(template["properties"]["metadata"]["$ref"], metadata);
    assert_eq!(template["required"], json!(["kind", "apiVersion"]));
    assert!(spec["any"].get("properties").is_none(), "{}", spec["any"]);
}

#[tokio::test]
async fn openapi_has_the_schema() {
    let server = TestServer::start().await;
    define(&server, &backups()).await;
    let index = server.get("/openapi/v3").await.expect(200);
    let address = index["paths"]["apis/example.com/v1"]["serverRelativeURL"].as_str();
    let document = server.get(address.expect("an address")).await.expect(200);
    let schemas = &document["components"]["schemas"];
    let schema = &schemas["com.example.v1.Backup"];
    assert_eq!(schema["properties"]["spec"]["properties"]["source"]["type"], "string");
    assert_eq!(
        schema["properties"]["metadata"],
        json!({
            "allOf": [{"$ref": "#/components/schemas/io.k8s.apimachinery.pkg.apis.meta.v1.ObjectMeta"}],
            "description": "Standard object's metadata.",
        })
    );
    assert!(schemas.get("io.k8s.apimachinery.pkg.apis.meta.v1.ObjectMeta").is_some());
    let path = "/apis/example.com/v1/namespaces/{namespace}/backups/{name}";
    let patched = &document["paths"][path]["patch"];
    assert_eq!(patched["x-kubernetes-group-version-kind"]["kind"], "Backup");
    let types = patched["requestBody"]["content"].as_object().expect("types");
    assert!(!types.contains_key("application/strategic-merge-patch+json"), "{types:?}");
    let older = server.get("/openapi/v2").await.expect(200);
    let schema = &older["definitions"]["com.example.v1.Backup"];
    assert_eq!(schema["x-kubernetes-group-version-kind"][0]["group"], "example.com");
    assert!(older["paths"].get(path).is_some());
    let described = [
        ("apiVersion", "APIVersion defines "),
        ("kind", "Kind is "),
        ("metadata", "Standard object's metadata"),
    ];
    for (field, text) in described {
        let description = schema["properties"][field]["description"].as_str().expect("text");
        assert!(description.starts_with(text), "{field}: {description}");
    }
    assert_eq!(
        schema["properties"]["spec"]["properties"]["free"],
        json!({"x-kubernetes-preserve-unknown-fields": true})
    );
    server.delete(&format!("{DEFINITIONS}/backups.example.com")).await.expect(200);
    until(&server, "/openapi/v3", |index| index["paths"].get("apis/example.com/v1").is_none())
        .await;
}

#[tokio::test]
async fn the_second_of_two_gets_a_name_when_the_first_goes() {
    let server = TestServer::start().await;
    define(&server, &backups()).await;
    let mut second = backups();
    second["metadata"]["name"] = json!("books.example.com");
    second["spec"]["names"] = json!({"plural": "books", "kind": "Book", "shortNames": ["bk"]});
    server.post(DEFINITIONS, second.to_string()).await.expect(201);
    let path = format!("{DEFINITIONS}/books.example.com");
    let refused =
        until(&server, &path, |book| condition(book, "NamesAccepted")["status"] == "False").await;
    assert_eq!(condition(&refused, "NamesAccepted")["reason"], "ShortNamesConflict");
    assert_eq!(condition(&refused, "NamesAccepted")["message"], "\"bk\" is already in use");
    assert_eq!(condition(&refused, "Established")["reason"], "NotAccepted");
    server.get("/apis/example.com/v1/books").await.expect(404);
    server.delete(&format!("{DEFINITIONS}/backups.example.com")).await.expect(200);
    until(&server, &path, |book| condition(book, "Established")["status"] == "True").await;
    server.get("/apis/example.com/v1/books").await.expect(200);
}

#[tokio::test]
async fn invalid_definitions_are_refused() {
    let server = TestServer::start().await;
    let mut misnamed = backups();
    misnamed["metadata"]["name"] = json!("other.example.com");
    let refused = server.post(DEFINITIONS, misnamed.to_string()).await.expect(422);
    let message = refused["message"].as_str().expect("text");
    assert!(message.contains("must be spec.names.plural+\".\"+spec.group"), "{message}");
    define(&server, &backups()).await;
    let path = format!("{DEFINITIONS}/backups.example.com");
    let moved = server.merge_patch(&path, r#"{"spec":{"scope":"Cluster"}}"#).await.expect(422);
    assert!(moved["message"].as_str().is_some_and(|text| text.contains("field is immutable")));
}

#[tokio::test]
async fn a_status_update_changes_nothing_but_the_status() {
    let server = TestServer::start().await;
    let made = define(&server, &backups()).await;
    let path = format!("{DEFINITIONS}/backups.example.com/status");
    let mut next = made.clone();
    next["metadata"]["labels"] = json!({"a": "b"});
    next["metadata"]["annotations"] = json!({"a": "b"});
    next["metadata"]["finalizers"] = json!(["example.com/hold"]);
    let owner = json!({"apiVersion": "v1", "kind": "Pod", "name": "p", "uid": "u"});
    next["metadata"]["ownerReferences"] = json!([owner]);
    next["spec"]["scope"] = json!("Cluster");
    next["status"]["conditions"][0]["message"] = json!("changed");
    let written = server.put(&path, &next).await.expect(200);
    for field in ["labels", "annotations", "finalizers", "ownerReferences", "generation"] {
        assert_eq!(written["metadata"][field], made["metadata"][field], "{field}");
    }
    assert_eq!(written["spec"], made["spec"]);
    assert_eq!(written["status"]["conditions"][0]["message"], "changed");
}

#[tokio::test]
async fn kinds_of_protected_groups_need_an_approval() {
    let server = TestServer::start().await;
    let mut definition = backups();
    definition["metadata"]["name"] = json!("backups.things.k8s.io");
    definition["spec"]["group"] = json!("things.k8s.io");
    let refused = server.post(DEFINITIONS, definition.to_string()).await.expect(422);
    let message = refused["message"].as_str().expect("text");
    assert!(message.contains("protected groups must have approval annotation"), "{message}");
    let annotation = "api-approved.kubernetes.io";
    definition["metadata"]["annotations"] = json!({annotation: "unapproved, for a test"});
    server.post(DEFINITIONS, definition.to_string()).await.expect(201);
    let path = format!("{DEFINITIONS}/backups.things.k8s.io");
    const CONDITION: &str = "KubernetesAPIApprovalPolicyConformant";
    until(&server, &path, |it| {
        condition(it, CONDITION)["reason"] == "UnapprovedAnnotation"
            && condition(it, "Established")["status"] == "True"
    })
    .await;
    let approved =
        json!({"metadata": {"annotations": {annotation: "https://example.com/1"}}}).to_string();
    server.merge_patch(&path, &approved).await.expect(200);
    let found = until(&server, &path, |it| condition(it, CONDITION)["status"] == "True").await;
    assert_eq!(condition(&found, CONDITION)["message"], "approved in https://example.com/1");
}

#[tokio::test]
async fn a_deleted_definition_deletes_its_objects_first() {
    let server = TestServer::start().await;
    define(&server, &backups()).await;
    let mut held = backup("held");
    held["metadata"]["finalizers"] = json!(["example.com/hold"]);
    server.post(BACKUPS, held.to_string()).await.expect(201);
    server.post(BACKUPS, backup("free").to_string()).await.expect(201);
    let mut events = server.watch(&format!("{BACKUPS}?watch=1")).await;
    assert_eq!(events.next_short().await, "ADDED held");
    assert_eq!(events.next_short().await, "ADDED free");
    let path = format!("{DEFINITIONS}/backups.example.com");
    let gone = server.delete(&path).await.expect(200);
    assert_eq!(
        gone["metadata"]["finalizers"],
        json!(["customresourcecleanup.apiextensions.k8s.io"])
    );
    assert_eq!(condition(&gone, "Terminating")["reason"], "InstanceDeletionPending");
    until(&server, &path, |it| {
        condition(it, "Terminating")["reason"] == "InstanceDeletionInProgress"
    })
    .await;
    until(&server, &format!("{BACKUPS}/held"), |it| {
        it["metadata"]["deletionTimestamp"].is_string()
    })
    .await;
    let refused = server.post(BACKUPS, backup("late").to_string()).await.expect(405);
    assert_eq!(
        refused["message"],
        "create not allowed while custom resource definition is terminating"
    );
    let freed = r#"{"metadata":{"finalizers":null}}"#;
    server.merge_patch(&format!("{BACKUPS}/held"), freed).await.expect(200);
    until(&server, &path, |it| it["code"] == 404).await;
    server.get(BACKUPS).await.expect(404);
    let mut seen = Vec::new();
    while let Some(event) = events.next().await {
        let name = event["object"]["metadata"]["name"].as_str().expect("name").to_owned();
        seen.push((event["type"].as_str().expect("type").to_owned(), name));
    }
    let deleted = |name: &str| seen.contains(&("DELETED".to_owned(), name.to_owned()));
    assert!(deleted("free") && deleted("held"), "the watch ends after the last object: {seen:?}");
    // Another definition of the same name has none of the objects.
    define(&server, &backups()).await;
    assert_eq!(server.get(BACKUPS).await.expect(200)["items"], json!([]));
}

#[tokio::test]
async fn updates_of_a_definition_hold_for_stored_objects() {
    let server = TestServer::start().await;
    define(&server, &backups()).await;
    let made = server.post(BACKUPS, backup("a").to_string()).await.expect(201);
    let path = format!("{DEFINITIONS}/backups.example.com");
    let mut definition = server.get(&path).await.expect(200);
    let spec = &mut definition["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"]
        ["properties"];
    spec["keep"] = json!({"type": "integer", "default": 7});
    spec["mode"] = Value::Null;
    spec.as_object_mut().expect("an object").remove("mode");
    definition["spec"]["names"]["shortNames"] = json!(["bk", "bkp"]);
    server.put(&path, &definition).await.expect(200);
    let read = until(&server, &format!("{BACKUPS}/a"), |it| it["spec"]["keep"] == 7).await;
    assert_eq!(
        read["spec"],
        json!({"source": "disk", "keep": 7}),
        "defaulted and pruned when read"
    );
    assert_eq!(read["metadata"]["resourceVersion"], made["metadata"]["resourceVersion"]);
    let listed = server.get(BACKUPS).await.expect(200);
    assert_eq!(listed["items"][0]["spec"]["keep"], 7);
    let short = |list: &Value| list["resources"][0]["shortNames"] == json!(["bk", "bkp"]);
    until(&server, "/apis/example.com/v1", short).await;
}
