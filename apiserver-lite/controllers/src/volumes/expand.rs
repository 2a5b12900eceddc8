//! The persistentvolume-expander: records who expands a claim. The CSI driver's resizer expands the volume, and the kubelet the file system.

use proto_api::Quantity;
use proto_api::core::v1::PersistentVolumeClaim;
use proto_api::event_report::EventKind;
use proto_api::names::Names;

use super::{event_report, storage};
use crate::Plan;

/// Records an event once for each requested size. `announced` is the last announced size of the claim.
pub fn plan(names: &Names, claim: &PersistentVolumeClaim, announced: Option<Quantity>) -> Plan {
    let wanted = storage(&claim.spec.resources.requests);
    let news = announced != Some(wanted);
    let bound = claim.status.phase == "Bound" && claim.metadata.deletion_timestamp.is_none();
    if !(news && bound && wanted > storage(&claim.status.capacity)) {
        return Plan::default();
    }
    let message = "Ignoring the PVC: didn't find a plugin capable of expanding the volume; waiting for an external controller to process this PVC.";
    let reports = vec![event_report(names, claim, EventKind::Normal, "ExternalExpanding", message)];
    Plan { reports, ..Plan::default() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::volumes::examples::*;

    #[test]
    fn a_wish_for_more_is_announced_once() {
        let sized = |size: &str, phase: &str| {
            let mut claim = claim("c");
            claim.status.phase = phase.into();
            claim.status.capacity.insert("storage".into(), "1Gi".parse().unwrap());
            claim.spec.resources.requests.insert("storage".into(), size.parse().unwrap());
            claim
        };
        let announced = |claim: &PersistentVolumeClaim, before: Option<&str>| {
            plan(names(), claim, before.map(|size| size.parse().unwrap())).reports.len()
        };
        let large = sized("2Gi", "Bound");
        assert_eq!(announced(&sized("1Gi", "Bound"), None), 0);
        assert_eq!(announced(&large, None), 1);
        assert_eq!(announced(&large, Some("2Gi")), 0);
        assert_eq!(announced(&large, Some("1500Mi")), 1, "another wish");
        assert_eq!(announced(&sized("2Gi", "Pending"), None), 0);
        let mut grown = large;
        grown.status.capacity.insert("storage".into(), "2Gi".parse().unwrap());
        assert_eq!(announced(&grown, None), 0);
    }
}
