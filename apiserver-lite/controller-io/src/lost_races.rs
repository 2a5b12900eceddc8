//! Races that runs of keys have lost against other writers: another client has changed an object since the cache showed it. That is no failure, and the next
//! run, from a newer cache, decides it. But a webhook may answer each write with a conflict: the waits grow, and too many in a row are a failure.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use proto_client::ClientError;
use proto_daemon::backoff::Backoff;

use crate::expiring_map::ExpiringMap;

/// The wait for the caches after a lost race.
const WAIT: Backoff = Backoff { first: Duration::from_millis(50), longest: Duration::from_secs(5) };
/// How many races in a row are no failure.
const IN_A_ROW_MAX: u32 = 6;
/// How long the races of a key are remembered that is not run again.
const KEPT: Duration = Duration::from_secs(3600);

/// Whether the object's uid or version was not the one of the write. Other answers with 409 are refusals, for example of a webhook.
pub fn is_lost_race(error: &ClientError) -> bool {
    error.is_conflict() && error.reason() == "Conflict"
}

/// How many races each key has lost in a row.
#[derive(Debug)]
pub struct LostRaces<K>(Mutex<ExpiringMap<K, u32>>);

impl<K: Ord> Default for LostRaces<K> {
    fn default() -> Self {
        Self(Mutex::new(ExpiringMap::new(KEPT)))
    }
}

impl<K: Ord + Clone> LostRaces<K> {
    /// Whether the key may lose another race without a failure.
    pub fn may_lose(&self, key: &K) -> bool {
        self.counts().get_mut(key).is_none_or(|(_, count)| *count < IN_A_ROW_MAX)
    }

    /// What a run of the key gave; after a lost race that is when to run it again, unless it has lost too many in a row.
    ///
    /// # Errors
    /// The run failed.
    pub fn retry<E>(
        &self,
        key: &K,
        run: Result<Option<Duration>, E>,
        is_race: impl Fn(&E) -> bool,
    ) -> Result<Option<Duration>, E> {
        let mut counts = self.counts();
        match run {
            Err(error) if is_race(&error) => {
                let count = counts.get_mut(key).map_or(0, |(_, count)| *count).saturating_add(1);
                counts.insert(key.clone(), count, Instant::now());
                match count <= IN_A_ROW_MAX {
                    true => Ok(Some(WAIT.delay(count, rand::random()))),
                    false => Err(error),
                }
            }
            Err(error) => Err(error),
            Ok(next) => {
                counts.remove(key);
                Ok(next)
            }
        }
    }

    fn counts(&self) -> MutexGuard<'_, ExpiringMap<K, u32>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use proto_api::meta::v1::Status;

    use super::*;

    #[test]
    fn only_the_reason_conflict_is_a_race() {
        let is_race = |code: i32, reason: &str| {
            let status = Box::new(Status { code, reason: reason.into(), ..Status::default() });
            is_lost_race(&ClientError::Api { request: String::new(), status, retry_after: None })
        };
        assert!(is_race(409, "Conflict"));
        for (code, reason) in
            [(409, ""), (409, "AlreadyExists"), (409, "Denied"), (403, "Conflict")]
        {
            assert!(!is_race(code, reason), "{code} {reason}");
        }
    }

    #[test]
    fn waits_grow_until_the_races_of_a_key_are_a_failure() {
        let races = LostRaces::default();
        let lose = |key: u8| races.retry(&key, Err("race"), |error| *error == "race");
        let mut before = Duration::ZERO;
        for _ in 0..IN_A_ROW_MAX {
            assert!(races.may_lose(&1));
            let wait = lose(1).expect("no failure").expect("a wait");
            assert!(wait >= Duration::from_millis(25) && wait >= before / 2, "{wait:?}");
            before = wait;
        }
        assert!(before >= Duration::from_millis(800), "{before:?}");
        assert!(!races.may_lose(&1) && races.may_lose(&2));
        assert_eq!((lose(1), lose(1)), (Err("race"), Err("race")));
        assert!(lose(2).is_ok(), "another key");
        // Other failures change nothing, a success ends the row.
        assert_eq!(races.retry(&1, Err("other"), |error| *error == "race"), Err("other"));
        assert_eq!(lose(1), Err("race"));
        let next = Some(Duration::from_secs(9));
        assert_eq!(races.retry(&1, Ok(next), |error: &&str| *error == "race"), Ok(next));
        assert!(races.may_lose(&1) && lose(1).is_ok());
    }
}
