//! Pure: the resource metrics of nodes and pods (`metrics.k8s.io`), from what nodes serve at `/metrics/resource`.
//!
//! ```text
//!  page of a node ──▶ exposition ──▶ Scrape ──▶ usage (the two last scrapes of each node) ──▶ rates ──▶ objects
//! ```

mod exposition;
mod objects;
mod usage;

pub use exposition::{PAGE_LEN_MAX, parse};
pub use objects::{node_metrics, pod_metrics};
pub use usage::{Measurement, NodeUsage, PodKey, Scrape, UsageSample, UsedBy};
