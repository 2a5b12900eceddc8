//! The agent is killed repeatedly while pods are created, changed and deleted, without any effect on them.
//!
//! The containers themselves are the evidence: each adds a line to a file of its pod when it starts. A second line is a restart or a second instance, whatever
//! the pod's status says.

mod kinds;
mod watched;

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Child;
use std::time::Duration;

use agent_pod::observed::InstanceState;
use agent_runtime::PodReader as _;
use agent_runtime::cri::CriRuntime;
use anyhow::{Context as _, Result, ensure};
use cluster::processes::ProcessHandle;
use cluster::programs::{Program, programs};
use cluster::supervisor::{self, Programs};
use nix::sys::signal::Signal;
use orch_tests::wait::until;
use proto_api::core::v1::{ConfigMap, Pod};
use proto_client::{DeleteParams, Patch, WriteParams};
use serde_json::json;

use crate::context::{Context, PATIENCE, last_lines, shown};
use crate::csi;
use crate::faults::{calls, containers};
use crate::inventory::Inventory;
use kinds::{Kind, Role};
use watched::Watched;

/// How often the agent is killed; `ORCH_KILLS` says otherwise.
const KILLS: u32 = 8;
/// Tasks that make and remove pods at a time.
const CHURNERS: u32 = 3;
const AGENT: &str = "orchlet-node-1";
/// Lines of its log that are shown when it has ended by itself.
const LAST_LINES: usize = 6;

/// Numbers that look random and are the same each time.
pub struct Dice(u64);

impl Dice {
    /// A number below `sides`.
    fn roll(&mut self, sides: u64) -> u64 {
        // SplitMix64, whose constants these are.
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (z ^ (z >> 31)) % sides
    }
}

/// The first node's agent, with this case in the place of its supervisor, who would let longer and longer pauses pass between starts.
struct Agent<'a> {
    c: &'a Context,
    program: Program,
    running: Option<(ProcessHandle, Child)>,
    /// Starts of the agent that ended by themselves: there must be none.
    ended: u32,
}

impl<'a> Agent<'a> {
    /// Takes the cluster's programs over; they run on.
    async fn take(c: &'a Context) -> Result<Agent<'a>> {
        let program = programs(&c.spec).into_iter().find(|program| program.name == AGENT);
        supervisor::end_supervisor(&c.spec, Programs::Leave).await?;
        let program = program.context("no agent in this cluster")?;
        Ok(Agent { c, program, running: None, ended: 0 })
    }

    /// Kills the agent that runs, and starts another.
    async fn kill(&mut self) -> Result<()> {
        match self.running.take() {
            Some((handle, mut child)) => {
                if let Some(status) = child.try_wait()? {
                    self.ended += 1;
                    let log = self.c.spec.dir.join("logs").join(AGENT).with_extension("log");
                    println!(
                        "    an agent ended by itself, {status}:\n{}",
                        last_lines(&log, LAST_LINES)
                    );
                }
                handle.signal(Signal::SIGKILL)?;
                child.wait()?;
            }
            None => {
                let handle = supervisor::find(&self.c.spec, AGENT).context("no agent runs")?;
                handle.signal(Signal::SIGKILL)?;
                handle.ended().await?;
            }
        }
        self.running = Some(supervisor::start(&self.c.spec, &self.program).await?);
        Ok(())
    }

    /// Gives everything back to a supervisor.
    fn give_back(self) -> Result<()> {
        supervisor::start_supervisor(&self.c.spec)
    }
}

/// What all tasks of the case share.
struct Scene<'a> {
    c: &'a Context,
    ns: String,
    /// Where the containers' own accounts lie, a directory a pod.
    accounts: PathBuf,
    over: Cell<bool>,
    wrong: RefCell<Vec<String>>,
    /// Pods that came and went.
    done: Cell<u32>,
    made: Cell<u32>,
    /// The config map's newest value.
    value: Cell<u32>,
}

impl Scene<'_> {
    fn complain(&self, what: String) {
        let mut wrong = self.wrong.borrow_mut();
        if wrong.len() < 20 {
            println!("    {what}");
            wrong.push(what);
        }
    }

    fn account(&self, pod: &str) -> PathBuf {
        self.accounts.join(pod)
    }

    /// How often each container of a pod has started, by its own account.
    fn starts(&self, pod: &str) -> BTreeMap<String, usize> {
        starts_in(&self.account(pod))
    }

    async fn make(&self, name: &str, kind: Kind) -> Result<()> {
        std::fs::create_dir_all(self.account(name))?;
        self.made.set(self.made.get() + 1);
        self.c.apply(&kind.manifest(&self.ns, name, &self.account(name))).await
    }

    async fn settled(&self, name: &str) -> Result<Pod> {
        let settled =
            |pod: &Pod| match cluster::demo::is_pod_ready(pod) || pod.status.phase == "Succeeded" {
                true => Ok(()),
                false => Err(shown(pod)),
            };
        self.c.pod_until(&self.ns, name, settled).await
    }

    /// Makes what stays and waits until it is as it should be.
    async fn set_out(&self) -> Result<Vec<(String, Kind)>> {
        csi::describe(self.c, "churn.csi.test", json!({"attachRequired": false})).await?;
        csi::bound(self.c, &self.ns, "data", "churn.csi.test").await?;
        self.c.apply(&kinds::objects(&self.ns)).await?;
        let named = |kind: &Kind| (format!("stays-{kind:?}").to_lowercase(), *kind);
        let stay: Vec<(String, Kind)> = Kind::STAYING.iter().map(named).collect();
        for (name, kind) in &stay {
            self.make(name, *kind).await?;
        }
        for (name, kind) in &stay {
            match kind.role() {
                Role::Crashes => crashed(self.c, &self.ns, name).await?,
                _ => drop(self.settled(name).await?),
            }
        }
        Ok(stay)
    }

    /// A call that was cut off is made again; none that has worked is.
    async fn compare_calls(&self, before: &BTreeMap<String, u64>, made: u64) -> Result<()> {
        let now = calls(self.c).await?;
        let count =
            |calls: &BTreeMap<String, u64>, call: &str| calls.get(call).copied().unwrap_or(0);
        let worked = |call: &str| count(&now, call) - count(before, call);
        let sandboxes = worked("RunPodSandbox");
        let (created, started) = (worked("CreateContainer"), worked("StartContainer"));
        println!(
            "    {made} pods made; sandboxes run: {sandboxes}, containers made: {created}, started: {started}"
        );
        if sandboxes > made {
            self.complain(format!("{sandboxes} sandboxes for {made} pods"));
        }
        Ok(())
    }

    /// Removes what stayed.
    async fn remove(&self, stay: &[(String, Kind)]) -> Result<()> {
        let pods = self.c.client.within::<Pod>(&self.ns);
        for (name, _) in stay {
            pods.delete(name, &DeleteParams::default()).await?;
        }
        for (name, _) in stay {
            until(&format!("pod {name} is gone"), PATIENCE, async || match pods.find(name).await {
                Ok(None) => Ok(()),
                Ok(Some(pod)) => Err(shown(&pod)),
                Err(e) => Err(e.to_string()),
            })
            .await?;
        }
        Ok(())
    }

    /// Makes and removes pods until the case is over.
    async fn churn(&self, number: u32) -> Result<()> {
        let mut dice = Dice(u64::from(number) + 1);
        for round in 0.. {
            if self.over.get() {
                return Ok(());
            }
            let kind = Kind::PASSING[dice.roll(Kind::PASSING.len() as u64) as usize];
            let name = format!("c{number}-{round}");
            self.make(&name, kind).await?;
            let settles = dice.roll(3) > 0;
            if settles {
                self.settled(&name).await?;
                let patch = Patch::Merge(json!({"metadata": {"labels": {"turn": "two"}}}));
                let pods = self.c.client.within::<Pod>(&self.ns);
                pods.patch(&name, &patch, &WriteParams::default()).await?;
            }
            tokio::time::sleep(Duration::from_millis(dice.roll(1500))).await;
            csi::deleted(self.c, &self.ns, &name).await?;
            for (container, starts) in self.starts(&name) {
                if starts > 1 {
                    self.complain(format!("{name}: {container} was started {starts} times"));
                }
            }
            if settles && self.starts(&name).is_empty() {
                self.complain(format!("{name} was ready and never started"));
            }
            self.done.set(self.done.get() + 1);
        }
        Ok(())
    }

    /// Writes the config map that pods show, again and again.
    async fn write(&self) -> Result<()> {
        let maps = self.c.client.within::<ConfigMap>(&self.ns);
        while !self.over.get() {
            self.value.set(self.value.get() + 1);
            let patch = Patch::Merge(json!({"data": {"key": self.value.get().to_string()}}));
            maps.patch("settings", &patch, &WriteParams::default()).await?;
            tokio::time::sleep(Duration::from_millis(250)).await;
        }
        Ok(())
    }

    /// Looks at the runtime: nothing runs twice.
    async fn look(&self) -> Result<()> {
        let socket = self.c.spec.containerd_socket("node-1");
        let runtime = CriRuntime::new(&format!("unix://{}", socket.display()))?;
        while !self.over.get() {
            for pod in runtime.list().await?.iter().filter(|pod| pod.namespace == self.ns) {
                let mut running = BTreeMap::<&str, usize>::new();
                for container in &pod.containers {
                    if matches!(container.state, InstanceState::Running { .. }) {
                        *running.entry(&container.name).or_default() += 1;
                    }
                }
                let twice = running.iter().find(|(_, count)| **count > 1);
                if let Some((name, count)) = twice {
                    self.complain(format!("{}: {name} runs {count} times", pod.name));
                }
                if pod.sandboxes.iter().filter(|sandbox| sandbox.ready).count() > 1 {
                    self.complain(format!("{} has two sandboxes", pod.name));
                }
            }
            tokio::time::sleep(Duration::from_millis(700)).await;
        }
        Ok(())
    }

    /// Kills the agent: while it starts, just after, and in the middle of its work.
    async fn kill(&self, agent: &mut Agent<'_>, kills: u32) -> Result<()> {
        let mut dice = Dice(0);
        for kill in 0..kills {
            let longest = [200, 800, 2500][kill as usize % 3];
            tokio::time::sleep(Duration::from_millis(dice.roll(longest))).await;
            agent.kill().await?;
            if kill % 20 == 19 {
                println!("    killed {} times, {} pods came and went", kill + 1, self.done.get());
            }
        }
        // As many pods as churners come and go without a kill.
        let before = self.done.get();
        until("pods come and go", PATIENCE, async || match self.done.get() - before {
            done if done >= CHURNERS => Ok(()),
            done => Err(format!("{done} did")),
        })
        .await?;
        self.over.set(true);
        Ok(())
    }

    /// The newest value of the config map is in the pod that shows it, and was never missing.
    async fn check_files(&self, pod: &Pod) -> Result<()> {
        let newest = self.value.get().to_string();
        until("the newest value is in the file", PATIENCE, async || {
            let text = self.c.in_container(pod, &["/bin/cat", "/cfg/key"]).await;
            match text.map_err(|e| format!("{e:#}"))? {
                text if text == newest => Ok(()),
                text => Err(format!("{text:?} for {newest}")),
            }
        })
        .await?;
        let misses = self.account(&pod.metadata.name).join("misses");
        ensure!(!misses.exists(), "a file of a config map was missing at times");
        Ok(())
    }
}

fn starts_in(dir: &Path) -> BTreeMap<String, usize> {
    let mut starts = BTreeMap::new();
    for entry in std::fs::read_dir(dir).into_iter().flatten().flatten() {
        let name = entry.file_name().to_string_lossy().into_owned();
        if let Some(container) = name.strip_suffix(".starts") {
            let text = std::fs::read_to_string(entry.path()).unwrap_or_default();
            starts.insert(container.to_owned(), text.lines().count());
        }
    }
    starts
}

fn kills() -> Result<u32> {
    match std::env::var("ORCH_KILLS") {
        Ok(text) => text.parse().context("ORCH_KILLS"),
        Err(_) => Ok(KILLS),
    }
}

pub async fn an_agent_killed_again_and_again_is_not_noticed(c: &Context) -> Result<()> {
    let ns = c.namespace("churn").await?;
    let scene = Scene {
        c,
        accounts: c.spec.dir.join("accounts"),
        over: Cell::new(false),
        wrong: RefCell::default(),
        done: Cell::new(0),
        made: Cell::new(0),
        value: Cell::new(0),
        ns: ns.clone(),
    };
    let before = Inventory::take(c).await?;
    println!("    before: {}", before.counts());
    let driver = csi::Driver::start(c, "churn.csi.test").await?;
    let stay = scene.set_out().await?;
    let (calls_before, stayed) = (calls(c).await?, scene.made.get());
    let ids = containers(c, &ns).await?;

    let watched = Watched::follow(c, &ns)?;
    let mut agent = Agent::take(c).await?;
    let churned = churned(&scene, &mut agent).await;
    let ended = agent.ended;
    agent.give_back()?;
    churned?;
    if ended > 0 {
        scene.complain(format!("{ended} agents ended by themselves"));
    }
    check_those_that_stayed(&scene, &stay, &ids).await?;
    let (seen, flips) = watched.end();
    println!("    {seen} changes watched");
    flips.into_iter().for_each(|flip| scene.complain(flip));
    scene.compare_calls(&calls_before, u64::from(scene.made.get() - stayed)).await?;
    scene.remove(&stay).await?;
    let (staged, published) = (driver.count("NodeStageVolume"), driver.count("NodePublishVolume"));
    println!("    the driver staged {staged} and published {published} times");
    drop(driver);
    let after = before.nothing_left(c).await?;
    println!("    after:  {}", after.counts());
    let wrong = scene.wrong.take();
    ensure!(wrong.is_empty(), "{}", wrong.join("\n    "));
    c.discard(&ns).await
}

/// Runs everything at once until the kills are done.
async fn churned(scene: &Scene<'_>, agent: &mut Agent<'_>) -> Result<()> {
    let kills = kills()?;
    let killing = async {
        let done = scene.kill(agent, kills).await;
        scene.over.set(true);
        done
    };
    let churning = futures_util::future::try_join_all((0..CHURNERS).map(|n| async move {
        let done = scene.churn(n).await;
        if done.is_err() {
            scene.over.set(true);
        }
        done
    }));
    let (killed, churned, written, looked) =
        tokio::join!(killing, churning, scene.write(), scene.look());
    churned?;
    killed?;
    written?;
    looked
}

async fn crashed(c: &Context, ns: &str, name: &str) -> Result<()> {
    let crashing = |pod: &Pod| {
        let status = pod.status.container_statuses.first().ok_or("no status")?;
        if status.restart_count >= 1 { Ok(()) } else { Err(shown(pod)) }
    };
    c.pod_until(ns, name, crashing).await.map(drop)
}

async fn check_those_that_stayed(
    scene: &Scene<'_>,
    stay: &[(String, Kind)],
    ids: &BTreeMap<String, i32>,
) -> Result<()> {
    let now = containers(scene.c, &scene.ns).await?;
    let pods = scene.c.client.within::<Pod>(&scene.ns);
    for (name, kind) in stay {
        let pod = pods.get(name).await?;
        let starts = scene.starts(name);
        match kind.role() {
            Role::Crashes => {
                let restarts = pod.status.container_statuses.first().map_or(0, |s| s.restart_count);
                let main = starts.get("main").copied().unwrap_or(0);
                // The instance that is about to start counts from its start.
                if main.abs_diff(restarts as usize + 1) > 1 {
                    scene.complain(format!("{name}: {main} starts, {restarts} restarts shown"));
                }
                continue;
            }
            Role::Reads => scene.check_files(&pod).await?,
            Role::Runs | Role::Ends => {}
        }
        for (container, count) in starts {
            if count != 1 {
                scene.complain(format!("{name}: {container} was started {count} times"));
            }
        }
        for status in &pod.status.container_statuses {
            if !ids.contains_key(&status.container_id) || !now.contains_key(&status.container_id) {
                scene.complain(format!("{name}: {} is another instance", status.name));
            }
        }
        if *kind != Kind::Ends && !cluster::demo::is_pod_ready(&pod) {
            scene.complain(format!("{name}: {}", shown(&pod)));
        }
    }
    Ok(())
}
