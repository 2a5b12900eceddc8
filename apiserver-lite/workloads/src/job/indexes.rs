//! Sets of completion indexes, written as `0,2-4,7`.

use std::collections::BTreeMap;
use std::fmt;
use std::ops::Range;

/// Indexes of succeeded pods, as intervals: their first indexes with their last ones, and at least one index between any two. A Job has as many completions
/// as a number may say, but no more intervals than its status has characters.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Intervals(BTreeMap<i32, i32>);

impl Intervals {
    /// Reads a status; indexes from `completions` on are left out, and so is what is none.
    pub(super) fn parse(text: &str, completions: i32) -> Self {
        let mut intervals = Self::default();
        for part in text.split(',') {
            let (first, last) = part.split_once('-').unwrap_or((part, part));
            if let (Ok(first), Ok(last)) = (first.parse::<i32>(), last.parse::<i32>()) {
                intervals.insert_all(first.max(0), last.min(completions.saturating_sub(1)));
            }
        }
        intervals
    }

    /// Adds an index.
    pub(super) fn insert(&mut self, index: i32) {
        self.insert_all(index, index);
    }

    /// Adds the indexes of an interval, and joins it with those that it meets.
    fn insert_all(&mut self, mut first: i32, mut last: i32) {
        if first > last {
            return;
        }
        while let Some((&other, &end)) = self.0.range(..=last.saturating_add(1)).next_back()
            && end >= first.saturating_sub(1)
        {
            (first, last) = (first.min(other), last.max(end));
            self.0.remove(&other);
        }
        self.0.insert(first, last);
    }

    /// The number of indexes.
    pub(super) fn len(&self) -> usize {
        let lens = self.0.iter().map(|(first, last)| last.saturating_sub(*first));
        let lens = lens.map(|len| usize::try_from(len).unwrap_or(0).saturating_add(1));
        lens.fold(0, usize::saturating_add)
    }

    /// The indexes below `completions` that are not in the set.
    pub(super) fn missing(&self, completions: i32) -> impl Iterator<Item = i32> {
        let ends = self.0.keys().copied().chain([completions]);
        let starts = [0].into_iter().chain(self.0.values().map(|last| last.saturating_add(1)));
        let gaps = starts.zip(ends).map(move |(start, end)| start..end.min(completions));
        gaps.flat_map(|gap: Range<i32>| gap)
    }
}

impl fmt::Display for Intervals {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut separator = "";
        for (first, last) in &self.0 {
            write!(f, "{separator}{first}")?;
            match last.saturating_sub(*first) {
                0 => {}
                // Two are a list, three an interval, as in Kubernetes.
                1 => write!(f, ",{last}")?,
                _ => write!(f, "-{last}")?,
            }
            separator = ",";
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_job_may_have_as_many_completions_as_a_number_says() {
        for text in ["0-99998", "0-149999", "5,100000-149998", "0-1999999999,2000000001"] {
            let intervals = Intervals::parse(text, i32::MAX);
            assert_eq!(intervals.to_string(), text);
        }
        let mut intervals = Intervals::parse("1-149998,150001-2147483646", i32::MAX);
        assert_eq!(intervals.missing(i32::MAX).collect::<Vec<_>>(), [0, 149_999, 150_000]);
        [150_000, 0, 149_999].into_iter().for_each(|index| intervals.insert(index));
        assert_eq!(intervals.to_string(), "0-2147483646");
        assert_eq!((intervals.len(), intervals.missing(i32::MAX).next()), (2_147_483_647, None));
    }

    proptest! {
        #[test]
        fn intervals_are_sets(
            parts in proptest::collection::vec((-2..20i32, -1..6i32), 0..12),
            inserted in proptest::collection::vec(0..15i32, 0..12),
        ) {
            let text: Vec<String> =
                parts.iter().map(|(first, len)| format!("{first}-{}", first + len)).collect();
            let mut intervals = Intervals::parse(&text.join(","), 15);
            inserted.iter().for_each(|index| intervals.insert(*index));
            let read = parts.iter().filter(|(first, _)| *first >= 0);
            let mut expected: BTreeSet<i32> =
                read.flat_map(|(first, len)| *first..=(first + len).min(14)).collect();
            expected.extend(&inserted);
            prop_assert_eq!(intervals.len(), expected.len());
            let missing: Vec<i32> = (0..15).filter(|index| !expected.contains(index)).collect();
            prop_assert_eq!(intervals.missing(15).collect::<Vec<_>>(), missing);
            prop_assert_eq!(Intervals::parse(&intervals.to_string(), 15), intervals);
        }
    }
}
