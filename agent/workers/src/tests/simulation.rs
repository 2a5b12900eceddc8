//! The whole agent on virtual time, in a world that obeys the real one's rules and misbehaves: calls take their time, fail before or
//! after they worked, hang, or are done after they were given up; events come late, in another order or never; the runtime, the API
//! server, a driver of volumes and the disk go away and come back; clocks are set, the machine boots, and the agent dies in any of its
//! waits. Pods of the API and of manifests come and go meanwhile, with volumes that are real files below a directory in memory.
//!
//! Everything follows from a seed: a failing one is replayed by `ORCH_SEED=<seed> cargo test -p orchlet simulation -- --nocapture`
//! (with `ORCH_DEATHS=<moment>[,<moment>]` for a walk). `ORCH_SEEDS=<n>` runs this many seeds, from `ORCH_FROM` on; `hack/simulate` runs
//! them by the million.
//!
//! What must hold is checked where it could be broken: `world.rs`, `runtime.rs`, `cluster.rs`, `volumes.rs` and `sim/quiescence.rs`; in
//! one history in eight (`extras.rs`) also what takes longer to look at: `readers.rs`, `shares.rs`, `status_writers.rs` and `leaks.rs`.

mod cluster;
mod extras;
mod history_counts;
mod issuer;
mod leaks;
mod random;
mod readers;
mod regressions;
mod runtime;
mod scenario;
pub mod shares;
mod sim;
mod status_writers;
mod volumes;
mod world;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::PathBuf;

use history_counts::Tally;
use random::{Chance, Scale};
use scenario::{Course, Deaths};
use sim::Sim;
use world::lock;

/// Seeds of an ordinary run without walks, and those that are walked.
const SEEDS: u64 = 100;
/// Histories of an ordinary run that are looked at more closely.
const SCRUTINISED: u64 = 24;
const WALKED: [u64; 2] = [scenario::ONE_DEATH, scenario::TWO_DEATHS];

pub(crate) fn number(name: &str) -> Option<u64> {
    std::env::var(name).ok()?.parse().ok()
}

/// What came of a history.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Outcome {
    /// Moments in which the agent could have died.
    moments: u64,
    /// What happened, as a number, and in how many lines.
    trace: (u64, u64),
    failure: Option<String>,
}

/// Where a simulation keeps its files.
struct Ground(tempfile::TempDir);

impl Ground {
    fn new() -> Self {
        Self(crate::test_support::directory())
    }

    /// A fresh directory.
    fn root(&self) -> PathBuf {
        let root = self.0.path().canonicalize().expect("path").join("root");
        let _ = std::fs::remove_dir_all(&root);
        std::fs::create_dir(&root).expect("mkdir");
        root
    }
}

/// One thread, and time that passes when nobody has anything to do.
fn one_thread() -> tokio::runtime::Runtime {
    let mut thread = tokio::runtime::Builder::new_current_thread();
    thread.enable_time().start_paused(true).build().expect("runtime")
}

/// Runs a history. One in which something panics has failed.
fn history(ground: &Ground, seed: u64, deaths: Deaths) -> Outcome {
    let ran = catch_unwind(AssertUnwindSafe(|| run(ground, seed, deaths)));
    volumes::end();
    ran.unwrap_or_else(|panic| {
        let text = panic.downcast_ref::<String>().cloned();
        let text = text.or(panic.downcast_ref::<&str>().map(|text| (*text).to_owned()));
        let failure = Some(format!("panic: {}", text.unwrap_or_default()));
        Outcome { failure, ..Outcome::default() }
    })
}

fn run(ground: &Ground, seed: u64, deaths: Deaths) -> Outcome {
    let runtime = one_thread();
    let root = ground.root();
    let scale = Course::from_seed(seed).scale();
    let (faults, deadly) = match deaths {
        Deaths::At(moments) => (0, moments.into_iter().collect()),
        Deaths::BySeed => {
            let mut chance = Chance(seed ^ 0x5eed);
            let deadly = (0..chance.below(4)).map(|_| 1 + chance.below(400)).collect();
            (1 + chance.below(3), deadly)
        }
    };
    let log = leaks::Log::default();
    let _reading =
        extras::is_scrutinised(seed).then(|| tracing::subscriber::set_default(log.clone()));
    runtime.block_on(async {
        agent_clock::reset();
        let mut sim = Sim::new(seed, faults, deadly, &root);
        sim.scale = scale;
        sim.run().await;
        let mut world = lock(&sim.world);
        if let Some(line) = log.leak() {
            world.broken(format!("the log tells a secret: {line}"));
        }
        let wanted = number("ORCH_PRINT").is_some();
        if wanted || world.failure.is_some() && number("ORCH_SEED").is_some() {
            world.print();
            println!("on disk: {:#?}\nin the runtime: {:#?}", sim.records(), sim.runtime.all());
        }
        let trace = (world.trace.hash, world.trace.len);
        Outcome { moments: world.moments, trace, failure: world.failure.clone() }
    })
}

#[test]
fn the_rules_hold_in_every_simulated_history() {
    let (ground, tally) = (Ground::new(), Tally::default());
    if let Some(seed) = number("ORCH_SEED") {
        tally.run(&ground, seed, Deaths::told());
        return tally.check();
    }
    let from = number("ORCH_FROM").unwrap_or(1);
    match number("ORCH_SEEDS") {
        Some(count) => {
            tally.watch();
            (from..from + count).for_each(|seed| tally.follow(&ground, seed));
        }
        None => {
            let unwalked = |seed: &u64| matches!(Course::from_seed(*seed), Course::Troubled(_));
            let seeds = (from..).filter(unwalked).take(usize::try_from(SEEDS).expect("small"));
            seeds.chain(WALKED).for_each(|seed| tally.follow(&ground, seed));
        }
    }
    tally.check();
}

/// What is looked at in one history in eight only, some of it over hours.
#[test]
fn the_rules_hold_under_scrutiny() {
    if number("ORCH_SEED").is_some() || number("ORCH_SEEDS").is_some() {
        return;
    }
    let (ground, tally) = (Ground::new(), Tally::default());
    let wanted = number("ORCH_SCRUTINISED").unwrap_or(SCRUTINISED);
    // Those with the most in them: many pods, or hours.
    let is_rich = |seed: &u64| match Course::from_seed(*seed) {
        Course::Troubled(scale) => scale == Scale::Large || extras::is_long(*seed),
        Course::OneDeath(_) | Course::TwoDeaths => false,
    };
    let seeds = (number("ORCH_FROM").unwrap_or(1)..).filter(|seed| extras::is_scrutinised(*seed));
    let seeds = seeds.filter(is_rich);
    for seed in seeds.take(usize::try_from(wanted).expect("small")) {
        tally.run(&ground, seed, Deaths::BySeed);
    }
    tally.check();
}

#[test]
fn a_seed_is_one_history() {
    let ground = Ground::new();
    for seed in 0..10 {
        let (first, again) =
            (history(&ground, seed, Deaths::BySeed), history(&ground, seed, Deaths::BySeed));
        assert_eq!(first, again, "seed {seed}");
        assert!(first.trace.1 > 3, "something happens");
    }
    let different = history(&ground, 6, Deaths::BySeed);
    assert_ne!(different.trace, history(&ground, 7, Deaths::BySeed).trace);
}
