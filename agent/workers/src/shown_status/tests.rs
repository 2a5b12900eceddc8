use proto_api::Time;
use proto_api::core::v1::PodCondition;

use super::*;

const SECOND: Duration = Duration::from_secs(1);

fn condition(kind: &str, status: &str, since: i64) -> PodCondition {
    PodCondition {
        type_: kind.into(),
        status: status.into(),
        last_transition_time: Time::from_unix(since),
        ..PodCondition::default()
    }
}

fn status(ready: &str) -> PodStatus {
    PodStatus {
        phase: "Running".into(),
        conditions: vec![condition("Ready", ready, 7)],
        ..PodStatus::default()
    }
}

fn pod(version: &str, status: PodStatus) -> Arc<Pod> {
    let mut pod = Pod { status, ..Pod::default() };
    pod.metadata.resource_version = version.into();
    Arc::new(pod)
}

fn answer(version: &str, status: PodStatus) -> Box<ServerStatus> {
    ServerStatus { status, version: version.into() }.into()
}

/// The agent has written that a pod is ready, as version 5, at one second.
fn written() -> ShownStatus {
    let mut shown = ShownStatus::new(pod("3", PodStatus::default()));
    shown.record_written(&status("True"), answer("5", status("True")), SECOND);
    shown
}

#[test]
fn status_changes_by_others_are_overwritten_and_stale_watch_events_are_ignored() {
    let wanted = status("True");
    // What the watch shows after the agent's write, as version 5; whether that is to be corrected.
    let table = [
        ("older", pod("4", status("False")), false),
        ("our own", pod("5", status("True")), false),
        ("changed by another", pod("6", status("False")), true),
        ("changed by another in other fields", pod("6", status("True")), false),
        ("no number", pod("x", status("False")), true),
        ("no object", pod("", PodStatus::default()), false),
        ("emptied", pod("6", PodStatus::default()), true),
    ];
    for (case, seen, corrected) in table {
        let mut shown = written();
        shown.observe(&seen, Some(&wanted), SECOND);
        assert_eq!(!shown.matches(&wanted), corrected, "{case}");
        assert!(shown.not_before() <= SECOND, "{case}: the first correction waits for nothing");
    }
}

#[test]
fn fields_and_conditions_of_others_cause_no_write() {
    let mut theirs = status("True");
    theirs.conditions.push(condition("example.com/gate", "False", 9));
    theirs.conditions.push(condition("DisruptionTarget", "True", 9));
    theirs.nominated_node_name = "n".into();
    let mut shown = written();
    let seen = shown.observe(&pod("6", theirs), Some(&status("True")), SECOND);
    assert_eq!(seen, Some(WatchChange::default()));
    assert!(shown.matches(&status("True")));
    assert_eq!(shown.corrections, 0);
}

#[test]
fn a_version_that_went_back_counts_once_the_watch_cannot_be_late_any_more() {
    let (wanted, mut shown) = (status("True"), written());
    let restored = pod("2", status("False"));
    let at = shown.watch_trusted_at().expect("the watch is behind");
    assert_eq!(shown.observe(&restored, Some(&wanted), at - SECOND), None);
    assert!(shown.matches(&wanted));
    shown.observe(&restored, Some(&wanted), at).expect("news");
    assert!(!shown.matches(&wanted));
    assert_eq!(shown.watch_trusted_at(), None, "no wake-up is due again");
    // The same where there is no object any more.
    let mut shown = written();
    assert_eq!(shown.observe(&pod("", PodStatus::default()), Some(&wanted), at), None);
    assert!(shown.matches(&wanted));
    assert_eq!(shown.watch_trusted_at(), None);
}

#[test]
fn an_overruled_condition_is_reported_once() {
    let (wanted, mut shown) = (status("True"), written());
    let mut theirs = status("False");
    theirs.conditions[0].last_transition_time = Time::from_unix(60);
    let seen = shown.observe(&pod("6", theirs.clone()), Some(&wanted), SECOND).expect("news");
    assert_eq!(seen.overruled, [("Ready".to_owned(), "False".to_owned(), 60)]);
    theirs.message = "more".into();
    let seen = shown.observe(&pod("7", theirs), Some(&wanted), SECOND).expect("news");
    assert_eq!(seen.overruled, []);
    // What was never shown as wanted was not overruled.
    let mut shown = ShownStatus::new(pod("3", status("False")));
    let seen = shown.observe(&pod("4", status("False")), Some(&wanted), SECOND).expect("news");
    assert_eq!(seen.overruled, []);
}

#[test]
fn a_fight_is_no_storm_and_ends_with_the_first_correction_that_stays() {
    let (wanted, mut shown, mut now) = (status("True"), written(), SECOND);
    let mut pauses = Vec::new();
    for round in 0..12_u64 {
        let theirs = pod(&(6 + 2 * round).to_string(), status("False"));
        shown.observe(&theirs, Some(&wanted), now);
        pauses.push(shown.not_before().saturating_sub(now));
        now = now.max(shown.not_before());
        shown.record_written(&wanted, answer(&(7 + 2 * round).to_string(), wanted.clone()), now);
    }
    assert_eq!(pauses[0], Duration::ZERO);
    assert!(pauses.windows(2).all(|pair| pair[0] <= pair[1]), "{pauses:?}");
    assert!(pauses[11] <= CORRECTIONS.longest && pauses[11] > SECOND, "{pauses:?}");
    now += CALM + SECOND;
    shown.observe(&pod("100", status("False")), Some(&wanted), now);
    assert!(shown.not_before() <= now, "after a calm a correction is made at once");
}

#[test]
fn a_status_that_the_server_changes_is_written_twice_at_most() {
    let (wanted, mut shown) = (status("True"), ShownStatus::new(pod("3", PodStatus::default())));
    shown.record_written(&wanted, answer("5", status("False")), SECOND);
    assert!(shown.is_unsure() && !shown.matches(&wanted), "another may have written meanwhile");
    shown.record_written(&wanted, answer("6", status("False")), SECOND);
    assert!(shown.matches(&wanted));
    shown.observe(&pod("6", status("False")), Some(&wanted), SECOND);
    assert!(shown.matches(&wanted));
    // Something else is wanted, or something else is shown.
    let more = PodStatus { message: "m".into(), ..wanted.clone() };
    assert!(!shown.matches(&more));
    shown.observe(&pod("7", PodStatus::default()), Some(&wanted), SECOND);
    assert!(!shown.matches(&wanted));
}

#[test]
fn after_a_write_that_failed_all_is_stated_after_a_pause() {
    let (wanted, mut shown) = (status("True"), written());
    shown.record_failed(SECOND);
    assert!(shown.is_unsure() && !shown.matches(&wanted));
    assert!(shown.not_before() > SECOND);
    shown.record_written(&wanted, answer("6", wanted.clone()), SECOND);
    assert!(!shown.is_unsure() && shown.matches(&wanted));
}

#[test]
fn where_there_is_no_object_nothing_is_written_until_there_is_one() {
    let (wanted, mut shown) = (status("True"), ShownStatus::new(pod("3", status("False"))));
    shown.record_absent(&pod("3", status("False")));
    assert!(shown.matches(&wanted));
    assert_eq!(shown.observe(&pod("3", status("False")), Some(&wanted), SECOND), None);
    shown.observe(&pod("4", status("False")), Some(&wanted), SECOND).expect("news");
    assert!(!shown.matches(&wanted));
}

#[test]
fn versions_are_compared_as_numbers() {
    let table = [
        ("9", "10", true),
        ("10", "9", false),
        ("10", "10", false),
        ("18446744073709551615", "18446744073709551616", false),
        ("", "1", false),
        ("a", "b", false),
    ];
    for (version, other, older) in table {
        assert_eq!(is_older(version, other), older, "{version} {other}");
    }
}
