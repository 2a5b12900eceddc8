//! What becomes of a request whose webhook is not called, or cannot be.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use apiserver_audit::{Level, RequestAuditConfig, RequestHead, Trail};
use apiserver_auth::User;
use apiserver_schema::{Format, Kind, Object, Strictness};
use apiserver_store::{Write, WriteCondition};
use proto_api::names::{Names, Profile};
use serde_json::json;

use super::{Reviewed, Round, WebhookReview};
use crate::admission::{WebhookOperation, admit_unstored};
use crate::context::RequestContext;
use crate::key;
use crate::options::Effects;
use crate::record::Draft;
use crate::request::{Accepted, Encoding, Query, Representation, RequestInfo, Verb};
use crate::request_notes::RequestNotes;
use crate::server::Server;
use crate::status::ApiError;

/// A server with one mutating webhook, which has no URL, is ignored when it fails, is called again when it is needed, and has these side effects.
async fn server(side_effects: &str) -> Server {
    let server = Server::for_tests(Names::new(Profile::Kubernetes));
    let kind = server.kind("admissionregistration", "mutatingwebhookconfigurations").unwrap();
    let rule =
        json!({"operations": ["*"], "apiGroups": ["*"], "apiVersions": ["*"], "resources": ["*"]});
    let webhook = json!({"name": "w.example.com", "clientConfig": {"url": ""}, "rules": [rule],
        "sideEffects": side_effects, "failurePolicy": "Ignore", "admissionReviewVersions": ["v1"],
        "reinvocationPolicy": "IfNeeded"});
    let text = json!({"metadata": {"name": "c"}, "webhooks": [webhook]}).to_string();
    let decoded = server.engine.decode(kind, Format::Json, text.as_bytes(), Strictness::Strict);
    let draft = Draft::new(&server.engine, decoded.unwrap().object);
    let write =
        Write::Put { key: key::object(kind, "", "c"), expect: WriteCondition::Anything, draft };
    server.store.write(write).await.unwrap();
    server
}

/// Asks about a new ConfigMap; gives the annotations too.
async fn ask(
    server: &Server,
    effects: Effects,
) -> (Result<(), ApiError>, BTreeMap<String, String>) {
    let notes = RequestNotes::default();
    (ask_again(server, effects, &notes).await, notes.annotations())
}

/// Asks about a new ConfigMap in a request that has these notes.
async fn ask_again(
    server: &Server,
    effects: Effects,
    notes: &RequestNotes,
) -> Result<(), ApiError> {
    let asking = Asking::new(server);
    let mut object = Object::new(asking.kind.clone());
    let call = asking.call(server, notes, &apiserver_audit::OFF);
    admit_unstored(&call, WebhookOperation::Create, &mut object, None, effects).await
}

/// A request that creates a ConfigMap.
struct Asking {
    request: RequestInfo,
    kind: Arc<Kind>,
    user: User,
    query: Query,
}

impl Asking {
    fn new(server: &Server) -> Self {
        let request = RequestInfo {
            verb: Verb::Create,
            group: String::new(),
            version: "v1".to_owned(),
            namespace: "default".to_owned(),
            resource: "configmaps".to_owned(),
            subresource: String::new(),
            name: String::new(),
            rest: String::new(),
        };
        let kind = server.kind("", "configmaps").unwrap().clone();
        Self { request, kind, user: User::default(), query: Query::default() }
    }

    fn call<'a>(
        &'a self,
        server: &'a Server,
        notes: &'a RequestNotes,
        audit: &'a Trail,
    ) -> RequestContext<'a> {
        RequestContext {
            server,
            request: &self.request,
            kind: self.kind.clone(),
            requested_version: self.kind.clone(),
            user: &self.user,
            user_agent: "",
            query: &self.query,
            accepted: Accepted { encoding: Encoding::Json, representation: Representation::Object },
            notes: Some(notes),
            audit,
        }
    }

    fn reviewed(&self) -> Reviewed<'_> {
        let operation = WebhookOperation::Create;
        Reviewed { operation, kind: &self.kind, old: None, effects: Effects::Real, deletion: None }
    }
}

#[tokio::test]
async fn side_effects_fail_a_dry_run_whatever_the_failure_policy() {
    for (side_effects, allowed) in
        [("None", true), ("NoneOnDryRun", true), ("Some", false), ("Unknown", false)]
    {
        let server = server(side_effects).await;
        let (asked, _) = ask(&server, Effects::DryRun).await;
        let refusal = asked.err().map(|error| (error.code(), error.to_string()));
        let text = "admission webhook \"w.example.com\" does not support dry run".to_owned();
        let expected = if allowed { None } else { Some((400, text)) };
        assert_eq!(refusal, expected, "{side_effects}");
        assert!(ask(&server, Effects::Real).await.0.is_ok(), "{side_effects}");
    }
}

#[tokio::test]
async fn a_failure_that_is_ignored_is_noted() {
    let server = server("None").await;
    let (asked, annotations) = ask(&server, Effects::Real).await;
    assert_eq!(asked, Ok(()));
    let note = r#"{"configuration":"c","webhook":"w.example.com","mutated":false}"#;
    let expected = [
        ("failed-open.mutation.webhook.admission.k8s.io/round_0_index_0", "w.example.com"),
        ("mutation.webhook.admission.k8s.io/round_0_index_0", note),
    ];
    let owned = expected.map(|(key, value)| (key.to_owned(), value.to_owned()));
    assert_eq!(annotations, BTreeMap::from(owned));
}

#[tokio::test(start_paused = true)]
async fn all_attempts_of_a_request_have_its_time() {
    let server = server("None").await;
    let notes = RequestNotes::default();
    let mut codes = Vec::new();
    for secs in [0, 59, 1] {
        tokio::time::advance(Duration::from_secs(secs)).await;
        let asked = ask_again(&server, Effects::Real, &notes).await;
        codes.push(asked.err().map(|error| error.code()));
    }
    assert_eq!(codes, [None, None, Some(504)]);
    assert_eq!(ask(&server, Effects::Real).await.0, Ok(()), "another request has its own");
}

#[tokio::test]
async fn one_that_failed_and_was_ignored_is_called_again() {
    let server = server("None").await;
    let (asking, notes) = (Asking::new(&server), RequestNotes::default());
    let call = asking.call(&server, &notes, &apiserver_audit::OFF);
    let mut review = WebhookReview::begin(&call, asking.reviewed()).unwrap().expect("a webhook");
    let mut object = Object::new(asking.kind.clone());
    for (round, is_due) in [(Round::First, false), (Round::Second, true)] {
        assert_eq!(review.reinvocation.is_due(0), is_due, "{round:?}");
        assert_eq!(review.mutate(Some(&mut object), round).await, Ok(false));
        review.built_in_steps_changed();
    }
    let again = "failed-open.mutation.webhook.admission.k8s.io/round_1_index_0";
    assert!(notes.annotations().contains_key(again), "{:?}", notes.annotations());
}

#[tokio::test]
async fn patches_are_noted_where_objects_of_requests_are() {
    let server = server("None").await;
    let patch = r#"[{"path":"/data","op":"add","value":{"k":["v"]}},{"op":"remove","path":"/x"}]"#;
    let note = concat!(
        r#"{"configuration":"c","webhook":"w.example.com","#,
        r#""patch":[{"op":"add","path":"/data","value":{"k":["v"]}},{"op":"remove","path":"/x"}],"#,
        r#""patchType":"JSONPatch"}"#
    );
    let key = "patch.webhook.admission.k8s.io/round_1_index_0";
    for (level, expected) in [
        (Level::None, None),
        (Level::Metadata, None),
        (Level::Request, Some(note)),
        (Level::RequestResponse, Some(note)),
    ] {
        let decision = RequestAuditConfig { level, ..RequestAuditConfig::default() };
        let trail = Trail::new(decision, RequestHead::default());
        let (asking, notes) = (Asking::new(&server), RequestNotes::default());
        let call = asking.call(&server, &notes, &trail);
        let review = WebhookReview::begin(&call, asking.reviewed()).unwrap().expect("a webhook");
        let remote = review.ordered.mutating.first().expect("a webhook");
        review.note_patch(remote, patch.as_bytes(), (Round::Second, 0));
        let annotations = notes.annotations();
        assert_eq!(annotations.get(key).map(String::as_str), expected, "{level:?}");
        assert_eq!(annotations.len(), usize::from(expected.is_some()), "{level:?}");
    }
}
