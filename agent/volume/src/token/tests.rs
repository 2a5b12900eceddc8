use proptest::prelude::*;

use super::*;

#[test]
fn claims_are_read() {
    let token = |claims: &str| format!("e30.{}.c2ln", BASE64_URL_SAFE_NO_PAD.encode(claims));
    let life = TokenLifetime { issued_at: 100, expires_at: 3707 };
    assert_eq!(
        TokenLifetime::from_token(&token(r#"{"iss":"x","iat":100,"exp":3707}"#)),
        Some(life)
    );
    assert_eq!(TokenLifetime::from_token(&token(r#"{"iat":100}"#)), None);
    for bad in ["", "a.b", "e30.%.x", "e30.e30.x"] {
        assert_eq!(TokenLifetime::from_token(bad), None, "{bad}");
    }
}

#[test]
fn a_token_that_lives_on_is_renewed_as_if_it_did_not() {
    let year = TokenLifetime { issued_at: 100, expires_at: 100 + 365 * 24 * 3600 };
    let hour = TokenLifetime { issued_at: 100, expires_at: 3707 };
    for (own, answered, secs) in [
        (Some(year), Some(3607), Some(3607)),
        (Some(hour), Some(86_400), Some(3607)),
        (Some(hour), None, Some(3607)),
        (None, Some(3607), Some(3607)),
        (Some(TokenLifetime { issued_at: 5, expires_at: 5 }), Some(-1), None),
        (None, None, None),
    ] {
        assert_eq!(TokenLifetime::granted_secs(own, answered), secs, "{own:?} {answered:?}");
    }
}

#[test]
fn renewal_is_due_after_four_fifths_or_a_day() {
    let life = |issued_at, expires_at| TokenLifetime { issued_at, expires_at };
    for (life, now, secs) in [
        (life(0, 1000), 0, 800),
        (life(0, 1000), 700, 100),
        (life(0, 1000), 800, 0),
        (life(0, 1000), 5000, 0),
        (life(0, 30 * AGE_MAX_SECS), 0, 24 * 3600),
        (life(500, 1500), 499, 0),
        (life(500, 500), 500, 0),
        (life(i64::MIN, i64::MAX), 0, 0),
    ] {
        assert_eq!(life.renew_in(now).as_secs(), secs, "{life:?} at {now}");
    }
}

#[test]
fn token_renewal_is_due_by_either_clock() {
    let at = |boot, unix| Moment { boot: Duration::from_secs(boot), unix };
    let of = |life, spread| {
        TokenRenewal::for_lifetime(Duration::from_secs(life), at(100, 1_000_000), spread)
    };
    assert_eq!(of(1000, 0), TokenRenewal { boot: Duration::from_secs(900), unix: 1_000_800 });
    assert_eq!(of(1000, 49).boot, Duration::from_millis(900_000 - 39_200), "spread, and earlier");
    assert_eq!(of(1_000_000, 0).boot.as_secs(), 100 + 24 * 3600);
    let renewal = of(1000, 0);
    for (boot, unix, due) in [
        (899, 1_000_799, false),
        (900, 1_000_800, true),
        (900, 0, true),
        (200, 1_000_800, true),
        (200, 0, false),
    ] {
        assert_eq!(renewal.is_due(at(boot, unix)), due, "{boot} {unix}");
    }
}

/// An event on a node, in seconds after the previous event.
#[derive(Clone, Debug)]
enum Happening {
    /// The wall clock is set.
    ClockSet(i64),
    /// The API server stops or starts.
    Server(bool),
    /// The agent is killed and restarted.
    Restart,
}

fn happenings() -> impl Strategy<Value = Vec<(u64, Happening)>> {
    let day = 24 * 3600_i64;
    let one = prop_oneof![
        (-day..day).prop_map(Happening::ClockSet),
        any::<bool>().prop_map(Happening::Server),
        Just(Happening::Restart),
    ];
    proptest::collection::vec((1..400_u64, one), 0..40)
}

/// An agent with one token, and what the node stores of it.
struct Agent {
    /// In the volume: validity by the API server's clock.
    file: TokenLifetime,
    /// Next to the volume.
    written: Option<TokenRenewal>,
    /// In memory.
    known: TokenRenewal,
    retry_at: u64,
}

impl Agent {
    /// Checks the token when one of its renewal times has come.
    fn wake(&mut self, now: u64, wall: i64, life: i64, server: bool, writes: bool, spread: u64) {
        let moment = Moment { boot: Duration::from_secs(now), unix: wall };
        if now < self.retry_at || moment.boot < self.known.boot {
            return;
        }
        if !server {
            self.retry_at = now + RETRY.as_secs();
            return;
        }
        let now_server = i64::try_from(now).unwrap();
        self.file = TokenLifetime { issued_at: now_server, expires_at: now_server + life };
        self.known =
            TokenRenewal::for_lifetime(Duration::from_secs(life.unsigned_abs()), moment, spread);
        self.written = writes.then_some(self.known);
    }

    fn restart(&mut self, now: u64, wall: i64) {
        let moment = Moment { boot: Duration::from_secs(now), unix: wall };
        self.retry_at = 0;
        self.known =
            self.written.unwrap_or_else(|| TokenRenewal::for_found_token(self.file, moment));
    }
}

proptest! {
    /// Whatever happens to clocks, API server and agent, a token expires only if the server was unreachable for long enough in
    /// the last fifth of its lifetime.
    #[test]
    fn a_token_that_is_read_is_good(
        life in 600..4000_i64,
        spread in any::<u64>(),
        happenings in happenings(),
    ) {
        let mut agent = Agent {
            file: TokenLifetime { issued_at: 0, expires_at: 0 },
            written: None,
            known: TokenRenewal { boot: Duration::ZERO, unix: 0 },
            retry_at: 0,
        };
        let (mut offset, mut server, mut up_for) = (0_i64, true, 0_u64);
        let mut left = happenings.into_iter();
        let mut next = left.next();
        let mut since = 0;
        for now in 0..12_000_u64 {
            let wall = i64::try_from(now).unwrap() + offset;
            if let Some((after, what)) = next.clone() && now - since >= after {
                match what {
                    Happening::ClockSet(by) => offset = by,
                    Happening::Server(up) => server = up,
                    Happening::Restart => agent.restart(now, wall),
                }
                (since, next) = (now, left.next());
            }
            agent.wake(now, wall, life, server, true, spread);
            let age = i64::try_from(now).unwrap() - agent.file.issued_at;
            let in_last_fifth = age * 100 >= life * LIFE_PERCENT;
            up_for = if server && in_last_fifth { up_for + 1 } else { 0 };
            prop_assert!(up_for <= RETRY.as_secs() + 1, "not renewed at {} of {}", age, life);
        }
    }
}

#[test]
fn without_what_is_written_down_a_clock_that_was_set_back_puts_a_renewal_off() {
    // The reason for storing the renewal time.
    let file = TokenLifetime { issued_at: 0, expires_at: 1000 };
    let mut agent = Agent {
        file,
        written: None,
        known: TokenRenewal { boot: Duration::from_secs(800), unix: 800 },
        retry_at: 0,
    };
    agent.restart(700, 200);
    assert_eq!(agent.known.boot.as_secs(), 1300, "after its end");
    agent.written = Some(TokenRenewal { boot: Duration::from_secs(800), unix: 800 });
    agent.restart(700, 200);
    assert_eq!(agent.known.boot.as_secs(), 800);
}
