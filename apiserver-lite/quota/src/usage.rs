//! What a namespace uses of a quota, recalculated from its objects.

use std::collections::BTreeSet;
use std::time::Duration;

use proto_api::core::v1::{
    PersistentVolumeClaim, Pod, ResourceQuotaSpec, ResourceQuotaStatus, Service,
};
use proto_api::names::Names;
use proto_api::{Quantity, Time};

use crate::counted_resources::{Counted, CountedResource};
use crate::resource_amounts::{self, ResourceList};
use crate::{pods, scopes};

/// Adds up what a namespace uses of one quota.
#[derive(Debug)]
pub struct QuotaUsage<'a> {
    spec: &'a ResourceQuotaSpec,
    names: &'a Names,
    now: Time,
    sum: ResourceList,
    changes_in: Option<Duration>,
}

impl<'a> QuotaUsage<'a> {
    /// Nothing is used yet.
    pub fn new(spec: &'a ResourceQuotaSpec, names: &'a Names, now: Time) -> Self {
        Self { spec, names, now, sum: ResourceList::new(), changes_in: None }
    }

    /// Whether the quota counts objects of the kind, so that they have to be added.
    pub fn needs(&self, kind: &CountedResource) -> bool {
        let counts_all =
            kind == &CountedResource::new("", "pods") || !scopes::has_scopes(self.spec);
        let mut hard = self.spec.hard.keys();
        counts_all && hard.any(|name| kind.is_counted_by(name, self.names))
    }

    /// Adds the pods that are in the quota's scopes.
    pub fn add_pods(&mut self, pods: &[Pod]) {
        for pod in pods.iter().filter(|pod| scopes::count_pod(self.spec, pod)) {
            self.add(Counted::Pod(pod));
            let left = pods::left_until_ended(pod, self.now).filter(|left| !left.is_zero());
            self.changes_in = self.changes_in.into_iter().chain(left).min();
        }
    }

    /// Adds what these Services use: their number, load balancers and node ports.
    pub fn add_services(&mut self, services: &[Service]) {
        services.iter().for_each(|service| self.add(Counted::Service(service)));
    }

    /// Adds what these claims use: their number and requested storage, also by storage class.
    pub fn add_claims(&mut self, claims: &[PersistentVolumeClaim]) {
        claims.iter().for_each(|claim| self.add(Counted::Claim(claim)));
    }

    /// Adds objects of a kind that is counted by number only.
    pub fn add_count(&mut self, kind: &CountedResource, count: i64) {
        resource_amounts::add(&mut self.sum, &kind.amounts(count));
    }

    fn add(&mut self, counted: Counted<'_>) {
        resource_amounts::add(&mut self.sum, &counted.amounts(self.names, self.now));
    }

    /// When the amounts change by time alone: a pod that is being deleted stops counting when its grace period is over.
    pub fn changes_in(&self) -> Option<Duration> {
        self.changes_in
    }

    /// The status of the quota: each resource that is limited and that is counted, at zero if nothing uses it. `is_counted` says of a name
    /// whether any served kind is counted by it.
    pub fn status(self, is_counted: impl Fn(&str) -> bool) -> ResourceQuotaStatus {
        let hard = &self.spec.hard;
        let limited: BTreeSet<&str> = hard.keys().map(String::as_str).collect();
        let mut used = resource_amounts::keep(&self.sum, &limited);
        for name in limited.into_iter().filter(|name| is_counted(name)) {
            used.entry(name.to_owned()).or_insert(Quantity::ZERO);
        }
        ResourceQuotaStatus { hard: hard.clone(), used }
    }
}

/// The counted status with what has been charged since: what the quota has used `now` beyond what it had used `before` the count began.
pub fn with_growth(
    counted: &ResourceQuotaStatus,
    before: &ResourceList,
    now: &ResourceList,
) -> ResourceQuotaStatus {
    let mut status = counted.clone();
    for (name, amount) in resource_amounts::growth(now.clone(), before) {
        if let Some(used) = status.used.get_mut(&name) {
            *used = *used + amount;
        }
    }
    status
}
