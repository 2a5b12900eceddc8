//! The files of certificates, keys and authorities of the server, which may be replaced while it runs: a second later new connections have the new
//! certificate, and every request of every connection is judged by the new authorities, as in kube-apiserver. What is lost or cannot be used changes nothing.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use apiserver_core::config::{Config, Credentials};
use apiserver_http::{HttpServer, NodeProxy, ServingTls};
use proto_client::reloading_file::{Changed, ReloadingFile};
use proto_client::serving::tls::Terms;
use proto_daemon::exit::chain;
use rustls::pki_types::pem::Error as PemError;
use tokio::sync::watch;
use tokio::time::Instant;

use crate::bootstrap::{self, ClientAuthorities};
use crate::pki::{CertificatePem, Pki};
use crate::tls::{self, IdentityPem, ListenerPem, Pem, TlsError};

/// Time between two looks at the files.
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// Time after which a failed publication is tried again.
const PUBLISH_AGAIN: Duration = Duration::from_secs(10);

/// A file, or a generated text that never changes.
struct PemFile {
    path: PathBuf,
    file: ReloadingFile,
}

impl PemFile {
    fn watch_path(path: &Path) -> Self {
        Self { path: path.to_owned(), file: ReloadingFile::file(path.to_owned()) }
    }

    fn generated(text: &str) -> Self {
        let file = ReloadingFile::fixed(text.as_bytes().to_vec());
        Self { path: PathBuf::from("(generated)"), file }
    }

    /// The content; `any` becomes true when it is another than before.
    fn read(&mut self, now: Instant, any: &mut bool) -> Result<Pem, TlsError> {
        let path = self.path.clone();
        match self.file.current(now) {
            Ok((content, changed)) => {
                *any |= changed == Changed::Yes;
                Ok(Pem { path, content })
            }
            Err(error) => Err(TlsError::File { path, source: PemError::Io(error) }),
        }
    }
}

/// Files of a certificate and its key.
struct IdentityFiles {
    certificate: PemFile,
    key: PemFile,
}

impl IdentityFiles {
    /// The configured files, else a generated pair.
    fn new(files: Option<&Credentials>, own: Option<&CertificatePem>) -> Option<Self> {
        let (certificate, key) = match (files, own) {
            (Some(files), _) => {
                (PemFile::watch_path(&files.certificate), PemFile::watch_path(&files.key))
            }
            (None, Some(own)) => {
                (PemFile::generated(&own.certificate), PemFile::generated(&own.key))
            }
            (None, None) => return None,
        };
        Some(Self { certificate, key })
    }

    fn read(&mut self, now: Instant, any: &mut bool) -> Result<IdentityPem, TlsError> {
        Ok(IdentityPem {
            certificate: self.certificate.read(now, any)?,
            key: self.key.read(now, any)?,
        })
    }
}

/// What follows from the files of the listener.
pub struct Listener {
    /// For connections.
    pub tls: ServingTls,
    /// For servers that authenticate as this one does.
    pub authorities: ClientAuthorities,
}

/// All certificate files of the server, read again when they change.
pub struct CertificateFiles {
    terms: Terms,
    identity: IdentityFiles,
    clients: Vec<PemFile>,
    proxies: Option<PemFile>,
    any_proxy: bool,
    node_authority: Option<PemFile>,
    node_identity: Option<IdentityFiles>,
    proxy_client: Option<IdentityFiles>,
}

impl CertificateFiles {
    /// The files that are configured, and what is generated in the place of others.
    ///
    /// # Errors
    /// There is no certificate for the listener.
    pub fn new(config: &Config, pki: Option<&Pki>) -> Result<Self, TlsError> {
        let identity = IdentityFiles::new(config.serving.as_ref(), pki.map(|pki| &pki.serving));
        let clients = config.client_ca_file.iter().map(|path| PemFile::watch_path(path));
        let proxies = config.request_headers.as_ref();
        let node = &config.node_client;
        Ok(Self {
            terms: config.tls_terms.clone(),
            identity: identity.ok_or(TlsError::NoCertificate)?,
            clients: clients.chain(pki.map(|pki| PemFile::generated(&pki.ca))).collect(),
            proxies: proxies.map(|proxies| PemFile::watch_path(&proxies.ca_file)),
            any_proxy: proxies.is_some_and(|proxies| proxies.headers.allowed_names.is_empty()),
            node_authority: node.authority.as_deref().map(PemFile::watch_path),
            node_identity: IdentityFiles::new(node.credentials.as_ref(), pki.map(|pki| &pki.admin)),
            proxy_client: IdentityFiles::new(config.proxy_client.as_ref(), None),
        })
    }

    /// The listener's part when a file of it has changed since the last call, the first included.
    ///
    /// # Errors
    /// [`TlsError`] naming the file or certificate.
    pub fn listener(&mut self, now: Instant) -> Result<Option<Listener>, TlsError> {
        let mut any = false;
        let identity = self.identity.read(now, &mut any)?;
        let clients = self.clients.iter_mut().map(|file| file.read(now, &mut any));
        let clients = clients.collect::<Result<Vec<Pem>, TlsError>>()?;
        let proxies = self.proxies.as_mut().map(|file| file.read(now, &mut any)).transpose()?;
        if !any {
            return Ok(None);
        }
        let text = |pem: &Pem| certificates_in(&String::from_utf8_lossy(&pem.content));
        let authorities = ClientAuthorities {
            clients: clients.iter().map(text).collect(),
            proxies: proxies.as_ref().map(text).unwrap_or_default(),
        };
        let pem = ListenerPem { identity, clients, proxies, any_proxy: self.any_proxy };
        Ok(Some(Listener { tls: tls::serving(&self.terms, &pem)?, authorities }))
    }

    /// The part of connections to kubelets when a file of it has changed since the last call, the first included.
    ///
    /// # Errors
    /// [`TlsError`] naming the file or certificate.
    pub fn nodes(&mut self, now: Instant) -> Result<Option<tls::NodeTls>, TlsError> {
        let mut any = false;
        let authority = self.node_authority.as_mut().map(|file| file.read(now, &mut any));
        let authority = authority.transpose()?;
        let identity = self.node_identity.as_mut().map(|files| files.read(now, &mut any));
        let identity = identity.transpose()?;
        // Without any file nothing ever changes.
        if !any {
            return Ok(None);
        }
        tls::nodes(authority.as_ref(), identity.as_ref()).map(Some)
    }

    /// Connects to kubelets, workloads and other API servers, with the certificates read now.
    ///
    /// # Errors
    /// [`TlsError`] naming the file or certificate.
    pub fn node_proxy(&mut self, now: Instant) -> Result<NodeProxy, TlsError> {
        let nodes = tls::node_proxy(self.nodes(now)?.unwrap_or_default())?;
        self.take_proxy_client(now, &nodes)?;
        Ok(nodes)
    }

    /// Has connections to other API servers show the client certificate when a file of it has changed since the last call, the first included.
    ///
    /// # Errors
    /// [`TlsError`] naming the file or certificate; the old one stays.
    pub fn take_proxy_client(&mut self, now: Instant, nodes: &NodeProxy) -> Result<(), TlsError> {
        let mut any = false;
        let Some(files) = &mut self.proxy_client else { return Ok(()) };
        let identity = files.read(now, &mut any)?;
        if any {
            nodes.replace_front_proxy(Some(tls::identity(&identity)?))?;
        }
        Ok(())
    }
}

/// Takes over replaced files until the server stops.
pub async fn follow(
    server: Arc<HttpServer>,
    mut files: CertificateFiles,
    current: watch::Sender<Arc<ServingTls>>,
) {
    let mut unpublished: Option<(ClientAuthorities, Instant)> = None;
    loop {
        // Cancel safe: sleeping holds no state.
        tokio::select! {
            () = server.stopping.cancelled() => return,
            () = tokio::time::sleep(LOOK_EVERY) => {}
        }
        let now = Instant::now();
        match files.listener(now) {
            Ok(None) => {}
            Ok(Some(made)) => {
                tracing::info!(
                    "reloaded the serving certificate and the client certificate authorities"
                );
                current.send_replace(Arc::new(made.tls));
                unpublished = Some((made.authorities, now));
            }
            Err(error) => tell_unusable(&error),
        }
        take_nodes(&mut files, now, &server.nodes);
        if let Err(error) = files.take_proxy_client(now, &server.nodes) {
            tell_unusable(&error);
        }
        if let Some((authorities, due)) = &mut unpublished
            && *due <= now
        {
            match bootstrap::publish_authentication(&server.core, authorities).await {
                Ok(()) => unpublished = None,
                Err(error) => {
                    tracing::warn!(
                        error = chain(&error),
                        "cannot publish the client certificate authorities in the ConfigMap extension-apiserver-authentication; retried in 10 s"
                    );
                    *due = now + PUBLISH_AGAIN;
                }
            }
        }
    }
}

fn take_nodes(files: &mut CertificateFiles, now: Instant, nodes: &NodeProxy) {
    let taken = match files.nodes(now) {
        Ok(None) => return,
        Ok(Some((authority, identity))) => {
            nodes.replace(authority, identity).map_err(TlsError::from)
        }
        Err(error) => Err(error),
    };
    match taken {
        Ok(()) => tracing::info!(
            "reloaded the client certificate for kubelets and the certificate authorities of kubelets"
        ),
        Err(error) => tell_unusable(&error),
    }
}

fn tell_unusable(error: &TlsError) {
    tracing::warn!(
        error = chain(error),
        "cannot use the new certificate files; the old ones stay in use"
    );
}

/// The certificates of a PEM text without its other sections: a CA file may hold the CA's key, and the text is published.
fn certificates_in(pem: &str) -> String {
    let (mut certificates, mut inside) = (String::new(), false);
    for line in pem.lines() {
        inside |= line == "-----BEGIN CERTIFICATE-----";
        if inside {
            certificates.push_str(line);
            certificates.push('\n');
        }
        inside &= line != "-----END CERTIFICATE-----";
    }
    certificates
}

#[cfg(test)]
mod tests {
    use proto_api::names::{Names, Profile};

    use super::*;

    struct World {
        dir: tempfile::TempDir,
        files: CertificateFiles,
        now: Instant,
    }

    fn pair() -> (String, String) {
        let made = rcgen::generate_simple_self_signed(vec!["a".to_owned()]).unwrap();
        (made.cert.pem(), made.signing_key.serialize_pem())
    }

    impl World {
        fn new(authority: &str) -> Self {
            let dir = tempfile::tempdir().unwrap();
            let at = |name: &str| dir.path().join(name);
            let (certificate, key) = pair();
            std::fs::write(at("crt"), certificate).unwrap();
            std::fs::write(at("key"), key).unwrap();
            std::fs::write(at("ca"), authority).unwrap();
            let config = Config {
                serving: Some(Credentials { certificate: at("crt"), key: at("key") }),
                client_ca_file: Some(at("ca")),
                ..Config::for_tests(Names::new(Profile::Kubernetes))
            };
            let files = CertificateFiles::new(&config, None).unwrap();
            Self { dir, files, now: Instant::now() }
        }

        /// Whether there is something new a second later, or why it cannot be used.
        fn look(&mut self) -> Result<bool, String> {
            self.now += LOOK_EVERY;
            self.files.listener(self.now).map(|made| made.is_some()).map_err(|error| chain(&error))
        }

        fn replace(&mut self, name: &str, content: &str) -> Result<bool, String> {
            let new = self.dir.path().join("new");
            std::fs::write(&new, content).unwrap();
            std::fs::rename(new, self.dir.path().join(name)).unwrap();
            self.look()
        }
    }

    #[test]
    fn unusable_certificate_files_are_reported_once_and_change_nothing() {
        let authority = pair().0;
        let mut world = World::new(&authority);
        assert_eq!(world.look(), Ok(true));
        assert_eq!(world.look(), Ok(false));
        let (certificate, key) = pair();
        let error = world.replace("key", &key).unwrap_err();
        assert!(error.starts_with("cannot use the certificate of the server"), "{error}");
        assert_eq!(world.look(), Ok(false));
        assert_eq!(world.replace("crt", &certificate), Ok(true), "they belong together again");
        for bad in ["", "no certificate", &authority[..authority.len() / 2]] {
            let error = world.replace("ca", bad).unwrap_err();
            assert!(error.starts_with("cannot read PEM file") && error.contains("/ca"), "{error}");
        }
        std::fs::remove_file(world.dir.path().join("ca")).unwrap();
        assert_eq!(world.look(), Ok(false));
        let second = pair().0;
        assert_eq!(world.replace("ca", &format!("{authority}{second}")), Ok(true));
    }

    #[test]
    fn a_file_that_is_missing_at_the_start_is_named() {
        let mut world = World::new(&pair().0);
        std::fs::remove_file(world.dir.path().join("ca")).unwrap();
        let error = world.look().unwrap_err();
        assert!(error.contains("/ca"), "{error}");
    }

    #[test]
    fn keys_of_a_ca_file_are_not_published() {
        let key = rcgen::KeyPair::generate().unwrap();
        let params = rcgen::CertificateParams::default();
        let certificate = params.self_signed(&key).unwrap().pem().replace('\r', "");
        let file = format!(
            "{}# the CA\n{certificate}{}{certificate}",
            key.serialize_pem(),
            key.serialize_pem()
        );
        assert_eq!(certificates_in(&file), format!("{certificate}{certificate}"));
        assert_eq!(certificates_in("-----BEGIN PRIVATE KEY-----\nAAAA\n"), "");
    }
}
