//! The configuration file, a KubeSchedulerConfiguration. Fields without effect give a warning.

use std::path::{Path, PathBuf};

use proto_api::names::Names;
use proto_client::election::{LEASE_SECS_MAX, Times, TimesError};
use proto_daemon::config::{self, ConfigError, Configuration, FieldError, FileType};
use proto_daemon::exit::Failure;
use proto_daemon::leader_flags::LeaderElection;
use proto_daemon::reference::FileReference;
use serde::{Deserialize, Serialize};
use serde_json::Value;

/// The fields of the file that have an effect.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct FromFile {
    /// The kubeconfig file.
    pub kubeconfig: Option<PathBuf>,
    /// The `schedulerName` of the pods to schedule.
    pub scheduler_name: Option<String>,
    /// How one of several instances is chosen, where no flag says it.
    pub leader_election: LeaderElection,
    /// A warning for each field that is set and has no effect.
    pub warnings: Vec<String>,
}

/// All fields of v1; `Value` for those without effect.
#[derive(Debug, Default, Deserialize, Serialize)]
#[serde(rename_all = "camelCase", default)]
struct File {
    client_connection: ClientConnection,
    profiles: Vec<Profile>,
    leader_election: LeaderElection,
    // Without effect.
    parallelism: Value,
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
        let mut faults = Vec::new();
        if self.profiles.len() > 1 {
            let why = "must be one at most: multiple profiles are not supported";
            faults.push(FieldError::new("profiles", why));
        }
        if self.leader_election.leader_elect
            && let Err(error) = Times::of(&self.leader_election).check()
        {
            faults.push(time_fault(error));
        }
        faults
    }
}

fn time_fault(error: TimesError) -> FieldError {
    let (field, why) = match error {
        TimesError::Lease => ("leaseDuration", "must be greater than renewDeadline".to_owned()),
        TimesError::RenewDeadline => {
            ("renewDeadline", "must be greater than retryPeriod".to_owned())
        }
        TimesError::RetryPeriod => ("retryPeriod", "must be greater than zero".to_owned()),
        TimesError::Range => ("leaseDuration", format!("must be between 1s and {LEASE_SECS_MAX}s")),
    };
    FieldError::new(format!("leaderElection.{field}"), why)
}

/// Reads the file.
///
/// # Errors
/// It cannot be read, is of another type, or has an unknown or invalid field.
pub fn load(path: &Path, names: &Names) -> Result<FromFile, ConfigError> {
    config::load::<File>(path, &types(names)).map(|file| select_fields(&file))
}

/// The file's fields, for the program's reference.
///
/// # Errors
/// The defaults are no JSON.
pub fn describe() -> Result<FileReference, Failure> {
    let file = File { profiles: vec![Profile::default()], ..File::default() };
    let names = Names::new(proto_api::names::Profile::Kubernetes);
    let [newest, ..] = types(names);
    let mut reference = FileReference::new(newest, &file)?;
    let unused = fields_without_effect(&file);
    let is_unused = |path: &str| unused.iter().any(|(name, _)| *name == path);
    let flags = [
        ("clientConnection.kubeconfig", "kubeconfig"),
        ("profiles[0].schedulerName", "scheduler-name"),
        ("leaderElection.leaderElect", "leader-elect"),
        ("leaderElection.leaseDuration", "leader-elect-lease-duration"),
        ("leaderElection.renewDeadline", "leader-elect-renew-deadline"),
        ("leaderElection.retryPeriod", "leader-elect-retry-period"),
        ("leaderElection.resourceLock", "leader-elect-resource-lock"),
        ("leaderElection.resourceName", "leader-elect-resource-name"),
        ("leaderElection.resourceNamespace", "leader-elect-resource-namespace"),
    ];
    let flag = |path: &str| {
        flags.iter().find(|(field, _)| *field == path).map(|(_, flag)| (*flag).to_owned())
    };
    reference.note(flag, |path| is_unused(path).then_some("accepted for existing files"));
    Ok(reference)
}

/// The versions that Kubernetes 1.25 reads, named by the naming profile.
fn types(names: &Names) -> [FileType; 3] {
    let component = names.component("scheduler");
    let group = format!("{}.config.{}", component.replace('-', ""), names.group_domain());
    let capital = |word: &str| {
        let (first, rest) = word.split_at(1.min(word.len()));
        first.to_uppercase() + rest
    };
    let kind = component.split('-').map(capital).collect::<String>() + "Configuration";
    let version =
        |version: &str| FileType { api_version: format!("{group}/{version}"), kind: kind.clone() };
    ["v1", "v1beta3", "v1beta2"].map(version)
}

fn select_fields(file: &File) -> FromFile {
    let profile = file.profiles.first();
    let text = |text: &str| (!text.is_empty()).then(|| text.to_owned());
    FromFile {
        kubeconfig: text(&file.client_connection.kubeconfig).map(PathBuf::from),
        scheduler_name: profile.and_then(|profile| text(&profile.scheduler_name)),
        leader_election: file.leader_election.clone(),
        warnings: without_effect(file),
    }
}

fn without_effect(file: &File) -> Vec<String> {
    let set = fields_without_effect(file).into_iter().filter(|(_, value)| !value.is_null());
    set.map(|(name, _)| format!("configuration field {name} has no effect")).collect()
}

fn fields_without_effect(file: &File) -> Vec<(&'static str, &Value)> {
    let connection = &file.client_connection;
    let mut fields = vec![
        ("parallelism", &file.parallelism),
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
    fields
}

#[cfg(test)]
mod tests {
    use proto_api::names;

    use super::*;

    fn read(text: &str) -> Result<FromFile, String> {
        let names = Names::new(names::Profile::Kubernetes);
        let file = config::parse::<File>(Path::new("f"), text, &types(names));
        file.map(|file| select_fields(&file)).map_err(|error| error.to_string())
    }

    const HEAD: &str =
        "apiVersion: kubescheduler.config.k8s.io/v1\nkind: KubeSchedulerConfiguration\n";

    #[test]
    fn fields_with_an_effect_are_read_and_the_rest_gives_warnings() {
        let text = format!(
            "{HEAD}clientConnection: {{kubeconfig: /k, qps: 50}}\nleaderElection: {{leaderElect: false, resourceName: mine, leaseDuration: 1m0s}}\n\
             profiles: [{{schedulerName: mine, plugins: {{score: {{disabled: [{{name: '*'}}]}}}}}}]\n"
        );
        let fields = read(&text).unwrap();
        assert_eq!(fields.kubeconfig, Some("/k".into()));
        assert_eq!(fields.scheduler_name.as_deref(), Some("mine"));
        let elected = LeaderElection {
            leader_elect: false,
            resource_name: "mine".into(),
            lease_duration: std::time::Duration::from_secs(60),
            ..LeaderElection::default()
        };
        assert_eq!(fields.leader_election, elected);
        assert_eq!(fields.warnings.len(), 2, "{:?}", fields.warnings);
        assert_eq!(read(HEAD).unwrap(), FromFile::default());
    }

    #[test]
    fn invalid_files_are_rejected() {
        for (text, why) in [
            (format!("{HEAD}nonsense: 1\n"), "nonsense: unknown field"),
            (format!("{HEAD}profiles: [{{}}, {{}}]\n"), "profiles: must be one at most"),
            ("apiVersion: v1\nkind: Config\n".to_owned(), "expected apiVersion"),
            (
                format!("{HEAD}leaderElection: {{leaseDuration: 5s}}\n"),
                "leaderElection.leaseDuration: must be greater than renewDeadline",
            ),
            (format!("{HEAD}leaderElection: {{resourceLock: endpoints}}\n"), "resourceLock"),
        ] {
            let error = read(&text).unwrap_err();
            assert!(error.contains(why), "{error}");
        }
        let names = Names::new(names::Profile::Kubernetes);
        assert!(load(Path::new("/nowhere/config.yaml"), names).is_err());
    }
}
