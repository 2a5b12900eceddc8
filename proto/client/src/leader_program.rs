//! A program of which one instance at a time acts: its pages and metrics, its lease, and its end.

use std::net::SocketAddr;
use std::time::Duration;

use proto_api::names::Names;
use proto_daemon::admin::{AdminPages, AdminServer};
use proto_daemon::drain::{Drain, DrainOutcome, stop_signal};
use proto_daemon::exit::Failure;
use proto_daemon::health::Health;
use proto_daemon::leader_flags::LeaderElection;
use proto_daemon::metrics::{BuildInfo, Metrics};
use proto_daemon::ready::Readiness;
use proto_daemon::statusz::StatusBoard;
use tokio::sync::watch;
use tokio::task::{AbortHandle, JoinHandle};

use crate::metrics::{LeaderMetrics, RequestMetrics};
use crate::serving::flags::ServingFlags;
use crate::{Client, ClientConfig, election};

/// What one such program has of its own.
pub struct LeaderProgramSettings<'a> {
    /// Its name, for the log.
    pub program: &'static str,
    /// What the names of its own metrics begin with, behind the profile's prefix.
    pub component: &'static str,
    pub build: BuildInfo,
    pub names: &'static Names,
    pub user_agent: &'static str,
    /// How the API server is reached.
    pub config: ClientConfig,
    /// Certificates of its pages, and who may see them.
    pub serving: &'a ServingFlags,
    /// Where its pages are served over HTTPS.
    pub secure: SocketAddr,
    /// Where they are served over HTTP, too.
    pub plain: Option<SocketAddr>,
    /// What its page of readiness shows.
    pub readiness: Readiness,
}

/// The program, while its pages are served.
pub struct LeaderProgram {
    /// Sends its requests, which are counted.
    pub client: Client,
    pub board: StatusBoard,
    pub metrics: Metrics,
    pub drain: Drain,
    program: &'static str,
    leads: LeaderMetrics,
    servers: Vec<AbortHandle>,
}

impl LeaderProgram {
    /// Serves the pages.
    ///
    /// # Errors
    /// The client configuration is invalid, an address cannot be bound, or the certificates cannot be read.
    pub async fn start(settings: LeaderProgramSettings<'_>) -> Result<Self, Failure> {
        let LeaderProgramSettings { program, config, names, user_agent, .. } = settings;
        let client = Client::new(&config, names, user_agent).map_err(Failure::usage)?;
        let secure = settings.serving.bind(settings.secure, &client, names, user_agent);
        let secure = secure.await.map_err(Failure::run)?;
        let plain = AdminServer::bind_if(settings.plain).await.map_err(Failure::run)?;
        tracing::info!(server = %config.server, health = %secure.address(), "{program} is starting");

        let prefix = names.metric_prefix(settings.component);
        let metrics = Metrics::new(&prefix, settings.build).map_err(Failure::run)?;
        let leads = LeaderMetrics::register(&metrics).map_err(Failure::run)?;
        let requests = RequestMetrics::register(&metrics).map_err(Failure::run)?;
        let client = client.with_metrics(requests);
        let (board, drain) = (StatusBoard::default(), Drain::default());
        let health = Health::new(settings.readiness);
        let pages = AdminPages { health, metrics: metrics.clone(), status: board.clone() };
        let plain = plain.map(|plain| tokio::spawn(plain.run(pages.clone(), drain.watch())));
        let secure = tokio::spawn(secure.run(pages, drain.watch()));
        let servers = plain.iter().map(JoinHandle::abort_handle).chain([secure.abort_handle()]);
        let servers = servers.collect();
        Ok(Self { client, board, metrics, drain, program, leads, servers })
    }

    /// Has `act` act from when this instance holds the lease `lock`, which the receiver says, until a stop signal; what it has begun then has `deadline` to
    /// end.
    ///
    /// # Errors
    /// With the times of `election` two instances could lead; another instance has become the leader.
    pub async fn run(
        self,
        (lock, election): (&str, &LeaderElection),
        deadline: Duration,
        act: impl FnOnce(watch::Receiver<bool>) -> JoinHandle<()>,
    ) -> Result<(), Failure> {
        let Self { client, board, drain, program, leads, servers, .. } = self;
        let page = board.task("leader election");
        let candidate = election::candidate(election, &client, lock, page, &leads);
        let mut candidate = candidate.map_err(Failure::usage)?;
        let (leading, led) = watch::channel(false);
        let acting = act(led);
        // Cancel safe: the lease is released below or expires.
        let signal = tokio::select! {
            signal = stop_signal() => signal.map_err(Failure::run)?,
            lost = election::run_election(&mut candidate, &leading) => return Err(Failure::run(lost)),
        };
        tracing::info!(signal, "{program} is stopping");
        // Work that has not finished may still write: then the lease is left to expire.
        let drained = drain.drain(deadline).await;
        if let Some(candidate) = candidate.filter(|_| drained == DrainOutcome::Finished) {
            candidate.release().await;
        }
        servers.iter().for_each(AbortHandle::abort);
        acting.abort();
        Ok(())
    }
}
