//! The kernel's word that tasks wait for memory (pressure stall information), as soon as it happens.

use std::fs::{File, OpenOptions};
use std::io::Write as _;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;
use std::time::Duration;

use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

use crate::sys;

/// Where the kernel tells of the whole machine's memory.
pub const MEMORY: &str = "/proc/pressure/memory";
/// Over which time stalls are added up. Two seconds is what the kernel grants everybody.
const WINDOW: Duration = Duration::from_secs(2);

/// Tells when some task has waited for too long.
#[derive(Debug)]
pub struct Stall {
    // The kernel forgets the trigger when this is closed.
    trigger: AsyncFd<File>,
}

impl Stall {
    /// Tells when tasks have waited `stalled` within two seconds. Needs a runtime.
    ///
    /// # Errors
    /// The kernel keeps no such account, or refuses the trigger.
    pub fn watch(file: &Path, stalled: Duration) -> std::io::Result<Self> {
        let nonblocking = i32::try_from(rustix::fs::OFlags::NONBLOCK.bits()).unwrap_or(0);
        let mut trigger =
            OpenOptions::new().read(true).write(true).custom_flags(nonblocking).open(file)?;
        let text = format!("some {} {}\0", stalled.as_micros(), WINDOW.as_micros());
        trigger.write_all(text.as_bytes())?;
        Ok(Self { trigger: sys::awaited(trigger, Interest::PRIORITY)? })
    }

    /// Waits until it happens, at most once a window. Cancel safe.
    ///
    /// # Errors
    /// The account is gone.
    pub async fn happens(&self) -> std::io::Result<()> {
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
        let stall = match Stall::watch(Path::new(MEMORY), Duration::from_millis(1999)) {
            Ok(stall) => stall,
            Err(error) => {
                eprintln!("SKIPPED a_calm_machine_is_watched: {error}");
                return;
            }
        };
        // Nothing to wait for: whether the kernel takes the trigger and the wait can be given up is what is asked here.
        let soon = tokio::time::timeout(Duration::from_millis(20), stall.happens()).await;
        assert!(soon.is_err() || soon.is_ok_and(|told| told.is_ok()));
        assert!(Stall::watch(Path::new("/proc/pressure/none"), WINDOW).is_err());
    }
}
