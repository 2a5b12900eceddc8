//! Manifests behind a URL.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use http::header::InvalidHeaderName;
use http::uri::{InvalidUri, PathAndQuery, Scheme};
use http::{HeaderName, HeaderValue, Request, Uri, header};
use http_body_util::{BodyExt as _, Empty, Limited};
use hyper::body::Bytes;
use hyper::client::conn::http1;
use hyper::rt::{Read, Write};
use hyper_util::rt::TokioIo;
use proto_daemon::exit::chain;
use proto_daemon::panics::{self, spawn_blocking};
use proto_daemon::tls;
use rustls::crypto::ring;
use rustls::pki_types::{InvalidDnsNameError, ServerName, pem};
use rustls::{ClientConfig, RootCertStore};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;

use super::text::{self, Context, MANIFEST_BYTES_MAX, ManifestError};
use super::{ManifestPublisher, Origin};

/// Time limit of a request.
const DEADLINE: Duration = Duration::from_secs(10);
/// The system's CA bundle, unless `SSL_CERT_FILE` names another file.
const SYSTEM_AUTHORITIES: &str = "/etc/ssl/certs/ca-certificates.crt";

/// Why the setting of a page is not usable.
#[derive(Debug, thiserror::Error)]
pub enum PageError {
    /// Not a URL.
    #[error("{url:?} is not a URL")]
    Url {
        /// As it is set.
        url: String,
        /// Why.
        #[source]
        error: InvalidUri,
    },
    /// A URL of something else.
    #[error("{0:?} must be http://host/path or https://host/path")]
    Scheme(String),
    /// The name of a header has other characters.
    #[error("header name {name:?} is invalid")]
    HeaderName {
        /// As it is set.
        name: String,
        /// Why.
        #[source]
        error: InvalidHeaderName,
    },
    /// The value of this header, which may be a secret.
    #[error("the value of header {0:?} is invalid")]
    HeaderValue(String),
}

/// Why a page was not read. It is read again after its period.
#[derive(Debug, thiserror::Error)]
enum FetchError {
    #[error("no response within {} s", DEADLINE.as_secs())]
    Deadline,
    #[error(transparent)]
    Connect(#[from] std::io::Error),
    #[error(transparent)]
    ServerName(#[from] InvalidDnsNameError),
    #[error(transparent)]
    Trust(#[from] TrustError),
    #[error(transparent)]
    Thread(#[from] tokio::task::JoinError),
    #[error(transparent)]
    Request(#[from] http::Error),
    #[error(transparent)]
    Exchange(#[from] hyper::Error),
    /// Redirects are not followed: the node only connects to configured hosts.
    #[error("the server answered with status {0}")]
    Status(http::StatusCode),
    #[error("reading the response: {0}")]
    Body(Box<dyn std::error::Error + Send + Sync>),
    #[error("the response is empty")]
    Empty,
    #[error("the response is not UTF-8")]
    NotText,
    #[error(transparent)]
    Manifest(#[from] ManifestError),
}

/// Why the system's CA certificates are not usable.
#[derive(Debug, thiserror::Error)]
enum TrustError {
    #[error("{}", file.display())]
    Read {
        file: PathBuf,
        #[source]
        error: std::io::Error,
    },
    #[error("{}", file.display())]
    Certificates {
        file: PathBuf,
        #[source]
        error: pem::Error,
    },
    #[error(transparent)]
    Tls(#[from] rustls::Error),
}

/// A URL with manifests: a Pod or a list of Pods.
#[derive(Clone, Debug)]
pub struct Page {
    uri: Uri,
    headers: Vec<(HeaderName, HeaderValue)>,
    period: Duration,
}

impl Page {
    /// The page at `url`, requested with `headers` every `period`.
    ///
    /// # Errors
    /// It is not an HTTP or HTTPS URL, or a header is invalid.
    pub fn new(
        url: &str,
        headers: &BTreeMap<String, Vec<String>>,
        period: Duration,
    ) -> Result<Self, PageError> {
        let uri: Uri =
            url.parse().map_err(|error| PageError::Url { url: url.to_owned(), error })?;
        let known = [Some(&Scheme::HTTP), Some(&Scheme::HTTPS)].contains(&uri.scheme());
        if !known || uri.host().is_none_or(str::is_empty) {
            return Err(PageError::Scheme(url.to_owned()));
        }
        let mut all = Vec::new();
        for (name, values) in headers {
            let parsed = HeaderName::try_from(name)
                .map_err(|error| PageError::HeaderName { name: name.clone(), error })?;
            for value in values {
                let value = HeaderValue::try_from(value)
                    .map_err(|_| PageError::HeaderValue(name.clone()))?;
                all.push((parsed.clone(), value));
            }
        }
        Ok(Self { uri, headers: all, period })
    }

    /// Requests the page every period and publishes its pods. If it cannot be fetched or is
    /// invalid, the known pods stay.
    pub async fn run(self, mut teller: ManifestPublisher) {
        let place = self.uri.to_string();
        let mut last = None;
        loop {
            let mut faults = BTreeMap::new();
            match self.pods(&teller, &place, &mut last).await {
                Ok(Some(pods)) => {
                    let pods =
                        pods.into_iter().map(|pod| (pod.metadata.uid.clone(), Arc::new(pod)));
                    teller.publish(pods.collect());
                }
                Ok(None) => {}
                Err(fault) => _ = faults.insert(place.clone(), chain(&fault)),
            }
            teller.report_faults(faults);
            tokio::time::sleep(self.period).await;
        }
    }

    /// The page's pods; `None` if it has not changed.
    async fn pods(
        &self,
        teller: &ManifestPublisher,
        place: &str,
        last: &mut Option<String>,
    ) -> Result<Option<Vec<proto_api::core::v1::Pod>>, FetchError> {
        let fetched = tokio::time::timeout(DEADLINE, self.fetch()).await;
        let text = fetched.map_err(|_| FetchError::Deadline)??;
        if last.as_ref() == Some(&text) {
            return Ok(None);
        }
        let (names, node) = (teller.names, teller.node.as_str());
        let pods = text::pods(&text, Context { origin: Origin::Http, place, names, node })?;
        *last = Some(text);
        Ok(Some(pods))
    }

    async fn fetch(&self) -> Result<String, FetchError> {
        let host = self.uri.host().unwrap_or_default().trim_matches(['[', ']']);
        let https = self.uri.scheme() == Some(&Scheme::HTTPS);
        let port = self.uri.port_u16().unwrap_or(if https { 443 } else { 80 });
        let tcp = TcpStream::connect((host, port)).await?;
        if !https {
            return self.send_request(TokioIo::new(tcp)).await;
        }
        let name = ServerName::try_from(host.to_owned())?;
        let config = spawn_blocking(read_system_cas).await??;
        let tls = TlsConnector::from(Arc::new(config)).connect(name, tcp).await;
        self.send_request(TokioIo::new(tls?)).await
    }

    async fn send_request(
        &self,
        io: impl Read + Write + Unpin + Send + 'static,
    ) -> Result<String, FetchError> {
        let (mut sender, connection) = http1::handshake(io).await?;
        // Ends with the sender, or with the peer.
        panics::spawn(connection);
        let path = self.uri.path_and_query().map_or("/", PathAndQuery::as_str);
        let host = self.uri.authority().map_or("", |authority| authority.as_str());
        // The Host header has no user name.
        let host = host.rsplit('@').next().unwrap_or_default();
        let mut request = Request::get(path).header(header::HOST, host);
        for (name, value) in &self.headers {
            request = request.header(name, value);
        }
        let request = request.body(Empty::<Bytes>::new())?;
        let answer = sender.send_request(request).await?;
        if answer.status() != http::StatusCode::OK {
            return Err(FetchError::Status(answer.status()));
        }
        let bound = usize::try_from(MANIFEST_BYTES_MAX).unwrap_or(usize::MAX);
        let body = Limited::new(answer.into_body(), bound).collect().await;
        let body = body.map_err(FetchError::Body)?.to_bytes();
        if body.is_empty() {
            return Err(FetchError::Empty);
        }
        String::from_utf8(body.into()).map_err(|_| FetchError::NotText)
    }
}

/// TLS with the system's CA certificates.
fn read_system_cas() -> Result<ClientConfig, TrustError> {
    let file: PathBuf =
        std::env::var_os("SSL_CERT_FILE").map_or_else(|| SYSTEM_AUTHORITIES.into(), Into::into);
    let pem =
        std::fs::read(&file).map_err(|error| TrustError::Read { file: file.clone(), error })?;
    let certificates =
        tls::certificates(&pem).map_err(|error| TrustError::Certificates { file, error })?;
    let mut roots = RootCertStore::empty();
    roots.add_parsable_certificates(certificates);
    let config = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()?;
    Ok(config.with_root_certificates(roots).with_no_client_auth())
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use agent_telemetry::node_events::NodeEvents;
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    use tokio::net::TcpListener;
    use tokio::sync::watch;

    use super::*;
    use crate::manifests::text::tests::{POD, names};
    use crate::manifests::{ManifestPods, StaticPods};

    /// A server that gives the answer that it has at the moment; what it was asked is kept.
    async fn serve(answer: Arc<Mutex<String>>, asked: Arc<Mutex<String>>) -> String {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("bound");
        let address = listener.local_addr().expect("address");
        tokio::spawn(async move {
            while let Ok((mut stream, _)) = listener.accept().await {
                let mut bytes = vec![0; 4096];
                let read = stream.read(&mut bytes).await.unwrap_or(0);
                *asked.lock().expect("lock") = String::from_utf8_lossy(&bytes[..read]).into_owned();
                let text = answer.lock().expect("lock").clone();
                let _ = stream.write_all(text.as_bytes()).await;
            }
        });
        format!("http://{address}/pods?of=node")
    }

    fn ok(body: &str) -> String {
        format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n{body}", body.len())
    }

    async fn until(known: &mut watch::Receiver<ManifestPods>, holds: impl Fn(&StaticPods) -> bool) {
        let wait = known.wait_for(|known| known.is_synced() && holds(&known.pods()));
        let waited = tokio::time::timeout(Duration::from_secs(60), wait).await;
        waited.expect("in time").expect("told");
    }

    #[tokio::test]
    async fn a_page_s_pods_follow_it_and_outlast_its_failures() {
        let (answer, asked) = (Arc::new(Mutex::new(ok(POD))), Arc::default());
        let url = serve(Arc::clone(&answer), Arc::clone(&asked)).await;
        let headers = BTreeMap::from([("X-Token".to_owned(), vec!["t".to_owned()])]);
        let page = Page::new(&url, &headers, Duration::from_millis(10)).expect("a page");
        let (send, mut known) = watch::channel(ManifestPods::unread([Origin::Http]));
        let teller =
            ManifestPublisher::new(Origin::Http, send, NodeEvents::new(None, "n"), names(), "n");
        let running = tokio::spawn(page.run(teller));
        until(&mut known, |pods| pods.len() == 1).await;
        let first = known.borrow().pods();
        let pod = first.values().next().expect("one");
        assert_eq!(pod.metadata.annotations["kubernetes.io/config.source"], "http");
        let request = asked.lock().expect("lock").to_lowercase();
        assert!(request.starts_with("get /pods?of=node http/1.1\r\n"), "{request}");
        assert!(request.contains("x-token: t\r\n"), "{request}");

        let long = ok(&"#".repeat(2 << 20));
        for trouble in ["HTTP/1.1 500 Oops\r\n\r\n", "HTTP/1.1 302 Found\r\n\r\n", "", &long] {
            *answer.lock().expect("lock") = trouble.to_owned();
            asked.lock().expect("lock").clear();
            // Two more questions: the first may have been under way.
            for _ in 0..2 {
                while asked.lock().expect("lock").is_empty() {
                    tokio::time::sleep(Duration::from_millis(2)).await;
                }
                asked.lock().expect("lock").clear();
            }
            assert_eq!(known.borrow().pods(), first, "{trouble:.30}");
        }
        *answer.lock().expect("lock") = ok(&POD.replace("name: web", "name: other"));
        until(&mut known, |pods| pods.values().all(|pod| pod.metadata.name == "other-n")).await;
        *answer.lock().expect("lock") = ok("apiVersion: v1\nkind: PodList\nitems: []\n");
        until(&mut known, StaticPods::is_empty).await;
        running.abort();
    }

    #[test]
    fn invalid_manifest_urls_and_headers_are_refused() {
        let page = |url: &str| Page::new(url, &BTreeMap::new(), DEADLINE).map(drop);
        for url in ["https://h/p", "http://10.0.0.1:8080", "http://[::1]:80/x?y=z"] {
            page(url).expect(url);
        }
        for url in ["", "/etc/x", "ftp://h/p", "file:///x", "http://", "h:80"] {
            assert!(page(url).is_err(), "{url}");
        }
        let headers = BTreeMap::from([("a b".to_owned(), vec![])]);
        assert!(Page::new("http://h", &headers, DEADLINE).is_err());
    }
}
