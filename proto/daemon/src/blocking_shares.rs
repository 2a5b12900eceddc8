//! Blocking work for pods and clients, in shares: walks over a pod's files, calls below a pod's mounts, decompression for a reader.
//!
//! Such a call may take minutes or never return. A program that makes them starts with [`crate::runtime::run_with_shares`], which adds
//! [`CALLS_MAX`] threads to those of the program's own work: that work never waits for such a call. Nor do other pods: an owner and a group
//! of owners have a bound each. Calls that take long or hang do not count against the bound on short ones; where all calls at a bound
//! hang, a further one fails instead of waiting. A thread starts with a call that needs it, and ends when it is idle.

use std::collections::VecDeque;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::Notify;
use tokio::task::JoinError;
use tokio::time::Instant;

use crate::panics;

/// Most calls that run at a time, including those that hang.
pub const CALLS_MAX: usize = 64;

static SHARES: BlockingShares = BlockingShares::new(ShareLimits {
    calls: CALLS_MAX,
    short: 8,
    group: 12,
    owner: 2,
    waiting: 4096,
    long_after: Duration::from_secs(1),
    hangs_after: Duration::from_secs(30),
});

/// Whose share a call takes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WorkOwner {
    /// Owners with a bound together: those of a namespace.
    pub group: String,
    /// The owner in the group: a pod.
    pub name: String,
}

impl fmt::Display for WorkOwner {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(to, "{}/{}", self.group, self.name)
    }
}

/// Why a call was not made or not finished.
#[derive(Debug, thiserror::Error)]
pub enum ShareError {
    /// All calls at a bound hang.
    #[error(
        "{calls} earlier calls on files of {owners} have not returned for {secs} s (a mount may not answer); no further one is made until one returns"
    )]
    Hanging {
        /// The owner, its group, or all.
        owners: String,
        /// Number of these calls.
        calls: usize,
        /// For how long the last of them has run.
        secs: u64,
    },
    /// Too many calls wait.
    #[error("{0} calls on files of pods are waiting already; make it again later")]
    TooManyWait(usize),
    /// The call panicked, or the program ends.
    #[error("the call was interrupted")]
    Interrupted(#[from] JoinError),
}

/// Runs `work` on a blocking thread, in the share of its owner. A call that is dropped while it waits is not made; one that has started
/// runs to its end.
///
/// # Errors
/// All calls at a bound of the owner hang, too many calls wait, or the work panicked.
pub async fn run<T: Send + 'static>(
    owner: WorkOwner,
    work: impl FnOnce() -> T + Send + 'static,
) -> Result<T, ShareError> {
    SHARES.call(owner, work).await
}

/// Bounds on calls.
#[derive(Clone, Copy, Debug)]
struct ShareLimits {
    /// Calls at a time.
    calls: usize,
    /// Calls at a time that have run for less than `long_after`.
    short: usize,
    /// Calls at a time of one group.
    group: usize,
    /// Calls at a time of one owner.
    owner: usize,
    /// Calls that wait.
    waiting: usize,
    long_after: Duration,
    /// A call that has run for this long is not waited for.
    hangs_after: Duration,
}

struct BlockingShares {
    limits: ShareLimits,
    calls: Mutex<Calls>,
}

struct Calls {
    next_id: u64,
    running: Vec<Call>,
    /// First come, first served, except where a bound keeps the first from starting.
    waiting: VecDeque<(Call, Arc<Notify>)>,
}

struct Call {
    id: u64,
    owner: WorkOwner,
    /// When it started; when it came, while it waits.
    since: Instant,
}

/// A call's place in its share, from the moment it waits until it is dropped.
struct SharePlace {
    shares: &'static BlockingShares,
    id: u64,
}

impl Drop for SharePlace {
    fn drop(&mut self) {
        let mut calls = self.shares.lock();
        calls.running.retain(|call| call.id != self.id);
        calls.waiting.retain(|(call, _)| call.id != self.id);
        calls.start_waiting(&self.shares.limits, Instant::now());
    }
}

impl BlockingShares {
    const fn new(limits: ShareLimits) -> Self {
        let calls = Calls { next_id: 0, running: Vec::new(), waiting: VecDeque::new() };
        Self { limits, calls: Mutex::new(calls) }
    }

    async fn call<T: Send + 'static>(
        &'static self,
        owner: WorkOwner,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T, ShareError> {
        let place = self.place(owner).await?;
        let done = panics::spawn_blocking(move || {
            let _place = place;
            work()
        });
        Ok(done.await?)
    }

    /// Waits until a call of `owner` may start.
    async fn place(&'static self, owner: WorkOwner) -> Result<SharePlace, ShareError> {
        let start = Arc::new(Notify::new());
        let place = self.enqueue(owner, start.clone())?;
        while !self.has_started(place.id)? {
            // Cancel safe: both arms only time the next look. A call becomes a long one without notice.
            tokio::select! {
                () = start.notified() => {}
                () = tokio::time::sleep(self.limits.long_after) => {}
            }
        }
        Ok(place)
    }

    fn enqueue(
        &'static self,
        owner: WorkOwner,
        start: Arc<Notify>,
    ) -> Result<SharePlace, ShareError> {
        let mut calls = self.lock();
        let waiting = calls.waiting.len();
        if waiting >= self.limits.waiting {
            return Err(ShareError::TooManyWait(waiting));
        }
        let id = calls.next_id;
        calls.next_id = id.wrapping_add(1);
        calls.waiting.push_back((Call { id, owner, since: Instant::now() }, start));
        Ok(SharePlace { shares: self, id })
    }

    fn has_started(&self, id: u64) -> Result<bool, ShareError> {
        let now = Instant::now();
        let mut calls = self.lock();
        calls.start_waiting(&self.limits, now);
        match calls.waiting.iter().find(|(call, _)| call.id == id) {
            None => Ok(true),
            Some((call, _)) => match calls.hanging(&call.owner, &self.limits, now) {
                Some(hanging) => Err(hanging),
                None => Ok(false),
            },
        }
    }

    fn lock(&self) -> MutexGuard<'_, Calls> {
        self.calls.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Calls {
    /// Starts the waiting calls that the bounds allow.
    fn start_waiting(&mut self, limits: &ShareLimits, now: Instant) {
        let mut at = 0;
        while at < self.waiting.len() && self.has_room(limits, now) {
            let may_start =
                self.waiting.get(at).is_some_and(|(call, _)| self.has_share(&call.owner, limits));
            if !may_start {
                at += 1;
                continue;
            }
            let Some((call, start)) = self.waiting.remove(at) else { return };
            self.running.push(Call { since: now, ..call });
            start.notify_one();
        }
    }

    fn has_room(&self, limits: &ShareLimits, now: Instant) -> bool {
        let short = self.running.iter().filter(|call| call.age(now) < limits.long_after).count();
        self.running.len() < limits.calls && short < limits.short
    }

    fn has_share(&self, owner: &WorkOwner, limits: &ShareLimits) -> bool {
        let of_group = self.running.iter().filter(|call| call.owner.group == owner.group);
        let of_owner = of_group.clone().filter(|call| call.owner == *owner);
        of_group.count() < limits.group && of_owner.count() < limits.owner
    }

    /// The bound that keeps calls of `owner` waiting, if all calls at it hang.
    fn hanging(&self, owner: &WorkOwner, limits: &ShareLimits, now: Instant) -> Option<ShareError> {
        let of_group = |call: &&Call| call.owner.group == owner.group;
        let group = || self.running.iter().filter(of_group);
        let own = || group().filter(|call| call.owner == *owner);
        let all = || self.running.iter();
        hang(own(), limits.owner, limits, now, || owner.to_string())
            .or_else(|| hang(group(), limits.group, limits, now, || owner.group.clone()))
            .or_else(|| hang(all(), limits.calls, limits, now, || "all pods".to_owned()))
    }
}

impl Call {
    fn age(&self, now: Instant) -> Duration {
        now.saturating_duration_since(self.since)
    }
}

/// The error if these calls reach the bound and all of them hang.
fn hang<'a>(
    calls: impl Iterator<Item = &'a Call>,
    max: usize,
    limits: &ShareLimits,
    now: Instant,
    owners: impl FnOnce() -> String,
) -> Option<ShareError> {
    let ages: Vec<Duration> = calls.map(|call| call.age(now)).collect();
    let youngest = ages.iter().min().copied()?;
    (ages.len() >= max && youngest >= limits.hangs_after).then(|| ShareError::Hanging {
        owners: owners(),
        calls: ages.len(),
        secs: youngest.as_secs(),
    })
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use super::*;

    const HOUR: Duration = Duration::from_secs(3600);

    const LIMITS: ShareLimits = ShareLimits {
        calls: 5,
        short: 5,
        group: 3,
        owner: 2,
        waiting: 4,
        long_after: Duration::from_millis(1),
        hangs_after: Duration::from_millis(1),
    };

    fn shares(limits: ShareLimits) -> &'static BlockingShares {
        Box::leak(Box::new(BlockingShares::new(limits)))
    }

    fn owner(group: &str, name: &str) -> WorkOwner {
        WorkOwner { group: group.to_owned(), name: name.to_owned() }
    }

    /// A call that returns when its sender is dropped.
    async fn hang_call(shares: &'static BlockingShares, of: WorkOwner) -> mpsc::Sender<()> {
        let (release, wait) = mpsc::channel::<()>();
        let before = shares.lock().running.len();
        tokio::spawn(shares.call(of, move || {
            let _ = wait.recv();
        }));
        while shares.lock().running.len() == before {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        release
    }

    #[tokio::test]
    async fn calls_that_hang_keep_only_their_owner_and_then_their_group_from_others() {
        let shares = shares(LIMITS);
        let mut hung = Vec::new();
        for _ in 0..2 {
            hung.push(hang_call(shares, owner("ns", "a")).await);
        }
        let refused = shares.call(owner("ns", "a"), || 1).await.expect_err("its share hangs");
        assert!(refused.to_string().starts_with("2 earlier calls on files of ns/a "), "{refused}");
        assert_eq!(shares.call(owner("ns", "b"), || 2).await.expect("another pod"), 2);
        hung.push(hang_call(shares, owner("ns", "b")).await);
        let refused = shares.call(owner("ns", "c"), || 3).await.expect_err("the group's share");
        assert!(refused.to_string().starts_with("3 earlier calls on files of ns "), "{refused}");
        assert_eq!(shares.call(owner("other", "a"), || 4).await.expect("another group"), 4);
        for name in ["d", "e"] {
            hung.push(hang_call(shares, owner("other", name)).await);
        }
        let refused = shares.call(owner("third", "a"), || 5).await.expect_err("all hang");
        assert!(refused.to_string().contains("all pods"), "{refused}");
        drop(hung);
        let again = Duration::from_millis(1);
        while !shares.lock().running.is_empty() {
            tokio::time::sleep(again).await;
        }
        assert_eq!(shares.call(owner("ns", "a"), || 6).await.expect("all have returned"), 6);
        let calls = shares.lock();
        assert!(calls.running.is_empty() && calls.waiting.is_empty());
    }

    #[tokio::test]
    async fn a_call_waits_for_its_turn_and_can_be_dropped_before_and_after_it_starts() {
        let shares = shares(ShareLimits { long_after: HOUR, hangs_after: HOUR, ..LIMITS });
        let first = shares.place(owner("ns", "a")).await.expect("a place");
        let second = shares.place(owner("ns", "a")).await.expect("a place");
        let waits = tokio::spawn(shares.place(owner("ns", "a")));
        let given_up = tokio::spawn(shares.place(owner("ns", "a")));
        while shares.lock().waiting.len() < 2 {
            tokio::task::yield_now().await;
        }
        given_up.abort();
        assert!(given_up.await.is_err());
        assert_eq!(shares.lock().waiting.len(), 1);
        drop(first);
        let third = waits.await.expect("joined").expect("its turn");
        drop((second, third));
        assert!(shares.lock().running.is_empty());
    }

    #[tokio::test]
    async fn as_many_wait_as_the_bound_allows() {
        let shares =
            shares(ShareLimits { owner: 0, long_after: HOUR, hangs_after: HOUR, ..LIMITS });
        let waiting: Vec<_> =
            (0..LIMITS.waiting).map(|_| tokio::spawn(shares.place(owner("ns", "a")))).collect();
        while shares.lock().waiting.len() < LIMITS.waiting {
            tokio::task::yield_now().await;
        }
        let refused = shares.call(owner("ns", "b"), || ()).await;
        assert!(matches!(refused, Err(ShareError::TooManyWait(4))), "{refused:?}");
        waiting.iter().for_each(tokio::task::JoinHandle::abort);
    }

    #[tokio::test(start_paused = true)]
    async fn calls_that_take_long_make_room_for_others_up_to_the_bound() {
        let limits = ShareLimits { short: 2, long_after: Duration::from_secs(1), ..LIMITS };
        let shares = shares(ShareLimits { hangs_after: HOUR, ..limits });
        let mut places = Vec::new();
        for name in ["a", "b", "c", "d", "e"] {
            places.push(shares.place(owner(name, name)).await.expect("a place"));
            let now = Instant::now();
            let short = places.len().min(2);
            let is_short = |call: &&Call| call.age(now) < limits.long_after;
            assert!(shares.lock().running.iter().filter(is_short).count() <= short);
        }
        let sixth = tokio::time::timeout(HOUR / 2, shares.place(owner("f", "f"))).await;
        assert!(sixth.is_err(), "five is the bound");
    }

    #[tokio::test]
    async fn a_panic_frees_its_place() {
        let shares = shares(LIMITS);
        let failed = shares.call(owner("ns", "a"), || panic!("in a call")).await;
        assert!(matches!(failed, Err::<(), _>(ShareError::Interrupted(_))));
        assert!(shares.lock().running.is_empty());
    }
}
