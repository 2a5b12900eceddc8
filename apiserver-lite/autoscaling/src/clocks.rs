//! The two clocks of a look at an autoscaler.

use std::time::Instant;

use proto_api::Time;

/// The current time by both clocks. What is remembered has times of the steady one: the wall clock may be set forward and back, and a time in the future would
/// count for as long as it is there.
#[derive(Clone, Copy, Debug)]
pub struct Clocks {
    /// Only goes forward.
    pub steady: Instant,
    /// The one that statuses and pods have times of.
    pub wall: Time,
}
