//! Publishes the node's CSI drivers: in the CSINode object, and in labels and annotations of the
//! Node.

use std::collections::BTreeMap;
use std::sync::Arc;

use agent_csi::Driver;
use agent_csi::registration::{AnnounceError, DriverAnnouncer, OtherPlugin};
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

/// Attempts to write an object after conflicts.
const WRITES_MAX: u32 = 10;

/// Publishes to the API server.
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

    /// The CSINode object without drivers, owned by the Node.
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

    async fn add(&self, driver: &Driver) -> Result<(), AnnounceError> {
        self.show(&driver.name, Some(driver)).await?;
        self.change(|object| add(object, driver)).await.map_err(not_written)
    }

    async fn remove(&self, name: &str) -> Result<(), AnnounceError> {
        let taken_out =
            self.change(|object| object.spec.drivers.retain(|driver| driver.name != name));
        taken_out.await.map_err(not_written)?;
        self.show(name, None).await
    }

    /// Publishes a driver's registration or removal in the Node. Drivers register concurrently:
    /// changes of others are not undone.
    async fn show(&self, name: &str, driver: Option<&Driver>) -> Result<(), AnnounceError> {
        let api = self.client.all::<Node>();
        let mut tries = 0;
        loop {
            let node = api.get(&self.node).await.map_err(not_written)?;
            if let Some(driver) = driver {
                check_topology(&node, &driver.name, &driver.info.topology)?;
            }
            let patch = Patch::Merge(node_patch(self.client.names(), &node, name, driver));
            let written = api.patch(&self.node, &patch, &WriteParams::default()).await;
            tries += 1;
            match written {
                Err(error) if error.is_conflict() && tries < WRITES_MAX => {}
                written => return written.map(drop).map_err(not_written),
            }
        }
    }
}

fn not_written(error: ClientError) -> AnnounceError {
    AnnounceError::Objects(Box::new(error))
}

/// Checks a driver's topology against existing labels, which it must not change.
fn check_topology(
    node: &Node,
    driver: &str,
    topology: &BTreeMap<String, String>,
) -> Result<(), AnnounceError> {
    for (key, value) in topology {
        if let Some(known) = node.metadata.labels.get(key).filter(|known| *known != value) {
            return Err(AnnounceError::Label {
                driver: driver.to_owned(),
                key: key.clone(),
                reported: value.clone(),
                known: known.clone(),
            });
        }
    }
    Ok(())
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

/// The patch of the Node: the driver's node id in an annotation, and its topology in labels.
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
    // For that version only, since the annotation is shared by all drivers.
    let version = &node.metadata.resource_version;
    json!({"metadata": {
        "resourceVersion": version, "annotations": {key: value}, "labels": labels,
    }})
}

impl DriverAnnouncer for ClusterDrivers {
    fn driver_registered<'a>(
        &'a self,
        driver: &'a Driver,
    ) -> BoxFuture<'a, Result<(), AnnounceError>> {
        self.add(driver).boxed()
    }

    fn driver_removed<'a>(&'a self, name: &'a str) -> BoxFuture<'a, ()> {
        async move {
            if let Err(error) = self.remove(name).await {
                tracing::warn!(driver = name, error = chain(&error), "cannot remove a CSI driver from the Node and CSINode objects; it stays listed there");
            }
        }
        .boxed()
    }
}

/// Publishes nothing, for a node without an API server.
pub struct NoCluster;

impl DriverAnnouncer for NoCluster {
    fn driver_registered<'a>(&'a self, _: &'a Driver) -> BoxFuture<'a, Result<(), AnnounceError>> {
        std::future::ready(Ok(())).boxed()
    }

    fn driver_removed<'a>(&'a self, _: &'a str) -> BoxFuture<'a, ()> {
        std::future::ready(()).boxed()
    }
}

/// Registers device plugins in addition to CSI drivers.
pub struct WithDevices {
    /// Publishes CSI drivers.
    pub drivers: Arc<dyn DriverAnnouncer>,
    /// The device plugins.
    pub devices: Plugins,
}

/// Plugin type of device plugins.
const DEVICES: &str = "DevicePlugin";

impl DriverAnnouncer for WithDevices {
    fn driver_registered<'a>(
        &'a self,
        driver: &'a Driver,
    ) -> BoxFuture<'a, Result<(), AnnounceError>> {
        self.drivers.driver_registered(driver)
    }

    fn driver_removed<'a>(&'a self, name: &'a str) -> BoxFuture<'a, ()> {
        self.drivers.driver_removed(name)
    }

    fn other_plugin_registered<'a>(
        &'a self,
        plugin: &'a OtherPlugin,
    ) -> BoxFuture<'a, Option<Result<(), AnnounceError>>> {
        async move {
            if plugin.kind != DEVICES {
                return None;
            }
            let OtherPlugin { name, endpoint, versions, .. } = plugin;
            let adopted = self.devices.adopt(name, endpoint.clone(), versions).await;
            Some(adopted.map_err(|error| AnnounceError::Refused(Box::new(error))))
        }
        .boxed()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use proto_api::names::Profile;
    use proto_client::testing::{StubRequest, StubServer, json_response};
    use serde_json::Value;

    use super::*;

    const NODE_IDS: &str = "csi.volume.kubernetes.io/nodeid";
    const NODE_PATH: &str = "/api/v1/nodes/n1";

    fn node(version: u32, ids: &str) -> Value {
        json!({"kind": "Node", "apiVersion": "v1", "metadata": {
            "name": "n1", "uid": "n", "resourceVersion": version.to_string(), "annotations": {NODE_IDS: ids},
        }})
    }

    #[tokio::test]
    async fn drivers_that_change_at_the_same_time_keep_each_others_ids() {
        // A driver adds itself after each of the first two reads.
        let ids = |added: u32| json!({"a": "1", "b": "2", "c": added.to_string()}).to_string();
        let added = Mutex::new(0);
        let written = Arc::new(Mutex::new(Vec::new()));
        let seen = written.clone();
        let answer = move |request: &StubRequest| {
            assert_eq!(request.path, NODE_PATH);
            let mut added = added.lock().expect("no panic");
            let before = node(*added, &ids(*added));
            if request.method == "GET" {
                *added = (*added + 1).min(2);
                return Some(json_response(200, &before));
            }
            let patch: Value = serde_json::from_slice(&request.body).expect("JSON");
            if patch["metadata"]["resourceVersion"] == before["metadata"]["resourceVersion"] {
                seen.lock().expect("no panic").push(patch["metadata"]["annotations"].clone());
                return Some(json_response(200, &before));
            }
            let failure = json!({"kind": "Status", "apiVersion": "v1", "status": "Failure", "reason": "Conflict", "code": 409});
            Some(json_response(409, &failure))
        };
        let client = StubServer::start(answer).await.client();
        let drivers = ClusterDrivers { client, node: "n1".into() };
        drivers.show("a", None).await.expect("written");
        let wanted = json!({"b": "2", "c": "2"}).to_string();
        assert_eq!(*written.lock().expect("no panic"), [json!({NODE_IDS: wanted})]);
    }

    #[test]
    fn a_driver_does_not_relabel_its_node() {
        let mut node = Node::default();
        node.metadata.resource_version = "7".into();
        for (key, value) in [("kubernetes.io/hostname", "n1"), ("zone.d", "a")] {
            node.metadata.labels.insert(key.into(), value.into());
        }
        let says = |key: &str, value: &str| {
            let topology = BTreeMap::from([(key.to_owned(), value.to_owned())]);
            check_topology(&node, "d", &topology)
        };
        says("zone.d", "a").expect("as it is");
        says("rack.d", "r").expect("new");
        let refused = says("kubernetes.io/hostname", "other").expect_err("another's").to_string();
        assert!(refused.contains("hostname=\"other\"") && refused.contains("\"n1\""), "{refused}");
        let patch = node_patch(Names::new(Profile::Kubernetes), &node, "d", None);
        assert_eq!(patch["metadata"]["resourceVersion"], "7");
    }

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
