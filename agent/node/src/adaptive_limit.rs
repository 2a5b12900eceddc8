//! How many calls that make pods the runtime is given at a time.
//!
//! Given one at a time a machine idles; given all at once they are in each other's way, and every pod is late instead of the last one.
//! The right number is that at which a few calls wait inside the runtime: then it always has something to do. How many wait is seen
//! from outside: of `n` calls in flight that take `took`, where one alone takes `base`, about `n * (1 - base / took)` wait. (That is
//! how TCP Vegas finds its window.)

use std::time::Duration;

/// What a call makes; each kind takes its own time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Turn {
    /// Starts a container. What is nearly done is done first.
    Start,
    /// Makes a container.
    Create,
    /// Makes a sandbox.
    Sandbox,
}

impl Turn {
    /// All kinds, the most urgent first.
    pub const ALL: [Turn; 3] = [Turn::Start, Turn::Create, Turn::Sandbox];
}

/// Fewest calls at a time: one that hangs must not hold up all others.
const LEAST: usize = 2;
/// Most calls at a time.
const MOST: usize = 64;
/// With fewer calls waiting inside the runtime the number grows. Tried with one runtime and two processors
/// (`tests/results/bursts.md`): from eight calls at a time to sixteen the rate is the same while the processors are all there is to wait
/// for, and rises when a disk is.
const TOO_FEW_WAIT: f64 = 8.0;
/// With more it shrinks.
const TOO_MANY_WAIT: f64 = 14.0;
/// Calls at a time for each processor, before anything is known.
const FIRST: usize = 6;
/// The share that one more lone call has in what a lone call is known to take. Only these can raise it: a machine that has become
/// slower is noticed in quiet times, and a burst of any length teaches nothing wrong.
const LEARNED: f64 = 1.0 / 8.0;

/// The number of calls at a time, and what it was learned from.
#[derive(Clone, Debug, PartialEq)]
pub struct Width {
    now: usize,
    /// Seconds that a call takes alone, by kind.
    base: [Option<f64>; Turn::ALL.len()],
    /// Calls since the number was last looked at, and how many waited, summed up.
    calls: usize,
    waited: f64,
    /// Whether somebody had to wait for a turn meanwhile.
    wanted: bool,
}

impl Width {
    /// For a machine with so many processors, of whose runtime nothing is known.
    pub fn new(processors: usize) -> Self {
        let now = processors.saturating_mul(FIRST).clamp(LEAST, MOST);
        Self { now, base: [None; Turn::ALL.len()], calls: 0, waited: 0.0, wanted: false }
    }

    /// How many calls may be in flight.
    pub fn now(&self) -> usize {
        self.now
    }

    /// Somebody has to wait for a turn: only then more turns would change anything.
    pub fn wanted(&mut self) {
        self.wanted = true;
    }

    /// A call has worked, and took so long while `in_flight` were in flight, itself included.
    pub fn ended(&mut self, turn: Turn, took: Duration, in_flight: usize) {
        let took = took.as_secs_f64().max(1e-6);
        let Some(base) = self.base.get_mut(turn as usize) else { return };
        let known = base.unwrap_or(took);
        let learned = match in_flight {
            0 | 1 => known + (took - known) * LEARNED,
            _ => known.min(took),
        };
        *base = Some(learned);
        self.calls = self.calls.saturating_add(1);
        self.waited += in_flight as f64 * (1.0 - learned / took).max(0.0);
        if self.calls >= self.now {
            self.adapt();
        }
    }

    fn adapt(&mut self) {
        let waited = self.waited / self.calls.max(1) as f64;
        if waited > TOO_MANY_WAIT {
            self.now = self.now.saturating_sub(1).max(LEAST);
        } else if waited < TOO_FEW_WAIT && self.wanted {
            self.now = self.now.saturating_add(1).min(MOST);
        }
        (self.calls, self.waited, self.wanted) = (0, 0.0, false);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Calls on a machine whose processors share `in_flight` calls fairly, each of which also waits for a disk half of its time.
    fn took(processors: usize, in_flight: usize) -> Duration {
        let own = Duration::from_millis(10);
        let share = (in_flight as f64 / 2.0 / processors as f64).max(1.0);
        own + own.mul_f64(share)
    }

    fn settled(processors: usize, start: usize) -> usize {
        let mut width = Width { now: start, ..Width::new(processors) };
        width.ended(Turn::Create, took(processors, 1), 1);
        for _ in 0..5000 {
            width.wanted();
            width.ended(Turn::Create, took(processors, width.now), width.now);
        }
        width.now
    }

    #[test]
    fn it_settles_where_every_processor_has_work_whatever_it_began_with() {
        for processors in [1, 2, 4, 8, 16] {
            for start in [LEAST, 8, MOST] {
                let width = settled(processors, start);
                // Calls a second, of the most that are possible.
                let rate = |n: usize| n as f64 / took(processors, n).as_secs_f64();
                let best = (LEAST..=MOST).map(rate).fold(0.0, f64::max);
                assert!(rate(width) > 0.6 * best, "{processors}: {width} of {start}");
                assert!(width <= 3 * processors + 16, "{processors}: {width} of {start}");
            }
        }
    }

    #[test]
    fn it_grows_only_when_somebody_waits_for_a_turn() {
        let mut width = Width::new(2);
        for _ in 0..1000 {
            width.ended(Turn::Sandbox, took(2, 1), 1);
        }
        assert_eq!(width.now(), 2 * FIRST);
        for _ in 0..5000 {
            width.wanted();
            width.ended(Turn::Sandbox, took(2, 1), 1);
        }
        assert_eq!(width.now(), MOST);
    }

    #[test]
    fn kinds_are_measured_for_themselves() {
        let mut width = Width::new(2);
        for _ in 0..100 {
            width.wanted();
            width.ended(Turn::Start, Duration::from_millis(1), 8);
            width.ended(Turn::Sandbox, Duration::from_millis(100), 8);
        }
        assert!(width.now() > 2 * FIRST, "a slow kind is not a queue: {}", width.now());
    }
}
