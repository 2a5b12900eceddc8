//! Whether a write fits the quotas of its namespace, and what they have used with it.

use std::collections::BTreeSet;

use proto_api::Time;
use proto_api::core::v1::ResourceQuota;
use proto_api::names::Names;

use crate::counted_resources::{Counted, CountedResource};
use crate::resource_amounts::{self, ResourceList};
use crate::{pods, scopes};

/// A quota's new `status.used`.
#[derive(Clone, Debug, PartialEq)]
pub struct Charge {
    /// Index of the quota in the list.
    pub quota: usize,
    /// The new amounts.
    pub used: ResourceList,
}

/// Why a write does not fit; the texts are Kubernetes'.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum QuotaRefusal {
    /// Containers do not say how much they need of what the quota counts.
    #[error("failed quota: {quota}: must specify {missing}")]
    Unspecified {
        /// The quota's name.
        quota: String,
        /// Resources, each with the containers that lack it.
        missing: String,
    },
    /// What the namespace uses has not been counted yet.
    #[error("status unknown for quota: {quota}, resources: {resources}")]
    Unknown {
        /// The quota's name.
        quota: String,
        resources: String,
    },
    /// The amount is used up.
    #[error("exceeded quota: {quota}, requested: {requested}, used: {used}, limited: {limited}")]
    Exceeded {
        /// The quota's name.
        quota: String,
        /// What the write adds.
        requested: String,
        /// What is used.
        used: String,
        /// What may be used.
        limited: String,
    },
}

/// Charges what `new` uses beyond `old`, its earlier version, to the quotas of its namespace that count it. Quotas that stay as they are get no
/// charge.
///
/// # Errors
/// The first quota, in the order of the list, that does not admit it.
pub fn charge(
    quotas: &[&ResourceQuota],
    new: Counted<'_>,
    old: Option<Counted<'_>>,
    names: &Names,
    now: Time,
) -> Result<Vec<Charge>, QuotaRefusal> {
    let kind = new.kind();
    let mut counting = Vec::new();
    for (at, quota) in quotas.iter().enumerate() {
        let resources = resources_of(quota, &kind, names);
        if resources.is_empty() || !counts(quota, new) {
            continue;
        }
        check_countable(quota, &resources, new, names)?;
        counting.push((at, quota));
    }
    if counting.is_empty() {
        return Ok(Vec::new());
    }
    let before = old.map(|old| old.amounts(names, now)).unwrap_or_default();
    let growth = resource_amounts::growth(new.amounts(names, now), &before);
    let charges = counting.into_iter().map(|(at, quota)| charge_one(at, quota, &growth));
    charges.filter_map(Result::transpose).collect()
}

/// The names in `status.hard` that count objects of the kind.
fn resources_of<'a>(
    quota: &'a ResourceQuota,
    kind: &CountedResource,
    names: &Names,
) -> BTreeSet<&'a str> {
    let hard = quota.status.hard.keys().map(String::as_str);
    hard.filter(|name| kind.is_counted_by(name, names)).collect()
}

fn counts(quota: &ResourceQuota, new: Counted<'_>) -> bool {
    match new {
        Counted::Pod(pod) => scopes::count_pod(&quota.spec, pod),
        _ => !scopes::has_scopes(&quota.spec),
    }
}

/// Whether containers name what is counted, and whether the quota has been counted.
fn check_countable(
    quota: &ResourceQuota,
    resources: &BTreeSet<&str>,
    new: Counted<'_>,
    names: &Names,
) -> Result<(), QuotaRefusal> {
    let name = || quota.metadata.name.clone();
    if let Counted::Pod(pod) = new {
        let missing = pods::find_missing(pod, resources, names);
        let texts = missing.iter().map(|(resource, containers)| {
            let containers: Vec<&str> = containers.iter().copied().collect();
            format!("{resource} for: {}", containers.join(","))
        });
        let texts: Vec<String> = texts.collect();
        if !texts.is_empty() {
            return Err(QuotaRefusal::Unspecified { quota: name(), missing: texts.join("; ") });
        }
    }
    if resources.iter().any(|resource| !quota.status.used.contains_key(*resource)) {
        let resources: Vec<&str> = resources.iter().copied().collect();
        return Err(QuotaRefusal::Unknown { quota: name(), resources: resources.join(",") });
    }
    Ok(())
}

fn charge_one(
    at: usize,
    quota: &ResourceQuota,
    growth: &ResourceList,
) -> Result<Option<Charge>, QuotaRefusal> {
    let (hard, used) = (&quota.status.hard, &quota.status.used);
    let requested = resource_amounts::keep(growth, &hard.keys().map(String::as_str).collect());
    if requested.is_empty() {
        return Ok(None);
    }
    let mut sum = used.clone();
    resource_amounts::add(&mut sum, &requested);
    let exceeds = |name: &&String| sum.get(*name) > hard.get(*name);
    let exceeded: BTreeSet<&str> = requested.keys().filter(exceeds).map(String::as_str).collect();
    if exceeded.is_empty() {
        return Ok(Some(Charge { quota: at, used: sum }));
    }
    let list = |amounts: &ResourceList| {
        resource_amounts::list(&resource_amounts::keep(amounts, &exceeded))
    };
    Err(QuotaRefusal::Exceeded {
        quota: quota.metadata.name.clone(),
        requested: list(&requested),
        used: list(used),
        limited: list(hard),
    })
}

#[cfg(test)]
mod tests;
