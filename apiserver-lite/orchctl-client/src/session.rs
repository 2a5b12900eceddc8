//! One run of a command against one server: sends requests according to flags, prints the server's warnings, and caches what the server serves.

use std::collections::HashSet;
use std::io::Write;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use http::{HeaderMap, HeaderName, HeaderValue, Request, Response};
use hyper::body::Incoming;
use hyper::upgrade::Upgraded;
use proto_api::duration;
use proto_api::names::{Names, Profile};
use proto_client::config::{Pem, TlsSettings};
use proto_client::transport::ProxyServer;
use proto_client::{Answer, Client, ClientConfig, ClientError, ResponseBody, SharedToken, request};
use serde_json::Value;
use tokio::sync::{Mutex as AsyncMutex, OnceCell};

use crate::exec_credential::CredentialProgram;
use crate::kubeconfig::{DEFAULT_SERVER, Kubeconfig, Overrides};
use crate::{
    CommandError, GlobalFlags, ServerResources, authorities, command_headers, impersonation,
    proxies, retries,
};

/// Stands for no deadline.
const NO_DEADLINE: Duration = Duration::from_secs(10 * 365 * 24 * 3600);
/// Longest response: a page of a list.
const BODY_LEN_MAX: usize = 256 << 20;
/// Most of a body that is reported at verbosity 8.
const TRACED_LEN_MAX: usize = 1024;
/// Most different warnings that are kept to print each once.
const WARNINGS_MAX: usize = 1000;

/// Reads a variable of the environment.
pub type Environment = Arc<dyn Fn(&str) -> Option<String> + Send + Sync>;

/// How long before its end a token is renewed, in microseconds.
const RENEWAL_LEAD: i64 = 10_000_000;

/// A token that a program prints again when it ends.
struct Renewal {
    program: CredentialProgram,
    token: SharedToken,
    /// When it ends: microseconds since 1970; never in this run if not set.
    expires: AsyncMutex<Option<i64>>,
}

impl Renewal {
    /// Ends the token, which the server has refused: another one is printed for the next request.
    async fn expire(&self) {
        *self.expires.lock().await = Some(0);
    }

    /// Has the program print another token if this one ends.
    async fn renew_if_due(&self) -> Result<(), CommandError> {
        let mut expires = self.expires.lock().await;
        let now = std::time::SystemTime::UNIX_EPOCH.elapsed().unwrap_or_default();
        let now = i64::try_from(now.as_micros()).unwrap_or(i64::MAX);
        if expires.is_none_or(|expires| now.saturating_add(RENEWAL_LEAD) < expires) {
            return Ok(());
        }
        let program = self.program.clone();
        let printed = tokio::task::spawn_blocking(move || program.run()).await;
        let broken = |error| CommandError::with_text(format!("getting credentials: {error}"));
        let printed = printed.map_err(broken)??;
        if !printed.token.is_some_and(|token| self.token.set(&token)) {
            return Err(CommandError::with_text(
                "getting credentials: the program printed no token",
            ));
        }
        *expires = printed.expires;
        Ok(())
    }
}

/// What flags, files and the environment say together.
struct Settings {
    config: ClientConfig,
    /// The headers that name the user to act as.
    acting: HeaderMap,
    /// The proxy that the cluster's entry names; it counts before that of the environment.
    proxy: Option<ProxyServer>,
}

/// One run of a command.
pub struct Session {
    flags: GlobalFlags,
    environment: Environment,
    settings: OnceLock<Settings>,
    client: OnceLock<Client>,
    /// The system's, for what the configuration names no authorities for.
    authorities: OnceLock<Option<Pem>>,
    /// The words of the command, for the server's operators.
    command: OnceLock<String>,
    /// Of a user whose token a program prints.
    renewal: OnceLock<Renewal>,
    /// Set once the server is known to be of this program's version, if a flag asks for that.
    matched: OnceCell<()>,
    names: OnceCell<&'static Names>,
    discovery: OnceCell<ServerResources>,
    warned: Mutex<HashSet<String>>,
    notes: Mutex<Box<dyn Write + Send>>,
}

impl Session {
    /// Does not connect yet, nor read files. Warnings and reports of requests go to `notes`.
    pub fn new(flags: GlobalFlags, environment: Environment, notes: Box<dyn Write + Send>) -> Self {
        Self {
            flags,
            environment,
            settings: OnceLock::new(),
            client: OnceLock::new(),
            authorities: OnceLock::new(),
            command: OnceLock::new(),
            renewal: OnceLock::new(),
            matched: OnceCell::new(),
            names: OnceCell::new(),
            discovery: OnceCell::new(),
            warned: Mutex::default(),
            notes: Mutex::new(notes),
        }
    }

    /// The flags of every command.
    pub fn flags(&self) -> &GlobalFlags {
        &self.flags
    }

    /// Names the command that requests are of, as `orchctl get`; before the first of them.
    pub fn name_command(&self, words: String) {
        let _ = self.command.set(words);
    }

    /// A variable of the environment.
    pub fn variable(&self, name: &str) -> Option<String> {
        (self.environment)(name)
    }

    /// The files of the client configuration.
    ///
    /// # Errors
    /// When one cannot be read.
    pub fn kubeconfig(&self) -> Result<Kubeconfig, CommandError> {
        Kubeconfig::read(self.flags.kubeconfig.as_deref(), |name| self.variable(name))
    }

    /// Whether neither files, flags nor a pod say where the server is.
    pub fn lacks_configuration(&self) -> bool {
        self.flags.server.server.is_none()
            && self.kubeconfig().is_ok_and(|files| files.is_empty())
            && self.config().is_ok_and(|config| config.server == DEFAULT_SERVER)
    }

    /// The configuration of the client: of files and flags, or that of the pod where there are none.
    ///
    /// # Errors
    /// When files or flags are invalid.
    pub fn config(&self) -> Result<&ClientConfig, CommandError> {
        Ok(&self.settings()?.config)
    }

    fn settings(&self) -> Result<&Settings, CommandError> {
        if let Some(settings) = self.settings.get() {
            return Ok(settings);
        }
        let files = self.kubeconfig()?;
        let overrides = Overrides::from_flags(&self.flags);
        let in_pod = || {
            let names = [<&Names>::default(), Names::new(Profile::Kubernetes)];
            let read = |names| ClientConfig::in_cluster(names, |name| self.variable(name)).ok();
            names.into_iter().find_map(read)
        };
        // Flags of a user or a cluster are never dropped for the pod's own account.
        let asked = Overrides { namespace: None, ..overrides.clone() };
        let untouched = files.is_empty() && asked == Overrides::default();
        let (config, user, proxy) = match in_pod().filter(|_| untouched) {
            Some(mut config) => {
                if let Some(namespace) = &self.flags.namespace {
                    config.namespace.clone_from(namespace);
                }
                (config, Value::Null, None)
            }
            None => {
                let mut config = files.client_config(&overrides)?;
                if let Some(program) = files.credential_program(&overrides)? {
                    self.take_printed_credentials(&mut config, program)?;
                }
                self.complete_authorities(&mut config.tls);
                (config, files.user(&overrides)?, files.proxy(&overrides)?)
            }
        };
        let acting = impersonation::headers(&self.flags.identity, &user)?;
        Ok(self.settings.get_or_init(|| Settings { config, acting, proxy }))
    }

    /// Names the system's authorities in settings that have none. They are read once: what `SSL_CERT_FILE` names may be a pipe.
    pub(crate) fn complete_authorities(&self, settings: &mut TlsSettings) {
        if authorities::are_needed(settings) {
            let read = || authorities::find(|name| self.variable(name));
            settings.authority.clone_from(self.authorities.get_or_init(read));
        }
    }

    /// Runs a credential program. A certificate that it prints counts for this run; a token is renewed when it ends.
    fn take_printed_credentials(
        &self,
        config: &mut ClientConfig,
        program: CredentialProgram,
    ) -> Result<(), CommandError> {
        let printed = program.run()?;
        if printed.identity.is_some() {
            config.tls.identity = printed.identity;
        }
        if let Some(text) = printed.token {
            let token = SharedToken::default();
            if !token.set(&text) {
                let why =
                    "getting credentials: the program printed a token that no header can have";
                return Err(CommandError::with_text(why));
            }
            let expires = AsyncMutex::new(printed.expires);
            // Set once: the configuration is kept.
            let _ = self.renewal.set(Renewal { program, token, expires });
        }
        Ok(())
    }

    /// The client, with a token that has not ended.
    async fn authorized_client(&self) -> Result<&Client, CommandError> {
        let client = self.client()?;
        if let Some(renewal) = self.renewal.get() {
            renewal.renew_if_due().await?;
        }
        if self.flags.match_server_version {
            self.matched.get_or_try_init(|| check_version(client)).await?;
        }
        Ok(client)
    }

    /// The client of the server. Requests through it bypass [`Session::call`]: they do not impersonate a user and print no warnings.
    ///
    /// # Errors
    /// When the configuration is invalid.
    pub fn client(&self) -> Result<&Client, CommandError> {
        if let Some(client) = self.client.get() {
            return Ok(client);
        }
        let deadline = match self.timeout()? {
            Duration::ZERO => NO_DEADLINE,
            timeout => timeout,
        };
        let agent = format!(
            "orchctl/{} ({}/{})",
            env!("CARGO_PKG_VERSION"),
            std::env::consts::OS,
            std::env::consts::ARCH
        );
        let Settings { config, proxy, .. } = self.settings()?;
        let proxy = match proxy {
            Some(proxy) => Some(proxy.clone()),
            None => proxies::of_environment(|name| self.variable(name), &config.server)
                .map_err(|error| CommandError::with_text(proto_daemon::exit::chain(&error)))?,
        };
        let client = Client::through(proxy.as_ref(), config, <&Names>::default(), &agent)
            .map_err(|error| CommandError::with_text(proto_daemon::exit::chain(&error)))?
            .with_deadline(deadline)
            .with_body_len_max(BODY_LEN_MAX);
        let client = match self.renewal.get() {
            Some(renewal) => client.with_token(renewal.token.clone()),
            None => client,
        };
        let client = match self.command.get() {
            Some(command) => {
                client.with_headers(command_headers::headers(command, |name| self.variable(name)))
            }
            None => client,
        };
        Ok(self.client.get_or_init(|| client))
    }

    /// The time for each request; zero for no limit.
    ///
    /// # Errors
    /// When the flag is no time.
    pub fn timeout(&self) -> Result<Duration, CommandError> {
        let text = self.flags.request_timeout.as_str();
        // A number alone is of seconds.
        let full = if text.parse::<u32>().is_ok() { format!("{text}s") } else { text.to_owned() };
        duration::parse(&full)
            .map_err(|error| CommandError::with_text(format!("--request-timeout: {error}")))
    }

    /// The namespace of requests that name none.
    ///
    /// # Errors
    /// When the configuration is invalid.
    pub fn namespace(&self) -> Result<&str, CommandError> {
        Ok(self.config()?.namespace.as_str())
    }

    /// Whether the command line names a namespace.
    pub fn names_namespace(&self) -> bool {
        self.flags.namespace.is_some()
    }

    /// What the server serves; read once.
    ///
    /// # Errors
    /// The server cannot be reached.
    pub async fn discovery(&self) -> Result<&ServerResources, CommandError> {
        self.discovery.get_or_try_init(|| ServerResources::read(self)).await
    }

    /// The naming profile of the server, from the names of its groups.
    ///
    /// # Errors
    /// The server cannot be reached.
    pub async fn names(&self) -> Result<&'static Names, CommandError> {
        let read = || async {
            let groups = self.get_json("/apis").await?;
            let full = "rbac.authorization.";
            let listed = groups.get("groups").and_then(Value::as_array);
            let domain = listed.into_iter().flatten().find_map(|group| {
                group.get("name").and_then(Value::as_str)?.strip_prefix(full).map(str::to_owned)
            });
            let profile = match domain.as_deref() {
                None | Some("k8s.io") => Profile::Kubernetes,
                Some(domain) => Profile::Orch { domain: domain.to_owned() },
            };
            Ok(Names::new(profile))
        };
        self.names.get_or_try_init(read).await.copied()
    }

    /// Sends a request and reads the response.
    ///
    /// # Errors
    /// The server rejects the request, or cannot be reached.
    pub async fn call(&self, request: Request<Bytes>) -> Result<Answer, CommandError> {
        let request = self.prepare(request)?;
        let line = format!("{} {}", request.method(), request.uri());
        let client = self.authorized_client().await?;
        let send = || client.call(request.clone());
        let answer = retries::until_taken(send, self.noting_retries(&line)).await;
        match &answer {
            Ok(answer) => {
                self.tell_warnings(&answer.headers);
                self.report_answer(&line, answer.status, &answer.headers, &answer.body);
            }
            Err(error) => {
                self.note(6, || format!("{line}: {error}"));
                if let (Some(401), Some(renewal)) = (error.code(), self.renewal.get()) {
                    renewal.expire().await;
                }
            }
        }
        Ok(answer?)
    }

    /// As [`Session::call`], with the body as JSON.
    ///
    /// # Errors
    /// As [`Session::call`], and when the body is no JSON.
    pub async fn call_json(&self, request: Request<Bytes>) -> Result<Value, CommandError> {
        let line = format!("{} {}", request.method(), request.uri().path());
        let answer = self.call(request).await?;
        serde_json::from_slice(&answer.body).map_err(|error| {
            CommandError::with_text(format!("{line}: the response is not valid JSON: {error}"))
        })
    }

    /// GET of a path and query, as JSON.
    ///
    /// # Errors
    /// As [`Session::call_json`].
    pub async fn get_json(&self, path: &str) -> Result<Value, CommandError> {
        self.call_json(request::get(path.to_owned())).await
    }

    /// Sends a request and returns when the response begins: for watches and logs.
    ///
    /// # Errors
    /// The server rejects the request, or cannot be reached.
    pub async fn open(
        &self,
        request: Request<Bytes>,
    ) -> Result<Response<ResponseBody>, CommandError> {
        let request = self.prepare(request)?;
        let line = format!("{} {}", request.method(), request.uri());
        let client = self.authorized_client().await?;
        let send = || client.open(request.clone());
        let response = retries::until_taken(send, self.noting_retries(&line)).await?;
        self.tell_warnings(response.headers());
        self.report_answer(&line, response.status().as_u16(), response.headers(), &[]);
        Ok(response)
    }

    /// Sends an upgrade request and returns its connection: for exec, attach and port-forward.
    ///
    /// # Errors
    /// The server rejects the request, or cannot be reached.
    pub async fn upgrade(
        &self,
        request: Request<Bytes>,
    ) -> Result<(HeaderMap, Upgraded), CommandError> {
        let request = self.prepare(request)?;
        let line = format!("{} {}", request.method(), request.uri());
        let client = self.authorized_client().await?;
        let send = || client.upgrade(request.clone());
        let sent = retries::until_taken(send, self.noting_retries(&line)).await;
        let (headers, connection) = sent?;
        self.report_answer(&line, 101, &headers, &[]);
        Ok((headers, connection))
    }

    /// Forwards a client's request with this session's credentials. The response is returned as it is, whatever its status.
    ///
    /// # Errors
    /// The server cannot be reached.
    pub async fn forward(
        &self,
        mut request: Request<Incoming>,
    ) -> Result<Response<ResponseBody>, CommandError> {
        self.take_credentials(request.headers_mut())?;
        Ok(self.authorized_client().await?.forward(request).await?)
    }

    /// As [`Session::forward`], for a request to switch protocols.
    ///
    /// # Errors
    /// As [`Session::forward`].
    pub async fn forward_upgrade(
        &self,
        mut request: Request<()>,
    ) -> Result<Response<ResponseBody>, CommandError> {
        self.take_credentials(request.headers_mut())?;
        Ok(self.authorized_client().await?.forward_upgrade(request).await?)
    }

    /// Another program's request counts as this session's user's, or as the user's that flags name.
    fn take_credentials(&self, headers: &mut HeaderMap) -> Result<(), CommandError> {
        headers.remove(http::header::AUTHORIZATION);
        if !self.acting()?.is_empty() {
            impersonation::remove(headers);
        }
        self.impersonate(headers)
    }

    /// Writes warnings and reports of requests there from now on: a full screen has no place for lines between.
    pub fn divert_notes(&self, notes: Box<dyn Write + Send>) {
        *self.notes.lock().unwrap_or_else(PoisonError::into_inner) = notes;
    }

    /// How many different warnings the server gave.
    pub fn warnings(&self) -> usize {
        self.warned.lock().unwrap_or_else(PoisonError::into_inner).len()
    }

    /// Prints a warning as those of the server are printed.
    pub fn warn(&self, text: &str) {
        let mut notes = self.notes.lock().unwrap_or_else(PoisonError::into_inner);
        // A closed terminal changes nothing.
        let _ = writeln!(notes, "Warning: {text}");
    }

    /// The headers that name the user to act as.
    fn acting(&self) -> Result<&HeaderMap, CommandError> {
        Ok(&self.settings()?.acting)
    }

    /// Names the user to act as.
    fn impersonate(&self, headers: &mut HeaderMap) -> Result<(), CommandError> {
        for (name, value) in self.acting()? {
            headers.append(name.clone(), value.clone());
        }
        Ok(())
    }

    fn noting_retries(&self, line: &str) -> impl Fn(&ClientError, Duration) {
        move |error, pause| {
            self.note(6, || format!("{line}: {error}; sent again in {} s", pause.as_secs()));
        }
    }

    fn prepare(&self, mut request: Request<Bytes>) -> Result<Request<Bytes>, CommandError> {
        self.impersonate(request.headers_mut())?;
        self.note(7, || {
            let headers = header_lines(request.headers());
            format!("{} {}\nRequest Headers:\n{headers}", request.method(), request.uri())
        });
        if !request.body().is_empty() {
            self.note(8, || format!("Request Body: {}", self.traced(request.body())));
        }
        Ok(request)
    }

    fn tell_warnings(&self, headers: &HeaderMap) {
        for value in headers.get_all(http::header::WARNING) {
            let Some(text) = warning_text(&String::from_utf8_lossy(value.as_bytes())) else {
                continue;
            };
            let mut warned = self.warned.lock().unwrap_or_else(PoisonError::into_inner);
            if warned.len() < WARNINGS_MAX && warned.insert(text.clone()) {
                drop(warned);
                self.warn(&text);
            }
        }
    }

    fn report_answer(&self, line: &str, status: u16, headers: &HeaderMap, body: &[u8]) {
        self.note(6, || format!("{line} {status}"));
        self.note(8, || format!("Response Headers:\n{}", header_lines(headers)));
        if !body.is_empty() {
            self.note(8, || format!("Response Body: {}", self.traced(body)));
        }
    }

    fn traced(&self, body: &[u8]) -> String {
        let len = if self.flags.verbosity >= 9 { body.len() } else { TRACED_LEN_MAX };
        String::from_utf8_lossy(body.get(..len.min(body.len())).unwrap_or_default()).into_owned()
    }

    fn note(&self, level: u8, text: impl FnOnce() -> String) {
        if self.flags.verbosity >= level {
            let mut notes = self.notes.lock().unwrap_or_else(PoisonError::into_inner);
            // A closed terminal changes nothing.
            let _ = writeln!(notes, "{}", text());
        }
    }
}

/// Whether the server is of this program's version.
async fn check_version(client: &Client) -> Result<(), CommandError> {
    let answer = client.call(request::get("/version".to_owned())).await?;
    let version: Value = serde_json::from_slice(&answer.body).unwrap_or_default();
    let theirs = version.get("gitVersion").and_then(Value::as_str).unwrap_or_default();
    let own = env!("CARGO_PKG_VERSION");
    if theirs.split_once("+orch-").is_some_and(|(_, release)| release == own) {
        return Ok(());
    }
    Err(CommandError::with_text(format!(
        "server version ({theirs}) differs from client version ({own}), and --match-server-version is set"
    )))
}

fn header_lines(headers: &HeaderMap) -> String {
    let line = |(name, value): (&HeaderName, &HeaderValue)| {
        format!("    {name}: {}\n", String::from_utf8_lossy(value.as_bytes()))
    };
    headers.iter().map(line).collect()
}

/// The text of a header `299 - "text"`: quoted, with backslashes before quotes.
fn warning_text(header: &str) -> Option<String> {
    let (code, rest) = header.trim().split_once(' ')?;
    let (_, rest) = rest.split_once(' ')?;
    let quoted = rest.trim_start().strip_prefix('"').filter(|_| code == "299")?;
    let mut text = String::new();
    let mut chars = quoted.chars();
    while let Some(c) = chars.next() {
        match c {
            '"' => return Some(text),
            '\\' => text.extend(chars.next()),
            c => text.push(c),
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn warnings_are_unquoted() {
        assert_eq!(warning_text(r#"299 - "a \"b\" c""#).as_deref(), Some("a \"b\" c"));
        assert_eq!(warning_text(r#"299 - "open"#), None);
        assert_eq!(warning_text(r#"199 - "other""#), None);
        assert_eq!(warning_text(""), None);
    }
}
