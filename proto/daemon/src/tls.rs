//! Pieces of TLS that several programs need: PEM as they read it, and trust in whoever answers.

use std::sync::Arc;

use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{CryptoProvider, verify_tls12_signature, verify_tls13_signature};
use rustls::pki_types::pem::{Error as PemError, PemObject};
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime};
use rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use rustls::server::{VerifierBuilderError, WebPkiClientVerifier};
use rustls::{DigitallySignedStruct, DistinguishedName, RootCertStore, SignatureScheme};

/// Why a file of certificates or with a key is of no use. `what` names what it is: `authority`, `client key`.
#[derive(Debug, thiserror::Error)]
pub enum FileFault {
    /// It cannot be read.
    #[error("cannot read the {what}")]
    Read {
        /// What it is.
        what: &'static str,
        /// What the system said.
        #[source]
        cause: std::io::Error,
    },
    /// It is no PEM, or holds none of what it should.
    #[error("the {what} is no valid PEM")]
    Pem {
        /// What it is.
        what: &'static str,
        /// Why.
        #[source]
        cause: PemError,
    },
    /// TLS cannot use it, for example a key that does not fit its certificate.
    #[error("the {what} cannot be used")]
    Unusable {
        /// What it is.
        what: &'static str,
        /// Why.
        #[source]
        cause: rustls::Error,
    },
}

impl FileFault {
    /// For `map_err` of what TLS says.
    pub fn unusable(what: &'static str) -> impl Fn(rustls::Error) -> Self {
        move |cause| Self::Unusable { what, cause }
    }

    fn pem(what: &'static str) -> impl Fn(PemError) -> Self {
        move |cause| Self::Pem { what, cause }
    }
}

/// A certificate, those that lead from it to an authority, and its key, from the texts of two files.
///
/// # Errors
/// A file is of no use; `whats` names the two.
pub fn identity(
    whats: (&'static str, &'static str),
    (chain, text): (&[u8], &[u8]),
) -> Result<(Vec<CertificateDer<'static>>, PrivateKeyDer<'static>), FileFault> {
    let chain = certificates(chain).map_err(FileFault::pem(whats.0))?;
    Ok((chain, key(text).map_err(FileFault::pem(whats.1))?))
}

/// The authorities of a file; each has to be of use.
///
/// # Errors
/// The file, named by `what`, is of no use.
pub fn authorities(what: &'static str, pem: &[u8]) -> Result<RootCertStore, FileFault> {
    let mut roots = RootCertStore::empty();
    for certificate in certificates(pem).map_err(FileFault::pem(what))? {
        roots.add(certificate).map_err(FileFault::unusable(what))?;
    }
    Ok(roots)
}

/// The certificates of a PEM text, in their order; other sections are passed over.
///
/// # Errors
/// A section is broken, or there is no certificate.
pub fn certificates(pem: &[u8]) -> Result<Vec<CertificateDer<'static>>, PemError> {
    let chain: Vec<_> = CertificateDer::pem_slice_iter(pem).collect::<Result<_, _>>()?;
    if chain.is_empty() { Err(PemError::NoItemsFound) } else { Ok(chain) }
}

/// The first private key of a PEM text.
///
/// # Errors
/// It is broken, or there is none.
pub fn key(pem: &[u8]) -> Result<PrivateKeyDer<'static>, PemError> {
    PrivateKeyDer::from_pem_slice(pem)
}

/// Takes any server's certificate but still checks that the other end holds its key. For servers whose certificates come from anywhere,
/// and where a user asks for it.
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

/// Asks clients for a certificate without needing one, as Kubernetes' servers do. The handshake checks only that the client
/// holds the key of what it shows; whether the certificate is valid is for [`ClientTrust::check`] after it, so that a client
/// with a certificate that is not can still show a token.
#[derive(Debug)]
pub struct ClientTrust(Arc<dyn ClientCertVerifier>);

impl ClientTrust {
    /// Trusts certificates that lead to one of `roots`.
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

    /// Whether a client's certificate, the first of `chain`, leads to a root, is for clients and has not expired.
    ///
    /// # Errors
    /// What is wrong with it.
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
