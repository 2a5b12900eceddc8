//! Match conditions: expressions in CEL that all must hold for a webhook to be called, as in Kubernetes 1.28. What they ask of `authorizer` is a value:
//! the caller finds the answer, and evaluates them again with it.

use std::collections::BTreeSet;
use std::sync::Arc;

use apiserver_custom_resources::{
    AccessInput, AccessQuestion, EvaluationError, Expression, ExpressionCompiler, ExpressionError,
    ValueType,
};
use apiserver_schema::validate::Cause;
use apiserver_schema::value::cut;
use apiserver_schema::{FieldError, FieldErrors, Map, Object, Value};

/// Steps of all conditions of a webhook for one request, as in Kubernetes.
const STEPS_MAX: u64 = 2_500_000;

const KIND: ValueType = ValueType::Fields(&[
    ("group", ValueType::Text),
    ("version", ValueType::Text),
    ("kind", ValueType::Text),
]);
const RESOURCE: ValueType = ValueType::Fields(&[
    ("group", ValueType::Text),
    ("version", ValueType::Text),
    ("resource", ValueType::Text),
]);
const USER: ValueType = ValueType::Fields(&[
    ("username", ValueType::Text),
    ("uid", ValueType::Text),
    ("groups", ValueType::Texts),
    ("extra", ValueType::TextLists),
]);
/// What conditions see of the request of an AdmissionReview.
const REQUEST: ValueType = ValueType::Fields(&[
    ("kind", KIND),
    ("resource", RESOURCE),
    ("subResource", ValueType::Text),
    ("requestKind", KIND),
    ("requestResource", RESOURCE),
    ("requestSubResource", ValueType::Text),
    ("name", ValueType::Text),
    ("namespace", ValueType::Text),
    ("operation", ValueType::Text),
    ("userInfo", USER),
    ("dryRun", ValueType::Bool),
    ("options", ValueType::Any),
]);

/// The match conditions of a webhook.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct MatchConditions(Arc<[MatchCondition]>);

/// An expression and what it is called.
#[derive(Debug)]
struct MatchCondition {
    name: String,
    text: String,
    compiled: Result<Expression, ExpressionError>,
}

impl PartialEq for MatchCondition {
    fn eq(&self, other: &Self) -> bool {
        (&self.name, &self.text) == (&other.name, &other.text)
    }
}

/// What match conditions say of a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum MatchResult {
    /// All hold: the webhook is called.
    All,
    /// The one of this name does not: the webhook is not called.
    Excluded(String),
    /// They need the answer to a question of `authorizer`.
    Asks(AccessQuestion),
    /// None says no, but some cannot be evaluated; why. The failure policy decides.
    Failed(String),
}

/// What conditions are about, as an AdmissionReview has it.
#[derive(Clone, Copy, Debug)]
pub struct ConditionInput<'a> {
    /// The object as it will be; null for none.
    pub object: &'a Value,
    /// The object as it is stored; null for none.
    pub old_object: &'a Value,
    /// [`Review::request_tree`](crate::Review::request_tree).
    pub request: &'a Value,
    /// What `authorizer` knows.
    pub access: &'a AccessInput,
}

impl MatchConditions {
    /// The conditions of a validated webhook; `compiler` is that of its configuration.
    pub(crate) fn read(webhook: &Map, compiler: &mut ExpressionCompiler) -> Self {
        let conditions = webhook.maps("matchConditions").map(|condition| {
            let text = condition.str("expression").trim();
            MatchCondition {
                name: condition.str("name").to_owned(),
                text: text.to_owned(),
                compiled: compiler.compile(text),
            }
        });
        Self(conditions.collect())
    }

    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// What they say of a request. One that does not hold decides, whatever the others are.
    #[must_use]
    pub fn evaluate(&self, input: ConditionInput<'_>) -> MatchResult {
        let values =
            [("object", input.object), ("oldObject", input.old_object), ("request", input.request)];
        let mut budget = STEPS_MAX;
        let (mut excluded, mut failures) = (None, Vec::new());
        for condition in self.0.iter() {
            let holds = match &condition.compiled {
                Ok(expression) => expression.holds(&values, Some(input.access), &mut budget),
                Err(error) => {
                    failures
                        .push(format!("expression '{}' cannot be used: {error}", condition.text));
                    continue;
                }
            };
            match holds {
                Ok(true) => {}
                Ok(false) => excluded = excluded.or_else(|| Some(condition.name.clone())),
                Err(EvaluationError::Unanswered(question)) => return MatchResult::Asks(*question),
                // As in Kubernetes nothing is known then, not even of those that were evaluated.
                Err(error @ EvaluationError::OutOfBudget) => {
                    return MatchResult::Failed(error.to_string());
                }
                Err(error) => failures.push(error.to_string()),
            }
        }
        let mut seen = BTreeSet::new();
        failures.retain(|failure| seen.insert(failure.clone()));
        match (excluded, failures.len()) {
            (Some(name), _) => MatchResult::Excluded(name),
            (None, 0) => MatchResult::All,
            (None, 1) => MatchResult::Failed(failures.concat()),
            (None, _) => MatchResult::Failed(format!("[{}]", failures.join(", "))),
        }
    }
}

/// A compiler for the conditions of one configuration, which are bounded together.
pub(crate) fn compiler() -> ExpressionCompiler {
    ExpressionCompiler::new(&[
        ("object", ValueType::Any),
        ("oldObject", ValueType::Any),
        ("request", REQUEST),
        ("authorizer", ValueType::Authorizer),
    ])
}

/// Compiles the match conditions of a MutatingWebhookConfiguration or ValidatingWebhookConfiguration that is written. Their names and their number are
/// checked with the other fields.
///
/// # Errors
/// Those that are no expressions, or decide nothing.
pub fn check_conditions(configuration: &Object) -> Result<(), FieldErrors> {
    let (mut errors, mut compiler) = (Vec::new(), compiler());
    for (at, webhook) in configuration.fields.maps("webhooks").enumerate() {
        for (nth, condition) in webhook.maps("matchConditions").enumerate() {
            let text = condition.str("expression").trim();
            let Err(error) = compiler.compile(text) else { continue };
            errors.push(FieldError {
                field: format!("webhooks[{at}].matchConditions[{nth}].expression"),
                cause: Cause::Invalid,
                message: format!("{}: {:?}: {error}", Cause::Invalid.text(), cut(text)),
            });
        }
    }
    if errors.is_empty() { Ok(()) } else { Err(FieldErrors(errors)) }
}

#[cfg(test)]
mod tests {
    use apiserver_custom_resources::{AccessAnswer, AccessSubject};
    use apiserver_schema::value::parse_json;
    use serde_json::{Value as Json, json};

    use super::*;
    use crate::configuration::tests::{configuration, webhook};

    fn conditions(expressions: &[&str]) -> MatchConditions {
        let one =
            |(at, text): (usize, &&str)| json!({"name": format!("c{at}"), "expression": text});
        let all: Vec<Json> = expressions.iter().enumerate().map(one).collect();
        let fields = json!({"name": "a.b.c", "clientConfig": {"url": "https://h"}, "admissionReviewVersions": ["v1"],
            "matchConditions": all});
        webhook(fields).selectors.expect("selectors").conditions
    }

    fn verdict(expressions: &[&str]) -> MatchResult {
        let tree = |json: Json| parse_json(json.to_string().as_bytes(), &mut Vec::new()).unwrap();
        let object = tree(json!({"metadata": {"labels": {"a": "b"}}, "spec": {"n": 3}}));
        let request = tree(json!({
            "kind": {"group": "", "version": "v1", "kind": "Pod"}, "operation": "CREATE", "namespace": "n",
            "userInfo": {"username": "system:node:a", "groups": ["system:nodes"]}, "dryRun": false,
        }));
        let conditions = conditions(expressions);
        let mut access = AccessInput::default();
        access.requested.resource = "pods".to_owned();
        // Nodes may get pods, and cannot be asked about metrics.
        loop {
            let input = ConditionInput {
                object: &object,
                old_object: &Value::Null,
                request: &request,
                access: &access,
            };
            let MatchResult::Asks(question) = conditions.evaluate(input) else {
                return conditions.evaluate(input);
            };
            let answer = match &question.subject {
                AccessSubject::Path(path) => AccessAnswer {
                    error: format!("nothing knows {path}"),
                    ..AccessAnswer::default()
                },
                AccessSubject::Resource(of) => AccessAnswer {
                    allowed: of.resource == "pods" && question.verb == "get",
                    reason: format!("{:?} {of:?}", question.service_account),
                    ..AccessAnswer::default()
                },
            };
            assert_eq!(access.answers.insert(question, answer), None, "asked once");
        }
    }

    #[test]
    fn conditions_ask_what_users_may_do() {
        let holds = [
            "authorizer.requestResource.check('get').allowed()",
            "!authorizer.requestResource.check('delete').allowed()",
            "!authorizer.group('apps').resource('deployments').namespace('n').check('get').allowed()",
            "authorizer.path('/metrics').check('get').error() == 'nothing knows /metrics'",
            "authorizer.path('/metrics').check('get').errored() && !authorizer.path('/metrics').check('get').allowed()",
            "authorizer.serviceAccount('n', 'a').group('g').resource('pods').subresource('log').name('p').check('get').reason() \
             == 'Some((\"n\", \"a\")) AccessResource { group: \"g\", resource: \"pods\", subresource: \"log\", namespace: \"\", name: \"p\" }'",
        ];
        for condition in holds {
            assert_eq!(verdict(&[condition]), MatchResult::All, "{condition}");
            let not = format!("!({condition})");
            assert_eq!(verdict(&[&not]), MatchResult::Excluded("c0".to_owned()), "{not}");
        }
        for (condition, words) in [
            ("authorizer.path('').check('get').allowed()", "path must not be empty"),
            (
                "authorizer.group('').resource('').check('get').allowed()",
                "resource must not be empty",
            ),
            (
                "authorizer.serviceAccount('', 'a').path('/').check('get').allowed()",
                "invalid service account namespace",
            ),
            // Three of 350,000 steps each are more than the 1,000,000 of an expression.
            (
                "['a', 'b', 'c'].all(x, !authorizer.path(x).check('get').allowed())",
                "actual cost limit exceeded",
            ),
        ] {
            let MatchResult::Failed(why) = verdict(&[condition]) else { panic!("{condition}") };
            assert!(why.ends_with(words), "{why}");
        }
        let checks = |at: usize| format!("!authorizer.path('/{at}').check('get').allowed()");
        let many: Vec<String> = (0..8).map(checks).collect();
        let many: Vec<&str> = many.iter().map(String::as_str).collect();
        assert_eq!(verdict(&many[..7]), MatchResult::All);
        let MatchResult::Failed(why) = verdict(&many) else { panic!("the budget of a webhook") };
        assert!(why.contains("running out of cost budget"), "{why}");
    }

    #[test]
    fn a_webhook_without_conditions_is_called() {
        assert!(conditions(&[]).is_empty());
        assert_eq!(verdict(&[]), MatchResult::All);
    }

    #[test]
    fn all_conditions_must_hold() {
        let holds = [
            "object.spec.n == 3",
            "oldObject == null",
            "request.operation == 'CREATE' && request.namespace == 'n' && !request.dryRun",
            "'system:nodes' in request.userInfo.groups",
        ];
        assert_eq!(verdict(&holds), MatchResult::All);
        let not = "!request.userInfo.username.startsWith('system:node:')";
        assert_eq!(verdict(&[holds[0], not, "false"]), MatchResult::Excluded("c1".to_owned()));
    }

    #[test]
    fn a_condition_that_fails_matters_only_where_no_other_says_no() {
        let fails = "object.spec.zz > 1";
        let words = "expression 'object.spec.zz > 1' resulted in error: no such key: zz";
        assert_eq!(verdict(&["true", fails]), MatchResult::Failed(words.to_owned()));
        assert_eq!(verdict(&[fails, "false"]), MatchResult::Excluded("c1".to_owned()));
        let MatchResult::Failed(both) = verdict(&[fails, "object.zz == 1"]) else { panic!() };
        assert!(both.starts_with(&format!("[{words}, expression 'object.zz")), "{both}");
    }

    #[test]
    fn conditions_share_a_budget() {
        let list = "[1,2,3,4,5,6,7,8,9,10]";
        let long = (0..5).fold("true".to_owned(), |text, at| format!("{list}.all(x{at}, {text})"));
        assert_eq!(verdict(&[&long]), MatchResult::All);
        let MatchResult::Failed(why) = verdict(&vec![long.as_str(); 64]) else { panic!() };
        assert_eq!(
            why,
            "validation failed due to running out of cost budget, no further validation rules will be run"
        );
    }

    #[test]
    fn regular_expressions_of_a_configuration_are_bounded_together() {
        // 16 webhooks of 64 conditions each: more than 1,000 different ones.
        let condition = |at: usize| json!({"name": format!("c{at}"), "expression": format!("''.matches('a{at}')")});
        let webhook = |at: usize| {
            let conditions: Vec<Json> = (at * 64..(at + 1) * 64).map(condition).collect();
            json!({"name": format!("w{at}.b.c"), "matchConditions": conditions})
        };
        let check = |webhooks: usize| {
            let all: Vec<Json> = (0..webhooks).map(webhook).collect();
            check_conditions(&configuration("MutatingWebhookConfiguration", json!(all)))
        };
        assert_eq!(check(15), Ok(()));
        let FieldErrors(errors) = check(16).unwrap_err();
        assert_eq!(errors[0].field, "webhooks[15].matchConditions[40].expression");
        assert!(errors[0].message.contains("more than 1000"), "{}", errors[0].message);
    }

    #[test]
    fn conditions_are_the_same_as_long_as_their_texts_are() {
        assert_eq!(conditions(&["true"]), conditions(&[" true "]));
        assert_ne!(conditions(&["true"]), conditions(&["false"]));
    }
}
