//! The client configuration file (kubeconfig): named clusters, users and contexts.

use std::path::{Path, PathBuf};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use proto_api::names::Names;
use proto_api::yaml;
use serde::Deserialize;

use super::{
    ClientConfig, ClientConfigError, Credential, Identity, Pem, TlsSettings, Verification, server,
};

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "kebab-case", default)]
struct File {
    current_context: Option<String>,
    clusters: Option<Vec<NamedCluster>>,
    users: Option<Vec<NamedUser>>,
    contexts: Option<Vec<NamedContext>>,
}

#[derive(Debug, Deserialize)]
struct NamedCluster {
    name: String,
    #[serde(default)]
    cluster: Cluster,
}

#[derive(Debug, Deserialize)]
struct NamedUser {
    name: String,
    #[serde(default)]
    user: User,
}

#[derive(Debug, Deserialize)]
struct NamedContext {
    name: String,
    #[serde(default)]
    context: Context,
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "kebab-case", default)]
struct Cluster {
    server: Option<String>,
    certificate_authority: Option<PathBuf>,
    certificate_authority_data: Option<String>,
    tls_server_name: Option<String>,
    insecure_skip_tls_verify: Option<bool>,
    proxy_url: Option<String>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "kebab-case", default)]
struct User {
    client_certificate: Option<PathBuf>,
    client_certificate_data: Option<String>,
    client_key: Option<PathBuf>,
    client_key_data: Option<String>,
    token: Option<String>,
    #[serde(rename = "tokenFile")]
    token_file: Option<PathBuf>,
    username: Option<String>,
    password: Option<String>,
    exec: Option<serde::de::IgnoredAny>,
    auth_provider: Option<serde::de::IgnoredAny>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Context {
    cluster: String,
    user: Option<String>,
    namespace: Option<String>,
}

/// The path of the file: `flag` if set, else the profile's environment variable (its first entry that exists), else the profile's default in the home
/// directory.
pub fn locate(
    names: &Names,
    flag: Option<&Path>,
    environment: impl Fn(&str) -> Option<String>,
) -> Option<PathBuf> {
    if let Some(path) = flag {
        return Some(path.to_owned());
    }
    if let Some(list) = environment(names.client_config_env()).filter(|list| !list.is_empty()) {
        let mut entries = list.split(':').filter(|entry| !entry.is_empty()).map(PathBuf::from);
        let first = entries.clone().next();
        return entries.find(|entry| entry.exists()).or(first);
    }
    environment("HOME").map(|home| Path::new(&home).join(names.client_config_path()))
}

/// Reads the file at `path` and selects `context`, or the file's current one.
pub fn load(path: &Path, context: Option<&str>) -> Result<ClientConfig, ClientConfigError> {
    let text = std::fs::read_to_string(path)
        .map_err(|cause| ClientConfigError::Read { path: path.to_owned(), cause })?;
    parse(path, &text, context)
}

/// As [`load`], from a text; relative paths in it are relative to the directory of `path`.
pub fn parse(
    path: &Path,
    text: &str,
    context: Option<&str>,
) -> Result<ClientConfig, ClientConfigError> {
    let file: File = yaml::from_str(text)
        .map_err(|cause| ClientConfigError::Syntax { path: path.to_owned(), cause })?;
    let reader = Reader { path };
    let chosen = context.or(file.current_context.as_deref()).unwrap_or_default();
    let contexts = file.contexts.unwrap_or_default();
    let context = contexts.into_iter().find(|entry| entry.name == chosen);
    let context = context.ok_or_else(|| reader.missing("context", chosen))?.context;

    let clusters = file.clusters.unwrap_or_default();
    let cluster = clusters.into_iter().find(|entry| entry.name == context.cluster);
    let cluster = cluster.ok_or_else(|| reader.missing("cluster", &context.cluster))?.cluster;

    let name = context.user.unwrap_or_default();
    let users = file.users.unwrap_or_default();
    let user = match users.into_iter().find(|entry| entry.name == name) {
        Some(entry) => entry.user,
        None if name.is_empty() => User::default(),
        None => return Err(reader.missing("user", &name)),
    };

    let at = |field: &str| format!("clusters[{}].cluster.{field}", context.cluster);
    if cluster.proxy_url.is_some_and(|url| !url.is_empty()) {
        return Err(reader.field_error(at("proxy-url"), "proxies are not supported"));
    }
    let server = server(path, &at("server"), cluster.server.as_deref().unwrap_or_default())?;
    let authority = reader.pem(
        cluster.certificate_authority,
        cluster.certificate_authority_data,
        at("certificate-authority-data"),
    )?;
    Ok(ClientConfig {
        server,
        tls: TlsSettings {
            authority,
            identity: reader.identity(&name, &user)?,
            server_name: cluster.tls_server_name.filter(|name| !name.is_empty()),
            verification: match cluster.insecure_skip_tls_verify {
                Some(true) => Verification::Skipped,
                _ => Verification::Full,
            },
        },
        credential: reader.credential(&name, user)?,
        namespace: context
            .namespace
            .filter(|namespace| !namespace.is_empty())
            .unwrap_or_else(|| "default".to_owned()),
    })
}

/// PEM text encoded for the `-data` fields of such files.
pub fn encoded(pem: &[u8]) -> String {
    STANDARD.encode(pem)
}

/// What such a field holds; `None` if it is not base64.
pub fn decoded(text: &str) -> Option<Vec<u8>> {
    STANDARD.decode(text).ok()
}

/// Resolves relative paths and names the file in errors.
struct Reader<'a> {
    path: &'a Path,
}

impl Reader<'_> {
    fn missing(&self, what: &'static str, name: &str) -> ClientConfigError {
        ClientConfigError::Missing { path: self.path.to_owned(), what, name: name.to_owned() }
    }

    fn field_error(&self, field: String, problem: impl Into<String>) -> ClientConfigError {
        ClientConfigError::Field { path: self.path.to_owned(), field, problem: problem.into() }
    }

    fn resolve(&self, path: PathBuf) -> PathBuf {
        self.path.parent().map_or(path.clone(), |directory| directory.join(path))
    }

    /// Data takes precedence over a path, as in kubectl.
    fn pem(
        &self,
        file: Option<PathBuf>,
        data: Option<String>,
        field: String,
    ) -> Result<Option<Pem>, ClientConfigError> {
        if let Some(data) = data.filter(|data| !data.is_empty()) {
            let text: String = data.split_ascii_whitespace().collect();
            let pem =
                STANDARD.decode(text).map_err(|_| self.field_error(field, "is not base64"))?;
            return Ok(Some(Pem::Data(pem)));
        }
        Ok(file
            .filter(|file| !file.as_os_str().is_empty())
            .map(|file| Pem::File(self.resolve(file))))
    }

    fn identity(&self, name: &str, user: &User) -> Result<Option<Identity>, ClientConfigError> {
        let at = |field: &str| format!("users[{name}].user.{field}");
        let certificate = self.pem(
            user.client_certificate.clone(),
            user.client_certificate_data.clone(),
            at("client-certificate-data"),
        )?;
        let key =
            self.pem(user.client_key.clone(), user.client_key_data.clone(), at("client-key-data"))?;
        match (certificate, key) {
            (Some(certificate), Some(key)) => Ok(Some(Identity { certificate, key })),
            (None, None) => Ok(None),
            (Some(_), None) => {
                Err(self.field_error(at("client-key"), "is missing beside client-certificate"))
            }
            (None, Some(_)) => {
                Err(self.field_error(at("client-certificate"), "is missing beside client-key"))
            }
        }
    }

    fn credential(&self, name: &str, user: User) -> Result<Credential, ClientConfigError> {
        let at = |field: &str| format!("users[{name}].user.{field}");
        if user.exec.is_some() {
            return Err(
                self.field_error(at("exec"), "credential programs are not run by this client")
            );
        }
        if user.auth_provider.is_some() {
            return Err(self.field_error(at("auth-provider"), "is not supported"));
        }
        // The file takes precedence over a token in the configuration: only the file can be renewed.
        if let Some(file) = user.token_file.filter(|file| !file.as_os_str().is_empty()) {
            return Ok(Credential::TokenFile(self.resolve(file)));
        }
        if let Some(token) = user.token.filter(|token| !token.is_empty()) {
            return Ok(Credential::Token(token));
        }
        Ok(match user.username.filter(|username| !username.is_empty()) {
            Some(username) => {
                Credential::Basic { username, password: user.password.unwrap_or_default() }
            }
            None => Credential::None,
        })
    }
}

#[cfg(test)]
mod tests {
    use proto_api::names::Profile;

    use super::*;

    const TWO: &str = "
apiVersion: v1
kind: Config
current-context: main
clusters:
- name: c1
  cluster:
    server: https://10.0.0.1:6443
    certificate-authority-data: Y2E=
- name: c2
  cluster: {server: 'https://h', certificate-authority: pki/ca.crt, tls-server-name: api, insecure-skip-tls-verify: true}
users:
- name: admin
  user: {client-certificate-data: Y2VydA==, client-key: /k.pem}
- name: robot
  user: {token: old, tokenFile: token}
contexts:
- name: main
  context: {cluster: c1, user: admin, namespace: web}
- name: other
  context: {cluster: c2, user: robot}
- name: anonymous
  context: {cluster: c1}
- name: broken
  context: {cluster: c9}
preferences: {}
";

    fn read(text: &str, context: Option<&str>) -> Result<ClientConfig, String> {
        parse(Path::new("/etc/x/config"), text, context).map_err(|error| error.to_string())
    }

    #[test]
    fn the_current_context_is_taken() {
        let config = read(TWO, None).expect("valid");
        assert_eq!(config.server, "https://10.0.0.1:6443");
        assert_eq!(config.namespace, "web");
        assert_eq!(config.tls.authority, Some(Pem::Data(b"ca".to_vec())));
        let identity =
            Identity { certificate: Pem::Data(b"cert".to_vec()), key: Pem::File("/k.pem".into()) };
        assert_eq!(config.tls.identity, Some(identity));
        assert_eq!(config.credential, Credential::None);
    }

    #[test]
    fn paths_are_relative_to_the_file() {
        let config = read(TWO, Some("other")).expect("valid");
        assert_eq!(config.tls.authority, Some(Pem::File("/etc/x/pki/ca.crt".into())));
        assert_eq!(config.credential, Credential::TokenFile("/etc/x/token".into()));
        assert_eq!(config.tls.server_name.as_deref(), Some("api"));
        assert_eq!(config.tls.verification, Verification::Skipped);
        assert_eq!(config.namespace, "default");
        assert_eq!(read(TWO, Some("anonymous")).expect("valid").tls.identity, None);
    }

    #[test]
    fn errors_name_the_field() {
        let check = |text: &str, context, part: &str| {
            let error = read(text, context).expect_err("invalid");
            assert!(error.contains(part), "{error}");
        };
        check(TWO, Some("none"), "has no context named \"none\"");
        check(TWO, Some("broken"), "has no cluster named \"c9\"");
        check(
            &TWO.replace("Y2E=", "'%'"),
            None,
            "clusters[c1].cluster.certificate-authority-data: is not base64",
        );
        check(
            &TWO.replace("https://10.0.0.1:6443", "ftp://x"),
            None,
            "clusters[c1].cluster.server: must",
        );
        check(
            &TWO.replace("client-key: /k.pem", "a: b"),
            None,
            "users[admin].user.client-key: is missing",
        );
        check(
            &TWO.replace("token: old", "exec: {command: x}"),
            Some("other"),
            "users[robot].user.exec: ",
        );
        check("[", None, "is not a valid client configuration");
        check("{}", None, "has no context named \"\"");
    }

    #[test]
    fn flag_then_environment_then_home() {
        let names = Names::new(Profile::Kubernetes);
        let home = |name: &str| (name == "HOME").then(|| "/root".to_owned());
        assert_eq!(locate(names, None, home), Some("/root/.kube/config".into()));
        let listed = |name: &str| (name == "KUBECONFIG").then(|| ":/no/such/file:/".to_owned());
        assert_eq!(locate(names, None, listed), Some("/".into()));
        assert_eq!(locate(names, Some(Path::new("/f")), listed), Some("/f".into()));
        assert_eq!(locate(names, None, |_| None), None);
    }
}
