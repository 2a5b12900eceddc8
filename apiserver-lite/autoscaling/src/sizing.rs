//! How many replicas a metric asks for: pods by what is known of them, the ratio of what is used to the target, and what is assumed of pods that have no
//! metrics: never what would scale further.

use std::collections::{BTreeMap, BTreeSet};

use proto_api::Time;
use proto_api::core::v1::Pod;

use crate::error::SizingError;
use crate::metrics::{Amount, PodMetricsInfo};
use crate::settings::AutoscalerSettings;

/// The replicas that a metric requires.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Proposal {
    pub replicas: i32,
    /// Percent of the requests, of a metric with such a target.
    pub utilization: Option<i32>,
    /// The average of the pods with metrics, in thousandths.
    pub average: i64,
}

/// The metrics of one resource, with the pods and replicas that they are about.
pub struct Sizing<'a> {
    /// The pods that the target's selector selects.
    pub pods: &'a [&'a Pod],
    /// What they use.
    pub amounts: PodMetricsInfo<'a>,
    pub resource: &'a str,
    /// The one whose amounts these are, if it is named.
    pub container: Option<&'a str>,
    /// The target's replicas.
    pub current: i32,
    /// The controller's settings.
    pub settings: &'a AutoscalerSettings,
    /// The current time.
    pub now: Time,
}

/// What pods are known to use of one resource: all that targets are compared with. An autoscaler may have many metrics of it.
#[derive(Clone, Debug)]
pub struct Measured {
    /// Of pods with metrics that count.
    used: Vec<PodAmounts>,
    /// What pods without metrics request.
    missing: Vec<Option<i64>>,
    /// What pods request that are pending or just started.
    unready: Vec<Option<i64>>,
    /// The number of pods with metrics that count and exist.
    ready: u32,
    /// Why no percentage can be calculated.
    without_requests: Option<SizingError>,
    current: i32,
    tolerance: f64,
}

/// What a pod uses, in thousandths.
#[derive(Clone, Copy, Debug)]
struct PodAmounts {
    used: i64,
    /// What it requests, if that is known.
    request: Option<i64>,
}

/// The target of a metric.
#[derive(Clone, Copy)]
enum Target {
    /// Percent of the requests of the pods.
    Utilization(i32),
    /// Thousandths, on average.
    Average(i64),
}

/// What is used in relation to a target.
struct Ratio {
    ratio: f64,
    utilization: Option<i32>,
    average: i64,
}

impl Measured {
    /// The replicas with which pods use `percent` of what they request on average.
    pub fn by_utilization(&self, percent: i32) -> Result<Proposal, SizingError> {
        match &self.without_requests {
            Some(error) => Err(error.clone()),
            None => self.propose(Target::Utilization(percent)),
        }
    }

    /// The replicas with which pods use `milli` on average.
    pub fn by_average(&self, milli: i64) -> Result<Proposal, SizingError> {
        self.propose(Target::Average(milli))
    }

    fn propose(&self, target: Target) -> Result<Proposal, SizingError> {
        if self.used.is_empty() {
            return Err(SizingError::NoReadyPods);
        }
        let used = target.ratio(&self.used)?;
        let proposal =
            |replicas| Proposal { replicas, utilization: used.utilization, average: used.average };
        let stay = proposal(self.current);
        let grows = used.ratio > 1.0;
        let with_unready = grows && !self.unready.is_empty();
        if !with_unready && self.missing.is_empty() {
            if self.is_tolerable(used.ratio) {
                return Ok(stay);
            }
            return Ok(proposal(ceil(used.ratio * f64::from(self.ready))));
        }
        let mut all = self.used.clone();
        let nothing = |request: &Option<i64>| PodAmounts { used: 0, request: *request };
        if used.ratio < 1.0 {
            all.extend(self.missing.iter().map(|request| target.fallback(*request)));
        } else if grows {
            all.extend(self.missing.iter().map(nothing));
        }
        if with_unready {
            all.extend(self.unready.iter().map(nothing));
        }
        let assumed = target.ratio(&all)?.ratio;
        let turns = (used.ratio < 1.0 && assumed > 1.0) || (grows && assumed < 1.0);
        if self.is_tolerable(assumed) || turns || used.ratio == 1.0 {
            return Ok(stay);
        }
        let count = u32::try_from(all.len()).unwrap_or(u32::MAX);
        let replicas = ceil(assumed * f64::from(count));
        let turns = (assumed < 1.0 && replicas > self.current)
            || (assumed > 1.0 && replicas < self.current);
        Ok(if turns { stay } else { proposal(replicas) })
    }

    fn is_tolerable(&self, ratio: f64) -> bool {
        (1.0 - ratio).abs() <= self.tolerance
    }
}

impl<'a> Sizing<'a> {
    /// Sorts the pods by what is known of them, and finds what they request.
    pub fn measure(self) -> Result<Measured, SizingError> {
        let groups = self.groups()?;
        let requests = requests(self.pods, self.resource, self.container);
        let (requests, without_requests) = match requests {
            Ok(requests) => (requests, None),
            Err(error) => (BTreeMap::new(), Some(error)),
        };
        let request = |pod: &str| requests.get(pod).copied();
        let mut amounts = self.amounts;
        for of_no_use in groups.unready.iter().chain(&groups.ignored) {
            amounts.remove(of_no_use);
        }
        let used = amounts.into_iter();
        let used =
            used.map(|(pod, amount)| PodAmounts { used: amount.milli, request: request(pod) });
        let requested = |pods: BTreeSet<&str>| pods.into_iter().map(request).collect();
        Ok(Measured {
            used: used.collect(),
            missing: requested(groups.missing),
            unready: requested(groups.unready),
            ready: groups.ready,
            without_requests,
            current: self.current,
            tolerance: self.settings.tolerance,
        })
    }

    /// The pods by what is known of them.
    fn groups(&self) -> Result<Groups<'a>, SizingError> {
        if self.pods.is_empty() {
            return Err(SizingError::NoPods);
        }
        let mut groups = Groups::default();
        for pod in self.pods {
            let name = pod.metadata.name.as_str();
            if pod.metadata.deletion_timestamp.is_some() || pod.status.phase == "Failed" {
                groups.ignored.insert(name);
            } else if pod.status.phase == "Pending" {
                groups.unready.insert(name);
            } else {
                match self.amounts.get(name) {
                    None => {
                        groups.missing.insert(name);
                    }
                    Some(amount) if self.is_unready(pod, amount) => {
                        groups.unready.insert(name);
                    }
                    Some(_) => groups.ready = groups.ready.saturating_add(1),
                }
            }
        }
        Ok(groups)
    }

    /// Whether the CPU time of a pod is that of its start: it does not count then.
    fn is_unready(&self, pod: &Pod, amount: &Amount) -> bool {
        if self.resource != "cpu" {
            return false;
        }
        let ready = pod.status.conditions.iter().find(|condition| condition.type_ == "Ready");
        let (Some(ready), Some(started)) = (ready, pod.status.start_time.and_then(Time::unix))
        else {
            return true;
        };
        let is_false = ready.status == "False";
        let changed = ready.last_transition_time.unix().unwrap_or(i64::MIN);
        let after = |period: i64| started.saturating_add(period);
        if after(self.settings.cpu_initialization_period) > self.now.unix().unwrap_or_default() {
            let window = i64::try_from(amount.window.as_secs()).unwrap_or(i64::MAX);
            let measured = amount.at.unix().unwrap_or(i64::MIN);
            return is_false || measured < changed.saturating_add(window);
        }
        is_false && after(self.settings.initial_readiness_delay) > changed
    }
}

/// Pods by what is known of them.
#[derive(Default)]
struct Groups<'a> {
    /// The number of pods that count.
    ready: u32,
    /// Pending, or just started.
    unready: BTreeSet<&'a str>,
    /// Without metrics.
    missing: BTreeSet<&'a str>,
    /// Deleted or failed.
    ignored: BTreeSet<&'a str>,
}

impl Target {
    fn ratio(self, pods: &[PodAmounts]) -> Result<Ratio, SizingError> {
        let count = i128::try_from(pods.len()).unwrap_or(i128::MAX);
        match self {
            Self::Utilization(percent) => {
                let known = pods.iter().filter_map(|pod| Some((pod.used, pod.request?)));
                let (used, asked) = known.fold((0i128, 0i128), |(used, asked), (more, request)| {
                    (
                        used.saturating_add(i128::from(more)),
                        asked.saturating_add(i128::from(request)),
                    )
                });
                let current = used.saturating_mul(100).checked_div(asked);
                let current = saturated_i32(current.ok_or(SizingError::NoKnownPods)?);
                Ok(Ratio {
                    ratio: f64::from(current) / f64::from(percent),
                    utilization: Some(current),
                    average: saturated(used.checked_div(count).unwrap_or_default()),
                })
            }
            Self::Average(target) => {
                let used: i128 = pods.iter().map(|pod| i128::from(pod.used)).sum();
                let average = saturated(used.checked_div(count).unwrap_or_default());
                let ratio = average as f64 / target as f64;
                Ok(Ratio { ratio, utilization: None, average })
            }
        }
    }

    /// What a pod without metrics is assumed to use when the others use less than the target: what it requests, or the target.
    fn fallback(self, request: Option<i64>) -> PodAmounts {
        let used = match self {
            Self::Utilization(percent) => {
                let asked = i128::from(request.unwrap_or_default());
                let percent = i128::from(percent.max(100));
                saturated(asked.saturating_mul(percent).checked_div(100).unwrap_or_default())
            }
            Self::Average(target) => target,
        };
        PodAmounts { used, request }
    }
}

/// What each pod requests, in thousandths.
fn requests<'a>(
    pods: &[&'a Pod],
    resource: &str,
    container: Option<&str>,
) -> Result<BTreeMap<&'a str, i64>, SizingError> {
    let mut requests = BTreeMap::new();
    for pod in pods {
        let mut sum = 0i64;
        let asked = pod.spec.containers.iter();
        for asked in asked.filter(|one| container.is_none_or(|name| one.name == name)) {
            let request = asked.resources.requests.get(resource);
            let request = request.ok_or_else(|| SizingError::NoRequest {
                resource: resource.to_owned(),
                container: asked.name.clone(),
                pod: pod.metadata.name.clone(),
            })?;
            sum = sum.saturating_add(request.as_milli());
        }
        requests.insert(pod.metadata.name.as_str(), sum);
    }
    Ok(requests)
}

/// Rounded up, within what a replica count can be; a ratio that is no number asks for nothing.
fn ceil(replicas: f64) -> i32 {
    replicas.ceil() as i32
}

fn saturated(number: i128) -> i64 {
    i64::try_from(number).unwrap_or(if number < 0 { i64::MIN } else { i64::MAX })
}

fn saturated_i32(number: i128) -> i32 {
    i32::try_from(number).unwrap_or(if number < 0 { i32::MIN } else { i32::MAX })
}

#[cfg(test)]
mod tests;
