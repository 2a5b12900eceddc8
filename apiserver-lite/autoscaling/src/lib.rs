//! Pure: the plan of the HorizontalPodAutoscaler controller, as in Kubernetes 1.25 (`autoscaling/v2`).
//!
//! ```text
//!  scale of the target ──▶ needs ──▶ pods and their metrics, if they matter
//!                                         ▼
//!  spec, status, history ──────────────▶ plan: metrics ──▶ sizing ──▶ behavior ──▶ replicas, conditions, events
//!                                         ▼
//!                              the target is scaled ──▶ Plan::scaled, Plan::not_scaled ──▶ status
//! ```

// Numbers come from API objects and from other programs.
#![cfg_attr(not(test), warn(clippy::arithmetic_side_effects))]

mod behavior;
mod clocks;
mod conditions;
mod error;
mod history;
mod metrics;
mod plan;
mod replicas;
mod settings;
#[cfg(test)]
mod simulation;
mod sizing;
#[cfg(test)]
mod testing;

pub use clocks::Clocks;
pub use error::NoUsage;
pub use history::ScaleHistory;
pub use metrics::{ContainerUsage, PodUsage};
pub use plan::{
    AutoscalerEvent, ObservedAutoscaler, Outcome, Scale, ScalePlan, Severity, needs_metrics, plan,
    without_scale,
};
pub use settings::AutoscalerSettings;
