//! Probes: what is asked, when, and what the answers of one probe amount to. Pure; who asks is the program.
//!
//! A verdict belongs to one instance of a container and changes only after as many equal answers in a row as the probe's
//! threshold says. Verdicts are remembered ([`crate::record::Health`]), counts are not: a restarted agent starts to count
//! anew and flips nothing before it has counted.

use std::time::Duration;

use proto_api::core::v1::{Container, Probe};
use serde::{Deserialize, Serialize};

use crate::handler::Handler;

/// What a probe is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum ProbeKind {
    /// Whether the container has come up; until then the others wait.
    Startup,
    /// Whether it can serve.
    Readiness,
    /// Whether it has to be restarted.
    Liveness,
}

impl ProbeKind {
    /// As users read it in events.
    pub fn title(self) -> &'static str {
        match self {
            Self::Startup => "Startup",
            Self::Readiness => "Readiness",
            Self::Liveness => "Liveness",
        }
    }

    /// What holds before the first verdict: nothing runs that is known to be dead, nothing serves that has not said so.
    fn at_first(self) -> Option<bool> {
        match self {
            Self::Startup => None,
            Self::Readiness => Some(false),
            Self::Liveness => Some(true),
        }
    }
}

/// The probes of a container.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Probes {
    /// Gates the other two.
    pub startup: Option<ProbeWant>,
    /// Decides whether the container is ready.
    pub readiness: Option<ProbeWant>,
    /// Decides whether it runs on.
    pub liveness: Option<ProbeWant>,
}

impl Probes {
    /// Reads the probes of a container.
    pub fn of(container: &Container) -> Self {
        let read = |probe: &Option<Probe>| probe.as_ref().map(|p| ProbeWant::of(p, container));
        Self {
            startup: read(&container.startup_probe),
            readiness: read(&container.readiness_probe),
            liveness: read(&container.liveness_probe),
        }
    }
}

/// A probe as its pod wants it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProbeWant {
    /// What is asked.
    pub handler: Handler,
    /// Not before the container has run this long.
    pub initial_delay: Duration,
    /// From one asking to the next.
    pub period: Duration,
    /// No answer within this time is a failure.
    pub timeout: Duration,
    /// Successes in a row that make a good verdict.
    pub successes: u32,
    /// Failures in a row that make a bad one.
    pub failures: u32,
    /// Grace period of the stop that a bad verdict leads to, in place of the pod's.
    pub grace: Option<Duration>,
}

impl ProbeWant {
    /// Reads a probe; a field that is not set has the API's default, which a manifest of this node does not go through.
    pub fn of(probe: &Probe, container: &Container) -> Self {
        let or = |value: i32, default: u32| match u32::try_from(value) {
            Ok(value) if value > 0 => value,
            _ => default,
        };
        let secs = |value: u32| Duration::from_secs(u64::from(value));
        Self {
            handler: Handler::of_probe(&probe.probe_handler, container),
            initial_delay: secs(or(probe.initial_delay_seconds, 0)),
            period: secs(or(probe.period_seconds, 10)),
            timeout: secs(or(probe.timeout_seconds, 1)),
            successes: or(probe.success_threshold, 1),
            failures: or(probe.failure_threshold, 3),
            grace: probe
                .termination_grace_period_seconds
                .filter(|value| *value >= 0)
                .map(crate::desired::secs),
        }
    }
}

/// A probe that has to be running now.
#[derive(Clone, Debug, PartialEq)]
pub struct ProbeOrder {
    /// Name of the container.
    pub container: String,
    /// The runtime's id of the instance.
    pub id: String,
    /// What it is for.
    pub kind: ProbeKind,
    /// The probe.
    pub probe: ProbeWant,
    /// When the instance began to run, since boot.
    pub since: Duration,
    /// The verdict so far, if there is one.
    pub verdict: Option<bool>,
    /// The pod's own address; empty while it has none.
    pub ip: String,
}

impl ProbeOrder {
    /// When it is asked first, seen from `now`: at once, or when the initial delay is over. An instance that ran before this
    /// process did is asked at a point of the period that follows from its id, so that a restarted agent does not ask
    /// everything at once.
    pub fn first_at(&self, now: Duration, adopted: bool) -> Duration {
        let phase = if adopted { self.phase() } else { Duration::ZERO };
        self.since.saturating_add(self.probe.initial_delay).max(now.saturating_add(phase))
    }

    fn phase(&self) -> Duration {
        let text = self.id.bytes().chain([self.kind as u8]);
        let hash = text
            .fold(0x811c_9dc5_u32, |hash, byte| (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193));
        self.probe.period.mul_f64(f64::from(hash) / f64::from(u32::MAX))
    }
}

/// What came of asking once.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// As it should be.
    Success,
    /// It counts as a success; the text is told to users.
    Warning(String),
    /// Not as it should be.
    Failure(String),
    /// It could not be asked; counts as nothing.
    Error(String),
}

impl Outcome {
    /// Whether it counts as a success; `None` when it does not count.
    pub fn is_good(&self) -> Option<bool> {
        match self {
            Self::Success | Self::Warning(_) => Some(true),
            Self::Failure(_) => Some(false),
            Self::Error(_) => None,
        }
    }

    /// As metrics call it.
    pub fn label(&self) -> &'static str {
        match self {
            Self::Success | Self::Warning(_) => "successful",
            Self::Failure(_) => "failed",
            Self::Error(_) => "unknown",
        }
    }
}

/// Counts the answers of one probe.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tally {
    verdict: Option<bool>,
    last: Option<bool>,
    run: u32,
}

impl Tally {
    /// Begins to count from the verdict that is remembered, if one is.
    pub fn new(kind: ProbeKind, known: Option<bool>) -> Self {
        Self { verdict: known.or(kind.at_first()), last: None, run: 0 }
    }

    /// Counts an answer; the verdict when it changes by that.
    pub fn count(&mut self, probe: &ProbeWant, good: bool) -> Option<bool> {
        self.run = if self.last == Some(good) { self.run.saturating_add(1) } else { 1 };
        self.last = Some(good);
        let threshold = if good { probe.successes } else { probe.failures };
        if self.run < threshold || self.verdict == Some(good) {
            return None;
        }
        self.verdict = Some(good);
        Some(good)
    }

    /// The verdict so far.
    pub fn verdict(&self) -> Option<bool> {
        self.verdict
    }
}

/// Whether a probe is done once it has come to a verdict: what a container's start was is known for good, and one that has to
/// be restarted is not asked again.
pub fn is_last(kind: ProbeKind, verdict: bool) -> bool {
    match kind {
        ProbeKind::Startup => true,
        ProbeKind::Liveness => !verdict,
        ProbeKind::Readiness => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn probe(successes: u32, failures: u32) -> ProbeWant {
        ProbeWant {
            handler: Handler::Exec(vec!["true".into()]),
            initial_delay: Duration::from_secs(5),
            period: Duration::from_secs(10),
            timeout: Duration::from_secs(1),
            successes,
            failures,
            grace: None,
        }
    }

    /// Kind, what is known, thresholds, answers, verdicts after each.
    type Case = (ProbeKind, Option<bool>, (u32, u32), &'static str, &'static str);

    #[test]
    fn a_verdict_takes_as_many_answers_in_a_row_as_the_threshold_says() {
        let cases: [Case; 8] = [
            (ProbeKind::Readiness, None, (1, 3), "+--+---", "T     F"),
            (ProbeKind::Readiness, None, (2, 1), "+-++-", "   TF"),
            (ProbeKind::Readiness, Some(true), (1, 3), "--+---", "     F"),
            (ProbeKind::Readiness, Some(false), (1, 1), "--+", "  T"),
            (ProbeKind::Liveness, None, (1, 3), "++--+---", "       F"),
            (ProbeKind::Liveness, None, (1, 1), "-", "F"),
            (ProbeKind::Startup, None, (1, 3), "--+", "  T"),
            (ProbeKind::Startup, None, (1, 3), "---", "  F"),
        ];
        for (kind, known, (successes, failures), answers, verdicts) in cases {
            let mut tally = Tally::new(kind, known);
            let probe = probe(successes, failures);
            let got: String = answers
                .chars()
                .map(|c| match tally.count(&probe, c == '+') {
                    Some(true) => 'T',
                    Some(false) => 'F',
                    None => ' ',
                })
                .collect();
            assert_eq!(got.trim_end(), verdicts.trim_end(), "{kind:?} {known:?} {answers}");
        }
    }

    #[test]
    fn nothing_is_asked_before_the_initial_delay_and_the_adopted_are_spread() {
        let order = |id: &str| ProbeOrder {
            container: "c".into(),
            id: id.into(),
            kind: ProbeKind::Liveness,
            probe: probe(1, 1),
            since: Duration::from_secs(100),
            verdict: None,
            ip: String::new(),
        };
        let at = |secs, adopted| order("a").first_at(Duration::from_secs(secs), adopted);
        assert_eq!(at(101, false), Duration::from_secs(105));
        assert_eq!(at(200, false), Duration::from_secs(200));
        let points: std::collections::BTreeSet<Duration> = (0..50)
            .map(|n| order(&format!("id-{n}")).first_at(Duration::from_secs(200), true))
            .collect();
        assert!(points.len() > 40, "spread: {points:?}");
        assert!(points.iter().all(|at| (200..=210).contains(&at.as_secs())));
    }

    #[test]
    fn a_manifest_without_fields_has_the_defaults_of_the_api() {
        let read = ProbeWant::of(&Probe::default(), &Container::default());
        assert_eq!(
            (read.period, read.timeout, read.successes, read.failures, read.grace),
            (Duration::from_secs(10), Duration::from_secs(1), 1, 3, None)
        );
        assert_eq!(read.initial_delay, Duration::ZERO);
    }
}
