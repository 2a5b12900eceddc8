//! Probes that hang or take long, and those of other pods.

use std::future::{pending, ready};
use std::sync::Arc;

use futures_util::FutureExt as _;
use tokio::task::{JoinHandle, JoinSet};

use super::*;

const QUICK: ProbeBounds = ProbeBounds { node: 8, namespace: 6, pod: 4 };
const SLOW: ProbeBounds = ProbeBounds { node: 12, namespace: 10, pod: 5 };

fn limiter() -> Arc<ProbeLimiter> {
    Arc::new(ProbeLimiter::new(QUICK, SLOW))
}

fn pod<'a>(namespace: &'a str, uid: &'a str) -> PodKey<'a> {
    PodKey { namespace, uid }
}

/// Probes of a pod that never end by themselves.
async fn hang(
    limiter: &Arc<ProbeLimiter>,
    pod: PodKey<'static>,
    count: usize,
) -> JoinSet<Result<(), ProbeLimitError>> {
    let mut all = JoinSet::new();
    for _ in 0..count {
        let limiter = limiter.clone();
        all.spawn(async move { limiter.run(pod, pending()).await });
    }
    tokio::task::yield_now().await;
    all
}

/// Whether a probe of this pod runs at once.
fn runs(limiter: &ProbeLimiter, pod: PodKey<'_>) -> bool {
    limiter.run(pod, ready(())).now_or_never() == Some(Ok(()))
}

fn in_progress(limiter: &ProbeLimiter) -> (usize, usize) {
    let state = limiter.lock();
    (state.quick.total, state.slow.total)
}

#[tokio::test(start_paused = true)]
async fn a_pod_whose_probes_hang_leaves_others_their_permits() {
    let limiter = limiter();
    let mut hanging = hang(&limiter, pod("a", "1"), 40).await;
    assert_eq!(in_progress(&limiter), (QUICK.pod, 0));
    assert!(!runs(&limiter, pod("a", "1")));
    assert!(runs(&limiter, pod("a", "2")), "another pod of the namespace");
    let _more = hang(&limiter, pod("a", "2"), 40).await;
    assert_eq!(in_progress(&limiter), (QUICK.namespace, 0));
    assert!(!runs(&limiter, pod("a", "3")));
    assert!(runs(&limiter, pod("b", "1")), "another namespace");
    tokio::time::sleep(WAIT_MAX * 3).await;
    // Those that had a permit went on as slow ones up to their bound; none of the others waits.
    assert_eq!(in_progress(&limiter), (0, SLOW.pod * 2));
    let mut refused = [0, 0];
    while let Some(ended) = hanging.try_join_next() {
        match ended.expect("task") {
            Ok(()) => unreachable!("it hangs"),
            Err(ProbeLimitError::NotStarted) => refused[0] += 1,
            Err(ProbeLimitError::CutShort) => refused[1] += 1,
        }
    }
    assert_eq!(refused[0] + refused[1] + SLOW.pod, 40, "{refused:?}");
    assert!(refused.iter().all(|count| *count > 0), "{refused:?}");
    drop(hanging);
    tokio::task::yield_now().await;
    assert_eq!(in_progress(&limiter), (0, SLOW.pod), "an aborted probe counts no longer");
}

#[tokio::test(start_paused = true)]
async fn a_probe_that_takes_long_has_its_result_and_no_permit() {
    let limiter = limiter();
    let long: Vec<JoinHandle<_>> = ["a", "b", "c"]
        .map(|namespace| {
            let limiter = limiter.clone();
            let work = tokio::time::sleep(KEPT_MAX * 10);
            tokio::spawn(async move { limiter.run(pod(namespace, "1"), work).await })
        })
        .into();
    tokio::time::sleep(KEPT_MAX * 2).await;
    assert_eq!(in_progress(&limiter), (0, 3));
    for probe in long {
        assert_eq!(probe.await.expect("task"), Ok(()));
    }
    assert_eq!(in_progress(&limiter), (0, 0));
}

#[tokio::test(start_paused = true)]
async fn a_free_permit_goes_to_the_owner_with_the_fewest() {
    let limiter = limiter();
    // Many pods, whose probes would take all permits one after the other.
    let mut crowd = Vec::new();
    for uid in ["1", "2", "3", "4", "5", "6"] {
        crowd.push(hang(&limiter, pod("a", uid), 8).await);
        crowd.push(hang(&limiter, pod("b", uid), 8).await);
    }
    assert_eq!(in_progress(&limiter), (QUICK.node, 0));
    let mut honest = JoinSet::new();
    for _ in 0..20 {
        let limiter = limiter.clone();
        honest.spawn(async move {
            limiter.run(pod("c", "1"), tokio::time::sleep(Duration::from_millis(50))).await
        });
    }
    // In virtual time: the permits that are free first are the namespace's while it wants them.
    tokio::time::sleep(KEPT_MAX + Duration::from_secs(1)).await;
    while let Some(ended) = honest.try_join_next() {
        assert_eq!(ended.expect("task"), Ok(()));
    }
    assert!(honest.is_empty(), "{} wait", honest.len());
    drop(crowd);
}

#[tokio::test(start_paused = true)]
async fn a_cancelled_probe_takes_no_permit() {
    let limiter = limiter();
    let holders = hang(&limiter, pod("a", "1"), QUICK.pod).await;
    for _ in 0..WAITING_OF_POD_MAX * 2 {
        let given_up = limiter.run(pod("a", "1"), ready(()));
        assert!(tokio::time::timeout(Duration::ZERO, given_up).await.is_err());
    }
    let next = {
        let limiter = limiter.clone();
        tokio::spawn(async move { limiter.run(pod("a", "1"), ready(7)).await })
    };
    tokio::task::yield_now().await;
    drop(holders);
    assert_eq!(next.await.expect("task"), Ok(7));
    assert_eq!(in_progress(&limiter), (0, 0));
    assert!(limiter.lock().waiting.is_empty());
}
