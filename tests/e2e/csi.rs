//! Volumes of drivers: the driver of `tests/csi-driver` on a node of the cluster.

use std::path::PathBuf;
use std::process::{Child, Command, Stdio};

use anyhow::{Context as _, Result, ensure};
use orch_tests::wait::until;
use proto_api::core::v1::{Event, Node, PersistentVolume, PersistentVolumeClaim, Pod};
use proto_api::storage::v1::{CSIDriver, CSINode, VolumeAttachment};
use proto_client::{DeleteParams, ListParams, Patch, WriteParams};
use serde_json::{Value, json};

use crate::context::{Context, PATIENCE, shown};
use crate::pods::{WAIT, pod};

/// A driver that runs on the first node. Ends with the case.
pub struct Driver {
    name: String,
    dir: PathBuf,
    registry: PathBuf,
    child: Child,
}

impl Driver {
    /// Starts it and waits until the cluster shows it.
    pub async fn start(c: &Context, name: &str) -> Result<Driver> {
        let dir = c.spec.dir.join(format!("csi-{name}"));
        let registry = c.spec.node_dir("node-1").join("orchlet/plugins_registry");
        std::fs::create_dir_all(&dir)?;
        let child = spawn(c, name, &dir, &registry)?;
        let driver = Driver { name: name.to_owned(), dir, registry, child };
        driver.registered(c).await?;
        Ok(driver)
    }

    /// Waits until the cluster shows the driver.
    async fn registered(&self, c: &Context) -> Result<CSINode> {
        let api = c.client.all::<CSINode>();
        until(&format!("driver {}", self.name), PATIENCE, async || {
            let node = api.get("node-1").await.map_err(|e| e.to_string())?;
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
        self.child = spawn(c, &self.name, &self.dir, &self.registry)?;
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
    fn last(&self, call: &str) -> Value {
        let last = self.calls().into_iter().rev().find(|line| line["call"] == call);
        last.map(|line| line["what"].clone()).unwrap_or_default()
    }

    fn volume(&self, id: &str) -> PathBuf {
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

fn spawn(c: &Context, name: &str, dir: &PathBuf, registry: &PathBuf) -> Result<Child> {
    let log = std::fs::File::create(c.spec.dir.join("logs").join(format!("csi-{name}.log")))?;
    let mut command = Command::new(c.spec.bin_dir.join("csi-driver"));
    command.args(["--name", name, "--dir"]).arg(dir).arg("--registry").arg(registry);
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(log);
    cluster::namespaces::enter(&c.spec, "node-1", &mut command)?;
    command.spawn().context("starting csi-driver")
}

/// The driver's object.
pub async fn describe(c: &Context, driver: &str, spec: Value) -> Result<()> {
    let mut object = CSIDriver::default();
    object.metadata.name = driver.to_owned();
    object.spec = serde_json::from_value(spec)?;
    c.client.all::<CSIDriver>().create(&object, &WriteParams::default()).await?;
    Ok(())
}

/// A claim and its volume, bound to each other by hand.
pub async fn bound(c: &Context, ns: &str, name: &str, driver: &str) -> Result<()> {
    bound_as(c, ns, name, driver, "Filesystem", "").await
}

/// The same with a mode, and what the claim's metadata says besides.
async fn bound_as(
    c: &Context,
    ns: &str,
    name: &str,
    driver: &str,
    mode: &str,
    metadata: &str,
) -> Result<()> {
    c.apply(&format!(
        "apiVersion: v1\nkind: PersistentVolumeClaim\nmetadata: {{name: {name}, namespace: {ns}{metadata}}}\n\
         spec: {{volumeMode: {mode}, accessModes: [ReadWriteOnce], storageClassName: '', volumeName: {ns}-{name}, resources: {{requests: {{storage: 1Gi}}}}}}\n"
    ))
    .await?;
    let claims = c.client.within::<PersistentVolumeClaim>(ns);
    let uid = claims.get(name).await?.metadata.uid;
    c.apply(&format!(
        "apiVersion: v1\nkind: PersistentVolume\nmetadata: {{name: {ns}-{name}}}\n\
         spec: {{volumeMode: {mode}, accessModes: [ReadWriteOnce], capacity: {{storage: 1Gi}}, persistentVolumeReclaimPolicy: Retain, \
         claimRef: {{apiVersion: v1, kind: PersistentVolumeClaim, namespace: {ns}, name: {name}, uid: {uid}}}, \
         csi: {{driver: {driver}, volumeHandle: {ns}-{name}, fsType: ext4}}}}\n"
    ))
    .await?;
    let status = json!({"status": {"phase": "Bound", "accessModes": ["ReadWriteOnce"], "capacity": {"storage": "1Gi"}}});
    claims.patch_status(name, &Patch::Merge(status), &WriteParams::default()).await?;
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

async fn event(c: &Context, ns: &str, reason: &str, text: &str) -> Result<()> {
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

/// What a command in a container says. The runtime's client may lose what a command says that ends at once: asked again then.
async fn said(c: &Context, pod: &Pod, argv: &[&str]) -> Result<String> {
    until(&format!("{argv:?} says something"), PATIENCE, async || {
        match c.in_container(pod, argv).await {
            Ok(text) if !text.is_empty() => Ok(text),
            other => Err(format!("{other:?}")),
        }
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
            Some(Some(1_048_576)) => Ok(()),
            other => Err(format!("{other:?}")),
        }
    })
    .await
}

/// A volume that is made larger shows so in its claim.
async fn it_grows(c: &Context, ns: &str, driver: &Driver) -> Result<()> {
    let id = format!("{ns}-data");
    let patch = Patch::Merge(json!({"spec": {"capacity": {"storage": "2Gi"}}}));
    c.client.all::<PersistentVolume>().patch(&id, &patch, &WriteParams::default()).await?;
    let claims = c.client.within::<PersistentVolumeClaim>(ns);
    until("the claim shows its size", PATIENCE, async || {
        let claim = claims.get("data").await.map_err(|e| e.to_string())?;
        let size = claim.status.capacity.get("storage").map(ToString::to_string);
        if size.as_deref() == Some("2Gi") { Ok(()) } else { Err(format!("{size:?}")) }
    })
    .await?;
    ensure!(driver.last("NodeExpandVolume")["bytes"] == 2_i64 << 30);
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
    bound(c, &ns, "data", name).await?;
    c.apply(&claiming(&ns, "one", "data")).await?;
    let one = c.pod_ready(&ns, "one").await?;
    let id = format!("{ns}-data");
    c.in_container(&one, &["/bin/sh", "-c", "echo kept > /v/file"]).await?;
    ensure!(std::fs::read_to_string(driver.volume(&id).join("file"))? == "kept\n");
    let group = said(c, &one, &["/bin/stat", "-c", "%g %a", "/v"]).await?;
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
    ensure!(said(c, &two, &["/bin/cat", "/v/file"]).await? == "kept\n");
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
    ensure!(driver.count("NodeUnstageVolume") == 1 && driver.count("NodeUnpublishVolume") == 2);
    ensure!(std::fs::read_to_string(driver.volume(&id).join("file"))? == "kept\nmore\n");
    let mounts = c.on_node(&["cat", "/proc/self/mounts"]).await?;
    ensure!(!mounts.contains("csi"), "mounts are left:\n{mounts}");
    let plugins = c.spec.node_dir("node-1").join("orchlet/plugins");
    let left = c.on_node(&["find", plugins.to_str().context("a path")?, "-name", "*.json"]).await?;
    ensure!(left.is_empty(), "records are left: {left}");
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

/// What is mounted is lost, as after a reboot of which nobody told: it is brought back.
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

    // one call that never ends holds up nobody else; the driver's end ends it
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
    driver.child = spawn(c, name, &driver.dir, &driver.registry)?;
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

    bound(c, &ns, "data", name).await?;
    let handle = format!("{ns}-data");
    let attachment = {
        use sha2::Digest as _;
        let digest = sha2::Sha256::digest(format!("{handle}{name}node-1").as_bytes());
        format!("csi-{}", digest.iter().map(|byte| format!("{byte:02x}")).collect::<String>())
    };
    let api = c.client.all::<VolumeAttachment>();
    c.apply(&claiming(&ns, "waits", "data")).await?;
    let mut object = VolumeAttachment::default();
    object.metadata.name = attachment.clone();
    object.spec.attacher = name.to_owned();
    object.spec.node_name = "node-1".to_owned();
    object.spec.source.persistent_volume_name = Some(handle.clone());
    if api.find(&attachment).await?.is_none() {
        // a controller may have been faster
        let _ = api.create(&object, &WriteParams::default()).await;
    }
    let failed =
        json!({"status": {"attached": false, "attachError": {"message": "no such shelf"}}});
    api.patch_status(&attachment, &Patch::Merge(failed), &WriteParams::default()).await?;
    let text = format!("AttachVolume.Attach failed for volume \"{handle}\" : no such shelf");
    event(c, &ns, "FailedAttachVolume", &text).await?;
    let done = json!({"status": {"attached": true, "attachError": null, "attachmentMetadata": {"shelf": "7"}}});
    api.patch_status(&attachment, &Patch::Merge(done), &WriteParams::default()).await?;
    c.pod_ready(&ns, "waits").await?;
    ensure!(driver.last("NodePublishVolume")["attached"]["shelf"] == "7");
    let unique = format!("{}^{handle}", c.names.label(&format!("csi/{name}")));
    let nodes = c.client.all::<Node>();
    until("the node says that it uses the volume", PATIENCE, async || {
        let node = nodes.get("node-1").await.map_err(|e| e.to_string())?;
        let used = node.status.volumes_in_use;
        if used.contains(&unique) { Ok(()) } else { Err(format!("{used:?}")) }
    })
    .await?;
    deleted(c, &ns, "waits").await?;
    api.delete(&attachment, &DeleteParams::default()).await?;
    c.discard(&ns).await
}

pub async fn devices_and_claims_of_a_pod_s_own_are_given(c: &Context) -> Result<()> {
    let ns = c.namespace("drv-kinds").await?;
    let name = "kinds.csi.test";
    describe(c, name, json!({"attachRequired": false})).await?;
    let driver = Driver::start(c, name).await?;
    bound_as(c, &ns, "disk", name, "Block", "").await?;
    let device = "    volumeDevices: [{name: v, devicePath: /dev/disk-of-mine}]\n  nodeName: node-1\n  volumes:\n  - {name: v, persistentVolumeClaim: {claimName: disk}}\n";
    c.apply(&(pod(&ns, "disk", WAIT) + device)).await?;
    let disk = c.pod_ready(&ns, "disk").await?;
    let kind = said(c, &disk, &["/bin/stat", "-c", "%F %t:%T", "/dev/disk-of-mine"]).await?;
    ensure!(kind.trim() == "block special file 7:0", "the device is {kind:?}");
    deleted(c, &ns, "disk").await?;
    ensure!(driver.count("NodeUnpublishVolume") == 1 && driver.count("NodeUnstageVolume") == 1);
    let mounts = c.on_node(&["cat", "/proc/self/mounts"]).await?;
    ensure!(!mounts.contains("volumeDevices"), "mounts are left:\n{mounts}");

    // a claim that a pod brings along: only one that is its own will do
    let own = "    volumeMounts: [{name: v, mountPath: /v}]\n  nodeName: node-1\n  volumes:\n  - name: v\n    ephemeral: {volumeClaimTemplate: {spec: {accessModes: [ReadWriteOnce], storageClassName: '', volumeName: drv-kinds-owner-v, resources: {requests: {storage: 1Gi}}}}}\n";
    c.apply(&(pod(&ns, "owner", WAIT) + own)).await?;
    event(c, &ns, "FailedMount", "error processing PVC drv-kinds/owner-v").await?;
    let uid = c.client.within::<Pod>(&ns).get("owner").await?.metadata.uid;
    let owner = format!(
        ", ownerReferences: [{{apiVersion: v1, kind: Pod, name: owner, uid: {uid}, controller: true}}]"
    );
    bound_as(c, &ns, "owner-v", name, "Filesystem", &owner).await?;
    c.pod_ready(&ns, "owner").await?;
    deleted(c, &ns, "owner").await?;
    c.discard(&ns).await
}
