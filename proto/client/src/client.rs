//! One server and one identity: sends requests, limits the length and time of responses, and turns error responses into errors.

use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use http::{HeaderMap, HeaderValue, Request, Response, Uri, header};
use http_body_util::{BodyExt, Either, Full};
use hyper::body::Incoming;
use hyper::upgrade::Upgraded;
use proto_api::Kind;
use proto_api::meta::v1::Status;
use proto_api::names::Names;
use tokio::time::{Instant, timeout_at};

use crate::config::{ClientConfig, Credential, TlsSettings};
use crate::content::{Encoding, Form};
use crate::error::{ClientError, DecodeError};
use crate::metrics::RequestMetrics;
use crate::params::{DeleteParams, ListParams};
use crate::reloading_file::ReloadingFile;
use crate::request;
use crate::shared_token::{SharedToken, sensitive_header};
use crate::transport::{
    self, AddressRule, Caller, ClientTlsError, InMemory, InMemoryServer, Pings, ProxyServer,
    ResponseBody, Transport,
};
use crate::userinfo;

/// Default deadline of a complete response.
const DEADLINE: Duration = Duration::from_secs(30);
/// Longest response: a list of all objects.
const BODY_LEN_MAX: usize = 64 << 20;
/// Longest text that is kept of an error response that is not a Status.
const ERROR_TEXT_MAX: usize = 1 << 10;

/// A client of one server. Clones share its connection; [`Client::separate`] makes another.
#[derive(Clone)]
pub struct Client {
    shared: Arc<Shared>,
    authorization: Arc<Mutex<Authorization>>,
    deadline: Duration,
    body_len_max: usize,
    metrics: Option<RequestMetrics>,
    form: Form,
    headers: Option<Arc<HeaderMap>>,
}

struct Shared {
    config: ClientConfig,
    names: &'static Names,
    user_agent: HeaderValue,
    transport: Transport,
    /// Set once the server has refused Protobuf.
    json_only: AtomicBool,
}

enum Authorization {
    None,
    Fixed(HeaderValue),
    File(ReloadingFile),
    Shared(SharedToken),
}

/// A complete response without an error.
#[derive(Clone, Debug)]
pub struct Answer {
    /// 200, 201 or 202.
    pub status: u16,
    /// Its headers, `Warning` among them.
    pub headers: HeaderMap,
    pub body: Bytes,
}

impl fmt::Debug for Client {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Client").field("server", &self.shared.config.server).finish_non_exhaustive()
    }
}

impl Client {
    /// Does not connect yet. `user_agent` is as `orchlet/0.1.0`. A user in the server's URL is one by password, unless the configuration has credentials.
    pub fn new(
        config: &ClientConfig,
        names: &'static Names,
        user_agent: &str,
    ) -> Result<Self, ClientTlsError> {
        Self::with_pings(config, names, user_agent, Pings::default())
    }

    /// As [`Client::new`], for a server that a request names: connections go to `address` instead of the host and port of its URL, if there is one, and
    /// only to addresses that `rule` allows.
    pub fn guarded(
        address: Option<(&str, u16)>,
        rule: AddressRule,
        config: &ClientConfig,
        names: &'static Names,
        user_agent: &str,
    ) -> Result<Self, ClientTlsError> {
        let transport = Transport::new(config, Pings::default())?.dialing(address, rule);
        Ok(Self::over(transport, config, names, user_agent))
    }

    /// As [`Client::new`], with all connections through a proxy, if there is one.
    pub fn through(
        proxy: Option<&ProxyServer>,
        config: &ClientConfig,
        names: &'static Names,
        user_agent: &str,
    ) -> Result<Self, ClientTlsError> {
        let transport = Transport::new(config, Pings::default())?;
        let transport = match proxy {
            Some(proxy) => transport.through(proxy, &config.tls)?,
            None => transport,
        };
        Ok(Self::over(transport, config, names, user_agent))
    }

    /// A client of a server in this process: no port, no TLS. Its requests are those of the user whom the server takes the connection to be from.
    pub fn in_memory(
        server: Arc<dyn InMemoryServer>,
        names: &'static Names,
        user_agent: &str,
    ) -> Result<Self, ClientTlsError> {
        let config = ClientConfig {
            server: Uri::from_static("http://localhost"),
            tls: TlsSettings::default(),
            credential: Credential::None,
            namespace: "default".to_owned(),
        };
        let in_memory = InMemory { server, caller: Caller::Known };
        let transport = Transport::new(&config, Pings::default())?.within(in_memory);
        Ok(Self::over(transport, &config, names, user_agent))
    }

    pub(crate) fn with_pings(
        config: &ClientConfig,
        names: &'static Names,
        user_agent: &str,
        pings: Pings,
    ) -> Result<Self, ClientTlsError> {
        Ok(Self::over(Transport::new(config, pings)?, config, names, user_agent))
    }

    fn over(
        transport: Transport,
        config: &ClientConfig,
        names: &'static Names,
        user_agent: &str,
    ) -> Self {
        let (server, user) = userinfo::split(&config.server);
        let mut config = ClientConfig { server, ..config.clone() };
        if let (Credential::None, Some(user)) = (&config.credential, user) {
            config.credential =
                Credential::Basic { username: user.username, password: user.password };
        }
        let authorization = match &config.credential {
            Credential::None => Authorization::None,
            Credential::Token(token) => secret_header(&format!("Bearer {}", token.trim())),
            Credential::TokenFile(path) => Authorization::File(ReloadingFile::file(path.clone())),
            Credential::Basic { username, password } => {
                let header = userinfo::basic_header(username, password);
                header.map_or(Authorization::None, Authorization::Fixed)
            }
        };
        let shared = Shared {
            config,
            names,
            user_agent: HeaderValue::from_str(user_agent)
                .unwrap_or_else(|_| HeaderValue::from_static("orch")),
            transport,
            json_only: AtomicBool::new(false),
        };
        Self {
            shared: Arc::new(shared),
            authorization: Arc::new(Mutex::new(authorization)),
            deadline: DEADLINE,
            body_len_max: BODY_LEN_MAX,
            metrics: None,
            form: Form::Whole,
            headers: None,
        }
    }

    /// The same server without this client's certificate and credentials, over a connection of its own.
    pub fn anonymous(&self) -> Result<Self, ClientTlsError> {
        let mut config = self.shared.config.clone();
        config.tls.identity = None;
        config.credential = Credential::None;
        let user_agent = self.shared.user_agent.to_str().unwrap_or_default();
        let transport = self.shared.transport.another(&config)?.anonymous();
        let other = Self::over(transport, &config, self.shared.names, user_agent);
        Ok(Self { shared: other.shared, authorization: other.authorization, ..self.clone() })
    }

    /// The same connection with `token` in the place of the credentials. A client certificate of the connection would still count, and first: see
    /// [`Client::anonymous`].
    #[must_use]
    pub fn with_token(&self, token: SharedToken) -> Self {
        let authorization = Arc::new(Mutex::new(Authorization::Shared(token)));
        Self { authorization, ..self.clone() }
    }

    /// The same server and identity over a separate connection, for requests that must not wait behind others, such as heartbeats.
    pub fn separate(&self) -> Result<Self, ClientTlsError> {
        let user_agent = self.shared.user_agent.to_str().unwrap_or_default();
        let transport = self.shared.transport.another(&self.shared.config)?;
        let other = Self::over(transport, &self.shared.config, self.shared.names, user_agent);
        // Not its authorization: a token that is set from outside belongs to both.
        Ok(Self { shared: other.shared, ..self.clone() })
    }

    /// The same connection with another deadline for complete responses.
    #[must_use]
    pub fn with_deadline(&self, deadline: Duration) -> Self {
        Self { deadline, ..self.clone() }
    }

    /// The same connection with another bound of complete responses, in bytes.
    #[must_use]
    pub fn with_body_len_max(&self, body_len_max: usize) -> Self {
        Self { body_len_max, ..self.clone() }
    }

    /// The same connection with its requests counted.
    #[must_use]
    pub fn with_metrics(&self, metrics: RequestMetrics) -> Self {
        Self { metrics: Some(metrics), ..self.clone() }
    }

    /// The same connection with these headers, of one value each, in each request that does not have them itself.
    #[must_use]
    pub fn with_headers(&self, headers: HeaderMap) -> Self {
        Self { headers: Some(Arc::new(headers)), ..self.clone() }
    }

    /// Makes the next request use a new connection, if packets of the current one may be lost. Requests on it may complete.
    pub fn reconnect(&self) {
        self.shared.transport.forget();
    }

    /// The naming profile of the server.
    pub fn names(&self) -> &'static Names {
        self.shared.names
    }

    /// The configuration that this client was made from, with a user of the server's URL as its credentials.
    pub fn config(&self) -> &ClientConfig {
        &self.shared.config
    }

    /// The same client, whose responses hold the metadata of objects only.
    pub(crate) fn for_metadata(&self) -> Self {
        Self { form: Form::Metadata, ..self.clone() }
    }

    /// The same client, for a list as the next response.
    pub(crate) fn for_list(&self) -> Self {
        let form = match self.form {
            Form::Whole => Form::Whole,
            Form::Metadata | Form::MetadataList => Form::MetadataList,
        };
        Self { form, ..self.clone() }
    }

    /// Sends a request made by [`crate::request`]; it accepts JSON unless it has an `Accept` header.
    pub async fn call(&self, request: Request<Bytes>) -> Result<Answer, ClientError> {
        let label = label(&request);
        let deadline = Instant::now() + self.deadline;
        let late = || ClientError::Deadline { request: label.clone(), deadline: self.deadline };
        let response = timeout_at(deadline, self.open(request)).await.map_err(|_| late())??;
        let (head, body) = response.into_parts();
        let body = timeout_at(deadline, read(body, self.body_len_max, &label))
            .await
            .map_err(|_| late())??;
        Ok(Answer { status: head.status.as_u16(), headers: head.headers, body })
    }

    /// Deletes the object at `path`, or the objects of a collection that `select` selects.
    pub(crate) async fn delete(
        &self,
        path: String,
        select: &ListParams,
        params: &DeleteParams,
    ) -> Result<(), ClientError> {
        let options = serde_json::to_vec(&params.options())
            .map_err(|cause| ClientError::Encode { request: format!("DELETE {path}"), cause })?;
        self.call(request::delete(path, select, Bytes::from(options))).await.map(drop)
    }

    /// Sends a request and returns at the head of a successful response; the caller reads the body. For watches and logs.
    pub async fn open(
        &self,
        request: Request<Bytes>,
    ) -> Result<Response<ResponseBody>, ClientError> {
        let label = label(&request);
        let request = self.complete(request, &label)?;
        let (method, began) = (request.method().clone(), Instant::now());
        let sent = tokio::time::timeout(self.deadline, self.shared.transport.send(request)).await;
        if let Some(metrics) = &self.metrics {
            let response = sent.as_ref().ok().and_then(|sent| sent.as_ref().ok());
            let code = response.map(|response| response.status().as_u16());
            let host = self.shared.config.server.authority().map_or("", |host| host.as_str());
            metrics.count(&method, host, code, began.elapsed());
        }
        let response = sent
            .map_err(|_| ClientError::Deadline { request: label.clone(), deadline: self.deadline })?
            .map_err(|cause| ClientError::Transport { request: label.clone(), cause })?;
        if response.status().is_success() {
            return Ok(response);
        }
        if response.status() == http::StatusCode::UNAUTHORIZED
            && let Authorization::Shared(token) = &*self.lock_authorization()
        {
            token.report_refusal();
        }
        Err(self.refused(label, response).await)
    }

    /// Sends an upgrade request over a separate connection and returns that connection.
    pub async fn upgrade(
        &self,
        request: Request<Bytes>,
    ) -> Result<(HeaderMap, Upgraded), ClientError> {
        let label = label(&request);
        let request = self.complete(request, &label)?;
        let sent =
            tokio::time::timeout(self.deadline, self.shared.transport.send_for_upgrade(request))
                .await;
        let response = sent
            .map_err(|_| ClientError::Deadline { request: label.clone(), deadline: self.deadline })?
            .map_err(|cause| ClientError::Transport { request: label.clone(), cause })?;
        if response.status() != http::StatusCode::SWITCHING_PROTOCOLS {
            return Err(self.refused(label, response).await);
        }
        let headers = response.headers().clone();
        let upgraded = hyper::upgrade::on(response).await;
        upgraded
            .map(|upgraded| (headers, upgraded))
            .map_err(|cause| ClientError::Read { request: label, cause })
    }

    /// Forwards a request of another client: its body is streamed, and its headers stay but for the credentials, which are this client's. The response is
    /// returned as it is, whatever its status.
    pub async fn forward(
        &self,
        request: Request<Incoming>,
    ) -> Result<Response<ResponseBody>, ClientError> {
        let label = label(&request);
        let (mut head, body) = request.into_parts();
        self.address(&mut head, &label)?;
        let request = Request::from_parts(head, Either::Right(body));
        let sent = tokio::time::timeout(self.deadline, self.shared.transport.send(request)).await;
        sent.map_err(|_| ClientError::Deadline { request: label.clone(), deadline: self.deadline })?
            .map_err(|cause| ClientError::Transport { request: label, cause })
    }

    /// As [`Client::forward`], for a request to switch protocols, over a separate connection.
    pub async fn forward_upgrade(
        &self,
        request: Request<()>,
    ) -> Result<Response<ResponseBody>, ClientError> {
        let label = label(&request);
        let (mut head, ()) = request.into_parts();
        self.address(&mut head, &label)?;
        let request = Request::from_parts(head, Either::Left(Full::default()));
        let sent = self.shared.transport.send_for_upgrade(request);
        let sent = tokio::time::timeout(self.deadline, sent).await;
        sent.map_err(|_| ClientError::Deadline { request: label.clone(), deadline: self.deadline })?
            .map_err(|cause| ClientError::Transport { request: label, cause })
    }

    /// Sends the request that `make` returns for Protobuf, or for JSON once the server has refused Protobuf, and decodes the response with `decode`.
    pub(crate) async fn negotiate<A>(
        &self,
        make: impl Fn(Encoding) -> Result<Request<Bytes>, ClientError>,
        decode: impl FnOnce(Encoding, &[u8]) -> Result<A, DecodeError>,
    ) -> Result<A, ClientError> {
        let encoding = self.encoding();
        let request = make(encoding)?;
        let label = label(&request);
        let answer = match self.call(self.accepting(request, encoding)).await {
            Err(error)
                if encoding == Encoding::Protobuf && matches!(error.code(), Some(406 | 415)) =>
            {
                // It was refused for its content type, before it had any effect.
                self.shared.json_only.store(true, Ordering::Relaxed);
                self.call(self.accepting(make(Encoding::Json)?, Encoding::Json)).await?
            }
            answer => answer?,
        };
        Encoding::from_headers(&answer.headers, self.names())
            .and_then(|encoding| decode(encoding, &answer.body))
            .map_err(|cause| ClientError::Decode { request: label, cause })
    }

    /// The form of typed objects.
    pub(crate) fn encoding(&self) -> Encoding {
        if self.shared.json_only.load(Ordering::Relaxed) {
            Encoding::Json
        } else {
            Encoding::Protobuf
        }
    }

    /// Records that the server accepts only JSON.
    pub(crate) fn use_json_only(&self) {
        self.shared.json_only.store(true, Ordering::Relaxed);
    }

    pub(crate) fn accepting(
        &self,
        mut request: Request<Bytes>,
        encoding: Encoding,
    ) -> Request<Bytes> {
        request.headers_mut().insert(header::ACCEPT, encoding.accept(self.form, self.names()));
        request
    }

    pub(crate) fn encode<T: Kind>(
        &self,
        encoding: Encoding,
        object: &T,
        request: &str,
    ) -> Result<Bytes, ClientError> {
        encoding
            .encode(object, self.names())
            .map_err(|cause| ClientError::Encode { request: request.to_owned(), cause })
    }

    /// Adds the server and the identity.
    fn complete(
        &self,
        request: Request<Bytes>,
        label: &str,
    ) -> Result<Request<transport::Body>, ClientError> {
        let (mut head, body) = request.into_parts();
        self.address(&mut head, label)?;
        let headers = &mut head.headers;
        for (name, value) in self.headers.iter().flat_map(|own| own.iter()) {
            headers.entry(name).or_insert_with(|| value.clone());
        }
        headers.insert(header::USER_AGENT, self.shared.user_agent.clone());
        headers
            .entry(header::ACCEPT)
            .or_insert_with(|| HeaderValue::from_static("application/json"));
        Ok(Request::from_parts(head, Either::Left(Full::new(body))))
    }

    /// Adds the server's URL and the credentials.
    fn address(&self, head: &mut http::request::Parts, label: &str) -> Result<(), ClientError> {
        head.uri = absolute(&self.shared.config.server, &head.uri);
        let authorization = self.authorization();
        let authorization = authorization
            .map_err(|cause| ClientError::Token { request: label.to_owned(), cause })?;
        if let Some(value) = authorization {
            head.headers.insert(header::AUTHORIZATION, value);
        }
        Ok(())
    }

    fn lock_authorization(&self) -> MutexGuard<'_, Authorization> {
        self.authorization.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn authorization(&self) -> std::io::Result<Option<HeaderValue>> {
        match &mut *self.lock_authorization() {
            Authorization::None => Ok(None),
            Authorization::Fixed(value) => Ok(Some(value.clone())),
            Authorization::Shared(token) => match token.header() {
                Some(value) => Ok(Some(value)),
                None => Err(std::io::Error::other("no token has been issued yet")),
            },
            Authorization::File(file) => {
                let (token, _) = file.current(Instant::now())?;
                let token = String::from_utf8_lossy(&token);
                match secret_header(&format!("Bearer {}", token.trim())) {
                    Authorization::Fixed(value) => Ok(Some(value)),
                    _ => Err(std::io::Error::other("the file holds no token")),
                }
            }
        }
    }

    async fn refused(&self, request: String, response: Response<ResponseBody>) -> ClientError {
        let (head, body) = response.into_parts();
        let read = read(body, self.body_len_max, &request);
        let read = tokio::time::timeout(self.deadline, read).await;
        let body = read.ok().and_then(Result::ok).unwrap_or_default();
        let encoding =
            Encoding::from_headers(&head.headers, self.names()).unwrap_or(Encoding::Json);
        let code = i32::from(head.status.as_u16());
        let mut status = encoding.decode_status(&body).unwrap_or_else(|| Status {
            message: text_of(&body),
            reason: head.status.canonical_reason().unwrap_or_default().replace(' ', ""),
            ..Status::default()
        });
        status.code = code;
        let seconds = head.headers.get(header::RETRY_AFTER).and_then(|value| value.to_str().ok());
        let retry_after = seconds.and_then(|text| text.parse().ok()).map(Duration::from_secs);
        ClientError::Api { request, status: Box::new(status), retry_after }
    }
}

/// Method and path, for errors.
pub(crate) fn label<B>(request: &Request<B>) -> String {
    format!("{} {}", request.method(), request.uri().path())
}

/// Reads a body to its end.
async fn read(mut body: ResponseBody, len_max: usize, label: &str) -> Result<Bytes, ClientError> {
    let mut whole = BytesMut::new();
    let mut first: Option<Bytes> = None;
    while let Some(frame) = body.frame().await {
        let frame =
            frame.map_err(|cause| ClientError::Read { request: label.to_owned(), cause })?;
        let Ok(data) = frame.into_data() else { continue };
        if whole.len() + first.as_ref().map_or(0, Bytes::len) + data.len() > len_max {
            return Err(ClientError::TooLong { request: label.to_owned(), len_max });
        }
        // Most responses are one frame, which is returned without a copy.
        if whole.is_empty() && first.is_none() {
            first = Some(data);
        } else {
            if let Some(first) = first.take() {
                whole.extend_from_slice(&first);
            }
            whole.extend_from_slice(&data);
        }
    }
    Ok(first.unwrap_or_else(|| whole.freeze()))
}

/// Puts a path and query below the server's URL.
fn absolute(server: &Uri, path: &Uri) -> Uri {
    let prefix = server.path().trim_end_matches('/');
    let below = path.path_and_query().map_or("/", http::uri::PathAndQuery::as_str);
    let mut parts = http::uri::Parts::default();
    parts.scheme = server.scheme().cloned();
    parts.authority = server.authority().cloned();
    parts.path_and_query = format!("{prefix}{below}").parse().ok();
    Uri::from_parts(parts).unwrap_or_else(|_| path.clone())
}

fn secret_header(text: &str) -> Authorization {
    sensitive_header(text).map_or(Authorization::None, Authorization::Fixed)
}

fn text_of(body: &[u8]) -> String {
    let text =
        String::from_utf8_lossy(body.get(..body.len().min(ERROR_TEXT_MAX)).unwrap_or_default());
    text.trim().to_owned()
}
