//! That at most one leads, whatever the network does, and what is asked of the server.

use proptest::prelude::*;
use proto_api::MicroTime;
use proto_daemon::statusz::StatusBoard;
use serde_json::{Value, json};

use super::*;
use crate::testing::Server;

const TIMES: Times = Times {
    lease: Duration::from_secs(15),
    renew_deadline: Duration::from_secs(10),
    retry_period: Duration::from_secs(2),
};

#[test]
fn times_that_would_let_two_lead_are_refused() {
    let secs = Duration::from_secs;
    let check = |lease, renew, retry, expect: Result<(), TimesError>| {
        let times = Times { lease, renew_deadline: renew, retry_period: retry };
        assert_eq!(times.check().map(|_| ()), expect, "{times:?}");
    };
    check(secs(15), secs(10), secs(2), Ok(()));
    check(secs(10), secs(10), secs(2), Err(TimesError::Lease));
    check(Duration::from_millis(10_900), secs(10), secs(2), Err(TimesError::Lease));
    check(secs(15), secs(10), secs(10), Err(TimesError::RenewDeadline));
    check(secs(15), secs(10), secs(0), Err(TimesError::RetryPeriod));
    check(Duration::MAX, secs(10), secs(2), Err(TimesError::Range));
    check(Duration::ZERO, secs(10), secs(2), Err(TimesError::Range));
}

/// What the network does to one try.
#[derive(Clone, Copy, Debug)]
struct WriteOutcome {
    /// Milliseconds until the server reads, and from then until it writes, and from then until the answer is there.
    legs: [u64; 3],
    /// Whether reading and writing get through at all.
    reads: bool,
    writes: bool,
}

/// The lease as a server has it.
#[derive(Default)]
struct Stored {
    lease: Option<Lease>,
    version: u64,
}

impl Stored {
    /// Writes if `seen` is the version that is there.
    fn write(&mut self, mut lease: Lease, seen: u64) -> Option<Lease> {
        if seen != self.version {
            return None;
        }
        self.version += 1;
        lease.metadata.resource_version = self.version.to_string();
        self.lease = Some(lease.clone());
        Some(lease)
    }
}

/// A candidate whose tries are cut into steps at times.
struct Contender {
    me: Holder,
    claimant: Claimant,
    election: Election,
    tries: std::vec::IntoIter<WriteOutcome>,
    step: Step,
    at: Instant,
}

enum Step {
    Ask,
    Read { asked: Instant, fate: WriteOutcome },
    Write { asked: Instant, fate: WriteOutcome },
    Answer { asked: Instant, outcome: AttemptOutcome, new: Box<Option<Lease>> },
    Done,
}

impl Contender {
    fn new(name: &str, tries: Vec<WriteOutcome>, start: Instant) -> Self {
        let me = Holder {
            lease: "program".into(),
            identity: name.into(),
            duration_secs: TIMES.lease_secs(),
            owner: None,
        };
        let (claimant, election) = (Claimant::default(), Election::default());
        Self { me, claimant, election, tries: tries.into_iter(), step: Step::Ask, at: start }
    }

    /// Whether it acts: [`Candidate::hold`] ends it at the deadline, however long an answer takes.
    fn acts(&self, now: Instant) -> bool {
        matches!(self.election, Election::Leading { renewed } if !is_over(renewed, TIMES, now))
    }

    fn seen(&self) -> u64 {
        // Of a lease that was not there.
        self.claimant.version().and_then(|version| version.parse().ok()).unwrap_or(0)
    }

    fn go(&mut self, stored: &mut Stored) {
        let now = self.at;
        let after = |millis: u64| now + Duration::from_millis(millis);
        match std::mem::replace(&mut self.step, Step::Done) {
            Step::Done => self.at = now + Duration::from_secs(100_000),
            Step::Ask if self.election == Election::Lost => {}
            Step::Ask => {
                let Some(fate) = self.tries.next() else { return };
                self.at = after(fate.legs[0]);
                self.step = Step::Read { asked: now, fate };
            }
            Step::Read { asked, fate } => {
                if fate.reads && !self.claimant.is_held_by(&self.me) {
                    self.claimant.observe_lease(stored.lease.clone(), now);
                }
                self.at = after(fate.legs[1]);
                self.step = match fate.reads {
                    true => Step::Write { asked, fate },
                    false => Step::Answer {
                        asked,
                        outcome: AttemptOutcome::Unknown,
                        new: Box::default(),
                    },
                };
            }
            Step::Write { asked, fate } => {
                let wall = MicroTime::from_unix_micros(7);
                let lease = match self.claimant.claim(&self.me, wall, now) {
                    Claim::Wait { .. } => None,
                    Claim::Create(lease) | Claim::Update(lease) => Some(*lease),
                };
                let (outcome, new) = match lease {
                    None => (AttemptOutcome::OfAnother, None),
                    Some(_) if !fate.writes => (AttemptOutcome::Unknown, None),
                    Some(lease) => match stored.write(lease, self.seen()) {
                        Some(new) => (AttemptOutcome::Held, Some(new)),
                        None => (AttemptOutcome::Unknown, None),
                    },
                };
                self.at = after(fate.legs[2]);
                self.step = Step::Answer { asked, outcome, new: Box::new(new) };
            }
            Step::Answer { asked, outcome, new } => {
                match (*new, &outcome) {
                    (Some(new), _) => self.claimant.observe_lease(Some(new), now),
                    (None, AttemptOutcome::Unknown) => self.claimant.forget(),
                    (None, _) => {}
                }
                self.election.tried(&outcome, TIMES, asked, now);
                self.at = now + TIMES.retry_period;
                self.step = Step::Ask;
            }
        }
    }
}

fn fates() -> impl Strategy<Value = Vec<WriteOutcome>> {
    let leg = || prop_oneof![8 => 0_u64..500, 1 => 0_u64..6_000, 1 => 0_u64..40_000];
    let gets_through = || prop_oneof![5 => Just(true), 1 => Just(false)];
    let fate = ([leg(), leg(), leg()], gets_through(), gets_through())
        .prop_map(|(legs, reads, writes)| WriteOutcome { legs, reads, writes });
    prop::collection::vec(fate, 0..60)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(100))]
    #[test]
    fn no_two_lead_at_a_time(first in fates(), second in fates(), third in fates(), late in 0_u64..60_000) {
        let start = Instant::now();
        let later = start + Duration::from_millis(late);
        let mut all = [
            Contender::new("a", first, start),
            Contender::new("b", second, start),
            Contender::new("c", third, later),
        ];
        let (mut stored, end) = (Stored::default(), start + Duration::from_secs(50_000));
        loop {
            let next = all.iter_mut().min_by_key(|contender| contender.at).expect("three");
            if next.at > end {
                break;
            }
            let now = next.at;
            next.go(&mut stored);
            let acting: Vec<_> = all.iter().filter(|c| c.acts(now)).map(|c| &c.me.identity).collect();
            prop_assert!(acting.len() <= 1, "{acting:?} at {:?}", now - start);
        }
    }
}

#[test]
fn a_follower_takes_over_when_the_leader_is_silent() {
    let quick = WriteOutcome { legs: [1, 1, 1], reads: true, writes: true };
    let start = Instant::now();
    let mut leader = Contender::new("a", vec![quick; 3], start);
    let mut follower = Contender::new("b", vec![quick; 30], start + Duration::from_millis(10));
    let mut stored = Stored::default();
    let led_at = (0..200).find_map(|_| {
        let next = if leader.at <= follower.at { &mut leader } else { &mut follower };
        next.go(&mut stored);
        follower.acts(follower.at).then_some(follower.at)
    });
    let waited = led_at.expect("led") - start;
    // Its last renewal was after some four seconds.
    assert!(waited >= TIMES.lease && waited <= TIMES.lease + Duration::from_secs(8), "{waited:?}");
}

#[test]
fn a_late_or_replaced_leader_has_lost_for_good() {
    let start = Instant::now();
    let at = |secs| start + Duration::from_secs(secs);
    let leading = || Election::Leading { renewed: start };
    let check = |before: Election, outcome, asked, now, expect: Election| {
        let mut election = before.clone();
        election.tried(&outcome, TIMES, asked, now);
        assert_eq!(election, expect, "{before:?} {outcome:?}");
    };
    use AttemptOutcome::{Held, OfAnother, Unknown};
    use Election::{Lost, Waiting};
    check(Waiting, Held, at(0), at(1), leading());
    check(Waiting, Held, at(0), at(10), Waiting);
    check(Waiting, OfAnother, at(0), at(1), Waiting);
    check(leading(), Held, at(4), at(5), Election::Leading { renewed: at(4) });
    check(leading(), Unknown, at(4), at(9), leading());
    check(leading(), Unknown, at(4), at(10), Lost);
    check(leading(), OfAnother, at(1), at(2), Lost);
    check(Lost, Held, at(1), at(2), Lost);
    assert_eq!(leading().patience(TIMES, at(4)), Duration::from_secs(6));
    assert_eq!(leading().patience(TIMES, at(400)), Duration::ZERO);
}

const PATH: &str = "/apis/coordination.k8s.io/v1/namespaces/kube-system/leases";

fn body(version: &str, holder: &str) -> Value {
    json!({"kind": "Lease", "apiVersion": "coordination.k8s.io/v1",
        "metadata": {"name": "program", "namespace": "kube-system", "resourceVersion": version},
        "spec": {"holderIdentity": holder, "leaseDurationSeconds": 15}})
}

fn candidate(server: &Server, retry_period: Duration) -> Candidate {
    let times = Times { retry_period, ..TIMES };
    let status = StatusBoard::default().task("leader election");
    Candidate::new(&server.client(), "kube-system", "program", "me".into(), times, status)
}

#[tokio::test]
async fn leads_at_once_when_no_other_does_and_gives_the_lease_back() {
    let mut server = Server::plain().await;
    let mut candidate = Some(candidate(&server, Duration::from_millis(1)));
    let (leading, mut led) = watch::channel(false);
    let task = tokio::spawn(async move {
        tokio::select! {
            LeaseLost = run_election(&mut candidate, &leading) => unreachable!("not lost"),
            () = async { led.wait_for(|led| *led).await.map(|_| ()).expect("led") } => {}
        }
        candidate
    });
    let asked = server.asked().await;
    assert_eq!(asked.line, format!("GET {PATH}/program"));
    asked.refuse(404, "NotFound");
    let asked = server.asked().await;
    assert_eq!(asked.line, format!("POST {PATH}"));
    asked.reply(201, &body("1", "me"));
    let candidate = task.await.expect("led").expect("a candidate");
    let release = tokio::spawn(candidate.release());
    let asked = server.asked().await;
    assert_eq!(asked.line, format!("PUT {PATH}/program"));
    let text = String::from_utf8_lossy(&asked.body).into_owned();
    assert!(!text.contains("\"me\""), "the holder is gone: {text}");
    asked.reply(200, &body("2", ""));
    release.await.expect("released");
}

#[tokio::test]
async fn waits_for_another_and_has_lost_when_another_took_it() {
    let mut server = Server::plain().await;
    let build = proto_daemon::metrics::BuildInfo { version: "1", commit: "c" };
    let metrics = proto_daemon::metrics::Metrics::new("x", build).expect("valid names");
    let leads = LeaderMetrics::register(&metrics).expect("registered").gauge("program");
    let candidate = candidate(&server, Duration::from_millis(1));
    let mut candidate = Some(Candidate { leads: Some(leads), ..candidate });
    let shown = |value: u8| {
        let line = format!("leader_election_master_status{{name=\"program\"}} {value}\n");
        metrics.text().contains(&line)
    };
    let (leading, led) = watch::channel(false);
    let task = tokio::spawn(async move { run_election(&mut candidate, &leading).await });
    for _ in 0..3 {
        server.asked().await.reply(200, &body("7", "you"));
    }
    assert!(!*led.borrow() && shown(0), "another leads");
    server.asked().await.reply(200, &body("8", ""));
    let asked = server.asked().await;
    assert_eq!(asked.line, format!("PUT {PATH}/program"));
    asked.reply(200, &body("9", "me"));
    let asked = server.asked().await;
    assert_eq!(asked.line, format!("PUT {PATH}/program"));
    assert!(shown(1), "it leads");
    asked.refuse(409, "Conflict");
    server.asked().await.reply(200, &body("11", "you"));
    let LeaseLost = task.await.expect("ended");
    assert!(*led.borrow() && shown(0), "it led once");
}
