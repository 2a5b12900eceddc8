//! Tests of the OpenAPI documents: clients find what they need, and every reference resolves.

use std::collections::BTreeSet;

use proto_api::names::{Names, Profile};
use serde_json::{Value as Json, json};

use super::{v2_json, v2_protobuf, v3_document, v3_index};
use crate::Engine;
use crate::wire::{Reader, WireValue};

fn engine() -> Engine {
    Engine::new(Names::new(Profile::Kubernetes))
}

fn parse(bytes: &[u8]) -> Json {
    serde_json::from_slice(bytes).expect("JSON")
}

/// All `$ref`s in a document.
fn references<'a>(json: &'a Json, found: &mut BTreeSet<&'a str>) {
    match json {
        Json::Object(map) => {
            found.extend(map.get("$ref").and_then(Json::as_str));
            map.values().for_each(|value| references(value, found));
        }
        Json::Array(items) => items.iter().for_each(|value| references(value, found)),
        _ => {}
    }
}

#[test]
fn every_document_of_the_index_is_whole() {
    let engine = engine();
    let index = parse(&v3_index(&engine));
    let paths = index["paths"].as_object().expect("paths");
    for path in [
        "api/v1",
        "apis/apps/v1",
        "apis/coordination.k8s.io/v1",
        "apis/rbac.authorization.k8s.io/v1",
    ] {
        assert!(paths.contains_key(path), "{path}");
    }
    for (path, entry) in paths {
        let address = entry["serverRelativeURL"].as_str().expect("an address");
        assert!(address.starts_with(&format!("/openapi/v3/{path}?hash=")), "{address}");
        let document = parse(&v3_document(&engine, path).expect(path));
        let mut found = BTreeSet::new();
        references(&document, &mut found);
        for reference in found {
            let name = reference.strip_prefix("#/components/schemas/").expect(reference);
            assert!(document["components"]["schemas"][name].is_object(), "{path}: {reference}");
        }
    }
    assert!(v3_document(&engine, "apis/nobody/v1").is_none());
}

#[test]
fn clients_find_what_decides_how_they_apply() {
    let document = parse(&v3_document(&engine(), "apis/apps/v1").expect("apps"));
    let patch =
        &document["paths"]["/apis/apps/v1/namespaces/{namespace}/deployments/{name}"]["patch"];
    let kind = json!({"group": "apps", "version": "v1", "kind": "Deployment"});
    assert_eq!(patch["x-kubernetes-group-version-kind"], kind);
    let parameters = patch["parameters"].as_array().expect("parameters");
    assert!(parameters.iter().any(|parameter| parameter["name"] == "fieldValidation"));
    let body = &patch["requestBody"]["content"];
    assert!(body["application/strategic-merge-patch+json"].is_object());
    assert!(body["application/apply-patch+yaml"].is_object());
    let schemas = &document["components"]["schemas"];
    let deployment = &schemas["io.k8s.api.apps.v1.Deployment"];
    assert_eq!(deployment["x-kubernetes-group-version-kind"], json!([kind]));
    let containers = &schemas["io.k8s.api.core.v1.PodSpec"]["properties"]["containers"];
    assert_eq!(containers["x-kubernetes-patch-strategy"], "merge");
    assert_eq!(containers["x-kubernetes-patch-merge-key"], "name");
    let volumes = &schemas["io.k8s.api.core.v1.PodSpec"]["properties"]["volumes"];
    assert_eq!(volumes["x-kubernetes-patch-strategy"], "merge,retainKeys");
    assert_eq!(schemas["io.k8s.api.core.v1.PodSpec"]["required"], json!(["containers"]));
}

#[test]
fn the_second_edition_is_one_document() {
    let document = parse(&v2_json(&engine()));
    let mut found = BTreeSet::new();
    references(&document, &mut found);
    for reference in found {
        let name = reference.strip_prefix("#/definitions/").expect(reference);
        assert!(document["definitions"][name].is_object(), "{reference}");
    }
    let patch = &document["paths"]["/api/v1/namespaces/{namespace}/pods/{name}"]["patch"];
    let parameters = patch["parameters"].as_array().expect("parameters");
    assert!(parameters.iter().any(|p| p["name"] == "fieldValidation" && p["in"] == "query"));
}

/// The contents of all fields `number` of a message.
fn fields(bytes: &[u8], number: u32) -> Vec<&[u8]> {
    let mut reader = Reader(bytes);
    let mut found = Vec::new();
    while let Some((have, value)) = reader.field().expect("wire format") {
        match value {
            WireValue::Bytes(bytes) if have == number => found.push(bytes),
            _ => {}
        }
    }
    found
}

#[test]
fn its_protobuf_form_holds_the_same_names() {
    let engine = engine();
    let (json, protobuf) = (parse(&v2_json(&engine)), v2_protobuf(&engine));
    let names = |holder: &[u8], entry: u32| -> BTreeSet<String> {
        let entries = fields(holder, entry);
        let names = entries.iter().map(|entry| fields(entry, 1)[0].to_vec());
        names.map(|name| String::from_utf8(name).expect("UTF-8")).collect()
    };
    let keys = |field: &str| -> BTreeSet<String> {
        json[field].as_object().expect(field).keys().cloned().collect()
    };
    assert_eq!(fields(&protobuf, 1), [b"2.0"]);
    assert_eq!(names(fields(&protobuf, 8)[0], 2), keys("paths"));
    assert_eq!(names(fields(&protobuf, 9)[0], 1), keys("definitions"));
}

#[test]
fn clients_find_a_kind_by_its_path_over_all_namespaces() {
    let engine = engine();
    let document = parse(&v3_document(&engine, "api/v1").expect("document"));
    let paths = document["paths"].as_object().expect("paths");
    let everywhere = &paths["/api/v1/pods"];
    assert_eq!(everywhere["get"]["x-kubernetes-group-version-kind"]["kind"], "Pod");
    assert!(everywhere.get("post").is_none() && everywhere.get("parameters").is_none());
    assert!(paths["/api/v1/nodes"].get("post").is_some());
    let operations = paths.values().filter_map(Json::as_object).flat_map(|item| item.values());
    let ids: Vec<&str> = operations.filter_map(|o| o["operationId"].as_str()).collect();
    let unique: BTreeSet<&str> = ids.iter().copied().collect();
    assert_eq!(ids.len(), unique.len());
}

#[test]
fn types_and_fields_are_described_and_what_nobody_acts_on_says_so() {
    let engine = engine();
    let document = parse(&v3_document(&engine, "api/v1").expect("document"));
    let schemas = &document["components"]["schemas"];
    let text =
        |schema: &Json| schema["description"].as_str().map(str::to_owned).expect("described");
    let pod = &schemas["io.k8s.api.core.v1.Pod"];
    assert!(text(pod).starts_with("Containers that run together"), "{pod}");
    let spec = &pod["properties"]["spec"];
    assert_eq!(spec["allOf"], json!([{"$ref": "#/components/schemas/io.k8s.api.core.v1.PodSpec"}]));
    assert_eq!(text(spec), text(&schemas["io.k8s.api.core.v1.PodSpec"]));
    let networking = parse(&v3_document(&engine, "apis/networking.k8s.io/v1").expect("document"));
    let policy = &networking["components"]["schemas"]["io.k8s.api.networking.v1.NetworkPolicy"];
    let policy = text(policy);
    assert!(
        policy.ends_with("NetworkPolicy is only stored: no program of this release acts on it."),
        "{policy}"
    );
    // v2 has the same descriptions, in JSON and in Protobuf.
    let older = parse(&v2_json(&engine));
    let ingress = &older["definitions"]["io.k8s.api.networking.v1.Ingress"];
    assert!(text(ingress).contains("networking.k8s.io/v1 Ingress is only stored"), "{ingress}");
    let spec = &ingress["properties"]["spec"]["$ref"];
    assert_eq!(*spec, "#/definitions/io.k8s.api.networking.v1.IngressSpec");
    let definitions = fields(&v2_protobuf(&engine), 9).concat();
    let named = |name: &str| {
        let entries = fields(&definitions, 1);
        let found = entries.into_iter().find(|entry| fields(entry, 1)[0] == name.as_bytes());
        fields(fields(found.expect(name), 2)[0], 4)[0].to_vec()
    };
    assert_eq!(named("io.k8s.api.networking.v1.Ingress"), text(ingress).into_bytes());
}
