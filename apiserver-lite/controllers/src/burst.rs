//! How large the objects are together that one plan creates. Their templates are a user's, and a plan holds each object whole: 500 pods of a template of
//! 3 MB would take all memory before the first of them is written, or refused by a quota.

/// Maximum size in Protobuf. In memory objects take up to sixty times as much.
const BYTES_MAX: usize = 1024 * 1024;

/// The size of the objects that a plan creates so far. What does not fit is left to the next plan.
#[derive(Debug, Default)]
pub struct BurstSize(Option<usize>);

impl BurstSize {
    /// Whether one more object of this size, in bytes of Protobuf, fits; then it counts. The first one always does.
    pub fn takes(&mut self, bytes: usize) -> bool {
        let size = self.0.unwrap_or(0).saturating_add(bytes);
        let fits = self.0.is_none() || size <= BYTES_MAX;
        if fits {
            self.0 = Some(size);
        }
        fits
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_plan_takes_one_object_of_any_size_and_others_up_to_a_mebibyte() {
        let mut large = BurstSize::default();
        assert!(large.takes(usize::MAX) && !large.takes(0) && !large.takes(usize::MAX));
        let mut small = BurstSize::default();
        assert!(small.takes(BYTES_MAX - 1) && !small.takes(2) && small.takes(1) && !small.takes(1));
    }
}
