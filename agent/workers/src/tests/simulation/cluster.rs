//! The API server and the node's cgroups as the agent meets them.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, Weak};
use std::time::Duration;

use agent_interfaces::ServerStatus;
use agent_interfaces::objects::{ObjectCache, Subscription, needs_of};
use agent_interfaces::{
    PodCgroupError, PodCgroups, PodObjects, ReportError, Reported, Reports, StatusChange,
};
use agent_pod::env::{EnvRequirements, ServiceEnv};
use agent_pod::events::PodEvent;
use agent_pod::observed::InstanceState;
use agent_pod::record::Phase;
use agent_runtime::runtime::PodOnNode;
use agent_volume::persistent::KnownObjects;
use futures_util::FutureExt as _;
use futures_util::future::BoxFuture;
use proto_api::core::v1::{ConfigMap, ContainerStatus, Pod, PodStatus, Secret};
use tokio::sync::Notify;

use super::runtime::SharedRuntime;
use super::world::{Book, SECRET, Shared, Waits, World, lock, passes};
use crate::status_patch;

/// What ids of containers begin with in a status.
const SCHEME: &str = "containerd://";

/// Reports to the API server of the simulation.
pub struct Clerk {
    pub world: Shared,
    pub runtime: SharedRuntime,
}

impl Clerk {
    /// Whether the request arrives, and whether its answer does.
    async fn request(&self) -> Result<bool, ReportError> {
        let (pause, fails, lost) = {
            let mut world = lock(&self.world);
            let away = world.api.away;
            (world.chance.pause(), world.fault(15) || away, world.fault(30))
        };
        passes(&self.world, pause).await;
        if fails { Err(ReportError("the API server is away".into())) } else { Ok(!lost) }
    }

    async fn answer<T>(&self, arrives: bool, answer: T) -> Result<T, ReportError> {
        let pause = Duration::from_millis(lock(&self.world).chance.below(10));
        passes(&self.world, pause).await;
        if arrives { Ok(answer) } else { Err(ReportError("the answer is lost".into())) }
    }
}

impl Reports for Clerk {
    fn status<'a>(
        &'a self,
        pod: &'a Pod,
        change: StatusChange<'a>,
    ) -> BoxFuture<'a, Result<Reported, ReportError>> {
        async move {
            let StatusChange { from, to, .. } = change;
            let _waits = Waits::new(&self.world);
            let uid = &pod.metadata.uid;
            lock(&self.world).note_ahead(uid);
            let arrives = self.request().await?;
            let (live, on_node) = (self.runtime.is_live(uid), self.runtime.pod(uid));
            let reported = {
                let mut world = lock(&self.world);
                let mirror = world.books.get(uid).filter(|book| book.is_static);
                let mirror = mirror.map(|book| book.shown.clone());
                let is_static = mirror.is_some();
                if let Some(mirror) = mirror {
                    let heard =
                        world.mirrors_heard && !status_patch::would_regress(from, &mirror, to);
                    if !heard {
                        return Err(ReportError("the mirror is not known yet".into()));
                    }
                }
                if is_static || world.api.pods.contains_key(uid) {
                    world.judge_status(uid, to, live);
                    world.judge_flips(uid, to, &on_node);
                    // What a static pod's mirror shows is known only to the server.
                    let mirror = world.books.get(uid).map(|book| book.shown.clone());
                    let from = mirror.filter(|_| is_static).unwrap_or_else(|| from.clone());
                    let change = StatusChange { from: &from, ..change };
                    if !is_static || change.whole || status_patch::differs(&from, to) {
                        world.take_status(uid, change);
                    }
                    Reported::Shown(world.answer(uid).into())
                } else {
                    Reported::NoObject
                }
            };
            self.answer(arrives, reported).await
        }
        .boxed()
    }

    fn deleted<'a>(&'a self, pod: &'a Pod) -> BoxFuture<'a, Result<(), ReportError>> {
        async move {
            let _waits = Waits::new(&self.world);
            let arrives = self.request().await?;
            let uid = &pod.metadata.uid;
            let left = self.runtime.pod(uid);
            {
                let mut world = lock(&self.world);
                let bare = left.sandboxes.is_empty() && left.containers.is_empty();
                if let Some(what) = world.left_of(uid).or((!bare).then_some("in the runtime")) {
                    world
                        .broken(format!("{uid} was let go while something of it was left: {what}"));
                }
                let shown = world.books.get(uid).map(|book| Phase::parse(&book.shown.phase));
                let object = world.api.pods.remove(uid);
                if object.is_some() && !shown.is_some_and(Phase::is_terminal) {
                    world.broken(format!("{uid} was let go and its end was never shown"));
                }
                if object.as_ref().is_some_and(|o| o.metadata.deletion_timestamp.is_none()) {
                    world.broken(format!("{uid} was let go and nobody had deleted it"));
                }
                world.note(format!("{uid} is let go"));
                world.api_changed.notify_one();
            }
            self.answer(arrives, ()).await
        }
        .boxed()
    }

    fn event(&self, pod: &Pod, event: PodEvent) {
        let mut world = lock(&self.world);
        if event.message.contains(SECRET) {
            world.broken("an event tells a secret");
        }
        world.note(format!("event {} {} {}", pod.metadata.uid, event.reason, event.message));
    }
}

pub fn all(status: &PodStatus) -> impl Iterator<Item = &ContainerStatus> {
    status.init_container_statuses.iter().chain(&status.container_statuses)
}

impl World {
    /// Cgroup, mounts and directories.
    pub fn left_of(&self, uid: &str) -> Option<&'static str> {
        let dir = self.root.join("pods").join(uid);
        if self.mounts.keys().any(|at| at.starts_with(&dir)) {
            return Some("a mount");
        }
        if dir.exists() {
            return Some("its directory");
        }
        self.cgroups.contains(uid).then_some("its cgroup")
    }

    /// A status is on its way to the API: it may tell what the disk would not take.
    fn note_ahead(&mut self, uid: &str) {
        if let Some(book) = self.books.get_mut(uid).filter(|_| self.disk_lags) {
            book.ahead.insert(self.incarnation);
        }
    }

    /// The server changes what was to be changed, and shows it.
    fn take_status(&mut self, uid: &str, change: StatusChange<'_>) {
        let status = self.patched(uid, change);
        let Some(book) = self.books.get_mut(uid) else { return };
        // What others had shown is shown no more.
        book.ahead.retain(|by| *by == self.incarnation);
        book.writes += 1;
        book.said = change.to.clone();
        book.contested &= status_patch::differs(&status, change.to);
        self.show(uid, status);
    }

    /// The server has another status of a pod, or of the mirror that stands for one.
    pub fn show(&mut self, uid: &str, status: PodStatus) {
        let Some(book) = self.books.get_mut(uid).filter(|book| book.shown != status) else {
            return;
        };
        self.api.version += 1;
        let version = self.api.version.to_string();
        book.shown = status.clone();
        book.version.clone_from(&version);
        if let Some(pod) = self.api.pods.get_mut(uid) {
            let pod = Arc::make_mut(pod);
            (pod.status, pod.metadata.resource_version) = (status, version);
        }
        self.api_changed.notify_one();
    }

    fn answer(&self, uid: &str) -> ServerStatus {
        let book = self.books.get(uid);
        let pod = self.api.pods.get(uid).map(|pod| pod.metadata.resource_version.clone());
        let version = pod.or(book.map(|book| book.version.clone())).unwrap_or_default();
        ServerStatus { status: book.map(|book| book.shown.clone()).unwrap_or_default(), version }
    }

    /// Phases and restarts never go back, what is over stays as it ended, what is ready has said so.
    fn judge_status(&mut self, uid: &str, status: &PodStatus, live: bool) {
        let Some(book) = self.books.get(uid) else { return };
        let was_over = Phase::parse(&book.shown.phase).is_terminal();
        let (before, admitted) = (book.said.clone(), book.made_sandbox);
        // The next agent decides again about a static pod that was refused.
        let may_return = book.is_static && !before.reason.is_empty();
        let (old, new) = (Phase::parse(&before.phase), Phase::parse(&status.phase));
        self.note(format!("status {uid} {} {}", status.phase, status.reason));
        self.judge_gate(uid, status);
        if !may_return && (new < old || (old.is_terminal() && new != old)) {
            self.broken(format!("the phase of {uid} went from {old:?} to {new:?}"));
        }
        if new.is_terminal() && !was_over && live && self.late.is_empty() {
            self.broken(format!("{uid} is shown as over and still runs"));
        }
        let refused = ["OutOfcpu", "OutOfpods", "NodeShutdown"].contains(&status.reason.as_str());
        let pressed = status.reason == "Evicted" && status.message.contains("condition");
        if admitted && (refused || pressed) {
            self.broken(format!("{uid} had been admitted and is refused"));
        }
        for now in all(status) {
            let known = all(&before).find(|c| c.name == now.name).cloned().unwrap_or_default();
            if now.restart_count < known.restart_count {
                let (was, is) = (known.restart_count, now.restart_count);
                self.broken(format!("restarts of {} of {uid} went from {was} to {is}", now.name));
            }
            if let (Some(was), Some(is)) = (&known.state.terminated, &now.state.terminated)
                && was.container_id == is.container_id
                && (was.exit_code, &was.finished_at) != (is.exit_code, &is.finished_at)
            {
                self.broken(format!("the end of {} of {uid} changed", now.name));
            }
            if now.state.running.is_some() {
                self.judge_running_status(uid, now);
            }
        }
    }

    /// What is shown as ready and runs on is ready until it says otherwise, whatever becomes of the agent.
    fn judge_flips(&mut self, uid: &str, status: &PodStatus, on_node: &PodOnNode) {
        let known = |book: &&Book| book.ahead.is_empty() && !book.contested;
        let Some(book) = self.books.get(uid).filter(known) else { return };
        let runs = |id: &str| {
            let of = on_node.containers.iter().find(|c| c.id == id);
            of.is_some_and(|c| matches!(c.state, InstanceState::Running { .. }))
        };
        let flipped = all(status).find(|now| {
            let id = now.container_id.trim_start_matches(SCHEME);
            let was_ready = all(&book.shown).any(|c| c.container_id == now.container_id && c.ready);
            let doubted = self.instances.get(id).is_some_and(|known| known.doubted);
            was_ready && !now.ready && runs(id) && !doubted
        });
        if let Some(now) = flipped {
            let what = format!("{} of {uid} was ready and is not, and has not said so", now.name);
            self.broken(what);
        }
    }

    fn judge_running_status(&mut self, uid: &str, now: &ContainerStatus) {
        let id = now.container_id.trim_start_matches(SCHEME).to_owned();
        let Some(container) = self.container(uid, &now.name) else { return };
        let known = self.instances.get(&id).cloned().unwrap_or_default();
        let answered = |kind: &str| known.answered.contains(kind);
        let startup = container.startup_probe.is_some() && !answered("startup");
        let readiness = container.readiness_probe.is_some() && !answered("readiness");
        if now.ready && (startup || readiness) {
            self.broken(format!("{id} is ready and has never said so"));
        }
        let hook = container.lifecycle.and_then(|l| l.post_start).is_some();
        if hook && !known.hooked {
            self.broken(format!("{id} is shown as running before its first hook was run"));
        }
    }
}

pub struct SimCgroups {
    pub world: Shared,
    pub runtime: SharedRuntime,
}

impl PodCgroups for SimCgroups {
    fn make_cgroup(&self, pod: &Pod) -> Result<String, PodCgroupError> {
        let mut world = lock(&self.world);
        if world.fault(40) {
            let source = std::io::Error::other("no space for a cgroup");
            return Err(PodCgroupError::Interrupted { cgroup: self.cgroup_parent(pod), source });
        }
        world.cgroups.insert(pod.metadata.uid.clone());
        drop(world);
        Ok(self.cgroup_parent(pod))
    }

    fn settle_cgroup<'a>(&'a self, _: &'a Pod) -> BoxFuture<'a, Result<(), PodCgroupError>> {
        async move {
            passes(&self.world, Duration::from_millis(1)).await;
            Ok(())
        }
        .boxed()
    }

    fn cgroup_parent(&self, pod: &Pod) -> String {
        format!("/kubepods/pod{}", pod.metadata.uid)
    }

    fn adopt_cgroup(&self, pod: &Pod) -> bool {
        lock(&self.world).cgroups.contains(&pod.metadata.uid)
    }

    fn uids(&self) -> Vec<String> {
        lock(&self.world).cgroups.iter().cloned().collect()
    }

    fn remove_cgroup<'a>(&'a self, pod: &'a Pod) -> BoxFuture<'a, Result<(), PodCgroupError>> {
        async move {
            let _waits = Waits::new(&self.world);
            let (pause, fails) = {
                let mut world = lock(&self.world);
                (Duration::from_millis(world.chance.below(10)), world.fault(20))
            };
            passes(&self.world, pause).await;
            if fails {
                return Err(PodCgroupError::Busy(self.cgroup_parent(pod)));
            }
            let uid = &pod.metadata.uid;
            let ready = self.runtime.pod(uid).sandboxes.iter().any(|sandbox| sandbox.ready);
            if ready || self.runtime.is_live(uid) {
                lock(&self.world).broken(format!("the cgroup of {uid} goes under what runs"));
            }
            lock(&self.world).cgroups.remove(uid);
            passes(&self.world, Duration::ZERO).await;
            Ok(())
        }
        .boxed()
    }
}

/// What the agent has seen of the config maps: nothing before its first list.
pub struct View {
    state: Mutex<Seen>,
    known: KnownObjects,
}

#[derive(Default)]
struct Seen {
    maps: Option<BTreeMap<String, Arc<ConfigMap>>>,
    secret: Arc<Secret>,
    pokes: Vec<Weak<Notify>>,
}

impl View {
    pub fn new(known: KnownObjects) -> Self {
        Self { state: Mutex::default(), known }
    }

    /// The agent's watches hear what there is now.
    pub fn hear(&self, maps: &BTreeMap<String, Arc<ConfigMap>>, secret: &Arc<Secret>) {
        let mut seen = self.state.lock().expect("lock");
        let same = |a: &BTreeMap<_, Arc<_>>| {
            a.len() == maps.len() && a.iter().zip(maps).all(|(a, b)| Arc::ptr_eq(a.1, b.1))
        };
        if seen.maps.as_ref().is_some_and(same) && Arc::ptr_eq(&seen.secret, secret) {
            return;
        }
        seen.secret = secret.clone();
        seen.maps = Some(maps.clone());
        seen.pokes.retain(|poke| poke.upgrade().map(|poke| poke.notify_one()).is_some());
    }
}

/// The objects that pods refer to.
pub struct SimObjects(pub Arc<View>);

impl ObjectCache for SimObjects {
    fn subscribe(&self, pod: &Pod, poke: Arc<Notify>) -> Box<dyn Subscription> {
        self.0.state.lock().expect("lock").pokes.push(Arc::downgrade(&poke));
        Box::new(SimSubscription { needs: needs_of(pod), view: self.0.clone() })
    }
}

struct SimSubscription {
    needs: EnvRequirements,
    view: Arc<View>,
}

impl SimSubscription {
    /// What containers' environments are made from.
    fn read_objects(&self) -> PodObjects {
        let seen = self.view.state.lock().expect("lock");
        let Some(maps) = &seen.maps else { return PodObjects::default() };
        let known = |name: &String| (name.clone(), maps.get(name).cloned());
        let config_maps = self.needs.config_maps.iter().map(known).collect();
        let secret = |name: &String| (name.clone(), Some(seen.secret.clone()));
        let secrets = self.needs.secrets.iter().map(secret).collect();
        PodObjects { config_maps, secrets, ..PodObjects::default() }
    }
}

impl Subscription for SimSubscription {
    fn services(&self, _: &Pod) -> Vec<ServiceEnv> {
        Vec::new()
    }

    fn objects(&self) -> PodObjects {
        PodObjects { persistent: self.view.known.clone(), ..self.read_objects() }
    }

    fn is_complete(&self) -> bool {
        let nothing = self.needs.config_maps.is_empty() && self.needs.secrets.is_empty();
        nothing || self.view.state.lock().expect("lock").maps.is_some()
    }

    fn environment_objects(&self) -> PodObjects {
        self.read_objects()
    }
}
