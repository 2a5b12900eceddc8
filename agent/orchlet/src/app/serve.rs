//! What the agent serves: the HTTPS endpoint, and health and metrics on a port of their own.

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;

use proto_client::Client;
use proto_daemon::admin::{AdminPages, AdminServer};
use proto_daemon::drain::Drain;
use proto_daemon::exit::Failure;
use proto_daemon::health::Health;
use proto_daemon::metrics::{BuildInfo, Metrics};
use proto_daemon::ready::Readiness;

use super::Bound;
use crate::pods::parts::Parts;
use crate::server::Server;
use crate::server::agent::{AgentView, CpuTimes};
use crate::server::open::{self, Opening};
use crate::server::tls::{Terms, TlsFiles};

impl Bound {
    /// Starts the HTTPS endpoint, and health and metrics on a loopback port.
    pub(super) async fn start_servers(
        &self,
        client: Option<&Client>,
        parts: &Arc<Parts>,
        drain: &Drain,
    ) -> Result<(), Failure> {
        let names = self.settings.names;
        let build = BuildInfo { version: env!("CARGO_PKG_VERSION"), commit: "unknown" };
        let pages = AdminPages {
            health: Health::new(Readiness::default()),
            metrics: Metrics::new(&names.metric_prefix("agent"), build).map_err(Failure::run)?,
            status: self.board.clone(),
        };
        self.serve_health(&pages, drain).await;
        if !self.settings.file.enable_server {
            return Ok(());
        }
        let server = self.endpoint(client, parts, pages).await?;
        tracing::info!(address = %server.address(), "serving");
        tokio::spawn(server.run(drain.watch()));
        Ok(())
    }

    /// Health and metrics without TLS, on loopback unless told otherwise.
    async fn serve_health(&self, pages: &AdminPages, drain: &Drain) {
        let file = &self.settings.file;
        let ip = file.healthz_bind_address.unwrap_or(Ipv4Addr::LOCALHOST.into());
        let address = match self.settings.flags.common.healthz_bind_address {
            Some(flag) => flag.socket(file.healthz_port),
            None if file.healthz_port == 0 => return,
            None => SocketAddr::new(ip, file.healthz_port),
        };
        match AdminServer::bind(address).await {
            Ok(server) => {
                tokio::spawn(server.run(pages.clone(), drain.watch()));
            }
            Err(error) => tracing::warn!(%address, %error, "no health endpoint"),
        }
    }

    async fn endpoint(
        &self,
        client: Option<&Client>,
        parts: &Arc<Parts>,
        pages: AdminPages,
    ) -> Result<Server, Failure> {
        let (flags, file) = (&self.settings.flags, &self.settings.file);
        let mut hosts = self.machine.ips.clone();
        hosts.push(self.machine.hostname.clone());
        let shown = parts.clone();
        let view = AgentView {
            runtime: parts.runtime.clone(),
            pods: Box::new(move || shown.shown_pods()),
            node: self.machine.name.clone(),
            pod_logs_dir: flags.pod_logs_dir.clone(),
            root_dir: flags.root_dir.clone(),
            configuration: self.settings.shown(),
            last: CpuTimes::default(),
        };
        let ip = file.address.unwrap_or(Ipv4Addr::UNSPECIFIED.into());
        let opening = Opening {
            address: SocketAddr::new(ip, file.port),
            files: TlsFiles {
                identity: file.tls_cert_file.clone().zip(file.tls_private_key_file.clone()),
                client_authority: file.authentication.x509.client_ca_file.clone(),
                terms: Terms {
                    min_version: file.tls_min_version.clone(),
                    suites: file.tls_cipher_suites.clone(),
                },
            },
            hosts,
            rules: open::rules(file, &self.machine.name),
            client: client.cloned(),
            view: Arc::new(view),
            pages,
            names: self.settings.names,
        };
        opening.open().await.map_err(Failure::run)
    }
}
