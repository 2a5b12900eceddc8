//! What the API shows of a pod's status, as far as is known, and whether that is to be changed. Pure.
//!
//! The watch and the answers to the agent's own writes both tell it. Whatever of the fields that the agent owns differs from what it
//! wants shown is written again, whoever changed it: the node controller while the node was silent, a user, another agent.

use std::sync::Arc;
use std::time::Duration;

use proto_api::core::v1::{Pod, PodStatus};
use proto_daemon::backoff::Backoff;

use super::status_patch;

/// Between failures to write a status.
const RETRY: Backoff =
    Backoff { first: Duration::from_millis(100), longest: Duration::from_secs(10) };
/// Between corrections of what others keep changing; the first is made at once. Kubernetes' kubelet looks every ten seconds.
const CORRECTIONS: Backoff =
    Backoff { first: Duration::from_millis(100), longest: Duration::from_secs(10) };
/// Corrections are counted anew when there was none for so long.
const CALM: Duration = Duration::from_secs(60);
/// For how long a watch may be behind the answer to a write. What it shows after that counts, though its version is lower: a server
/// that was restored from a backup begins with lower ones.
const LAG_MAX: Duration = Duration::from_secs(30);

/// A status as the server has it.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Answer {
    /// All of it, with what others wrote.
    pub status: PodStatus,
    /// `metadata.resourceVersion` of the object; empty without an API server.
    pub version: String,
}

/// Where the newest that is known comes from.
#[derive(Debug)]
enum Base {
    Watched(Arc<Pod>),
    /// The answer to the agent's own write, and when it came, since boot. The watch has not shown it yet.
    Answered(Box<Answer>, Duration),
    /// There was no object to write to; the version that the watch showed then.
    Absent(String),
}

/// What was wanted, and what the server made of it.
#[derive(Debug)]
struct Denied {
    wanted: PodStatus,
    answered: PodStatus,
}

/// What is known of the status that the API shows of a pod.
#[derive(Debug)]
pub struct Shown {
    base: Base,
    /// Whether the last write may or may not have been done: then everything is stated.
    unsure: bool,
    failures: u32,
    not_before: Duration,
    denied: Option<Box<Denied>>,
    corrections: u32,
    corrected_at: Duration,
    correct_not_before: Duration,
}

/// What the watch has shown that was not known.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Seen {
    /// Whether nothing was known before.
    pub first: bool,
    /// Conditions of the agent that others have given another status: type, status, and seconds since 1970 of the transition.
    pub overruled: Vec<(String, String, i64)>,
}

impl Shown {
    /// As the object was when the agent got it.
    pub fn new(pod: Arc<Pod>) -> Self {
        Self {
            base: Base::Watched(pod),
            unsure: false,
            failures: 0,
            not_before: Duration::ZERO,
            denied: None,
            corrections: 0,
            corrected_at: Duration::ZERO,
            correct_not_before: Duration::ZERO,
        }
    }

    /// The newest that is known; `None` when there is no object.
    pub fn status(&self) -> Option<&PodStatus> {
        match &self.base {
            Base::Watched(pod) => Some(&pod.status),
            Base::Answered(answer, _) => Some(&answer.status),
            Base::Absent(_) => None,
        }
    }

    /// Whether all fields have to be stated in the next write.
    pub fn is_unsure(&self) -> bool {
        self.unsure
    }

    /// Whether the API shows `wanted`, or all of it that the server takes.
    pub fn is(&self, wanted: &PodStatus) -> bool {
        let Some(status) = self.status() else { return true };
        let denied = |denied: &Denied| {
            denied.wanted == *wanted && !status_patch::differs(status, &denied.answered)
        };
        let same = !self.unsure && !status_patch::differs(status, wanted);
        same || self.denied.as_deref().is_some_and(denied)
    }

    /// When a write may be begun, since boot.
    pub fn not_before(&self) -> Duration {
        self.not_before.max(self.correct_not_before)
    }

    /// When what the watch shows counts though it is older than the last answer, since boot.
    pub fn believes_watch_at(&self) -> Option<Duration> {
        match &self.base {
            Base::Answered(answer, at) if !answer.version.is_empty() => {
                Some(at.saturating_add(LAG_MAX))
            }
            _ => None,
        }
    }

    /// Takes in the object as the watch shows it at `now` (since boot), when the agent wants `wanted` shown. `None` when it tells
    /// nothing that was not known. Not to be called while a write is under way, whose answer may be older or newer.
    pub fn watch(
        &mut self,
        pod: &Arc<Pod>,
        wanted: Option<&PodStatus>,
        now: Duration,
    ) -> Option<Seen> {
        if !self.is_news(pod, now) {
            return None;
        }
        let mut seen = Seen::default();
        if let Some(before) = self.status() {
            seen.first = before.phase.is_empty();
            if let Some(wanted) = wanted {
                seen.overruled = overruled(before, &pod.status, wanted);
                let was_right = !self.unsure && !status_patch::differs(before, wanted);
                if was_right && status_patch::differs(&pod.status, wanted) {
                    self.contested(now);
                }
            }
        }
        self.base = Base::Watched(pod.clone());
        Some(seen)
    }

    fn is_news(&mut self, pod: &Arc<Pod>, now: Duration) -> bool {
        let version = &pod.metadata.resource_version;
        match &self.base {
            Base::Watched(known) => !Arc::ptr_eq(known, pod),
            Base::Absent(known) => known != version,
            Base::Answered(answer, _) if answer.version == *version => {
                if !version.is_empty() {
                    // The same, and kept once only from now on.
                    self.base = Base::Watched(pod.clone());
                }
                false
            }
            Base::Answered(answer, at) => {
                let late = now >= at.saturating_add(LAG_MAX);
                if late && version.is_empty() {
                    // The mirror is gone; there is something to compare when the watch shows another.
                    self.base = Base::Absent(String::new());
                    return false;
                }
                !version.is_empty() && (late || !is_older(version, &answer.version))
            }
        }
    }

    fn contested(&mut self, now: Duration) {
        if now.saturating_sub(self.corrected_at) > CALM {
            self.corrections = 0;
        }
        let pause = match self.corrections {
            0 => Duration::ZERO,
            count => CORRECTIONS.delay(count, 0.5),
        };
        self.corrections = self.corrections.saturating_add(1);
        self.corrected_at = now;
        self.correct_not_before = now.saturating_add(pause);
    }

    /// Takes in what the server answered at `now` (since boot) to a write of `wanted`.
    pub fn written(&mut self, wanted: &PodStatus, answer: Box<Answer>, now: Duration) {
        let stated_all = self.unsure;
        self.failures = 0;
        self.denied = None;
        // What was not stated may have been changed by another meanwhile.
        self.unsure = status_patch::differs(&answer.status, wanted) && !stated_all;
        if stated_all && status_patch::differs(&answer.status, wanted) {
            let (wanted, answered) = (wanted.clone(), answer.status.clone());
            self.denied = Some(Box::new(Denied { wanted, answered }));
        }
        self.base = Base::Answered(answer, now);
    }

    /// Takes in that there was no object to write to, when the watch showed `pod`.
    pub fn absent(&mut self, pod: &Pod) {
        self.failures = 0;
        self.unsure = false;
        self.base = Base::Absent(pod.metadata.resource_version.clone());
    }

    /// Takes in that a write failed at `now` (since boot), which the server may have done all the same.
    pub fn failed(&mut self, now: Duration) {
        self.failures = self.failures.saturating_add(1);
        self.unsure = true;
        self.not_before = now.saturating_add(RETRY.delay(self.failures, 0.5));
    }
}

/// The conditions that showed what is wanted and do not any more.
fn overruled(
    before: &PodStatus,
    now: &PodStatus,
    wanted: &PodStatus,
) -> Vec<(String, String, i64)> {
    let of = |status: &PodStatus, kind: &str| {
        status.conditions.iter().find(|c| c.type_ == kind).cloned()
    };
    let changed = wanted.conditions.iter().filter_map(|wanted| {
        let kind = &wanted.type_;
        let (before, now) = (of(before, kind)?, of(now, kind)?);
        let is_changed = before.status == wanted.status && now.status != wanted.status;
        let since = now.last_transition_time.unix().unwrap_or(0);
        is_changed.then(|| (kind.clone(), now.status, since))
    });
    changed.collect()
}

/// Whether a resource version is older than another. Kubernetes' are decimal numbers that grow; others are never called older.
fn is_older(version: &str, other: &str) -> bool {
    match (version.parse::<u64>(), other.parse::<u64>()) {
        (Ok(version), Ok(other)) => version < other,
        _ => false,
    }
}

#[cfg(test)]
mod tests;
