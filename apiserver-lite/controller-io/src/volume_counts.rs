//! The number of claims and volumes, counted when metrics are scraped.

use std::collections::BTreeMap;
use std::fmt;

use prometheus::core::{Collector, Desc};
use prometheus::proto::MetricFamily;
use prometheus::{IntGaugeVec, Opts};
use proto_api::core::v1::{PersistentVolume, PersistentVolumeClaim};

use crate::informers::Informers;

/// The gauges: bound and unbound, by storage class or namespace.
#[derive(Clone)]
pub struct VolumeGauges {
    volumes: [IntGaugeVec; 2],
    claims: [IntGaugeVec; 2],
}

/// The collector of the counts.
#[derive(Clone)]
pub struct VolumeCounts {
    informers: Informers,
    gauges: VolumeGauges,
}

impl fmt::Debug for VolumeCounts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("VolumeCounts")
    }
}

impl VolumeGauges {
    /// The gauges, without values.
    ///
    /// # Errors
    /// A metric's name is invalid.
    pub fn new() -> Result<Self, prometheus::Error> {
        let gauge = |name: &str, help: &str, label: &str| {
            IntGaugeVec::new(Opts::new(format!("pv_collector_{name}"), help), &[label])
        };
        Ok(Self {
            volumes: [
                gauge("bound_pv_count", "Bound PersistentVolumes.", "storage_class")?,
                gauge("unbound_pv_count", "Unbound PersistentVolumes.", "storage_class")?,
            ],
            claims: [
                gauge("bound_pvc_count", "Bound PersistentVolumeClaims.", "namespace")?,
                gauge("unbound_pvc_count", "Unbound PersistentVolumeClaims.", "namespace")?,
            ],
        })
    }

    fn all(&self) -> impl Iterator<Item = &IntGaugeVec> {
        self.volumes.iter().chain(&self.claims)
    }
}

impl VolumeCounts {
    /// A collector over the caches.
    ///
    /// # Errors
    /// A metric's name is invalid.
    pub fn new(informers: Informers) -> Result<Self, prometheus::Error> {
        Ok(Self { informers, gauges: VolumeGauges::new()? })
    }
}

impl Collector for VolumeGauges {
    fn desc(&self) -> Vec<&Desc> {
        self.all().flat_map(Collector::desc).collect()
    }

    fn collect(&self) -> Vec<MetricFamily> {
        self.all().flat_map(Collector::collect).collect()
    }
}

impl Collector for VolumeCounts {
    fn desc(&self) -> Vec<&Desc> {
        self.gauges.desc()
    }

    fn collect(&self) -> Vec<MetricFamily> {
        let volumes = self.informers.volumes.list();
        show(&self.gauges.volumes, count(volumes.iter().map(|(_, volume)| of_volume(volume))));
        let claims = self.informers.claims.list();
        show(&self.gauges.claims, count(claims.iter().map(|(_, claim)| of_claim(claim))));
        self.gauges.collect()
    }
}

/// The number of bound and unbound objects, by label.
type BoundCounts<'a> = BTreeMap<&'a str, [i64; 2]>;

fn count<'a>(objects: impl Iterator<Item = (&'a str, bool)>) -> BoundCounts<'a> {
    let mut counts = BoundCounts::new();
    for (label, bound) in objects {
        let [of_bound, of_others] = counts.entry(label).or_default();
        let count = if bound { of_bound } else { of_others };
        *count = count.saturating_add(1);
    }
    counts
}

fn of_volume(volume: &PersistentVolume) -> (&str, bool) {
    (&volume.spec.storage_class_name, volume.status.phase == "Bound")
}

fn of_claim(claim: &PersistentVolumeClaim) -> (&str, bool) {
    (&claim.metadata.namespace, claim.status.phase == "Bound")
}

/// A label without objects is removed instead of set to 0.
fn show([of_bound, of_others]: &[IntGaugeVec; 2], counts: BoundCounts<'_>) {
    of_bound.reset();
    of_others.reset();
    for (label, [bound, others]) in counts {
        of_bound.with_label_values(&[label]).set(bound);
        of_others.with_label_values(&[label]).set(others);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bound_and_unbound_are_counted_separately() {
        let counts = count([("a", true), ("b", false), ("a", true), ("a", false)].into_iter());
        assert_eq!(counts, BoundCounts::from([("a", [2, 1]), ("b", [0, 1])]));
    }
}
