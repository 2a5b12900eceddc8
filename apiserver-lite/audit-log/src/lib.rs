//! io: where events of the audit log go: a file that is rotated, standard output, a remote service. What is recorded decides `apiserver-audit`.
//!
//! ```text
//!  request ── event ──▶ Queue ──▶ thread: one write for all that wait ──▶ file
//!              ▲          │
//!              │          └─────▶ task: one list for all that wait ──▶ webhook
//!              └─ stored? (modes blocking and blocking-strict)
//! ```

mod audit_log;
mod log_writer;
mod metrics;
mod queue;
mod rotating_file;
mod webhook_sender;

pub use audit_log::{AuditLog, AuditLogError};
pub use metrics::AuditMetrics;
