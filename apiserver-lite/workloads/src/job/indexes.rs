//! Sets of completion indexes, written as `0,2-4,7`.

use std::collections::BTreeSet;
use std::fmt;

/// Maximum number of indexes: the limit of `completions` of indexed jobs is lower.
const LEN_MAX: usize = 100_000;

/// Indexes of succeeded pods.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Intervals(BTreeSet<i32>);

impl Intervals {
    /// Reads a status; indexes from `completions` on are left out, and so is what is none.
    pub(super) fn parse(text: &str, completions: i32) -> Self {
        let mut indexes = BTreeSet::new();
        for part in text.split(',') {
            let (first, last) = part.split_once('-').unwrap_or((part, part));
            let (Ok(first), Ok(last)) = (first.parse::<i32>(), last.parse::<i32>()) else {
                continue;
            };
            let last = last.min(completions.saturating_sub(1));
            let left = LEN_MAX.saturating_sub(indexes.len());
            indexes.extend((first.max(0)..=last).take(left));
        }
        Self(indexes)
    }

    /// Adds an index.
    pub(super) fn insert(&mut self, index: i32) {
        self.0.insert(index);
    }

    /// Whether the index is in the set.
    pub(super) fn has(&self, index: i32) -> bool {
        self.0.contains(&index)
    }

    /// The number of indexes.
    pub(super) fn len(&self) -> usize {
        self.0.len()
    }
}

impl fmt::Display for Intervals {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut indexes = self.0.iter().copied().peekable();
        let mut separator = "";
        while let Some(first) = indexes.next() {
            let mut last = first;
            while let Some(next) = indexes.next_if_eq(&last.saturating_add(1)) {
                last = next;
            }
            write!(f, "{separator}{first}")?;
            match last.saturating_sub(first) {
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
