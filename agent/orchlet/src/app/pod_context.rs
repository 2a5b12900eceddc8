//! Builds the [`PodContext`] from the settings.

use std::path::Path;
use std::sync::Arc;

use agent_config::Settings;
use agent_images::Images;
use agent_interfaces::Reports;
use agent_interfaces::objects::{NoObjects, ObjectCache};
use agent_node::status::{self, MachineInfo};
use agent_node::unsupported_fields::NodeFeatures;
use agent_node_volumes::persistent_volumes::PersistentVolumes;
use agent_node_volumes::volumes::{self, NodeVolumes};
use agent_pod::node_facts::NodeFacts;
use agent_resources::pod_environment::{PodEnvironment, RuntimeClasses};
use agent_telemetry::timeline::Timelines;
use agent_workers::node_pods::NodePods;
use agent_workers::pod_context::{NodeSettings, PodContext};
use agent_workers::probes::NodeProbes;
use agent_workers::restart_limiter::RestartLimiter;
use proto_api::core::v1::Node;
use proto_api::names::Names;
use tokio::sync::watch;

use super::cluster::Cluster;
use super::{Agent, processors};
use crate::reports::NoReports;

/// The Node object as assumed before the API server has answered.
pub(super) fn unregistered(names: &Names, machine: &MachineInfo) -> Node {
    let mut own = Node::default();
    own.metadata.name.clone_from(&machine.name);
    own.metadata.labels = status::labels(names, machine);
    own.spec.taints.clone_from(&machine.taints);
    (_, own.status.allocatable) = status::capacity(&machine.capacity, &machine.reserved);
    own
}

/// What pod tasks need of the settings and the node, whose pods have their directories and logs there.
pub(super) fn node_settings(
    settings: &Settings,
    machine: &MachineInfo,
    root_dir: &Path,
    pod_logs_dir: &Path,
) -> NodeSettings {
    let (flags, file) = (&settings.flags, &settings.file);
    NodeSettings {
        facts: NodeFacts {
            pod_logs_dir: pod_logs_dir.to_string_lossy().into_owned(),
            seccomp_dir: root_dir.join("seccomp").to_string_lossy().into_owned(),
            cluster_dns: file.cluster_dns.iter().map(ToString::to_string).collect(),
            cluster_domain: file.cluster_domain.clone(),
            memory_bytes: machine.capacity.memory_bytes,
            names: settings.names,
            seccomp_default: file.seccomp_default,
            huge_page_sizes: machine.capacity.huge_pages.keys().copied().collect(),
            cpu_bound: file.cpu_bound(),
            ..NodeFacts::default()
        },
        host_ips: machine.ips.clone(),
        root_dir: root_dir.to_owned(),
        dead_kept: flags.node.maximum_dead_containers_per_container,
        crash_delay_max: file.crash_loop_back_off.max_container_restart_period,
        sandbox_image: flags.pod_infra_container_image.clone(),
        names: settings.names,
    }
}

impl Agent {
    pub(super) fn pod_context(
        &self,
        cluster: Option<&Cluster>,
        node: watch::Receiver<Option<Arc<Node>>>,
        images: Arc<Images>,
    ) -> PodContext {
        let (settings, machine) = (&self.settings, &self.machine);
        let (flags, file) = (&settings.flags, &settings.file);
        let client = cluster.map(|cluster| cluster.client.clone());
        let on_disk = agent_volume::VolumesOnDisk::new(&self.storage.root_dir, settings.names);
        let reports =
            cluster.map_or_else(|| Arc::new(NoReports) as Arc<dyn Reports>, |c| c.reports.clone());
        let persistent = PersistentVolumes {
            csi: self.storage.csi.clone(),
            volumes: on_disk.clone(),
            node: machine.name.clone(),
            client: client.clone(),
            reports: reports.clone(),
            disks: self.storage.disks.clone(),
            helpers: self.storage.disks.helpers(),
            operations: self.telemetry.metrics.operations.clone(),
            selinux: agent_host::machine::has_selinux(),
        };
        let (issuer, boot) = (client.map(volumes::issuer), self.boot_id.clone());
        let volumes = NodeVolumes::new(on_disk, persistent, issuer, node, boot);
        PodContext {
            runtime: Arc::new(self.runtime.clone()),
            reports,
            cgroups: Arc::new(self.resources.cgroups.clone()),
            volumes: Arc::new(volumes),
            object_cache: cluster
                .map_or_else(|| Arc::new(NoObjects) as Arc<dyn ObjectCache>, |c| c.objects.clone()),
            journal: self.kept.journal.clone(),
            settings: node_settings(settings, machine, &flags.root_dir, &flags.pod_logs_dir),
            environment: PodEnvironment {
                abilities: NodeFeatures {
                    names: settings.names,
                    apparmor: agent_host::machine::has_apparmor(),
                    allowed_sysctls: file.allowed_unsafe_sysctls.clone(),
                },
                resolv_conf: Some(file.resolv_conf.clone()),
                classes: RuntimeClasses::new(cluster.map(|c| c.client.clone())),
                allocator: Some(self.resources.allocator.clone()),
            },
            pods: NodePods::new(unregistered(settings.names, machine)),
            images,
            node_pressure: watch::Sender::default(),
            timelines: Timelines::default(),
            metrics: self.telemetry.metrics.clone(),
            probes: NodeProbes::new(format!("{}/1.25", settings.names.component("probe"))),
            runtime_limiter: self.runtime_limiter.clone(),
            restart_limiter: RestartLimiter::new(processors()),
            active_pods: self.kept.active_pods.clone(),
        }
    }
}
