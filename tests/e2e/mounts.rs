//! Mounts of containers: recursively read-only, with mount propagation in both directions, block devices of the node.

use std::process::Command;

use anyhow::{Context as _, Result, ensure};
use orch_tests::wait::until;
use proto_api::core::v1::{PersistentVolumeClaim, Pod};
use proto_client::{Patch, WriteParams};
use serde_json::json;

use crate::context::{Context, PATIENCE};
use crate::csi::{deleted, event};
use crate::pods::{WAIT, pod};

pub async fn read_only_goes_all_the_way_down(c: &Context) -> Result<()> {
    let ns = c.namespace("frozen").await?;
    let dir = c.spec.dir.join("frozen");
    let inner = dir.join("inner");
    std::fs::create_dir_all(&inner)?;
    let inner = inner.to_str().context("a path in UTF-8")?;
    c.on_node(&["mount", "-t", "tmpfs", "frozen", inner]).await?;
    let base = pod(&ns, "frozen", WAIT);
    let manifest = format!(
        r#"{base}    volumeMounts:
    - {{name: v, mountPath: /plain, readOnly: true}}
    - {{name: v, mountPath: /all, readOnly: true, recursiveReadOnly: Enabled}}
    - {{name: v, mountPath: /free}}
  nodeName: node-1
  volumes:
  - {{name: v, hostPath: {{path: {path}}}}}
"#,
        path = dir.display()
    );
    c.apply(&manifest).await?;
    let pod_is = c.pod_ready(&ns, "frozen").await?;
    let writes = async |path: &str| {
        c.in_container(&pod_is, &["/bin/sh", "-c", &format!("echo x > {path}")]).await.is_ok()
    };
    let seen = [
        writes("/free/inner/f").await,
        writes("/plain/f").await,
        writes("/all/f").await,
        writes("/all/inner/f").await,
    ];
    let read = c.read_in_container(&pod_is, &["/bin/cat", "/all/inner/f"]).await?;
    deleted(c, &ns, "frozen").await?;
    c.on_node(&["umount", inner]).await?;
    ensure!(seen == [true, false, false, false], "written: {seen:?}");
    ensure!(read == "x\n", "what is below is there: {read:?}");
    c.discard(&ns).await
}

/// A mount that a container makes below the agent's own directory, as a driver in a pod does, is the node's and other pods'. Through a
/// static pod: the API lets only privileged containers do this, which not every machine can run.
pub async fn a_mount_made_in_a_pod_travels(c: &Context) -> Result<()> {
    let ns = c.namespace("travel").await?;
    let shared = c.spec.node_dir("node-1").join("orchlet/plugins/travel");
    std::fs::create_dir_all(shared.join("made"))?;
    let path = shared.display().to_string();
    let script = format!("mount -t tmpfs driver /v/made && echo x > /v/made/f; {WAIT}");
    let maker = pod("default", "maker", &script)
        + "    securityContext: {capabilities: {add: [SYS_ADMIN]}, seccompProfile: {type: Unconfined}}\n"
        + "    volumeMounts: [{name: v, mountPath: /v, mountPropagation: Bidirectional}]\n"
        + &format!("  volumes:\n  - {{name: v, hostPath: {{path: {path}}}}}\n");
    let manifest = c.spec.node_dir("node-1").join("manifests/maker.yaml");
    let beside = c.spec.dir.join("maker.yaml.new");
    std::fs::write(&beside, maker)?;
    std::fs::rename(&beside, &manifest)?;
    let base = pod(&ns, "user", WAIT);
    let user = format!(
        "{base}    volumeMounts: [{{name: v, mountPath: /v, mountPropagation: HostToContainer}}]\n  nodeName: node-1\n  volumes:\n  - {{name: v, hostPath: {{path: {path}}}}}\n"
    );
    c.apply(&user).await?;
    let user = c.pod_ready(&ns, "user").await?;
    let seen = until("the mount is seen", PATIENCE, async || {
        match c.in_container(&user, &["/bin/cat", "/v/made/f"]).await {
            Ok(text) if text == "x\n" => Ok(()),
            other => Err(format!("{other:?}")),
        }
    })
    .await;
    let table = c.on_node(&["cat", "/proc/self/mounts"]).await?;
    std::fs::remove_file(&manifest)?;
    let made = format!("{path}/made");
    let on_node = table.lines().any(|line| line.starts_with(&format!("driver {made}")));
    let api = c.client.within::<Pod>("default");
    until("the static pod is gone", PATIENCE, async || match api.find("maker-node-1").await {
        Ok(None) => Ok(()),
        other => Err(format!("{:?}", other.map(|pod| pod.is_some()))),
    })
    .await?;
    if on_node {
        c.on_node(&["umount", &made]).await?;
    }
    seen?;
    ensure!(on_node, "the node does not have it:\n{table}");
    c.discard(&ns).await
}

/// A file that is a disk of the machine.
struct Disk(String, std::path::PathBuf);

impl Disk {
    fn new(file: std::path::PathBuf) -> Result<Option<Disk>> {
        std::fs::File::create(&file)?.set_len(16 << 20)?;
        let output = Command::new("losetup").arg("-f").arg("--show").arg(&file).output()?;
        let device = String::from_utf8(output.stdout)?.trim().to_owned();
        Ok(output.status.success().then_some(Disk(device, file)))
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        let _ = Command::new("losetup").arg("-d").arg(&self.0).status();
        let _ = std::fs::remove_file(&self.1);
    }
}

pub async fn a_disk_of_the_node_gets_a_file_system_and_keeps_it(c: &Context) -> Result<()> {
    let ns = c.namespace("disk").await?;
    let Some(disk) = Disk::new(c.spec.dir.join("disk.img"))? else {
        println!("    SKIPPED: this machine has no loop devices");
        return c.discard(&ns).await;
    };
    let (id, device) = (format!("{ns}-data"), disk.0.as_str());
    c.apply(&format!(
        "apiVersion: v1\nkind: PersistentVolumeClaim\nmetadata: {{name: data, namespace: {ns}}}\n\
         spec: {{accessModes: [ReadWriteOnce], storageClassName: '', volumeName: {id}, resources: {{requests: {{storage: 1Mi}}}}}}\n"
    ))
    .await?;
    let claims = c.client.within::<PersistentVolumeClaim>(&ns);
    let uid = claims.get("data").await?.metadata.uid;
    c.apply(&format!(
        "apiVersion: v1\nkind: PersistentVolume\nmetadata: {{name: {id}}}\n\
         spec: {{accessModes: [ReadWriteOnce], capacity: {{storage: 1Mi}}, claimRef: {{apiVersion: v1, kind: PersistentVolumeClaim, namespace: {ns}, name: data, uid: {uid}}}, \
         local: {{path: {device}}}, nodeAffinity: {{required: {{nodeSelectorTerms: [{{matchExpressions: [{{key: {}, operator: In, values: [node-1]}}]}}]}}}}}}\n",
        c.names.label("hostname")
    ))
    .await?;
    let status = json!({"status": {"phase": "Bound", "capacity": {"storage": "1Mi"}}});
    claims.patch_status("data", &Patch::Merge(status), &WriteParams::default()).await?;
    let using = |name: &str| {
        let base = pod(&ns, name, WAIT);
        format!(
            "{base}    volumeMounts: [{{name: v, mountPath: /v}}]\n  nodeName: node-1\n  volumes:\n  - {{name: v, persistentVolumeClaim: {{claimName: data}}}}\n"
        )
    };
    c.apply(&using("one")).await?;
    let one = c.pod_ready(&ns, "one").await?;
    c.in_container(&one, &["/bin/sh", "-c", "echo kept > /v/file; sync"]).await?;
    c.apply(&using("two")).await?;
    let two = c.pod_ready(&ns, "two").await?;
    let shared = c.read_in_container(&two, &["/bin/cat", "/v/file"]).await?;
    deleted(c, &ns, "one").await?;
    c.kill("orchlet-node-1").await?;
    deleted(c, &ns, "two").await?;
    until("the disk is let go of", PATIENCE, async || {
        let table = c.on_node(&["cat", "/proc/self/mounts"]).await.map_err(|e| e.to_string())?;
        if table.contains(device) { Err(format!("still mounted:\n{table}")) } else { Ok(()) }
    })
    .await?;
    // and again: existing objects are not created again
    c.apply(&using("three")).await?;
    let three = c.pod_ready(&ns, "three").await?;
    let kept = c.read_in_container(&three, &["/bin/cat", "/v/file"]).await?;
    deleted(c, &ns, "three").await?;
    ensure!((shared.as_str(), kept.as_str()) == ("kept\n", "kept\n"), "{shared:?} {kept:?}");

    // a disk of another machine, without the program that attaches those
    let base = pod(&ns, "far", WAIT);
    c.apply(&format!(
        "{base}    volumeMounts: [{{name: v, mountPath: /v}}]\n  nodeName: node-1\n  volumes:\n  - {{name: v, iscsi: {{targetPortal: 192.0.2.1, iqn: iqn.2003-04.com.example, lun: 0}}}}\n"
    ))
    .await?;
    let missing = !std::path::Path::new("/sbin/iscsiadm").exists();
    let told = if missing { "iscsiadm is not on this node" } else { "iscsiadm: exit" };
    event(c, &ns, "FailedMount", told).await?;
    deleted(c, &ns, "far").await?;
    c.discard(&ns).await
}
