//! Cron jobs over time, with a controller that is lost between two writes.

mod clock_steps;

use apiserver_controllers::api_writes::{ObjectKind, WrittenObject};
use proptest::prelude::*;
use proto_api::names::Profile;

use super::*;
use crate::simulation::World;

/// 2024-01-01T00:00:00Z.
const START: i64 = 1_704_067_200;

fn names() -> &'static Names {
    Names::new(Profile::Kubernetes)
}

fn cron_job(schedule: &str, policy: &str) -> CronJob {
    let mut cron_job = CronJob::default();
    cron_job.metadata.name = "tick".into();
    cron_job.metadata.namespace = "ns".into();
    cron_job.spec.schedule = schedule.into();
    cron_job.spec.concurrency_policy = policy.into();
    cron_job.spec.successful_jobs_history_limit = Some(3);
    cron_job.spec.failed_jobs_history_limit = Some(1);
    cron_job.spec.job_template.metadata.labels.insert("app".into(), "tick".into());
    cron_job
}

fn world(cron_job: CronJob) -> World {
    let mut world = World::at(START);
    world.put(cron_job);
    world
}

/// The plan of a controller that has just started.
fn planned(world: &World) -> Plan {
    planned_by(&mut ResumedSchedules::default(), world)
}

fn planned_by(resumed: &mut ResumedSchedules, world: &World) -> Plan {
    let cron_job = stored(world);
    let seen = ObservedCronJob { cron_job: &cron_job, jobs: &world.list(ObjectKind::Job) };
    plan(names(), &seen, resumed, world.time())
}

fn stored(world: &World) -> CronJob {
    world.get(ObjectKind::CronJob, "tick").expect("the cron job")
}

fn settle(world: &mut World) {
    settle_by(&mut ResumedSchedules::default(), world);
}

fn settle_by(resumed: &mut ResumedSchedules, world: &mut World) {
    for _ in 0..20 {
        let plan = planned_by(resumed, world);
        if plan.writes.is_empty() {
            return;
        }
        world.run(&plan, usize::MAX);
    }
    panic!("the plans do not end");
}

/// Minutes since the start of the jobs that exist.
fn minutes(world: &World) -> Vec<i64> {
    let jobs = world.list::<Job>(ObjectKind::Job);
    let minute = |job: &Arc<Job>| {
        job.metadata.name.rsplit_once('-').expect("a minute").1.parse::<i64>().expect("a number")
    };
    jobs.iter().map(|job| minute(job) - START / 60).collect()
}

fn end_all(world: &mut World, kind: &str) {
    let now = world.time();
    for job in world.list::<Job>(ObjectKind::Job) {
        if ending(&job).is_some() {
            continue;
        }
        world.edit::<Job>(ObjectKind::Job, &job.metadata.name, |job| {
            let (type_, status) = (kind.to_owned(), "True".to_owned());
            job.status.start_time = Some(now);
            job.status.completion_time = (kind == "Complete").then_some(now);
            job.status.conditions = vec![JobCondition { type_, status, ..Default::default() }];
        });
    }
}

fn reasons(plan: &Plan) -> Vec<&str> {
    plan.reports.iter().map(|report| &*report.reason).collect()
}

/// `kubectl create job tick-$(date +%s) --from=cronjob/tick` makes a name that looks like a time thousands of years from now.
#[test]
fn a_job_with_a_name_from_a_user_does_not_stop_the_schedule() {
    let mut world = world(cron_job("*/5 * * * *", "Allow"));
    settle(&mut world);
    world.now += 300;
    settle(&mut world);
    let mut foreign = (*world.list::<Job>(ObjectKind::Job)[0]).clone();
    foreign.metadata.name = format!("tick-{START}");
    foreign.metadata.uid = "foreign".into();
    world.put(foreign);
    // Whoever believed such a name before has written it into the status.
    world.edit::<CronJob>(ObjectKind::CronJob, "tick", |cron_job| {
        cron_job.status.last_schedule_time = Some(Time::from_unix(START * 60));
    });
    let mut resumed = ResumedSchedules::default();
    settle_by(&mut resumed, &mut world);
    for minute in [10, 15] {
        world.now += 300;
        settle_by(&mut resumed, &mut world);
        assert!(minutes(&world).contains(&minute), "{:?}", minutes(&world));
    }
}

/// A period that is no whole number of minutes keeps its rate: the name of a job has only the minute of its time.
#[test]
fn a_period_keeps_its_rate() {
    for (schedule, deadline, step, expect) in [
        ("@every 90s", None, 10, vec![1, 3, 4, 6, 7, 9]),
        ("@every 90s", Some(30), 1, vec![1, 3, 4, 6, 7, 9]),
        ("@every 2m", None, 7, vec![2, 4, 6, 8]),
        ("@every 150s", None, 30, vec![2, 5, 7]),
    ] {
        let mut tick = cron_job(schedule, "Allow");
        tick.spec.starting_deadline_seconds = deadline;
        tick.metadata.creation_timestamp = Time::from_unix(START);
        let mut world = world(tick);
        for _ in 0..590 / step {
            world.now += step;
            settle(&mut world);
        }
        let mut found = minutes(&world);
        found.sort_unstable();
        assert_eq!(found, expect, "{schedule} {deadline:?}");
        let waits = planned(&world).requeue_after.expect("a time");
        assert!(waits <= Duration::from_secs(151), "{waits:?}");
    }
}

#[test]
fn the_next_plan_comes_at_the_next_time_of_a_period() {
    let mut tick = cron_job("@every 90s", "Allow");
    tick.metadata.creation_timestamp = Time::from_unix(START);
    let mut world = world(tick);
    world.now += 60;
    assert_eq!(planned(&world).requeue_after, Some(Duration::from_millis(30_100)));
}

#[test]
fn each_time_has_one_job_that_the_status_names() {
    let mut world = world(cron_job("*/5 * * * *", "Allow"));
    settle(&mut world);
    assert!(minutes(&world).is_empty());
    assert_eq!(planned(&world).requeue_after, Some(Duration::from_millis(300_100)));
    world.now += 300;
    settle(&mut world);
    assert_eq!(minutes(&world), [5]);
    let status = stored(&world).status;
    assert_eq!(status.last_schedule_time, Some(Time::from_unix(START + 300)));
    let job = &world.list::<Job>(ObjectKind::Job)[0];
    let active = &status.active[0];
    assert_eq!((&active.name, &active.uid), (&job.metadata.name, &job.metadata.uid));
    assert_eq!((&*active.kind, &*active.api_version), ("Job", "batch/v1"));
    assert_eq!(job.metadata.labels["app"], "tick");
    assert_eq!(job.metadata.owner_references[0].kind, "CronJob");
    world.now += 300;
    settle(&mut world);
    assert_eq!((minutes(&world), stored(&world).status.active.len()), (vec![5, 10], 2));
    end_all(&mut world, "Complete");
    assert_eq!(reasons(&planned(&world)), ["SawCompletedJob", "SawCompletedJob"]);
    settle(&mut world);
    let status = stored(&world).status;
    assert!(status.active.is_empty());
    assert_eq!(status.last_successful_time, Some(Time::from_unix(START + 600)));
}

/// A job may end and be removed before the next plan.
#[test]
fn a_time_is_noted_by_the_plan_that_creates_its_job() {
    let mut world = world(cron_job("*/5 * * * *", "Allow"));
    world.now += 300;
    let plan = planned(&world);
    let [ApiWrite::Create(_), ApiWrite::UpdateStatus(_)] = &plan.writes[..] else {
        panic!("a job, then the status: {plan:?}")
    };
    world.run(&plan, usize::MAX);
    let noted = || Some(Time::from_unix(START + 300));
    assert_eq!(stored(&world).status.last_schedule_time, noted());
    world.remove(ObjectKind::Job, &format!("tick-{}", START / 60 + 5));
    settle(&mut world);
    assert!(minutes(&world).is_empty(), "the time has no second job");
    world.now += 300;
    settle(&mut world);
    assert_eq!(minutes(&world), [10]);
}

#[test]
fn the_time_of_a_name_that_another_s_job_has_stays_open() {
    let mut world = world(cron_job("*/5 * * * *", "Allow"));
    world.now += 300;
    let mut other = Job::default();
    other.metadata.name = format!("tick-{}", START / 60 + 5);
    other.metadata.namespace = "ns".into();
    world.put(other);
    let plan = planned(&world);
    world.run(&plan, usize::MAX);
    assert_eq!(stored(&world).status.last_schedule_time, None);
    world.remove(ObjectKind::Job, &format!("tick-{}", START / 60 + 5));
    settle(&mut world);
    assert_eq!((minutes(&world), stored(&world).status.active.len()), (vec![5], 1));
}

#[test]
fn a_running_job_forbids_or_is_replaced() {
    for (policy, expect) in [("Forbid", vec![1]), ("Replace", vec![2]), ("Allow", vec![1, 2])] {
        let mut world = world(cron_job("* * * * *", policy));
        for _ in 0..2 {
            world.now += 60;
            settle(&mut world);
        }
        assert_eq!(minutes(&world), expect, "{policy}");
        let said = reasons(&planned(&world)).contains(&"JobAlreadyActive");
        assert_eq!(said, policy == "Forbid");
        end_all(&mut world, "Complete");
        settle(&mut world);
        // The time that was forbidden is made up for.
        assert!(minutes(&world).contains(&2), "{policy}");
    }
}

#[test]
fn of_missed_times_the_last_counts_and_too_late_is_none() {
    let mut late = world(cron_job("0 * * * *", "Allow"));
    late.now += 3600 * 5 + 1800;
    settle(&mut late);
    assert_eq!(minutes(&late), [300]);
    let mut strict = cron_job("0 * * * *", "Allow");
    strict.spec.starting_deadline_seconds = Some(600);
    let mut late = world(strict);
    late.now += 3600 * 5 + 1800;
    settle(&mut late);
    assert!(minutes(&late).is_empty());
    let mut many = world(cron_job("* * * * *", "Allow"));
    many.now += 60 * 101;
    assert_eq!(reasons(&planned(&many)), ["TooManyMissedTimes"]);
    let message = "too many missed start times: 101. Set or decrease .spec.startingDeadlineSeconds or check clock skew";
    assert_eq!(planned(&many).reports[0].message, message);
    settle(&mut many);
    assert_eq!(minutes(&many), [101]);
}

#[test]
fn history_is_limited() {
    let mut world = world(cron_job("* * * * *", "Allow"));
    for nth in 0..10 {
        world.now += 60;
        settle(&mut world);
        end_all(&mut world, if nth % 2 == 0 { "Failed" } else { "Complete" });
    }
    settle(&mut world);
    assert_eq!(minutes(&world), [6, 8, 9, 10]);
}

#[test]
fn suspended_and_deleted_cron_jobs_start_no_jobs_and_errors_are_reported() {
    let starts = |change: fn(&mut CronJob)| {
        let mut cron_job = cron_job("* * * * *", "Allow");
        change(&mut cron_job);
        let mut world = world(cron_job);
        world.now += 60;
        let told = reasons(&planned(&world)).join(" ");
        settle(&mut world);
        (minutes(&world).len(), told)
    };
    assert_eq!(starts(|_| {}), (1, String::new()));
    assert_eq!(starts(|cron_job| cron_job.spec.suspend = Some(true)), (0, String::new()));
    let deleted = |cron_job: &mut CronJob| {
        cron_job.metadata.deletion_timestamp = Some(Time::from_unix(1));
    };
    assert_eq!(starts(deleted), (0, String::new()));
    let zone = starts(|cron_job| cron_job.spec.time_zone = Some("Nowhere".into()));
    assert_eq!(zone, (0, "UnknownTimeZone".to_owned()));
    let schedule = starts(|cron_job| cron_job.spec.schedule = "x".into());
    assert_eq!(schedule, (0, "UnparseableSchedule".to_owned()));
}

/// Berlin is an hour ahead of UTC.
fn check_starts_in_berlin(schedule: &str, zone: &str) {
    let mut berlin = cron_job(schedule, "Allow");
    berlin.spec.time_zone = Some(zone.into());
    let mut world = world(berlin);
    world.now -= 1800;
    world.edit::<CronJob>(ObjectKind::CronJob, "tick", |cron_job| {
        cron_job.metadata.creation_timestamp = Time::from_unix(START - 1800);
    });
    settle(&mut world);
    assert!(minutes(&world).is_empty(), "{schedule}");
    world.now += 1800;
    settle(&mut world);
    assert_eq!(minutes(&world), [0], "{schedule}");
}

#[test]
fn a_zone_moves_the_times() {
    check_starts_in_berlin("0 1 * * *", "Europe/Berlin");
}

#[test]
fn the_zone_of_a_stored_schedule_precedes_the_field() {
    for schedule in ["TZ=Europe/Berlin 0 1 * * *", "CRON_TZ=Europe/Berlin 0 1 * * *"] {
        check_starts_in_berlin(schedule, "Asia/Tokyo");
    }
}

#[test]
fn jobs_of_others_are_left_and_missing_ones_are_forgotten() {
    let mut world = world(cron_job("* * * * *", "Allow"));
    world.now += 60;
    settle(&mut world);
    let job = world.list::<Job>(ObjectKind::Job)[0].metadata.clone();
    let mut by_hand = Job::default();
    by_hand.metadata.name = "by-hand".into();
    by_hand.metadata.namespace = "ns".into();
    by_hand.metadata.owner_references = job.owner_references.clone();
    world.put(by_hand);
    assert_eq!(reasons(&planned(&world)), ["UnexpectedJob"]);
    let lacks = |world: &World| lacks_active(&stored(world), &world.list(ObjectKind::Job));
    assert!(!lacks(&world), "the job that is active");
    world.remove(ObjectKind::Job, &job.name);
    assert!(lacks(&world), "a live read says whether it is deleted");
    assert_eq!(reasons(&planned(&world)), ["UnexpectedJob", "MissingJob"]);
    settle(&mut world);
    assert!(stored(&world).status.active.is_empty());
    assert!(world.get::<Job>(ObjectKind::Job, "by-hand").is_some());
    assert!(!minutes_of_ticks(&world).contains(&1), "its time is over");
}

fn minutes_of_ticks(world: &World) -> Vec<i64> {
    let jobs = world.list::<Job>(ObjectKind::Job);
    let minute = |job: &Arc<Job>| job.metadata.name.strip_prefix("tick-")?.parse::<i64>().ok();
    jobs.iter().filter_map(minute).map(|minute| minute - START / 60).collect()
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, ..ProptestConfig::default() })]

    #[test]
    fn no_time_has_two_jobs_and_no_time_that_is_seen_is_lost(
        steps in proptest::collection::vec((0..90_i64, 0..4_usize, any::<bool>()), 1..60),
    ) {
        let mut cron_job = cron_job("* * * * *", "Allow");
        cron_job.spec.successful_jobs_history_limit = Some(1000);
        let mut world = world(cron_job);
        let mut seen = std::collections::BTreeSet::new();
        for (later, limit, ends) in steps {
            world.now += later;
            let plan = planned(&world);
            world.run(&plan, limit);
            if limit > 0 {
                // A plan that is executed whole has the job of the last minute.
                settle(&mut world);
                let minute = (world.now - START) / 60;
                if minute > 0 {
                    seen.insert(minute);
                }
            }
            if ends {
                end_all(&mut world, "Complete");
            }
        }
        settle(&mut world);
        let jobs: Vec<i64> = minutes(&world);
        let distinct: std::collections::BTreeSet<i64> = jobs.iter().copied().collect();
        prop_assert_eq!(distinct.len(), jobs.len());
        prop_assert!(seen.is_subset(&distinct), "{:?} {:?}", seen, distinct);
        prop_assert!(planned(&world).writes.is_empty());
    }
}

/// Jobs that a user has written, with this cron job as their controller.
fn forged(owner: &CronJob, count: i64, name: impl Fn(i64) -> String) -> Vec<Arc<Job>> {
    let job = |nth: i64| {
        let mut job = Job::default();
        job.metadata.name = name(nth);
        job.metadata.uid = format!("forged-{nth}");
        job.metadata.owner_references =
            vec![controlled_by("batch/v1".into(), CronJob::KIND, &owner.metadata)];
        Arc::new(job)
    };
    (0..count).map(job).collect()
}

#[test]
fn many_jobs_of_a_user_cost_a_step_each_and_few_are_noted() {
    let mut owner = cron_job("*/5 * * * *", "Allow");
    (owner.metadata.uid, owner.spec.suspend) = ("owner".into(), Some(true));
    let jobs = forged(&owner, 3000, |nth| format!("tick-{}", START / 60 - nth));
    let now = Time::from_unix(START);
    let planned = |owner: &CronJob, jobs: &[Arc<Job>]| {
        let seen = ObservedCronJob { cron_job: owner, jobs };
        let mut made = Plan::default();
        let steps = proto_api::steps::count_during(|| {
            assert!(!lacks_active(owner, jobs));
            made = plan(names(), &seen, &mut ResumedSchedules::default(), now);
        });
        assert!(steps <= 3000 + 2 * 1000, "{steps} steps");
        made
    };
    let made = planned(&owner, &jobs);
    let [ApiWrite::UpdateStatus(WrittenObject::CronJob(noted))] = &made.writes[..] else {
        panic!("a status: {made:?}")
    };
    assert_eq!(noted.status.active.len(), 1000);
    assert_eq!(planned(noted, &jobs), Plan::default(), "nothing is left to write");
    assert!(lacks_active(noted, &jobs[1..]));
    // Those that have ended make room for others.
    let ended = jobs.iter().take(10).map(|job| {
        let (type_, status) = ("Complete".to_owned(), "True".to_owned());
        let mut job = (**job).clone();
        job.status.conditions = vec![JobCondition { type_, status, ..Default::default() }];
        Arc::new(job)
    });
    let jobs: Vec<_> = ended.chain(jobs.iter().skip(10).cloned()).collect();
    let made = planned(noted, &jobs);
    let ApiWrite::UpdateStatus(WrittenObject::CronJob(next)) = &made.writes[0] else {
        panic!("a status: {made:?}")
    };
    assert_eq!((next.status.active.len(), made.reports.len()), (1000, 10));
    assert!(next.status.active.iter().all(|active| active.uid != "forged-9"));
}

#[test]
fn unexpected_jobs_are_reported_up_to_a_number() {
    let mut owner = cron_job("*/5 * * * *", "Allow");
    (owner.metadata.uid, owner.spec.suspend) = ("owner".into(), Some(true));
    let jobs = forged(&owner, 300, |nth| format!("other-{nth}"));
    let seen = ObservedCronJob { cron_job: &owner, jobs: &jobs };
    let made = plan(names(), &seen, &mut ResumedSchedules::default(), Time::from_unix(START));
    assert_eq!(reasons(&made), ["UnexpectedJob"; 100]);
}
