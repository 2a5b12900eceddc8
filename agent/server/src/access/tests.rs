//! Who is let in, by rules and by what a scripted API server says.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use futures_util::future::BoxFuture;
use proto_api::authentication::v1::{TokenReviewStatus, UserInfo};
use proto_api::authorization::v1::SubjectAccessReviewStatus;
use proto_client::ClientError;
use proto_client::serving::tls::CertificateFault;

use super::*;

/// Knows one token, allows one user, and counts what it is asked.
#[derive(Default)]
struct Script {
    tokens: Arc<AtomicUsize>,
    accesses: Arc<AtomicUsize>,
}

impl Reviews for Script {
    fn token<'a>(
        &'a self,
        token: &'a str,
    ) -> BoxFuture<'a, Result<TokenReviewStatus, ClientError>> {
        self.tokens.fetch_add(1, Ordering::Relaxed);
        let user =
            UserInfo { username: "prober".into(), groups: vec!["g".into()], ..UserInfo::default() };
        let status = TokenReviewStatus {
            authenticated: token == "good",
            user,
            ..TokenReviewStatus::default()
        };
        Box::pin(async { Ok(status) })
    }

    fn access<'a>(
        &'a self,
        spec: SubjectAccessReviewSpec,
    ) -> BoxFuture<'a, Result<SubjectAccessReviewStatus, ClientError>> {
        self.accesses.fetch_add(1, Ordering::Relaxed);
        let attributes = spec.resource_attributes.expect("a resource question");
        assert_eq!((attributes.resource.as_str(), attributes.name.as_str()), ("nodes", "n1"));
        assert_eq!((attributes.namespace.as_str(), attributes.group.as_str()), ("", ""));
        let allowed = spec.user == "prober" && attributes.subresource == "metrics";
        let status = SubjectAccessReviewStatus { allowed, ..SubjectAccessReviewStatus::default() };
        Box::pin(async move { Ok(status) })
    }
}

const METRICS: Permission = Permission { verb: "get", subresource: "metrics" };
const PROXY: Permission = Permission { verb: "create", subresource: "proxy" };

fn access(anonymous: Anonymous, tokens: Tokens, authorization: Authorization) -> (Access, Script) {
    let script = Script::default();
    let shared = Script { tokens: script.tokens.clone(), accesses: script.accesses.clone() };
    let rules = AccessRules { node: "n1".into(), anonymous, tokens, authorization };
    (Access::new(rules, Box::new(shared)), script)
}

#[tokio::test]
async fn anonymous_clients_come_in_only_where_allowed() {
    let (open, _) = access(Anonymous::Allowed, Tokens::Ignored, Authorization::AlwaysAllow);
    assert_eq!(open.check(&None, Some("Bearer whatever"), PROXY).await, Ok(()));
    let (closed, _) = access(Anonymous::Refused, Tokens::Ignored, Authorization::AlwaysAllow);
    assert_eq!(closed.check(&None, None, PROXY).await, Err(Refused::Unknown));
    let certified = UserInfo { username: "api".into(), ..UserInfo::default() };
    assert_eq!(closed.check(&Some(Ok(certified)), None, PROXY).await, Ok(()));
}

#[tokio::test]
async fn a_certificate_that_is_not_valid_leaves_the_token_to_be_tried() {
    let (access, _) = access(Anonymous::Allowed, Tokens::REVIEWED, Authorization::WEBHOOK);
    let expired: Certified = Some(Err(CertificateFault::NoName));
    assert_eq!(access.check(&expired, Some("Bearer good"), METRICS).await, Ok(()));
    assert_eq!(access.check(&expired, Some("Bearer bad"), METRICS).await, Err(Refused::Unknown));
    assert_eq!(access.check(&expired, None, METRICS).await, Err(Refused::Unknown));
    let valid: Certified = Some(Ok(UserInfo { username: "prober".into(), ..UserInfo::default() }));
    assert_eq!(access.check(&valid, Some("Bearer bad"), METRICS).await, Ok(()));
}

#[tokio::test]
async fn a_wrong_token_is_not_taken_for_none() {
    let (access, _) = access(Anonymous::Allowed, Tokens::REVIEWED, Authorization::AlwaysAllow);
    assert_eq!(access.check(&None, Some("Bearer bad"), METRICS).await, Err(Refused::Unknown));
    assert_eq!(access.check(&None, Some("bearer good"), METRICS).await, Ok(()));
    assert_eq!(access.check(&None, Some("Basic good"), METRICS).await, Ok(()), "no bearer token");
}

#[tokio::test(start_paused = true)]
async fn answers_are_remembered_for_their_time() {
    let (access, asked) = access(Anonymous::Allowed, Tokens::REVIEWED, Authorization::WEBHOOK);
    for _ in 0..3 {
        assert_eq!(access.check(&None, Some("Bearer good"), METRICS).await, Ok(()));
        let denied = access.check(&None, Some("Bearer good"), PROXY).await;
        let text = "Forbidden (user=prober, verb=create, resource=nodes, subresource=proxy)";
        assert_eq!(denied, Err(Refused::Forbidden(text.into())));
    }
    let counts = || (asked.tokens.load(Ordering::Relaxed), asked.accesses.load(Ordering::Relaxed));
    assert_eq!(counts(), (1, 2));
    tokio::time::advance(Duration::from_secs(31)).await;
    let _ = access.check(&None, Some("Bearer good"), PROXY).await;
    assert_eq!(counts(), (1, 3), "a no is remembered for 30 s");
    tokio::time::advance(Duration::from_secs(100)).await;
    let _ = access.check(&None, Some("Bearer good"), METRICS).await;
    assert_eq!(counts(), (2, 3), "a token for 2 min, a yes for 5 min");
}

#[tokio::test(start_paused = true)]
async fn rejected_tokens_are_reviewed_again_only_after_the_cache_ttl() {
    let (access, asked) = access(Anonymous::Refused, Tokens::REVIEWED, Authorization::AlwaysAllow);
    for _ in 0..100 {
        assert_eq!(access.check(&None, Some("Bearer bad"), METRICS).await, Err(Refused::Unknown));
    }
    assert_eq!(asked.tokens.load(Ordering::Relaxed), 1);
    tokio::time::advance(Duration::from_secs(11)).await;
    let _ = access.check(&None, Some("Bearer bad"), METRICS).await;
    assert_eq!(asked.tokens.load(Ordering::Relaxed), 2);
    let long = format!("Bearer {}", "x".repeat(20 << 10));
    assert_eq!(access.check(&None, Some(&long), METRICS).await, Err(Refused::Unknown));
    assert_eq!(asked.tokens.load(Ordering::Relaxed), 2, "too long to be one");
    // Any number of made-up ones do not make a good one forgotten.
    assert_eq!(access.check(&None, Some("Bearer good"), METRICS).await, Ok(()));
    for n in 0..3000 {
        let made_up = format!("Bearer bad-{n}");
        assert_eq!(access.check(&None, Some(&made_up), METRICS).await, Err(Refused::Unknown));
    }
    let before = asked.tokens.load(Ordering::Relaxed);
    assert_eq!(access.check(&None, Some("Bearer good"), METRICS).await, Ok(()));
    assert_eq!(asked.tokens.load(Ordering::Relaxed), before);
}

#[tokio::test]
async fn a_decision_is_about_everything_that_is_known_of_a_user() {
    let (access, asked) = access(Anonymous::Refused, Tokens::Ignored, Authorization::WEBHOOK);
    let user = |uid: &str, scopes: &str| {
        let mut user =
            UserInfo { username: "prober".into(), uid: uid.into(), ..UserInfo::default() };
        user.extra.insert("scopes".into(), proto_api::StringList(vec![scopes.to_owned()]));
        user
    };
    for (number, (uid, scopes)) in [("1", "a"), ("2", "a"), ("2", "b")].into_iter().enumerate() {
        for _ in 0..2 {
            assert_eq!(access.check(&Some(Ok(user(uid, scopes))), None, METRICS).await, Ok(()));
        }
        assert_eq!(asked.accesses.load(Ordering::Relaxed), number + 1, "{uid} {scopes}");
    }
}
