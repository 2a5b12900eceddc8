//! Servers of the agent: the HTTPS endpoint, and health and metrics on a separate port.

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;

use agent_config::Settings;
use agent_host::cgroups::Cgroups;
use agent_server::agent::AgentView;
use agent_server::measure::{Measure, MeasuredPaths};
use agent_server::open::{self, EndpointParts};
use agent_server::{Server, Switches};
use agent_telemetry::metrics::PodGauges;
use agent_workers::pod_context::PodContext;
use proto_client::Client;
use proto_daemon::admin::{AdminPages, AdminServer};
use proto_daemon::drain::Drain;
use proto_daemon::exit::Failure;
use proto_daemon::health::Health;
use proto_daemon::ready::Readiness;
use serde_json::{Value, json};

use super::Agent;
use crate::bootstrap;
use proto_client::serving::tls::{Serving, Terms, TlsFiles};

/// Health and metrics without TLS, by default on loopback.
pub(super) async fn serve_health(settings: &Settings, pages: &AdminPages, drain: &Drain) {
    let file = &settings.file;
    let ip = file.healthz_bind_address.unwrap_or(Ipv4Addr::LOCALHOST.into());
    let address = match settings.flags.common.healthz_bind_address {
        Some(flag) => flag.socket(file.healthz_port),
        None if file.healthz_port == 0 => return,
        None => SocketAddr::new(ip, file.healthz_port),
    };
    match AdminServer::bind(address).await {
        Ok(server) => {
            tokio::spawn(server.run(pages.clone(), drain.watch()));
        }
        Err(error) => {
            tracing::warn!(%address, %error, "cannot serve health and metrics; the agent runs without them")
        }
    }
}

impl Agent {
    /// Starts the HTTPS endpoint, and health and metrics on a loopback port.
    pub(super) async fn start_servers(
        &self,
        client: Option<&Client>,
        shared: &Arc<PodContext>,
        readiness: Readiness,
        drain: &Drain,
    ) -> Result<(), Failure> {
        let shown = shared.clone();
        let gauges = PodGauges::new(
            self.settings.names,
            self.telemetry.metrics.operations.clone(),
            Arc::new(move || shown.pods.shown_pods()),
        );
        gauges.and_then(|gauges| self.telemetry.registry.register(gauges)).map_err(Failure::run)?;
        let pages = AdminPages {
            health: Health::new(readiness),
            metrics: self.telemetry.registry.clone(),
            status: self.telemetry.board.clone(),
        };
        serve_health(&self.settings, &pages, drain).await;
        if !self.settings.file.enable_server {
            return Ok(());
        }
        let server = self.endpoint(client, shared, pages).await?;
        tracing::info!(address = %server.address(), "serving the HTTPS endpoint");
        tokio::spawn(server.run(drain.watch()));
        Ok(())
    }

    async fn endpoint(
        &self,
        client: Option<&Client>,
        shared: &Arc<PodContext>,
        pages: AdminPages,
    ) -> Result<Server, Failure> {
        let (flags, file) = (&self.settings.flags, &self.settings.file);
        let mut hosts = self.machine.ips.clone();
        hosts.push(self.machine.hostname.clone());
        let shown = shared.clone();
        let (reader, counted) = (shared.clone(), shared.clone());
        let view = AgentView {
            runtime: shared.runtime.clone(),
            pods: Box::new(move || shown.pods.shown_pods()),
            pod_logs_dir: flags.pod_logs_dir.clone(),
            checkpoints_dir: flags.root_dir.join("checkpoints"),
            configuration: self.settings.to_configz(),
            measure: Arc::new(Measure::new(self.sites())),
            volumes: Some(shared.volumes.clone()),
            machine: self.spec(),
            timeline: Box::new(move |namespace, name| {
                reader.timelines.find_timelines(namespace, name)
            }),
        };
        let ip = file.address.unwrap_or(Ipv4Addr::UNSPECIFIED.into());
        let opening = EndpointParts {
            address: SocketAddr::new(ip, file.port),
            files: TlsFiles {
                identity: self.serving_identity(),
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
            switches: Switches {
                debugging: file.enable_debugging_handlers,
                system_logs: file.enable_system_log_handler,
                profiling: file.enable_profiling_handler,
                flags: file.enable_debug_flags_handler,
                checkpoint: self.settings.gates.is_on("ContainerCheckpoint"),
            },
            system_logs_dir: flags.system_logs_dir.clone(),
            probes: Box::new(move || counted.probes.metrics()),
            metrics: self.telemetry.metrics.clone(),
        };
        opening.open().await.map_err(Failure::run)
    }

    /// The endpoint's certificate and key: configured files, or the pair requested from the
    /// cluster.
    fn serving_identity(&self) -> Serving {
        let file = &self.settings.file;
        match file.tls_cert_file.clone().zip(file.tls_private_key_file.clone()) {
            Some((chain, key)) => Serving::Named(chain, key),
            None if self.settings.serves_with_own_request() => {
                Serving::AskedFor(bootstrap::server_store(&self.settings).current_path())
            }
            None => Serving::SelfSigned,
        }
    }

    /// The paths and cgroups that are measured.
    fn sites(&self) -> MeasuredPaths {
        let (flags, file) = (&self.settings.flags, &self.settings.file);
        MeasuredPaths {
            node: self.machine.name.clone(),
            agent: self.settings.names.component("let"),
            root_dir: flags.root_dir.clone(),
            pod_logs_dir: flags.pod_logs_dir.clone(),
            cgroups: Cgroups::detect().ok(),
            cgroup_root: file.cgroup_root.clone(),
            driver: file.cgroup_driver.into(),
            disk_period: file.volume_stats_agg_period,
        }
    }

    /// The machine's description for `/spec/`.
    fn spec(&self) -> Value {
        let (info, capacity) = (&self.machine.info, &self.machine.capacity);
        json!({
            "num_cores": capacity.cpus,
            "memory_capacity": capacity.memory_bytes,
            "hugepages": capacity.huge_pages.iter()
                .map(|(size, bytes)| json!({"page_size": size / 1024, "num_pages": bytes / size.max(&1)}))
                .collect::<Vec<_>>(),
            "machine_id": info.machine_id,
            "system_uuid": info.system_uuid,
            "boot_id": info.boot_id,
            "filesystems": [{
                "device": self.settings.flags.root_dir.display().to_string(),
                "capacity": capacity.disk_bytes,
                "type": "vfs",
            }],
        })
    }
}
