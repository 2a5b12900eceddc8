//! What a server is asked with: users by token, users of an identity provider, policies of ABAC, and a service that answers access reviews. The recorder
//! (`examples/record_authorizers.rs`) gives Kubernetes' own server the same.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;

use apiserver_token::{SigningKey, jwt};
use proto_client::testing::{StubRequest, StubServer, json_response};
use rcgen::{CertificateParams, Issuer, KeyPair};
use rustls::pki_types::PrivateKeyDer;
use serde_json::{Value, json};
use tokio_rustls::TlsAcceptor;

/// Static tokens; each is the name of its user, but for those of kubelets and of users that are kubelets in part.
const TOKENS: &str = r#"jane,jane,u2,devs
joe,joe,u3
ann,ann,u4,"ops,auditors"
bob,bob,u5
eve,eve,u6
zoe,zoe,u7
imp,imp,u8
admin,admin,u9,system:masters
n1,system:node:n1,u10,system:nodes
ghost,system:node:ghost,u11,system:nodes
chief,system:node:n2,u12,"system:nodes,system:masters"
fake,system:node:n1,u13
crowd,crowd,u14,system:nodes
nameless,system:node:,u15,system:nodes
named,system:node:n2,u16,system:masters
grouped,grouped,u17,"system:nodes,system:masters"
"#;

/// Policies of ABAC.
const POLICIES: &str = include_str!("policies.jsonl");

/// The client that ID tokens are for.
pub const CLIENT: &str = "cluster";

/// Files that a server reads, and the servers behind them, which end with the runtime.
pub struct World {
    pub dir: tempfile::TempDir,
    pub issuer: String,
    key: SigningKey,
}

impl World {
    pub async fn start() -> Self {
        let dir = tempfile::tempdir().expect("a directory");
        let write =
            |name: &str, text: &str| std::fs::write(dir.path().join(name), text).expect("written");
        write("tokens.csv", TOKENS);
        write("policies.jsonl", POLICIES);
        let key = include_bytes!("../../../../token/testdata/rsa.key");
        let key = SigningKey::from_pem(key).expect("a key");
        let webhook = StubServer::start(|request| {
            let (code, answer) = review(&serde_json::from_slice(&request.body).unwrap_or_default());
            Some(json_response(code, &answer))
        });
        let url = format!("http://{}/authorize", webhook.await.address);
        let config = json!({
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": "c", "cluster": {"server": url}}],
            "users": [{"name": "u"}],
            "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}],
            "current-context": "c",
        });
        write("webhook.conf", &config.to_string());
        let (authority, acceptor) = certificates();
        write("oidc.crt", &authority);
        let keys = json!({"keys": [key.public().jwk()]});
        let answer = move |request: &StubRequest| match request.path.as_str() {
            "/keys" => Some(json_response(200, &keys)),
            _ => Some(json_response(200, &discovery(request.server))),
        };
        let provider = StubServer::start_at([127, 0, 0, 1].into(), Some(acceptor), answer).await;
        Self { issuer: format!("https://{}", provider.address), dir, key }
    }

    pub fn file(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// The bearer token of the first column of a table: a static token, or claims of an ID token, which are completed and signed.
    pub fn bearer(&self, who: &str) -> String {
        let Ok(Value::Object(claims)) = serde_json::from_str(who) else { return who.to_owned() };
        let now = time::OffsetDateTime::now_utc().unix_timestamp();
        let mut all = json!({"iss": self.issuer, "aud": CLIENT, "iat": now, "exp": now + 3600});
        for (claim, value) in claims {
            all[claim] = match value.as_str().and_then(|text| text.strip_prefix("now")) {
                Some(offset) => json!(now + offset.parse::<i64>().expect("seconds")),
                None => value,
            };
        }
        jwt::sign(&all, &self.key).expect("signed")
    }
}

/// What the service says of a user's request.
fn review(review: &Value) -> (u16, Value) {
    let spec = &review["spec"];
    let attributes = &spec["resourceAttributes"];
    let is = |field: &str, value: &str| attributes[field] == value;
    let status = match spec["user"].as_str().unwrap_or_default() {
        "jane" if is("resource", "secrets") => {
            json!({"allowed": false, "denied": true, "reason": "secrets are secret"})
        }
        "jane" if is("namespace", "team") => json!({"allowed": true, "reason": "her team"}),
        "jane" => json!({"allowed": false, "reason": "not of her team"}),
        "joe" | "oidc:alice" => json!({"allowed": true}),
        "ann" if spec["groups"].as_array().is_some_and(|all| all.contains(&json!("ops"))) => {
            json!({"allowed": !is("verb", "delete")})
        }
        "eve" => json!({"allowed": true, "denied": true}),
        "bob" => json!({"allowed": false, "evaluationError": "the directory is down"}),
        "imp" if is("verb", "impersonate") => json!({"allowed": is("name", "joe")}),
        "zoe" => return (403, json!({})),
        _ => json!({"allowed": false}),
    };
    let kind = (&review["apiVersion"], &review["kind"]);
    (200, json!({"apiVersion": kind.0, "kind": kind.1, "status": status}))
}

fn discovery(address: SocketAddr) -> Value {
    let issuer = format!("https://{address}");
    json!({
        "issuer": issuer,
        "authorization_endpoint": format!("{issuer}/auth"),
        "token_endpoint": format!("{issuer}/token"),
        "jwks_uri": format!("{issuer}/keys"),
        "response_types_supported": ["id_token"],
        "subject_types_supported": ["public"],
        "id_token_signing_alg_values_supported": ["RS256"],
    })
}

/// An authority, and the TLS of a server on loopback with a certificate of it.
fn certificates() -> (String, TlsAcceptor) {
    let key = KeyPair::generate().expect("a key");
    let mut params = CertificateParams::default();
    params.distinguished_name.push(rcgen::DnType::CommonName, "provider-ca");
    params.is_ca = rcgen::IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
    let authority = params.self_signed(&key).expect("an authority").pem();
    let issuer = Issuer::new(params, key);
    let key = KeyPair::generate().expect("a key");
    let own = CertificateParams::new(["127.0.0.1".to_owned()]).expect("names");
    let own = own.signed_by(&key, &issuer).expect("a certificate");
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = rustls::ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .expect("versions")
        .with_no_client_auth()
        .with_single_cert(
            vec![own.der().clone()],
            PrivateKeyDer::try_from(key.serialize_der()).expect("a key"),
        )
        .expect("an identity");
    (authority, TlsAcceptor::from(Arc::new(config)))
}
