//! The queue under random operations, and its delays with paused time.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicUsize, Ordering};

use proptest::prelude::*;

use super::*;
use crate::drain::{Drain, DrainOutcome};
use crate::metrics::Metrics;

fn queue() -> WorkQueue<&'static str> {
    WorkQueue::new(WorkQueueMetrics::new().expect("metrics"), |_| "test")
}

#[tokio::test(start_paused = true)]
async fn a_key_is_queued_once_and_runs_alone() {
    let queue = queue();
    queue.add("a");
    queue.add("a");
    let first = queue.next().await;
    assert_eq!(queue.ready_len(), 0);
    queue.add("a");
    queue.add("b");
    // "a" is running: only "b" may be taken.
    let second = queue.next().await;
    assert_eq!((*first.key(), *second.key()), ("a", "b"));
    assert_eq!(queue.ready_len(), 0);
    first.done();
    assert_eq!(*queue.next().await.key(), "a");
}

#[tokio::test(start_paused = true)]
async fn the_earlier_delay_counts() {
    let queue = queue();
    let start = Instant::now();
    queue.add_after("a", Duration::from_secs(9));
    queue.add_after("a", Duration::from_secs(3));
    queue.add_after("a", Duration::from_secs(6));
    queue.next().await.again_in(Duration::from_secs(1));
    assert_eq!(start.elapsed(), Duration::from_secs(3));
    queue.next().await.done();
    assert_eq!(start.elapsed(), Duration::from_secs(4));
    let more = tokio::time::timeout(Duration::from_secs(3600), queue.next()).await;
    assert!(more.is_err(), "nothing was left to do");
}

#[tokio::test(start_paused = true)]
async fn no_delay_is_too_long_for_the_clock() {
    let queue = queue();
    queue.add_after("a", Duration::MAX);
    queue.next().await.again_in(Duration::MAX);
    assert_eq!(*queue.next().await.key(), "a");
}

#[tokio::test(start_paused = true)]
async fn failures_return_with_back_off_until_done() {
    let queue = queue();
    queue.add("a");
    let mut work = queue.next().await;
    for failure in 0..4_u32 {
        queue.add("a"); // must not shorten the wait
        drop(work);
        let failed_at = Instant::now();
        work = queue.next().await;
        let (waited, full) = (failed_at.elapsed(), Duration::from_millis(5 << failure));
        assert!(waited >= full / 2 && waited <= full + Duration::from_millis(1), "{waited:?}");
    }
    work.done();
    queue.add("a");
    drop(queue.next().await);
    let failed_at = Instant::now();
    queue.next().await.done();
    assert!(failed_at.elapsed() <= Duration::from_millis(6), "earlier failures are forgotten");
}

#[tokio::test(start_paused = true)]
async fn workers_finish_what_they_have_begun() {
    let (queue, drain, finished) = (queue(), Drain::default(), Arc::new(AtomicUsize::new(0)));
    ["a", "b", "c"].into_iter().for_each(|key| queue.add(key));
    let counter = finished.clone();
    let work = move |_key| {
        let counter = counter.clone();
        async move {
            tokio::time::sleep(Duration::from_secs(1)).await;
            counter.fetch_add(1, Ordering::Relaxed);
            Ok::<_, std::io::Error>(Requeue::Never)
        }
    };
    let workers = tokio::spawn(run_workers(queue.clone(), 2, drain.watch(), work));
    tokio::time::sleep(Duration::from_millis(500)).await;
    assert_eq!(drain.drain(Duration::from_secs(60)).await, DrainOutcome::Finished);
    workers.await.expect("ended");
    assert_eq!((finished.load(Ordering::Relaxed), queue.ready_len()), (2, 1));
}

/// Counts the warnings of a thread.
struct Warnings(Arc<AtomicUsize>);

impl<S: tracing::Subscriber> tracing_subscriber::Layer<S> for Warnings {
    fn on_event(&self, event: &tracing::Event<'_>, _: tracing_subscriber::layer::Context<'_, S>) {
        if *event.metadata().level() == tracing::Level::WARN {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_key_that_fails_for_ever_does_not_fill_the_log() {
    use tracing_subscriber::layer::SubscriberExt as _;

    let (tries, warnings) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
    let log = tracing_subscriber::registry().with(Warnings(warnings.clone()));
    let _log = tracing::subscriber::set_default(log);
    let (queue, drain, counter) = (queue(), Drain::default(), tries.clone());
    queue.add("refused");
    let work = move |_key| {
        counter.fetch_add(1, Ordering::Relaxed);
        async { Err::<Requeue, _>(std::io::Error::other("invalid")) }
    };
    let workers = tokio::spawn(run_workers(queue, 1, drain.watch(), work));
    tokio::time::sleep(Duration::from_secs(24 * 3600)).await;
    assert_eq!(drain.drain(Duration::from_secs(60)).await, DrainOutcome::Finished);
    workers.await.expect("ended");
    let [tries, warnings] = [tries, warnings].map(|count| count.load(Ordering::Relaxed));
    assert!(tries > 1000, "it is retried all the same: {tries}");
    assert!((1..=12).contains(&warnings), "{warnings} of {tries}");
}

#[derive(Clone, Copy, Debug)]
enum Step {
    Add(u8),
    AddAt(u8, u64),
    Take,
    Done,
    Fail,
    Pass(u64),
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        (0..4_u8).prop_map(Step::Add),
        (0..4_u8, 0..20_u64).prop_map(|(key, after)| Step::AddAt(key, after)),
        Just(Step::Take),
        Just(Step::Done),
        Just(Step::Fail),
        (0..20_u64).prop_map(Step::Pass),
    ]
}

proptest! {
    #[test]
    fn no_key_runs_twice_or_is_lost(steps in prop::collection::vec(step(), 0..80)) {
        let mut now = Instant::now();
        let metrics = WorkQueueMetrics::new().expect("metrics");
        let mut schedule = Schedule::new(QueueMetrics { metrics, controller_of: |_| "test" });
        let mut running: Vec<u8> = Vec::new();
        // Keys without a run since they were last added.
        let mut wanted: BTreeSet<u8> = BTreeSet::new();
        for step in steps {
            match step {
                Step::Add(key) => { schedule.add(key, now); wanted.insert(key); }
                Step::AddAt(key, after) => {
                    schedule.add_at(key, now + Duration::from_millis(after));
                    wanted.insert(key);
                }
                Step::Take => if let Some(key) = schedule.take(now) {
                    prop_assert!(!running.contains(&key), "{key} runs twice");
                    running.push(key);
                    wanted.remove(&key);
                }
                Step::Done => if let Some(key) = running.pop() { schedule.done(&key, run(now)); }
                Step::Fail => if let Some(key) = running.pop() {
                    schedule.failed(&key, run(now), |_| now + Duration::from_millis(7));
                    wanted.insert(key);
                }
                Step::Pass(wait) => now += Duration::from_millis(wait),
            }
        }
        for key in running { schedule.failed(&key, run(now), |_| now); wanted.insert(key); }
        now += Duration::from_secs(1);
        let mut served = BTreeSet::new();
        while let Some(key) = schedule.take(now) {
            prop_assert!(served.insert(key), "{key} was queued twice");
            schedule.done(&key, run(now));
        }
        prop_assert_eq!(schedule.next_due(), None);
        prop_assert!(wanted.is_subset(&served), "lost: {wanted:?} - {served:?}");
    }
}

fn run(at: Instant) -> Run {
    Run { begun: at, ended: at, was_begun: true }
}

/// The lines of `text` about work queues, without histograms' buckets and times.
fn counts(metrics: &Metrics) -> Vec<String> {
    let text = metrics.text();
    let kept = |line: &&str| {
        line.starts_with("workqueue_") && !line.contains("_bucket") && !line.contains("_sum")
    };
    text.lines().filter(kept).map(|line| line.replace("workqueue_", "")).collect()
}

#[tokio::test(start_paused = true)]
async fn metrics_tell_what_waits_and_what_runs() {
    let build = crate::metrics::BuildInfo { version: "", commit: "" };
    let metrics = Metrics::new("test", build).expect("metrics");
    let measured = WorkQueueMetrics::register(&metrics).expect("metrics");
    let name = |key: &&str| if *key == "b" { "second" } else { "first" };
    let queue = WorkQueue::<&'static str>::new(measured, name);
    ["a", "a", "b", "c"].into_iter().for_each(|key| queue.add(key));
    tokio::time::advance(Duration::from_secs(2)).await;
    let a = queue.next().await;
    tokio::time::advance(Duration::from_secs(3)).await;
    queue.add("a");
    assert_eq!(
        counts(&metrics),
        [
            "adds_total{name=\"first\"} 3",
            "adds_total{name=\"second\"} 1",
            "depth{name=\"first\"} 2",
            "depth{name=\"second\"} 1",
            "longest_running_processor_seconds{name=\"first\"} 3",
            "queue_duration_seconds_count{name=\"first\"} 1",
            "unfinished_work_seconds{name=\"first\"} 3",
        ]
    );
    // It was added while it ran, and is retried later only.
    drop(a);
    queue.next().await.done();
    queue.next().await.done();
    queue.next().await.done();
    assert_eq!(
        counts(&metrics),
        [
            "adds_total{name=\"first\"} 4",
            "adds_total{name=\"second\"} 1",
            "depth{name=\"first\"} 0",
            "depth{name=\"second\"} 0",
            "longest_running_processor_seconds{name=\"first\"} 0",
            "longest_running_processor_seconds{name=\"second\"} 0",
            "queue_duration_seconds_count{name=\"first\"} 3",
            "queue_duration_seconds_count{name=\"second\"} 1",
            "retries_total{name=\"first\"} 1",
            "unfinished_work_seconds{name=\"first\"} 0",
            "unfinished_work_seconds{name=\"second\"} 0",
            "work_duration_seconds_count{name=\"first\"} 3",
            "work_duration_seconds_count{name=\"second\"} 1",
        ]
    );
    let sum = "workqueue_queue_duration_seconds_sum{name=\"first\"} ";
    let text = metrics.text();
    let sum = text.lines().find_map(|line| line.strip_prefix(sum)).expect("a sum");
    let waited: f64 = sum.parse().expect("a number");
    assert!((7.0..7.01).contains(&waited), "2 s, 5 s, and at once after the back-off: {waited}");
}

#[tokio::test(start_paused = true)]
async fn a_run_that_has_to_wait_is_not_observed_and_a_dropped_queue_has_no_depth() {
    let build = crate::metrics::BuildInfo { version: "", commit: "" };
    let metrics = Metrics::new("test", build).expect("metrics");
    let queue = WorkQueue::new(WorkQueueMetrics::register(&metrics).expect("metrics"), |_| "test");
    queue.add("a");
    queue.next().await.end(Requeue::NotBegun(Duration::from_millis(50)));
    queue.next().await.end(Requeue::Never);
    queue.add("a");
    let has = |line: &str| counts(&metrics).iter().any(|count| count == line);
    assert!(has("work_duration_seconds_count{name=\"test\"} 1"), "{:?}", counts(&metrics));
    assert!(has("depth{name=\"test\"} 1"));
    drop(queue);
    assert!(has("depth{name=\"test\"} 0"));
}
