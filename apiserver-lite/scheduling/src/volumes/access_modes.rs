//! The access modes of cached claims and volumes: each once, and few. Validation admits a list that repeats one 200,000 times, and claims are
//! compared with volumes mode by mode.

use proto_api::core::v1::{PersistentVolume, PersistentVolumeClaim};

/// Most access modes that are kept of a volume. Validation knows four; other servers may know more.
pub const MODES_MAX: usize = 8;

/// Keeps each access mode of a claim once, in order. Of more than [`MODES_MAX`] it keeps one more than of a volume: no volume has them all.
pub fn limit_modes_of_claim(claim: &mut PersistentVolumeClaim) {
    let most = MODES_MAX.saturating_add(1);
    keep_distinct(&mut claim.spec.access_modes, most);
    keep_distinct(&mut claim.status.access_modes, most);
}

/// Keeps each access mode of a volume once, in order, at most [`MODES_MAX`].
pub fn limit_modes_of_volume(volume: &mut PersistentVolume) {
    keep_distinct(&mut volume.spec.access_modes, MODES_MAX);
}

fn keep_distinct(modes: &mut Vec<String>, most: usize) {
    let mut kept: Vec<String> = Vec::new();
    for mode in modes.drain(..) {
        if kept.len() < most && !kept.contains(&mode) {
            kept.push(mode);
        }
    }
    *modes = kept;
}

#[cfg(test)]
mod tests {
    use super::*;

    fn modes(names: &[&str]) -> Vec<String> {
        names.iter().map(|name| (*name).to_owned()).collect()
    }

    #[test]
    fn each_access_mode_is_kept_once_in_order() {
        let (rwo, rox) = ("ReadWriteOnce", "ReadOnlyMany");
        for (given, kept) in [
            (modes(&[]), modes(&[])),
            (modes(&[rwo, rox]), modes(&[rwo, rox])),
            (modes(&[rox, rwo, rox, rox]), modes(&[rox, rwo])),
            (vec![rwo.to_owned(); 200_000], modes(&[rwo])),
            (modes(&["Other", rwo, "Other"]), modes(&["Other", rwo])),
        ] {
            let (mut claim, mut volume) =
                (PersistentVolumeClaim::default(), PersistentVolume::default());
            claim.spec.access_modes = given.clone();
            claim.status.access_modes = given.clone();
            volume.spec.access_modes = given;
            limit_modes_of_claim(&mut claim);
            limit_modes_of_volume(&mut volume);
            assert_eq!((&claim.spec.access_modes, &claim.status.access_modes), (&kept, &kept));
            assert_eq!(volume.spec.access_modes, kept);
        }
    }

    #[test]
    fn no_volume_has_all_of_too_many_modes() {
        let many: Vec<String> = (0..1000).map(|nth| format!("m{nth}")).collect();
        let (mut claim, mut volume) =
            (PersistentVolumeClaim::default(), PersistentVolume::default());
        claim.spec.access_modes = many.clone();
        volume.spec.access_modes = many;
        limit_modes_of_claim(&mut claim);
        limit_modes_of_volume(&mut volume);
        let (wanted, offered) = (claim.spec.access_modes, volume.spec.access_modes);
        assert_eq!((wanted.len(), offered.len()), (9, 8));
        assert!(!wanted.iter().all(|mode| offered.contains(mode)));
    }
}
