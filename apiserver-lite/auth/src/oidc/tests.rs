//! Against a provider that serves discovery and keys over TLS.

use std::sync::atomic::{AtomicU32, Ordering};

use apiserver_token::SigningKey;
use base64::Engine as _;
use base64::engine::general_purpose::{STANDARD, URL_SAFE_NO_PAD};
use proto_api::names::Profile;
use proto_client::testing::{StubRequest, StubServer, json_response};
use serde_json::json;
use tokio_rustls::TlsAcceptor;

use super::*;

const NOW: i64 = 1_700_000_000;

/// Spoils the claims of a token.
type ClaimChange = fn(&mut Value);

/// An identity provider.
struct Provider {
    url: String,
    ca: PathBuf,
    /// What it publishes.
    keys: Arc<std::sync::Mutex<Vec<Value>>>,
    asked: Arc<AtomicU32>,
    /// Whether it leaves requests unanswered.
    silent: Arc<std::sync::Mutex<bool>>,
}

fn key() -> SigningKey {
    let pem = rcgen::KeyPair::generate().unwrap().serialize_pem();
    SigningKey::from_pem(pem.as_bytes()).unwrap()
}

/// A certificate with its key.
struct Certified {
    certificate: rcgen::Certificate,
    key: rcgen::KeyPair,
    params: rcgen::CertificateParams,
}

impl Certified {
    /// One that has signed itself.
    fn itself(is_ca: rcgen::IsCa) -> Self {
        let mut params = rcgen::CertificateParams::new(["localhost".to_owned()]).unwrap();
        params.is_ca = is_ca;
        let key = rcgen::KeyPair::generate().unwrap();
        Self { certificate: params.self_signed(&key).unwrap(), key, params }
    }

    /// One that this one has signed.
    fn issue(&self) -> Self {
        let params = rcgen::CertificateParams::new(["localhost".to_owned()]).unwrap();
        let key = rcgen::KeyPair::generate().unwrap();
        let issuer = rcgen::Issuer::from_params(&self.params, &self.key);
        Self { certificate: params.signed_by(&key, &issuer).unwrap(), key, params }
    }
}

impl Provider {
    async fn start() -> Self {
        let own = Certified::itself(rcgen::IsCa::NoCa);
        Self::start_with(&own.certificate, &own.key, &own.certificate).await
    }

    /// A provider with this certificate; its key is `key`, and `ca` what clients believe.
    async fn start_with(
        certificate: &rcgen::Certificate,
        key: &rcgen::KeyPair,
        ca: &rcgen::Certificate,
    ) -> Self {
        let tls = rustls::ServerConfig::builder_with_provider(Arc::new(
            rustls::crypto::ring::default_provider(),
        ))
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(
            vec![certificate.der().clone()],
            rustls::pki_types::PrivateKeyDer::try_from(key.serialize_der()).unwrap(),
        )
        .unwrap();
        let acceptor = TlsAcceptor::from(Arc::new(tls));
        let keys = Arc::new(std::sync::Mutex::new(Vec::new()));
        let asked = Arc::new(AtomicU32::new(0));
        let silent = Arc::new(std::sync::Mutex::new(false));
        let (published, count, mute) = (keys.clone(), asked.clone(), silent.clone());
        let realm = |port: u16| format!("https://localhost:{port}/realm");
        let answer = move |request: &StubRequest| {
            if *mute.lock().unwrap() {
                return None;
            }
            let base = realm(request.server.port());
            let body = match (request.path.as_str(), request.query.as_str()) {
                ("/realm/.well-known/openid-configuration", "") => {
                    json!({"issuer": base, "jwks_uri": format!("{base}/keys?v=1")})
                }
                ("/realm/keys", "v=1") => {
                    count.fetch_add(1, Ordering::Relaxed);
                    json!({"keys": *published.lock().unwrap()})
                }
                _ => json!({}),
            };
            Some(json_response(200, &body))
        };
        let server = StubServer::start_at([127, 0, 0, 1].into(), Some(acceptor), answer).await;
        let port = server.address.port();
        let file = std::env::temp_dir().join(format!("oidc-{}-{port}.crt", std::process::id()));
        std::fs::write(&file, ca.pem()).unwrap();
        Self { url: realm(port), ca: file, keys, asked, silent }
    }

    fn publish(&self, keys: &[&SigningKey]) {
        *self.keys.lock().unwrap() = keys.iter().map(|key| key.public().jwk()).collect();
    }

    fn settings(&self) -> OidcSettings {
        OidcSettings {
            issuer_url: self.url.clone(),
            client_id: "cluster".into(),
            username_claim: "sub".into(),
            username_prefix: None,
            groups_claim: Some("groups".into()),
            groups_prefix: "oidc:".into(),
            required_claims: vec![("hd".into(), "example.org".into())],
            ca_file: Some(self.ca.clone()),
            signing_algs: vec!["ES256".into()],
        }
    }

    fn reader(&self, change: impl FnOnce(&mut OidcSettings)) -> Oidc {
        let mut settings = self.settings();
        change(&mut settings);
        Oidc::new(settings, Names::new(Profile::Kubernetes)).unwrap()
    }

    fn claims(&self) -> Value {
        json!({
            "iss": self.url, "aud": ["other", "cluster"], "sub": "u1", "exp": NOW + 60, "nbf": NOW,
            "hd": "example.org", "groups": ["dev", "ops"], "email": "u@example.org",
        })
    }

    /// A token as the provider issues it, after `change`.
    fn token(&self, key: &SigningKey, change: impl FnOnce(&mut Value)) -> String {
        let mut claims = self.claims();
        change(&mut claims);
        jwt::sign(&claims, key).unwrap()
    }

    /// A token signed by an RSA key in PKCS#1 with an algorithm that this project's own tokens do not have.
    fn rsa_token(&self, pem: &str, name: &str) -> String {
        use ring::signature as by;
        let how: &dyn by::RsaEncoding = match name {
            "RS256" => &by::RSA_PKCS1_SHA256,
            "RS384" => &by::RSA_PKCS1_SHA384,
            "RS512" => &by::RSA_PKCS1_SHA512,
            "PS256" => &by::RSA_PSS_SHA256,
            "PS384" => &by::RSA_PSS_SHA384,
            "PS512" => &by::RSA_PSS_SHA512,
            other => panic!("{other}"),
        };
        let text: String = pem.lines().filter(|line| !line.starts_with('-')).collect();
        let key = by::RsaKeyPair::from_der(&STANDARD.decode(text).unwrap()).unwrap();
        let part = |json: &Value| URL_SAFE_NO_PAD.encode(json.to_string());
        let signed = format!("{}.{}", part(&json!({"alg": name})), part(&self.claims()));
        let mut signature = vec![0; key.public().modulus_len()];
        let random = ring::rand::SystemRandom::new();
        key.sign(how, &random, signed.as_bytes(), &mut signature).unwrap();
        format!("{signed}.{}", URL_SAFE_NO_PAD.encode(signature))
    }
}

fn now() -> OffsetDateTime {
    OffsetDateTime::from_unix_timestamp(NOW).unwrap()
}

#[tokio::test]
async fn an_id_token_names_its_user() {
    let (provider, key) = (Provider::start().await, key());
    provider.publish(&[&key]);
    let oidc = provider.reader(|_| {});
    let user = oidc.user(&provider.token(&key, |_| {}), now()).await.unwrap().unwrap();
    assert_eq!(user.name, format!("{}#u1", provider.url));
    assert_eq!(user.groups, ["oidc:dev", "oidc:ops", "system:authenticated"]);
    let email = provider.reader(|settings| settings.username_claim = "email".into());
    let by_email = email.user(&provider.token(&key, |_| {}), now()).await.unwrap().unwrap();
    assert_eq!(by_email.name, "u@example.org");
    let none =
        provider.token(&key, |claims| (claims["groups"], claims["nbf"]) = Default::default());
    let none = oidc.user(&none, now()).await.unwrap().unwrap();
    assert_eq!(none.groups, ["system:authenticated"], "null is nothing");
    let named = provider.reader(|settings| settings.username_prefix = Some("-".into()));
    let one_group = provider.token(&key, |claims| claims["groups"] = "solo".into());
    let bare = named.user(&one_group, now()).await.unwrap().unwrap();
    assert_eq!((bare.name.as_str(), bare.groups[0].as_str()), ("u1", "oidc:solo"));
    assert_eq!(oidc.user("a.b.c", now()).await.unwrap(), None);
    let other = provider.token(&key, |claims| claims["iss"] = "https://other".into());
    assert_eq!(oidc.user(&other, now()).await.unwrap(), None, "another authenticator's");
}

/// Go's rule: a certificate of an authority, whose CA flag is set, or one that is believed itself.
#[tokio::test]
async fn the_provider_s_certificate_is_of_an_authority_with_the_ca_flag_or_one_itself() {
    let authority = || Certified::itself(rcgen::IsCa::Ca(rcgen::BasicConstraints::Unconstrained));
    let (own, plain) = (authority(), Certified::itself(rcgen::IsCa::NoCa));
    let (leaf, of_plain) = (own.issue(), plain.issue());
    for (what, shown, believed, good) in [
        ("an authority itself", &own, &own, true),
        ("no authority, itself", &plain, &plain, true),
        ("signed by an authority", &leaf, &own, true),
        ("signed by another", &leaf, &authority(), false),
        ("signed by one without the flag", &of_plain, &plain, false),
        ("another authority", &authority(), &own, false),
    ] {
        let (key, believed) = (key(), &believed.certificate);
        let provider = Provider::start_with(&shown.certificate, &shown.key, believed).await;
        provider.publish(&[&key]);
        let user = provider.reader(|_| {}).user(&provider.token(&key, |_| {}), now()).await;
        assert_eq!(user.is_ok(), good, "{what}: {user:?}");
    }
}

#[tokio::test]
async fn tokens_with_wrong_claims_or_signatures_are_refused() {
    let (provider, key, other_key) = (Provider::start().await, key(), key());
    provider.publish(&[&key]);
    let oidc = provider.reader(|_| {});
    let refused: [(&str, ClaimChange); 10] = [
        ("another client", |claims| claims["aud"] = "other".into()),
        ("no audience", |claims| claims["aud"] = Value::Null),
        ("expired", |claims| claims["exp"] = NOW.into()),
        ("no expiry", |claims| claims["exp"] = "soon".into()),
        ("not yet", |claims| claims["nbf"] = (NOW + 61).into()),
        ("another domain", |claims| claims["hd"] = "example.com".into()),
        ("no domain", |claims| claims["hd"] = Value::Null),
        ("no name", |claims| claims["sub"] = Value::Null),
        ("an empty name", |claims| claims["sub"] = "".into()),
        ("groups that are numbers", |claims| claims["groups"] = json!([1])),
    ];
    for (what, change) in refused {
        let outcome = oidc.user(&provider.token(&key, change), now()).await;
        assert!(matches!(outcome, Err(OidcError::Claim(_))), "{what}: {outcome:?}");
    }
    let email = provider.reader(|settings| settings.username_claim = "email".into());
    let unverified = provider.token(&key, |claims| claims["email_verified"] = false.into());
    assert!(email.user(&unverified, now()).await.is_err());
    let unknown = provider.token(&other_key, |_| {});
    assert!(matches!(oidc.user(&unknown, now()).await, Err(OidcError::Token(_))));
    let rsa_only = provider.reader(|settings| settings.signing_algs = vec!["RS256".into()]);
    assert!(rsa_only.user(&provider.token(&key, |_| {}), now()).await.is_err());
}

/// A key of RSA, for an algorithm or for all of RSA, signs ID tokens by each; the flag says which count.
#[tokio::test]
async fn id_tokens_have_an_algorithm_of_the_flag_and_of_their_key() {
    let pem = include_str!("../../../token/testdata/rsa.key");
    let public = SigningKey::from_pem(pem.as_bytes()).unwrap().public().jwk();
    let provider = Provider::start().await;
    let published = |alg: Value| {
        let mut key = public.clone();
        key["alg"] = alg;
        *provider.keys.lock().unwrap() = vec![key];
    };
    let all = ["RS256", "RS384", "RS512", "PS256", "PS384", "PS512"];
    let accepts = async |flag: &[&str], token: &str| {
        let signing_algs = flag.iter().map(|&name| name.to_owned()).collect();
        let oidc = provider.reader(|settings| settings.signing_algs = signing_algs);
        oidc.user(token, now()).await.is_ok_and(|user| user.is_some())
    };
    for name in all {
        let token = provider.rsa_token(pem, name);
        published(Value::Null);
        assert!(accepts(&all, &token).await, "{name}");
        assert!(accepts(&[name], &token).await, "{name} alone");
        let others: Vec<&str> = all.into_iter().filter(|other| *other != name).collect();
        assert!(!accepts(&others, &token).await, "{name} where others are accepted");
        published(name.into());
        assert!(accepts(&all, &token).await, "{name} by a key for it");
        published(others[0].into());
        assert!(!accepts(&all, &token).await, "{name} by a key for {}", others[0]);
    }
}

/// ES512, whose keys are on P-521, is an algorithm as others are: by the flag, with a published key.
#[tokio::test]
async fn id_tokens_of_es512_count_where_the_flag_names_it() {
    let provider = Provider::start().await;
    let p521 = SigningKey::from_pem(include_bytes!("../../../token/testdata/p521.key")).unwrap();
    provider.publish(&[&p521, &key()]);
    let token = provider.token(&p521, |_| {});
    let with = |names: [&str; 2]| {
        provider.reader(|settings| settings.signing_algs = names.map(str::to_owned).to_vec())
    };
    let user = with(["ES256", "ES512"]).user(&token, now()).await.unwrap();
    assert!(user.is_some());
    let others = with(["ES256", "ES384"]).user(&token, now()).await;
    assert!(matches!(others, Err(OidcError::Token(JwtError::Algorithm))), "{others:?}");
    let (signed, signature) = token.rsplit_once('.').unwrap();
    let mut damaged = URL_SAFE_NO_PAD.decode(signature).unwrap();
    assert_eq!(damaged.len(), 132);
    damaged[131] ^= 1;
    for wrong in [damaged, vec![0; 132], Vec::new()] {
        let token = format!("{signed}.{}", URL_SAFE_NO_PAD.encode(wrong));
        let refused = with(["ES256", "ES512"]).user(&token, now()).await;
        assert!(matches!(refused, Err(OidcError::Token(JwtError::Signature))), "{refused:?}");
    }
}

/// A token that could not be accepted by any key does not cost the provider a request.
#[tokio::test]
async fn algorithms_that_are_not_accepted_ask_for_no_keys() {
    let provider = Provider::start().await;
    let oidc = provider.reader(|settings| settings.signing_algs = vec!["RS256".into()]);
    let refused = oidc.user(&provider.token(&key(), |_| {}), now()).await;
    assert!(matches!(refused, Err(OidcError::Token(JwtError::Algorithm))), "{refused:?}");
    assert_eq!(provider.asked.load(Ordering::Relaxed), 0);
}

#[tokio::test]
async fn new_keys_are_read_when_a_token_names_one_and_not_more_often_than_that() {
    let (provider, old, new) = (Provider::start().await, key(), key());
    provider.publish(&[&old]);
    let oidc = provider.reader(|_| {});
    assert!(oidc.user(&provider.token(&old, |_| {}), now()).await.is_ok());
    provider.publish(&[&new]);
    // Within the interval unknown keys cost the provider nothing.
    for _ in 0..3 {
        assert!(oidc.user(&provider.token(&new, |_| {}), now()).await.is_err());
    }
    assert_eq!(provider.asked.load(Ordering::Relaxed), 1);
    *oidc.0.asked.lock().unwrap() = None;
    assert!(oidc.user(&provider.token(&new, |_| {}), now()).await.is_ok());
    assert_eq!(provider.asked.load(Ordering::Relaxed), 2);
    assert!(oidc.user(&provider.token(&old, |_| {}), now()).await.is_err(), "withdrawn");
}

/// A user without the groups that another server has would be another user.
#[tokio::test]
async fn claims_of_other_servers_are_refused_by_name() {
    let (provider, key) = (Provider::start().await, key());
    provider.publish(&[&key]);
    let oidc = provider.reader(|_| {});
    let elsewhere = |claim: &'static str| {
        move |claims: &mut Value| {
            claims.as_object_mut().unwrap().remove(claim);
            claims["_claim_names"] = json!({claim: "src1"});
            claims["_claim_sources"] = json!({"src1": {"endpoint": "https://groups.example"}});
        }
    };
    for claim in ["groups", "sub", "hd"] {
        let refused = oidc.user(&provider.token(&key, elsewhere(claim)), now()).await;
        let why = refused.unwrap_err().to_string();
        assert!(why.starts_with(&format!("claim {claim:?} is not in the token")), "{why}");
    }
    // A claim in the token itself is used; a distributed claim that no flag names is ignored.
    let both = provider.token(&key, |claims| claims["_claim_names"] = json!({"groups": "src1"}));
    assert!(oidc.user(&both, now()).await.unwrap().is_some());
    let other = provider.token(&key, |claims| claims["_claim_names"] = json!({"photo": "src1"}));
    assert!(oidc.user(&other, now()).await.unwrap().is_some());
}

/// A token with a bad signature asks a provider that does not answer; the others' keys are known.
#[tokio::test]
async fn known_keys_verify_tokens_while_the_provider_does_not_answer() {
    let (provider, key, other_key) = (Provider::start().await, key(), key());
    provider.publish(&[&key]);
    let oidc = Arc::new(provider.reader(|_| {}));
    assert!(oidc.user(&provider.token(&key, |_| {}), now()).await.is_ok());
    *oidc.0.asked.lock().unwrap() = None;
    *provider.silent.lock().unwrap() = true;
    let (unknown, asking) = (provider.token(&other_key, |_| {}), oidc.clone());
    let waits = tokio::spawn(async move { asking.user(&unknown, now()).await.map(|_| ()) });
    tokio::task::yield_now().await;
    for _ in 0..3 {
        assert!(oidc.user(&provider.token(&key, |_| {}), now()).await.is_ok());
    }
    assert!(!waits.is_finished());
    waits.abort();
}

#[test]
fn contradicting_settings_are_refused() {
    let settings = OidcSettings {
        issuer_url: "https://a/".into(),
        client_id: "c".into(),
        username_claim: "sub".into(),
        username_prefix: None,
        groups_claim: None,
        groups_prefix: String::new(),
        required_claims: Vec::new(),
        ca_file: None,
        signing_algs: vec!["RS256".into()],
    };
    let refused = |change: fn(&mut OidcSettings)| {
        let mut settings = settings.clone();
        change(&mut settings);
        Oidc::new(settings, Names::new(Profile::Kubernetes)).is_err()
    };
    assert!(!refused(|_| {}));
    assert!(refused(|settings| settings.issuer_url = "http://a/".into()));
    assert!(refused(|settings| settings.issuer_url = "x".into()));
    assert!(refused(|settings| settings.client_id.clear()));
    let algorithms = |names: &str| {
        let signing_algs = names.split(',').map(str::to_owned).collect();
        let settings = OidcSettings { signing_algs, ..settings.clone() };
        Oidc::new(settings, Names::new(Profile::Kubernetes)).map(drop).map_err(|e| e.to_string())
    };
    assert_eq!(algorithms("RS256,RS384,RS512,PS256,PS384,PS512,ES256,ES384,ES512"), Ok(()));
    for (names, refused) in
        [("none", "none"), ("RS256,EdDSA", "EdDSA"), ("HS256,ES256", "HS256"), ("rs256", "rs256")]
    {
        let why = format!(
            "--oidc-signing-algs: {refused:?} is not supported, of RS256, RS384, RS512, PS256, PS384, PS512, ES256, ES384, ES512"
        );
        assert_eq!(algorithms(names), Err(why));
    }
}
