//! The pages over real TLS, with a scripted API server.

use proto_api::authentication::v1::UserInfo;
use proto_daemon::drain::Drain;
use proto_daemon::health::Health;
use proto_daemon::metrics::{BuildInfo, Metrics};
use proto_daemon::ready::Readiness;
use proto_daemon::statusz::StatusBoard;
use proto_daemon::tls::AnyServer;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use super::access::{AccessRules, Anonymous, Authorization, Tokens};
use super::tls::TlsFiles;
use super::*;

/// Accepts the token `good` of a scraper, which may read metrics; nothing else is allowed.
struct Script;

impl Reviews for Script {
    fn token<'a>(
        &'a self,
        token: &'a str,
    ) -> BoxFuture<'a, Result<TokenReviewStatus, ClientError>> {
        let username = token.strip_prefix("of-").unwrap_or_default().to_owned();
        let user = UserInfo { username, ..UserInfo::default() };
        let authenticated = token.starts_with("of-");
        let status = TokenReviewStatus { authenticated, user, ..TokenReviewStatus::default() };
        Box::pin(async move { Ok(status) })
    }

    fn access<'a>(
        &'a self,
        spec: SubjectAccessReviewSpec,
    ) -> BoxFuture<'a, Result<SubjectAccessReviewStatus, ClientError>> {
        let asked = spec.non_resource_attributes.expect("about a path");
        assert!(spec.resource_attributes.is_none());
        let allowed = spec.user == "scraper" && asked.path == "/metrics" && asked.verb == "get";
        let status = SubjectAccessReviewStatus { allowed, ..SubjectAccessReviewStatus::default() };
        Box::pin(async move { Ok(status) })
    }
}

async fn serve() -> (SocketAddr, Drain) {
    let tls = ServerTls::new(&TlsFiles::default(), &["localhost".to_owned()]).expect("TLS");
    let rules = AccessRules {
        anonymous: Anonymous::Allowed,
        tokens: Tokens::REVIEWED,
        authorization: Authorization::WEBHOOK,
    };
    let open = ["/healthz", "/readyz", "/livez"].map(str::to_owned).to_vec();
    let address = ([127, 0, 0, 1], 0).into();
    let server = SecureServer::bind(address, tls, rules, Box::new(Script), open).await;
    let server = server.expect("bound");
    let (address, drain) = (server.address(), Drain::default());
    let build = BuildInfo { version: "1", commit: "c" };
    let pages = AdminPages {
        health: Health::new(Readiness::default()),
        metrics: Metrics::new("x", build).expect("valid names"),
        status: StatusBoard::default(),
    };
    tokio::spawn(server.run(pages, drain.watch()));
    (address, drain)
}

/// The response to a request with these headers.
async fn ask(address: SocketAddr, request: &str, headers: &str) -> String {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = rustls::ClientConfig::builder_with_provider(provider.clone())
        .with_safe_default_protocol_versions()
        .expect("versions")
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(AnyServer(provider)))
        .with_no_client_auth();
    let socket = TcpStream::connect(address).await.expect("connected");
    let connector = tokio_rustls::TlsConnector::from(Arc::new(config));
    let name = "localhost".try_into().expect("name");
    let mut stream = connector.connect(name, socket).await.expect("TLS");
    let text = format!("{request} HTTP/1.1\r\nhost: a\r\nconnection: close\r\n{headers}\r\n");
    stream.write_all(text.as_bytes()).await.expect("sent");
    let mut answer = Vec::new();
    // The server may close without close_notify.
    let _ = stream.read_to_end(&mut answer).await;
    String::from_utf8_lossy(&answer).into_owned()
}

#[tokio::test]
async fn health_is_for_all_and_metrics_for_those_who_may() {
    let (address, _drain) = serve().await;
    for (request, headers, code) in [
        ("GET /healthz", "", 200),
        ("HEAD /readyz?verbose", "", 200),
        ("GET /livez", "authorization: Bearer nonsense\r\n", 200),
        ("GET /metrics", "", 403),
        ("GET /statusz", "", 403),
        ("GET /healthz/ping", "", 403),
        ("GET /metrics", "authorization: Bearer nonsense\r\n", 401),
        ("GET /metrics", "authorization: Bearer of-scraper\r\n", 200),
        ("HEAD /metrics", "authorization: Bearer of-scraper\r\n", 403),
        ("GET /statusz", "authorization: Bearer of-scraper\r\n", 403),
        ("GET /metrics", "authorization: Bearer of-bob\r\n", 403),
        ("GET /metricsx", "authorization: Bearer of-scraper\r\n", 404),
        ("GET /metrics/x", "authorization: Bearer of-scraper\r\n", 404),
        ("GET /debug/pprof", "", 404),
        ("POST /healthz", "", 405),
    ] {
        let answer = ask(address, request, headers).await;
        assert!(answer.starts_with(&format!("HTTP/1.1 {code} ")), "{request} {headers}: {answer}");
    }
    let refused = ask(address, "GET /metrics", "").await;
    let words = "forbidden: User \"system:anonymous\" cannot get path \"/metrics\"\n";
    assert!(refused.ends_with(words), "{refused}");
}

#[tokio::test]
async fn nothing_is_served_without_tls() {
    let (address, _drain) = serve().await;
    let mut socket = TcpStream::connect(address).await.expect("connected");
    socket.write_all(b"GET /metrics HTTP/1.1\r\nhost: a\r\n\r\n").await.expect("sent");
    let mut answer = Vec::new();
    let _ = socket.read_to_end(&mut answer).await;
    assert!(!answer.starts_with(b"HTTP"), "{}", String::from_utf8_lossy(&answer));
}
