use std::collections::BTreeSet;

use proptest::prelude::*;

use super::*;

const REJECT: LimitResponse = LimitResponse::Reject;

fn queue(queues: i64, hand: i64, length: i64) -> LimitResponse {
    LimitResponse::Queue(Queuing::new(queues, hand, length))
}

/// A flow whose only queue of `queues` is `at`.
fn flow_of(at: usize, queues: usize) -> u64 {
    (0..).find(|flow| Hand::deal(*flow, queues, 1).cards().eq([at])).expect("a flow")
}

fn executing<W>(arrival: Arrival) -> Seat {
    match arrival {
        Arrival::Executing(seat) => seat,
        other => panic!("not executing: {other:?} {}", std::any::type_name::<W>()),
    }
}

#[test]
fn without_queues_what_finds_no_seat_is_rejected() {
    let mut level = FairQueue::<u32>::new(2, REJECT);
    let first = executing::<u32>(level.arrive(1, || 0));
    let _second = executing::<u32>(level.arrive(2, || 0));
    let refused = Arrival::Rejected(Rejection::ConcurrencyLimit);
    assert_eq!(level.arrive(3, || 0), refused);
    assert_eq!(level.finish(first), None);
    assert!(matches!(level.arrive(3, || 0), Arrival::Executing(_)));
    assert_eq!(level.counts(), (2, 2, 0));
}

#[test]
fn who_waits_is_served_in_the_order_of_its_queue() {
    let mut level = FairQueue::new(1, queue(1, 1, 2));
    let seat = executing::<u32>(level.arrive(0, || 0));
    assert!(matches!(level.arrive(0, || 1), Arrival::Queued(_)));
    let Arrival::Queued(ticket) = level.arrive(0, || 2) else { panic!("not queued") };
    assert_eq!(level.arrive(0, || 3), Arrival::Rejected(Rejection::QueueFull));
    let (one, seat) = level.finish(seat).expect("the first");
    assert_eq!(one, 1);
    assert_eq!(level.cancel(ticket), Some(2));
    assert_eq!(level.cancel(ticket), None, "it is cancelled once");
    assert_eq!(level.finish(seat), None);
    assert!(level.is_idle());
}

#[test]
fn a_request_that_was_started_is_not_cancelled() {
    let mut level = FairQueue::new(1, queue(4, 2, 9));
    let seat = executing::<()>(level.arrive(0, || ()));
    let Arrival::Queued(ticket) = level.arrive(7, || ()) else { panic!("not queued") };
    let (_, seat) = level.finish(seat).expect("started");
    assert_eq!(level.cancel(ticket), None);
    assert_eq!(level.finish(seat), None);
    assert!(level.is_idle());
}

#[test]
fn two_queues_take_turns_however_long_they_are() {
    let mut level = FairQueue::new(1, queue(2, 1, 100));
    let (flooding, quiet) = (flow_of(0, 2), flow_of(1, 2));
    let mut seat = executing::<char>(level.arrive(flooding, || '-'));
    for _ in 0..50 {
        assert!(matches!(level.arrive(flooding, || 'f'), Arrival::Queued(_)));
    }
    for _ in 0..3 {
        assert!(matches!(level.arrive(quiet, || 'q'), Arrival::Queued(_)));
    }
    let mut served = String::new();
    while let Some((who, next)) = level.finish(seat) {
        served.push(who);
        seat = next;
    }
    assert_eq!(served.get(..6), Some("qfqfqf"), "{served}");
    assert_eq!(served.len(), 53);
}

#[test]
fn nobody_pays_for_what_it_used_while_seats_were_free() {
    let mut level = FairQueue::new(1, queue(2, 1, 100));
    let (busy, idle) = (flow_of(0, 2), flow_of(1, 2));
    for _ in 0..1000 {
        let seat = executing::<char>(level.arrive(busy, || '-'));
        assert_eq!(level.finish(seat), None);
    }
    let mut seat = executing::<char>(level.arrive(idle, || '-'));
    for _ in 0..4 {
        level.arrive(idle, || 'i');
        level.arrive(busy, || 'b');
    }
    let mut served = String::new();
    while let Some((who, next)) = level.finish(seat) {
        served.push(who);
        seat = next;
    }
    assert_eq!(served, "ibibibib");
}

#[test]
fn more_seats_start_those_who_wait_and_fewer_stop_nobody() {
    let mut level = FairQueue::new(1, queue(8, 2, 9));
    let seat = executing::<u32>(level.arrive(0, || 0));
    for nth in 1..=4_u32 {
        level.arrive(u64::from(nth), || nth);
    }
    level.reconfigure(3, queue(2, 1, 1));
    let mut seats = vec![seat];
    while let Some((_, seat)) = level.start_next() {
        seats.push(seat);
    }
    assert_eq!(level.counts(), (3, 3, 2), "those who wait stay, whatever queues there are now");
    level.reconfigure(1, REJECT);
    assert_eq!(level.arrive(9, || 9), Arrival::Rejected(Rejection::ConcurrencyLimit));
    for seat in seats.drain(..2) {
        assert_eq!(level.finish(seat), None, "as many as there are seats are still served");
    }
    let seat = seats.pop().expect("a seat");
    let (_, seat) = level.finish(seat).expect("the fourth");
    let (_, seat) = level.finish(seat).expect("the fifth");
    assert_eq!(level.finish(seat), None);
    assert!(level.is_idle() && level.queues.is_empty());
}

#[test]
fn what_a_configuration_says_does_not_decide_what_is_kept() {
    let mut level = FairQueue::new(usize::MAX, queue(i64::MAX, i64::MAX, i64::MAX));
    assert!(level.queues.len() <= 1024);
    level.reconfigure(0, queue(i64::MAX, i64::MAX, i64::MAX));
    let many = u64::try_from(WAITING_MAX).expect("small") + 100;
    let queued =
        (0..many).filter(|flow| matches!(level.arrive(*flow, || ()), Arrival::Queued(_))).count();
    assert_eq!(queued, WAITING_MAX);
}

#[derive(Clone, Debug)]
enum Step {
    Arrive(u64),
    Finish(usize),
    Cancel(usize),
    Reconfigure(usize, Option<(i64, i64, i64)>),
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        8 => (0..20_u64).prop_map(Step::Arrive),
        5 => any::<usize>().prop_map(Step::Finish),
        2 => any::<usize>().prop_map(Step::Cancel),
        1 => (0..5_usize, prop::option::of((-1..9_i64, -1..9_i64, -1..9_i64)))
            .prop_map(|(seats, queues)| Step::Reconfigure(seats, queues)),
    ];
    prop::collection::vec(step, 0..200)
}

/// What the owner of a level knows of its requests.
#[derive(Default)]
struct Model {
    seats: Vec<Seat>,
    waiting: Vec<(u64, Ticket)>,
    /// Requests that ended, or were started after they had waited.
    settled: BTreeSet<u64>,
    next: u64,
}

impl Model {
    fn started(&mut self, (number, seat): (u64, Seat)) {
        assert!(self.settled.insert(number), "{number} was started twice");
        self.waiting.retain(|(other, _)| *other != number);
        self.seats.push(seat);
    }

    fn take(&mut self, step: Step, level: &mut FairQueue<u64>) {
        match step {
            Step::Arrive(flow) => {
                let number = self.next;
                self.next += 1;
                match level.arrive(flow, || number) {
                    Arrival::Executing(seat) => self.seats.push(seat),
                    Arrival::Queued(ticket) => self.waiting.push((number, ticket)),
                    Arrival::Rejected(_) => {}
                }
            }
            Step::Finish(which) if !self.seats.is_empty() => {
                let seat = self.seats.swap_remove(which % self.seats.len());
                if let Some(started) = level.finish(seat) {
                    self.started(started);
                }
            }
            Step::Cancel(which) if !self.waiting.is_empty() => {
                let (number, ticket) = self.waiting.swap_remove(which % self.waiting.len());
                assert_eq!(level.cancel(ticket), Some(number), "who waits can be cancelled");
                assert!(self.settled.insert(number));
            }
            Step::Reconfigure(seats, queues) => {
                let response =
                    queues.map_or(REJECT, |(queues, hand, length)| queue(queues, hand, length));
                level.reconfigure(seats, response);
                while let Some(started) = level.start_next() {
                    self.started(started);
                }
            }
            Step::Finish(_) | Step::Cancel(_) => {}
        }
    }
}

proptest! {
    #[test]
    fn seats_are_not_exceeded_and_no_wake_up_is_lost(seats in 0..4_usize, steps in steps()) {
        let mut level = FairQueue::new(seats, queue(4, 2, 3));
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
        while let Some(started) = level.start_next() {
            model.started(started);
        }
        while let Some(seat) = model.seats.pop() {
            if let Some(started) = level.finish(seat) {
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
        let mut level = FairQueue::new(1, queue(6, 1, 1000));
        let mut seats = Vec::new();
        for (at, ends) in steps {
            let flow = flow_of(usize::try_from(at).expect("small"), QUEUES);
            if let Arrival::Executing(seat) = level.arrive(flow, || at) {
                seats.push(seat);
            }
            if ends && let Some(seat) = seats.pop() {
                seats.extend(level.finish(seat).map(|(_, seat)| seat));
            }
        }
        // Every queue but the first is flooded; the first is emptied by waiting until nothing of it is left.
        for at in 1..QUEUES {
            for _ in 0..flood {
                if let Arrival::Executing(seat) = level.arrive(flow_of(at, QUEUES), || 1) {
                    seats.push(seat);
                }
            }
        }
        let before = level.queues[0].waiting.len();
        for _ in 0..=ahead {
            if let Arrival::Executing(seat) = level.arrive(flow_of(0, QUEUES), || 99) {
                seats.push(seat);
            }
        }
        let mut others = 0;
        let mut own = level.queues[0].waiting.len();
        let wanted = before.max(own);
        while own > 0 {
            let seat = seats.pop().expect("somebody has the seat while others wait");
            let (who, seat) = level.finish(seat).expect("the next");
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
        let cards = |flow| Hand::deal(flow, 64, 6).cards().collect::<BTreeSet<_>>();
        prop_assume!(!cards(quiet).is_subset(&cards(flooding)));
        let mut level = FairQueue::new(1, queue(64, 6, 50));
        let mut seat = executing::<char>(level.arrive(flooding, || 'f'));
        let queued = (0..1_000).filter(|_| matches!(level.arrive(flooding, || 'f'), Arrival::Queued(_)));
        prop_assert_eq!(queued.count(), 6 * 50, "no more than its hand holds");
        prop_assert!(matches!(level.arrive(quiet, || 'q'), Arrival::Queued(_)), "its queue is not full");
        let mut served = 0;
        loop {
            let (who, next) = level.finish(seat).expect("somebody waits");
            seat = next;
            if who == 'q' {
                break;
            }
            served += 1;
        }
        prop_assert!(served <= 2 * 6, "{served} requests of the flood came first");
    }
}
