//! The loop that most tasks are: wait, observe, plan, apply, publish, wait again.
//!
//! ```text
//!            poke / resync / retry
//!   waiting ------------------------> observe -> plan -> apply
//!      ^                                                   |
//!      +------- publish status, choose the next wake ------+
//! ```
//!
//! Level-triggered: a poke says that something changed, never what. Pokes that come while a pass
//! runs are one more pass.

use std::error::Error;
use std::future::Future;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::sync::Notify;
use tokio::time::{Instant, sleep_until};

use crate::backoff::Backoff;
use crate::drain::DrainWatch;
use crate::exit::chain;
use crate::statusz::TaskStatus;

/// What a loop drives. `plan` is the only step that decides, and does nothing else.
pub trait Reconcile: Send {
    /// Everything that a decision needs, read at one moment.
    type World: Send;
    /// What is to be done: a value that a test can compare.
    type Plan: Send;
    /// Why a pass failed.
    type Error: Error + Send + 'static;

    /// Reads the world.
    fn observe(&mut self) -> impl Future<Output = Result<Self::World, Self::Error>> + Send;
    /// Decides. Pure.
    fn plan(&self, world: Self::World) -> Self::Plan;
    /// Does what the plan says, and nothing that it does not say. Never retries: the loop does.
    fn apply(
        &mut self,
        plan: Self::Plan,
    ) -> impl Future<Output = Result<Applied, Self::Error>> + Send;
}

/// What a pass that went well leaves behind.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Applied {
    /// What was done, for `/statusz`; may be empty.
    pub what: String,
    /// The next pass is to be no later than this from now.
    pub again_in: Option<Duration>,
}

/// When a loop runs unasked.
#[derive(Clone, Copy, Debug)]
pub struct Pace {
    /// A pass at least this often, to repair what no event told of.
    pub resync: Duration,
    /// How long to wait after failures. A poke does not shorten it.
    pub retry: Backoff,
}

/// Asks a loop for a pass. Cheap to clone; all clones poke one loop.
#[derive(Clone, Debug, Default)]
pub struct Trigger(Arc<TriggerState>);

#[derive(Debug, Default)]
struct TriggerState {
    /// The first reason since the last pass.
    reason: Mutex<Option<&'static str>>,
    poked: Notify,
}

impl Trigger {
    /// Asks for a pass. Many pokes before the pass begins are one.
    pub fn poke(&self, reason: &'static str) {
        self.0.reason.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(reason);
        self.0.poked.notify_one();
    }

    /// Takes the reason once there is one. Cancel safe: it is taken in the last step.
    async fn poked(&self) -> &'static str {
        loop {
            if let Some(reason) = self.take() {
                return reason;
            }
            self.0.poked.notified().await;
        }
    }

    fn take(&self) -> Option<&'static str> {
        self.0.reason.lock().unwrap_or_else(PoisonError::into_inner).take()
    }
}

/// Drives `reconcile` until drained. A pass that has begun is finished first: half a pass is what
/// the next start would have to repair.
pub async fn run<R: Reconcile>(
    mut reconcile: R,
    pace: Pace,
    trigger: Trigger,
    status: TaskStatus,
    drain: DrainWatch,
) {
    let mut failures = 0;
    let mut earliest = Instant::now();
    let mut latest = earliest;
    let mut unasked = "start";
    loop {
        // Cancel safe: next_reason takes a poke in its last step, asked takes nothing.
        let reason = tokio::select! {
            biased;
            () = drain.asked() => return,
            reason = next_reason(&trigger, earliest, latest, unasked) => reason,
        };
        status.started(reason);
        let outcome = pass(&mut reconcile).await;
        let now = Instant::now();
        match outcome {
            Ok(applied) => {
                failures = 0;
                earliest = now;
                latest = now + applied.again_in.map_or(pace.resync, |wait| wait.min(pace.resync));
                unasked = "resync";
                status.done(applied.what);
            }
            Err(error) => {
                failures += 1;
                earliest = now + pace.retry.delay(failures, rand::random());
                latest = earliest;
                unasked = "retry";
                let cause = chain(&error);
                tracing::warn!(reason, failures, error = cause, "pass failed");
                status.failed(cause);
            }
        }
    }
}

async fn next_reason(
    trigger: &Trigger,
    earliest: Instant,
    latest: Instant,
    unasked: &'static str,
) -> &'static str {
    sleep_until(earliest).await;
    tokio::select! {
        biased;
        reason = trigger.poked() => reason,
        () = sleep_until(latest) => unasked,
    }
}

async fn pass<R: Reconcile>(reconcile: &mut R) -> Result<Applied, R::Error> {
    let world = reconcile.observe().await?;
    let plan = reconcile.plan(world);
    reconcile.apply(plan).await
}

#[cfg(test)]
mod tests {
    use tokio::sync::mpsc;

    use super::*;
    use crate::drain::{Drain, Drained};
    use crate::statusz::{Outcome, StatusBoard};

    #[derive(Debug, thiserror::Error)]
    #[error("broken")]
    struct Broken;

    /// Tells each pass and how it is to end.
    struct Probe {
        passes: mpsc::UnboundedSender<Instant>,
        ends: mpsc::UnboundedReceiver<Result<Applied, Broken>>,
    }

    impl Reconcile for Probe {
        type World = Instant;
        type Plan = Instant;
        type Error = Broken;

        async fn observe(&mut self) -> Result<Instant, Broken> {
            Ok(Instant::now())
        }

        fn plan(&self, world: Instant) -> Instant {
            world
        }

        async fn apply(&mut self, plan: Instant) -> Result<Applied, Broken> {
            self.passes.send(plan).expect("test listens");
            self.ends.recv().await.expect("test answers")
        }
    }

    struct Bench {
        passes: mpsc::UnboundedReceiver<Instant>,
        ends: mpsc::UnboundedSender<Result<Applied, Broken>>,
        trigger: Trigger,
        board: StatusBoard,
        drain: Drain,
    }

    fn start() -> Bench {
        let (passes, told) = mpsc::unbounded_channel();
        let (answer, ends) = mpsc::unbounded_channel();
        let (trigger, board, drain) =
            (Trigger::default(), StatusBoard::default(), Drain::default());
        let pace = Pace { resync: Duration::from_secs(600), retry: Backoff::LOOP };
        let probe = Probe { passes, ends };
        tokio::spawn(run(probe, pace, trigger.clone(), board.task("t"), drain.watch()));
        Bench { passes: told, ends: answer, trigger, board, drain }
    }

    impl Bench {
        async fn pass(&mut self) -> Instant {
            self.passes.recv().await.expect("loop runs")
        }
    }

    #[tokio::test(start_paused = true)]
    async fn pokes_during_a_pass_are_one_more_pass() {
        let mut bench = start();
        let first = bench.pass().await;
        (0..9).for_each(|_| bench.trigger.poke("changed"));
        bench.ends.send(Ok(Applied::default())).expect("runs");
        assert_eq!(bench.pass().await, first);
        assert_eq!(bench.board.snapshot()["t"].reason, "changed");
        bench.ends.send(Ok(Applied::default())).expect("runs");
        assert_eq!(bench.pass().await - first, Duration::from_secs(600));
        assert_eq!(bench.board.snapshot()["t"].reason, "resync");
    }

    #[tokio::test(start_paused = true)]
    async fn failures_back_off_whatever_is_poked() {
        let mut bench = start();
        let mut last = bench.pass().await;
        for failure in 1..=3_u32 {
            bench.trigger.poke("changed");
            bench.ends.send(Err(Broken)).expect("runs");
            let next = bench.pass().await;
            let full = Duration::from_millis(100 << (failure - 1));
            assert!(next - last >= full / 2 && next - last <= full + Duration::from_millis(1));
            last = next;
        }
        assert_eq!(bench.board.snapshot()["t"].failures, 3);
    }

    #[tokio::test(start_paused = true)]
    async fn a_pass_is_finished_before_the_loop_ends() {
        let mut bench = start();
        bench.pass().await;
        let again_in = Some(Duration::from_secs(5));
        let (ends, board) = (bench.ends.clone(), bench.board.clone());
        let drained = tokio::spawn(bench.drain.drain(Duration::from_secs(60)));
        tokio::task::yield_now().await;
        assert_eq!(board.snapshot()["t"].outcome, Outcome::Running);
        ends.send(Ok(Applied { what: "all".into(), again_in })).expect("runs");
        assert_eq!(drained.await.expect("drained"), Drained::Finished);
    }

    #[tokio::test(start_paused = true)]
    async fn a_pass_may_ask_for_the_next() {
        let mut bench = start();
        let first = bench.pass().await;
        let again_in = Some(Duration::from_secs(5));
        bench.ends.send(Ok(Applied { what: String::new(), again_in })).expect("runs");
        assert_eq!(bench.pass().await - first, Duration::from_secs(5));
    }
}
