//! Unstages what no pod has any more. A pod's end does not wait for it: a driver that cannot unstage holds up no deletion, and is asked
//! again and again until it can. The volume counts as in use until then, so that nobody takes it from the node.

use std::collections::BTreeMap;
use std::io;

use futures_util::stream::{FuturesUnordered, StreamExt as _};
use tokio::time::{Instant, sleep_until};

use super::{CsiError, CsiNode, UNSTAGE, blocking};
use crate::driver::Driver;
use crate::record::{Record, gone};
use crate::waits::Waits;

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
                            waits.worked(&what);
                        }
                        Err(error) => {
                            told(&error);
                            waits.failed(what, Instant::now());
                        }
                    }
                }
                _ = news.changed() => {}
                // A driver that comes again may be able to do what it was not.
                _ = drivers.changed() => waits.forget(),
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
