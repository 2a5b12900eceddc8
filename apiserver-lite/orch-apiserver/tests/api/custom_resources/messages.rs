//! Errors of rules, as clients get them: computed messages, kinds and fields.

use serde_json::{Value, json};

use super::{BACKUPS, DEFINITIONS, backup, backups, define};
use crate::support::TestServer;

/// `backups` whose spec has this rule.
fn with_rule(rule: &Value) -> Value {
    let mut definition = backups();
    let schema = &mut definition["spec"]["versions"][0]["schema"]["openAPIV3Schema"];
    schema["properties"]["spec"]["x-kubernetes-validations"] = json!([rule]);
    schema["properties"]["spec"]["properties"]["source"]["maxLength"] = json!(100);
    definition
}

#[tokio::test]
async fn a_refusal_has_the_message_that_the_rule_computes() {
    let server = TestServer::start().await;
    let definition = with_rule(&json!({
        "rule": "!has(self.replicas) || self.replicas < 3",
        "message": "too many",
        "messageExpression": "'no more than 2, but ' + self.source + ' has ' + string(self.replicas)",
        "reason": "FieldValueForbidden",
        "fieldPath": ".replicas",
    }));
    // What kubectl sends: nothing of it is unknown.
    let strict = format!("{DEFINITIONS}?fieldValidation=Strict&dryRun=All");
    let made = server.post(&strict, definition.to_string()).await;
    made.expect(201);
    assert_eq!(made.headers.get("warning"), None);
    let made = define(&server, &definition).await;
    let rules = "/spec/versions/0/schema/openAPIV3Schema/properties/spec/x-kubernetes-validations";
    assert_eq!(made.pointer(rules), definition.pointer(rules));
    let mut object = backup("a");
    object["spec"]["replicas"] = json!(2);
    server.post(BACKUPS, object.to_string()).await.expect(201);
    object["metadata"]["name"] = json!("b");
    object["spec"]["replicas"] = json!(7);
    let refused = server.post(BACKUPS, object.to_string()).await.expect(422);
    let words = "Forbidden: no more than 2, but disk has 7";
    let cause =
        json!({"reason": "FieldValueForbidden", "message": words, "field": "spec.replicas"});
    assert_eq!(refused["details"]["causes"], json!([cause]));
    let message = format!("Backup.example.com \"b\" is invalid: spec.replicas: {words}");
    assert_eq!(refused["message"], message);
}

#[tokio::test]
async fn a_rule_whose_message_cannot_be_computed_is_refused() {
    let server = TestServer::start().await;
    for (field, value, expected) in [
        ("messageExpression", "self.replicas", "messageExpression must evaluate to a string"),
        ("messageExpression", "self.zz", "undefined field 'zz'"),
        ("reason", "Never", "Unsupported value: \"Never\""),
        ("fieldPath", ".zz", "does not refer to a valid field"),
    ] {
        let definition = with_rule(&json!({"rule": "true", field: value}));
        let refused = server.post(DEFINITIONS, definition.to_string()).await.expect(422);
        let cause = &refused["details"]["causes"][0];
        assert!(cause["field"].as_str().expect("a field").ends_with(field), "{refused}");
        assert!(cause["message"].as_str().expect("a message").contains(expected), "{refused}");
    }
}
