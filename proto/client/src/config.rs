//! The API server's URL and the client's credentials: from a client configuration file ([`file`]), from the files of a pod
//! ([`ClientConfig::in_cluster`]), or set by the caller.

pub mod file;
pub mod flags;

use std::fmt;
use std::path::{Path, PathBuf};

use http::Uri;
use proto_api::names::Names;
use proto_api::yaml::ParseYamlError;

/// The configuration of a [`crate::Client`].
#[derive(Clone, Debug, PartialEq)]
pub struct ClientConfig {
    /// `https://host:port`, or `http://` for tests and local proxies; a path is the prefix of every request's path.
    pub server: Uri,
    /// Used when `server` is https.
    pub tls: TlsSettings,
    /// How requests are authenticated, besides a client certificate.
    pub credential: Credential,
    /// The default namespace.
    pub namespace: String,
}

/// Authorities and the client's certificate.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct TlsSettings {
    /// Authorities of the server's certificate; the system's when not set.
    pub authority: Option<Pem>,
    /// The client's own certificate chain and key.
    pub identity: Option<Identity>,
    /// Name that the server's certificate must have, instead of the one in the URL.
    pub server_name: Option<String>,
    /// Whether the server's certificate is verified.
    pub verification: Verification,
}

/// A certificate chain and its key.
#[derive(Clone, Debug, PartialEq)]
pub struct Identity {
    /// The chain, the client's own certificate first.
    pub certificate: Pem,
    /// Its private key.
    pub key: Pem,
}

/// Whether the server's certificate is verified.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Verification {
    /// It must be valid for the server's name.
    #[default]
    Full,
    /// Any certificate is accepted (`insecure-skip-tls-verify`).
    Skipped,
}

/// PEM text: in a file that is reloaded when it changes, or fixed.
#[derive(Clone, PartialEq)]
pub enum Pem {
    /// Re-read when it changes.
    File(PathBuf),
    /// The text itself.
    Data(Vec<u8>),
}

/// How requests are authenticated.
#[derive(Clone, PartialEq, Eq)]
pub enum Credential {
    /// Anonymous, or by the client certificate.
    None,
    /// A bearer token.
    Token(String),
    /// A bearer token in a file that is reloaded when it changes.
    TokenFile(PathBuf),
    /// User name and password.
    Basic {
        /// The user.
        username: String,
        password: String,
    },
}

// Keys and tokens stay out of logs.
impl fmt::Debug for Pem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::File(path) => write!(f, "File({})", path.display()),
            Self::Data(data) => write!(f, "Data({} bytes)", data.len()),
        }
    }
}

impl fmt::Debug for Credential {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::None => f.write_str("None"),
            Self::Token(_) => f.write_str("Token(..)"),
            Self::TokenFile(path) => write!(f, "TokenFile({})", path.display()),
            Self::Basic { username, .. } => write!(f, "Basic({username})"),
        }
    }
}

/// Why a configuration cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum ClientConfigError {
    /// A file cannot be read.
    #[error("cannot read {path}")]
    Read {
        /// The file.
        path: PathBuf,
        /// What the system said.
        #[source]
        cause: std::io::Error,
    },
    /// The file is not a client configuration.
    #[error("{path} is not a valid client configuration")]
    Syntax {
        /// The file.
        path: PathBuf,
        /// Where and what.
        #[source]
        cause: ParseYamlError,
    },
    /// The file refers to a name that it does not define.
    #[error("{path} has no {what} named {name:?}")]
    Missing {
        /// The file.
        path: PathBuf,
        /// `context`, `cluster` or `user`.
        what: &'static str,
        name: String,
    },
    /// A field has an invalid value, or a feature that this client does not support.
    #[error("{path}: {field}: {problem}")]
    Field {
        /// The file, or a text in its place.
        path: PathBuf,
        /// The field, as `users[admin].user.exec`.
        field: String,
        /// What is wrong with it.
        problem: String,
    },
    /// The process does not run in a pod.
    #[error("no kubeconfig is given, and the process is in no pod: {0} is not set")]
    NotInCluster(String),
}

impl ClientConfig {
    /// A server without credentials, for tests and for callers that set the rest.
    pub fn direct(server: Uri) -> Self {
        Self {
            server,
            tls: TlsSettings::default(),
            credential: Credential::None,
            namespace: "default".to_owned(),
        }
    }

    /// The configuration in a container of a pod: the API server's Service from environment variables, authority and token from the mounted volume.
    pub fn in_cluster(
        names: &Names,
        environment: impl Fn(&str) -> Option<String>,
    ) -> Result<Self, ClientConfigError> {
        let variable = |suffix: &str| {
            let name = format!("{}_{suffix}", names.api_service_env_prefix());
            environment(&name)
                .filter(|value| !value.is_empty())
                .ok_or(ClientConfigError::NotInCluster(name))
        };
        let (host, port) = (variable("SERVICE_HOST")?, variable("SERVICE_PORT")?);
        let host = if host.contains(':') { format!("[{host}]") } else { host };
        let directory = PathBuf::from(names.service_account_dir());
        let server = server(&directory, "server", &format!("https://{host}:{port}"))?;
        let namespace = std::fs::read_to_string(directory.join("namespace"))
            .map_or_else(|_| "default".to_owned(), |text| text.trim().to_owned());
        Ok(Self {
            tls: TlsSettings {
                authority: Some(Pem::File(directory.join("ca.crt"))),
                ..TlsSettings::default()
            },
            credential: Credential::TokenFile(directory.join("token")),
            namespace,
            ..Self::direct(server)
        })
    }
}

/// Parses a server's URL: http or https, a host, no query.
fn server(path: &Path, field: &str, text: &str) -> Result<Uri, ClientConfigError> {
    let wrong = |problem: &str| ClientConfigError::Field {
        path: path.to_owned(),
        field: field.to_owned(),
        problem: problem.to_owned(),
    };
    // A bare host:port is https, as other clients of such files read it.
    let full = if text.contains("://") { text.to_owned() } else { format!("https://{text}") };
    let uri: Uri = full.parse().map_err(|_| wrong("is not a URL"))?;
    match uri.scheme_str() {
        Some("http" | "https") => {}
        _ => return Err(wrong("must begin with https:// or http://")),
    }
    if uri.host().is_none_or(str::is_empty) || uri.query().is_some() {
        return Err(wrong("must be a host with an optional port and path"));
    }
    Ok(uri)
}

#[cfg(test)]
mod tests {
    use proto_api::names::Profile;

    use super::*;

    #[test]
    fn in_a_pod_the_environment_names_the_server() {
        let names = Names::new(Profile::Kubernetes);
        let environment = |name: &str| match name {
            "KUBERNETES_SERVICE_HOST" => Some("fd00::1".to_owned()),
            "KUBERNETES_SERVICE_PORT" => Some("443".to_owned()),
            _ => None,
        };
        let config = ClientConfig::in_cluster(names, environment).expect("in a pod");
        assert_eq!(config.server, "https://[fd00::1]:443");
        let token = "/var/run/secrets/kubernetes.io/serviceaccount/token";
        assert_eq!(config.credential, Credential::TokenFile(token.into()));
        let outside = ClientConfig::in_cluster(names, |_| None).expect_err("not in a pod");
        assert_eq!(
            outside.to_string(),
            "no kubeconfig is given, and the process is in no pod: KUBERNETES_SERVICE_HOST is not set"
        );
    }

    #[test]
    fn secrets_are_not_printed() {
        let shown =
            format!("{:?}{:?}", Credential::Token("abc".into()), Pem::Data(b"key".to_vec()));
        assert_eq!(shown, "Token(..)Data(3 bytes)");
    }

    #[test]
    fn a_server_is_a_url_or_a_host() {
        let check = |text| server(Path::new("f"), "server", text).map(|uri| uri.to_string()).ok();
        assert_eq!(check("10.0.0.1:6443").as_deref(), Some("https://10.0.0.1:6443/"));
        assert_eq!(check("http://h:1/prefix").as_deref(), Some("http://h:1/prefix"));
        for bad in ["", "ftp://h", "https://", "https://h?x=1"] {
            assert_eq!(check(bad), None, "{bad:?}");
        }
    }
}
