//! One history: the agent in the world, what happens to both, and how it ends.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use agent_csi::{CsiNode, Drivers};
use agent_pod::memory::Phase;
use agent_pod::seen::ContainerSeen;
use agent_pod::want::Source;
use agent_runtime::fake::FakeRuntime;
use proto_api::core::v1::{ConfigMap, ContainerStatus, Pod, PodCondition, Secret};
use proto_api::names::Names;
use proto_daemon::ready::Readiness;
use proto_daemon::statusz::StatusBoard;
use tokio::sync::{Notify, mpsc, watch};
use tokio::task::{JoinHandle, JoinSet};
use tokio::time::sleep;

use super::chance::{MAPS, Scale, deleted, ephemeral, pod_of};
use super::cluster::{Clerk, SimObjects, SimPlace, View};
use super::issuer::SimIssuer;
use super::runtime::{Late, SharedRuntime, Troubled};
use super::world::{Book, SECRET, Shared, World, lock};
use super::{extras, shares, volumes};
use crate::allocator::pool;
use crate::clock;
use crate::csi::NodePersistent;
use crate::csi::disks::Disks;
use crate::csi::helpers::{Helpers, OnNode};
use crate::garbage;
use crate::journal::simulated::Disk;
use crate::journal::{GATHER, Journal};
use crate::pods::bench::{Outside, Place, metrics, parts};
use crate::pods::parts::Parts;
use crate::pods::{Found, Pods, Said};
use crate::sources::api::news;
use crate::volumes::NodeVolumes;
use agent_runtime::events::Happened;
use agent_volume::shared_mounts::SharedMounts;

/// Long enough in virtual time for every back-off to end.
const EVER: Duration = Duration::from_secs(2 * 3600);
/// Nothing that is still to be done waits for longer than this without being asked for.
const STILL: Duration = Duration::from_secs(20);
/// Between two looks at the processors of what runs, as the configuration has it.
const POOL_PERIOD: Duration = Duration::from_secs(10);

type Pods_ = BTreeMap<String, Arc<Pod>>;

/// Something that will happen.
enum Due {
    News(Box<Happened>),
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
}

/// A process of the agent.
struct Agent {
    said: mpsc::Sender<Said>,
    news: mpsc::Sender<Happened>,
    task: JoinHandle<()>,
    told: Pods_,
    told_static: Pods_,
    synced: BTreeSet<bool>,
    view: Arc<View>,
    drivers: Drivers,
    parts: Arc<Parts>,
    heals: JoinSet<()>,
}

pub struct Sim {
    pub world: Shared,
    pub runtime: SharedRuntime,
    happened: mpsc::UnboundedReceiver<Happened>,
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

    // === the agenda ===

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

    fn hear(&mut self, news: Happened) {
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
            Due::Missed => self.bring(Happened::Missed),
            Due::Write => self.write(),
            Due::Commit => self.commit(),
            Due::Tell => self.tell(),
            Due::Register => self.register(),
            Due::Late(late) => self.runtime.finish(late),
            Due::Crash(id) => self.crash(&id),
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

    fn bring(&mut self, news: Happened) {
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
        let say = |said: Said| agent.said.try_send(said).expect("room for what is said");
        let statics = mirrored(&self.statics, &agent.told_static, &mut lock(&self.world));
        for said in news(&agent.told_static, &statics) {
            say(match said {
                Said::Wants(_, pod) => Said::Wants(Source::Static, pod),
                said => said,
            });
        }
        agent.told_static = statics;
        if agent.synced.insert(true) {
            say(Said::Synced(Source::Static));
        }
        let world = &mut *lock(&self.world);
        if world.api.away {
            return;
        }
        world.set_latest();
        news(&agent.told, &world.api.pods).into_iter().for_each(say);
        agent.told.clone_from(&world.api.pods);
        if agent.synced.insert(false) {
            say(Said::Synced(Source::Api));
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

    // === the agent ===

    /// A new process: the journal as it is on disk, whatever the runtime and the disk have.
    fn start(&mut self) {
        {
            let mut world = lock(&self.world);
            (world.incarnation, world.under_way) = (world.incarnation + 1, 0);
            let (inner, incarnation) = (self.runtime.inner.clone(), world.incarnation);
            self.runtime = Arc::new(Troubled { inner, world: self.world.clone(), incarnation });
        }
        volumes::begin(&self.runtime);
        let records = self.disk.read(std::mem::take(&mut self.rebooted));
        if serde_json::to_string(&records).expect("encode").contains(SECRET) {
            lock(&self.world).broken("the journal holds a secret");
        }
        let notes = std::mem::take(&mut self.disk.notes);
        let (journal, disk) = Disk::open(records.clone(), notes, self.given.clone());
        self.disk = disk;
        let drivers = Drivers::default();
        let csi =
            CsiNode::open(&self.root, Names::new(Default::default()), "node", drivers.clone());
        let csi = Arc::new(csi.expect("the records can be read"));
        let view = Arc::new(View::new(volumes::known(self.republish)));
        let mut parts = self.parts(journal.clone(), csi.clone(), view.clone());
        let mut heals = JoinSet::new();
        if lock(&self.world).scrutiny {
            let allocator = shares::give_to(&mut parts, journal);
            heals.spawn(pool::keep(allocator, self.runtime.clone(), POOL_PERIOD));
        }
        let parts = Arc::new(parts);
        let found = Found::new(self.runtime.all(), records, parts.left());
        let unready = Readiness::default().guard("sources");
        let sources = vec![Source::Static, Source::Api];
        let (said, hear_said) = mpsc::channel(1024);
        let (news, hear_news) = mpsc::channel(1024);
        let pods = Pods::new(parts.clone(), StatusBoard::default(), found, sources, unready);
        let task = tokio::spawn(pods.run(hear_said, hear_news));
        let (told, told_static) = (BTreeMap::new(), BTreeMap::new());
        let synced = BTreeSet::new();
        heals.spawn(async move { csi.keep_unstaged(|_| ()).await });
        let agent =
            Agent { said, news, task, told, told_static, synced, view, drivers, parts, heals };
        self.agent = Some(agent);
        {
            let mut world = lock(&self.world);
            world.note("agent starts");
            world.mirrors_heard = false;
            world.books.values_mut().for_each(|book| (book.told, book.kill_by) = (false, None));
        }
        self.due(Duration::ZERO, Due::Missed);
        let (tell, register) = {
            let chance = &mut lock(&self.world).chance;
            (chance.pause(), chance.pause())
        };
        self.due(tell, Due::Tell);
        self.due(register, Due::Register);
    }

    /// What its pods' tasks share.
    fn parts(&self, journal: Journal, csi: Arc<CsiNode>, view: Arc<View>) -> Parts {
        let names = Names::new(Default::default());
        let reports = Arc::new(Clerk { world: self.world.clone(), runtime: self.runtime.clone() });
        let on_disk = agent_volume::PodVolumes::new(&self.root, names);
        let helpers: Arc<dyn Helpers> = Arc::new(OnNode);
        let shared = SharedMounts::new(&self.root, names);
        let persistent = NodePersistent {
            disks: Arc::new(Disks::new(shared, helpers.clone(), csi.changes().clone())),
            helpers,
            labels: false,
            acts: metrics().acts.clone(),
            csi,
            volumes: on_disk.clone(),
            node: "node".into(),
            client: None,
            reports: reports.clone(),
        };
        let node = watch::channel(None).1;
        let outside = Outside {
            dir: &self.root,
            runtime: self.runtime.clone(),
            reports,
            place: Arc::new(Place::default()),
            journal,
        };
        let mut parts = parts(outside);
        parts.root_dir.clone_from(&self.root);
        let (world, runtime) = (self.world.clone(), self.runtime.clone());
        parts.place = Arc::new(SimPlace { world, runtime });
        let incarnation = lock(&self.world).incarnation;
        let issuer = Arc::new(SimIssuer { world: self.world.clone(), incarnation });
        let boot = format!("boot {}", self.boots);
        parts.volumes = Arc::new(NodeVolumes::new(on_disk, persistent, Some(issuer), node, boot));
        parts.objects = Arc::new(SimObjects(view));
        parts
    }

    pub async fn kill(&mut self) {
        let Some(agent) = self.agent.take() else { return };
        agent.task.abort();
        if let Err(error) = agent.task.await
            && error.is_panic()
        {
            lock(&self.world).broken(format!("the agent panics: {error}"));
        }
        drop(agent.heals);
        drop(agent.parts);
        // Everything that belongs to it ends before anything else happens.
        sleep(Duration::from_millis(1)).await;
        while self.happened.try_recv().is_ok() {}
        self.take_late();
        self.agenda.retain(|_, due| {
            !matches!(
                due,
                Due::News(_) | Due::Missed | Due::Write | Due::Commit | Due::Tell | Due::Register
            )
        });
        let mut world = lock(&self.world);
        world.note("agent dies");
    }

    // === what happens ===

    fn uid(&mut self, kind: &str) -> String {
        self.made += 1;
        // What comes later is told sooner: a list is in no order of age.
        let first = lock(&self.world).chance.below(10);
        format!("{kind}{first}{}", self.made)
    }

    fn enter(&mut self, pod: &Pod, is_static: bool) {
        let mut world = lock(&self.world);
        let ends = pod.spec.active_deadline_seconds.is_some();
        let book = Book { pod: pod.clone(), is_static, ends, ..Book::default() };
        world.note(format!("{} is wanted", pod.metadata.uid));
        world.books.insert(pod.metadata.uid.clone(), book);
    }

    /// A pod for the API server. Its name may be one that was used before.
    pub fn create(&mut self) {
        if self.made >= self.scale.pods_max() {
            return;
        }
        let uid = self.uid("u");
        let pod = {
            let mut world = lock(&self.world);
            let name = format!("p{}", world.chance.below(3));
            if world.api.pods.values().any(|pod| pod.metadata.name == name) {
                return;
            }
            let (scrutiny, scale) = (world.scrutiny, self.scale);
            let mut pod = pod_of(&mut world.chance, scale, &name, &uid);
            if scrutiny {
                extras::adorn(&mut world.chance, &mut pod, self.long);
            }
            pod
        };
        self.add(pod);
    }

    /// A pod for the API server.
    pub fn add(&mut self, pod: Pod) {
        self.enter(&pod, false);
        let mut world = lock(&self.world);
        world.api.pods.insert(pod.metadata.uid.clone(), Arc::new(pod));
        world.api_changed.notify_one();
    }

    /// A manifest.
    pub fn add_static(&mut self, mut pod: Pod) {
        let names = Names::new(Default::default());
        pod.metadata.annotations.insert(names.label("config.source"), "file".into());
        self.enter(&pod, true);
        self.statics.insert(pod.metadata.uid.clone(), Arc::new(pod));
        lock(&self.world).api_changed.notify_one();
    }

    /// From now on nothing can be written.
    pub fn fill_disk(&mut self) {
        self.disk_full = true;
        lock(&self.world).disk_lags = true;
    }

    /// Lets time pass until that is so.
    pub async fn until(&mut self, what: &str, is_so: impl Fn(&Self) -> bool) {
        let began = clock::since_began();
        while !is_so(self) && !self.failed() {
            self.pass(Duration::from_millis(1)).await;
            if clock::since_began() > began + Duration::from_secs(600) {
                lock(&self.world).broken(format!("not after ten minutes: {what}"));
            }
        }
    }

    /// A manifest. A second one of that name is the first, edited.
    pub fn create_static(&mut self) {
        if self.made >= self.scale.pods_max() {
            return;
        }
        let before: Vec<String> = self.statics.keys().cloned().collect();
        before.iter().for_each(|uid| self.dropped(uid, None));
        self.statics.clear();
        let uid = self.uid("s");
        let mut pod = pod_of(&mut lock(&self.world).chance, self.scale, "static", &uid);
        pod.spec.volumes.retain(|v| v.volume_source.empty_dir.is_some());
        let kept: BTreeSet<String> = pod.spec.volumes.iter().map(|v| v.name.clone()).collect();
        for container in pod.spec.init_containers.iter_mut().chain(&mut pod.spec.containers) {
            container.volume_mounts.retain(|mount| kept.contains(&mount.name));
            container.env.clear();
        }
        self.add_static(pod);
    }

    /// A source does not have a pod any more, or wants it ended: what runs of it may be stopped, and is killed not before its time.
    fn dropped(&mut self, uid: &str, grace: Option<i64>) {
        let mut world = lock(&self.world);
        let Some(book) = world.books.get_mut(uid) else { return };
        let own = book.pod.metadata.deletion_grace_period_seconds;
        let grace = grace.or(own).or(book.pod.spec.termination_grace_period_seconds).unwrap_or(30);
        let from = clock::boot() + Duration::from_secs(u64::try_from(grace).unwrap_or(0));
        book.ends = true;
        book.kill_from = Some(book.kill_from.map_or(from, |known| known.min(from)));
        world.note(format!("{uid} is to end within {grace} s"));
    }

    fn change(&mut self, uid: &str, change: impl FnOnce(&mut Pod)) {
        let mut world = lock(&self.world);
        let Some(object) = world.api.pods.get_mut(uid) else { return };
        let pod = Arc::make_mut(object);
        change(pod);
        let pod = pod.clone();
        if let Some(book) = world.books.get_mut(uid) {
            book.pod = pod;
        }
        world.api_changed.notify_one();
    }

    pub fn delete(&mut self, uid: &str, grace: i64) {
        self.dropped(uid, Some(grace));
        self.change(uid, |pod| *pod = deleted(pod, grace));
    }

    fn write_maps(&mut self) {
        let mut world = lock(&self.world);
        for n in 0..MAPS {
            let version = world.chance.next().to_string();
            let mut map = ConfigMap::default();
            map.metadata.name = format!("map{n}");
            map.data.insert("version".into(), version.clone());
            map.data.insert("same".into(), version.clone());
            world.readers.written(&map.metadata.name, &version);
            world.api.maps.insert(format!("map{n}"), Arc::new(map));
        }
        let mut secret = Secret::default();
        secret.data.insert("key".into(), SECRET.into());
        if world.scrutiny {
            let version = format!("{SECRET} {}", world.chance.next());
            world.readers.written(extras::KEYS, &version);
            secret.data.insert("version".into(), version.clone().into_bytes());
            secret.data.insert("same".into(), version.into_bytes());
        }
        world.api.secret = Arc::new(secret);
        world.api_changed.notify_one();
    }

    fn some_running(&mut self) -> Option<(String, ContainerSeen)> {
        let running = self.runtime.running();
        let at = lock(&self.world).chance.below(running.len().max(1) as u64);
        running.into_iter().nth(usize::try_from(at).expect("small"))
    }

    fn some_pod(&mut self) -> Option<String> {
        let mut world = lock(&self.world);
        let uids: Vec<String> = world.api.pods.keys().cloned().collect();
        let at = world.chance.below(uids.len().max(1) as u64);
        uids.into_iter().nth(usize::try_from(at).expect("small"))
    }

    /// Something happens.
    pub async fn happen(&mut self) {
        let what = lock(&self.world).chance.below(40);
        match what {
            0..4 => self.exit_one(),
            4..6 => self.lose_sandbox(),
            6..10 => self.sicken(),
            10..13 => self.kill().await,
            13 | 14 => self.create(),
            15 => self.create_static(),
            16 => {
                let uids: Vec<String> = self.statics.keys().cloned().collect();
                uids.iter().for_each(|uid| self.dropped(uid, None));
                self.statics.clear();
                lock(&self.world).api_changed.notify_one();
            }
            17 | 18 => self.debug(),
            19..22 => self.end_one(),
            22..25 => self.change_maps(),
            25 => self.replace(),
            26 | 27 => self.go_away().await,
            28 | 29 => self.set_clock(),
            30 => self.reboot().await,
            31 => self.press(),
            32 => self.runtime.inner.remove_image_now("image:2"),
            33..36 => self.cripple(),
            36..38 if lock(&self.world).scrutiny => self.meddle(),
            _ => {}
        }
    }

    fn exit_one(&mut self) {
        if let Some((_, container)) = self.some_running() {
            let code = i32::try_from(lock(&self.world).chance.below(3)).expect("small");
            lock(&self.world).note(format!("{} exits with {code}", container.id));
            self.runtime.inner.end(&container.id, code);
        }
    }

    /// Somebody else opens or shuts the gate of a pod, in its status.
    fn meddle(&mut self) {
        let Some(uid) = self.some_pod() else { return };
        let open = lock(&self.world).chance.one_in(2);
        self.write_gate(&uid, open);
    }

    fn write_gate(&mut self, uid: &str, open: bool) {
        let gate = PodCondition {
            type_: extras::GATE.into(),
            status: if open { "True" } else { "False" }.into(),
            message: format!("by somebody else at {:?}", clock::since_began()),
            ..PodCondition::default()
        };
        let write = |conditions: &mut Vec<PodCondition>| {
            conditions.retain(|c| c.type_ != gate.type_);
            conditions.push(gate.clone());
        };
        self.change(uid, |pod| write(&mut pod.status.conditions));
        let mut world = lock(&self.world);
        world.note(format!("the gate of {uid} is open: {open}"));
        if let Some(book) = world.books.get_mut(uid) {
            write(&mut book.shown.conditions);
            book.opened |= open;
        }
    }

    /// A container that runs ends, and from now on soon after each of its starts.
    fn cripple(&mut self) {
        let Some((uid, container)) = self.some_running() else { return };
        if let Some(book) = lock(&self.world).books.get_mut(&uid) {
            book.crashing = Some(container.name);
        }
        self.crash(&container.id);
    }

    fn crash(&mut self, id: &str) {
        if self.runtime.running().iter().any(|(_, container)| container.id == id) {
            lock(&self.world).note(format!("{id} crashes"));
            self.runtime.inner.end(id, 1);
        }
    }

    fn lose_sandbox(&mut self) {
        let Some((uid, container)) = self.some_running() else { return };
        lock(&self.world).note(format!("{} of {uid} dies", container.sandbox_id));
        self.runtime.inner.end_sandbox(&container.sandbox_id);
    }

    fn sicken(&mut self) {
        if let Some((_, container)) = self.some_running() {
            let mut world = lock(&self.world);
            let instance = world.instances.entry(container.id.clone()).or_default();
            instance.sick = !instance.sick;
            let sick = instance.sick;
            world.note(format!("{} sick: {sick}", container.id));
        }
    }

    fn debug(&mut self) {
        let Some(uid) = self.some_pod() else { return };
        self.change(&uid, |pod| {
            let known = &mut pod.spec.ephemeral_containers;
            if known.len() < 2 {
                known.push(ephemeral(format!("debug{}", known.len())));
            }
        });
    }

    /// Deletes a pod, perhaps one that is deleted already, sooner; or its object goes at once.
    fn end_one(&mut self) {
        let Some(uid) = self.some_pod() else { return };
        let (force, grace) = {
            let mut world = lock(&self.world);
            (world.chance.one_in(4), i64::try_from(world.chance.below(8)).expect("small"))
        };
        let known = lock(&self.world).api.pods.get(&uid).cloned();
        let sooner = known.and_then(|pod| pod.metadata.deletion_grace_period_seconds);
        if force {
            // The agent gives what the object said last.
            self.dropped(&uid, None);
            lock(&self.world).api.pods.remove(&uid);
            lock(&self.world).api_changed.notify_one();
        } else {
            self.delete(&uid, sooner.map_or(grace, |known| known.min(grace)));
        }
    }

    fn change_maps(&mut self) {
        let gone = lock(&self.world).chance.one_in(5);
        if gone {
            lock(&self.world).api.maps.remove("map0");
            lock(&self.world).api_changed.notify_one();
        } else {
            self.write_maps();
        }
    }

    /// Another image for a container: its instance is replaced.
    fn replace(&mut self) {
        let Some(uid) = self.some_pod() else { return };
        self.change(&uid, |pod| {
            if let Some(container) = pod.spec.containers.first_mut() {
                container.image =
                    if container.image == "image:1" { "image:2" } else { "image:1" }.into();
            }
        });
        // Though it may be changed back before the agent gets to it.
        let mut world = lock(&self.world);
        let of = world.instances.values_mut().filter(|i| i.uid == uid && i.name == "main0");
        of.for_each(|instance| instance.may_be_stopped = true);
    }

    async fn go_away(&mut self) {
        let (who, long) = {
            let mut world = lock(&self.world);
            (world.chance.below(4), world.chance.secs(60))
        };
        lock(&self.world).note(format!("away for {long:?}: {who}"));
        match who {
            0 => {
                lock(&self.world).runtime_away = true;
                self.due(long, Due::RuntimeBack);
            }
            1 => {
                lock(&self.world).api.away = true;
                self.due(long, Due::ApiBack);
            }
            2 => {
                self.fill_disk();
                self.due(long, Due::DiskBack);
            }
            _ => {
                self.driver_away = true;
                self.due(long, Due::DriverBack);
                if let Some(agent) = &self.agent {
                    agent.drivers.remove(super::chance::DRIVER);
                }
            }
        }
    }

    /// The machine boots: no process, no mount and no cgroup is left, and the clock since boot begins anew.
    async fn reboot(&mut self) {
        self.kill().await;
        self.runtime.inner.reboot();
        clock::reboot();
        while self.happened.try_recv().is_ok() {}
        self.rebooted = true;
        self.boots += 1;
        self.agenda.retain(|_, due| !matches!(due, Due::Late(_) | Due::Crash(_)));
        let mut world = lock(&self.world);
        world.lose_mounts();
        world.cgroups.clear();
        for book in world.books.values_mut() {
            (book.kill_from, book.kill_by) = (None, None);
            (book.starts, book.crashes) = (BTreeMap::new(), BTreeMap::new());
            book.ending = book.ending.map(|_| Duration::ZERO);
        }
        world.note("the machine boots");
    }

    /// The node is short of room, or is not any more: whoever is here stays.
    fn press(&mut self) {
        if let Some(agent) = &self.agent {
            agent.parts.strain.send_modify(|strain| {
                strain.pressure.disk = !strain.pressure.disk;
            });
        }
    }

    // === the end ===

    /// No trouble any more, and everybody is well.
    pub fn quiet(&mut self) {
        {
            let mut world = lock(&self.world);
            (world.faults, world.runtime_away, world.api.away) = (0, false, false);
            world.instances.values_mut().for_each(|instance| instance.sick = false);
            world.books.values_mut().for_each(|book| book.crashing = None);
            world.doomed.clear();
            world.note("quiet");
        }
        self.agenda.retain(|_, due| {
            !matches!(
                due,
                Due::RuntimeBack | Due::ApiBack | Due::DiskBack | Due::DriverBack | Due::Crash(_)
            )
        });
        self.disk_full = false;
        let gated: Vec<String> = {
            let world = lock(&self.world);
            let gated = |pod: &&Arc<Pod>| !pod.spec.readiness_gates.is_empty();
            world.api.pods.values().filter(gated).map(|pod| pod.metadata.uid.clone()).collect()
        };
        gated.iter().for_each(|uid| self.write_gate(uid, true));
        if let Some(agent) = &self.agent {
            agent.parts.strain.send_modify(|strain| strain.pressure.disk = false);
        }
        self.write_maps();
        // Otherwise it is still registered.
        if std::mem::take(&mut self.driver_away) {
            self.register();
        }
        self.commit_soon();
        self.due(Duration::from_millis(20), Due::Missed);
    }

    /// What is not as it is to be in the end: a pod that is to run runs and is ready, and nothing is left of one that nobody wants.
    pub fn unsettled(&self) -> Option<String> {
        let world = lock(&self.world);
        let wanted =
            |uid: &String| world.api.pods.contains_key(uid) || self.statics.contains_key(uid);
        world.books.iter().find_map(|(uid, book)| match wanted(uid) {
            true => unsettled(book),
            false => self.left_of(&world, uid).map(|what| format!("{uid} is gone but for {what}")),
        })
    }

    /// What there still is of a pod that nobody wants any more.
    fn left_of(&self, world: &World, uid: &str) -> Option<&'static str> {
        let on_node = self.runtime.of(uid);
        let in_runtime = !on_node.sandboxes.is_empty() || !on_node.containers.is_empty();
        let recorded = self.disk.records.contains_key(uid);
        let left = world.left_of(uid).or(in_runtime.then_some("what the runtime has"));
        left.or(recorded.then_some("its record"))
    }

    /// What was changed so far, at the runtime, at drivers and in the API.
    fn changes(&self) -> (usize, u64, u64) {
        let world = lock(&self.world);
        let writes = world.books.values().map(|book| book.writes).sum();
        (self.runtime.inner.changes_len(), world.driven, writes)
    }

    pub async fn settle(&mut self) {
        for _ in 0..800 {
            if self.unsettled().is_none() || self.failed() {
                break;
            }
            self.pass(Duration::from_secs(2)).await;
        }
        if let Some(what) = self.unsettled() {
            lock(&self.world).broken(what);
        }
        if lock(&self.world).scrutiny && !self.failed() {
            self.scrutinise().await;
        }
    }

    /// Nothing changes any more: everybody has what is meant for him, and no secret lies around.
    async fn scrutinise(&mut self) {
        // As long as a refresh that failed waits, and a look at the processors after it.
        self.pass(Duration::from_secs(80)).await;
        // A stop that hangs takes longer, and until then what it ends is live.
        for _ in 0..60 {
            if !self.is_busy() || self.failed() {
                break;
            }
            self.pass(Duration::from_secs(5)).await;
        }
        volumes::judge_readers(&self.runtime);
        let live: BTreeSet<String> =
            self.runtime.running().into_iter().map(|(uid, _)| uid).collect();
        {
            let mut world = lock(&self.world);
            if let Some(what) = world.behind(|uid| live.contains(uid)) {
                world.broken(what);
            }
            world.judge_files();
        }
        shares::judge_settled(&self.runtime);
    }

    /// Hours go by, in which tokens are renewed while clocks are set, the API server is away and the agent dies.
    async fn linger(&mut self) {
        for _ in 0..120 {
            self.pass(Duration::from_secs(20)).await;
            volumes::judge_readers(&self.runtime);
            if self.failed() {
                return;
            }
            let what = lock(&self.world).chance.below(24);
            match what {
                0 | 1 => self.set_clock(),
                2 => self.kill().await,
                3 => self.reboot().await,
                4 => {
                    let long = lock(&self.world).chance.secs(60);
                    lock(&self.world).api.away = true;
                    self.due(long, Due::ApiBack);
                }
                5 => self.write_maps(),
                _ => {}
            }
        }
        self.quiet();
        self.settle().await;
    }

    /// Somebody sets the wall clock.
    fn set_clock(&mut self) {
        let by = lock(&self.world).chance.of(&["-86400", "86400", "-60", "3600"]).parse();
        clock::step(by.expect("a number"));
        let mut world = lock(&self.world);
        world.steps += 1;
        world.note("the clock is set");
    }

    /// Whether somebody still waits for something, or something is done later.
    fn is_busy(&self) -> bool {
        let later = |due: &Due| matches!(due, Due::Late(_) | Due::Register | Due::Tell);
        lock(&self.world).under_way > 0 || self.agenda.values().any(later)
    }

    /// Whether nothing was changed between the two. A driver that wants it is asked to publish again and again.
    fn is_same(&self, before: (usize, u64, u64), after: (usize, u64, u64)) -> bool {
        let driven = self.republish || before.1 == after.1;
        before.0 == after.0 && before.2 == after.2 && driven
    }

    /// Waits until everything is as it is to be, nothing is under way, and nothing has been changed for a while.
    async fn rest(&mut self) {
        let until = clock::since_began() + EVER;
        let (mut before, mut since) = (self.changes(), clock::since_began());
        loop {
            self.pass(Duration::from_secs(1)).await;
            let (now, unsettled) = (clock::since_began(), self.unsettled());
            let after = self.changes();
            // What comes back from a call that took its time may lead to another.
            if unsettled.is_some() || self.is_busy() || !self.is_same(before, after) {
                (before, since) = (after, now);
            }
            if self.failed() || since + STILL <= now {
                return;
            }
            if now > until {
                let what = unsettled.unwrap_or("something is always under way".into());
                return lock(&self.world).broken(format!("never at rest: {what}"));
            }
        }
    }

    /// Once everything is as it is to be, a restart of the agent changes nothing.
    pub async fn stay(&mut self) {
        self.rest().await;
        if self.failed() {
            return;
        }
        let before = self.changes();
        self.kill().await;
        self.pass(STILL).await;
        let after = self.changes();
        if !self.is_same(before, after) && !self.failed() {
            let what = self.runtime.inner.changes().split_off(before.0);
            lock(&self.world)
                .broken(format!("a restart changes something: {before:?} {after:?} {what:?}"));
        }
    }

    /// Whatever is left of anything.
    pub fn left(&self) -> Option<String> {
        let world = lock(&self.world);
        let mut left = Vec::new();
        left.extend(world.api.pods.keys().map(|uid| format!("the object {uid}")));
        left.extend(self.runtime.all().iter().map(|pod| format!("{} in the runtime", pod.uid)));
        left.extend(world.cgroups.iter().map(|uid| format!("the cgroup of {uid}")));
        left.extend(world.mounts.values().map(|handle| format!("a mount of {handle}")));
        left.extend(self.disk.records.keys().map(|uid| format!("the record of {uid}")));
        left.extend(entries(&self.root.join("pods")).into_iter().map(|e| format!("pods/{e}")));
        // Those of pods of which the runtime has never known are swept with the node's other garbage.
        let logs = entries(&self.root.join("logs")).into_iter();
        let known = |log: &String| {
            let uid = log.rsplit('_').next().unwrap_or_default();
            world.books.get(uid).is_some_and(|book| book.made_sandbox)
        };
        left.extend(logs.filter(known).map(|log| format!("logs/{log}")));
        left.extend(records_below(&self.root.join("plugins")));
        (!left.is_empty()).then(|| left.join(", "))
    }

    /// The journal's records on disk.
    pub fn records(&self) -> &BTreeMap<String, crate::journal::Record> {
        &self.disk.records
    }

    pub fn failed(&self) -> bool {
        lock(&self.world).failure.is_some()
    }

    /// Everything is deleted, and everything goes.
    pub async fn finish(&mut self) {
        let uids: Vec<String> = lock(&self.world).api.pods.keys().cloned().collect();
        for uid in uids {
            let known = lock(&self.world).api.pods.get(&uid).cloned();
            if known.is_some_and(|pod| pod.metadata.deletion_timestamp.is_none()) {
                let grace = i64::try_from(lock(&self.world).chance.below(8)).expect("small");
                self.delete(&uid, grace);
            }
        }
        let uids: Vec<String> = self.statics.keys().cloned().collect();
        uids.iter().for_each(|uid| self.dropped(uid, None));
        self.statics.clear();
        lock(&self.world).api_changed.notify_one();
        let trouble = lock(&self.world).chance.secs(20);
        self.pass(trouble).await;
        self.quiet();
        let began = clock::since_began();
        while self.left().is_some() && !self.failed() && clock::since_began() < began + EVER {
            self.pass(Duration::from_secs(5)).await;
        }
        if let Some(left) = self.left() {
            lock(&self.world).broken(format!("there is left: {left}"));
        }
        self.sweep().await;
    }

    /// What no pod's task can know of goes with the node's garbage.
    async fn sweep(&mut self) {
        let logs = self.root.join("logs");
        while !self.failed() && !entries(&logs).is_empty() {
            let Some(parts) = self.agent.as_ref().map(|agent| agent.parts.clone()) else { return };
            let died = lock(&self.world).died.clone();
            let swept = tokio::select! {
                biased;
                swept = garbage::sweep(&parts) => swept,
                // The next one sweeps as well.
                () = died.notified() => {
                    self.kill().await;
                    self.start();
                    continue;
                }
            };
            let left = entries(&logs);
            if !left.is_empty() {
                lock(&self.world).broken(format!("not swept ({swept:?}): {left:?}"));
            }
        }
    }

    /// One of those that run and are asked how they are falls sick: it is stopped for it, or shown as not ready, and is well again.
    async fn check_up(&mut self) {
        let asked = |container: &ContainerSeen, uid: &str| {
            let known = lock(&self.world).container(uid, &container.name);
            let probes = known.map(|c| (c.liveness_probe.is_some(), c.readiness_probe.is_some()));
            probes.filter(|probes| *probes != (false, false))
        };
        let sick = self.runtime.running().into_iter().find_map(|(uid, container)| {
            let (dies, _) = asked(&container, &uid)?;
            Some((uid, container, dies))
        });
        let Some((uid, container, dies)) = sick else { return };
        let set = |sim: &mut Self, sick: bool| {
            let mut world = lock(&sim.world);
            world.note(format!("{} sick: {sick}", container.id));
            world.instances.entry(container.id.clone()).or_default().sick = sick;
        };
        set(self, true);
        let noticed = |sim: &Self| {
            let runs = sim.runtime.running().iter().any(|(_, c)| c.id == container.id);
            let world = lock(&sim.world);
            let shown = world.books.get(&uid).map(|book| book.shown.clone()).unwrap_or_default();
            let mut shown = super::cluster::all(&shown);
            !runs || !dies && shown.any(|c| c.name == container.name && !c.ready)
        };
        for _ in 0..60 {
            if noticed(self) || self.failed() {
                break;
            }
            self.pass(Duration::from_secs(5)).await;
        }
        if !noticed(self) {
            let what = format!("{} of {uid} is sick and nobody minds", container.name);
            lock(&self.world).broken(what);
        }
        set(self, false);
        self.settle().await;
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

/// What is not yet as it is to be with a pod that is wanted.
fn unsettled(book: &Book) -> Option<String> {
    let (uid, status, spec) = (&book.pod.metadata.uid, &book.shown, &book.pod.spec);
    if book.pod.metadata.deletion_timestamp.is_some() {
        return Some(format!("{uid} is deleted and still there"));
    }
    if Phase::parse(&status.phase).is_terminal() {
        return None;
    }
    if spec.active_deadline_seconds.is_some() {
        return Some(format!("{uid} outlives its deadline"));
    }
    let ready = status.conditions.iter().any(|c| c.type_ == "Ready" && c.status == "True");
    if spec.restart_policy == "Always" && !ready {
        return Some(format!("{uid} is not ready after all: {status:?}"));
    }
    let serves = |c: &ContainerStatus| c.state.running.is_some() && c.ready;
    let is_over = |c: &ContainerStatus| {
        let over = c.state.terminated.as_ref();
        over.is_some_and(|t| t.exit_code == 0 || spec.restart_policy == "Never")
    };
    // Sidecars run again whatever becomes of the others.
    let sidecars = status.init_container_statuses.iter().filter(|c| c.name.starts_with("side"));
    let settled = !status.container_statuses.is_empty()
        && status.container_statuses.iter().all(|c| serves(c) || is_over(c))
        && sidecars.clone().all(serves);
    (!settled).then(|| format!("{uid} neither runs nor is over: {status:?}"))
}

/// Static pods, each with the status that its mirror shows as far as the agent's watch has heard.
fn mirrored(statics: &Pods_, told: &Pods_, world: &mut World) -> Pods_ {
    world.mirrors_heard |= !world.api.away;
    let with_mirror = |(uid, pod): (&String, &Arc<Pod>)| {
        let known = told.get(uid).unwrap_or(pod);
        let book = world.books.get(uid).filter(|_| !world.api.away);
        let status = book.map_or(&known.status, |book| &book.shown);
        let pod = match *status == known.status {
            true => known.clone(),
            false => Arc::new(Pod { status: status.clone(), ..(**pod).clone() }),
        };
        (uid.clone(), pod)
    };
    statics.iter().map(with_mirror).collect()
}

/// Names in a directory, in order.
pub fn entries(directory: &Path) -> Vec<String> {
    let mut names: Vec<String> = std::fs::read_dir(directory)
        .map(|all| all.flatten().map(|e| e.file_name().to_string_lossy().into_owned()).collect())
        .unwrap_or_default();
    names.sort();
    names
}

/// Records and stages of drivers that are left.
fn records_below(directory: &Path) -> Vec<String> {
    let mut found = Vec::new();
    for name in entries(directory) {
        let path = directory.join(&name);
        if name == "globalmount" || path.is_file() {
            found.push(format!("a stage {}", path.display()));
        } else {
            found.extend(records_below(&path));
        }
    }
    found
}
