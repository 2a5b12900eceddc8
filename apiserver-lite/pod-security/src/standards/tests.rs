mod baseline;
mod properties;
mod restricted;
mod versions;

use std::sync::OnceLock;

use proto_api::core::v1::Pod;
use proto_api::names::Profile;
use proto_api::object::from_json_value;
use serde_json::{Value, json};

use super::*;
use crate::policy::PodSecurityVersion;
use crate::violation::{describe_refusal, describe_violations, list_reasons};

fn names() -> &'static Names {
    static NAMES: OnceLock<&Names> = OnceLock::new();
    NAMES.get_or_init(|| Names::new(Profile::Kubernetes))
}

fn level_version(text: &str) -> LevelVersion {
    let (level, version) = text.split_once(':').expect("a level and a version");
    LevelVersion {
        level: level.parse().expect("a level"),
        version: version.parse().expect("a version"),
    }
}

fn pod(value: Value) -> Pod {
    from_json_value(value, names()).expect("a pod")
}

/// What a pod violates at a level such as `baseline:v1.25`.
fn find(policy: &str, value: Value) -> Vec<Violation> {
    let pod = pod(value);
    find_violations(level_version(policy), &pod.metadata, &pod.spec, names())
}

/// All that a pod with this spec violates at a level.
fn describe(policy: &str, spec: Value) -> String {
    describe_violations(&find(policy, json!({"spec": spec})))
}

/// What one check says of a pod with this spec, empty if it allows it.
fn describe_check(policy: &str, check: &str, spec: Value) -> String {
    let violations = find(policy, json!({"spec": spec}));
    let of_check = violations.iter().filter(|violation| violation.check == check);
    of_check.map(Violation::to_string).collect()
}

/// A container with a security context.
fn container(name: &str, context: Value) -> Value {
    json!({"name": name, "securityContext": context})
}

#[test]
fn tables_are_in_the_order_of_kubernetes_and_complete() {
    for table in [&BASELINE[..], &RESTRICTED[..]] {
        assert!(table.is_sorted_by_key(|check| check.id));
        for check in table {
            let since: Vec<u64> = check.revisions.iter().map(|(since, _)| *since).collect();
            assert!(!since.is_empty() && since.is_sorted_by(|a, b| a < b), "{}", check.id);
        }
    }
    for check in &RESTRICTED {
        let has = |id| BASELINE.iter().any(|check| check.id == id);
        assert!(check.overrides.is_none_or(has), "{}", check.id);
    }
    assert!(BASELINE.iter().all(|check| check.overrides.is_none()));
}

#[test]
fn everything_is_privileged() {
    let worst = json!({
        "metadata": {"annotations": {"container.apparmor.security.beta.kubernetes.io/a": "x"}},
        "spec": {
            "hostNetwork": true,
            "containers": [container("a", json!({"privileged": true}))],
        },
    });
    for version in ["v1.0", "v1.25", "latest"] {
        assert_eq!(find(&format!("privileged:{version}"), worst.clone()), []);
        assert_ne!(find(&format!("baseline:{version}"), worst.clone()), []);
    }
}

#[test]
fn an_empty_pod_violates_nothing() {
    for policy in ["baseline:v1.0", "baseline:latest", "restricted:v1.0", "restricted:latest"] {
        assert_eq!(find(policy, json!({})), [], "{policy}");
        let empty = json!({
            "securityContext": {"seLinuxOptions": {}, "windowsOptions": {}, "sysctls": []},
            "containers": [],
        });
        assert_eq!(describe(policy, empty), "", "{policy}");
    }
}

#[test]
fn the_message_is_that_of_kubernetes() {
    let violations = find("restricted:latest", json!({"spec": {"containers": [{"name": "a"}]}}));
    assert_eq!(
        describe_refusal(level_version("restricted:latest"), &violations),
        concat!(
            "violates PodSecurity \"restricted:latest\": ",
            "allowPrivilegeEscalation != false ",
            "(container \"a\" must set securityContext.allowPrivilegeEscalation=false), ",
            "unrestricted capabilities ",
            "(container \"a\" must set securityContext.capabilities.drop=[\"ALL\"]), ",
            "runAsNonRoot != true ",
            "(pod or container \"a\" must set securityContext.runAsNonRoot=true), ",
            "seccompProfile (pod or container \"a\" must set securityContext.seccompProfile.type ",
            "to \"RuntimeDefault\" or \"Localhost\")",
        )
    );
    let spec = json!({
        "securityContext": {
            "seLinuxOptions": {"user": "u", "role": "r"},
            "sysctls": [{"name": "net.core.somaxconn"}, {"name": "kernel.msgmax"}],
        },
        "containers": [{"name": "my-pod"}],
    });
    assert_eq!(
        list_reasons(&find("restricted:latest", json!({"spec": spec}))),
        "seLinuxOptions, forbidden sysctls, allowPrivilegeEscalation != false, \
         unrestricted capabilities, runAsNonRoot != true, seccompProfile"
    );
}
