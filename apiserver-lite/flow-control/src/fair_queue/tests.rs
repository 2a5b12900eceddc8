use std::collections::BTreeSet;

use proptest::prelude::*;

use super::*;

/// Of tests in which no time passes.
const NOW: Duration = Duration::ZERO;
const REJECT: LimitResponse = LimitResponse::Reject;

fn queue(queues: i64, hand: i64, length: i64) -> LimitResponse {
    LimitResponse::Queue(Queuing::new(queues, hand, length))
}

/// A flow whose only queue of `queues` is `at`.
fn flow_of(at: usize, queues: usize) -> u64 {
    (0..).find(|flow| QueueHand::deal(*flow, queues, 1).cards().eq([at])).expect("a flow")
}

fn executing<W>(arrival: Arrival) -> Seat {
    match arrival {
        Arrival::Executing(seat) => seat,
        other => panic!("not executing: {other:?} {}", std::any::type_name::<W>()),
    }
}

#[test]
fn without_queues_what_finds_no_seat_is_rejected() {
    let mut level = QueueSet::<u32>::new(2, REJECT);
    let first = executing::<u32>(level.arrive(1, NOW, || 0));
    let _second = executing::<u32>(level.arrive(2, NOW, || 0));
    let refused = Arrival::Rejected(Rejection::ConcurrencyLimit);
    assert_eq!(level.arrive(3, NOW, || 0), refused);
    assert_eq!(level.finish(first, NOW), None);
    assert!(matches!(level.arrive(3, NOW, || 0), Arrival::Executing(_)));
    assert_eq!(level.counts(), (2, 2, 0));
}

#[test]
fn queued_requests_are_served_in_order() {
    let mut level = QueueSet::new(1, queue(1, 1, 2));
    let seat = executing::<u32>(level.arrive(0, NOW, || 0));
    assert!(matches!(level.arrive(0, NOW, || 1), Arrival::Queued(_)));
    let Arrival::Queued(place) = level.arrive(0, NOW, || 2) else { panic!("not queued") };
    assert_eq!(level.arrive(0, NOW, || 3), Arrival::Rejected(Rejection::QueueFull));
    let (one, seat) = level.finish(seat, NOW).expect("the first");
    assert_eq!(one, 1);
    assert_eq!(level.cancel(place, NOW), Some(2));
    assert_eq!(level.cancel(place, NOW), None, "it is cancelled once");
    assert_eq!(level.finish(seat, NOW), None);
    assert!(level.is_idle());
}

#[test]
fn a_request_that_was_started_is_not_cancelled() {
    let mut level = QueueSet::new(1, queue(4, 2, 9));
    let seat = executing::<()>(level.arrive(0, NOW, || ()));
    let Arrival::Queued(place) = level.arrive(7, NOW, || ()) else { panic!("not queued") };
    let (_, seat) = level.finish(seat, NOW).expect("started");
    assert_eq!(level.cancel(place, NOW), None);
    assert_eq!(level.finish(seat, NOW), None);
    assert!(level.is_idle());
}

#[test]
fn two_queues_take_turns_however_long_they_are() {
    let mut level = QueueSet::new(1, queue(2, 1, 100));
    let (flooding, quiet) = (flow_of(0, 2), flow_of(1, 2));
    let mut seat = executing::<char>(level.arrive(flooding, NOW, || '-'));
    for _ in 0..50 {
        assert!(matches!(level.arrive(flooding, NOW, || 'f'), Arrival::Queued(_)));
    }
    for _ in 0..3 {
        assert!(matches!(level.arrive(quiet, NOW, || 'q'), Arrival::Queued(_)));
    }
    let mut served = String::new();
    while let Some((who, next)) = level.finish(seat, NOW) {
        served.push(who);
        seat = next;
    }
    assert_eq!(served.get(..6), Some("qfqfqf"), "{served}");
    assert_eq!(served.len(), 53);
}

#[test]
fn use_of_free_seats_does_not_count_against_a_flow() {
    let mut level = QueueSet::new(1, queue(2, 1, 100));
    let (busy, idle) = (flow_of(0, 2), flow_of(1, 2));
    for _ in 0..1000 {
        let seat = executing::<char>(level.arrive(busy, NOW, || '-'));
        assert_eq!(level.finish(seat, NOW), None);
    }
    let mut seat = executing::<char>(level.arrive(idle, NOW, || '-'));
    for _ in 0..4 {
        level.arrive(idle, NOW, || 'i');
        level.arrive(busy, NOW, || 'b');
    }
    let mut served = String::new();
    while let Some((who, next)) = level.finish(seat, NOW) {
        served.push(who);
        seat = next;
    }
    assert_eq!(served, "ibibibib");
}

/// Serves who is next until nobody waits, and gives who was served in which order. A request `l` takes a second, others the hundredth part.
fn serve_all(level: &mut QueueSet<char>, mut seat: Seat, mut now: Duration) -> String {
    let (mut served, mut takes) = (String::new(), Duration::ZERO);
    loop {
        now += takes;
        let Some((who, next)) = level.finish(seat, now) else { return served };
        takes = Duration::from_millis(if who == 'l' { 1000 } else { 10 });
        served.push(who);
        seat = next;
    }
}

#[test]
fn flows_with_long_requests_are_served_less_often() {
    let mut level = QueueSet::new(1, queue(2, 1, 300));
    let (long, short) = (flow_of(0, 2), flow_of(1, 2));
    let seat = executing::<char>(level.arrive(short, NOW, || '-'));
    for _ in 0..3 {
        assert!(matches!(level.arrive(long, NOW, || 'l'), Arrival::Queued(_)));
    }
    for _ in 0..250 {
        assert!(matches!(level.arrive(short, NOW, || 's'), Arrival::Queued(_)));
    }
    let served = serve_all(&mut level, seat, NOW);
    let of_short: Vec<usize> = served.split('l').map(str::len).collect();
    // A second of the short ones for each second of a long one.
    assert!(matches!(of_short[..], [0..=1, 99..=101, 99..=101, _]), "{of_short:?}");
}

#[test]
fn a_long_request_that_ends_while_others_wait_is_owed_though_its_queue_was_empty() {
    let mut level = QueueSet::new(1, queue(2, 1, 300));
    let (long, short) = (flow_of(0, 2), flow_of(1, 2));
    let mut seat = executing::<char>(level.arrive(long, NOW, || 'l'));
    for _ in 0..20 {
        level.arrive(short, NOW, || 's');
    }
    let mut now = Duration::from_millis(100);
    (_, seat) = level.finish(seat, now).expect("a short one");
    level.arrive(long, now, || 'l');
    now += Duration::from_millis(10);
    let served = serve_all(&mut level, seat, now);
    assert_eq!(served.find('l'), Some(9), "as much time as the first long one took: {served}");
}

#[test]
fn use_of_seats_without_waiting_requests_does_not_count_against_a_flow() {
    let mut level = QueueSet::new(2, queue(2, 1, 100));
    let (long, short) = (flow_of(0, 2), flow_of(1, 2));
    let first = executing::<char>(level.arrive(long, NOW, || '-'));
    let second = executing::<char>(level.arrive(short, NOW, || '-'));
    let hour = Duration::from_secs(3600);
    // Others wait for no time at all.
    for flow in [short, long, short, long] {
        level.arrive(flow, hour, || if flow == long { 'l' } else { 's' });
    }
    let (who, other) = level.finish(first, hour).expect("the next");
    assert_eq!(who, 's');
    assert_eq!(level.finish(second, hour).map(|(who, _)| who), Some('l'));
    assert_eq!(level.finish(other, hour).map(|(who, _)| who), Some('s'), "they take turns");
}

#[test]
fn of_queues_that_are_as_long_a_flow_takes_the_one_that_owes_least() {
    let mut level = QueueSet::new(1, queue(2, 2, 9));
    let seat = executing::<char>(level.arrive(0, NOW, || '-'));
    level.arrive(0, NOW, || 'a');
    let (_, seat) = level.finish(seat, Duration::from_secs(9)).expect("the second");
    assert_eq!(level.finish(seat, Duration::from_secs(9)), None);
    let owing = level.queues.iter().position(|queue| queue.start > Duration::from_secs(1));
    for flow in 0..9 {
        let at = level.choose(flow, Queuing::new(2, 2, 9));
        assert_eq!(Some(1 - at), owing, "{flow}");
    }
}

#[test]
fn more_seats_start_waiting_requests_and_fewer_seats_stop_none() {
    let mut level = QueueSet::new(1, queue(8, 2, 9));
    let seat = executing::<u32>(level.arrive(0, NOW, || 0));
    for nth in 1..=4_u32 {
        level.arrive(u64::from(nth), NOW, || nth);
    }
    level.reconfigure(3, queue(2, 1, 1));
    let mut seats = vec![seat];
    while let Some((_, seat)) = level.start_next(NOW) {
        seats.push(seat);
    }
    assert_eq!(level.counts(), (3, 3, 2), "those who wait stay, whatever queues there are now");
    level.reconfigure(1, REJECT);
    assert_eq!(level.arrive(9, NOW, || 9), Arrival::Rejected(Rejection::ConcurrencyLimit));
    for seat in seats.drain(..2) {
        assert_eq!(level.finish(seat, NOW), None, "as many as there are seats are still served");
    }
    let seat = seats.pop().expect("a seat");
    let (_, seat) = level.finish(seat, NOW).expect("the fourth");
    let (_, seat) = level.finish(seat, NOW).expect("the fifth");
    assert_eq!(level.finish(seat, NOW), None);
    assert!(level.is_idle() && level.queues.is_empty());
}

#[test]
fn queues_are_bounded_for_any_configuration() {
    let mut level = QueueSet::new(usize::MAX, queue(i64::MAX, i64::MAX, i64::MAX));
    assert!(level.queues.len() <= 1024);
    level.reconfigure(0, queue(i64::MAX, i64::MAX, i64::MAX));
    let many = u64::try_from(WAITING_MAX).expect("small") + 100;
    let queued = (0..many)
        .filter(|flow| matches!(level.arrive(*flow, NOW, || ()), Arrival::Queued(_)))
        .count();
    assert_eq!(queued, WAITING_MAX);
}

#[derive(Clone, Debug)]
enum Step {
    Arrive(u64),
    Finish(usize),
    Cancel(usize),
    Reconfigure(usize, Option<(i64, i64, i64)>),
    Pass(u64),
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        8 => (0..20_u64).prop_map(Step::Arrive),
        5 => any::<usize>().prop_map(Step::Finish),
        2 => any::<usize>().prop_map(Step::Cancel),
        1 => (0..5_usize, prop::option::of((-1..9_i64, -1..9_i64, -1..9_i64)))
            .prop_map(|(seats, queues)| Step::Reconfigure(seats, queues)),
        2 => (0..60_000_u64).prop_map(Step::Pass),
    ];
    prop::collection::vec(step, 0..200)
}

/// What the owner of a level knows of its requests.
#[derive(Default)]
struct Model {
    seats: Vec<Seat>,
    waiting: Vec<(u64, QueuePlace)>,
    /// Requests that ended, or were started after they had waited.
    settled: BTreeSet<u64>,
    next: u64,
    now: Duration,
}

impl Model {
    fn started(&mut self, (number, seat): (u64, Seat)) {
        assert!(self.settled.insert(number), "{number} was started twice");
        self.waiting.retain(|(other, _)| *other != number);
        self.seats.push(seat);
    }

    fn take(&mut self, step: Step, level: &mut QueueSet<u64>) {
        match step {
            Step::Arrive(flow) => {
                let number = self.next;
                self.next += 1;
                match level.arrive(flow, self.now, || number) {
                    Arrival::Executing(seat) => self.seats.push(seat),
                    Arrival::Queued(place) => self.waiting.push((number, place)),
                    Arrival::Rejected(_) => {}
                }
            }
            Step::Finish(which) if !self.seats.is_empty() => {
                let seat = self.seats.swap_remove(which % self.seats.len());
                if let Some(started) = level.finish(seat, self.now) {
                    self.started(started);
                }
            }
            Step::Cancel(which) if !self.waiting.is_empty() => {
                let (number, place) = self.waiting.swap_remove(which % self.waiting.len());
                assert_eq!(
                    level.cancel(place, self.now),
                    Some(number),
                    "who waits can be cancelled"
                );
                assert!(self.settled.insert(number));
            }
            Step::Reconfigure(seats, queues) => {
                let response =
                    queues.map_or(REJECT, |(queues, hand, length)| queue(queues, hand, length));
                level.reconfigure(seats, response);
                while let Some(started) = level.start_next(self.now) {
                    self.started(started);
                }
            }
            Step::Pass(millis) => self.now += Duration::from_millis(millis),
            Step::Finish(_) | Step::Cancel(_) => {}
        }
    }
}

proptest! {
    #[test]
    fn seats_are_not_exceeded_and_no_wake_up_is_lost(seats in 0..4_usize, steps in steps()) {
        let mut level = QueueSet::new(seats, queue(4, 2, 3));
        let mut model = Model::default();
        for step in steps {
            let before = level.counts().1;
            model.take(step, &mut level);
            let (seats, executing, waiting) = level.counts();
            prop_assert_eq!((executing, waiting), (model.seats.len(), model.waiting.len()));
            prop_assert!(executing <= seats.max(before), "{executing} of {seats}");
            prop_assert!(waiting == 0 || executing >= seats, "{waiting} wait for {executing} of {seats}");
        }
        // Every request that waits is served in the end.
        level.reconfigure(1, REJECT);
        while let Some(started) = level.start_next(model.now) {
            model.started(started);
        }
        while let Some(seat) = model.seats.pop() {
            if let Some(started) = level.finish(seat, model.now) {
                model.started(started);
            }
        }
        prop_assert!(model.waiting.is_empty() && level.is_idle());
        prop_assert!(level.queues.is_empty());
    }

    /// The bound of the module's documentation, whatever was served before.
    #[test]
    fn a_request_waits_for_a_bounded_number_of_others(
        steps in prop::collection::vec((0..6_u64, any::<bool>()), 0..200),
        flood in 0..40_usize,
        ahead in 0..3_usize,
    ) {
        const QUEUES: usize = 6;
        let mut level = QueueSet::new(1, queue(6, 1, 1000));
        let mut seats = Vec::new();
        for (at, ends) in steps {
            let flow = flow_of(usize::try_from(at).expect("small"), QUEUES);
            if let Arrival::Executing(seat) = level.arrive(flow, NOW, || at) {
                seats.push(seat);
            }
            if ends && let Some(seat) = seats.pop() {
                seats.extend(level.finish(seat, NOW).map(|(_, seat)| seat));
            }
        }
        // Every queue but the first is flooded; the first is emptied by waiting until nothing of it is left.
        for at in 1..QUEUES {
            for _ in 0..flood {
                if let Arrival::Executing(seat) = level.arrive(flow_of(at, QUEUES), NOW, || 1) {
                    seats.push(seat);
                }
            }
        }
        let before = level.queues[0].waiting.len();
        for _ in 0..=ahead {
            if let Arrival::Executing(seat) = level.arrive(flow_of(0, QUEUES), NOW, || 99) {
                seats.push(seat);
            }
        }
        let mut others = 0;
        let mut own = level.queues[0].waiting.len();
        let wanted = before.max(own);
        while own > 0 {
            let seat = seats.pop().expect("somebody has the seat while others wait");
            let (who, seat) = level.finish(seat, NOW).expect("the next");
            seats.push(seat);
            match who {
                0 | 99 => own -= 1,
                _ => others += 1,
            }
        }
        prop_assert!(others <= (QUEUES - 1) * (wanted + 1), "{others} others before {wanted} own");
    }

    /// A flow that floods fills the queues of its hand; another one with a queue of its own is served next after at most one request of each other queue.
    #[test]
    fn a_flow_that_floods_does_not_starve_another(flooding: u64, quiet: u64) {
        let cards = |flow| QueueHand::deal(flow, 64, 6).cards().collect::<BTreeSet<_>>();
        prop_assume!(!cards(quiet).is_subset(&cards(flooding)));
        let mut level = QueueSet::new(1, queue(64, 6, 50));
        let mut seat = executing::<char>(level.arrive(flooding, NOW, || 'f'));
        let queued = (0..1_000).filter(|_| matches!(level.arrive(flooding, NOW, || 'f'), Arrival::Queued(_)));
        prop_assert_eq!(queued.count(), 6 * 50, "no more than its hand holds");
        prop_assert!(matches!(level.arrive(quiet, NOW, || 'q'), Arrival::Queued(_)), "its queue is not full");
        let mut served = 0;
        loop {
            let (who, next) = level.finish(seat, NOW).expect("somebody waits");
            seat = next;
            if who == 'q' {
                break;
            }
            served += 1;
        }
        prop_assert!(served <= 2 * 6, "{served} requests of the flood came first");
    }
}
