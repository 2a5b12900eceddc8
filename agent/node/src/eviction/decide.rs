//! The decision from the readings: the conditions of the node, and whether resources have to be reclaimed now.

#![cfg_attr(not(test), warn(clippy::arithmetic_side_effects))]

use std::collections::BTreeMap;
use std::time::Duration;

use super::thresholds::Threshold;
use super::{Condition, Readings, Signal};
use crate::pressure::Pressure;

/// State kept between decisions.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct EvictionState {
    /// Since when each threshold has been reached, by its index, since boot.
    reached: BTreeMap<usize, Duration>,
    /// When each condition was last caused by a threshold.
    caused: BTreeMap<Condition, Duration>,
    /// Time of the reading that caused the last eviction, by signal. A reading that is not newer cannot show what the eviction
    /// freed.
    acted_on: BTreeMap<Signal, Duration>,
}

/// A shortage to act on.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Reclaim {
    pub signal: Signal,
    /// The threshold that was reached.
    pub threshold: Threshold,
    /// Whether pods are evicted without a grace period (hard threshold).
    pub at_once: bool,
}

/// What one evaluation of the eviction thresholds requires.
#[derive(Clone, Debug, PartialEq)]
pub struct EvictionDecision {
    /// Pressure for node conditions and admission.
    pub pressure: Pressure,
    /// The most urgent shortage, if any.
    pub reclaim: Option<Reclaim>,
    /// Time since boot at which the decision changes without new readings.
    pub wake_at: Option<Duration>,
}

impl EvictionState {
    /// Evaluates new readings. A signal that could not be read is neither short nor recovered: its thresholds keep their state.
    pub fn decide(
        &mut self,
        thresholds: &[Threshold],
        readings: &Readings,
        transition: Duration,
        now: Duration,
    ) -> EvictionDecision {
        self.observe(thresholds, readings, now);
        for number in self.reached.keys() {
            if let Some(threshold) = thresholds.get(*number) {
                self.caused.insert(threshold.signal.condition(), now);
            }
        }
        self.caused.retain(|_, last| *last == now || now.saturating_sub(*last) < transition);
        let has = |condition| self.caused.contains_key(&condition);
        let pressure = Pressure {
            memory: has(Condition::Memory),
            disk: has(Condition::Disk),
            pid: has(Condition::Pid),
        };
        let ripens = self.reached.iter().filter_map(|(number, since)| {
            Some(since.saturating_add(thresholds.get(*number)?.grace?)).filter(|at| *at > now)
        });
        let clears = self
            .caused
            .values()
            .filter(|last| **last != now)
            .map(|last| last.saturating_add(transition));
        let wake_at = ripens.chain(clears).min();
        EvictionDecision { pressure, reclaim: self.most_urgent(thresholds, readings, now), wake_at }
    }

    fn observe(&mut self, thresholds: &[Threshold], readings: &Readings, now: Duration) {
        for (number, threshold) in thresholds.iter().enumerate() {
            let Some(reading) = readings.get(&threshold.signal) else { continue };
            let before = self.reached.contains_key(&number);
            if threshold.is_reached(reading, before) {
                self.reached.entry(number).or_insert(now);
            } else {
                self.reached.remove(&number);
            }
        }
    }

    fn most_urgent(
        &self,
        thresholds: &[Threshold],
        readings: &Readings,
        now: Duration,
    ) -> Option<Reclaim> {
        let due = self.reached.iter().filter_map(|(number, since)| {
            let threshold = *thresholds.get(*number)?;
            let ripe = threshold.grace.is_none_or(|grace| now.saturating_sub(*since) >= grace);
            let reading = readings.get(&threshold.signal)?;
            let acted = self.acted_on.get(&threshold.signal);
            let fresh = acted.is_none_or(|acted| reading.at > *acted);
            (ripe && fresh).then_some(threshold)
        });
        let threshold = due.min_by_key(|threshold| {
            (threshold.signal.condition(), threshold.grace.is_some(), threshold.signal)
        })?;
        let at_once = threshold.grace.is_none();
        Some(Reclaim { signal: threshold.signal, threshold, at_once })
    }

    /// Records that a pod was evicted because of these readings.
    pub fn record_eviction(&mut self, signal: Signal, readings: &Readings) {
        if let Some(reading) = readings.get(&signal) {
            self.acted_on.insert(signal, reading.at);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::Reading;
    use super::super::thresholds::Amount;
    use super::*;

    const TRANSITION: Duration = Duration::from_secs(300);

    fn s(secs: u64) -> Duration {
        Duration::from_secs(secs)
    }

    fn threshold(signal: Signal, below: u64, grace: Option<u64>) -> Threshold {
        let grace = grace.map(s);
        Threshold { signal, below: Amount::Absolute(below), grace, min_reclaim: None }
    }

    fn readings(at: u64, all: &[(Signal, u64)]) -> Readings {
        let one = |(signal, available): &(Signal, u64)| {
            (*signal, Reading { available: *available, capacity: 1000, at: s(at) })
        };
        all.iter().map(one).collect()
    }

    use Signal::{ImagefsAvailable, MemoryAvailable, NodefsAvailable, PidAvailable};

    #[test]
    fn a_hard_threshold_acts_at_once_and_its_condition_outlasts_it() {
        let all = [threshold(MemoryAvailable, 100, None)];
        let mut state = EvictionState::default();
        let mut at = |secs, available| {
            state.decide(
                &all,
                &readings(secs, &[(MemoryAvailable, available)]),
                TRANSITION,
                s(secs),
            )
        };
        let calm = at(0, 100);
        assert_eq!((calm.pressure, calm.reclaim, calm.wake_at), (Pressure::default(), None, None));
        let short = at(10, 99);
        assert!(short.pressure.memory && short.reclaim.expect("reclaim").at_once);
        let over = at(20, 500);
        assert!(over.pressure.memory, "the condition stays");
        assert_eq!((over.reclaim, over.wake_at), (None, Some(s(310))));
        assert!(at(309, 500).pressure.memory);
        assert!(!at(310, 500).pressure.memory);
    }

    #[test]
    fn a_soft_threshold_must_last() {
        let all = [threshold(NodefsAvailable, 100, Some(60))];
        let mut state = EvictionState::default();
        let mut at = |secs, available| {
            state.decide(
                &all,
                &readings(secs, &[(NodefsAvailable, available)]),
                TRANSITION,
                s(secs),
            )
        };
        let first = at(0, 50);
        assert!(first.pressure.disk, "the condition does not wait");
        assert_eq!((first.reclaim, first.wake_at), (None, Some(s(60))));
        assert_eq!(at(30, 200).reclaim, None);
        assert_eq!(at(40, 50).reclaim, None, "it begins anew");
        assert_eq!(at(99, 50).reclaim, None);
        let ripe = at(100, 50).reclaim.expect("reclaim");
        assert!(!ripe.at_once);
    }

    #[test]
    fn memory_comes_first_then_disk_then_pids() {
        let all = [
            threshold(PidAvailable, 100, None),
            threshold(ImagefsAvailable, 100, None),
            threshold(MemoryAvailable, 200, Some(0)),
            threshold(MemoryAvailable, 100, None),
        ];
        let mut state = EvictionState::default();
        let now = readings(5, &[(PidAvailable, 1), (ImagefsAvailable, 1), (MemoryAvailable, 1)]);
        let reclaim = state.decide(&all, &now, TRANSITION, s(5)).reclaim.expect("reclaim");
        assert_eq!((reclaim.signal, reclaim.at_once), (MemoryAvailable, true));
        // The next eviction for the same signal needs a newer reading; other signals do not.
        state.record_eviction(MemoryAvailable, &now);
        let reclaim = state.decide(&all, &now, TRANSITION, s(6)).reclaim.expect("reclaim");
        assert_eq!(reclaim.signal, ImagefsAvailable);
        let newer = readings(7, &[(MemoryAvailable, 1)]);
        let reclaim = state.decide(&all, &newer, TRANSITION, s(7)).reclaim.expect("reclaim");
        assert_eq!(reclaim.signal, MemoryAvailable);
    }

    #[test]
    fn a_signal_that_cannot_be_read_changes_nothing() {
        let all = [threshold(MemoryAvailable, 100, None)];
        let mut state = EvictionState::default();
        state.decide(&all, &readings(0, &[(MemoryAvailable, 1)]), TRANSITION, s(0));
        let blind = state.decide(&all, &Readings::new(), TRANSITION, s(1000));
        assert!(blind.pressure.memory);
        assert_eq!(blind.reclaim, None, "nobody is evicted on no evidence");
    }
}
