//! What a controller plans: writes as values, their events, and when to look again.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use proto_api::event_report::EventReport;
use proto_api::meta::v1::ObjectMeta;
use proto_api::{ObjectKey, Time};

use crate::api_writes::{ApiWrite, ObjectKind};
use crate::replica_failure::FailureStatus;
use crate::write_events::{ReplicaOperation, WriteEvent};

/// The writes and events that a controller plans.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Plan {
    /// The writes, in order.
    pub writes: Vec<ApiWrite>,
    /// When to reconcile again if nothing changes.
    pub requeue_after: Option<Duration>,
    /// Events to record when all writes have succeeded.
    pub reports: Vec<EventReport>,
    /// Events of single writes, by their index.
    pub events: BTreeMap<usize, WriteEvent>,
    /// The writes for which no other waits, by their index.
    pub alone: BTreeSet<usize>,
    /// The owner that adopts objects by these writes, which are only made if a live read shows that it is not being deleted.
    pub adopter: Option<Adopter>,
    /// The status to write if a pod cannot be created or deleted.
    pub on_failure: Option<FailureStatus>,
}

/// An object that becomes the controller of orphans.
#[derive(Clone, Debug, PartialEq)]
pub struct Adopter {
    pub kind: ObjectKind,
    pub key: ObjectKey,
    pub uid: String,
}

impl Adopter {
    /// The object of this kind with this metadata.
    pub fn new(kind: ObjectKind, metadata: &ObjectMeta) -> Self {
        Self { kind, key: ObjectKey::from_metadata(metadata), uid: metadata.uid.clone() }
    }
}

impl Plan {
    /// A plan of these writes.
    pub fn from_writes(writes: impl IntoIterator<Item = ApiWrite>) -> Self {
        Self { writes: writes.into_iter().collect(), ..Self::default() }
    }

    /// Appends another plan.
    pub fn absorb(&mut self, other: Self) {
        let before = self.writes.len();
        let events = other.events.into_iter();
        self.events.extend(events.map(|(nth, event)| (before.saturating_add(nth), event)));
        self.alone.extend(other.alone.into_iter().map(|nth| before.saturating_add(nth)));
        self.writes.extend(other.writes);
        self.reports.extend(other.reports);
        self.adopter = other.adopter.or(self.adopter.take());
        self.on_failure = other.on_failure.or(self.on_failure.take());
        other.requeue_after.into_iter().for_each(|delay| self.requeue_in(delay));
    }

    /// Adds a write with the events of its success and failure.
    pub fn push_with_event(&mut self, write: ApiWrite, event: WriteEvent) {
        self.events.insert(self.writes.len(), event);
        self.writes.push(write);
    }

    /// Adds a write for which no other waits.
    pub fn push_alone(&mut self, write: ApiWrite) {
        self.alone.insert(self.writes.len());
        self.writes.push(write);
    }

    /// The same plan, of whose writes none waits for another.
    pub fn without_order(self) -> Self {
        Self { alone: (0..self.writes.len()).collect(), ..self }
    }

    /// The write of the status that says that the `nth` write failed with `error`, if there is one.
    pub fn status_of_failure(&self, nth: usize, error: String, now: Time) -> Option<ApiWrite> {
        let operation = match (self.events.get(&nth), self.writes.get(nth)?) {
            (Some(event), _) => Some(&event.operation),
            (None, ApiWrite::Patch { .. }) => None,
            // The status itself, and what follows it.
            (None, _) => return None,
        };
        self.on_failure.clone()?.write(operation, error, now)
    }

    /// The index of the first write from `from` on that is made although the one with the index `failed` could not be, the last that failed.
    pub fn next_write(&self, from: usize, failed: Option<usize>) -> Option<usize> {
        let is_made = |nth: &usize| failed.is_none_or(|failed| self.is_made_after(failed, *nth));
        (from..self.writes.len()).find(is_made)
    }

    /// Whether the `nth` write is made although the one with the index `failed` could not be: pods that have to go wait neither for one another nor for
    /// new ones, and old revisions for no pod.
    fn is_made_after(&self, failed: usize, nth: usize) -> bool {
        if self.alone.contains(&failed) {
            return true;
        }
        if let Some(ApiWrite::Delete { kind: ObjectKind::ControllerRevision, .. }) =
            self.writes.get(nth)
        {
            // Without an event the failure may be that of a pod that still needs the revision.
            return self.events.contains_key(&failed);
        }
        let is_new = |event: &WriteEvent| event.operation == ReplicaOperation::Create;
        match (self.pod_to_delete(failed), self.pod_to_delete(nth)) {
            (Some(failed), Some(pod)) => failed != pod,
            (None, Some(_)) => self.events.get(&failed).is_some_and(is_new),
            (_, None) => false,
        }
    }

    /// The pod that the `nth` write deletes, or changes for its deletion, which is the next one. Those of a StatefulSet, which go in order, have events of
    /// their own.
    fn pod_to_delete(&self, nth: usize) -> Option<&ObjectKey> {
        let operation = |nth: usize| self.events.get(&nth).map(|event| &event.operation);
        let deleted = |nth: usize| match self.writes.get(nth)? {
            ApiWrite::Delete { kind: ObjectKind::Pod, key, .. } => {
                matches!(operation(nth), None | Some(ReplicaOperation::Delete)).then_some(key)
            }
            _ => None,
        };
        match self.writes.get(nth)? {
            ApiWrite::Patch { kind: ObjectKind::Pod, key, .. } => {
                deleted(nth.checked_add(1)?).filter(|next| *next == key)
            }
            _ => deleted(nth),
        }
    }

    /// Plans to reconcile again in `delay`, or earlier if that is planned.
    pub fn requeue_in(&mut self, delay: Duration) {
        self.requeue_after = Some(self.requeue_after.map_or(delay, |earlier| earlier.min(delay)));
    }
}

#[cfg(test)]
mod tests {
    use proto_api::core::v1::{ObjectReference, Pod};
    use serde_json::json;

    use super::*;
    use crate::api_writes::Part;

    /// A plan in short form: `+` creates a pod, `-a` deletes one, `~a` patches one, `=` is another write,
    /// `.` deletes a revision. After `!` the event is that of a StatefulSet; for one with `|` no other waits.
    fn plan_of(writes: &[&str]) -> Plan {
        let mut plan = Plan::default();
        for text in writes {
            if let Some(patched) = text.strip_prefix('|') {
                let (kind, key) = (ObjectKind::Pod, ObjectKey::new("ns", patched));
                plan.push_alone(ApiWrite::Patch { kind, key, part: Part::Main, patch: json!({}) });
                continue;
            }
            let (kind, name) = (ObjectKind::Pod, text.trim_start_matches(['!', '-', '~']));
            let key = ObjectKey::new("ns", name);
            let uid = name.to_owned();
            let (write, operation) = match text.trim_start_matches('!').chars().next() {
                Some('+') => (ApiWrite::Create(Pod::default().into()), ReplicaOperation::Create),
                Some('-') => {
                    let delete = ApiWrite::Delete { kind, key, uid, grace_secs: None };
                    (delete, ReplicaOperation::Delete)
                }
                Some('~') => {
                    plan.writes.push(ApiWrite::Patch {
                        kind,
                        key,
                        part: Part::Main,
                        patch: json!({}),
                    });
                    continue;
                }
                Some('.') => {
                    let kind = ObjectKind::ControllerRevision;
                    plan.writes.push(ApiWrite::Delete { kind, key, uid, grace_secs: None });
                    continue;
                }
                _ => {
                    plan.writes.push(ApiWrite::UpdateStatus(Pod::default().into()));
                    continue;
                }
            };
            let (done, failed) = (("", String::new()), ("", String::new()));
            let operation = match text.starts_with('!') {
                true => ReplicaOperation::Other { done, failed },
                false => operation,
            };
            plan.push_with_event(
                write,
                WriteEvent { about: ObjectReference::default(), operation },
            );
        }
        plan
    }

    #[test]
    fn what_is_alone_stays_so_in_a_longer_plan() {
        let mut plan = plan_of(&["+", "|a"]);
        plan.absorb(plan_of(&["=", "|b"]));
        assert_eq!(plan.alone, [1, 3].into());
        assert_eq!(plan_of(&["=", "+"]).without_order().alone, [0, 1].into());
    }

    #[test]
    fn pods_that_have_to_go_do_not_wait_for_others() {
        for (writes, failed, made) in [
            // Those of a ReplicaSet, before its status.
            (&["-a", "-b", "-c", "="][..], 0, &[1, 2][..]),
            // A DaemonSet's: what fails to be made fails again.
            (&["+", "+", "-a", "-b", "="], 0, &[2, 3]),
            (&["+", "+", "-a", "-b", "="], 2, &[3]),
            // A Job's, which are no longer counted before they are deleted.
            (&["+", "~a", "-a", "~b", "-b"], 1, &[3, 4]),
            (&["+", "~a", "-a", "~b", "-b"], 2, &[3, 4]),
            (&["+", "~a", "-a", "~b", "-b"], 0, &[1, 2, 3, 4]),
            (&["~x", "-a"], 0, &[]),
            (&["=", "-a"], 0, &[]),
            // A StatefulSet's.
            (&["!+", "!-a", "!-b"], 0, &[]),
            (&["!+", "!-a", "!-b"], 1, &[]),
            (&["!+", "=", ".r", ".s"], 0, &[2, 3]),
            // A Job's that are counted, and the status before that.
            (&["|a", "|b", "+", "-c"], 0, &[1, 2, 3]),
            (&["=", "|a", "|b", "+"], 0, &[]),
            (&["|a", "+", "+", "-c"], 1, &[3]),
            // Pods are given to another revision before theirs is deleted.
            (&["~a", "~b", ".r", "+"], 1, &[]),
        ] {
            let plan = plan_of(writes);
            let next = |last: usize| plan.next_write(last + 1, Some(failed));
            let found: Vec<usize> =
                std::iter::successors(next(failed), |last| next(*last)).collect();
            assert_eq!(found, made, "{writes:?} {failed}");
        }
    }
}
