//! A server in this process: its clients, its fixtures, its states, and its end.

use std::net::{Ipv4Addr, SocketAddr};
use std::path::Path;

use apiserver_auth::User;
use apiserver_development::{load, manifests};
use bytes::Bytes;
use orch_apiserver::config::AdmissionPlugin;
use orch_apiserver::{BuildError, Config, RunningServer};
use proto_api::names::{Names, Profile};
use proto_client::Client;
use proto_client::ClientError;
use proto_client::params::WriteParams;
use proto_client::request::{self, JSON};
use proto_client::transport::ClientTlsError;
use proto_daemon::drain::Drain;
use tokio::net::TcpListener;
use tokio::sync::Mutex;
use tokio::task::JoinHandle;

/// What the clients of tests call themselves.
const USER_AGENT: &str = concat!("apiserver-testing/", env!("CARGO_PKG_VERSION"));
/// What objects say of the server's port, which it has not.
const NOMINAL_PORT: u16 = 443;

/// An API server in this process. Several are independent of each other. Dropping one ends it; [`Cluster::stop`] waits until nothing of it is left.
///
/// Its names are Kubernetes', every user may do everything, and no controller runs: Deployments make no pods, and namespaces that are deleted stay
/// `Terminating`. Pods need no service account, unless [`Cluster::with`] says otherwise.
pub struct Cluster {
    running: RunningServer,
    listening: Mutex<Option<Listening>>,
}

/// A listener on loopback.
struct Listening {
    kubeconfig: String,
    serving: JoinHandle<()>,
}

/// Why a cluster does not start, or a call fails.
#[derive(Debug, thiserror::Error)]
pub enum ClusterError {
    /// It cannot be built.
    #[error(transparent)]
    Build(#[from] BuildError),
    /// No port of loopback is free.
    #[error("cannot listen on loopback")]
    Listen(#[source] std::io::Error),
    /// The configuration names certificates, so that the server has no authority of its own.
    #[error("no kubeconfig: the configuration has certificates of others")]
    NoAuthority,
    /// A client cannot be made.
    #[error(transparent)]
    Client(#[from] ClientTlsError),
    /// The server refuses a request.
    #[error(transparent)]
    Request(#[from] ClientError),
    /// Fixtures cannot be read.
    #[error(transparent)]
    Manifests(#[from] manifests::ManifestError),
    /// Fixtures cannot be created.
    #[error(transparent)]
    Load(#[from] load::ManifestLoadError),
}

impl Cluster {
    /// Starts a server, and saves its first state as `start`.
    ///
    /// # Errors
    /// None that a test could cause.
    pub async fn start() -> Result<Self, ClusterError> {
        Self::with(Self::config()).await
    }

    /// The configuration of [`Cluster::start`], to be changed for [`Cluster::with`].
    #[must_use]
    pub fn config() -> Config {
        let mut config = Config::for_tests(Names::new(Profile::Kubernetes));
        config.admission.disabled.push(AdmissionPlugin::ServiceAccount);
        config
    }

    /// Starts a server of this configuration. Its address is what objects say, nothing listens there.
    ///
    /// # Errors
    /// What the configuration names cannot be used.
    pub async fn with(mut config: Config) -> Result<Self, ClusterError> {
        if config.bind.port() == 0 {
            config.bind.set_port(NOMINAL_PORT);
        }
        config.ephemeral = true;
        let running = Box::pin(orch_apiserver::begin(config)).await?;
        let cluster = Self { running, listening: Mutex::default() };
        cluster.save("start").await?;
        Ok(cluster)
    }

    /// A client of an administrator, within this process.
    ///
    /// # Errors
    /// None that a test could cause.
    pub fn client(&self) -> Result<Client, ClusterError> {
        self.client_of("kubernetes-admin", &[apiserver_auth::MASTERS])
    }

    /// A client of a user with these groups, within this process.
    ///
    /// # Errors
    /// None that a test could cause.
    pub fn client_of(&self, name: &str, groups: &[&str]) -> Result<Client, ClusterError> {
        let groups = groups.iter().map(|group| (*group).to_owned()).collect();
        let user = User { name: name.to_owned(), groups, ..User::default() };
        Ok(self.running.client(user, USER_AGENT)?)
    }

    /// A kubeconfig of the administrator, with certificates inside, for clients of any kind. The first call opens a port of loopback, which is open until the
    /// cluster ends.
    ///
    /// # Errors
    /// No port is free, or the configuration has certificates of others.
    pub async fn kubeconfig(&self) -> Result<String, ClusterError> {
        let mut listening = self.listening.lock().await;
        if let Some(listening) = &*listening {
            return Ok(listening.kubeconfig.clone());
        }
        let any = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
        let listener = TcpListener::bind(any).await.map_err(ClusterError::Listen)?;
        let address = listener.local_addr().map_err(ClusterError::Listen)?;
        let kubeconfig = self.running.kubeconfig(address);
        if kubeconfig.is_empty() {
            return Err(ClusterError::NoAuthority);
        }
        // It ends with the server.
        let serving = tokio::spawn(self.running.serve(listener, Drain::default().watch()));
        *listening = Some(Listening { kubeconfig: kubeconfig.clone(), serving });
        Ok(kubeconfig)
    }

    /// Creates the objects of the manifests below a directory, or of one file.
    ///
    /// # Errors
    /// The file, document and field that cannot be.
    pub async fn load(&self, path: &Path) -> Result<(), ClusterError> {
        let manifests = manifests::read(path)?;
        Ok(load::load(&self.running.admin()?, &manifests).await?)
    }

    /// Saves all objects as they are under a name of letters, digits and `-`.
    ///
    /// # Errors
    /// A name that is none, or too many states.
    pub async fn save(&self, name: &str) -> Result<(), ClusterError> {
        self.post(&format!("/store/save?name={name}")).await
    }

    /// Puts back what was saved under a name; `start` is what the cluster began with. Watches get 410 and start again, as clients do by themselves.
    ///
    /// # Errors
    /// Nothing is saved under it.
    pub async fn restore(&self, name: &str) -> Result<(), ClusterError> {
        self.post(&format!("/store/restore?name={name}")).await
    }

    /// Drops what was saved under a name.
    ///
    /// # Errors
    /// Nothing is saved under it.
    pub async fn forget(&self, name: &str) -> Result<(), ClusterError> {
        self.post(&format!("/store/forget?name={name}")).await
    }

    async fn post(&self, path: &str) -> Result<(), ClusterError> {
        let post = request::create(path.to_owned(), &WriteParams::default(), JSON, Bytes::new());
        self.running.admin()?.call(post).await?;
        Ok(())
    }

    /// Ends the server, and waits until nothing of it is left: no task, thread or port. Responses that are not read are waited for as long as
    /// `shutdown_deadline` of the configuration says.
    pub async fn stop(self) {
        let deadline = self.running.config().shutdown_deadline;
        let listening = self.listening.into_inner();
        let serving = async {
            let Some(Listening { mut serving, .. }) = listening else { return };
            // It ends with the server; it has panicked otherwise, and was logged.
            if tokio::time::timeout(deadline, &mut serving).await.is_err() {
                serving.abort();
                let _ = serving.await;
            }
        };
        // In this order: the first stops the server.
        tokio::join!(self.running.stop(), serving);
    }
}
