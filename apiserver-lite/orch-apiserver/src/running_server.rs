//! A server whose tasks run. It answers requests from this process at once, and others once it is given a listener.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;

use apiserver_auth::User;
use apiserver_core::api_service_lifecycle;
use apiserver_core::config::Config;
use apiserver_core::definition_lifecycle;
use apiserver_core::flow_control_lifecycle;
use apiserver_core::state_requests::{START, save};
use apiserver_core::status::ApiError;
use apiserver_encryption::Encryption;
use apiserver_http::{
    CurrentTls, HttpServer, InProcess, RequestFlows, ServingTls, check_api_services, serve,
};
use proto_client::Client;
use proto_client::transport::{Caller, ClientTlsError, InMemoryServer};
use proto_daemon::drain::DrainWatch;
use tokio::io::DuplexStream;
use tokio::net::TcpListener;
use tokio::sync::watch;
use tokio::task::JoinSet;

use crate::certificate_files::{self, CertificateFiles};
use crate::encryption;
use crate::kubeconfig;
use crate::maintenance;
use crate::pki::Pki;

/// What the server calls itself as its own client.
const USER_AGENT: &str = concat!("orch-apiserver/", env!("CARGO_PKG_VERSION"));

/// A server whose tasks run; they are dropped with it.
pub struct RunningServer {
    server: Arc<HttpServer>,
    pki: Option<Pki>,
    tls: CurrentTls,
    in_process: Arc<InProcess>,
    tasks: JoinSet<()>,
}

/// Files that may change while the server runs.
pub(crate) struct FollowedFiles {
    pub(crate) tls: ServingTls,
    pub(crate) certificates: CertificateFiles,
    pub(crate) encryption: Option<Arc<Encryption>>,
}

impl RunningServer {
    pub(crate) fn begin(server: Arc<HttpServer>, pki: Option<Pki>, files: FollowedFiles) -> Self {
        let (core, stopping) = (server.core.clone(), server.stopping.clone());
        let reloads = core.config.encryption.as_ref().is_some_and(|settings| settings.reload);
        let reloaded = files.encryption.filter(|_| reloads);
        let tls = watch::Sender::new(Arc::new(files.tls));
        let current = tls.subscribe();
        let mut tasks = JoinSet::new();
        tasks.spawn(maintenance::run(server.clone()));
        tasks.spawn(encryption::follow(reloaded, core.store.clone(), stopping.clone()));
        tasks.spawn(definition_lifecycle::run(core.clone(), stopping.clone()));
        if let Some(control) = server.flow_control.as_ref().map(RequestFlows::control) {
            tasks.spawn(flow_control_lifecycle::run(core.clone(), control, stopping.clone()));
        }
        tasks.spawn(api_service_lifecycle::run(core, stopping));
        tasks.spawn(check_api_services(server.clone()));
        tasks.spawn(certificate_files::follow(server.clone(), files.certificates, tls));
        let in_process = Arc::new(InProcess::new(server.clone()));
        Self { server, pki, tls: current, in_process, tasks }
    }

    /// The configuration.
    #[must_use]
    pub fn config(&self) -> &Config {
        &self.server.core.config
    }

    pub(crate) fn pki(&self) -> Option<&Pki> {
        self.pki.as_ref()
    }

    /// A client within this process, whose requests are of `user`.
    ///
    /// # Errors
    /// None that is known: its configuration has no TLS.
    pub fn client(&self, user: User, user_agent: &str) -> Result<Client, ClientTlsError> {
        let connections = Arc::new(ConnectionsOf { user, in_process: self.in_process.clone() });
        Client::in_memory(connections, self.config().names, user_agent)
    }

    /// A client within this process with the rights of the server itself.
    ///
    /// # Errors
    /// As [`RunningServer::client`].
    pub fn admin(&self) -> Result<Client, ClientTlsError> {
        self.client(User::server(), USER_AGENT)
    }

    /// Keeps the state of now as the one that is put back when a request names no other.
    ///
    /// # Errors
    /// The server is not ephemeral.
    pub async fn save_start(&self) -> Result<(), ApiError> {
        save(&self.server.core, &User::server(), START).await.map(drop)
    }

    /// The administrator's kubeconfig for a listener at `address`; empty without a CA of the server's own.
    #[must_use]
    pub fn kubeconfig(&self, address: SocketAddr) -> String {
        let write = |pki| kubeconfig::write(self.config().names, address, pki);
        self.pki.as_ref().map(write).unwrap_or_default()
    }

    /// Serves `listener` until `until` requests a drain; then the server stops, and open requests are answered.
    pub fn serve(
        &self,
        listener: TcpListener,
        until: DrainWatch,
    ) -> impl Future<Output = ()> + Send + 'static {
        serve(self.server.clone(), listener, self.tls.clone(), until)
    }

    /// `/readyz` fails from now on; requests are still served.
    pub fn begin_to_stop(&self) {
        self.server.about_to_stop.cancel();
    }

    /// Ends connections from this process, those still open after the shutdown deadline by force, and all tasks, and closes the store.
    pub async fn stop(mut self) {
        self.server.stopping.cancel();
        self.in_process.end(self.config().shutdown_deadline).await;
        // The tasks end because `server.stopping` is cancelled.
        while self.tasks.join_next().await.is_some() {}
        if let Some(audit) = &self.server.audit {
            audit.flush().await;
        }
        self.server.core.store.close().await;
    }
}

impl Drop for RunningServer {
    fn drop(&mut self) {
        // Ends watches and connections; the tasks are aborted with their set.
        self.server.stopping.cancel();
    }
}

/// The connections of one user from this process.
struct ConnectionsOf {
    user: User,
    in_process: Arc<InProcess>,
}

impl InMemoryServer for ConnectionsOf {
    fn connect(&self, caller: Caller) -> io::Result<DuplexStream> {
        self.in_process.connect((caller == Caller::Known).then(|| self.user.clone()))
    }
}
