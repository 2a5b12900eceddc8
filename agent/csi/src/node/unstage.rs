//! Unstages what no pod has any more. A pod's end does not wait for it: a driver that cannot unstage holds up no deletion, and is asked
//! again and again until it can. The volume counts as in use until then, so that nobody takes it from the node.

use std::collections::BTreeMap;
use std::io;
use std::path::PathBuf;
use std::time::Duration;

use futures_util::stream::{FuturesUnordered, StreamExt as _};
use tokio::time::{Instant, sleep_until};

use super::{CsiError, CsiNode, UNSTAGE, blocking};
use crate::driver::Driver;
use crate::record::{Record, gone};

/// After the first failure; twice as long after each other. The ecosystem's own figures.
const RETRY_MIN: Duration = Duration::from_millis(500);
/// The longest wait.
const RETRY_MAX: Duration = Duration::from_secs(122);
/// Between two looks when nothing has been heard.
const PERIOD: Duration = Duration::from_secs(60);

/// What has failed and is tried again, by the directory of its record. Bounded by the stages.
#[derive(Debug, Default)]
struct Waits(BTreeMap<PathBuf, Wait>);

#[derive(Clone, Copy, Debug)]
struct Wait {
    until: Instant,
    next: Duration,
}

impl Waits {
    fn is_due(&self, what: &PathBuf, now: Instant) -> bool {
        self.0.get(what).is_none_or(|wait| wait.until <= now)
    }

    fn failed(&mut self, what: PathBuf, now: Instant) {
        let next = self.0.get(&what).map_or(RETRY_MIN, |wait| wait.next);
        let wait = Wait { until: now + next, next: (next * 2).min(RETRY_MAX) };
        self.0.insert(what, wait);
    }

    fn first(&self, now: Instant) -> Instant {
        let all = self.0.values().map(|wait| wait.until).filter(|until| *until > now);
        all.min().unwrap_or(now + PERIOD).min(now + PERIOD)
    }
}

impl CsiNode {
    /// Unstages for ever what drivers have staged for nobody, each volume by itself; `told` hears of each failure, with the volume.
    pub async fn keep_unstaged(&self, told: impl Fn(&CsiError)) {
        let (mut news, mut drivers) = (self.users.changes().subscribe(), self.drivers.changes());
        let mut waits = Waits::default();
        let mut begun = BTreeMap::new();
        let mut under_way = FuturesUnordered::new();
        loop {
            let now = Instant::now();
            for record in self.abandoned() {
                let what = self.paths.stage_record(&record);
                if begun.contains_key(&what) || !waits.is_due(&what, now) {
                    continue;
                }
                let Some(driver) = self.drivers.get(&record.driver) else { continue };
                begun.insert(what.clone(), ());
                under_way.push(async move { (what, self.unstage(&driver, &record).await) });
            }
            // All arms are cancel safe: they only say that it is time to look.
            tokio::select! {
                Some((what, outcome)) = under_way.next() => {
                    begun.remove(&what);
                    match outcome {
                        Ok(()) => {
                            waits.0.remove(&what);
                        }
                        Err(error) => {
                            told(&error);
                            waits.failed(what, Instant::now());
                        }
                    }
                }
                _ = news.changed() => {}
                // A driver that comes again may be able to do what it was not.
                _ = drivers.changed() => waits.0.clear(),
                () = sleep_until(waits.first(now)) => {}
            }
        }
    }

    /// What is staged for nobody, for certain: not if a record could not be read that may be of a pod's that has the volume.
    fn abandoned(&self) -> Vec<Record> {
        let mut all = self.users.abandoned();
        if !self.unread.is_empty() {
            // A record of another agent does not name its volume.
            all.retain(|of| !of.spec_name.is_empty() && !self.unread.contains(&of.spec_name));
        }
        all
    }

    /// Unstages a volume unless a pod has it by now.
    async fn unstage(&self, driver: &Driver, record: &Record) -> Result<(), CsiError> {
        let shared = self.users.of(record);
        let _turn = shared.turn().await;
        if !shared.is_abandoned() {
            return Ok(());
        }
        shared.unstages();
        let (stage, directory) = (self.paths.stage(record), self.paths.stage_record(record));
        if driver.able.stage {
            let volume = || record.spec_name.clone();
            let failed = |source| CsiError::Call { step: UNSTAGE, volume: volume(), source };
            driver.unstage(&record.handle, &stage).await.map_err(failed)?;
        }
        let remove = move || -> io::Result<()> {
            gone(std::fs::remove_dir(&stage))?;
            Record::remove(&directory)
        };
        blocking(UNSTAGE, &record.spec_name, "remove the mount point", remove).await?;
        shared.unstaged();
        self.users.forget(record);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn waits_grow_to_a_bound() {
        let (mut waits, what) = (Waits::default(), PathBuf::from("a"));
        let now = Instant::now();
        assert!(waits.is_due(&what, now));
        assert_eq!(waits.first(now), now + PERIOD);
        let mut last = Duration::ZERO;
        for _ in 0..12 {
            waits.failed(what.clone(), now);
            assert!(!waits.is_due(&what, now));
            let wait = waits.0[&what].until - now;
            assert!(wait > last || wait == RETRY_MAX, "{wait:?}");
            last = wait;
        }
        assert_eq!(last, RETRY_MAX);
        waits.failed(PathBuf::from("b"), now);
        assert_eq!(waits.first(now), now + RETRY_MIN);
        assert!(waits.is_due(&what, now + RETRY_MAX));
    }
}
