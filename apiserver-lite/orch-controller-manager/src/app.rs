//! Wiring: client, caches, queue, workers, health.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use apiserver_autoscaling_controller::{self as autoscaling, AutoscalingController};
use apiserver_controller_io::accounts::{Accounts, TokenRenewal, run_renewals};
use apiserver_controller_io::controller_queues::ControllerQueues;
use apiserver_controller_io::informers::Informers;
use apiserver_controller_io::volume_counts::{VolumeCounts, VolumeGauges};
use apiserver_garbage::{self as garbage, Garbage};
use apiserver_quota_controller::{self as quota, QuotaController};
use apiserver_signers::bootstrap::{Bootstrap, TokenControllers};
use apiserver_signers::certificates::{Certificates, CsrControllers};
use proto_client::events::{Recorder, recorder};
use proto_client::leader_program::{LeaderProgram, LeaderProgramSettings};
use proto_client::metrics::{LeaderMetrics, RequestMetrics};
use proto_client::{Client, ServedResources};
use proto_daemon::drain::{Drain, DrainWatch};
use proto_daemon::exit::Failure;
use proto_daemon::heap;
use proto_daemon::leader_flags::LeaderElection;
use proto_daemon::log;
use proto_daemon::ready::{Readiness, ReadyGuard};
use proto_daemon::reference::Reference;
use proto_daemon::work_queue::{WorkQueueMetrics, run_workers};
use tokio::sync::watch;
use tokio::task::JoinSet;

use crate::keys::{CONTROLLERS, EVENT_SOURCES, ReconcileKey};
use crate::reconcile::{Observability, Reconciler};
use crate::reflectors::{self, Reflectors, Sink};
use crate::settings::{ControllerManagerFlags, Settings};

/// Time limit for running reconciles at shutdown.
const DRAIN_DEADLINE: Duration = Duration::from_secs(5);

const USER_AGENT: &str = concat!("orch-controller-manager/", env!("CARGO_PKG_VERSION"));

/// Adds what this program's reference has besides flags.
///
/// # Errors
/// A metric cannot be registered.
pub fn describe(reference: &mut Reference) -> Result<(), Failure> {
    reference.leave_out("config");
    reference.add_metrics("controller_manager", |metrics, _| {
        WorkQueueMetrics::register(metrics)?;
        LeaderMetrics::register(metrics)?;
        RequestMetrics::register(metrics)?;
        metrics.register(VolumeGauges::new()?).map(drop)
    })
}

/// Runs until a stop signal.
///
/// # Errors
/// The flags or the client configuration are invalid, the health address cannot be bound, or another instance has become the leader.
pub async fn run(flags: ControllerManagerFlags) -> Result<(), Failure> {
    log::init(flags.common.log());
    flags.common.refuse_config().map_err(Failure::usage)?;
    let settings = flags.settings().map_err(Failure::usage)?;
    let names = flags.common.names();
    for warning in &settings.warnings {
        tracing::warn!("{warning}");
    }
    let config = flags.client.load(None, names).map_err(Failure::usage)?;
    let readiness = Readiness::default();
    let unsynced = guard_readiness(&flags, &readiness);
    let program = LeaderProgram::start(LeaderProgramSettings {
        program: "orch-controller-manager",
        component: "controller_manager",
        build: proto_daemon::build_info!(),
        names,
        user_agent: USER_AGENT,
        config,
        serving: &flags.serving,
        secure: flags.secure_address(),
        plain: flags.plain_address(),
        readiness,
    });
    let program = program.await?;
    let queue_metrics = WorkQueueMetrics::register(&program.metrics).map_err(Failure::run)?;
    let workers = usize::try_from(flags.concurrent_tasks).unwrap_or(1);
    let separate = flags.use_service_account_credentials;
    let enabled = CONTROLLERS.into_iter().filter(|name| settings.enabled.has(name));
    let (client, drain) = (program.client.clone(), program.drain.watch());
    let accounts = Accounts::new(client.clone(), separate, enabled);
    let (accounts, renewals) = accounts.map_err(Failure::usage)?;
    let recorders = recorders(&accounts, &program.drain);
    let observability = Observability { board: program.board.clone(), queue_metrics, recorders };
    let (informers, reflectors) = reflectors::make(&client);
    let counts = VolumeCounts::new(informers.clone()).map_err(Failure::run)?;
    program.metrics.register(counts).map_err(Failure::run)?;
    let leader = flags.leader.over(LeaderElection::default());
    let lock = names.component("controller-manager");
    let act = |led| {
        let dependencies = Dependencies {
            client,
            accounts,
            renewals,
            settings,
            workers,
            observability,
            informers,
            reflectors,
            led,
        };
        tokio::spawn(control(dependencies, unsynced, drain))
    };
    program.run((&lock, &leader), DRAIN_DEADLINE, act).await
}

/// Starts a recorder of events for each source component.
fn recorders(accounts: &Accounts, drain: &Drain) -> BTreeMap<&'static str, Recorder> {
    let start = |(component, controller): (&'static str, &str)| {
        let client = accounts.of_controller(controller).clone();
        let (recorder, writer) = recorder(client, component, "");
        tokio::spawn(writer.run(drain.watch()));
        (component, recorder)
    };
    EVENT_SOURCES.into_iter().map(start).collect()
}

/// What the controllers are built from.
struct Dependencies {
    /// The program's own identity.
    client: Client,
    accounts: Accounts,
    renewals: Vec<TokenRenewal>,
    settings: Settings,
    workers: usize,
    observability: Observability,
    informers: Informers,
    reflectors: Reflectors,
    /// Whether this instance is the leader.
    led: watch::Receiver<bool>,
}

/// Holds the readiness until the caches are synced if this instance is the only one. With leader election it is ready at once, as
/// kube-controller-manager is: a standby watches nothing and is ready to take over; and a standby that becomes the leader must
/// not become unready while its caches sync, because no other instance does the work then.
fn guard_readiness(flags: &ControllerManagerFlags, readiness: &Readiness) -> Option<ReadyGuard> {
    let leader = flags.leader.over(LeaderElection::default());
    (!leader.leader_elect).then(|| readiness.guard("caches-synced"))
}

async fn control(dependencies: Dependencies, unsynced: Option<ReadyGuard>, drain: DrainWatch) {
    let Dependencies {
        client,
        accounts,
        renewals,
        mut settings,
        workers,
        observability,
        informers,
        reflectors,
        mut led,
    } = dependencies;
    // Nothing is watched before: without workers the queue would grow with every object that comes and goes.
    tokio::select! {
        () = drain.asked() => return,
        led = led.wait_for(|led| *led) => if led.is_err() { return },
    }
    let watched = reflectors.collections();
    let served = tokio::select! {
        () = drain.asked() => return,
        served = ServedResources::read(&client, &watched) => served,
    };
    settings.enabled.disable(reflectors.unserved_controllers(&served));
    let own_workers = settings.own_workers.clone();
    let own = own_workers.keys().copied();
    let queues = ControllerQueues::new(own, &observability.queue_metrics, ReconcileKey::controller);
    let sink = Sink {
        informers: informers.clone(),
        queues: queues.clone(),
        enabled: settings.enabled.clone(),
    };
    let watching = tokio::spawn(reflectors.run(served, sink, drain.clone()));
    // With incomplete caches, objects would seem to have no owner and be deleted.
    tokio::select! {
        () = drain.asked() => return,
        () = informers.synced() => {}
    }
    run_renewals(renewals, &drain).await;
    drop(unsynced);
    heap::trim();
    tracing::info!("caches synced");
    let mut others = JoinSet::new();
    spawn_others(&mut others, &accounts, client, (&settings, workers), &observability, &drain);
    let reconciler = Arc::new(Reconciler::new(accounts, informers, settings, observability));
    let reconcile = move |key| {
        let reconciler = reconciler.clone();
        async move { reconciler.run(key).await }
    };
    let mut working = JoinSet::new();
    for (queue, workers) in queues.with_workers(&own_workers, workers) {
        working.spawn(run_workers(queue, workers, drain.clone(), reconcile.clone()));
    }
    drop(drain);
    working.join_all().await;
    watching.abort();
    others.shutdown().await;
}

/// Starts the controllers that have queues of their own.
fn spawn_others(
    others: &mut JoinSet<()>,
    accounts: &Accounts,
    reader: Client,
    (settings, workers): (&Settings, usize),
    observability: &Observability,
    drain: &DrainWatch,
) {
    let (enabled, board, metrics) =
        (&settings.enabled, &observability.board, &observability.queue_metrics);
    let workers_of = |name: &str| settings.own_workers.get(name).copied().unwrap_or(workers);
    let certificates = Certificates {
        client: accounts.of_controller("csrsigning").clone(),
        authority: settings.authority.clone(),
        enabled: CsrControllers {
            approving: enabled.has("csrapproving"),
            signing: enabled.has("csrsigning"),
            cleaner: enabled.has("csrcleaner"),
        },
        metrics: metrics.clone(),
    };
    others.spawn(certificates.run(board.task("certificate requests"), drain.clone()));
    let bootstrap = Bootstrap {
        reader,
        cleaner: accounts.of_controller("tokencleaner").clone(),
        signer: accounts.of_controller("bootstrapsigner").clone(),
        enabled: TokenControllers {
            cleaner: enabled.has("tokencleaner"),
            signer: enabled.has("bootstrapsigner"),
        },
        metrics: metrics.clone(),
    };
    others.spawn(bootstrap.run(board.task("bootstrap tokens"), drain.clone()));
    let garbage = Garbage {
        client: accounts.of_controller(garbage::CONTROLLER).clone(),
        workers: workers_of(garbage::CONTROLLER),
        metrics: metrics.clone(),
        page: board.task(garbage::CONTROLLER),
    };
    if enabled.has(garbage::CONTROLLER) {
        others.spawn(garbage.run(drain.clone()));
    }
    let quotas = QuotaController {
        client: accounts.of_controller(quota::CONTROLLER).clone(),
        sync_period: settings.quota_sync_period,
        workers: workers_of(quota::CONTROLLER),
        metrics: metrics.clone(),
        page: board.task(quota::CONTROLLER),
    };
    if enabled.has(quota::CONTROLLER) {
        others.spawn(quotas.run(drain.clone()));
    }
    let autoscaling = AutoscalingController {
        client: accounts.of_controller(autoscaling::CONTROLLER).clone(),
        flags: settings.autoscaling.clone(),
        workers: workers_of(autoscaling::CONTROLLER),
        metrics: metrics.clone(),
        page: board.task(autoscaling::CONTROLLER),
    };
    if enabled.has(autoscaling::CONTROLLER) {
        others.spawn(autoscaling.run(drain.clone()));
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser as _;
    use proto_api::names::{Names, Profile};
    use proto_client::config::{ClientConfig, Credential, TlsSettings};
    use proto_daemon::statusz::StatusBoard;

    use super::*;

    /// The readiness of an instance before and after it becomes the leader. Its API server does not answer, so its caches never sync.
    async fn readiness(args: &[&str]) -> [bool; 2] {
        let flags =
            ControllerManagerFlags::try_parse_from([&["program"], args].concat()).expect("flags");
        let config = ClientConfig {
            server: "http://127.0.0.1:1".parse().expect("address"),
            tls: TlsSettings::default(),
            credential: Credential::None,
            namespace: String::new(),
        };
        let client = Client::new(&config, Names::new(Profile::Kubernetes), "test").expect("client");
        let (readiness, board) = (Readiness::default(), StatusBoard::default());
        let unsynced = guard_readiness(&flags, &readiness);
        let queue_metrics = WorkQueueMetrics::new().expect("metrics");
        let observability = Observability { board, queue_metrics, recorders: BTreeMap::new() };
        let (informers, reflectors) = reflectors::make(&client);
        let (leading, led) = watch::channel(false);
        let settings = flags.settings().expect("settings");
        let (accounts, renewals) = Accounts::new(client.clone(), false, []).expect("accounts");
        let dependencies = Dependencies {
            accounts,
            renewals,
            client,
            settings,
            workers: 1,
            observability,
            informers: informers.clone(),
            reflectors,
            led,
        };
        let drain = Drain::default();
        let control = tokio::spawn(control(dependencies, unsynced, drain.watch()));
        tokio::task::yield_now().await;
        let before = readiness.is_ready();
        leading.send_replace(true);
        for _ in 0..100 {
            tokio::task::yield_now().await;
        }
        assert!(!informers.pods.is_synced() && !control.is_finished());
        let after = readiness.is_ready();
        control.abort();
        [before, after]
    }

    #[tokio::test]
    async fn taking_over_does_not_change_readiness() {
        assert_eq!(readiness(&["--leader-elect=true"]).await, [true, true]);
        assert_eq!(
            readiness(&["--leader-elect=false"]).await,
            [false, false],
            "it is the only one"
        );
    }
}
