//! Graceful stop: one [`Drain`] requests it, every [`DrainWatch`] is notified, and it is complete when the last watch has been dropped or the deadline
//! has passed.

use std::convert::Infallible;
use std::time::Duration;

use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

/// Requests the stop of the program.
#[derive(Debug)]
pub struct Drain {
    asked: CancellationToken,
    /// Closes when every watch has been dropped; nothing is ever sent.
    gone: mpsc::Receiver<Infallible>,
    alive: Option<mpsc::Sender<Infallible>>,
}

/// Held by each part that must finish work before the program ends, and dropped when that is done.
#[derive(Clone, Debug)]
pub struct DrainWatch {
    asked: CancellationToken,
    _alive: mpsc::Sender<Infallible>,
}

/// How a drain ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DrainOutcome {
    /// Every part has finished.
    Finished,
    /// The deadline passed first; remaining work is aborted with the process.
    DeadlinePassed,
}

impl Default for Drain {
    fn default() -> Self {
        let (alive, gone) = mpsc::channel(1);
        Self { asked: CancellationToken::new(), gone, alive: Some(alive) }
    }
}

impl Drain {
    /// A watch for one part; one made after the drain has begun is notified at once.
    pub fn watch(&self) -> DrainWatch {
        let alive = self.alive.clone().unwrap_or_else(|| mpsc::channel(1).0);
        DrainWatch { asked: self.asked.clone(), _alive: alive }
    }

    /// Notifies every part and waits until all have stopped, at most until `deadline`.
    pub async fn drain(mut self, deadline: Duration) -> DrainOutcome {
        self.asked.cancel();
        self.alive = None;
        match tokio::time::timeout(deadline, self.gone.recv()).await {
            Ok(_) => DrainOutcome::Finished,
            Err(_) => DrainOutcome::DeadlinePassed,
        }
    }
}

impl DrainWatch {
    /// Returns once the program is to stop. Cancel safe.
    pub async fn asked(&self) {
        self.asked.cancelled().await;
    }

    /// Whether the program is to stop.
    pub fn is_asked(&self) -> bool {
        self.asked.is_cancelled()
    }
}

/// Waits for SIGTERM or SIGINT and names it. The handlers are installed by the first poll and stay.
pub async fn stop_signal() -> std::io::Result<&'static str> {
    let mut terminate = signal(SignalKind::terminate())?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    // Both are cancel safe: a signal that arrived is kept for the next recv.
    tokio::select! {
        _ = terminate.recv() => Ok("SIGTERM"),
        _ = interrupt.recv() => Ok("SIGINT"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn waits_for_the_last_watch() {
        let drain = Drain::default();
        let watch = drain.watch();
        let copy = watch.clone();
        drop(watch);
        let part = tokio::spawn(async move {
            copy.asked().await;
            tokio::time::sleep(Duration::from_secs(3)).await;
        });
        assert_eq!(drain.drain(Duration::from_secs(10)).await, DrainOutcome::Finished);
        part.await.expect("part ended");
    }

    #[tokio::test(start_paused = true)]
    async fn gives_up_at_the_deadline() {
        let drain = Drain::default();
        let watch = drain.watch();
        assert!(!watch.is_asked());
        assert_eq!(drain.drain(Duration::from_secs(1)).await, DrainOutcome::DeadlinePassed);
        assert!(watch.is_asked());
    }

    #[tokio::test(start_paused = true)]
    async fn a_drain_without_watches_ends_at_once() {
        assert_eq!(Drain::default().drain(Duration::from_secs(1)).await, DrainOutcome::Finished);
    }
}
