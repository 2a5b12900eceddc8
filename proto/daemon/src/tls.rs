//! TLS for several programs: PEM files and verifiers of certificates.

use std::sync::Arc;

use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::client::{WebPkiServerVerifier, verify_server_name};
use rustls::crypto::{CryptoProvider, verify_tls12_signature, verify_tls13_signature};
use rustls::pki_types::pem::{Error as PemError, PemObject};
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime};
use rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use rustls::server::{ParsedCertificate, VerifierBuilderError, WebPkiClientVerifier};
use rustls::{
    CertificateError, DigitallySignedStruct, DistinguishedName, RootCertStore, SignatureScheme,
};
use x509_parser::x509::X509Version;

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

/// Verifies servers by configured authorities as Go does. Unlike rustls alone it accepts a certificate that is itself one of them with its CA flag set, as
/// `openssl req -x509` makes it, and lets only those with the flag issue others.
#[derive(Debug)]
pub struct ServerTrust {
    /// Verifies that a server has the key of its certificate.
    signatures: AnyServer,
    /// Without one if no authority may issue certificates.
    issued: Option<Arc<WebPkiServerVerifier>>,
    authorities: Vec<CertificateDer<'static>>,
}

impl ServerTrust {
    /// Trusts the authorities of a file, and certificates issued below them; each has to be valid.
    ///
    /// # Errors
    /// The file, named by `what`, cannot be used.
    pub fn new(
        provider: Arc<CryptoProvider>,
        what: &'static str,
        pem: &[u8],
    ) -> Result<Self, FileFault> {
        let authorities = certificates(pem).map_err(FileFault::pem(what))?;
        let mut roots = RootCertStore::empty();
        for certificate in &authorities {
            if may_issue(certificate).map_err(FileFault::unusable(what))? {
                roots.add(certificate.clone()).map_err(FileFault::unusable(what))?;
            }
        }
        let builder =
            WebPkiServerVerifier::builder_with_provider(Arc::new(roots), provider.clone());
        let issued = match builder.build() {
            Ok(verifier) => Some(verifier),
            Err(VerifierBuilderError::NoRootAnchors) => None,
            Err(error) => {
                let cause = rustls::Error::General(error.to_string());
                return Err(FileFault::Unusable { what, cause });
            }
        };
        Ok(Self { signatures: AnyServer(provider), issued, authorities })
    }
}

impl ServerCertVerifier for ServerTrust {
    fn verify_server_cert(
        &self,
        certificate: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        name: &ServerName<'_>,
        ocsp_response: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        if self.authorities.iter().any(|authority| authority == certificate) {
            return check_trusted_itself(certificate, name, now);
        }
        let issued = self.issued.as_ref().ok_or(CertificateError::UnknownIssuer)?;
        issued.verify_server_cert(certificate, intermediates, name, ocsp_response, now)
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        self.signatures.verify_tls12_signature(message, certificate, signature)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        self.signatures.verify_tls13_signature(message, certificate, signature)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.signatures.supported_verify_schemes()
    }
}

/// Whether an authority may issue certificates: its CA flag is set, or it is so old that there was none.
fn may_issue(certificate: &CertificateDer<'_>) -> Result<bool, rustls::Error> {
    let (_, parsed) = x509_parser::parse_x509_certificate(certificate)
        .map_err(|_| CertificateError::BadEncoding)?;
    let constraints = parsed.basic_constraints().map_err(|_| CertificateError::BadEncoding)?;
    let is_old = parsed.version() != X509Version::V3;
    Ok(constraints.map_or(is_old, |constraints| constraints.value.ca))
}

/// Checks what remains to be checked of a certificate that needs no issuer: its times, its purpose and its names.
fn check_trusted_itself(
    certificate: &CertificateDer<'_>,
    name: &ServerName<'_>,
    now: UnixTime,
) -> Result<ServerCertVerified, rustls::Error> {
    let (_, parsed) = x509_parser::parse_x509_certificate(certificate)
        .map_err(|_| CertificateError::BadEncoding)?;
    let now = i64::try_from(now.as_secs()).unwrap_or(i64::MAX);
    if now < parsed.validity().not_before.timestamp() {
        return Err(CertificateError::NotValidYet.into());
    }
    if now > parsed.validity().not_after.timestamp() {
        return Err(CertificateError::Expired.into());
    }
    let purposes = parsed.extended_key_usage().map_err(|_| CertificateError::BadEncoding)?;
    if purposes.is_some_and(|purposes| !purposes.value.any && !purposes.value.server_auth) {
        return Err(CertificateError::InvalidPurpose.into());
    }
    verify_server_name(&ParsedCertificate::try_from(certificate)?, name)?;
    Ok(ServerCertVerified::assertion())
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
    use std::time::Duration;

    use rcgen::{CertificateParams, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair};
    use rustls::crypto::ring;

    use super::*;

    /// A server's certificate, signed by itself, after a change.
    fn own_certificate(change: impl FnOnce(&mut CertificateParams)) -> rcgen::Certificate {
        let mut params = CertificateParams::new(["localhost".to_owned()]).unwrap();
        params.is_ca = IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
        params.not_before = time::OffsetDateTime::from_unix_timestamp(1000).unwrap();
        params.not_after = time::OffsetDateTime::from_unix_timestamp(2000).unwrap();
        change(&mut params);
        params.self_signed(&KeyPair::generate().unwrap()).unwrap()
    }

    fn verify(
        (trusted, shown): (&rcgen::Certificate, &rcgen::Certificate),
        name: &str,
        at: u64,
    ) -> Result<(), rustls::Error> {
        let provider = Arc::new(ring::default_provider());
        let trust = ServerTrust::new(provider, "authority", trusted.pem().as_bytes()).unwrap();
        let name = ServerName::try_from(name.to_owned()).unwrap();
        let now = UnixTime::since_unix_epoch(Duration::from_secs(at));
        trust.verify_server_cert(shown.der(), &[], &name, &[], now).map(drop)
    }

    #[test]
    fn a_certificate_that_is_an_authority_itself_is_a_server_s() {
        let refused = |result: Result<(), rustls::Error>| match result {
            Err(rustls::Error::InvalidCertificate(why)) => format!("{why:?}"),
            other => panic!("{other:?}"),
        };
        let own = own_certificate(|_| {});
        verify((&own, &own), "localhost", 1500).unwrap();
        verify((&own, &own), "localhost", 2000).unwrap();
        let other = refused(verify((&own, &own), "elsewhere", 1500));
        assert!(other.starts_with("NotValidForName"), "{other}");
        assert_eq!(refused(verify((&own, &own), "localhost", 999)), "NotValidYet");
        assert_eq!(refused(verify((&own, &own), "localhost", 2001)), "Expired");
        let clients = own_certificate(|params| {
            params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
        });
        assert_eq!(refused(verify((&clients, &clients), "localhost", 1500)), "InvalidPurpose");
        let servers = own_certificate(|params| {
            params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
        });
        verify((&servers, &servers), "localhost", 1500).unwrap();
        // Another one with the same names is not the authority.
        let another = own_certificate(|_| {});
        refused(verify((&own, &another), "localhost", 1500));
        let plain = own_certificate(|params| params.is_ca = IsCa::NoCa);
        verify((&plain, &plain), "localhost", 1500).unwrap();
    }

    #[test]
    fn a_server_s_certificate_is_issued_by_an_authority_with_the_ca_flag() {
        let issue = |is_ca: IsCa| {
            let mut params = CertificateParams::default();
            params.is_ca = is_ca;
            let key = KeyPair::generate().unwrap();
            let authority = params.self_signed(&key).unwrap();
            let mut leaf = CertificateParams::new(["localhost".to_owned()]).unwrap();
            leaf.is_ca = IsCa::NoCa;
            let issuer = Issuer::new(params, key);
            let leaf = leaf.signed_by(&KeyPair::generate().unwrap(), &issuer).unwrap();
            (authority, leaf)
        };
        let (authority, leaf) = issue(IsCa::Ca(rcgen::BasicConstraints::Unconstrained));
        verify((&authority, &leaf), "localhost", 1_700_000_000).unwrap();
        assert!(verify((&authority, &leaf), "elsewhere", 1_700_000_000).is_err());
        let (another, _) = issue(IsCa::Ca(rcgen::BasicConstraints::Unconstrained));
        assert!(verify((&another, &leaf), "localhost", 1_700_000_000).is_err());
        for flag in [IsCa::NoCa, IsCa::ExplicitNoCa] {
            let (plain, leaf) = issue(flag);
            let refused = verify((&plain, &leaf), "localhost", 1_700_000_000).unwrap_err();
            assert_eq!(refused, CertificateError::UnknownIssuer.into());
        }
    }

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
