//! io: the controller horizontalpodautoscaling: scales the targets of HorizontalPodAutoscalers (`apiserver_autoscaling` says to what).
//!
//! ```text
//!  watch of autoscalers ──▶ queue, and again each sync period ──▶ scale of the target ──▶ its pods and their metrics
//!                                                                            ▼
//!                                      status and events ◀── the target is scaled ◀── plan, with what is remembered of the autoscaler
//! ```

// Numbers come from API objects and from other programs.
#![cfg_attr(not(test), warn(clippy::arithmetic_side_effects))]

mod controller;
mod flags;
mod pod_metrics;
mod reconcile;
mod target;

pub use controller::{AutoscalingController, CONTROLLER};
pub use flags::AutoscalingFlags;
