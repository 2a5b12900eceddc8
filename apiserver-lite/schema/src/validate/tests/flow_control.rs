//! FlowSchemas and PriorityLevelConfigurations: each rule, in Kubernetes' words.

use serde_json::{Value as Json, json};

use super::{complaints, update_complaints};
use crate::update::Subresource;

const VERSION: &str = "flowcontrol.apiserver.k8s.io/v1beta2";

fn schema(name: &str, spec: &Json) -> Json {
    json!({"apiVersion": VERSION, "kind": "FlowSchema", "metadata": {"name": name}, "spec": spec})
}

fn level(name: &str, spec: &Json) -> Json {
    json!({"apiVersion": VERSION, "kind": "PriorityLevelConfiguration", "metadata": {"name": name}, "spec": spec})
}

fn with_rule(rule: &Json) -> Json {
    let spec = json!({"priorityLevelConfiguration": {"name": "low"}, "rules": [rule]});
    schema("s", &spec)
}

fn resource_rule() -> Json {
    json!({"verbs": ["get"], "apiGroups": [""], "resources": ["pods"], "namespaces": ["*"]})
}

fn user() -> Json {
    json!({"kind": "User", "user": {"name": "a"}})
}

fn check(object: &Json, expected: &[&str]) {
    assert_eq!(complaints(object), expected, "{object}");
}

#[test]
fn specs_of_flow_schemas() {
    let low = json!({"name": "low"});
    check(&schema("s", &json!({"priorityLevelConfiguration": low})), &[]);
    check(
        &schema("s", &json!({"matchingPrecedence": -1})),
        &[
            "spec.matchingPrecedence: Invalid value: -1: must be a positive value",
            "spec.priorityLevelConfiguration.name: Required value: must reference a priority level",
        ],
    );
    let spec = json!({"matchingPrecedence": 10_001, "priorityLevelConfiguration": {"name": "_"}, "distinguisherMethod": {"type": "ByDay"}});
    let found = complaints(&schema("s", &spec));
    assert_eq!(
        found[..2],
        [
            "spec.matchingPrecedence: Invalid value: 10001: must not be greater than 10000",
            "spec.distinguisherMethod.type: Unsupported value: \"ByDay\": supported values: \"ByNamespace\", \"ByUser\"",
        ]
    );
    assert!(
        found[2].starts_with(
            "spec.priorityLevelConfiguration.name: Invalid value: \"_\": a lowercase RFC 1123"
        ),
        "{found:?}"
    );
    check(
        &schema("s", &json!({"matchingPrecedence": 1, "priorityLevelConfiguration": low})),
        &[
            "spec.matchingPrecedence: Invalid value: 1: only the schema named 'exempt' may have matchingPrecedence 1",
        ],
    );
}

#[test]
fn rules_of_flow_schemas() {
    check(
        &with_rule(&json!({"subjects": []})),
        &[
            "spec.rules[0].subjects: Required value: subjects must contain at least one value",
            "spec.rules[0]: Required value: at least one of resourceRules and nonResourceRules has to be non-empty",
        ],
    );
    let empty = json!({"verbs": [], "apiGroups": [], "resources": []});
    check(
        &with_rule(&json!({"subjects": [user()], "resourceRules": [empty]})),
        &[
            "spec.rules[0].resourceRules[0].verbs: Required value: verbs must contain at least one value",
            "spec.rules[0].resourceRules[0].apiGroups: Required value: resource rules must supply at least one api group",
            "spec.rules[0].resourceRules[0].resources: Required value: resource rules must supply at least one resource",
            "spec.rules[0].resourceRules[0].namespaces: Required value: resource rules that are not cluster scoped must supply at least one namespace",
        ],
    );
    let both = json!({"verbs": ["*", "get"], "apiGroups": ["*", ""], "resources": ["*", "pods"], "namespaces": ["*", "a"], "clusterScope": true});
    check(
        &with_rule(&json!({"subjects": [user()], "resourceRules": [both]})),
        &[
            "spec.rules[0].resourceRules[0].verbs: Invalid value: [\"*\",\"get\"]: if '*' is present, must not specify other verbs",
            "spec.rules[0].resourceRules[0].apiGroups: Invalid value: [\"*\",\"\"]: if '*' is present, must not specify other api groups",
            "spec.rules[0].resourceRules[0].resources: Invalid value: [\"*\",\"pods\"]: if '*' is present, must not specify other resources",
            "spec.rules[0].resourceRules[0].namespaces: Invalid value: [\"*\",\"a\"]: if '*' is present, must not specify other namespaces",
        ],
    );
    let mut wrong = resource_rule();
    wrong["verbs"] = json!(["post"]);
    wrong["namespaces"] = json!(["A"]);
    let found = complaints(&with_rule(&json!({"subjects": [user()], "resourceRules": [wrong]})));
    assert_eq!(
        found[0],
        "spec.rules[0].resourceRules[0].verbs: Unsupported value: [\"post\"]: supported values: \"create\", \"delete\", \"deletecollection\", \"get\", \"list\", \"patch\", \"proxy\", \"update\", \"watch\""
    );
    assert!(found[1].starts_with("spec.rules[0].resourceRules[0].namespaces[0]: Invalid value: \"A\": each member of this list must be '*' or a DNS-1123 label; a lowercase"), "{found:?}");
    let mut cluster = resource_rule();
    cluster["namespaces"] = json!([]);
    cluster["clusterScope"] = json!(true);
    check(&with_rule(&json!({"subjects": [user()], "resourceRules": [cluster]})), &[]);
}

#[test]
fn paths_of_flow_schemas() {
    for (path, detail) in [
        ("", Some("must not be empty")),
        ("/", None),
        ("/healthz", None),
        ("/healthz/*", None),
        ("healthz", Some("must start with slash")),
        ("/a b", Some("must not contain white-space")),
        ("/a//b", Some("must not contain double slash")),
        ("/a*", Some("wildcard can only do suffix matching")),
        ("/*/*", Some("wildcard can only do suffix matching")),
    ] {
        let rule = json!({"verbs": ["get"], "nonResourceURLs": [path]});
        let expected = detail.map(|detail| {
            format!("spec.rules[0].nonResourceRules[0].nonResourceURLs[0]: Invalid value: {path:?}: {detail}")
        });
        let found =
            complaints(&with_rule(&json!({"subjects": [user()], "nonResourceRules": [rule]})));
        assert_eq!(found, Vec::from_iter(expected), "{path}");
    }
}

#[test]
fn subjects_of_flow_schemas() {
    for (subject, expected) in [
        (json!({"kind": "Group", "group": {"name": "g"}}), &[][..]),
        (json!({"kind": "ServiceAccount", "serviceAccount": {"namespace": "n", "name": "*"}}), &[]),
        (
            json!({"kind": "Node"}),
            &[
                "kind: Unsupported value: \"Node\": supported values: \"Group\", \"ServiceAccount\", \"User\"",
            ],
        ),
        (
            json!({"kind": "User"}),
            &["user: Required value: user is required when subject kind is 'User'"],
        ),
        (json!({"kind": "Group", "group": {"name": ""}}), &["group.name: Required value"]),
        (
            json!({"kind": "User", "user": {"name": "a"}, "group": {"name": "g"}, "serviceAccount": {"namespace": "n", "name": "s"}}),
            &[
                "serviceAccount: Forbidden: serviceAccount is forbidden when subject kind is not 'ServiceAccount'",
                "group: Forbidden: group is forbidden when subject kind is not 'Group'",
            ],
        ),
        (
            json!({"kind": "ServiceAccount", "serviceAccount": {"namespace": "", "name": ""}}),
            &[
                "serviceAccount.name: Required value",
                "serviceAccount.namespace: Required value: must specify namespace for service account",
            ],
        ),
    ] {
        let rule = json!({"subjects": [subject], "resourceRules": [resource_rule()]});
        let expected: Vec<String> =
            expected.iter().map(|text| format!("spec.rules[0].subjects[0].{text}")).collect();
        assert_eq!(complaints(&with_rule(&rule)), expected, "{subject}");
    }
}

fn limited(response: &Json) -> Json {
    json!({"type": "Limited", "limited": {"limitResponse": response}})
}

/// Checks the error of the spec of a level; an empty text is none.
fn check_level(spec: &Json, expected: &str) {
    let expected: Vec<&str> = Some(expected).filter(|text| !text.is_empty()).into_iter().collect();
    check(&level("a", spec), &expected);
}

#[test]
fn specs_of_priority_levels() {
    let negative = json!({"assuredConcurrencyShares": -1, "limitResponse": {"type": "Reject"}});
    for (spec, expected) in [
        (limited(&json!({"type": "Reject"})), ""),
        (
            json!({"type": "Exempt"}),
            "spec.type: Invalid value: \"Exempt\": type must be 'Exempt' if and only if name is 'exempt'",
        ),
        (
            json!({"type": "Some"}),
            "spec.type: Unsupported value: \"Some\": supported values: \"Exempt\", \"Limited\"",
        ),
        (
            json!({"type": "Limited"}),
            "spec.limited: Required value: must not be empty when type is Limited",
        ),
        (
            json!({"type": "Limited", "limited": negative}),
            "spec.limited.assuredConcurrencyShares: Invalid value: -1: must be positive",
        ),
        (
            limited(&json!({"type": "Reject", "queuing": {"queues": 1}})),
            "spec.limited.limitResponse.queuing: Forbidden: must be nil if limited.limitResponse.type is not Limited",
        ),
        (
            limited(&json!({"type": "Queue"})),
            "spec.limited.limitResponse.queuing: Required value: must not be empty if limited.limitResponse.type is Limited",
        ),
        (
            limited(&json!({"type": "Wait"})),
            "spec.limited.limitResponse.type: Unsupported value: \"Wait\": supported values: \"Queue\", \"Reject\"",
        ),
    ] {
        check_level(&spec, expected);
    }
}

#[test]
fn queues_of_priority_levels() {
    for (queues, hand, length, expected) in [
        (64, 6, 50, ""),
        // What is 0 has a default.
        (0, 0, 0, ""),
        (1024, 6, 50, ""),
        (4, 8, 50, "handSize: Invalid value: 8: should not be greater than queues (4)"),
        (10_000_001, 1, 50, "queues: Invalid value: 10000001: must not be greater than 10000000"),
        (
            1024,
            7,
            50,
            "handSize: Invalid value: 7: required entropy bits of deckSize 1024 and handSize 7 should not be greater than 60",
        ),
        (64, 6, -1, "queueLengthLimit: Invalid value: -1: must be positive"),
    ] {
        let queuing = json!({"queues": queues, "handSize": hand, "queueLengthLimit": length});
        let spec = limited(&json!({"type": "Queue", "queuing": queuing}));
        let expected = match expected {
            "" => String::new(),
            text => format!("spec.limited.limitResponse.queuing.{text}"),
        };
        check_level(&spec, &expected);
    }
}

#[test]
fn mandatory_objects_keep_their_spec() {
    let exempt = level("exempt", &json!({"type": "Exempt"}));
    check(&exempt, &[]);
    let limited = |shares: i64| json!({"type": "Limited", "limited": {"assuredConcurrencyShares": shares, "limitResponse": {"type": "Reject"}}});
    check(&level("catch-all", &limited(5)), &[]);
    let found = update_complaints(
        &level("catch-all", &limited(5)),
        &level("catch-all", &limited(6)),
        Subresource::Main,
    );
    assert_eq!(found.len(), 1);
    assert!(
        found[0].starts_with("spec: Invalid value: {")
            && found[0].ends_with("spec of 'catch-all' must equal the fixed value"),
        "{found:?}"
    );
    let found = complaints(&schema(
        "exempt",
        &json!({"priorityLevelConfiguration": {"name": "exempt"}, "matchingPrecedence": 1}),
    ));
    assert_eq!(found.len(), 1, "{found:?}");
    assert!(found[0].ends_with("spec of 'exempt' must equal the fixed value"), "{found:?}");
}

#[test]
fn conditions_have_different_types() {
    let mut new = level("exempt", &json!({"type": "Exempt"}));
    let old = new.clone();
    new["status"] = json!({"conditions": [{"type": "A"}, {"type": "A"}, {"reason": "r"}]});
    let found = update_complaints(&old, &new, Subresource::Status);
    assert_eq!(
        found,
        [
            "status.conditions[1].type: Duplicate value: \"A\"",
            "status.conditions[2].type: Required value: must not be empty",
        ]
    );
}
