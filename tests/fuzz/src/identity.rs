//! Who somebody is and what they may do, by what they or others say: tokens, certificates, files, answers of other servers.

use std::sync::OnceLock;

use apiserver_auth::{MASTERS, User};
use apiserver_token::SigningKey;

use crate::api;

/// A key of tests, which protects nothing.
fn key() -> &'static SigningKey {
    static KEY: OnceLock<SigningKey> = OnceLock::new();
    KEY.get_or_init(|| {
        let pem = include_bytes!("../../../apiserver-lite/token/testdata/ec.key");
        SigningKey::from_pem(pem).expect("a key")
    })
}

/// Every authenticator adds this group, and none makes an administrator of what nobody vouches for.
fn is_ordinary(user: &User) {
    assert!(user.is_in("system:authenticated"), "{user:?}");
    assert!(!user.is_in(MASTERS), "{user:?}");
}

fn text(bytes: &[u8]) -> Option<&str> {
    std::str::from_utf8(bytes).ok()
}

/// Bearer tokens of service accounts, of bootstrapping nodes and of a file, as the server reads them.
pub mod bearer {
    use std::future::Future;
    use std::pin::pin;
    use std::sync::Arc;
    use std::task::{Context, Poll, Waker};

    use apiserver_auth::{SigningKeyFile, StaticTokens, TokenKeys, VerifyingKeyFiles};
    use apiserver_core::auth::{Authenticators, ObjectLookup, TokenIssuer};
    use apiserver_core::config::{Anonymous, BootstrapTokens, Config, TokenLookup};
    use apiserver_core::record::{Draft, StoredObject};
    use apiserver_schema::{Engine, Format, Strictness};
    use apiserver_store::{Record, Revision, Stamp};
    use apiserver_token::{Algorithm, PublicKey, jwt};
    use proto_api::names::Names;
    use serde_json::{Map, Value, json};

    use super::*;

    /// Secrets of bootstrap tokens: whatever is looked up is this one.
    struct Secrets(Arc<StoredObject>);

    impl ObjectLookup for Secrets {
        fn names(&self) -> &'static Names {
            api::names()
        }

        fn find_in(
            &self,
            _: &str,
            resource: &str,
            _: &str,
            name: &str,
        ) -> Option<Arc<StoredObject>> {
            let found = resource == "secrets" && name == "bootstrap-token-abcdef";
            found.then(|| self.0.clone())
        }
    }

    fn secrets() -> &'static Secrets {
        static SECRETS: OnceLock<Secrets> = OnceLock::new();
        SECRETS.get_or_init(|| {
            let engine = Engine::new(api::names());
            // `abcdef`, `0123456789abcdef` and `true`.
            let secret = json!({
                "kind": "Secret", "apiVersion": "v1", "type": "bootstrap.kubernetes.io/token",
                "metadata": {"name": "bootstrap-token-abcdef", "namespace": "kube-system"},
                "data": {
                    "token-id": "YWJjZGVm",
                    "token-secret": "MDEyMzQ1Njc4OWFiY2RlZg==",
                    "usage-bootstrap-authentication": "dHJ1ZQ==",
                },
            });
            let read =
                engine.decode_any(Format::Json, secret.to_string().as_bytes(), Strictness::Strict);
            let draft = Draft::new(&engine, read.expect("a secret").object);
            let stamp = Stamp { created: Revision(1), modified: Revision(1) };
            Secrets(Arc::new(StoredObject::stamp(draft, stamp)))
        })
    }

    fn authenticators() -> &'static Authenticators {
        static ALL: OnceLock<Authenticators> = OnceLock::new();
        ALL.get_or_init(|| {
            let pem = include_str!("../../../apiserver-lite/token/testdata/ec.key");
            let signing = SigningKeyFile::fixed("ec.key".as_ref(), pem).expect("a key");
            let keys = TokenKeys::new(signing, VerifyingKeyFiles::default());
            let mut settings = Config::for_tests(api::names()).service_accounts;
            settings.lookup = TokenLookup::Skipped;
            Authenticators {
                request_headers: None,
                static_tokens: StaticTokens::parse("static,jane,u1,dev\n").expect("a file"),
                bootstrap_tokens: BootstrapTokens::Accepted,
                anonymous: Anonymous::Refused,
                tokens: Arc::new(TokenIssuer::new(keys, &settings, api::names())),
                oidc: None,
                token_webhook: None,
            }
        })
    }

    /// The result of a future that waits for nothing.
    fn now<F: Future>(future: F) -> F::Output {
        match pin!(future).poll(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(output) => output,
            Poll::Pending => panic!("it waits"),
        }
    }

    fn ask(token: &str) -> Option<User> {
        let all = authenticators();
        let audiences = all.tokens.audiences();
        let (user, meant) = now(all.token_user(secrets(), token, audiences, "fuzz"))?;
        is_ordinary(&user);
        assert!(!meant.is_empty() && meant.iter().all(|one| audiences.contains(one)));
        Some(user)
    }

    /// Reads the text as a token, as keys, and, if it is JSON, as claims that a key of the server has signed.
    pub fn check(bytes: &[u8]) {
        if let Ok(keys) = PublicKey::all_from_pem(bytes) {
            // What is published names one algorithm; the key in the file has all of its kind.
            let again = |key: &PublicKey| {
                let mut published = key.jwk();
                published["alg"].take();
                PublicKey::from_jwk(&published).as_ref() == Some(key)
            };
            assert!(keys.iter().all(again), "{keys:?}");
        }
        let Some(token) = text(bytes) else { return };
        if let Some(user) = ask(token) {
            let known = matches!(token, "static" | "abcdef.0123456789abcdef");
            assert!(
                known
                    || jwt::verify::<Value>(
                        token,
                        std::slice::from_ref(key().public()),
                        &Algorithm::ALL
                    )
                    .is_ok(),
                "{user:?}"
            );
        }
        let Ok(claims) = serde_json::from_slice::<Map<String, Value>>(bytes) else { return };
        if let Some(user) = ask(&jwt::sign(&claims, key()).expect("signed")) {
            assert!(user.name.starts_with("system:serviceaccount:"), "{user:?}");
            assert!(user.is_in("system:serviceaccounts"), "{user:?}");
        }
        let jwk = PublicKey::from_jwk(&Value::Object(claims));
        if let Some(jwk) = jwk {
            let verifies = |algorithm| jwk.verifies(algorithm, b"claims", b"signature");
            assert!(!Algorithm::ALL.into_iter().any(verifies));
        }
    }

    /// A token of each kind, claims of both kinds of service account tokens, keys.
    pub fn seeds() -> Vec<Vec<u8>> {
        let issuer = "https://kubernetes.default.svc.cluster.local";
        let about = json!({
            "namespace": "default", "serviceaccount": {"name": "default", "uid": "u"},
            "pod": {"name": "p", "uid": "v"},
        });
        let claims = json!({
            "iss": issuer, "aud": [issuer], "exp": 4_102_444_800_u64, "nbf": 0, "iat": 0,
            "kubernetes.io": about, "sub": "system:serviceaccount:default:default",
        });
        let lasting = json!({
            "iss": "kubernetes/serviceaccount", "kubernetes.io/serviceaccount/namespace": "a",
            "kubernetes.io/serviceaccount/secret.name": "s",
            "kubernetes.io/serviceaccount/service-account.name": "d",
            "kubernetes.io/serviceaccount/service-account.uid": "u",
        });
        for good in [&claims, &lasting] {
            assert!(ask(&jwt::sign(good, key()).expect("signed")).is_some(), "{good}");
        }
        let token = jwt::sign(&claims, key()).expect("signed");
        let mut all = crate::texts(&["static", "abcdef.0123456789abcdef", &token]);
        all.extend([claims, lasting, key().public().jwk()].map(|json| json.to_string().into()));
        all.push(include_bytes!("../../../apiserver-lite/token/testdata/rsa.pub").to_vec());
        all.push(include_bytes!("../../../apiserver-lite/token/testdata/ec.crt").to_vec());
        all
    }
}

/// ID tokens: what is read of them before and after their signature is verified.
pub mod id_token {
    use apiserver_auth::{OidcSettings, unverified_issuer, user_of_claims};
    use apiserver_token::jwt;
    use serde_json::{Map, Value, json};

    use super::*;

    fn settings() -> OidcSettings {
        OidcSettings {
            issuer_url: "https://a".into(),
            client_id: "cluster".into(),
            username_claim: "sub".into(),
            username_prefix: Some("oidc:".into()),
            groups_claim: Some("groups".into()),
            groups_prefix: "oidc:".into(),
            required_claims: vec![("hd".into(), "example.org".into())],
            ca_file: None,
            signing_algs: vec!["RS256".into()],
        }
    }

    /// Reads the text as a token, and as claims.
    pub fn check(bytes: &[u8]) {
        if let Some(token) = text(bytes) {
            let _ = unverified_issuer(token);
        }
        let Ok(claims) = serde_json::from_slice::<Map<String, Value>>(bytes) else { return };
        if let Ok(user) = user_of_claims(&settings(), &claims, 1_700_000_000) {
            is_ordinary(&user);
            assert!(user.name.starts_with("oidc:") && user.name.len() > 5, "{user:?}");
            let prefixed =
                |group: &String| group.starts_with("oidc:") || group == "system:authenticated";
            assert!(user.groups.iter().all(prefixed), "{user:?}");
        }
    }

    /// A token, and claims.
    pub fn seeds() -> Vec<Vec<u8>> {
        let claims = json!({
            "iss": "https://a", "aud": ["other", "cluster"], "sub": "u1", "exp": 1_800_000_000.5,
            "nbf": 0, "hd": "example.org", "groups": ["dev"], "email_verified": true,
            "_claim_names": {"x": "src"},
        });
        let token = jwt::sign(&claims, key()).expect("signed");
        assert_eq!(unverified_issuer(&token).as_deref(), Some("https://a"));
        vec![token.into(), claims.to_string().into()]
    }
}

/// Who is not named as an anonymous user is authenticated.
fn check_groups(user: &User) {
    let is_anonymous = user.name == "system:anonymous" || user.is_in("system:unauthenticated");
    assert!(is_anonymous || user.is_in("system:authenticated"), "{user:?}");
}

/// Client certificates.
pub mod client_certificate {
    use apiserver_auth::ClientCertificate;

    use super::check_groups;

    /// Reads the bytes as a certificate that an authority has signed.
    pub fn check(bytes: &[u8]) {
        if let ClientCertificate::User { user, .. } = ClientCertificate::read(bytes) {
            assert!(!user.name.is_empty(), "{user:?}");
            check_groups(&user);
        }
    }

    /// A certificate.
    pub fn seeds() -> Vec<Vec<u8>> {
        let pem = include_bytes!("../../../apiserver-lite/token/testdata/ec.crt");
        proto_daemon::tls::certificates(pem)
            .expect("a certificate")
            .iter()
            .map(|certificate| certificate.to_vec())
            .collect()
    }
}

/// The files of static tokens and of policies.
pub mod identity_files {
    use apiserver_auth::{Abac, AccessTarget, Attributes, Authorizer, Decision, StaticTokens};

    use super::*;

    /// Reads the text as each of the two. Without a policy that names it, a user may do nothing.
    pub fn check(bytes: &[u8]) {
        let Some(text) = text(bytes) else { return };
        if let Ok(tokens) = StaticTokens::parse(text) {
            assert_eq!(tokens.user_of(""), None, "an empty token is nobody's");
            let first = text.split(['\n', ',']).next().unwrap_or_default();
            if let Some(user) = tokens.user_of(first) {
                check_groups(&user);
            }
        }
        let Ok(policies) = Abac::parse(text, api::names()) else { return };
        let unknown = User { name: "\u{1}unknown".into(), ..User::default() };
        let attributes =
            Attributes { user: &unknown, verb: "get", subject: AccessTarget::Path("/metrics") };
        let allowed = policies.authorize(&attributes).decision == Decision::Allow;
        assert!(!allowed || text.contains('*') || text.contains('\\'), "{text}");
        let _ = policies.rules(&unknown, "default");
    }

    /// One of each.
    pub fn seeds() -> Vec<Vec<u8>> {
        crate::texts(&[
            "t1,alice,u1,\"dev,ops\"\n\nt2,\"bob \"\"b\"\"\",u2\n",
            "# policies\n{\"apiVersion\":\"abac.authorization.kubernetes.io/v1beta1\",\"kind\":\"Policy\",\"spec\":{\"user\":\"a\",\"group\":\"g\",\"namespace\":\"*\",\"resource\":\"pods\",\"apiGroup\":\"\",\"readonly\":true}}\n",
            "{\"apiVersion\":\"abac.authorization.kubernetes.io/v1beta1\",\"kind\":\"Policy\",\"metadata\":{},\"spec\":{\"user\":\"*\",\"nonResourcePath\":\"/x*\"}}",
        ])
    }
}

/// Answers of the services that know tokens and decide about requests.
pub mod webhook_answer {
    use apiserver_auth::{Decision, read_access_review, read_token_review};

    /// Reads the bytes as each of the two.
    pub fn check(bytes: &[u8]) {
        let own = ["api".to_owned()];
        if let Ok(Some((user, meant))) =
            read_token_review(bytes, "authentication.k8s.io/v1", &own, &own)
        {
            assert!(user.is_in("system:authenticated") && meant == own, "{user:?} {meant:?}");
        }
        if let Ok(answer) = read_access_review(bytes, "authorization.k8s.io/v1") {
            assert!(answer.decision != Decision::Allow || answer.error.is_empty(), "{answer:?}");
        }
    }

    /// Good and bad answers.
    pub fn seeds() -> Vec<Vec<u8>> {
        crate::texts(&[
            r#"{"apiVersion":"authentication.k8s.io/v1","kind":"TokenReview","status":{"authenticated":true,"user":{"username":"a","uid":"1","groups":["g"],"extra":{"k":["v"]}},"audiences":["api"]}}"#,
            r#"{"apiVersion":"authentication.k8s.io/v1","kind":"TokenReview","status":{"authenticated":false,"error":"x","user":null}}"#,
            r#"{"apiVersion":"authorization.k8s.io/v1","kind":"SubjectAccessReview","status":{"allowed":true,"denied":false,"reason":"r","evaluationError":"e"}}"#,
        ])
    }
}
