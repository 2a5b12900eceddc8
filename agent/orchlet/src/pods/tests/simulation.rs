//! The whole agent on virtual time, in a world that obeys the real one's rules and misbehaves: calls take their time, fail before or
//! after they worked, hang, or are done after they were given up; events come late, in another order or never; the runtime, the API
//! server, a driver of volumes and the disk go away and come back; clocks are set, the machine boots, and the agent dies in any of its
//! waits. Pods of the API and of manifests come and go meanwhile, with volumes that are real files below a directory in memory.
//!
//! Everything follows from a seed: a failing one is replayed by `ORCH_SEED=<seed> cargo test -p orchlet simulation -- --nocapture`
//! (with `ORCH_CRASH=<moment>` for a walk). `ORCH_SEEDS=<n>` runs more of them, from `ORCH_FROM` on; `ORCH_PROGRESS=<file>` is told
//! every now and then how many have been run and which have failed.
//!
//! What must hold is checked where it could be broken: `world.rs`, `runtime.rs`, `cluster.rs`, `volumes.rs` and the end of `sim.rs`; in
//! one history in eight (`extras.rs`) also what takes longer to look at: `readers.rs`, `shares.rs`, `others.rs` and `leaks.rs`.

mod chance;
mod cluster;
mod extras;
mod issuer;
mod leaks;
mod others;
mod readers;
mod runtime;
pub(super) mod shares;
mod sim;
mod volumes;
mod world;

use std::collections::BTreeSet;
use std::io::Write as _;
use std::path::{Path, PathBuf};

use sim::Sim;
use world::lock;

/// Schedules of an ordinary run, and those among them that are walked: the agent dies in each of their moments in turn.
const SEEDS: u64 = 60;
const WALKS: u64 = 1;
/// Histories of an ordinary run that are looked at more closely.
const SCRUTINISED: u64 = 24;
/// One seed in so many is walked in a longer run.
const WALK_EVERY: u64 = 500;
/// Failures after which a longer run is given up.
const FAILURES_MAX: usize = 40;

pub(crate) fn number(name: &str) -> Option<u64> {
    std::env::var(name).ok()?.parse().ok()
}

/// What came of a history.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Outcome {
    /// Moments in which the agent could have died.
    moments: u64,
    /// What happened, as a number, and in how many lines.
    trace: (u64, u64),
    failure: Option<String>,
}

/// Who dies when.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Deaths {
    /// Faults of all kinds, and deaths wherever the seed wants them.
    BySeed,
    /// No other trouble: the agent dies once, in this moment; 0 is never.
    At(u64),
}

/// A directory in memory, where there is one.
struct Ground(tempfile::TempDir);

impl Ground {
    fn new() -> Self {
        let memory = Path::new("/dev/shm");
        let dir = if memory.is_dir() { tempfile::tempdir_in(memory) } else { tempfile::tempdir() };
        Self(dir.expect("tempdir"))
    }

    /// A fresh directory.
    fn root(&self) -> PathBuf {
        let root = self.0.path().canonicalize().expect("path").join("root");
        let _ = std::fs::remove_dir_all(&root);
        std::fs::create_dir(&root).expect("mkdir");
        root
    }
}

/// Runs a history.
fn history(ground: &Ground, seed: u64, deaths: Deaths) -> Outcome {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .start_paused(true)
        .build()
        .expect("runtime");
    let root = ground.root();
    let (faults, deadly) = match deaths {
        Deaths::At(moment) => (0, BTreeSet::from([moment])),
        Deaths::BySeed => {
            let mut chance = chance::Chance(seed ^ 0x5eed);
            let deadly = (0..chance.below(4)).map(|_| 1 + chance.below(400)).collect();
            (1 + chance.below(3), deadly)
        }
    };
    let log = leaks::Log::default();
    let reading =
        extras::is_scrutinised(seed).then(|| tracing::subscriber::set_default(log.clone()));
    let outcome = runtime.block_on(async {
        crate::clock::reset();
        let mut sim = Sim::new(seed, faults, deadly, &root);
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
    });
    drop(reading);
    volumes::end();
    outcome
}

/// Counts histories, and keeps those that failed.
#[derive(Default)]
struct Tally {
    histories: u64,
    failures: Vec<String>,
}

impl Tally {
    fn run(&mut self, ground: &Ground, seed: u64, deaths: Deaths) -> u64 {
        let outcome = history(ground, seed, deaths);
        self.histories += 1;
        if let Some(failure) = outcome.failure {
            let how = match deaths {
                Deaths::BySeed => format!("ORCH_SEED={seed}"),
                Deaths::At(moment) => format!("ORCH_SEED={seed} ORCH_CRASH={moment}"),
            };
            println!("{how}: {failure}");
            self.failures.push(format!("{how}: {failure}"));
        }
        outcome.moments
    }

    fn walk(&mut self, ground: &Ground, seed: u64) {
        let moments = self.run(ground, seed, Deaths::At(0));
        for moment in 1..=moments {
            self.run(ground, seed, Deaths::At(moment));
            if self.failures.len() >= FAILURES_MAX {
                return;
            }
        }
    }

    fn check(&self) {
        assert!(self.failures.is_empty(), "{} of {}", self.failures.len(), self.histories);
    }
}

/// Tells whoever waits for a long run where it is.
fn tell(tally: &Tally, next: u64, began: std::time::Instant) {
    let Ok(path) = std::env::var("ORCH_PROGRESS") else { return };
    let (done, failures) = (tally.histories, tally.failures.len());
    let secs = began.elapsed().as_secs();
    let mut line = format!("{done} histories in {secs} s, {failures} failures, next seed {next}\n");
    tally.failures.iter().for_each(|failure| line += &format!("  {failure}\n"));
    let file = std::fs::File::options().create(true).append(true).open(path);
    file.and_then(|mut file| file.write_all(line.as_bytes())).expect("progress");
}

#[test]
fn the_rules_hold_in_every_simulated_history() {
    let (ground, mut tally) = (Ground::new(), Tally::default());
    if let Some(seed) = number("ORCH_SEED") {
        let deaths = number("ORCH_CRASH").map_or(Deaths::BySeed, Deaths::At);
        tally.run(&ground, seed, deaths);
        return tally.check();
    }
    let (wanted, began) = (number("ORCH_SEEDS"), std::time::Instant::now());
    let mut seed = number("ORCH_FROM").unwrap_or(0);
    let mut told = 0;
    while tally.histories < wanted.unwrap_or(SEEDS) && tally.failures.len() < FAILURES_MAX {
        if wanted.is_some() && seed.is_multiple_of(WALK_EVERY) {
            tally.walk(&ground, seed);
        }
        tally.run(&ground, seed, Deaths::BySeed);
        seed += 1;
        if tally.histories >= told + 10_000 {
            told = tally.histories;
            tell(&tally, seed, began);
        }
    }
    tell(&tally, seed, began);
    tally.check();
}

/// Without other trouble, the agent dies once, in each moment of the history in turn.
#[test]
fn the_rules_hold_wherever_the_agent_dies() {
    if number("ORCH_SEED").is_some() || number("ORCH_SEEDS").is_some() {
        return;
    }
    let (ground, mut tally) = (Ground::new(), Tally::default());
    (0..WALKS).for_each(|seed| tally.walk(&ground, 1000 + seed));
    println!("{} histories", tally.histories);
    tally.check();
}

/// What is looked at in one history in eight only, some of it over hours.
#[test]
fn the_rules_hold_under_scrutiny() {
    if number("ORCH_SEED").is_some() || number("ORCH_SEEDS").is_some() {
        return;
    }
    let (ground, mut tally) = (Ground::new(), Tally::default());
    let wanted = number("ORCH_SCRUTINISED").unwrap_or(SCRUTINISED);
    let first = number("ORCH_FROM").unwrap_or(0);
    for seed in (first..first + 8 * wanted).filter(|seed| extras::is_scrutinised(*seed)) {
        tally.run(&ground, seed, Deaths::BySeed);
    }
    println!("{} histories", tally.histories);
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
