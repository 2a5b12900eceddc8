//! pure: schedules of CronJobs: their grammar, and the times that follow a time, in any time zone.

// Numbers come from API objects.
#![cfg_attr(not(test), warn(clippy::arithmetic_side_effects))]

pub mod schedule;
pub mod zone;
