//! pure: ResourceQuota: what objects use, which quotas count it, and whether a write fits, as in Kubernetes 1.25.
//!
//! [`charge`] decides about one write, from the quotas of its namespace; [`QuotaUsage`] adds up what a namespace uses.
//!
//! ```text
//!  object (and its old version) ──▶ amounts by resource ──┐
//!                                                         ▼
//!  quotas: spec.scopes, status.hard, status.used ──▶ charge ──▶ new status.used of each quota, or why not
//!  everything in the namespace ──▶ Usage ──▶ status.used, recalculated
//! ```

// Numbers come from API objects and from other programs.
#![cfg_attr(not(test), warn(clippy::arithmetic_side_effects))]

mod charge;
mod counted_resources;
mod pods;
mod resource_amounts;
mod scopes;
mod usage;

pub use charge::{Charge, QuotaRefusal, charge};
pub use counted_resources::{Counted, CountedResource};
pub use resource_amounts::ResourceList;
pub use usage::{QuotaUsage, with_growth};

#[cfg(test)]
mod histories;
