use super::*;
use crate::metrics::amounts;
use crate::testing::{NOW, pod, ready, time, usage};

/// What a table says of a pod.
#[derive(Clone, Copy)]
enum Is {
    /// Ready, and uses thousandths of its CPU.
    Using(i64),
    /// Ready, without metrics.
    Missing,
    /// Not started.
    Pending,
    /// Not ready in its first minutes, and uses thousandths of its CPU.
    Starting(i64),
    /// Deleted, and uses thousandths of its CPU.
    Leaving(i64),
    /// Ended without success.
    Failed,
}
use Is::{Failed, Leaving, Missing, Pending, Starting, Using};

fn pods(all: &[Is]) -> (Vec<Pod>, Vec<crate::PodUsage>) {
    let (mut pods, mut used) = (Vec::new(), Vec::new());
    for (at, is) in all.iter().enumerate() {
        let name = format!("p{at}");
        let mut pod = pod(&name);
        match is {
            Using(milli) => used.push(usage(&name, *milli)),
            Missing => {}
            Pending => pod.status.phase = "Pending".to_owned(),
            Starting(milli) => {
                pod.status.start_time = Some(time(NOW - 20));
                pod.status.conditions = vec![ready("False", NOW - 20)];
                used.push(usage(&name, *milli));
            }
            Leaving(milli) => {
                pod.metadata.deletion_timestamp = Some(time(NOW));
                used.push(usage(&name, *milli));
            }
            Failed => pod.status.phase = "Failed".to_owned(),
        }
        pods.push(pod);
    }
    (pods, used)
}

/// Runs a calculation with `current` replicas.
fn size(
    all: &[Is],
    resource: &str,
    current: i32,
    run: impl FnOnce(&Measured) -> Result<Proposal, SizingError>,
) -> Result<Proposal, SizingError> {
    let (pods, used) = pods(all);
    let pods: Vec<&Pod> = pods.iter().collect();
    let settings = AutoscalerSettings::default();
    let amounts = amounts(&used, resource, None, "a")?;
    let (settings, now, container) = (&settings, time(NOW), None);
    let sizing = Sizing { pods: &pods, amounts, resource, container, current, settings, now };
    run(&sizing.measure()?)
}

#[test]
fn replicas_follow_the_utilization() {
    // Percent is used / requested; replicas are ceil(pods that count * percent / target).
    let table: &[(&[Is], i32, i32, i32, &str)] = &[
        (&[Using(300), Using(500), Using(700)], 30, 5, 50, "ceil(3 * 50/30) = 5"),
        (
            &[Using(100), Using(300), Using(500), Using(250), Using(250)],
            50,
            3,
            28,
            "ceil(5 * 28/50) = 3",
        ),
        (&[Using(1010), Using(1030), Using(1020)], 100, 3, 102, "within 10 %"),
        (&[Using(1099)], 100, 1, 109, "less than 10 %"),
        (&[Using(1110)], 100, 2, 111, "more than 10 %"),
        (&[Using(899)], 100, 1, 89, "ceil(0.89) = 1"),
        // Unready pods use nothing when the others ask for more.
        (
            &[Starting(900), Using(500), Using(700)],
            30,
            4,
            60,
            "60/30 of two, 40/30 of three: ceil(4)",
        ),
        (&[Pending, Using(500), Using(700)], 30, 4, 60, "as those that are unready"),
        (&[Pending, Pending, Using(450)], 30, 3, 45, "15/30 would turn round"),
        // And are left out when they ask for less.
        (&[Starting(900), Using(100), Using(100)], 50, 1, 10, "ceil(2 * 10/50) = 1"),
        // Missing metrics count for nothing upwards, and for the whole request downwards.
        (&[Missing, Using(1000), Using(1000)], 50, 4, 100, "200/3 is 66 %, ceil(3 * 66/50) = 4"),
        (&[Missing, Using(100), Using(100)], 50, 3, 10, "120/3 is 40 %, ceil(3 * 40/50) = 3"),
        (&[Missing, Using(100), Using(100)], 100, 2, 10, "40 of 100 for three: ceil(1.2) = 2"),
        (&[Missing, Missing, Using(300)], 50, 3, 30, "230/3 is 76 %: it would turn round"),
        (
            &[Missing, Using(1200)],
            200,
            2,
            120,
            "downwards at least the target: 160/200, ceil(1.6) = 2",
        ),
        (&[Missing, Using(500)], 50, 2, 50, "nothing is known to be wrong"),
        // Pods that are being deleted and failed pods do not count.
        (&[Leaving(5000), Failed, Using(600), Using(600)], 50, 3, 60, "ceil(2 * 60/50) = 3"),
    ];
    for (all, percent, replicas, utilization, why) in table {
        let current = i32::try_from(all.len()).expect("few");
        let proposal = size(all, "cpu", current, |measured| measured.by_utilization(*percent));
        let proposal = proposal.unwrap_or_else(|error| panic!("{why}: {error}"));
        let got = (proposal.replicas, proposal.utilization);
        assert_eq!(got, (*replicas, Some(*utilization)), "{why}");
    }
}

#[test]
fn replicas_follow_the_average() {
    let table: &[(&[Is], i64, i32, i64, &str)] = &[
        (&[Using(300), Using(500), Using(700)], 300, 5, 500, "ceil(3 * 500/300) = 5"),
        (&[Using(100), Using(200)], 400, 1, 150, "ceil(2 * 150/400) = 1"),
        (&[Using(1), Using(2)], 1, 2, 1, "whole thousandths: 3/2 is 1"),
        (
            &[Missing, Using(1000), Using(1000)],
            500,
            4,
            1000,
            "2000/3 is 666, ceil(3 * 666/500) = 4",
        ),
        (&[Missing, Using(100), Using(100)], 500, 2, 100, "700/3 is 233, ceil(3 * 233/500) = 2"),
        (&[Missing, Using(500)], 500, 2, 500, "a missing pod does not scale down"),
        (&[Pending, Using(900)], 500, 2, 900, "450/500 would turn round"),
    ];
    for (all, milli, replicas, average, why) in table {
        let current = i32::try_from(all.len()).expect("few");
        let proposal = size(all, "cpu", current, |measured| measured.by_average(*milli));
        let proposal = proposal.unwrap_or_else(|error| panic!("{why}: {error}"));
        assert_eq!((proposal.replicas, proposal.average), (*replicas, *average), "{why}");
        assert_eq!(proposal.utilization, None);
    }
}

#[test]
fn only_cpu_cares_for_readiness() {
    let all = [Starting(900), Using(300)];
    let memory = size(&all, "memory", 2, |measured| measured.by_utilization(50));
    // 900 and 300 of 1000 bytes each.
    assert_eq!(memory.map(|it| (it.replicas, it.utilization)), Ok((3, Some(60))));
    let cpu = size(&all, "cpu", 2, |measured| measured.by_utilization(50));
    assert_eq!(cpu.map(|it| (it.replicas, it.utilization)), Ok((1, Some(30))), "ceil(1 * 30/50)");
}

#[test]
fn the_start_of_a_pod_does_not_count() {
    // (seconds since the start, status, seconds since the change, age of the sample) -> counts
    for (started, status, changed, measured, counts) in [
        (100, "False", 100, 5, false),
        (100, "True", 50, 5, true),
        (100, "True", 10, 5, false), // a window of 15 s is not over since
        (100, "True", 20, 5, true),
        (100, "True", 19, 5, false),
        (1000, "True", 1, 900, true), // after the first minutes any sample counts
        (1000, "False", 980, 5, false), // never ready
        (1000, "False", 960, 5, true), // was ready for a time
        (1000, "False", 1, 5, true),
    ] {
        let mut one = pod("p0");
        one.status.start_time = Some(time(NOW - started));
        one.status.conditions = vec![ready(status, NOW - changed)];
        let mut used = usage("p0", 100);
        used.at = time(NOW - measured);
        let settings = AutoscalerSettings::default();
        let sizing = Sizing {
            pods: &[&one],
            amounts: amounts(std::slice::from_ref(&used), "cpu", None, "a").expect("some"),
            resource: "cpu",
            container: None,
            current: 1,
            settings: &settings,
            now: time(NOW),
        };
        let groups = sizing.groups().expect("pods");
        let told = (started, status, changed, measured);
        assert_eq!(
            (groups.ready, groups.unready.len()),
            (u32::from(counts), usize::from(!counts)),
            "{told:?}"
        );
    }
    let mut without = pod("p0");
    without.status.conditions.clear();
    let (all, used) = ((pod("p1"), without), [usage("p0", 1), usage("p1", 1)]);
    let settings = AutoscalerSettings::default();
    let sizing = Sizing {
        pods: &[&all.0, &all.1],
        amounts: amounts(&used, "cpu", None, "a").expect("some"),
        resource: "cpu",
        container: None,
        current: 2,
        settings: &settings,
        now: time(NOW),
    };
    assert_eq!(sizing.groups().expect("pods").unready, BTreeSet::from(["p0"]));
}

/// Of a pod p0 that uses a thousandth.
fn of_one_milli(pods: &[&Pod]) -> Result<Measured, SizingError> {
    let (used, settings) = ([usage("p0", 1)], AutoscalerSettings::default());
    let amounts = amounts(&used, "cpu", None, "a").expect("some");
    let (resource, container, settings, now) = ("cpu", None, &settings, time(NOW));
    Sizing { pods, amounts, resource, container, current: 1, settings, now }.measure()
}

#[test]
fn a_metric_without_a_value_has_a_reason() {
    let run = |all: &[Is]| {
        let done = size(all, "cpu", 1, |measured| measured.by_utilization(50));
        done.map_err(|error| error.to_string())
    };
    assert_eq!(run(&[Missing]), Err("no metrics returned from resource metrics API".into()));
    assert_eq!(run(&[Starting(5)]), Err("did not receive metrics for any ready pods".into()));
    assert_eq!(of_one_milli(&[]).map(|_| ()), Err(SizingError::NoPods));
    let mut greedy = pod("p0");
    greedy.spec.containers[0].resources.requests.remove("cpu");
    let error = of_one_milli(&[&greedy]).and_then(|measured| measured.by_utilization(50));
    let error = error.expect_err("no request").to_string();
    assert_eq!(error, "missing request for cpu in container c of Pod p0");
    greedy.spec.containers.clear();
    let error = of_one_milli(&[&greedy]).and_then(|measured| measured.by_utilization(50));
    assert_eq!(error, Err(SizingError::NoKnownPods));
}

#[test]
fn one_container_counts_if_it_is_named() {
    let mut two = usage("p0", 100);
    let mut other = two.containers[0].clone();
    other.name = "side".to_owned();
    two.containers.push(other);
    let milli = |container: Option<&str>| {
        amounts(std::slice::from_ref(&two), "cpu", container, "a").map(|all| all["p0"].milli)
    };
    assert_eq!((milli(None), milli(Some("c"))), (Ok(200), Ok(100)));
    let error = milli(Some("x")).expect_err("no such container").to_string();
    assert_eq!(error, "container x not present in metrics for pod a/p0");
    // A pod of which one container has no such resource is a pod without metrics.
    let mut partly = two.clone();
    partly.containers[1].used.remove("cpu");
    let partly = [partly];
    let found = amounts(&partly, "cpu", None, "a").expect("no error");
    assert!(found.is_empty());
}
