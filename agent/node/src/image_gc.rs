//! Image garbage collection: which images are removed when their disk fills up.
//!
//! ```text
//!   used >= high ──► free down to low: not in use, old enough, longest unused first
//! ```
//!
//! "In use" are images of any container in the runtime, images named by admitted pods, images being pulled, and images that are
//! pinned or imported by the operator. They are never removed, however full the disk is.

#![cfg_attr(not(test), warn(clippy::arithmetic_side_effects))]

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

/// Settings of image garbage collection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ImageGcLimits {
    /// Disk usage in percent that triggers garbage collection; 100 disables it.
    pub high_percent: u8,
    /// Disk usage in percent down to which images are removed.
    pub low_percent: u8,
    /// Minimum time since an image was first seen before it may be removed.
    pub min_age: Duration,
}

impl Default for ImageGcLimits {
    /// Kubernetes' defaults: 85 %, 80 %, two minutes.
    fn default() -> Self {
        Self { high_percent: 85, low_percent: 80, min_age: Duration::from_secs(120) }
    }
}

/// Space on the image disk.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ImageDiskRoom {
    /// Total bytes.
    pub capacity: u64,
    /// Available bytes.
    pub available: u64,
}

/// An image on the node.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PresentImage {
    /// Runtime id.
    pub id: String,
    /// All tags and digests.
    pub names: Vec<String>,
    /// Bytes on disk.
    pub size: u64,
    /// Whether the runtime marks it as pinned.
    pub pinned: bool,
}

/// First sight and last use of images by id, since boot. Owned by the caller; holds only images that exist.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ImageUses(BTreeMap<String, ImageUse>);

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct ImageUse {
    first_seen: Duration,
    last_used: Option<Duration>,
}

/// Images that garbage collection must keep.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RequiredImages {
    /// Ids of images of containers, running or exited.
    pub ids: BTreeSet<String>,
    /// Full names of images referenced by pods, pulls and imports.
    pub names: BTreeSet<String>,
}

impl RequiredImages {
    fn has(&self, image: &PresentImage) -> bool {
        image.pinned
            || self.ids.contains(&image.id)
            || image.names.iter().any(|name| self.names.contains(name) || self.ids.contains(name))
    }
}

impl ImageUses {
    /// Updates the times from the images on the node and those in use at `now`.
    pub fn observe(&mut self, images: &[PresentImage], needed: &RequiredImages, now: Duration) {
        self.0.retain(|id, _| images.iter().any(|image| image.id == *id));
        for image in images {
            let use_ = self
                .0
                .entry(image.id.clone())
                .or_insert(ImageUse { first_seen: now, last_used: None });
            if needed.has(image) {
                use_.last_used = Some(now);
            }
        }
    }

    /// Images that may be removed, least recently used first.
    pub fn candidates<'a>(
        &self,
        images: &'a [PresentImage],
        needed: &RequiredImages,
        min_age: Duration,
        now: Duration,
    ) -> Vec<&'a PresentImage> {
        let mut free: Vec<(ImageUse, &PresentImage)> = images
            .iter()
            .filter(|image| !needed.has(image))
            .filter_map(|image| Some((*self.0.get(&image.id)?, image)))
            .filter(|(use_, _)| now.saturating_sub(use_.first_seen) >= min_age)
            .collect();
        free.sort_by_key(|(use_, image)| (use_.last_used, use_.first_seen, image.id.clone()));
        free.into_iter().map(|(_, image)| image).collect()
    }
}

/// Bytes to free; `None` while usage is below the threshold.
pub fn bytes_to_free(room: ImageDiskRoom, limits: ImageGcLimits) -> Option<u64> {
    if room.capacity == 0 || limits.high_percent >= 100 {
        return None;
    }
    let used = room.capacity.saturating_sub(room.available);
    let percent = u128::from(used).saturating_mul(100).checked_div(u128::from(room.capacity))?;
    if percent < u128::from(limits.high_percent) {
        return None;
    }
    let keep = u128::from(room.capacity).saturating_mul(u128::from(limits.low_percent)) / 100;
    let keep = u64::try_from(keep).unwrap_or(u64::MAX);
    Some(used.saturating_sub(keep)).filter(|bytes| *bytes > 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn s(secs: u64) -> Duration {
        Duration::from_secs(secs)
    }

    fn image(id: &str, name: &str) -> PresentImage {
        PresentImage { id: id.into(), names: vec![name.into()], size: 10, pinned: false }
    }

    #[test]
    fn thresholds() {
        let limits = ImageGcLimits::default();
        let cases = [
            (100, 20, None),
            (100, 16, None),
            (100, 15, Some(5)),
            (100, 0, Some(20)),
            (0, 0, None),
            (1000, 149, Some(51)),
        ];
        for (capacity, available, expect) in cases {
            assert_eq!(
                bytes_to_free(ImageDiskRoom { capacity, available }, limits),
                expect,
                "{available}"
            );
        }
        let never = ImageGcLimits { high_percent: 100, ..limits };
        assert_eq!(bytes_to_free(ImageDiskRoom { capacity: 100, available: 0 }, never), None);
    }

    #[test]
    fn the_longest_unused_go_first_and_what_is_needed_never() {
        let mut uses = ImageUses::default();
        let all = vec![
            image("a", "a:1"),
            image("b", "b:1"),
            image("c", "c:1"),
            image("by-name", "n:1"),
            PresentImage { pinned: true, ..image("pinned", "p:1") },
        ];
        let needs = |ids: &[&str], names: &[&str]| RequiredImages {
            ids: ids.iter().map(|id| (*id).to_owned()).collect(),
            names: names.iter().map(|name| (*name).to_owned()).collect(),
        };
        uses.observe(&all, &needs(&["b"], &[]), s(0));
        uses.observe(&all, &needs(&["c"], &[]), s(100));
        let now = needs(&[], &["n:1"]);
        let ids = |uses: &ImageUses, at| -> Vec<String> {
            let found = uses.candidates(&all, &now, s(120), at);
            found.into_iter().map(|image| image.id.clone()).collect()
        };
        assert_eq!(ids(&uses, s(119)), Vec::<String>::new(), "all too young");
        assert_eq!(ids(&uses, s(120)), ["a", "b", "c"]);
        // An image that was removed and pulled again counts as new.
        uses.observe(&all[1..], &now, s(130));
        uses.observe(&all, &now, s(140));
        assert_eq!(ids(&uses, s(150)), ["b", "c"]);
    }
}
