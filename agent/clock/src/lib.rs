//! io: the boot clock and the wall clock; with the feature `testing`, virtual time that a test resets and steps.

#![cfg_attr(not(test), warn(clippy::arithmetic_side_effects))]

#[cfg(not(feature = "testing"))]
mod system_time;
mod timers;
#[cfg(feature = "testing")]
mod virtual_time;

#[cfg(not(feature = "testing"))]
pub use system_time::{IS_VIRTUAL, boot, now};
pub use timers::{after, instant};
/// Tests use the time of the tokio runtime, which they can pause and advance.
#[cfg(feature = "testing")]
pub use virtual_time::{IS_VIRTUAL, boot, now, reboot, reset, server_unix, since_began, step};
