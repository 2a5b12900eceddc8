//! Bearer tokens that are no good: each is answered with the same 401, whatever is wrong with it, and no review knows it. Tokens beside them are good, so that
//! it is the one fault that counts.

use apiserver_token::{Algorithm, PublicKey, SigningKey, jwt};
use base64::Engine as _;
use base64::engine::general_purpose::{STANDARD, URL_SAFE_NO_PAD};
use orch_apiserver::Config;
use orch_apiserver::config::{AuthorizationMode, BootstrapTokens};
use proto_api::names::Names;
use serde_json::{Value, json};

use crate::authorizers::{World, oidc_settings};
use crate::support::{TestServer, kubernetes};

const KEY: &str = include_str!("../../../token/testdata/ec.key");
const PUBLIC: &str = include_str!("../../../token/testdata/rsa.pub");
const ISSUER: &str = "https://kubernetes.default.svc.cluster.local";
const CORE: &str = "/api/v1/namespaces/default";

/// A server that signs with a key ([`KEY`] at first), verifies with an RSA key as well, and knows tokens of all kinds.
struct Fixture {
    world: World,
    server: TestServer,
    key: SigningKey,
}

impl Fixture {
    async fn start() -> Self {
        Self::signing_with(KEY).await
    }

    async fn signing_with(pem: &str) -> Self {
        let world = World::start().await;
        for (name, pem) in [("sign.key", pem), ("old.pub", PUBLIC)] {
            std::fs::write(world.file(name), pem).unwrap();
        }
        let mut config = Config {
            token_auth_file: Some(world.file("tokens.csv")),
            bootstrap_tokens: BootstrapTokens::Accepted,
            oidc: Some(oidc_settings(&world)),
            authorization: vec![AuthorizationMode::AlwaysAllow],
            ..Config::for_tests(kubernetes())
        };
        config.service_accounts.signing_key_file = Some(world.file("sign.key"));
        config.service_accounts.key_files = vec![world.file("old.pub")];
        let server = TestServer::with(config).await;
        let key = SigningKey::from_pem(pem.as_bytes()).unwrap();
        let fixture = Self { world, server, key };
        fixture.create("serviceaccounts", json!({"metadata": {"name": "default"}})).await;
        fixture
    }

    async fn create(&self, resource: &str, object: Value) -> Value {
        self.server.post(&format!("{CORE}/{resource}"), object.to_string()).await.expect(201)
    }

    async fn delete(&self, resource: &str, name: &str) {
        let path = format!("{CORE}/{resource}/{name}?gracePeriodSeconds=0");
        self.server.delete(&path).await.expect(200);
    }

    /// A token of the service account `default`, bound to an object.
    async fn issue(&self, bound: Value) -> String {
        let path = format!("{CORE}/serviceaccounts/default/token");
        let body = json!({"spec": {"boundObjectRef": bound}}).to_string();
        let made = self.server.post(&path, body).await.expect(201);
        made["status"]["token"].as_str().unwrap().to_owned()
    }

    /// A good token's claims after a change, signed.
    async fn signed(&self, change: impl FnOnce(&mut Value)) -> String {
        let mut claims = claims_of(&self.issue(Value::Null).await);
        change(&mut claims);
        jwt::sign(&claims, &self.key).unwrap()
    }

    async fn accept(&self, what: &str, token: &str) {
        let answer = self.ask(token).await;
        assert_eq!(answer.code(), 200, "{what}");
        assert_eq!(self.review(token).await["authenticated"], true, "{what}");
    }

    /// The same answer for every reason.
    async fn refuse(&self, what: &str, token: &str) {
        let answer = self.ask(token).await;
        let unauthorized = json!({
            "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure",
            "message": "Unauthorized", "reason": "Unauthorized", "code": 401,
        });
        assert_eq!(answer.expect(401), unauthorized, "{what}");
        if !token.is_empty() {
            let known = self.review(token).await;
            assert_eq!(known, json!({"user": {}, "error": "invalid bearer token"}), "{what}");
        }
    }

    async fn ask(&self, token: &str) -> crate::support::Reply {
        let bearer = format!("Bearer {token}");
        let headers = [("authorization", bearer.as_str())];
        self.server.without_certificate(http::Method::GET, CORE, &headers, "").await
    }

    async fn review(&self, token: &str) -> Value {
        let body = json!({"spec": {"token": token}}).to_string();
        let path = "/apis/authentication.k8s.io/v1/tokenreviews";
        let mut status = self.server.post(path, body).await.expect(201)["status"].clone();
        if status["user"].is_null() {
            status["user"] = json!({});
        }
        status
    }
}

fn claims_of(token: &str) -> Value {
    let claims = URL_SAFE_NO_PAD.decode(token.split('.').nth(1).unwrap()).unwrap();
    serde_json::from_slice(&claims).unwrap()
}

fn encode(json: &Value) -> String {
    URL_SAFE_NO_PAD.encode(json.to_string())
}

fn now() -> i64 {
    time::OffsetDateTime::now_utc().unix_timestamp()
}

/// A token with this header and an HMAC with a key that everybody can read.
fn hmac(header: &Value, claims: &Value, secret: &[u8]) -> String {
    let signed = format!("{}.{}", encode(header), encode(claims));
    let key = ring::hmac::Key::new(ring::hmac::HMAC_SHA256, secret);
    let tag = ring::hmac::sign(&key, signed.as_bytes());
    format!("{signed}.{}", URL_SAFE_NO_PAD.encode(tag.as_ref()))
}

#[tokio::test]
async fn forged_service_account_tokens_are_refused() {
    let fixture = Fixture::start().await;
    let good = fixture.issue(Value::Null).await;
    fixture.accept("good", &good).await;
    let parts: Vec<&str> = good.split('.').collect();
    let [header, claims, signature] = parts[..] else { panic!("three parts: {good}") };
    let other = rcgen::KeyPair::generate().unwrap().serialize_pem();
    let other = SigningKey::from_pem(other.as_bytes()).unwrap();
    let of_claims = claims_of(&good);
    let header_with = |alg: &str| json!({"alg": alg, "kid": fixture.key.public().id()});
    let rs256 = json!({"alg": "RS256"});
    let public = fixture.key.public().jwk().to_string();
    let der = PUBLIC.lines().filter(|line| !line.starts_with('-')).collect::<String>();
    let der = STANDARD.decode(der).unwrap();
    let mut flipped = URL_SAFE_NO_PAD.decode(signature).unwrap();
    flipped[0] ^= 1;
    let altered = {
        let mut c = of_claims.clone();
        c["sub"] = "system:admin".into();
        encode(&c)
    };
    for (what, token) in [
        ("one part", "abc".to_owned()),
        ("two parts", format!("{header}.{claims}")),
        ("four parts", format!("{good}.{signature}")),
        ("no signature", format!("{header}.{claims}.")),
        ("a cut signature", good[..good.len() - 4].to_owned()),
        ("another signature", format!("{header}.{claims}.{}", URL_SAFE_NO_PAD.encode(flipped))),
        ("padding", format!("{good}==")),
        ("a header that is no JSON", format!("YWJj.{claims}.{signature}")),
        ("altered claims", format!("{header}.{altered}.{signature}")),
        ("claims that are no object", jwt::sign(&json!([1]), &fixture.key).unwrap()),
        ("another key", jwt::sign(&of_claims, &other).unwrap()),
        ("no algorithm", format!("{}.{claims}.", encode(&header_with("none")))),
        ("no algorithm, signed", format!("{}.{claims}.{signature}", encode(&header_with("none")))),
        ("no algorithm, in capitals", format!("{}.{claims}.", encode(&header_with("NONE")))),
        ("another algorithm", format!("{}.{claims}.{signature}", encode(&header_with("ES256")))),
        ("of another length", format!("{}.{claims}.{signature}", encode(&header_with("ES512")))),
        ("of another key type", format!("{}.{claims}.{signature}", encode(&header_with("PS384")))),
        ("an unknown algorithm", format!("{}.{claims}.{signature}", encode(&header_with("EdDSA")))),
        (
            "an algorithm that is no text",
            format!("{}.{claims}.{signature}", encode(&json!({"alg": 1}))),
        ),
        ("an RSA key's", format!("{}.{claims}.{signature}", encode(&rs256))),
        ("an HMAC with the PEM", hmac(&header_with("HS256"), &of_claims, PUBLIC.as_bytes())),
        ("an HMAC with the DER", hmac(&json!({"alg": "HS256"}), &of_claims, &der)),
        ("an HMAC with the JWK", hmac(&header_with("HS256"), &of_claims, public.as_bytes())),
        ("an HMAC said to be RSA", hmac(&rs256, &of_claims, PUBLIC.as_bytes())),
        (
            "an extension to be understood",
            hmac(&json!({"alg": "ES384", "crit": ["exp"]}), &of_claims, b"x"),
        ),
    ] {
        fixture.refuse(what, &token).await;
    }
}

#[tokio::test]
async fn service_account_tokens_with_a_wrong_claim_are_refused() {
    type Change = fn(&mut Value);
    let fixture = Fixture::start().await;
    let good: [(&str, Change); 5] = [
        ("unchanged", |_| {}),
        ("expired by less than the clocks may differ", |c| c["exp"] = (now() - 30).into()),
        ("valid from soon on", |c| c["nbf"] = (now() + 30).into()),
        ("issued by a clock that is ahead", |c| c["iat"] = (now() + 30).into()),
        ("one audience as a text", |c| c["aud"] = ISSUER.into()),
    ];
    for (what, change) in good {
        fixture.accept(what, &fixture.signed(change).await).await;
    }
    let refused: [(&str, Change); 20] = [
        ("expired", |c| c["exp"] = (now() - 70).into()),
        ("expired long ago", |c| c["exp"] = 0.into()),
        ("no expiry", |c| drop(c.as_object_mut().unwrap().remove("exp"))),
        ("an expiry that is a text", |c| c["exp"] = "4102444800".into()),
        ("an expiry beyond all numbers", |c| c["exp"] = u64::MAX.into()),
        ("an expiry before all time", |c| c["exp"] = i64::MIN.into()),
        ("not yet valid", |c| c["nbf"] = (now() + 120).into()),
        ("not valid for long", |c| c["nbf"] = i64::MAX.into()),
        ("a beginning that is a text", |c| c["nbf"] = "0".into()),
        ("issued in the future", |c| c["iat"] = (now() + 120).into()),
        ("another audience", |c| c["aud"] = json!(["vault"])),
        ("no audience", |c| c["aud"] = json!([])),
        ("audience null", |c| c["aud"] = Value::Null),
        ("another issuer", |c| c["iss"] = "https://other".into()),
        ("no issuer", |c| c["iss"] = Value::Null),
        ("no account", |c| c["kubernetes.io"] = json!({"namespace": "default"})),
        ("nothing of the domain", |c| c["kubernetes.io"] = Value::Null),
        ("another account's uid", |c| c["kubernetes.io"]["serviceaccount"]["uid"] = "u".into()),
        ("another namespace", |c| c["kubernetes.io"]["namespace"] = "kube-system".into()),
        ("a pod that never was", |c| {
            c["kubernetes.io"]["pod"] = json!({"name": "none", "uid": "u"});
        }),
    ];
    for (what, change) in refused {
        fixture.refuse(what, &fixture.signed(change).await).await;
    }
    let long = fixture.signed(|c| c["x"] = "x".repeat(12 << 10).into()).await;
    assert!(long.len() > 16 << 10);
    fixture.refuse("a token longer than any", &long).await;
}

/// As Kubernetes has it: a key of the flag verifies what it has signed, by each of its algorithms.
#[tokio::test]
async fn service_account_tokens_may_have_any_algorithm_of_an_rsa_key() {
    use ring::signature as by;
    let fixture = Fixture::start().await;
    let claims = claims_of(&fixture.issue(Value::Null).await);
    let pem = include_str!("../../../token/testdata/rsa.key");
    let der = pem.lines().filter(|line| !line.starts_with('-')).collect::<String>();
    let key = by::RsaKeyPair::from_der(&STANDARD.decode(der).unwrap()).unwrap();
    let algorithms: [(&str, &dyn by::RsaEncoding); 6] = [
        ("RS256", &by::RSA_PKCS1_SHA256),
        ("RS384", &by::RSA_PKCS1_SHA384),
        ("RS512", &by::RSA_PKCS1_SHA512),
        ("PS256", &by::RSA_PSS_SHA256),
        ("PS384", &by::RSA_PSS_SHA384),
        ("PS512", &by::RSA_PSS_SHA512),
    ];
    for (name, how) in algorithms {
        let sign = |claims: &Value| {
            let signed = format!("{}.{}", encode(&json!({"alg": name})), encode(claims));
            let mut signature = vec![0; key.public().modulus_len()];
            let random = ring::rand::SystemRandom::new();
            key.sign(how, &random, signed.as_bytes(), &mut signature).unwrap();
            format!("{signed}.{}", URL_SAFE_NO_PAD.encode(signature))
        };
        let good = sign(&claims);
        fixture.accept(name, &good).await;
        let mut expired = claims.clone();
        expired["exp"] = (now() - 70).into();
        fixture.refuse(&format!("{name}, expired"), &sign(&expired)).await;
        let (_, rest) = good.split_once('.').unwrap();
        for (other, _) in algorithms.iter().filter(|(other, _)| *other != name) {
            let renamed = format!("{}.{rest}", encode(&json!({"alg": other})));
            fixture.refuse(&format!("{name} as {other}"), &renamed).await;
        }
    }
}

/// A server that signs with a key on P-521 and publishes it: others verify its tokens by that, and it verifies them itself.
#[tokio::test]
async fn service_account_tokens_are_signed_with_keys_on_p_521() {
    let fixture =
        Fixture::signing_with(include_str!("../../../token/testdata/p521.sec1.key")).await;
    let token = fixture.issue(Value::Null).await;
    fixture.accept("good", &token).await;
    let (signed, signature) = token.rsplit_once('.').unwrap();
    let signature = URL_SAFE_NO_PAD.decode(signature).unwrap();
    assert_eq!(signature.len(), 132);
    let header = URL_SAFE_NO_PAD.decode(signed.split_once('.').unwrap().0).unwrap();
    let header: Value = serde_json::from_slice(&header).unwrap();
    assert_eq!(header["alg"], "ES512");
    let published = fixture.server.get("/openid/v1/jwks").await.expect(200)["keys"].clone();
    let found = published.as_array().unwrap().iter().find(|key| key["kid"] == header["kid"]);
    let found = found.expect("published");
    assert_eq!((&found["crv"], &found["alg"]), (&json!("P-521"), &json!("ES512")));
    let key = PublicKey::from_jwk(found).unwrap();
    assert!(key.verifies(Algorithm::Es512, signed.as_bytes(), &signature));
    let configuration = fixture.server.get("/.well-known/openid-configuration").await.expect(200);
    assert_eq!(configuration["id_token_signing_alg_values_supported"], json!(["ES512", "RS256"]));
    for at in [0, 65, 66, 131] {
        let mut flipped = signature.clone();
        flipped[at] ^= 1;
        let token = format!("{signed}.{}", URL_SAFE_NO_PAD.encode(flipped));
        fixture.refuse(&format!("byte {at}"), &token).await;
    }
    let of_es384 = jwt::sign(&claims_of(&token), &SigningKey::from_pem(KEY.as_bytes()).unwrap());
    fixture.refuse("another curve's", &of_es384.unwrap()).await;
}

/// A header without a bearer token is none; one with more is refused like any wrong token.
#[tokio::test]
async fn malformed_authorization_headers_authenticate_nobody() {
    let fixture = Fixture::start().await;
    let good = fixture.issue(Value::Null).await;
    let ask = async |value: &str| {
        let headers = [("authorization", value)];
        fixture.server.without_certificate(http::Method::GET, CORE, &headers, "").await
    };
    for scheme in ["Bearer", "bearer", "BEARER"] {
        assert_eq!(ask(&format!("{scheme} {good}")).await.code(), 200, "{scheme}");
    }
    for value in [
        good.clone(),
        "Bearer".to_owned(),
        "Bearer ".to_owned(),
        format!("Bearer{good}"),
        format!("Basic {}", STANDARD.encode(format!("x:{good}"))),
        format!("Token {good}"),
        format!("Bearer ,{good}"),
        format!("Bearer \"{good}\""),
    ] {
        let refused = ask(&value).await.expect(401);
        let shown = refused.to_string();
        assert_eq!(refused["message"], "Unauthorized", "{value}: {shown}");
        assert!(!shown.contains(&good[..20]), "{shown}");
    }
}

/// What a token is bound to is gone, or is another object of the same name.
#[tokio::test]
async fn service_account_tokens_end_with_what_they_are_bound_to() {
    let fixture = Fixture::start().await;
    let container = json!({"name": "c", "image": "i"});
    let pod = json!({"metadata": {"name": "b"}, "spec": {"containers": [container]}});
    let secret = json!({"metadata": {"name": "b"}});
    let account = json!({"metadata": {"name": "default"}});
    let node = json!({"metadata": {"name": "b"}});
    for (parent, kind, object) in [
        (format!("{CORE}/pods"), "Pod", pod),
        (format!("{CORE}/secrets"), "Secret", secret),
        ("/api/v1/nodes".to_owned(), "Node", node),
    ] {
        let server = &fixture.server;
        let create = async || server.post(&parent, object.to_string()).await.expect(201);
        let uid = create().await["metadata"]["uid"].clone();
        let bound = json!({"apiVersion": "v1", "kind": kind, "name": "b"});
        let token = fixture.issue(bound.clone()).await;
        fixture.accept(kind, &token).await;
        let extra = &fixture.review(&token).await["user"]["extra"];
        let named = |field: &str| {
            extra[format!("authentication.kubernetes.io/{}-{field}", kind.to_lowercase())].clone()
        };
        let expected = match kind {
            "Secret" => [Value::Null, Value::Null],
            _ => [json!(["b"]), json!([uid])],
        };
        assert_eq!([named("name"), named("uid")], expected, "{kind}");
        server.delete(&format!("{parent}/b?gracePeriodSeconds=0")).await.expect(200);
        fixture.refuse(&format!("{kind} deleted"), &token).await;
        create().await;
        fixture.refuse(&format!("another {kind} of the name"), &token).await;
        fixture.accept(&format!("of the new {kind}"), &fixture.issue(bound).await).await;
    }
    let token = fixture.issue(Value::Null).await;
    let legacy = legacy_token(&fixture).await;
    fixture.accept("a token in a secret", &legacy).await;
    fixture.delete("serviceaccounts", "default").await;
    fixture.refuse("account deleted", &token).await;
    fixture.refuse("account deleted, of a secret", &legacy).await;
    fixture.create("serviceaccounts", account).await;
    fixture.refuse("another account of the name", &token).await;
    fixture.refuse("another account of the name, of a secret", &legacy).await;
    fixture.accept("of the new account", &fixture.issue(Value::Null).await).await;
    let again = legacy_token(&fixture).await;
    fixture.accept("a new token in a secret", &again).await;
    fixture.delete("secrets", "lasting").await;
    fixture.refuse("secret deleted", &again).await;
    let held = legacy_token(&fixture).await;
    let secret = format!("{CORE}/secrets/lasting");
    let finalizer = json!({"metadata": {"finalizers": ["example.com/hold"]}}).to_string();
    fixture.server.merge_patch(&secret, &finalizer).await.expect(200);
    fixture.accept("a secret with a finalizer", &held).await;
    fixture.server.delete(&secret).await.expect(200);
    fixture.server.get(&secret).await.expect(200);
    fixture.refuse("secret deleted, and kept by its finalizer", &held).await;
}

/// Puts a lasting token into the Secret `lasting`, as the controller does.
async fn legacy_token(fixture: &Fixture) -> String {
    let path = format!("{CORE}/serviceaccounts/default");
    let account = fixture.server.get(&path).await.expect(200);
    let token = apiserver_token::LegacyToken {
        namespace: "default".to_owned(),
        secret: "lasting".to_owned(),
        account: "default".to_owned(),
        account_uid: account["metadata"]["uid"].as_str().unwrap().to_owned(),
    };
    let names: &Names = kubernetes();
    let token = jwt::sign(&token.claims(names), &fixture.key).unwrap();
    let secret =
        json!({"metadata": {"name": "lasting"}, "stringData": {"token": token}}).to_string();
    let _ = fixture.server.delete(&format!("{CORE}/secrets/lasting")).await;
    fixture.server.post(&format!("{CORE}/secrets"), secret).await.expect(201);
    token
}

fn bootstrap_secret(change: impl FnOnce(&mut Value)) -> Value {
    let mut secret = json!({
        "metadata": {"name": "bootstrap-token-abcdef"},
        "type": "bootstrap.kubernetes.io/token",
        "stringData": {
            "token-id": "abcdef",
            "token-secret": "0123456789abcdef",
            "usage-bootstrap-authentication": "true",
        },
    });
    change(&mut secret);
    secret
}

#[tokio::test]
async fn bootstrap_tokens_count_only_where_they_are_turned_on() {
    for (bootstrap_tokens, code) in
        [(BootstrapTokens::default(), 401), (BootstrapTokens::Accepted, 200)]
    {
        let config = Config { bootstrap_tokens, ..Config::for_tests(kubernetes()) };
        let server = TestServer::with(config).await;
        let secret = bootstrap_secret(|_| {}).to_string();
        server.post("/api/v1/namespaces/kube-system/secrets", secret).await.expect(201);
        let headers = [("authorization", "Bearer abcdef.0123456789abcdef")];
        let path = "/api/v1/namespaces/default";
        let answer = server.without_certificate(http::Method::GET, path, &headers, "").await;
        assert_eq!(answer.code(), code);
    }
}

#[tokio::test]
async fn bootstrap_tokens_are_refused_for_every_fault_of_theirs_or_their_secret_s() {
    let fixture = Fixture::start().await;
    let path = "/api/v1/namespaces/kube-system/secrets";
    let own = format!("{path}/bootstrap-token-abcdef");
    let token = "abcdef.0123456789abcdef";
    fixture.refuse("no secret", token).await;
    fixture.server.post(path, bootstrap_secret(|_| {}).to_string()).await.expect(201);
    fixture.accept("good", token).await;
    for (what, token) in [
        ("another secret", "abcdef.0123456789abcdee".to_owned()),
        ("another id", "abcdeg.0123456789abcdef".to_owned()),
        ("a cut secret", "abcdef.0123456789abcde".to_owned()),
        ("a long secret", "abcdef.0123456789abcdef0".to_owned()),
        ("capitals", "ABCDEF.0123456789abcdef".to_owned()),
        ("three parts", "abcdef.0123456789abcdef.x".to_owned()),
        ("a path", "../abc.0123456789abcdef".to_owned()),
        ("the id alone", "abcdef.".to_owned()),
        ("oversized", format!("abcdef.{}", "0".repeat(20 << 10))),
    ] {
        fixture.refuse(what, &token).await;
    }
    let ends = |at: i64| {
        let at = time::OffsetDateTime::from_unix_timestamp(at).unwrap();
        at.format(&time::format_description::well_known::Rfc3339).unwrap()
    };
    for (what, field, value) in [
        ("expired", "expiration", ends(now() - 1)),
        ("an expiry that is no time", "expiration", "never".to_owned()),
        ("not for authentication", "usage-bootstrap-authentication", "false".to_owned()),
        ("a group of others", "auth-extra-groups", "system:masters".to_owned()),
        ("rotated", "token-secret", "fedcba9876543210".to_owned()),
        ("of another id", "token-id", "ghijkl".to_owned()),
    ] {
        fixture.server.delete(&own).await.expect(200);
        let secret = bootstrap_secret(|secret| secret["stringData"][field] = value.into());
        fixture.server.post(path, secret.to_string()).await.expect(201);
        fixture.refuse(what, token).await;
    }
    fixture.server.delete(&own).await.expect(200);
    let future =
        bootstrap_secret(|secret| secret["stringData"]["expiration"] = ends(now() + 600).into());
    fixture.server.post(path, future.to_string()).await.expect(201);
    fixture.accept("expires later", token).await;
    fixture.server.delete(&own).await.expect(200);
    fixture.refuse("deleted", token).await;
}

#[tokio::test]
async fn id_tokens_are_refused_as_quietly() {
    let fixture = Fixture::start().await;
    let good = r#"{"sub": "alice", "groups": ["staff"]}"#;
    let token = fixture.world.bearer(good);
    fixture.accept("good", &token).await;
    fixture
        .accept("valid from soon on", &fixture.world.bearer(r#"{"sub":"a","nbf":"now+30"}"#))
        .await;
    for claims in [
        r#"{"sub":"alice","exp":"now-1"}"#,
        r#"{"sub":"alice","nbf":"now+120"}"#,
        r#"{"sub":"alice","aud":"other"}"#,
        r#"{"sub":"alice","iss":"https://other"}"#,
        r#"{"sub":""}"#,
        r#"{"groups":["staff"]}"#,
        r#"{"sub":"alice","groups":[1]}"#,
        r#"{"sub":"alice","_claim_names":{"groups":"src"}}"#,
    ] {
        fixture.refuse(claims, &fixture.world.bearer(claims)).await;
    }
    let (signed, signature) = token.rsplit_once('.').unwrap();
    let (header, claims) = signed.split_once('.').unwrap();
    let of_claims = claims_of(&token);
    for (what, token) in [
        ("no algorithm", format!("{}.{claims}.", encode(&json!({"alg": "none"})))),
        ("an HMAC with the key", hmac(&json!({"alg": "HS256"}), &of_claims, PUBLIC.as_bytes())),
        ("an HMAC said to be RSA", hmac(&json!({"alg": "RS256"}), &of_claims, PUBLIC.as_bytes())),
        ("another key", jwt::sign(&of_claims, &fixture.key).unwrap()),
        ("a cut signature", format!("{header}.{claims}.{}", &signature[..10])),
        ("oversized", fixture.world.bearer(&json!({"sub": "a".repeat(14 << 10)}).to_string())),
    ] {
        fixture.refuse(what, &token).await;
    }
}

#[tokio::test]
async fn static_tokens_are_whole_or_nothing() {
    let fixture = Fixture::start().await;
    fixture.accept("good", "jane").await;
    for token in ["jan", "janes", "JANE", "jane,jane", "jane.", ""] {
        fixture.refuse(token, token).await;
    }
}
