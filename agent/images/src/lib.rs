//! io: images of the node: pulls with credentials, shared between pods, and limited in number and rate.
//!
//! [`image_gc`] removes unused images under disk pressure, [`import_dir`] imports image archives.

#![cfg_attr(not(test), warn(clippy::arithmetic_side_effects))]

mod credentials;
pub mod image_gc;
pub mod import_dir;
mod progress;
mod provider;
mod pull_queue;
mod pull_stall;
mod pulls;

pub use credentials::{CredentialSources, missing_secrets};
pub use progress::PROGRESS_AFTER;
pub use provider::Providers;
pub use pull_stall::STANDSTILL;
pub use pulls::{Images, PodImages, PullBounds, PullError, parse};
