//! An adaptive limit on concurrent runtime calls that create pods.
//!
//! Calls made one at a time leave the machine idle; calls made all at once contend, and every pod is late instead of the last
//! one. The right limit lets a few calls wait inside the runtime, so that it always has work. Their number is estimated from
//! outside: of `n` calls in flight that take `took`, where a single call takes `base`, about `n * (1 - base / took)` wait, as in
//! the window estimate of TCP Vegas.

use std::time::Duration;

/// The kind of a call; each kind has its own duration.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum CallKind {
    /// Starts a container; served first, because it completes a pod.
    Start,
    /// Creates a container.
    Create,
    /// Creates a sandbox.
    Sandbox,
}

impl CallKind {
    /// All kinds, most urgent first.
    pub const ALL: [CallKind; 3] = [CallKind::Start, CallKind::Create, CallKind::Sandbox];
}

/// Lower bound of the limit: a call that hangs must not block all others.
const LEAST: usize = 2;
/// Upper bound of the limit.
const MOST: usize = 64;
/// The limit grows while fewer calls wait inside the runtime. Measured with one runtime on two CPUs (`tests/results/bursts.md`):
/// between 8 and 16 concurrent calls the rate is constant while the CPUs are the bottleneck and rises when a disk is.
const TOO_FEW_WAIT: f64 = 8.0;
/// The limit shrinks while more calls wait inside the runtime.
const TOO_MANY_WAIT: f64 = 14.0;
/// Initial limit per CPU.
const FIRST: usize = 6;
/// Weight of a new measurement of a single call in `base`. Only calls made alone can raise `base`: a slower machine is noticed in
/// quiet times, and a burst of any length cannot distort it.
const LEARNED: f64 = 1.0 / 8.0;

/// The limit, and the measurements it is derived from.
#[derive(Clone, Debug, PartialEq)]
pub struct AdaptiveLimit {
    now: usize,
    /// Seconds that a single call takes, by kind.
    base: [Option<f64>; CallKind::ALL.len()],
    /// Calls since the last adaptation, and the sum of the numbers of waiting calls.
    calls: usize,
    waited: f64,
    /// Whether a call had to wait for the limit since then.
    wanted: bool,
}

impl AdaptiveLimit {
    /// Initial limit for a machine with this number of CPUs.
    pub fn new(processors: usize) -> Self {
        let now = processors.saturating_mul(FIRST).clamp(LEAST, MOST);
        Self { now, base: [None; CallKind::ALL.len()], calls: 0, waited: 0.0, wanted: false }
    }

    /// The limit on calls in flight.
    pub fn current(&self) -> usize {
        self.now
    }

    /// Records that a call had to wait; without demand the limit does not grow.
    pub fn record_demand(&mut self) {
        self.wanted = true;
    }

    /// Records a successful call that took `took` while `in_flight` calls, including itself, were in flight.
    pub fn record_call(&mut self, turn: CallKind, took: Duration, in_flight: usize) {
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

    /// Model: `in_flight` calls share the CPUs fairly, and each spends half of its time waiting for a disk.
    fn took(processors: usize, in_flight: usize) -> Duration {
        let own = Duration::from_millis(10);
        let share = (in_flight as f64 / 2.0 / processors as f64).max(1.0);
        own + own.mul_f64(share)
    }

    fn settled(processors: usize, start: usize) -> usize {
        let mut width = AdaptiveLimit { now: start, ..AdaptiveLimit::new(processors) };
        width.record_call(CallKind::Create, took(processors, 1), 1);
        for _ in 0..5000 {
            width.record_demand();
            width.record_call(CallKind::Create, took(processors, width.now), width.now);
        }
        width.now
    }

    #[test]
    fn the_limit_converges_to_full_use_of_the_processors_from_any_start() {
        for processors in [1, 2, 4, 8, 16] {
            for start in [LEAST, 8, MOST] {
                let width = settled(processors, start);
                // Calls per second, relative to the maximum.
                let rate = |n: usize| n as f64 / took(processors, n).as_secs_f64();
                let best = (LEAST..=MOST).map(rate).fold(0.0, f64::max);
                assert!(rate(width) > 0.6 * best, "{processors}: {width} of {start}");
                assert!(width <= 3 * processors + 16, "{processors}: {width} of {start}");
            }
        }
    }

    #[test]
    fn the_limit_grows_only_while_calls_are_queued() {
        let mut width = AdaptiveLimit::new(2);
        for _ in 0..1000 {
            width.record_call(CallKind::Sandbox, took(2, 1), 1);
        }
        assert_eq!(width.current(), 2 * FIRST);
        for _ in 0..5000 {
            width.record_demand();
            width.record_call(CallKind::Sandbox, took(2, 1), 1);
        }
        assert_eq!(width.current(), MOST);
    }

    #[test]
    fn kinds_are_measured_for_themselves() {
        let mut width = AdaptiveLimit::new(2);
        for _ in 0..100 {
            width.record_demand();
            width.record_call(CallKind::Start, Duration::from_millis(1), 8);
            width.record_call(CallKind::Sandbox, Duration::from_millis(100), 8);
        }
        assert!(width.current() > 2 * FIRST, "a slow kind is not a queue: {}", width.current());
    }
}
