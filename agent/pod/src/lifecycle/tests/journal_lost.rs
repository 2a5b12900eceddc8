//! Pods whose journal record is old or lost: the runtime's instances supply the rest.

use super::*;

const SECOND: i64 = 1_000_000_000;
const START: i64 = 1_700_000_000 * SECOND;

/// An instance that ran from one second to another.
fn ran(attempt: u32, from: i64, to: i64) -> ObservedContainer {
    let (started_at, finished_at) = (START + from * SECOND, START + to * SECOND);
    let exit = Exit { code: 1, started_at, finished_at, ..Exit::default() };
    instance("c", attempt, InstanceState::Exited(exit))
}

/// Delay of the next instance in seconds.
fn pause(plan: &Plan, now: Now) -> Option<u64> {
    plan.wake_at.map(|at| (at - now.boot).as_secs())
}

/// Seeds 377, 603, 1609 and 1757 of the simulation: the disk was full while a container crashed, then the agent died.
#[test]
fn exits_that_the_journal_has_missed_count_for_the_pause() {
    let knows = |containers| plan(&desired(), &with(containers), &admitted(), at(0)).record;
    let of_first = knows(vec![instance("c", 0, running())]);
    let after_two = knows(vec![ran(0, 0, 0), ran(1, 0, 0)]);
    let table = [
        ("one exit is no loop", admitted(), vec![ran(0, 0, 5)], None),
        ("the second", admitted(), vec![ran(0, 0, 0), ran(1, 0, 1)], Some(10)),
        (
            "the second, the first was seen to run",
            of_first,
            vec![ran(0, 0, 0), ran(1, 0, 1)],
            Some(10),
        ),
        ("the third", admitted(), vec![ran(1, 0, 1), ran(2, 11, 12)], Some(20)),
        ("the third, two were counted", after_two, vec![ran(1, 0, 1), ran(2, 11, 12)], Some(20)),
        ("fifty, far apart", admitted(), vec![ran(49, 0, 10), ran(50, 10, 700)], None),
        ("fifty, the last two not", admitted(), vec![ran(49, 0, 10), ran(50, 10, 20)], Some(10)),
        ("fifty in a loop", admitted(), vec![ran(49, 0, 10), ran(50, 310, 320)], Some(300)),
    ];
    for (what, record, observed, expect) in table {
        let next = plan(&desired(), &with(observed.clone()), &record, at(400));
        assert_eq!(pause(&next, at(400)), expect, "{what}");
        let again = plan(&desired(), &with(observed), &next.record, at(400));
        assert_eq!(pause(&again, at(400)), expect, "{what}: an exit counts once");
    }
}

#[test]
fn an_instance_that_has_run_for_long_is_not_in_a_loop() {
    let observed = |state| with(vec![ran(3, -20, -10), instance("c", 4, state)]);
    let runs = InstanceState::Running { started_at: START };
    let known = plan(&desired(), &observed(runs), &admitted(), at(0)).record;
    for (secs, expect) in [(100, Some(20)), (650, None)] {
        let next = plan(&desired(), &observed(exited(1)), &known, at(secs));
        assert_eq!(pause(&next, at(secs)), expect, "{secs}");
    }
}

#[test]
fn the_last_state_is_of_the_instance_before_the_newest() {
    let known = plan(&desired(), &with(vec![ran(0, 0, 1)]), &admitted(), at(0)).record;
    let observed = with(vec![ran(0, 0, 1), ran(1, 1, 2), instance("c", 2, running())]);
    let next = plan(&desired(), &observed, &known, at(3));
    let last = next.status.container_statuses[0].last_state.terminated.clone();
    assert_eq!(last.map(|t| t.container_id).as_deref(), Some("containerd://c-1"));
}

/// Seed 1609 of the simulation: only the API status of the pod was left.
#[test]
fn the_newest_end_is_not_taken_for_the_one_before() {
    let looped = vec![ran(1, 0, 1), ran(2, 11, 12)];
    let before = plan(&desired(), &with(looped.clone()), &admitted(), at(0));
    let shown = &before.status.container_statuses[0];
    assert_eq!(waiting(shown).0, "CrashLoopBackOff");
    let next = plan(&desired(), &with(looped), &PodRecord::adopt(&before.status), at(1));
    assert_eq!(pause(&next, at(1)), Some(20));
    let record = &next.record.containers["c"];
    let ids = [&record.ended, &record.previous].map(|e| e.as_ref().map(|e| e.id.clone()));
    assert_eq!(ids, [Some("c-2".to_owned()), Some("c-1".to_owned())]);
}

#[test]
fn an_init_container_that_was_shown_to_be_done_is_not_run_again() {
    let pod = DesiredPod { init: vec![init_container("i1"), init_container("i2")], ..desired() };
    let observed = with(vec![instance("i1", 0, exited(0)), instance("i2", 0, running())]);
    let before = plan(&pod, &observed, &admitted(), at(0));
    let next = plan(&pod, &observed, &PodRecord::adopt(&before.status), at(1));
    assert_eq!(next.actions, []);
}
