//! Flags and wiring: client, caches, scheduler, events, health.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use clap::Parser;
use proto_api::core::v1::Namespace;
use proto_client::config::flags::ClientFlags;
use proto_client::events::{Recorder, recorder};
use proto_client::leader_program::{LeaderProgram, LeaderProgramSettings};
use proto_client::metrics::{LeaderMetrics, RequestMetrics};
use proto_client::serving::flags::ServingFlags;
use proto_client::{Client, ListParams, Reflector, ServedResources};
use proto_daemon::drain::DrainWatch;
use proto_daemon::exit::Failure;
use proto_daemon::feature_gates::{self, GateErrors};
use proto_daemon::flags::{CommonFlags, FlagError};
use proto_daemon::leader_flags::LeaderFlags;
use proto_daemon::ready::Readiness;
use proto_daemon::reference::Reference;
use proto_daemon::statusz::StatusBoard;
use proto_daemon::{define_unused_flags, go_duration, heap, log};
use tokio::sync::watch;
use tokio::task::JoinHandle;

use crate::backoff_queue::RetryTimes;
use crate::config::FromFile;
use crate::cycle_trigger::CycleTrigger;
use crate::extenders::Extenders;
use crate::metrics::SchedulerMetrics;
use crate::scheduling_cycle::{ClusterCaches, ProfileInUse, Scheduler, SchedulerReports};
use crate::selector_informers::SelectorInformers;
use crate::storage_informers::{CLOUD_DISKS_VARIABLE, StorageInformers, read_cloud_disks_max};
use apiserver_scheduling::features::SchedulingFeatures;
use apiserver_scheduling::node_info::NodeInfo;
use apiserver_scheduling::pod_info::PodInfo;
use apiserver_scheduling::preemption::DisruptionBudget;
use apiserver_scheduling::profile::Profile;
use apiserver_scheduling::ties::Ties;

/// Assigns pods to nodes.
#[derive(Parser, Debug)]
#[command(name = "orch-scheduler", version)]
pub struct SchedulerFlags {
    /// Flags of every program.
    #[command(flatten)]
    pub common: CommonFlags,

    /// The API server.
    #[command(flatten)]
    pub client: ClientFlags,

    /// The schedulerName of the pods to schedule; of the first profile, if a file has several.
    /// [default: default-scheduler]
    #[arg(long, value_name = "NAME")]
    pub scheduler_name: Option<String>,

    /// Breaks ties between equally good nodes by this number, alike each time, instead of by the number of their pods and by name.
    #[arg(long, value_name = "NUMBER")]
    pub tie_seed: Option<u64>,

    /// Features that are on or off: NAME=true or NAME=false.
    #[arg(long, value_name = "LIST", value_parser = feature_gates::parse)]
    pub feature_gates: Option<BTreeMap<String, bool>>,

    /// How one of several instances is chosen.
    #[command(flatten)]
    pub leader: LeaderFlags,

    /// Certificates of the health and metrics server, and who may see it.
    #[command(flatten)]
    pub serving: ServingFlags,

    /// Address of the health and metrics server (HTTPS).
    #[arg(long, value_name = "IP", default_value_t = IpAddr::V4(Ipv4Addr::LOCALHOST))]
    pub bind_address: IpAddr,

    /// Port of the health and metrics server (HTTPS); 0 takes a free one.
    #[arg(long, value_name = "PORT", default_value_t = 10259)]
    pub secure_port: u16,

    /// Time from a failed attempt to the next one where nothing changes that may help the pod; at least 1s.
    #[arg(long, value_name = "DURATION", default_value = "5m", value_parser = parse_without_change)]
    pub pod_max_in_unschedulable_pods_duration: Duration,

    /// Flags without effect.
    #[command(flatten)]
    pub unused: UnusedSchedulerFlags,
}

define_unused_flags! {
    /// Flags of kube-scheduler for what this program does not have: request limits, profiles of its memory, proxies that authenticate.
    UnusedSchedulerFlags {
        authentication_skip_lookup authentication_tolerate_lookup_failure cert_dir
        contention_profiling http2_max_streams_per_connection kube_api_burst kube_api_content_type
        kube_api_qps permit_address_sharing permit_port_sharing profiling
        requestheader_allowed_names requestheader_client_ca_file requestheader_extra_headers_prefix
        requestheader_group_headers requestheader_username_headers show_hidden_metrics_for_version
        tls_sni_cert_key
    }
}

/// Port of the plain-HTTP server when only its address is given, as in Kubernetes.
const PLAIN_PORT: u16 = 10251;
/// Time limit for the running scheduling cycle at shutdown.
const DRAIN_DEADLINE: Duration = Duration::from_secs(5);

const USER_AGENT: &str = concat!("orch-scheduler/", env!("CARGO_PKG_VERSION"));

/// Reads a time between attempts: without a bound a pod that fits nowhere would be tried all the time.
fn parse_without_change(text: &str) -> Result<Duration, FlagError> {
    let time = go_duration::parse(text).map_err(|error| FlagError::new(error.to_string()))?;
    let is_long = time >= Duration::from_secs(1);
    if is_long { Ok(time) } else { Err(FlagError::new("must be at least 1s")) }
}

/// Adds what this program's reference has besides flags.
///
/// # Errors
/// A metric cannot be registered.
pub fn describe(reference: &mut Reference) -> Result<(), Failure> {
    reference.file = Some(crate::config::describe()?);
    reference.add_metrics("scheduler", |metrics, _| {
        LeaderMetrics::register(metrics)?;
        RequestMetrics::register(metrics)?;
        SchedulerMetrics::new(metrics).map(drop)
    })
}

/// Runs until a stop signal.
///
/// # Errors
/// The flags or the client configuration are invalid, the health address cannot be bound, or another instance has become the leader.
pub async fn run(flags: SchedulerFlags) -> Result<(), Failure> {
    let names = flags.common.names();
    log::init(flags.common.log());
    let from_file =
        flags.common.config.as_deref().map(|path| crate::config::load(path, names, &flags.leader));
    let from_file = from_file.transpose().map_err(Failure::usage)?;
    let mut from_file = from_file.unwrap_or_else(|| FromFile::none(names));
    if let Some(name) = flags.scheduler_name {
        from_file.rename_first(name).map_err(Failure::usage)?;
    }
    if let Some(seed) = flags.tie_seed {
        from_file.profiles.iter_mut().for_each(|profile| profile.ties = Ties::Seeded(seed));
    }
    let (features, gates) =
        resolve_features(flags.feature_gates.as_ref()).map_err(Failure::usage)?;
    from_file.set_features(features);
    from_file.retry.without_change = flags.pod_max_in_unschedulable_pods_duration;
    let unused = flags.unused.list_warnings();
    let warnings = from_file.warnings.iter().chain(&gates).chain(&unused);
    warnings.for_each(|warning| tracing::warn!("{warning}"));
    let leader = flags.leader.over(from_file.leader_election);
    let config = flags.client.load(from_file.kubeconfig.as_deref(), names);
    let config = config.map_err(Failure::usage)?;
    let readiness = Readiness::default();
    let program = LeaderProgram::start(LeaderProgramSettings {
        program: "orch-scheduler",
        component: "scheduler",
        build: proto_daemon::build_info!(),
        names,
        user_agent: USER_AGENT,
        config,
        serving: &flags.serving,
        secure: SocketAddr::new(flags.bind_address, flags.secure_port),
        plain: flags.common.healthz_bind_address.map(|address| address.socket(PLAIN_PORT)),
        readiness: readiness.clone(),
    });
    let program = program.await?;
    let counters = SchedulerMetrics::new(&program.metrics).map_err(Failure::run)?;
    let (client, board, drain) =
        (program.client.clone(), program.board.clone(), program.drain.watch());
    let FromFile { profiles, retry, extenders, .. } = from_file;
    let extenders =
        Extenders::new(client.clone(), extenders, USER_AGENT).map_err(Failure::usage)?;
    let lock = names.component("scheduler");
    let act = |led| {
        let parts = Dependencies { client, profiles, extenders, retry, board, counters, led };
        tokio::spawn(schedule(parts, readiness, drain))
    };
    program.run((&lock, &leader), DRAIN_DEADLINE, act).await
}

/// What the scheduler is built from.
struct Dependencies {
    client: Client,
    profiles: Vec<Profile>,
    extenders: Extenders,
    retry: RetryTimes,
    board: StatusBoard,
    counters: SchedulerMetrics,
    /// Whether this instance is the leader.
    led: watch::Receiver<bool>,
}

async fn schedule(dependencies: Dependencies, readiness: Readiness, drain: DrainWatch) {
    let Dependencies { client, profiles, extenders, retry, board, counters, mut led } =
        dependencies;
    let syncing = readiness.guard("caches-synced");
    let trigger = CycleTrigger::default();
    let watching = start_watches(&client, &profiles, &trigger, &drain).await;
    let Some((caches, mut tasks)) = watching else { return };
    let disks_max = std::env::var(CLOUD_DISKS_VARIABLE).ok();
    let disks_max = read_cloud_disks_max(disks_max.as_deref());
    let (storage, of_storage) = StorageInformers::start(&client, &trigger, &drain, disks_max);
    tasks.extend(of_storage);
    let mut in_use = Vec::new();
    for profile in profiles {
        let (events, writer) = start_recorder(&client, &profile.name, &trigger, &drain);
        tasks.push(writer);
        in_use.push(ProfileInUse { profile: Arc::new(profile), events });
    }
    // Without all pods and nodes, requested resources would count as free.
    tokio::select! {
        () = drain.asked() => return,
        () = async {
            caches.synced().await;
            storage.synced().await;
        } => {}
    }
    drop(syncing);
    heap::trim();
    tracing::info!("caches synced");
    tokio::select! {
        () = drain.asked() => return,
        led = led.wait_for(|led| *led) => if led.is_err() { return },
    }
    let reporting = SchedulerReports { counters, status: board.task("schedule") };
    let scheduler = Scheduler::new(client, in_use, extenders, retry, caches, storage, reporting);
    scheduler.run(trigger, drain).await;
    tasks.iter().for_each(JoinHandle::abort);
}

/// Starts the watches of all but storage. Gives the caches, and the tasks that fill them; none if the program ends meanwhile.
async fn start_watches(
    client: &Client,
    profiles: &[Profile],
    trigger: &CycleTrigger,
    drain: &DrainWatch,
) -> Option<(ClusterCaches, Vec<JoinHandle<()>>)> {
    let names = client.names();
    // Those of all profiles are alike.
    let features = profiles.first().map(|profile| profile.features).unwrap_or_default();
    let pods = Reflector::projected(client.all(), ListParams::default(), move |pod| {
        PodInfo::with_features(names, &pod, features)
    });
    let nodes = Reflector::projected(client.all(), ListParams::default(), move |node| {
        NodeInfo::from_node(names, &node)
    });
    let namespaces = client.all::<Namespace>();
    let namespaces = Reflector::projected(namespaces, ListParams::default(), |namespace| {
        namespace.metadata.labels
    });
    let budgets = Reflector::projected(client.all(), ListParams::default(), |budget| {
        DisruptionBudget::from_budget(&budget)
    });
    // An older API server does not have disruption budgets in this version.
    let newer = [budgets.collection()];
    let served = tokio::select! {
        () = drain.asked() => return None,
        served = ServedResources::read(client, &newer) => served,
    };
    // Soft constraints leave no pod without a node.
    let is_hard = profiles.iter().any(|profile| profile.default_spread.is_hard());
    let (selectors, mut tasks) =
        SelectorInformers::start(client, is_hard.then_some(trigger), drain);
    let caches = ClusterCaches {
        pods: pods.store(),
        nodes: nodes.store(),
        namespaces: namespaces.store(),
        budgets: budgets.store(),
        selectors,
    };
    let watched = drain.clone();
    tasks.push(tokio::spawn(async move { budgets.run_if_served(&served, watched, |_| ()).await }));
    tasks.push(tokio::spawn(namespaces.run(drain.clone(), |_| ())));
    let on_change = trigger.clone();
    let pods = pods.run(drain.clone(), move |change| on_change.pod_changed(&change));
    let on_change = trigger.clone();
    let nodes = nodes.run(drain.clone(), move |change| on_change.node_changed(&change));
    tasks.extend([tokio::spawn(pods), tokio::spawn(nodes)]);
    Some((caches, tasks))
}

/// Events in the name of a profile, and the task that writes them. It lets a burst of pods go first.
fn start_recorder(
    client: &Client,
    profile: &str,
    trigger: &CycleTrigger,
    drain: &DrainWatch,
) -> (Recorder, JoinHandle<()>) {
    let (events, writer) = recorder(client.clone(), profile, "");
    let trigger = trigger.clone();
    let writer = writer.yielding(Box::new(move || trigger.many_starting()));
    (events, tokio::spawn(writer.run(drain.clone())))
}

/// The features whose gates are on, and what the log says of the gates.
///
/// # Errors
/// Every setting that cannot be.
fn resolve_features(
    settings: Option<&BTreeMap<String, bool>>,
) -> Result<(SchedulingFeatures, Vec<String>), GateErrors> {
    let settings = settings.cloned().unwrap_or_default();
    let found = feature_gates::resolve_gates(&[], &SchedulingFeatures::GATES, &settings)?;
    let features = SchedulingFeatures::from_gates(|gate| found.gates.is_on(gate));
    Ok((features, found.warnings))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(args: &[&str]) -> Result<SchedulerFlags, String> {
        let parsed = SchedulerFlags::try_parse_from([&["orch-scheduler"], args].concat());
        parsed.map_err(|error| error.to_string())
    }

    #[test]
    fn flags_of_installers_are_accepted_and_those_without_effect_are_named() {
        let args = [
            "--profiling=false",
            "--kube-api-qps=50",
            "--logtostderr",
            "--pod-max-in-unschedulable-pods-duration=90s",
        ];
        let flags = parse(&args).expect("flags");
        assert_eq!(flags.pod_max_in_unschedulable_pods_duration.as_secs(), 90);
        let effect = "is accepted for compatibility and has no effect";
        let expected = ["kube-api-qps", "profiling", "logtostderr"]
            .map(|name| format!("flag --{name} {effect}"));
        assert_eq!(flags.unused.list_warnings(), expected);
        assert!(parse(&["--no-such-flag"]).is_err());
        let short = parse(&["--pod-max-in-unschedulable-pods-duration=10ms"]).unwrap_err();
        assert!(short.contains("must be at least 1s"), "{short}");
    }

    #[test]
    fn gates_are_checked_and_named_once() {
        let resolved = |gates: &str| {
            let flags = parse(&[&format!("--feature-gates={gates}")])?;
            resolve_features(flags.feature_gates.as_ref()).map_err(|error| error.to_string())
        };
        let warnings_for = |gates: &str| resolved(gates).map(|(_, warnings)| warnings);
        let off = SchedulingFeatures::default();
        assert_eq!(resolve_features(None), Ok((off, Vec::new())), "all are off by themselves");
        for gate in SchedulingFeatures::GATES {
            let on = SchedulingFeatures::from_gates(|name| name == gate);
            assert_eq!(resolved(&format!("{gate}=true")), Ok((on, Vec::new())));
        }
        assert_eq!(warnings_for("PodSecurity=true").unwrap(), Vec::<String>::new(), "as it is");
        let unused = "Feature gate ReadWriteOncePod=true has no effect in this program.";
        assert_eq!(warnings_for("ReadWriteOncePod=true").unwrap(), [unused]);
        for (gates, why) in [
            ("Nonsense=true", "unrecognized feature gate: Nonsense"),
            ("EndpointSlice=false", "feature is locked to true"),
            ("PodSecurity=maybe", "must be Name=true or Name=false"),
        ] {
            let error = warnings_for(gates).unwrap_err();
            assert!(error.contains(why), "{error}");
        }
    }
}
