//! Notification of memory stalls (pressure stall information).

use std::fs::{File, OpenOptions};
use std::io::Write as _;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;
use std::time::Duration;

use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

use crate::sys;

/// Pressure file of the whole machine's memory.
pub const MEMORY: &str = "/proc/pressure/memory";
/// Window of the trigger. Two seconds need no privileges.
const WINDOW: Duration = Duration::from_secs(2);

/// A trigger for memory stalls.
#[derive(Debug)]
pub struct StallDetector {
    // Closing it removes the trigger.
    trigger: AsyncFd<File>,
}

impl StallDetector {
    /// Creates a trigger for stalls of `stalled` within two seconds. Needs a tokio runtime.
    ///
    /// # Errors
    /// The kernel has no PSI or rejects the trigger.
    pub fn watch(file: &Path, stalled: Duration) -> std::io::Result<Self> {
        let nonblocking = i32::try_from(rustix::fs::OFlags::NONBLOCK.bits()).unwrap_or(0);
        let mut trigger =
            OpenOptions::new().read(true).write(true).custom_flags(nonblocking).open(file)?;
        let text = format!("some {} {}\0", stalled.as_micros(), WINDOW.as_micros());
        trigger.write_all(text.as_bytes())?;
        Ok(Self { trigger: sys::async_fd(trigger, Interest::PRIORITY)? })
    }

    /// Waits until the trigger fires, at most once per window. Cancel safe.
    ///
    /// # Errors
    /// The pressure file is no longer available.
    pub async fn wait(&self) -> std::io::Result<()> {
        let mut ready = self.trigger.ready(Interest::PRIORITY).await?;
        ready.clear_ready();
        if ready.ready().is_error() {
            return Err(std::io::Error::other("the kernel has dropped the trigger"));
        }
        Ok(())
    }
}

#[cfg(test)]
#[allow(clippy::print_stderr, reason = "a test that cannot run says so")]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_calm_machine_is_watched() {
        if !Path::new(MEMORY).exists() {
            eprintln!("SKIPPED a_calm_machine_is_watched: the kernel keeps no {MEMORY}");
            return;
        }
        let stall = match StallDetector::watch(Path::new(MEMORY), Duration::from_millis(1999)) {
            Ok(stall) => stall,
            Err(error) => {
                eprintln!("SKIPPED a_calm_machine_is_watched: {error}");
                return;
            }
        };
        // There is no stall to wait for: the test checks that the kernel accepts the trigger and that the wait can be cancelled.
        let soon = tokio::time::timeout(Duration::from_millis(20), stall.wait()).await;
        assert!(soon.is_err() || soon.is_ok_and(|signalled| signalled.is_ok()));
        assert!(StallDetector::watch(Path::new("/proc/pressure/none"), WINDOW).is_err());
    }
}
