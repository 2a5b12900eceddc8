//! Flow schemas and priority levels as the API stores them.

use apiserver_schema::{Map, Object, Value};

use crate::flow_schema::{
    Distinguisher, FlowSchema, FlowSchemaRule, PathRule, ResourceRule, Subject,
};
use crate::level::{Limit, LimitResponse, PriorityLevel, Queuing};
use crate::objects::EXEMPT;

/// A priority level cannot be used, as if it did not exist. Objects that were checked when they were stored are never so.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct InvalidLevel(&'static str);

/// Precedence of a flow schema that says none, and shares of such a level, as the API's defaults are.
const PRECEDENCE: i64 = 1000;
const SHARES: i64 = 30;
/// Precedences of flow schemas other than the first.
const PRECEDENCES: (i64, i64) = (2, 10_000);

/// A FlowSchema. Subjects of unknown kinds are ignored. One that was stored without defaults and checks counts as if it had the nearest value that may be.
#[must_use]
pub fn read_flow_schema(object: &Object) -> FlowSchema {
    let text = |path: &[&str]| object.str_at(path);
    let distinguisher = match text(&["spec", "distinguisherMethod", "type"]) {
        "ByUser" => Distinguisher::User,
        "ByNamespace" => Distinguisher::Namespace,
        _ => Distinguisher::None,
    };
    let spec = object.spec();
    FlowSchema {
        name: object.name().to_owned(),
        uid: object.uid().to_owned(),
        precedence: spec.map_or(PRECEDENCE, |spec| {
            set(spec, "matchingPrecedence", PRECEDENCE).clamp(PRECEDENCES.0, PRECEDENCES.1)
        }),
        level: text(&["spec", "priorityLevelConfiguration", "name"]).to_owned(),
        distinguisher,
        rules: spec.into_iter().flat_map(|spec| spec.maps("rules")).map(read_rule).collect(),
    }
}

/// A number; `default` if it is 0 or absent.
fn set(map: &Map, field: &str, default: i64) -> i64 {
    map.int(field).filter(|number| *number != 0).unwrap_or(default)
}

fn read_rule(rule: &Map) -> FlowSchemaRule {
    let resource = |rule: &Map| ResourceRule {
        verbs: texts(rule, "verbs"),
        groups: texts(rule, "apiGroups"),
        resources: texts(rule, "resources"),
        cluster_scope: rule.is_true("clusterScope"),
        namespaces: texts(rule, "namespaces"),
    };
    let path = |rule: &Map| PathRule {
        verbs: texts(rule, "verbs"),
        paths: texts(rule, "nonResourceURLs"),
    };
    FlowSchemaRule {
        subjects: rule.maps("subjects").filter_map(read_subject).collect(),
        resources: rule.maps("resourceRules").map(resource).collect(),
        paths: rule.maps("nonResourceRules").map(path).collect(),
    }
}

fn read_subject(subject: &Map) -> Option<Subject> {
    let name = |of: &Map| of.str("name").to_owned();
    match subject.str("kind") {
        "User" => subject.map("user").map(|user| Subject::User(name(user))),
        "Group" => subject.map("group").map(|group| Subject::Group(name(group))),
        "ServiceAccount" => subject.map("serviceAccount").map(|account| Subject::ServiceAccount {
            namespace: account.str("namespace").to_owned(),
            name: name(account),
        }),
        _ => None,
    }
}

fn texts(map: &Map, field: &str) -> Vec<String> {
    map.list(field).iter().filter_map(Value::as_str).map(str::to_owned).collect()
}

/// A PriorityLevelConfiguration.
///
/// # Errors
/// Its parts contradict each other.
pub fn read_priority_level(object: &Object) -> Result<PriorityLevel, InvalidLevel> {
    let limited = object.spec().and_then(|spec| spec.map("limited"));
    let limit = match (object.str_at(&["spec", "type"]), limited) {
        ("Exempt", None) => Limit::Exempt,
        ("Limited", Some(limited)) => read_limited(limited)?,
        _ => return Err(InvalidLevel("spec.type and spec.limited contradict each other")),
    };
    if (limit == Limit::Exempt) != (object.name() == EXEMPT) {
        return Err(InvalidLevel("type must be 'Exempt' if and only if name is 'exempt'"));
    }
    Ok(PriorityLevel { name: object.name().to_owned(), uid: object.uid().to_owned(), limit })
}

fn read_limited(limited: &Map) -> Result<Limit, InvalidLevel> {
    let shares = u32::try_from(set(limited, "assuredConcurrencyShares", SHARES)).ok();
    let shares = shares.ok_or(InvalidLevel(
        "spec.limited.assuredConcurrencyShares is not a positive number of 32 bits",
    ))?;
    let response = limited.map("limitResponse");
    let queuing = response.and_then(|response| response.map("queuing"));
    let response = match (response.map_or("", |response| response.str("type")), queuing) {
        ("Reject", None) => LimitResponse::Reject,
        ("Queue", Some(queuing)) => {
            let (queues, hand) = (set(queuing, "queues", 64), set(queuing, "handSize", 8));
            LimitResponse::Queue(Queuing::new(queues, hand, set(queuing, "queueLengthLimit", 50)))
        }
        _ => {
            return Err(InvalidLevel(
                "type and queuing of spec.limited.limitResponse contradict each other",
            ));
        }
    };
    Ok(Limit::Limited { shares, response })
}

#[cfg(test)]
mod tests {
    use apiserver_schema::{Engine, Format, Strictness};
    use proto_api::names::{Names, Profile};
    use serde_json::json;

    use super::*;

    fn object(kind: &str, name: &str, spec: &serde_json::Value) -> Object {
        let engine = Engine::new(Names::new(Profile::Kubernetes));
        let kind = engine.kind("flowcontrol.apiserver.k8s.io", "v1beta2", kind).expect("a kind");
        let text = json!({"metadata": {"name": name, "uid": "u"}, "spec": spec}).to_string();
        engine
            .decode(kind, Format::Json, text.as_bytes(), Strictness::Strict)
            .expect("valid")
            .object
    }

    #[test]
    fn a_flow_schema_is_read_whole() {
        let subjects = json!([
            {"kind": "User", "user": {"name": "a"}},
            {"kind": "Group", "group": {"name": "g"}},
            {"kind": "ServiceAccount", "serviceAccount": {"namespace": "n", "name": "*"}},
            {"kind": "User"},
        ]);
        let rule = json!({
            "subjects": subjects,
            "resourceRules": [{"verbs": ["get"], "apiGroups": [""], "resources": ["pods"], "clusterScope": true, "namespaces": ["*"]}],
            "nonResourceRules": [{"verbs": ["get"], "nonResourceURLs": ["/healthz"]}],
        });
        let spec = json!({"priorityLevelConfiguration": {"name": "low"}, "matchingPrecedence": 7,
            "distinguisherMethod": {"type": "ByNamespace"}, "rules": [rule]});
        let list = |text: &str| vec![text.to_owned()];
        let account = Subject::ServiceAccount { namespace: "n".to_owned(), name: "*".to_owned() };
        let subjects = vec![Subject::User("a".to_owned()), Subject::Group("g".to_owned()), account];
        let resource = ResourceRule {
            verbs: list("get"),
            groups: list(""),
            resources: list("pods"),
            cluster_scope: true,
            namespaces: list("*"),
        };
        let path = PathRule { verbs: list("get"), paths: list("/healthz") };
        assert_eq!(
            read_flow_schema(&object("FlowSchema", "s", &spec)),
            FlowSchema {
                name: "s".to_owned(),
                uid: "u".to_owned(),
                precedence: 7,
                level: "low".to_owned(),
                distinguisher: Distinguisher::Namespace,
                rules: vec![FlowSchemaRule {
                    subjects,
                    resources: vec![resource],
                    paths: vec![path]
                }],
            }
        );
    }

    #[test]
    fn invalid_stored_values_are_clamped_to_valid_ones() {
        for (stored, expected) in [
            (json!({}), 1000),
            (json!({"matchingPrecedence": 0}), 1000),
            (json!({"matchingPrecedence": 1}), 2),
            (json!({"matchingPrecedence": -5}), 2),
            (json!({"matchingPrecedence": 10_001}), 10_000),
            (json!({"matchingPrecedence": 9_999}), 9_999),
        ] {
            let mut spec = stored;
            spec["priorityLevelConfiguration"] = json!({"name": "low"});
            let read = read_flow_schema(&object("FlowSchema", "s", &spec));
            assert_eq!(read.precedence, expected, "{spec}");
        }
        let response = json!({"type": "Queue", "queuing": {}});
        let spec = json!({"type": "Limited", "limited": {"limitResponse": response}});
        let level = read_priority_level(&object("PriorityLevelConfiguration", "a", &spec));
        let response = LimitResponse::Queue(Queuing::new(64, 8, 50));
        assert_eq!(level.map(|level| level.limit), Ok(Limit::Limited { shares: 30, response }));
    }

    #[test]
    fn a_level_is_read_unless_its_parts_contradict_each_other() {
        let read = |name: &str, spec: serde_json::Value| {
            read_priority_level(&object("PriorityLevelConfiguration", name, &spec))
                .map(|level| level.limit)
        };
        let limited = |response: serde_json::Value| json!({"type": "Limited", "limited": {"assuredConcurrencyShares": 30, "limitResponse": response}});
        let queuing = json!({"queues": 64, "handSize": 6, "queueLengthLimit": 50});
        assert_eq!(read("exempt", json!({"type": "Exempt"})), Ok(Limit::Exempt));
        let reject = Limit::Limited { shares: 30, response: LimitResponse::Reject };
        assert_eq!(read("a", limited(json!({"type": "Reject"}))), Ok(reject));
        let queue = LimitResponse::Queue(Queuing::new(64, 6, 50));
        let queue = Limit::Limited { shares: 30, response: queue };
        assert_eq!(read("a", limited(json!({"type": "Queue", "queuing": queuing}))), Ok(queue));
        for (name, spec) in [
            ("a", json!({"type": "Exempt"})),
            ("exempt", limited(json!({"type": "Reject"}))),
            ("a", json!({"type": "Limited"})),
            ("a", json!({"type": "Other"})),
            ("a", limited(json!({"type": "Queue"}))),
            ("a", limited(json!({"type": "Reject", "queuing": queuing}))),
            (
                "a",
                json!({"type": "Limited", "limited": {"assuredConcurrencyShares": -1, "limitResponse": {"type": "Reject"}}}),
            ),
        ] {
            assert!(read(name, spec.clone()).is_err(), "{name} {spec}");
        }
    }
}
