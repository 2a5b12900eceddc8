//! Virtual time: that of the tokio runtime, which a test pauses and advances, from a boot that it
//! chooses.

#![allow(clippy::arithmetic_side_effects, clippy::expect_used, reason = "of tests only")]

use std::cell::Cell;
use std::time::Duration;

use agent_pod::observed::Now;
use tokio::time::Instant;

/// Whether the clocks are virtual. A program built so is for tests only.
pub const IS_VIRTUAL: bool = true;

/// Initial value of the boot clock.
const UP: Duration = Duration::from_secs(1000);
const EPOCH: i64 = 1_700_000_000;

thread_local! {
    static BEGAN: Cell<Option<Instant>> = const { Cell::new(None) };
    static BOOTED: Cell<Option<Instant>> = const { Cell::new(None) };
    static SKEW: Cell<i64> = const { Cell::new(0) };
    /// The last instant at which the time was read, and how often.
    static READS: Cell<Option<(Instant, u32)>> = const { Cell::new(None) };
}

/// Restarts the clocks, so that every run is identical to the last digit of a time.
pub fn reset() {
    let now = Some(Instant::now());
    BEGAN.set(now);
    BOOTED.set(now);
    SKEW.set(0);
}

/// Restarts the boot clock; the wall clock continues.
pub fn reboot() {
    BOOTED.set(Some(Instant::now()));
}

/// Sets the wall clock forward by this many seconds.
pub fn step(by: i64) {
    SKEW.set(SKEW.get() + by);
}

/// How long it is since `reset`.
pub fn since_began() -> Duration {
    since(&BEGAN)
}

fn since(point: &'static std::thread::LocalKey<Cell<Option<Instant>>>) -> Duration {
    let at = point.get().unwrap_or_else(Instant::now);
    point.set(Some(at));
    at.elapsed()
}

/// More reads in one instant than any turn of a node's pods needs.
const READS_MAX: u32 = 100_000;

/// Paused time advances only when all tasks wait; a task in an endless loop would stop it for
/// ever.
fn count_read() {
    let now = Instant::now();
    let times = READS.get().filter(|(at, _)| *at == now).map_or(0, |(_, times)| times) + 1;
    READS.set(Some((now, times)));
    assert!(times < READS_MAX, "time stands still: the same is done over and over again");
}

/// The virtual time, which moves only by advancing it.
pub fn now() -> Now {
    count_read();
    let secs = i64::try_from((UP + since(&BEGAN)).as_secs()).expect("small");
    Now { unix_seconds: EPOCH + secs + SKEW.get(), boot: boot() }
}

/// Seconds since 1970 by the API server's clock, which tests never set.
pub fn server_unix() -> i64 {
    EPOCH + i64::try_from((UP + since(&BEGAN)).as_secs()).expect("small")
}

/// Time since boot.
pub fn boot() -> Duration {
    UP + since(&BOOTED)
}
