//! Errors of rules: their messages, kinds and fields.

use crate::testing::{definition, schema, value};

/// A definition whose field `o` has one rule with these further members, and the complaints about it.
fn complaints(members: &str) -> Vec<String> {
    let tree = definition(&properties(members));
    crate::validate_definition(&tree, None).iter().map(ToString::to_string).collect()
}

fn properties(members: &str) -> String {
    format!(
        r#"{{"o":{{"type":"object","properties":{{
            "n":{{"type":"integer"}},"s":{{"type":"string"}},
            "m":{{"type":"object","additionalProperties":{{"type":"integer"}}}},
            "l":{{"type":"array","maxItems":3,"items":{{"type":"integer"}}}}}},
            "x-kubernetes-validations":[{{"rule":"self.n < 3",{members}}}]}}}}"#
    )
}

#[test]
fn messages_of_rules_may_be_expressions() {
    let schema = schema(
        r#"{"o":{"type":"object","properties":{"n":{"type":"integer"}},"x-kubernetes-validations":[
        {"rule":"self.n < 3","message":"plain","messageExpression":"'n is ' + string(self.n)"},
        {"rule":"self.n < 3","message":"plain","messageExpression":"string(1 / (self.n - 5))"}]}}"#,
    );
    let found: Vec<String> = schema
        .validate(&value(r#"{"o":{"n":5}}"#), None)
        .into_iter()
        .map(|error| error.message)
        .collect();
    assert_eq!(found, ["Invalid value: \"object\": n is 5", "Invalid value: \"object\": plain"]);
}

#[test]
fn a_message_is_as_it_is_where_its_expression_has_no_value() {
    for (expression, expected) in [
        ("'n is ' + string(self.n)", "n is 5"),
        ("'  n  '", "n"),
        ("''", "plain"),
        ("'a' + self.s", "plain"), // s is not set
        ("'two\\\\nlines'", "plain"),
    ] {
        let members = format!(r#""message":"plain","messageExpression":"{expression}""#);
        assert_eq!(complaints(&members), Vec::<String>::new(), "{expression}");
        let schema = schema(&properties(&members));
        let found = schema.validate(&value(r#"{"o":{"n":5}}"#), None);
        assert_eq!(found[0].message, format!("Invalid value: \"object\": {expected}"));
    }
}

#[test]
fn a_rule_names_the_kind_and_the_field_of_its_errors() {
    for (members, field, message) in [
        (r#""message":"no""#, "o", "Invalid value: \"object\": no"),
        (r#""message":"no","reason":"FieldValueForbidden""#, "o", "Forbidden: no"),
        (
            r#""message":"no","reason":"FieldValueRequired","fieldPath":".n""#,
            "o.n",
            "Required value: no",
        ),
        (r#""message":"no","reason":"FieldValueDuplicate""#, "o", "Duplicate value: \"object\""),
        (
            r#""message":"no","reason":"FieldValueInvalid","fieldPath":".m.k""#,
            "o.m[k]",
            "Invalid value: \"object\": no",
        ),
    ] {
        assert_eq!(complaints(members), Vec::<String>::new(), "{members}");
        let found = schema(&properties(members)).validate(&value(r#"{"o":{"n":5}}"#), None);
        let shown: Vec<(&str, &str)> =
            found.iter().map(|error| (error.field.as_str(), error.message.as_str())).collect();
        assert_eq!(shown, [(field, message)], "{members}");
    }
}

#[test]
fn what_a_rule_says_of_its_errors_is_checked_when_it_is_written() {
    let place = "spec.validation.openAPIV3Schema.properties[o].x-kubernetes-validations[0]";
    for (members, expected) in [
        (
            r#""messageExpression":" ""#,
            "messageExpression: Required value: messageExpression must be non-empty if specified",
        ),
        (
            r#""messageExpression":"self.n""#,
            "messageExpression: Invalid value: \"self.n\": messageExpression must evaluate to a string",
        ),
        (
            r#""messageExpression":"self.zz""#,
            "messageExpression: Invalid value: \"self.zz\": compilation failed",
        ),
        (
            r#""reason":"Never""#,
            "reason: Unsupported value: \"Never\": supported values: \"FieldValueDuplicate\", \"FieldValueForbidden\", \"FieldValueInvalid\", \"FieldValueRequired\"",
        ),
        (
            r#""fieldPath":" ""#,
            "fieldPath: Invalid value: \" \": fieldPath must be non-empty if specified",
        ),
        (
            r#""fieldPath":".n\n""#,
            "fieldPath: Invalid value: \".n\\n\": fieldPath must be a valid path",
        ),
        (
            r#""fieldPath":".\nn""#,
            "fieldPath: Invalid value: \".\\nn\": fieldPath must not contain line breaks",
        ),
        (r#""fieldPath":"n""#, "fieldPath: Invalid value: \"n\": fieldPath must be a valid path"),
        (
            r#""fieldPath":".zz""#,
            "fieldPath: Invalid value: \".zz\": fieldPath must be a valid path: does not refer to a valid field",
        ),
        (
            r#""fieldPath":".l[0]""#,
            "fieldPath: Invalid value: \".l[0]\": fieldPath must be a valid path",
        ),
    ] {
        let found = complaints(members);
        assert_eq!(found.len(), 1, "{members}: {found:?}");
        assert!(found[0].starts_with(&format!("{place}.{expected}")), "{members}: {found:?}");
    }
}

/// An expression of a message costs for each value that has it, as its rule does.
#[test]
fn an_expensive_message_is_refused_with_its_place() {
    let rules = |message: &str| {
        definition(&format!(
            r#"{{"l":{{"type":"array","items":{{"type":"object","properties":{{"s":{{"type":"string"}}}},
                "x-kubernetes-validations":[{{"rule":"true","messageExpression":"{message}"}}]}}}}}}"#
        ))
    };
    assert_eq!(crate::validate_definition(&rules("'short'"), None), []);
    let found = crate::validate_definition(&rules("self.s + 'x'"), None);
    assert!(found[0].field.ends_with("x-kubernetes-validations[0].messageExpression"), "{found:?}");
    assert!(
        found[0].message.starts_with("Forbidden: estimated messageExpression cost exceeds budget"),
        "{found:?}"
    );
}
