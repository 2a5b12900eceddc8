//! The order of a cycle, and the bindings that it assumes.

mod queue_histories;
mod reservations;

use super::*;
use apiserver_scheduling::examples::pod;

#[test]
fn pods_without_time_in_the_last_cycle_come_first_among_their_equals() {
    let with = |name: &str, priority: i32| Arc::new(PodInfo { priority, ..pod(name, 1, 1) });
    let mut due = vec![with("high", 9), with("old", 5), with("left", 5), with("low", 1)];
    let names = |due: &[Arc<PodInfo>]| -> Vec<String> {
        due.iter().map(|pod| pod.key.name.clone()).collect()
    };
    order_due(&mut due, |_| false, |pod| ["uid-left", "uid-low"].contains(&pod.uid.as_str()));
    assert_eq!(names(&due), ["high", "left", "old", "low"]);
    order_due(&mut due, |pod| pod.uid == "uid-low", |_| false);
    assert_eq!(names(&due), ["low", "high", "left", "old"]);
}

#[test]
fn a_binding_is_assumed_while_the_watch_is_behind() {
    let mut bound = pod("p", 1, 1);
    bound.reference.resource_version = "5".into();
    let shown = bound.clone();
    bound.node = "n".into();
    let assumed = |shown: &PodInfo, secs| is_assumed(&bound, shown, Duration::from_secs(secs));
    assert!(assumed(&shown, 1) && assumed(&shown, 600) && !assumed(&shown, 900));
    let mut newer = shown.clone();
    newer.reference.resource_version = "9".into();
    assert!(assumed(&newer, 29) && !assumed(&newer, 30), "it was undone");
    assert!(!assumed(&PodInfo { uid: "another".into(), ..shown }, 1));
    assert!(!assumed(&bound.clone(), 1), "the watch shows it");
}
