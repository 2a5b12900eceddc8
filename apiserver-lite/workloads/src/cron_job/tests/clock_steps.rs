//! Cron jobs under a clock that is set forward and back, with jobs that are deleted as soon as they have ended: no name of a job says that a time was taken.

use apiserver_controllers::api_writes::WrittenObject;

use super::*;

/// A controller with its server and its clock.
struct Controller {
    world: World,
    resumed: ResumedSchedules,
    /// By how many seconds a time may be after its minute.
    slack: i64,
    /// The time of each plan.
    clocks: Vec<i64>,
    /// The minutes that got jobs, in seconds, each with the number of plans before.
    runs: Vec<(i64, usize)>,
}

impl Controller {
    fn new(schedule: &str, zone: Option<&str>) -> Self {
        let mut tick = cron_job(schedule, "Allow");
        tick.spec.time_zone = zone.map(str::to_owned);
        tick.spec.successful_jobs_history_limit = Some(0);
        let slack = if schedule.starts_with('@') { 59 } else { 0 };
        let (world, resumed) = (world(tick), ResumedSchedules::default());
        Self { world, resumed, slack, clocks: Vec::new(), runs: Vec::new() }
    }

    /// Executes a plan up to a limit. Gives the number of its writes.
    fn look(&mut self, limit: usize) -> usize {
        let plan = planned_by(&mut self.resumed, &self.world);
        let done = self.world.run(&plan, limit);
        for write in &plan.writes[..done] {
            if let ApiWrite::Create(WrittenObject::Job(job)) = write {
                let minute = job.metadata.name.rsplit_once('-').expect("a minute").1;
                self.note(minute.parse::<i64>().expect("a number") * 60);
            }
        }
        self.clocks.push(self.world.now);
        plan.writes.len()
    }

    fn note(&mut self, time: i64) {
        let (now, slack) = (self.world.now, self.slack);
        assert!(time <= now, "{time} has not come at {now}");
        if let Some(last) = self.runs.iter().map(|(time, _)| *time).max()
            && last + slack <= now + CLOCK_SKEW
        {
            assert!(time > last, "{time} is before {last}, which has had a job, at {now}");
        }
        // Behind the last time, a time that the clock passes again has a job again; one that it had passed when it was first seen there has none.
        if let Some((_, nth)) = self.runs.iter().rev().find(|(other, _)| *other == time) {
            let mut clocks = self.clocks[*nth + 1..].iter();
            assert!(clocks.any(|seen| *seen < time + slack), "{time} is repeated at {now}");
        }
        self.runs.push((time, self.clocks.len()));
    }

    /// Plans until nothing is left to do, and all jobs have ended and are deleted.
    fn settle(&mut self) {
        for _ in 0..20 {
            if self.look(usize::MAX) == 0 {
                end_all(&mut self.world, "Complete");
                if self.look(usize::MAX) == 0 {
                    assert!(self.world.list::<Job>(ObjectKind::Job).is_empty());
                    return;
                }
            }
        }
        panic!("the plans do not end");
    }

    /// Sets the clock, within the years 2001 to 2096.
    fn step(&mut self, seconds: i64) {
        self.world.now = (self.world.now + seconds).clamp(1_000_000_000, 4_000_000_000);
    }

    /// Sets the clock and plans.
    fn tick(&mut self, seconds: i64) -> Vec<i64> {
        self.step(seconds);
        self.settle();
        self.runs.iter().map(|(time, _)| (time - START) / 60).collect()
    }
}

const SCHEDULES: [(&str, Option<&str>); 4] = [
    ("*/5 * * * *", None),
    ("*/5 * * * *", Some("Europe/Berlin")),
    ("TZ=Asia/Kathmandu */5 * * * *", None),
    ("@every 5m", None),
];

#[test]
fn the_last_run_is_not_repeated_when_the_clock_is_set_back() {
    for (schedule, zone) in SCHEDULES {
        let mut controller = Controller::new(schedule, zone);
        assert!(controller.tick(0).is_empty());
        for _ in 0..2 {
            controller.tick(300);
        }
        assert_eq!(controller.tick(300), [5, 10, 15], "{schedule}");
        // Forward by a day and back.
        assert_eq!(controller.tick(86_400), [5, 10, 15, 1455], "{schedule}");
        assert_eq!(controller.tick(-86_400), [5, 10, 15, 1455], "{schedule}");
        assert_eq!(controller.tick(300), [5, 10, 15, 1455, 20], "the schedule goes on");
        assert_eq!(controller.tick(300), [5, 10, 15, 1455, 20, 25], "{schedule}");
        // Back and forward by an hour.
        let runs = controller.tick(86_400);
        assert_eq!(runs.last(), Some(&1465), "{schedule}");
        assert_eq!(controller.tick(-3600), runs, "{schedule}");
        assert_eq!(controller.tick(3610), runs, "{schedule}");
        assert_eq!(controller.tick(290).last(), Some(&1470), "{schedule}");
    }
}

/// The clock is set back before the job that it has caused is noted.
#[test]
fn a_job_of_the_future_counts_although_no_status_names_it() {
    let mut controller = Controller::new("*/5 * * * *", None);
    controller.tick(300);
    controller.step(86_400);
    controller.look(1);
    let runs = controller.tick(-86_400);
    assert_eq!(runs, [5, 1445]);
    let last = stored(&controller.world).status.last_schedule_time;
    assert_eq!(last, Some(Time::from_unix(START + 300 + 86_400)));
    assert_eq!(controller.tick(86_400), runs);
}

#[test]
fn resumed_schedules_are_bounded() {
    let mut resumed = ResumedSchedules::default();
    for nth in 0..=RESUMED_MAX {
        resumed.remember(&nth.to_string(), 1);
        assert!(resumed.0.len() <= RESUMED_MAX);
    }
}

/// Seconds by which the clock is set, the writes that are executed, and whether the controller starts again before.
type Step = (i64, Option<usize>, bool);

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let by = prop_oneof![
        4 => 0..200_i64,
        2 => -120..120_i64,
        2 => -7_200..7_200_i64,
        1 => -200_000_000..200_000_000_i64,
    ];
    let limit = prop_oneof![2 => Just(None), 1 => (0..4_usize).prop_map(Some)];
    proptest::collection::vec((by, limit, prop::bool::weighted(0.1)), 1..60)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 96, ..ProptestConfig::default() })]

    /// The checks are in [`Controller::note`].
    #[test]
    fn no_time_is_run_again_by_a_clock_that_jumps(
        schedule in prop_oneof![
            Just(("* * * * *", None)), Just(("*/2 * * * *", Some("Europe/Berlin"))),
            Just(("@every 90s", None)), Just(("@every 3m", None)),
        ],
        steps in steps(),
    ) {
        let mut controller = Controller::new(schedule.0, schedule.1);
        for (by, limit, is_new) in steps {
            if is_new {
                controller.resumed = ResumedSchedules::default();
            }
            controller.step(by);
            match limit {
                None => controller.settle(),
                Some(limit) => {
                    controller.look(limit);
                }
            }
        }
        // The schedule goes on, wherever the clock is now.
        controller.settle();
        for nth in 0..12 {
            controller.tick(60);
            let minute = controller.world.now.div_euclid(60) * 60;
            // A last time that is as near as clocks of two controllers are is waited for.
            let near = minute..=minute + CLOCK_SKEW + 59;
            let has_run = controller.runs.iter().any(|(time, _)| near.contains(time));
            prop_assert!(has_run || nth < 2 || schedule.0 != "* * * * *", "{}", minute);
        }
    }
}
