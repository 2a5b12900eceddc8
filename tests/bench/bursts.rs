//! Bursts of pods: by the runtime's calls alone, by the agent alone and by the whole system, in turns on the same node, so that other load of the machine
//! affects all of them.

use std::collections::BTreeMap;
use std::ops::Range;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use cluster::images::BUSYBOX_IMAGE;
use cluster::spec::Spec;
use futures_util::{StreamExt as _, TryStreamExt as _, stream};
use proto_api::core::v1::{Node, Pod};
use proto_client::{Client, DeleteParams, ListParams, WriteParams};

use crate::agent_only::AgentOnly;
use crate::agent_process::Agent;
use crate::figures::{Figure, Group, OURS, RUNTIME, Unit};
use crate::footprint::Spent;
use crate::runtime_floor::{self, RuntimeFloor};
use crate::workload::{Network, PATIENCE, SCRIPT, Shown, container, pod};

/// Pods of the bursts.
const BURSTS: [usize; 2] = [40, 110];
/// How often each is made on both sides; medians count, and of the shares those of each round: a shared machine is not the same from
/// one minute to the next.
const ROUNDS: usize = 7;
/// Pods of a burst that looks for the best width of the direct calls.
const TRIAL: usize = 40;
/// Pods in the making at a time, of the direct calls. The best ...
const WIDTHS: [usize; 6] = [2, 4, 6, 8, 12, 16];
/// ... so many are tried again beside each of our bursts, and the better of them is what ours is compared with.
const FINALISTS: usize = 2;
/// Requests of this program in flight when it makes or removes pods.
const CLIENTS: usize = 8;
/// Pods that are created and removed sequentially.
const CALM: usize = 4;
const NAMESPACE: &str = "burst";
/// The side of an agent without an API server.
const ALONE: &str = "orchlet alone";
/// The least that ours should be of the best direct use, in percent.
const SHARE: f64 = 95.0;

/// Which bursts are made; all of them where nothing is said.
#[derive(clap::Args, Clone, Debug, Default)]
pub struct Wanted {
    /// Only bursts of pods with this network.
    #[arg(long, value_enum)]
    network: Option<Network>,
    /// Only bursts of so many pods.
    #[arg(long)]
    pods: Option<usize>,
    /// How often each is made on both sides.
    #[arg(long)]
    rounds: Option<usize>,
}

impl Wanted {
    fn networks(&self) -> Vec<Network> {
        self.network.map_or(Network::BOTH.to_vec(), |network| vec![network])
    }

    fn sizes(&self) -> Vec<usize> {
        self.pods.map_or(BURSTS.to_vec(), |pods| vec![pods])
    }
}

/// A cluster, its agent and its runtime.
pub struct Bursts<'a> {
    spec: &'a Spec,
    client: &'a Client,
    floor: RuntimeFloor,
    agent_only: AgentOnly<'a>,
}

/// The name of the namespace that bursts go to.
pub fn namespace() -> &'static str {
    NAMESPACE
}

impl<'a> Bursts<'a> {
    /// In a cluster of one node with the busybox image and the namespace.
    pub fn new(spec: &'a Spec, client: &'a Client) -> Result<Bursts<'a>> {
        Ok(Bursts {
            spec,
            client,
            floor: RuntimeFloor::new(spec)?,
            agent_only: AgentOnly::new(spec)?,
        })
    }

    /// The bursts that are wanted. The node has no pods before and after, and may have no agent after.
    pub async fn measure(&self, wanted: &Wanted, agent: &mut Agent<'_>) -> Result<()> {
        let rounds = wanted.rounds.unwrap_or(ROUNDS);
        for network in wanted.networks() {
            let widths = self.best_widths(agent, network).await?;
            for pods in wanted.sizes() {
                self.compare(agent, network, (pods, rounds), &widths).await?;
            }
        }
        Ok(())
    }

    /// The best widths of the direct calls, best first.
    async fn best_widths(&self, agent: &mut Agent<'_>, network: Network) -> Result<Vec<usize>> {
        agent.kill().await?;
        let mut all = Vec::new();
        for width in WIDTHS {
            let took = self.directly(TRIAL, width, network).await?.0;
            let what = format!("{network}: {TRIAL} pods, so many at a time");
            Figure::new(Group::Bursts, what, Unit::PerSecond, rate(TRIAL, took))
                .at(width, "at a time")
                .side(RUNTIME)
                .tell()?;
            all.push((took, width));
        }
        all.sort();
        Ok(all.into_iter().take(FINALISTS).map(|(_, width)| width).collect())
    }

    /// The same burst by each side in turn.
    async fn compare(
        &self,
        agent: &mut Agent<'_>,
        network: Network,
        (pods, rounds): (usize, usize),
        widths: &[usize],
    ) -> Result<()> {
        let mut taken = Taken::default();
        for round in 0..rounds {
            let mut sides = [Side::RuntimeFloor, Side::AgentOnly, Side::Whole];
            // A machine becomes slower or quicker by and by: what comes first in one round comes last in the next.
            if round % 2 == 1 {
                sides.reverse();
            }
            for side in sides {
                agent.kill().await?;
                match side {
                    Side::RuntimeFloor => {
                        for width in widths {
                            let (took, spent) = self.directly(pods, *width, network).await?;
                            taken.spent_directly.add(&spent);
                            taken.direct.entry(*width).or_default().push(took);
                        }
                    }
                    Side::AgentOnly => {
                        let (took, spent) = self.alone(agent, pods, network).await?;
                        taken.spent_alone.add(&spent);
                        taken.alone.push(took);
                    }
                    Side::Whole => self.whole(agent, pods, network, &mut taken).await?,
                }
            }
        }
        taken.tell(network, pods)
    }

    /// Has the whole system make and remove so many pods.
    async fn whole(
        &self,
        agent: &mut Agent<'_>,
        pods: usize,
        network: Network,
        taken: &mut Taken,
    ) -> Result<()> {
        agent.start().await?;
        agent.ready().await?;
        self.schedulable().await?;
        // A node has run pods before.
        self.fill(0..CALM, network, 1).await?;
        self.empty(1).await?;
        let before = Spent::now(self.spec)?;
        taken.whole.push(self.fill(0..pods, network, CLIENTS).await?);
        taken.spent.add(&before.until_now(self.spec)?);
        taken.ends.push(self.empty(CLIENTS).await?);
        Ok(())
    }

    /// Has an agent without an API server make so many pods; what that took. They are gone afterwards.
    async fn alone(
        &self,
        agent: &mut Agent<'_>,
        pods: usize,
        network: Network,
    ) -> Result<(Duration, Spent)> {
        agent.start_alone(&self.agent_only.flags()).await?;
        self.agent_only.fill(0..CALM, network, agent, &self.floor).await?;
        self.agent_only.empty(agent).await?;
        let made = self.agent_only.fill(0..pods, network, agent, &self.floor).await?;
        self.agent_only.empty(agent).await?;
        Ok(made)
    }

    /// Makes so many pods by the calls that an agent has to make, `width` at a time; what that took. They are removed.
    async fn directly(
        &self,
        pods: usize,
        width: usize,
        network: Network,
    ) -> Result<(Duration, Spent)> {
        let wanted = (0..pods).map(|number| runtime_floor::pod(number, network, SCRIPT));
        let wanted: Vec<Pod> = wanted.collect::<Result<_>>()?;
        let (before, began) = (Spent::now(self.spec)?, Instant::now());
        let made: Vec<_> = stream::iter(&wanted)
            .map(|pod| self.floor.start(pod))
            .buffer_unordered(width)
            .try_collect()
            .await?;
        let (took, spent) = (began.elapsed(), before.until_now(self.spec)?);
        stream::iter(&made)
            .map(|made| self.floor.end(made, Duration::ZERO))
            .buffer_unordered(CLIENTS)
            .try_collect::<Vec<()>>()
            .await?;
        Ok((took, spent))
    }

    /// Makes pods, with so many requests at a time; how long it took until a watch showed all of them Ready.
    pub async fn fill(
        &self,
        numbers: Range<usize>,
        network: Network,
        clients: usize,
    ) -> Result<Duration> {
        let mut shown = Shown::follow(self.client, NAMESPACE)?;
        let api = self.client.within::<Pod>(NAMESPACE);
        let params = WriteParams::default();
        let names: Vec<String> = numbers.map(|n| format!("b{n}")).collect();
        let pods: Vec<Pod> =
            names.iter().map(|name| burst_pod(name, network)).collect::<Result<_>>()?;
        let (api, params) = (&api, &params);
        let began = Instant::now();
        stream::iter(pods.iter())
            .map(|pod| async move { api.create(pod, params).await.map(drop) })
            .buffer_unordered(clients)
            .try_collect::<Vec<()>>()
            .await?;
        Ok(shown.until_ready(&names).await? - began)
    }

    /// Removes all pods, with so many requests at a time; how long it took until all were gone.
    pub async fn empty(&self, clients: usize) -> Result<Duration> {
        let api = self.client.within::<Pod>(NAMESPACE);
        let api = &api;
        let list = api.list(&ListParams::default()).await?;
        let mut shown = Shown::follow(self.client, NAMESPACE)?;
        for pod in &list.items {
            shown.until(&pod.metadata.name, |pod| pod.is_some()).await?;
        }
        let began = Instant::now();
        stream::iter(&list.items)
            .map(|pod| async move {
                api.delete(&pod.metadata.name, &DeleteParams::default()).await.map(drop)
            })
            .buffer_unordered(clients)
            .try_collect::<Vec<()>>()
            .await?;
        let mut last = began;
        for pod in &list.items {
            last = last.max(shown.until(&pod.metadata.name, |pod| pod.is_none()).await?);
        }
        Ok(last - began)
    }

    /// Waits until nothing keeps pods from the node: while it had no agent it may have been found silent.
    async fn schedulable(&self) -> Result<()> {
        let api = self.client.all::<Node>();
        let began = Instant::now();
        loop {
            let nodes = api.list(&ListParams::default()).await?.items;
            let ready = |node: &Node| {
                let mut conditions = node.status.conditions.iter();
                conditions.any(|c| c.type_ == "Ready" && c.status == "True")
            };
            if nodes.iter().any(|node| ready(node) && node.spec.taints.is_empty()) {
                return Ok(());
            }
            ensure!(began.elapsed() < PATIENCE, "the node takes no pods");
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }
}

/// Who makes the pods.
#[derive(Clone, Copy, Debug)]
enum Side {
    /// This program, by the runtime's calls.
    RuntimeFloor,
    /// The agent, without an API server.
    AgentOnly,
    /// The whole system.
    Whole,
}

/// What the same burst took each side, round by round.
#[derive(Debug, Default)]
struct Taken {
    /// By the number of pods at a time.
    direct: BTreeMap<usize, Vec<Duration>>,
    alone: Vec<Duration>,
    whole: Vec<Duration>,
    /// The removal by the whole system.
    ends: Vec<Duration>,
    spent_directly: Spent,
    spent_alone: Spent,
    spent: Spent,
}

impl Taken {
    fn tell(self, network: Network, pods: usize) -> Result<()> {
        let medians = self.direct.iter().map(|(width, took)| (median(took.clone()), *width));
        let (_, width) = medians.min().context("no width")?;
        let floors = self.direct.get(&width).cloned().unwrap_or_default();
        let figure = |what: &str, unit: Unit, side: &str, samples: Vec<f64>| {
            let figure =
                Figure::from_samples(Group::Bursts, format!("{network}: {what}"), unit, samples);
            figure.at(pods, "pods").side(side)
        };
        let rates = |took: &[Duration]| took.iter().map(|took| rate(pods, *took)).collect();
        let burst = |side: &str, took: &[Duration]| {
            figure("created -> all run", Unit::PerSecond, side, rates(took)).tell()
        };
        burst(RUNTIME, &floors)?;
        for (side, took) in [(ALONE, &self.alone), (OURS, &self.whole)] {
            burst(side, took)?;
            let shares = shares(floors.iter().zip(took));
            let figure = figure("share of the best direct use", Unit::Share, side, shares);
            figure.budget(SHARE).tell()?;
        }
        figure("deleted -> all gone", Unit::PerSecond, OURS, rates(&self.ends)).tell()?;
        let made = pods * self.whole.len();
        let cpu = |of: &str, side: &str, ms: f64| {
            figure(&format!("CPU of {of} for a pod"), Unit::Millis, side, vec![ms]).tell()
        };
        let direct = self.spent_directly.machine_ms(made * self.direct.len());
        cpu("the machine", RUNTIME, direct)?;
        for (side, spent) in [(ALONE, &self.spent_alone), (OURS, &self.spent)] {
            cpu("the machine", side, spent.machine_ms(made))?;
            cpu("orchlet", side, spent.programs_ms("orchlet", made))?;
        }
        cpu("all programs", OURS, self.spent.programs_ms("", made))?;
        Ok(())
    }
}

fn burst_pod(name: &str, network: Network) -> Result<Pod> {
    pod(NAMESPACE, name, network, vec![container("main", BUSYBOX_IMAGE, SCRIPT)], Vec::new())
}

fn median(mut samples: Vec<Duration>) -> Duration {
    samples.sort();
    samples.get(samples.len() / 2).copied().unwrap_or(Duration::MAX)
}

/// What ours is of the direct use, both of one round, in percent.
fn shares<'a>(rounds: impl Iterator<Item = (&'a Duration, &'a Duration)>) -> Vec<f64> {
    rounds.map(|(direct, ours)| direct.div_duration_f64(*ours) * 100.0).collect()
}

fn rate(pods: usize, took: Duration) -> f64 {
    pods as f64 / took.as_secs_f64()
}
