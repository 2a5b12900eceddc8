//! Between two passes: waiting, and detecting that another program changed the ruleset.
//!
//! ```text
//!            20 ms without a pass         notice
//!  (resting) -------------------> listens -------> a look is due, at most one each 100 ms
//!      ^                            |                   |
//!      '------- before a pass ------'<------ looked ----'
//! ```
//!
//! The kernel tells a listener of each of our own elements as well, so nobody listens while there is something to
//! commit. The ruleset's generation is compared when listening begins, for what happened in between, and now and then
//! in case a notice was lost.

use std::future::pending;
use std::time::{Duration, Instant};

use proxy_kernel::NftMonitor;
use tokio::io::unix::AsyncFd;
use tokio::time::sleep_until;

use super::sys;

/// How often the generation is compared without notifications; one comparison takes microseconds.
const POLL_INTERVAL: Duration = Duration::from_millis(500);
/// How often it is compared with notifications.
const FALLBACK_POLL_INTERVAL: Duration = Duration::from_secs(30);
/// Idle time before subscribing to ruleset notifications.
const SUBSCRIBE_DELAY: Duration = Duration::from_millis(20);
/// Shortest time between two checks: other programs may change their own tables all the time.
const VERIFY_INTERVAL_MIN: Duration = Duration::from_millis(100);

/// Detects changes of the ruleset by other programs.
pub struct RulesetMonitor {
    nft_monitor: Option<AsyncFd<NftMonitor>>,
    subscribed: bool,
    verified_at: Option<Instant>,
    verify_at: Option<Instant>,
}

impl RulesetMonitor {
    /// With the notices of the kernel, or without.
    pub fn new(nft_monitor: Option<NftMonitor>) -> Self {
        let registered = nft_monitor.map(sys::register);
        let nft_monitor = registered.transpose().unwrap_or_else(|error| {
            tracing::warn!(
                %error,
                "cannot subscribe to nftables notifications; polling the ruleset generation instead"
            );
            None
        });
        Self { nft_monitor, subscribed: false, verified_at: None, verify_at: None }
    }

    /// How often to compare the generation.
    pub fn poll_interval(&self) -> Duration {
        if self.nft_monitor.is_some() { FALLBACK_POLL_INTERVAL } else { POLL_INTERVAL }
    }

    /// Unsubscribes before a transaction, so that its elements are not reported.
    pub fn unsubscribe(&mut self) {
        if std::mem::take(&mut self.subscribed)
            && let Some(nft_monitor) = &mut self.nft_monitor
        {
            nft_monitor.get_mut().unsubscribe();
        }
    }

    /// The tables were looked at.
    pub fn mark_verified(&mut self) {
        self.verified_at = Some(Instant::now());
        self.verify_at = None;
    }

    /// Returns when `pause` is over, or as soon as somebody seems to have changed something; `changed` compares the
    /// generation. Cancel safe: what was noticed stays noticed.
    pub async fn wait_for_change(&mut self, pause: Duration, mut changed: impl FnMut() -> bool) {
        let until = Instant::now().checked_add(pause);
        while self.nft_monitor.is_some() {
            if let Some(at) = self.verify_at {
                return wait(Some(until.map_or(at, |until| until.min(at)))).await;
            }
            if self.subscribed {
                // Both arms are cancel safe.
                tokio::select! {
                    () = self.wait_for_notification() => {}
                    () = wait(until) => return,
                }
                self.schedule_verify();
                continue;
            }
            let quiet = Instant::now() + SUBSCRIBE_DELAY;
            if until.is_some_and(|until| until <= quiet) {
                break;
            }
            wait(Some(quiet)).await;
            self.subscribe();
            if changed() {
                self.schedule_verify();
            }
        }
        wait(until).await;
    }

    fn subscribe(&mut self) {
        let Some(nft_monitor) = &mut self.nft_monitor else { return };
        match nft_monitor.get_mut().subscribe() {
            Ok(()) => self.subscribed = true,
            Err(error) => {
                tracing::warn!(
                    %error,
                    "cannot subscribe to nftables notifications; polling the ruleset generation instead"
                );
                self.nft_monitor = None;
            }
        }
    }

    fn schedule_verify(&mut self) {
        let now = Instant::now();
        let at = self.verified_at.map_or(now, |verified| now.max(verified + VERIFY_INTERVAL_MIN));
        self.verify_at = Some(at);
    }

    /// Returns once there was a notice. Cancel safe.
    async fn wait_for_notification(&mut self) {
        let Some(nft_monitor) = &mut self.nft_monitor else { return pending().await };
        loop {
            let Ok(mut ready) = nft_monitor.readable_mut().await else { return pending().await };
            let changed = ready.get_inner_mut().take_changed();
            ready.clear_ready();
            if changed {
                return;
            }
        }
    }
}

async fn wait(until: Option<Instant>) {
    match until {
        Some(until) => sleep_until(until.into()).await,
        None => pending().await,
    }
}
