//! The back-off of failed pods: a kubelet that rejects a pod of a set would otherwise reject its successor at once, without end.

use std::collections::BTreeMap;
use std::time::Duration;

use proto_api::Time;
use proto_api::apps::v1::DaemonSet;

/// The first wait.
const FIRST: Duration = Duration::from_secs(1);
/// The longest wait.
const LONGEST: Duration = Duration::from_secs(15 * 60);
/// An entry is forgotten after this long without a failure.
const FORGOTTEN: Duration = Duration::from_secs(30 * 60);

/// Uid of the set, its generation, node.
type PlaceKey = (String, i64, String);

/// When failed pods of each set and node were last deleted. Losing it costs a deletion that comes too early.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct FailedPods {
    entries: BTreeMap<PlaceKey, Entry>,
}

#[derive(Clone, Copy, Debug, PartialEq)]
struct Entry {
    wait: Duration,
    since: Time,
}

impl FailedPods {
    /// The time for which the failed pod of this node stays; none if it may be deleted now.
    pub(super) fn remaining_delay(
        &self,
        set: &DaemonSet,
        node: &str,
        now: Time,
    ) -> Option<Duration> {
        let entry = self.entries.get(&key(set, node))?;
        let age = age(entry.since, now);
        (age < FORGOTTEN).then(|| entry.wait.saturating_sub(age)).filter(|left| !left.is_zero())
    }

    /// Notes that the failed pod of this node is deleted.
    pub(super) fn deleted(&mut self, set: &DaemonSet, node: &str, now: Time) {
        self.entries.retain(|_, entry| age(entry.since, now) < FORGOTTEN);
        let entry = self.entries.entry(key(set, node));
        let doubled = |entry: &mut Entry| {
            *entry = Entry { wait: entry.wait.saturating_mul(2).min(LONGEST), since: now };
        };
        entry.and_modify(doubled).or_insert(Entry { wait: FIRST, since: now });
    }
}

fn key(set: &DaemonSet, node: &str) -> PlaceKey {
    (set.metadata.uid.clone(), set.status.observed_generation, node.to_owned())
}

fn age(since: Time, now: Time) -> Duration {
    let seconds = now.unix().unwrap_or(0).saturating_sub(since.unix().unwrap_or(0));
    // A step of the clock backwards must not keep a pod.
    Duration::from_secs(u64::try_from(seconds).unwrap_or(FORGOTTEN.as_secs()))
}
