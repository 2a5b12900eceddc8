//! Unstages volumes that no pod uses. Pod deletion does not wait for it: a driver that fails to unstage is retried until it
//! succeeds. Until then the volume counts as in use, so it is not detached.

use std::collections::BTreeMap;
use std::io;

use futures_util::stream::{FuturesUnordered, StreamExt as _};
use tokio::time::{Instant, sleep_until};

use super::{CsiError, CsiNode, UNSTAGE, blocking};
use crate::driver::Driver;
use crate::record::{VolumeRecord, ignore_missing};
use crate::retry_times::RetryTimes;

impl CsiNode {
    /// Unstages unused volumes forever, each independently; `report` is called with each failure.
    pub async fn keep_unstaged(&self, report: impl Fn(&CsiError)) {
        let (mut news, mut drivers) = (self.users.changes().subscribe(), self.drivers.changes());
        let mut waits = RetryTimes::default();
        let mut begun = BTreeMap::new();
        let mut under_way = FuturesUnordered::new();
        loop {
            let now = Instant::now();
            for record in self.unused_stages() {
                let what = self.paths.stage_record(&record);
                if begun.contains_key(&what) || !waits.is_due(&what, now) {
                    continue;
                }
                let Some(driver) = self.drivers.get(&record.driver) else { continue };
                begun.insert(what.clone(), ());
                under_way.push(async move { (what, self.unstage(&driver, &record).await) });
            }
            // All branches are cancel safe: they only trigger another check.
            tokio::select! {
                Some((what, outcome)) = under_way.next() => {
                    begun.remove(&what);
                    match outcome {
                        Ok(()) => {
                            waits.record_success(&what);
                        }
                        Err(error) => {
                            report(&error);
                            waits.record_failure(what, Instant::now());
                        }
                    }
                }
                _ = news.changed() => {}
                // A driver that registered again may succeed where it failed.
                _ = drivers.changed() => waits.forget(),
                () = sleep_until(waits.first(now)) => {}
            }
        }
    }

    /// Volumes that are staged and certainly unused; a volume is not if an unreadable record may be that of a pod using it.
    fn unused_stages(&self) -> Vec<VolumeRecord> {
        let mut all = self.users.unused_stages();
        if !self.unread.is_empty() {
            // A kubelet's stage record does not name the volume.
            all.retain(|of| !of.spec_name.is_empty() && !self.unread.contains(&of.spec_name));
        }
        all
    }

    /// Unstages a volume unless a pod uses it by now.
    async fn unstage(&self, driver: &Driver, record: &VolumeRecord) -> Result<(), CsiError> {
        let shared = self.users.get(record);
        let _turn = shared.lock().await;
        if !shared.is_unused_stage() {
            return Ok(());
        }
        shared.begin_unstage();
        let (stage, directory) = (self.paths.stage(record), self.paths.stage_record(record));
        if driver.able.stage {
            let volume = || record.spec_name.clone();
            let failed = |source| CsiError::Call { step: UNSTAGE, volume: volume(), source };
            driver.unstage(&record.handle, &stage).await.map_err(failed)?;
        }
        let remove = move || -> io::Result<()> {
            ignore_missing(std::fs::remove_dir(&stage))?;
            VolumeRecord::remove(&directory)
        };
        blocking(UNSTAGE, &record.spec_name, "remove the mount point", remove).await?;
        shared.set_unstaged();
        self.users.forget(record);
        Ok(())
    }
}
