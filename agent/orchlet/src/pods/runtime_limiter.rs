//! Turns at the runtime: bounds how many calls that make pods are in flight, and says who is next. How many is decided by
//! `agent_node::adaptive_limit`.

use std::collections::VecDeque;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use agent_node::adaptive_limit::{Turn, Width};
use tokio::sync::oneshot;
use tokio::time::Instant;

/// How long a call keeps its turn. One that takes longer waits for something, and others go on without it.
const KEPT_MAX: Duration = Duration::from_secs(5);

/// Turns of one node.
#[derive(Debug)]
pub struct Turns(Mutex<State>);

#[derive(Debug)]
struct State {
    width: Width,
    in_flight: usize,
    /// Who waits, by kind of call.
    waiting: [VecDeque<oneshot::Sender<()>>; Turn::ALL.len()],
}

impl Turns {
    /// For a machine with so many processors.
    pub fn new(processors: usize) -> Self {
        let waiting = Default::default();
        Self(Mutex::new(State { width: Width::new(processors), in_flight: 0, waiting }))
    }

    /// Does `work` when it is its turn; the longer a pod has been under way, the sooner that is. Cancel safe as `work` is.
    pub async fn take<T, E>(
        &self,
        turn: Turn,
        work: impl Future<Output = Result<T, E>>,
    ) -> Result<T, E> {
        let kept = self.turn(turn).await;
        let began = Instant::now();
        tokio::pin!(work);
        // Cancel safe: a turn that is dropped is given back, and the work goes on below.
        tokio::select! {
            biased;
            done = &mut work => {
                if done.is_ok() {
                    let mut state = self.lock();
                    let in_flight = state.in_flight;
                    state.width.ended(turn, began.elapsed(), in_flight);
                }
                return done;
            }
            () = tokio::time::sleep(KEPT_MAX) => {}
        }
        drop(kept);
        work.await
    }

    /// Whether somebody waits for a turn: more is to be done than can be done at once.
    pub fn is_wanted(&self) -> bool {
        self.lock().waiting.iter().flatten().any(|call| !call.is_closed())
    }

    async fn turn(&self, turn: Turn) -> Kept<'_> {
        let wait = {
            let mut state = self.lock();
            if state.in_flight < state.width.now() {
                state.in_flight = state.in_flight.saturating_add(1);
                None
            } else {
                state.width.wanted();
                let (call, called) = oneshot::channel();
                if let Some(queue) = state.waiting.get_mut(turn as usize) {
                    queue.push_back(call);
                }
                Some(Waiting { turns: self, called })
            }
        };
        match wait {
            None => Kept { turns: self },
            Some(waiting) => waiting.end().await,
        }
    }

    /// Gives a turn back, and to as many of those who wait as there is room for.
    fn give_back(&self) {
        let mut state = self.lock();
        state.in_flight = state.in_flight.saturating_sub(1);
        while state.in_flight < state.width.now() {
            let next = state.waiting.iter_mut().find_map(VecDeque::pop_front);
            let Some(next) = next else { return };
            // Who has gone away meanwhile takes none.
            if next.send(()).is_ok() {
                state.in_flight = state.in_flight.saturating_add(1);
            }
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A turn.
struct Kept<'a> {
    turns: &'a Turns,
}

impl Drop for Kept<'_> {
    fn drop(&mut self) {
        self.turns.give_back();
    }
}

/// Somebody who waits for a turn.
struct Waiting<'a> {
    turns: &'a Turns,
    called: oneshot::Receiver<()>,
}

impl<'a> Waiting<'a> {
    async fn end(mut self) -> Kept<'a> {
        // The caller is in the queue until it calls.
        let _called = (&mut self.called).await;
        Kept { turns: self.turns }
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        // Called and gone before it heard: the turn is another's. After it has heard there is nothing to receive.
        if self.called.try_recv().is_ok() {
            self.turns.give_back();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::future::pending;
    use std::sync::Arc;

    use futures_util::FutureExt as _;

    use super::*;

    async fn hold(turns: Arc<Turns>, turn: Turn) {
        turns.take(turn, pending::<Result<(), ()>>()).await.unwrap();
    }

    /// Whether a turn is to be had at once.
    fn is_free(turns: &Turns) -> bool {
        turns.take(Turn::Sandbox, std::future::ready(Ok::<(), ()>(()))).now_or_never().is_some()
    }

    #[tokio::test(start_paused = true)]
    async fn turns_are_bounded_and_one_that_hangs_is_passed_by() {
        let turns = Arc::new(Turns::new(1));
        let hang: Vec<_> = (0..turns.lock().width.now())
            .map(|_| tokio::spawn(hold(turns.clone(), Turn::Create)))
            .collect();
        tokio::task::yield_now().await;
        assert!(!is_free(&turns));
        tokio::time::sleep(KEPT_MAX * 2).await;
        assert!(is_free(&turns), "calls that hang keep no turn");
        hang.iter().for_each(|call| call.abort());
        tokio::task::yield_now().await;
        assert_eq!(turns.lock().in_flight, 0);
    }

    #[tokio::test]
    async fn what_is_nearly_done_is_next_and_who_goes_away_takes_no_turn() {
        let turns = Arc::new(Turns::new(1));
        let first: Vec<_> = (0..turns.lock().width.now())
            .map(|_| tokio::spawn(hold(turns.clone(), Turn::Create)))
            .collect();
        tokio::task::yield_now().await;
        let order = Arc::new(Mutex::new(Vec::new()));
        let mut waiting = Vec::new();
        for turn in [Turn::Sandbox, Turn::Create, Turn::Start, Turn::Start] {
            let (turns, order) = (turns.clone(), order.clone());
            waiting.push(tokio::spawn(async move {
                let work = async {
                    order.lock().unwrap().push(turn);
                    Ok::<(), ()>(())
                };
                turns.take(turn, work).await
            }));
            tokio::task::yield_now().await;
        }
        waiting.pop().expect("four wait").abort();
        tokio::task::yield_now().await;
        first[0].abort();
        for done in waiting {
            done.await.unwrap().unwrap();
        }
        assert_eq!(*order.lock().unwrap(), [Turn::Start, Turn::Create, Turn::Sandbox]);
        first.iter().for_each(|call| call.abort());
        tokio::task::yield_now().await;
        assert_eq!(turns.lock().in_flight, 0);
    }
}
