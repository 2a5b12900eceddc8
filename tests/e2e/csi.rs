//! CSI volumes: the driver of `tests/csi-driver` on a node of the cluster.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use anyhow::{Context as _, Result, ensure};
use orch_tests::wait::until;
use proto_api::Resource;
use proto_api::core::v1::{Event, Node, PersistentVolume, PersistentVolumeClaim, Pod};
use proto_api::names::Profile;
use proto_api::storage::v1::{CSIDriver, CSINode, StorageClass, VolumeAttachment};
use proto_client::{DeleteParams, ListParams, Patch, WriteParams};
use serde_json::{Value, json};

use crate::context::{Context, PATIENCE, shown};
use crate::pods::{WAIT, pod};

/// A driver that runs on a node; on the first one it serves the cluster's claims too. Ends with the case.
pub struct Driver {
    name: String,
    node: String,
    dir: PathBuf,
    registry: PathBuf,
    child: Child,
}

impl Driver {
    /// Starts it on the first node and waits until the cluster shows it.
    pub async fn start(c: &Context, name: &str) -> Result<Driver> {
        let dir = c.spec.dir.join(format!("csi-{name}"));
        std::fs::create_dir_all(&dir)?;
        Self::start_in(c, name, "node-1", dir).await
    }

    /// Starts it on another node, where it has the same volumes.
    pub async fn start_beside(&self, c: &Context, node: &str) -> Result<Driver> {
        let dir = c.spec.dir.join(format!("csi-{}-{node}", self.name));
        std::fs::create_dir_all(&dir)?;
        std::os::unix::fs::symlink(self.dir.join("volumes"), dir.join("volumes"))?;
        Self::start_in(c, &self.name, node, dir).await
    }

    async fn start_in(c: &Context, name: &str, node: &str, dir: PathBuf) -> Result<Driver> {
        let registry = c.spec.node_dir(node).join("orchlet/plugins_registry");
        let child = spawn(c, name, node, &dir, &registry)?;
        let (name, node) = (name.to_owned(), node.to_owned());
        let driver = Driver { name, node, dir, registry, child };
        driver.registered(c).await?;
        Ok(driver)
    }

    /// Waits until the cluster shows the driver.
    async fn registered(&self, c: &Context) -> Result<CSINode> {
        let api = c.client.all::<CSINode>();
        until(&format!("driver {}", self.name), PATIENCE, async || {
            let node = api.get(&self.node).await.map_err(|e| e.to_string())?;
            let told = self.count("NotifyRegistrationStatus") > 0;
            let there = node.spec.drivers.iter().any(|driver| driver.name == self.name);
            if there && told {
                Ok(node)
            } else {
                Err(format!("{:?}, told: {told}", node.spec.drivers))
            }
        })
        .await
    }

    /// Kills the driver and starts another in its place.
    async fn restart(&mut self, c: &Context) -> Result<()> {
        self.child.kill()?;
        self.child.wait()?;
        std::fs::remove_file(self.dir.join("calls"))?;
        self.child = spawn(c, &self.name, &self.node, &self.dir, &self.registry)?;
        self.registered(c).await.map(drop)
    }

    /// What goes wrong from now on, in the words of the driver's `faults`.
    pub fn fault(&self, lines: &str) -> Result<()> {
        Ok(std::fs::write(self.dir.join("faults"), lines)?)
    }

    fn calls(&self) -> Vec<Value> {
        let text = std::fs::read_to_string(self.dir.join("calls")).unwrap_or_default();
        text.lines().filter_map(|line| serde_json::from_str(line).ok()).collect()
    }

    /// How often it was asked that.
    pub fn count(&self, call: &str) -> usize {
        self.calls().iter().filter(|line| line["call"] == call).count()
    }

    /// What the last call of that name carried.
    pub fn last(&self, call: &str) -> Value {
        let last = self.calls().into_iter().rev().find(|line| line["call"] == call);
        last.map(|line| line["what"].clone()).unwrap_or_default()
    }

    pub fn volume(&self, id: &str) -> PathBuf {
        self.dir.join("volumes").join(id)
    }
}

impl Drop for Driver {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        let _ = std::fs::remove_file(self.registry.join(format!("{}-reg.sock", self.name)));
    }
}

fn spawn(c: &Context, name: &str, node: &str, dir: &Path, registry: &Path) -> Result<Child> {
    let log = c.spec.dir.join("logs").join(format!("csi-{name}-{node}.log"));
    let log = std::fs::File::create(log)?;
    let mut command = Command::new(c.spec.bin_dir.join("csi-driver"));
    command.args(["--name", name, "--dir"]).arg(dir).arg("--registry").arg(registry);
    let naming = match c.names.profile() {
        Profile::Kubernetes => "kubernetes",
        Profile::Orch { .. } => "orch",
    };
    command.args(["--naming", naming, "--node-id", node]);
    if node == "node-1" {
        command.arg("--kubeconfig").arg(c.spec.client_config("admin"));
    }
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(log);
    cluster::namespaces::enter(&c.spec, node, &mut command)?;
    command.spawn().context("starting csi-driver")
}

/// The driver's object, and a class of its name that makes volumes at once and lets them grow.
pub async fn describe(c: &Context, driver: &str, spec: Value) -> Result<()> {
    class(c, driver, driver, "Immediate").await?;
    let mut object = CSIDriver::default();
    object.metadata.name = driver.to_owned();
    object.spec = serde_json::from_value(spec)?;
    c.client.all::<CSIDriver>().create(&object, &WriteParams::default()).await?;
    Ok(())
}

/// A claim and a volume that name each other; both are bound when this returns. The volume's name.
pub async fn bound(c: &Context, ns: &str, name: &str, driver: &str) -> Result<String> {
    bound_as(c, ns, name, driver, "Filesystem").await
}

/// The same with a mode.
async fn bound_as(c: &Context, ns: &str, name: &str, driver: &str, mode: &str) -> Result<String> {
    let id = format!("{ns}-{name}");
    c.apply(&format!(
        "apiVersion: v1\nkind: PersistentVolume\nmetadata: {{name: {id}}}\n\
         spec: {{volumeMode: {mode}, accessModes: [ReadWriteOnce], capacity: {{storage: 1Gi}}, persistentVolumeReclaimPolicy: Retain, \
         claimRef: {{namespace: {ns}, name: {name}}}, csi: {{driver: {driver}, volumeHandle: {id}, fsType: ext4}}}}\n"
    ))
    .await?;
    c.apply(&format!(
        "apiVersion: v1\nkind: PersistentVolumeClaim\nmetadata: {{name: {name}, namespace: {ns}}}\n\
         spec: {{volumeMode: {mode}, accessModes: [ReadWriteOnce], storageClassName: '', volumeName: {id}, resources: {{requests: {{storage: 1Gi}}}}}}\n"
    ))
    .await?;
    claim_bound(c, ns, name).await
}

/// A claim for which the driver makes a volume. The volume's name.
pub async fn made(c: &Context, ns: &str, name: &str, class: &str) -> Result<String> {
    c.apply(&claim(ns, name, class)).await?;
    claim_bound(c, ns, name).await
}

/// A claim of 1 GiB.
pub fn claim(ns: &str, name: &str, class: &str) -> String {
    format!(
        "apiVersion: v1\nkind: PersistentVolumeClaim\nmetadata: {{name: {name}, namespace: {ns}}}\n\
         spec: {{accessModes: [ReadWriteOnce], storageClassName: {class:?}, resources: {{requests: {{storage: 1Gi}}}}}}\n"
    )
}

/// Waits until a claim is bound; the name of its volume.
pub async fn claim_bound(c: &Context, ns: &str, name: &str) -> Result<String> {
    let api = c.client.within::<PersistentVolumeClaim>(ns);
    until(&format!("claim {name} is bound"), PATIENCE, async || {
        let claim = api.get(name).await.map_err(|e| e.to_string())?;
        match claim.status.phase.as_str() {
            "Bound" => Ok(claim.spec.volume_name),
            phase => Err(format!("{phase} {:?}", claim.metadata.annotations)),
        }
    })
    .await
}

/// Waits until an object is gone.
pub async fn gone<T: Resource>(c: &Context, ns: &str, name: &str) -> Result<()> {
    let api = c.client.within::<T>(ns);
    until(&format!("{} {name} is gone", T::PLURAL), PATIENCE, async || match api.find(name).await {
        Ok(None) => Ok(()),
        Ok(Some(found)) => Err(format!("{:?}", found.metadata())),
        Err(e) => Err(e.to_string()),
    })
    .await
}

/// A class of a driver's volumes.
pub async fn class(c: &Context, name: &str, driver: &str, mode: &str) -> Result<()> {
    let mut class = StorageClass::default();
    class.metadata.name = name.to_owned();
    class.provisioner = driver.to_owned();
    class.reclaim_policy = Some("Delete".to_owned());
    class.volume_binding_mode = Some(mode.to_owned());
    class.allow_volume_expansion = Some(true);
    c.client.all::<StorageClass>().create(&class, &WriteParams::default()).await?;
    Ok(())
}

/// A pod that mounts a claim.
pub fn claiming(ns: &str, name: &str, claim: &str) -> String {
    let base = pod(ns, name, WAIT);
    format!(
        "{base}    volumeMounts: [{{name: v, mountPath: /v}}]\n  securityContext: {{fsGroup: 1234}}\n  nodeName: node-1\n  volumes:\n  - {{name: v, persistentVolumeClaim: {{claimName: {claim}}}}}\n"
    )
}

/// Deletes a pod and waits until it is gone.
pub async fn deleted(c: &Context, ns: &str, name: &str) -> Result<()> {
    let api = c.client.within::<Pod>(ns);
    api.delete(name, &DeleteParams::default()).await?;
    until(&format!("pod {name} is gone"), PATIENCE, async || match api.find(name).await {
        Ok(None) => Ok(()),
        Ok(Some(pod)) => Err(shown(&pod)),
        Err(e) => Err(e.to_string()),
    })
    .await
}

pub async fn event(c: &Context, ns: &str, reason: &str, text: &str) -> Result<()> {
    let events = c.client.within::<Event>(ns);
    until(&format!("event {reason} {text}"), PATIENCE, async || {
        let all = events.list(&ListParams::default()).await.map_err(|e| e.to_string())?;
        let told = all.items.iter().any(|e| e.reason == reason && e.message.contains(text));
        let others: Vec<String> =
            all.items.iter().map(|e| format!("{} {}", e.reason, e.message)).collect();
        if told { Ok(()) } else { Err(others.join("\n")) }
    })
    .await
}

/// Makes the agent look at a pod's volumes again.
async fn touch(c: &Context, ns: &str, name: &str, value: &str) -> Result<()> {
    let patch = Patch::Merge(json!({"metadata": {"annotations": {"touched": value}}}));
    c.client.within::<Pod>(ns).patch(name, &patch, &WriteParams::default()).await?;
    Ok(())
}

async fn counted(driver: &Driver, call: &str, wanted: usize) -> Result<()> {
    until(&format!("{wanted} of {call}"), PATIENCE, async || match driver.count(call) {
        count if count >= wanted => Ok(()),
        count => Err(format!("{count}")),
    })
    .await
}

/// Waits until nothing of a driver is staged on the node and no record of it is left: a pod's end does not wait for that.
pub async fn nothing_staged(c: &Context, driver: &str) -> Result<()> {
    let plugins = c.spec.node_dir("node-1").join("orchlet/plugins").display().to_string();
    let below = format!("*/csi/{driver}/*");
    until("nothing of the driver is left", PATIENCE, async || {
        let mounts = c.on_node(&["cat", "/proc/self/mounts"]).await.map_err(|e| e.to_string())?;
        let own = |line: &&str| {
            line.contains(&format!("/csi/{driver}/")) || line.contains("volumeDevices")
        };
        let mounts: Vec<&str> = mounts.lines().filter(own).collect();
        let left = c.on_node(&["find", &plugins, "-path", &below, "-name", "*.json"]).await;
        let left = left.map_err(|e| e.to_string())?;
        if mounts.is_empty() && left.is_empty() {
            Ok(())
        } else {
            Err(format!("{mounts:?} {left}"))
        }
    })
    .await
}

/// The cluster shows what the driver says of the node.
async fn check_shown(c: &Context, driver: &Driver) -> Result<()> {
    let name = driver.name.as_str();
    let shown_drivers = driver.registered(c).await?.spec.drivers;
    let own = shown_drivers.iter().find(|d| d.name == name).context("the driver")?;
    ensure!(own.node_id == "node-1" && own.topology_keys == [format!("topology.{name}/zone")]);
    ensure!(own.allocatable.as_ref().and_then(|a| a.count) == Some(16));
    let node = c.client.all::<Node>().get("node-1").await?;
    ensure!(node.metadata.labels.get(&format!("topology.{name}/zone")).is_some_and(|z| z == "z1"));
    Ok(())
}

/// The node's summary shows what the driver tells of the volume.
async fn check_summary(c: &Context) -> Result<()> {
    until("the summary shows the volume", PATIENCE, async || {
        let path = "/api/v1/nodes/node-1/proxy/stats/summary";
        let request = http::Request::get(path).body(Default::default());
        let request = request.map_err(|e: http::Error| e.to_string())?;
        let answer = c.client.call(request).await.map_err(|e| e.to_string())?;
        let summary: Value = serde_json::from_slice(&answer.body).map_err(|e| e.to_string())?;
        let volumes = summary["pods"].as_array().into_iter().flatten();
        let mut volumes = volumes.flat_map(|pod| pod["volume"].as_array().into_iter().flatten());
        let own = volumes.find(|volume| volume["pvcRef"]["name"] == "data");
        match own.map(|volume| volume["capacityBytes"].as_i64()) {
            Some(Some(1_073_741_824)) => Ok(()),
            other => Err(format!("{other:?}")),
        }
    })
    .await
}

/// A claim that asks for more gets it: the volume is made larger, then its file system.
async fn it_grows(c: &Context, ns: &str, driver: &Driver) -> Result<()> {
    let patch = Patch::Merge(json!({"spec": {"resources": {"requests": {"storage": "2Gi"}}}}));
    let claims = c.client.within::<PersistentVolumeClaim>(ns);
    claims.patch("data", &patch, &WriteParams::default()).await?;
    until("the claim shows its size", PATIENCE, async || {
        let claim = claims.get("data").await.map_err(|e| e.to_string())?;
        let size = claim.status.capacity.get("storage").map(ToString::to_string);
        let left = claim.status.conditions.len();
        if size.as_deref() == Some("2Gi") && left == 0 {
            Ok(())
        } else {
            Err(format!("{size:?}, {:?}", claim.status.conditions))
        }
    })
    .await?;
    ensure!(driver.last("ControllerExpandVolume")["bytes"] == 2_i64 << 30);
    ensure!(driver.last("NodeExpandVolume")["bytes"] == 2_i64 << 30);
    event(c, ns, "ExternalExpanding", "waiting for an external controller").await?;
    event(c, ns, "FileSystemResizeRequired", "Require file system resize").await?;
    event(c, ns, "FileSystemResizeSuccessful", "succeeded for volume").await
}

pub async fn a_drivers_volume_lives_its_life(c: &Context) -> Result<()> {
    let ns = c.namespace("drv-life").await?;
    let name = "life.csi.test";
    let audience = json!([{"audience": "store", "expirationSeconds": 600}]);
    let spec = json!({
        "attachRequired": false, "podInfoOnMount": true, "fsGroupPolicy": "File",
        "requiresRepublish": true, "tokenRequests": audience,
    });
    describe(c, name, spec).await?;
    let mut driver = Driver::start(c, name).await?;
    check_shown(c, &driver).await?;
    let id = made(c, &ns, "data", name).await?;
    event(c, &ns, "ExternalProvisioning", "waiting for a volume to be created").await?;
    c.apply(&claiming(&ns, "one", "data")).await?;
    let one = c.pod_ready(&ns, "one").await?;
    c.in_container(&one, &["/bin/sh", "-c", "echo kept > /v/file"]).await?;
    ensure!(std::fs::read_to_string(driver.volume(&id).join("file"))? == "kept\n");
    let group = c.read_in_container(&one, &["/bin/stat", "-c", "%g %a", "/v"]).await?;
    ensure!(group.trim().starts_with("1234 2"), "the volume is {group:?}");
    let context = driver.last("NodePublishVolume")["context"].clone();
    ensure!(context["csi.storage.k8s.io/pod.name"] == "one", "{context}");
    ensure!(
        context["csi.storage.k8s.io/serviceAccount.tokens"]
            .as_str()
            .is_some_and(|t| t.contains("store"))
    );

    check_summary(c).await?;

    // a second pod has the same volume: staged once, published twice
    c.apply(&claiming(&ns, "two", "data")).await?;
    let two = c.pod_ready(&ns, "two").await?;
    ensure!(c.read_in_container(&two, &["/bin/cat", "/v/file"]).await? == "kept\n");
    ensure!(driver.count("NodeStageVolume") == 1);

    // the agent and the driver die, the pods do not notice
    c.kill("orchlet-node-1").await?;
    c.apply(&pod(&ns, "after", WAIT)).await?;
    c.pod_ready(&ns, "after").await?;
    ensure!(driver.count("NodeStageVolume") == 1, "staged again after a restart");
    driver.restart(c).await?;
    c.in_container(&one, &["/bin/sh", "-c", "echo more >> /v/file"]).await?;
    let before = driver.count("NodePublishVolume");
    touch(c, &ns, "one", "1").await?;
    counted(&driver, "NodePublishVolume", before + 1).await?;
    ensure!(driver.count("NodeStageVolume") == 0, "republishing staged");

    it_grows(c, &ns, &driver).await?;

    // the last user takes it away, and what was written stays
    deleted(c, &ns, "one").await?;
    ensure!(driver.count("NodeUnstageVolume") == 0, "unstaged under a user");
    deleted(c, &ns, "two").await?;
    nothing_staged(c, name).await?;
    ensure!(driver.count("NodeUnstageVolume") == 1 && driver.count("NodeUnpublishVolume") == 2);
    ensure!(std::fs::read_to_string(driver.volume(&id).join("file"))? == "kept\nmore\n");
    // the claim goes, and with it what was made for it
    let claims = c.client.within::<PersistentVolumeClaim>(&ns);
    claims.delete("data", &DeleteParams::default()).await?;
    gone::<PersistentVolumeClaim>(c, &ns, "data").await?;
    gone::<PersistentVolume>(c, "", &id).await?;
    ensure!(!driver.volume(&id).exists() && driver.count("DeleteVolume") == 1);
    drop(driver);
    let api = c.client.all::<CSINode>();
    until("the cluster shows the driver no more", PATIENCE, async || {
        let node = api.get("node-1").await.map_err(|e| e.to_string())?;
        if node.spec.drivers.iter().any(|d| d.name == name) { Err("it does") } else { Ok(()) }
            .map_err(str::to_owned)
    })
    .await?;
    c.discard(&ns).await
}

/// Mounts are lost, as after an unnoticed reboot: they are restored.
async fn lost_mounts_come_back(c: &Context, ns: &str) -> Result<()> {
    let root = c.spec.node_dir("node-1").join("orchlet");
    let table = c.on_node(&["cat", "/proc/self/mounts"]).await?;
    let points = table.lines().filter_map(|line| line.split(' ').nth(1));
    let root = root.display().to_string();
    // a stage names the driver, a pod's mount the volume
    let own = |place: &str| {
        place.contains(&root)
            && (place.contains("faults.csi.test") || place.contains(&format!("{ns}-")))
    };
    let lost: Vec<&str> = points.filter(|point| own(point)).collect();
    ensure!(lost.len() == 6, "three staged, three published: {lost:?}");
    for point in lost.iter().rev() {
        c.on_node(&["umount", "-l", point]).await?;
    }
    touch(c, ns, "beside", "1").await?;
    until("the mounts are back", PATIENCE, async || {
        let table = c.on_node(&["cat", "/proc/self/mounts"]).await.map_err(|e| e.to_string())?;
        let back = table.lines().filter(|line| own(line));
        match back.count() {
            2.. => Ok(()),
            count => Err(format!("{count}")),
        }
    })
    .await
}

pub async fn every_fault_of_a_driver_ends_well(c: &Context) -> Result<()> {
    let ns = c.namespace("drv-faults").await?;
    let name = "faults.csi.test";
    describe(c, name, json!({"attachRequired": false})).await?;
    let mut driver = Driver::start(c, name).await?;
    for claim in ["stage", "hang", "beside"] {
        bound(c, &ns, claim, name).await?;
    }
    driver.fault("NodeStageVolume fail no room")?;
    c.apply(&claiming(&ns, "stage", "stage")).await?;
    let text = format!(
        "MountVolume.MountDevice failed for volume \"{ns}-stage\" : rpc error: code = Internal desc = no room"
    );
    event(c, &ns, "FailedMount", &text).await?;
    driver.fault("")?;
    c.pod_ready(&ns, "stage").await?;

    // a call that never ends does not delay others; it ends with the driver
    driver.fault("NodePublishVolume hang")?;
    c.apply(&claiming(&ns, "hang", "hang")).await?;
    until("the call hangs", PATIENCE, async || {
        let last = driver.last("NodePublishVolume");
        if last["id"] == format!("{ns}-hang") { Ok(()) } else { Err(last.to_string()) }
    })
    .await?;
    driver.fault("")?;
    c.apply(&claiming(&ns, "beside", "beside")).await?;
    c.pod_ready(&ns, "beside").await?;
    driver.restart(c).await?;
    event(
        c,
        &ns,
        "FailedMount",
        &format!("MountVolume.SetUp failed for volume \"{ns}-hang\" : rpc error"),
    )
    .await?;
    c.pod_ready(&ns, "hang").await?;

    lost_mounts_come_back(c, &ns).await?;

    // a driver that is gone when the pod goes: the pod waits for it, and then goes
    driver.child.kill()?;
    driver.child.wait()?;
    let pods = c.client.within::<Pod>(&ns);
    pods.delete("beside", &DeleteParams::default()).await?;
    // another pod comes and goes meanwhile
    c.apply(&pod(&ns, "other", WAIT)).await?;
    c.pod_ready(&ns, "other").await?;
    deleted(c, &ns, "other").await?;
    ensure!(pods.find("beside").await?.is_some(), "a pod went before its volume");
    driver.child = spawn(c, name, "node-1", &driver.dir, &driver.registry)?;
    for pod in ["stage", "hang"] {
        deleted(c, &ns, pod).await?;
    }
    until("the pod goes", PATIENCE, async || match pods.find("beside").await {
        Ok(None) => Ok(()),
        other => Err(format!("{:?}", other.map(|pod| pod.map(|pod| shown(&pod))))),
    })
    .await?;
    c.discard(&ns).await
}

pub async fn what_is_not_attached_is_waited_for(c: &Context) -> Result<()> {
    let ns = c.namespace("drv-attach").await?;
    let name = "attach.csi.test";
    describe(c, name, json!({"volumeLifecycleModes": ["Persistent", "Ephemeral"]})).await?;
    let driver = Driver::start(c, name).await?;
    // what a pod describes itself is never attached
    let inline = format!(
        "    volumeMounts: [{{name: v, mountPath: /v}}]\n  volumes:\n  - {{name: v, csi: {{driver: {name}, volumeAttributes: {{a: b}}}}}}\n"
    );
    c.apply(&(pod(&ns, "inline", WAIT) + &inline)).await?;
    let inline = c.pod_ready(&ns, "inline").await?;
    c.in_container(&inline, &["/bin/sh", "-c", "echo x > /v/x"]).await?;
    ensure!(
        driver.count("NodeStageVolume") == 0
            && driver.last("NodePublishVolume")["context"]["a"] == "b"
    );
    deleted(c, &ns, "inline").await?;
    ensure!(
        std::fs::read_dir(driver.dir.join("volumes"))?.count() == 0,
        "the volume outlives the pod"
    );

    let handle = bound(c, &ns, "data", name).await?;
    driver.fault("ControllerPublishVolume fail no such shelf")?;
    c.apply(&claiming(&ns, "waits", "data")).await?;
    let failed = format!(
        "AttachVolume.Attach failed for volume \"{handle}\" : rpc error: code = Internal desc = no such shelf"
    );
    event(c, &ns, "FailedAttachVolume", &failed).await?;
    driver.fault("")?;
    c.pod_ready(&ns, "waits").await?;
    ensure!(driver.last("NodePublishVolume")["attached"]["shelf"] == "7");
    let done = format!("AttachVolume.Attach succeeded for volume \"{handle}\"");
    event(c, &ns, "SuccessfulAttachVolume", &done).await?;
    let unique = format!("{}^{handle}", c.names.label(&format!("csi/{name}")));
    node_shows(c, &unique, true).await?;

    // the controller is killed: volumes stay attached, unneeded ones are detached
    c.kill("orch-controller-manager").await?;
    deleted(c, &ns, "waits").await?;
    node_shows(c, &unique, false).await?;
    nothing_attached(c, name).await?;
    ensure!(driver.count("ControllerUnpublishVolume") == 1);
    c.discard(&ns).await
}

/// Waits until a driver has nothing attached to any node.
pub async fn nothing_attached(c: &Context, driver: &str) -> Result<()> {
    let attachments = c.client.all::<VolumeAttachment>();
    until("nothing is attached", PATIENCE, async || {
        let list = attachments.list(&ListParams::default()).await.map_err(|e| e.to_string())?;
        let left = list.items.iter().filter(|of| of.spec.attacher == driver).count();
        if left == 0 { Ok(()) } else { Err(format!("{left}")) }
    })
    .await
}

/// Waits until the node says that it uses a volume and the controller that it is attached, or neither.
pub async fn node_shows(c: &Context, unique: &str, there: bool) -> Result<()> {
    let nodes = c.client.all::<Node>();
    until(&format!("the node shows {unique}: {there}"), PATIENCE, async || {
        let status = nodes.get("node-1").await.map_err(|e| e.to_string())?.status;
        let used = status.volumes_in_use.iter().any(|name| name == unique);
        let attached = status.volumes_attached.iter().any(|volume| volume.name == unique);
        if used == there && attached == there {
            Ok(())
        } else {
            Err(format!("used {used}, attached {attached}"))
        }
    })
    .await
}

pub async fn devices_and_claims_of_a_pod_s_own_are_given(c: &Context) -> Result<()> {
    let ns = c.namespace("drv-kinds").await?;
    let name = "kinds.csi.test";
    describe(c, name, json!({"attachRequired": false})).await?;
    let driver = Driver::start(c, name).await?;
    bound_as(c, &ns, "disk", name, "Block").await?;
    let device = "    volumeDevices: [{name: v, devicePath: /dev/disk-of-mine}]\n  nodeName: node-1\n  volumes:\n  - {name: v, persistentVolumeClaim: {claimName: disk}}\n";
    c.apply(&(pod(&ns, "disk", WAIT) + device)).await?;
    let disk = c.pod_ready(&ns, "disk").await?;
    let kind =
        c.read_in_container(&disk, &["/bin/stat", "-c", "%F %t:%T", "/dev/disk-of-mine"]).await?;
    ensure!(kind.trim() == "block special file 7:0", "the device is {kind:?}");
    deleted(c, &ns, "disk").await?;
    nothing_staged(c, name).await?;
    ensure!(driver.count("NodeUnpublishVolume") == 1 && driver.count("NodeUnstageVolume") == 1);

    // a claim that a pod brings along: only one that is its own will do
    c.apply(&claim(&ns, "owner-v", name)).await?;
    let own = format!(
        "    volumeMounts: [{{name: v, mountPath: /v}}]\n  nodeName: node-1\n  volumes:\n  - name: v\n    ephemeral: {{volumeClaimTemplate: {{metadata: {{labels: {{made: here}}}}, spec: {{accessModes: [ReadWriteOnce], storageClassName: {name}, resources: {{requests: {{storage: 1Gi}}}}}}}}}}\n"
    );
    c.apply(&(pod(&ns, "owner", WAIT) + &own)).await?;
    let stranger =
        "PVC drv-kinds/owner-v was not created for pod drv-kinds/owner (pod is not owner)";
    event(c, &ns, "FailedBinding", stranger).await?;
    event(c, &ns, "FailedMount", "error processing PVC drv-kinds/owner-v").await?;
    let claims = c.client.within::<PersistentVolumeClaim>(&ns);
    claims.delete("owner-v", &DeleteParams::default()).await?;
    c.pod_ready(&ns, "owner").await?;
    let theirs = claims.get("owner-v").await?;
    ensure!(theirs.metadata.labels.get("made").is_some_and(|made| made == "here"));
    let volume = theirs.spec.volume_name;
    deleted(c, &ns, "owner").await?;
    gone::<PersistentVolumeClaim>(c, &ns, "owner-v").await?;
    gone::<PersistentVolume>(c, "", &volume).await?;
    ensure!(!driver.volume(&volume).exists(), "the volume outlives the pod");
    c.discard(&ns).await
}
