//! The call of one webhook: over TLS, within its time, with bounds on what it sends and on the calls at one time.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use apiserver_admission_webhooks::{ANSWER_LEN_MAX, Webhook, WebhookEndpoint};
use apiserver_auth::{FairQueue, Full, USER_AGENT, server_and_path};
use bytes::Bytes;
use http::{HeaderValue, Method, Request, Uri, header};
use proto_api::names::Names;
use proto_client::config::{Pem, TlsSettings};
use proto_client::transport::{AddressRule, ClientTlsError, TransportError};
use proto_client::{Client, ClientConfig, ClientError};
use proto_daemon::exit::chain;
use tokio::time::{Instant, timeout_at};

use crate::dial_policy::{DialPolicy, DialScope};

/// Longest wait for a turn to call it. Behind a webhook that is slow requests fail, so that they leave their places to others.
const TURN_WAIT_MAX: Duration = Duration::from_secs(2);

/// Host and port that a connection goes to, in the place of those of the URL.
pub(crate) type Address = (String, u16);

/// A webhook that is called: where it listens.
pub(crate) trait CallTarget {
    /// The URL, or the Service.
    fn target(&self) -> &WebhookEndpoint;

    /// Certificates that its own is checked against, as PEM; empty for those of the host.
    fn authority(&self) -> &[u8];

    /// The most bytes of an answer.
    fn answer_len_max(&self) -> usize;
}

impl CallTarget for Webhook {
    fn target(&self) -> &WebhookEndpoint {
        &self.target
    }

    fn authority(&self) -> &[u8] {
        &self.authority
    }

    fn answer_len_max(&self) -> usize {
        ANSWER_LEN_MAX
    }
}

/// A webhook and the connections to it.
pub(crate) struct Remote<W = Webhook> {
    pub(crate) webhook: W,
    names: &'static Names,
    dial: Arc<DialPolicy>,
    /// Calls, of which no user has more than a share.
    queue: Arc<FairQueue>,
    connection: Mutex<Option<Arc<Connection>>>,
    /// Connections that broke or could not be made.
    failures: AtomicUsize,
}

struct Connection {
    address: Option<Address>,
    client: Client,
    path: String,
}

/// A webhook did not answer.
#[derive(Debug, thiserror::Error)]
pub(crate) enum CallError {
    /// Its URL is none.
    #[error("{0:?} is not a URL")]
    Url(String),
    /// Its name cannot be that of a certificate.
    #[error(transparent)]
    Tls(#[from] ClientTlsError),
    /// Too many calls have not ended.
    #[error("too many calls of the webhook have not ended")]
    Busy,
    /// Too many calls for the same user have not ended.
    #[error("too many calls of the webhook for requests of this user have not ended")]
    BusyForUser,
    /// It did not answer in time. The words are Go's.
    #[error("context deadline exceeded")]
    Deadline,
    /// It refused the call, or the connection broke.
    #[error(transparent)]
    Client(#[from] ClientError),
}

impl From<Full> for CallError {
    fn from(full: Full) -> Self {
        match full {
            Full::Share => Self::BusyForUser,
            Full::Queue => Self::Busy,
        }
    }
}

impl CallError {
    /// The error with its causes in one line.
    pub(crate) fn text(&self) -> String {
        match self {
            Self::Client(ClientError::Transport { cause, .. }) => chain(cause),
            other => chain(other),
        }
    }

    /// Status code of the failure in metrics.
    pub(crate) fn code(&self) -> i32 {
        match self {
            Self::Client(error) => error.code().map_or(503, i32::from),
            _ => 503,
        }
    }
}

impl<W: CallTarget> Remote<W> {
    /// Connections to it go where `dial` allows.
    pub(crate) fn new(webhook: W, names: &'static Names, dial: Arc<DialPolicy>) -> Self {
        let (connection, failures) = Default::default();
        Self { webhook, names, dial, queue: FairQueue::new(), connection, failures }
    }

    /// One of the addresses: always the same, until a connection to it fails.
    pub(crate) fn choose(&self, mut addresses: Vec<Address>) -> Option<Address> {
        let failures = self.failures.load(Ordering::Relaxed);
        let at = failures.checked_rem(addresses.len())?;
        Some(addresses.swap_remove(at))
    }

    /// Posts `body` for a request of `user`; gives the body of the answer. `address` is that of a service.
    ///
    /// # Errors
    /// There is no answer within `time`, or none with a status below 300.
    pub(crate) async fn call(
        &self,
        user: &str,
        address: Option<Address>,
        body: Bytes,
        time: Duration,
    ) -> Result<Bytes, CallError> {
        let began = Instant::now();
        let deadline = began + time;
        let turn_until = began + time.min(TURN_WAIT_MAX);
        let _turn = self.queue.enter(user)?.wait_until(turn_until).await?;
        let connection = self.connection_to(address)?;
        let path = format!("{}?timeout={}s", connection.path, seconds(time));
        let uri: Uri = path.parse().map_err(|_| CallError::Url(path))?;
        let answer = timeout_at(deadline, Box::pin(post(&connection.client, uri, body))).await;
        match answer.map_err(|_| CallError::Deadline) {
            Ok(Ok(answer)) => Ok(answer),
            Ok(Err(error)) => {
                if matches!(error, ClientError::Transport { .. } | ClientError::Deadline { .. }) {
                    self.failures.fetch_add(1, Ordering::Relaxed);
                }
                Err(error.into())
            }
            Err(late) => {
                self.failures.fetch_add(1, Ordering::Relaxed);
                Err(late)
            }
        }
    }

    /// The connection of the last call if it goes to the same address, else a new one.
    fn connection_to(&self, address: Option<Address>) -> Result<Arc<Connection>, CallError> {
        let mut last = self.connection.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(connection) = last.as_ref().filter(|last| last.address == address) {
            return Ok(connection.clone());
        }
        let url = self.webhook.target().url();
        let uri: Uri = url.parse().map_err(|_| CallError::Url(url.clone()))?;
        let (server, path) = server_and_path(&uri);
        if server.host().is_none_or(str::is_empty) || server.scheme_str() != Some("https") {
            return Err(CallError::Url(url));
        }
        let authority = self.webhook.authority();
        let authority = (!authority.is_empty()).then(|| Pem::Data(authority.to_vec()));
        let tls = TlsSettings { authority, ..TlsSettings::default() };
        let config = ClientConfig { tls, ..ClientConfig::direct(server) };
        let dialed = address.as_ref().map(|(host, port)| (host.as_str(), *port));
        let client = Client::guarded(dialed, self.rule(), &config, self.names, USER_AGENT)?;
        let client = client.with_body_len_max(self.webhook.answer_len_max());
        // A query is not valid in a configuration.
        let path = path.split('?').next().unwrap_or("/").to_owned();
        let connection = Arc::new(Connection { address, client, path });
        *last = Some(connection.clone());
        Ok(connection)
    }

    /// Who may write Services and their endpoints configures no webhooks: those lead to fewer addresses than a URL.
    fn rule(&self) -> AddressRule {
        let scope = match self.webhook.target() {
            WebhookEndpoint::Url(_) => DialScope::WebhookUrl,
            WebhookEndpoint::Service { .. } => DialScope::Routable,
        };
        let dial = self.dial.clone();
        AddressRule::new(move |address| dial.allows(address, scope))
    }

    /// The URL of a call, for errors.
    pub(crate) fn url(&self, time: Duration) -> String {
        format!("{}?timeout={}s", self.webhook.target().url(), seconds(time))
    }

    /// Namespace, name and port of the service that is called; `None` for a URL.
    pub(crate) fn service(&self) -> Option<(&str, &str, u16)> {
        match self.webhook.target() {
            WebhookEndpoint::Url(_) => None,
            WebhookEndpoint::Service { namespace, name, port, .. } => {
                Some((namespace, name, *port))
            }
        }
    }
}

/// Posts `body`, and once more if the connection breaks: the webhook may just have closed one that was idle. Webhooks must tolerate repeated calls.
async fn post(client: &Client, uri: Uri, body: Bytes) -> Result<Bytes, ClientError> {
    let request = || {
        let mut request = Request::new(body.clone());
        *request.method_mut() = Method::POST;
        *request.uri_mut() = uri.clone();
        let json = HeaderValue::from_static("application/json");
        request.headers_mut().insert(header::CONTENT_TYPE, json);
        request
    };
    let answer = match client.call(request()).await {
        Err(ClientError::Transport { cause: TransportError::Broken { .. }, .. }) => {
            client.call(request()).await
        }
        answer => answer,
    };
    answer.map(|answer| answer.body)
}

/// Whole seconds, rounded up.
fn seconds(time: Duration) -> u64 {
    time.as_secs().saturating_add(u64::from(time.subsec_nanos() > 0))
}

#[cfg(test)]
mod tests {
    use apiserver_admission_webhooks::{
        FailurePolicy, MatchConditions, MatchPolicy, Phase, Selectors,
    };
    use proto_api::names::Profile;
    use proto_api::selectors::Selector;

    use super::*;
    use crate::config::Config;

    fn remote(url: &str) -> Remote {
        let everything = Selector::everything;
        let webhook = Webhook {
            configuration: "c".to_owned(),
            name: "w.example.com".to_owned(),
            phase: Phase::Validating,
            target: WebhookEndpoint::Url(url.to_owned()),
            authority: Vec::new(),
            rules: Vec::new(),
            failure_policy: FailurePolicy::Fail,
            match_policy: MatchPolicy::Exact,
            selectors: Ok(Selectors {
                namespace: everything(),
                object: everything(),
                conditions: MatchConditions::default(),
            }),
            allows_dry_run: true,
            timeout: Duration::from_secs(10),
            version: None,
        };
        let names = Names::new(Profile::Kubernetes);
        let dial = DialPolicy::new(&Config::for_tests(names));
        Remote::new(webhook, names, Arc::new(dial))
    }

    #[tokio::test(start_paused = true)]
    async fn a_call_waits_for_its_turn_and_not_for_long() {
        let remote = remote("https://127.0.0.1:1/");
        let mut held = Vec::new();
        for user in ["a", "b", "c", "d"] {
            // As many turns as there are for one user.
            while let Ok(turn) = remote.queue.enter(user).unwrap().wait_until(Instant::now()).await
            {
                held.push(turn);
            }
        }
        for (user, time, waited) in
            [("e", 10, TURN_WAIT_MAX), ("e", 1, Duration::from_secs(1)), ("a", 10, TURN_WAIT_MAX)]
        {
            let began = Instant::now();
            let refused = remote.call(user, None, Bytes::new(), Duration::from_secs(time)).await;
            let expected = match user {
                "a" => matches!(refused, Err(CallError::BusyForUser)),
                _ => matches!(refused, Err(CallError::Busy)),
            };
            assert!(expected, "{user}: {refused:?}");
            assert_eq!(began.elapsed(), waited);
        }
    }

    #[tokio::test]
    async fn only_urls_over_tls_are_called() {
        for url in ["", "http://127.0.0.1:1/", "https:///x", "/x"] {
            let refused = remote(url).call("u", None, Bytes::new(), Duration::from_secs(1)).await;
            assert!(matches!(refused, Err(CallError::Url(_))), "{url}: {refused:?}");
        }
    }

    #[test]
    fn another_endpoint_is_chosen_after_a_failure() {
        let remote = remote("https://h/");
        let address = |host: &str| (host.to_owned(), 443);
        let choose = || remote.choose(vec![address("a"), address("b")]);
        assert_eq!([choose(), choose()], [Some(address("a")), Some(address("a"))]);
        remote.failures.fetch_add(1, Ordering::Relaxed);
        assert_eq!(choose(), Some(address("b")));
        assert_eq!(remote.choose(Vec::new()), None);
    }

    #[test]
    fn a_part_of_a_second_is_a_second() {
        let rounded = [0, 1, 999, 1000, 1001].map(|ms| seconds(Duration::from_millis(ms)));
        assert_eq!(rounded, [0, 1, 1, 1, 2]);
    }
}
