//! Probes: what to run, when, and how results add up. Pure; the program runs them.
//!
//! The result of a probe belongs to one instance of a container and changes only after as many equal outcomes in a row as the
//! threshold requires. Results are recorded ([`crate::record::ContainerHealth`]), counts are not: a restarted agent counts from zero and
//! changes no result before it has reached a threshold.

use std::time::Duration;

use proto_api::core::v1::{Container, Probe};
use serde::{Deserialize, Serialize};

use crate::handler::Handler;

/// The purpose of a probe.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum ProbeKind {
    /// Whether the container has started up; the other probes wait for it.
    Startup,
    /// Whether the container can serve.
    Readiness,
    /// Whether the container has to be restarted.
    Liveness,
}

impl ProbeKind {
    /// Name in event messages.
    pub fn title(self) -> &'static str {
        match self {
            Self::Startup => "Startup",
            Self::Readiness => "Readiness",
            Self::Liveness => "Liveness",
        }
    }

    /// Result before the first threshold is reached: alive, but neither started up nor ready.
    fn initial_result(self) -> Option<bool> {
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
    pub startup: Option<DesiredProbe>,
    /// Decides readiness.
    pub readiness: Option<DesiredProbe>,
    /// Decides whether the container is restarted.
    pub liveness: Option<DesiredProbe>,
}

impl Probes {
    /// Reads the probes of a container.
    pub fn from_container(container: &Container) -> Self {
        let read =
            |probe: &Option<Probe>| probe.as_ref().map(|p| DesiredProbe::from_probe(p, container));
        Self {
            startup: read(&container.startup_probe),
            readiness: read(&container.readiness_probe),
            liveness: read(&container.liveness_probe),
        }
    }
}

/// A probe as its pod specifies it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DesiredProbe {
    /// Action.
    pub handler: Handler,
    /// `initialDelaySeconds`.
    pub initial_delay: Duration,
    /// Time between two runs.
    pub period: Duration,
    /// Time after which a run counts as failed.
    pub timeout: Duration,
    /// `successThreshold`.
    pub successes: u32,
    /// `failureThreshold`.
    pub failures: u32,
    /// Grace period of the stop after a failure, in place of the pod's.
    pub grace: Option<Duration>,
}

impl DesiredProbe {
    /// Reads a probe. Unset fields get the API's defaults, because static pods do not pass through the API's defaulting.
    pub fn from_probe(probe: &Probe, container: &Container) -> Self {
        let or = |value: i32, default: u32| match u32::try_from(value) {
            Ok(value) if value > 0 => value,
            _ => default,
        };
        let secs = |value: u32| Duration::from_secs(u64::from(value));
        Self {
            handler: Handler::from_probe(&probe.probe_handler, container),
            initial_delay: secs(or(probe.initial_delay_seconds, 0)),
            period: secs(or(probe.period_seconds, 10)),
            timeout: secs(or(probe.timeout_seconds, 1)),
            successes: or(probe.success_threshold, 1),
            failures: or(probe.failure_threshold, 3),
            grace: probe
                .termination_grace_period_seconds
                .filter(|value| *value >= 0)
                .map(crate::seconds::clamp_seconds),
        }
    }
}

/// A probe that should be running now.
#[derive(Clone, Debug, PartialEq)]
pub struct ProbeOrder {
    /// Name of the container.
    pub container: String,
    /// Runtime id of the instance.
    pub id: String,
    /// Purpose of the probe.
    pub kind: ProbeKind,
    /// Settings of the probe.
    pub probe: DesiredProbe,
    /// Start of the instance, since boot.
    pub since: Duration,
    /// Current result, if any.
    pub result: Option<bool>,
    /// Address of the pod; empty if it has none yet.
    pub ip: String,
}

impl ProbeOrder {
    /// Time of the first run, given the time `now`: at once, or after the initial delay. If the instance ran before this process
    /// started (`adopted`), the first run is at an offset into the period derived from its id, so a restarted agent does not run
    /// all probes at once.
    pub fn first_run(&self, now: Duration, adopted: bool) -> Duration {
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

/// Outcome of one run of a probe.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ProbeOutcome {
    Success,
    /// Counts as a success; the text goes into an event.
    Warning(String),
    /// Failure, with its reason.
    Failure(String),
    /// The probe could not be run; not counted.
    Error(String),
}

impl ProbeOutcome {
    /// Whether it counts as success or failure; `None` if it is not counted.
    pub fn is_good(&self) -> Option<bool> {
        match self {
            Self::Success | Self::Warning(_) => Some(true),
            Self::Failure(_) => Some(false),
            Self::Error(_) => None,
        }
    }

    /// Value of the metric label `result`.
    pub fn label(&self) -> &'static str {
        match self {
            Self::Success | Self::Warning(_) => "successful",
            Self::Failure(_) => "failed",
            Self::Error(_) => "unknown",
        }
    }
}

/// Counts the outcomes of one probe.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProbeCounter {
    result: Option<bool>,
    last: Option<bool>,
    run: u32,
}

impl ProbeCounter {
    /// Starts with the recorded result, if any.
    pub fn new(kind: ProbeKind, known: Option<bool>) -> Self {
        Self { result: known.or(kind.initial_result()), last: None, run: 0 }
    }

    /// Counts an outcome; returns the result if it changed.
    pub fn count(&mut self, probe: &DesiredProbe, good: bool) -> Option<bool> {
        self.run = if self.last == Some(good) { self.run.saturating_add(1) } else { 1 };
        self.last = Some(good);
        let threshold = if good { probe.successes } else { probe.failures };
        if self.run < threshold || self.result == Some(good) {
            return None;
        }
        self.result = Some(good);
        Some(good)
    }

    /// The current result, if any.
    pub fn result(&self) -> Option<bool> {
        self.result
    }
}

/// Whether a probe stops after this result: startup is decided once, and an instance to be restarted is not probed further.
pub fn ends_probe(kind: ProbeKind, result: bool) -> bool {
    match kind {
        ProbeKind::Startup => true,
        ProbeKind::Liveness => !result,
        ProbeKind::Readiness => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn probe(successes: u32, failures: u32) -> DesiredProbe {
        DesiredProbe {
            handler: Handler::Exec(vec!["true".into()]),
            initial_delay: Duration::from_secs(5),
            period: Duration::from_secs(10),
            timeout: Duration::from_secs(1),
            successes,
            failures,
            grace: None,
        }
    }

    /// Kind, recorded result, thresholds, outcomes, results after each.
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
        for (kind, known, (successes, failures), answers, results) in cases {
            let mut tally = ProbeCounter::new(kind, known);
            let probe = probe(successes, failures);
            let got: String = answers
                .chars()
                .map(|c| match tally.count(&probe, c == '+') {
                    Some(true) => 'T',
                    Some(false) => 'F',
                    None => ' ',
                })
                .collect();
            assert_eq!(got.trim_end(), results.trim_end(), "{kind:?} {known:?} {answers}");
        }
    }

    #[test]
    fn probes_wait_for_the_initial_delay_and_those_of_adopted_containers_are_spread() {
        let order = |id: &str| ProbeOrder {
            container: "c".into(),
            id: id.into(),
            kind: ProbeKind::Liveness,
            probe: probe(1, 1),
            since: Duration::from_secs(100),
            result: None,
            ip: String::new(),
        };
        let at = |secs, adopted| order("a").first_run(Duration::from_secs(secs), adopted);
        assert_eq!(at(101, false), Duration::from_secs(105));
        assert_eq!(at(200, false), Duration::from_secs(200));
        let points: std::collections::BTreeSet<Duration> = (0..50)
            .map(|n| order(&format!("id-{n}")).first_run(Duration::from_secs(200), true))
            .collect();
        assert!(points.len() > 40, "spread: {points:?}");
        assert!(points.iter().all(|at| (200..=210).contains(&at.as_secs())));
    }

    #[test]
    fn a_manifest_without_fields_has_the_defaults_of_the_api() {
        let read = DesiredProbe::from_probe(&Probe::default(), &Container::default());
        assert_eq!(
            (read.period, read.timeout, read.successes, read.failures, read.grace),
            (Duration::from_secs(10), Duration::from_secs(1), 1, 3, None)
        );
        assert_eq!(read.initial_delay, Duration::ZERO);
    }
}
