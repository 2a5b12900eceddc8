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
    assert!(everywhere.get("post").is_none());
    assert!(!everywhere["parameters"].to_string().contains("namespace"));
    assert!(paths["/api/v1/nodes"].get("post").is_some());
    let operations = paths.values().filter_map(Json::as_object).flat_map(|item| item.values());
    let ids: Vec<&str> = operations.filter_map(|o| o["operationId"].as_str()).collect();
    let unique: BTreeSet<&str> = ids.iter().copied().collect();
    assert_eq!(ids.len(), unique.len());
}

#[test]
fn types_and_fields_have_descriptions_and_stored_only_kinds_say_so() {
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

#[test]
fn fields_say_how_apply_merges_them_and_what_they_are_without_a_value() {
    let engine = engine();
    let newer = parse(&v3_document(&engine, "api/v1").expect("document"));
    let older = parse(&v2_json(&engine));
    let of = |message: &str| format!("io.k8s.api.core.v1.{message}");
    for schemas in [&newer["components"]["schemas"], &older["definitions"]] {
        let ports = &schemas[of("Container")]["properties"]["ports"];
        assert_eq!(ports["x-kubernetes-list-type"], "map");
        assert_eq!(ports["x-kubernetes-list-map-keys"], json!(["containerPort", "protocol"]));
        assert_eq!(schemas[of("ConfigMapKeySelector")]["x-kubernetes-map-type"], "atomic");
        let spec = &schemas[of("PodSpec")]["properties"];
        assert_eq!(spec["nodeSelector"]["x-kubernetes-map-type"], "atomic");
        assert!(spec["containers"].get("x-kubernetes-list-type").is_none());
        let addresses = &schemas[of("ServiceSpec")]["properties"]["clusterIPs"];
        assert_eq!(addresses["x-kubernetes-list-type"], "atomic");
    }
    let schemas = &newer["components"]["schemas"];
    let of_field = |message: &str, field: &str| schemas[of(message)]["properties"][field].clone();
    assert_eq!(of_field("ContainerPort", "protocol")["default"], "TCP");
    assert_eq!(of_field("Container", "name")["default"], "");
    assert_eq!(of_field("ContainerPort", "containerPort")["default"], 0);
    assert_eq!(of_field("Pod", "spec")["default"], json!({}));
    assert_eq!(of_field("PodSpec", "containers")["items"]["default"], json!({}));
    assert_eq!(of_field("Container", "command")["items"]["default"], "");
    for (message, field) in
        [("Container", "image"), ("PodSpec", "affinity"), ("PodSpec", "priority")]
    {
        assert!(of_field(message, field).get("default").is_none(), "{message} {field}");
    }
    let definitions = older["definitions"].as_object().expect("definitions").values();
    let properties = definitions.filter_map(|one| one["properties"].as_object());
    assert!(properties.flat_map(|all| all.values()).all(|one| one.get("default").is_none()));
}

#[test]
fn closed_sets_of_values_are_those_of_validation() {
    let engine = engine();
    let documents = [v3_document(&engine, "apis/apps/v1").expect("document"), v2_json(&engine)];
    for document in documents.iter().map(|document| parse(document)) {
        let schemas = match document["definitions"].is_object() {
            true => &document["definitions"],
            false => &document["components"]["schemas"],
        };
        let spec = &schemas["io.k8s.api.core.v1.PodSpec"]["properties"];
        assert_eq!(spec["restartPolicy"]["enum"], json!(["Always", "Never", "OnFailure"]));
        let claim = &schemas["io.k8s.api.core.v1.PersistentVolumeClaimSpec"]["properties"];
        let modes = &claim["accessModes"];
        assert!(modes.get("enum").is_none());
        assert_eq!(modes["items"]["enum"].as_array().map(Vec::len), Some(4));
        let strategy = &schemas["io.k8s.api.apps.v1.DeploymentStrategy"]["properties"]["type"];
        assert_eq!(strategy["enum"], json!(["Recreate", "RollingUpdate"]));
    }
    let definitions = fields(&v2_protobuf(&engine), 9).concat();
    let entries = fields(&definitions, 1);
    let port = entries
        .into_iter()
        .find(|entry| fields(entry, 1)[0] == b"io.k8s.api.core.v1.ContainerPort");
    let properties = fields(fields(port.expect("ports"), 2)[0], 25)[0].to_vec();
    let protocol =
        fields(&properties, 1).into_iter().find(|entry| fields(entry, 1)[0] == b"protocol");
    let values = fields(fields(protocol.expect("a protocol"), 2)[0], 20);
    let values: Vec<&[u8]> = values.into_iter().map(|value| fields(value, 2)[0]).collect();
    assert_eq!(values, [&b"\"SCTP\""[..], b"\"TCP\"", b"\"UDP\""]);
}

/// kubectl before 1.25 checks definitions by these schemas before it sends them.
#[test]
fn defaults_and_enums_in_definitions_are_any_json() {
    let engine = engine();
    let v3 = v3_document(&engine, "apis/apiextensions.k8s.io/v1").expect("document");
    let v2 = v2_json(&engine);
    let (v3, v2) = (parse(&v3), parse(&v2));
    let name = "io.k8s.apiextensions-apiserver.pkg.apis.apiextensions.v1.JSONSchemaProps";
    for schemas in [&v2["definitions"], &v3["components"]["schemas"]] {
        let properties = &schemas[name]["properties"];
        for any in [&properties["default"], &properties["example"], &properties["enum"]["items"]] {
            assert!(any.is_object() && any.get("type").is_none(), "{any}");
        }
        assert_eq!(properties["enum"]["type"], "array");
    }
    let revision = &v2["definitions"]["io.k8s.api.apps.v1.ControllerRevision"]["properties"];
    assert_eq!(revision["data"]["type"], "object");
}

#[test]
fn subresources_have_paths_with_their_own_kinds() {
    let engine = engine();
    let core = parse(&v3_document(&engine, "api/v1").expect("document"));
    let pod = |below: &str| {
        &core["paths"][format!("/api/v1/namespaces/{{namespace}}/pods/{{name}}{below}")]
    };
    for (below, method, action, kind, id) in [
        ("", "delete", "delete", ("", "v1", "Pod"), "deleteCoreV1NamespacedPod"),
        ("/status", "patch", "patch", ("", "v1", "Pod"), "patchCoreV1NamespacedPodStatus"),
        (
            "/eviction",
            "post",
            "post",
            ("policy", "v1", "Eviction"),
            "createCoreV1NamespacedPodEviction",
        ),
        ("/binding", "post", "post", ("", "v1", "Binding"), "createCoreV1NamespacedPodBinding"),
        (
            "/ephemeralcontainers",
            "get",
            "get",
            ("", "v1", "Pod"),
            "readCoreV1NamespacedPodEphemeralcontainers",
        ),
        ("/log", "get", "get", ("", "v1", "Pod"), "readCoreV1NamespacedPodLog"),
        (
            "/exec",
            "post",
            "connect",
            ("", "v1", "PodExecOptions"),
            "connectCoreV1PostNamespacedPodExec",
        ),
        (
            "/proxy/{path}",
            "options",
            "connect",
            ("", "v1", "PodProxyOptions"),
            "connectCoreV1OptionsNamespacedPodProxyWithPath",
        ),
    ] {
        let operation = &pod(below)[method];
        let kind = json!({"group": kind.0, "version": kind.1, "kind": kind.2});
        assert_eq!(operation["x-kubernetes-group-version-kind"], kind, "{below} {method}");
        assert_eq!(
            (&operation["x-kubernetes-action"], &operation["operationId"]),
            (&json!(action), &json!(id))
        );
    }
    assert!(pod("/binding").get("get").is_none() && pod("/exec").get("head").is_none());
    let named = |path: &Json| -> BTreeSet<String> {
        let parameters = path["parameters"].as_array().expect("parameters");
        parameters.iter().map(|one| one["name"].as_str().expect("a name").to_owned()).collect()
    };
    assert!(named(pod("/exec")).contains("command") && named(pod("/log")).contains("tailLines"));
    assert!(named(pod("/proxy/{path}")).contains("path"));
    let token =
        &core["paths"]["/api/v1/namespaces/{namespace}/serviceaccounts/{name}/token"]["post"];
    assert_eq!(token["x-kubernetes-group-version-kind"]["kind"], "TokenRequest");
}

#[test]
fn kinds_of_other_groups_are_described_where_operations_have_them() {
    let apps = parse(&v3_document(&engine(), "apis/apps/v1").expect("document"));
    let deployments = "/apis/apps/v1/namespaces/{namespace}/deployments";
    let scale = &apps["paths"][format!("{deployments}/{{name}}/scale")]["put"];
    assert_eq!(scale["operationId"], "replaceAppsV1NamespacedDeploymentScale");
    let of_scale = json!([{"group": "autoscaling", "version": "v1", "kind": "Scale"}]);
    let schemas = &apps["components"]["schemas"];
    assert_eq!(
        schemas["io.k8s.api.autoscaling.v1.Scale"]["x-kubernetes-group-version-kind"],
        of_scale
    );
    let all = &apps["paths"][deployments]["delete"];
    assert_eq!(all["x-kubernetes-action"], "deletecollection");
    assert_eq!(all["operationId"], "deleteAppsV1CollectionNamespacedDeployment");
    let answer = &all["responses"]["200"]["content"]["application/json"]["schema"]["$ref"];
    assert_eq!(answer, "#/components/schemas/io.k8s.apimachinery.pkg.apis.meta.v1.Status");
}

#[test]
fn names_of_operations_are_unique_in_all_documents() {
    let document = parse(&v2_json(&engine()));
    let paths = document["paths"].as_object().expect("paths").values();
    let operations = paths.filter_map(Json::as_object).flat_map(|item| item.values());
    let ids: Vec<&str> = operations.filter_map(|one| one["operationId"].as_str()).collect();
    let unique: BTreeSet<&str> = ids.iter().copied().collect();
    assert_eq!(ids.len(), unique.len());
    assert!(ids.len() > 400, "{}", ids.len());
}

#[test]
fn watches_have_the_paths_of_old_clients() {
    let engine = engine();
    let core = parse(&v3_document(&engine, "api/v1").expect("document"));
    let older = parse(&v2_json(&engine));
    for (path, action, id, places) in [
        ("/api/v1/watch/pods", "watchlist", "watchCoreV1PodListForAllNamespaces", ""),
        (
            "/api/v1/watch/namespaces/{namespace}/pods",
            "watchlist",
            "watchCoreV1NamespacedPodList",
            "namespace",
        ),
        (
            "/api/v1/watch/namespaces/{namespace}/pods/{name}",
            "watch",
            "watchCoreV1NamespacedPod",
            "name namespace",
        ),
        ("/api/v1/watch/nodes", "watchlist", "watchCoreV1NodeList", ""),
        ("/api/v1/watch/nodes/{name}", "watch", "watchCoreV1Node", "name"),
        ("/api/v1/watch/namespaces/{name}", "watch", "watchCoreV1Namespace", "name"),
    ] {
        for document in [&core, &older] {
            let (item, get) = (&document["paths"][path], &document["paths"][path]["get"]);
            assert_eq!(
                (&get["x-kubernetes-action"], &get["operationId"]),
                (&json!(action), &json!(id)),
                "{path}"
            );
            let parameters = item["parameters"].as_array().expect("parameters").iter();
            let of_path = parameters.filter(|one| one["in"] == "path");
            let names: Vec<&str> = of_path.filter_map(|one| one["name"].as_str()).collect();
            assert_eq!(names.join(" "), places, "{path}");
        }
        let answer = &core["paths"][path]["get"]["responses"]["200"]["content"]["application/json"]
            ["schema"]["$ref"];
        assert_eq!(answer, "#/components/schemas/io.k8s.apimachinery.pkg.apis.meta.v1.WatchEvent");
    }
    let paths = older["paths"].as_object().expect("paths");
    assert!(paths.contains_key("/apis/apps/v1/watch/namespaces/{namespace}/deployments/{name}"));
    for none in ["bindings", "selfsubjectaccessreviews", "componentstatuses"] {
        let named = |path: &&String| path.contains("/watch/") && path.contains(&format!("/{none}"));
        assert_eq!(paths.keys().find(named), None);
    }
}
