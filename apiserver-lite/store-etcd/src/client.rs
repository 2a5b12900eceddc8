//! Calls of etcd: each has a deadline, and its failure says whether etcd may have done it all the same.

#![cfg_attr(not(test), warn(clippy::arithmetic_side_effects))]

use std::{fs, sync::PoisonError, sync::RwLock, time::Duration};

use etcd_client::{
    Certificate, Client, ConnectOptions, Error, GetOptions, GetResponse, Identity, KvClient,
    TlsOptions, Txn, TxnResponse, WatchOptions, WatchStream,
};
use proto_daemon::exit;
use tonic::Code;

use crate::config::EtcdConfig;

/// The deadline of a call.
const CALL_TIMEOUT: Duration = Duration::from_secs(5);
/// A connection on which nothing has come for so long is asked for a sign of life. etcd does not accept more than one in 5 s.
const KEEP_ALIVE: Duration = Duration::from_secs(10);
const KEEP_ALIVE_TIMEOUT: Duration = Duration::from_secs(5);
const CONNECT_TIMEOUT: Duration = Duration::from_secs(2);
/// Longest message: a page of large records, or the events of many revisions.
const MESSAGE_LEN_MAX: usize = 1 << 30;
/// Longest file of a password.
const PASSWORD_LEN_MAX: usize = 4096;
/// How long a member may take to say that it has a leader, if there are others.
const PROBE: Duration = Duration::from_secs(1);
/// Times that a call is made which was not done because the member has no leader, or is not reached.
const TRIES: usize = 4;
const TRY_AGAIN: Duration = Duration::from_millis(100);

/// A connection to the members of etcd, made again when it is lost.
pub struct Etcd {
    config: EtcdConfig,
    client: RwLock<Client>,
}

/// Why a call failed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CallError {
    /// etcd refused it: nothing was done.
    #[error("etcd rejected the request: {0}")]
    Refused(String),
    /// The revision is compacted.
    #[error("the revision is compacted")]
    Compacted,
    /// etcd has not come to the revision yet.
    #[error("the revision is in the future")]
    Future,
    /// There was no connection to send it on.
    #[error("etcd is not reached: {0}")]
    Unsent(String),
    /// The answer is missing: what etcd did is not known.
    #[error("etcd did not respond: {0}")]
    Unknown(String),
}

/// Why there is no connection.
#[derive(Debug, thiserror::Error)]
pub enum EtcdConnectError {
    /// A setting makes no sense.
    #[error("{0}")]
    Setting(String),
    /// A file cannot be read.
    #[error("cannot read {path}")]
    File {
        /// The file.
        path: String,
        /// Why.
        source: std::io::Error,
    },
    /// etcd does not take the user, or does not answer.
    #[error(transparent)]
    Etcd(CallError),
}

impl Etcd {
    pub async fn connect(config: EtcdConfig) -> Result<Self, EtcdConnectError> {
        let client = RwLock::new(connect(&config).await?);
        Ok(Self { config, client })
    }

    /// Makes a new connection, with the files as they are now.
    pub async fn reconnect(&self) -> Result<(), EtcdConnectError> {
        let client = connect(&self.config).await?;
        *self.client.write().unwrap_or_else(PoisonError::into_inner) = client;
        Ok(())
    }

    fn client(&self) -> Client {
        self.client.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn kv(&self) -> KvClient {
        self.client().kv_client().max_decoding_message_size(MESSAGE_LEN_MAX)
    }

    /// A linearizable read, tried again where the member has no leader or is gone.
    pub async fn get(&self, key: &str, options: GetOptions) -> Result<GetResponse, CallError> {
        let get = || {
            let (mut kv, options) = (self.kv(), options.clone());
            async move { kv.get(key, Some(options)).await }
        };
        until_taken(get).await
    }

    /// Commits a transaction, or not. Sent again only where etcd has said that it did nothing.
    pub async fn txn(&self, txn: Txn) -> Result<TxnResponse, CallError> {
        let commit = || {
            let (mut kv, txn) = (self.kv(), txn.clone());
            async move { kv.txn(txn).await }
        };
        until_taken(commit).await
    }

    /// Compacts the history before `revision`.
    pub async fn compact(&self, revision: i64) -> Result<(), CallError> {
        let mut kv = self.kv();
        within(CALL_TIMEOUT, kv.compact(revision, None)).await.map(drop)
    }

    /// Watches what starts with `prefix`.
    pub async fn watch(&self, prefix: &str, from: i64) -> Result<WatchStream, CallError> {
        let options = WatchOptions::new().with_prefix().with_start_revision(from);
        let watch = self.client().watch_client();
        let mut watch = watch.max_decoding_message_size(MESSAGE_LEN_MAX);
        within(CALL_TIMEOUT, watch.watch(prefix, Some(options))).await
    }
}

/// Calls again while the members that are reached have no leader, or none is reached: such a call was not done.
async fn until_taken<T, F>(call: impl Fn() -> F) -> Result<T, CallError>
where
    F: Future<Output = Result<T, Error>>,
{
    let mut tried: usize = 1;
    loop {
        let outcome = within(CALL_TIMEOUT, call()).await;
        let is_untaken = match &outcome {
            Err(CallError::Refused(why)) => why.contains(NO_LEADER),
            Err(CallError::Unsent(_)) => true,
            _ => false,
        };
        if !is_untaken || tried == TRIES {
            return outcome;
        }
        tried = tried.saturating_add(1);
        tokio::time::sleep(TRY_AGAIN).await;
    }
}

async fn within<T>(
    limit: Duration,
    call: impl Future<Output = Result<T, Error>>,
) -> Result<T, CallError> {
    match tokio::time::timeout(limit, call).await {
        Ok(outcome) => outcome.map_err(|error| CallError::from_error(&error)),
        Err(_) => Err(CallError::Unknown(format!("no response within {} s", limit.as_secs()))),
    }
}

/// What etcd's own errors start with; others come from the connection.
const OF_ETCD: &str = "etcdserver: ";
/// What its gRPC server says of a request that it did not read.
const TOO_LONG: &str = "grpc: received message larger than max";
const NO_LEADER: &str = "etcdserver: no leader";
const COMPACTED: &str = "required revision has been compacted";
const FUTURE: &str = "required revision is a future revision";

impl CallError {
    pub fn from_error(error: &Error) -> Self {
        let Error::GRpcStatus(status) = error else {
            return Self::Unknown(exit::chain(error));
        };
        let message = status.message();
        let is_of_etcd = message.starts_with(OF_ETCD);
        // Without a leader a member takes no request; any other that is unavailable may have passed it on.
        let is_refusal = match status.code() {
            Code::InvalidArgument
            | Code::NotFound
            | Code::AlreadyExists
            | Code::PermissionDenied
            | Code::Unauthenticated
            | Code::FailedPrecondition
            | Code::OutOfRange
            | Code::Unimplemented => is_of_etcd,
            Code::ResourceExhausted => is_of_etcd || message.starts_with(TOO_LONG),
            Code::Unavailable => message.starts_with(NO_LEADER),
            _ => false,
        };
        if is_refusal && message.ends_with(COMPACTED) {
            return Self::Compacted;
        }
        if is_refusal && message.ends_with(FUTURE) {
            return Self::Future;
        }
        if is_refusal {
            return Self::Refused(message.to_owned());
        }
        let cause = std::error::Error::source(status);
        let text = match cause.map(exit::chain) {
            Some(cause) => format!("{message}: {cause}"),
            None => message.to_owned(),
        };
        let mut causes = std::iter::successors(cause, |cause| cause.source());
        if causes.any(|cause| cause.is::<tonic::ConnectError>()) {
            return Self::Unsent(text);
        }
        Self::Unknown(text)
    }
}

/// Connects to those members that answer, so that no call waits for one that hangs; to all of them if none does.
async fn connect(config: &EtcdConfig) -> Result<Client, EtcdConnectError> {
    let options = options(config)?;
    let mut servers = config.servers.clone();
    if servers.len() > 1 {
        let probes =
            servers.iter().map(|server| tokio::time::timeout(PROBE, has_leader(server, &options)));
        let probed = futures_util::future::join_all(probes).await;
        let mut answers = probed.into_iter().map(|probed| probed.unwrap_or(false));
        let answering: Vec<String> =
            servers.iter().filter(|_| answers.next().unwrap_or(false)).cloned().collect();
        if !answering.is_empty() {
            servers = answering;
        }
    }
    let connecting = Client::connect(&servers, Some(options));
    within(CALL_TIMEOUT, connecting).await.map_err(EtcdConnectError::Etcd)
}

/// Whether a member answers, and has a leader as far as it says.
async fn has_leader(server: &str, options: &ConnectOptions) -> bool {
    let answer = match Client::connect([server], Some(options.clone())).await {
        Ok(mut member) => member.status().await,
        Err(error) => Err(error),
    };
    match answer {
        Ok(status) => status.leader() != 0,
        // It answers, if not this.
        Err(error) => matches!(CallError::from_error(&error), CallError::Refused(_)),
    }
}

fn options(config: &EtcdConfig) -> Result<ConnectOptions, EtcdConnectError> {
    let mut options = ConnectOptions::new()
        .with_keep_alive(KEEP_ALIVE, KEEP_ALIVE_TIMEOUT)
        // etcd closes connections that ask without a call under way.
        .with_keep_alive_while_idle(false)
        .with_connect_timeout(CONNECT_TIMEOUT)
        .with_require_leader(true)
        .with_auto_token_refresh(true);
    if let Some(tls) = tls(config)? {
        options = options.with_tls(tls);
    }
    if let Some(user) = &config.user {
        let password = read(&user.password_file)?;
        if password.len() > PASSWORD_LEN_MAX {
            let path = user.password_file.display();
            return Err(EtcdConnectError::Setting(format!("{path} is too long for a password")));
        }
        let password = String::from_utf8_lossy(&password).trim_end_matches(['\r', '\n']).to_owned();
        options = options.with_user(&user.name, password);
    }
    Ok(options)
}

/// TLS as the servers' URLs ask for it.
fn tls(config: &EtcdConfig) -> Result<Option<TlsOptions>, EtcdConnectError> {
    let setting = |text: String| Err(EtcdConnectError::Setting(text));
    let secure = |url: &&String| url.starts_with("https://");
    let plain = |url: &&String| url.starts_with("http://");
    if config.servers.is_empty() {
        return setting("no server of etcd is given".to_owned());
    }
    if let Some(other) = config.servers.iter().find(|url| !secure(url) && !plain(url)) {
        return setting(format!(
            "server {other:?} of etcd: expected https://HOST:PORT or http://HOST:PORT"
        ));
    }
    let files = &config.tls;
    if config.servers.iter().all(|url| plain(&url)) {
        if files.authority.is_some() || files.client.is_some() {
            return setting(
                "there are certificates for etcd, but its servers are http: expected https"
                    .to_owned(),
            );
        }
        return Ok(None);
    }
    if !config.servers.iter().all(|url| secure(&url)) {
        return setting(
            "the servers of etcd are partly http, partly https: expected one of them".to_owned(),
        );
    }
    let Some(authority) = &files.authority else {
        return setting(
            "the servers of etcd are https, and there is no file of authorities that verify them"
                .to_owned(),
        );
    };
    let mut tls = TlsOptions::new().ca_certificate(Certificate::from_pem(read(authority)?));
    if let Some((certificate, key)) = &files.client {
        tls = tls.identity(Identity::from_pem(read(certificate)?, read(key)?));
    }
    Ok(Some(tls))
}

fn read(path: &std::path::Path) -> Result<Vec<u8>, EtcdConnectError> {
    fs::read(path)
        .map_err(|source| EtcdConnectError::File { path: path.display().to_string(), source })
}

#[cfg(test)]
mod tests {
    use tonic::Status;

    use super::*;

    fn from_code(code: Code, message: &str) -> CallError {
        CallError::from_error(&Error::GRpcStatus(Status::new(code, message)))
    }

    #[test]
    fn only_what_etcd_itself_refused_was_not_done() {
        let refused = |code, text: &str| {
            assert_eq!(from_code(code, text), CallError::Refused(text.to_owned()))
        };
        refused(Code::InvalidArgument, "etcdserver: request is too large");
        refused(Code::ResourceExhausted, "etcdserver: mvcc: database space exceeded");
        refused(Code::ResourceExhausted, "grpc: received message larger than max (3 vs. 2)");
        refused(Code::PermissionDenied, "etcdserver: permission denied");
        refused(Code::Unavailable, "etcdserver: no leader");
        let unknown = |code, text: &str| {
            assert!(matches!(from_code(code, text), CallError::Unknown(_)), "{text}")
        };
        unknown(Code::Unavailable, "etcdserver: request timed out");
        unknown(Code::Unavailable, "etcdserver: leader changed");
        unknown(
            Code::Unavailable,
            "etcdserver: request timed out, possibly due to previous leader failure",
        );
        unknown(Code::Unavailable, "tcp connect error");
        unknown(Code::OutOfRange, "Error, decoded message length too large");
        unknown(Code::Unknown, "h2 protocol error");
        unknown(Code::Cancelled, "operation was canceled");
        let compacted = "etcdserver: mvcc: required revision has been compacted";
        assert_eq!(from_code(Code::OutOfRange, compacted), CallError::Compacted);
    }

    #[test]
    fn settings_that_contradict_each_other_are_refused() {
        let refusal = |servers: &[&str], authority: Option<&str>| {
            let servers = servers.iter().map(|server| (*server).to_owned()).collect();
            let mut config = EtcdConfig::new(servers);
            config.tls.authority = authority.map(Into::into);
            tls(&config).err().map(|error| error.to_string()).unwrap_or_default()
        };
        assert_eq!(refusal(&["http://a:1", "http://b:1"], None), "");
        assert!(refusal(&[], None).contains("no server"));
        assert!(refusal(&["a:1"], None).contains("\"a:1\""));
        assert!(refusal(&["http://a:1", "https://b:1"], Some("/ca")).contains("partly"));
        assert!(refusal(&["http://a:1"], Some("/ca")).contains("expected https"));
        assert!(refusal(&["https://a:1"], None).contains("authorities"));
        assert!(refusal(&["https://a:1"], Some("/no/such/file")).contains("/no/such/file"));
    }
}
