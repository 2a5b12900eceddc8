//! A claim that asks for more than it has: its driver's resizer makes the volume larger, the node its file system.
//! Nothing here can do either; people are told who does.

use proto_api::Quantity;
use proto_api::core::v1::PersistentVolumeClaim;
use proto_api::names::Names;
use proto_client::events::EventKind;

use super::{say, storage};
use crate::controllers::Plan;

/// Says once for each wish that it is a resizer's turn. `told` is the last wish of the claim that was told of.
pub fn plan(names: &Names, claim: &PersistentVolumeClaim, told: Option<Quantity>) -> Plan {
    let wanted = storage(&claim.spec.resources.requests);
    let news = told != Some(wanted);
    let bound = claim.status.phase == "Bound" && claim.metadata.deletion_timestamp.is_none();
    if !(news && bound && wanted > storage(&claim.status.capacity)) {
        return Plan::default();
    }
    let message = "Ignoring the PVC: didn't find a plugin capable of expanding the volume; waiting for an external controller to process this PVC.";
    let said = vec![say(names, claim, EventKind::Normal, "ExternalExpanding", message)];
    Plan { said, ..Plan::default() }
}

#[cfg(test)]
mod tests {
    use super::super::examples::*;
    use super::*;

    #[test]
    fn a_wish_for_more_is_told_once() {
        let sized = |size: &str, phase: &str| {
            let mut claim = claim("c");
            claim.status.phase = phase.into();
            claim.status.capacity.insert("storage".into(), "1Gi".parse().unwrap());
            claim.spec.resources.requests.insert("storage".into(), size.parse().unwrap());
            claim
        };
        let told = |claim: &PersistentVolumeClaim, before: Option<&str>| {
            plan(names(), claim, before.map(|size| size.parse().unwrap())).said.len()
        };
        let large = sized("2Gi", "Bound");
        assert_eq!(told(&sized("1Gi", "Bound"), None), 0);
        assert_eq!(told(&large, None), 1);
        assert_eq!(told(&large, Some("2Gi")), 0);
        assert_eq!(told(&large, Some("1500Mi")), 1, "another wish");
        assert_eq!(told(&sized("2Gi", "Pending"), None), 0);
        let mut grown = large;
        grown.status.capacity.insert("storage".into(), "2Gi".parse().unwrap());
        assert_eq!(told(&grown, None), 0);
    }
}
