//! What a bench program says: one figure of one side, a line of JSON. Shared by all bench programs of the tree; `hack/bench` lets all of one run write into
//! one file, from which `bench render` makes the page.

#![allow(dead_code, reason = "shared by programs, of which none needs all of it")]

use std::ffi::OsString;
use std::fmt;
use std::fs::OpenOptions;
use std::io::{self, Write as _};
use std::time::Duration;

use serde::{Deserialize, Serialize};

/// Names the file that figures are appended to; without it they are only printed.
const FILE_VARIABLE: &str = "ORCH_BENCH_FIGURES";
/// The side that is this project.
pub const OURS: &str = "ours";
/// This project's API server, on etcd.
pub const OURS_ON_ETCD: &str = "ours on etcd";
/// Kubernetes' own programs.
pub const KUBERNETES: &str = "Kubernetes";
/// Kubernetes' proxy alone.
pub const KUBE_PROXY: &str = "kube-proxy";
/// The best direct use of the container runtime, without an agent.
pub const RUNTIME: &str = "runtime calls alone";
/// Fewer samples have no 99th percentile.
const SAMPLES_FOR_P99: usize = 100;

/// A section of the page, in the page's order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Group {
    /// Pods on a node, one at a time.
    Node,
    /// Memory and CPU of an idle cluster.
    Idle,
    /// Many pods at once.
    Bursts,
    /// A full node: memory, restarts, probes.
    Load,
    /// Writes of the API that become files.
    Volumes,
    /// The API server.
    Api,
    /// The store alone.
    Store,
    /// The object engine and access decisions alone.
    Engine,
    /// The proxy's model and the kernel, without the program.
    Plane,
    /// The proxy as a program, at an API server.
    Proxy,
    /// What packets pay.
    Packets,
    /// Flows to endpoints that are gone.
    Stale,
    /// Clusters of hollow nodes, on a page of their own.
    Scale,
}

/// What a figure counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Unit {
    /// Nanoseconds.
    #[serde(rename = "ns")]
    Nanos,
    /// Microseconds.
    #[serde(rename = "us")]
    Micros,
    /// Milliseconds.
    #[serde(rename = "ms")]
    Millis,
    /// A rate.
    #[serde(rename = "/s")]
    PerSecond,
    #[serde(rename = "B")]
    Bytes,
    /// Millions of bytes.
    #[serde(rename = "MB")]
    Megabytes,
    /// CPU time, as a share of one core.
    #[serde(rename = "% of a core")]
    Core,
    /// A share of the best that is possible.
    #[serde(rename = "%")]
    Share,
    /// As a multiple of what stands beside it.
    #[serde(rename = "times")]
    Times,
    /// A number of things.
    #[serde(rename = "count")]
    Count,
}

impl Unit {
    /// As it is written in JSON and on the page.
    pub fn name(self) -> &'static str {
        match self {
            Unit::Nanos => "ns",
            Unit::Micros => "us",
            Unit::Millis => "ms",
            Unit::PerSecond => "/s",
            Unit::Bytes => "B",
            Unit::Megabytes => "MB",
            Unit::Core => "% of a core",
            Unit::Share => "%",
            Unit::Times => "times",
            Unit::Count => "count",
        }
    }

    /// Whether a larger figure is the better one.
    pub fn more_is_better(self) -> bool {
        matches!(self, Unit::PerSecond | Unit::Share)
    }

    /// A duration in this unit, which is one of time.
    fn convert(self, time: Duration) -> f64 {
        match self {
            Unit::Nanos => time.as_secs_f64() * 1e9,
            Unit::Micros => time.as_secs_f64() * 1e6,
            _ => time.as_secs_f64() * 1e3,
        }
    }
}

/// How many of what there were: a place on the axis of a line chart.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Size {
    /// Of what, in the plural.
    pub of: String,
    /// How many.
    pub count: u64,
}

/// How far samples lie apart.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Spread {
    /// The 10th percentile.
    pub p10: f64,
    /// The 90th percentile.
    pub p90: f64,
    /// The 99th percentile of many samples.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub p99: Option<f64>,
}

/// A figure of one side.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Figure {
    /// Its section.
    pub group: Group,
    /// What was measured. Figures of several sides with the same words, size and unit are one row.
    pub what: String,
    /// With how many of what, if that was varied.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub at: Option<Size>,
    /// [`OURS`], or whom ours is compared with.
    pub side: String,
    /// What it counts.
    pub unit: Unit,
    /// The median, or the only sample.
    pub median: f64,
    /// Of several samples.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub spread: Option<Spread>,
    /// The most that ours may be, or the least where more is better.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub budget: Option<f64>,
    /// Sides that a whole run has for the same row.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub peers: Vec<String>,
}

impl Figure {
    /// A figure of ours that is one number.
    pub fn new(group: Group, what: impl Into<String>, unit: Unit, value: f64) -> Figure {
        Figure {
            group,
            what: what.into(),
            at: None,
            side: OURS.to_owned(),
            unit,
            median: value,
            spread: None,
            budget: None,
            peers: Vec::new(),
        }
    }

    /// The median and spread of samples. Without samples there is no number, and it is not told.
    pub fn from_samples(
        group: Group,
        what: impl Into<String>,
        unit: Unit,
        mut samples: Vec<f64>,
    ) -> Figure {
        samples.sort_by(f64::total_cmp);
        let at = |percent: usize| {
            let index = (samples.len() * percent / 100).min(samples.len().saturating_sub(1));
            samples.get(index).copied().unwrap_or(f64::NAN)
        };
        let p99 = (samples.len() >= SAMPLES_FOR_P99).then(|| at(99));
        let spread = (samples.len() > 1).then(|| Spread { p10: at(10), p90: at(90), p99 });
        Figure { spread, ..Figure::new(group, what, unit, at(50)) }
    }

    /// The median and spread of durations.
    pub fn of_times(
        group: Group,
        what: impl Into<String>,
        unit: Unit,
        samples: impl IntoIterator<Item = Duration>,
    ) -> Figure {
        Figure::from_samples(
            group,
            what,
            unit,
            samples.into_iter().map(|time| unit.convert(time)).collect(),
        )
    }

    /// The same with `count` of what is varied.
    pub fn at(mut self, count: impl TryInto<u64>, of: &str) -> Figure {
        let count = count.try_into().unwrap_or(u64::MAX);
        self.at = Some(Size { of: of.to_owned(), count });
        self
    }

    /// The same of another side.
    pub fn side(mut self, side: &str) -> Figure {
        side.clone_into(&mut self.side);
        self
    }

    /// The same with a budget.
    pub fn budget(mut self, budget: f64) -> Figure {
        self.budget = Some(budget);
        self
    }

    /// The same with a side that a whole run compares it with.
    pub fn beside(mut self, peer: &str) -> Figure {
        self.peers.push(peer.to_owned());
        self
    }

    /// Prints it, and appends it to the data of the run, if there is one. Refuses what is not a number: it had no samples, or was divided by nothing.
    pub fn tell(self) -> io::Result<()> {
        let spread = self.spread.into_iter().flat_map(|s| [Some(s.p10), Some(s.p90), s.p99]);
        if !spread.flatten().chain([self.median]).all(f64::is_finite) {
            let text = format!("a figure without samples or that is no number: {self}");
            return Err(io::Error::new(io::ErrorKind::InvalidData, text));
        }
        eprintln!("{self}");
        append(&Line::Figure(self))
    }
}

impl fmt::Display for Figure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let at = self.at.as_ref().map(|at| format!(", {} {}", at.count, at.of));
        let what = format!("{}{}", self.what, at.unwrap_or_default());
        write!(f, "{what:<80} {:<24} {:>12.3} {}", self.side, self.median, self.unit.name())?;
        if let Some(Spread { p10, p90, p99 }) = self.spread {
            write!(f, "   p10 {p10:.3} p90 {p90:.3}")?;
            p99.map_or(Ok(()), |p99| write!(f, " p99 {p99:.3}"))?;
        }
        Ok(())
    }
}

/// Where and when a run was made.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Facts {
    /// When it began, in UTC.
    pub date: String,
    /// What was measured: the commit, and whether the tree had changes.
    pub commit: String,
    /// How it was built.
    pub build: String,
    /// Processors and memory.
    pub machine: String,
    /// Name and release.
    pub kernel: String,
    /// containerd and runc.
    pub runtime: String,
}

/// A line of a run's data.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Line {
    /// The first line, which `hack/bench` writes.
    Run(Facts),
    /// The version of a program that ours was compared with.
    Peer {
        /// A side of figures.
        name: String,
        /// In its own words.
        version: String,
    },
    Figure(Figure),
}

/// Appends the version of a peer to the data of the run, if there is one.
pub fn tell_version(peer: &str, version: &str) -> io::Result<()> {
    append(&Line::Peer { name: peer.to_owned(), version: version.trim().to_owned() })
}

/// Appends to the file that [`FILE_VARIABLE`] names. `hack/bench` has made it.
fn append(line: &Line) -> io::Result<()> {
    let Some(path): Option<OsString> = std::env::var_os(FILE_VARIABLE) else { return Ok(()) };
    let mut file = OpenOptions::new().append(true).open(path)?;
    file.write_all(format!("{}\n", serde_json::to_string(line)?).as_bytes())
}
