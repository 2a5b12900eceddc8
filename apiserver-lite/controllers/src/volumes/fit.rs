//! Matching of volumes to claims: the volume with the fewest access modes, and of these the smallest.

use proto_api::core::v1::{PersistentVolume, PersistentVolumeClaim};
use proto_api::selectors::Selector;

use super::{VolumeAnnotations, is_reserved_for, mode, storage};

/// Which volumes a claim may be bound to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Choice {
    /// Any matching volume.
    Any,
    /// Only a reserved volume: the scheduler selects the others together with a node.
    Scheduler,
}

/// The best of `volumes` for a claim; a reserved one comes first.
pub fn best<'a>(
    annotations: &VolumeAnnotations,
    claim: &PersistentVolumeClaim,
    volumes: impl IntoIterator<Item = &'a PersistentVolume>,
    choice: Choice,
) -> Option<&'a PersistentVolume> {
    let wanted = ClaimRequest::from_claim(annotations, claim)?;
    let mut best: Option<&PersistentVolume> = None;
    for volume in volumes {
        if is_reserved_for(volume, claim) {
            if wanted.takes_promised(volume) {
                return Some(volume);
            }
            continue;
        }
        if choice == Choice::Any
            && wanted.takes(volume)
            && best.is_none_or(|b| is_better_match(volume, b))
        {
            best = Some(volume);
        }
    }
    best
}

/// Whether a claim can be bound to an available volume. The claim's selector is parsed last: each new volume is compared with all unbound claims.
pub fn can_bind(
    annotations: &VolumeAnnotations,
    volume: &PersistentVolume,
    claim: &PersistentVolumeClaim,
) -> bool {
    is_available(volume)
        && fault(annotations, volume, claim).is_none()
        && ClaimRequest::from_claim(annotations, claim).is_some_and(|wanted| wanted.selects(volume))
}

fn is_better_match(volume: &PersistentVolume, than: &PersistentVolume) -> bool {
    let rank = |v: &PersistentVolume| (v.spec.access_modes.len(), storage(&v.spec.capacity));
    let (a, b) = (rank(volume), rank(than));
    (a.0, a.1, &volume.metadata.name) < (b.0, b.1, &than.metadata.name)
}

/// The requirements of a claim.
struct ClaimRequest<'a> {
    annotations: &'a VolumeAnnotations,
    claim: &'a PersistentVolumeClaim,
    selector: Option<Selector>,
}

impl<'a> ClaimRequest<'a> {
    /// `None` if the selector is invalid.
    fn from_claim(
        annotations: &'a VolumeAnnotations,
        claim: &'a PersistentVolumeClaim,
    ) -> Option<Self> {
        let selector = match &claim.spec.selector {
            Some(selector) => Some(Selector::from_label_selector(selector, "spec.selector").ok()?),
            None => None,
        };
        Some(Self { annotations, claim, selector })
    }

    /// A reserved volume must also be large enough and have the access modes.
    fn takes_promised(&self, volume: &PersistentVolume) -> bool {
        fault_of_size(volume, self.claim).is_none()
            && fault_of_mode(volume, self.claim).is_none()
            && fault_of_access(volume, self.claim).is_none()
            && (volume.metadata.deletion_timestamp.is_none() || is_claimed_by(volume, self.claim))
    }

    fn takes(&self, volume: &PersistentVolume) -> bool {
        is_available(volume)
            && fault(self.annotations, volume, self.claim).is_none()
            && self.selects(volume)
    }

    fn selects(&self, volume: &PersistentVolume) -> bool {
        self.selector.as_ref().is_none_or(|s| s.matches(&volume.metadata.labels))
    }
}

fn is_available(volume: &PersistentVolume) -> bool {
    volume.spec.claim_ref.is_none() && volume.status.phase == "Available"
}

/// Whether the claimRef has the claim's uid.
fn is_claimed_by(volume: &PersistentVolume, claim: &PersistentVolumeClaim) -> bool {
    volume.spec.claim_ref.as_ref().is_some_and(|of| of.uid == claim.metadata.uid)
}

/// Why a volume that a claim names does not match it, as kube-controller-manager words it.
pub fn fault(
    annotations: &VolumeAnnotations,
    volume: &PersistentVolume,
    claim: &PersistentVolumeClaim,
) -> Option<&'static str> {
    let class = annotations.class_of_claim(claim).unwrap_or_default();
    if volume.metadata.deletion_timestamp.is_some() {
        return Some("the volume is marked for deletion");
    }
    fault_of_size(volume, claim)
        .or_else(|| {
            (class != annotations.class_of_volume(volume))
                .then_some("storageClassName does not match")
        })
        .or_else(|| fault_of_mode(volume, claim))
        .or_else(|| fault_of_access(volume, claim))
}

fn fault_of_access(
    volume: &PersistentVolume,
    claim: &PersistentVolumeClaim,
) -> Option<&'static str> {
    let offers = |mode: &String| volume.spec.access_modes.contains(mode);
    (!claim.spec.access_modes.iter().all(offers)).then_some("incompatible accessMode")
}

fn fault_of_size(volume: &PersistentVolume, claim: &PersistentVolumeClaim) -> Option<&'static str> {
    let small = storage(&claim.spec.resources.requests) > storage(&volume.spec.capacity);
    small.then_some("requested PV is too small")
}

/// Why the volume modes do not match.
pub fn fault_of_mode(
    volume: &PersistentVolume,
    claim: &PersistentVolumeClaim,
) -> Option<&'static str> {
    let (has, wants) =
        (mode(volume.spec.volume_mode.as_ref()), mode(claim.spec.volume_mode.as_ref()));
    (has != wants).then_some("incompatible volumeMode")
}

#[cfg(test)]
mod tests {
    use proto_api::Time;
    use proto_api::meta::v1::LabelSelector;

    use super::*;
    use crate::volumes::examples::*;

    fn chosen(claim: &PersistentVolumeClaim, volumes: &[PersistentVolume]) -> Option<String> {
        let best = best(&VolumeAnnotations::new(names()), claim, volumes, Choice::Any);
        best.map(|volume| volume.metadata.name.clone())
    }

    #[test]
    fn the_smallest_that_fits() {
        let all = [volume("big", "10Gi"), volume("small", "512Mi"), volume("right", "2Gi")];
        assert_eq!(chosen(&claim("c"), &all).as_deref(), Some("right"));
        let mut shared = volume("shared", "1Gi");
        shared.spec.access_modes.push("ReadWriteMany".into());
        let all = [shared, volume("plain", "10Gi")];
        assert_eq!(chosen(&claim("c"), &all).as_deref(), Some("plain"), "few modes first");
        assert_eq!(chosen(&claim("c"), &[volume("small", "512Mi")]), None);
    }

    #[test]
    fn only_available_volumes_that_match_the_claim_are_chosen() {
        let taken = |change: &dyn Fn(&mut PersistentVolume)| {
            let mut volume = volume("v", "1Gi");
            change(&mut volume);
            chosen(&claim("c"), &[volume]).is_some()
        };
        assert!(taken(&|_| ()));
        assert!(!taken(&|v| v.status.phase = "Released".into()));
        assert!(!taken(&|v| v.status.phase = "Pending".into()));
        assert!(!taken(&|v| v.spec.storage_class_name = "fast".into()));
        assert!(!taken(&|v| v.spec.volume_mode = Some("Block".into())));
        assert!(!taken(&|v| v.spec.access_modes = vec!["ReadOnlyMany".into()]));
        assert!(!taken(&|v| v.metadata.deletion_timestamp = Some(Time::from_unix(1))));
        assert!(!taken(&|v| v.spec.claim_ref = Some(refer_to(&claim("other")))));
        let mut picky = claim("c");
        let labels = [("tier".to_owned(), "gold".to_owned())];
        picky.spec.selector =
            Some(LabelSelector { match_labels: labels.clone().into(), ..Default::default() });
        let mut gold = volume("gold", "9Gi");
        gold.metadata.labels = labels.into();
        let annotations = VolumeAnnotations::new(names());
        assert!(
            can_bind(&annotations, &gold, &picky) && can_bind(&annotations, &gold, &claim("c"))
        );
        assert!(!can_bind(&annotations, &volume("v", "1Gi"), &picky));
        assert_eq!(chosen(&picky, &[volume("v", "1Gi"), gold]).as_deref(), Some("gold"));
    }

    fn refer_to(claim: &PersistentVolumeClaim) -> proto_api::core::v1::ObjectReference {
        crate::volumes::reference_to(names(), claim)
    }

    #[test]
    fn a_promised_volume_comes_first() {
        let wanted = claim("c");
        let all = [volume("v", "1Gi"), promised("mine", &wanted, false)];
        assert_eq!(chosen(&wanted, &all).as_deref(), Some("mine"));
        let annotations = VolumeAnnotations::new(names());
        assert!(best(&annotations, &wanted, &all[..1], Choice::Scheduler).is_none());
        assert!(best(&annotations, &wanted, &all, Choice::Scheduler).is_some());
        let mut small = promised("mine", &wanted, true);
        small.spec.capacity.insert("storage".into(), "1Mi".parse().unwrap());
        assert_eq!(chosen(&wanted, &[small]), None);
        let mut shared = promised("mine", &wanted, true);
        shared.spec.access_modes = vec!["ReadOnlyMany".into()];
        assert_eq!(chosen(&wanted, &[shared]), None, "it does not offer what is asked for");
    }
}
