//! What nodes measured: points in time, and the rates between two of them.

use std::collections::BTreeMap;
use std::time::Duration;

/// A container that is younger than this at its first measurement has no rate yet: its first seconds say little.
const FRESH_MIN: Duration = Duration::from_secs(10);
/// The longest time between two points of a rate.
const WINDOW_MAX: Duration = Duration::from_secs(300);

/// Namespace and name of a pod.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct PodKey {
    pub namespace: String,
    pub name: String,
}

/// One measurement of a node or container. Times are since 1970.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Measurement {
    /// When it was measured.
    pub at: Option<Duration>,
    /// When the container started; unset for nodes.
    pub started: Option<Duration>,
    /// CPU time since the start.
    pub cpu: Option<Duration>,
    /// The working set in bytes.
    pub memory: Option<u64>,
}

/// The measurements of one page of a node.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Scrape {
    /// The node itself.
    pub node: Measurement,
    /// Containers by name, by pod.
    pub pods: BTreeMap<PodKey, BTreeMap<String, Measurement>>,
}

/// A use of resources, averaged over a window.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UsedBy {
    /// Billionths of a CPU.
    pub cpu_nanos: u64,
    /// Bytes.
    pub memory: u64,
}

/// What was measured, when, and over which time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UsageSample<T> {
    /// The end of the window, since 1970.
    pub at: Duration,
    /// Its length.
    pub window: Duration,
    /// The measurement.
    pub used: T,
}

/// The two last scrapes of a node.
#[derive(Debug, Default)]
pub struct NodeUsage {
    last: Scrape,
    /// The point before the last one of each thing that has gone on since.
    previous: Scrape,
    /// Whether the last scrape of the node succeeded.
    answers: bool,
}

impl NodeUsage {
    /// Takes in what a node has answered. `interval` is the time between scrapes.
    pub fn take(&mut self, scrape: Scrape, interval: Duration) {
        let mut previous = Scrape {
            node: before(&scrape.node, &self.last.node, &self.previous.node),
            ..Scrape::default()
        };
        for (pod, containers) in &scrape.pods {
            let of_pod = |from: &Scrape, name: &str| {
                from.pods.get(pod).and_then(|known| known.get(name)).copied().unwrap_or_default()
            };
            let earlier = containers.iter().map(|(name, point)| {
                let start = start_of(point, interval);
                let known =
                    || before(point, &of_pod(&self.last, name), &of_pod(&self.previous, name));
                (name.clone(), start.unwrap_or_else(known))
            });
            previous.pods.insert(pod.clone(), earlier.collect());
        }
        *self = Self { last: scrape, previous, answers: true };
    }

    /// Takes in that the node has not answered: it has no metrics until it does.
    pub fn miss(&mut self) {
        self.answers = false;
    }

    /// What the node uses.
    pub fn node(&self) -> Option<UsageSample<UsedBy>> {
        if !self.answers {
            return None;
        }
        rate(&self.last.node, &self.previous.node)
    }

    /// What the containers of a pod use. `None` unless it is known of all of them; the window is that of the container that was measured first.
    pub fn pod(&self, pod: &PodKey) -> Option<UsageSample<BTreeMap<String, UsedBy>>> {
        if !self.answers {
            return None;
        }
        let (containers, before) = (self.last.pods.get(pod)?, self.previous.pods.get(pod)?);
        let mut all: Option<UsageSample<BTreeMap<String, UsedBy>>> = None;
        for (name, point) in containers {
            let UsageSample { at, window, used } = rate(point, before.get(name)?)?;
            let all = all.get_or_insert_with(|| UsageSample { at, window, used: BTreeMap::new() });
            if at < all.at {
                (all.at, all.window) = (at, window);
            }
            all.used.insert(name.clone(), used);
        }
        all
    }
}

/// The start of a container that has run for less than an interval, as a point: a first rate without a second scrape.
fn start_of(point: &Measurement, interval: Duration) -> Option<Measurement> {
    let (at, started) = (point.at?, point.started?);
    let age = at.checked_sub(started)?;
    let is_fresh = age >= FRESH_MIN && age < interval.max(FRESH_MIN);
    is_fresh.then_some(Measurement { at: Some(started), cpu: Some(Duration::ZERO), ..*point })
}

/// The point to measure `new` against: the last one, or the one before if the node has not measured since. None if the container was restarted.
fn before(new: &Measurement, last: &Measurement, previous: &Measurement) -> Measurement {
    let goes_on = |known: &Measurement| match (new.started, known.at) {
        (_, None) => false,
        (None, Some(_)) => true,
        (Some(started), Some(at)) => started <= at,
    };
    let known = if new.at > last.at { last } else { previous };
    if known.at < new.at && goes_on(known) { *known } else { Measurement::default() }
}

/// The use between two points. `None` if one is missing or the counter has gone back: the thing was restarted.
fn rate(last: &Measurement, previous: &Measurement) -> Option<UsageSample<UsedBy>> {
    let window = last.at?.checked_sub(previous.at?).filter(|window| !window.is_zero())?;
    let used = last.cpu?.checked_sub(previous.cpu?)?;
    if window > WINDOW_MAX {
        return None;
    }
    let cpu = used.as_nanos().checked_mul(1_000_000_000)?.checked_div(window.as_nanos())?;
    let used = UsedBy { cpu_nanos: u64::try_from(cpu).ok()?, memory: last.memory? };
    Some(UsageSample { at: last.at?, window, used })
}

#[cfg(test)]
mod tests;
