//! The Node object: registration, capacity and allocatable, addresses, conditions, images.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};

use proto_api::core::v1::{
    ContainerImage, DaemonEndpoint, Node, NodeAddress, NodeCondition, NodeStatus, NodeSystemInfo,
    Taint,
};
use proto_api::names::Names;
use proto_api::{Quantity, Time};

use crate::resources::{Amounts, CPU, EPHEMERAL_STORAGE, MEMORY, PODS};

/// Capacity of the machine.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Capacity {
    /// Number of CPUs.
    pub cpus: u32,
    pub memory_bytes: u64,
    /// Bytes of the file system with orchlet's root directory.
    pub disk_bytes: u64,
    /// Reserved bytes of huge pages by page size in bytes.
    pub huge_pages: BTreeMap<u64, u64>,
    /// Maximum number of pods.
    pub pods: u32,
}

/// Resources not available to pods.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Reserved {
    /// Reservations for the system and Kubernetes daemons, by resource.
    pub amounts: Amounts,
    /// Hard eviction threshold on memory, in bytes.
    pub eviction_memory_bytes: u64,
    /// Hard eviction threshold on disk space, in bytes.
    pub eviction_disk_bytes: u64,
}

/// Facts and settings of the node.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct MachineInfo {
    /// Name of the Node object.
    pub name: String,
    /// Host name.
    pub hostname: String,
    /// Addresses, primary first.
    pub ips: Vec<String>,
    /// Names and versions of operating system and programs.
    pub info: NodeSystemInfo,
    /// Capacity of the machine.
    pub capacity: Capacity,
    /// Resources not available to pods.
    pub reserved: Reserved,
    /// Port of the HTTPS endpoint.
    pub port: u16,
    /// Labels from the configuration.
    pub labels: BTreeMap<String, String>,
    /// Taints from the configuration.
    pub taints: Vec<Taint>,
    /// Provider id; empty if none is configured.
    pub provider_id: String,
    /// Configured pod CIDR; empty if the cluster assigns it.
    pub pod_cidr: String,
    /// What says the node's addresses.
    pub cloud: CloudProvider,
}

/// `--cloud-provider`: what completes the Node object.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum CloudProvider {
    /// The agent alone.
    #[default]
    None,
    /// A cloud controller manager: it removes the taint of new nodes, and addresses that it has written stay.
    External {
        /// The address of `--node-ip`, which the cloud's are chosen by; empty without one.
        provided_ip: String,
    },
}

/// An entry of `status.images` of the Node.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NodeImage {
    /// Tags and digests.
    pub names: Vec<String>,
    /// Bytes on disk.
    pub size_bytes: i64,
}

/// Input of the node conditions.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NodeHealth {
    /// Reasons why pods cannot run at the moment; empty if ready.
    pub not_ready: Vec<String>,
    /// Memory is short.
    pub memory_pressure: bool,
    /// Disk is short.
    pub disk_pressure: bool,
    /// Process ids are short.
    pub pid_pressure: bool,
}

/// Images, and the number to list.
#[derive(Clone, Copy, Debug)]
pub struct ListedImages<'a> {
    /// All images.
    pub all: &'a [NodeImage],
    /// `nodeStatusMaxImages`.
    pub max: usize,
}

/// Most names per image, as in Kubernetes.
const IMAGE_NAMES_MAX: usize = 5;

/// The Node object to register. Its taint keeps pods away until the node is ready.
pub fn registration(names: &Names, machine: &MachineInfo, status: NodeStatus) -> Node {
    let mut node = Node::default();
    node.metadata.name.clone_from(&machine.name);
    node.metadata.labels = labels(names, machine);
    node.metadata.annotations = annotations(names, machine);
    node.spec.taints.clone_from(&machine.taints);
    if machine.cloud != CloudProvider::None {
        node.spec.taints.push(Taint {
            key: names.sub_label("node.cloudprovider", "uninitialized"),
            value: "true".to_owned(),
            effect: "NoSchedule".to_owned(),
            ..Taint::default()
        });
    }
    node.spec.provider_id.clone_from(&machine.provider_id);
    if !machine.pod_cidr.is_empty() {
        node.spec.pod_cidr.clone_from(&machine.pod_cidr);
        node.spec.pod_cidrs = vec![machine.pod_cidr.clone()];
    }
    node.status = status;
    node
}

/// Sets what the agent owns of a Node that exists: facts of the machine and of its place, its annotations, and a provider id if
/// there is none, which is never changed. Returns whether something changed. Other configured labels
/// are those of a new Node: an administrator may have changed them since.
pub fn reconcile_registration(names: &Names, machine: &MachineInfo, node: &mut Node) -> bool {
    let place = place_labels(names);
    let configured = machine.labels.iter().filter(|(key, _)| place.contains(key));
    let mut own: BTreeMap<String, String> =
        configured.map(|(key, value)| (key.clone(), value.clone())).collect();
    own.extend(facts(names, machine));
    let meta = &mut node.metadata;
    let is_labelled = own.iter().all(|(key, value)| meta.labels.get(key) == Some(value));
    meta.labels.extend(own);
    let annotations = annotations(names, machine);
    let is_annotated =
        annotations.iter().all(|(key, value)| meta.annotations.get(key) == Some(value));
    meta.annotations.extend(annotations);
    let lacks_id = node.spec.provider_id.is_empty() && !machine.provider_id.is_empty();
    if lacks_id {
        node.spec.provider_id.clone_from(&machine.provider_id);
    }
    !is_labelled || !is_annotated || lacks_id
}

/// That a controller attaches the node's volumes, and for a cloud the address that was configured.
fn annotations(names: &Names, machine: &MachineInfo) -> BTreeMap<String, String> {
    let attach = names.sub_label("volumes", "controller-managed-attach-detach");
    let mut annotations = BTreeMap::from([(attach, "true".to_owned())]);
    if let CloudProvider::External { provided_ip } = &machine.cloud
        && !provided_ip.is_empty()
    {
        annotations.insert(names.sub_label("alpha", "provided-node-ip"), provided_ip.clone());
    }
    annotations
}

/// Labels of a node's place and type, which the kubelet keeps as configured.
fn place_labels(names: &Names) -> [String; 6] {
    [
        names.sub_label("topology", "zone"),
        names.sub_label("topology", "region"),
        names.sub_label("failure-domain.beta", "zone"),
        names.sub_label("failure-domain.beta", "region"),
        names.sub_label("node", "instance-type"),
        names.sub_label("beta", "instance-type"),
    ]
}

/// Labels of a new Node: configured ones and facts of the machine.
pub fn labels(names: &Names, machine: &MachineInfo) -> BTreeMap<String, String> {
    let mut labels = machine.labels.clone();
    labels.extend(facts(names, machine));
    labels
}

fn facts(names: &Names, machine: &MachineInfo) -> BTreeMap<String, String> {
    let (arch, os) = (&machine.info.architecture, &machine.info.operating_system);
    BTreeMap::from([
        (names.label("hostname"), machine.hostname.clone()),
        (names.label("arch"), arch.clone()),
        (names.label("os"), os.clone()),
        (names.sub_label("beta", "arch"), arch.clone()),
        (names.sub_label("beta", "os"), os.clone()),
    ])
}

/// The status of the node. `before` is the current status: conditions of other components are kept, and a condition that does not
/// change keeps its transition time.
pub fn status(
    machine: &MachineInfo,
    health: &NodeHealth,
    images: ListedImages<'_>,
    before: &NodeStatus,
    now: Time,
) -> NodeStatus {
    let (capacity, allocatable) = capacity(&machine.capacity, &machine.reserved);
    let mut status = NodeStatus {
        capacity,
        allocatable,
        conditions: conditions(health, &before.conditions, now),
        addresses: addresses(machine, &before.addresses),
        node_info: machine.info.clone(),
        images: list_images(images.all, images.max),
        volumes_attached: before.volumes_attached.clone(),
        volumes_in_use: before.volumes_in_use.clone(),
        ..NodeStatus::default()
    };
    let port = i32::from(machine.port);
    status.daemon_endpoints.kubelet_endpoint = DaemonEndpoint { port };
    status
}

/// Whether two statuses differ in more than heartbeat times.
pub fn differs(a: &NodeStatus, b: &NodeStatus) -> bool {
    let still = |status: &NodeStatus| {
        let mut status = status.clone();
        for condition in &mut status.conditions {
            condition.last_heartbeat_time = Time::default();
        }
        status
    };
    still(a) != still(b)
}

/// Capacity and allocatable.
pub fn capacity(capacity: &Capacity, reserved: &Reserved) -> (Amounts, Amounts) {
    let bytes = |n: u64| Quantity::from_bytes(i64::try_from(n).unwrap_or(i64::MAX));
    let mut total = Amounts::new();
    total.insert(CPU.to_owned(), Quantity::from_units(capacity.cpus.into()));
    total.insert(MEMORY.to_owned(), bytes(capacity.memory_bytes));
    total.insert(EPHEMERAL_STORAGE.to_owned(), bytes(capacity.disk_bytes));
    total.insert(PODS.to_owned(), Quantity::from_units(capacity.pods.into()));
    for (page, size) in &capacity.huge_pages {
        total.insert(format!("hugepages-{}", bytes(*page)), bytes(*size));
    }
    let mut left = total.clone();
    let mut take = |name: &str, amount: Quantity| {
        if let Some(known) = left.get_mut(name) {
            *known = (*known - amount).max(Quantity::default().with_format(known.format()));
        }
    };
    for (name, amount) in &reserved.amounts {
        take(name, *amount);
    }
    take(MEMORY, bytes(reserved.eviction_memory_bytes));
    take(EPHEMERAL_STORAGE, bytes(reserved.eviction_disk_bytes));
    // Memory of huge pages is not available otherwise.
    take(MEMORY, bytes(capacity.huge_pages.values().sum()));
    (total, left)
}

/// Until a cloud has written addresses, those that are known here.
fn addresses(machine: &MachineInfo, before: &[NodeAddress]) -> Vec<NodeAddress> {
    if machine.cloud != CloudProvider::None && !before.is_empty() {
        return before.to_vec();
    }
    let address = |type_: &str, address: &str| NodeAddress {
        type_: type_.to_owned(),
        address: address.to_owned(),
    };
    let ips = machine.ips.iter().map(|ip| address("InternalIP", ip));
    ips.chain([address("Hostname", &machine.hostname)]).collect()
}

/// The largest images, each with its shortest names.
fn list_images(images: &[NodeImage], max: usize) -> Vec<ContainerImage> {
    let mut images: Vec<&NodeImage> = images.iter().filter(|i| !i.names.is_empty()).collect();
    images.sort_by_key(|i| (Reverse(i.size_bytes), &i.names));
    let show = |image: &NodeImage| ContainerImage {
        names: image.names.iter().take(IMAGE_NAMES_MAX).cloned().collect(),
        size_bytes: image.size_bytes,
    };
    images.into_iter().take(max).map(show).collect()
}

fn conditions(health: &NodeHealth, before: &[NodeCondition], now: Time) -> Vec<NodeCondition> {
    let ready = if health.not_ready.is_empty() {
        ("Ready", true, "KubeletReady", "orchlet is posting ready status".to_owned())
    } else {
        ("Ready", false, "KubeletNotReady", health.not_ready.join(", "))
    };
    let pressure = |kind, under: bool, yes, no, what: &str| {
        let has = if under { "insufficient" } else { "sufficient" };
        (kind, under, if under { yes } else { no }, format!("orchlet has {has} {what} available"))
    };
    let own = [
        pressure(
            "MemoryPressure",
            health.memory_pressure,
            "KubeletHasInsufficientMemory",
            "KubeletHasSufficientMemory",
            "memory",
        ),
        pressure(
            "DiskPressure",
            health.disk_pressure,
            "KubeletHasDiskPressure",
            "KubeletHasNoDiskPressure",
            "disk space",
        ),
        pressure(
            "PIDPressure",
            health.pid_pressure,
            "KubeletHasInsufficientPID",
            "KubeletHasSufficientPID",
            "process ids",
        ),
        ready,
    ];
    let names: BTreeSet<&str> = own.iter().map(|c| c.0).collect();
    let foreign = before.iter().filter(|c| !names.contains(c.type_.as_str())).cloned();
    let own = own.iter().map(|(kind, holds, reason, message)| {
        let status = if *holds { "True" } else { "False" };
        let known = before.iter().find(|c| c.type_ == *kind && c.status == status);
        NodeCondition {
            type_: (*kind).to_owned(),
            status: status.to_owned(),
            last_heartbeat_time: now,
            last_transition_time: known.map_or(now, |c| c.last_transition_time),
            reason: (*reason).to_owned(),
            message: message.clone(),
        }
    });
    foreign.chain(own).collect()
}

/// Event reasons of the conditions that changed between two statuses, or were set first; of `Ready` only changes, as in Kubernetes' kubelet.
pub fn condition_events(before: &NodeStatus, after: &NodeStatus) -> Vec<&'static str> {
    let describe_transition = |condition: &NodeCondition| {
        let known = before.conditions.iter().find(|c| c.type_ == condition.type_);
        let is_first_ready = known.is_none() && condition.type_ == "Ready";
        if is_first_ready || known.is_some_and(|known| known.status == condition.status) {
            return None;
        }
        Some(match (condition.type_.as_str(), condition.status == "True") {
            ("Ready", true) => "NodeReady",
            ("Ready", false) => "NodeNotReady",
            ("MemoryPressure", true) => "NodeHasInsufficientMemory",
            ("MemoryPressure", false) => "NodeHasSufficientMemory",
            ("DiskPressure", true) => "NodeHasDiskPressure",
            ("DiskPressure", false) => "NodeHasNoDiskPressure",
            ("PIDPressure", true) => "NodeHasInsufficientPID",
            ("PIDPressure", false) => "NodeHasSufficientPID",
            _ => return None,
        })
    };
    after.conditions.iter().filter_map(describe_transition).collect()
}

#[cfg(test)]
mod tests {
    use proto_api::names::Profile;

    use super::*;

    const NONE: ListedImages<'_> = ListedImages { all: &[], max: 50 };

    fn machine() -> MachineInfo {
        let mut machine = MachineInfo {
            name: "n1".into(),
            hostname: "h1".into(),
            ips: vec!["10.0.0.5".into()],
            capacity: Capacity {
                cpus: 2,
                memory_bytes: 4 << 30,
                disk_bytes: 100 << 30,
                huge_pages: BTreeMap::from([(2 << 20, 1 << 30)]),
                pods: 110,
            },
            port: 10250,
            ..MachineInfo::default()
        };
        machine.reserved.amounts.insert("cpu".into(), Quantity::from_milli(500));
        machine.reserved.eviction_memory_bytes = 100 << 20;
        machine.reserved.eviction_disk_bytes = 10 << 30;
        machine
    }

    #[test]
    fn allocatable_is_capacity_without_reservations() {
        let machine = machine();
        let (total, left) = capacity(&machine.capacity, &machine.reserved);
        assert_eq!(total["memory"].to_string(), "4Gi");
        assert_eq!(total["hugepages-2Mi"].to_string(), "1Gi");
        assert_eq!(left["ephemeral-storage"].to_string(), "90Gi");
        assert_eq!(left["cpu"].to_string(), "1500m");
        assert_eq!(left["memory"].to_string(), "2972Mi");
        assert_eq!(left["pods"].to_string(), "110");
    }

    #[test]
    fn a_reservation_beyond_capacity_leaves_nothing() {
        let mut machine = machine();
        machine.reserved.amounts.insert("cpu".into(), Quantity::from_units(64));
        assert!(capacity(&machine.capacity, &machine.reserved).1["cpu"].is_zero());
    }

    #[test]
    fn conditions_keep_their_transition_time_until_they_turn() {
        let (t1, t2, t3) = (Time::from_unix(10), Time::from_unix(20), Time::from_unix(30));
        let machine = machine();
        let first = status(&machine, &NodeHealth::default(), NONE, &NodeStatus::default(), t1);
        let second = status(&machine, &NodeHealth::default(), NONE, &first, t2);
        let ready = |s: &NodeStatus| s.conditions.iter().find(|c| c.type_ == "Ready").cloned();
        let second_ready = ready(&second).expect("ready");
        assert_eq!(second_ready.last_transition_time, t1);
        assert_eq!(second_ready.last_heartbeat_time, t2);
        assert!(!differs(&first, &second));
        let ill = NodeHealth { not_ready: vec!["runtime is down".into()], ..NodeHealth::default() };
        let third = status(&machine, &ill, NONE, &second, t3);
        let third_ready = ready(&third).expect("ready");
        assert_eq!(third_ready.status, "False");
        assert_eq!(third_ready.last_transition_time, t3);
        assert!(differs(&second, &third));
        assert_eq!(condition_events(&first, &second), Vec::<&str>::new());
        assert_eq!(condition_events(&second, &third), ["NodeNotReady"]);
        let all = ["NodeHasSufficientMemory", "NodeHasNoDiskPressure", "NodeHasSufficientPID"];
        assert_eq!(condition_events(&NodeStatus::default(), &first), all);
        assert_eq!(condition_events(&third, &second), ["NodeReady"]);
    }

    #[test]
    fn conditions_of_others_stay() {
        let other = NodeCondition {
            type_: "NetworkUnavailable".into(),
            status: "False".into(),
            ..NodeCondition::default()
        };
        let before = NodeStatus { conditions: vec![other.clone()], ..NodeStatus::default() };
        let after = status(&machine(), &NodeHealth::default(), NONE, &before, Time::from_unix(1));
        assert_eq!(after.conditions.first(), Some(&other));
        assert_eq!(after.conditions.len(), 5);
    }

    #[test]
    fn the_largest_images_are_listed() {
        let image = |n: i64| NodeImage { names: vec![format!("i{n}")], size_bytes: n };
        let images: Vec<NodeImage> = (0..60).map(image).collect();
        let listed = list_images(&images, 50);
        assert_eq!(listed.len(), 50);
        assert_eq!(listed[0].names, ["i59"]);
    }

    #[test]
    fn a_node_is_labelled_with_what_it_is() {
        let mut machine = machine();
        machine.info.architecture = "arm64".into();
        machine.info.operating_system = "linux".into();
        for (key, value) in [("zone", "z1"), ("kubernetes.io/arch", "other")] {
            machine.labels.insert(key.into(), value.into());
        }
        let names = Names::new(Profile::Kubernetes);
        let node = registration(names, &machine, NodeStatus::default());
        for (key, value) in [
            ("kubernetes.io/arch", "arm64"),
            ("kubernetes.io/os", "linux"),
            ("kubernetes.io/hostname", "h1"),
            ("zone", "z1"),
        ] {
            assert_eq!(node.metadata.labels.get(key).map(String::as_str), Some(value), "{key}");
        }
        let own = registration(Names::new(Profile::default()), &machine, NodeStatus::default());
        assert_eq!(own.metadata.labels["orch.io/os"], "linux");
    }

    #[test]
    fn a_cloud_completes_the_node_and_its_addresses_stay() {
        let names = Names::new(Profile::Kubernetes);
        let mut machine = machine();
        machine.cloud = CloudProvider::External { provided_ip: "10.0.0.5".into() };
        let now = Time::from_unix(1);
        let new = status(&machine, &NodeHealth::default(), NONE, &NodeStatus::default(), now);
        assert_eq!(new.addresses[0].address, "10.0.0.5", "until the cloud has looked");
        let mut node = registration(names, &machine, new);
        let taints: Vec<String> = node
            .spec
            .taints
            .iter()
            .map(|t| format!("{}={}:{}", t.key, t.value, t.effect))
            .collect();
        assert_eq!(taints, ["node.cloudprovider.kubernetes.io/uninitialized=true:NoSchedule"]);
        let provided = "alpha.kubernetes.io/provided-node-ip";
        assert_eq!(node.metadata.annotations[provided], "10.0.0.5");
        // The cloud has written the addresses and removed the taint.
        node.spec.taints.clear();
        let external =
            |address: &str| NodeAddress { type_: "ExternalIP".into(), address: address.into() };
        node.status.addresses = vec![external("192.0.2.7")];
        let next = status(&machine, &NodeHealth::default(), NONE, &node.status, now);
        assert_eq!(next.addresses, [external("192.0.2.7")]);
        assert!(!reconcile_registration(names, &machine, &mut node));
        assert!(node.spec.taints.is_empty());
        machine.cloud = CloudProvider::None;
        let own = status(&machine, &NodeHealth::default(), NONE, &node.status, now);
        assert_eq!(own.addresses.len(), 2, "without a cloud they are the agent's");
    }

    #[test]
    fn a_node_that_exists_keeps_the_labels_of_its_administrator() {
        let names = Names::new(Profile::Kubernetes);
        let mut machine = machine();
        (machine.info.architecture, machine.provider_id) = ("arm64".into(), "cloud://1".into());
        let zone = "topology.kubernetes.io/zone";
        for (key, value) in [("pool", "blue"), ("disk", "ssd"), (zone, "z1")] {
            machine.labels.insert(key.into(), value.into());
        }
        let attach = "volumes.kubernetes.io/controller-managed-attach-detach";
        // Created by a tool, or labelled by an administrator since it was registered.
        let mut node = Node::default();
        for (key, value) in [("pool", "green"), ("kubernetes.io/arch", "amd64"), (zone, "z9")] {
            node.metadata.labels.insert(key.into(), value.into());
        }
        assert!(reconcile_registration(names, &machine, &mut node));
        let label = |key: &str| node.metadata.labels.get(key).map(String::as_str);
        assert_eq!((label("pool"), label("disk")), (Some("green"), None));
        assert_eq!((label("kubernetes.io/arch"), label(zone)), (Some("arm64"), Some("z1")));
        assert_eq!(node.metadata.annotations[attach], "true");
        assert_eq!(node.spec.provider_id, "cloud://1");
        assert!(!reconcile_registration(names, &machine, &mut node), "nothing is left to do");
        let spoil: [fn(&mut Node); 3] = [
            |node| node.metadata.annotations.clear(),
            |node| _ = node.metadata.labels.remove("kubernetes.io/hostname"),
            |node| node.spec.provider_id.clear(),
        ];
        for (number, spoil) in spoil.into_iter().enumerate() {
            spoil(&mut node);
            assert!(reconcile_registration(names, &machine, &mut node), "{number}");
        }
        node.spec.provider_id = "cloud://2".into();
        assert!(!reconcile_registration(names, &machine, &mut node), "an id stays");
        // A new Node has all of them.
        let node = registration(names, &machine, NodeStatus::default());
        assert_eq!(
            (&*node.metadata.labels["pool"], &*node.metadata.labels["disk"]),
            ("blue", "ssd")
        );
    }
}
