//! Waits between two passes and detects that another program changed the ruleset.
//!
//! ```text
//!            20 ms without a pass         notification
//!  (idle) ----------------------> subscribed ----------> a check is due, at most one every 100 ms
//!      ^                            |                   |
//!      '------- before a pass ------'<----- checked ----'
//! ```
//!
//! The kernel notifies subscribers of every element of the proxy's own transactions too, so the group is joined only
//! while there is nothing to commit. The generation is compared after joining, for changes while it was not joined,
//! and every 30 s, for lost notifications.

use std::future::pending;
use std::time::{Duration, Instant};

use proxy_kernel::NftMonitor;
use tokio::io::unix::AsyncFd;
use tokio::time::sleep_until;

use super::sys;

/// Interval of comparing the generation without notifications; one comparison takes microseconds.
const POLL_INTERVAL: Duration = Duration::from_millis(500);
/// The same with notifications.
const FALLBACK_POLL_INTERVAL: Duration = Duration::from_secs(30);
/// Idle time before subscribing.
const SUBSCRIBE_DELAY: Duration = Duration::from_millis(20);
/// Minimum time between two checks: other programs may change their own tables continually.
const VERIFY_INTERVAL_MIN: Duration = Duration::from_millis(100);

/// Detects commits by other programs.
pub struct RulesetMonitor {
    nft_monitor: Option<AsyncFd<NftMonitor>>,
    subscribed: bool,
    verified_at: Option<Instant>,
    verify_at: Option<Instant>,
}

impl RulesetMonitor {
    /// Uses notifications if `nft_monitor` is given and can be registered.
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

    /// Interval of comparing the generation.
    pub fn poll_interval(&self) -> Duration {
        if self.nft_monitor.is_some() { FALLBACK_POLL_INTERVAL } else { POLL_INTERVAL }
    }

    /// Unsubscribes before a transaction, so that its own elements are not reported.
    pub fn unsubscribe(&mut self) {
        if std::mem::take(&mut self.subscribed)
            && let Some(nft_monitor) = &mut self.nft_monitor
        {
            nft_monitor.get_mut().unsubscribe();
        }
    }

    /// Records that the tables were checked.
    pub fn mark_verified(&mut self) {
        self.verified_at = Some(Instant::now());
        self.verify_at = None;
    }

    /// Returns after `pause`, or as soon as another program seems to have committed; `changed` compares the
    /// generation. Cancel safe: a pending check stays pending.
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

    /// Returns after a notification. Cancel safe.
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
