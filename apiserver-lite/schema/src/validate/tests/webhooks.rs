//! Webhook configurations: what is refused, in Kubernetes' words.

use serde_json::{Value as Json, json};

use super::complaints;

/// A configuration with one webhook, which has `value` at `pointer`; null removes what is there.
fn with(pointer: &str, value: Json) -> Json {
    let mut webhook = json!({
        "name": "a.example.com",
        "clientConfig": {"service": {"namespace": "n", "name": "s"}},
        "rules": [{"operations": ["CREATE"], "apiGroups": [""], "apiVersions": ["v1"], "resources": ["pods"]}],
        "sideEffects": "None",
        "admissionReviewVersions": ["v1"],
    });
    let (parent, last) = pointer.rsplit_once('/').expect("a pointer");
    let parent = webhook.pointer_mut(parent).expect("there").as_object_mut().expect("an object");
    match value {
        Json::Null => drop(parent.remove(last)),
        value => drop(parent.insert(last.to_owned(), value)),
    }
    configuration(&json!([webhook]))
}

fn configuration(webhooks: &Json) -> Json {
    json!({"apiVersion": "admissionregistration.k8s.io/v1", "kind": "MutatingWebhookConfiguration",
        "metadata": {"name": "c"}, "webhooks": webhooks})
}

/// The only complaint, without `webhooks[0].`; empty for none.
fn complaint(pointer: &str, value: Json) -> String {
    let found = complaints(&with(pointer, value));
    assert!(found.len() <= 1, "{found:?}");
    let first = found.into_iter().next().unwrap_or_default();
    first.strip_prefix("webhooks[0].").unwrap_or(&first).to_owned()
}

#[test]
fn valid_webhook_configurations_are_accepted() {
    for (pointer, value) in [
        ("/name", json!("a.b.c")),
        ("/clientConfig", json!({"url": "https://h:8443/a/b"})),
        ("/clientConfig", json!({"url": "https://h", "caBundle": "YQ=="})),
        ("/clientConfig/service/path", json!("/a/b.c/")),
        ("/clientConfig/service/port", json!(1)),
        ("/rules", json!([])),
        ("/rules/0/resources", json!(["pods", "pods/status", "*/scale"])),
        ("/rules/0/scope", json!("Cluster")),
        ("/sideEffects", json!("NoneOnDryRun")),
        ("/timeoutSeconds", json!(30)),
        ("/admissionReviewVersions", json!(["v2", "v1beta1"])),
        ("/reinvocationPolicy", json!("IfNeeded")),
    ] {
        assert_eq!(complaint(pointer, value.clone()), "", "{pointer} = {value}");
    }
}

#[test]
fn names_policies_and_versions() {
    for (pointer, value, expected) in [
        ("/name", json!(""), "name: Required value"),
        (
            "/name",
            json!("a.b"),
            "name: Invalid value: \"a.b\": should be a domain with at least three segments separated by dots",
        ),
        (
            "/failurePolicy",
            json!("Try"),
            "failurePolicy: Unsupported value: \"Try\": supported values: \"Fail\", \"Ignore\"",
        ),
        (
            "/matchPolicy",
            json!("Try"),
            "matchPolicy: Unsupported value: \"Try\": supported values: \"Equivalent\", \"Exact\"",
        ),
        (
            "/reinvocationPolicy",
            json!("Try"),
            "reinvocationPolicy: Unsupported value: \"Try\": supported values: \"IfNeeded\", \"Never\"",
        ),
        (
            "/sideEffects",
            Json::Null,
            "sideEffects: Required value: must specify one of None, NoneOnDryRun",
        ),
        (
            "/sideEffects",
            json!("Some"),
            "sideEffects: Unsupported value: \"Some\": supported values: \"None\", \"NoneOnDryRun\"",
        ),
        (
            "/timeoutSeconds",
            json!(31),
            "timeoutSeconds: Invalid value: 31: the timeout value must be between 1 and 30 seconds",
        ),
        (
            "/admissionReviewVersions",
            json!([]),
            "admissionReviewVersions: Required value: must specify one of v1, v1beta1",
        ),
        (
            "/admissionReviewVersions",
            json!(["v1", "v1"]),
            "admissionReviewVersions[1]: Invalid value: \"v1\": duplicate version",
        ),
        (
            "/admissionReviewVersions",
            json!(["v2"]),
            "admissionReviewVersions: Invalid value: [\"v2\"]: must include at least one of v1, v1beta1",
        ),
    ] {
        assert_eq!(complaint(pointer, value), expected);
    }
    let bad = json!({"matchExpressions": [{"key": "a", "operator": "Is"}]});
    for field in ["namespaceSelector", "objectSelector"] {
        let found = complaint(&format!("/{field}"), bad.clone());
        let at = format!("{field}.matchExpressions[0].operator: Invalid value");
        assert!(found.starts_with(&at), "{found}");
    }
}

#[test]
fn rules_are_complete_and_say_nothing_twice() {
    for (pointer, value, expected) in [
        ("operations", json!([]), "operations: Required value"),
        (
            "operations",
            json!(["*", "CREATE"]),
            "operations: Invalid value: [\"*\",\"CREATE\"]: if '*' is present, must not specify other operations",
        ),
        (
            "operations",
            json!(["GET"]),
            "operations[0]: Unsupported value: \"GET\": supported values: \"*\", \"CONNECT\", \"CREATE\", \"DELETE\", \"UPDATE\"",
        ),
        ("apiGroups", json!([]), "apiGroups: Required value"),
        (
            "apiGroups",
            json!(["*", ""]),
            "apiGroups: Invalid value: [\"*\",\"\"]: if '*' is present, must not specify other API groups",
        ),
        ("apiVersions", json!([""]), "apiVersions[0]: Required value"),
        ("resources", json!([]), "resources: Required value"),
        ("resources", json!([""]), "resources[0]: Required value"),
        (
            "resources",
            json!(["a/*", "a/x"]),
            "resources[1]: Invalid value: \"a/x\": if 'a/*' is present, must not specify a/x",
        ),
        (
            "resources",
            json!(["*/x", "a/x"]),
            "resources[1]: Invalid value: \"a/x\": if '*/x' is present, must not specify a/x",
        ),
        (
            "resources",
            json!(["*/*", "a"]),
            "resources: Invalid value: [\"*/*\",\"a\"]: if '*/*' is present, must not specify other resources",
        ),
        (
            "resources",
            json!(["*", "a"]),
            "resources: Invalid value: [\"*\",\"a\"]: if '*' is present, must not specify other resources without subresources",
        ),
        (
            "scope",
            json!("All"),
            "scope: Unsupported value: \"All\": supported values: \"*\", \"Cluster\", \"Namespaced\"",
        ),
    ] {
        let found = complaint(&format!("/rules/0/{pointer}"), value);
        assert_eq!(found, format!("rules[0].{expected}"));
    }
}

#[test]
fn a_webhook_has_a_service_or_a_url() {
    let form = "; desired format: https://host[/path]";
    let exactly =
        "clientConfig: Required value: exactly one of url or service is required".to_owned();
    let url = |value: &str, text: &str| {
        (json!({"url": value}), format!("clientConfig.url: Invalid value: {text}"))
    };
    let both = json!({"url": "https://h", "service": {"namespace": "n", "name": "s"}});
    for (client, expected) in [
        (json!({}), exactly.clone()),
        (both, exactly),
        url("http://h", &format!("\"http\": 'https' is the only allowed URL scheme{form}")),
        url("https:///p", &format!("\"\": host must be provided{form}")),
        url("https://u:p@h", "\"u:p\": user information is not permitted in the URL"),
        url("https://h#f", "\"f\": fragments are not permitted in the URL"),
        url("https://h?q=1", "\"q=1\": query parameters are not permitted in the URL"),
    ] {
        assert_eq!(complaint("/clientConfig", client), expected);
    }
    for (field, value, expected) in [
        ("name", json!(""), "name: Required value: service name is required"),
        ("namespace", json!(""), "namespace: Required value: service namespace is required"),
        (
            "port",
            json!(65536),
            "port: Invalid value: 65536: port is not valid: must be between 1 and 65535, inclusive",
        ),
        ("path", json!("//"), "path: Invalid value: \"//\": segment[0] may not be empty"),
        ("path", json!("a"), "path: Invalid value: \"a\": must start with a '/'"),
        ("path", json!("/a//b"), "path: Invalid value: \"/a//b\": segment[1] may not be empty"),
    ] {
        let found = complaint(&format!("/clientConfig/service/{field}"), value);
        assert_eq!(found, format!("clientConfig.service.{expected}"));
    }
    let upper = complaint("/clientConfig/service/path", json!("/A"));
    assert!(upper.starts_with("clientConfig.service.path: Invalid value: \"/A\": segment[0]: a "));
}

#[test]
fn names_are_unique_in_a_configuration() {
    let mut two = with("/timeoutSeconds", json!(1));
    let first = two["webhooks"][0].clone();
    two["webhooks"].as_array_mut().expect("a list").push(first);
    assert_eq!(complaints(&two), ["webhooks[1].name: Duplicate value: \"a.example.com\""]);
}

#[test]
fn match_conditions_have_names_and_expressions() {
    let condition = |name: &str| json!({"name": name, "expression": "true"});
    let named =
        |names: &[&str]| json!(names.iter().map(|name| condition(name)).collect::<Vec<_>>());
    let many: Vec<String> = (0..65).map(|at| format!("c{at}")).collect();
    let many: Vec<&str> = many.iter().map(String::as_str).collect();
    for (value, expected) in [
        (named(&["a", "example.com/b", "C.d_e-f"]), ""),
        (named(&many[..64]), ""),
        (named(&many), "matchConditions: Too many: 65: must have at most 64 items"),
        (named(&[""]), "matchConditions[0].name: Required value"),
        (named(&["a", "a"]), "matchConditions[1].name: Duplicate value: \"a\""),
        (json!([{"name": "a"}]), "matchConditions[0].expression: Required value"),
        (
            json!([{"name": "a", "expression": " "}]),
            "matchConditions[0].expression: Required value",
        ),
    ] {
        assert_eq!(complaint("/matchConditions", value.clone()), expected, "{value}");
    }
    let wrong = complaint("/matchConditions", named(&["-a"]));
    assert!(
        wrong.starts_with(
            "matchConditions[0].name: Invalid value: \"-a\": name part must consist of"
        ),
        "{wrong}"
    );
}
