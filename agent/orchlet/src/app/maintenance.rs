//! Maintenance tasks: image garbage collection, orphaned logs, log rotation, eviction, shutdown.

use std::path::Path;
use std::sync::Arc;

use agent_config::{self as config, Settings, log_size};
use agent_host::logind;
use agent_images::import_dir::ImportDir;
use agent_images::{CredentialSources, Images, Providers, image_gc};
use agent_logs::rotation;
use agent_node::eviction::decide::EvictionState;
use agent_node::resources::MEMORY;
use agent_resources::pod_disk_usage::{PodDirectories, PodDiskUsages};
use agent_runtime::cri::CRI_NAMESPACE;
use agent_telemetry::metrics::OperationMetrics;
use agent_telemetry::node_events::NodeEvents;
use agent_workers::garbage;
use agent_workers::pod_context::PodContext;
use proto_daemon::drain::Drain;
use proto_daemon::exit::Failure;

use super::{Agent, until};
use crate::eviction::Evictor;
use crate::oom;
use crate::shutdown::Shutdown;

/// Drop-in that raises logind's `InhibitDelayMaxSec`.
const LOGIND_DROP_IN: &str = "/etc/systemd/logind.conf.d/99-orchlet.conf";

/// The sources of registry credentials.
pub(super) fn logins(
    settings: &Settings,
    operations: &OperationMetrics,
) -> Result<CredentialSources, Failure> {
    let flags = &settings.flags.node;
    let config = flags.image_credential_provider_config.as_ref();
    let providers = match config.zip(flags.image_credential_provider_bin_dir.as_ref()) {
        Some((config, dir)) => Providers::load(config, dir, operations).map_err(Failure::usage)?,
        None => Providers::default(),
    };
    Ok(CredentialSources::new(&settings.flags.root_dir, providers))
}

impl Agent {
    pub(super) fn images(&mut self) -> Arc<Images> {
        let logins = std::mem::take(&mut self.logins);
        let bounds = config::node::pull_bounds(&self.settings.file);
        Images::new(Arc::new(self.runtime.clone()), logins, bounds)
    }

    /// Starts the maintenance tasks. Returns the handler of the machine's shutdown.
    pub(super) fn start_maintenance(
        &self,
        shared: &Arc<PodContext>,
        events: &NodeEvents,
        drain: &Drain,
    ) -> Arc<Shutdown> {
        let (flags, file) = (&self.settings.flags, &self.settings.file);
        let collecting = image_gc::run(
            shared.images.clone(),
            shared.clone(),
            config::node::image_limits(file),
            events.clone(),
            self.telemetry.board.task("images"),
        );
        tokio::spawn(until(drain.watch(), collecting));
        let sweeping = garbage::run(shared.clone(), self.telemetry.board.task("garbage"));
        tokio::spawn(until(drain.watch(), sweeping));
        let disk_usages = self.start_measuring_disks(shared, drain);
        let evicting = self.evictor(shared, disk_usages, events);
        let evicting = evicting.run(self.telemetry.board.task("eviction"));
        tokio::spawn(until(drain.watch(), evicting));
        let killed = oom::run(events.clone(), self.telemetry.board.task("kernel log"));
        tokio::spawn(until(drain.watch(), killed));
        let limits = rotation::Limits {
            // Validated when the settings were read.
            size: log_size(file).unwrap_or(u64::MAX),
            files: usize::try_from(file.container_log_max_files).unwrap_or(usize::MAX),
        };
        let pods = shared.clone();
        let rotated = rotation::LogRotation {
            pods: Box::new(move || pods.pods.shown_pods()),
            pod_logs_dir: shared.settings.facts.pod_logs_dir.clone(),
            runtime: shared.runtime.clone(),
            metrics: shared.metrics.clone(),
        };
        let rotating = rotation::run(rotated, limits, self.telemetry.board.task("log rotation"));
        tokio::spawn(until(drain.watch(), rotating));
        if let Some(dir) = &flags.node.image_import_dir {
            let import = ImportDir {
                dir: dir.clone(),
                state: flags.root_dir.join("imported-images.json"),
                runtime: self.runtime.clone(),
                namespace: CRI_NAMESPACE,
                images: shared.images.clone(),
                pods: shared.clone(),
            };
            tokio::spawn(until(drain.watch(), import.run()));
        }
        let groups = config::node::shutdown_groups(file);
        let waits = !groups.is_empty();
        let places = (Path::new(logind::SYSTEM_BUS), Path::new(LOGIND_DROP_IN));
        let shutdown = Arc::new(Shutdown::new(shared.clone(), groups, events.clone(), places));
        if waits {
            let (follower, page) = (shutdown.clone(), self.telemetry.board.task("shutdown"));
            let following = async move { follower.follow(page).await };
            tokio::spawn(until(drain.watch(), following));
        }
        shutdown
    }

    fn start_measuring_disks(&self, shared: &Arc<PodContext>, drain: &Drain) -> Arc<PodDiskUsages> {
        let directories = PodDirectories {
            root_dir: shared.settings.root_dir.clone(),
            pod_logs_dir: shared.settings.facts.pod_logs_dir.clone(),
        };
        let usages = Arc::new(PodDiskUsages::new(directories, shared.runtime.clone()));
        let of = shared.clone();
        let pods = move || of.pods.current_pods().into_iter().map(|known| known.pod).collect();
        let has_limits = self.settings.file.local_storage_capacity_isolation;
        let page = self.telemetry.board.task("disk usage");
        tokio::spawn(until(drain.watch(), usages.clone().run(pods, has_limits, page)));
        usages
    }

    fn evictor(
        &self,
        shared: &Arc<PodContext>,
        disk_usages: Arc<PodDiskUsages>,
        events: &NodeEvents,
    ) -> Evictor {
        let (file, machine) = (&self.settings.file, &self.machine);
        let reserved = machine.reserved.amounts.get(MEMORY).map_or(0, |q| q.as_bytes());
        Evictor {
            shared: shared.clone(),
            disk_usages,
            // Validated when the settings were read.
            thresholds: config::node::eviction_thresholds(file).unwrap_or_default(),
            transition: file.eviction_pressure_transition_period,
            soft_grace: config::node::soft_grace(file),
            image_limits: config::node::image_limits(file),
            pods_memory: machine.capacity.memory_bytes.saturating_sub(reserved),
            limits_storage: file.local_storage_capacity_isolation,
            events: events.clone(),
            state: EvictionState::default(),
        }
    }
}
