//! Bounds concurrent runtime calls that create pods, and orders the waiting ones. The bound is
//! computed by `agent_node::adaptive_limit`.

use std::collections::VecDeque;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use agent_node::adaptive_limit::{AdaptiveLimit, CallKind};
use tokio::sync::oneshot;
use tokio::time::Instant;

/// How long a call holds its permit. A slower call waits for something else, and others proceed.
const KEPT_MAX: Duration = Duration::from_secs(5);

/// The limiter of one node.
#[derive(Debug)]
pub struct RuntimeLimiter(Mutex<State>);

#[derive(Debug)]
struct State {
    width: AdaptiveLimit,
    in_flight: usize,
    /// Waiting calls by kind.
    waiting: [VecDeque<oneshot::Sender<()>>; CallKind::ALL.len()],
}

impl RuntimeLimiter {
    /// A limiter for a machine with this number of processors.
    pub fn new(processors: usize) -> Self {
        let waiting = Default::default();
        Self(Mutex::new(State { width: AdaptiveLimit::new(processors), in_flight: 0, waiting }))
    }

    /// Runs `work` once it has a permit; later steps of a pod come before earlier ones of others.
    /// Cancel safe if `work` is.
    pub async fn run<T, E>(
        &self,
        turn: CallKind,
        work: impl Future<Output = Result<T, E>>,
    ) -> Result<T, E> {
        let kept = self.acquire(turn).await;
        let began = Instant::now();
        tokio::pin!(work);
        // Cancel safe: dropping the permit releases it, and the work continues below.
        tokio::select! {
            biased;
            done = &mut work => {
                if done.is_ok() {
                    let mut state = self.lock();
                    let in_flight = state.in_flight;
                    state.width.record_call(turn, began.elapsed(), in_flight);
                }
                return done;
            }
            () = tokio::time::sleep(KEPT_MAX) => {}
        }
        drop(kept);
        work.await
    }

    /// Whether calls are waiting for a permit.
    pub fn has_waiters(&self) -> bool {
        self.lock().waiting.iter().flatten().any(|call| !call.is_closed())
    }

    async fn acquire(&self, turn: CallKind) -> Permit<'_> {
        let wait = {
            let mut state = self.lock();
            if state.in_flight < state.width.current() {
                state.in_flight = state.in_flight.saturating_add(1);
                None
            } else {
                state.width.record_demand();
                let (call, called) = oneshot::channel();
                if let Some(queue) = state.waiting.get_mut(turn as usize) {
                    queue.push_back(call);
                }
                Some(Waiter { limiter: self, called })
            }
        };
        match wait {
            None => Permit { limiter: self },
            Some(waiting) => waiting.wait().await,
        }
    }

    /// Releases a permit, and passes permits to waiting calls while there is room.
    fn release(&self) {
        let mut state = self.lock();
        state.in_flight = state.in_flight.saturating_sub(1);
        while state.in_flight < state.width.current() {
            let next = state.waiting.iter_mut().find_map(VecDeque::pop_front);
            let Some(next) = next else { return };
            // A cancelled waiter takes no permit.
            if next.send(()).is_ok() {
                state.in_flight = state.in_flight.saturating_add(1);
            }
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Permission for one call.
struct Permit<'a> {
    limiter: &'a RuntimeLimiter,
}

impl Drop for Permit<'_> {
    fn drop(&mut self) {
        self.limiter.release();
    }
}

/// A call that waits for a permit.
struct Waiter<'a> {
    limiter: &'a RuntimeLimiter,
    called: oneshot::Receiver<()>,
}

impl<'a> Waiter<'a> {
    async fn wait(mut self) -> Permit<'a> {
        // The sender stays in the queue until it sends.
        let _called = (&mut self.called).await;
        Permit { limiter: self.limiter }
    }
}

impl Drop for Waiter<'_> {
    fn drop(&mut self) {
        // A permit that was sent but not received is passed on; afterwards the channel is empty.
        if self.called.try_recv().is_ok() {
            self.limiter.release();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::future::pending;
    use std::sync::Arc;

    use futures_util::FutureExt as _;

    use super::*;

    async fn hold(limiter: Arc<RuntimeLimiter>, turn: CallKind) {
        limiter.run(turn, pending::<Result<(), ()>>()).await.unwrap();
    }

    /// Whether a turn is to be had at once.
    fn is_free(limiter: &RuntimeLimiter) -> bool {
        limiter
            .run(CallKind::Sandbox, std::future::ready(Ok::<(), ()>(())))
            .now_or_never()
            .is_some()
    }

    #[tokio::test(start_paused = true)]
    async fn turns_are_bounded_and_one_that_hangs_is_passed_by() {
        let limiter = Arc::new(RuntimeLimiter::new(1));
        let hang: Vec<_> = (0..limiter.lock().width.current())
            .map(|_| tokio::spawn(hold(limiter.clone(), CallKind::Create)))
            .collect();
        tokio::task::yield_now().await;
        assert!(!is_free(&limiter));
        tokio::time::sleep(KEPT_MAX * 2).await;
        assert!(is_free(&limiter), "calls that hang keep no turn");
        hang.iter().for_each(|call| call.abort());
        tokio::task::yield_now().await;
        assert_eq!(limiter.lock().in_flight, 0);
    }

    #[tokio::test]
    async fn calls_nearest_to_a_started_pod_run_first_and_cancelled_calls_take_no_turn() {
        let limiter = Arc::new(RuntimeLimiter::new(1));
        let first: Vec<_> = (0..limiter.lock().width.current())
            .map(|_| tokio::spawn(hold(limiter.clone(), CallKind::Create)))
            .collect();
        tokio::task::yield_now().await;
        let order = Arc::new(Mutex::new(Vec::new()));
        let mut waiting = Vec::new();
        for turn in [CallKind::Sandbox, CallKind::Create, CallKind::Start, CallKind::Start] {
            let (limiter, order) = (limiter.clone(), order.clone());
            waiting.push(tokio::spawn(async move {
                let work = async {
                    order.lock().unwrap().push(turn);
                    Ok::<(), ()>(())
                };
                limiter.run(turn, work).await
            }));
            tokio::task::yield_now().await;
        }
        waiting.pop().expect("four wait").abort();
        tokio::task::yield_now().await;
        first[0].abort();
        for done in waiting {
            done.await.unwrap().unwrap();
        }
        assert_eq!(*order.lock().unwrap(), [CallKind::Start, CallKind::Create, CallKind::Sandbox]);
        first.iter().for_each(|call| call.abort());
        tokio::task::yield_now().await;
        assert_eq!(limiter.lock().in_flight, 0);
    }
}
