//! Devices of device plugins: inventory, use, and allocation.

#![cfg_attr(not(test), warn(clippy::arithmetic_side_effects))]

use std::collections::{BTreeMap, BTreeSet};

use proto_api::Quantity;
use proto_api::core::v1::NodeStatus;
use serde::{Deserialize, Serialize};

use super::set::IdSet;
use super::topology::{Hints, hints};

/// Device ids.
pub type Ids = BTreeSet<String>;

/// A device as its plugin reports it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Device {
    pub health: DeviceHealth,
    /// NUMA nodes of the device; empty if the plugin reports none.
    pub nodes: IdSet,
}

/// Whether a device plugin reports a device as usable.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum DeviceHealth {
    /// Works.
    #[default]
    Healthy,
    /// Does not work and is not allocated.
    Unhealthy,
}

/// Devices of one resource by id.
pub type Devices = BTreeMap<String, Device>;
/// All devices by resource.
pub type Inventory = BTreeMap<String, Devices>;

/// What a plugin adds to a container that uses its devices.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ContainerEdits {
    /// Environment variables.
    pub env: BTreeMap<String, String>,
    /// Mounts: path in the container, path on the host, whether read-only.
    pub mounts: Vec<(String, String, bool)>,
    /// Device nodes: path in the container, path on the host, permissions.
    pub devices: Vec<(String, String, String)>,
    /// Annotations for the runtime.
    pub annotations: BTreeMap<String, String>,
}

/// A choice among the devices of a resource.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DeviceChoice {
    /// Name of the resource.
    pub resource: String,
    /// Devices to choose from.
    pub available: Ids,
    /// Devices that have to be chosen.
    pub must: Ids,
    /// Number of devices to choose.
    pub number: usize,
}

/// Too few devices; the text is the kubelet's.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "requested number of devices unavailable for {resource}. Requested: {requested}, Available: \
     {available}"
)]
pub struct TooFewDevices {
    /// Name of the resource.
    pub resource: String,
    /// Requested number, without devices that are reused.
    pub requested: usize,
    /// Number of free devices.
    pub available: usize,
}

/// Adds devices to the Node's status: their number as capacity, the number of healthy ones as allocatable. Extended resources
/// that other clients added to `before` are kept; their allocatable amount defaults to the capacity.
pub fn add_to_status(status: &mut NodeStatus, before: &NodeStatus, inventory: &Inventory) {
    for (name, amount) in before.capacity.iter().filter(|(name, _)| name.contains('/')) {
        let allocatable = before.allocatable.get(name).unwrap_or(amount);
        status.capacity.insert(name.clone(), *amount);
        status.allocatable.insert(name.clone(), *allocatable);
    }
    let amount = |n: usize| Quantity::from_units(i64::try_from(n).unwrap_or(i64::MAX));
    for (resource, devices) in inventory {
        let working =
            devices.values().filter(|device| device.health == DeviceHealth::Healthy).count();
        status.capacity.insert(resource.clone(), amount(devices.len()));
        status.allocatable.insert(resource.clone(), amount(working));
    }
}

/// Healthy devices that are not in use.
fn free_devices(devices: &Devices, used: &Ids) -> Ids {
    let works = |(id, device): &(&String, &Device)| {
        device.health == DeviceHealth::Healthy && !used.contains(*id)
    };
    devices.iter().filter(works).map(|(id, _)| id.clone()).collect()
}

/// Topology hints for `number` devices; `None` if no device reports its NUMA node. `reusable` are devices of the pod's init
/// containers.
pub fn device_hints(
    nodes: &IdSet,
    devices: &Devices,
    used: &Ids,
    reusable: &Ids,
    number: usize,
) -> Hints {
    if devices.values().all(|device| device.nodes.is_empty()) {
        return None;
    }
    let near =
        |set: &IdSet, device: &Device| device.nodes.is_empty() || !device.nodes.and(set).is_empty();
    let total = |set: &IdSet| {
        let works = |device: &&Device| device.health == DeviceHealth::Healthy && near(set, device);
        devices.values().filter(works).count() as u64
    };
    let free = free_devices(devices, used);
    let left = |set: &IdSet| {
        let usable = |(id, device): &(&String, &Device)| {
            (free.contains(*id) || reusable.contains(*id)) && near(set, device)
        };
        devices.iter().filter(usable).count() as u64
    };
    Some(hints(nodes, number as u64, total, left))
}

/// Determines the devices that may be allocated: reusable ones first, then those near `place`.
///
/// # Errors
/// There are too few.
pub fn device_choice(
    resource: &str,
    devices: &Devices,
    used: &Ids,
    reusable: &Ids,
    number: usize,
    place: Option<&IdSet>,
) -> Result<DeviceChoice, TooFewDevices> {
    let mut must: Ids = reusable.iter().take(number).cloned().collect();
    let missing = number.saturating_sub(must.len());
    let free = free_devices(devices, used);
    if free.len() < missing {
        let (resource, available) = (resource.to_owned(), free.len());
        return Err(TooFewDevices { resource, requested: missing, available });
    }
    let is_near = |id: &&String| {
        let nodes = devices.get(*id).map(|device| &device.nodes);
        place.is_none_or(|place| nodes.is_some_and(|nodes| !nodes.and(place).is_empty()))
    };
    let near: Ids = free.iter().filter(is_near).cloned().collect();
    let available = if near.len() >= missing {
        near
    } else {
        must.extend(near);
        free
    };
    let available = available.union(&must).cloned().collect();
    Ok(DeviceChoice { resource: resource.to_owned(), available, must, number })
}

/// The allocated devices: the plugin's preferred ones as far as they are allowed, then in order of id.
pub fn choose_devices(ask: &DeviceChoice, preferred: &[String]) -> Ids {
    let mut chosen = ask.must.clone();
    let candidates = preferred.iter().chain(&ask.available);
    for id in candidates.filter(|id| ask.available.contains(*id)) {
        if chosen.len() >= ask.number {
            break;
        }
        chosen.insert(id.clone());
    }
    chosen
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn devices(list: &[(&str, &str, bool)]) -> Devices {
        let device = |nodes: &str, healthy: bool| Device {
            health: if healthy { DeviceHealth::Healthy } else { DeviceHealth::Unhealthy },
            nodes: nodes.parse().expect("set"),
        };
        list.iter().map(|(id, nodes, ok)| ((*id).to_owned(), device(nodes, *ok))).collect()
    }

    fn ids(list: &[&str]) -> Ids {
        list.iter().map(|id| (*id).to_owned()).collect()
    }

    #[test]
    fn near_and_healthy_devices_are_given() {
        let all =
            devices(&[("a", "0", true), ("b", "0", false), ("c", "1", true), ("d", "1", true)]);
        let node1: IdSet = "1".parse().expect("set");
        let got = device_choice("r", &all, &ids(&[]), &ids(&[]), 2, Some(&node1)).expect("enough");
        assert_eq!((got.available.clone(), got.must.clone()), (ids(&["c", "d"]), ids(&[])));
        assert_eq!(choose_devices(&got, &[]), ids(&["c", "d"]));
        let got =
            device_choice("r", &all, &ids(&["c"]), &ids(&[]), 2, Some(&node1)).expect("enough");
        assert_eq!((got.available, got.must), (ids(&["a", "d"]), ids(&["d"])));
        let few = device_choice("r", &all, &ids(&["c"]), &ids(&[]), 3, None).expect_err("too few");
        assert_eq!(
            few.to_string(),
            "requested number of devices unavailable for r. Requested: 3, Available: 2"
        );
    }

    #[test]
    fn extended_resources_set_by_users_are_kept_and_allocatable() {
        let amounts = |list: &[(&str, i64)]| {
            let amount = |(name, n): &(&str, i64)| ((*name).to_owned(), Quantity::from_units(*n));
            list.iter().map(amount).collect()
        };
        let before = NodeStatus {
            capacity: amounts(&[("cpu", 9), ("a/new", 4), ("a/some", 4)]),
            allocatable: amounts(&[("cpu", 9), ("a/some", 3), ("a/none", 2)]),
            ..NodeStatus::default()
        };
        let mut status = NodeStatus::default();
        add_to_status(&mut status, &before, &Inventory::default());
        assert_eq!(status.capacity, amounts(&[("a/new", 4), ("a/some", 4)]));
        assert_eq!(status.allocatable, amounts(&[("a/new", 4), ("a/some", 3)]));
    }

    #[test]
    fn devices_of_init_containers_are_reused() {
        let all = devices(&[("a", "", true), ("b", "", true)]);
        let got = device_choice("r", &all, &ids(&["a"]), &ids(&["a"]), 1, None).expect("enough");
        assert_eq!(choose_devices(&got, &["b".into()]), ids(&["a"]));
    }

    #[test]
    fn a_plugins_preference_counts_within_what_may_be_given() {
        let all = devices(&[("a", "", true), ("b", "", true), ("c", "", false)]);
        let got = device_choice("r", &all, &ids(&[]), &ids(&[]), 1, None).expect("enough");
        assert_eq!(choose_devices(&got, &["c".into(), "b".into()]), ids(&["b"]));
    }

    #[test]
    fn a_node_shows_its_devices_and_keeps_what_others_put_there() {
        let one = Quantity::from_units(1);
        let mut before = NodeStatus::default();
        for name in ["example.com/fpga", "example.com/gpu", "cpu"] {
            before.capacity.insert(name.into(), one);
            before.allocatable.insert(name.into(), one);
        }
        let gpus = devices(&[("a", "", true), ("b", "", true), ("c", "", false)]);
        let inventory = Inventory::from([
            ("example.com/gpu".to_owned(), gpus),
            ("example.com/away".to_owned(), Devices::new()),
        ]);
        let mut status = NodeStatus::default();
        add_to_status(&mut status, &before, &inventory);
        let shown = |list: &BTreeMap<String, Quantity>| -> Vec<(String, i64)> {
            list.iter().map(|(name, amount)| (name.clone(), amount.value())).collect()
        };
        let expect = |gpus| {
            [("away", 0), ("fpga", 1), ("gpu", gpus)].map(|(n, v)| (format!("example.com/{n}"), v))
        };
        assert_eq!(shown(&status.capacity), expect(3));
        assert_eq!(shown(&status.allocatable), expect(2));
    }

    #[test]
    fn hints_need_places() {
        let nodes: IdSet = "0-1".parse().expect("set");
        let nowhere = devices(&[("a", "", true)]);
        assert_eq!(device_hints(&nodes, &nowhere, &ids(&[]), &ids(&[]), 1), None);
        let all = devices(&[("a", "0", true), ("b", "1", true)]);
        let hints = device_hints(&nodes, &all, &ids(&["a"]), &ids(&[]), 1).expect("hints");
        let preferred: Vec<_> = hints.iter().filter(|h| h.preferred).map(|h| &h.nodes).collect();
        assert_eq!(preferred, [&"1".parse::<IdSet>().expect("set")]);
    }

    proptest! {
        /// Whatever the plugin prefers, exactly the requested number is allocated, and all are free or reused.
        #[test]
        fn a_plugin_cannot_give_what_is_not_there(
            used in 0_u8..64, number in 0_usize..7, preferred in prop::collection::vec(0_u8..9, 0..8),
        ) {
            let all: Devices =
                (0..6).map(|n| (format!("d{n}"), Device::default())).collect();
            let used: Ids = (0..6).filter(|n| used & (1 << n) != 0).map(|n| format!("d{n}")).collect();
            if let Ok(ask) = device_choice("r", &all, &used, &Ids::new(), number, None) {
                let preferred: Vec<String> = preferred.iter().map(|n| format!("d{n}")).collect();
                let given = choose_devices(&ask, &preferred);
                prop_assert_eq!(given.len(), number);
                prop_assert!(given.is_disjoint(&used));
            }
        }
    }
}
