//! Volumes of pods: joins the volume crate, which blocks, with the objects and tokens that volumes are filled from.

mod republish_queue;
mod subpath_refresh;
mod tokens;

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use agent_csi::offload;
use agent_pod::events;
use agent_pod::volume_mounts::VolumeOnHost;
use agent_volume::persistent::{Backing, Known, Persistent};
use agent_volume::pod_volumes::SetUp;
use agent_volume::sources::{HostPathKind, Inputs, TokenWant, VolumeKind};
use agent_volume::sub_path::SubPath;
use agent_volume::tree::Written;
use agent_volume::{Needs, Volume};
use futures_util::FutureExt as _;
use futures_util::future::BoxFuture;
use proto_api::Quantity;
use proto_api::core::v1::{Node, Pod};
use proto_api::names::Names;
use proto_daemon::exit::chain;
use proto_daemon::panics;
use tokio::sync::{Notify, watch};
use tokio::task::JoinSet;

use self::republish_queue::RepublishQueue;
use self::subpath_refresh::SubPathRefresher;
pub use self::tokens::{Issuer, issuer};
use self::tokens::{OfPod, Token, Tokens};
use crate::clock;
use crate::metrics::{Acts, plugin};
use crate::persistent_volumes::{self, NodePersistent, REPUBLISH_PERIOD};
use crate::pods::in_hand::Hand;
use crate::pods::ports::{Line, MountedVolumes, PodVolumes, Sources, VolumeFill, WantedPart};

/// How long a reader that has opened the generation before a switch is given to finish.
const SWEEP_AFTER: Duration = Duration::from_secs(2);

/// How long a set-up may still take when its pod ends.
const GIVE_UP_AFTER: Duration = Duration::from_secs(1);

/// Volumes on this node.
pub struct NodeVolumes {
    volumes: agent_volume::PodVolumes,
    persistent: Arc<NodePersistent>,
    node: watch::Receiver<Option<Arc<Node>>>,
    tokens: Tokens,
    /// Persistent volumes in use, by uid of their pod.
    in_pods: Mutex<BTreeMap<String, PodMounts>>,
    again: RepublishQueue<CsiRequest>,
    /// Parts of volumes that containers see brought up to date.
    following: Arc<SubPathRefresher>,
    /// Set-ups under way of pods that have nothing yet, by uid: told when the pod ends.
    begun: Mutex<BTreeMap<String, Arc<Notify>>>,
    /// Sweeps that wait for readers to finish. They end with the agent: the next writer of a volume sweeps as well.
    sweeps: Mutex<JoinSet<()>>,
}

/// The persistent volumes of a pod that are set up.
#[derive(Clone, Debug, Default)]
struct PodMounts {
    /// By name of what is behind them: the volume's name in the pod, and its claim.
    names: BTreeMap<String, (String, Option<String>)>,
    /// On the host, by name in the pod.
    on_host: BTreeMap<String, VolumeOnHost>,
}

/// Persistent volumes to set up, with all that this takes.
#[derive(Clone)]
struct CsiRequest {
    pod: Arc<Pod>,
    volumes: Vec<Persistent>,
    known: Known,
    tokens: persistent_volumes::Tokens,
}

impl NodeVolumes {
    /// Volumes of the pods; without an issuer there are no tokens. `boot` names this boot of the machine.
    pub fn new(
        volumes: agent_volume::PodVolumes,
        persistent: NodePersistent,
        issuer: Option<Arc<dyn Issuer>>,
        node: watch::Receiver<Option<Arc<Node>>>,
        boot: String,
    ) -> Self {
        Self {
            tokens: Tokens::new(issuer, volumes.clone(), boot),
            volumes,
            persistent: Arc::new(persistent),
            node,
            in_pods: Mutex::default(),
            again: RepublishQueue::default(),
            following: Arc::default(),
            begun: Mutex::default(),
            sweeps: Mutex::default(),
        }
    }

    /// Each volume by itself: one that cannot be set up, or brought up to date, holds none of the others back. The first that is wrong
    /// is told in the end.
    async fn set_up_all(&self, pod: &Arc<Pod>, sources: &Sources) -> Result<MountedVolumes, Line> {
        let volumes = agent_volume::volumes(pod).map_err(|e| e.to_string())?;
        if volumes.is_empty() {
            return Ok(MountedVolumes::default());
        }
        let uid = &pod.metadata.uid;
        let resolved = self.persistent.of(pod, &sources.persistent);
        let (persistent, resolved) = match resolved {
            Ok(persistent) => (persistent, Ok(())),
            Err(line) => (Vec::new(), Err(line)),
        };
        let mut needs = Needs::default();
        volumes.iter().for_each(|volume| volume.add_needs(&mut needs));
        let driven = persistent.iter().filter_map(|volume| match &volume.backing {
            Backing::Csi(csi) => Some(csi),
            _ => None,
        });
        driven.clone().for_each(|csi| needs.tokens.extend(csi.tokens.iter().cloned()));
        let republish = driven.clone().any(|csi| csi.republish);
        let (tokens, asked) = self.tokens.of(pod, &volumes, &needs.tokens).await;
        let again = republish.then(|| clock::boot() + REPUBLISH_PERIOD);
        let refresh_at = tokens.values().map(Token::next_look).chain(again).min();
        let driven = CsiRequest {
            pod: pod.clone(),
            volumes: persistent,
            known: sources.persistent.clone(),
            tokens: for_drivers(&tokens),
        };
        let (there, filled) =
            tokio::join!(self.drive(driven), self.fill(pod, volumes, sources, &tokens));
        let Done { mut on_host, switched, outcome } = filled?;
        self.sweep_later(pod, switched);
        self.tokens.write_down(uid, &tokens).await;
        let issued = tokens.values().map(Token::issued_at).filter(|at| *at > 0).min();
        if let Some(oldest) = issued {
            self.persistent.acts.tokens(uid, oldest);
        }
        // What fails first for a pod that has nothing yet is what it waits for.
        resolved.and(asked)?;
        on_host.extend(there?);
        outcome?;
        self.persistent.acts.mounted(pod);
        Ok(MountedVolumes { on_host, refresh_at })
    }

    /// Sets persistent volumes up. Those that the pod has already are brought up to date by and by.
    async fn drive(&self, driven: CsiRequest) -> Result<BTreeMap<String, VolumeOnHost>, Line> {
        if driven.volumes.is_empty() {
            return Ok(BTreeMap::new());
        }
        let uid = driven.pod.metadata.uid.clone();
        let known = self.in_pods().get(&uid).map(|in_pod| in_pod.on_host.clone());
        let mut on_host = match known {
            Some(known) => known,
            None => self.persistent.since_before(&driven.pod, &driven.volumes).await,
        };
        let names = driven
            .volumes
            .iter()
            .map(|volume| (volume.spec_name.clone(), (volume.name.clone(), volume.claim.clone())))
            .collect();
        let (there, missing): (Vec<_>, Vec<_>) =
            driven.volumes.iter().cloned().partition(|v| on_host.contains_key(&v.name));
        if !there.is_empty() {
            self.bring_up_to_date(&uid, CsiRequest { volumes: there, ..driven.clone() });
        }
        let mut outcome = Ok(());
        if !missing.is_empty() {
            let missing = CsiRequest { volumes: missing, ..driven };
            let (made, done) = self.begin(&uid, &missing).await?;
            on_host.extend(made);
            outcome = done;
        }
        self.in_pods().insert(uid, PodMounts { names, on_host: on_host.clone() });
        outcome.map(|()| on_host)
    }

    /// Has volumes that a pod has already looked at again, beside everything else.
    fn bring_up_to_date(&self, uid: &str, driven: CsiRequest) {
        let persistent = self.persistent.clone();
        let act = move |driven: CsiRequest| {
            let persistent = persistent.clone();
            async move { set_up_each(&persistent, &driven).await.1 }
        };
        let reports = self.persistent.reports.clone();
        let told = move |driven: &CsiRequest, line: Line| {
            let pod = &driven.pod.metadata;
            tracing::warn!(pod = pod.name, error = line, "volumes are not up to date");
            reports.event(&driven.pod, events::mount_failed(&line));
        };
        self.again.ask(uid, driven, act, told);
    }

    /// Sets up what a pod has not yet, and waits for it; what hangs is given up when the pod ends.
    async fn begin(&self, uid: &str, driven: &CsiRequest) -> Result<Made, Line> {
        let ends = Arc::new(Notify::new());
        self.begun().insert(uid.to_owned(), ends.clone());
        let given_up = async {
            ends.notified().await;
            // What does not hang comes to its end by itself.
            tokio::time::sleep(GIVE_UP_AFTER).await;
        };
        // Cancel safe: a call that is given up has its record, and is undone by that.
        let done = tokio::select! {
            biased;
            done = set_up_each(&self.persistent, driven) => Some(done),
            () = given_up => None,
        };
        self.begun().remove(uid);
        done.ok_or_else(|| "setting volumes up was given up: the pod ends".to_owned())
    }

    /// Fills the volumes that are made from objects, and makes the others that are the agent's own.
    async fn fill(
        &self,
        pod: &Arc<Pod>,
        volumes: Vec<Volume>,
        sources: &Sources,
        tokens: &OfPod,
    ) -> Result<Done, Line> {
        let text = |(want, token): (&TokenWant, &Token)| (want.clone(), token.text.clone());
        let allocatable = self.node.borrow().as_ref().map(|n| n.status.allocatable.clone());
        let work = Work {
            pod: pod.clone(),
            volumes,
            sources: sources.clone(),
            tokens: tokens.iter().map(text).collect(),
            allocatable: allocatable.unwrap_or_default(),
            acts: self.persistent.acts.clone(),
            following: self.following.clone(),
        };
        let on_disk = self.volumes.clone();
        let hand = Hand::current();
        let set_up = move || {
            let _mark = hand.mark();
            panics::isolate_sync(|| work.set_up(&on_disk))
        };
        let done = offload(set_up).await.and_then(|done| done.map_err(std::io::Error::other));
        done.map_err(|e| format!("setting volumes up broke off: {e}"))
    }

    fn begun(&self) -> std::sync::MutexGuard<'_, BTreeMap<String, Arc<Notify>>> {
        self.begun.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn in_pods(&self) -> std::sync::MutexGuard<'_, BTreeMap<String, PodMounts>> {
        self.in_pods.lock().unwrap_or_else(PoisonError::into_inner)
    }

    async fn filled(&self, pod: &Pod) -> Vec<VolumeFill> {
        let uid = &pod.metadata.uid;
        let Some(PodMounts { names, .. }) = self.in_pods().get(uid).cloned() else {
            return Vec::new();
        };
        let amount = |(all, used, left): (i64, i64, i64)| {
            let at_least_none = |n: i64| u64::try_from(n).unwrap_or(0);
            (at_least_none(all), at_least_none(used), at_least_none(left))
        };
        let told = self.persistent.csi.fill(uid).await.into_iter();
        let known = told.filter_map(|fill| {
            let (name, claim) = names.get(&fill.spec_name)?.clone();
            let inodes = fill.inodes.map(amount).unwrap_or_default();
            Some(VolumeFill { name, claim, bytes: amount(fill.bytes?), inodes })
        });
        known.collect()
    }

    /// Removes replaced generations a little later, for readers that still read them.
    fn sweep_later(&self, pod: &Pod, switched: Vec<Volume>) {
        if switched.is_empty() {
            return;
        }
        let (on_disk, uid) = (self.volumes.clone(), pod.metadata.uid.clone());
        let mut sweeps = self.sweeps.lock().unwrap_or_else(PoisonError::into_inner);
        while sweeps.try_join_next().is_some() {}
        sweeps.spawn(async move {
            tokio::time::sleep(SWEEP_AFTER).await;
            let swept = offload(move || {
                for volume in &switched {
                    if let Err(error) = on_disk.sweep(&uid, volume) {
                        tracing::debug!(uid, error = chain(&error), "volume is not swept");
                    }
                }
            });
            if let Err(error) = swept.await {
                tracing::error!(%error, "sweeping volumes broke off");
            }
        });
    }
}

/// What came of the volumes that could be set up, by name in the pod, and why the first could not.
type Made = (BTreeMap<String, VolumeOnHost>, Result<(), Line>);

/// Sets persistent volumes up, one after the other.
async fn set_up_each(persistent: &NodePersistent, driven: &CsiRequest) -> Made {
    let (mut on_host, mut outcome) = (BTreeMap::new(), Ok(()));
    for volume in &driven.volumes {
        let began = Instant::now();
        let done = persistent.set_up(&driven.pod, volume, &driven.known, &driven.tokens).await;
        let plugin = persistent_volumes::plugin(&volume.backing, persistent.acts.domain());
        persistent.acts.volume("volume_mount", &plugin, began.elapsed(), done.is_ok());
        match done {
            Ok(there) => {
                on_host.insert(volume.name.clone(), there);
            }
            Err(line) => outcome = outcome.and(Err(line)),
        }
    }
    (on_host, outcome)
}

/// Tokens as drivers are given them.
fn for_drivers(tokens: &OfPod) -> persistent_volumes::Tokens {
    let each = |(want, token): (&TokenWant, &Token)| {
        let (text, expires) = (token.text.clone(), token.expires.clone());
        let audience = want.audience.clone();
        (want.clone(), agent_csi::request::Token { audience, text, expires })
    };
    tokens.iter().map(each).collect()
}

/// Everything that setting the volumes of a pod up needs, on its way to a thread that may block.
struct Work {
    pod: Arc<Pod>,
    volumes: Vec<Volume>,
    sources: Sources,
    tokens: BTreeMap<TokenWant, String>,
    allocatable: BTreeMap<String, Quantity>,
    acts: Acts,
    following: Arc<SubPathRefresher>,
}

struct Done {
    on_host: BTreeMap<String, VolumeOnHost>,
    switched: Vec<Volume>,
    /// Why the first could not be set up.
    outcome: Result<(), Line>,
}

impl Work {
    fn set_up(self, on_disk: &agent_volume::PodVolumes) -> Done {
        let inputs = Inputs {
            pod: &self.pod,
            objects: &self.sources,
            tokens: &self.tokens,
            allocatable: &self.allocatable,
            budget: &agent_volume::Budget::default(),
        };
        let mut done = Done { on_host: BTreeMap::new(), switched: Vec::new(), outcome: Ok(()) };
        let persistent = |volume: &Volume| volume.kind == VolumeKind::Persistent;
        let follows = has_parts_that_follow(&self.pod);
        for volume in self.volumes.into_iter().filter(|volume| !persistent(volume)) {
            let began = Instant::now();
            let made = on_disk.set_up(&inputs, &volume);
            let mut named = self.pod.spec.volumes.iter();
            if let Some(named) = named.find(|named| named.name == volume.name) {
                let plugin = plugin(named, self.acts.domain());
                self.acts.volume("volume_mount", &plugin, began.elapsed(), made.is_ok());
            }
            match made {
                Ok(SetUp { path, written, .. }) => {
                    let path = path.to_string_lossy().into_owned();
                    let follows = follows && matches!(volume.kind, VolumeKind::Projected(_));
                    let there = given(on_disk, &volume, path, follows);
                    if follows {
                        let parts = &self.following;
                        let renewed = parts.refresh(on_disk, &self.pod, &volume.name, &there);
                        done.outcome = done.outcome.and(renewed);
                    }
                    done.on_host.insert(volume.name.clone(), there);
                    if written == Some(Written::Switched) {
                        done.switched.push(volume);
                    }
                }
                Err(error) => done.outcome = done.outcome.and(Err(chain(&error))),
            }
        }
        done
    }
}

/// Whether a pod asks for parts of its volumes to be brought up to date.
fn has_parts_that_follow(pod: &Pod) -> bool {
    pod.metadata.annotations.get(Names::PARTS_FOLLOW).is_some_and(|value| value == "true")
}

/// A volume as containers are given it.
fn given(
    on_disk: &agent_volume::PodVolumes,
    volume: &Volume,
    path: String,
    follows: bool,
) -> VolumeOnHost {
    VolumeOnHost {
        path,
        read_only: matches!(volume.kind, VolumeKind::Projected(_)),
        managed: !matches!(volume.kind, VolumeKind::HostPath { .. }),
        block: false,
        checked: match &volume.kind {
            VolumeKind::HostPath { path, kind } => {
                *kind != HostPathKind::Unset && !on_disk.lie_below(path)
            }
            _ => false,
        },
        follows,
    }
}

impl PodVolumes for NodeVolumes {
    fn set_up<'a>(
        &'a self,
        pod: &'a Arc<Pod>,
        sources: &'a Sources,
    ) -> BoxFuture<'a, Result<MountedVolumes, Line>> {
        self.set_up_all(pod, sources).boxed()
    }

    fn give_up(&self, pod: &Pod) {
        if let Some(ends) = self.begun().get(&pod.metadata.uid) {
            ends.notify_one();
        }
    }

    fn bind_parts<'a>(
        &'a self,
        pod: &'a Pod,
        container: &'a str,
        parts: Vec<WantedPart>,
    ) -> BoxFuture<'a, Result<BTreeMap<usize, String>, Line>> {
        let (on_disk, uid) = (self.volumes.clone(), pod.metadata.uid.clone());
        let container = container.to_owned();
        let volumes = agent_volume::volumes(pod).unwrap_or_default();
        let on_node = move |name: &str| {
            volumes.iter().find(|volume| volume.name == name).and_then(|volume| match volume.kind {
                VolumeKind::HostPath { kind, .. } => Some(kind),
                _ => None,
            })
        };
        let following = self.following.clone();
        async move {
            let bind = move || {
                let mut bound = BTreeMap::new();
                for part in &parts {
                    if part.follows {
                        following.given(&uid, &container, part.index);
                    }
                    let wanted = SubPath {
                        volume: &part.name,
                        root: Path::new(&part.volume.path),
                        container: &container,
                        index: part.index,
                        path: &part.path,
                        on_node: on_node(&part.name),
                        all_read_only: part.all_read_only,
                        follows: part.follows,
                    };
                    let at = on_disk.sub_path(&uid, &wanted).map_err(|e| chain(&e))?;
                    bound.insert(part.index, at.to_string_lossy().into_owned());
                }
                Ok(bound)
            };
            let done = offload(bind).await;
            done.map_err(|e| format!("binding parts of volumes broke off: {e}"))?
        }
        .boxed()
    }

    fn started<'a>(&'a self, pod: &'a Pod, container: &'a str) -> BoxFuture<'a, ()> {
        async move {
            if !has_parts_that_follow(pod) {
                return;
            }
            let (on_disk, following) = (self.volumes.clone(), self.following.clone());
            let (uid, container) = (pod.metadata.uid.clone(), container.to_owned());
            let show = move || following.started(&on_disk, &uid, &container);
            let shown = offload(show).await.unwrap_or_else(|e| Err(e.to_string()));
            if let Err(error) = shown {
                // The next look at the volumes tries it again.
                tracing::warn!(pod = pod.metadata.name, error, "a part of a volume is out of date");
            }
        }
        .boxed()
    }

    fn fill<'a>(&'a self, pod: &'a Pod) -> BoxFuture<'a, Vec<VolumeFill>> {
        self.filled(pod).boxed()
    }

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
        self.persistent.csi.listed(names.iter().cloned());
    }

    fn exist(&self, pod: &Pod) -> bool {
        let uid = &pod.metadata.uid;
        self.volumes.exist(uid) || self.persistent.csi.has(uid)
    }

    fn tear_down<'a>(&'a self, pod: &'a Pod) -> BoxFuture<'a, Result<(), Line>> {
        async move {
            let began = Instant::now();
            let done = self.take_down(pod).await;
            self.persistent.acts.taken_down(pod, began.elapsed(), done.is_ok());
            done
        }
        .boxed()
    }
}

impl NodeVolumes {
    async fn take_down(&self, pod: &Pod) -> Result<(), Line> {
        let (on_disk, uid) = (self.volumes.clone(), pod.metadata.uid.clone());
        self.tokens.forget(&uid);
        self.following.forget(&uid);
        self.again.end(&uid).await;
        self.in_pods().remove(&uid);
        let (parts, of) = (on_disk.clone(), uid.clone());
        let freed = offload(move || parts.tear_down_parts(&of)).await;
        freed.map_err(|e| format!("taking volumes down broke off: {e}"))?.map_err(|e| chain(&e))?;
        self.persistent.csi.tear_down(&uid).await.map_err(|e| e.to_string())?;
        let done = offload(move || on_disk.tear_down(&uid)).await;
        let done = done.map_err(|e| format!("taking volumes down broke off: {e}"))?;
        done.map_err(|e| chain(&e))?;
        self.persistent.acts.unmounted(&pod.metadata.uid);
        self.persistent.disks.pod_ended();
        Ok(())
    }
}
