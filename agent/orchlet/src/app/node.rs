//! The Node object: the machine's properties, and the tasks for status, lease and pod network.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use agent_config::{self as config, Settings};
use agent_host::address;
use agent_host::machine::{self, Identity};
use agent_identity::CertificateRenewer;
use agent_identity::certificate_spec::{CertificateSpec, Purpose};
use agent_node::resources::{self, Amounts};
use agent_node::status::{MachineInfo, Reserved};
use agent_node_volumes::volumes_in_use::InUse;
use agent_resources::pod_cgroups::Bounded;
use agent_telemetry::node_events::NodeEvents;
use agent_workers::pod_context::PodContext;
use proto_api::core::v1::{Node, NodeSystemInfo};
use proto_api::event_report::EventKind;
use proto_api::node_labels;
use proto_client::Client;
use proto_daemon::drain::Drain;
use proto_daemon::exit::Failure;
use proto_daemon::statusz::StatusBoard;
use tokio::sync::watch;

use super::{Agent, until};
use crate::bootstrap;
use crate::network;
use crate::node::{self, NodeTask};

/// Describes the node from the machine and the settings.
pub(super) async fn describe(
    settings: &Settings,
    identity: &Identity,
) -> Result<MachineInfo, Failure> {
    let found = machine::capacity(&settings.flags.root_dir, settings.file.max_pods);
    let found = found.map_err(Failure::run)?;
    let (flags, file) = (&settings.flags, &settings.file);
    if file.fail_swap_on && machine::usage().map_err(Failure::run)?.swap_total_bytes > 0 {
        return Err(Failure::run(
            "failSwapOn: swap is active on this machine; switch it off, or set failSwapOn (--fail-swap-on) to false",
        ));
    }
    let name = settings.node_name();
    let ips: Vec<IpAddr> = match flags.node_ip.is_empty() {
        true => address::node_addresses().await,
        false => flags.node_ip.clone(),
    };
    let mut amounts = Amounts::new();
    resources::add(&mut amounts, &file.system_reserved);
    resources::add(&mut amounts, &file.kube_reserved);
    let labels = flags.node_labels.iter().cloned().collect();
    let forbidden = node_labels::forbidden_labels(settings.names, &labels);
    if !forbidden.is_empty() {
        return Err(Failure::usage(format!(
            "--node-labels: unknown labels in Kubernetes' domains: {}",
            forbidden.join(", ")
        )));
    }
    let (memory, disk) = config::node::kept_by_eviction(file, found.memory_bytes, found.disk_bytes);
    let version = format!("v1.25.0-orchlet-{}", env!("CARGO_PKG_VERSION"));
    Ok(MachineInfo {
        hostname: name.clone(),
        name,
        ips: ips.iter().map(ToString::to_string).collect(),
        info: NodeSystemInfo {
            machine_id: identity.machine_id.clone(),
            system_uuid: identity.system_uuid.clone(),
            boot_id: identity.boot_id.clone(),
            kernel_version: identity.kernel_version.clone(),
            os_image: identity.os_image.clone(),
            kubelet_version: version.clone(),
            kube_proxy_version: version,
            operating_system: "linux".to_owned(),
            architecture: identity.architecture.to_owned(),
            ..NodeSystemInfo::default()
        },
        capacity: found,
        reserved: Reserved { amounts, eviction_memory_bytes: memory, eviction_disk_bytes: disk },
        port: file.port,
        labels,
        provider_id: file.provider_id.clone(),
        taints: file.register_with_taints.clone(),
        pod_cidr: file.pod_cidr.clone(),
        cloud: flags.node.cloud(&flags.node_ip),
    })
}

/// How often the machine's addresses are looked at.
const ADDRESS_INTERVAL: Duration = Duration::from_secs(5);
/// Looks in a row that find the same address before it counts: a first one is there to stay, and one that is lost may come back.
const LOOKS_AT_FIRST: u32 = 2;
const LOOKS_AT_SUCCESSOR: u32 = 12;

/// Waits for an address that the machine lacked at the start, because its network was late, or that replaces one of then, as by another
/// lease. For ever where addresses are configured. Addresses are in the Node, its certificate and the status of each pod: the next
/// process has them everywhere. Cancel safe.
pub(super) async fn changed_address(settings: &Settings, machine: &MachineInfo) -> IpAddr {
    if !settings.flags.node_ip.is_empty() {
        std::future::pending::<()>().await;
    }
    let known: Vec<IpAddr> = machine.ips.iter().filter_map(|ip| ip.parse().ok()).collect();
    let wanted = if known.is_empty() { LOOKS_AT_FIRST } else { LOOKS_AT_SUCCESSOR };
    let (mut seen, mut looks) = (None, 0_u32);
    loop {
        tokio::time::sleep(ADDRESS_INTERVAL).await;
        let found = address::changed_address(&known).await;
        looks = if found == seen { looks.saturating_add(1) } else { 1 };
        seen = found;
        if let Some(address) = found
            && looks >= wanted
        {
            return address;
        }
    }
}

/// What the tasks of a Node object are begun with.
pub(super) struct NodeTasks<'a> {
    pub(super) client: &'a Client,
    pub(super) settings: &'a Settings,
    pub(super) machine: &'a MachineInfo,
    pub(super) board: &'a StatusBoard,
    pub(super) shared: Arc<PodContext>,
    pub(super) events: NodeEvents,
}

impl NodeTasks<'_> {
    /// Starts the tasks for status and lease. Each version of the Node is sent to `sender`; `node` is its receiver.
    pub(super) fn start(
        self,
        sender: watch::Sender<Option<Arc<Node>>>,
        node: watch::Receiver<Option<Arc<Node>>>,
        drain: &Drain,
    ) -> Result<(), Failure> {
        let Self { client, settings, machine, board, shared, events } = self;
        let observed = node::observe(
            client.clone(),
            machine.name.clone(),
            shared.clone(),
            sender.clone(),
            events.clone(),
            drain.watch(),
        );
        tokio::spawn(observed);
        let in_use = InUse {
            client: client.clone(),
            name: machine.name.clone(),
            volumes: shared.volumes.clone(),
            node: node.clone(),
        };
        tokio::spawn(in_use.run(board.task("volumes in use"), drain.watch()));
        let task = NodeTask {
            client: client.clone(),
            machine: machine.clone(),
            shared,
            register: settings.file.register_node,
            check_every: settings.file.node_status_update_frequency,
            report_every: settings.file.node_status_report_frequency,
            images_max: config::node::images_listed_max(&settings.file),
            events,
            node: sender,
        };
        tokio::spawn(task.run(board.task("node"), drain.watch()));
        // By it the node is judged: it waits behind nothing.
        let lease = client.separate().map_err(Failure::run)?;
        let (name, page) = (machine.name.clone(), board.task("lease"));
        let lasts = config::node::lease_secs(&settings.file);
        tokio::spawn(node::renew(lease, (name, lasts), node, page, drain.watch()));
        Ok(())
    }
}

impl Agent {
    /// Starts the tasks for status, lease and pod network.
    pub(super) fn start_node(
        &self,
        client: &Client,
        shared: Arc<PodContext>,
        events: NodeEvents,
        sender: watch::Sender<Option<Arc<Node>>>,
        node: watch::Receiver<Option<Arc<Node>>>,
        drain: &Drain,
    ) -> Result<(), Failure> {
        self.record_start_events(&events);
        let (settings, machine) = (&self.settings, &self.machine);
        let board = &self.telemetry.board;
        let tasks = NodeTasks { client, settings, machine, board, shared, events };
        tasks.start(sender, node.clone(), drain)?;
        if let Some(dir) = self.settings.flags.cni_conf_dir.clone() {
            tokio::spawn(until(drain.watch(), network::follow(dir, node)));
        }
        Ok(())
    }

    /// Records the events of a start. Limits that could not be set would have aborted it.
    fn record_start_events(&self, events: &NodeEvents) {
        let component = self.settings.names.component("let");
        events.record_event(EventKind::Normal, "Starting", format!("Starting {component}."));
        let enforced = super::enforced(&self.settings, &self.machine);
        let reason = "NodeAllocatableEnforced";
        if enforced.pods == Bounded::Yes {
            events.record_event(
                EventKind::Normal,
                reason,
                "Updated Node Allocatable limit across pods",
            );
        }
        for (cgroup, _) in &enforced.groups {
            let message = format!("Updated limits on reserved cgroup {cgroup}");
            events.record_event(EventKind::Normal, reason, message);
        }
    }

    /// Starts the tasks that renew the agent's own certificates.
    pub(super) fn start_certificates(&self, client: &Client, drain: &Drain) {
        let (settings, metrics) = (&self.settings, &self.telemetry.metrics);
        let (names, node) = (settings.names, &self.machine.name);
        if settings.file.rotate_certificates {
            let keeper = CertificateRenewer {
                store: bootstrap::client_store(settings),
                wanted: bootstrap::client_wanted(names, node),
                authority: client.clone(),
                ttl: metrics.client_certificate_ttl.clone(),
                errors: metrics.client_renew_errors.clone(),
            };
            let page = self.telemetry.board.task("client certificate");
            tokio::spawn(until(drain.watch(), keeper.run(page)));
        }
        if settings.serves_with_own_request() {
            let addresses = self.machine.ips.iter().filter_map(|ip| ip.parse().ok()).collect();
            let names_of_node = vec![self.machine.hostname.clone()];
            let keeper = CertificateRenewer {
                store: bootstrap::server_store(settings),
                wanted: CertificateSpec {
                    node: node.clone(),
                    purpose: Purpose::Serving { names: names_of_node, addresses },
                    signer: names.node_serving_signer(),
                },
                authority: client.clone(),
                ttl: metrics.server_certificate_ttl.clone(),
                errors: metrics.server_renew_errors.clone(),
            };
            let page = self.telemetry.board.task("serving certificate");
            tokio::spawn(until(drain.watch(), keeper.run(page)));
        }
    }
}
