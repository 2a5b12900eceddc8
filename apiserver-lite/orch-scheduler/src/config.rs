//! The configuration file, a KubeSchedulerConfiguration. Fields without effect give a warning.

pub(crate) mod extenders;
pub(crate) mod profiles;

use std::path::{Path, PathBuf};
use std::time::Duration;

use apiserver_scheduling::features::SchedulingFeatures;
use apiserver_scheduling::profile::Profile;
use proto_api::names::Names;
use proto_client::election::{LEASE_SECS_MAX, Times, TimesError};
use proto_daemon::backoff::Backoff;
use proto_daemon::config::{self, ConfigError, Configuration, FieldError, FileType};
use proto_daemon::exit::Failure;
use proto_daemon::leader_flags::{LeaderElection, LeaderFlags};
use proto_daemon::reference::FileReference;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::backoff_queue::{RETRY, RetryTimes};
use extenders::{ExtenderSettings, FileExtender};
use profiles::FileProfile;

/// The longest back-off that can be set.
const BACKOFF_SECS_MAX: u64 = 86_400;

/// The fields of the file that have an effect.
#[derive(Debug, PartialEq)]
pub struct FromFile {
    /// The kubeconfig file.
    pub kubeconfig: Option<PathBuf>,
    /// How pods are scheduled, by their `schedulerName`; at least one.
    pub profiles: Vec<Profile>,
    /// The services that are asked besides.
    pub extenders: Vec<ExtenderSettings>,
    /// When pods are tried again that fit on no node.
    pub retry: RetryTimes,
    /// How one of several instances is chosen, where no flag says it.
    pub leader_election: LeaderElection,
    /// A warning for each field that is set and has no effect.
    pub warnings: Vec<String>,
}

impl FromFile {
    /// What is done without a file.
    pub fn none(names: &Names) -> Self {
        select_fields(names, &File::default())
    }

    /// Schedules with these features.
    pub fn set_features(&mut self, features: SchedulingFeatures) {
        for profile in &mut self.profiles {
            profile.features = features;
            if !features.min_domains {
                let constraints = &mut profile.default_spread.constraints;
                constraints.iter_mut().for_each(|constraint| constraint.min_domains = 1);
            }
        }
    }

    /// Gives the first profile another name.
    ///
    /// # Errors
    /// Another profile has it.
    pub fn rename_first(&mut self, name: String) -> Result<(), FieldError> {
        if self.profiles.iter().skip(1).any(|profile| profile.name == name) {
            let why = "is the name of another profile of the file";
            return Err(FieldError::new("--scheduler-name", why));
        }
        if let Some(first) = self.profiles.first_mut() {
            first.name = name;
        }
        Ok(())
    }
}

/// All fields of v1; `Value` for those without effect.
#[derive(Debug, Deserialize, Serialize)]
#[serde(rename_all = "camelCase", default)]
struct File {
    client_connection: ClientConnection,
    profiles: Vec<FileProfile>,
    extenders: Vec<FileExtender>,
    leader_election: LeaderElection,
    pod_initial_backoff_seconds: u64,
    pod_max_backoff_seconds: u64,
    // Without effect.
    parallelism: Value,
    healthz_bind_address: Value,
    metrics_bind_address: Value,
    enable_profiling: Value,
    enable_contention_profiling: Value,
    percentage_of_nodes_to_score: Value,
}

impl Default for File {
    fn default() -> Self {
        Self {
            client_connection: ClientConnection::default(),
            profiles: Vec::new(),
            extenders: Vec::new(),
            leader_election: LeaderElection::default(),
            pod_initial_backoff_seconds: RETRY.after_change.first.as_secs(),
            pod_max_backoff_seconds: RETRY.after_change.longest.as_secs(),
            parallelism: Value::Null,
            healthz_bind_address: Value::Null,
            metrics_bind_address: Value::Null,
            enable_profiling: Value::Null,
            enable_contention_profiling: Value::Null,
            percentage_of_nodes_to_score: Value::Null,
        }
    }
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

impl Configuration for File {
    fn validate(&self) -> Vec<FieldError> {
        let mut faults = profiles::find_faults(&self.profiles);
        faults.extend(extenders::find_faults(&self.extenders));
        let first = self.pod_initial_backoff_seconds;
        if !(1..=BACKOFF_SECS_MAX).contains(&first) {
            let why = format!("must be between 1 and {BACKOFF_SECS_MAX}");
            faults.push(FieldError::new("podInitialBackoffSeconds", why));
        }
        if !(first..=BACKOFF_SECS_MAX).contains(&self.pod_max_backoff_seconds) {
            let why = format!("must be between podInitialBackoffSeconds and {BACKOFF_SECS_MAX}");
            faults.push(FieldError::new("podMaxBackoffSeconds", why));
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

/// Reads the file. What flags say of leader election stands in its place, as in Kubernetes.
///
/// # Errors
/// It cannot be read, is of another type, or has an unknown field, or one that is invalid with the flags.
pub fn load(path: &Path, names: &Names, leader: &LeaderFlags) -> Result<FromFile, ConfigError> {
    let file = config::load::<File>(path, &types(names))?;
    settle(path, names, file, leader)
}

fn settle(
    path: &Path,
    names: &Names,
    mut file: File,
    leader: &LeaderFlags,
) -> Result<FromFile, ConfigError> {
    file.leader_election = leader.over(file.leader_election);
    if file.leader_election.leader_elect
        && let Err(error) = Times::from_settings(&file.leader_election).check()
    {
        let faults = vec![time_fault(error)];
        return Err(ConfigError::Invalid { path: path.to_owned(), faults });
    }
    Ok(select_fields(names, &file))
}

/// The file's fields, for the program's reference.
///
/// # Errors
/// The defaults are no JSON.
pub fn describe() -> Result<FileReference, Failure> {
    let (profiles, extenders) = (vec![FileProfile::default()], vec![FileExtender::default()]);
    let file = File { profiles, extenders, ..File::default() };
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

/// A word of ASCII letters with a capital.
pub(crate) fn capitalized(word: &str) -> String {
    let (first, rest) = word.split_at(1.min(word.len()));
    first.to_uppercase() + rest
}

/// The versions that Kubernetes 1.25 reads, named by the naming profile.
fn types(names: &Names) -> [FileType; 3] {
    let component = names.component("scheduler");
    let group = format!("{}.config.{}", component.replace('-', ""), names.group_domain());
    let kind = component.split('-').map(capitalized).collect::<String>() + "Configuration";
    let version =
        |version: &str| FileType { api_version: format!("{group}/{version}"), kind: kind.clone() };
    ["v1", "v1beta3", "v1beta2"].map(version)
}

fn select_fields(names: &Names, file: &File) -> FromFile {
    let mut profiles = profiles::select_profiles(names, &file.profiles);
    if profiles.is_empty() {
        profiles.push(Profile::new(names, profiles::DEFAULT_NAME));
    }
    for resource in extenders::ignored_resources(&file.extenders) {
        profiles.iter_mut().for_each(|profile| {
            profile.fit.ignored_resources.insert(resource.clone());
        });
    }
    let text = |text: &str| (!text.is_empty()).then(|| text.to_owned());
    FromFile {
        kubeconfig: text(&file.client_connection.kubeconfig).map(PathBuf::from),
        profiles,
        extenders: extenders::select_extenders(&file.extenders),
        retry: RetryTimes {
            after_change: Backoff {
                first: Duration::from_secs(file.pod_initial_backoff_seconds),
                longest: Duration::from_secs(file.pod_max_backoff_seconds),
            },
            ..RETRY
        },
        leader_election: file.leader_election.clone(),
        warnings: without_effect(file),
    }
}

fn without_effect(file: &File) -> Vec<String> {
    let set = fields_without_effect(file).into_iter().filter(|(_, value)| !value.is_null());
    let unused = set.map(|(name, _)| format!("configuration field {name} has no effect"));
    let of_profiles = file.profiles.iter().enumerate();
    let of_profiles = of_profiles.flat_map(|(nth, of)| profiles::list_warnings(nth, of));
    unused.chain(of_profiles).chain(extenders::list_warnings(&file.extenders)).collect()
}

fn fields_without_effect(file: &File) -> Vec<(String, &Value)> {
    let connection = &file.client_connection;
    let mut fields = [
        ("parallelism", &file.parallelism),
        ("healthzBindAddress", &file.healthz_bind_address),
        ("metricsBindAddress", &file.metrics_bind_address),
        ("enableProfiling", &file.enable_profiling),
        ("enableContentionProfiling", &file.enable_contention_profiling),
        ("percentageOfNodesToScore", &file.percentage_of_nodes_to_score),
        ("clientConnection.acceptContentTypes", &connection.accept_content_types),
        ("clientConnection.contentType", &connection.content_type),
        ("clientConnection.qps", &connection.qps),
        ("clientConnection.burst", &connection.burst),
    ]
    .map(|(name, value)| (name.to_owned(), value))
    .to_vec();
    for (nth, FileProfile { plugins, percentage_of_nodes_to_score, .. }) in
        file.profiles.iter().enumerate()
    {
        let of_profile = [
            ("percentageOfNodesToScore", percentage_of_nodes_to_score),
            ("plugins.queueSort", &plugins.queue_sort),
            ("plugins.preFilter", &plugins.pre_filter),
            ("plugins.preScore", &plugins.pre_score),
            ("plugins.reserve", &plugins.reserve),
            ("plugins.permit", &plugins.permit),
            ("plugins.preBind", &plugins.pre_bind),
            ("plugins.bind", &plugins.bind),
            ("plugins.postBind", &plugins.post_bind),
        ];
        fields.extend(of_profile.map(|(name, value)| (format!("profiles[{nth}].{name}"), value)));
    }
    fields
}

#[cfg(test)]
mod tests {
    use clap::Parser;
    use proto_api::names;

    use super::*;

    #[derive(Parser)]
    struct Flags {
        #[command(flatten)]
        leader: LeaderFlags,
    }

    pub(super) fn read(text: &str) -> Result<FromFile, String> {
        read_with(text, &[])
    }

    fn read_with(text: &str, flags: &[&str]) -> Result<FromFile, String> {
        let (path, names) = (Path::new("f"), Names::new(names::Profile::Kubernetes));
        let flags = Flags::try_parse_from([&["test"], flags].concat()).unwrap();
        let file = config::parse::<File>(path, text, &types(names));
        let settled = file.and_then(|file| settle(path, names, file, &flags.leader));
        settled.map_err(|error| error.to_string())
    }

    pub(super) const HEAD: &str =
        "apiVersion: kubescheduler.config.k8s.io/v1\nkind: KubeSchedulerConfiguration\n";

    #[test]
    fn fields_with_an_effect_are_read_and_the_rest_gives_warnings() {
        let text = format!(
            "{HEAD}clientConnection: {{kubeconfig: /k, qps: 50}}\nleaderElection: {{leaderElect: false, resourceName: mine, leaseDuration: 1m0s}}\n\
             profiles: [{{schedulerName: mine}}, {{schedulerName: other, percentageOfNodesToScore: 50}}]\npodMaxBackoffSeconds: 30\n"
        );
        let fields = read(&text).unwrap();
        assert_eq!(fields.kubeconfig, Some("/k".into()));
        assert_eq!(
            fields.profiles.iter().map(|p| p.name.as_str()).collect::<Vec<_>>(),
            ["mine", "other"]
        );
        assert_eq!(
            (
                fields.retry.after_change.first.as_secs(),
                fields.retry.after_change.longest.as_secs()
            ),
            (1, 30)
        );
        let elected = LeaderElection {
            leader_elect: false,
            resource_name: "mine".into(),
            lease_duration: std::time::Duration::from_secs(60),
            ..LeaderElection::default()
        };
        assert_eq!(fields.leader_election, elected);
        let warnings = ["clientConnection.qps", "profiles[1].percentageOfNodesToScore"]
            .map(|field| format!("configuration field {field} has no effect"));
        assert_eq!(fields.warnings, warnings);
        let names = Names::new(names::Profile::Kubernetes);
        assert_eq!(read(HEAD).unwrap(), FromFile::none(names));
    }

    #[test]
    fn invalid_files_are_rejected() {
        for (text, why) in [
            (format!("{HEAD}nonsense: 1\n"), "nonsense: unknown field"),
            (format!("{HEAD}podInitialBackoffSeconds: 0\n"), "podInitialBackoffSeconds: must be"),
            (format!("{HEAD}podInitialBackoffSeconds: 20\n"), "podMaxBackoffSeconds: must be"),
            (format!("{HEAD}podMaxBackoffSeconds: 86401\n"), "podMaxBackoffSeconds: must be"),
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
        let flags = Flags::try_parse_from(["test"]).unwrap();
        assert!(load(Path::new("/nowhere/config.yaml"), names, &flags.leader).is_err());
    }

    #[test]
    fn a_file_has_to_be_valid_with_its_flags() {
        let short = format!("{HEAD}leaderElection: {{leaseDuration: 5s}}\n");
        let flags = ["--leader-elect-renew-deadline=3s", "--leader-elect-retry-period=1s"];
        let leader = read_with(&short, &flags).unwrap().leader_election;
        let secs = [leader.lease_duration, leader.renew_deadline, leader.retry_period];
        assert_eq!(secs.map(|of| of.as_secs()), [5, 3, 1]);
        assert!(read_with(&short, &["--leader-elect=false"]).is_ok());
        let error = read_with(HEAD, &["--leader-elect-lease-duration=5s"]).unwrap_err();
        assert!(error.contains("leaderElection.leaseDuration: must be greater"), "{error}");
    }

    #[test]
    fn min_domains_of_default_constraints_count_only_with_their_gate() {
        let text = format!(
            "{HEAD}profiles: [{{pluginConfig: [{{name: PodTopologySpread, args: {{defaultingType: List, defaultConstraints: [{{maxSkew: 1, topologyKey: zone, whenUnsatisfiable: DoNotSchedule, minDomains: 3}}]}}}}]}}]\n"
        );
        for (gate, expected) in [("MinDomainsInPodTopologySpread", 3), ("", 1)] {
            let mut found = read(&text).unwrap();
            let features = SchedulingFeatures::from_gates(|name| name == gate);
            found.set_features(features);
            let profile = &found.profiles[0];
            assert_eq!(profile.default_spread.constraints[0].min_domains, expected, "{gate}");
            assert_eq!(profile.features, features);
        }
    }

    #[test]
    fn a_flag_names_the_first_profile() {
        let text = format!("{HEAD}profiles: [{{schedulerName: a}}, {{schedulerName: b}}]\n");
        let mut found = read(&text).unwrap();
        assert!(found.rename_first("b".into()).is_err());
        found.rename_first("c".into()).unwrap();
        assert_eq!(found.profiles.iter().map(|p| p.name.as_str()).collect::<Vec<_>>(), ["c", "b"]);
    }
}
