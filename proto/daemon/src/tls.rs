//! TLS for several programs: PEM files and verifiers of certificates.

use std::sync::Arc;

use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{CryptoProvider, verify_tls12_signature, verify_tls13_signature};
use rustls::pki_types::pem::{Error as PemError, PemObject};
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime};
use rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use rustls::server::{VerifierBuilderError, WebPkiClientVerifier};
use rustls::{DigitallySignedStruct, DistinguishedName, RootCertStore, SignatureScheme};

/// Why a file of certificates or with a key cannot be used. `what` names it: `authority`, `client key`.
#[derive(Debug, thiserror::Error)]
pub enum FileFault {
    /// It cannot be read.
    #[error("cannot read the {what}")]
    Read {
        what: &'static str,
        /// What the system said.
        #[source]
        cause: std::io::Error,
    },
    /// It is not PEM, or has no section of the expected kind.
    #[error("the {what} is not valid PEM")]
    Pem {
        what: &'static str,
        /// Why.
        #[source]
        cause: PemError,
    },
    /// TLS cannot use it, for example a key of another certificate.
    #[error("cannot use the {what}")]
    Unusable {
        what: &'static str,
        /// Why.
        #[source]
        cause: rustls::Error,
    },
}

impl FileFault {
    /// For `map_err` of errors of rustls.
    pub fn unusable(what: &'static str) -> impl Fn(rustls::Error) -> Self {
        move |cause| Self::Unusable { what, cause }
    }

    fn pem(what: &'static str) -> impl Fn(PemError) -> Self {
        move |cause| Self::Pem { what, cause }
    }
}

/// A certificate with its chain and its key, from the texts of two files.
///
/// # Errors
/// A file cannot be used; `whats` names the two.
pub fn identity(
    whats: (&'static str, &'static str),
    (chain, text): (&[u8], &[u8]),
) -> Result<(Vec<CertificateDer<'static>>, PrivateKeyDer<'static>), FileFault> {
    let chain = certificates(chain).map_err(FileFault::pem(whats.0))?;
    Ok((chain, key(text).map_err(FileFault::pem(whats.1))?))
}

/// The authorities of a file; each has to be valid.
///
/// # Errors
/// The file, named by `what`, cannot be used.
pub fn authorities(what: &'static str, pem: &[u8]) -> Result<RootCertStore, FileFault> {
    let mut roots = RootCertStore::empty();
    for certificate in certificates(pem).map_err(FileFault::pem(what))? {
        roots.add(certificate).map_err(FileFault::unusable(what))?;
    }
    Ok(roots)
}

/// The certificates of a PEM text, in their order; other sections are ignored.
///
/// # Errors
/// A section is invalid, or there is no certificate.
pub fn certificates(pem: &[u8]) -> Result<Vec<CertificateDer<'static>>, PemError> {
    let chain: Vec<_> = CertificateDer::pem_slice_iter(pem).collect::<Result<_, _>>()?;
    if chain.is_empty() { Err(PemError::NoItemsFound) } else { Ok(chain) }
}

/// The first private key of a PEM text.
///
/// # Errors
/// It is invalid, or there is none.
pub fn key(pem: &[u8]) -> Result<PrivateKeyDer<'static>, PemError> {
    PrivateKeyDer::from_pem_slice(pem)
}

/// Accepts any certificate but verifies that the server has its key. For servers with self-signed certificates, and where a user turned verification
/// off.
#[derive(Debug)]
pub struct AnyServer(pub Arc<CryptoProvider>);

impl ServerCertVerifier for AnyServer {
    fn verify_server_cert(
        &self,
        _: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        verify_tls12_signature(
            message,
            certificate,
            signature,
            &self.0.signature_verification_algorithms,
        )
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        verify_tls13_signature(
            message,
            certificate,
            signature,
            &self.0.signature_verification_algorithms,
        )
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.signature_verification_algorithms.supported_schemes()
    }
}

/// Requests a certificate from clients without requiring one, as Kubernetes' servers do. The handshake verifies only that the client has the key of the
/// certificate; [`ClientTrust::check`] verifies the certificate afterwards, so that a client with an invalid one can still present a token.
#[derive(Debug)]
pub struct ClientTrust(Arc<dyn ClientCertVerifier>);

impl ClientTrust {
    /// Trusts certificates issued below `roots`.
    ///
    /// # Errors
    /// There are no roots.
    pub fn new(
        provider: Arc<CryptoProvider>,
        roots: RootCertStore,
    ) -> Result<Self, VerifierBuilderError> {
        let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider);
        Ok(Self(verifier.allow_unauthenticated().build()?))
    }

    /// Verifies that a client's certificate, the first of `chain`, has a chain to a root, is for clients and has not expired.
    ///
    /// # Errors
    /// The reason for which it is invalid.
    pub fn check(&self, chain: &[CertificateDer<'_>]) -> Result<(), rustls::Error> {
        let (certificate, intermediates) =
            chain.split_first().ok_or(rustls::Error::NoCertificatesPresented)?;
        self.0.verify_client_cert(certificate, intermediates, UnixTime::now()).map(drop)
    }
}

impl ClientCertVerifier for ClientTrust {
    fn client_auth_mandatory(&self) -> bool {
        false
    }

    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        self.0.root_hint_subjects()
    }

    fn verify_client_cert(
        &self,
        _: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: UnixTime,
    ) -> Result<ClientCertVerified, rustls::Error> {
        Ok(ClientCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        self.0.verify_tls12_signature(message, certificate, signature)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        self.0.verify_tls13_signature(message, certificate, signature)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.supported_verify_schemes()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_text_without_a_certificate_is_none() {
        assert!(matches!(certificates(b""), Err(PemError::NoItemsFound)));
        let key_only = b"-----BEGIN PRIVATE KEY-----\nAAAA\n-----END PRIVATE KEY-----\n";
        assert!(certificates(key_only).is_err());
        assert!(key(key_only).is_ok());
        let one = b"-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n";
        assert_eq!(
            certificates(&[key_only.as_slice(), one, one].concat()).map(|chain| chain.len()).ok(),
            Some(2)
        );
        assert!(key(one).is_err());
    }
}
