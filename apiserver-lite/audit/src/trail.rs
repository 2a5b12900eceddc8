//! What is recorded of one request while it runs. Those who serve it add to it; it costs nothing where nothing is recorded.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use serde_json::Value;

use crate::event::{self, AuditUserInfo, Content, ObjectIdentity, RequestHead};
use crate::policy::RequestAuditConfig;
use crate::stage::{Level, Stage};

/// The record of one request.
#[derive(Debug)]
pub struct Trail(Option<Box<Recorder>>);

#[derive(Debug)]
struct Recorder {
    decision: RequestAuditConfig,
    content: Mutex<Content>,
}

/// The record of a request of which nothing is recorded.
pub static OFF: Trail = Trail(None);

/// Longest object in an event, in bytes; a longer one is left out.
const OBJECT_LEN_MAX: usize = 10 << 20;
/// Most annotations of an event.
const ANNOTATIONS_MAX: usize = 64;
/// Longest identifier that is accepted from a client.
const AUDIT_ID_LEN_MAX: usize = 64;

/// Whether a client may name its request so: printable ASCII of at most 64 characters.
#[must_use]
pub fn is_audit_id(text: &str) -> bool {
    (1..=AUDIT_ID_LEN_MAX).contains(&text.len()) && text.bytes().all(|byte| byte.is_ascii_graphic())
}

impl Trail {
    /// The record of a request that starts; nothing is recorded at the level None.
    #[must_use]
    pub fn new(decision: RequestAuditConfig, head: RequestHead) -> Self {
        if decision.level == Level::None {
            return Self(None);
        }
        let content = Content {
            head,
            level: decision.level,
            impersonated: None,
            status: None,
            request_object: None,
            response_object: None,
            annotations: BTreeMap::new(),
        };
        Self(Some(Box::new(Recorder { decision, content: Mutex::new(content) })))
    }

    /// How much is recorded.
    #[must_use]
    pub fn level(&self) -> Level {
        self.0.as_ref().map_or(Level::None, |recorder| recorder.decision.level)
    }

    /// Whether anything is recorded.
    #[must_use]
    pub fn is_on(&self) -> bool {
        self.0.is_some()
    }

    /// Whether the object that the client sent is recorded.
    #[must_use]
    pub fn records_requests(&self) -> bool {
        self.level() >= Level::Request
    }

    /// Whether the object of the response is recorded.
    #[must_use]
    pub fn records_responses(&self) -> bool {
        self.level() >= Level::RequestResponse
    }

    /// Adds an annotation. The first value of a key stays, as in Kubernetes.
    pub fn annotate(&self, key: &str, value: impl Into<String>) {
        self.change(|content| {
            if content.annotations.len() < ANNOTATIONS_MAX && !content.annotations.contains_key(key)
            {
                content.annotations.insert(key.to_owned(), value.into());
            }
        });
    }

    /// The user in whose name the request acts.
    pub fn impersonate(&self, user: AuditUserInfo) {
        self.change(|content| content.impersonated = Some(user));
    }

    /// Adds what the object in the body says of itself and the path does not.
    pub fn describe_object(&self, identity: ObjectIdentity<'_>) {
        self.change(|content| {
            content.head.object.iter_mut().for_each(|object| object.complete(identity));
        });
    }

    /// The object or patch in the body, as JSON; the first one stays.
    pub fn set_request_object(&self, json: &[u8]) {
        if self.records_requests() {
            let object = self.object(json);
            self.change(|content| {
                if content.request_object.is_none() {
                    content.request_object = object;
                }
            });
        }
    }

    /// The object of the response, as JSON.
    pub fn set_response_object(&self, json: &[u8]) {
        if self.records_responses() {
            let object = self.object(json);
            self.change(|content| content.response_object = object);
        }
    }

    /// The response's status, as [`response_status`](crate::response_status) makes it.
    pub fn set_status(&self, status: Value) {
        self.change(|content| content.status = Some(status));
    }

    /// Sets the response's status unless it is set.
    pub fn set_status_if_none(&self, status: impl FnOnce() -> Value) {
        self.change(|content| {
            content.status.get_or_insert_with(status);
        });
    }

    /// The event of a stage at this time, in microseconds since the Unix epoch; `None` if there is none to be recorded.
    #[must_use]
    pub fn event(&self, stage: Stage, micros: i64) -> Option<Vec<u8>> {
        let recorder = self.0.as_ref().filter(|of| !of.decision.omit_stages.contains(stage))?;
        Some(event::encode(&recorder.content(), stage, micros))
    }

    /// Leaves the objects out of the events that follow, which say so in an annotation.
    pub fn leave_out_objects(&self) {
        self.change(|content| (content.request_object, content.response_object) = (None, None));
        self.note_truncated();
    }

    fn note_truncated(&self) {
        let domain = self.0.as_ref().map(|recorder| {
            let content = recorder.content();
            let version = &content.head.api_version;
            version.split('/').next().unwrap_or_default().to_owned()
        });
        self.annotate(&format!("{}/truncated", domain.unwrap_or_default()), "true");
    }

    fn object(&self, json: &[u8]) -> Option<Box<serde_json::value::RawValue>> {
        if json.len() > OBJECT_LEN_MAX {
            self.note_truncated();
            return None;
        }
        let omits = self.0.as_ref().is_some_and(|of| of.decision.omit_managed_fields);
        event::recorded_object(json, omits)
    }

    fn change(&self, change: impl FnOnce(&mut Content)) {
        if let Some(recorder) = &self.0 {
            change(&mut recorder.content());
        }
    }
}

impl Recorder {
    fn content(&self) -> MutexGuard<'_, Content> {
        self.content.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::event::{ObjectReference, response_status};
    use crate::stage::Stages;

    fn head() -> RequestHead {
        RequestHead {
            api_version: "audit.k8s.io/v1".to_owned(),
            audit_id: "id-1".to_owned(),
            request_uri: "/api/v1/namespaces/a/secrets?dryRun=All".to_owned(),
            verb: "create".to_owned(),
            user: AuditUserInfo {
                username: "alice".to_owned(),
                uid: "7".to_owned(),
                groups: vec!["dev".to_owned()],
                extra: [("k".to_owned(), vec!["v".to_owned()])].into(),
            },
            source_ips: vec!["10.0.0.1".to_owned()],
            user_agent: "kubectl".to_owned(),
            object: Some(ObjectReference {
                resource: "secrets".to_owned(),
                namespace: "a".to_owned(),
                api_version: "v1".to_owned(),
                ..ObjectReference::default()
            }),
            received_micros: 1_600_000_000_000_001,
        }
    }

    fn trail(level: Level) -> Trail {
        Trail::new(RequestAuditConfig { level, ..RequestAuditConfig::default() }, head())
    }

    const SECRET: &[u8] = br#"{"metadata":{"name":"s"},"data":{"p":"c2VjcmV0"}}"#;

    #[test]
    fn an_event_has_kubernetes_fields_in_their_order() {
        let trail = trail(Level::RequestResponse);
        trail.describe_object(ObjectIdentity { name: "s", namespace: "b", ..Default::default() });
        trail.impersonate(AuditUserInfo { username: "bob".to_owned(), ..AuditUserInfo::default() });
        trail.annotate("authorization.k8s.io/decision", "allow");
        trail.annotate("authorization.k8s.io/decision", "forbid");
        trail.set_request_object(b"{}");
        trail.set_response_object(SECRET);
        trail.set_status(response_status(201, None));
        let event = trail.event(Stage::ResponseComplete, 1_600_000_001_000_000).unwrap();
        let expected = concat!(
            r#"{"kind":"Event","apiVersion":"audit.k8s.io/v1","level":"RequestResponse","auditID":"id-1","#,
            r#""stage":"ResponseComplete","requestURI":"/api/v1/namespaces/a/secrets?dryRun=All","verb":"create","#,
            r#""user":{"username":"alice","uid":"7","groups":["dev"],"extra":{"k":["v"]}},"#,
            r#""impersonatedUser":{"username":"bob"},"sourceIPs":["10.0.0.1"],"userAgent":"kubectl","#,
            r#""objectRef":{"resource":"secrets","namespace":"a","name":"s","apiVersion":"v1"},"#,
            r#""responseStatus":{"metadata":{},"code":201},"requestObject":{},"#,
            r#""responseObject":{"metadata":{"name":"s"},"data":{"p":"c2VjcmV0"}},"#,
            r#""requestReceivedTimestamp":"2020-09-13T12:26:40.000001Z","stageTimestamp":"2020-09-13T12:26:41.000000Z","#,
            r#""annotations":{"authorization.k8s.io/decision":"allow"}}"#,
        );
        assert_eq!(String::from_utf8(event).unwrap(), expected);
    }

    #[test]
    fn objects_are_recorded_at_their_levels_only() {
        for (level, request, response) in [
            (Level::Metadata, false, false),
            (Level::Request, true, false),
            (Level::RequestResponse, true, true),
        ] {
            let trail = trail(level);
            trail.set_request_object(SECRET);
            trail.set_request_object(b"{}");
            trail.set_response_object(SECRET);
            let event = trail.event(Stage::ResponseComplete, 0).unwrap();
            let event: Value = serde_json::from_slice(&event).unwrap();
            let secret: Value = serde_json::from_slice(SECRET).unwrap();
            let has = |has: bool| if has { secret.clone() } else { Value::Null };
            assert_eq!(event["requestObject"], has(request), "{level:?}");
            assert_eq!(event["responseObject"], has(response), "{level:?}");
        }
    }

    #[test]
    fn nothing_is_recorded_at_none_and_of_omitted_stages() {
        let off = trail(Level::None);
        off.annotate("a", "b");
        off.set_request_object(SECRET);
        assert_eq!((off.is_on(), off.event(Stage::RequestReceived, 0)), (false, None));
        assert_eq!((OFF.is_on(), OFF.level()), (false, Level::None));
        let omit_stages: Stages = [Stage::RequestReceived].into_iter().collect();
        let decision = RequestAuditConfig {
            level: Level::Metadata,
            omit_stages,
            ..RequestAuditConfig::default()
        };
        let trail = Trail::new(decision, head());
        assert_eq!(trail.event(Stage::RequestReceived, 0), None);
        assert!(trail.event(Stage::Panic, 0).is_some());
    }

    #[test]
    fn large_audit_objects_are_left_out_and_marked_as_truncated() {
        let trail = trail(Level::Request);
        trail.set_request_object(format!("\"{}\"", "x".repeat(OBJECT_LEN_MAX)).as_bytes());
        for nth in 0..2 * ANNOTATIONS_MAX {
            trail.annotate(&format!("k{nth}"), "v");
        }
        let event: Value =
            serde_json::from_slice(&trail.event(Stage::ResponseComplete, 0).unwrap()).unwrap();
        assert_eq!(event["requestObject"], Value::Null);
        assert_eq!(event["annotations"]["audit.k8s.io/truncated"], json!("true"));
        assert_eq!(event["annotations"].as_object().unwrap().len(), ANNOTATIONS_MAX);
    }

    #[test]
    fn a_client_names_its_request_within_bounds() {
        for (text, accepted) in [
            ("", false),
            ("8f5c3a6e-0000-4000-8000-000000000000", true),
            (&"a".repeat(64), true),
            (&"a".repeat(65), false),
            ("a b", false),
            ("a\nb", false),
            ("ä", false),
        ] {
            assert_eq!(is_audit_id(text), accepted, "{text:?}");
        }
    }
}
