//! Bounds concurrent probes, so that the probes of one pod or namespace do not keep those of others from running.
//!
//! A probe starts with a permit. Permits have a bound for the node, a namespace and a pod; a free one goes to the waiting pod whose
//! namespace has the fewest. A probe that takes longer than [`KEPT_MAX`] waits for something else: it gives its permit up and goes on
//! as a slow one. Slow probes have bounds of their own; one that exceeds them is cut short.

#![cfg_attr(not(test), warn(clippy::arithmetic_side_effects))]

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use agent_probe::PodKey;
use tokio::sync::oneshot;

/// How long a probe keeps its permit. Longer than the default timeout of a probe.
const KEPT_MAX: Duration = Duration::from_secs(3);
/// How long a probe waits for a permit.
const WAIT_MAX: Duration = Duration::from_secs(10);
/// Probes of one pod that wait for a permit.
const WAITING_OF_POD_MAX: usize = 256;

/// Why a probe has no result. It is no failure of the container.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ProbeLimitError {
    /// It was not started.
    #[error(
        "not started within {WAIT_MAX:?}, since other probes of the pod, its namespace or the node have not ended; tried again after its period"
    )]
    NotStarted,
    /// It took long, as did too many others.
    #[error(
        "cut short after {KEPT_MAX:?}, since other probes of the pod, its namespace or the node take as long; tried again after its period"
    )]
    CutShort,
}

/// Bounds on the probes of one kind at a time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ProbeBounds {
    pub node: usize,
    /// For the pods of one namespace together.
    pub namespace: usize,
    pub pod: usize,
}

/// Namespace and uid of a pod.
type PodId = (String, String);

/// The limiter of one kind of probes of a node.
#[derive(Debug)]
pub struct ProbeLimiter(Mutex<State>);

#[derive(Debug)]
struct State {
    /// Probes with a permit.
    quick: ProbeCounts,
    slow: ProbeCounts,
    /// Waiting probes by pod, each queue in order of arrival.
    waiting: BTreeMap<PodId, VecDeque<QueuedProbe>>,
    /// Number of the next that waits.
    number: u64,
}

#[derive(Debug)]
struct QueuedProbe {
    number: u64,
    call: oneshot::Sender<()>,
}

/// Probes in progress.
#[derive(Debug)]
struct ProbeCounts {
    max: ProbeBounds,
    total: usize,
    by_namespace: BTreeMap<String, usize>,
    by_pod: BTreeMap<PodId, usize>,
}

impl ProbeCounts {
    fn new(max: ProbeBounds) -> Self {
        Self { max, total: 0, by_namespace: BTreeMap::new(), by_pod: BTreeMap::new() }
    }

    /// Probes in progress of the pod's namespace, and of the pod.
    fn load(&self, pod: &PodId) -> (usize, usize) {
        let of_namespace = self.by_namespace.get(&pod.0).copied().unwrap_or_default();
        (of_namespace, self.by_pod.get(pod).copied().unwrap_or_default())
    }

    fn has_room(&self, pod: &PodId) -> bool {
        let (of_namespace, of_pod) = self.load(pod);
        self.total < self.max.node && of_namespace < self.max.namespace && of_pod < self.max.pod
    }

    fn add(&mut self, pod: &PodId) {
        self.total = self.total.saturating_add(1);
        let of_namespace = self.by_namespace.entry(pod.0.clone()).or_default();
        *of_namespace = of_namespace.saturating_add(1);
        let of_pod = self.by_pod.entry(pod.clone()).or_default();
        *of_pod = of_pod.saturating_add(1);
    }

    fn subtract(&mut self, pod: &PodId) {
        self.total = self.total.saturating_sub(1);
        let (of_namespace, of_pod) = self.load(pod);
        match of_namespace.saturating_sub(1) {
            0 => drop(self.by_namespace.remove(&pod.0)),
            left => drop(self.by_namespace.insert(pod.0.clone(), left)),
        }
        match of_pod.saturating_sub(1) {
            0 => drop(self.by_pod.remove(pod)),
            left => drop(self.by_pod.insert(pod.clone(), left)),
        }
    }
}

impl State {
    /// Queues a probe; `None` if too many of its pod wait.
    fn enqueue(&mut self, pod: &PodId) -> Option<oneshot::Receiver<()>> {
        let queue = self.waiting.entry(pod.clone()).or_default();
        if queue.len() >= WAITING_OF_POD_MAX {
            // Those that gave up are removed late.
            queue.retain(|probe| !probe.call.is_closed());
        }
        if queue.len() >= WAITING_OF_POD_MAX {
            return None;
        }
        let (call, called) = oneshot::channel();
        queue.push_back(QueuedProbe { number: self.number, call });
        self.number = self.number.wrapping_add(1);
        Some(called)
    }

    /// Hands free permits to waiting probes.
    fn call_waiting(&mut self) {
        while self.quick.total < self.quick.max.node {
            let with_room = self.waiting.iter().filter(|(pod, _)| self.quick.has_room(pod));
            let next = with_room.min_by_key(|(pod, queue)| {
                (self.quick.load(pod), queue.front().map(|probe| probe.number))
            });
            let Some(pod) = next.map(|(pod, _)| pod.clone()) else { return };
            let Some(queue) = self.waiting.get_mut(&pod) else { return };
            let probe = queue.pop_front();
            if queue.is_empty() {
                self.waiting.remove(&pod);
            }
            // A cancelled waiter takes no permit.
            if probe.is_some_and(|probe| probe.call.send(()).is_ok()) {
                self.quick.add(&pod);
            }
        }
    }
}

impl ProbeLimiter {
    /// A limiter with bounds on probes with a permit, and on slow ones.
    pub fn new(quick: ProbeBounds, slow: ProbeBounds) -> Self {
        let (quick, slow) = (ProbeCounts::new(quick), ProbeCounts::new(slow));
        Self(Mutex::new(State { quick, slow, waiting: BTreeMap::new(), number: 0 }))
    }

    /// Runs `work`, a probe of this pod, once it has a permit. Cancel safe if `work` is.
    ///
    /// # Errors
    /// It was not started, or it was slow and is dropped.
    pub async fn run<T>(
        &self,
        pod: PodKey<'_>,
        work: impl Future<Output = T>,
    ) -> Result<T, ProbeLimitError> {
        let pod = (pod.namespace.to_owned(), pod.uid.to_owned());
        let permit = self.acquire(&pod).await.ok_or(ProbeLimitError::NotStarted)?;
        tokio::pin!(work);
        // Cancel safe: dropping the permit releases it, and the work continues below.
        tokio::select! {
            biased;
            done = &mut work => return Ok(done),
            () = tokio::time::sleep(KEPT_MAX) => {}
        }
        let _slow = self.try_slow(&pod).ok_or(ProbeLimitError::CutShort)?;
        drop(permit);
        Ok(work.await)
    }

    async fn acquire(&self, pod: &PodId) -> Option<Permit<'_>> {
        let called = {
            let mut state = self.lock();
            // Probes that wait now have no room themselves.
            if state.quick.has_room(pod) {
                state.quick.add(pod);
                return Some(Permit { limiter: self, pod: pod.clone(), pace: Pace::Quick });
            }
            state.enqueue(pod)?
        };
        let waiting = Waiter { limiter: self, pod: pod.clone(), called };
        tokio::time::timeout(WAIT_MAX, waiting.wait()).await.ok()
    }

    /// Counts a probe as slow, if its bounds permit.
    fn try_slow(&self, pod: &PodId) -> Option<Permit<'_>> {
        let mut state = self.lock();
        if !state.slow.has_room(pod) {
            return None;
        }
        state.slow.add(pod);
        Some(Permit { limiter: self, pod: pod.clone(), pace: Pace::Slow })
    }

    fn release(&self, pod: &PodId, pace: Pace) {
        let mut state = self.lock();
        match pace {
            Pace::Quick => state.quick.subtract(pod),
            Pace::Slow => state.slow.subtract(pod),
        }
        state.call_waiting();
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Pace {
    Quick,
    Slow,
}

/// Permission for one probe.
struct Permit<'a> {
    limiter: &'a ProbeLimiter,
    pod: PodId,
    pace: Pace,
}

impl Drop for Permit<'_> {
    fn drop(&mut self) {
        self.limiter.release(&self.pod, self.pace);
    }
}

/// A probe that waits for a permit.
struct Waiter<'a> {
    limiter: &'a ProbeLimiter,
    pod: PodId,
    called: oneshot::Receiver<()>,
}

impl<'a> Waiter<'a> {
    async fn wait(mut self) -> Permit<'a> {
        // The sender stays in the queue until it sends.
        let _called = (&mut self.called).await;
        Permit { limiter: self.limiter, pod: self.pod.clone(), pace: Pace::Quick }
    }
}

impl Drop for Waiter<'_> {
    fn drop(&mut self) {
        // A permit that was sent but not received is passed on; afterwards the channel is empty.
        if self.called.try_recv().is_ok() {
            self.limiter.release(&self.pod, Pace::Quick);
        }
    }
}

#[cfg(test)]
mod tests;
