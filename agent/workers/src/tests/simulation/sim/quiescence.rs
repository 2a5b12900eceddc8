//! How a history ends: the trouble is over, everything comes to rest, and nothing is left.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use agent_clock as clock;
use agent_journal::Record;
use agent_pod::observed::ObservedContainer;
use agent_pod::record::Phase;
use proto_api::core::v1::{ContainerStatus, Pod};

use super::super::cluster;
use super::super::world::{Book, World, lock};
use super::super::{shares, volumes};
use super::{Due, Sim};
use crate::garbage;

/// Long enough in virtual time for every back-off to end.
const EVER: Duration = Duration::from_secs(2 * 3600);
/// Nothing that is still to be done waits for longer than this without being asked for.
const STILL: Duration = Duration::from_secs(20);

impl Sim {
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
                Due::RuntimeBack
                    | Due::ApiBack
                    | Due::DiskBack
                    | Due::DriverBack
                    | Due::Crash(_)
                    | Due::Silent
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
            agent.parts.node_pressure.send_modify(|strain| strain.pressure.disk = false);
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
            true => unsettled(book).or_else(|| self.shown_wrongly(uid, book)),
            false => self.left_of(&world, uid).map(|what| format!("{uid} is gone but for {what}")),
        })
    }

    /// What there still is of a pod that nobody wants any more.
    fn left_of(&self, world: &World, uid: &str) -> Option<&'static str> {
        let on_node = self.runtime.pod(uid);
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
    pub(super) async fn linger(&mut self) {
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
        // The next agent may have room for a static pod that this one refused.
        let is_refused = lock(&self.world).books.values().any(Book::is_refused_static);
        if self.failed() || is_refused {
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
    pub fn records(&self) -> &BTreeMap<String, Record> {
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
    pub(super) async fn check_up(&mut self) {
        let asked = |container: &ObservedContainer, uid: &str| {
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
            let mut shown = cluster::all(&shown);
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
    let mut wanted = spec.ephemeral_containers.iter().map(|c| &c.ephemeral_container_common.name);
    let has_begun = |name: &String| {
        let mut shown = status.ephemeral_container_statuses.iter();
        shown.any(|c| c.name == *name && c.state.waiting.is_none())
    };
    if let Some(name) = wanted.find(|name| !has_begun(name)) {
        return Some(format!("{name} of {uid} has not begun: {status:?}"));
    }
    let settled = !status.container_statuses.is_empty()
        && status.container_statuses.iter().all(|c| serves(c) || is_over(c))
        && sidecars.clone().all(serves);
    (!settled).then(|| format!("{uid} neither runs nor is over: {status:?}"))
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
