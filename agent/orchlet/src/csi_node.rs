//! Tells the cluster which drivers this node has: the CSINode object, and what the Node object says of them.

use std::collections::BTreeMap;
use std::sync::Arc;

use agent_csi::Driver;
use agent_csi::registration::{Announce, OtherPlugin};
use agent_devices::Plugins;
use futures_util::FutureExt as _;
use futures_util::future::BoxFuture;
use proto_api::core::v1::Node;
use proto_api::meta::v1::OwnerReference;
use proto_api::migration::DRIVERS;
use proto_api::names::Names;
use proto_api::storage::v1::{CSINode, CSINodeDriver, VolumeNodeResources};
use proto_client::{Client, ClientError, Patch, WriteParams};
use proto_daemon::exit::chain;
use serde_json::json;

/// Attempts to write an object that others write too.
const WRITES_MAX: u32 = 10;

/// Tells an API server.
pub struct ClusterDrivers {
    /// The API server.
    pub client: Client,
    /// Name of the node.
    pub node: String,
}

impl ClusterDrivers {
    async fn change(&self, change: impl Fn(&mut CSINode)) -> Result<(), ClientError> {
        let api = self.client.all::<CSINode>();
        let mut tries = 0;
        loop {
            let params = WriteParams::default();
            let result = match api.find(&self.node).await? {
                Some(found) => {
                    let mut wanted = found.clone();
                    change(&mut wanted);
                    if wanted == found {
                        return Ok(());
                    }
                    api.update(&wanted, &params).await
                }
                None => {
                    let mut wanted = self.new_object().await?;
                    change(&mut wanted);
                    api.create(&wanted, &params).await
                }
            };
            tries += 1;
            match result {
                Err(error) if error.is_conflict() && tries < WRITES_MAX => {}
                result => return result.map(drop),
            }
        }
    }

    /// The object of this node, without drivers. It goes with the Node.
    async fn new_object(&self) -> Result<CSINode, ClientError> {
        let node = self.client.all::<Node>().get(&self.node).await?;
        let mut object = CSINode::default();
        object.metadata.name.clone_from(&self.node);
        object.metadata.owner_references.push(OwnerReference {
            api_version: "v1".to_owned(),
            kind: "Node".to_owned(),
            name: self.node.clone(),
            uid: node.metadata.uid,
            ..OwnerReference::default()
        });
        let names = self.client.names();
        let migrated: Vec<String> = DRIVERS.iter().map(|(plugin, _)| names.label(plugin)).collect();
        let key = names.sub_label("storage.alpha", "migrated-plugins");
        object.metadata.annotations.insert(key, migrated.join(","));
        Ok(object)
    }

    async fn add(&self, driver: &Driver) -> Result<(), ClientError> {
        self.change(|object| add(object, driver)).await?;
        let api = self.client.all::<Node>();
        let node = api.get(&self.node).await?;
        let patch = node_patch(self.client.names(), &node, &driver.name, Some(driver));
        api.patch(&self.node, &Patch::Merge(patch), &WriteParams::default()).await.map(drop)
    }

    async fn remove(&self, name: &str) -> Result<(), ClientError> {
        self.change(|object| object.spec.drivers.retain(|driver| driver.name != name)).await?;
        let api = self.client.all::<Node>();
        let node = api.get(&self.node).await?;
        let patch = node_patch(self.client.names(), &node, name, None);
        api.patch(&self.node, &Patch::Merge(patch), &WriteParams::default()).await.map(drop)
    }
}

fn add(object: &mut CSINode, driver: &Driver) {
    let count = i32::try_from(driver.info.volumes_max).ok().filter(|count| *count > 0);
    let entry = CSINodeDriver {
        name: driver.name.clone(),
        node_id: driver.info.node_id.clone(),
        topology_keys: driver.info.topology.keys().cloned().collect(),
        allocatable: count.map(|count| VolumeNodeResources { count: Some(count) }),
    };
    match object.spec.drivers.iter_mut().find(|known| known.name == driver.name) {
        Some(known) => *known = entry,
        None => object.spec.drivers.push(entry),
    }
}

/// What changes in the Node: the driver's name of it in an annotation, and where it is in labels.
fn node_patch(
    names: &Names,
    node: &Node,
    name: &str,
    driver: Option<&Driver>,
) -> serde_json::Value {
    let key = names.sub_label("csi.volume", "nodeid");
    let known = node.metadata.annotations.get(&key);
    let known = known.and_then(|text| serde_json::from_str(text).ok());
    let mut ids: BTreeMap<String, String> = known.unwrap_or_default();
    match driver {
        Some(driver) => ids.insert(name.to_owned(), driver.info.node_id.clone()),
        None => ids.remove(name),
    };
    let value =
        if ids.is_empty() { serde_json::Value::Null } else { json!(json!(ids).to_string()) };
    let labels = driver.map(|driver| driver.info.topology.clone()).unwrap_or_default();
    json!({"metadata": {"annotations": {key: value}, "labels": labels}})
}

impl Announce for ClusterDrivers {
    fn came<'a>(&'a self, driver: &'a Driver) -> BoxFuture<'a, Result<(), String>> {
        async move {
            self.add(driver)
                .await
                .map_err(|e| format!("announce {}: {}", driver.name, chain(&e)))?;
            Ok(())
        }
        .boxed()
    }

    fn went<'a>(&'a self, name: &'a str) -> BoxFuture<'a, ()> {
        async move {
            if let Err(error) = self.remove(name).await {
                tracing::warn!(
                    driver = name,
                    error = chain(&error),
                    "the cluster still shows a driver"
                );
            }
        }
        .boxed()
    }
}

/// Tells nobody: a node without an API server.
pub struct NoCluster;

impl Announce for NoCluster {
    fn came<'a>(&'a self, _: &'a Driver) -> BoxFuture<'a, Result<(), String>> {
        std::future::ready(Ok(())).boxed()
    }

    fn went<'a>(&'a self, _: &'a str) -> BoxFuture<'a, ()> {
        std::future::ready(()).boxed()
    }
}

/// Plugins that offer devices, beside those that are drivers of volumes.
pub struct WithDevices {
    /// Who hears of drivers.
    pub drivers: Arc<dyn Announce>,
    /// Who takes in the others.
    pub devices: Plugins,
}

/// Type of the plugins that offer devices.
const DEVICES: &str = "DevicePlugin";

impl Announce for WithDevices {
    fn came<'a>(&'a self, driver: &'a Driver) -> BoxFuture<'a, Result<(), String>> {
        self.drivers.came(driver)
    }

    fn went<'a>(&'a self, name: &'a str) -> BoxFuture<'a, ()> {
        self.drivers.went(name)
    }

    fn other<'a>(&'a self, plugin: &'a OtherPlugin) -> BoxFuture<'a, Option<Result<(), String>>> {
        async move {
            if plugin.kind != DEVICES {
                return None;
            }
            let OtherPlugin { name, endpoint, versions, .. } = plugin;
            Some(self.devices.adopt(name, endpoint.clone(), versions).await)
        }
        .boxed()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proto_api::names::Profile;

    #[test]
    fn a_nodes_annotation_names_every_driver() {
        let names = Names::new(Profile::Kubernetes);
        let mut node = Node::default();
        let key = "csi.volume.kubernetes.io/nodeid";
        node.metadata.annotations.insert(key.into(), r#"{"a":"1","b":"2"}"#.into());
        let patch = node_patch(names, &node, "b", None);
        assert_eq!(patch["metadata"]["annotations"][key], r#"{"a":"1"}"#);
        node.metadata.annotations.insert(key.into(), r#"{"b":"2"}"#.into());
        let patch = node_patch(names, &node, "b", None);
        assert!(patch["metadata"]["annotations"][key].is_null());
    }
}
