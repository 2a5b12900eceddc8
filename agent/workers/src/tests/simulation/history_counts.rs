//! Counts histories, keeps those that failed, and notices one that does not end.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use super::random::Scale;
use super::scenario::{Course, Deaths};
use super::{Ground, history};

/// No history takes longer, on the slowest machine: one that does will not end.
const STUCK: Duration = Duration::from_secs(180);

#[derive(Clone, Default)]
pub struct Tally(Arc<Mutex<Counts>>);

#[derive(Default)]
struct Counts {
    /// With faults: small ones, large ones; walks: with one death, with two.
    histories: [u64; 4],
    failures: u64,
    /// What is under way, and since when.
    now: Option<(String, std::time::Instant)>,
}

impl std::fmt::Display for Counts {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let [small, large, one, two] = self.histories;
        let failures = self.failures;
        write!(
            f,
            "small={small} large={large} one-death={one} two-deaths={two} failures={failures}"
        )
    }
}

impl Tally {
    fn lock(&self) -> MutexGuard<'_, Counts> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Runs a history; the moments that it had.
    pub fn run(&self, ground: &Ground, seed: u64, deaths: Deaths) -> u64 {
        let name = format!("ORCH_SEED={seed}{deaths}");
        self.lock().now = Some((name.clone(), std::time::Instant::now()));
        let kind = match (&deaths, Course::from_seed(seed).scale()) {
            (Deaths::BySeed, Scale::Small) => 0,
            (Deaths::BySeed, Scale::Large) => 1,
            (Deaths::At(moments), _) => {
                if moments.len() < 2 {
                    2
                } else {
                    3
                }
            }
        };
        let outcome = history(ground, seed, deaths);
        let mut counts = self.lock();
        counts.histories[kind] += 1;
        counts.now = None;
        if let Some(failure) = outcome.failure {
            counts.failures += 1;
            println!("{name}: {failure}");
        }
        outcome.moments
    }

    /// Runs all histories of a seed.
    pub fn follow(&self, ground: &Ground, seed: u64) {
        let course = Course::from_seed(seed);
        if let Course::Troubled(_) = course {
            self.run(ground, seed, Deaths::BySeed);
            return;
        }
        let moments = self.run(ground, seed, Deaths::At(Vec::new()));
        for moment in 1..=moments {
            self.run(ground, seed, course.deaths(seed, moment));
        }
    }

    /// Ends the process when a history does not end, and says which.
    pub fn watch(&self) {
        let tally = self.clone();
        std::thread::spawn(move || {
            loop {
                std::thread::sleep(STUCK / 10);
                let counts = tally.lock();
                if let Some((name, began)) = &counts.now
                    && began.elapsed() > STUCK
                {
                    println!("{name}: does not end\nSTUCK {counts}");
                    std::process::exit(3);
                }
            }
        });
    }

    pub fn check(&self) {
        let counts = self.lock();
        println!("SIMULATED {counts}");
        assert_eq!(counts.failures, 0, "histories failed");
    }
}
