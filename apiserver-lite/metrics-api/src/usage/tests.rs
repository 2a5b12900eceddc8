use proptest::prelude::*;

use super::*;

const INTERVAL: Duration = Duration::from_secs(15);

fn secs(n: u64) -> Duration {
    Duration::from_secs(n)
}

fn point(at: u64, started: Option<u64>, cpu_millis: u64) -> Measurement {
    Measurement {
        at: Some(secs(at)),
        started: started.map(secs),
        cpu: Some(Duration::from_millis(cpu_millis)),
        memory: Some(at),
    }
}

fn web() -> PodKey {
    PodKey { namespace: "a".into(), name: "web".into() }
}

/// A page with a node and the containers of one pod.
fn page(node: Measurement, containers: &[(&str, Measurement)]) -> Scrape {
    let containers = containers.iter().map(|(name, point)| ((*name).to_owned(), *point));
    Scrape { node, pods: BTreeMap::from([(web(), containers.collect())]) }
}

fn used(at: u64, window: u64, cpu_nanos: u64) -> Option<UsageSample<UsedBy>> {
    let used = UsedBy { cpu_nanos, memory: at };
    Some(UsageSample { at: secs(at), window: secs(window), used })
}

#[test]
fn two_scrapes_make_a_rate() {
    let mut usage = NodeUsage::default();
    assert_eq!(usage.node(), None, "never asked");
    usage.take(page(point(1000, None, 0), &[("c", point(1000, Some(500), 90_000))]), INTERVAL);
    assert_eq!((usage.node(), usage.pod(&web())), (None, None), "one point is no rate");
    // 7.5 s of CPU time in 15 s, and 3 s.
    usage.take(page(point(1015, None, 7500), &[("c", point(1015, Some(500), 93_000))]), INTERVAL);
    assert_eq!(usage.node(), used(1015, 15, 500_000_000));
    let pod = usage.pod(&web()).expect("measured");
    assert_eq!((pod.at, pod.window), (secs(1015), secs(15)));
    assert_eq!(pod.used["c"], UsedBy { cpu_nanos: 200_000_000, memory: 1015 });
    let other = PodKey { name: "other".into(), ..web() };
    assert_eq!(usage.pod(&other), None);
}

#[test]
fn a_page_that_has_not_changed_changes_nothing() {
    let mut usage = NodeUsage::default();
    usage.take(page(point(1000, None, 0), &[("c", point(1000, Some(500), 0))]), INTERVAL);
    for _ in 0..3 {
        usage.take(page(point(1010, None, 1000), &[("c", point(1010, Some(500), 500))]), INTERVAL);
        assert_eq!(usage.node(), used(1010, 10, 100_000_000));
        assert_eq!(usage.pod(&web()).expect("measured").used["c"].cpu_nanos, 50_000_000);
    }
    // A clock that went back gives no rate, and then new ones.
    usage.take(page(point(900, None, 2000), &[]), INTERVAL);
    assert_eq!(usage.node(), None);
    usage.take(page(point(910, None, 3000), &[]), INTERVAL);
    assert_eq!(usage.node(), used(910, 10, 100_000_000));
}

#[test]
fn a_node_that_does_not_answer_has_no_metrics_until_it_does() {
    let mut usage = NodeUsage::default();
    usage.take(page(point(1000, None, 0), &[("c", point(1000, Some(500), 0))]), INTERVAL);
    usage.take(page(point(1015, None, 1500), &[("c", point(1015, Some(500), 0))]), INTERVAL);
    usage.miss();
    assert_eq!((usage.node(), usage.pod(&web())), (None, None));
    usage.take(page(point(1045, None, 4500), &[("c", point(1045, Some(500), 300))]), INTERVAL);
    assert_eq!(usage.node(), used(1045, 30, 100_000_000), "over the time that it was silent");
    usage.take(page(point(2000, None, 4500), &[]), INTERVAL);
    assert_eq!(usage.node(), None, "too long ago");
}

#[test]
fn rates_of_a_restarted_container_start_from_its_restart() {
    let mut usage = NodeUsage::default();
    let old = point(1000, Some(500), 90_000);
    usage.take(page(Measurement::default(), &[("c", old), ("d", old)]), INTERVAL);
    let same = point(1015, Some(500), 91_000);
    usage.take(
        page(Measurement::default(), &[("c", point(1015, Some(1010), 10)), ("d", same)]),
        INTERVAL,
    );
    assert_eq!(usage.pod(&web()), None, "not without all containers");
    let (c, d) = (point(1030, Some(1010), 1510), point(1030, Some(500), 92_500));
    usage.take(page(Measurement::default(), &[("c", c), ("d", d)]), INTERVAL);
    let pod = usage.pod(&web()).expect("measured");
    assert_eq!((pod.used["c"].cpu_nanos, pod.used["d"].cpu_nanos), (100_000_000, 100_000_000));
    // A counter that goes back without a start is a restart too.
    usage.take(page(Measurement::default(), &[("c", point(1045, None, 3)), ("d", d)]), INTERVAL);
    assert_eq!(usage.pod(&web()), None);
}

#[test]
fn a_fresh_container_is_measured_from_its_start() {
    for (age, expected) in [(9, None), (10, Some(10)), (14, Some(14)), (15, None)] {
        let mut usage = NodeUsage::default();
        let fresh = point(1000, Some(1000 - age), age * 500);
        usage.take(page(Measurement::default(), &[("c", fresh)]), INTERVAL);
        let pod = usage.pod(&web());
        let window = pod.as_ref().map(|pod| pod.window.as_secs());
        assert_eq!(window, expected, "{age} s old");
        assert!(pod.is_none_or(|pod| pod.used["c"].cpu_nanos == 500_000_000));
    }
}

#[test]
fn the_window_of_a_pod_is_that_of_its_oldest_measurement() {
    let mut usage = NodeUsage::default();
    let started = Some(1);
    let of = |c: u64, d: u64| {
        page(Measurement::default(), &[("c", point(c, started, c)), ("d", point(d, started, d))])
    };
    usage.take(of(1000, 1005), INTERVAL);
    usage.take(of(1016, 1015), INTERVAL);
    let pod = usage.pod(&web()).expect("measured");
    assert_eq!((pod.at, pod.window), (secs(1015), secs(10)));
}

proptest! {
    /// Whatever a node says, a rate is that of the two points, over a window that is the time between them.
    #[test]
    fn rates_are_honest(points in prop::collection::vec((0u64..100, 0u64..100_000, prop::option::of(0u64..100)), 1..12)) {
        let mut usage = NodeUsage::default();
        let mut seen: Vec<Measurement> = Vec::new();
        for (at, cpu, started) in points {
            let new = point(1000 + at, None, cpu);
            let container = point(1000 + at, started.map(|s| 1000 + s), cpu);
            usage.take(page(new, &[("c", container)]), INTERVAL);
            seen.push(new);
            if let Some(measured) = usage.node() {
                let start = measured.at - measured.window;
                let first = seen.iter().filter(|p| p.at == Some(start) && p.cpu <= new.cpu);
                prop_assert!(first.count() > 0, "no point at the start of the window");
                prop_assert_eq!(measured.at, new.at.unwrap());
            }
            if let Some(pod) = usage.pod(&web()) {
                prop_assert!(!pod.window.is_zero() && pod.window <= WINDOW_MAX);
                prop_assert!(started.is_none_or(|s| 1000 + s <= (pod.at - pod.window).as_secs()));
            }
        }
    }
}
