//! Pure: the resource metrics of nodes and pods (`metrics.k8s.io`), from what nodes serve at `/metrics/resource`.
//!
//! ```text
//!  page of a node ──▶ exposition ──▶ Scrape ──▶ usage (the two last scrapes of each node) ──▶ rates ──▶ objects
//! ```

// Numbers come from API objects and from other programs.
#![cfg_attr(not(test), warn(clippy::arithmetic_side_effects))]

mod exposition;
mod objects;
mod usage;

pub use exposition::{PAGE_LEN_MAX, parse};
pub use objects::{node_metrics, pod_metrics};
pub use usage::{Measurement, NodeUsage, PodKey, Scrape, UsageSample, UsedBy};
