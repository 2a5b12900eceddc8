//! Between two passes: waiting, and finding out that others have changed the ruleset.
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

use proxy_kernel::Notices;
use tokio::io::unix::AsyncFd;
use tokio::time::sleep_until;

use super::sys;

/// How often the generation is compared, a question of microseconds, where nobody tells of changes.
const GLANCE: Duration = Duration::from_millis(500);
/// And where the kernel does.
const BACK_STOP: Duration = Duration::from_secs(30);
/// So long there has to be nothing to commit before listening is worth its calls.
const QUIET: Duration = Duration::from_millis(20);
/// Shortest time between two looks: others may change tables of their own all the time.
const BETWEEN_LOOKS: Duration = Duration::from_millis(100);

/// Finds out what others do to the ruleset.
pub struct Vigil {
    notices: Option<AsyncFd<Notices>>,
    listens: bool,
    looked: Option<Instant>,
    look_at: Option<Instant>,
}

impl Vigil {
    /// With the notices of the kernel, or without.
    pub fn new(notices: Option<Notices>) -> Self {
        let registered = notices.map(sys::readiness);
        let notices = registered.transpose().unwrap_or_else(|error| {
            tracing::warn!(%error, "others' changes are not told; looking for them");
            None
        });
        Self { notices, listens: false, looked: None, look_at: None }
    }

    /// How often to compare the generation.
    pub fn glance(&self) -> Duration {
        if self.notices.is_some() { BACK_STOP } else { GLANCE }
    }

    /// Before a transaction: it is told to nobody.
    pub fn rest(&mut self) {
        if std::mem::take(&mut self.listens)
            && let Some(notices) = &mut self.notices
        {
            notices.get_mut().rest();
        }
    }

    /// The tables were looked at.
    pub fn looked(&mut self) {
        self.looked = Some(Instant::now());
        self.look_at = None;
    }

    /// Returns when `pause` is over, or as soon as somebody seems to have changed something; `changed` compares the
    /// generation. Cancel safe: what was noticed stays noticed.
    pub async fn keep(&mut self, pause: Duration, mut changed: impl FnMut() -> bool) {
        let until = Instant::now().checked_add(pause);
        while self.notices.is_some() {
            if let Some(at) = self.look_at {
                return wait(Some(until.map_or(at, |until| until.min(at)))).await;
            }
            if self.listens {
                // Both arms are cancel safe.
                tokio::select! {
                    () = self.noticed() => {}
                    () = wait(until) => return,
                }
                self.suspect();
                continue;
            }
            let quiet = Instant::now() + QUIET;
            if until.is_some_and(|until| until <= quiet) {
                break;
            }
            wait(Some(quiet)).await;
            self.listen();
            if changed() {
                self.suspect();
            }
        }
        wait(until).await;
    }

    fn listen(&mut self) {
        let Some(notices) = &mut self.notices else { return };
        match notices.get_mut().listen() {
            Ok(()) => self.listens = true,
            Err(error) => {
                tracing::warn!(%error, "others' changes are not told; looking for them");
                self.notices = None;
            }
        }
    }

    fn suspect(&mut self) {
        let now = Instant::now();
        let at = self.looked.map_or(now, |looked| now.max(looked + BETWEEN_LOOKS));
        self.look_at = Some(at);
    }

    /// Returns once there was a notice. Cancel safe.
    async fn noticed(&mut self) {
        let Some(notices) = &mut self.notices else { return pending().await };
        loop {
            let Ok(mut ready) = notices.readable_mut().await else { return pending().await };
            let told = ready.get_inner_mut().take();
            ready.clear_ready();
            if told {
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
