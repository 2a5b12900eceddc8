//! The client configuration (kubeconfig) as files that are read together and edited one by one. What the files say is kept, known or not.

use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use proto_api::names::{Names, Profile};
use proto_api::yaml;
use proto_client::ClientConfig;
use proto_client::config::file;
use proto_client::transport::ProxyServer;
use proto_daemon::private_files;
use serde_json::{Map, Value, json};

use crate::exec_credential::CredentialProgram;
use crate::{CommandError, GlobalFlags};

/// Longest file that is read.
const FILE_LEN_MAX: u64 = 8 << 20;
/// The server when nothing names one.
pub(crate) const DEFAULT_SERVER: &str = "http://localhost:8080";
/// How often a lock is tried before it counts as left behind, and the pause between.
const LOCK_TRIES: u32 = 40;
const LOCK_PAUSE: Duration = Duration::from_millis(50);
/// Fields of clusters and users that are paths.
const PATHS: [&str; 4] = ["certificate-authority", "client-certificate", "client-key", "tokenFile"];

/// Files of the configuration in their order: of two entries of the same name the first counts.
#[derive(Clone, Debug, Default)]
pub struct Kubeconfig {
    files: Vec<(PathBuf, Value)>,
}

/// What flags say in place of the files.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Overrides {
    /// Context to use.
    pub context: Option<String>,
    /// Cluster to use.
    pub cluster: Option<String>,
    /// User to use.
    pub user: Option<String>,
    pub cluster_fields: Map<String, Value>,
    pub user_fields: Map<String, Value>,
    /// Namespace to use.
    pub namespace: Option<String>,
}

impl Kubeconfig {
    /// Reads the files that `flag` or the environment names, or that of the home directory. Missing files count as empty, but not that of the flag.
    ///
    /// # Errors
    /// When a file cannot be read or is no configuration.
    pub fn read(
        flag: Option<&Path>,
        environment: impl Fn(&str) -> Option<String>,
    ) -> Result<Self, CommandError> {
        if let Some(path) = flag {
            let tree = read_file(path)?.ok_or_else(|| {
                CommandError::with_text(format!(
                    "stat {}: no such file or directory",
                    path.display()
                ))
            })?;
            return Ok(Self { files: vec![(path.to_owned(), tree)] });
        }
        let mut files = Vec::new();
        for path in locate(environment) {
            let tree = read_file(&path)?.unwrap_or(Value::Null);
            files.push((path, tree));
        }
        Ok(Self { files })
    }

    /// As [`Kubeconfig::read`], for edits: the flag's file may be missing.
    ///
    /// # Errors
    /// When a file cannot be read or is no configuration.
    pub fn read_to_edit(
        flag: Option<&Path>,
        environment: impl Fn(&str) -> Option<String>,
    ) -> Result<Self, CommandError> {
        match flag {
            Some(path) => {
                let tree = read_file(path)?.unwrap_or(Value::Null);
                Ok(Self { files: vec![(path.to_owned(), tree)] })
            }
            None => Self::read(None, environment),
        }
    }

    /// One configuration of all files, with absolute paths.
    pub fn merged(&self) -> Value {
        let mut whole = json!({
            "apiVersion": "v1", "kind": "Config", "current-context": "", "preferences": {},
            "clusters": [], "contexts": [], "users": [],
        });
        for (path, tree) in &self.files {
            let directory = path.parent().unwrap_or(Path::new("."));
            for list in ["clusters", "contexts", "users"] {
                for entry in entries(tree, list) {
                    if entry_named(&whole, list, name_of(entry)).is_none()
                        && let Some(Value::Array(into)) = whole.get_mut(list)
                    {
                        into.push(with_absolute_paths(entry, directory));
                    }
                }
            }
            let set = |field: &str| tree.get(field).filter(|value| !is_unset(value)).cloned();
            for field in ["current-context", "preferences"] {
                if whole.get(field).is_none_or(is_unset)
                    && let Some(value) = set(field)
                {
                    whole[field] = value;
                }
            }
        }
        for list in ["clusters", "contexts", "users"] {
            if let Some(Value::Array(entries)) = whole.get_mut(list) {
                entries.sort_by(|a, b| name_of(a).cmp(name_of(b)));
            }
        }
        whole
    }

    /// Whether no file says anything.
    pub fn is_empty(&self) -> bool {
        self.files.iter().all(|(_, tree)| is_unset(tree))
    }

    /// The configuration of a client: the files' with what flags say.
    ///
    /// # Errors
    /// When a name is not defined or a field is invalid.
    pub fn client_config(&self, overrides: &Overrides) -> Result<ClientConfig, CommandError> {
        let mut whole = self.merged();
        let Chosen { mut cluster, mut user, namespace } = overlaid(&whole, overrides)?;
        // Credential programs are run by the session.
        if let Some(fields) = user.as_object_mut() {
            fields.retain(|field, _| field != "exec");
        }
        // The session connects through the proxy.
        if let Some(fields) = cluster.as_object_mut() {
            fields.retain(|field, _| field != "proxy-url");
        }
        if cluster["insecure-skip-tls-verify"] == true
            && let Some(fields) = cluster.as_object_mut()
        {
            fields.retain(|field, _| !field.starts_with("certificate-authority"));
        }
        whole["clusters"] = json!([{"name": "c", "cluster": cluster}]);
        whole["users"] = json!([{"name": "u", "user": user}]);
        let context = json!({"cluster": "c", "user": "u", "namespace": namespace});
        whole["contexts"] = json!([{"name": "x", "context": context}]);
        let path = self.files.first().map_or(Path::new("configuration"), |(path, _)| path);
        file::parse(path, &whole.to_string(), Some("x"))
            .map_err(|error| CommandError::with_text(proto_daemon::exit::chain(&error)))
    }

    /// The proxy through which the cluster is reached, if it names one.
    ///
    /// # Errors
    /// As [`Kubeconfig::client_config`], and when it is no proxy.
    pub fn proxy(&self, overrides: &Overrides) -> Result<Option<ProxyServer>, CommandError> {
        let cluster = overlaid(&self.merged(), overrides)?.cluster;
        let url = cluster.get("proxy-url").and_then(Value::as_str).unwrap_or_default();
        let wrong = |error| CommandError::with_text(format!("proxy-url of the cluster: {error}"));
        match url {
            "" => Ok(None),
            url => ProxyServer::parse(url).map(Some).map_err(wrong),
        }
    }

    /// The entry of the chosen user, with what flags say.
    ///
    /// # Errors
    /// As [`Kubeconfig::client_config`].
    pub fn user(&self, overrides: &Overrides) -> Result<Value, CommandError> {
        Ok(overlaid(&self.merged(), overrides)?.user)
    }

    /// The program that prints the user's credentials, if there is one and no flag names others.
    ///
    /// # Errors
    /// As [`Kubeconfig::client_config`].
    pub fn credential_program(
        &self,
        overrides: &Overrides,
    ) -> Result<Option<CredentialProgram>, CommandError> {
        let fields = &overrides.user_fields;
        if ["token", "username", "client-certificate"].iter().any(|one| fields.contains_key(*one)) {
            return Ok(None);
        }
        let Chosen { cluster, user, .. } = overlaid(&self.merged(), overrides)?;
        CredentialProgram::from_user(&user, &cluster)
    }

    /// The file that new entries go to: the first that exists, else the last.
    pub fn destination(&self) -> Option<&Path> {
        let exists = self.files.iter().find(|(path, _)| path.exists());
        exists.or(self.files.last()).map(|(path, _)| path.as_path())
    }

    /// The file that defines an entry of `clusters`, `contexts` or `users`.
    pub fn file_of(&self, list: &str, name: &str) -> Option<&Path> {
        let mut files = self.files.iter();
        files.find(|(_, tree)| entry_named(tree, list, name).is_some()).map(|(path, _)| &**path)
    }

    /// The file that says which context is the current one.
    pub fn file_of_current_context(&self) -> Option<&Path> {
        let says = |tree: &Value| tree.get("current-context").is_some_and(|value| !is_unset(value));
        self.files.iter().find(|(_, tree)| says(tree)).map(|(path, _)| &**path)
    }

    /// Changes the file at `path` and writes it, readable by its owner alone; behind a link its target. The file is read again and
    /// locked meanwhile, as other clients of its format lock it: by a file next to it.
    ///
    /// # Errors
    /// When `change` fails, another program keeps the lock, or the file cannot be written.
    pub fn edit(
        &mut self,
        path: &Path,
        change: impl FnOnce(&mut Value) -> Result<(), CommandError>,
    ) -> Result<(), CommandError> {
        let found = self.files.iter_mut().find(|(known, _)| known == path);
        let Some((_, tree)) = found else {
            let text = format!("{} is not a file of the configuration", path.display());
            return Err(CommandError::with_text(text));
        };
        let target = std::fs::canonicalize(path).unwrap_or_else(|_| path.to_owned());
        let path = target.as_path();
        let cannot_write = |error: io::Error| {
            CommandError::with_text(format!("cannot write {}: {error}", path.display()))
        };
        if let Some(parent) = path.parent().filter(|parent| !parent.as_os_str().is_empty()) {
            private_files::create_trusted_dir(parent).map_err(cannot_write)?;
        }
        let _lock = FileLock::take(path)?;
        *tree = read_file(path)?.unwrap_or_default();
        if is_unset(tree) {
            *tree = json!({
                "apiVersion": "v1", "kind": "Config", "current-context": "", "preferences": {},
                "clusters": [], "contexts": [], "users": [],
            });
        }
        change(tree)?;
        let text = yaml::to_string(tree);
        private_files::write_private_atomically(path, text.as_bytes()).map_err(cannot_write)
    }
}

/// The lock of a file: a file next to it, which goes with this.
struct FileLock(PathBuf);

impl FileLock {
    fn take(path: &Path) -> Result<Self, CommandError> {
        let mut name = path.as_os_str().to_owned();
        name.push(".lock");
        let lock = PathBuf::from(name);
        for _ in 0..LOCK_TRIES {
            match private_files::create_private(&lock) {
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
                    std::thread::sleep(LOCK_PAUSE);
                }
                Err(error) => {
                    return Err(CommandError::with_text(format!(
                        "cannot lock {}: {error}",
                        path.display()
                    )));
                }
                Ok(_) => return Ok(Self(lock)),
            }
        }
        Err(CommandError::with_text(format!(
            "another program is changing {}; if none is, remove {}",
            path.display(),
            lock.display()
        )))
    }
}

impl Drop for FileLock {
    fn drop(&mut self) {
        // What is left of it is named by the next program that wants it.
        let _ = std::fs::remove_file(&self.0);
    }
}

struct Chosen {
    cluster: Value,
    user: Value,
    namespace: String,
}

/// Cluster and user as files and flags describe them together.
fn overlaid(whole: &Value, overrides: &Overrides) -> Result<Chosen, CommandError> {
    let Chosen { mut cluster, mut user, namespace } = choose(whole, overrides)?;
    overlay(&mut cluster, &overrides.cluster_fields);
    // A token's file would count before the token of a flag.
    if let Some(fields) =
        user.as_object_mut().filter(|_| overrides.user_fields.contains_key("token"))
    {
        fields.retain(|field, _| field != "tokenFile");
    }
    overlay(&mut user, &overrides.user_fields);
    if cluster.get("server").is_none_or(is_unset) {
        cluster["server"] = json!(DEFAULT_SERVER);
    }
    Ok(Chosen { cluster, user, namespace })
}

/// The cluster, the user and the namespace that files and flags choose together.
fn choose(whole: &Value, overrides: &Overrides) -> Result<Chosen, CommandError> {
    let current = whole.get("current-context").and_then(Value::as_str).unwrap_or_default();
    let name = overrides.context.as_deref().unwrap_or(current);
    let context = match entry_named(whole, "contexts", name) {
        Some(entry) => entry.get("context").cloned().unwrap_or_default(),
        None if name.is_empty() && overrides.context.is_none() => Value::Null,
        None => {
            return Err(CommandError::Plain(format!(
                "Error in configuration: context was not found for specified context: {name}"
            )));
        }
    };
    let of_context = |field: &str| context.get(field).and_then(Value::as_str).unwrap_or_default();
    let find = |list: &str, what: &str, flag: &Option<String>| -> Result<Value, CommandError> {
        let name = flag.as_deref().unwrap_or(of_context(what));
        match entry_named(whole, list, name) {
            Some(entry) => Ok(entry.get(what).cloned().unwrap_or_else(|| json!({}))),
            None if name.is_empty() => Ok(json!({})),
            None if flag.is_some() || what == "user" => {
                let what = if what == "user" { "auth info" } else { what };
                Err(CommandError::with_text(format!("{what} \"{name}\" does not exist")))
            }
            None => Ok(json!({})),
        }
    };
    let cluster = find("clusters", "cluster", &overrides.cluster)?;
    let user = find("users", "user", &overrides.user)?;
    let namespace = overrides.namespace.as_deref().unwrap_or(of_context("namespace")).to_owned();
    let object = |value: Value| if value.is_object() { value } else { json!({}) };
    Ok(Chosen { cluster: object(cluster), user: object(user), namespace })
}

impl Overrides {
    /// What the flags say. Paths are relative to the working directory.
    pub fn from_flags(flags: &GlobalFlags) -> Self {
        let here = std::env::current_dir().unwrap_or_default();
        let path = |path: &PathBuf| json!(here.join(path).to_string_lossy());
        let mut cluster_fields = Map::new();
        let mut user_fields = Map::new();
        let server = &flags.server;
        let identity = &flags.identity;
        let text = |value: &Option<String>| value.as_ref().map(|value| json!(value));
        let insecure = server.insecure_skip_tls_verify.map(Value::Bool);
        for (field, value) in [
            ("server", text(&server.server)),
            ("certificate-authority", server.certificate_authority.as_ref().map(path)),
            ("insecure-skip-tls-verify", insecure),
            ("tls-server-name", text(&server.tls_server_name)),
        ] {
            cluster_fields.extend(value.map(|value| (field.to_owned(), value)));
        }
        for (field, value) in [
            ("token", text(&identity.token)),
            ("username", text(&identity.username)),
            ("password", text(&identity.password)),
            ("client-certificate", identity.client_certificate.as_ref().map(path)),
            ("client-key", identity.client_key.as_ref().map(path)),
        ] {
            user_fields.extend(value.map(|value| (field.to_owned(), value)));
        }
        Self {
            context: flags.context.clone(),
            cluster: server.cluster.clone(),
            user: identity.user.clone(),
            cluster_fields,
            user_fields,
            namespace: flags.namespace.clone(),
        }
    }
}

/// The files of the environment, else that of the home directory: the project's own if it exists or no other does.
fn locate(environment: impl Fn(&str) -> Option<String>) -> Vec<PathBuf> {
    let kubernetes = Names::new(Profile::Kubernetes);
    let orch = <&Names>::default();
    let listed = |names: &Names| {
        environment(names.client_config_env()).filter(|list| !list.trim_matches(':').is_empty())
    };
    if let Some(list) = listed(orch).or_else(|| listed(kubernetes)) {
        return list.split(':').filter(|entry| !entry.is_empty()).map(PathBuf::from).collect();
    }
    let Some(home) = environment("HOME").map(PathBuf::from) else { return Vec::new() };
    let own = home.join(orch.client_config_path());
    let other = home.join(kubernetes.client_config_path());
    if !own.exists() && other.exists() { vec![other] } else { vec![own] }
}

fn read_file(path: &Path) -> Result<Option<Value>, CommandError> {
    let cannot =
        |why: String| CommandError::with_text(format!("cannot read {}: {why}", path.display()));
    match std::fs::metadata(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(cannot(error.to_string())),
        Ok(metadata) if metadata.len() > FILE_LEN_MAX => {
            return Err(cannot(format!("it is longer than {FILE_LEN_MAX} bytes")));
        }
        Ok(_) => {}
    }
    let text = std::fs::read_to_string(path).map_err(|error| cannot(error.to_string()))?;
    let tree = yaml::parse(&text).map_err(|error| {
        let text = format!("error loading config file \"{}\": {error}", path.display());
        CommandError::with_text(text)
    })?;
    if tree.is_null() || tree.is_object() {
        Ok(Some(tree))
    } else {
        Err(CommandError::with_text(format!("{} is no client configuration", path.display())))
    }
}

fn entries<'a>(tree: &'a Value, list: &str) -> impl Iterator<Item = &'a Value> + use<'a> {
    tree.get(list).and_then(Value::as_array).into_iter().flatten()
}

fn name_of(entry: &Value) -> &str {
    entry.get("name").and_then(Value::as_str).unwrap_or_default()
}

fn entry_named<'a>(tree: &'a Value, list: &str, name: &str) -> Option<&'a Value> {
    entries(tree, list).find(|entry| name_of(entry) == name)
}

fn is_unset(value: &Value) -> bool {
    match value {
        Value::Null => true,
        Value::String(text) => text.is_empty(),
        Value::Object(map) => map.is_empty(),
        _ => false,
    }
}

fn overlay(onto: &mut Value, fields: &Map<String, Value>) {
    let Some(map) = onto.as_object_mut() else { return };
    for (field, value) in fields {
        // A file on the command line replaces data of the configuration, which would count first.
        map.remove(&format!("{field}-data"));
        map.insert(field.clone(), value.clone());
    }
}

fn with_absolute_paths(entry: &Value, directory: &Path) -> Value {
    let mut entry = entry.clone();
    for part in ["cluster", "user"] {
        for field in PATHS {
            let place = entry.get_mut(part).and_then(|part| part.get_mut(field));
            if let Some(Value::String(text)) = place
                && !text.is_empty()
            {
                *text = directory.join(text.as_str()).to_string_lossy().into_owned();
            }
        }
    }
    // A program without a slash is one of PATH.
    let program = entry.pointer_mut("/user/exec/command");
    if let Some(Value::String(text)) =
        program.filter(|text| text.as_str().is_some_and(|text| text.contains('/')))
    {
        *text = directory.join(text.as_str()).to_string_lossy().into_owned();
    }
    entry
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use proto_client::config::{Credential, Pem};

    use super::*;

    const FIRST: &str = "
current-context: a
clusters: [{name: c, cluster: {server: 'https://one', certificate-authority: ca.crt}}]
users: [{name: u, user: {token: t}}]
contexts: [{name: a, context: {cluster: c, user: u, namespace: web}}]
";
    const SECOND: &str = "
current-context: b
clusters: [{name: c, cluster: {server: 'https://two'}}, {name: d, cluster: {server: 'https://d'}}]
contexts: [{name: b, context: {cluster: d}}]
";

    fn two() -> Kubeconfig {
        let tree = |text| yaml::parse(text).expect("valid");
        Kubeconfig {
            files: vec![("/x/first".into(), tree(FIRST)), ("/y/second".into(), tree(SECOND))],
        }
    }

    #[test]
    fn the_first_of_two_entries_counts() {
        let config = two().client_config(&Overrides::default()).expect("valid");
        assert_eq!(config.server, "https://one");
        assert_eq!(config.namespace, "web");
        assert_eq!(config.credential, Credential::Token("t".into()));
        assert_eq!(config.tls.authority, Some(Pem::File("/x/ca.crt".into())));
        let other = Overrides { context: Some("b".into()), ..Overrides::default() };
        assert_eq!(two().client_config(&other).expect("valid").server, "https://d");
        assert_eq!(two().file_of("clusters", "d"), Some(Path::new("/y/second")));
    }

    #[test]
    fn flags_replace_what_files_say() {
        let mut overrides = Overrides { namespace: Some("n".into()), ..Overrides::default() };
        overrides.user_fields.insert("token".into(), json!("other"));
        overrides.cluster_fields.insert("server".into(), json!("https://three"));
        let config = two().client_config(&overrides).expect("valid");
        assert_eq!(config.server, "https://three");
        assert_eq!(config.namespace, "n");
        assert_eq!(config.credential, Credential::Token("other".into()));
        let missing = Overrides { context: Some("z".into()), ..Overrides::default() };
        let error = two().client_config(&missing).expect_err("no such context");
        assert_eq!(
            error.to_string(),
            "Error in configuration: context was not found for specified context: z"
        );
        let nothing = Kubeconfig::default().client_config(&Overrides::default()).expect("default");
        assert_eq!(nothing.server, "http://localhost:8080");
    }

    #[test]
    fn a_cluster_may_name_its_proxy() {
        let proxy = |field: &str| {
            let text =
                format!("clusters: [{{name: c, cluster: {{server: 'https://one'{field}}}}}]");
            let files = vec![("/x/first".into(), yaml::parse(&text).expect("valid"))];
            let overrides = Overrides { cluster: Some("c".into()), ..Overrides::default() };
            let config = Kubeconfig { files };
            config.client_config(&overrides).expect("valid");
            let found = config.proxy(&overrides).map_err(|error| error.to_string())?;
            Ok::<_, String>(found.map(|proxy| proxy.to_string()))
        };
        assert_eq!(proxy(""), Ok(None));
        assert_eq!(proxy(", proxy-url: ''"), Ok(None));
        assert_eq!(proxy(", proxy-url: 'http://u:p@h:3128'"), Ok(Some("h:3128".to_owned())));
        assert_eq!(proxy(", proxy-url: 'socks5://h'"), Ok(Some("h:1080".to_owned())));
        let error = proxy(", proxy-url: 'ftp://h'").expect_err("no such proxy");
        assert!(
            error.starts_with("error: proxy-url of the cluster: unsupported scheme"),
            "{error}"
        );
    }

    #[test]
    fn an_edited_file_is_private_and_keeps_what_it_said() {
        let directory = tempfile::tempdir().expect("directory");
        let path = directory.path().join("sub/config");
        let mut config = Kubeconfig::read_to_edit(Some(&path), |_| None).expect("missing is empty");
        let change = |tree: &mut Value| {
            tree["current-context"] = json!("x");
            tree["extra"] = json!(1);
            Ok(())
        };
        config.edit(&path, change).expect("written");
        let again = Kubeconfig::read(Some(&path), |_| None).expect("readable");
        assert_eq!(again.merged()["current-context"], "x");
        assert!(std::fs::read_to_string(&path).expect("text").contains("extra: 1"));
        let mode = std::fs::metadata(&path).expect("file").permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
    }

    #[test]
    fn the_environment_then_the_home_directory() {
        let directory = tempfile::tempdir().expect("directory");
        let home = directory.path().to_string_lossy().into_owned();
        let at_home = |name: &str| (name == "HOME").then(|| home.clone());
        assert_eq!(locate(at_home), vec![directory.path().join(".orch/config")]);
        std::fs::create_dir(directory.path().join(".kube")).expect("directory");
        std::fs::write(directory.path().join(".kube/config"), "").expect("file");
        assert_eq!(locate(at_home), vec![directory.path().join(".kube/config")]);
        let listed = |name: &str| (name == "KUBECONFIG").then(|| "/a::/b".to_owned());
        assert_eq!(locate(listed), vec![PathBuf::from("/a"), PathBuf::from("/b")]);
    }
}
