//! Both schedulers on the same pending pods and nodes: how fast each binds them, and whether each placement is valid.

mod judge;
#[cfg(test)]
mod judge_tests;
mod objects;
mod placements;

use std::fmt::Write as _;
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};
use orch_tests::processes::{cpu, memory_peak};
use proto_api::Collection;
use proto_api::core::v1::{Node, Pod};
use proto_client::dynamic::Dynamic;
use proto_client::{Client, ListParams, Patch, Reflector, WriteParams};
use proto_daemon::drain::Drain;
use serde_json::Value;
use tokio::process::Child;
use tokio::task::JoinSet;

use crate::plane::{Plane, Side};
use crate::{Programs, Report};
use objects::NAMESPACE;
use placements::Qualities;

/// Between two looks; times are that exact.
const LOOK: Duration = Duration::from_millis(20);
/// How long all placements may take.
const PATIENCE: Duration = Duration::from_secs(3600);
/// How often progress is told.
const TELL: Duration = Duration::from_secs(10);
/// Clients that create the objects.
const CREATORS: usize = 8;
/// Most faults that are told of one run.
const TOLD: usize = 20;
/// Objects of a page of a list.
const PAGE: u32 = 1000;

/// How large.
#[derive(clap::Args)]
pub struct Wanted {
    /// Number of nodes
    #[arg(long, default_value_t = 20, value_name = "N")]
    nodes: usize,
    /// Number of pods
    #[arg(long, default_value_t = 100, value_name = "N")]
    pods: usize,
    /// Leaves out the runs with Kubernetes' own API server
    #[arg(long)]
    one_server: bool,
}

/// A scheduler with an API server.
type Pair = (Side, Side);

/// What one run showed.
struct Outcome {
    pair: Pair,
    /// From the start of the program until all pods are bound, and the part of it before the first is.
    all: Duration,
    first: Duration,
    rate: f64,
    scheduler_cpu: Duration,
    server_cpu: Duration,
    memory: f64,
    qualities: Qualities,
    faults: Vec<String>,
}

/// Each scheduler with each API server, one after the other.
pub async fn run(wanted: &Wanted, programs: &Programs, dir: &Path) -> Result<Report> {
    let mut pairs = vec![(Side::Ours, Side::Ours)];
    if programs.theirs.is_some() {
        pairs.push((Side::Theirs, Side::Ours));
        if !wanted.one_server {
            pairs.extend([(Side::Ours, Side::Theirs), (Side::Theirs, Side::Theirs)]);
        }
    }
    let mut outcomes = Vec::new();
    for (scheduler, server) in pairs {
        let dir = dir.join(format!("{scheduler}-with-{server}"));
        let plane = Plane::start(server, programs, &dir).await?;
        let outcome = place(wanted, &plane, (scheduler, server)).await;
        plane.end().await?;
        outcomes.push(outcome?);
    }
    report(wanted, &outcomes)
}

async fn place(wanted: &Wanted, plane: &Plane, pair: Pair) -> Result<Outcome> {
    let name = pair.0.program("scheduler");
    create(&plane.client, wanted).await?;
    let (drain, mut watches) = (Drain::default(), JoinSet::new());
    let pods = plane.client.separate()?.within::<Pod>(NAMESPACE);
    let reflector = Reflector::projected(pods, ListParams::default(), |pod: Pod| {
        !pod.spec.node_name.is_empty()
    });
    let store = reflector.store();
    watches.spawn(reflector.run(drain.watch(), |_| {}));
    store.synced().await;
    let server_cpu = cpu(pid(plane.server())?)?;

    let began = Instant::now();
    let mut scheduler = plane.start_scheduler(pair.0)?;
    let (mut seen, mut told) = (None, Instant::now());
    loop {
        let bound = store.objects().iter().filter(|is_bound| ***is_bound).count();
        if bound > 0 && seen.is_none() {
            seen = Some((began.elapsed(), bound));
        }
        if bound == wanted.pods {
            break;
        }
        if told.elapsed() > TELL {
            eprintln!("  {bound} of {} pods are bound by {name}", wanted.pods);
            told = Instant::now();
        }
        let ended = scheduler.try_wait()?;
        ensure!(ended.is_none(), "{} has ended: {}", name, plane.end_of_log(&name));
        if began.elapsed() > PATIENCE {
            bail!("{name} has bound {bound} of {} pods; {}", wanted.pods, plane.end_of_log(&name));
        }
        tokio::time::sleep(LOOK).await;
    }
    let all = began.elapsed();
    let (first, before) = seen.context("no pod was bound")?;
    let rate = (wanted.pods - before) as f64 / all.saturating_sub(first).max(LOOK).as_secs_f64();
    let pid_of_scheduler = pid(&scheduler)?;
    let (scheduler_cpu, memory) = (cpu(pid_of_scheduler)?, memory_peak(pid_of_scheduler)?);
    let server_cpu = cpu(pid(plane.server())?)?.saturating_sub(server_cpu);
    scheduler.kill().await?;

    let (nodes, pods) = (list::<Node>(plane, None).await?, list(plane, Some(NAMESPACE)).await?);
    ensure!(pods.len() == wanted.pods, "{} pods of {} are left", pods.len(), wanted.pods);
    let faults = judge::judge(&nodes, &pods);
    let qualities = Qualities::new(&nodes, &pods);
    Ok(Outcome { pair, all, first, rate, scheduler_cpu, server_cpu, memory, qualities, faults })
}

fn pid(child: &Child) -> Result<i32> {
    let pid = child.id().context("a program has ended")?;
    Ok(i32::try_from(pid)?)
}

async fn list<T: proto_api::Resource>(plane: &Plane, namespace: Option<&str>) -> Result<Vec<T>> {
    let api = match namespace {
        Some(namespace) => plane.client.within::<T>(namespace),
        None => plane.client.all::<T>(),
    };
    let (mut items, mut params) =
        (Vec::new(), ListParams { limit: Some(PAGE), ..Default::default() });
    loop {
        let page = api.list(&params).await?;
        items.extend(page.items);
        let next = page.metadata.continue_;
        if next.is_empty() {
            return Ok(items);
        }
        params.continue_ = Some(next);
    }
}

/// Creates the nodes and, when all of them are there, the pods.
async fn create(client: &Client, wanted: &Wanted) -> Result<()> {
    let names = client.names();
    let write = WriteParams::default();
    for (plural, mut object) in objects::surroundings() {
        let group = match plural {
            "priorityclasses" => names.group("scheduling"),
            "clusterroles" | "clusterrolebindings" => names.group("rbac.authorization"),
            _ => String::new(),
        };
        let namespace = (plural == "serviceaccounts").then(|| NAMESPACE.to_owned());
        let collection =
            Collection { group, version: "v1".into(), plural: plural.into(), namespace };
        if !collection.group.is_empty() {
            object["apiVersion"] = format!("{}/v1", collection.group).into();
        }
        let made = Dynamic::new(client.clone(), collection).create(&object, &write).await;
        made.with_context(|| format!("creating {plural}"))?;
    }
    let (nodes, pods) = (wanted.nodes, wanted.pods);
    each(client, nodes, move |client, nth| async move {
        let api = Dynamic::new(client, Collection::for_type::<Node>(names, None));
        let (node, taints) = objects::node(names, nth, nodes);
        let write = WriteParams::default();
        api.create(&node, &write).await?;
        // The server says that new nodes are not ready until somebody looks after them, and nobody does here.
        Ok(api.patch(&objects::node_name(nth), &Patch::Merge(taints), &write).await?)
    })
    .await?;
    each(client, pods, move |client, nth| async move {
        let api = Dynamic::new(client, Collection::for_type::<Pod>(names, Some(NAMESPACE)));
        Ok(api.create(&objects::pod(names, nth, nodes), &WriteParams::default()).await?)
    })
    .await
}

/// Makes `count` objects by several clients, of which each works in order.
async fn each<F, W>(client: &Client, count: usize, make: F) -> Result<()>
where
    F: Fn(Client, usize) -> W + Copy + Send + 'static,
    W: Future<Output = Result<Value>> + Send,
{
    let mut creators = JoinSet::new();
    for first in 0..CREATORS {
        let client = client.separate()?;
        creators.spawn(async move {
            for nth in (first..count).step_by(CREATORS) {
                make(client.clone(), nth).await?;
            }
            anyhow::Ok(())
        });
    }
    while let Some(done) = creators.join_next().await {
        done??;
    }
    Ok(())
}

fn report(wanted: &Wanted, outcomes: &[Outcome]) -> Result<Report> {
    let mut text = format!(
        "| {} pods on {} nodes | all bound | first bound | pods/s | CPU of the scheduler | CPU of the API server | its memory, at most | invalid \
         | CPU requested of nodes | preferred node | first by priority |\n|---|---|---|---|---|---|---|---|---|---|---|\n",
        wanted.pods, wanted.nodes
    );
    let mut faults = 0;
    for run in outcomes {
        let ((scheduler, server), qualities) = (run.pair, &run.qualities);
        let (least, most) = qualities.cpu_range;
        writeln!(
            text,
            "| {scheduler}-scheduler with {server}-apiserver | {:.1} s | {:.1} s | {:.0} | {:.1} s | {:.1} s | {:.0} MB | {} | {least:.0} to {most:.0} % | {:.0} % | {:.0} % |",
            run.all.as_secs_f64(),
            run.first.as_secs_f64(),
            run.rate,
            run.scheduler_cpu.as_secs_f64(),
            run.server_cpu.as_secs_f64(),
            run.memory,
            run.faults.len(),
            qualities.preferred,
            qualities.first,
        )?;
        for fault in run.faults.iter().take(TOLD) {
            eprintln!("{scheduler}-scheduler with {server}-apiserver: {fault}");
        }
        if scheduler == Side::Ours {
            faults += run.faults.len();
        }
    }
    let rate = |pair: Pair| outcomes.iter().find(|run| run.pair == pair).map(|run| run.rate);
    let rates = rate((Side::Ours, Side::Ours)).zip(rate((Side::Theirs, Side::Ours)));
    if let Some((ours, theirs)) = rates {
        let ratio = ours / theirs;
        writeln!(
            text,
            "\nWith orch-apiserver, orch-scheduler binds {ratio:.2} times as many pods a second as kube-scheduler."
        )?;
    }
    Ok(Report { text, faults })
}
