//! `--tls-min-version` and `--tls-cipher-suites` of the listener, seen by clients that know older versions and other suites.

use std::sync::Arc;

use orch_apiserver::Config;
use proto_client::serving::tls::Terms;
use rustls::crypto::CryptoProvider;
use rustls::pki_types::ServerName;
use rustls::version::{TLS12, TLS13};
use rustls::{CipherSuite, ClientConfig, ProtocolVersion, SupportedProtocolVersion};
use tokio_rustls::TlsConnector;

use crate::support::{TestServer, kubernetes};

const AES_128: CipherSuite = CipherSuite::TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256;
const AES_256: CipherSuite = CipherSuite::TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384;

async fn server(min_version: &str, suites: &[&str]) -> TestServer {
    let suites = suites.iter().map(|name| (*name).to_owned()).collect();
    let tls_terms = Terms { min_version: min_version.to_owned(), suites };
    TestServer::with(Config { tls_terms, ..Config::for_tests(kubernetes()) }).await
}

/// What a client of these versions and suites of TLS 1.2 agrees with the server on; `None` if they agree on nothing.
async fn agreed(
    server: &TestServer,
    versions: &[&'static SupportedProtocolVersion],
    suites: &[CipherSuite],
) -> Option<(ProtocolVersion, CipherSuite)> {
    let mut provider: CryptoProvider = rustls::crypto::ring::default_provider();
    let is_known = |suite: &rustls::SupportedCipherSuite| {
        suite.tls13().is_some() || suites.contains(&suite.suite())
    };
    provider.cipher_suites.retain(is_known);
    let config = ClientConfig::builder_with_provider(Arc::new(provider))
        .with_protocol_versions(versions)
        .unwrap()
        .with_root_certificates(server.roots())
        .with_no_client_auth();
    let name = ServerName::try_from("127.0.0.1").unwrap();
    let stream =
        TlsConnector::from(Arc::new(config)).connect(name, server.tcp().await).await.ok()?;
    let (_, connection) = stream.get_ref();
    let suite = connection.negotiated_cipher_suite().unwrap().suite();
    Some((connection.protocol_version().unwrap(), suite))
}

#[tokio::test]
async fn older_versions_than_the_minimum_are_refused() {
    let lenient = server("VersionTLS12", &[]).await;
    let found = agreed(&lenient, &[&TLS12], &[AES_128]).await;
    assert_eq!(found, Some((ProtocolVersion::TLSv1_2, AES_128)));
    let strict = server("VersionTLS13", &[]).await;
    assert_eq!(agreed(&strict, &[&TLS12], &[AES_128]).await, None);
    let newer = agreed(&strict, &[&TLS12, &TLS13], &[AES_128]).await;
    assert_eq!(newer.map(|(version, _)| version), Some(ProtocolVersion::TLSv1_3));
}

#[tokio::test]
async fn only_the_listed_cipher_suites_are_agreed_on() {
    let server = server("", &["TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384"]).await;
    let both = agreed(&server, &[&TLS12], &[AES_128, AES_256]).await;
    assert_eq!(both, Some((ProtocolVersion::TLSv1_2, AES_256)));
    assert_eq!(agreed(&server, &[&TLS12], &[AES_128]).await, None);
    // The suites of TLS 1.3 are not configurable, as in Kubernetes.
    let newer = agreed(&server, &[&TLS13], &[]).await;
    assert_eq!(newer.map(|(version, _)| version), Some(ProtocolVersion::TLSv1_3));
}
