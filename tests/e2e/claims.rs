//! PersistentVolumeClaims and PersistentVolumes: binding, protection, reclaiming, provisioning where a pod is scheduled, expansion.

use anyhow::{Context as _, Result, ensure};
use orch_tests::wait::until;
use proto_api::core::v1::{PersistentVolume, PersistentVolumeClaim, Pod};
use proto_api::storage::v1::{CSIDriver, CSIStorageCapacity, StorageClass};
use proto_client::{ClientError, DeleteParams, Patch, WriteParams};
use serde_json::json;

use crate::context::{Context, PATIENCE};
use crate::csi::{Driver, claim, claim_bound, class, deleted, describe, event, gone, made};
use crate::pods::{WAIT, pod};

/// A volume that is a directory of the node.
async fn volume(c: &Context, name: &str, size: &str, policy: &str) -> Result<()> {
    let path = c.spec.dir.join(format!("volume-{name}"));
    c.apply(&format!(
        "apiVersion: v1\nkind: PersistentVolume\nmetadata: {{name: {name}}}\n\
         spec: {{accessModes: [ReadWriteOnce], storageClassName: by-hand, capacity: {{storage: {size}}}, persistentVolumeReclaimPolicy: {policy}, \
         hostPath: {{path: {path:?}, type: DirectoryOrCreate}}}}\n"
    ))
    .await
}

/// A pod that has a claim; the scheduler gives it its node.
pub fn user(ns: &str, name: &str, claim: &str) -> String {
    let base = pod(ns, name, WAIT);
    format!(
        "{base}    volumeMounts: [{{name: v, mountPath: /v}}]\n  volumes:\n  - {{name: v, persistentVolumeClaim: {{claimName: {claim}}}}}\n"
    )
}

async fn phase(c: &Context, volume: &str, wanted: &str) -> Result<()> {
    let api = c.client.all::<PersistentVolume>();
    until(&format!("volume {volume} is {wanted}"), PATIENCE, async || {
        let volume = api.get(volume).await.map_err(|e| e.to_string())?;
        let phase = volume.status.phase;
        if phase == wanted { Ok(()) } else { Err(phase) }
    })
    .await
}

async fn delete_claim(c: &Context, ns: &str, name: &str) -> Result<()> {
    let api = c.client.within::<PersistentVolumeClaim>(ns);
    Ok(api.delete(name, &DeleteParams::default()).await?)
}

async fn delete_volume(c: &Context, name: &str) -> Result<()> {
    c.client.all::<PersistentVolume>().delete(name, &DeleteParams::default()).await?;
    gone::<PersistentVolume>(c, "", name).await
}

/// What the scheduler says of a pod.
async fn unschedulable(c: &Context, ns: &str, name: &str, why: &str) -> Result<()> {
    let told = |pod: &Pod| {
        let condition = pod.status.conditions.iter().find(|c| c.type_ == "PodScheduled");
        match condition {
            Some(condition) if condition.message.contains(why) => Ok(()),
            other => Err(format!("{other:?}")),
        }
    };
    c.pod_until(ns, name, told).await.map(drop)
}

pub async fn a_claim_gets_the_volume_that_fits_and_keeps_it(c: &Context) -> Result<()> {
    let ns = c.namespace("claims").await?;
    c.apply(&user(&ns, "early", "data")).await?;
    unschedulable(c, &ns, "early", "persistentvolumeclaim \"data\" not found").await?;
    c.apply(&claim(&ns, "data", "by-hand")).await?;
    unschedulable(c, &ns, "early", "pod has unbound immediate PersistentVolumeClaims").await?;
    event(c, &ns, "ProvisioningFailed", "\"by-hand\" not found").await?;
    c.apply(&claim(&ns, "plain", "")).await?;
    let none = "no persistent volumes available for this claim and no storage class is set";
    event(c, &ns, "FailedBinding", none).await?;

    // of three volumes the smallest that fits; the binding controller is killed meanwhile
    for (name, size) in [("claims-small", "1Mi"), ("claims-large", "5Gi"), ("claims-right", "2Gi")]
    {
        volume(c, name, size, "Retain").await?;
    }
    c.kill("orch-controller-manager").await?;
    let bound = claim_bound(c, &ns, "data").await?;
    ensure!(bound != "claims-small", "bound to {bound}");
    phase(c, &bound, "Bound").await?;
    c.pod_ready(&ns, "early").await?;
    let claims = c.client.within::<PersistentVolumeClaim>(&ns);
    let data = claims.get("data").await?;
    let marks = &data.metadata.annotations;
    for mark in ["bind-completed", "bound-by-controller"] {
        let mark = c.names.sub_label("pv", mark);
        ensure!(marks.get(&mark).is_some_and(|yes| yes == "yes"), "{mark} is missing: {marks:?}");
    }

    // used: neither goes
    delete_claim(c, &ns, "data").await?;
    c.client.all::<PersistentVolume>().delete(&bound, &DeleteParams::default()).await?;
    c.apply(&user(&ns, "late", "data")).await?;
    unschedulable(c, &ns, "late", "persistentvolumeclaim \"data\" is being deleted").await?;
    ensure!(claims.find("data").await?.is_some(), "the claim went under its pod");
    phase(c, &bound, "Bound").await?;
    deleted(c, &ns, "early").await?;
    gone::<PersistentVolumeClaim>(c, &ns, "data").await?;
    gone::<PersistentVolume>(c, "", &bound).await?;
    for volume in ["claims-small", "claims-large", "claims-right"] {
        if volume != bound {
            delete_volume(c, volume).await?;
        }
    }
    c.discard(&ns).await
}

pub async fn a_deleted_claim_leaves_its_volume_by_reclaim_policy(c: &Context) -> Result<()> {
    let ns = c.namespace("reclaim").await?;
    for (name, policy, after, reason) in [
        ("kept", "Retain", "Released", ""),
        ("deleted", "Delete", "Failed", "VolumeFailedDelete"),
        ("recycled", "Recycle", "Failed", "VolumeFailedRecycle"),
    ] {
        let of = format!("reclaim-{name}");
        volume(c, &of, "1Gi", policy).await?;
        c.apply(&claim(&ns, name, "by-hand")).await?;
        claim_bound(c, &ns, name).await?;
        phase(c, &of, "Bound").await?;
        delete_claim(c, &ns, name).await?;
        phase(c, &of, after).await?;
        if !reason.is_empty() {
            // words about objects without a namespace are kept in this one
            event(c, "default", reason, "").await?;
        }
        delete_volume(c, &of).await?;
    }

    // a claim whose volume is taken away is lost, and gets no other
    volume(c, "reclaim-lost", "1Gi", "Retain").await?;
    c.apply(&claim(&ns, "lost", "by-hand")).await?;
    claim_bound(c, &ns, "lost").await?;
    phase(c, "reclaim-lost", "Bound").await?;
    let volumes = c.client.all::<PersistentVolume>();
    volumes.delete("reclaim-lost", &DeleteParams::default()).await?;
    let free = Patch::Merge(json!({"metadata": {"finalizers": null}}));
    volumes.patch("reclaim-lost", &free, &WriteParams::default()).await?;
    event(c, &ns, "ClaimLost", "Bound claim has lost its PersistentVolume").await?;
    c.discard(&ns).await
}

pub async fn a_volume_is_made_where_the_pod_goes(c: &Context) -> Result<()> {
    let ns = c.namespace("made").await?;
    let name = "made.csi.test";
    class(c, name, name, "WaitForFirstConsumer").await?;
    let mark = Patch::Merge(json!({"metadata": {"annotations": {
        c.names.sub_label("storageclass", "is-default-class"): "true"}}}));
    let classes = c.client.all::<StorageClass>();
    classes.patch(name, &mark, &WriteParams::default()).await?;
    let driver = Driver::start(c, name).await?;
    // no class is named: the default one is given
    c.apply(&claim(&ns, "data", name).replace(&format!("storageClassName: {name:?}, "), ""))
        .await?;
    let claims = c.client.within::<PersistentVolumeClaim>(&ns);
    let given = claims.get("data").await?.spec.storage_class_name;
    ensure!(given.as_deref() == Some(name), "the class is {given:?}");
    event(c, &ns, "WaitForFirstConsumer", "waiting for first consumer to be created").await?;
    ensure!(driver.count("CreateVolume") == 0, "a volume was made before there was a pod");

    driver.fault("CreateVolume fail no space")?;
    c.apply(&user(&ns, "first", "data")).await?;
    event(c, &ns, "ProvisioningFailed", "desc = no space").await?;
    let selected = c.names.sub_label("volume", "selected-node");
    let claim = claims.get("data").await?;
    ensure!(claim.metadata.annotations.get(&selected).is_some_and(|node| node == "node-1"));
    ensure!(c.client.within::<Pod>(&ns).get("first").await?.spec.node_name.is_empty());
    driver.fault("")?;
    let first = c.pod_ready(&ns, "first").await?;
    c.in_container(&first, &["/bin/sh", "-c", "echo kept > /v/file"]).await?;
    let volume = claims.get("data").await?.spec.volume_name;
    ensure!(std::fs::read_to_string(driver.volume(&volume).join("file"))? == "kept\n");

    // more only where the class allows it, and never less
    let ask = async |size: &str| {
        let patch = Patch::Merge(json!({"spec": {"resources": {"requests": {"storage": size}}}}));
        claims.patch("data", &patch, &WriteParams::default()).await
    };
    let refused = |answer: Result<PersistentVolumeClaim, ClientError>, why: &str| {
        let error = answer.err().map(|error| error.to_string()).context("it was not refused")?;
        ensure!(error.contains(why), "{error}");
        Ok(())
    };
    refused(ask("1Mi").await, "field can not be less than previous value")?;
    let never = Patch::Merge(json!({"allowVolumeExpansion": false}));
    classes.patch(name, &never, &WriteParams::default()).await?;
    refused(ask("2Gi").await, "only dynamically provisioned pvc can be resized")?;

    deleted(c, &ns, "first").await?;
    delete_claim(c, &ns, "data").await?;
    gone::<PersistentVolume>(c, "", &volume).await?;
    ensure!(driver.count("CreateVolume") >= 2 && driver.count("DeleteVolume") == 1);
    classes.delete(name, &DeleteParams::default()).await?;
    c.discard(&ns).await
}

pub async fn a_pod_goes_where_there_is_room_for_its_volume(c: &Context) -> Result<()> {
    let ns = c.namespace("room").await?;
    let name = "room.csi.test";
    class(c, name, name, "WaitForFirstConsumer").await?;
    let mut object = CSIDriver::default();
    object.metadata.name = name.to_owned();
    object.spec =
        serde_json::from_value(json!({"attachRequired": false, "storageCapacity": true}))?;
    c.client.all::<CSIDriver>().create(&object, &WriteParams::default()).await?;
    let driver = Driver::start(c, name).await?;
    // the driver has said where the node is, and so does what it has room for
    let zone = format!("topology.{name}/zone");
    let room = |capacity: &str, zone_is: &str| -> Result<CSIStorageCapacity> {
        let mut object: CSIStorageCapacity = serde_json::from_value(json!({
            "nodeTopology": {"matchLabels": {&zone: zone_is}},
            "storageClassName": name, "capacity": capacity,
        }))?;
        object.metadata.name = format!("room-{zone_is}");
        object.metadata.namespace = ns.clone();
        Ok(object)
    };
    let rooms = c.client.within::<CSIStorageCapacity>(&ns);
    rooms.create(&room("512Mi", "z1")?, &WriteParams::default()).await?;
    rooms.create(&room("9Gi", "z2")?, &WriteParams::default()).await?;
    c.apply(&claim(&ns, "data", name)).await?;
    c.apply(&user(&ns, "p", "data")).await?;
    unschedulable(c, &ns, "p", "did not have enough free storage").await?;
    ensure!(driver.count("CreateVolume") == 0, "a volume was made where there is no room");
    let more = Patch::Merge(json!({"capacity": "2Gi"}));
    rooms.patch("room-z1", &more, &WriteParams::default()).await?;
    c.pod_ready(&ns, "p").await?;
    let volume = claim_bound(c, &ns, "data").await?;
    let made = c.client.all::<PersistentVolume>().get(&volume).await?;
    let affinity = made.spec.node_affinity.and_then(|of| of.required).context("no affinity")?;
    ensure!(format!("{affinity:?}").contains(&zone), "{affinity:?}");

    // a volume of another zone is out of reach for the only node
    let far = json!({
        "accessModes": ["ReadWriteOnce"], "capacity": {"storage": "1Gi"}, "storageClassName": "",
        "persistentVolumeReclaimPolicy": "Retain", "claimRef": {"namespace": ns, "name": "far"},
        "csi": {"driver": name, "volumeHandle": "far"},
        "nodeAffinity": {"required": {"nodeSelectorTerms": [{"matchExpressions": [
            {"key": zone, "operator": "In", "values": ["z2"]}]}]}},
    });
    let mut object = PersistentVolume::default();
    object.metadata.name = "room-far".to_owned();
    object.spec = serde_json::from_value(far)?;
    let volumes = c.client.all::<PersistentVolume>();
    volumes.create(&object, &WriteParams::default()).await?;
    c.apply(&claim(&ns, "far", "")).await?;
    claim_bound(c, &ns, "far").await?;
    c.apply(&user(&ns, "q", "far")).await?;
    unschedulable(c, &ns, "q", "node(s) had volume node affinity conflict").await?;

    deleted(c, &ns, "p").await?;
    c.client.within::<Pod>(&ns).delete("q", &DeleteParams::default()).await?;
    for claim in ["data", "far"] {
        delete_claim(c, &ns, claim).await?;
    }
    gone::<PersistentVolumeClaim>(c, &ns, "far").await?;
    delete_volume(c, "room-far").await?;
    gone::<PersistentVolume>(c, "", &volume).await?;
    c.discard(&ns).await
}

pub async fn a_volume_for_one_node_moves_to_another(c: &Context) -> Result<()> {
    c.grow(2).await?;
    let ns = c.namespace("moves").await?;
    let name = "moves.csi.test";
    describe(c, name, json!({})).await?;
    let here = Driver::start(c, name).await?;
    let there = here.start_beside(c, "node-2").await?;
    let volume = made(c, &ns, "data", name).await?;
    let on = |node: &str, pod: &str| {
        let label = c.names.label("hostname");
        let spec = format!("spec:\n  nodeSelector: {{{label}: {node}}}\n");
        user(&ns, pod, "data").replacen("spec:\n", &spec, 1)
    };
    c.apply(&on("node-1", "one")).await?;
    let one = c.pod_ready(&ns, "one").await?;
    c.in_container(&one, &["/bin/sh", "-c", "echo kept > /v/file"]).await?;

    c.apply(&on("node-2", "two")).await?;
    let refused =
        format!("Multi-Attach error for volume \"{volume}\" Volume is already used by pod(s) one");
    event(c, &ns, "FailedAttachVolume", &refused).await?;
    ensure!(there.count("NodeStageVolume") == 0, "two nodes have the volume");
    deleted(c, &ns, "one").await?;
    let two = c.pod_ready(&ns, "two").await?;
    ensure!(two.spec.node_name == "node-2" && there.count("NodeStageVolume") == 1);
    ensure!(here.count("ControllerUnpublishVolume") == 1);
    let file = there.volume(&volume).join("file");
    ensure!(std::fs::read_to_string(file)? == "kept\n");

    deleted(c, &ns, "two").await?;
    delete_claim(c, &ns, "data").await?;
    gone::<PersistentVolume>(c, "", &volume).await?;
    c.discard(&ns).await
}
