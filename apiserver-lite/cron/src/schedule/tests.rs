//! The times of schedules.

use proptest::prelude::*;

use super::*;

/// Seconds since 1970 of a time such as `2024-02-28T12:00:00Z`.
fn at(text: &str) -> i64 {
    text.parse::<jiff::Timestamp>().expect("a time").as_second()
}

fn shown(time: i64) -> String {
    jiff::Timestamp::from_second(time).expect("a time").to_string()
}

fn next(schedule: &str, zone: &str, after: &str) -> String {
    let zone = Zone::named(zone).expect("a zone");
    let schedule = Schedule::parse(schedule).expect("a schedule");
    schedule.next(&zone, at(after), at(after)).map_or("never".into(), shown)
}

#[test]
fn the_next_time_matches_every_field() {
    for (schedule, after, expect) in [
        ("* * * * *", "2024-01-01T00:00:00Z", "2024-01-01T00:01:00Z"),
        ("* * * * *", "2024-01-01T00:00:59Z", "2024-01-01T00:01:00Z"),
        ("*/15 * * * *", "2024-01-01T00:46:00Z", "2024-01-01T01:00:00Z"),
        ("5/20 * * * *", "2024-01-01T00:05:00Z", "2024-01-01T00:25:00Z"),
        ("0 3 * * *", "2024-01-01T03:00:00Z", "2024-01-02T03:00:00Z"),
        ("30 9 * * mon-FRI", "2024-01-05T10:00:00Z", "2024-01-08T09:30:00Z"),
        ("0 0 29 2 *", "2024-03-01T00:00:00Z", "2028-02-29T00:00:00Z"),
        ("0 0 29 2 *", "2097-01-01T00:00:00Z", "2104-02-29T00:00:00Z"),
        ("0 0 31 4 *", "2024-01-01T00:00:00Z", "never"),
        ("@yearly", "2024-01-01T00:00:00Z", "2025-01-01T00:00:00Z"),
        ("@weekly", "2024-01-01T00:00:00Z", "2024-01-07T00:00:00Z"),
        ("@hourly", "2024-01-01T00:30:00Z", "2024-01-01T01:00:00Z"),
        ("@every 90s", "2024-01-01T00:00:10Z", "2024-01-01T00:01:40Z"),
        ("@every 1ns", "2024-01-01T00:00:10Z", "2024-01-01T00:00:11Z"),
    ] {
        assert_eq!(next(schedule, "UTC", after), expect, "{schedule}");
    }
}

#[test]
fn one_kind_of_day_suffices_unless_the_other_is_any() {
    // The 13th, or a Friday.
    assert_eq!(next("0 0 13 * 5", "UTC", "2024-01-01T00:00:00Z"), "2024-01-05T00:00:00Z");
    assert_eq!(next("0 0 13 * *", "UTC", "2024-01-01T00:00:00Z"), "2024-01-13T00:00:00Z");
    assert_eq!(next("0 0 ? * 5", "UTC", "2024-01-06T00:00:00Z"), "2024-01-12T00:00:00Z");
    // A step is not any day.
    assert_eq!(next("0 0 */2 * 1", "UTC", "2024-01-01T00:00:00Z"), "2024-01-03T00:00:00Z");
}

#[test]
fn clocks_of_zones_decide() {
    let berlin = "Europe/Berlin";
    assert_eq!(next("0 1 * * *", berlin, "2024-01-01T12:00:00Z"), "2024-01-02T00:00:00Z");
    assert_eq!(next("0 1 * * *", berlin, "2024-07-01T12:00:00Z"), "2024-07-01T23:00:00Z");
    // 02:30 does not exist on 31 March 2024.
    assert_eq!(next("30 2 * * *", berlin, "2024-03-30T12:00:00Z"), "2024-04-01T00:30:00Z");
    // 02:30 exists twice on 27 October 2024.
    assert_eq!(next("30 2 * * *", berlin, "2024-10-26T12:00:00Z"), "2024-10-27T00:30:00Z");
    assert_eq!(next("30 2 * * *", berlin, "2024-10-27T00:30:00Z"), "2024-10-27T01:30:00Z");
    // Midnight does not exist on 8 September 2024 in Santiago.
    let santiago = "America/Santiago";
    assert_eq!(next("0 * 8 9 *", santiago, "2024-09-07T12:00:00Z"), "2024-09-08T04:00:00Z");
    assert_eq!(
        next("15 6 * * *", "Asia/Kathmandu", "2024-01-01T00:00:00Z"),
        "2024-01-01T00:30:00Z"
    );
    assert!(["Nowhere/City", "europe/berlin", ""].iter().all(|name| Zone::named(name).is_none()));
    assert!(["UTC", "Etc/UTC", "GMT", "US/Pacific"].iter().all(|name| Zone::named(name).is_some()));
    let own = Schedule::parse("TZ=Europe/Berlin 0 1 * * *").expect("a schedule");
    assert_eq!(own.zone(), Some(berlin));
}

#[test]
fn zones_of_schedules_exist() {
    let parse = |text: &str| Schedule::parse(text).map_err(|error| error.to_string());
    for prefix in ["TZ", "CRON_TZ"] {
        for nowhere in ["Nowhere/City", "europe/berlin", "../UTC", "local"] {
            let why = format!("provided bad location {nowhere}: unknown time zone {nowhere}");
            assert_eq!(parse(&format!("{prefix}={nowhere} 0 1 * * *")), Err(why));
        }
        // Go takes both; the clock of a schedule without a zone is that of UTC.
        for local in ["", "Local"] {
            let schedule = parse(&format!("{prefix}={local} @daily")).expect("a schedule");
            let zone = schedule.zone().and_then(Zone::named).expect("a zone that exists");
            let day = schedule.next(&zone, 0, at("2024-01-01T12:00:00Z")).map(shown);
            assert_eq!(day.as_deref(), Some("2024-01-02T00:00:00Z"));
        }
    }
}

#[test]
fn the_latest_time_is_found_and_missed_ones_are_counted() {
    let latest = |schedule: &str, after: &str, until: &str| {
        let schedule = Schedule::parse(schedule).expect("a schedule");
        let latest = schedule.latest(&Zone::utc(), at(after), at(after), at(until));
        latest.map(|latest| (shown(latest.time), latest.count))
    };
    let some = |time: &str, count| Some((time.to_owned(), count));
    let (start, soon) = ("2024-01-01T00:00:00Z", "2024-01-01T05:30:00Z");
    assert_eq!(latest("0 6 * * *", start, soon), None);
    assert_eq!(latest("0 * * * *", start, soon), some("2024-01-01T05:00:00Z", 5));
    assert_eq!(latest("0 3 * * *", start, soon), some("2024-01-01T03:00:00Z", 1));
    let later = "2034-01-01T00:00:30Z";
    assert_eq!(latest("* * * * *", start, later), some("2034-01-01T00:00:00Z", 5_260_320));
    assert_eq!(latest("@every 1m", start, later), some("2034-01-01T00:00:00Z", 5_260_320));
    assert_eq!(
        latest("0 0 1 * *", start, "2124-01-15T00:00:00Z").map(|(time, _)| time),
        Some("2124-01-01T00:00:00Z".to_owned())
    );
}

proptest! {
    #[test]
    fn times_are_minutes_that_match_and_none_between_does(
        minute in 0..60_i64, hour in 0..24_i64, after in 0..4_000_000_000_i64,
    ) {
        let schedule = Schedule::parse(&format!("{minute} {hour} * * *")).expect("a schedule");
        let next = schedule.next(&Zone::utc(), after, after).expect("a time");
        prop_assert!(next > after && next - after <= 86_400);
        prop_assert_eq!((next % 86_400, next % 60), (hour * 3600 + minute * 60, 0));
    }

    #[test]
    fn no_text_panics(text in "[-0-9*/,?@ a-z=]{0,20}", after in any::<i64>()) {
        if let Ok(schedule) = Schedule::parse(&text) {
            schedule.next(&Zone::utc(), after, after);
            schedule.latest(&Zone::utc(), after, after, after.saturating_add(1_000_000));
        }
    }
}

#[test]
fn the_times_of_a_period_are_counted_from_an_anchor() {
    let schedule = Schedule::parse("@every 90s").expect("a schedule");
    let next = |after: i64| schedule.next(&Zone::utc(), 1_000, after);
    assert_eq!(
        [0, 1_000, 1_001, 1_089, 1_090, 1_900].map(next),
        [Some(1_090), Some(1_090), Some(1_090), Some(1_090), Some(1_180), Some(1_990)]
    );
    let latest = |after: i64, until: i64| {
        schedule.latest(&Zone::utc(), 1_000, after, until).map(|found| (found.time, found.count))
    };
    assert_eq!(latest(1_000, 1_089), None);
    assert_eq!(latest(1_000, 1_300), Some((1_270, 3)));
    assert_eq!(latest(1_200, 1_300), Some((1_270, 1)));
    for (anchor, after) in [(i64::MIN, i64::MAX), (i64::MAX, i64::MIN), (i64::MAX, i64::MAX)] {
        schedule.next(&Zone::utc(), anchor, after);
        schedule.latest(&Zone::utc(), anchor, after, i64::MAX);
    }
}
