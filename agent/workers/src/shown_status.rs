//! Tracks the status that the API shows of a pod, and decides when to write it. Pure.
//!
//! The watch and the responses to the agent's writes both show it. Any field owned by the agent
//! that differs from the agent's status is written again, also after a change by another client: the node
//! lifecycle controller while the node was unreachable, a user, another agent.

use std::sync::Arc;
use std::time::Duration;

use agent_interfaces::ServerStatus;
use proto_api::core::v1::{Pod, PodStatus};
use proto_daemon::backoff::Backoff;

use super::status_patch;

/// Back-off after failed writes.
const RETRY: Backoff =
    Backoff { first: Duration::from_millis(100), longest: Duration::from_secs(10) };
/// Back-off between corrections of fields that other clients keep changing; the first is immediate.
/// Kubernetes' kubelet compares every ten seconds.
const CORRECTIONS: Backoff =
    Backoff { first: Duration::from_millis(100), longest: Duration::from_secs(10) };
/// Time without a correction after which the count restarts.
const CALM: Duration = Duration::from_secs(60);
/// How long the watch may lag behind the response to a write. Later events count even with a lower
/// version: a server restored from a backup starts with lower ones.
const LAG_MAX: Duration = Duration::from_secs(30);

/// The source of the newest known status.
#[derive(Debug)]
enum Base {
    Watched(Arc<Pod>),
    /// The response to the agent's own write, and its time since boot. The watch has not shown it
    /// yet.
    Answered(Box<ServerStatus>, Duration),
    /// The object did not exist; the version that the watch showed at that time.
    Absent(String),
}

/// A status that the server changed when it was written.
#[derive(Debug)]
struct Denied {
    wanted: PodStatus,
    answered: PodStatus,
}

/// The status that the API is known to show of a pod.
#[derive(Debug)]
pub struct ShownStatus {
    base: Base,
    /// Whether the outcome of the last write is unknown; the next one states all fields.
    unsure: bool,
    failures: u32,
    not_before: Duration,
    denied: Option<Box<Denied>>,
    corrections: u32,
    corrected_at: Duration,
    correct_not_before: Duration,
}

/// A change that the watch has shown.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct WatchChange {
    /// Whether no status was known before.
    pub first: bool,
    /// Conditions owned by the agent that another client changed: type, status, and transition time
    /// (seconds since 1970).
    pub overruled: Vec<(String, String, i64)>,
}

impl ShownStatus {
    /// Starts from the object as first received.
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

    /// The newest known status; `None` if the object does not exist.
    pub fn status(&self) -> Option<&PodStatus> {
        match &self.base {
            Base::Watched(pod) => Some(&pod.status),
            Base::Answered(answer, _) => Some(&answer.status),
            Base::Absent(_) => None,
        }
    }

    /// Whether the next write must state all fields.
    pub fn is_unsure(&self) -> bool {
        self.unsure
    }

    /// Whether the API shows `wanted`, or as much of it as the server accepts.
    pub fn matches(&self, wanted: &PodStatus) -> bool {
        let Some(status) = self.status() else { return true };
        let denied = |denied: &Denied| {
            denied.wanted == *wanted && !status_patch::differs(status, &denied.answered)
        };
        let same = !self.unsure && !status_patch::differs(status, wanted);
        same || self.denied.as_deref().is_some_and(denied)
    }

    /// The earliest time of the next write, since boot.
    pub fn not_before(&self) -> Duration {
        self.not_before.max(self.correct_not_before)
    }

    /// From when events of the watch count even if older than the last response, since boot.
    pub fn watch_trusted_at(&self) -> Option<Duration> {
        match &self.base {
            Base::Answered(answer, at) if !answer.version.is_empty() => {
                Some(at.saturating_add(LAG_MAX))
            }
            _ => None,
        }
    }

    /// Applies the object from the watch at `now` (since boot) while the agent wants `wanted`
    /// shown. `None` if nothing is new. Must not be called while a write is in flight, whose
    /// response may be older or newer.
    pub fn observe(
        &mut self,
        pod: &Arc<Pod>,
        wanted: Option<&PodStatus>,
        now: Duration,
    ) -> Option<WatchChange> {
        if !self.is_news(pod, now) {
            return None;
        }
        let mut seen = WatchChange::default();
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
                    // The same version: shares the watch's object from now on.
                    self.base = Base::Watched(pod.clone());
                }
                false
            }
            Base::Answered(answer, at) => {
                let late = now >= at.saturating_add(LAG_MAX);
                if late && version.is_empty() {
                    // The mirror pod was deleted; the comparison resumes when the watch shows a new
                    // one.
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

    /// Applies the server's response at `now` (since boot) to a write of `wanted`.
    pub fn record_written(&mut self, wanted: &PodStatus, answer: Box<ServerStatus>, now: Duration) {
        let stated_all = self.unsure;
        self.failures = 0;
        self.denied = None;
        // Fields that were not stated may have been changed by another client.
        self.unsure = status_patch::differs(&answer.status, wanted) && !stated_all;
        if stated_all && status_patch::differs(&answer.status, wanted) {
            let (wanted, answered) = (wanted.clone(), answer.status.clone());
            self.denied = Some(Box::new(Denied { wanted, answered }));
        }
        self.base = Base::Answered(answer, now);
    }

    /// Notes that the object did not exist at a write, when the watch showed `pod`.
    pub fn record_absent(&mut self, pod: &Pod) {
        self.failures = 0;
        self.unsure = false;
        self.base = Base::Absent(pod.metadata.resource_version.clone());
    }

    /// Notes a failed write at `now` (since boot), which may have taken effect.
    pub fn record_failed(&mut self, now: Duration) {
        self.failures = self.failures.saturating_add(1);
        self.unsure = true;
        self.not_before = now.saturating_add(RETRY.delay(self.failures, 0.5));
    }
}

/// Conditions that matched `wanted` and no longer do.
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

/// Whether a resource version is older than another. Kubernetes' versions are increasing decimal
/// numbers; other versions are never considered older.
fn is_older(version: &str, other: &str) -> bool {
    match (version.parse::<u64>(), other.parse::<u64>()) {
        (Ok(version), Ok(other)) => version < other,
        _ => false,
    }
}

#[cfg(test)]
mod tests;
