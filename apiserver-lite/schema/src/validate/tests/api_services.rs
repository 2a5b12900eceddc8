//! APIServices: what is refused, in Kubernetes' words.

use serde_json::{Value as Json, json};

use super::complaints;

fn named(name: &str, spec: &Json) -> Vec<String> {
    complaints(
        &json!({"apiVersion": "apiregistration.k8s.io/v1", "kind": "APIService", "metadata": {"name": name}, "spec": spec}),
    )
}

/// The complaints about a remote APIService with these fields in its spec.
fn with(more: &Json) -> Vec<String> {
    let mut spec = json!({
        "group": "wardle.example.com",
        "version": "v1",
        "groupPriorityMinimum": 2000,
        "versionPriority": 200,
        "service": {"namespace": "n", "name": "s"},
    });
    let more = more.as_object().expect("an object").clone();
    spec.as_object_mut().expect("an object").extend(more);
    let (version, group) = (spec["version"].as_str(), spec["group"].as_str());
    let name = format!("{}.{}", version.expect("a text"), group.expect("a text"));
    named(&name, &spec)
}

#[test]
fn valid_api_services_are_accepted() {
    for more in [
        json!({}),
        json!({"service": null, "group": "apps"}),
        json!({"service": null, "group": "", "groupPriorityMinimum": 20_000}),
        json!({"insecureSkipTLSVerify": true}),
        json!({"caBundle": "YQ==", "versionPriority": 1000}),
    ] {
        assert_eq!(with(&more), Vec::<String>::new(), "{more}");
    }
}

#[test]
fn invalid_api_services_are_refused() {
    let required = named(
        "v2.a.example.com",
        &json!({"group": "a.example.com", "version": "v1", "groupPriorityMinimum": 1, "versionPriority": 1}),
    );
    assert_eq!(
        required,
        [
            "metadata.name: Invalid value: \"v2.a.example.com\": must be `spec.version+\".\"+spec.group`: \"v1.a.example.com\""
        ]
    );
    let group = "spec.groupPriorityMinimum: Invalid value: ";
    for (more, complaint) in [
        (
            json!({"service": null, "group": "", "version": "v2"}),
            "spec.group: Required value: only v1 may have an empty group and it better be legacy kube".to_owned(),
        ),
        (json!({"groupPriorityMinimum": 0}), format!("{group}0: must be positive and less than 20000")),
        (json!({"groupPriorityMinimum": 20001}), format!("{group}20001: must be positive and less than 20000")),
        (
            json!({"versionPriority": 1001}),
            "spec.versionPriority: Invalid value: 1001: must be positive and less than 1000".to_owned(),
        ),
        (
            json!({"service": null, "caBundle": "YQ=="}),
            "spec.caBundle: Invalid value: \"1 bytes\": local APIServices may not have a caBundle".to_owned(),
        ),
        (
            json!({"service": null, "insecureSkipTLSVerify": true}),
            "spec.insecureSkipTLSVerify: Invalid value: true: local APIServices may not have insecureSkipTLSVerify".to_owned(),
        ),
        (
            json!({"insecureSkipTLSVerify": true, "caBundle": "YQ=="}),
            "spec.insecureSkipTLSVerify: Invalid value: true: may not be true if caBundle is present".to_owned(),
        ),
        (json!({"service": {"name": "s"}}), "spec.service.namespace: Required value".to_owned()),
        (
            json!({"service": {"namespace": "n", "name": "s", "port": 65536}}),
            "spec.service.port: Invalid value: 65536: port is not valid: must be between 1 and 65535, inclusive".to_owned(),
        ),
    ] {
        assert_eq!(with(&more), [complaint], "{more}");
    }
}

#[test]
fn other_servers_get_no_built_in_group() {
    for (group, version) in
        [("apps", "v1"), ("apps", "v9"), ("rbac.authorization.k8s.io", "v1"), ("", "v1")]
    {
        let found = with(&json!({"group": group, "version": version}));
        let refused =
            "spec.service: Forbidden: its group is built in, and only this server serves it";
        assert_eq!(found, [refused], "{version}.{group}");
    }
    for group in ["metrics.k8s.io", "autoscaling.k8s.io"] {
        assert!(with(&json!({"group": group, "version": "v1"})).is_empty(), "{group}");
    }
}
