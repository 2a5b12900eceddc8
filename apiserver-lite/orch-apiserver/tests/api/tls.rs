//! TLS servers of tests: kubelets, webhooks and other API servers, with certificates that they sign themselves.

use std::sync::Arc;

use rustls::RootCertStore;
use rustls::pki_types::PrivateKeyDer;
use rustls::server::WebPkiClientVerifier;
use tokio_rustls::TlsAcceptor;

/// Accepts connections as a server of these names; with `clients` it asks for certificates of theirs, and accepts connections without one. The certificate
/// is returned as PEM.
pub fn self_signed(names: &[&str], clients: Option<RootCertStore>) -> (TlsAcceptor, String) {
    let names: Vec<String> = names.iter().map(|name| (*name).to_owned()).collect();
    let made = rcgen::generate_simple_self_signed(names).unwrap();
    let key = PrivateKeyDer::try_from(made.signing_key.serialize_der()).unwrap();
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = rustls::ServerConfig::builder_with_provider(provider.clone())
        .with_safe_default_protocol_versions()
        .unwrap();
    let config = match clients {
        None => config.with_no_client_auth(),
        Some(roots) => {
            let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider);
            config.with_client_cert_verifier(verifier.allow_unauthenticated().build().unwrap())
        }
    };
    let config = config.with_single_cert(vec![made.cert.der().clone()], key).unwrap();
    (TlsAcceptor::from(Arc::new(config)), made.cert.pem())
}
