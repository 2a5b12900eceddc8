//! Whether what clients did with one value at the same time can be put in an order: each operation between its beginning and its end, and each read what
//! the write before it wrote. No revision is believed; written values are told apart by their numbers.

use std::collections::{HashMap, HashSet};
use std::fmt;

/// What a client did. `None` is a value that is absent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Did {
    Read(Option<u64>),
    Write(u64),
    /// It had the first value, and has the second.
    Swap(Option<u64>, u64),
    /// It had the value, and is absent.
    Delete(u64),
}

impl Did {
    /// What it found.
    fn found(self) -> Option<u64> {
        match self {
            Did::Read(found) | Did::Swap(found, _) => found,
            Did::Delete(found) => Some(found),
            Did::Write(_) => None,
        }
    }

    fn wrote(self) -> Option<u64> {
        match self {
            Did::Write(wrote) | Did::Swap(_, wrote) => Some(wrote),
            Did::Read(_) | Did::Delete(_) => None,
        }
    }

    /// The value after it; `None` if it cannot have been done on `value`.
    fn done_on(self, value: Option<u64>) -> Option<Option<u64>> {
        match self {
            Did::Read(found) => (found == value).then_some(value),
            Did::Write(wrote) => Some(Some(wrote)),
            Did::Swap(found, wrote) => (found == value).then_some(Some(wrote)),
            Did::Delete(found) => (Some(found) == value).then_some(None),
        }
    }
}

/// An operation that was done, or of which that is not known. One that was refused is none: nobody may ever read what it would have written.
#[derive(Clone, Copy, Debug)]
pub struct Operation {
    /// The moments count up, whatever happened between them.
    pub began: u64,
    /// `None` for one whose answer was lost.
    pub ended: Option<u64>,
    pub did: Did,
}

/// Operations that may be under way together.
const WINDOW: usize = 128;

/// The first of the operations that no order explains.
#[derive(Debug)]
pub struct NoOrder(Operation);

impl fmt::Display for NoOrder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Operation { began, ended, did } = self.0;
        write!(f, "{did:?} from {began} to {ended:?} has no place")
    }
}

/// Looks for an order of all operations of one value, which is absent at first.
pub fn find_order(operations: &[Operation]) -> Result<(), NoOrder> {
    let mut done = without_unseen(operations);
    done.sort_by_key(|(began, ..)| *began);
    // The first that is not in order yet, which of those after it are, and the value then.
    let mut open: Vec<(usize, u128, Option<u64>)> = vec![(0, 0, None)];
    let mut known = HashSet::new();
    let mut furthest = 0;
    while let Some((first, later, value)) = open.pop() {
        let Some(_) = done.get(first) else { return Ok(()) };
        furthest = furthest.max(first);
        let mut first_end = u64::MAX;
        for (nth, (began, ended, did)) in done.iter().enumerate().skip(first) {
            if *began > first_end {
                break;
            }
            assert!(nth - first < WINDOW, "too many operations at once");
            if later & (1 << (nth - first)) != 0 {
                continue;
            }
            first_end = first_end.min(*ended);
            let Some(value) = did.done_on(value) else { continue };
            let mut next = (first, later | (1 << (nth - first)), value);
            while next.1 & 1 != 0 {
                next = (next.0 + 1, next.1 >> 1, next.2);
            }
            if known.insert(next) {
                open.push(next);
            }
        }
    }
    let (began, ended, did) = done[furthest];
    Err(NoOrder(Operation { began, ended: Some(ended), did }))
}

/// The operations with their ends. Of those that were not answered one whose value somebody found was done before that one ended; the others need not have
/// been done.
fn without_unseen(operations: &[Operation]) -> Vec<(u64, u64, Did)> {
    let mut ends: Vec<Option<u64>> = operations.iter().map(|operation| operation.ended).collect();
    let writers: HashMap<u64, usize> = operations
        .iter()
        .enumerate()
        .filter_map(|(nth, operation)| Some((operation.did.wrote()?, nth)))
        .collect();
    let mut is_settled = false;
    while !is_settled {
        is_settled = true;
        for (nth, operation) in operations.iter().enumerate() {
            let Some(end) = ends[nth] else { continue };
            let writer = operation.did.found().and_then(|found| writers.get(&found));
            let Some(writer) = writer.filter(|writer| operations[**writer].ended.is_none()) else {
                continue;
            };
            if ends[*writer].is_none_or(|known| known > end) {
                ends[*writer] = Some(end);
                is_settled = false;
            }
        }
    }
    let both = operations.iter().zip(ends);
    both.filter_map(|(operation, end)| Some((operation.began, end?, operation.did))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn order(operations: &[(u64, u64, Did)]) -> bool {
        let operations = operations.iter().map(|(began, ended, did)| Operation {
            began: *began,
            ended: (*ended > 0).then_some(*ended),
            did: *did,
        });
        find_order(&operations.collect::<Vec<_>>()).is_ok()
    }

    #[test]
    fn only_what_one_copy_would_answer_has_an_order() {
        use Did::{Read, Swap, Write};
        assert!(order(&[(1, 2, Read(None)), (3, 4, Write(1)), (5, 6, Read(Some(1)))]));
        assert!(!order(&[(1, 2, Write(1)), (3, 4, Read(None))]), "old");
        assert!(order(&[(1, 4, Write(1)), (2, 3, Read(None))]), "at the same time");
        assert!(!order(&[(1, 2, Write(1)), (3, 4, Write(2)), (5, 6, Read(Some(1)))]), "lost");
        // Two readers during a write: the second may not see less than the first did.
        let (new, old) = (Read(Some(1)), Read(None));
        assert!(order(&[(1, 9, Write(1)), (2, 3, old), (4, 5, new)]));
        assert!(!order(&[(1, 9, Write(1)), (2, 3, new), (4, 5, old)]));
        assert!(!order(&[(1, 2, Write(1)), (3, 6, Swap(Some(1), 2)), (4, 5, Swap(Some(1), 3))]));
        assert!(!order(&[(1, 2, Read(Some(7)))]), "nobody wrote it");
    }

    #[test]
    fn a_deleted_value_is_absent_and_was_there() {
        use Did::{Delete, Read, Swap, Write};
        let one = (1, 2, Write(1));
        assert!(order(&[one, (3, 4, Delete(1)), (5, 6, Read(None)), (7, 8, Swap(None, 2))]));
        assert!(!order(&[one, (3, 4, Delete(1)), (5, 6, Read(Some(1)))]), "it came back");
        assert!(!order(&[one, (3, 6, Delete(1)), (4, 5, Delete(1))]), "deleted twice");
        assert!(order(&[one, (3, 6, Delete(1)), (4, 5, Read(Some(1)))]), "at the same time");
    }

    #[test]
    fn unanswered_writes_are_done_once_or_not_at_all() {
        use Did::{Read, Swap, Write};
        assert!(order(&[(1, 0, Write(1)), (2, 3, Read(None)), (4, 5, Read(Some(1)))]));
        assert!(order(&[(1, 0, Write(1)), (2, 3, Read(None)), (4, 5, Read(None))]));
        assert!(!order(&[
            (1, 0, Write(1)),
            (2, 3, Read(Some(1))),
            (4, 5, Write(2)),
            (6, 7, Read(Some(1)))
        ]));
        // The second is seen, and so the first was done as well.
        let chain = [(1, 0, Write(1)), (2, 0, Swap(Some(1), 2)), (3, 4, Read(Some(2)))];
        assert!(order(&chain));
        assert!(!order(&[chain[0], chain[1], chain[2], (5, 6, Read(Some(1)))]));
    }
}
