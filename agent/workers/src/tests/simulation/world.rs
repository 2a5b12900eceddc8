//! What is outside of the agent and outlives it, and what must hold of it.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use agent_clock as clock;
use agent_pod::observed::Now;
use agent_pod::record::PodRecord;
use proto_api::core::v1::{ConfigMap, Container, Pod, PodStatus, Secret};
use tokio::sync::Notify;
use tokio::time::sleep;

use super::extras;
use super::random::Chance;
use super::readers::Readers;

/// The world as everybody in it holds it.
pub type Shared = Arc<Mutex<World>>;

pub fn lock(world: &Mutex<World>) -> MutexGuard<'_, World> {
    world.lock().unwrap_or_else(PoisonError::into_inner)
}

/// What is known of an instance beyond what the runtime tells.
#[derive(Clone, Default)]
pub struct Instance {
    pub uid: String,
    pub name: String,
    pub attempt: u32,
    /// The sandbox.
    pub made_in: String,
    /// Its probes and hooks fail while it is sick.
    pub sick: bool,
    /// Whether it has ever been given a reason to be stopped.
    pub may_be_stopped: bool,
    /// Probes that it has answered well.
    pub answered: BTreeSet<String>,
    /// Whether it has ever answered badly, or not at all.
    pub doubted: bool,
    /// Bad answers in a row, by probe.
    pub bad: BTreeMap<String, u64>,
    /// Whether its first hook has been run to its end.
    pub hooked: bool,
    /// Whether a run of its first hook has failed; an agent that has forgotten the first runs it again.
    pub hook_failed: bool,
    /// Whether the hook before its stop has been asked for.
    pub pre_called: bool,
    /// When it was started.
    pub started: Option<Now>,
    /// Whether the agent has asked for its end.
    pub stopped: bool,
}

/// A start of a container.
#[derive(Clone, Debug)]
pub struct Start {
    pub at: Duration,
    pub id: String,
    /// Of the sandbox and of the definition: a start in another, or of another, is no restart after a crash.
    pub made_in: String,
    pub made_of: String,
}

/// What the judge knows of one pod.
#[derive(Default)]
pub struct Book {
    /// As its source has it, or had it last.
    pub pod: Pod,
    pub is_static: bool,
    /// Whether the agent that runs now has heard of it.
    pub told: bool,
    /// Reasons to end that exist outside of the agent, or are on its disk.
    pub ends: bool,
    /// When what runs at the end is killed, as far as that is decided: not before, since boot.
    pub kill_from: Option<Duration>,
    /// When it is killed at the latest, as the agent that runs now was told.
    pub kill_by: Option<Duration>,
    /// When it was told so last.
    pub told_at: Duration,
    /// The end as it is on disk.
    pub ending: Option<Duration>,
    /// A sandbox was made: the runtime knows of it, and the node has said yes for good. An agent that dies before its call arrives
    /// has begun nothing of the pod, and its successor may find the node short: it asks once more, as Kubernetes' kubelet does for every
    /// pod at each start.
    pub made_sandbox: bool,
    pub shown: PodStatus,
    /// What the agent wrote last.
    pub said: PodStatus,
    /// Whether another has changed what the agent shows, and the agent has not yet set it right.
    pub contested: bool,
    /// Whether another has shown it as over.
    pub ended_by_other: bool,
    /// Resource version of the object, or of a static pod's mirror.
    pub version: String,
    /// Processes of the agent that may have shown more than the disk has, since the disk would not take it.
    pub ahead: BTreeSet<u64>,
    /// Statuses written.
    pub writes: u64,
    /// Pulls there had been when the newest instance was made, by container and id of the image.
    pub pulls: BTreeMap<(String, String), u64>,
    /// Highest attempt made of each container.
    pub made: BTreeMap<String, u32>,
    /// Starts of each container within the last minute.
    pub starts: BTreeMap<String, Vec<Duration>>,
    /// A container of it that ends soon after each of its starts.
    pub crashing: Option<String>,
    /// Starts of each container since it last began for another reason than a crash.
    pub crashes: BTreeMap<String, Vec<Start>>,
    /// Whether the pod's containers have used its directories.
    pub used: BTreeSet<String>,
    /// Whether it was begun by an agent to which the API server had not spoken.
    pub unheard: bool,
    /// Whether the gate that it waits for has been open.
    pub opened: bool,
}

impl Book {
    /// Whether it is a static pod that is shown as refused: the next agent decides again.
    pub fn is_refused_static(&self) -> bool {
        self.is_static && self.shown.phase == "Failed" && !self.shown.reason.is_empty()
    }
}

/// The API server.
#[derive(Default)]
pub struct Api {
    pub pods: BTreeMap<String, Arc<Pod>>,
    pub maps: BTreeMap<String, Arc<ConfigMap>>,
    pub secret: Arc<Secret>,
    pub away: bool,
    /// Resource version of the last write.
    pub version: u64,
}

/// What happened, in order: all of it as a number, the last of it as lines.
pub struct Trace {
    pub hash: u64,
    pub len: u64,
    lines: std::collections::VecDeque<String>,
    keep: usize,
}

impl Trace {
    fn push(&mut self, line: String) {
        for byte in line.bytes() {
            self.hash = (self.hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
        }
        self.len += 1;
        if self.lines.len() >= self.keep {
            self.lines.pop_front();
        }
        self.lines.push_back(line);
    }
}

pub struct World {
    pub chance: Chance,
    pub trace: Trace,
    /// Whether faults happen at all, and how often: one in this many times what is usual. 0 is never.
    pub faults: u64,
    /// The agent dies at these moments.
    pub deadly: BTreeSet<u64>,
    pub moments: u64,
    pub died: Arc<Notify>,
    pub failure: Option<String>,
    pub api: Api,
    /// Somebody changed what the API server has.
    pub api_changed: Arc<Notify>,
    /// Whether the agent that runs now has heard of the mirrors of static pods.
    pub mirrors_heard: bool,
    pub runtime_away: bool,
    /// Whether the disk is full, or was and has not been written to since.
    pub disk_lags: bool,
    pub books: BTreeMap<String, Book>,
    pub instances: BTreeMap<String, Instance>,
    /// How often each image was pulled, by its id.
    pub pulls: BTreeMap<String, u64>,
    pub cgroups: BTreeSet<String>,
    /// What drivers have mounted, and of which volume it is.
    pub mounts: BTreeMap<PathBuf, String>,
    pub root: PathBuf,
    /// How often the wall clock was set.
    pub steps: u64,
    /// Calls that changed something at a driver.
    pub driven: u64,
    /// Which process of the agent this is.
    pub incarnation: u64,
    pub verbose: bool,
    /// Calls of this process that may change something and whose answer it waits for, and all that hang.
    pub under_way: u64,
    /// What the runtime does though nobody waits for it any more.
    pub late: Vec<super::runtime::Late>,
    /// Instances that have started and are about to crash.
    pub doomed: Vec<String>,
    /// Whether everything is looked at.
    pub scrutiny: bool,
    pub readers: Readers,
}

impl World {
    pub fn new(seed: u64, faults: u64, deadly: BTreeSet<u64>, root: PathBuf) -> Shared {
        let keep = super::number("ORCH_LINES").and_then(|n| usize::try_from(n).ok()).unwrap_or(80);
        Arc::new(Mutex::new(Self {
            chance: Chance(seed),
            trace: Trace { hash: 0xcbf2_9ce4_8422_2325, len: 0, lines: Default::default(), keep },
            faults,
            deadly,
            moments: 0,
            died: Arc::default(),
            failure: None,
            api: Api::default(),
            api_changed: Arc::default(),
            mirrors_heard: false,
            runtime_away: false,
            disk_lags: false,
            books: BTreeMap::new(),
            instances: BTreeMap::new(),
            pulls: BTreeMap::new(),
            cgroups: BTreeSet::new(),
            mounts: BTreeMap::new(),
            root,
            steps: 0,
            driven: 0,
            incarnation: 0,
            under_way: 0,
            verbose: super::number("ORCH_SEED").is_some(),
            late: Vec::new(),
            doomed: Vec::new(),
            scrutiny: extras::is_scrutinised(seed),
            readers: Readers::default(),
        }))
    }

    pub fn note(&mut self, line: impl AsRef<str>) {
        let since = clock::since_began().as_millis();
        self.trace.push(format!("{since:>9} ms {}", line.as_ref()));
    }

    /// A rule is broken. The history ends at its next turn: who finds it may be in the middle of something.
    pub fn broken(&mut self, what: impl Into<String>) {
        let what = what.into();
        self.note(format!("BROKEN: {what}"));
        self.failure.get_or_insert(what);
    }

    /// A line for people that is not part of what happened.
    pub fn trace_only(&mut self, line: String) {
        self.trace.lines.push_back(line);
    }

    pub fn print(&self) {
        self.trace.lines.iter().for_each(|line| println!("{line}"));
    }

    /// Whether a fault happens that usually happens once in `n` times.
    pub fn fault(&mut self, n: u64) -> bool {
        self.faults > 0 && self.chance.one_in(n * self.faults)
    }

    pub fn container(&self, uid: &str, name: &str) -> Option<Container> {
        let book = self.books.get(uid)?;
        agent_pod::desired::find_container(&book.pod, name)
    }

    /// The agent hears now how long what is deleted has: from then on, or less if it was told so before.
    pub fn set_latest(&mut self) {
        for (uid, pod) in &self.api.pods {
            let Some(grace) = pod.metadata.deletion_grace_period_seconds else { continue };
            let Some(book) = self.books.get_mut(uid) else { continue };
            let by = clock::boot() + Duration::from_secs(u64::try_from(grace).unwrap_or(0));
            if book.kill_by.is_none_or(|known| by < known) {
                (book.kill_by, book.told_at) = (Some(by), clock::boot());
            }
        }
    }

    /// What the journal has on disk now.
    pub fn on_disk(&mut self, uid: &str, memory: &PodRecord) {
        let Some(book) = self.books.get_mut(uid) else { return };
        book.ahead.remove(&self.incarnation);
        if let Some(ending) = &memory.ending {
            book.ends = true;
            book.ending = Some(ending.deadline);
            book.kill_from =
                Some(book.kill_from.map_or(ending.deadline, |d| d.min(ending.deadline)));
        }
    }

    /// Something of a pod is begun.
    pub fn judge_begin(&mut self, uid: &str, what: &str) {
        let Some(book) = self.books.get(uid) else {
            return self.broken(format!("{what} of {uid}, which nobody has heard of"));
        };
        if book.ending.is_some() {
            self.broken(format!("{what} of {uid} after the end was decided for good"));
        } else if matches!(book.shown.phase.as_str(), "Succeeded" | "Failed")
            && !book.ended_by_other
            && !book.is_refused_static()
        {
            self.broken(format!("{what} of {uid}, which is shown as over"));
        }
    }
}

/// What no record, log or event may hold.
pub const SECRET: &str = "s3cret-data";

/// One of the moments in which the agent may die.
pub async fn moment(world: &Mutex<World>) {
    let dies = {
        let mut world = lock(world);
        world.moments += 1;
        let now = world.moments;
        let dies = world.deadly.remove(&now);
        if dies {
            world.died.notify_one();
        }
        dies
    };
    if dies {
        std::future::pending::<()>().await;
    }
}

/// The same for work that a process may have left to itself: what belongs to one that is gone comes to nothing.
pub async fn passes_in(world: &Mutex<World>, incarnation: u64, time: Duration) {
    passes(world, time).await;
    if lock(world).incarnation != incarnation {
        std::future::pending::<()>().await;
    }
}

/// Nothing is heard for so long, or until nobody wants to hear it any more.
pub async fn hangs(world: &Shared, time: Duration) {
    let _waits = Waits::new(world);
    passes(world, time).await;
}

/// Somebody waits for an answer. Who gives up does not wait any more, nor does a process that is gone.
pub struct Waits {
    world: Shared,
    incarnation: u64,
}

impl Waits {
    pub fn new(world: &Shared) -> Self {
        let incarnation = {
            let mut world = lock(world);
            world.under_way += 1;
            world.incarnation
        };
        Self { world: world.clone(), incarnation }
    }
}

impl Drop for Waits {
    fn drop(&mut self) {
        let mut world = lock(&self.world);
        if world.incarnation == self.incarnation {
            world.under_way -= 1;
        }
    }
}

/// Time passes, and the agent may die.
pub async fn passes(world: &Mutex<World>, time: Duration) {
    sleep(time).await;
    moment(world).await;
}
