//! The server's certificate and the authorities of clients and proxies are replaced while the server runs and clients are connected.

use std::net::{IpAddr, SocketAddr};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Instant;

use apiserver_auth::RequestHeaderSettings;
use bytes::Bytes;
use http::{HeaderName, Request, Response};
use http_body_util::Full;
use hyper::client::conn::http1::SendRequest;
use orch_apiserver::Config;
use orch_apiserver::config::{Anonymous, AuthorizationMode, Credentials, RequestHeaderConfig};
use proto_client::testing::{StubRequest, StubServer};
use proto_daemon::tls::{AnyServer, ClientTrust};
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::{ClientConfig, RootCertStore, ServerConfig};
use tokio::net::TcpStream;
use tokio_rustls::{TlsAcceptor, TlsConnector};

use crate::identity::{DAY, authority, client};
use crate::key_rotation::{NOTICED_MAX, replace};
use crate::proxy::{node, routed};
use crate::support::{TestServer, kubernetes, reply};

/// A request with the user that a proxy names; the user in the denial of a server that denies everything, or the code.
async fn user(connection: &mut SendRequest<Full<Bytes>>, named: &str) -> String {
    let request = Request::get("/api/v1/pods").header("host", "t").header("x-remote-user", named);
    connection.ready().await.unwrap();
    let sent = connection.send_request(request.body(Full::default()).unwrap()).await.unwrap();
    let answer = reply(sent).await;
    let message = answer.json()["message"].as_str().unwrap().to_owned();
    match answer.code() {
        403 => message.split('"').nth(1).unwrap().to_owned(),
        code => code.to_string(),
    }
}

/// Waits until a new connection with this certificate is that of a user.
async fn wait_for_user(
    server: &TestServer,
    identity: &(String, String),
    named: &str,
    expected: &str,
) {
    let deadline = Instant::now() + NOTICED_MAX;
    loop {
        let found = user(&mut server.connect_as(Some(identity)).await, named).await;
        if found == expected {
            return;
        }
        assert!(Instant::now() < deadline, "{found}, expected {expected}");
        tokio::time::sleep(std::time::Duration::from_millis(20)).await;
    }
}

fn denying() -> Config {
    Config {
        anonymous: Anonymous::Refused,
        authorization: vec![AuthorizationMode::AlwaysDeny],
        ..Config::for_tests(kubernetes())
    }
}

/// What this server tells others to believe.
async fn published(server: &TestServer, key: &str) -> String {
    let path = "/api/v1/namespaces/kube-system/configmaps/extension-apiserver-authentication";
    server.get(path).await.expect(200)["data"][key].as_str().unwrap_or_default().to_owned()
}

async fn wait_for_publication(server: &TestServer, key: &str, expected: &str) {
    let deadline = Instant::now() + NOTICED_MAX;
    while !published(server, key).await.contains(expected) {
        assert!(Instant::now() < deadline, "{key} is not published");
        tokio::time::sleep(std::time::Duration::from_millis(20)).await;
    }
}

#[tokio::test]
async fn authorities_of_clients_count_from_the_next_request_of_open_connections_on() {
    let dir = tempfile::tempdir().unwrap();
    let (file, second) = (dir.path().join("ca.crt"), dir.path().join("second.crt"));
    let (old, new) = (authority("old", &file), authority("new", &second));
    let added = std::fs::read_to_string(&second).unwrap();
    let both = format!("{}{added}", std::fs::read_to_string(&file).unwrap());
    let server = TestServer::with(Config { client_ca_file: Some(file.clone()), ..denying() }).await;
    let (bob, eve) = (client(&old, ("bob", ""), DAY), client(&new, ("eve", ""), DAY));
    let mut of_bob = server.connect_as(Some(&bob)).await;
    let mut of_eve = server.connect_as(Some(&eve)).await;
    assert_eq!(user(&mut of_bob, "").await, "bob");
    assert_eq!(user(&mut of_eve, "").await, "401");

    replace(&file, &both);
    wait_for_user(&server, &eve, "", "eve").await;
    assert_eq!(user(&mut of_eve, "").await, "eve", "its connection is older than its authority");
    assert_eq!(user(&mut of_bob, "").await, "bob");
    wait_for_publication(&server, "client-ca-file", &added.replace('\r', "")).await;

    replace(&file, &added);
    wait_for_user(&server, &bob, "", "401").await;
    assert_eq!(user(&mut of_bob, "").await, "401", "its authority is gone");
    assert_eq!(user(&mut of_eve, "").await, "eve");
}

#[tokio::test]
async fn the_authority_of_proxies_is_replaced() {
    let dir = tempfile::tempdir().unwrap();
    let (file, second) = (dir.path().join("proxies.crt"), dir.path().join("second.crt"));
    let (old, new) = (authority("old", &file), authority("new", &second));
    let headers = RequestHeaderSettings {
        allowed_names: vec!["front".to_owned()],
        username: vec![HeaderName::from_static("x-remote-user")],
        ..RequestHeaderSettings::default()
    };
    let request_headers = Some(RequestHeaderConfig { ca_file: file.clone(), headers });
    let server = TestServer::with(Config { request_headers, ..denying() }).await;
    let (before, after) = (client(&old, ("front", ""), DAY), client(&new, ("front", ""), DAY));
    let mut open = server.connect_as(Some(&before)).await;
    assert_eq!(user(&mut open, "jane").await, "jane");
    let added = std::fs::read_to_string(&second).unwrap();
    replace(&file, &added);
    wait_for_user(&server, &after, "jane", "jane").await;
    assert_eq!(user(&mut open, "jane").await, "401");
    wait_for_publication(&server, "requestheader-client-ca-file", &added.replace('\r', "")).await;
}

/// The certificate that a new connection is shown, in DER, or why there is no connection.
async fn shown(server: &TestServer) -> Result<Vec<u8>, String> {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = ClientConfig::builder_with_provider(provider.clone())
        .with_safe_default_protocol_versions()
        .unwrap()
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(AnyServer(provider)))
        .with_no_client_auth();
    let socket = TcpStream::connect(server.address()).await.map_err(|error| error.to_string())?;
    let connector = TlsConnector::from(Arc::new(config));
    let name = ServerName::try_from("127.0.0.1").unwrap();
    let stream = connector.connect(name, socket).await.map_err(|error| error.to_string())?;
    let (_, session) = stream.get_ref();
    Ok(session.peer_certificates().unwrap()[0].to_vec())
}

fn write_pair(key: &Path, certificate: &Path) -> Vec<u8> {
    let made = rcgen::generate_simple_self_signed(vec!["127.0.0.1".to_owned()]).unwrap();
    // As a program renews them: the key first, so that for a moment they do not belong together.
    replace(key, &made.signing_key.serialize_pem());
    replace(certificate, &made.cert.pem());
    made.cert.der().to_vec()
}

#[tokio::test]
async fn the_server_shows_its_new_certificate_and_refuses_no_connection_meanwhile() {
    let dir = tempfile::tempdir().unwrap();
    let (certificate, key) = (dir.path().join("crt"), dir.path().join("pem"));
    let first = write_pair(&key, &certificate);
    let serving = Some(Credentials { certificate: certificate.clone(), key: key.clone() });
    let server =
        Arc::new(TestServer::with(Config { serving, ..Config::for_tests(kubernetes()) }).await);
    assert_eq!(shown(&server).await, Ok(first.clone()));
    let (done, count) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
    let load = tokio::spawn({
        let (server, done, count) = (server.clone(), done.clone(), count.clone());
        async move {
            let mut seen: Vec<Vec<u8>> = Vec::new();
            while !done.load(Ordering::SeqCst) {
                let now = shown(&server).await?;
                count.fetch_add(1, Ordering::SeqCst);
                if seen.last() != Some(&now) {
                    seen.push(now);
                }
            }
            Ok::<_, String>(seen)
        }
    });
    while count.load(Ordering::SeqCst) == 0 {
        tokio::task::yield_now().await;
    }
    let second = write_pair(&key, &certificate);
    let deadline = Instant::now() + NOTICED_MAX;
    while shown(&server).await != Ok(second.clone()) {
        assert!(Instant::now() < deadline, "the old certificate is shown");
    }
    done.store(true, Ordering::SeqCst);
    let seen = load.await.unwrap().unwrap();
    assert!(seen == [first.clone()] || seen == [first, second], "one after the other");
}

/// A kubelet that answers every request with the hash of the certificate that it is shown.
async fn kubelet_that_tells(ip: IpAddr) -> SocketAddr {
    let made = rcgen::generate_simple_self_signed(vec![ip.to_string()]).unwrap();
    let key = PrivateKeyDer::try_from(made.signing_key.serialize_der()).unwrap();
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let mut roots = RootCertStore::empty();
    roots.add(made.cert.der().clone()).unwrap();
    let trust = ClientTrust::new(provider.clone(), roots).unwrap();
    let config = ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_client_cert_verifier(Arc::new(trust))
        .with_single_cert(vec![made.cert.der().clone()], key)
        .unwrap();
    let acceptor = TlsAcceptor::from(Arc::new(config));
    let answer = |request: &StubRequest| {
        let text = request.certificate.as_ref().map(|der| proto_api::sha256_hex(der));
        // The next request shows its certificate on a new connection.
        let response = Response::builder().header("connection", "close");
        Some(response.body(Bytes::from(text.unwrap_or_default())).unwrap())
    };
    StubServer::start_at(ip, Some(acceptor), answer).await.address
}

fn hash(identity: &(String, String)) -> String {
    let der = CertificateDer::from_pem_slice(identity.0.as_bytes()).unwrap();
    proto_api::sha256_hex(&der)
}

#[tokio::test]
async fn kubelets_are_shown_the_new_client_certificate() {
    let Some(ip) = routed() else {
        println!("SKIPPED kubelets_are_shown_the_new_client_certificate: only loopback here");
        return;
    };
    let dir = tempfile::tempdir().unwrap();
    let issuer = authority("servers", &dir.path().join("ca.crt"));
    let (first, second) =
        (client(&issuer, ("first", ""), DAY), client(&issuer, ("second", ""), DAY));
    let (certificate, key) = (dir.path().join("crt"), dir.path().join("pem"));
    let write = |(chain, text): &(String, String)| {
        replace(&key, text);
        replace(&certificate, chain);
    };
    write(&first);
    let mut config = Config::for_tests(kubernetes());
    config.node_client.credentials =
        Some(Credentials { certificate: certificate.clone(), key: key.clone() });
    let server = TestServer::with(config).await;
    let agent = kubelet_that_tells(ip).await;
    node(&server, "n", "InternalIP", &ip.to_string(), agent.port()).await;
    let shown = async || {
        let answer = server.get("/api/v1/nodes/n/proxy/x").await;
        String::from_utf8_lossy(&answer.body).into_owned()
    };
    assert_eq!(shown().await, hash(&first));
    write(&second);
    let deadline = Instant::now() + NOTICED_MAX;
    while shown().await != hash(&second) {
        assert!(Instant::now() < deadline, "the old certificate is shown");
    }
}
