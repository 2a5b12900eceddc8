//! Credential provider plugins: programs that return the credentials of an image, which are cached
//! for a while.
//!
//! A plugin gets a `CredentialProviderRequest` on standard input and writes a
//! `CredentialProviderResponse`. Configuration and messages are Kubernetes', so that its plugins
//! work.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::{ExitStatus, Stdio};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use agent_clock as clock;
use agent_node::keyring::{Keyring, Login, matches};
use agent_telemetry::metrics::OperationMetrics;
use proto_daemon::config::FieldError;
use proto_daemon::go_duration;
use serde::Deserialize;
use serde_json::json;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::process::Command;
use tokio::sync::Mutex as AsyncMutex;

/// Group of the configuration file.
const CREDENTIAL_PLUGINS_CONFIG: &str = "kubelet.config.k8s.io";
/// Group of the messages.
const CREDENTIAL_PLUGINS_MESSAGES: &str = "credentialprovider.kubelet.k8s.io";
/// Supported versions of both.
const VERSIONS: [&str; 3] = ["v1alpha1", "v1beta1", "v1"];
/// Time limit of a plugin.
const DEADLINE: Duration = Duration::from_secs(60);
/// Longest response.
const ANSWER_LEN_MAX: u64 = 1 << 20;
/// Longest configuration.
const CONFIG_LEN_MAX: u64 = 1 << 20;
/// Cached responses; the one that expires first makes room.
const ANSWERS_MAX: usize = 256;

/// Why the plugin configuration cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum ProviderError {
    /// The file cannot be read.
    #[error("cannot read {}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// Why.
        #[source]
        source: std::io::Error,
    },
    /// Its content is invalid.
    #[error("{}: {fault}", path.display())]
    Invalid {
        /// The file.
        path: PathBuf,
        /// What is invalid, with the field.
        fault: String,
    },
}

/// What is invalid in a configuration.
#[derive(Debug, thiserror::Error)]
enum ConfigFault {
    #[error("is {kind} of {api_version}")]
    Kind { kind: String, api_version: String },
    #[error(transparent)]
    Field(#[from] FieldError),
}

/// Why a plugin returned no credentials. It runs again at the next pull.
#[derive(Debug, thiserror::Error)]
enum PluginError {
    #[error("cannot be started: {0}")]
    Start(std::io::Error),
    #[error(transparent)]
    Wait(#[from] std::io::Error),
    #[error("no response within {} s", DEADLINE.as_secs())]
    Deadline,
    #[error("{status}: {line}")]
    Exited { status: ExitStatus, line: String },
    /// The response may contain a password: the error has only the position of the fault.
    #[error("the response is not JSON, at column {0}")]
    NotJson(usize),
    #[error("the response is {kind} of {api_version}, expected CredentialProviderResponse")]
    Kind { kind: String, api_version: String },
    #[error("cacheDuration: {0}")]
    Duration(go_duration::DurationError),
    #[error("cacheKeyType: {0:?} is not supported")]
    CacheKey(String),
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Config {
    api_version: String,
    kind: String,
    providers: Vec<Provider>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Provider {
    name: String,
    match_images: Vec<String>,
    default_cache_duration: Option<String>,
    api_version: String,
    args: Vec<String>,
    env: Vec<Variable>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
struct Variable {
    name: String,
    value: String,
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Response {
    api_version: String,
    kind: String,
    cache_key_type: String,
    cache_duration: Option<String>,
    auth: BTreeMap<String, Auth>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Auth {
    username: String,
    password: String,
}

/// Credential provider plugins of a configuration file.
#[derive(Debug, Default)]
pub struct Providers(Vec<Arc<Plugin>>);

#[derive(Debug)]
struct Plugin {
    program: PathBuf,
    config: Provider,
    lasts: Duration,
    operations: OperationMetrics,
    answers: Mutex<BTreeMap<String, Answer>>,
    /// One request at a time: pods that start together need the same response.
    asking: AsyncMutex<()>,
}

#[derive(Clone, Debug)]
struct Answer {
    keyring: Keyring,
    /// Since boot.
    until: Duration,
}

impl Providers {
    /// Loads the plugin configuration; programs are in `bin_dir`. Requests are counted in
    /// `operations`.
    ///
    /// # Errors
    /// The file is invalid, or a program does not exist.
    pub fn load(
        path: &Path,
        bin_dir: &Path,
        operations: &OperationMetrics,
    ) -> Result<Self, ProviderError> {
        let read = |source| ProviderError::Read { path: path.to_owned(), source };
        let invalid = |fault: String| ProviderError::Invalid { path: path.to_owned(), fault };
        if std::fs::metadata(path).map_err(read)?.len() > CONFIG_LEN_MAX {
            return Err(invalid("longer than 1 MiB".to_owned()));
        }
        let text = std::fs::read_to_string(path).map_err(read)?;
        let tree = proto_api::yaml::parse(&text).map_err(|e| invalid(e.to_string()))?;
        let config: Config = serde_json::from_value(tree).map_err(|e| invalid(e.to_string()))?;
        let plugins = plugins(config, bin_dir, operations);
        plugins.map(Self).map_err(|fault| invalid(fault.to_string()))
    }

    /// Credentials from all plugins for a full repository name.
    pub async fn find(&self, repository: &str) -> Vec<Login> {
        let mut logins = Vec::new();
        for plugin in &self.0 {
            if plugin.config.match_images.iter().any(|pattern| matches(pattern, repository)) {
                match plugin.find(repository).await {
                    Ok(keyring) => logins.extend(keyring.lookup(repository)),
                    Err(fault) => {
                        let plugin = &plugin.config.name;
                        tracing::warn!(
                            plugin,
                            repository,
                            %fault,
                            "a credential provider plugin failed; the pull continues without its credentials"
                        );
                    }
                }
            }
        }
        logins
    }
}

fn plugins(
    config: Config,
    bin_dir: &Path,
    operations: &OperationMetrics,
) -> Result<Vec<Arc<Plugin>>, ConfigFault> {
    let of_group = |version: &str, group: &str| {
        VERSIONS.iter().any(|known| version == format!("{group}/{known}"))
    };
    if config.kind != "CredentialProviderConfig"
        || !of_group(&config.api_version, CREDENTIAL_PLUGINS_CONFIG)
    {
        return Err(ConfigFault::Kind { kind: config.kind, api_version: config.api_version });
    }
    let mut plugins: Vec<Arc<Plugin>> = Vec::new();
    for (number, provider) in config.providers.into_iter().enumerate() {
        let bad =
            |field: &str, why: String| FieldError::new(format!("providers[{number}].{field}"), why);
        let name = &provider.name;
        if name.is_empty() || name.contains(['/', ' ']) || name == "." || name == ".." {
            return Err(bad("name", "must be a plain file name".to_owned()).into());
        }
        if plugins.iter().any(|known| known.config.name == *name) {
            return Err(bad("name", format!("{name:?} is duplicate")).into());
        }
        if provider.match_images.is_empty() {
            return Err(bad("matchImages", "must not be empty".to_owned()).into());
        }
        if !of_group(&provider.api_version, CREDENTIAL_PLUGINS_MESSAGES) {
            let why = format!("{:?} is not supported", provider.api_version);
            return Err(bad("apiVersion", why).into());
        }
        let lasts = provider.default_cache_duration.as_deref();
        let lasts = lasts.ok_or_else(|| bad("defaultCacheDuration", "must be set".to_owned()))?;
        let lasts = go_duration::parse(lasts)
            .map_err(|error| bad("defaultCacheDuration", error.to_string()))?;
        let program = bin_dir.join(name);
        if !program.is_file() {
            return Err(bad("name", format!("{} does not exist", program.display())).into());
        }
        let (answers, asking) = (Mutex::default(), AsyncMutex::default());
        let operations = operations.clone();
        plugins.push(Arc::new(Plugin {
            program,
            config: provider,
            lasts,
            operations,
            answers,
            asking,
        }));
    }
    Ok(plugins)
}

impl Plugin {
    async fn find(&self, repository: &str) -> Result<Keyring, PluginError> {
        if let Some(keyring) = self.cached_keyring(repository) {
            return Ok(keyring);
        }
        let _one_at_a_time = self.asking.lock().await;
        if let Some(keyring) = self.cached_keyring(repository) {
            return Ok(keyring);
        }
        let began = Instant::now();
        let asked = self.run_plugin(repository).await;
        self.operations.record_credentials(&self.config.name, began.elapsed(), asked.is_ok());
        let response = asked?;
        let lasts = match response.cache_duration.as_deref() {
            None => self.lasts,
            Some(text) => go_duration::parse(text).map_err(PluginError::Duration)?,
        };
        let mut keyring = Keyring::default();
        for (registry, Auth { username, password }) in response.auth {
            keyring.add(&registry, Login { username, password, ..Login::default() });
        }
        if !lasts.is_zero() {
            let until = clock::boot().saturating_add(lasts);
            let key = cache_key(&response.cache_key_type, repository)?;
            self.remember(key, Answer { keyring: keyring.clone(), until });
        }
        Ok(keyring)
    }

    fn cached_keyring(&self, repository: &str) -> Option<Keyring> {
        let now = clock::boot();
        let mut answers = self.answers.lock().unwrap_or_else(PoisonError::into_inner);
        answers.retain(|_, answer| answer.until > now);
        let keys = ["Image", "Registry", "Global"].into_iter();
        let keys = keys.filter_map(|kind| cache_key(kind, repository).ok());
        keys.filter_map(|key| answers.get(&key)).next().map(|answer| answer.keyring.clone())
    }

    fn remember(&self, key: String, answer: Answer) {
        let mut answers = self.answers.lock().unwrap_or_else(PoisonError::into_inner);
        if answers.len() >= ANSWERS_MAX {
            let first = answers.iter().min_by_key(|(_, answer)| answer.until);
            if let Some(key) = first.map(|(key, _)| key.clone()) {
                answers.remove(&key);
            }
        }
        answers.insert(key, answer);
    }

    async fn run_plugin(&self, image: &str) -> Result<Response, PluginError> {
        let version = &self.config.api_version;
        let request =
            json!({ "apiVersion": version, "kind": "CredentialProviderRequest", "image": image });
        let mut child = Command::new(&self.program)
            .args(&self.config.args)
            .envs(self.config.env.iter().map(|v| (&v.name, &v.value)))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .map_err(PluginError::Start)?;
        let talk = async {
            let (stdin, stdout) = (child.stdin.take(), child.stdout.take());
            let stderr = child.stderr.take();
            let ask = async move {
                if let Some(mut stdin) = stdin {
                    // A plugin that does not read its input may still respond.
                    let _ = stdin.write_all(request.to_string().as_bytes()).await;
                }
            };
            let ((), out, err) = tokio::join!(ask, read(stdout), read(stderr));
            (child.wait().await, out, err)
        };
        // Cancel safe: a plugin that takes too long is killed with its handle.
        let finished = tokio::time::timeout(DEADLINE, talk).await;
        let (status, out, err) = finished.map_err(|_| PluginError::Deadline)?;
        let status = status?;
        if !status.success() {
            let said = String::from_utf8_lossy(&err);
            let line = said.lines().next().unwrap_or_default().to_owned();
            return Err(PluginError::Exited { status, line });
        }
        let response: Response =
            serde_json::from_slice(&out).map_err(|error| PluginError::NotJson(error.column()))?;
        if response.kind != "CredentialProviderResponse" || response.api_version != *version {
            let Response { kind, api_version, .. } = response;
            return Err(PluginError::Kind { kind, api_version });
        }
        Ok(response)
    }
}

async fn read(stream: Option<impl tokio::io::AsyncRead + Unpin>) -> Vec<u8> {
    let mut bytes = Vec::new();
    if let Some(stream) = stream {
        // Output before a read error is parsed like complete output.
        let _ = stream.take(ANSWER_LEN_MAX).read_to_end(&mut bytes).await;
    }
    bytes
}

/// The cache key of a response for the plugin's `cacheKeyType`.
fn cache_key(kind: &str, repository: &str) -> Result<String, PluginError> {
    match kind {
        "Image" => Ok(format!("image {repository}")),
        "Registry" => Ok(format!("registry {}", repository.split('/').next().unwrap_or_default())),
        "Global" => Ok("global".to_owned()),
        other => Err(PluginError::CacheKey(other.to_owned())),
    }
}
