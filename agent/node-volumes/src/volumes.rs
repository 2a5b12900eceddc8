//! Volumes of pods: combines the volume crate, whose calls block, with the objects and tokens that fill volumes.

mod ephemeral;
mod republish_queue;
mod subpath_refresh;
mod tokens;

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use agent_clock as clock;
use agent_host::{PodWork, offload, offload_for_pod};
use agent_interfaces::{
    AttachedVolumes, BindError, MountedVolumes, PodObjects, PodVolumes, UnmountError, VolumeError,
    VolumeFill, VolumeUsage, WantedPart,
};
use agent_journal::active_pods::ActivityMark;
use agent_pod::events::{self, PodEvent, Severity};
use agent_pod::volume_mounts::VolumeOnHost;
use agent_volume::persistent::{Backing, KnownObjects, PersistentSource};
use agent_volume::sources::{TokenWant, VolumeKind};
use agent_volume::sub_path::SubPath;
use agent_volume::{Volume, VolumeRequirements};
use futures_util::FutureExt as _;
use futures_util::future::BoxFuture;
use proto_api::core::v1::{Node, Pod};
use proto_daemon::exit::chain;
use proto_daemon::panics;
use tokio::sync::{Notify, watch};
use tokio::task::JoinSet;

use self::ephemeral::{SetUpResult, SetUpTask, refreshes_subpaths};
use self::republish_queue::RepublishQueue;
use self::subpath_refresh::SubPathRefresher;
use self::tokens::PodTokens;
pub(crate) use self::tokens::{IssuedToken, Tokens};
pub use self::tokens::{Issuer, issuer};
use crate::persistent_volumes::nfs_unmount::NfsUnmounter;
use crate::persistent_volumes::{self, PersistentVolumes, REPUBLISH_PERIOD};

/// Time for readers of the previous generation of a projected volume to finish.
const SWEEP_DELAY: Duration = Duration::from_secs(2);

/// The kubelet's reason of the event of a volume that cannot be unmounted.
const UNMOUNT_FAILED: &str = "FailedUnMount";

/// Time for a set-up to finish after its pod ends.
const CANCEL_DELAY: Duration = Duration::from_secs(1);

/// Volumes of the pods on this node.
pub struct NodeVolumes {
    volumes: agent_volume::VolumesOnDisk,
    persistent: Arc<PersistentVolumes>,
    nfs_unmounter: NfsUnmounter,
    node: watch::Receiver<Option<Arc<Node>>>,
    tokens: Tokens,
    /// Persistent volumes that are set up, by pod uid.
    mounted: Mutex<BTreeMap<String, PodMounts>>,
    republish_queue: RepublishQueue<PersistentSetUp>,
    subpath_refresher: Arc<SubPathRefresher>,
    /// Notified when the pod ends, by uid of pods whose first set-up is in progress.
    cancellations: Mutex<BTreeMap<String, Arc<Notify>>>,
    /// Pending removals of previous generations. They end with the agent; the next write of a volume removes them as well.
    sweeps: Mutex<JoinSet<()>>,
}

/// Persistent volumes of a pod that are set up.
#[derive(Clone, Debug, Default)]
struct PodMounts {
    /// By name of the persistent volume: the volume's name in the pod, and its claim.
    names: BTreeMap<String, (String, Option<String>)>,
    /// Paths on the host, by name in the pod.
    on_host: BTreeMap<String, VolumeOnHost>,
}

/// Persistent volumes to set up, with the objects and tokens for it.
#[derive(Clone)]
struct PersistentSetUp {
    pod: Arc<Pod>,
    volumes: Vec<PersistentSource>,
    known: KnownObjects,
    tokens: persistent_volumes::DriverTokens,
}

impl NodeVolumes {
    /// Without an issuer there are no service account tokens. `boot` is the boot id of the machine.
    pub fn new(
        volumes: agent_volume::VolumesOnDisk,
        persistent: PersistentVolumes,
        issuer: Option<Arc<dyn Issuer>>,
        node: watch::Receiver<Option<Arc<Node>>>,
        boot: String,
    ) -> Self {
        Self {
            tokens: Tokens::new(issuer, volumes.clone(), boot),
            nfs_unmounter: NfsUnmounter::new(volumes.clone(), persistent.helpers.clone()),
            volumes,
            persistent: Arc::new(persistent),
            node,
            mounted: Mutex::default(),
            republish_queue: RepublishQueue::default(),
            subpath_refresher: Arc::default(),
            cancellations: Mutex::default(),
            sweeps: Mutex::default(),
        }
    }

    /// Sets up or updates all volumes of a pod, each independently of the others. Returns the first error after all were tried.
    async fn set_up_all(
        &self,
        pod: &Arc<Pod>,
        sources: &PodObjects,
    ) -> Result<MountedVolumes, VolumeError> {
        let volumes = agent_volume::volumes(pod);
        let volumes = volumes.map_err(|e| VolumeError::mount(e.to_string()))?;
        if volumes.is_empty() {
            return Ok(MountedVolumes::default());
        }
        let uid = &pod.metadata.uid;
        let resolved = self.persistent.resolve(pod, &sources.persistent);
        let (persistent, resolved) = match resolved {
            Ok(persistent) => (persistent, Ok(())),
            Err(line) => (Vec::new(), Err(line)),
        };
        let mut needs = VolumeRequirements::default();
        volumes.iter().for_each(|volume| volume.add_needs(&mut needs));
        let csi_volumes = persistent.iter().filter_map(|volume| match &volume.backing {
            Backing::Csi(csi) => Some(csi),
            _ => None,
        });
        csi_volumes.clone().for_each(|csi| needs.tokens.extend(csi.tokens.iter().cloned()));
        let republish = csi_volumes.clone().any(|csi| csi.republish);
        let (tokens, tokens_result) = self.tokens.get(pod, &volumes, &needs.tokens).await;
        let republish_at = republish.then(|| clock::boot() + REPUBLISH_PERIOD);
        let refresh_at = tokens.values().map(IssuedToken::next_check).chain(republish_at).min();
        let request = PersistentSetUp {
            pod: pod.clone(),
            volumes: persistent,
            known: sources.persistent.clone(),
            tokens: csi_tokens(&tokens),
        };
        let (persistent, ephemeral) = tokio::join!(
            self.set_up_persistent(request),
            self.set_up_ephemeral(pod, volumes, sources, &tokens)
        );
        let SetUpResult { mut on_host, switched, outcome } = ephemeral?;
        self.sweep_later(pod, switched);
        self.tokens.record_renewals(uid, &tokens).await;
        let issued = tokens.values().map(IssuedToken::issued_at).filter(|at| *at > 0).min();
        if let Some(oldest) = issued {
            self.persistent.operations.record_tokens(uid, oldest);
        }
        // The earliest step that failed is what a new pod waits for.
        resolved.and(tokens_result.map_err(|e| VolumeError::mount(chain(&e))))?;
        on_host.extend(persistent?);
        outcome?;
        self.persistent.operations.record_mounted(pod);
        Ok(MountedVolumes { on_host, refresh_at })
    }

    /// Sets up persistent volumes. Volumes that are already set up are updated in the background.
    async fn set_up_persistent(
        &self,
        request: PersistentSetUp,
    ) -> Result<BTreeMap<String, VolumeOnHost>, VolumeError> {
        if request.volumes.is_empty() {
            return Ok(BTreeMap::new());
        }
        let uid = request.pod.metadata.uid.clone();
        let known = self.lock_mounted().get(&uid).map(|in_pod| in_pod.on_host.clone());
        let mut on_host = match known {
            Some(known) => known,
            None => self.persistent.list_published(&request.pod, &request.volumes).await,
        };
        let names = request
            .volumes
            .iter()
            .map(|volume| (volume.spec_name.clone(), (volume.name.clone(), volume.claim.clone())))
            .collect();
        let (existing, missing): (Vec<_>, Vec<_>) =
            request.volumes.iter().cloned().partition(|v| on_host.contains_key(&v.name));
        if !existing.is_empty() {
            self.update_later(&uid, PersistentSetUp { volumes: existing, ..request.clone() });
        }
        let mut outcome = Ok(());
        if !missing.is_empty() {
            let missing = PersistentSetUp { volumes: missing, ..request };
            let (new, done) = self.set_up_missing(&uid, &missing).await?;
            on_host.extend(new);
            outcome = done;
        }
        self.lock_mounted().insert(uid, PodMounts { names, on_host: on_host.clone() });
        outcome.map(|()| on_host)
    }

    /// Updates volumes that are already set up, in the background.
    fn update_later(&self, uid: &str, request: PersistentSetUp) {
        let persistent = self.persistent.clone();
        let act = move |request: PersistentSetUp| {
            let persistent = persistent.clone();
            async move { set_up_each(&persistent, &request).await.1 }
        };
        let reports = self.persistent.reports.clone();
        let report = move |request: &PersistentSetUp, failure: VolumeError| {
            let pod = &request.pod.metadata;
            tracing::warn!(
                pod = pod.name,
                namespace = pod.namespace,
                error = failure.message,
                "cannot update the pod's volumes; retried"
            );
            let event = events::volumes_failed(failure.step, &failure.message);
            reports.event(&request.pod, event);
        };
        self.republish_queue.push(uid, request, act, report);
    }

    /// Sets up volumes that the pod does not have yet. A set-up that hangs is cancelled when the pod ends.
    async fn set_up_missing(
        &self,
        uid: &str,
        request: &PersistentSetUp,
    ) -> Result<SetUpEach, VolumeError> {
        let ends = Arc::new(Notify::new());
        self.lock_cancellations().insert(uid.to_owned(), ends.clone());
        let cancelled = async {
            ends.notified().await;
            // A set-up that does not hang ends by itself.
            tokio::time::sleep(CANCEL_DELAY).await;
        };
        // Cancel safe: a cancelled call has its record and is undone from it.
        let done = tokio::select! {
            biased;
            done = set_up_each(&self.persistent, request) => Some(done),
            () = cancelled => None,
        };
        self.lock_cancellations().remove(uid);
        done.ok_or_else(|| {
            let message = "set-up of volumes was cancelled because the pod is ending";
            VolumeError::mount(message)
        })
    }

    /// Sets up the volumes that live with the pod: projected, emptyDir and hostPath volumes.
    async fn set_up_ephemeral(
        &self,
        pod: &Arc<Pod>,
        volumes: Vec<Volume>,
        sources: &PodObjects,
        tokens: &PodTokens,
    ) -> Result<SetUpResult, VolumeError> {
        let text = |(want, token): (&TokenWant, &IssuedToken)| (want.clone(), token.text.clone());
        let allocatable = self.node.borrow().as_ref().map(|n| n.status.allocatable.clone());
        let task = SetUpTask {
            pod: pod.clone(),
            volumes,
            sources: sources.clone(),
            tokens: tokens.iter().map(text).collect(),
            allocatable: allocatable.unwrap_or_default(),
            operations: self.persistent.operations.clone(),
            subpath_refresher: self.subpath_refresher.clone(),
        };
        let on_disk = self.volumes.clone();
        let mark = ActivityMark::current();
        let set_up = move || {
            let _guard = mark.set();
            panics::isolate_sync(|| task.set_up(&on_disk))
        };
        let done = offload_for_pod(share_of(pod), PodWork::SetUp, set_up).await;
        let done = done.and_then(|done| done.map_err(std::io::Error::other));
        done.map_err(|e| VolumeError::mount(format!("set-up of volumes was interrupted: {e}")))
    }

    fn lock_cancellations(&self) -> std::sync::MutexGuard<'_, BTreeMap<String, Arc<Notify>>> {
        self.cancellations.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn lock_mounted(&self) -> std::sync::MutexGuard<'_, BTreeMap<String, PodMounts>> {
        self.mounted.lock().unwrap_or_else(PoisonError::into_inner)
    }

    async fn volume_stats(&self, pod: &Pod) -> Vec<VolumeFill> {
        let uid = &pod.metadata.uid;
        let Some(PodMounts { names, .. }) = self.lock_mounted().get(uid).cloned() else {
            return Vec::new();
        };
        let amount = |(all, used, left): (i64, i64, i64)| {
            let at_least_none = |n: i64| u64::try_from(n).unwrap_or(0);
            (at_least_none(all), at_least_none(used), at_least_none(left))
        };
        let stats = self.persistent.csi.volume_stats(uid).await.into_iter();
        let known = stats.filter_map(|fill| {
            let (name, claim) = names.get(&fill.spec_name)?.clone();
            let inodes = fill.inodes.map(amount).unwrap_or_default();
            Some(VolumeFill { name, claim, bytes: amount(fill.bytes?), inodes })
        });
        known.collect()
    }

    /// Removes previous generations after a delay for their readers.
    fn sweep_later(&self, pod: &Pod, switched: Vec<Volume>) {
        if switched.is_empty() {
            return;
        }
        let (on_disk, uid) = (self.volumes.clone(), pod.metadata.uid.clone());
        let mut sweeps = self.sweeps.lock().unwrap_or_else(PoisonError::into_inner);
        while sweeps.try_join_next().is_some() {}
        sweeps.spawn(async move {
            tokio::time::sleep(SWEEP_DELAY).await;
            let swept = offload(move || {
                for volume in &switched {
                    if let Err(error) = on_disk.sweep(&uid, volume) {
                        tracing::debug!(uid, error = chain(&error), "cannot remove the previous generation of a volume; the next write retries");
                    }
                }
            });
            if let Err(error) = swept.await {
                tracing::error!(%error, "cannot remove previous generations of volumes; the next write retries");
            }
        });
    }
}

/// The pod in whose share of the blocking threads its work runs.
fn share_of(pod: &Pod) -> (&str, &str) {
    (&pod.metadata.namespace, &pod.metadata.uid)
}

/// The volumes that were set up, by name in the pod, and the first error.
type SetUpEach = (BTreeMap<String, VolumeOnHost>, Result<(), VolumeError>);

/// Sets up persistent volumes, one after the other.
async fn set_up_each(persistent: &PersistentVolumes, request: &PersistentSetUp) -> SetUpEach {
    let (mut on_host, mut outcome) = (BTreeMap::new(), Ok(()));
    for volume in &request.volumes {
        let began = Instant::now();
        let done = persistent.set_up(&request.pod, volume, &request.known, &request.tokens).await;
        let plugin =
            persistent_volumes::plugin_name(&volume.backing, persistent.operations.domain());
        persistent.operations.record_volume("volume_mount", &plugin, began.elapsed(), done.is_ok());
        match done {
            Ok(set_up) => {
                on_host.insert(volume.name.clone(), set_up);
            }
            Err(line) => outcome = outcome.and(Err(line)),
        }
    }
    (on_host, outcome)
}

/// Tokens in the form that CSI calls carry.
fn csi_tokens(tokens: &PodTokens) -> persistent_volumes::DriverTokens {
    let each = |(want, token): (&TokenWant, &IssuedToken)| {
        let (text, expires) = (token.text.clone(), token.expires.clone());
        let audience = want.audience.clone();
        (want.clone(), agent_csi::request::DriverToken { audience, text, expires })
    };
    tokens.iter().map(each).collect()
}

impl VolumeUsage for NodeVolumes {
    fn fill<'a>(&'a self, pod: &'a Pod) -> BoxFuture<'a, Vec<VolumeFill>> {
        self.volume_stats(pod).boxed()
    }
}

impl AttachedVolumes for NodeVolumes {
    fn in_use(&self) -> Vec<String> {
        let mut all = self.persistent.csi.in_use();
        all.extend(self.persistent.disks.in_use());
        all.sort();
        all
    }

    fn in_use_changes(&self) -> Option<watch::Receiver<u64>> {
        Some(self.persistent.csi.changes().subscribe())
    }

    fn listed(&self, names: &[String]) {
        self.persistent.csi.set_listed_in_use(names.iter().cloned());
    }
}

impl PodVolumes for NodeVolumes {
    fn set_up<'a>(
        &'a self,
        pod: &'a Arc<Pod>,
        sources: &'a PodObjects,
    ) -> BoxFuture<'a, Result<MountedVolumes, VolumeError>> {
        self.set_up_all(pod, sources).boxed()
    }

    fn give_up(&self, pod: &Pod) {
        if let Some(ends) = self.lock_cancellations().get(&pod.metadata.uid) {
            ends.notify_one();
        }
    }

    fn bind_parts<'a>(
        &'a self,
        pod: &'a Pod,
        container: &'a str,
        parts: Vec<WantedPart>,
    ) -> BoxFuture<'a, Result<BTreeMap<usize, String>, BindError>> {
        let (on_disk, uid) = (self.volumes.clone(), pod.metadata.uid.clone());
        let container = container.to_owned();
        let volumes = agent_volume::volumes(pod).unwrap_or_default();
        let of_node = volumes.into_iter().filter_map(|volume| match volume.kind {
            VolumeKind::HostPath { kind, .. } => Some((volume.name, kind)),
            _ => None,
        });
        let on_node: BTreeMap<_, _> = of_node.collect();
        let refresher = self.subpath_refresher.clone();
        async move {
            let bind = move || {
                let mut bound = BTreeMap::new();
                for part in &parts {
                    if part.follows {
                        refresher.container_created(&uid, &container, part.index);
                    }
                    let wanted = SubPath {
                        volume: &part.name,
                        root: Path::new(&part.volume.path),
                        container: &container,
                        index: part.index,
                        path: &part.path,
                        on_node: on_node.get(&part.name).copied(),
                        all_read_only: part.all_read_only,
                        follows: part.follows,
                    };
                    let at = on_disk.sub_path(&uid, &wanted)?;
                    bound.insert(part.index, at.to_string_lossy().into_owned());
                }
                Ok(bound)
            };
            // Below a mount whose server does not answer this never returns.
            let bound = offload_for_pod(share_of(pod), PodWork::SetUp, bind).await;
            bound.map_err(BindError::Interrupted)?
        }
        .boxed()
    }

    fn started<'a>(&'a self, pod: &'a Pod, container: &'a str) -> BoxFuture<'a, ()> {
        async move {
            if !refreshes_subpaths(pod) {
                return;
            }
            let (on_disk, refresher) = (self.volumes.clone(), self.subpath_refresher.clone());
            let (uid, container) = (pod.metadata.uid.clone(), container.to_owned());
            let refresh = move || refresher.container_started(&on_disk, &uid, &container);
            let refreshed = offload_for_pod(share_of(pod), PodWork::SetUp, refresh).await;
            let refreshed = refreshed.map_err(BindError::Interrupted);
            if let Err(error) = refreshed.and_then(|done| Ok(done?)) {
                // The next update of the volumes retries.
                tracing::warn!(
                    pod = pod.metadata.name,
                    namespace = pod.metadata.namespace,
                    error = chain(&error),
                    "a subPath mount is not refreshed; the next update of the volumes retries"
                );
            }
        }
        .boxed()
    }

    fn exist(&self, pod: &Pod) -> bool {
        let uid = &pod.metadata.uid;
        self.volumes.has_any(uid) || self.persistent.csi.has(uid)
    }

    fn tear_down<'a>(&'a self, pod: &'a Pod) -> BoxFuture<'a, Result<(), UnmountError>> {
        async move {
            let began = Instant::now();
            let done = self.unmount_all(pod).await;
            self.persistent.operations.record_teardown(pod, began.elapsed(), done.is_ok());
            if let Err(error) = &done {
                let event = PodEvent::new(Severity::Warning, UNMOUNT_FAILED, chain(error));
                self.persistent.reports.event(pod, event);
            }
            done
        }
        .boxed()
    }
}

impl NodeVolumes {
    async fn unmount_all(&self, pod: &Pod) -> Result<(), UnmountError> {
        let (on_disk, uid) = (self.volumes.clone(), pod.metadata.uid.clone());
        self.tokens.forget(&uid);
        self.subpath_refresher.forget(&uid);
        self.republish_queue.cancel(&uid).await;
        self.lock_mounted().remove(&uid);
        let (parts, of) = (on_disk.clone(), uid.clone());
        let (of_pod, kind) = (share_of(pod), PodWork::TearDown);
        let freed = offload_for_pod(of_pod, kind, move || parts.tear_down_parts(&of)).await;
        freed.map_err(UnmountError::Interrupted)??;
        let csi = self.persistent.csi.tear_down(&uid);
        let nfs = self.nfs_unmounter.unmount_all(&uid, &pod.metadata.namespace);
        let (csi, nfs) = tokio::join!(csi, nfs);
        csi.map_err(|e| UnmountError::Driver(e.into()))?;
        nfs.map_err(|e| UnmountError::Driver(e.into()))?;
        // The walk takes as long as the pod has files.
        let done = offload_for_pod(of_pod, kind, move || on_disk.tear_down(&uid)).await;
        done.map_err(UnmountError::Interrupted)??;
        self.persistent.operations.record_unmounted(&pod.metadata.uid);
        self.persistent.disks.pod_ended();
        Ok(())
    }
}

#[cfg(test)]
mod tests;
