//! The controller part of the driver, which real drivers leave to sidecars: it provisions volumes for claims, deletes released ones, attaches and expands.
//! Each call can fail like those of the node part.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use proto_api::core::v1::{
    CSIPersistentVolumeSource, NodeSelector, NodeSelectorRequirement, NodeSelectorTerm,
    PersistentVolume, PersistentVolumeClaim, PersistentVolumeSpec, VolumeNodeAffinity,
};
use proto_api::event_report::{EventKind, reference};
use proto_api::meta::v1::ObjectMeta;
use proto_api::names::{Names, Profile};
use proto_api::storage::v1::{StorageClass, VolumeAttachment};
use proto_api::{ObjectKey, Quantity, Resource, Time};
use proto_client::config::file;
use proto_client::events::{Recorder, recorder};
use proto_client::{
    Client, ClientError, DeleteParams, ListParams, Patch, Reflector, Store as Map, WriteParams,
};
use proto_daemon::drain::Drain;
use serde_json::{Value, json};
use tokio::sync::Notify;
use tonic::Status;

use crate::Flags;
use crate::faults;
use crate::store::Store;

/// What fails is tried again after this long.
const RETRY: Duration = Duration::from_secs(1);

struct Cluster {
    client: Client,
    names: &'static Names,
    driver: String,
    store: Arc<Store>,
    events: Recorder,
    claims: Map<PersistentVolumeClaim>,
    volumes: Map<PersistentVolume>,
    classes: Map<StorageClass>,
    attachments: Map<VolumeAttachment>,
    /// By what failed, when to try it again.
    pauses: HashMap<String, Instant>,
    /// UIDs of volumes that the driver has deleted and of attachments that it has detached, until the caches have lost them: they may not show yet that it is
    /// done, and the driver is not asked twice.
    ended: HashSet<String>,
}

/// Why something was not done.
enum Failure {
    /// An injected failure.
    Driver(Status),
    /// The API server has refused; what has changed brings it back.
    Server(ClientError),
}

impl From<ClientError> for Failure {
    fn from(error: ClientError) -> Self {
        Self::Server(error)
    }
}

/// Serves the claims of the cluster that the flags name; for ever, and of none if they name none.
///
/// # Errors
/// The client configuration is no use.
pub async fn serve(flags: &Flags, store: Arc<Store>) -> Result<()> {
    let Some(path) = &flags.kubeconfig else { return std::future::pending().await };
    let profile = Profile::parse(&flags.naming, None).context("--naming")?;
    let names = Names::new(profile);
    let client = Client::new(&file::load(path, None)?, names, "csi-driver")?;
    let (drain, changed) = (Drain::default(), Arc::new(Notify::new()));
    let (events, writer) = recorder(client.clone(), &flags.name, "");
    tokio::spawn(writer.run(drain.watch()));
    let mut cluster = Cluster {
        names,
        driver: flags.name.clone(),
        store,
        events,
        claims: keep(&client, &drain, &changed),
        volumes: keep(&client, &drain, &changed),
        classes: keep(&client, &drain, &changed),
        attachments: keep(&client, &drain, &changed),
        pauses: HashMap::new(),
        ended: HashSet::new(),
        client,
    };
    cluster.claims.synced().await;
    cluster.volumes.synced().await;
    cluster.classes.synced().await;
    cluster.attachments.synced().await;
    loop {
        cluster.look().await;
        // Cancel safe; changes without a waiter are kept.
        let _ = tokio::time::timeout(RETRY, changed.notified()).await;
    }
}

fn keep<T: Resource>(client: &Client, drain: &Drain, changed: &Arc<Notify>) -> Map<T> {
    let reflector = Reflector::whole(client.all(), ListParams::default());
    let (map, changed) = (reflector.store(), changed.clone());
    tokio::spawn(reflector.run(drain.watch(), move |_| changed.notify_one()));
    map
}

fn storage(resources: &BTreeMap<String, Quantity>) -> Quantity {
    resources.get("storage").copied().unwrap_or(Quantity::ZERO)
}

fn now() -> Time {
    let since =
        std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
    Time::from_unix(i64::try_from(since.as_secs()).unwrap_or(i64::MAX))
}

impl Cluster {
    async fn look(&mut self) {
        self.forget_lost();
        for (key, claim) in self.claims.list() {
            if self.is_asked(&claim) && self.is_due(&format!("make {key}")) {
                let made = self.make(&claim).await;
                self.settle(
                    &format!("make {key}"),
                    made,
                    claim.as_ref(),
                    "ProvisioningFailed",
                    "failed to provision volume",
                );
            }
            if let Some(volume) = self.is_small(&claim)
                && self.is_due(&format!("grow {key}"))
            {
                let grown = self.grow(&claim, &volume).await;
                self.settle(
                    &format!("grow {key}"),
                    grown,
                    claim.as_ref(),
                    "VolumeResizeFailed",
                    "resize volume",
                );
            }
        }
        for (key, volume) in self.volumes.list() {
            if self.is_released(&volume) && self.is_due(&format!("delete {key}")) {
                let gone = self.delete(&volume).await;
                self.settle(
                    &format!("delete {key}"),
                    gone,
                    volume.as_ref(),
                    "VolumeFailedDelete",
                    "delete volume",
                );
            }
        }
        for (key, attachment) in self.attachments.list() {
            if attachment.spec.attacher == self.driver && self.is_due(&format!("attach {key}")) {
                let done = self.attach(&attachment).await;
                self.settle(&format!("attach {key}"), done, attachment.as_ref(), "", "");
            }
        }
    }

    /// Forgets what has ended of objects that the caches have lost.
    fn forget_lost(&mut self) {
        let (volumes, attachments) = (self.volumes.list(), self.attachments.list());
        let volumes = volumes.iter().map(|(_, volume)| &volume.metadata.uid);
        let attachments = attachments.iter().map(|(_, attachment)| &attachment.metadata.uid);
        let left: HashSet<&String> = volumes.chain(attachments).collect();
        self.ended.retain(|uid| left.contains(uid));
    }

    fn is_due(&self, what: &str) -> bool {
        self.pauses.get(what).is_none_or(|until| *until <= Instant::now())
    }

    /// Puts off what has failed, and tells people if there is a word for it.
    fn settle<T: Resource>(
        &mut self,
        what: &str,
        done: Result<(), Failure>,
        about: &T,
        reason: &'static str,
        step: &str,
    ) {
        let why = match done {
            Ok(()) => {
                self.pauses.remove(what);
                return;
            }
            Err(Failure::Driver(status)) => said(&status),
            // What has changed meanwhile comes with the watch.
            Err(Failure::Server(error)) if error.is_conflict() || error.is_not_found() => return,
            Err(Failure::Server(error)) => error.to_string(),
        };
        eprintln!("{what}: {why}");
        self.pauses.insert(what.to_owned(), Instant::now() + RETRY);
        if !reason.is_empty() {
            let about = reference(about, self.names);
            self.events.event(&about, EventKind::Warning, reason, format!("{step}: {why}"));
        }
    }

    /// Notes a call, and lets it fail if it is to.
    async fn called(&self, call: &str, what: Value) -> Result<(), Failure> {
        self.store.note(call, &what);
        faults::happen(self.store.fault(call)).await.map_err(Failure::Driver)
    }

    // === Volumes for claims ===

    fn is_asked(&self, claim: &PersistentVolumeClaim) -> bool {
        let asked =
            claim.metadata.annotations.get(&self.names.sub_label("volume", "storage-provisioner"));
        let open = claim.spec.volume_name.is_empty() && claim.metadata.deletion_timestamp.is_none();
        let Some(class) = self.class_of(claim) else { return false };
        let waits = class.volume_binding_mode.as_deref() == Some("WaitForFirstConsumer");
        let selected = self.names.sub_label("volume", "selected-node");
        asked == Some(&self.driver)
            && open
            && (!waits || claim.metadata.annotations.contains_key(&selected))
            && self.volumes.get(&ObjectKey::new("", volume_name(claim))).is_none()
    }

    fn class_of(&self, claim: &PersistentVolumeClaim) -> Option<Arc<StorageClass>> {
        let name = claim.spec.storage_class_name.as_deref()?;
        self.classes.get(&ObjectKey::new("", name))
    }

    async fn make(&self, claim: &PersistentVolumeClaim) -> Result<(), Failure> {
        let Some(class) = self.class_of(claim) else { return Ok(()) };
        let (id, size) = (volume_name(claim), storage(&claim.spec.resources.requests));
        self.called(
            "CreateVolume",
            json!({"id": id, "bytes": size.value(), "parameters": class.parameters}),
        )
        .await?;
        let failed = |error: std::io::Error| Failure::Driver(Status::internal(error.to_string()));
        self.store.resize(&id, size.value()).map_err(failed)?;
        let volume = self.volume(claim, &class, id);
        match self.client.all::<PersistentVolume>().create(&volume, &WriteParams::default()).await {
            Err(error) if !error.is_already_exists() => return Err(error.into()),
            _ => {}
        }
        let message = format!("Successfully provisioned volume {}", volume.metadata.name);
        self.events.event(
            &reference(claim, self.names),
            EventKind::Normal,
            "ProvisioningSucceeded",
            message,
        );
        Ok(())
    }

    fn volume(
        &self,
        claim: &PersistentVolumeClaim,
        class: &StorageClass,
        id: String,
    ) -> PersistentVolume {
        let provisioned = self.names.sub_label("pv", "provisioned-by");
        let zone = NodeSelectorRequirement {
            key: format!("topology.{}/zone", self.driver),
            operator: "In".to_owned(),
            values: vec!["z1".to_owned()],
        };
        let term = NodeSelectorTerm { match_expressions: vec![zone], ..Default::default() };
        let mut spec = PersistentVolumeSpec {
            capacity: [("storage".to_owned(), storage(&claim.spec.resources.requests))].into(),
            access_modes: claim.spec.access_modes.clone(),
            claim_ref: Some(reference(claim, self.names)),
            persistent_volume_reclaim_policy: class
                .reclaim_policy
                .clone()
                .unwrap_or_else(|| "Delete".to_owned()),
            storage_class_name: class.metadata.name.clone(),
            mount_options: class.mount_options.clone(),
            volume_mode: claim.spec.volume_mode.clone(),
            node_affinity: Some(VolumeNodeAffinity {
                required: Some(NodeSelector { node_selector_terms: vec![term] }),
            }),
            ..PersistentVolumeSpec::default()
        };
        spec.persistent_volume_source.csi = Some(CSIPersistentVolumeSource {
            driver: self.driver.clone(),
            volume_handle: id.clone(),
            fs_type: "ext4".to_owned(),
            volume_attributes: class.parameters.clone(),
            ..CSIPersistentVolumeSource::default()
        });
        let metadata = ObjectMeta {
            name: id,
            annotations: [(provisioned, self.driver.clone())].into(),
            ..ObjectMeta::default()
        };
        PersistentVolume { metadata, spec, ..PersistentVolume::default() }
    }

    fn is_released(&self, volume: &PersistentVolume) -> bool {
        let by = volume.metadata.annotations.get(&self.names.sub_label("pv", "provisioned-by"));
        let attached = self.attachments.list().into_iter().any(|(_, attachment)| {
            attachment.spec.source.persistent_volume_name.as_ref() == Some(&volume.metadata.name)
        });
        by == Some(&self.driver)
            && volume.status.phase == "Released"
            && volume.spec.persistent_volume_reclaim_policy == "Delete"
            && volume.metadata.deletion_timestamp.is_none()
            && !attached
    }

    async fn delete(&mut self, volume: &PersistentVolume) -> Result<(), Failure> {
        let Some(csi) = &volume.spec.persistent_volume_source.csi else { return Ok(()) };
        if !self.ended.contains(&volume.metadata.uid) {
            self.called("DeleteVolume", json!({"id": csi.volume_handle})).await?;
            let failed =
                |error: std::io::Error| Failure::Driver(Status::internal(error.to_string()));
            self.store.remove(&csi.volume_handle).map_err(failed)?;
            self.ended.insert(volume.metadata.uid.clone());
        }
        let params =
            DeleteParams { uid: Some(volume.metadata.uid.clone()), ..DeleteParams::default() };
        Ok(self.client.all::<PersistentVolume>().delete(&volume.metadata.name, &params).await?)
    }

    // === Attachments ===

    async fn attach(&mut self, attachment: &VolumeAttachment) -> Result<(), Failure> {
        let api = self.client.all::<VolumeAttachment>();
        let (metadata, params) = (&attachment.metadata, WriteParams::default());
        let finalizer = format!("external-attacher/{}", self.driver.replace('.', "-"));
        let held = metadata.finalizers.contains(&finalizer);
        let what = json!({"volume": attachment.spec.source.persistent_volume_name, "node": attachment.spec.node_name});
        let finalizers = |list: Vec<String>| {
            Patch::Merge(
                json!({"metadata": {"resourceVersion": metadata.resource_version, "finalizers": list}}),
            )
        };
        match (metadata.deletion_timestamp.is_some(), held) {
            (false, false) => {
                let mut list = metadata.finalizers.clone();
                list.push(finalizer);
                api.patch(&metadata.name, &finalizers(list), &params).await?;
            }
            (false, true) if !attachment.status.attached => {
                let done = self.called("ControllerPublishVolume", what).await;
                let status = match &done {
                    Err(Failure::Driver(status)) => {
                        json!({"attachError": {"message": said(status), "time": now()}})
                    }
                    _ => {
                        json!({"attached": true, "attachError": null, "attachmentMetadata": {"shelf": "7"}})
                    }
                };
                let patch =
                    Patch::Merge(json!({"metadata": {"uid": metadata.uid}, "status": status}));
                api.patch_status(&metadata.name, &patch, &params).await?;
                done?;
            }
            (true, true) => {
                if !self.ended.contains(&metadata.uid) {
                    self.called("ControllerUnpublishVolume", what).await?;
                    self.ended.insert(metadata.uid.clone());
                }
                let list = metadata.finalizers.iter().filter(|other| **other != finalizer).cloned();
                api.patch(&metadata.name, &finalizers(list.collect()), &params).await?;
            }
            _ => {}
        }
        Ok(())
    }

    // === Larger volumes ===

    /// The volume of a claim that wants more than it shows, unless it is the node's turn.
    fn is_small(&self, claim: &PersistentVolumeClaim) -> Option<Arc<PersistentVolume>> {
        let wanted = storage(&claim.spec.resources.requests);
        let pending = claim.status.conditions.iter().any(|c| c.type_ == "FileSystemResizePending");
        if claim.status.phase != "Bound" || pending || storage(&claim.status.capacity) >= wanted {
            return None;
        }
        let volume = self.volumes.get(&ObjectKey::new("", &claim.spec.volume_name))?;
        let csi = volume.spec.persistent_volume_source.csi.as_ref()?;
        (csi.driver == self.driver).then_some(volume)
    }

    async fn grow(
        &self,
        claim: &PersistentVolumeClaim,
        volume: &PersistentVolume,
    ) -> Result<(), Failure> {
        let wanted = storage(&claim.spec.resources.requests);
        let about = reference(claim, self.names);
        if storage(&volume.spec.capacity) < wanted {
            self.show(claim, "Resizing", "").await?;
            self.events.event(
                &about,
                EventKind::Normal,
                "Resizing",
                format!("External resizer is resizing volume {}", volume.metadata.name),
            );
            self.called(
                "ControllerExpandVolume",
                json!({"id": volume.metadata.name, "bytes": wanted.value()}),
            )
            .await?;
            let patch = Patch::Merge(json!({"spec": {"capacity": {"storage": wanted}}}));
            let api = self.client.all::<PersistentVolume>();
            api.patch(&volume.metadata.name, &patch, &WriteParams::default()).await?;
        }
        let message =
            "Waiting for user to (re-)start a pod to finish file system resize of volume on node.";
        self.show(claim, "FileSystemResizePending", message).await?;
        self.events.event(
            &about,
            EventKind::Normal,
            "FileSystemResizeRequired",
            "Require file system resize of volume on node",
        );
        Ok(())
    }

    /// Shows in a claim what is being done for it. Not over what the node has shown meanwhile.
    async fn show(
        &self,
        claim: &PersistentVolumeClaim,
        condition: &str,
        message: &str,
    ) -> Result<(), Failure> {
        let ObjectMeta { namespace, name, .. } = &claim.metadata;
        let api = self.client.within::<PersistentVolumeClaim>(namespace);
        let condition = json!({
            "type": condition, "status": "True", "message": message,
            "lastProbeTime": null, "lastTransitionTime": now(),
        });
        loop {
            let latest = api.get(name).await?;
            if storage(&latest.status.capacity) >= storage(&latest.spec.resources.requests) {
                return Ok(());
            }
            let version = &latest.metadata.resource_version;
            let patch = json!({"metadata": {"resourceVersion": version}, "status": {"conditions": [&condition]}});
            match api.patch_status(name, &Patch::Merge(patch), &WriteParams::default()).await {
                Err(error) if error.is_conflict() => {}
                written => return Ok(written.map(drop)?),
            }
        }
    }
}

/// A failed call as programs beside drivers report it.
fn said(status: &Status) -> String {
    format!("rpc error: code = {:?} desc = {}", status.code(), status.message())
}

fn volume_name(claim: &PersistentVolumeClaim) -> String {
    format!("pvc-{}", claim.metadata.uid)
}
