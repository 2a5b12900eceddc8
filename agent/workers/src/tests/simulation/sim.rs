//! One history: the agent in the world, and what falls due in it. What happens to both is in `random_events.rs`, how a process of the agent
//! begins and dies in `process.rs`, and how it all ends in `quiescence.rs`.

mod foreign_writes;
mod process;
mod quiescence;
mod random_events;

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use agent_clock as clock;
use agent_csi::Drivers;
use agent_journal::GATHER;
use agent_journal::simulated::Disk;
use agent_pod::desired::PodSource;
use agent_runtime::events::RuntimeEvent;
use agent_runtime::fake::FakeRuntime;
use agent_sources::api::news;
use proto_api::core::v1::Pod;
use tokio::sync::{Notify, mpsc};
use tokio::task::{JoinHandle, JoinSet};
use tokio::time::sleep;

pub use quiescence::entries;

use super::cluster::View;
use super::random::Scale;
use super::runtime::{Late, SharedRuntime, Troubled};
use super::world::{SECRET, Shared, World, lock};
use super::{extras, volumes};
use crate::pod_context::PodContext;
use agent_interfaces::PodSourceEvent;

type Pods_ = BTreeMap<String, Arc<Pod>>;

/// Something that will happen.
enum Due {
    News(Box<RuntimeEvent>),
    Missed,
    Write,
    Commit,
    Tell,
    Register,
    RuntimeBack,
    ApiBack,
    DiskBack,
    DriverBack,
    Late(Late),
    Crash(String),
    /// The node controller has not heard of the node for long enough.
    Silent,
}

/// A process of the agent.
struct Agent {
    said: mpsc::Sender<PodSourceEvent>,
    news: mpsc::Sender<RuntimeEvent>,
    task: JoinHandle<()>,
    told: Pods_,
    told_static: Pods_,
    synced: BTreeSet<bool>,
    view: Arc<View>,
    drivers: Drivers,
    parts: Arc<PodContext>,
    heals: JoinSet<()>,
}

pub struct Sim {
    pub world: Shared,
    pub runtime: SharedRuntime,
    happened: mpsc::UnboundedReceiver<RuntimeEvent>,
    disk: Disk,
    given: Arc<Notify>,
    agent: Option<Agent>,
    agenda: BTreeMap<(Duration, u64), Due>,
    seq: u64,
    statics: Pods_,
    disk_full: bool,
    driver_away: bool,
    rebooted: bool,
    /// How often the machine has booted.
    boots: u64,
    republish: bool,
    /// Whether it goes on for long enough that tokens are renewed.
    long: bool,
    made: u64,
    root: PathBuf,
    /// How much of it there is.
    pub scale: Scale,
}

impl Sim {
    pub fn new(seed: u64, faults: u64, deadly: BTreeSet<u64>, root: &Path) -> Self {
        let (inner, happened) = FakeRuntime::new();
        inner.add_image("image:1");
        inner.offer_image("image:1");
        inner.offer_image("image:2");
        inner.set_clock(|| clock::now().unix_seconds * 1_000_000_000);
        let world = World::new(seed, faults, deadly, root.to_owned());
        volumes::lose_all();
        let given: Arc<Notify> = Arc::default();
        let (_, disk) = Disk::open(BTreeMap::new(), BTreeMap::new(), given.clone());
        let republish = lock(&world).chance.one_in(4);
        let inner = Arc::new(inner);
        let runtime = Arc::new(Troubled { inner, world: world.clone(), incarnation: 0 });
        let mut sim = Self {
            world,
            runtime,
            happened,
            disk,
            given,
            agent: None,
            agenda: BTreeMap::new(),
            seq: 0,
            statics: BTreeMap::new(),
            disk_full: false,
            driver_away: false,
            rebooted: false,
            boots: 0,
            republish,
            long: faults > 0 && extras::is_long(seed),
            made: 0,
            root: root.to_owned(),
            scale: Scale::default(),
        };
        sim.write_maps();
        sim
    }

    fn due(&mut self, after: Duration, what: Due) {
        self.seq += 1;
        self.agenda.insert((clock::since_began() + after, self.seq), what);
    }

    /// Lets this much time pass, in which the agent works, events arrive and the journal is written.
    pub async fn pass(&mut self, time: Duration) {
        let until = clock::since_began() + time;
        loop {
            if lock(&self.world).failure.is_some() {
                return;
            }
            if self.agent.is_none() {
                self.start();
            }
            let next = self.agenda.keys().next().map_or(until, |(at, _)| (*at).min(until));
            let left = next.saturating_sub(clock::since_began());
            let (died, changed) = {
                let world = lock(&self.world);
                (world.died.clone(), world.api_changed.clone())
            };
            // All arms are cancel safe.
            tokio::select! {
                biased;
                () = died.notified() => self.kill().await,
                Some(news) = self.happened.recv() => self.hear(news),
                () = self.given.notified() => self.commit_soon(),
                () = changed.notified() => self.tell_soon(),
                () = sleep(left) => {}
            }
            self.take_late();
            while let Some(entry) = self.agenda.first_entry() {
                if entry.key().0 > clock::since_began() {
                    break;
                }
                let what = entry.remove();
                self.act(what);
            }
            if clock::since_began() >= until {
                return;
            }
        }
    }

    fn take_late(&mut self) {
        let late = std::mem::take(&mut lock(&self.world).late);
        for late in late {
            // Around the moment at which the agent gives the call up.
            let after = Duration::from_secs(110) + lock(&self.world).chance.secs(25);
            self.due(after, Due::Late(late));
        }
        let doomed = std::mem::take(&mut lock(&self.world).doomed);
        for id in doomed {
            let after = Duration::from_millis(lock(&self.world).chance.below(2000));
            self.due(after, Due::Crash(id));
        }
    }

    fn hear(&mut self, news: RuntimeEvent) {
        let (lost, pause, remind) = {
            let mut world = lock(&self.world);
            let lost = world.fault(12) || world.runtime_away;
            let late = world.fault(8);
            let pause = Duration::from_millis(world.chance.below(if late { 800 } else { 4 }));
            (lost, pause, world.chance.secs(10))
        };
        match lost {
            true => self.due(remind, Due::Missed),
            false => self.due(pause, Due::News(Box::new(news))),
        }
    }

    /// What was handed in to the journal gathers for a while, unless somebody waits for it.
    fn commit_soon(&mut self) {
        let is_due = |what: fn(&Due) -> bool| self.agenda.values().any(what);
        if self.disk_full || is_due(|due| matches!(due, Due::Commit)) {
            return;
        }
        let gathers = is_due(|due| matches!(due, Due::Write));
        if self.disk.is_awaited() {
            self.agenda.retain(|_, due| !matches!(due, Due::Write));
            self.write();
        } else if !gathers {
            self.due(GATHER, Due::Write);
        }
    }

    fn write(&mut self) {
        let pause = lock(&self.world).chance.write();
        self.due(pause, Due::Commit);
    }

    fn tell_soon(&mut self) {
        if !self.agenda.values().any(|due| matches!(due, Due::Tell)) {
            let pause = {
                let mut world = lock(&self.world);
                let slow = world.fault(6);
                Duration::from_millis(world.chance.below(if slow { 3000 } else { 20 }))
            };
            self.due(pause, Due::Tell);
        }
    }

    fn act(&mut self, what: Due) {
        match what {
            Due::News(news) => self.bring(*news),
            Due::Missed => self.bring(RuntimeEvent::Missed),
            Due::Write => self.write(),
            Due::Commit => self.commit(),
            Due::Tell => self.tell(),
            Due::Register => self.register(),
            Due::Late(late) => self.runtime.finish(late),
            Due::Crash(id) => self.crash(&id),
            Due::Silent => self.fall_silent(),
            Due::RuntimeBack => {
                lock(&self.world).runtime_away = false;
                lock(&self.world).note("the runtime is back");
                self.due(Duration::from_millis(5), Due::Missed);
            }
            Due::ApiBack => {
                lock(&self.world).api.away = false;
                lock(&self.world).note("the API server is back");
                self.tell_soon();
            }
            Due::DiskBack => {
                self.disk_full = false;
                self.commit_soon();
            }
            Due::DriverBack => {
                self.driver_away = false;
                self.register();
            }
        }
    }

    fn bring(&mut self, news: RuntimeEvent) {
        if let Some(agent) = &self.agent {
            agent.news.try_send(news).expect("room for news");
        }
    }

    fn commit(&mut self) {
        if self.disk_full {
            return;
        }
        lock(&self.world).disk_lags = false;
        for uid in self.disk.commit() {
            if let Some(record) = self.disk.records.get(&uid) {
                lock(&self.world).on_disk(&uid, &record.memory);
            }
        }
        if lock(&self.world).scrutiny && self.disk.holds(SECRET) {
            lock(&self.world).broken("the journal holds a secret");
        }
    }

    /// The agent's watches hear what there is now; its manifests are read.
    fn tell(&mut self) {
        let Some(agent) = &mut self.agent else { return };
        {
            let world = &mut *lock(&self.world);
            let heard = if world.api.away { None } else { Some(world.api.pods.keys()) };
            for uid in heard.into_iter().flatten().chain(self.statics.keys()) {
                if let Some(book) = world.books.get_mut(uid) {
                    book.told = true;
                }
            }
        }
        let say = |said: PodSourceEvent| agent.said.try_send(said).expect("room for what is said");
        let statics = mirrored(&self.statics, &agent.told_static, &mut lock(&self.world));
        for said in news(&agent.told_static, &statics) {
            say(match said {
                PodSourceEvent::Wants(_, pod) => PodSourceEvent::Wants(PodSource::Static, pod),
                said => said,
            });
        }
        agent.told_static = statics;
        if agent.synced.insert(true) {
            say(PodSourceEvent::Synced(PodSource::Static));
        }
        let world = &mut *lock(&self.world);
        if world.api.away {
            return;
        }
        world.set_latest();
        news(&agent.told, &world.api.pods).into_iter().for_each(say);
        agent.told.clone_from(&world.api.pods);
        if agent.synced.insert(false) {
            say(PodSourceEvent::Synced(PodSource::Api));
        }
        agent.view.hear(&world.api.maps, &world.api.secret);
    }

    /// The driver of volumes is there.
    fn register(&mut self) {
        let driver = volumes::driver(&self.world, &self.runtime);
        if let Some(agent) = &mut self.agent
            && !self.driver_away
        {
            agent.drivers.add(driver);
        }
    }

    /// A whole history: trouble, quiet, the end.
    pub async fn run(&mut self) {
        let (pods, faults, happenings, is_static) = {
            let world = &mut *lock(&self.world);
            let chance = &mut world.chance;
            let (pods, happenings) = (self.scale.pods(chance), self.scale.happenings(chance));
            (pods, world.faults, happenings, world.chance.one_in(3))
        };
        (0..pods).for_each(|_| self.create());
        if is_static {
            self.create_static();
        }
        for _ in 0..happenings {
            let time = lock(&self.world).chance.pause() * 2;
            self.pass(time).await;
            if !self.failed() {
                self.happen().await;
                let mut world = lock(&self.world);
                world.judge_mounts();
            }
        }
        self.quiet();
        self.settle().await;
        if !self.failed() && lock(&self.world).chance.one_in(2) {
            self.contest().await;
        }
        if self.long && !self.failed() {
            self.linger().await;
        }
        let limited =
            lock(&self.world).api.pods.values().any(|p| p.spec.active_deadline_seconds.is_some());
        if !limited && !self.failed() && lock(&self.world).chance.one_in(3) {
            self.check_up().await;
        }
        if !limited && !self.failed() {
            self.stay().await;
        }
        if lock(&self.world).chance.one_in(2) {
            lock(&self.world).faults = faults;
        }
        if !self.failed() {
            self.finish().await;
        }
        self.kill().await;
    }
}

/// Static pods, each with the status that its mirror shows as far as the agent's watch has heard.
fn mirrored(statics: &Pods_, told: &Pods_, world: &mut World) -> Pods_ {
    world.mirrors_heard |= !world.api.away;
    let with_mirror = |(uid, pod): (&String, &Arc<Pod>)| {
        let known = told.get(uid).unwrap_or(pod);
        let book = world.books.get(uid).filter(|_| !world.api.away);
        let status = book.map_or(&known.status, |book| &book.shown);
        let before = &known.metadata.resource_version;
        let version = book.map_or(before, |book| &book.version);
        let pod = match (status, version) == (&known.status, before) {
            true => known.clone(),
            false => {
                let mut pod = Pod { status: status.clone(), ..(**pod).clone() };
                pod.metadata.resource_version.clone_from(version);
                Arc::new(pod)
            }
        };
        (uid.clone(), pod)
    };
    statics.iter().map(with_mirror).collect()
}
