//! The metrics of pods as the controller reads them, and the amounts that one resource has in them.

use std::collections::BTreeMap;
use std::time::Duration;

use proto_api::{Quantity, Time};

use crate::error::SizingError;

/// The metrics of a pod.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct PodUsage {
    /// The pod.
    pub name: String,
    /// The end of the window.
    pub at: Time,
    /// Over which time it was measured.
    pub window: Duration,
    pub containers: Vec<ContainerUsage>,
}

/// The metrics of a container.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ContainerUsage {
    /// The container.
    pub name: String,
    /// What it uses, by resource.
    pub used: BTreeMap<String, Quantity>,
}

/// What a pod uses of one resource.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Amount {
    /// In thousandths.
    pub milli: i64,
    /// The end of the window.
    pub at: Time,
    /// Over which time it was measured.
    pub window: Duration,
}

/// By name of the pod.
pub type PodMetricsInfo<'a> = BTreeMap<&'a str, Amount>;

/// What each pod uses of `resource`: in all containers, or in the one named. Pods without that resource are left out.
pub fn amounts<'a>(
    usage: &'a [PodUsage],
    resource: &str,
    container: Option<&str>,
    namespace: &str,
) -> Result<PodMetricsInfo<'a>, SizingError> {
    if usage.is_empty() {
        return Err(SizingError::NoMetrics);
    }
    let mut amounts = PodMetricsInfo::new();
    for pod in usage {
        let milli = match container {
            None => of_all(pod, resource),
            Some(name) => {
                let found = pod.containers.iter().find(|container| container.name == name);
                let found = found.ok_or_else(|| SizingError::NoContainer {
                    container: name.to_owned(),
                    pod: format!("{namespace}/{}", pod.name),
                })?;
                found.used.get(resource).map(|used| used.as_milli())
            }
        };
        if let Some(milli) = milli {
            let amount = Amount { milli, at: pod.at, window: pod.window };
            amounts.insert(pod.name.as_str(), amount);
        }
    }
    Ok(amounts)
}

/// The sum of the containers; `None` if one has no such resource, or there is none.
fn of_all(pod: &PodUsage, resource: &str) -> Option<i64> {
    let used = pod.containers.iter().map(|container| container.used.get(resource));
    let used: Option<Vec<i64>> = used.map(|used| used.map(|used| used.as_milli())).collect();
    used.filter(|used| !used.is_empty()).map(|used| used.into_iter().fold(0, i64::saturating_add))
}
