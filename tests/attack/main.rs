//! Attacks a running cluster within limits, and judges the cluster's behaviour (`hack/attack`).
//!
//! [`generate`] makes requests (pure, by seed); [`requests`], [`connections`], [`stalled_http2_clients`], [`http2_streams`], [`tokens`] and [`pods`] send them;
//! [`cluster_checks`] watches the programs, a canary and a file whose content no response may have; [`node_checks`] log, exec and metrics.

mod cluster_checks;
mod connections;
mod generate;
mod http2_frames;
mod http2_streams;
mod manifests;
mod node_checks;
mod pods;
mod requests;
mod stalled_http2_clients;
mod tokens;

use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, Result};
use clap::Parser;
use cluster::directory::ClusterDirectory;
use cluster::progress::Progress;
use cluster::spec::Spec;
use cluster::{demo, down, up};
use proto_client::Client;
use tokio::time::Instant;

use crate::cluster_checks::Judge;

/// Attacks a cluster that is made for it.
#[derive(Debug, Parser)]
struct Flags {
    /// How long, in seconds.
    #[arg(long, default_value_t = 60, value_parser = clap::value_parser!(u64).range(5..=86_400))]
    seconds: u64,
    /// What is sent follows from this number.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Names on the wire: kubernetes or orch.
    #[arg(long, default_value = "kubernetes")]
    naming: String,
    /// Where the cluster lies; removed at the end.
    #[arg(long, default_value = "/var/tmp/orch-attack")]
    dir: PathBuf,
}

/// What every attacker has.
#[derive(Clone)]
pub struct Target {
    /// The cluster.
    pub spec: Spec,
    /// A client with the administrator's rights: no authorizer is in the way of what is tested.
    pub client: Client,
    /// When to stop.
    pub until: Instant,
    /// Where attacks are counted and findings collected.
    pub judge: Arc<Judge>,
}

/// The namespace of all that attackers make; the canary lives elsewhere.
pub const NAMESPACE: &str = "attack";

fn main() -> ExitCode {
    let flags = Flags::parse();
    let runtime =
        tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build();
    let ended = runtime.context("a runtime").and_then(|runtime| runtime.block_on(run(&flags)));
    match ended {
        Ok(0) => ExitCode::SUCCESS,
        Ok(_) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("attack: {error:#}");
            ExitCode::FAILURE
        }
    }
}

/// Makes the cluster, attacks it, takes it down; the number of findings.
async fn run(flags: &Flags) -> Result<usize> {
    down::down(&flags.dir, &Progress::new()).await?;
    let outcome = attack(flags).await;
    let found = outcome.as_ref().map_or(1, |found| *found);
    if found > 0 {
        cluster_checks::print_logs(&flags.dir);
    }
    down::down(&flags.dir, &Progress::new()).await?;
    outcome
}

async fn attack(flags: &Flags) -> Result<usize> {
    let bin_dir = std::env::var_os("ORCH_BIN_DIR").map(PathBuf::from);
    let up_flags = up::Flags {
        place: ClusterDirectory { dir: flags.dir.clone() },
        nodes: Some(1),
        naming: Some(flags.naming.clone()),
        bin_dir,
        ..up::Flags::default()
    };
    let spec = up::up(&up_flags, &Progress::new()).await?;
    let client = demo::client(&spec, up::names(&spec))?.with_deadline(Duration::from_secs(20));
    let judge = Arc::new(Judge::start(&spec)?);
    let until = Instant::now() + Duration::from_secs(flags.seconds);
    let target = Target { spec, client, until, judge: judge.clone() };
    manifests::prepare(&target).await?;

    println!("attack: seed {}, {} s", flags.seed, flags.seconds);
    let judging = [
        tokio::spawn(cluster_checks::watch(target.clone())),
        tokio::spawn(node_checks::watch(target.clone())),
    ];
    let attackers = [
        tokio::spawn(requests::every_number(target.clone())),
        tokio::spawn(requests::random(target.clone(), flags.seed)),
        tokio::spawn(requests::random(target.clone(), flags.seed.wrapping_add(1 << 32))),
        tokio::spawn(connections::silent(target.clone())),
        tokio::spawn(connections::silent_from_pod(target.clone())),
        tokio::spawn(connections::junk(target.clone(), flags.seed)),
        tokio::spawn(stalled_http2_clients::hold(target.clone())),
        tokio::spawn(stalled_http2_clients::hold_known(target.clone())),
        tokio::spawn(http2_streams::without_bodies(target.clone())),
        tokio::spawn(http2_streams::long_selectors(target.clone())),
        tokio::spawn(pods::hostile(target.clone())),
        tokio::spawn(tokens::forged(target.clone(), flags.seed)),
    ];
    for attacker in attackers {
        attacker.await.context("an attacker failed")?;
    }
    for judge in judging {
        judge.await.context("the judge failed")?;
    }
    cluster_checks::at_rest(&target).await;
    Ok(judge.report(flags.seed, flags.seconds))
}
