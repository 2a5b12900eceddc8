//! The certificate of an HTTPS server, and the user of a client certificate.

use std::io::ErrorKind::NotFound;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};

use proto_api::authentication::v1::UserInfo;
use proto_daemon::tls::{self, ClientTrust, FileFault};
use rustls::crypto::CryptoProvider;
use rustls::pki_types::CertificateDer;
use rustls::{
    ConfigBuilder, ServerConfig, SupportedCipherSuite, SupportedProtocolVersion, WantsVerifier,
};
use tokio::time::Instant;

use crate::reloading_file::{Changed, ReloadingFile};

/// The server's certificate and the authorities of clients.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TlsFiles {
    /// The server's certificate.
    pub identity: Serving,
    /// Authorities of client certificates (`--client-ca-file`); certificates are not requested if not set.
    pub client_authority: Option<PathBuf>,
    /// Protocol versions and cipher suites.
    pub terms: Terms,
}

/// The server's certificate.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Serving {
    #[default]
    SelfSigned,
    /// Chain and key that are managed elsewhere (`--tls-cert-file`, `--tls-private-key-file`).
    Named(PathBuf, PathBuf),
    /// A file with both that exists once the API server has signed; a self-signed one until then.
    AskedFor(PathBuf),
}

/// A TLS configuration whose client certificates are not decided yet.
pub type ServerBuilder = ConfigBuilder<ServerConfig, WantsVerifier>;

/// TLS versions and cipher suites.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Terms {
    /// The oldest version (`--tls-min-version`), as `VersionTLS12`; empty for the default.
    pub min_version: String,
    /// Cipher suites (`--tls-cipher-suites`); empty for all secure ones. They apply to TLS 1.2 only, as in Kubernetes.
    pub suites: Vec<String>,
}

impl Terms {
    /// What a listener of these terms begins with, and its cryptography.
    ///
    /// # Errors
    /// A name that is not known.
    pub fn server(&self) -> Result<(Arc<CryptoProvider>, ServerBuilder), ServingTlsError> {
        let provider = Arc::new(CryptoProvider {
            cipher_suites: suites(&self.suites)?,
            ..rustls::crypto::ring::default_provider()
        });
        let builder = ServerConfig::builder_with_provider(provider.clone())
            .with_protocol_versions(versions(&self.min_version)?)
            .map_err(FileFault::unusable("protocol version"))?;
        Ok((provider, builder))
    }
}

const TLS12: &[&SupportedProtocolVersion] = &[&rustls::version::TLS13, &rustls::version::TLS12];
const TLS13: &[&SupportedProtocolVersion] = &[&rustls::version::TLS13];

/// A name of the TLS settings that is not known.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TermsError {
    #[error("{0:?} is none of VersionTLS10, VersionTLS11, VersionTLS12, VersionTLS13")]
    Version(String),
    /// Of a cipher suite.
    #[error("{0:?} is not a supported cipher suite")]
    Suite(String),
}

/// The versions from a name on. Names before 1.2 are accepted as a minimum; these versions are never used.
pub fn versions(min: &str) -> Result<&'static [&'static SupportedProtocolVersion], TermsError> {
    match min {
        "" | "VersionTLS10" | "VersionTLS11" | "VersionTLS12" => Ok(TLS12),
        "VersionTLS13" => Ok(TLS13),
        other => Err(TermsError::Version(other.to_owned())),
    }
}

/// Suites by their IANA names, with or without the suffix `_SHA256` of the ChaCha ones.
pub fn suites(names: &[String]) -> Result<Vec<SupportedCipherSuite>, TermsError> {
    let all = rustls::crypto::ring::ALL_CIPHER_SUITES;
    if names.is_empty() {
        return Ok(all.to_vec());
    }
    // The suites of TLS 1.3 are fixed.
    let mut chosen: Vec<_> = all.iter().copied().filter(|suite| suite.tls13().is_some()).collect();
    for name in names {
        let long = format!("{name}_SHA256");
        let found = all.iter().find(|suite| {
            let known = format!("{:?}", suite.suite()).replace("TLS13_", "TLS_");
            known == *name || known == long
        });
        let suite = found.ok_or_else(|| TermsError::Suite(name.clone()))?;
        if suite.tls13().is_none() {
            chosen.push(*suite);
        }
    }
    Ok(chosen)
}

/// Why TLS cannot be set up.
#[derive(Debug, thiserror::Error)]
pub enum ServingTlsError {
    /// A file cannot be used.
    #[error(transparent)]
    File(#[from] FileFault),
    /// The authorities of clients cannot be used.
    #[error("cannot use the client certificate authority")]
    Authority(#[source] rustls::server::VerifierBuilderError),
    /// The self-signed certificate could not be made.
    #[error("cannot make a certificate")]
    Make(#[source] rcgen::Error),
    /// Versions or suites are unknown; validation of the configuration finds this first.
    #[error(transparent)]
    Terms(#[from] TermsError),
}

/// The TLS settings of a new connection.
#[derive(Debug)]
pub struct ConnectionTls {
    /// For the handshake.
    pub config: Arc<ServerConfig>,
    /// Verifies the client's certificate after it; without authorities none is requested.
    trust: Option<Arc<ClientTrust>>,
}

impl ConnectionTls {
    /// The user of the client's certificate, if there is one, or why the certificate is invalid.
    pub fn certified(&self, chain: Option<&[CertificateDer<'_>]>) -> Certified {
        let (trust, chain) = (self.trust.as_ref()?, chain.filter(|chain| !chain.is_empty())?);
        Some(match trust.check(chain) {
            Ok(()) => certified_user(&chain[0]).ok_or(CertificateFault::NoName),
            Err(error) => Err(error.into()),
        })
    }
}

/// The user of a client certificate, or why the certificate is invalid; `None` without a certificate.
pub type Certified = Option<Result<UserInfo, CertificateFault>>;

/// Why a client certificate proves no user. A token may do so.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum CertificateFault {
    /// The certificate names no user.
    #[error("the certificate's subject has no common name")]
    NoName,
    /// It is not valid, or not of the authority.
    #[error(transparent)]
    Invalid(#[from] rustls::Error),
}

/// Builds the TLS settings, and rebuilds them when a file has changed.
#[derive(Debug)]
pub struct ServerTls(Mutex<State>);

#[derive(Debug)]
struct State {
    identity: Option<(ReloadingFile, ReloadingFile)>,
    /// Chain and key of a self-signed certificate, while there is no other.
    own: (Vec<u8>, Vec<u8>),
    /// Whether the files may not exist yet.
    awaited: bool,
    uses_own: bool,
    authority: Option<ReloadingFile>,
    terms: Terms,
    made: Option<Arc<ConnectionTls>>,
}

impl ServerTls {
    /// Reads the files, or makes a certificate for `names`.
    pub fn new(files: &TlsFiles, names: &[String]) -> Result<Self, ServingTlsError> {
        let made =
            rcgen::generate_simple_self_signed(names.to_vec()).map_err(ServingTlsError::Make)?;
        let own = (made.cert.pem().into_bytes(), made.signing_key.serialize_pem().into_bytes());
        let files_of = |chain: &PathBuf, key: &PathBuf| {
            Some((ReloadingFile::file(chain.clone()), ReloadingFile::file(key.clone())))
        };
        let identity = match &files.identity {
            Serving::SelfSigned => None,
            Serving::Named(chain, key) => files_of(chain, key),
            Serving::AskedFor(pair) => files_of(pair, pair),
        };
        let awaited = matches!(files.identity, Serving::AskedFor(_));
        let authority = files.client_authority.clone().map(ReloadingFile::file);
        let tls = Self(Mutex::new(State {
            identity,
            own,
            awaited,
            uses_own: false,
            authority,
            terms: files.terms.clone(),
            made: None,
        }));
        tls.config()?;
        Ok(tls)
    }

    /// The settings for a new connection. While new files are invalid, the last valid ones.
    pub fn config(&self) -> Result<Arc<ConnectionTls>, ServingTlsError> {
        let mut state = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        match (state.remake(Instant::now()), &state.made) {
            (Ok(Some(config)), _) => {
                state.made = Some(config.clone());
                Ok(config)
            }
            (Ok(None), Some(made)) => Ok(made.clone()),
            (Err(error), Some(made)) => {
                tracing::warn!(
                    error = proto_daemon::exit::chain(&error),
                    "cannot use the changed certificate files; the old ones stay in use"
                );
                Ok(made.clone())
            }
            (Err(error), None) => Err(error),
            // Cannot be: the first read is always a change. Asking again is what heals whatever it
            // was.
            (Ok(None), None) => Err(ServingTlsError::File(FileFault::Pem {
                what: "certificate",
                cause: rustls::pki_types::pem::Error::NoItemsFound,
            })),
        }
    }
}

impl State {
    /// New settings when a file has changed since the last call.
    fn remake(&mut self, now: Instant) -> Result<Option<Arc<ConnectionTls>>, ServingTlsError> {
        let mut any = Changed::No;
        let mut read = |what, file: &mut ReloadingFile| {
            let (content, changed) =
                file.current(now).map_err(|cause| FileFault::Read { what, cause })?;
            if changed == Changed::Yes {
                any = Changed::Yes;
            }
            Ok(content)
        };
        let files = self
            .identity
            .as_mut()
            .map(|(chain, key)| Ok((read("certificate", chain)?, read("key", key)?)));
        let authority =
            self.authority.as_mut().map(|file| read("client authority", file)).transpose()?;
        let (certificate, key): (&[u8], &[u8]) = match &files {
            Some(Ok((certificate, key))) => (certificate, key),
            Some(Err(FileFault::Read { cause, .. }))
                if self.awaited && cause.kind() == NotFound =>
            {
                self.own()
            }
            Some(Err(_)) => return Ok(files.transpose().map(|_| None)?),
            None => self.own(),
        };
        let uses_own = !matches!(files, Some(Ok(_)));
        if any == Changed::No && self.made.is_some() && uses_own == self.uses_own {
            return Ok(None);
        }
        let made = make(&self.terms, certificate, key, authority.as_deref())?;
        self.uses_own = uses_own;
        Ok(Some(made))
    }

    fn own(&self) -> (&[u8], &[u8]) {
        (&self.own.0, &self.own.1)
    }
}

fn make(
    terms: &Terms,
    certificate: &[u8],
    key: &[u8],
    authority: Option<&[u8]>,
) -> Result<Arc<ConnectionTls>, ServingTlsError> {
    let (provider, builder) = terms.server()?;
    let trust = match authority {
        None => None,
        Some(pem) => {
            let roots = tls::authorities("client authority", pem)?;
            let trust = ClientTrust::new(provider, roots).map_err(ServingTlsError::Authority)?;
            Some(Arc::new(trust))
        }
    };
    let builder = match &trust {
        None => builder.with_no_client_auth(),
        Some(trust) => builder.with_client_cert_verifier(trust.clone()),
    };
    let whats = ("certificate", "key");
    let (chain, key) = tls::identity(whats, (certificate, key))?;
    let mut config = builder.with_single_cert(chain, key).map_err(FileFault::unusable(whats.0))?;
    config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
    Ok(Arc::new(ConnectionTls { config: Arc::new(config), trust }))
}

/// The user of a verified client certificate: the common name is the user, each organization a group.
fn certified_user(certificate: &CertificateDer<'_>) -> Option<UserInfo> {
    let (_, parsed) = x509_parser::parse_x509_certificate(certificate).ok()?;
    let subject = parsed.subject();
    let username = subject.iter_common_name().next()?.as_str().ok()?.to_owned();
    let groups = subject
        .iter_organization()
        .filter_map(|name| name.as_str().ok())
        .map(str::to_owned)
        .collect();
    (!username.is_empty()).then(|| UserInfo { username, groups, ..UserInfo::default() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_and_suites_have_kubernetes_names() {
        assert_eq!(versions("VersionTLS13").map(<[_]>::len), Ok(1));
        assert_eq!(versions("").map(<[_]>::len), Ok(2));
        assert!(versions("1.3").is_err());
        let names = |names: &[&str]| {
            suites(&names.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>())
        };
        let one = names(&["TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256"]).expect("known");
        assert_eq!(one.iter().filter(|suite| suite.tls13().is_none()).count(), 1);
        assert_eq!(one.len(), 4, "those of 1.3 stay");
        assert!(names(&["TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305"]).is_ok(), "the short name");
        assert!(names(&["TLS_RSA_WITH_RC4_128_SHA"]).is_err());
        assert!(names(&[]).expect("all").len() > 4);
    }

    /// The user of a client with a certificate of `issuer`, after a real handshake.
    async fn shown(
        agreed: &ConnectionTls,
        issuer: &rcgen::Issuer<'_, rcgen::KeyPair>,
        year: i32,
    ) -> Certified {
        let key = rcgen::KeyPair::generate().expect("key");
        let mut params = rcgen::CertificateParams::default();
        params.distinguished_name = rcgen::DistinguishedName::new();
        params.distinguished_name.push(rcgen::DnType::CommonName, "bob");
        params.extended_key_usages = vec![rcgen::ExtendedKeyUsagePurpose::ClientAuth];
        params.not_after = rcgen::date_time_ymd(year, 1, 1);
        let certificate = params.signed_by(&key, issuer).expect("signed").der().clone();
        let key = tls::key(key.serialize_pem().as_bytes()).expect("key");
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let client = rustls::ClientConfig::builder_with_provider(provider.clone())
            .with_safe_default_protocol_versions()
            .expect("versions")
            .dangerous()
            .with_custom_certificate_verifier(Arc::new(tls::AnyServer(provider)))
            .with_client_auth_cert(vec![certificate], key)
            .expect("identity");
        let (near, far) = tokio::io::duplex(1 << 16);
        let connector = tokio_rustls::TlsConnector::from(Arc::new(client));
        let name = "n1".try_into().expect("name");
        let accepting = tokio_rustls::TlsAcceptor::from(agreed.config.clone()).accept(far);
        let (connected, accepted) = tokio::join!(connector.connect(name, near), accepting);
        connected.expect("the client's handshake ends well");
        agreed.certified(accepted.expect("a handshake").get_ref().1.peer_certificates())
    }

    #[tokio::test]
    async fn a_client_certificate_is_judged_after_the_handshake() {
        let directory = tempfile::tempdir().expect("tempdir");
        let authority = |name: &str| {
            let key = rcgen::KeyPair::generate().expect("key");
            let mut params = rcgen::CertificateParams::default();
            params.distinguished_name.push(rcgen::DnType::CommonName, name);
            params.is_ca = rcgen::IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
            let path = directory.path().join(name);
            std::fs::write(&path, params.self_signed(&key).expect("signed").pem())
                .expect("written");
            (rcgen::Issuer::new(params, key), path)
        };
        let ((trusted, path), (other, _)) = (authority("trusted"), authority("other"));
        let files = TlsFiles { client_authority: Some(path), ..TlsFiles::default() };
        let agreed =
            ServerTls::new(&files, &["n1".to_owned()]).expect("tls").config().expect("settings");
        let user = shown(&agreed, &trusted, 4000).await.expect("shown").expect("valid");
        assert_eq!(user.username, "bob");
        let expired = shown(&agreed, &trusted, 2000).await.expect("shown").expect_err("expired");
        assert!(expired.to_string().contains("expired"), "{expired}");
        let unknown = shown(&agreed, &other, 4000).await.expect("shown").expect_err("unknown");
        assert!(unknown.to_string().contains("UnknownIssuer"), "{unknown}");
        assert_eq!(agreed.certified(None), None);
    }

    #[tokio::test(start_paused = true)]
    async fn a_requested_certificate_is_served_once_it_is_issued() {
        let directory = tempfile::tempdir().expect("tempdir");
        let pair = directory.path().join("pair.pem");
        let names = vec!["n1".to_owned()];
        let files = |identity| TlsFiles { identity, ..TlsFiles::default() };
        let missing = Serving::Named(pair.clone(), pair.clone());
        assert!(ServerTls::new(&files(missing), &names).is_err(), "no certificate");
        let tls =
            ServerTls::new(&files(Serving::AskedFor(pair.clone())), &names).expect("self-signed");
        let first = tls.config().expect("settings");
        assert!(Arc::ptr_eq(&first, &tls.config().expect("settings")), "made once");
        let made = rcgen::generate_simple_self_signed(names).expect("made");
        std::fs::write(&pair, format!("{}{}", made.cert.pem(), made.signing_key.serialize_pem()))
            .expect("written");
        tokio::time::sleep(std::time::Duration::from_secs(2)).await;
        let second = tls.config().expect("settings");
        assert!(!Arc::ptr_eq(&first, &second));
        assert!(Arc::ptr_eq(&second, &tls.config().expect("settings")));
    }
}
