//! Registry credentials: parsed from docker's configuration files, found by the longest match of host and path.

use std::collections::BTreeMap;

use base64::Engine as _;
use serde::Deserialize;

/// Credentials for a registry.
#[derive(Clone, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Login {
    /// User name.
    pub username: String,
    pub password: String,
    /// Identity token of a token server, in place of user name and password.
    pub identity_token: String,
    /// Bearer token for the registry itself.
    pub registry_token: String,
}

/// Prints the user name only.
impl std::fmt::Debug for Login {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Login").field("username", &self.username).finish_non_exhaustive()
    }
}

impl Login {
    fn is_empty(&self) -> bool {
        self == &Self::default()
    }
}

/// Why a credential file is invalid. Never quotes the file.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum KeyringError {
    /// The file is not JSON of the expected form.
    #[error("is not valid {form}: line {line} column {column}")]
    Malformed {
        /// The expected form.
        form: &'static str,
        /// Line of the error.
        line: usize,
        /// Column of the error.
        column: usize,
    },
    /// The field `auth` is not `user:password` in base64.
    #[error("auth of {registry:?} is not user:password in base64")]
    Auth {
        /// The registry of the entry.
        registry: String,
    },
}

/// An entry of a credential file.
#[derive(Default, Deserialize)]
#[serde(default)]
struct RegistryEntry {
    username: String,
    password: String,
    auth: String,
    identitytoken: String,
    registrytoken: String,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct ConfigJson {
    auths: BTreeMap<String, RegistryEntry>,
}

/// Credentials of several registries.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Keyring {
    /// By `host[:port][/path]`, where parts of the host may be globs.
    logins: BTreeMap<String, Vec<Login>>,
}

impl Keyring {
    /// Parses `config.json`, the content of secrets of type `kubernetes.io/dockerconfigjson`.
    ///
    /// # Errors
    /// The JSON or a credential is invalid.
    pub fn config_json(bytes: &[u8]) -> Result<Self, KeyringError> {
        let read = serde_json::from_slice::<ConfigJson>(bytes);
        let config = read.map_err(|error| malformed("config.json", &error))?;
        Self::from_entries(config.auths)
    }

    /// Parses `.dockercfg`, the older format, the content of secrets of type `kubernetes.io/dockercfg`.
    ///
    /// # Errors
    /// The JSON or a credential is invalid.
    pub fn dockercfg(bytes: &[u8]) -> Result<Self, KeyringError> {
        let read = serde_json::from_slice(bytes);
        Self::from_entries(read.map_err(|error| malformed(".dockercfg", &error))?)
    }

    fn from_entries(entries: BTreeMap<String, RegistryEntry>) -> Result<Self, KeyringError> {
        let mut keyring = Self::default();
        for (registry, entry) in entries {
            let login = login(&registry, entry)?;
            if !login.is_empty() {
                keyring.add(&registry, login);
            }
        }
        Ok(keyring)
    }

    /// Adds credentials for `registry`: a host, optionally with scheme, port, path and API version.
    pub fn add(&mut self, registry: &str, login: Login) {
        let bare = registry.trim_start_matches("https://").trim_start_matches("http://");
        let (host, path) = bare.split_once('/').unwrap_or((bare, ""));
        let path = format!("{path}/");
        let path = path.trim_start_matches("v1/").trim_start_matches("v2/").trim_matches('/');
        let key = if path.is_empty() { host.to_owned() } else { format!("{host}/{path}") };
        let logins = self.logins.entry(key).or_default();
        if !logins.contains(&login) {
            logins.push(login);
        }
    }

    /// Credentials for a full repository name (`docker.io/library/busybox`), best match first.
    pub fn lookup(&self, repository: &str) -> Vec<Login> {
        let mut found: Vec<(&String, &Vec<Login>)> =
            self.logins.iter().filter(|(key, _)| matches(key, repository)).collect();
        // Longer paths match better; equal lengths sort in reverse order of names, so globs come last.
        found.sort_by_key(|(key, _)| std::cmp::Reverse((path_len(key), *key)));
        let mut logins: Vec<Login> = found.into_iter().flat_map(|(_, all)| all.clone()).collect();
        if logins.is_empty() && repository.starts_with("docker.io/") {
            logins = self.logins.get("index.docker.io").cloned().unwrap_or_default();
        }
        logins
    }
}

fn path_len(key: &str) -> usize {
    key.split_once('/').map_or(0, |(_, path)| path.len())
}

fn malformed(form: &'static str, error: &serde_json::Error) -> KeyringError {
    KeyringError::Malformed { form, line: error.line(), column: error.column() }
}

fn login(registry: &str, entry: RegistryEntry) -> Result<Login, KeyringError> {
    let RegistryEntry { mut username, mut password, auth, identitytoken, registrytoken } = entry;
    if !auth.is_empty() {
        let fault = || KeyringError::Auth { registry: registry.to_owned() };
        let engine = &base64::engine::general_purpose::STANDARD_NO_PAD;
        let bytes = engine.decode(auth.trim().trim_end_matches('=')).map_err(|_| fault())?;
        let text = String::from_utf8(bytes).map_err(|_| fault())?;
        let (user, secret) = text.split_once(':').ok_or_else(fault)?;
        (username, password) = (user.to_owned(), secret.trim_end_matches('\0').to_owned());
    }
    Ok(Login { username, password, identity_token: identitytoken, registry_token: registrytoken })
}

/// Whether the pattern `host[:port][/path]` matches a repository or image: equal port, each part of the host by glob, and the
/// path as a prefix.
pub fn matches(pattern: &str, repository: &str) -> bool {
    let pattern = pattern.trim_start_matches("https://").trim_start_matches("http://");
    let (pattern_host, pattern_path) = pattern.split_once('/').unwrap_or((pattern, ""));
    let (host, path) = repository.split_once('/').unwrap_or((repository, ""));
    let (pattern_name, pattern_port) = port_of(pattern_host);
    let (name, port) = port_of(host);
    let (globs, parts): (Vec<&str>, Vec<&str>) =
        (pattern_name.split('.').collect(), name.split('.').collect());
    pattern_port == port
        && globs.len() == parts.len()
        && globs.iter().zip(&parts).all(|(glob, part)| glob_matches(glob, part))
        && path.starts_with(pattern_path)
}

fn port_of(host: &str) -> (&str, &str) {
    match host.rsplit_once(':') {
        Some((name, port)) if port.bytes().all(|b| b.is_ascii_digit()) => (name, port),
        _ => (host, ""),
    }
}

/// Whether the glob with `*` and `?` matches a part of a host name.
fn glob_matches(glob: &str, text: &str) -> bool {
    let (mut glob, mut text) = (glob.as_bytes(), text.as_bytes());
    // Positions after the last star in both texts.
    let mut star: Option<(&[u8], &[u8])> = None;
    while let Some((first, after)) = text.split_first() {
        match glob.split_first() {
            Some((b'*', rest)) => {
                star = Some((rest, text));
                glob = rest;
            }
            Some((byte, rest)) if *byte == b'?' || byte == first => (glob, text) = (rest, after),
            _ => {
                // The last star matches one more character.
                let Some((rest, from)) = star else { return false };
                let Some((_, from)) = from.split_first() else { return false };
                star = Some((rest, from));
                (glob, text) = (rest, from);
            }
        }
    }
    glob.iter().all(|byte| *byte == b'*')
}

#[cfg(test)]
mod tests {
    use super::*;

    fn login(name: &str) -> Login {
        Login { username: name.into(), password: "p".into(), ..Login::default() }
    }

    fn users(keyring: &Keyring, repository: &str) -> Vec<String> {
        keyring.lookup(repository).into_iter().map(|login| login.username).collect()
    }

    #[test]
    fn patterns() {
        let cases = [
            ("reg.io", "reg.io/app", true),
            ("reg.io", "reg.io:443/app", false),
            ("reg.io:443", "reg.io:443/app", true),
            ("*.reg.io", "eu.reg.io/app", true),
            ("*.reg.io", "a.eu.reg.io/app", false),
            ("*.*.reg.io", "a.eu.reg.io/app", true),
            ("e?.reg.io", "eu.reg.io/app", true),
            ("eu-*-1.reg.io", "eu-west-1.reg.io/app", true),
            ("eu-*-1.reg.io", "eu-west-2.reg.io/app", false),
            ("reg.io/team", "reg.io/team/app", true),
            ("reg.io/team", "reg.io/other/app", false),
            ("https://reg.io", "reg.io/app", true),
            ("*", "localhost/app", true),
        ];
        for (pattern, repository, expect) in cases {
            assert_eq!(matches(pattern, repository), expect, "{pattern} {repository}");
        }
    }

    #[test]
    fn the_longest_path_comes_first() {
        let mut keyring = Keyring::default();
        for (registry, user) in [
            ("*.io", "glob"),
            ("https://reg.io/v2/", "host"),
            ("reg.io/team", "team"),
            ("reg.io/team/app", "app"),
            ("https://index.docker.io/v1/", "hub"),
        ] {
            keyring.add(registry, login(user));
        }
        assert_eq!(users(&keyring, "reg.io/team/app"), ["app", "team", "host", "glob"]);
        assert_eq!(users(&keyring, "reg.io/x"), ["host", "glob"]);
        assert_eq!(users(&keyring, "docker.io/library/busybox"), ["glob"]);
        assert_eq!(users(&keyring, "other.org/x"), Vec::<String>::new());
        let mut hub = Keyring::default();
        hub.add("https://index.docker.io/v1/", login("hub"));
        assert_eq!(users(&hub, "docker.io/library/busybox"), ["hub"]);
    }

    #[test]
    fn files() {
        let auth = base64::engine::general_purpose::STANDARD.encode("me:se:cret");
        let json = format!(r#"{{"auths": {{"reg.io": {{"auth": "{auth}"}}, "none.io": {{}}}}}}"#);
        let keyring = Keyring::config_json(json.as_bytes()).expect("keyring");
        let found = keyring.lookup("reg.io/app");
        assert_eq!(found[0].username, "me");
        assert_eq!(found[0].password, "se:cret");
        assert!(keyring.lookup("none.io/app").is_empty());
        let old = br#"{"reg.io": {"username": "u", "password": "p", "email": "e"}}"#;
        assert_eq!(users(&Keyring::dockercfg(old).expect("keyring"), "reg.io/a"), ["u"]);
        let broken = br#"{"auths": {"reg.io": {"auth": "c2VjcmV0"}}}"#;
        let error = Keyring::config_json(broken).expect_err("no colon");
        assert_eq!(error, KeyringError::Auth { registry: "reg.io".into() });
        let error = Keyring::config_json(b"{\"auths\": 3").expect_err("no map").to_string();
        assert!(error.starts_with("is not valid config.json"), "{error}");
        assert!(!format!("{:?}", found[0]).contains("cret"));
    }
}
