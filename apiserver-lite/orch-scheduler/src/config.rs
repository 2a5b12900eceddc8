//! The configuration file, a KubeSchedulerConfiguration: what of it is done here is taken, the rest is warned of.

use std::path::{Path, PathBuf};

use proto_api::names::Names;
use proto_daemon::config::{self, ConfigError, Configuration, FieldError, FileType};
use serde::{Deserialize, Serialize};
use serde_json::Value;

/// What of the file changes something here.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct FromFile {
    /// Client configuration file of the API server.
    pub kubeconfig: Option<PathBuf>,
    /// Pods that name this scheduler are scheduled.
    pub scheduler_name: Option<String>,
    /// A text for each field that is set and has no effect.
    pub warnings: Vec<String>,
}

/// The file, with all fields of v1; `Value` where nothing inside is used.
#[derive(Debug, Default, Deserialize, Serialize)]
#[serde(rename_all = "camelCase", default)]
struct File {
    client_connection: ClientConnection,
    profiles: Vec<Profile>,
    // Without effect here.
    parallelism: Value,
    leader_election: Value,
    healthz_bind_address: Value,
    metrics_bind_address: Value,
    enable_profiling: Value,
    enable_contention_profiling: Value,
    percentage_of_nodes_to_score: Value,
    pod_initial_backoff_seconds: Value,
    pod_max_backoff_seconds: Value,
    extenders: Value,
}

#[derive(Debug, Default, Deserialize, Serialize)]
#[serde(rename_all = "camelCase", default)]
struct ClientConnection {
    kubeconfig: String,
    accept_content_types: Value,
    content_type: Value,
    qps: Value,
    burst: Value,
}

#[derive(Debug, Default, Deserialize, Serialize)]
#[serde(rename_all = "camelCase", default)]
struct Profile {
    scheduler_name: String,
    percentage_of_nodes_to_score: Value,
    plugins: Value,
    plugin_config: Value,
}

impl Configuration for File {
    fn validate(&self) -> Vec<FieldError> {
        match self.profiles.len() {
            0 | 1 => Vec::new(),
            _ => vec![FieldError::new(
                "profiles",
                "must be one at most: this scheduler has one profile",
            )],
        }
    }
}

/// Reads a file.
///
/// # Errors
/// It cannot be read, is of another type, or has a field that is unknown or wrong.
pub fn load(path: &Path, names: &Names) -> Result<FromFile, ConfigError> {
    config::load::<File>(path, &types(names)).map(|file| taken(&file))
}

/// `apiVersion` and `kind`, in the profile's names; the versions that Kubernetes 1.25 reads.
fn types(names: &Names) -> Vec<FileType> {
    let component = names.component("scheduler");
    let group = format!("{}.config.{}", component.replace('-', ""), names.group_domain());
    let capital = |word: &str| {
        let (first, rest) = word.split_at(1.min(word.len()));
        first.to_uppercase() + rest
    };
    let kind = component.split('-').map(capital).collect::<String>() + "Configuration";
    let version =
        |version: &str| FileType { api_version: format!("{group}/{version}"), kind: kind.clone() };
    ["v1", "v1beta3", "v1beta2"].map(version).into()
}

fn taken(file: &File) -> FromFile {
    let profile = file.profiles.first();
    let text = |text: &str| (!text.is_empty()).then(|| text.to_owned());
    FromFile {
        kubeconfig: text(&file.client_connection.kubeconfig).map(PathBuf::from),
        scheduler_name: profile.and_then(|profile| text(&profile.scheduler_name)),
        warnings: without_effect(file),
    }
}

fn without_effect(file: &File) -> Vec<String> {
    let connection = &file.client_connection;
    let mut fields = vec![
        ("parallelism", &file.parallelism),
        ("leaderElection", &file.leader_election),
        ("healthzBindAddress", &file.healthz_bind_address),
        ("metricsBindAddress", &file.metrics_bind_address),
        ("enableProfiling", &file.enable_profiling),
        ("enableContentionProfiling", &file.enable_contention_profiling),
        ("percentageOfNodesToScore", &file.percentage_of_nodes_to_score),
        ("podInitialBackoffSeconds", &file.pod_initial_backoff_seconds),
        ("podMaxBackoffSeconds", &file.pod_max_backoff_seconds),
        ("extenders", &file.extenders),
        ("clientConnection.acceptContentTypes", &connection.accept_content_types),
        ("clientConnection.contentType", &connection.content_type),
        ("clientConnection.qps", &connection.qps),
        ("clientConnection.burst", &connection.burst),
    ];
    for profile in &file.profiles {
        fields.extend([
            ("profiles[0].percentageOfNodesToScore", &profile.percentage_of_nodes_to_score),
            ("profiles[0].plugins", &profile.plugins),
            ("profiles[0].pluginConfig", &profile.plugin_config),
        ]);
    }
    let set = fields.into_iter().filter(|(_, value)| !value.is_null());
    set.map(|(name, _)| format!("configuration field {name} has no effect here")).collect()
}

#[cfg(test)]
mod tests {
    use proto_api::names;

    use super::*;

    fn read(text: &str) -> Result<FromFile, String> {
        let names = Names::new(names::Profile::Kubernetes);
        let file = config::parse::<File>(Path::new("f"), text, &types(names));
        file.map(|file| taken(&file)).map_err(|error| error.to_string())
    }

    const HEAD: &str =
        "apiVersion: kubescheduler.config.k8s.io/v1\nkind: KubeSchedulerConfiguration\n";

    #[test]
    fn what_is_done_here_is_taken_and_the_rest_is_warned_of() {
        let text = format!(
            "{HEAD}clientConnection: {{kubeconfig: /k, qps: 50}}\nleaderElection: {{leaderElect: false}}\n\
             profiles: [{{schedulerName: mine, plugins: {{score: {{disabled: [{{name: '*'}}]}}}}}}]\n"
        );
        let taken = read(&text).unwrap();
        assert_eq!(taken.kubeconfig, Some("/k".into()));
        assert_eq!(taken.scheduler_name.as_deref(), Some("mine"));
        assert_eq!(taken.warnings.len(), 3, "{:?}", taken.warnings);
        assert_eq!(read(HEAD).unwrap(), FromFile::default());
    }

    #[test]
    fn what_is_wrong_is_refused() {
        for (text, why) in [
            (format!("{HEAD}nonsense: 1\n"), "nonsense: unknown field"),
            (format!("{HEAD}profiles: [{{}}, {{}}]\n"), "profiles: must be one at most"),
            ("apiVersion: v1\nkind: Config\n".to_owned(), "expected apiVersion"),
        ] {
            let error = read(&text).unwrap_err();
            assert!(error.contains(why), "{error}");
        }
        let names = Names::new(names::Profile::Kubernetes);
        assert!(load(Path::new("/nowhere/config.yaml"), names).is_err());
    }
}
