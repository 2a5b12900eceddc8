//! io: the controller resourcequota: counts what namespaces use of their quotas (`apiserver_quota` says how), and writes it to `status`.
//!
//! What is created or grows is charged by the API server in the same commit; the controller recalculates when a quota is new or changed, when
//! something that it counts has gone or shrunk, and from time to time.
//!
//! ```text
//!  watch of quotas ──▶ kinds that they count ──▶ a watch of each ──┐ gone or changed
//!        │ new, changed                                            ▼
//!        └────────────────────────────────────────▶ queue ──▶ read the quota, then list, then write if the quota is still as read
//! ```

// Numbers come from API objects and from other programs.
#![cfg_attr(not(test), warn(clippy::arithmetic_side_effects))]

mod controller;
mod kinds;
mod recount;
mod watches;

pub use controller::{CONTROLLER, QuotaController};
