//! What webhooks answer to the API server, and the conditions under which they are asked.

use apiserver_schema::Value;
use apiserver_schema::value::parse_json;

fn parse(text: &[u8]) -> Option<Value> {
    parse_json(text, &mut Vec::new()).ok()
}

/// Answers to AdmissionReviews, and their patches.
pub mod admission_answer {
    use apiserver_admission_webhooks::{
        AdmissionReviewVersion, ExpectedReview, Phase, ReinvocationPolicy, denial, read_answer,
    };
    use apiserver_schema::{DecodedObject, Format, Object, Strictness};
    use base64::Engine as _;
    use base64::engine::general_purpose::STANDARD;

    use crate::api;
    use crate::schema::{engine, rewritten};

    fn pod() -> Option<Object> {
        let pod = api::api_json::seeds().into_iter().next()?;
        let read = engine().decode_any(Format::Json, &pod, Strictness::Ignore);
        read.ok().map(|DecodedObject { object, .. }| object)
    }

    fn patch(patch: &[u8]) {
        let patched = pod().map(|pod| engine().patch_written(&pod, patch));
        if let Some(Ok(Ok(read))) = patched {
            rewritten(&read);
        }
    }

    /// Reads the bytes as patch, and as answer in each version and phase.
    pub fn check(bytes: &[u8]) {
        patch(bytes);
        for version in [AdmissionReviewVersion::V1, AdmissionReviewVersion::V1Beta1] {
            for phase in [Phase::Mutating(ReinvocationPolicy::IfNeeded), Phase::Validating] {
                let expected = ExpectedReview { uid: "u", version, phase };
                let Ok(answer) = read_answer(bytes, expected, api::names()) else { continue };
                assert!(answer.warnings.len() <= 16 && answer.annotations.len() <= 64);
                assert!(answer.warnings.iter().all(|text| text.chars().count() <= 256));
                if let Some(found) = answer.patch {
                    assert!(phase != Phase::Validating, "a validating webhook changes nothing");
                    assert!(!found.is_empty() && found.len() <= bytes.len());
                    patch(&found);
                }
                let denied = denial("webhook", answer.status);
                assert!(denied.code >= 400 && denied.status != "Success");
            }
        }
    }

    /// Answers of both versions, with patches and without; patches.
    pub fn seeds() -> Vec<Vec<u8>> {
        let add =
            r#"[{"op":"add","path":"/spec/containers/0/resources/limits","value":{"cpu":"1"}}]"#;
        let packed = STANDARD.encode(add);
        let answer = |version: &str, response: &str| {
            format!(
                r#"{{"apiVersion":"admission.k8s.io/{version}","kind":"AdmissionReview","response":{{"uid":"u",{response}}}}}"#
            )
        };
        crate::texts(&[
            &answer(
                "v1",
                &format!(
                    r#""allowed":true,"patchType":"JSONPatch","patch":"{packed}","warnings":["w"]"#
                ),
            ),
            &answer("v1beta1", &format!(r#""allowed":true,"patch":"{packed}""#)),
            &answer(
                "v1",
                r#""allowed":false,"status":{"code":403,"message":"m","reason":"r"},"auditAnnotations":{"k":"v"}"#,
            ),
            add,
            r#"[{"op":"replace","path":"/metadata/labels/app","value":"x"},{"op":"remove","path":"/spec/containers/0/args"}]"#,
        ])
    }
}

/// Answers to ConversionReviews.
pub mod conversion_answer {
    use apiserver_custom_resources::{check_review, conversion_review};
    use apiserver_schema::Map;

    use super::*;

    const OBJECTS: &str = r#"[
        {"apiVersion":"example.com/v1","kind":"Widget","metadata":{"name":"a","namespace":"n","uid":"u","labels":{"l":"1"},"generation":2},"spec":{"n":1}},
        {"apiVersion":"example.com/v1","kind":"Widget","metadata":{"name":"b","finalizers":["f"]}}]"#;

    fn sent() -> Value {
        let objects = parse(OBJECTS.as_bytes());
        let objects = objects.as_ref().and_then(Value::as_list).unwrap_or_default().to_vec();
        conversion_review("apiextensions.k8s.io/v1", "u", "example.com/v2", objects)
    }

    /// Everything of an object's metadata but what a webhook may change.
    fn kept(object: &Value) -> Map {
        let metadata = object.as_map().and_then(|root| root.map("metadata"));
        let mut metadata = metadata.cloned().unwrap_or_default();
        metadata.remove("labels");
        metadata.remove("annotations");
        metadata
    }

    /// Reads the bytes as answer: what is accepted are the objects that were sent, in the wanted version, with the metadata that they had.
    pub fn check(bytes: &[u8]) {
        let (sent, Some(answer)) = (sent(), parse(bytes)) else { return };
        let Ok(converted) = check_review(&sent, answer) else { return };
        let request = sent.as_map().and_then(|root| root.map("request"));
        let objects = request.map(|request| request.list("objects")).unwrap_or_default();
        assert_eq!(objects.len(), converted.len());
        for (object, converted) in objects.iter().zip(&converted) {
            let text = |value: &Value, field: &str| {
                value.as_map().map(|root| root.str(field).to_owned()).unwrap_or_default()
            };
            assert_eq!(text(converted, "apiVersion"), "example.com/v2");
            assert_eq!(text(converted, "kind"), text(object, "kind"));
            assert_eq!(kept(converted), kept(object));
        }
    }

    /// Good and bad answers.
    pub fn seeds() -> Vec<Vec<u8>> {
        let answer = |objects: &str| {
            format!(
                r#"{{"apiVersion":"apiextensions.k8s.io/v1","kind":"ConversionReview","response":{{"uid":"u","result":{{"status":"Success"}},"convertedObjects":{objects}}}}}"#
            )
        };
        let good = answer(&OBJECTS.replace("example.com/v1", "example.com/v2"));
        assert!(parse(good.as_bytes()).is_some_and(|good| check_review(&sent(), good).is_ok()));
        crate::texts(&[
            &good,
            &answer("[]"),
            &answer(&OBJECTS.replace("labels", "annotations")),
            r#"{"apiVersion":"apiextensions.k8s.io/v1","kind":"ConversionReview","response":{"uid":"u","result":{"status":"Failure","message":"m"}}}"#,
        ])
    }
}

/// Match conditions.
pub mod match_condition {
    use std::sync::OnceLock;

    use apiserver_admission_webhooks::{
        AccessInput, ConditionInput, MatchResult, check_conditions, read_webhooks,
    };
    use apiserver_schema::value::write_json_string;
    use apiserver_schema::{Format, Object, Strictness};

    use super::*;
    use crate::schema::engine;

    /// A configuration with one webhook and this condition of it.
    fn configuration(condition: &str) -> Option<Object> {
        let mut text = Vec::new();
        write_json_string(&mut text, condition);
        let text = format!(
            r#"{{"apiVersion":"admissionregistration.k8s.io/v1","kind":"ValidatingWebhookConfiguration","metadata":{{"name":"c"}},
            "webhooks":[{{"name":"w.example.com","clientConfig":{{"url":"https://h"}},"admissionReviewVersions":["v1"],
            "matchConditions":[{{"name":"m","expression":{}}}]}}]}}"#,
            String::from_utf8_lossy(&text)
        );
        let read = engine().decode_any(Format::Json, text.as_bytes(), Strictness::Strict);
        read.ok().map(|read| read.object)
    }

    struct Input {
        object: Value,
        request: Value,
    }

    fn input() -> Option<&'static Input> {
        static INPUT: OnceLock<Option<Input>> = OnceLock::new();
        let object = r#"{"metadata":{"name":"a","labels":{"a.b/c":"d"}},"spec":{"n":3,"l":[1,2],"f":1.5,"z":null}}"#;
        let request = r#"{"uid":"u","kind":{"group":"","version":"v1","kind":"Pod"},"operation":"CREATE","namespace":"n","name":"a",
            "userInfo":{"username":"system:node:a","groups":["system:nodes"],"extra":{"k":["v"]}},"dryRun":false}"#;
        let read = || {
            let (object, request) = (parse(object.as_bytes())?, parse(request.as_bytes())?);
            Some(Input { object, request })
        };
        INPUT.get_or_init(read).as_ref()
    }

    fn verdict(condition: &str) -> Option<MatchResult> {
        let webhook = read_webhooks(&configuration(condition)?).into_iter().next()?;
        let Input { object, request } = input()?;
        // What it asks of `authorizer` has no answer.
        let access = &AccessInput::default();
        let input = ConditionInput { object, old_object: &Value::Null, request, access };
        webhook.selectors.ok().map(|selectors| selectors.conditions.evaluate(input))
    }

    /// Reads the text as a condition: what the server accepts can be evaluated, always alike, and its opposite is another verdict.
    pub fn check(bytes: &[u8]) {
        let Ok(text) = std::str::from_utf8(bytes) else { return };
        let Some(object) = configuration(text) else { return };
        let accepted = check_conditions(&object).is_ok();
        let Some(found) = verdict(text) else { return };
        assert_eq!(verdict(text).as_ref(), Some(&found));
        let unusable = matches!(&found, MatchResult::Failed(why) if why.contains("cannot be used"));
        assert!(!(accepted && unusable), "accepted, and cannot be used: {text:?}");
        if !accepted {
            assert!(unusable, "refused, and evaluated: {text:?}");
            return;
        }
        match (&found, verdict(&format!("!({text}\n)"))) {
            (MatchResult::All, Some(MatchResult::All)) => {
                panic!("{text:?} holds, and does not hold")
            }
            (MatchResult::Excluded(_), Some(MatchResult::Excluded(_))) => {
                panic!("{text:?}: neither")
            }
            _ => {}
        }
    }

    /// Conditions about objects, requests and users.
    pub fn seeds() -> Vec<Vec<u8>> {
        crate::texts(&[
            "object.spec.n == 3 && oldObject == null // c",
            "request.operation == 'CREATE' && !request.dryRun || 'system:nodes' in request.userInfo.groups",
            "has(object.status) ? object.spec.l.all(i, i > 0) : request.userInfo.extra['k'][0] == 'v'",
            "object.metadata.labels['a.b/c'].matches('^d+$') && type(object.spec.f) == double",
            "!(request.userInfo.username.startsWith('system:')) && object.spec.zz > 1",
        ])
    }
}
